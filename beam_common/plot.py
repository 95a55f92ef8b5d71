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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from beam_common.files import write_whole
from beam_common.messages import UsageError, plural
from beam_common.summary import Shown, interval, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
AXIS, ACROSS = 0.325, 0.3  # left edge and width of the axis, in widths of the figure
# In widths of the axis: left edge of the names, right edge of the scores, left edge of the words.
NAMES, SCORES, WORDS = -1.04, -0.05, 1.04
LINES = "Thick line: 95 % interval, paired by question, clustered by chat. Thin line: adjusted for"


class Row(NamedTuple):
    """A row of the picture: texts in lines, a point and its two intervals (None: not known)."""

    name: str
    words: str
    verdict: str
    score: float | None
    point: Any
    interval: Any
    adjusted: Any

    @property
    def height(self) -> float:
        return GAP + LINE * max(len(self.name.splitlines()), len(self.words.splitlines()))


def check(path: Path) -> None:
    """Refuse a picture that could not be written, before any work is done. Raises UsageError."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot {path}: the name must end in .png, .svg or .pdf")
    check_folder("--plot", path)
    try:
        import matplotlib  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install matplotlib") from error


def check_folder(flag: str, path: Path) -> None:
    """Refuse what cannot become a file. Raises UsageError."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{flag} {path}: name a file in a folder that exists")


def write(path: Path, report: Mapping[str, Any], shown: Sequence[Shown], title: str) -> None:
    """Draw the report into a file, whole or not at all. Raises UsageError."""
    import matplotlib
    from matplotlib.font_manager import get_font_names

    fonts = ["DejaVu Sans", *filter(FURTHER_FONTS.search, get_font_names())]
    with (
        matplotlib.rc_context(STYLE | {"font.family": fonts}),
        warnings.catch_warnings(action="ignore"),  # a name may be in a script without a font
    ):
        figure, kind = draw(report, shown, title), path.suffix[1:].lower()
        try:
            write_whole(path, lambda file: figure.savefig(file, format=kind, dpi=200))
        except OSError as error:
            raise UsageError(f"--plot {path} cannot be written: {error.strerror}") from error


def ranked(report: Mapping[str, Any], shown: Sequence[Shown]) -> list[tuple[Any, Shown]]:
    """The runs with what is said of them, highest score first."""
    pairs = zip(report["runs"], shown, strict=True)
    return sorted(pairs, key=lambda pair: -(pair[0]["score"] or 0))


def finding(report: Mapping[str, Any], shown: Sequence[Shown]) -> str:
    """What the report says, in one line."""
    reference, *others = report["runs"]
    if not others:
        return f"{reference['name']}: {number(reference['score'])}"
    if len(others) == 1:
        return f"{others[0]['name']}: {shown[1].words}"
    verdicts = Counter(run["verdict"] for run in others).most_common()
    counts = ", ".join(f"{n} {verdict}" for verdict, n in verdicts)
    return f"{len(others)} runs against {reference['name']}: {counts}"


def wrapped(text: str, columns: int, lines: int = 5) -> str:
    """`text` in at most so many lines of so many columns; wide characters count two."""
    # A NUL stands for the second column of a wide character.
    wide = "".join(c + "\0" * (unicodedata.east_asian_width(c) in "WF") for c in text)
    filled = textwrap.fill(wide, columns, max_lines=lines, placeholder="…")
    return filled.replace("\0", "")


def rows_of(report: Mapping[str, Any], shown: Sequence[Shown]) -> list[Row]:
    """What is drawn: every run, or every ability of a single one."""
    rows = []
    for run, said in ranked(report, shown):
        name = wrapped(run["name"], 27)
        point = 0 if said is shown[0] else run["difference"]
        words = "\n".join(wrapped(text, 42) for text in (said.words, *said.hides))
        ends = run["difference_low"], run["difference_high"]
        adjusted = said.adjusted_low, said.adjusted_high
        rows.append(Row(name, words, run["verdict"], run["score"], point, ends, adjusted))
    if len(rows) > 1:
        return rows
    for name, part in run["abilities"].items():
        ends = part["low"], part["high"]
        words = f"{interval(ends)}, n={part['n']}"
        name = name.replace("_", " ")
        rows.append(Row(name, words, "not worse", part["score"], part["score"], ends, ends))
    return rows[1:]


def draw(report: Mapping[str, Any], shown: Sequence[Shown], title: str) -> Figure:
    """The figure. Its axis counts inches from the top, so that rows have room for their texts."""
    from matplotlib.figure import Figure

    rows = rows_of(report, shown)
    *tops, end = itertools.accumulate((row.height for row in rows), initial=ABOVE)
    height = end + BELOW
    figure = Figure(figsize=(WIDTH, height))
    place = (AXIS, BELOW / height, ACROSS, (end - ABOVE) / height)
    axes = figure.add_axes(place, ylim=(end, ABOVE), yticks=[])
    put = functools.partial(axes.text, transform=axes.get_yaxis_transform(), va="center")
    put(NAMES, 0.3, wrapped(finding(report, shown), 84, 2), size=11, weight="bold")
    put(NAMES, 0.65, wrapped(title, 110, 1), color=GREY)
    for row, top in zip(rows, tops, strict=True):
        y = top + row.height / 2
        put(NAMES, y, row.name)
        put(SCORES, y, number(row.score), ha="right")
        put(WORDS, y, row.words)
        colour, marker = LOOKS[row.verdict]
        axes.plot(row.adjusted, (y, y), color=colour, linewidth=1)
        axes.plot(row.interval, (y, y), color=colour, linewidth=3.2, solid_capstyle="butt")
        axes.plot([row.point], [y], marker, color=colour, markersize=8, markeredgecolor="white")
    if len(shown) == 1:
        axes.set(xlim=(0, 1), xlabel="score with 95 % interval, clustered by chat")
        return figure
    margin = report["margin"]
    axes.axvspan(-margin, margin, color=BAND, zorder=0)
    axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
    axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel("← lower     difference to the reference     higher →")
    notes = (
        f"{LINES} {plural(len(shown) - 1, 'run')}. Band: ±{margin:g}, the loss that would matter."
    )
    put(NAMES, height - 0.2, wrapped(notes, 120), color=GREY)
    return figure
