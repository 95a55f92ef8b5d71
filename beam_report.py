"""Compare runs of beam_judge.py: table, verdict, picture, page. No endpoint is needed.

    python beam_report.py original/scores.jsonl vendor-a=a/scores.jsonl vendor-b=b1.jsonl,b2.jsonl

Each argument is a run, [NAME=]SCORES[,SCORES...]; the first is the reference. Several files of one
run (the model asked again, or the same answers judged again) are averaged question by question.
Beside each scores file its verdicts, its settings and the answers they name are used if there.

Each run gets a verdict on its difference to the reference: lower, higher, not worse by more than
--margin, or undecided, with what the comparison would have seen. Intervals are clustered by chat
and paired by question; docs/statistics.md says how, and what they mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beam_common import page, plot
from beam_common.cli import Parser, positive_float
from beam_common.command import command, run
from beam_common.comparison import (
    KINDS,
    Subject,
    load_subjects,
    report_object,
    shown_of,
)
from beam_common.messages import say
from beam_common.rows import ABILITIES
from beam_common.stats import ALPHA
from beam_common.summary import Shown, fitted, interval, number, summary_lines, view

NAME = 24  # columns of a name in a table
HEADS = ["run", "score", "95 % interval", "difference", "95 % interval", "p (Holm)", "half points",
         *KINDS, "tokens", "verdict"]  # fmt: skip
ABILITY_HEADS = ["n", *HEADS[1:6]]
ABOUT = "Intervals are about other chats; a rerun on the same chats varies less."
EQUAL = "two equal models show 0.086 (median), 0.146 (one pair in twenty) over 35 chats"
Table = list[list[str]]


# ------------------------------------------------------------------------------------------------
# Text and markdown.


def report_lines(
    report: Mapping[str, Any], shown: Sequence[Shown], title: str, markdown: bool
) -> list[str]:
    """The report for people: what hides behind the scores, the table, the verdicts, the notes."""
    pairs = sorted(
        zip(report["runs"], shown, strict=True), key=lambda pair: pair[0]["score"], reverse=True
    )
    bullet, table = ("- ", markdown_table) if markdown else ("", text_table)
    lines = [f"{bullet}{row['name']}: {text}" for row, said in pairs for text in said.hides]
    lines += ["", f"{'### ' if markdown else ''}{title}", ""]
    lines += [*table([HEADS, *(_cells(row, said) for row, said in pairs)]), "", ABOUT, ""]
    lines += [f"{bullet}{row['name']}: {said.words}" for row, said in pairs]
    lines += [f"{bullet}note: {note}" for note in report["notes"]]
    for row, _ in pairs:
        cells = row["abilities"]
        if len(pairs) == 1 or any((cell["p_holm"] or 1) < ALPHA for cell in cells.values()):
            lines += ["", f"abilities of {row['name']}", ""]
            lines += table([["ability", *ABILITY_HEADS], *map(_ability_cells, cells.items())])
    return [*lines, "", *_largest(report)]


def _cells(row: Mapping[str, Any], shown: Shown) -> list[str]:
    shares = [_share(row[kind], shown.answers) for kind in KINDS]
    return [
        row["name"],
        *_numbers(row),
        number(row["half_points_difference"], sign="+"),
        *shares,
        number(row["mean_completion_tokens"], 0),
        row["verdict"],
    ]


def _ability_cells(ability: tuple[str, Mapping[str, Any]]) -> list[str]:
    name, row = ability
    return [name, str(row["n"]), *_numbers(row)]


def _numbers(row: Mapping[str, Any]) -> list[str]:
    p = row["p_holm"]
    return [
        number(row["score"]),
        interval((row["low"], row["high"])),
        number(row["difference"], sign="+"),
        interval((row["difference_low"], row["difference_high"]), "+"),
        "<0.001" if p is not None and p < 0.001 else number(p),
    ]


def _share(count: int | None, answers: int | None) -> str:
    return f"{count / answers:.1%}" if count is not None and answers else "-"


def _largest(report: Mapping[str, Any]) -> list[str]:
    """One line on the abilities where none of them differs."""
    cells = [
        (abs(cell["difference"]), cell, ability, row["name"])
        for row in report["runs"]
        for ability, cell in row["abilities"].items()
        if cell["difference"] is not None
    ]
    if not cells or any((cell["p_holm"] or 1) < ALPHA for _, cell, _, _ in cells):
        return []
    size, cell, ability, name = max(cells, key=lambda found: found[0])
    return [
        f"abilities: none differs beyond chance; the largest difference is "
        f"{number(cell['difference'], sign='+')} ({ability}, {name}); {EQUAL}"
    ]


def text_table(rows: Table) -> list[str]:
    """Columns in line, the first to the left."""
    rows = [[fitted(first, NAME).rstrip(), *rest] for first, *rest in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def markdown_table(rows: Table) -> list[str]:
    head, *body = [[_escaped(cell) for cell in row] for row in rows]
    rule = [":--", *["--:"] * (len(head) - 1)]
    return [f"| {' | '.join(row)} |" for row in [head, rule, *body]]


def _escaped(text: str) -> str:
    return re.sub(r"([\\|*_`~<>&\[\]])", r"\\\1", text)


# ------------------------------------------------------------------------------------------------
# Page and command line.


def views_of(subjects: Sequence[Subject]) -> list[dict[str, Any]]:
    """Every question of any run, with what each run made of it (its first file that has it)."""
    keys = {key for subject in subjects for key in subject.scores}
    return [_view(subjects, key) for key in sorted(keys, key=_order)]


def title_of(subjects: Sequence[Subject]) -> str:
    """What was judged and by whom."""
    runs = [run for subject in subjects for run in subject.files]
    data = {run.data() for run in runs}
    judges = {run.origin("judge") for run in runs}
    return ""


@command
def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__, "beam_report.py")
    add = parser.add_argument
    add("runs", nargs="+", metavar="[NAME=]SCORES[,SCORES...]", help="the first is the reference")
    add("--margin", type=positive_float, default=0.03, metavar="X",
        help="the loss that would matter (default: %(default)s)")  # fmt: skip
    add("--format", choices=("text", "markdown", "json"), default="text",
        help="(default: %(default)s)")  # fmt: skip
    add("--plot", type=Path, metavar="FILE", help="write a picture, too: .png, .svg or .pdf")
    add("--html", type=Path, metavar="FILE", help="write a page, too")
    args = parser.parse_args(argv)
    if args.plot:
        plot.check(args.plot)
    if args.html:
        page.check(args.html)
    subjects = load_subjects(args.runs)
    report = report_object(subjects, args.margin)
    shown = shown_of(subjects, report)
    title = title_of(subjects)
    if args.format == "json":
        print(json.dumps(report, indent=1, allow_nan=False))
    else:
        print_report()
    if args.plot:
        plot.write(args.plot, report, shown, title)
        say(f"picture written to {args.plot}")
    if args.html:
        page.write(args.html, report, shown, views_of(subjects), title)
        say(f"page written to {args.html}")
    return 0


if __name__ == "__main__":
    run(main)
