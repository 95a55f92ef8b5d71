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
from beam_common.comparison import KINDS, Subject, load_subjects, report_object, shown_of
from beam_common.rows import QuestionKey
from beam_common.stats import ALPHA
from beam_common.summary import Row, Shown, data_of, fitted, interval, number, summary_lines

NAME = 24  # columns of a name in a table
NUMBERS = ["score", "95 % interval", "difference", "95 % interval", "p (Holm)"]
ABOUT = "Intervals are about other chats; a rerun on the same chats varies less."
NO_QUESTION: dict[str, Any] = {"question": "", "gold_answer": "", "rubric": []}
LARGEST = (
    "abilities: none differs beyond chance, the largest difference is {} ({}, {}); two equal "
    "models on 35 chats show 0.086 (median), one pair in twenty 0.146"
)


# ------------------------------------------------------------------------------------------------
# Text and markdown.


def report_text(report: Row, shown: Sequence[Shown], title: str, markdown: bool) -> str:
    """The report for people: what hides behind the scores, the table, the verdicts, the notes."""
    both = zip(report["runs"], shown, strict=True)
    pairs = sorted(both, key=lambda pair: pair[0]["score"], reverse=True)
    table = [["run", *NUMBERS, "half pts", *KINDS, "tokens", "verdict"]]
    table += [_cells(row, said) for row, said in pairs]
    hides = [f"{row['name']}: {text}" for row, said in pairs for text in said.hides]
    words = [f"{row['name']}: {said.words}" for row, said in pairs if row["verdict"] != "reference"]
    words += [f"note: {note}" for note in report["notes"]]
    if markdown:
        hides, words = ([f"- {escaped(line)}" for line in lines] for lines in (hides, words))
        title = f"### {escaped(title)}"
    parts = [hides, [title], aligned(table, markdown), [ABOUT], words]
    tables = [
        [f"Abilities of {escaped(row['name'])}:", "", *_ability_table(row["abilities"], markdown)]
        for row in report["runs"]
        if len(pairs) == 1 or any(_differs(cell) for cell in row["abilities"].values())
    ]
    parts += tables or [[_largest(report["runs"])]]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _differs(row: Row) -> bool:
    return row["p_holm"] is not None and row["p_holm"] < ALPHA


def _ability_table(cells: Mapping[str, Row], markdown: bool) -> list[str]:
    rows = [[name, str(cell["n"]), *_numbers(cell)] for name, cell in cells.items()]
    return aligned([["ability", "n", *NUMBERS], *rows], markdown)


def _largest(rows: Sequence[Row]) -> str:
    """One line on the abilities where none of them differs."""
    cells = [(cell, name, row) for row in rows for name, cell in row["abilities"].items()]
    cell, name, row = max(cells, key=lambda found: abs(found[0]["difference"] or 0))
    return LARGEST.format(number(cell["difference"], sign="+"), name, row["name"])


def _cells(row: Row, shown: Shown) -> list[str]:
    counts = [row[kind] for kind in KINDS]
    return [
        row["name"],
        *_numbers(row),
        number(row["half_points_difference"], sign="+"),
        *("-" if n is None or not shown.answers else f"{n / shown.answers:.1%}" for n in counts),
        number(row["mean_completion_tokens"], 0),
        row["verdict"],
    ]


def _numbers(row: Row) -> list[str]:
    p = row["p_holm"]
    return [
        number(row["score"]),
        interval(row["low"], row["high"]),
        number(row["difference"], sign="+"),
        interval(row["difference_low"], row["difference_high"], "+"),
        "<0.001" if p is not None and p < 0.001 else number(p),
    ]


def aligned(rows: Sequence[Sequence[str]], markdown: bool) -> list[str]:
    """A table with its columns in line."""
    width = min(NAME, max(len(row[0]) for row in rows))
    rows = [[fitted(first, width), *rest] for first, *rest in rows]
    if markdown:
        rows = [[escaped(cell) for cell in row] for row in rows]
        rows.insert(1, [":--", *["--:"] * (len(rows[0]) - 1)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    between, edge = (" | ", "|") if markdown else ("  ", "")
    return [edge + between.join(map(str.rjust, row, widths)) + edge for row in rows]


def escaped(text: str) -> str:
    """A text that Markdown shows as it is."""
    return re.sub(r"([\\|*_`~<>&\[\]])", r"\\\1", text)


# ------------------------------------------------------------------------------------------------
# Page and command line.


def views_of(subjects: Sequence[Subject]) -> list[dict[str, Any]]:
    """Every question with what each run made of it."""
    keys = {key for subject in subjects for key in subject.scores}
    return [_view(key, subjects) for key in sorted(keys, key=lambda key: (len(key[0]), key))]


def _view(key: QuestionKey, subjects: Sequence[Subject]) -> dict[str, Any]:
    view: dict[str, Any] = dict(
        zip(("chat_id", "question_type", "question_index"), key, strict=True)
    )
    view |= {**NO_QUESTION, "runs": []}
    for subject in subjects:
        seen = None
        for file in reversed(subject.files):  # the first one that has it counts
            if key in file.scores:
                answer = (file.answers or {}).get(key, {})
                view |= {name: answer[name] for name in NO_QUESTION if name in answer}
                seen = {name: answer.get(name) for name in ("response", "finish_reason", "error")}
                seen |= {"score": subject.scores[key], "verdicts": file.verdicts.get(key, [])}
        view["runs"].append(seen)
    return view


def title_of(subjects: Sequence[Subject]) -> str:
    """What was judged and by whom."""
    files = [file for subject in subjects for file in subject.files]
    data = dict.fromkeys(map(data_of, files))
    judges = dict.fromkeys(file.facts.get("judge's model", "unknown") for file in files)
    return f"BEAM, {' / '.join(data)} · judge {' / '.join(judges)}"


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
    shown, title = shown_of(subjects, report), title_of(subjects)
    files = [file for subject in subjects for file in subject.files]
    if args.format == "json":
        print(json.dumps(report, indent=1, allow_nan=False))
    elif args.format == "text" and len(files) == 1:
        print("\n".join(summary_lines(files[0])))
    else:
        print(report_text(report, shown, title, args.format == "markdown"))
    if args.plot:
        plot.write(args.plot, report, shown, title)
    if args.html:
        page.write(args.html, report, shown, views_of(subjects), title)
    return 0


if __name__ == "__main__":
    run(main)
