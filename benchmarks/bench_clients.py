"""The two ways of asking that the scripts are measured against; each prints its CPU and wall seconds as JSON.

plain  what one writes at first: the SDK's typed call with the chat as a list, counted with tiktoken for each question
       and truncated, the reply read with the SDK's typed stream
bare   the least that can be done: ready bytes posted with the SDK's HTTP client, the bytes of the reply read
judge  the same as bare with the bodies of a judge run

Start-up, reading the data and making the bodies are not in the figures.

    python benchmarks/bench_clients.py bare URL --chats FILE --requests 100 --concurrency 16
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

BUDGET = 1048576 - 32768 - 5000  # the scripts' default, in tokens
SETTINGS = {"model": "m", "temperature": 1.0, "top_p": 0.95, "max_tokens": 32768}
QUESTION = "NOTE: Only provide the answer without any explanations. \nQuestion: What was said about matter {}?"


def first_chat(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        chat: list[dict[str, str]] = json.loads(file.readline())["messages"]
        return chat


async def at_once(work: Callable[[int], Awaitable[None]], requests: int, concurrency: int) -> None:
    """Do `work` for 0 … requests-1, so many at a time, by workers: less costs nothing."""
    numbers = iter(range(requests))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(concurrency)))


async def measured(work: Callable[[int], Awaitable[None]], requests: int, concurrency: int) -> dict[str, float]:
    await at_once(work, min(concurrency, requests), concurrency)  # connections are open, modules loaded
    cpu, wall = time.process_time(), time.perf_counter()
    await at_once(work, requests, concurrency)
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "requests": requests}


async def plain(url: str, chats: Path, requests: int, concurrency: int, made_up: bool) -> dict[str, float]:
    import openai
    from bench_launch import MadeUpCounter

    import beam_tokenizer

    counter: Any = MadeUpCounter() if made_up else beam_tokenizer.load_counter(beam_tokenizer.KIMI)
    chat = first_chat(chats)
    counter.count(["load the vocabulary"])
    client = openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0, timeout=600)

    async def ask(number: int) -> None:
        counts = counter.count([message["content"] for message in chat])
        kept, total = list(chat), sum(counts)
        while total > BUDGET:
            total -= counts[len(chat) - len(kept)]
            kept.pop(0)
        messages: Any = [*kept, {"role": "user", "content": QUESTION.format(number)}]
        stream = await client.chat.completions.create(
            messages=messages, stream=True, stream_options={"include_usage": True}, **SETTINGS  # type: ignore[call-overload]
        )  # fmt: skip
        parts = [event.choices[0].delta.content or "" async for event in stream if event.choices]
        assert "".join(parts)

    await ask(0)
    return await measured_cold(ask, requests, concurrency)


async def measured_cold(work: Callable[[int], Awaitable[None]], requests: int, concurrency: int) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    await at_once(work, requests, concurrency)
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "requests": requests}


async def bare(url: str, bodies: Sequence[bytes], requests: int, concurrency: int) -> dict[str, float]:
    import openai

    headers = {"Authorization": "Bearer none", "Content-Type": "application/json"}
    async with openai.DefaultAsyncHttpxClient(headers=headers, timeout=600) as client:

        async def ask(number: int) -> None:
            reply = await client.post(f"{url}/chat/completions", content=bodies[number % len(bodies)])
            reply.raise_for_status()

        return await measured(ask, requests, concurrency)


def body_of_chat(chats: Path) -> bytes:
    settings = {**SETTINGS, "stream": True, "stream_options": {"include_usage": True}}
    messages = [*first_chat(chats), {"role": "user", "content": QUESTION.format(0)}]
    return json.dumps({**settings, "messages": messages}, ensure_ascii=False, separators=(",", ":")).encode()


def bodies_of_judge(answers: Path) -> list[bytes]:
    """The very bodies that beam_judge.py sends for an answers file."""
    import beam_judge
    from beam_details import Prompts, calls_for
    from beam_endpoint import encode_body, encode_json
    from beam_prompts import CRITERION, ORDERING

    arguments = ["--answers", str(answers), "--judge-model", "m", "--judge-base-url", "http://localhost/v1"]
    args = beam_judge.parser().parse_args(arguments)
    settings = encode_json(beam_judge.body_settings(args))
    prompts = Prompts(CRITERION, ORDERING, tau=False)
    with open(answers, encoding="utf-8") as file:
        calls = [call for line in file for call in calls_for(json.loads(line), prompts)]
    return [
        b"".join(encode_body(settings, [], encode_json({"role": "user", "content": call.prompt}))) for call in calls
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=("plain", "bare", "judge"))
    parser.add_argument("url")
    parser.add_argument("--chats", type=Path)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--made-up-vocabulary", action="store_true")
    args = parser.parse_args(argv)
    if args.way == "plain":
        work = plain(args.url, args.chats, args.requests, args.concurrency, args.made_up_vocabulary)
    elif args.way == "bare":
        work = bare(args.url, [body_of_chat(args.chats)], args.requests, args.concurrency)
    else:
        bodies = bodies_of_judge(args.answers)
        work = bare(args.url, bodies, len(bodies), args.concurrency)
    print(json.dumps(asyncio.run(work)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
