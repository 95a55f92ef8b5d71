"""The picture of a report: differences to the reference, or the abilities of a single run.

matplotlib is imported only when a picture is asked for, and none of its settings are changed.
"""

from __future__ import annotations

import functools
import itertools
import re
import textwrap
import unicodedata
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from beam_common.files import write_whole
from beam_common.messages import UsageError
from beam_common.summary import Shown, interval, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Json = Mapping[str, Any]
Shows = Sequence[Shown]

# Okabe and Ito's colours, told apart by the colour-blind; the markers tell as much without colour.
LOOKS = {
    "lower": ("#D55E00", "v"),
    "lower within margin": ("#E69F00", "v"),
    "undecided": ("#777777", "o"),
    "not worse": ("#0072B2", "s"),
    "higher": ("#009E73", "^"),
    "reference": ("#222222", "D"),
}
GREY, BAND = "#666666", "#e8e8e8"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "text.parse_math": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.axisbelow": True,
    "axes.edgecolor": "none",
    "grid.color": BAND,
    "xtick.major.size": 0,
}
# Families that hold what the usual font lacks; those that are installed are used.
FURTHER_FONTS = re.compile("Sans CJK|PingFang|YaHei|Hiragino Sans|WenQuanYi|Arial Unicode")
# Inches: width, margins, height of a line, space between rows.
WIDTH, ABOVE, BELOW, LINE, GAP = 8, 0.85, 0.85, 0.155, 0.15
AXIS, ACROSS = 0.34, 0.29  # left edge and width of the axis, in widths of the figure
# In widths of the axis: left edge of the names, right edge of the scores, left edge of the words.
NAMES, SCORES, WORDS = -1.12, -0.05, 1.04


class Row(NamedTuple):
    """A row of picture and page: a run or an ability as in the report, and how it is drawn."""

    name: str
    part: Json
    said: Shown
    verdict: str
    point: float | None
    ends: Any

    def texts(self) -> tuple[str, str]:
        """Name and words, in lines."""
        words = (self.said.words, *self.said.hides)
        return wrapped(self.name, 25), "\n".join(wrapped(text, 42) for text in words)


def check(path: Path) -> None:
    """Refuse a picture that could not be written, before any work is done. Raises UsageError."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot {path}: the name must end in .png, .svg or .pdf")
    check_place("--plot", path)
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install matplotlib")


def check_place(flag: str, path: Path) -> None:
    """Refuse what cannot become a file. Raises UsageError."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{flag} {path}: name a file in a folder that exists")


def write(path: Path, report: Json, shown: Shows, title: str) -> None:
    """Draw the report into a file, whole or not at all."""
    import matplotlib
    from matplotlib.font_manager import get_font_names

    fonts = ["DejaVu Sans", *filter(FURTHER_FONTS.search, get_font_names())]
    with (
        matplotlib.rc_context(STYLE | {"font.family": fonts}),
        warnings.catch_warnings(action="ignore"),  # a name may be in a script without a font
    ):
        figure = draw(report, shown, title)
        save = functools.partial(figure.savefig, format=path.suffix[1:], dpi=200)
        write_whole(path, save)


def finding(report: Json, shown: Shows) -> str:
    """What the report says, in one line."""
    reference, *others = report["runs"]
    if not others:
        return f"{reference['name']}: {number(reference['score'])}"
    if len(others) == 1:
        return f"{others[0]['name']} is {shown[1].words}"
    verdicts = Counter(run["verdict"] for run in others).most_common()
    counts = ", ".join(f"{n} {verdict}" for verdict, n in verdicts)
    return f"{len(others)} runs against {reference['name']}: {counts}"


def legend(report: Json) -> str:
    """What lines and band mean."""
    others = len(report["runs"]) - 1
    if not others:
        return "Score with its 95 % interval, clustered by chat."
    thin = f" Thin line: adjusted for {others} runs." if others > 1 else ""
    return (
        f"Thick line: 95 % interval of the difference, paired by question, clustered by chat.{thin}"
        f" Band: ±{report['margin']:g}, the loss that would matter."
    )


def wrapped(text: str, columns: int, lines: int = 5) -> str:
    """`text` in at most so many lines of so many columns; wide characters count two."""
    # A NUL stands for the second column of a wide character.
    wide = "".join(c + "\0" * (unicodedata.east_asian_width(c) in "WF") for c in text)
    filled = textwrap.fill(wide, columns, max_lines=lines, placeholder="…")
    return filled.replace("\0", "")


def rows_of(report: Json, shown: Shows) -> list[Row]:
    """Every run, highest score first, or a single one and its abilities."""
    rows: list[Row] = []
    for run, said in zip(report["runs"], shown, strict=True):
        point = run["difference"] if rows else 0
        ends = run["difference_low"], run["difference_high"]
        rows.append(Row(run["name"], run, said, run["verdict"], point, ends))
    if len(rows) > 1:
        return sorted(rows, key=lambda row: -(row.part["score"] or 0))
    parts = {"overall": run, **run["abilities"]}
    return [_ability_row(name, part, said.answers) for name, part in parts.items()]


def _ability_row(name: str, part: Json, answers: int | None) -> Row:
    ends = part["low"], part["high"]
    said = Shown(f"{interval(*ends)}, n={part['n']}", *ends, answers, [])
    return Row(name.replace("_", " "), part, said, "not worse", part["score"], ends)


def draw(report: Json, shown: Shows, title: str) -> Figure:
    """The figure. Its axis counts inches from the top, so that rows have room for their texts."""
    from matplotlib.figure import Figure

    rows = rows_of(report, shown)
    heights = [GAP + LINE * max(text.count("\n") + 1 for text in row.texts()) for row in rows]
    *tops, end = itertools.accumulate(heights, initial=ABOVE)
    height = end + BELOW
    figure = Figure(figsize=(WIDTH, height))
    place = (AXIS, BELOW / height, ACROSS, (end - ABOVE) / height)
    axes: Any = figure.add_axes(place, ylim=(end, ABOVE), yticks=[])
    put = functools.partial(axes.text, transform=axes.get_yaxis_transform(), va="center")
    put(NAMES, 0.3, wrapped(finding(report, shown), 76, 2), size=11, weight="bold")
    put(NAMES, 0.65, wrapped(title, 110, 1), color=GREY)
    for row, top, tall in zip(rows, tops, heights, strict=True):
        y = top + tall / 2
        name, words = row.texts()
        put(NAMES, y, name)
        put(SCORES, y, number(row.part["score"]), ha="right")
        put(WORDS, y, words)
        colour, marker = LOOKS[row.verdict]
        adjusted = (row.said.adjusted_low, row.said.adjusted_high)
        axes.plot(adjusted, (y, y), color=colour, linewidth=1)
        axes.plot(row.ends, (y, y), color=colour, linewidth=3.2, solid_capstyle="butt")
        look = {"color": colour, "markersize": 8, "markeredgecolor": "white", "clip_on": False}
        axes.plot([row.point], [y], marker, **look)
    put(NAMES, height - 0.2, wrapped(legend(report), 120), color=GREY)
    if len(shown) == 1:
        axes.set(xlim=(0, 1), xlabel="score")
        return figure
    margin = report["margin"]
    axes.axvspan(-margin, margin, color=BAND, zorder=0)
    axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
    axes.set_xlabel("← lower     difference to the reference     higher →")
    axes.locator_params(axis="x", nbins=5, steps=(1, 2, 5, 10))
    return figure
