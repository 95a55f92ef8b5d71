"""Score every answer against its rubric with a judge model and print the summary.

In:   one or more answers files of beam_generate.py
Out:  scores.jsonl, one line a question; scores.details.jsonl, what the judge said to each criterion;
      scores.run.json, the settings of the run

Each criterion is one call; a verdict of 0.5 counts 0 and a question's score is the mean over its criteria. Start it again
after any stop: judged questions are skipped, those whose answer has changed are judged anew. Exit code 0: all answers are
scored; 1: stopped early; 2: bad usage or input; 130/143: SIGINT/SIGTERM.

  python beam_judge.py --answers answers.jsonl --judge-model gpt-oss-120b --judge-base-url http://localhost:8000/v1
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beam_cli import (
    Parser,
    api_key,
    command,
    header,
    json_object,
    non_negative_float,
    non_negative_int,
    normalise_base_url,
    positive_float,
    positive_int,
    shown_url,
)
from beam_common import QuestionKey, UsageError, beside, key_of, name_of, plural, say, sha256_of_text
from beam_log import ANSWER, DETAIL, SCORE, RowLog, counts_over, parse_line, read_lines
from beam_prompts import ALIGNMENT, CRITERION, ORDERING, Template, numbered, template_from_file
from beam_settings import bind_settings, load_sidecar, now_text, package_versions
from beam_verdict import question_score, read_alignment, read_ordering, read_score, tau_score

if TYPE_CHECKING:
    import argparse

    from beam_endpoint import Failure, Reply
    from beam_run import Ended, Job

ORDERING_ABILITY = "event_ordering"
ABSTENTION = "abstention"


# ---------------------------------------------------------------------------------------------------------------
# The answers.


@dataclass(frozen=True)
class Answer:
    """One question's answer: where it stands, and what decides whether it must be judged (again)."""

    key: QuestionKey
    path: Path
    start: int
    length: int
    response_sha256: str
    error: str | None
    blank: bool
    criteria: int

    def row(self) -> dict[str, Any]:
        """The whole row, read from the file again: long answers are not held in memory."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                line = parse_line(2 if self.start else 1, self.start, file.read(self.length), ANSWER)
        except OSError as error:
            raise UsageError(f"--answers {self.path}: {error.strerror or error}") from error
        row = line.row if line else None
        if row is None or key_of(row) != self.key or sha256_of_text(response_of(row)) != self.response_sha256:
            raise UsageError(f"{self.path} was changed while it was being judged; start again")
        return row

    def score_without_call(self) -> str | None:
        """Why the answer scores 0 unseen: `error`, or `empty` (which is judged for abstention); else None."""
        if self.error is not None:
            return "error"
        return "empty" if self.blank and self.key[1] != ABSTENTION else None


def response_of(row: Mapping[str, Any]) -> str:
    return row.get("response") or ""


def read_answers(paths: Sequence[Path]) -> dict[QuestionKey, Answer]:
    """Of each question the answer that counts, over all files, in the order of first occurrence.

    An answered row beats one with an error. UsageError when two files answer one question differently.
    """
    answers: dict[QuestionKey, Answer] = {}
    for path in paths:
        if not path.is_file():
            raise UsageError(
                f"--answers {path}: {'not a file' if path.exists() else 'no such file'}; beam_generate.py makes it"
            )
        with open(path, "rb") as file:
            if file.read(2) == b"\x1f\x8b":
                raise UsageError(f"--answers {path} is a gzip file; unpack it first")
        in_file: dict[QuestionKey, tuple[dict[str, Any], Answer]] = {}
        for line in read_lines(path, ANSWER):
            if line.row is None:
                say(f"warning: {path} line {line.number}: {line.problem}; left out, its question is not judged")
                continue
            key = key_of(line.row)
            if counts_over(line.row, in_file[key][0] if key in in_file else None):
                in_file[key] = ({"error": line.row.get("error")}, _answer(path, line.start, len(line.raw), line.row))
        for key, (_, answer) in in_file.items():
            answers[key] = _better(answers.get(key), answer)
    if not answers:
        raise UsageError(f"no answers yet in {', '.join(map(str, paths))}; run beam_generate.py first")
    return answers


def _answer(path: Path, start: int, length: int, row: dict[str, Any]) -> Answer:
    response = response_of(row)
    digest = sha256_of_text(response)
    return Answer(key_of(row), path, start, length, digest, row.get("error"), not response.strip(), len(row["rubric"]))


def _better(earlier: Answer | None, later: Answer) -> Answer:
    if earlier is None or (earlier.error is not None and later.error is None):
        return later
    if earlier.error is None and later.error is None and earlier.response_sha256 != later.response_sha256:
        chat, ability, index = later.key
        raise UsageError(
            f"chat {chat} {ability}/{index} is answered differently in {earlier.path} and {later.path}; these are two runs: "
            "judge them into two --output files"
        )
    return earlier


# ---------------------------------------------------------------------------------------------------------------
# Calls and verdicts.


@dataclass(frozen=True)
class Call:
    """One call of the judge: its prompt, and how to read the reply. The criterion goes into the details."""

    index: int
    criterion: str | list[str]
    prompt: str
    read: Callable[[str, str | None], float | None]


@dataclass(frozen=True)
class Prompts:
    criterion: Template
    ordering: Template
    tau: bool

    @property
    def mode(self) -> str:
        return "tau" if self.tau else "strict"


def calls_for(row: Mapping[str, Any], prompts: Prompts) -> list[Call]:
    """The calls that score one answer: one for each criterion, or one for a question of event_ordering."""
    question, rubric, response = row.get("question") or "", list(row["rubric"]), response_of(row)
    if row["question_type"] != ORDERING_ABILITY:
        return [
            Call(
                index,
                item,
                prompts.criterion.fill({"question": question, "rubric_item": item, "response": response}),
                read_score,
            )
            for index, item in enumerate(rubric)
        ]
    texts = {"question": question, "reference_order": numbered(rubric)}
    if not prompts.tau:
        return [Call(0, rubric, prompts.ordering.fill({**texts, "response": response}), read_ordering)]
    lines = [line for line in response.splitlines() if line.strip()]

    def read(reply: str, finish_reason: str | None) -> float | None:
        matches = read_alignment(reply, finish_reason, len(lines), rubric)
        return None if matches is None else tau_score(matches, len(rubric))

    fences = {"question": "question", "reference_order": "reference", "response": "lines"}
    return [Call(0, rubric, ALIGNMENT.fill({**texts, "response": numbered(lines)}, fences), read)]


def verdict(call: Call, outcome: Reply | Failure, level: float | None) -> dict[str, Any]:
    """What the details keep of one call."""
    kept: dict[str, Any] = {"criterion": call.criterion, "level": level}
    if hasattr(outcome, "kind"):
        return kept | {
            "status": "failed",
            "reply": None,
            "finish_reason": None,
            "prompt_tokens": None,
            "completion_tokens": None,
            "error": outcome.text,
        }
    return kept | {
        "status": "unreadable" if level is None else "scored",
        "reply": outcome.text,
        "finish_reason": outcome.finish_reason,
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "error": None,
    }


def detail_row(answer: Answer, status: str, mode: str | None, verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """The details of one question. status: `judged`, or `empty` or `error` where no call was made."""
    return {
        **dict(zip(("chat_id", "question_type", "question_index"), answer.key, strict=True)),
        "response_sha256": answer.response_sha256,
        "status": status,
        "ordering": mode if answer.key[1] == ORDERING_ABILITY else None,
        "verdicts": verdicts,
    }


def score_of(detail: Mapping[str, Any]) -> float:
    """A question's score from its details: the mean of its cut levels; for tau the level as it is."""
    if detail["status"] != "judged":
        return 0.0
    return question_score([v["level"] for v in detail["verdicts"]], cut=detail.get("ordering") != "tau")


def score_row(detail: Mapping[str, Any]) -> dict[str, Any]:
    return {name: detail[name] for name in ("chat_id", "question_type", "question_index")} | {"score": score_of(detail)}


def has_gaps(detail: Mapping[str, Any]) -> bool:
    """Whether a verdict could not be read or had."""
    return any(v.get("status") != "scored" for v in detail["verdicts"])


def had_reply(detail: Mapping[str, Any]) -> bool:
    return any(v.get("status") in ("scored", "unreadable") for v in detail["verdicts"])


def still_holds(detail: Mapping[str, Any], answer: Answer, mode: str) -> bool:
    """Whether details are about this very answer, in this mode of event_ordering."""
    return (
        detail["response_sha256"] == answer.response_sha256
        and (detail.get("status") == "error") == (answer.error is not None)
        and (answer.key[1] != ORDERING_ABILITY or detail["status"] != "judged" or detail.get("ordering") == mode)
    )


# ---------------------------------------------------------------------------------------------------------------
# The run.


@dataclass(eq=False)
class Judging:
    """A question while it is being judged."""

    answer: Answer
    verdicts: list[dict[str, Any] | None]
    parse_retries: Counter[int] = field(default_factory=Counter)
    counted: bool = False  # as finished, for --stop-after-failures
    landed: set[int] = field(default_factory=set)  # calls that are over, or put off
    replied: bool = False  # to any call of this run


@dataclass
class Tally:
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    uncounted: int = 0  # calls whose tokens the endpoint did not report
    unreadable: int = 0
    failed: int = 0

    def status(self) -> str:
        return f"{self.calls:,} calls, {self.unreadable:,} unreadable, {self.failed:,} failed, {self.prompt_tokens:,} tokens in"

    def closing(self) -> str:
        unknown = f" (unknown for {self.uncounted:,})" if self.uncounted else ""
        return f"this run: {self.status()}, {self.completion_tokens:,} out{unknown}"


class Judge:
    """Judges the open answers of a run and saves details and scores."""

    def __init__(self, args: argparse.Namespace, prompts: Prompts, scores: RowLog, details: RowLog) -> None:
        from beam_endpoint import encode_json
        from beam_run import GroupCommit

        self.args, self.prompts, self.scores, self.details = args, prompts, scores, details
        self.saver: GroupCommit[dict[str, Any]] = GroupCommit(self.commit)
        self.settings = encode_json(body_settings(args))
        self.tally = Tally()
        self.saved = 0

    def commit(self, batch: list[dict[str, Any]]) -> None:
        """Details first: a score never stands without what the judge said."""
        self.details.append(batch)
        self.scores.append([score_row(detail) for detail in batch])

    async def go(self, answers: Sequence[Answer], total: int, key: str) -> Ended:
        from beam_endpoint import Endpoint, Flags
        from beam_run import Limits, Order, Progress, Run

        args = self.args
        self.run = Run(
            Order(self._groups(answers), open_limit=1, opener_first=False),
            Limits(args.concurrency, args.max_retries, args.stop_after_failures),
            self._attempt,
            self._settle,
            self._finish,
            lambda: self.progress.tick(),
        )
        self.endpoint = Endpoint(
            args.judge_base_url,
            key,
            timeout=args.timeout,
            connections=args.concurrency,
            headers=dict(args.header),
            flags=Flags("--judge-base-url", "--judge-api-key", "--judge-model"),
        )
        self.progress = Progress(total, total - len(answers), "question", self.tally.status)
        try:
            return await self.run.go()
        finally:
            self.progress.close()
            await self.endpoint.close()

    def _groups(self, answers: Sequence[Answer]) -> Iterator[Any]:
        from beam_run import Group

        for answer in answers:
            calls = calls_for(answer.row(), self.prompts)
            judging = Judging(answer, [None] * len(calls))
            known = self.details.rows.get(answer.key)
            if known and known["verdicts"] and still_holds(known, answer, self.prompts.mode):
                for call, earlier in zip(calls, known["verdicts"], strict=False):
                    if earlier.get("status") == "scored" and earlier.get("criterion") == call.criterion:
                        judging.verdicts[call.index] = earlier  # read before: not paid again
                        judging.landed.add(call.index)
            yield Group.of(judging, [call for call in calls if judging.verdicts[call.index] is None])

    async def _attempt(self, job: Job) -> Reply | Failure:
        from beam_endpoint import encode_body, encode_json

        message = encode_json({"role": "user", "content": job.item.prompt})
        outcome = await self.endpoint.ask(encode_body(self.settings, [], message))
        job.group.item.replied |= not hasattr(outcome, "kind")
        return outcome

    async def _settle(self, job: Job, outcome: Reply | Failure) -> bool:
        judging, call = job.group.item, job.item
        level = None
        if not hasattr(outcome, "kind"):
            self.tally.calls += 1
            self.tally.prompt_tokens += outcome.prompt_tokens or 0
            self.tally.completion_tokens += outcome.completion_tokens or 0
            self.tally.uncounted += outcome.prompt_tokens is None or outcome.completion_tokens is None
            level = call.read(outcome.text, outcome.finish_reason)
            if level is None and judging.parse_retries[call.index] < self.args.parse_retries:
                judging.parse_retries[call.index] += 1
                return False
            self.tally.unreadable += level is None
        else:
            self.tally.failed += 1
            say(f"{_named(judging.answer)}: a call failed and counts 0: {outcome.text}")
        judging.verdicts[call.index] = verdict(call, outcome, level)
        if all(judging.verdicts):
            verdicts = [v for v in judging.verdicts if v is not None]
            await self.saver.save(detail_row(judging.answer, "judged", self.prompts.mode, verdicts))
            self.saved += 1
            self.progress.step()
        return True

    def _finish(self, job: Job, failed: bool) -> bool | None:
        judging = job.group.item
        judging.landed.add(job.item.index)
        if judging.counted or len(judging.landed) < len(judging.verdicts):
            return None
        judging.counted = True
        return not judging.replied


def _named(answer: Answer) -> str:
    return name_of(dict(zip(("chat_id", "question_type", "question_index"), answer.key, strict=True)))


def body_settings(args: argparse.Namespace) -> dict[str, Any]:
    from beam_endpoint import parameters

    settings: dict[str, Any] = {"model": args.judge_model, "temperature": args.judge_temperature}
    settings["max_tokens"] = args.judge_max_tokens
    if args.judge_reasoning_effort:
        settings["reasoning_effort"] = args.judge_reasoning_effort
    return parameters(settings, args.judge_extra_json)


def sidecar(args: argparse.Namespace, prompts: Prompts, answers: Mapping[QuestionKey, Answer]) -> dict[str, Any]:
    """The settings of a run for the record. `settings` (but for the ordering mode) and `data` bind a later resume."""
    files = [described_answers(Path(path), answers) for path in args.answers]
    return {
        "program": "beam_judge.py",
        "started": [now_text()],
        "settings": {
            "judge_model": args.judge_model,
            "judge_base_url": shown_url(args.judge_base_url),
            "judge_temperature": args.judge_temperature,
            "judge_max_tokens": args.judge_max_tokens,
            "judge_reasoning_effort": args.judge_reasoning_effort,
            "judge_extra_body": args.judge_extra_json,
            "criterion_prompt_sha256": prompts.criterion.sha256,
            "ordering_prompt_sha256": prompts.ordering.sha256,
            "alignment_prompt_sha256": ALIGNMENT.sha256,
            "event_ordering": prompts.mode,
        },
        "data": origin(files),
        "answers": files,
        "counts": {
            "answers": len(answers),
            "unscorable": sum(not a.criteria for a in answers.values()),
            "answers_with_error": sum(a.error is not None for a in answers.values()),
            "empty": sum(a.blank and a.error is None for a in answers.values()),
        },
        "run": {
            "concurrency": args.concurrency,
            "max_retries": args.max_retries,
            "timeout": args.timeout,
            "parse_retries": args.parse_retries,
            "limit": args.limit,
            "header_names": [name for name, _ in args.header],
        },
        "versions": package_versions(["openai", "httpx2"]),
    }


def described_answers(path: Path, answers: Mapping[QuestionKey, Answer]) -> dict[str, Any]:
    """What is known of an answers file: whose answers, about which data, how many were selected."""
    try:
        run = load_sidecar(beside(path, ".run.json")) or {}
    except UsageError as error:
        say(f"warning: {error}")
        run = {}
    settings = run.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    return {
        "file": path.name,
        "model": settings.get("model"),
        "base_url": settings.get("base_url"),
        "data": run.get("data"),
        "selected": run.get("selected"),
        "answered": sum(a.path == path and a.error is None for a in answers.values()),
    }


def origin(files: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Whose answers are judged and to which questions, as far as known: scores of two models must not get into one file."""
    known = [{**(file["data"] or {}), "answers_model": file["model"]} for file in files]
    names = ("answers_model", "questions_sha256", "chats_sha256")
    found = {name: {str(item[name]) for item in known if item.get(name)} for name in names}
    return {name: " + ".join(sorted(values)) for name, values in found.items() if values}


def judge(args: argparse.Namespace, prompts: Prompts, answers: dict[QuestionKey, Answer], key: str) -> int:
    """Judge what the output does not hold yet, then print the summary; the exit code."""
    import asyncio

    from beam_summary import load_run, print_lines, summary_lines

    chosen = list(answers.values())[: args.limit or None]
    for answer in (a for a in chosen if not a.criteria):
        say(f"warning: {_named(answer)} has no criterion in its rubric: left unscored")
    to_score = [a for a in chosen if a.criteria]
    with RowLog(args.output, SCORE) as scores:
        place = beside(args.output, ".details.jsonl") if scores.regular else Path(os.devnull)
        with RowLog(place, DETAIL, essence) as details:
            earlier_mode = None
            if scores.regular:
                earlier_mode = recorded_mode(args.output)
                bind_scores(args, sidecar(args, prompts, answers), scores, details)
            left, without_call, unscored = plan(
                to_score, scores.rows, details.rows, prompts.mode, earlier_mode, args.retry_errors
            )
            details.append(without_call)
            scores.append([score_row(detail) for detail in [*without_call, *unscored]])
            worker, ended = Judge(args, prompts, scores, details), None
            if left:
                done = f"; {len(to_score) - len(left):,} are scored" if len(left) < len(to_score) else ""
                where = f"{args.judge_model} at {shown_url(args.judge_base_url)}"
                say(f"judging {plural(len(left), 'answer')} with {where}, {args.concurrency} calls in flight{done}")
                ended = asyncio.run(worker.go(left, len(to_score), key))
                say(worker.tally.closing())
            scores.compact()
            details.compact()
        has_scores = scores.regular and bool(scores.rows)
    if has_scores:
        print_lines(summary_lines(load_run(args.output)))
    return closing(ended, len(left) - worker.saved)


def recorded_mode(output: str) -> str | None:
    """The mode of event_ordering that the output's sidecar records."""
    try:
        settings = (load_sidecar(beside(output, ".run.json")) or {}).get("settings")
    except UsageError:  # no matter where it does not bind; where it does, bind_scores says so
        return None
    mode = settings.get("event_ordering") if isinstance(settings, dict) else None
    return mode if isinstance(mode, str) else None


def essence(row: dict[str, Any]) -> dict[str, Any]:
    """What a resume needs of the details: everything of those with gaps, of the others not the judge's words."""
    if has_gaps(row):
        return row
    return {**row, "verdicts": [{k: v for k, v in verdict.items() if k != "reply"} for verdict in row["verdicts"]]}


def bind_scores(args: argparse.Namespace, content: dict[str, Any], scores: RowLog, details: RowLog) -> None:
    """Record the settings beside the scores; UsageError when the scores there rest on others."""
    binding = any(k not in details.rows for k in scores.rows) or any(map(had_reply, details.rows.values()))
    bind_settings(
        beside(args.output, ".run.json"),
        content,
        binding=binding,
        allow_mixed=args.allow_mixed,
        output=args.output,
        may_change=("event_ordering",),
    )


def plan(
    answers: Sequence[Answer], scores: Mapping[QuestionKey, Any], details: Mapping[QuestionKey, Any], mode: str,
    earlier_mode: str | None, retry_errors: bool,
) -> tuple[list[Answer], list[dict[str, Any]], list[dict[str, Any]]]:  # fmt: skip
    """(answers to judge, details to write without a call, details on disk whose score is missing).

    Scores without details (another tool's) stand, unless they are of the other mode of event_ordering.
    """
    to_judge, without_call, unscored = [], [], []
    for answer in answers:
        detail, scored = details.get(answer.key), answer.key in scores
        if detail and still_holds(detail, answer, mode):
            if retry_errors and has_gaps(detail):
                to_judge.append(answer)
            elif not scored or scores[answer.key]["score"] != score_of(detail):  # stopped between details and score
                unscored.append(detail)
        elif detail is None and scored and not (answer.key[1] == ORDERING_ABILITY and earlier_mode not in (mode, None)):
            continue
        elif reason := answer.score_without_call():
            without_call.append(detail_row(answer, reason, None, []))
        else:
            to_judge.append(answer)
    return to_judge, without_call, unscored


def closing(ended: Ended | None, left: int) -> int:
    """Say how the run ended, what is left and how to go on; the exit code."""
    if ended and ended.reason:
        say(f"stopped: {ended.reason}")
    if left:
        say(f"{plural(left, 'answer')} left to judge; start the same command again to go on")
        return ended.code if ended and ended.code else 1
    return ended.code if ended and ended.code > 1 else 0


# ---------------------------------------------------------------------------------------------------------------
# Command line.


def parser() -> Parser:
    p = Parser(__doc__, prog="beam_judge.py", epilog="More in README.md.")
    add = p.add_argument
    add("--answers", nargs="+", required=True, metavar="FILE", help="answers files, one or more (shards) (required)")
    add("--judge-model", required=True, metavar="MODEL", help="model name of the judge (required)")
    add("--judge-base-url", required=True, metavar="URL", help="OpenAI-compatible base URL of the judge (required)")
    add("--judge-api-key", metavar="KEY", help="API key (default: environment variable JUDGE_API_KEY)")
    add("--output", default="scores.jsonl", help="where scores are appended (default: %(default)s)")
    add(
        "--judge-reasoning-effort",
        default="",
        metavar="EFFORT",
        help="sent as reasoning_effort when set, such as high (default: empty)",
    )
    add(
        "--judge-max-tokens",
        type=positive_int,
        default=16384,
        metavar="N",
        help="most output tokens (default: %(default)s)",
    )
    add(
        "--judge-temperature",
        type=non_negative_float,
        default=0.3,
        metavar="T",
        help="sampling temperature (default: %(default)s)",
    )
    add(
        "--judge-extra-json",
        type=json_object,
        default={},
        metavar="JSON",
        help="object merged into the request body; its keys win, a null takes a key out (default: empty)",
    )
    add(
        "--concurrency", type=positive_int, default=32, metavar="N", help="judge calls in flight (default: %(default)s)"
    )
    add(
        "--max-retries",
        type=positive_int,
        default=8,
        metavar="N",
        help="attempts in all for one call (default: %(default)s)",
    )
    add(
        "--timeout",
        type=positive_float,
        default=600,
        metavar="S",
        help="longest silence of the endpoint in seconds; an attempt is cut at three times that (default: %(default)s)",
    )
    add(
        "--parse-retries",
        type=non_negative_int,
        default=0,
        metavar="N",
        help="further calls when a verdict cannot be read (default: %(default)s)",
    )
    add("--limit", type=non_negative_int, default=0, metavar="N", help="only the first N answers (default: all)")
    add("--criterion-prompt", metavar="FILE", help="another prompt for criteria (default: built in)")
    add("--ordering-prompt", metavar="FILE", help="another prompt for event_ordering (default: built in)")
    add(
        "--event-ordering",
        choices=("strict", "tau"),
        default="strict",
        help="strict: 1 only for every event in perfect order; tau: the paper's rank correlation (default: %(default)s)",
    )
    add("--retry-errors", action="store_true", help="judge again what had unreadable or failed verdicts")
    add("--header", type=header, action="append", default=[], metavar="K=V", help="further request header; repeatable")
    add(
        "--stop-after-failures",
        type=non_negative_int,
        default=10,
        metavar="N",
        help="stop when the first N finished questions of a run got no reply at all; 0: never (default: %(default)s)",
    )
    add("--allow-mixed", action="store_true", help="resume a file made with other settings")
    return p


@command
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if "messages" in args.judge_extra_json:
        raise UsageError("--judge-extra-json must not hold `messages`: they are the benchmark's")
    args.judge_base_url = normalise_base_url(args.judge_base_url, "--judge-base-url")
    prompts = Prompts(CRITERION, ORDERING, tau=args.event_ordering == "tau")
    if args.criterion_prompt:
        prompts = replace(prompts, criterion=template_from_file(args.criterion_prompt, "--criterion-prompt", CRITERION))
    if args.ordering_prompt:
        if prompts.tau:  # no error: what is resumed in the other mode has the same settings but for the mode
            say("note: --event-ordering tau aligns lines with a prompt of its own; --ordering-prompt is not used")
        prompts = replace(prompts, ordering=template_from_file(args.ordering_prompt, "--ordering-prompt", ORDERING))
    args.answers = list({Path(path).resolve(): path for path in args.answers}.values())  # each file once
    answers = read_answers([Path(path) for path in args.answers])
    key = api_key(args.judge_api_key, "JUDGE_API_KEY", "--judge-api-key")
    return judge(args, prompts, answers, key)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code) if code >= 128 else sys.exit(code)  # after a signal nothing may hold up the end
