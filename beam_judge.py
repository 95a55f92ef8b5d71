"""Score every answer against its rubric with a judge model and print the summary.

In:   one or more answers files of beam_generate.py
Out:  scores.jsonl, one line a question; scores.verdicts.jsonl, each reply of the judge as it
      arrived; scores.run.json, the settings of the run

Each criterion is one call; a verdict of 0.5 counts 0, and a question's score is the mean over its
criteria. Start it again after any stop: only missing verdicts are asked for. Exit code 0: all
answers are scored; 1: stopped early; 2: bad usage or input; 130/143: SIGINT/SIGTERM.

  python beam_judge.py --answers answers.jsonl --judge-model gpt-oss-120b \\
      --judge-base-url http://localhost:8000/v1
"""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace as Args
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from beam_common import command
from beam_common.answers import Answers, describe, read_answers
from beam_common.calls import Call, Known, Prompts, Question, verdict_key
from beam_common.cli import (
    EXTRA_HELP,
    Parser,
    add_endpoint_flags,
    api_key,
    json_object,
    non_negative_float,
    non_negative_int,
    normalise_base_url,
    positive_int,
    public_text,
)
from beam_common.endpoint import encode_json, request_parameters
from beam_common.failure import Failure, Flags
from beam_common.files import sha256_of_text, sidecar_path
from beam_common.jsonl import SCORE, VERDICT
from beam_common.messages import plural, say
from beam_common.progress import Progress, short_count
from beam_common.prompts import ALIGNMENT, criterion_template, ordering_template
from beam_common.record import Record, new_record
from beam_common.reply import Reply
from beam_common.request import announce, body_of, closing, start_run
from beam_common.rowlog import RowLog, output_path
from beam_common.rows import Json, Row, key_of, name_of
from beam_common.run import Ended
from beam_common.schedule import Group, Job, Order
from beam_common.summary import load_run, summary_lines

FLAGS = Flags("--judge-", ("temperature", "max_tokens", "reasoning_effort", "model"))


def request_settings(args: Args) -> Row:
    """The request's body: everything but the messages."""
    settings = {
        "model": args.judge_model,
        "temperature": args.judge_temperature,
        "max_tokens": args.judge_max_tokens,
    }
    if args.judge_reasoning_effort:
        settings["reasoning_effort"] = args.judge_reasoning_effort
    return request_parameters(settings, args.judge_extra_json)


class Judge:
    """Asks for the verdicts that are missing; a question's score follows from its last one."""

    def __init__(self, args: Args, scores: RowLog, verdicts: RowLog, record: Record) -> None:
        self.args, self.scores, self.verdicts, self.record = args, scores, verdicts, record
        self.counts: Counter[str] = Counter()  # of the calls of this run

    async def go(self, questions: Sequence[Question], total: int, key: str) -> Ended:
        groups = [Group(question) for question in questions]
        for group in groups:
            for call in group.item.calls:
                group.add(key_of(call.answer), call)
        if len(questions) < total:
            say(f"{self.args.output}: {plural(total - len(questions), 'answer')} scored already")
        calls = plural(sum(len(question.calls) for question in questions), "call")
        what = f"judging {plural(len(questions), 'answer')} by {calls}"
        announce(self.args, f"{what} with {self.args.judge_model}")
        body = request_settings(self.args)
        self.settings = encode_json(body)
        order = Order(groups, open_limit=1, opener_first=False)
        self.run = start_run(self.args, key, FLAGS, body, order)
        self.progress = Progress(total, total - len(questions), "question", self.status)
        ended = await self.run.go(self.judge, self.progress)
        say(f"this run: {self.status()}, {self.counts['completion']:,} out")
        return ended

    async def judge(self, job: Job) -> None:
        """Ask for one verdict until it can be read, and save each reply."""
        call: Call = job.item
        text = call.prompt()
        sha256 = sha256_of_text(text)

        async def body() -> list[bytes]:
            return body_of(self.settings, job.question[0], text)

        for _ in range(call.tries):
            outcome = await self.run.ask(job, body)
            row = call.row(sha256, outcome)
            if isinstance(outcome, Failure):
                about = f"{name_of(job.question)}: a call failed and counts 0"
                self.run.errors.say(outcome.text, about)
            await self.verdicts.save(row)  # first: trouble with the record costs no verdict
            if isinstance(outcome, Reply) and self.record.note_model(outcome):
                await asyncio.to_thread(self.record.save)
            tokens = {name: row[f"{name}_tokens"] or 0 for name in ("prompt", "completion")}
            self.counts.update({"calls": 1, row["status"]: 1, **tokens})
            if row["status"] != "unreadable":
                break
        question: Question = job.group.item
        question.levels[call.item] = row["level"]
        if len(question.calls) == 1:
            await self.scores.save(question.row())
            self.progress.step()
        question.calls.remove(call)

    def status(self) -> str:
        counts, tokens = self.counts, short_count(self.counts["prompt"])
        lost = f"{counts['unreadable']:,} unreadable, {counts['failed']:,} failed"
        return f"{self.run.in_flight()}{counts['calls']:,} calls, {lost}, {tokens} tokens in"


# ------------------------------------------------------------------------------------------------
# From the files to what is left, and back.


def judge(args: Args, prompts: Prompts, answers: Answers, key: str) -> int:
    """Judge what the output does not hold yet, then print the summary; the exit code."""
    known = Known(1 + args.parse_retries, args.retry_errors)
    verdicts_path = sidecar_path(args.output, ".verdicts.jsonl")
    with (
        RowLog(args.output, SCORE) as scores,
        RowLog(verdicts_path, VERDICT, verdict_key, known.keep) as verdicts,
    ):
        record = opened_record(args, prompts, scores, verdicts)
        questions = []
        for question, answer in list(answers.items())[: args.limit or None]:
            if has_criterion(answer) and name_of(question) not in record.content["foreign"]:
                questions.append(Question(answer, prompts.mode))
                questions[-1].plan(prompts, verdicts.rows, known)
        left = [question for question in questions if question.calls]
        rows = [question.row() for question in questions if not question.calls]
        had = {question: row["score"] for question, row in scores.rows.items()}
        scores.append([row for row in rows if row["score"] != had.get(key_of(row))])
        ended = Ended(0)
        if left:
            judging = Judge(args, scores, verdicts, record).go(left, len(questions), key)
            ended = asyncio.run(judging)
        record.save()
        scores.compact()
    if scores.rows:
        print("\n".join(summary_lines(load_run(args.output))))
    missing = sum(bool(question.calls) for question in left)
    return closing(ended, f"{plural(missing, 'answer')} left to judge" if missing else "")


def opened_record(args: Args, prompts: Prompts, scores: RowLog, verdicts: RowLog) -> Record:
    """The record of this run, bound to what the output holds."""
    new = new_record("beam_judge.py", args, request_settings(args))
    new["settings"] |= prompts.settings()
    new |= describe(args.answers, args.allow_mixed)
    folder = args.output.resolve().parent
    new["files"] = [os.path.relpath(path.resolve(), folder) for path in args.answers]
    rows = [*scores.rows.values(), *verdicts.rows.values()]
    record = Record(args, new, rows, args.judge_model)
    judged = {question for question, _ in verdicts.rows}
    foreign = [name_of(question) for question in scores.rows if question not in judged]
    record.content["foreign"] = record.earlier.get("foreign", []) if record.earlier else foreign
    if missing := new["missing_shards"]:
        shards = ", ".join(missing)
        say(f"warning: no answers of shard {shards}: it has no chats, or a part is missing")
    record.save()
    return record


def has_criterion(answer: Json) -> bool:
    """Whether an answer can be judged; says so where it cannot."""
    if any(item.strip() for item in answer["rubric"]):
        return True
    say(f"warning: {name_of(key_of(answer))} has no criterion in its rubric: left unscored")
    return False


# ------------------------------------------------------------------------------------------------
# Command line.


def parser() -> Parser:
    p = Parser(__doc__, "beam_judge.py")
    add = p.flag
    p.add_argument("--answers", nargs="+", required=True, type=Path, metavar="FILE",
                   help="answers files, the shards of one run (required)")  # fmt: skip
    p.add_argument("--judge-model", type=public_text, required=True, metavar="NAME",
                   help="model name of the judge (required)")  # fmt: skip
    p.add_argument("--judge-base-url", required=True, metavar="URL",
                   help="OpenAI-compatible base URL of the judge (required)")  # fmt: skip
    add(
        "--judge-api-key", str, None, "KEY", "API key (default: environment variable JUDGE_API_KEY)"
    )
    add("--output", str, "scores.jsonl", "FILE", "where scores are appended")
    add("--judge-reasoning-effort", str, "", "EFFORT",
        "sent as reasoning_effort when set, such as high (default: empty)")  # fmt: skip
    add("--judge-max-tokens", positive_int, 16384, "N", "most output tokens")
    add("--judge-temperature", non_negative_float, 0.3, "T", "sampling temperature")
    add("--judge-extra-json", json_object, {}, "JSON", EXTRA_HELP)
    add("--parse-retries", non_negative_int, 2, "N", "further calls when a verdict is unreadable")
    add("--limit", non_negative_int, 0, "N", "only the first N answers; 0: all")
    add("--criterion-prompt", str, "official", "PROMPT",
        "official (installed by prepare_data.py), builtin, or a file")  # fmt: skip
    add("--ordering-prompt", str, "builtin", "PROMPT", "builtin, or a file")
    p.add_argument("--event-ordering", choices=("strict", "tau"), default="strict",
                   help="1 only for every event in perfect order, or the paper's rank correlation "
                   "(default: %(default)s)")  # fmt: skip
    add_endpoint_flags(p, concurrency=32, timeout=600, one="call")
    return p


@command.command
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    args.output = output_path(args.output)
    args.answers = list({path.resolve(): path for path in args.answers}.values())  # each once
    args.base_url = normalise_base_url(args.judge_base_url, "--judge-base-url")
    mode = args.event_ordering
    ordering = ALIGNMENT if mode == "tau" else ordering_template(args.ordering_prompt)
    prompts = Prompts(criterion_template(args.criterion_prompt), ordering, mode)
    key = api_key(args.judge_api_key, "JUDGE_API_KEY", "--judge-api-key")
    return judge(args, prompts, read_answers(args.answers), key)


if __name__ == "__main__":
    command.run(main)
