"""How many requests may be in flight, and how long to wait: learned from an endpoint's replies.

Pure: without a clock and without a network.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

FIRST_PATIENCE = 8  # answers before more are tried than were refused


@dataclass(frozen=True)
class Waits:
    """Seconds."""

    first: float = 1.0  # before the second attempt; doubles from attempt to attempt …
    longest: float = 60.0  # … up to this
    longest_named: float = 300.0  # that an endpoint may ask for
    never_answered: float = 120.0  # for an endpoint that has not answered anything in this run
    cache_life: float = 240.0  # of a prefix in the endpoint's cache, without a reply
    silence: float = 300.0  # without a byte from anyone before the screen says so


WAITS = Waits()


def backoff(attempt: int, waits: Waits, chance: Callable[[], float] = random.random) -> float:
    """Seconds after the failed `attempt` (from 1): 1, 2, 4 … 60, up to a quarter of it jitter."""
    longest = min(waits.longest, waits.first * 2 ** min(attempt - 1, 30))
    return float(longest * (1 - 0.25 * chance()))


class Places:
    """How many requests may be in flight.

    Starts at `most`. Requests that are refused as too many lower it to the number that were in
    flight with them and were not refused. Each answer raises it by one; where more was refused
    before, it takes a number of answers that doubles with each refusal there and halves with each
    success. `refused_at` is the lowest number at which one was refused since.
    """

    def __init__(self, most: int) -> None:
        self.most = self.limit = most
        self._refused_at = most + 1
        self._patience = FIRST_PATIENCE
        self._answers = 0  # since the limit last changed

    def busy(self, others: int) -> None:
        """A request was refused while `others` were in flight."""
        if self._answers and others + 1 >= self._refused_at:
            self._patience *= 2
        self._refused_at = others + 1
        self._answers = 0
        self.limit = max(1, min(self.limit, others))

    def answered(self) -> None:
        self._answers += 1
        if self.limit == self.most:
            return
        tried_before = self.limit + 1 >= self._refused_at
        if tried_before and self._answers < self._patience:
            return
        self._answers = 0
        self.limit += 1
        if tried_before:
            self._refused_at = self.limit + 1
            self._patience = max(1, self._patience // 2)
