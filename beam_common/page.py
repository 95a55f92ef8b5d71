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

from beam_common.files import write_whole
from beam_common.plot import LOOKS, legend, rows_of
from beam_common.rows import Json
from beam_common.tables import HEADS, cells_of

MOST_CHARACTERS = 12_000_000  # of the questions; a browser opens this in about a second
LONGEST_TEXTS = (20_000, 1_000)  # characters that are shown of each; the latter of many long ones
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
<h1 dir="auto">{title}</h1>
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


def write(path: Path, report: Json) -> None:
    """Write the page: whole or not at all."""
    files = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
    style, script = (file.read_text("utf-8") for file in files)
    names = [run["name"] for run in report["runs"]]
    for longest in LONGEST_TEXTS:
        shown = {"runs": names, "questions": _cut(report["questions"], longest)}
        data = json.dumps(shown, ensure_ascii=False)
        if len(data) < MOST_CHARACTERS:
            break
    page = TEMPLATE.format(
        policy=f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}",
        title=escape(report["title"]),
        table=_table(report),
        legend=escape(legend(report)),
        notes="\n".join(f'<li dir="auto">{escape(note)}</li>' for note in report["notes"]),
        style=style,
        script=script,
        data=data.replace("<", "\\u003c"),  # so that no text of it ends the element
    )
    # A lone surrogate becomes `\ud83d`, which is also how JSON writes it.
    content = page.encode("utf-8", "backslashreplace")
    write_whole(path, lambda file: file.write(content))


def _digest(text: str) -> str:
    """How a policy names a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _cut(value: Any, longest: int) -> Any:
    """A JSON value of whose long texts the beginnings and ends are left."""
    if isinstance(value, str) and len(value) > longest:
        half, left_out = longest // 2, len(value) - longest
        return f"{value[:half]}\n\n[… {left_out:,} characters left out …]\n\n{value[-half:]}"
    if isinstance(value, dict):
        return {name: _cut(item, longest) for name, item in value.items()}
    return [_cut(item, longest) for item in value] if isinstance(value, list) else value


def _table(report: Json) -> str:
    """A row for each run, or for each ability of a single one; no column where all is unknown."""
    rows = rows_of(report)
    margin = report["margin"] if len(report["runs"]) > 1 else 0
    columns = [
        (head, head, *map(escape, cells))
        for head, *cells in zip(HEADS, *map(cells_of, rows), strict=True)
        if {*cells} != {"-"}
    ]
    columns.insert(3, ("forest", *_strips(rows, margin)))
    columns.pop()  # the verdict: here in words, and none of a single run
    if margin:
        columns.append(("verdict", "verdict", *map(_words, rows)))
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


def _strips(rows: Sequence[Json], margin: float) -> list[str]:
    """The forest: its labelled axis, and a strip for each row; scores where there is no margin.

    What a mark looks like is said by the style, by its class.
    """
    middle, reach = 0.5, 0.65
    if margin:
        ends = [abs(end) for row in rows for end in row["ends"] if end is not None]
        middle, reach = 0, 1.3 * max([margin, *ends])

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
