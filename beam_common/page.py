"""The page of a report: one file that opens in a browser and needs nothing else.

Table and forest are written here; the questions are data, which page.js shows. No text of a run
can become markup: here it is escaped, there it is only ever set as text, and the page's policy lets
nothing run but our script, known by its digest, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from beam_common.files import write_whole
from beam_common.plot import LOOKS, Json, Row, Shows, check_place, finding, legend, rows_of
from beam_common.summary import interval, number

MOST_BYTES = 12_000_000  # of the questions; a browser opens this in about a second
# Characters of a text that are shown: the first of these that makes the questions small enough.
LONGEST_TEXTS = (20_000, 10_000, 5_000, 2_500, 1_000, 500, 200)
TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1 dir="auto">{finding}</h1>
<p dir="auto">{title}</p>
<table>
{table}
</table>
<p class="legend">{legend}</p>
<ul>
{notes}
</ul>
<noscript>The questions are shown by JavaScript, which is switched off.</noscript>
<main></main>
<script type="application/json">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def check(path: Path) -> None:
    """Refuse a page that could not be written, before any work is done. Raises UsageError."""
    check_place("--html", path)


def write(path: Path, report: Json, shown: Shows, views: Sequence[Json], title: str) -> None:
    """Write the page, whole or not at all."""
    folder = Path(__file__).parent
    style = (folder / "page.css").read_text("utf-8")
    script = (folder / "page.js").read_text("utf-8")
    page = TEMPLATE.format(
        policy=f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}",
        title=escape(title),
        finding=escape(finding(report, shown)),
        table=_table(report, shown),
        legend=escape(legend(report)),
        notes="\n".join(f'<li dir="auto">{escape(note)}</li>' for note in report["notes"]),
        style=style,
        script=script,
        data=_data([run["name"] for run in report["runs"]], views),
    )
    write_whole(path, lambda file: file.write(_utf8(page)))


def _utf8(text: str) -> bytes:
    """Valid UTF-8. A lone surrogate becomes `\\ud83d`, which is also how JSON writes it."""
    return text.encode("utf-8", "backslashreplace")


def _digest(text: str) -> str:
    """How a policy names a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# ------------------------------------------------------------------------------------------------
# Table and forest.


@dataclass(frozen=True)
class Scale:
    """The axis of the forest, from `middle` - `reach` to `middle` + `reach`."""

    middle: float
    reach: float
    tick: float  # labels stand at `middle` and this far from it
    margin: float

    def at(self, value: float) -> float:
        """Percent of the width."""
        return 50 + 50 * (value - self.middle) / self.reach


def _table(report: Json, shown: Shows) -> str:
    """A row for each run, or for each ability of a single one; no column where all is unknown."""
    rows = rows_of(report, shown)
    scale = _scale(rows, report["margin"]) if len(shown) > 1 else Scale(0.5, 0.55, 0.5, 0)
    table = [_cells(row, scale) for row in rows]
    heads = [head for head in table[0] if any(cells[head] != "-" for cells in table)]
    lines = ["<tr>"]
    for head in heads:
        lines.append(f'<th data-head="{head}">{_axis(scale) if head == "forest" else head}</th>')
    for cells in table:
        lines.append("<tr>")
        lines += [f'<td data-head="{head}">{cells[head]}</td>' for head in heads]
    return "\n".join(lines)


def _scale(rows: Sequence[Row], margin: float) -> Scale:
    """An axis around 0 that holds the margin and every 95 % interval."""
    ends = [abs(value) for row in rows for value in (row.point, *row.ends) if value is not None]
    reach = 1.3 * max(margin, *ends)
    return Scale(0, reach, float(f"{0.7 * reach:.0e}"), margin)


def _cells(row: Row, scale: Scale) -> dict[str, str]:
    """The columns of a row, as markup, by their heads."""
    part, said, p = row.part, row.said, row.part["p_holm"]
    words = [escape(said.words), *(f"<small>{escape(text)}</small>" for text in said.hides)]
    cells = {
        "run": f"<bdi>{escape(row.name)}</bdi>",
        "score": _estimate(part, "score", "low", "high"),
        "forest": _strip(row, scale),
        "difference": _estimate(part, "difference", "difference_low", "difference_high", "+"),
        "verdict": "".join(words) if scale.margin else "-",  # a single run has none
        "p (Holm)": "&lt;0.001" if p is not None and p < 0.001 else number(p),
        "n": str(part["n"]),
        "half points": number(part.get("half_points_difference"), sign="+"),
        "tokens": number(part.get("mean_completion_tokens"), 0),
    }
    for kind in ("cut", "empty", "failed"):
        known = said.answers and part.get(kind) is not None
        cells[kind] = f"{part[kind] / said.answers:.1%}" if known else "-"
    return cells


def _estimate(part: Json, value: str, low: str, high: str, sign: str = "") -> str:
    """A number with its interval below it."""
    ends = f"<small>{interval(part[low], part[high], sign)}</small>"
    return number(part[value], sign=sign) + (ends if part[low] is not None else "")


def _axis(scale: Scale) -> str:
    """The labels of the axis."""
    ticks = (scale.middle - scale.tick, scale.middle, scale.middle + scale.tick)
    labels = [f'<text x="{scale.at(tick):.2f}%" y="1em">{tick:.2g}</text>' for tick in ticks]
    return f"<svg>{''.join(labels)}</svg>"


def _strip(row: Row, scale: Scale) -> str:
    """A row of the forest. What a mark looks like is said by the style, by its class."""
    marks = {
        "band": (-scale.margin, scale.margin),
        "zero": (0, 0),
        "thin": (row.said.adjusted_low, row.said.adjusted_high),
        "thick": row.ends,
        "point": (row.point, row.point),
    }
    drawn = []
    for css, (low, high) in marks.items():
        if low is not None:
            width = scale.at(high) - scale.at(low)
            drawn.append(f'<rect class="{css}" x="{scale.at(low):.2f}%" width="{width:.2f}%"/>')
    return f'<svg color="{LOOKS[row.verdict][0]}">{"".join(drawn)}</svg>'


# ------------------------------------------------------------------------------------------------
# Questions.


def _data(names: Sequence[str], views: Sequence[Json]) -> str:
    """The questions as JSON that is harmless in a page, with texts as long as the size allows."""
    for limit in LONGEST_TEXTS:
        shown = {"runs": names, "questions": [_cut(view, limit) for view in views]}
        data = json.dumps(shown, ensure_ascii=False).replace("<", "\\u003c")
        if len(_utf8(data)) <= MOST_BYTES:
            break
    return data


def _cut(value: Any, limit: int) -> Any:
    """A JSON value whose texts have at most about `limit` characters: their beginnings and ends."""
    if isinstance(value, str) and len(value) > limit:
        half = limit // 2
        left_out = f"\n\n[… {len(value) - 2 * half:,} characters are left out of this page …]\n\n"
        return value[:half] + left_out + value[-half:]
    if isinstance(value, Mapping):
        # A criterion stands in the question's rubric, once for all runs.
        return {name: _cut(item, limit) for name, item in value.items() if name != "criterion"}
    return [_cut(item, limit) for item in value] if isinstance(value, list) else value
