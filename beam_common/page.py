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
from typing import Any, NamedTuple

from beam_common.plot import LOOKS, check_place, finding, legend, rows_of, save
from beam_common.rows import Json
from beam_common.tables import KINDS, further_of, numbers_of

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


class Scale(NamedTuple):
    """The axis of the forest, from `middle` - `reach` to `middle` + `reach`."""

    middle: float
    reach: float
    margin: float  # 0: nothing is compared

    def at(self, value: float) -> float:
        """Percent of the width."""
        return 50 + 50 * (value - self.middle) / self.reach


def _table(report: Json) -> str:
    """A row for each run, or for each ability of a single one; no column where all is unknown."""
    rows, scale = rows_of(report), Scale(0.5, 0.65, 0)
    if len(report["runs"]) > 1:
        shown = [value for row in rows for value in (row["point"], *row["ends"])]
        margin = report["margin"]
        scale = Scale(0, 1.3 * max(abs(value or margin) for value in shown), margin)
    table = [_cells(row, scale) for row in rows]
    heads = [head for head in table[0] if any(cells[head] != "-" for cells in table)]
    lines: list[str] = []
    for cells in ({head: head for head in heads} | {"forest": _axis(scale)}, *table):
        tag = "td" if lines else "th"
        lines.append("<tr>")
        lines += [f'<{tag} data-head="{head}">{cells[head]}</{tag}>' for head in heads]
    return "\n".join(lines)


def _cells(row: Json, scale: Scale) -> dict[str, str]:
    """The columns of a row, as markup, by their heads."""
    score, ends, difference, difference_ends, p = numbers_of(row)
    half_points, *shares, tokens = further_of(row)
    words = [escape(row["words"]), *(f"<small>{escape(text)}</small>" for text in row["hidden"])]
    return {
        "run": f"<bdi>{escape(row['name'])}</bdi>",
        "score": f"{score}<small>{ends}</small>",
        "forest": _strip(row, scale),
        "difference": "-" if difference == "-" else f"{difference}<small>{difference_ends}</small>",
        "verdict": "".join(words) if scale.margin else "-",
        "p (Holm)": escape(p),
        "n": str(row["n"]),
        "half points": half_points,
        "tokens": tokens,
        **dict(zip(KINDS, shares, strict=True)),
    }


def _axis(scale: Scale) -> str:
    """The labels of the axis: its middle, and round numbers to the left and right."""
    tick = float(f"{0.7 * scale.reach:.0e}")
    values = (scale.middle + step * tick for step in (-1, 0, 1))
    labels = [f'<text x="{scale.at(value):.2f}%" y="1em">{value:.2g}</text>' for value in values]
    return f"<svg>{''.join(labels)}</svg>"


def _strip(row: Json, scale: Scale) -> str:
    """A row of the forest. What a mark looks like is said by the style, by its class."""
    marks = {
        "band": (-scale.margin, scale.margin),
        "zero": (0, 0),
        "thin": row["adjusted"],
        "thick": row["ends"],
        "point": (row["point"], row["point"]),
    }
    drawn = []
    for css, (low, high) in marks.items():
        if low is not None:
            width = scale.at(high) - scale.at(low)
            drawn.append(f'<rect class="{css}" x="{scale.at(low):.2f}%" width="{width:.2f}%"/>')
    return f'<svg color="{LOOKS[row["verdict"]][0]}">{"".join(drawn)}</svg>'


# ------------------------------------------------------------------------------------------------
# Questions.


def _data(names: Sequence[str], views: Sequence[Json]) -> str:
    """The questions as JSON that is harmless in a page, with texts as long as the size allows."""
    for limit in LONGEST_TEXTS:
        shown = {"runs": names, "questions": _cut(views, limit)}
        data = json.dumps(shown, ensure_ascii=False).replace("<", "\\u003c")
        if len(_utf8(data)) <= MOST_BYTES:
            break
    return data


def _cut(value: Any, limit: int) -> Any:
    """A JSON value whose texts have at most about `limit` characters: their beginnings and ends."""
    if isinstance(value, str) and len(value) > limit:
        half = limit // 2
        left_out = f"[… {len(value) - 2 * half:,} characters are left out of this page …]"
        return f"{value[:half]}\n\n{left_out}\n\n{value[-half:]}"
    if isinstance(value, dict):
        # A criterion stands in the question's rubric, once for all runs.
        return {name: _cut(item, limit) for name, item in value.items() if name != "criterion"}
    return [_cut(item, limit) for item in value] if isinstance(value, list) else value
