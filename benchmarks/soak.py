"""Soak run: a misbehaving endpoint, 2,000 questions, the program killed and restarted ten times.

    python benchmarks/soak.py [--questions 2000] [--kills 10] [--share 0.2] [--seed 1]

Every fifth reply is some trouble after which a request is worth another attempt. For the last third
of the run the endpoint takes four requests at a time and refuses the others; five answers before
the end it is gone, for longer than all attempts of a question take. Waits are a hundred times
shorter; kills are SIGKILL at random moments, each start is the same command. The same then for
beam_judge.py, with 700 answers of two criteria. What must hold, by the endpoint's own record and
by the files as they are found after each kill:

- everything stands in the output exactly once, with what the endpoint replied, without an error
- nothing that was on disk is asked again, nor what was answered within one start
- good replies that are lost at a kill are no more than there are places

Takes two minutes; prints how often each trouble was survived; exit code 1 when a claim fails.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench_measure import VERDICT, Budgets, launcher, small_run, workplace
from scripted_endpoint import (
    Answer,
    Recorded,
    ScriptedEndpoint,
    after,
    chunk,
    completion,
    criterion_of,
    drop,
    event_of,
    hang,
    pieces,
    question_of,
    raw,
    reset,
    say,
    sse,
    status,
)

CONCURRENCY, PLACES, TIMEOUT, SHORTER = 16, 4, 3, 100
SLOWEST = 0.06  # seconds until a reply begins
OUTAGE = 3.0  # seconds; eight attempts with shortened waits take 1.3
LIMITED_FROM, TAIL = 2 / 3, 5  # share of the good replies, good replies before the end
RARE = 3  # times at most, troubles that take seconds each
JUDGED = 700  # answers

Key = tuple[str, str]  # what a request asks: question, criterion
HTML = "<html><body><h1>504 Gateway Time-out</h1></body></html>"
HALF = [chunk("", role="assistant"), chunk("half an "), chunk("answer")]
CUT = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" + b" " * 99
)


def inside(**error: Any) -> Answer:
    """Status 200 with an error in it."""
    return status(200, {"error": {"message": "upstream trouble", **error}})


TROUBLE: Mapping[str, Callable[[], Answer]] = {
    **{f"status {n}": partial(status, n) for n in (408, 409, 425, 429, 500, 502, 520, 524, 529)},
    "status 503, loading": lambda: status(503, {"error": {"message": "Loading model"}}),
    "status 504, HTML": lambda: status(504, HTML, content_type="text/html"),
    "429, retry-after-ms": lambda: status(429, headers={"retry-after-ms": "40"}),
    "429, Retry-After: 1": lambda: status(429, headers={"Retry-After": "1"}),
    "200, error 502 inside": partial(inside, code=502),
    "200, error 429 inside": partial(inside, code=429),
    "200, no choices": lambda: status(200, {**completion(""), "choices": []}),
    "connection closed": drop,
    "connection reset": reset,
    "body cut": partial(raw, CUT),
    "chunked body cut": lambda: pieces([b'{"choices": [{"mess'], then="close"),
    "JSON cut": lambda: status(200, b'{"choices": [{"mess'),
    "silence": hang,
    "stream without its end": lambda: sse(HALF, "none"),
    "stream that is only done": lambda: sse(HALF),
    "stream cut": lambda: sse(HALF, "cut"),
    "stream reset": lambda: sse(HALF, "reset"),
    "stream falls silent": lambda: sse(HALF, "hang"),
    "error in a stream": lambda: sse([*HALF, {"error": {"message": "died", "code": 500}}]),
    "event that is no JSON": lambda: sse([*HALF, event_of("{half")], "none"),
}
SLOW = ("429, Retry-After: 1", "silence", "stream falls silent")


@dataclass
class Misbehaving:
    """A script for the endpoint, and its record by the requests' numbers."""

    share: float
    chance: random.Random
    down: bool = False
    good: int = 0
    asked: dict[int, Key] = field(default_factory=dict)
    trouble: dict[int, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Recorded) -> Answer:
        key = question_of(request), criterion_of(request)
        with self.lock:
            if request.messages[1:] or key[1]:  # else a probe
                self.asked[request.number] = key
            kind = "gone" if self.down else self._trouble()
            if kind:
                self.counts[kind] += 1
                self.trouble[request.number] = kind
                return TROUBLE.get(kind, drop)()
            self.good += request.number in self.asked
            return after(self.chance.uniform(0, SLOWEST), say(reply_to(*key)))

    def _trouble(self) -> str:
        kind = self.chance.choice(list(TROUBLE))
        rare = kind in SLOW and self.counts[kind] >= RARE
        return "" if rare or self.chance.random() >= self.share else kind

    def answered(self, requests: list[Recorded], until: float) -> dict[Key, float]:
        """What was answered well until then, and when first."""
        found: dict[Key, float] = {}
        for request in requests:
            key, at = self.asked.get(request.number), request.answered or math.inf
            if key and request.number not in self.trouble and at <= until:
                found[key] = min(at, found.get(key, at))
        return found


def reply_to(question: str, criterion: str) -> str:
    return VERDICT if criterion else f"answer to: {question}"


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The whole rows on disk; what a kill has torn off at the end is none."""
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        yield json.loads(line)


class Soak:
    def __init__(self, program: str, folder: Path, calls: int, script: Misbehaving) -> None:
        self.script, self.calls = script, calls
        self.endpoint = ScriptedEndpoint(script, keep_bodies=False)
        flags = small_run(program, folder, calls, self.endpoint.base_url)
        self.output = folder / ("scores.jsonl" if program == "beam_judge.py" else "answers.jsonl")
        self.record = folder / program.replace("beam_judge.py", "scores.verdicts.jsonl")
        if program == "beam_generate.py":
            self.record = self.output
        flags += ["--concurrency", CONCURRENCY, "--timeout", TIMEOUT, "--output", self.output]
        self.command = [sys.executable, *map(str, [*launcher(program, SHORTER), *flags])]
        judged = rows_of(folder / "judged.jsonl")
        self.questions = {row["question_index"]: row["question"] for row in judged}
        self.lost: list[int] = []  # good replies without a row, at each kill
        self.again: list[Key] = []
        self.code: int | None = None

    def saved(self) -> set[Key]:
        rows = [row for row in rows_of(self.record) if row["error"] is None]
        if not self.questions:
            return {(row["question"], "") for row in rows}
        return {(self.questions[row["question_index"]], row["criterion"]) for row in rows}

    def run(self, kills: int) -> None:
        chance = random.Random(self.script.chance.random())
        moments = [self.calls * (n + chance.random()) / (kills + 1) for n in range(kills)]
        with self.endpoint:
            for goal in [*moments, math.inf]:
                done, first = self.saved(), len(self.endpoint.requests)
                killed_at = self.start(goal, chance)
                self.endpoint.wait_until(lambda: not self.endpoint.connections)
                requests = self.endpoint.requests[first:]
                answered = self.script.answered(requests, killed_at)
                self.lost.append(len(answered.keys() - self.saved()))
                for request in requests:
                    key = self.script.asked.get(request.number)
                    if key and (key in done or answered.get(key, math.inf) < request.received):
                        self.again.append(key)

    def start(self, goal: float, chance: random.Random) -> float:
        """One start; killed soon after so many good replies. When, or infinity."""
        script = self.script
        with open(self.output.with_suffix(".log"), "ab") as log:
            process = subprocess.Popen(self.command, stdout=log, stderr=log)
        while process.poll() is None:
            limited = script.good >= self.calls * LIMITED_FROM
            self.endpoint.places = PLACES if limited else math.inf
            if script.good >= self.calls - TAIL and not script.counts["gone"]:
                script.down = True
                time.sleep(OUTAGE)
                script.down = False
            if script.good >= goal:
                time.sleep(chance.uniform(0, 2 * SLOWEST))
                killed_at = time.monotonic()
                process.kill()
                process.wait()
                return killed_at
            time.sleep(0.002)
        self.code = process.returncode
        return math.inf

    def right(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of the output holds what the endpoint replied."""
        if "score" in row:
            return bool(row["score"] == 1)
        return row["error"] is None and row["response"] == reply_to(row["question"], "")

    def report(self, budgets: Budgets, name: str, expected: int) -> None:
        rows = list(rows_of(self.output))
        names = ("chat_id", "question_type", "question_index")
        different = {tuple(str(row[name]) for name in names) for row in rows}
        budgets.at_most(f"{name}: exit code of the last start", self.code or 0, 0, 0)
        budgets.at_least(f"{name}: different questions in the output", len(different), expected, 0)
        budgets.at_most(f"{name}: lines of the output", len(rows), expected, 0)
        budgets.at_least(f"{name}: right rows", sum(map(self.right, rows)), expected, 0)
        budgets.at_most(f"{name}: asked again", len(self.again), 0, 0)
        lost = f"{name}: good replies lost at a kill, at most ({self.lost})"
        budgets.at_most(lost, max(self.lost), CONCURRENCY, 0)
        refused = sum(request.refused for request in self.endpoint.requests)
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(self.script.counts.items()))
        print(f"{name}: {len(self.endpoint.requests):,} requests, refused for want of a place "
              f"{refused:,}; survived: {kinds}\n", flush=True)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=2000, help="(default: %(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="(default: %(default)s)")
    parser.add_argument("--share", type=float, default=0.2, help="of trouble (default: 0.2)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    args = parser.parse_args()
    budgets = Budgets(f"{args.kills} kills, {args.share:.0%} trouble, seed {args.seed}")
    for program, calls, expected in (
        ("beam_generate.py", args.questions, args.questions),
        ("beam_judge.py", 2 * JUDGED, JUDGED),
    ):
        with workplace() as folder:
            soak = Soak(program, folder, calls, Misbehaving(args.share, random.Random(args.seed)))
            soak.run(args.kills)
            soak.report(budgets, program, expected)
    return budgets.show()


if __name__ == "__main__":
    sys.exit(main())
