"""The picture of a report: differences to the reference, or the abilities of a single run.

matplotlib is imported only when a picture is asked for, and none of its settings are changed.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
import warnings
from argparse import ArgumentTypeError
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from beam_common.files import write_whole
from beam_common.rows import Json, Row
from beam_common.tables import interval, number

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
    "lines.solid_capstyle": "butt",
    "lines.markersize": 8,
    "lines.markeredgecolor": "white",
}
# Families that hold what the usual font lacks; those that are installed are used.
FURTHER_FONTS = re.compile("Sans CJK|PingFang|YaHei|Hiragino Sans|WenQuanYi|Arial Unicode")
# Inches: width, margins, height of a line, space between rows.
WIDTH, ABOVE, BELOW, LINE, GAP = 8, 0.65, 0.85, 0.155, 0.15
AXIS, ACROSS = 0.34, 0.29  # left edge and width of the axis, in widths of the figure
# In widths of the axis: left edge of the names, right edge of the scores, left edge of the words.
NAMES, SCORES, WORDS = -1.12, -0.05, 1.04


def place(text: str) -> Path:
    """The type of a flag that names a file to be written: no folder, no link, no device."""
    path = Path(text)
    taken = path.is_symlink() or (path.exists() and not path.is_file())
    if taken or not path.parent.is_dir():
        raise ArgumentTypeError(f"{text}: name a file in a folder that exists, no link or device")
    return path


def picture(text: str) -> Path:
    """The type of a flag that names a picture to be written."""
    if not text.lower().endswith((".png", ".svg", ".pdf")):
        raise ArgumentTypeError(f"{text}: the name must end in .png, .svg or .pdf")
    if find_spec("matplotlib") is None:
        raise ArgumentTypeError("matplotlib is not installed: pip install matplotlib")
    return place(text)


def write(path: Path, report: Json) -> None:
    """Draw the report into a file: whole or not at all."""
    import matplotlib
    from matplotlib.font_manager import get_font_names

    fonts = ["DejaVu Sans", *filter(FURTHER_FONTS.search, get_font_names())]
    with (
        matplotlib.rc_context(STYLE | {"font.family": fonts}),
        warnings.catch_warnings(action="ignore"),  # a name may be in a script without a font
    ):
        figure = draw(report)
        write_whole(path, partial(figure.savefig, format=path.suffix[1:], dpi=200))


def legend(report: Json) -> str:
    """What lines and band mean."""
    if len(report["runs"]) == 1:
        return "Score with its 95 % interval, clustered by chat."
    return (
        "Thick line: 95 % interval of the difference, paired by question, clustered by chat; thin: "
        f"adjusted for the number of runs. Band: ±{report['margin']:g}, the loss that would matter."
    )


def wrapped(text: str, columns: int, lines: int = 5) -> str:
    """`text` in at most so many lines of so many columns; wide characters count two."""
    # A NUL stands for the second column of a wide character.
    wide = "".join(c + "\0" * (unicodedata.east_asian_width(c) in "WF") for c in text)
    filled = textwrap.fill(wide, columns, max_lines=lines, placeholder="…")
    return filled.replace("\0", "")


def rows_of(report: Json) -> list[Row]:
    """What is drawn: every run, highest score first, or a single one and its abilities."""
    first, *others = report["runs"]
    if others:
        return sorted(report["runs"], key=lambda run: -run["score"])
    parts = first["abilities"].items()
    return [
        _part(first["name"], first),
        *(_part(name.replace("_", " "), part) for name, part in parts),
    ]


def _part(name: str, part: Json) -> Row:
    ends = (part["low"], part["high"])
    drawn = {"point": part["score"], "ends": ends, "adjusted": ends, "verdict": "not worse"}
    words = f"{interval(ends)}, n={part['n']}"
    return {**part, **drawn, "name": name, "words": words, "hidden": []}


def draw(report: Json) -> Any:
    """The figure. Its axis counts inches from the top, so that rows have room for their texts."""
    from matplotlib.figure import Figure

    figure = Figure()
    axes: Any = figure.add_subplot()
    put = partial(axes.text, transform=axes.get_yaxis_transform(), va="center")
    put(NAMES, 0.35, wrapped(report["title"], 76, 2), size=11, weight="bold")
    y = ABOVE
    for row in rows_of(report):
        name = wrapped(row["name"], 25)
        words = "\n".join(wrapped(text, 42) for text in (row["words"], *row["hidden"]))
        half = (GAP + LINE * (1 + max(name.count("\n"), words.count("\n")))) / 2
        y += half
        put(NAMES, y, name)
        put(SCORES, y, number(row["score"]), ha="right")
        put(WORDS, y, words)
        colour, marker = LOOKS[row["verdict"]]
        axes.plot(row["adjusted"], (y, y), color=colour, linewidth=1)
        axes.plot(row["ends"], (y, y), color=colour, linewidth=3.2)
        axes.plot([row["point"]], [y], marker, color=colour, clip_on=False)
        y += half
    height = y + BELOW
    put(NAMES, height - 0.2, wrapped(legend(report), 120), color=GREY)
    figure.set_size_inches(WIDTH, height)
    place = (AXIS, BELOW / height, ACROSS, (y - ABOVE) / height)
    axes.set(position=place, ylim=(y, ABOVE), yticks=[])
    if len(report["runs"]) == 1:
        axes.set(xlim=(0, 1), xlabel="score")
        return figure
    margin = report["margin"]
    axes.axvspan(-margin, margin, color=BAND, zorder=0)
    axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
    axes.set_xlabel("← lower     difference to the reference     higher →")
    axes.locator_params(axis="x", nbins=5, steps=(1, 2, 5, 10))
    return figure
