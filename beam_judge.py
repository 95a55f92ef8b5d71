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

import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beam_answers import (
    Answer,
    described_answers,
    missing_shards,
    origin,
    read_answers,
    recounted,
    summed_counts,
    with_earlier,
)
from beam_cli import (
    Parser,
    add_endpoint_flags,
    api_key,
    command,
    json_object,
    non_negative_float,
    non_negative_int,
    normalise_base_url,
    positive_int,
    public_text,
    run,
    shown_url,
)
from beam_common import QuestionKey, StoppedEarly, UsageError, beside, name_of, plural, say
from beam_details import (
    ORDERING_ABILITY,
    Call,
    Prompts,
    calls_for,
    detail_row,
    essence,
    had_reply,
    one_mode,
    ordering_modes,
    pending,
    plan,
    recorded_mode,
    score_row,
    still_holds,
    verdict,
)
from beam_log import DETAIL, SCORE, RowLog
from beam_prompts import ALIGNMENT, CRITERION, ORDERING, template_from_file
from beam_settings import bind_settings, load_sidecar, now_text, package_versions, save_sidecar

if TYPE_CHECKING:
    import argparse

    from beam_failure import Failure
    from beam_reply import Reply
    from beam_run import Ended
    from beam_schedule import Job


# ---------------------------------------------------------------------------------------------------------------
# The run.


@dataclass(eq=False)
class Judging:
    """A question while it is being judged."""

    answer: Answer
    calls: list[Call]
    verdicts: list[dict[str, Any] | None]
    parse_retries: Counter[int] = field(default_factory=Counter)
    heard: dict[int, Reply] = field(default_factory=dict)  # the last unreadable reply to a call that is made again
    counted: bool = False  # as finished, for --stop-after-failures
    landed: set[int] = field(default_factory=set)  # calls that are over, or put off
    replied: bool = False  # to any call of this run


@dataclass
class Tally:
    calls: int = 0  # that got a reply
    prompt_tokens: int = 0
    completion_tokens: int = 0
    uncounted: int = 0  # calls whose tokens the endpoint did not report
    unreadable: int = 0
    failed: int = 0

    def status(self) -> str:
        calls = f"{self.calls + self.failed:,} calls, {self.unreadable:,} unreadable, {self.failed:,} failed"
        return f"{calls}, {self.prompt_tokens:,} tokens in"

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
        self.open: set[Judging] = set()  # begun, and not saved yet

    def commit(self, batch: list[dict[str, Any]]) -> None:
        """Details first: a score never stands without what the judge said."""
        self.details.append(batch)
        self.scores.append([score_row(detail) for detail in batch])

    def keep_paid(self) -> None:
        """After a stop: the verdicts of questions that are not finished go into the details, so none is paid again."""
        partial = [
            detail_row(
                judging.answer, "partial", self.prompts.mode, list(map(pending, judging.calls, judging.verdicts))
            )
            for judging in self.open
            if any(judging.verdicts) and not all(judging.verdicts) and judging.answer.key not in self.scores.rows
        ]
        with contextlib.suppress(StoppedEarly):  # the output cannot be written: that is why the run has stopped
            self.details.append(partial)

    async def go(self, answers: Sequence[Answer], total: int, key: str) -> Ended:
        from beam_endpoint import Endpoint, Flags
        from beam_run import Limits, Progress, Run
        from beam_schedule import Order

        args = self.args
        self.run = Run(
            Order(self._groups(answers), open_limit=1, opener_first=False),
            Limits(args.concurrency, args.max_retries, args.stop_after_failures, unsaved=args.concurrency),
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
            ended = await self.run.go()
        finally:
            self.progress.close()
            await self.endpoint.close()
        if ended.code:
            self.keep_paid()
        return ended

    def _groups(self, answers: Sequence[Answer]) -> Iterator[Any]:
        from beam_schedule import Group

        for answer in answers:
            calls = calls_for(answer.row(), self.prompts)
            judging = Judging(answer, calls, [None] * len(calls))
            self.open.add(judging)
            known = self.details.rows.get(answer.key)
            if known and known["verdicts"] and still_holds(known, answer, self.prompts.mode):
                paid = ("scored",) if self.args.retry_errors else ("scored", "unreadable")
                for call, earlier in zip(calls, known["verdicts"], strict=True):
                    if earlier["status"] in paid:  # not again
                        judging.verdicts[call.index] = earlier
                        judging.landed.add(call.index)
            yield Group.of(judging, [call for call in calls if judging.verdicts[call.index] is None])

    async def _attempt(self, job: Job) -> Reply | Failure:
        from beam_endpoint import encode_body, encode_json

        message = encode_json({"role": "user", "content": job.item.prompt})
        outcome = await self.endpoint.ask(encode_body(self.settings, [], message))
        job.group.item.replied |= not hasattr(outcome, "kind")
        return outcome

    def _settle(self, job: Job, outcome: Reply | Failure) -> bool | Awaitable[None]:
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
                judging.heard[call.index] = outcome
                return False
            self.tally.unreadable += level is None
        elif call.index in judging.heard:
            self.tally.unreadable += 1
            say(f"{_named(judging.answer)}: a verdict was unreadable, and the call for another failed: {outcome.text}")
            outcome = judging.heard[call.index]
        else:
            self.tally.failed += 1
            say(f"{_named(judging.answer)}: a call failed and counts 0: {outcome.text}")
        judging.verdicts[call.index] = verdict(call, outcome, level)
        return self._record(judging) if all(judging.verdicts) else True

    async def _record(self, judging: Judging) -> None:
        verdicts = [v for v in judging.verdicts if v is not None]
        await self.saver.save(detail_row(judging.answer, "judged", self.prompts.mode, verdicts))
        self.open.discard(judging)
        self.saved += 1
        self.progress.step()

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


def sidecar(
    args: argparse.Namespace,
    prompts: Prompts,
    answers: Mapping[QuestionKey, Answer],
    scored: Iterable[QuestionKey] = (),
    earlier: Sequence[Any] = (),
    outdated: Collection[QuestionKey] = (),
) -> dict[str, Any]:
    """The settings of a run for the record. `settings` (but for the ordering mode) and `data` bind a later resume.

    `scored`: the questions with a score, `outdated`: those whose answer has changed since. `earlier`: what is on record
    of answers files on whose answers scores rest, too.
    """
    now = [described_answers(Path(path), answers, Path(args.output).parent, outdated) for path in args.answers]
    models = {str(file["model"]): file["file"] for file in now if file["model"]}
    if len(models) > 1 and not args.allow_mixed:
        raise UsageError(
            f"--answers: {' and '.join(f'{model} in {file}' for model, file in models.items())}; answers of several models "
            "get no common score: judge each into an --output of its own, or accept a mixed file with --allow-mixed"
        )
    files = with_earlier(now, earlier)
    stale = sum(key not in answers for key in scored) if len(files) == len(now) else 0
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
        "data": origin(now),
        "answers": files,
        "counts": summed_counts(files) | ({"stale": stale} if stale else {}),
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


class Record:
    """The sidecar of the scores: what is on record of earlier runs that they rest on, and what this run adds to it."""

    def __init__(self, args: argparse.Namespace, scores: RowLog, details: RowLog) -> None:
        self.args, self.scores, self.details = args, scores, details
        self.path = beside(args.output, ".run.json")
        self.binding = any(k not in details.rows for k in scores.rows) or any(map(had_reply, details.rows.values()))
        self.earlier = (load_sidecar(self.path) if self.binding else None) or {}
        self.mode = recorded_mode(self.earlier.get("settings", {}))

    def begin(self, prompts: Prompts, answers: Mapping[QuestionKey, Answer], adds: bool) -> None:
        """Record the settings of this run; UsageError when the scores there rest on others."""
        known = {*self.scores.rows, *self.details.rows}
        earlier = [] if known <= answers.keys() else self.earlier.get("answers", [])
        content = sidecar(self.args, prompts, answers, self.scores.rows, earlier, self.outdated(answers))
        if missing := missing_shards(content["answers"]):
            say(
                f"warning: no answers of shard {', '.join(missing)}: the scores are of a part of the run, unless there were "
                "fewer chats than shards"
            )
        content["settings"]["event_ordering"] = one_mode(self.modes() | {prompts.mode})
        bind_settings(
            self.path,
            content,
            binding=self.binding,
            allow_mixed=self.args.allow_mixed,
            output=self.args.output,
            may_change=("event_ordering",),
            adds=adds,
        )

    def end(self, mode: str, answers: Mapping[QuestionKey, Answer]) -> None:
        """Record the ordering mode that the scores are of by now, and how many are of answers that have changed."""
        before = load_sidecar(self.path) or {}
        paths, folder = [*map(Path, self.args.answers)], Path(self.args.output).parent
        files = with_earlier([], before.get("answers", []))
        files = recounted(files, paths, answers, folder, self.outdated(answers))
        now = {**before, "answers": files, "counts": {**before.get("counts", {}), **summed_counts(files)}}
        if settings := before.get("settings"):
            now["settings"] = {**settings, "event_ordering": one_mode(self.modes() or {mode})}
        if before and now != before:
            save_sidecar(self.path, now)

    def outdated(self, answers: Mapping[QuestionKey, Answer]) -> set[QuestionKey]:
        """The questions whose answer has changed since it was scored."""
        scored = self.scores.rows.keys() & answers.keys() & self.details.rows.keys()
        details = {key: self.details.rows[key] for key in scored}
        return {key for key, d in details.items() if not still_holds(d, answers[key], d.get("ordering", ""))}

    def modes(self) -> set[str | None]:
        return ordering_modes(self.scores.rows, self.details.rows, self.mode)


def judge(args: argparse.Namespace, prompts: Prompts, answers: dict[QuestionKey, Answer], key: str) -> int:
    """Judge what the output does not hold yet, then print the summary; the exit code."""
    import asyncio

    from beam_summary import load_run, print_lines, summary_lines

    chosen = list(answers.values())[: args.limit or None]
    for answer in (a for a in chosen if not a.scorable):
        say(f"warning: {_named(answer)} has no criterion in its rubric: left unscored")
    to_score = [a for a in chosen if a.scorable]
    with RowLog(args.output, SCORE) as scores:
        place = beside(args.output, ".details.jsonl") if scores.regular else Path(os.devnull)
        with RowLog(place, DETAIL, essence) as details:
            record = Record(args, scores, details)
            left, without_call, unscored = plan(
                to_score, scores.rows, details.rows, prompts.mode, record.mode, args.retry_errors
            )
            if scores.regular:
                record.begin(prompts, answers, adds=bool(left or without_call))
            details.append(without_call)
            scores.append([score_row(detail) for detail in [*without_call, *unscored]])
            if record.mode not in (prompts.mode, None) and any(answer.key[1] == ORDERING_ABILITY for answer in left):
                say(f"--event-ordering {prompts.mode}: event_ordering was scored as {record.mode} and is judged again")
            worker, ended = Judge(args, prompts, scores, details), None
            if left:
                done = f"; {len(to_score) - len(left):,} are scored" if len(left) < len(to_score) else ""
                where = f"{args.judge_model} at {shown_url(args.judge_base_url)}"
                say(
                    f"{now_text()} judging {plural(len(left), 'answer')} with {where}, {args.concurrency} calls in flight{done}"
                )
                ended = asyncio.run(worker.go(left, len(to_score), key))
                say(worker.tally.closing())
            if scores.regular:
                record.end(prompts.mode, answers)
            scores.compact()
            details.compact()
        has_scores = scores.regular and bool(scores.rows) and Path(args.output).exists()
    if has_scores:
        print_lines(summary_lines(load_run(args.output)))
    return closing(ended, len(left) - worker.saved)


def closing(ended: Ended | None, left: int) -> int:
    """Say how the run ended, what is left and how to go on; the exit code."""
    if ended and ended.reason:
        say(f"stopped: {ended.reason}")
    if left:
        say(f"{plural(left, 'answer')} left to judge{ended.way_on if ended else ''}")
        return ended.code if ended and ended.code else 1
    return ended.code if ended and ended.code > 1 else 0


# ---------------------------------------------------------------------------------------------------------------
# Command line.


def parser() -> Parser:
    p = Parser(__doc__, prog="beam_judge.py", epilog="More in README.md.")
    add = p.add_argument
    add("--answers", nargs="+", required=True, metavar="FILE", help="answers files, one or more (shards) (required)")
    add("--judge-model", type=public_text, required=True, metavar="MODEL", help="model name of the judge (required)")
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
    add_endpoint_flags(p, timeout=600, one="call", failed="got no reply at all")
    return p


@command
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    for flag in ("judge_model", "judge_base_url", "output"):
        if not getattr(args, flag):
            raise UsageError(f"--{flag.replace('_', '-')} is empty; see beam_judge.py --help")
    if "messages" in args.judge_extra_json:
        raise UsageError("--judge-extra-json must not hold `messages`: they are the benchmark's")
    args.judge_base_url = normalise_base_url(args.judge_base_url, "--judge-base-url")
    prompts = Prompts(CRITERION, ORDERING, tau=args.event_ordering == "tau")
    if args.criterion_prompt is not None:
        prompts = replace(prompts, criterion=template_from_file(args.criterion_prompt, "--criterion-prompt", CRITERION))
    if args.ordering_prompt is not None:
        if prompts.tau:  # no error: what is resumed in the other mode has the same settings but for the mode
            say("note: --event-ordering tau aligns lines with a prompt of its own; --ordering-prompt is not used")
        prompts = replace(prompts, ordering=template_from_file(args.ordering_prompt, "--ordering-prompt", ORDERING))
    args.answers = list({Path(path).resolve(): path for path in args.answers}.values())  # each file once
    answers = read_answers([Path(path) for path in args.answers])
    key = api_key(args.judge_api_key, "JUDGE_API_KEY", "--judge-api-key")
    return judge(args, prompts, answers, key)


if __name__ == "__main__":
    run(main)
