"""Soak run: a misbehaving endpoint, 2,000 questions, the program killed and restarted ten times.

    python benchmarks/soak.py [QUESTIONS [KILLS [SEED]]]

Every fifth reply is some trouble after which a request is worth another attempt. For the last third
the endpoint takes four requests at a time; five answers before the end it is gone, for longer than
all attempts of a question take. Waits are a hundred times shorter. The same then for beam_judge.py,
with 700 answers of two criteria. By the endpoint's own record and the files after each kill:

- everything stands in the output exactly once, with what the endpoint replied, without an error
- nothing that was on disk is asked again, nor what was answered within one start
- good replies that are lost at a kill are no more than there are places

Takes two minutes; exit code 1 when a claim fails.
"""

from __future__ import annotations

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
from tempfile import TemporaryDirectory
from typing import Any

import bench_measure as measure
import scripted_answers as wire
from scripted_answers import Answer, sse, status
from scripted_endpoint import Recorded, ScriptedEndpoint, criterion_of, question_of

CONCURRENCY, PLACES, TIMEOUT, SHORTER = 16, 4, 2, 100
SHARE = 0.2  # of trouble
SLOWEST = 0.06  # seconds until a reply begins
OUTAGE = 3.0  # seconds; eight attempts with shortened waits take 1.3
LIMITED_FROM, TAIL = 2 / 3, 5  # share of the good replies, good replies before the end
JUDGED = 700  # answers

Key = tuple[str, str]  # what a request asks: question, criterion
HALF = [wire.chunk("", role="assistant"), wire.chunk("half an "), wire.chunk("answer")]
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"
TROUBLE: Mapping[str, Callable[[], Answer]] = {
    **{f"status {n}": partial(status, n) for n in (408, 409, 425, 429, 500, 502, 520, 524, 529)},
    "503, loading": lambda: status(503, {"error": {"message": "Loading model"}}),
    "504, HTML": lambda: status(504, "<html>Gateway Time-out</html>", content_type="text/html"),
    "429, retry-after-ms": lambda: status(429, headers={"retry-after-ms": "40"}),
    "200, error 502 inside": lambda: status(200, {"error": {"message": "upstream", "code": 502}}),
    "200, no choices": lambda: status(200, {**wire.completion(""), "choices": []}),
    "connection closed": wire.drop,
    "connection reset": wire.reset,
    "body cut": partial(wire.raw, CUT),
    "chunked body cut": lambda: wire.pieces([b'{"choices": [{"mess'], "close"),
    "JSON cut": lambda: status(200, b'{"choices": [{"mess'),
    "silence": wire.hang,
    "stream without its end": lambda: sse(HALF, "none"),
    "stream that is only done": lambda: sse(HALF),
    "stream cut": lambda: sse(HALF, "cut"),
    "stream reset": lambda: sse(HALF, "reset"),
    "stream falls silent": lambda: sse(HALF, "hang"),
    "error in a stream": lambda: sse([*HALF, {"error": {"message": "died", "code": 500}}]),
    "event that is no JSON": lambda: sse([*HALF, "{half"], "none"),
}


def reply_to(question: str | None, criterion: str) -> str:
    return measure.VERDICT if criterion else f"answer to: {question}"


@dataclass
class Misbehaving:
    """A script for the endpoint, and its record by the requests' numbers."""

    chance: random.Random
    down: bool = False
    good: int = 0
    asked: dict[int, Key] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    replied: set[int] = field(default_factory=set)  # well

    def __call__(self, request: Recorded) -> Answer:
        key = question_of(request), criterion_of(request)
        with self.lock:
            if request.messages[1:] or key[1]:  # else a probe
                self.asked[request.number] = key
            if kind := "gone" if self.down else self._trouble():
                self.counts[kind] += 1
                return TROUBLE.get(kind, wire.drop)()
            self.good += request.number in self.asked
            self.replied.add(request.number)
            return wire.after(self.chance.uniform(0, SLOWEST), wire.say(reply_to(*key)))

    def _trouble(self) -> str:
        return self.chance.choice(list(TROUBLE)) if self.chance.random() < SHARE else ""


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The whole rows on disk; what a kill has torn off at the end is none."""
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        yield json.loads(line)


class Soak:
    """Runs of one program into one output; `lost` at each kill, `again`: asked twice."""

    def __init__(self, program: str, folder: str, calls: int, script: Misbehaving) -> None:
        self.script, self.calls = script, calls
        self.endpoint = ScriptedEndpoint(script, keep_bodies=False)
        flags = measure.small_run(program, folder, calls, self.endpoint.base_url)
        self.output = Path(folder, "output.jsonl")
        flags += ["--concurrency", CONCURRENCY, "--timeout", TIMEOUT, "--output", self.output]
        launcher = measure.launcher(program, SHORTER)
        self.command = [sys.executable, *map(str, [*launcher, *flags])]
        judged = rows_of(Path(folder, "judged.jsonl"))
        self.questions = {row["question_index"]: row["question"] for row in judged}
        self.lost: list[int] = []
        self.again: list[Key] = []
        self.code = 0

    def saved(self) -> set[Key]:
        if not self.questions:
            return {(row["question"], "") for row in rows_of(self.output) if not row["error"]}
        verdicts = rows_of(self.output.with_suffix(".verdicts.jsonl"))
        good = (row for row in verdicts if not row["error"])
        return {(self.questions[row["question_index"]], row["criterion"]) for row in good}

    def run(self, kills: int) -> None:
        chance = random.Random(self.script.chance.random())
        moments = [self.calls * (n + chance.random()) / (kills + 1) for n in range(kills)]
        for goal in [*moments, math.inf]:
            done, first = self.saved(), len(self.endpoint.requests)
            killed_at = self.start(goal, chance)
            self.endpoint.wait_until(lambda: not self.endpoint.connections)
            answered: dict[Key, float] = {}
            for request in self.endpoint.requests[first:]:
                key, at = self.script.asked.get(request.number), request.answered or math.inf
                if key and (key in done or answered.get(key, math.inf) < request.received):
                    self.again.append(key)
                if key and request.number in self.script.replied and at <= killed_at:
                    answered[key] = min(at, answered.get(key, at))
            self.lost.append(len(answered.keys() - self.saved()))

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
        self.code = abs(process.returncode)
        return math.inf

    def report(self, budgets: measure.Budgets, name: str, expected: int) -> None:
        rows = list(rows_of(self.output))
        names = ("chat_id", "question_type", "question_index")
        different = {tuple(str(row[name]) for name in names) for row in rows}
        answers = [row for row in rows if row.get("response") == reply_to(row.get("question"), "")]
        right = answers or [row for row in rows if row.get("score") == 1]
        budgets.add(f"{name}: exit code of the last start", self.code, "≤", 0)
        budgets.add(f"{name}: different questions in the output", len(different), "≥", expected)
        budgets.add(f"{name}: lines of the output", len(rows), "≤", expected)
        budgets.add(f"{name}: right rows", len(right), "≥", expected)
        budgets.add(f"{name}: asked again", len(self.again), "≤", 0)
        budgets.add(f"{name}: lost at a kill ({self.lost})", max(self.lost), "≤", CONCURRENCY)
        refused = sum(request.refused for request in self.endpoint.requests)
        counts = f"{len(self.endpoint.requests):,} requests, {refused:,} refused for want of places"
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(self.script.counts.items()))
        print(f"{name}: {counts}; survived: {kinds}\n", flush=True)
        if self.code:
            print(self.output.with_suffix(".log").read_text("utf-8")[-3000:])


def main(questions: int = 2000, kills: int = 10, seed: int = 1) -> int:
    budgets = measure.Budgets(f"{kills} kills, {SHARE:.0%} trouble, seed {seed}")
    runs = {"beam_generate.py": (questions, questions), "beam_judge.py": (2 * JUDGED, JUDGED)}
    for program, (calls, expected) in runs.items():
        with TemporaryDirectory() as folder:
            soak = Soak(program, folder, calls, Misbehaving(random.Random(seed)))
            with soak.endpoint:
                soak.run(kills)
            soak.report(budgets, program, expected)
    return budgets.show()


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
