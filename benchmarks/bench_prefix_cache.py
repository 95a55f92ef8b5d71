"""What the order of requests costs on an endpoint with a prefix cache: total time and uncached requests, simulated.

    python benchmarks/bench_prefix_cache.py [--scale 500]

The order and the driver of beam_generate.py (beam_run.Order and beam_run.Run) ask a simulated endpoint: 35 chats × 20
questions, 16 in flight. A request whose chat is not in the endpoint's cache when it arrives computes the whole prefix
first (prefill), then every request decodes for 20 to 120 s, the same in each row for the same question. The cache holds
so many chats and drops the least recently used one; an entry can be used from the first piece of the first reply on, or
only from its end. Three settings:

  vendor            prefill 60 s, any number at once, the cache holds everything
  own server        prefill 50 s, one at a time in order of arrival (cached requests stand in that line, too), 3 chats
  vendor, late      as the vendor, but an entry can be used only once the whole reply is there: a case for --no-stream

The clock is simulated, too, so that this takes seconds and gives the same figures on every machine; --scale N runs in real
time with every second shortened to 1/N instead, which takes 20 minutes / N for each thousand rows of seconds.

Exit code 1 unless the default order is below file order in total time in each setting and asks one uncached request a
chat wherever the cache holds --open-chats chats.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import selectors
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench_measure import conditions, table, verdict

CHATS, QUESTIONS, IN_FLIGHT = 35, 20, 16
DECODE = (20.0, 120.0)  # seconds, evenly spread
DEFAULT_OPEN_CHATS = 2


@dataclass(frozen=True)
class Setting:
    name: str
    prefill: float  # seconds
    parallel: bool
    capacity: int  # chats
    late: bool = False  # an entry can be used only when the first reply is complete


SETTINGS = (
    Setting("vendor", 60, True, 10**6),
    Setting("own server", 50, False, 3),
    Setting("vendor, late", 60, True, 10**6, late=True),
)


@dataclass(frozen=True)
class Way:
    """An order of requests. `open_chats` 0 is file order, as many at once as there are places."""

    name: str
    open_chats: int
    streamed: bool = True  # followers go at the first piece of the opener's reply, else at its end


WAYS = (
    Way("file order, all at once", 0),
    Way(f"after the whole reply (--no-stream), {DEFAULT_OPEN_CHATS} open", DEFAULT_OPEN_CHATS, streamed=False),
    Way("after the first piece, 1 open", 1),
    Way("after the first piece, 2 open (default)", DEFAULT_OPEN_CHATS),
    Way("after the first piece, 3 open", 3),
    Way("after the first piece, 4 open", 4),
)


@dataclass(frozen=True)
class Result:
    seconds: float
    uncached: int


class SimulatedEndpoint:
    """Answers by sleeping. `sleep` takes seconds of the simulation."""

    def __init__(self, setting: Setting, sleep: Callable[[float], Any]) -> None:
        self.setting, self.sleep = setting, sleep
        self.cache: OrderedDict[int, None] = OrderedDict()
        self.prefilling = asyncio.Lock()
        self.uncached = 0
        chance = random.Random(1)
        self.decode = [[chance.uniform(*DECODE) for _ in range(QUESTIONS)] for _ in range(CHATS)]

    async def answer(self, chat: int, question: int, first_piece: Callable[[], None]) -> None:
        setting = self.setting
        cached = chat in self.cache
        if cached:
            self.cache.move_to_end(chat)
        async with contextlib.nullcontext() if setting.parallel else self.prefilling:
            if not cached:
                self.uncached += 1
                await self.sleep(setting.prefill)
                if not setting.late:
                    self.keep(chat)
        first_piece()
        await self.sleep(self.decode[chat][question])
        if setting.late:
            self.keep(chat)

    def keep(self, chat: int) -> None:
        self.cache[chat] = None
        self.cache.move_to_end(chat)
        while len(self.cache) > self.setting.capacity:
            self.cache.popitem(last=False)


async def simulate(setting: Setting, way: Way, scale: float) -> Result:
    """One run. A second of the simulation takes 1/scale of a second of the event loop's clock."""
    from dataclasses import fields, replace

    from beam_reply import Reply
    from beam_run import WAITS, Limits, Run
    from beam_schedule import Group, Job, Order

    waits = replace(WAITS, **{each.name: getattr(WAITS, each.name) / scale for each in fields(WAITS)})
    endpoint = SimulatedEndpoint(setting, lambda seconds: asyncio.sleep(seconds / scale))
    groups = [Group.of(chat, range(QUESTIONS)) for chat in range(CHATS)]
    order = Order(groups, max(way.open_chats, 1), opener_first=way.open_chats > 0, cache_life=waits.cache_life)

    async def attempt(job: Job) -> Reply:
        run.sent(job)
        await endpoint.answer(job.group.item, job.item, lambda: run.touch(job) if way.streamed else None)
        return Reply("yes")

    def settle(job: Job, outcome: object) -> bool:
        return True

    run = Run(order, Limits(IN_FLIGHT, 8, 10), attempt, settle, lambda job, failed: failed, waits=waits)
    clock = asyncio.get_running_loop().time
    started = clock()
    await run.go()
    return Result((clock() - started) * scale, endpoint.uncached)


# ---------------------------------------------------------------------------------------------------------------
# Clocks.


class Leap(selectors.DefaultSelector):
    """Waits no time: its clock leaps to the next thing that is due."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the simulation waits for something that never comes")
        self.now += max(timeout, 0.0)
        return super().select(0)


class LeapingLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time."""

    def __init__(self) -> None:
        self.leap = Leap()
        super().__init__(self.leap)

    def time(self) -> float:
        return self.leap.now


def leaping(setting: Setting, way: Way) -> Result:
    loop = LeapingLoop()
    try:
        with mock.patch("beam_run.time", SimpleNamespace(monotonic=loop.time)):  # the driver's clock
            return loop.run_until_complete(simulate(setting, way, 1.0))
    finally:
        loop.close()


def in_real_time(scale: float) -> dict[tuple[str, str], Result]:
    """All runs at once, each in a thread of its own: they hardly do anything but sleep."""
    results: dict[tuple[str, str], Result] = {}

    def work(setting: Setting, way: Way) -> None:
        results[setting.name, way.name] = asyncio.run(simulate(setting, way, scale))

    threads = [threading.Thread(target=work, args=(setting, way)) for setting in SETTINGS for way in WAYS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def claims(results: dict[tuple[str, str], Result]) -> list[tuple[str, bool]]:
    """What must hold, and whether it does."""
    made = []
    default = next(way for way in WAYS if way.open_chats == DEFAULT_OPEN_CHATS and way.streamed)
    for setting in SETTINGS:
        by_file = results[setting.name, WAYS[0].name]
        mine = default if not setting.late else WAYS[1]
        ours = results[setting.name, mine.name]
        made.append(
            (
                f"{setting.name}: {mine.name}, below file order's {by_file.seconds:,.0f} s",
                ours.seconds < by_file.seconds,
            )
        )
        fitting = [
            way for way in WAYS[1:] if way.open_chats <= setting.capacity and (not setting.late or not way.streamed)
        ]
        exact = all(results[setting.name, way.name].uncached == CHATS for way in fitting)
        opens = ", ".join(str(number) for number in sorted({way.open_chats for way in fitting}))
        made.append((f"{setting.name}: {CHATS} uncached requests with {opens} open chats", exact))
    return made


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--scale", type=float, help="in real time, seconds shortened so much (default: simulated clock)"
    )
    args = parser.parse_args(argv)
    clock = f"real time, 1:{args.scale:g}" if args.scale else "simulated clock"
    print(
        conditions([], [f"{CHATS} chats × {QUESTIONS} questions, {IN_FLIGHT} in flight, decode 20–120 s, {clock}"])
        + "\n"
    )
    if args.scale:
        results = in_real_time(args.scale)
    else:
        results = {(setting.name, way.name): leaping(setting, way) for setting in SETTINGS for way in WAYS}
    head = ["order; total s / uncached requests", *(setting.name for setting in SETTINGS)]
    rows = []
    for way in WAYS:
        found = [results[setting.name, way.name] for setting in SETTINGS]
        rows.append([way.name, *(f"{each.seconds:,.0f} / {each.uncached:>3}" for each in found)])
    print(table(head, rows) + "\n")
    held = claims(results)
    print("\n".join(f"{text}: {verdict(fine)}" for text, fine in held))
    return 0 if all(fine for _, fine in held) else 1


if __name__ == "__main__":
    sys.exit(main())
