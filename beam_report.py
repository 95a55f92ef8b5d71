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
from collections.abc import Sequence

from beam_common import page, plot
from beam_common.cli import Parser, positive_float
from beam_common.command import command, run
from beam_common.comparison import Subject, for_programs, load_subjects, report_object
from beam_common.files import unwritable
from beam_common.jsonl import IDENTITY
from beam_common.rows import Json, Row
from beam_common.stats import ALPHA
from beam_common.summary import summary_lines
from beam_common.tables import ABOUT, HEADS, NUMBERS, aligned, cells_of, escaped, numbers_of

LARGEST = (
    "abilities: none differs beyond chance, the largest difference is {} ({}, {}); two equal "
    "models on 35 chats show 0.086 (median), one pair in twenty 0.146"
)
# What the page shows of a question, an answer and a verdict.
QUESTION: Row = {"question": "", "gold_answer": "", "rubric": []}
ANSWER = ("response", "finish_reason", "error")
VERDICT = ("item", "status", "level", "reply")


def report_text(report: Json, title: str, markdown: bool) -> str:
    """The report for people: what hides behind the scores, the table, the verdicts, the notes."""
    rows = sorted(report["runs"], key=lambda row: -row["score"])
    hidden = [f"{row['name']}: {text}" for row in rows for text in row["hidden"]]
    words = [f"{row['name']}: {row['words']}" for row in rows if row["verdict"] != "reference"]
    words += [f"note: {note}" for note in report["notes"]]
    if markdown:
        hidden, words = ([f"- {escaped(line)}" for line in lines] for lines in (hidden, words))
        title = f"### {escaped(title)}"
    parts = [hidden, [title], aligned([HEADS, *map(cells_of, rows)], markdown), [ABOUT], words]
    parts += _abilities(rows, markdown)
    return "\n\n".join("\n".join(part) for part in parts if part)


def _abilities(rows: Sequence[Json], markdown: bool) -> list[list[str]]:
    """The abilities of each run of which one differs beyond chance, else one line on all."""
    parts = []
    sizes = []
    for row in rows:
        run_name = escaped(row["name"]) if markdown else row["name"]
        table = [["ability", "n", *NUMBERS]]
        differs = len(rows) == 1
        for name, part in row["abilities"].items():
            table.append([name, str(part["n"]), *numbers_of(part)])
            differs |= part["p_holm"] is not None and part["p_holm"] < ALPHA
            sizes.append((abs(part["difference"] or 0), table[-1][4], name, run_name))
        if differs:
            parts += [[f"Abilities of {run_name}:"], aligned(table, markdown)]
    return parts or [[LARGEST.format(*max(sizes)[1:])]]


def views_of(subjects: Sequence[Subject]) -> list[Row]:
    """Every question with what each run made of it."""
    keys = {key for subject in subjects for key in subject.scores}
    views = []
    for key in sorted(keys, key=lambda key: (len(key[0]), key)):
        view = {**dict(zip(IDENTITY, key, strict=True)), **QUESTION, "runs": []}
        for subject in subjects:
            file = next((file for file in subject.files if key in file.scores), None)
            answer = file.answers.get(key, {}) if file else {}
            view |= {name: answer[name] for name in QUESTION if name in answer}
            seen = file and {
                "score": subject.scores[key],
                **{name: answer.get(name) for name in ANSWER},
                "verdicts": [
                    {name: row.get(name) for name in VERDICT} for row in file.verdicts.get(key, [])
                ],
            }
            view["runs"].append(seen)
        views.append(view)
    return views


@command
def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__, "beam_report.py")
    add = parser.add_argument
    add("runs", nargs="+", metavar="[NAME=]SCORES[,SCORES...]", help="the first is the reference")
    parser.flag("--margin", positive_float, 0.03, "X", "the loss that would matter")
    add("--format", choices=("text", "markdown", "json"), default="text",
        help="(default: %(default)s)")  # fmt: skip
    parser.flag("--plot", plot.picture, None, "FILE", "write a picture, too: .png, .svg or .pdf")
    parser.flag("--html", plot.place, None, "FILE", "write a page, too")
    args = parser.parse_args(argv)
    subjects = load_subjects(args.runs)
    report = report_object(subjects, args.margin)
    first = subjects[0].files[0]
    data, judge = (first.facts.get(name, "unknown") for name in ("data", "judge's model"))
    title = f"BEAM, {data} · judge {judge}"
    if args.format == "json":
        print(json.dumps(for_programs(report), indent=1, allow_nan=False))
    elif args.format == "text" and len(subjects) == len(subjects[0].files) == 1:
        print("\n".join(summary_lines(first)))
    else:
        print(report_text(report, title, args.format == "markdown"))
    shown = {**report, "title": title, "questions": views_of(subjects)}
    for path, write in ((args.plot, plot.write), (args.html, page.write)):
        try:
            if path:
                write(path, shown)
        except OSError as error:
            raise unwritable(path, error, "file") from error
    return 0


if __name__ == "__main__":
    run(main)
