"""Start one of the scripts with something measured or shortened in it, without changing the script.

    python benchmarks/bench_launch.py [--stalls FILE] [--shorten FACTOR] [--made-up-vocabulary] beam_generate.py ARGUMENTS

--stalls FILE         a heartbeat every 5 ms on the event loop; FILE gets the longest stalls
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
import os
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench_measure import WORDS

BEAT = 0.005  # seconds
KEPT = 5  # of the longest stalls


@dataclass(frozen=True, order=True)
class Stall:
    """A late heartbeat, in seconds: how late without the time that the loop's thread waited for a processor, which is
    another program's doing; how late by the clock; how long the thread worked meanwhile; when."""

    late: float
    by_the_clock: float
    worked: float
    at: float


class WaitForProcessor:
    """Seconds that this thread has been ready to run without a processor; 0 where the system (not Linux) does not say."""

    def __init__(self) -> None:
        try:
            self.file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self.file = -1

    def seconds(self) -> float:
        return int(os.pread(self.file, 100, 0).split()[1]) / 1e9 if self.file >= 0 else 0.0


async def beat(stalls: list[Stall]) -> None:
    waited = WaitForProcessor()
    started = before = time.perf_counter()
    worked, ready = time.thread_time(), waited.seconds()
    while True:
        await asyncio.sleep(BEAT)
        now, spent, idle = time.perf_counter(), time.thread_time(), waited.seconds()
        late = now - before - BEAT
        heapq.heappush(stalls, Stall(late - (idle - ready), late, spent - worked, before - started))
        if len(stalls) > KEPT:
            heapq.heappop(stalls)
        before, worked, ready = now, spent, idle


def with_heartbeat(file: Path) -> None:
    run = asyncio.run

    def run_beside(main: Coroutine[Any, Any, Any], **settings: Any) -> Any:
        stalls: list[Stall] = []

        async def both() -> Any:
            heart = asyncio.create_task(beat(stalls))
            try:
                return await main
            finally:
                heart.cancel()

        try:
            return run(both(), **settings)
        finally:
            file.write_text(json.dumps([asdict(stall) for stall in sorted(stalls, reverse=True)]), "utf-8")

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
