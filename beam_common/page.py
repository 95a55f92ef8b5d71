"""The page of a report: one file that opens in a browser and needs nothing else.

Table and forest are written here; the questions are data, which page.js shows. No text of a run
can become markup: here it is escaped, there it is only ever set as text, and the page's policy lets
nothing run but our script, known by its digest, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from beam_common.plot import LOOKS, check_place, finding, legend, rows_of, save
from beam_common.rows import Json
from beam_common.tables import HEADS, cells_of

HALF_TEXT = 10_000  # characters at its beginning and at its end that are shown of a text
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


def write(path: Path, report: Json, views: Sequence[Json], title: str) -> None:
    """Write the page."""
    files = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
    style, script = (file.read_text("utf-8") for file in files)
    page = TEMPLATE.format(
        policy=f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}",
        title=escape(title),
        finding=escape(finding(report)),
        table=_table(report),
        legend=escape(legend(report)),
        notes="\n".join(f'<li dir="auto">{escape(note)}</li>' for note in report["notes"]),
        style=style,
        script=script,
        data=_data([run["name"] for run in report["runs"]], views),
    )
    save("--html", path, lambda file: file.write(_utf8(page)))


def _utf8(text: str) -> bytes:
    """Valid UTF-8. A lone surrogate becomes `\\ud83d`, which is also how JSON writes it."""
    return text.encode("utf-8", "backslashreplace")


def _digest(text: str) -> str:
    """How a policy names a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# ------------------------------------------------------------------------------------------------
# Table and forest.


def _table(report: Json) -> str:
    """A row for each run, or for each ability of a single one; no column where all is unknown."""
    rows = rows_of(report)
    columns = [
        (head, head, *map(escape, cells))
        for head, *cells in zip(HEADS, *map(cells_of, rows), strict=True)
        if {*cells} != {"-"}
    ]
    columns.pop()  # the verdict: in words, and none of a single run
    if len(report["runs"]) > 1:
        columns.append(("verdict", "verdict", *map(_words, rows)))
        ends = [abs(end) for row in rows for end in row["ends"] if end is not None]
        strips = _strips(rows, 0, 1.3 * max([report["margin"], *ends]), report["margin"])
    else:
        strips = _strips(rows, 0.5, 0.65, 0)
    columns.insert(3, ("forest", *strips))
    heads, *table = zip(*columns, strict=True)
    lines: list[str] = []
    for cells in table:
        tag = "td" if lines else "th"
        pairs = zip(heads, cells, strict=True)
        lines += ["<tr>", *(f'<{tag} data-head="{head}">{cell}</{tag}>' for head, cell in pairs)]
    return "\n".join(lines)


def _words(row: Json) -> str:
    """The verdict and what the score hides, as markup."""
    hidden = (f"<small>{escape(text)}</small>" for text in row["hidden"])
    return escape(row["words"]) + "".join(hidden)


def _strips(rows: Sequence[Json], middle: float, reach: float, margin: float) -> list[str]:
    """The forest: its labelled axis, which ends at `middle` ± `reach`, and a strip for each row.

    What a mark looks like is said by the style, by its class.
    """

    def at(value: float) -> float:
        """Percent of the width."""
        return 50 + 50 * (value - middle) / reach

    tick = float(f"{0.7 * reach:.0e}")  # a round number
    ticks = (middle - tick, middle, middle + tick)
    axis = [f'<text x="{at(value):.2f}%" y="1em">{value:.2g}</text>' for value in ticks]
    strips = [f"<svg>{''.join(axis)}</svg>"]
    for row in rows:
        marks = {
            "band": (-margin, margin),
            "zero": (0, 0),
            "thin": row["adjusted"],
            "thick": row["ends"],
            "point": (row["point"], row["point"]),
        }
        drawn = [
            f'<rect class="{css}" x="{at(low):.2f}%" width="{at(high) - at(low):.2f}%"/>'
            for css, (low, high) in marks.items()
            if low is not None
        ]
        strips.append(f'<svg color="{LOOKS[row["verdict"]][0]}">{"".join(drawn)}</svg>')
    return strips


# ------------------------------------------------------------------------------------------------
# Questions.


def _data(names: Sequence[str], views: Sequence[Json]) -> str:
    """The questions as JSON that is harmless in a page."""
    shown = {"runs": names, "questions": _cut(views)}
    return json.dumps(shown, ensure_ascii=False).replace("<", "\\u003c")


def _cut(value: Any) -> Any:
    """A JSON value of whose long texts the beginnings and ends are left."""
    if isinstance(value, str) and len(value) > 2 * HALF_TEXT:
        left_out = f"[… {len(value) - 2 * HALF_TEXT:,} characters are left out of this page …]"
        return f"{value[:HALF_TEXT]}\n\n{left_out}\n\n{value[-HALF_TEXT:]}"
    if isinstance(value, dict):
        # A criterion stands in the question's rubric, once for all runs.
        return {name: _cut(item) for name, item in value.items() if name != "criterion"}
    return [_cut(item) for item in value] if isinstance(value, list) else value
