"""What the order of requests costs on an endpoint with a prefix cache: time, uncached requests.

    python benchmarks/bench_prefix_cache.py

beam_generate.py asks 35 chats × 20 questions, 16 in flight, with other numbers of --open-chats. A
request whose chat is not in the endpoint's cache when it arrives takes 60 s longer (prefill); every
reply takes 20 to 120 s (decode). The cache holds three chats, drops the least recently used one,
and has an entry once the first piece of its first reply is out. A second takes 1/100 of one. Exit
code 1 unless there is exactly one uncached request a chat wherever the open chats fit the cache.
Takes three minutes.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator

from bench_measure import Budgets, launcher, run_python, small_run, workplace
from scripted_endpoint import Answer, Recorded, ScriptedEndpoint, chunk, sse

CHATS, QUESTIONS, IN_FLIGHT = 35, 20, 16
HELD = 3  # chats, by the cache
PREFILL, DECODE = 60.0, (20.0, 120.0)  # seconds
SHORTER = 100  # times, each second
WAYS = (1, 2, 3, CHATS)  # open chats; the last stands for file order


class Cache:
    """A script for an endpoint."""

    def __init__(self) -> None:
        self.entries: list[str] = []  # prefixes, the least recently used one first
        self.uncached = 0
        self.lock = threading.Lock()
        self.chance = random.Random(1)

    def keep(self, prefix: str) -> None:
        with self.lock:
            others = [entry for entry in self.entries if entry != prefix]
            self.entries = [*others, prefix][-HELD:]

    def __call__(self, request: Recorded) -> Answer:
        pause = threading.Event()
        decode = self.chance.uniform(*DECODE) / SHORTER

        def events() -> Iterator[dict[str, object]]:
            if request.prefix not in self.entries:
                self.uncached += 1
                pause.wait(PREFILL / SHORTER)
            self.keep(request.prefix)
            yield chunk("an answer")
            pause.wait(decode)
            yield chunk(finish_reason="stop")

        return sse(events())


def main() -> int:
    budgets = Budgets(f"{CHATS} chats × {QUESTIONS} questions, a cache of {HELD} chats")
    for open_chats in WAYS:
        cache = Cache()
        with workplace() as folder, ScriptedEndpoint(cache) as endpoint:
            flags = small_run("beam_generate.py", folder, CHATS * QUESTIONS, endpoint.base_url)
            flags += ["--open-chats", open_chats, "--output", folder / "answers.jsonl"]
            used = run_python(*launcher("beam_generate.py", SHORTER), *flags)
        what = f"{open_chats} open chats, {used.wall * SHORTER:,.0f} s: uncached requests a chat"
        limit = 1 if open_chats <= HELD else QUESTIONS
        budgets.at_most(what, cache.uncached / CHATS, limit, digits=2)
    return budgets.show()


if __name__ == "__main__":
    sys.exit(main())
