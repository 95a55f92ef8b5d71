"""Ask a model every BEAM question about its chat and append the answers to a JSONL file.

In:   data/beam_<tag>_chats.jsonl.gz and data/beam_<tag>_questions.jsonl (prepare_data.py makes them; `sample` is here)
Out:  answers.jsonl, one line a question, written when it is answered; answers.run.json, the settings of the run

Start it again after any stop: finished questions are skipped, nothing is paid twice. Exit code 0: all selected questions
are in the file; 1: stopped early; 2: bad usage or input; 130/143: SIGINT/SIGTERM.

  python beam_generate.py --tag 1m --base-url http://localhost:8000/v1 --model my-model --api-key none
"""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beam_cli import (
    Parser,
    add_endpoint_flags,
    api_key,
    comma_list,
    command,
    json_object,
    non_negative_float,
    non_negative_int,
    normalise_base_url,
    positive_int,
    probability,
    public_text,
    run,
    shown_url,
    started_by,
)
from beam_common import (
    StoppedEarly,
    UsageError,
    beside,
    key_of,
    name_of,
    plural,
    say,
    sha256_of_file,
)
from beam_log import ANSWER, RowLog
from beam_questions import check_chats, data_files, selected_questions
from beam_settings import bind_settings, load_sidecar, now_text, package_versions, save_sidecar
from beam_tokenizer import KIMI, load_counter

if TYPE_CHECKING:
    import argparse

    from beam_chats import ChatsFile, Prompt, PromptBuilder, TokenCounter
    from beam_failure import Failure
    from beam_reply import Reply
    from beam_run import Ended
    from beam_schedule import Group, Job

# The wording of BEAM's own answer generation, blank at the end of the first line included.
FINAL_MESSAGE = "NOTE: Only provide the answer without any explanations. \nQuestion: {question}"
MOST_SHRINKS = 5  # of one question's prompt
SILENT_CUT = 0.5  # a prompt reported with less than this share of our count was probably cut by the server


# ---------------------------------------------------------------------------------------------------------------
# Pure rules.


def final_message(question: str) -> dict[str, str]:
    """The one message that follows the chat's own."""
    return {"role": "user", "content": FINAL_MESSAGE.replace("{question}", question)}


def content_budget(max_context: int, max_tokens: int, reserve: int) -> int:
    """Tokens left for the chat's contents."""
    return max_context - max_tokens - reserve


def answer_row(question: dict[str, Any], outcome: Reply | Failure) -> dict[str, Any]:
    """The line of an answered or failed question."""
    row = {name: question[name] for name in ("chat_id", "question_type", "question_index", "question")}
    row |= {"gold_answer": question["gold_answer"], "rubric": question["rubric"]}
    failed = hasattr(outcome, "kind")
    row["response"] = "" if failed else outcome.text
    for name in ("finish_reason", "prompt_tokens", "completion_tokens"):
        row[name] = None if failed else getattr(outcome, name)
    row["error"] = outcome.text if failed else None
    return row


@dataclass
class Tally:
    """What the screen shows: tokens of this run, questions of the file."""

    total: int  # selected questions
    answered: int = 0
    empty: int = 0
    empty_cut: int = 0  # of the empty ones, ended by the length limit
    failed: int = 0
    replies: int = 0
    tokens: Counter[str] = field(default_factory=Counter)  # prompt, completion, cached, prompt_of_cached
    unknown: Counter[str] = field(default_factory=Counter)  # replies that did not report a count

    def add_row(self, row: dict[str, Any]) -> None:
        if row.get("error") is not None:
            self.failed += 1
            return
        self.answered += 1
        if not (row.get("response") or "").strip():
            self.empty += 1
            self.empty_cut += row.get("finish_reason") == "length"

    def add_reply(self, reply: Reply) -> None:
        self.replies += 1
        for name, count in (("prompt", reply.prompt_tokens), ("completion", reply.completion_tokens)):
            if count is None:
                self.unknown[name] += 1
            else:
                self.tokens[name] += count
        if reply.cached_tokens is not None:
            self.tokens["cached"] += reply.cached_tokens
            self.tokens["prompt_of_cached"] += reply.prompt_tokens or 0

    def cached_share(self) -> str:
        of = self.tokens["prompt_of_cached"]
        return f"{self.tokens['cached'] / of:.1%}" if of else "not reported"

    def status(self) -> str:
        from beam_run import short_count

        tokens = short_count(self.tokens["prompt"])
        return f"cached {self.cached_share()}, {tokens} tokens in, {self.failed:,} failed, {self.empty:,} empty"

    def lines(self) -> list[str]:
        """The closing statement."""
        cut = f" ({self.empty_cut:,} at the length limit)" if self.empty_cut else ""
        lines = [f"answered: {self.answered:,} of {self.total:,} selected", f"  of them empty: {self.empty:,}{cut}"]
        lines.append(f"failed: {self.failed:,}")
        for name in ("prompt", "completion"):
            unknown = f" (unknown for {self.unknown[name]:,})" if self.unknown[name] else ""
            lines.append(f"{name} tokens of this run: {self.tokens[name]:,}{unknown}")
        lines.append(f"cached share of the prompt tokens: {self.cached_share()}")
        return lines


# ---------------------------------------------------------------------------------------------------------------
# Dry run.


def dry_run(questions: Sequence[dict[str, Any]], builder: PromptBuilder, budget: int | None) -> list[str]:
    """Statistics of the prompts that a run would send."""
    asked = Counter(str(q["chat_id"]) for q in questions)
    lines = [
        f"{'chat':>8} {'questions':>9} {'messages':>8} {'left out':>8} {'characters':>11} {'tokens':>11} {'sent':>11}"
    ]
    total, distinct, bound, characters, messages, dropped = 0, 0, False, 0, 0, 0
    for chat_id, n in asked.items():
        prompt = builder.build(chat_id)
        size = prompt.kept_bytes if prompt.kept_tokens is None else prompt.kept_tokens
        mark = "≤ " if prompt.kept_tokens is None else ""
        tokens = "-" if prompt.tokens is None else f"{prompt.tokens:,}"
        lines.append(
            f"{chat_id:>8} {n:>9,} {prompt.messages:>8,} {prompt.first:>8,} {prompt.characters:>11,} {tokens:>11} "
            f"{mark + format(size, ','):>11}"
        )
        total, distinct, bound = total + n * size, distinct + size, bound or prompt.kept_tokens is None
        characters, messages, dropped = (
            characters + prompt.characters,
            messages + prompt.messages,
            dropped + prompt.first,
        )
    at_most = "at most " if bound else ""
    budget_text = "never truncated" if budget is None else f"budget {budget:,} tokens a chat"
    lines += [
        "",
        f"{plural(len(asked), 'chat')}, {plural(len(questions), 'question')}, {plural(messages, 'message')} "
        f"({dropped:,} left out), {characters:,} characters; {budget_text}",
        f"prompt tokens in all (without the questions themselves): {at_most}{total:,}",
        f"prompt tokens in distinct prefixes, each paid in full once: {at_most}{distinct:,}",
    ]
    if bound:
        lines.append(
            "where tokens show -, a chat was not counted, as "
            + ("there is no tokenizer" if budget is None else "it fits the budget by its length alone")
            + ": a token has at least one byte"
        )
    return lines


# ---------------------------------------------------------------------------------------------------------------
# The run.


@dataclass(eq=False)
class Chat:
    """A chat in progress; its prompt is held only while requests need it."""

    chat_id: str
    prompt: Prompt | None = None
    loading: Any = None  # a future while the prompt is being built
    warned: bool = False


class Generation:
    """Asks the open questions of a run and saves their answers."""

    def __init__(
        self,
        args: argparse.Namespace,
        builder: PromptBuilder,
        log: RowLog,
        tally: Tally,
        record: Callable[[], None],
    ) -> None:
        from beam_endpoint import encode_json
        from beam_run import GroupCommit

        self.args, self.builder, self.log, self.tally = args, builder, log, tally
        self.saver: GroupCommit[dict[str, Any]] = GroupCommit(self.commit)
        self.record, self.recorded = record, dict(builder.shrunk)
        self.trouble: UsageError | StoppedEarly | None = None
        self.cuts: Counter[Job] = Counter()
        self.settings = encode_json(body_settings(args))
        self.think_warned = False

    def commit(self, rows: Sequence[dict[str, Any]]) -> None:
        """Further cuts first: no answer stands without a record of what was left out of its prompt."""
        try:
            self.record_cuts()
        except (UsageError, StoppedEarly) as error:  # the answers are paid for: they are saved before the run stops
            self.trouble = error
        self.log.append(rows)

    def record_cuts(self) -> None:
        if self.builder.shrunk != self.recorded:
            self.record()
            self.recorded = dict(self.builder.shrunk)

    async def go(self, questions: Sequence[dict[str, Any]], done: int, key: str) -> Ended:
        from concurrent.futures import ThreadPoolExecutor

        from beam_endpoint import Endpoint, Flags
        from beam_run import WAITS, Limits, Progress, Run
        from beam_schedule import Group, Order

        args = self.args
        by_chat: dict[str, list[dict[str, Any]]] = {}
        for question in questions:
            by_chat.setdefault(str(question["chat_id"]), []).append(question)
        groups = (Group.of(Chat(chat_id), asked) for chat_id, asked in by_chat.items())
        self.run = Run(
            Order(groups, args.open_chats, opener_first=True, cache_life=WAITS.cache_life),
            Limits(args.concurrency, args.max_retries, args.stop_after_failures),
            self._attempt,
            self._record,
            lambda job, failed: failed,
            lambda: self.progress.tick(),
        )
        self.worker = ThreadPoolExecutor(1, "chats")
        self.endpoint = Endpoint(
            args.base_url,
            key,
            timeout=args.timeout,
            connections=args.concurrency,
            headers=dict(args.header),
            flags=Flags(),
            streams=args.stream,
        )
        self.progress = Progress(self.tally.total, done, "question", self.tally.status)
        try:
            return await self.run.go()
        finally:
            self.progress.close()
            await self.endpoint.close()
            self.worker.shutdown(wait=False, cancel_futures=True)
            with contextlib.suppress(UsageError, StoppedEarly):  # it was said when it failed at first
                self.record_cuts()

    async def _prompt(self, group: Group) -> Prompt:
        import asyncio

        chat: Chat = group.item
        while chat.prompt is None:
            if chat.loading is None:
                loop = asyncio.get_running_loop()
                chat.loading = loop.run_in_executor(self.worker, self.builder.build, chat.chat_id)
            loading = chat.loading
            try:
                chat.prompt = await asyncio.shield(loading)
            finally:
                if chat.loading is loading and loading.done():
                    chat.loading = None
        return chat.prompt

    async def _attempt(self, job: Job) -> Reply | Failure | None:
        from beam_endpoint import encode_body, encode_json
        from beam_failure import Failure

        group, question = job.group, job.item
        last = encode_json(final_message(question["question"]))
        try:
            prompt = await self._prompt(group)
            if self.run.stopping:  # it came while the prompt was being built
                return Failure("retry", "the run stops")
            body = encode_body(self.settings, prompt.pieces, last)
            outcome = await self.endpoint.ask(body, lambda: self.run.touch(job), lambda: self.run.sent(job))
            if getattr(outcome, "kind", "") == "overflow" and self.args.on_overflow == "shrink":
                if self.run.stopping:
                    return Failure("retry", outcome.text)
                if self._shrunk(job, prompt, outcome.over):  # type: ignore[union-attr]
                    return None  # to be asked again in its turn, so that one request opens the cut chat
            self._look_for_silent_cut(group.item, prompt, outcome)
            return outcome
        finally:
            if not group.fresh and len(group.flying) == 1:  # nobody else needs the prompt now
                group.item.prompt = None

    def _shrunk(self, job: Job, prompt: Prompt, over: tuple[int, int] | None) -> bool:
        """Whether the chat is shorter now than in a prompt that was too long: for this question or, before it, another."""
        if self.builder.is_cut_further(prompt):
            return True
        if self.cuts[job] == MOST_SHRINKS or not self.builder.shrink(prompt, over):
            return False
        self.cuts[job] += 1
        self.run.changed(job.group)
        job.group.item.prompt = None
        return True

    def _look_for_silent_cut(self, chat: Chat, prompt: Prompt, outcome: Reply | Failure) -> None:
        reported = getattr(outcome, "prompt_tokens", None)
        if reported is None or not prompt.kept_tokens or chat.warned or reported >= SILENT_CUT * prompt.kept_tokens:
            return
        chat.warned = True
        say(
            f"warning: chat {chat.chat_id}: the endpoint reports {reported:,} prompt tokens where {prompt.kept_tokens:,} were "
            "sent by our count: it may cut long prompts silently, so that its answers are about another chat; lower "
            "--max-context-tokens to what it really takes"
        )

    async def _record(self, job: Job, outcome: Reply | Failure) -> None:
        row = answer_row(job.item, outcome)
        await self.saver.save(row)
        if row["error"] is not None:
            say(f"{name_of(row)}: recorded without an answer: {row['error']}")
        else:
            self.tally.add_reply(outcome)  # type: ignore[arg-type]
            if "<think>" in row["response"] and not self.think_warned:
                self.think_warned = True
                say(
                    f"warning: {name_of(row)}: the answer holds a <think> block; answers are stored and judged as received: "
                    "start the server with a reasoning parser if it should not be there"
                )
        self.tally.add_row(row)
        self.progress.step()
        if self.trouble:
            raise self.trouble


def body_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The request's parameters: everything but the messages."""
    from beam_endpoint import parameters

    settings: dict[str, Any] = {"model": args.model, "temperature": args.temperature, "top_p": args.top_p}
    settings["max_tokens"] = args.max_tokens
    if args.stream:
        settings |= {"stream": True, "stream_options": {"include_usage": True}}
    return parameters(settings, args.thinking_json)


def sidecar(
    args: argparse.Namespace, chats: ChatsFile, questions: Path, tokenizer: str, selected: int
) -> dict[str, Any]:
    """The settings of a run for the record. What is under `settings` and `data` binds a later resume."""
    return {
        "program": "beam_generate.py",
        "started": [now_text()],
        "settings": {
            "model": args.model,
            "base_url": shown_url(args.base_url),
            "temperature": args.temperature,
            "top_p": args.top_p,
            "max_tokens": args.max_tokens,
            "extra_body": args.thinking_json,
            "tokenizer": tokenizer,
            "max_context_tokens": args.max_context_tokens,
            "reserve_tokens": args.reserve_tokens,
        },
        "data": {"chats_sha256": chats.sha256, "questions_sha256": sha256_of_file(questions)},
        "selected": selected,
        "run": {
            "tag": args.tag,
            "stream": args.stream,
            "concurrency": args.concurrency,
            "open_chats": args.open_chats,
            "max_retries": args.max_retries,
            "timeout": args.timeout,
            "on_overflow": args.on_overflow,
            "limit": args.limit,
            "shard": "/".join(map(str, args.shard)),
            "question_types": args.question_types,
            "chats": args.chats,
            "header_names": [name for name, _ in args.header],
        },
        "versions": package_versions(["openai", "httpx2", "tiktoken", "transformers"]),
    }


def generate(
    args: argparse.Namespace,
    questions: list[dict[str, Any]],
    chats: ChatsFile,
    questions_file: Path,
    builder: PromptBuilder,
    tokenizer: str,
    key: str,
) -> int:
    """Ask what the output does not hold yet; the exit code."""
    import asyncio

    keys = {key_of(q) for q in questions}
    with RowLog(args.output, ANSWER, essence) as log:
        recorded = dict(log.rows)
        left = [q for q in questions if not _finished(recorded.get(key_of(q)), args.retry_errors)]
        builder.prepare(dict.fromkeys(str(q["chat_id"]) for q in left))
        place = beside(args.output, ".run.json")
        content = sidecar(args, chats, questions_file, tokenizer, len(keys))
        if log.regular:
            binding = any(row["error"] is None for row in recorded.values())
            earlier = load_sidecar(place) if binding else None
            if earlier:
                content["selected"] = max(int(earlier.get("selected") or 0), len(keys | recorded.keys()))
                if earlier.get("data", {}).get("chats_sha256") == chats.sha256:
                    builder.shrunk.update({c: n for c, n in earlier.get("shrunk", {}).items() if isinstance(n, int)})
                if builder.shrunk:
                    content["shrunk"] = builder.shrunk
                if again := builder.shrunk.keys() & {str(q["chat_id"]) for q in left}:
                    say(f"{plural(len(again), 'chat')} cut further by --on-overflow shrink: applied again")
            bind_settings(
                place, content, binding=binding, allow_mixed=args.allow_mixed, output=args.output, adds=bool(left)
            )

        def record() -> None:
            if log.regular:
                save_sidecar(place, {**(load_sidecar(place) or content), "shrunk": dict(builder.shrunk)})

        tally = Tally(len(keys))
        for found in keys & recorded.keys():
            if _finished(recorded[found], args.retry_errors):
                tally.add_row(recorded[found])
        done = len(questions) - len(left)
        if done:
            failed = f" ({tally.failed:,} with an error, which --retry-errors asks again)" if tally.failed else ""
            say(f"{args.output}: {plural(done, 'question')} of the selection done already{failed}, {len(left):,} to go")
        ended = None
        if left:
            gc.freeze()  # what is loaded by now stays, the vocabulary above all: collections need not walk it again
            chats_left = len({str(q["chat_id"]) for q in left})
            say(
                f"{now_text()} asking {plural(len(left), 'question')} about {plural(chats_left, 'chat')} at "
                f"{shown_url(args.base_url)}, {args.concurrency} in flight"
            )
            ended = asyncio.run(Generation(args, builder, log, tally, record).go(left, done, key))
        if args.retry_errors and log.regular:
            log.compact()
    return closing(args, tally, ended)


def closing(args: argparse.Namespace, tally: Tally, ended: Ended | None) -> int:
    """Say how the run ended, what is done and left, and how to go on; the exit code."""
    missing = tally.total - tally.answered - tally.failed
    try:
        for line in tally.lines():
            print(line)
    except BrokenPipeError:  # the reader of stdout has gone; what the run did stays the same
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    if ended and ended.reason:
        say(f"stopped: {ended.reason}")
    if missing:
        failed = f", {tally.failed:,} recorded with an error" if tally.failed else ""
        say(f"{tally.answered:,} answered{failed}, {missing:,} left{ended.way_on if ended else ''}")
        return ended.code if ended and ended.code else 1
    if tally.failed:
        say(
            f"{plural(tally.failed, 'question')} recorded with an error; each scores 0 unless --retry-errors asks again and gets "
            f"an answer: {args.output}"
        )
    elif args.output != os.devnull:
        answers = shlex.quote(args.output)
        say(f"next: {started_by('beam_judge.py')} --answers {answers} --judge-model … --judge-base-url …")
    return ended.code if ended and ended.code > 1 else 0


def essence(row: dict[str, Any]) -> dict[str, Any]:
    """What a resume needs of a row, so that long answers are not held in memory."""
    blank = not (row.get("response") or "").strip()
    names = ("chat_id", "question_type", "question_index", "finish_reason")
    return {name: row.get(name) for name in names} | {"error": row.get("error"), "response": "" if blank else "…"}


def _finished(row: dict[str, Any] | None, retry_errors: bool) -> bool:
    return row is not None and not (retry_errors and row["error"] is not None)


# ---------------------------------------------------------------------------------------------------------------
# Command line.


def shard(text: str) -> tuple[int, int]:
    import argparse

    part, slash, parts = text.partition("/")
    if not (slash and part.isascii() and part.isdigit() and parts.isascii() and parts.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form I/N, such as 1/4")
    if not 1 <= int(part) <= int(parts):
        raise argparse.ArgumentTypeError(f"{text!r}: the part must be from 1 to {parts}")
    return int(part), int(parts)


def parser() -> Parser:
    p = Parser(__doc__ or "", prog="beam_generate.py", epilog="More in README.md.")
    add = p.add_argument
    add("--model", type=public_text, help="model name served by the endpoint (required)")
    add("--base-url", help="OpenAI-compatible base URL, such as http://localhost:8000/v1 (required)")
    add("--api-key", help="API key (default: environment variable BEAM_API_KEY)")
    add("--output", default="answers.jsonl", help="where answers are appended (default: %(default)s)")
    add("--temperature", type=non_negative_float, default=1.0, help="sampling temperature (default: %(default)s)")
    add("--top-p", type=probability, default=0.95, help="nucleus sampling (default: %(default)s)")
    add("--max-tokens", type=positive_int, default=32768, help="most output tokens (default: %(default)s)")
    add(
        "--thinking-json",
        type=json_object,
        default={},
        metavar="JSON",
        help="object merged into the request body; its keys win, a null takes a key out (default: empty)",
    )
    add(
        "--tokenizer",
        type=public_text,
        default=KIMI,
        help="for truncation: Hugging Face id or local path; empty: never truncate (default: bundled %(default)s)",
    )
    add(
        "--max-context-tokens",
        type=positive_int,
        default=1048576,
        metavar="N",
        help="content budget = this - max-tokens - reserve (default: %(default)s)",
    )
    add(
        "--reserve-tokens",
        type=non_negative_int,
        default=5000,
        metavar="N",
        help="room for the chat template and the question (default: %(default)s)",
    )
    add("--concurrency", type=positive_int, default=16, metavar="N", help="requests in flight (default: %(default)s)")
    add(
        "--limit",
        type=non_negative_int,
        default=0,
        metavar="N",
        help="only the first N questions of the selection (default: all)",
    )
    add(
        "--dry-run",
        action="store_true",
        help="build the prompts and print their statistics; nothing is sent or written",
    )
    add("--tag", default="1m", help="which pair of files under data/ (default: %(default)s)")
    add("--chats-file", metavar="FILE", help="another chats file (default: from the tag)")
    add("--questions-file", metavar="FILE", help="another questions file (default: from the tag)")
    add("--question-types", type=comma_list, default=[], metavar="A,B", help="only these abilities (default: all)")
    add("--chats", type=comma_list, default=[], metavar="1,2", help="only these chats (default: all)")
    add("--shard", type=shard, default=(1, 1), metavar="I/N", help="part I (from 1) of N, whole chats (default: all)")
    add("--stream", action="store_true", default=True, help="ask for a streamed reply (the default)")
    add("--no-stream", dest="stream", action="store_false", help="ask for a reply in one piece")
    add(
        "--open-chats",
        type=positive_int,
        default=2,
        metavar="N",
        help="how many chats may be in progress at once (default: %(default)s)",
    )
    add("--retry-errors", action="store_true", help="ask again the questions recorded with an error")
    add(
        "--on-overflow",
        choices=("record", "shrink"),
        default="record",
        help="when the endpoint calls a prompt too long: record the error, or shrink: drop more of the oldest history and "
        "ask again (default: %(default)s)",
    )
    add("--trust-remote-code", action="store_true", help="let the tokenizer's loader run code of its repository")
    add_endpoint_flags(p, timeout=3600, one="question before an empty answer is recorded", failed="have all failed")
    return p


def token_counter(args: argparse.Namespace) -> TokenCounter | None:
    return load_counter(args.tokenizer, args.trust_remote_code) if args.tokenizer else None


@command
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if "messages" in args.thinking_json:
        raise UsageError("--thinking-json must not hold `messages`: they are the benchmark's")
    key = ""
    if not args.dry_run:
        for flag in ("model", "base_url"):
            if not getattr(args, flag):
                raise UsageError(f"--{flag.replace('_', '-')} is required (or --dry-run; see beam_generate.py --help)")
        args.base_url = normalise_base_url(args.base_url, "--base-url")
        key = api_key(args.api_key, "BEAM_API_KEY", "--api-key")
    chats_file, questions_file = data_files(args.tag, args.chats_file, args.questions_file)
    budget = content_budget(args.max_context_tokens, args.max_tokens, args.reserve_tokens) if args.tokenizer else None
    if budget is not None and budget <= 0:
        raise UsageError(
            f"no room for the chat: --max-context-tokens {args.max_context_tokens:,} - --max-tokens {args.max_tokens:,} - "
            f"--reserve-tokens {args.reserve_tokens:,} is {budget:,}; raise the first or lower the others"
        )
    questions = selected_questions(args, questions_file)
    if not questions:
        if args.shard[1] > 1:
            say(f"--shard {args.shard[0]}/{args.shard[1]} is empty: there are fewer chats than parts; nothing to do")
            return 0
        raise UsageError("no question is selected; loosen --question-types, --chats or --limit")

    from beam_chats import ChatsFile, PromptBuilder

    counter = token_counter(args)
    chats = ChatsFile(chats_file)
    check_chats(chats, questions, questions_file)
    builder = PromptBuilder(chats, counter, budget)
    if args.dry_run:
        builder.prepare(dict.fromkeys(str(q["chat_id"]) for q in questions))
        print("\n".join(dry_run(questions, builder, budget)))
        return 0
    return generate(args, questions, chats, questions_file, builder, counter.name if counter else "", key)


if __name__ == "__main__":
    run(main)
