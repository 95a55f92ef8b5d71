"""Names, numbers and tables as texts, the same in terminal, Markdown, picture and page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from beam_common.messages import one_line
from beam_common.rows import Json
from beam_common.stats import Ends

ABOUT = "Intervals are about other chats; a rerun on the same chats varies less."
NAME = 25  # columns of a name in a table
NUMBERS = ("score", "95 % interval", "difference", "95 % interval", "p (Holm)")
# Kinds of answers that a score hides, and what is said of them.
KINDS = {"cut": "were cut at the length limit", "empty": "were empty", "failed": "failed"}
HEADS = ("run", *NUMBERS, "half pts", *KINDS, "tokens", "verdict")


def label(text: str, limit: int = 120) -> str:
    """A name that may hold anything, to be shown: one line that can be encoded, not too long."""
    return one_line(text, limit).encode("utf-8", "backslashreplace").decode()


def number(value: float | None, digits: int = 3, sign: str = "") -> str:
    """`0.123`, with the sign `+` also `+0.123`; `-` for None, never `-0.000`."""
    return "-" if value is None else f"{value:{sign}z.{digits}f}"


def interval(ends: Ends, sign: str = "") -> str:
    """`0.281 to 0.343`; `-` without one. No score and no difference lies beyond -1 and 1."""
    low, high = ends
    if low is None or high is None:
        return "-"
    return f"{number(max(low, -1), sign=sign)} to {number(min(high, 1), sign=sign)}"


def numbers_of(part: Json) -> list[str]:
    """The NUMBERS of a run or of an ability of it."""
    p = part["p_holm"]
    return [
        number(part["score"]),
        interval((part["low"], part["high"])),
        number(part["difference"], sign="+"),
        interval((part["difference_low"], part["difference_high"]), "+"),
        "<0.001" if p is not None and p < 0.001 else number(p),
    ]


def cells_of(row: Json) -> list[str]:
    """What a table shows of a run below HEADS; `-` for what is not known of it, or of a part."""
    known = row.get("answers")
    return [
        row["name"],
        *numbers_of(row),
        number(row.get("half_points_difference"), sign="+"),
        *(f"{row[kind] / known:.1%}" if known else "-" for kind in KINDS),
        number(row.get("mean_completion_tokens"), 0),
        row["verdict"],
    ]


def fitted(name: str) -> str:
    """A name that fits a table: both its ends are kept, as they tell names apart."""
    half = NAME // 2
    return name if len(name) <= NAME else f"{name[:half]}…{name[-half:]}"


def aligned(rows: Sequence[Sequence[str]], markdown: bool) -> list[str]:
    """A table with its columns in line, the first one to the left."""
    rows = [[fitted(name), *others] for name, *others in rows]
    numbers = len(rows[0]) - 1
    between, edge = "  ", ""
    if markdown:
        between, edge = " | ", "|"
        rows = [[escaped(cell) for cell in row] for row in rows]
        rows.insert(1, [":--", *["--:"] * numbers])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = between.join(["{:<%d}", *["{:>%d}"] * numbers]) % (*widths,)
    return [edge + line.format(*row) + edge for row in rows]


def escaped(text: str) -> str:
    """A text that Markdown shows as it is."""
    return re.sub(r"([\\|*_`~<>&\[\]])", r"\\\1", text)
