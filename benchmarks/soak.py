"""Soak run: an endpoint that misbehaves at random, 2,000 questions, the program killed and restarted ten times.

    python benchmarks/soak.py [--questions 2000] [--kills 10] [--share 0.2] [--seed 1] [--judge]

Every fifth reply is some trouble after which a request is worth another attempt: statuses, errors inside replies, cut and
reset replies, silence, streams without an end. In the middle the endpoint is gone for a while (connection refused).
beam_generate.py runs against it with its waits shortened a hundred times, is killed with SIGKILL at random moments, and
started again with the same command. --judge does the same with beam_judge.py, on the answers of 700 questions.

What must hold in the end, by the endpoint's own record of replies and by the file as it is found after each kill:

- every question stands in the file exactly once, with the answer that the endpoint gave to it, and without an error
- no question whose row was on disk was asked again, and none within one run once its answer was complete
- good replies that brought no row are those that were in flight or being saved at a kill, no more than there are places
  (for the judge: and first verdicts of questions whose second one had not come)

Takes about a minute; prints how often each trouble was survived; exit code 1 when a claim fails.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from bench_measure import beside, conditions, question_rows, start_child, table, verdict, workplace, write_rows
from scripted_endpoint import (
    Answer,
    Recorded,
    ScriptedEndpoint,
    chunk,
    completion,
    criterion_of,
    drop,
    event_of,
    hang,
    is_judge,
    pieces,
    question_of,
    raw,
    reset,
    say,
    sse,
    status,
)

EACH = 20  # questions about a chat
CONCURRENCY = 16
TIMEOUT = 5  # seconds of silence that the program bears
SHORTER = 100  # times, the waits between attempts
OUTAGE = 0.3  # seconds
LAST_REPLIES = 0.2  # seconds before it, for replies that are on their way
GONE = "connection refused (times gone)"
SLOWEST = 0.06  # seconds until a reply begins
RARE = 4  # times at most, troubles that take seconds each
LONGEST_RUN = 300.0  # seconds
JUDGED = 700  # answers

Key = tuple[str, str]  # what a request asks: (question, criterion), the latter empty for a question

# ---------------------------------------------------------------------------------------------------------------
# Trouble.

HTML = "<html><body><h1>504 Gateway Time-out</h1></body></html>"
TWO_PIECES = [chunk("", role="assistant"), chunk("half an "), chunk("answer")]


def inside(**error: Any) -> Answer:
    """Status 200 with an error in it."""
    return status(200, {"error": {"message": "upstream trouble", **error}})


def without_choices(choices: Any) -> Answer:
    return status(200, {**completion("unused"), "choices": choices})


def absent_choices() -> Answer:
    return status(200, {name: value for name, value in completion("unused").items() if name != "choices"})


def cut_body() -> Answer:
    return raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" + b'{"id": "x", ' * 9
    )


STATUSES = (408, 409, 425, 429, 500, 502, 520, 522, 524, 529)
TROUBLE: Mapping[str, Callable[[], Answer]] = {
    **{f"status {code}": partial(status, code) for code in STATUSES},
    "status 503, loading": lambda: status(503, {"error": {"message": "Loading model", "code": 503}}),
    "status 504, HTML": lambda: status(504, HTML, content_type="text/html"),
    "429, retry-after-ms": lambda: status(429, headers={"retry-after-ms": "40"}),
    "429, Retry-After 1": lambda: status(429, headers={"Retry-After": "1"}),
    "200, error 502 inside": lambda: inside(code=502),
    "200, error 429 inside": lambda: inside(code=429),
    "200, error by name inside": lambda: inside(type="overloaded_error"),
    "choices []": lambda: without_choices([]),
    "choices null": lambda: without_choices(None),
    "choices absent": absent_choices,
    "message null": lambda: without_choices([{"index": 0, "message": None, "finish_reason": "stop"}]),
    "finish_reason error": lambda: say("half", finish_reason="error"),
    "finish_reason abort": lambda: say("half", finish_reason="abort"),
    "finish_reason no resource": lambda: say("half", finish_reason="insufficient_system_resource"),
    "body cut": cut_body,
    "body not ended": lambda: pieces([b'{"id": "x", "choices": '], then="close"),
    "JSON ends in a string": lambda: status(200, b'{"choices": [{"message": {"content": "half an ans'),
    "body empty": lambda: status(200, b""),
    "closed without a reply": drop,
    "reset without a reply": reset,
    "reset after the headers": lambda: pieces([b'{"id": '], then="reset"),
    "silence": hang,
    "stream without an end": lambda: sse(TWO_PIECES, ending="none"),
    "stream cut": lambda: sse(TWO_PIECES, ending="cut"),
    "stream reset": lambda: sse(TWO_PIECES, ending="reset"),
    "stream falls silent": lambda: sse(TWO_PIECES, ending="hang"),
    "error in the stream": lambda: sse(
        [*TWO_PIECES, {"error": {"message": "worker died", "code": 500}}], ending="none"
    ),
    "event that is no JSON": lambda: sse([*TWO_PIECES, event_of("{half")], ending="none"),
}
TAKES_SECONDS = ("429, Retry-After 1", "silence", "stream falls silent")


# ---------------------------------------------------------------------------------------------------------------
# The endpoint and its record.


@dataclass
class Asked:
    """One request: what it asked, in which start of the program, when; `replied` is when a good reply was complete."""

    key: Key
    run: int
    at: float
    trouble: str | None = None
    replied: float | None = None


def answer_to(request: Recorded) -> str:
    """What the endpoint answers when it is well: for a question a text of its own, for a judge's call a verdict."""
    if not is_judge(request):
        return f"answer to: {question_of(request)}"
    if criterion_of(request):
        return '{"score": 1.0, "reason": "as asked"}'
    return '{"all_present": true, "order_correct": true, "score": 1.0, "explanation": "as asked"}'


@dataclass
class Misbehaving:
    """A script for the endpoint: answers after a moment, or is in trouble."""

    share: float
    chance: random.Random
    run: int = 0
    record: list[Asked] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    good: int = 0
    leaving: bool = False  # the endpoint is about to be gone: no more good replies, they might be cut

    def __call__(self, request: Recorded) -> Answer:
        with self.lock:
            asked = Asked((question_of(request), criterion_of(request)), self.run, time.monotonic(), self._trouble())
            self.record.append(asked)
            moment = self.chance.uniform(0, SLOWEST)
        time.sleep(moment)
        with self.lock:
            if self.leaving and not asked.trouble:
                asked.trouble = GONE
            if not asked.trouble:
                asked.replied = time.monotonic()
                self.good += 1
        if asked.trouble:
            return TROUBLE.get(asked.trouble, drop)()
        return say(answer_to(request))

    def _trouble(self) -> str | None:
        if self.chance.random() >= self.share:
            return None
        kind = self.chance.choice(list(TROUBLE))
        while kind in TAKES_SECONDS and self.counts[kind] >= RARE:
            kind = self.chance.choice(list(TROUBLE))
        self.counts[kind] += 1
        return kind


# ---------------------------------------------------------------------------------------------------------------
# The runs.


@dataclass
class Job:
    """What is soaked: the arguments of a program, the file of its rows, and what a row says is done."""

    name: str
    arguments: list[str]
    output: Path
    expected: int  # rows
    requests: int  # good replies that it takes at the least
    unsaved: int  # at most so many good replies are in flight or not yet saved at a kill
    keys_of: Callable[[Mapping[str, Any]], list[Key]]  # what need not be asked again, by a row


@dataclass
class Outcome:
    """What came of a soak run."""

    asked_again: list[Asked] = field(default_factory=list)
    wasted: list[int] = field(default_factory=list)  # good replies without a row, at each kill
    in_flight: list[int] = field(default_factory=list)  # requests without a whole reply, at each kill
    starts: int = 0
    last_code: int | None = None
    last_words: str = ""


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The whole rows on disk; what a kill has torn off at the end is none."""
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line) if line else None
        except ValueError:
            continue
        if row is not None:
            yield row


def soak(job: Job, script: Misbehaving, port: int, kills: int) -> Outcome:
    """Start, kill, look at the file, start again; the last start may end by itself."""
    outcome, chance = Outcome(), random.Random(script.chance.random())
    moments = sorted(int(job.requests * (number + chance.random()) / (kills + 1)) for number in range(kills))
    outage = chance.randrange(kills + 1)
    with tempfile.TemporaryFile() as said:
        while True:
            done = {key for row in rows_of(job.output) for key in job.keys_of(row)}
            script.run, outcome.starts = outcome.starts, outcome.starts + 1
            first = len(script.record)
            endpoint = ScriptedEndpoint(script, port).__enter__()
            said.seek(0)
            said.truncate()
            process = start_child(job.arguments, said, said)
            goal = moments[script.run] if script.run < kills else None
            if script.run == outage:
                endpoint = gone_for_a_while(endpoint, script, port, process)
            killed_at = watch(process, script, goal, chance)
            endpoint.__exit__(None, None, None)
            here = script.record[first:]
            outcome.asked_again += repeated(here, done)
            if killed_at is None:
                said.seek(0)
                outcome.last_words = said.read().decode("utf-8", "replace")[-3000:]
                outcome.last_code = process.returncode
                return outcome
            saved = {key for row in rows_of(job.output) for key in job.keys_of(row)}
            complete = [a for a in here if a.replied is not None and a.replied <= killed_at]
            outcome.wasted.append(sum(a.key not in saved for a in complete))
            outcome.in_flight.append(in_flight(here, killed_at))


def gone_for_a_while(
    endpoint: ScriptedEndpoint, script: Misbehaving, port: int, process: subprocess.Popen[bytes]
) -> ScriptedEndpoint:
    """Close the endpoint in the middle of a run, and open another one in its place: connections are refused meanwhile."""
    before = script.good
    while script.good < before + 5 and process.poll() is None:
        time.sleep(0.005)
    script.leaving = True
    time.sleep(LAST_REPLIES)
    endpoint.__exit__(None, None, None)
    time.sleep(OUTAGE)
    script.counts[GONE] += 1
    script.leaving = False
    return ScriptedEndpoint(script, port).__enter__()


def watch(
    process: subprocess.Popen[bytes], script: Misbehaving, goal: int | None, chance: random.Random
) -> float | None:
    """Wait for the program; kill it soon after so many good replies. When it was killed, None when it ended by itself."""
    until = time.monotonic() + LONGEST_RUN
    while process.poll() is None:
        if time.monotonic() > until:
            process.kill()
            process.wait()
            raise TimeoutError(f"the program has not ended within {LONGEST_RUN:g} s")
        if goal is not None and script.good >= goal:
            time.sleep(chance.uniform(0, 2 * SLOWEST))
            at = time.monotonic()
            process.kill()
            process.wait()
            return at
        time.sleep(0.002)
    return None


def repeated(requests: Sequence[Asked], done: set[Key]) -> list[Asked]:
    """Requests of one run for what was on disk before it, or after a good reply to the same within it."""
    answered: dict[Key, float] = {}
    for asked in requests:
        if asked.replied is not None:
            answered[asked.key] = min(asked.replied, answered.get(asked.key, asked.replied))
    return [a for a in requests if a.key in done or answered.get(a.key, a.at) < a.at]


def in_flight(requests: Sequence[Asked], at: float) -> int:
    return sum(a.trouble is None and a.at <= at and (a.replied is None or a.replied > at) for a in requests)


# ---------------------------------------------------------------------------------------------------------------
# What is soaked.


def generation(folder: Path, port: int, questions: int) -> Job:
    chats = -(-questions // EACH)
    rows = question_rows(chats, EACH)[:questions]
    write_rows(folder / "questions.jsonl", rows)
    talk = [{"role": "user", "content": "Let us talk."}, {"role": "assistant", "content": "About what?"}]
    write_rows(folder / "chats.jsonl", [{"chat_id": str(chat), "messages": talk} for chat in range(1, chats + 1)])
    output = folder / "answers.jsonl"
    arguments = [
        beside("bench_launch.py"), "--shorten", str(SHORTER), "beam_generate.py",
        "--chats-file", str(folder / "chats.jsonl"), "--questions-file", str(folder / "questions.jsonl"),
        "--model", "m", "--base-url", f"http://127.0.0.1:{port}/v1", "--api-key", "none", "--output", str(output),
        "--timeout", str(TIMEOUT), "--concurrency", str(CONCURRENCY),
    ]  # fmt: skip
    return Job(
        "beam_generate.py",
        arguments,
        output,
        questions,
        questions,
        CONCURRENCY,
        lambda row: [(row["question"], "")],
    )


def judgement(folder: Path, port: int, answers: Path) -> Job:
    """Two criteria for each of some answers; event_ordering has one call."""
    output = folder / "scores.jsonl"
    rows = [row | {"rubric": ["says so", "says when"]} for row in rows_of(answers)][:JUDGED]
    write_rows(folder / "judged.jsonl", rows)
    by_identity = {(str(r["chat_id"]), r["question_type"], r["question_index"]): r for r in rows}

    def keys_of(score: Mapping[str, Any]) -> list[Key]:
        row = by_identity[str(score["chat_id"]), score["question_type"], score["question_index"]]
        criteria = [""] if row["question_type"] == "event_ordering" else row["rubric"]
        return [(row["question"], criterion) for criterion in criteria]

    arguments = [
        beside("bench_launch.py"), "--shorten", str(SHORTER), "beam_judge.py",
        "--answers", str(folder / "judged.jsonl"), "--judge-model", "m", "--judge-api-key", "none",
        "--judge-base-url", f"http://127.0.0.1:{port}/v1", "--output", str(output),
        "--timeout", str(TIMEOUT), "--concurrency", str(CONCURRENCY),
    ]  # fmt: skip
    calls = sum(1 if row["question_type"] == "event_ordering" else 2 for row in rows)
    # A question is saved when its last verdict is there, and one that waits for its next attempt holds no place.
    return Job("beam_judge.py", arguments, output, len(rows), calls, 3 * CONCURRENCY, keys_of)


def right(row: Mapping[str, Any]) -> bool:
    """Whether a row holds what the endpoint answered."""
    if "score" in row:
        return bool(row["score"] == 1.0)
    return row["error"] is None and row["response"] == f"answer to: {row['question']}"


def report(job: Job, outcome: Outcome, script: Misbehaving, kills: int, seconds: float) -> bool:
    lines = [line for line in job.output.read_bytes().split(b"\n") if line]
    rows = list(rows_of(job.output))
    identities = Counter((str(r["chat_id"]), r["question_type"], int(r["question_index"])) for r in rows)
    good = sum(a.replied is not None for a in script.record)
    bad = sum(a.trouble is not None for a in script.record)
    claims = [
        (f"the last start ended with exit code 0 ({outcome.last_code})", outcome.last_code == 0),
        (f"killed {len(outcome.wasted)} times of {kills}", len(outcome.wasted) == kills),
        (f"{job.expected:,} lines, all whole ({len(lines):,})", len(lines) == len(rows) == job.expected),
        (f"every question exactly once ({len(identities):,} different)", len(identities) == len(rows) == job.expected),
        ("every row holds what the endpoint answered", all(map(right, rows))),
        (f"nothing that was on disk or answered was asked again ({len(outcome.asked_again)})", not outcome.asked_again),
        (f"at each kill at most {job.unsaved} good replies were in flight or not yet saved", all(
            lost + flying <= job.unsaved for lost, flying in zip(outcome.wasted, outcome.in_flight, strict=True))),
    ]  # fmt: skip
    print(f"{job.name}: {len(script.record):,} requests in {outcome.starts} starts, {good:,} good replies, {bad:,} times "
          f"trouble ({bad / max(len(script.record), 1):.0%}), {seconds:.0f} s")  # fmt: skip
    print(f"at the kills: in flight {outcome.in_flight}, answered but not saved {outcome.wasted}")
    kinds = sorted(script.counts.items())
    half = -(-len(kinds) // 2)
    left, other = kinds[:half], [*kinds[half:], ("", 0)]
    rows_shown = [[a, str(n), f"  {b}".ljust(36), str(m or "")] for (a, n), (b, m) in zip(left, other, strict=False)]
    print(table(["trouble survived", "times", "", "times"], rows_shown))
    for text, holds in claims:
        print(f"{text}: {verdict(holds)}")
    for asked in outcome.asked_again[:10]:
        print(f"  asked again: {asked}")
    if outcome.last_code != 0:
        print(outcome.last_words)
    print(flush=True)
    return all(holds for _, holds in claims)


def free_port() -> int:
    endpoint = ScriptedEndpoint()
    port = int(endpoint.server_address[1])
    endpoint.server_close()
    return port


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=2000, help="(default: %(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="(default: %(default)s)")
    parser.add_argument("--share", type=float, default=0.2, help="of replies that are trouble (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--judge", action="store_true", help="soak beam_judge.py, too")
    parser.add_argument("--folder", help="where to put the data, and leave them (default: a temporary folder)")
    args = parser.parse_args(argv)
    note = f"{args.questions:,} questions, {args.kills} kills, {args.share:.0%} trouble of {len(TROUBLE)} kinds, seed {args.seed}"
    print(conditions(["openai", "httpx2"], [f"{note}, {CONCURRENCY} in flight, waits 1:{SHORTER}"]) + "\n", flush=True)
    fine = True
    with workplace(args.folder) as folder:
        port = free_port()
        generate = generation(folder, port, args.questions)
        jobs: list[Callable[[], Job]] = [lambda: generate]
        if args.judge:
            jobs.append(lambda: judgement(folder, port, generate.output))
        for number, make in enumerate(jobs):
            started, script = time.monotonic(), Misbehaving(args.share, random.Random(args.seed + number))
            job = make()
            outcome = soak(job, script, port, args.kills)
            fine &= report(job, outcome, script, args.kills, time.monotonic() - started)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
