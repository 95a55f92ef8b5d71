"""What bench_speed.py starts beside the programs as they are; each prints its figures as JSON.

    python benchmarks/bench_children.py plain URL CHATS REQUESTS IN_FLIGHT [TOKENIZER]
    python benchmarks/bench_children.py bare URL BODIES REQUESTS IN_FLIGHT
    python benchmarks/bench_children.py heartbeat beam_generate.py ARGUMENTS

plain      what one writes at first: the SDK's typed call with the chat as a list, counted with
           tiktoken for each question and truncated, the reply read with the SDK's typed stream
bare       the least that can be done: ready bytes, one body a line of the file, posted with the
           SDK's HTTP client, the reply read. Start-up is not in the figures of both
heartbeat  a program beside a beat every 5 ms on its event loop: milliseconds by which one was late
           at most, without the time that other programs had the processors (Linux tells that)
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import runpy
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from bench_measure import PROJECT

BUDGET = 1048576 - 32768 - 5000  # the programs' default, in tokens
HEADERS = {"Authorization": "Bearer none", "Content-Type": "application/json"}
BEAT = 0.005  # seconds


async def measured(work: Callable[[int], Awaitable[None]], requests: int, in_flight: int) -> None:
    numbers = iter(range(requests))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}))


async def plain(url: str, file: str, requests: str, in_flight: str, tokenizer: str) -> None:
    import openai

    from beam_common.tokens import load_counter

    with gzip.open(file, "rt", encoding="utf-8") as lines:
        chat = json.loads(next(lines))["messages"]
    counter = load_counter(tokenizer)
    counter.load()
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

    await ask(0)  # modules are loaded
    await measured(ask, int(requests), int(in_flight))


async def bare(url: str, file: str, requests: str, in_flight: str) -> None:
    import openai

    bodies = Path(file).read_bytes().split(b"\n")
    async with openai.DefaultAsyncHttpxClient(headers=HEADERS, timeout=600) as client:

        async def ask(number: int) -> None:
            body = bodies[number % len(bodies)]
            reply = await client.post(f"{url}/chat/completions", content=body)
            reply.raise_for_status()

        await asyncio.gather(*(ask(0) for _ in range(int(in_flight))))  # connections are open
        await measured(ask, int(requests), int(in_flight))


def waited_for_processor() -> float:
    """Seconds that this thread has been ready to run without a processor; 0 where unknown."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


async def beat(late: list[float]) -> None:
    before, waited = time.perf_counter(), waited_for_processor()
    while True:
        await asyncio.sleep(BEAT)
        now, ready = time.perf_counter(), waited_for_processor()
        late.append(1000 * (now - before - BEAT - (ready - waited)))
        before, waited = now, ready


def heartbeat(program: str, *arguments: str) -> None:
    late: list[float] = []
    run = asyncio.run

    async def beside(main: Coroutine[Any, Any, Any]) -> Any:
        heart = asyncio.create_task(beat(late))
        try:
            return await main
        finally:
            heart.cancel()

    asyncio.run = lambda main, **settings: run(beside(main), **settings)
    sys.argv = [program, *arguments]
    try:
        runpy.run_path(str(PROJECT / program), run_name="__main__")
    finally:
        print(json.dumps(max(late)))


if __name__ == "__main__":
    way, *arguments = sys.argv[1:]
    if way == "heartbeat":
        heartbeat(*arguments)
    else:
        asyncio.run({"plain": plain, "bare": bare}[way](*arguments))
