"""Ask a model every BEAM question about its chat and append the answers to a JSONL file.

In:   data/beam_<tag>_chats.jsonl.gz and data/beam_<tag>_questions.jsonl (prepare_data.py makes
      them; the tag `sample` is here)
Out:  answers.jsonl, one line a question, written when it is answered; answers.run.json, the
      settings of the run

Start it again after any stop: finished questions are skipped, nothing is paid twice. Exit code 0:
all selected questions are in the file; 1: stopped early, or nothing answered; 2: bad usage or
input; 130/143: SIGINT/SIGTERM.

  python beam_generate.py --base-url http://localhost:8000/v1 --model my-model --api-key none
"""

from __future__ import annotations

import asyncio
import gc
import shlex
import time
from argparse import Namespace as Args
from collections.abc import Sequence
from dataclasses import dataclass

from beam_common import command
from beam_common.chats import Chats, ChatsFile, Prompt
from beam_common.cli import (
    EXTRA_HELP,
    Parser,
    add_endpoint_flags,
    api_key,
    comma_list,
    json_object,
    non_negative_float,
    non_negative_int,
    normalise_base_url,
    positive_int,
    probability,
    public_text,
    shard,
)
from beam_common.dry_run import dry_run
from beam_common.endpoint import encode_json, request_parameters
from beam_common.failure import Failure, Flags
from beam_common.files import sha256_of_file
from beam_common.jsonl import RESUME
from beam_common.messages import UsageError, plural, say
from beam_common.progress import Progress
from beam_common.questions import data_files, selected_questions
from beam_common.record import Record, counted, new_record, outcome_columns
from beam_common.release import tag_of
from beam_common.reply import Reply
from beam_common.request import announce, body_of, closing, start_run
from beam_common.rowlog import RowLog, output_path
from beam_common.rows import QuestionRow, Row, identity, is_empty, key_of, name_of
from beam_common.run import Ended
from beam_common.schedule import Group, Job, Order
from beam_common.tally import Suspicions, Tally
from beam_common.tokens import KIMI, load_counter

# The wording of BEAM's own answer generation, blank at the end of the first line included.
NOTE = "NOTE: Only provide the answer without any explanations. "
FLAGS = Flags(
    parameters=("temperature", "top_p", "max_tokens", "model"),  # which any error may name
    no_stream="start again with --no-stream",
    too_long="see --max-context-tokens and --on-overflow",
)


def final_message(question: str) -> str:
    """The text of the one message that follows the chat's own."""
    return f"{NOTE}\nQuestion: {question}"


def content_budget(args: Args) -> int | None:
    """Tokens left for the chat's contents; None where nothing is truncated."""
    if not args.tokenizer:
        return None
    budget = int(args.max_context_tokens - args.max_tokens - args.reserve_tokens)
    if budget <= 0:
        raise UsageError(
            f"no room for the chat: --max-context-tokens {args.max_context_tokens:,} less "
            f"--max-tokens and --reserve-tokens is {budget:,}; raise the first or lower the others"
        )
    return budget


def request_settings(args: Args) -> Row:
    """The request's body: everything but the messages."""
    names = ("model", "temperature", "top_p", "max_tokens")
    settings = {name: getattr(args, name) for name in names}
    if args.stream:
        settings |= {"stream": True, "stream_options": {"include_usage": True}}
    return request_parameters(settings, args.thinking_json)


def needed_of(row: Row) -> Row:
    """What a resume needs of an answer: long ones are not held in memory."""
    return identity(row) | {
        "error": row.get("error") or None,  # another tool may write "" for none
        "finish_reason": row.get("finish_reason"),
        "response": "" if is_empty(row) else "…",
    }


@dataclass
class Generation:
    """Asks the open questions of a run and saves their answers."""

    args: Args
    chats: Chats
    log: RowLog
    record: Record
    tally: Tally

    async def go(self, questions: Sequence[QuestionRow], key: str) -> Ended:
        groups: dict[str, Group] = {}
        for question in questions:
            chat_id = str(question["chat_id"])
            groups.setdefault(chat_id, Group(chat_id)).add(key_of(question), question)
        order = Order(list(groups.values()), self.args.open_chats, opener_first=True)
        asked = plural(len(questions), "question")
        announce(self.args, f"asking {asked} about {plural(order.chats, 'chat')}")
        body = request_settings(self.args)
        self.settings = encode_json(body)
        self.suspicions = Suspicions(body.get("max_tokens"))
        self.run = start_run(self.args, key, FLAGS, body, order)
        total = self.tally.total
        self.progress = Progress(total, total - len(questions), "question", self.status)
        return await self.run.go(self.answer, self.progress)

    async def answer(self, job: Job) -> None:
        """Ask one question until its outcome is final, and save it."""
        question: QuestionRow = job.item
        prompt: Prompt | None = None

        async def body() -> list[bytes]:
            nonlocal prompt
            prompt = await self.chats.prompt(job.group.item)
            text = final_message(question["question"])
            return body_of(self.settings, job.group.item, text, prompt.pieces)

        def shortened(failure: Failure) -> bool:
            wanted = failure.overflow and self.args.on_overflow == "shrink"
            return bool(wanted and prompt and self.chats.shrink(prompt))

        outcome = await self.run.ask(job, body, shortened)
        if job.group.over:
            self.chats.forget(job.group.item)
        row = identity(question) | {
            "question": question["question"],
            "gold_answer": question["gold_answer"],
            "rubric": question["rubric"],
            "response": outcome.text if isinstance(outcome, Reply) else "",
            **outcome_columns(outcome),
        }
        await self.log.save(row)  # first: trouble with the record costs no answer
        self.tally.add_row(row)
        shrunk = dict(self.chats.shrunk)
        is_news = shrunk != self.record.content["shrunk"]
        if isinstance(outcome, Failure):
            text = f"recorded without an answer: {outcome.text}"
            self.run.errors.say(text, name_of(job.question))
        else:
            self.tally.add_reply(outcome)
            is_news |= self.record.note_model(outcome)
            if prompt:
                self.suspicions.look_at(row, prompt)
        self.progress.step()
        if is_news:
            self.record.content["shrunk"] = shrunk
            await asyncio.to_thread(self.record.save)

    def status(self) -> str:
        return self.run.in_flight() + self.tally.status()


def generate(args: Args, questions: Sequence[QuestionRow], chats: Chats, new: Row, key: str) -> int:
    """Ask what the output does not hold yet; the exit code."""
    begun = time.monotonic()
    ended = Ended(0)
    tally = Tally(len(questions))
    counts = tally.counts
    with RowLog(args.output, RESUME, keep=needed_of) as log:
        left = []
        for question in questions:
            row = log.rows.get(key_of(question))
            if row is None or (row["error"] and args.retry_errors):
                left.append(question)
            else:
                tally.add_row(row)
        chats.prepare(str(question["chat_id"]) for question in left)
        record = Record(args, new, log.rows.values(), args.model)
        content, earlier = record.content, record.earlier
        content["selected"] = counted(questions, earlier.get("selected", {}))
        content["shard"] = sorted({*earlier.get("shard", []), "{}/{}".format(*args.shard)})
        if earlier.get("data") == new["data"]:
            chats.shrunk.update(earlier.get("shrunk", {}))
        content["shrunk"] = dict(chats.shrunk)
        if len(left) < len(questions):
            failed = counts["failed"]
            note = f", {failed:,} of them with an error (--retry-errors)" if failed else ""
            done = plural(len(questions) - len(left), "question")
            say(f"{args.output}: {done} done already{note}; {len(left):,} to go")
        if left:
            record.save()
            gc.freeze()  # what is loaded stays: no collection need walk the vocabulary again
            ended = asyncio.run(Generation(args, chats, log, record, tally).go(left, key))
            record.save()
        if args.retry_errors:
            log.compact()
    print("\n".join(tally.lines(time.monotonic() - begun)))
    if tally.left:
        return closing(ended, f"{counts['answered']:,} answered, {tally.left:,} left")
    say_next(args, counts["failed"])
    return closing(ended, "")


def say_next(args: Args, failed: int) -> None:
    """How to go on from a file that holds every selected question."""
    output = shlex.quote(str(args.output))
    if failed:
        say(
            f"{plural(failed, 'question')} in {output} with an error; each scores 0 unless "
            "--retry-errors asks again and gets an answer"
        )
    judge = command.started_by("beam_judge.py")
    say(f"next: {judge} --answers {output} --judge-model … --judge-base-url …")


def parser() -> Parser:
    p = Parser(__doc__, "beam_generate.py")
    add = p.flag
    add("--model", public_text, None, "NAME", "model name served by the endpoint (required)")
    add("--base-url", str, None, "URL", "OpenAI-compatible base URL (required)")
    add("--api-key", str, None, "KEY", "API key (default: environment variable BEAM_API_KEY)")
    add("--output", str, "answers.jsonl", "FILE", "where answers are appended")
    add("--temperature", non_negative_float, 1.0, "T", "sampling temperature")
    add("--top-p", probability, 0.95, "P", "nucleus sampling")
    add("--max-tokens", positive_int, 32768, "N", "most output tokens")
    add("--thinking-json", json_object, {}, "JSON", EXTRA_HELP)
    add("--tokenizer", public_text, KIMI, "NAME",
        "for truncation: Hugging Face id or local path; empty: never truncate")  # fmt: skip
    add("--max-context-tokens", positive_int, 1048576, "N",
        "content budget = this - max-tokens - reserve")  # fmt: skip
    add("--reserve-tokens", non_negative_int, 5000, "N", "room for template and question")
    add("--limit", non_negative_int, 0, "N", "only the first N questions; 0: all")
    add("--tag", tag_of, "1m", "TAG", "which files under data/, such as sample, 128k or 1m")
    add("--chats-file", str, None, "FILE", "another chats file (default: from the tag)")
    add("--questions-file", str, None, "FILE", "another questions file (default: from the tag)")
    add("--question-types", comma_list, [], "A,B", "only these abilities (default: all)")
    add("--chats", comma_list, [], "1,2", "only these chats (default: all)")
    add("--shard", shard, (1, 1), "I/N", "part I (from 1) of N, whole chats (default: all)")
    add("--open-chats", positive_int, 2, "N", "how many chats may be in progress at once")
    p.add_argument("--on-overflow", choices=("record", "shrink"), default="record",
                   help="when the endpoint calls a prompt too long: record the error, or drop more "
                   "of the oldest history and ask again (default: %(default)s)")  # fmt: skip
    p.switch("--stream", "ask for a streamed reply (the default)", default=True)
    p.add_argument("--no-stream", dest="stream", action="store_false", help="not streamed")
    p.switch("--dry-run", "print the prompts' statistics; nothing is sent or written")
    p.switch("--trust-remote-code", "let a tokenizer run code of its own")
    add_endpoint_flags(p, concurrency=16, timeout=3600, one="question")
    return p


@command.command
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    args.output = output_path(args.output)
    key = ""
    if not args.dry_run:
        if not args.model:
            raise UsageError("--model is required (or --dry-run; see --help)")
        args.base_url = normalise_base_url(args.base_url or "", "--base-url")
        key = api_key(args.api_key, "BEAM_API_KEY", "--api-key")
    chats_file, questions_file = data_files(args.tag, args.chats_file, args.questions_file)
    budget = content_budget(args)
    questions = selected_questions(args, questions_file)
    if not questions:
        if args.shard == (1, 1):
            raise UsageError("no question is selected; loosen --question-types, --chats or --limit")
        say("--shard {}/{} is empty: fewer chats than parts".format(*args.shard))
        return 0
    counter = load_counter(args.tokenizer, args.trust_remote_code) if args.tokenizer else None
    file = ChatsFile(chats_file)
    file.check(questions, questions_file)
    chats = Chats(file, counter, budget)
    if args.dry_run:
        chats.prepare(str(question["chat_id"]) for question in questions)
        print("\n".join(dry_run(questions, chats, budget)))
        return 0
    new = new_record("beam_generate.py", args, request_settings(args))
    new["settings"] |= {"tokenizer": counter.name if counter else "", "budget": budget}
    new["data"] = {
        "tag": "" if args.chats_file or args.questions_file else args.tag,
        "questions_sha256": sha256_of_file(questions_file),
        "chats_sha256": file.sha256,
    }
    run = ("concurrency", "open_chats", "max_retries", "timeout", "on_overflow")
    new["run"] = {name: getattr(args, name) for name in run}
    return generate(args, questions, chats, new, key)


if __name__ == "__main__":
    command.run(main)
