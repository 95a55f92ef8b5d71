"""Measure what the programs take of CPU time, memory and the event loop.

    python benchmarks/bench_speed.py [RUNS [TOKENIZER]]

35 chats of a million tokens with 20 questions each, an endpoint that answers at once, the program
as a user starts it; 600 answers of 4 criteria for the judge. In the same run, start-up left out:

plain      what one writes at first: the SDK's typed call with the chat as a list, counted with
           tiktoken for each question and truncated, the reply read with the SDK's typed stream
bare       the least that can be done: the same bytes posted with the SDK's HTTP client
heartbeat  the generator beside a beat every 5 ms on its event loop: by how much one was late,
           without the time that other programs had the processors (Linux tells that)

One request is what 300 further questions about 5 chats cost, divided by their number. Of RUNS (3)
the best counts. Takes five minutes and 150 MB of disk; exit code 1 when a budget is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import runpy
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import bench_measure as measure
from bench_measure import PROJECT, USAGE, VERDICT, Budgets, Used, run_python
from scripted_endpoint import Answer, Recorded, ScriptedEndpoint, chunk, completion, sse, status

CHATS, QUESTIONS, TEXTS, IN_FLIGHT = 35, 20, 8, 16
CHARACTERS, MESSAGES = 3_950_000, 1_760  # of a chat of a million tokens
BUDGET = 1048576 - 32768 - 5000  # the programs' default, in tokens
FEW, MORE, SOME = 5, 60, 12  # chats, and questions each, of runs for one request; of a heartbeat
PLAIN, BARE = 20, 100  # requests
EVENTS = (20, 300)
ANSWERS, CRITERIA, CALLS, CALLS_IN_FLIGHT = 600, 4, 2400, 32
BEAT = 0.005  # seconds


async def at_once(work: Callable[[int], Awaitable[None]], requests: int, in_flight: int) -> None:
    """Do `work` for so many numbers; prints CPU and wall seconds."""
    numbers = iter(range(requests))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    print(json.dumps([time.process_time() - cpu, time.perf_counter() - wall]))


async def plain(url: str, file: str, requests: str, in_flight: str, tokenizer: str) -> None:
    import openai

    from beam_common.tokens import load_counter

    with gzip.open(file, "rt", encoding="utf-8") as lines:
        chat = json.loads(next(lines))["messages"]
    counter = load_counter(tokenizer)
    client = openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0, timeout=600)
    settings: Any = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}

    async def ask(number: int) -> None:
        counts = counter.count([message["content"] for message in chat])
        first, total = 0, sum(counts)
        while total > BUDGET:
            total -= counts[first]
            first += 1
        messages = [*chat[first:], {"role": "user", "content": f"And matter {number}?"}]
        stream = await client.chat.completions.create(messages=messages, **settings)
        assert "".join([e.choices[0].delta.content or "" async for e in stream if e.choices])

    await ask(0)  # modules and vocabulary are loaded
    await at_once(ask, int(requests), int(in_flight))


async def bare(url: str, file: str, requests: str, in_flight: str) -> None:
    import openai

    bodies = Path(file).read_bytes().split(b"\n")
    headers = {"Authorization": "Bearer none", "Content-Type": "application/json"}
    async with openai.DefaultAsyncHttpxClient(headers=headers, timeout=600) as client:

        async def ask(number: int) -> None:
            body = bodies[number % len(bodies)]
            reply = await client.post(f"{url}/chat/completions", content=body)
            reply.raise_for_status()

        await asyncio.gather(*(ask(0) for _ in range(int(in_flight))))  # connections are open
        await at_once(ask, int(requests), int(in_flight))


def waited_for_processor() -> float:
    """Seconds that this thread has been ready to run without a processor; 0 where unknown."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def heartbeat(program: str, *arguments: str) -> None:
    """Run a program; prints the milliseconds of the longest stall of its event loop."""
    late, run = [0.0], asyncio.run

    async def beat() -> None:
        before, waited = time.perf_counter(), waited_for_processor()
        while True:
            await asyncio.sleep(BEAT)
            now, ready = time.perf_counter(), waited_for_processor()
            late.append(1000 * (now - before - BEAT - (ready - waited)))
            before, waited = now, ready

    async def beside(main: Coroutine[Any, Any, Any]) -> Any:
        heart = asyncio.create_task(beat())
        try:
            return await main
        finally:
            heart.cancel()

    asyncio.run = lambda main, **settings: run(beside(main), **settings)
    sys.argv = [program, *arguments]
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        print(max(late))


def reply_of(events: int) -> Answer:
    """A stream of so many events that leave at once, each a chunk of its own; 0: a verdict."""
    if not events:
        return status(200, {**completion(VERDICT), "usage": USAGE})
    parts = [chunk(f" word{number}") for number in range(events - 3)]
    parts += [chunk(finish_reason="stop"), {**chunk(), "choices": [], "usage": USAGE}]
    reply = sse(parts)
    return Answer(end=b"".join(reply.parts) + reply.end)


class Bench(ScriptedEndpoint):
    """An endpoint that answers at once and looks at nothing, and the figures found with it."""

    def __init__(self, folder: Path, tokenizer: str) -> None:
        super().__init__(self.instant, keep_bodies=False)
        self.folder, self.tokenizer = folder, tokenizer
        self.answer, self.wanted, self.bodies = Answer(), 0, list[bytes]()
        self.found: dict[str, list[float]] = defaultdict(list)
        measure.write_chats(folder / "many.gz", CHATS, TEXTS, MESSAGES, CHARACTERS)
        measure.write_chats(folder / "few.gz", FEW, FEW, MESSAGES, CHARACTERS)
        measure.write_rows(folder / "answers.jsonl", measure.answer_rows(ANSWERS, CRITERIA))

    def instant(self, request: Recorded) -> Answer:
        if len(self.bodies) < self.wanted:
            self.bodies.append(request.body)
        return self.answer

    def expect(self, events: int, bodies: int) -> None:
        self.answer, self.wanted, self.bodies = reply_of(events), bodies, []
        self.requests.clear()

    def generate(self, chats: str, count: int, each: int, *more: object) -> Used:
        questions = measure.question_rows(count, each)
        return run_python(
            *(more or [PROJECT / "beam_generate.py"]),
            *["--chats-file", self.folder / f"{chats}.gz", "--questions-file"],
            *[measure.write_rows(self.folder / "questions.jsonl", questions)],
            *["--model", "m", "--base-url", self.base_url, "--api-key", "none"],
            *["--output", Path(mkdtemp(dir=self.folder), "answers.jsonl")],
            *["--tokenizer", self.tokenizer, "--concurrency", IN_FLIGHT],
        )

    def child(self, way: str, *arguments: object) -> Any:
        """CPU and wall seconds of another way of asking."""
        return json.loads(run_python(__file__, way, self.base_url, *arguments).last)

    def bare(self, requests: int, in_flight: int) -> Any:
        (self.folder / "bodies").write_bytes(b"\n".join(self.bodies))
        return self.child("bare", self.folder / "bodies", requests, in_flight)

    def generator(self) -> None:
        found, few = self.found, self.folder / "few.gz"
        self.expect(EVENTS[0], 1)
        whole = self.generate("many", CHATS, QUESTIONS)
        found["question"].append(whole.cpu / (CHATS * QUESTIONS))
        found["memory"].append(whole.memory)
        cpu, _ = self.child("plain", few, PLAIN, IN_FLIGHT, self.tokenizer)
        found["plain"].append(cpu / PLAIN)
        base = self.generate("few", FEW, 1).cpu
        for events in EVENTS:
            self.expect(events, 1)
            more = self.generate("few", FEW, 1 + MORE).cpu
            found[f"one {events}"].append((more - base) / (FEW * MORE))
            cpu, _ = self.bare(BARE, IN_FLIGHT)
            found[f"bare {events}"].append(cpu / BARE)
            stalled = self.generate("many", SOME, QUESTIONS, __file__, "heartbeat")
            found[f"stall {events}"].append(float(stalled.last))
        dry = self.generate("many", CHATS, QUESTIONS, PROJECT / "beam_generate.py", "--dry-run")
        found["dry"].append(dry.wall)

    def judge(self) -> None:
        self.expect(0, CALLS)
        run_python(
            *[PROJECT / "beam_judge.py", "--answers", self.folder / "answers.jsonl"],
            *["--judge-model", "m", "--judge-base-url", self.base_url, "--judge-api-key", "none"],
            *["--criterion-prompt", "builtin", "--concurrency", CALLS_IN_FLIGHT],
            *["--output", Path(mkdtemp(dir=self.folder), "scores.jsonl")],
        )
        times = [request.received for request in self.requests]
        assert len(times) == CALLS, f"{len(times)} calls instead of {CALLS}"
        self.found["call"].append((max(times) - min(times)) / CALLS)
        _, wall = self.bare(CALLS, CALLS_IN_FLIGHT)
        self.found["bare call"].append(wall / CALLS)

    def compare(self, budgets: Budgets) -> None:
        best = {name: min(figures) for name, figures in self.found.items()}

        def against(name: str, other: str) -> str:
            return f"{best[name] * 1000:.1f} ms against {best[other] * 1000:.1f} ms"

        ratio = best["plain"] / best["question"]
        budgets.add(f"plain way over ours, CPU ({against('plain', 'question')})", ratio, "≥", 20)
        for events in EVENTS:
            one, bare = f"one {events}", f"bare {events}"
            what = f"one request of {events} events over the bare way ({against(one, bare)})"
            budgets.add(what, best[one] / best[bare], "≤", 4)
            budgets.add(f"longest stall, {events} events, ms", best[f"stall {events}"], "≤", 100)
        budgets.add(f"memory with {IN_FLIGHT} in flight, MiB", best["memory"], "≤", 250)
        budgets.add(f"dry run over {CHATS} chats, s", best["dry"], "≤", 30)
        what = f"judge's calls a second over the bare client's ({against('call', 'bare call')})"
        budgets.add(what, best["bare call"] / best["call"], "≥", 0.6)


def main(runs: str = "3", tokenizer: str = "Kimi-K2.6") -> int:
    budgets = Budgets(f"best of {runs}")
    with TemporaryDirectory() as folder, Bench(Path(folder), tokenizer) as bench:
        for _ in range(int(runs)):
            bench.generator()
            bench.judge()
    bench.compare(budgets)
    return budgets.show()


if __name__ == "__main__":
    way, words = sys.argv[1:2], sys.argv[2:]
    if way == ["heartbeat"]:
        heartbeat(str(PROJECT / "beam_generate.py"), *words)
    elif way in (["plain"], ["bare"]):
        asyncio.run(plain(*words) if way == ["plain"] else bare(*words))
    else:
        sys.exit(main(*sys.argv[1:]))
