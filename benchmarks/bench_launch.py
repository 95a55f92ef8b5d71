"""Start one of the scripts with something measured or shortened in it, without changing the script.

    python benchmarks/bench_launch.py [--stalls FILE] [--shorten FACTOR] [--made-up-vocabulary] beam_generate.py ARGUMENTS

--stalls FILE         a heartbeat every 5 ms on the event loop; FILE gets its longest delays
--shorten FACTOR      the waits between attempts take so many times less
--made-up-vocabulary  count with tiktoken and tokens made from the words of the made-up chats: for machines without the
                      real vocabulary
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import importlib
import json
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench_measure import WORDS  # noqa: E402

BEAT = 0.005  # seconds
KEPT = 5  # of the longest delays


async def beat(delays: list[tuple[float, float, float]], started: float) -> None:
    """Note (delay, CPU seconds of this thread meanwhile, seconds since the start) of the longest delays."""
    before, cpu = time.perf_counter(), time.thread_time()
    while True:
        await asyncio.sleep(BEAT)
        now, spent = time.perf_counter(), time.thread_time()
        heapq.heappush(delays, (now - before - BEAT, spent - cpu, before - started))
        if len(delays) > KEPT:
            heapq.heappop(delays)
        before, cpu = now, spent


def with_heartbeat(file: Path) -> None:
    run = asyncio.run

    def run_beside(main: Coroutine[Any, Any, Any], **settings: Any) -> Any:
        delays: list[tuple[float, float, float]] = []

        async def both() -> Any:
            heart = asyncio.create_task(beat(delays, time.perf_counter()))
            try:
                return await main
            finally:
                heart.cancel()

        try:
            return run(both(), **settings)
        finally:
            file.write_text(json.dumps(sorted(delays, reverse=True)), "utf-8")

    asyncio.run = run_beside


def shorten(factor: float) -> None:
    import beam_run

    waits = beam_run.WAITS
    beam_run.WAITS = replace(waits, **{each.name: getattr(waits, each.name) / factor for each in fields(waits)})


class MadeUpCounter:
    """Counts with tiktoken and a vocabulary of the words that made-up chats are made of."""

    name, bytes_bound = "made up", True

    def __init__(self) -> None:
        self.encoding: Any = None

    def check(self) -> None:
        """Nothing can be missing."""

    def load(self) -> None:
        import tiktoken

        from beam_tokenizer import read_manifest

        tokens = [bytes([byte]) for byte in range(256)]
        for text in [f" {word}".encode() for word in WORDS] + [b"%03d" % number for number in range(1000)]:
            tokens += [text[:end] for end in range(2, len(text) + 1)]
        ranks = {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}
        pattern = read_manifest().pattern
        self.encoding = tiktoken.Encoding("made-up", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})

    def count(self, texts: Sequence[str]) -> list[int]:
        if self.encoding is None:
            self.load()
        return [len(self.encoding.encode_ordinary(text)) for text in texts]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stalls", type=Path)
    parser.add_argument("--shorten", type=float)
    parser.add_argument("--made-up-vocabulary", action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    if args.stalls:
        with_heartbeat(args.stalls)
    if args.shorten:
        shorten(args.shorten)
    if args.made_up_vocabulary:
        import beam_tokenizer

        beam_tokenizer.load_counter = lambda spec, trust_remote_code=False: MadeUpCounter()
    return int(importlib.import_module(args.script.removesuffix(".py")).main(args.arguments))


if __name__ == "__main__":
    sys.exit(main())
