"""What the order of requests comes to at two kinds of endpoints: a limited one, a cached one.

    python benchmarks/bench_endpoints.py

Places: the endpoint takes 1, 4 or 16 requests at a time and refuses the rest with a plain 429;
replies take 2 to 4 s. The programs start with 32 in flight; beside each run one with --concurrency
set to the limit. All must be answered, with one refusal for two answers and 1.2 times that time.

Prefix cache: a reply takes 20 to 120 s, and 60 s more where the chat is not in the cache, which
holds three chats, drops the least recently used one, and has an entry once the first piece of its
first reply is out. Exactly one uncached request a chat wherever the open chats fit the cache.

Seconds are shortened. Takes five minutes; exit code 1 when a budget is missed.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench_measure import VERDICT, Budgets, launcher, run_python, small_run
from scripted_endpoint import Answer, Recorded, ScriptedEndpoint, after, chunk, is_judge, say, sse

PLACES = {1: 60, 4: 120, 16: 320}  # at a time: requests
UNKNOWING, SLOW, SLOW_SHORTER = 32, (2, 4), 10
CHATS, QUESTIONS, HELD = 35, 20, 3
OPEN_CHATS = (1, 2, 3, CHATS)
PREFILL, DECODE, CACHE_SHORTER = 60, (20, 120), 100
CHANCE = random.Random(1)


def run(
    program: str, endpoint: ScriptedEndpoint, requests: int, shorter: float, *flags: object
) -> tuple[float, int]:
    """Seconds from the first request to the last answer, before they are shortened; good rows."""
    with TemporaryDirectory() as folder, endpoint:
        output = Path(folder, "output.jsonl")
        more = [*small_run(program, folder, requests, endpoint.base_url), "--output", output]
        run_python(*launcher(program, shorter), *more, *flags)
        rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    seconds = max(r.answered or 0 for r in endpoint.requests) - endpoint.requests[0].received
    good = sum(row.get("score") == 1 or bool(row.get("response")) for row in rows)
    return seconds * shorter, good


def slow(request: Recorded) -> Answer:
    reply = VERDICT if is_judge(request) else "an answer"
    return after(CHANCE.uniform(*SLOW) / SLOW_SHORTER, say(reply))


def measure_places(budgets: Budgets, program: str, places: int, wanted: int) -> None:
    requests, limit = PLACES[places], ["--concurrency", places]
    endpoint = ScriptedEndpoint(slow, places=places)
    ours, good = run(program, endpoint, requests, SLOW_SHORTER, "--concurrency", UNKNOWING)
    known, _ = run(program, ScriptedEndpoint(slow), requests, SLOW_SHORTER, *limit)
    refused = sum(request.refused for request in endpoint.requests)
    what = f"{program}, {places} at a time: "
    budgets.add(f"{what}rows missing", wanted - good, "≤", 0)
    budgets.add(f"{what}refused an answer", refused / requests, "≤", 0.5)
    budgets.add(f"{what}time ({ours:.0f} s) over that of the known limit", ours / known, "≤", 1.2)


class Cache:
    """A script for an endpoint with a prefix cache."""

    def __init__(self) -> None:
        self.entries: list[str] = []  # prefixes, the least recently used one first
        self.uncached = 0
        self.lock = threading.Lock()

    def __call__(self, request: Recorded) -> Answer:
        pause = threading.Event()
        decode = CHANCE.uniform(*DECODE) / CACHE_SHORTER

        def events() -> Iterator[dict[str, object]]:
            if request.prefix not in self.entries:
                self.uncached += 1
                pause.wait(PREFILL / CACHE_SHORTER)
            with self.lock:
                others = [entry for entry in self.entries if entry != request.prefix]
                self.entries = [*others, request.prefix][-HELD:]
            yield chunk("an answer")
            pause.wait(decode)
            yield chunk(finish_reason="stop")

        return sse(events())


def measure_cache(budgets: Budgets, open_chats: int) -> None:
    cache, limit = Cache(), ["--open-chats", open_chats]
    endpoint, requests = ScriptedEndpoint(cache), CHATS * QUESTIONS
    seconds, _ = run("beam_generate.py", endpoint, requests, CACHE_SHORTER, *limit)
    what = f"{open_chats} open chats, {seconds:,.0f} s: uncached requests a chat"
    budgets.add(what, cache.uncached / CHATS, "≤", 1 if open_chats <= HELD else QUESTIONS)


def main() -> int:
    budgets = Budgets(f"{UNKNOWING} in flight; a cache of {HELD} chats")
    for places, requests in PLACES.items():
        measure_places(budgets, "beam_generate.py", places, requests)
        measure_places(budgets, "beam_judge.py", places, requests // 2)
    for open_chats in OPEN_CHATS:
        measure_cache(budgets, open_chats)
    return budgets.show()


if __name__ == "__main__":
    sys.exit(main())
