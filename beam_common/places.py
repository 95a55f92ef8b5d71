"""How many requests may be in flight, and how long to wait: without a clock, without a network."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

# Answers until as many requests are tried as were refused before; doubles with each vain trial.
FIRST_PATIENCE, LONGEST_PATIENCE = 8, 64


@dataclass(frozen=True)
class Waits:
    """Seconds."""

    first: float = 1.0  # before the second attempt; doubles from attempt to attempt …
    longest: float = 60.0  # … up to this
    longest_named: float = 300.0  # that an endpoint may ask for
    never_answered: float = 120.0  # for an endpoint that has not answered anything in this run
    cache_life: float = 240.0  # of a prefix in the endpoint's cache, without a reply


WAITS = Waits()


def backoff(attempt: int, waits: Waits, chance: Callable[[], float] = random.random) -> float:
    """Seconds after the failed `attempt` (from 1): 1, 2, 4 … 60, up to a quarter of it jitter."""
    longest = min(waits.longest, waits.first * 2 ** min(attempt - 1, 30))
    return float(longest * (1 - 0.25 * chance()))


class Places:
    """How many requests may be in flight.

    Starts at `most`. A request that is refused as one too many lowers it to the number that were
    in flight with it. Each answer raises it by one, up to what was refused; that is tried again
    after a number of answers, and forgotten when a round of answers shows that it works now.
    """

    def __init__(self, most: int) -> None:
        self.most = self.limit = most
        self._refused_at = most + 1
        self._patience = FIRST_PATIENCE
        self._answers = 0  # since the limit last changed

    def busy(self, others: int) -> None:
        """A request was refused while `others` were in flight."""
        if self.limit >= self._refused_at:
            self._patience = min(2 * self._patience, LONGEST_PATIENCE)
        self.limit = max(1, min(self.limit, others))
        self._refused_at = self.limit + 1
        self._answers = 0

    def answered(self) -> None:
        self._answers += 1
        tried = self.limit >= self._refused_at
        needed = self._patience if self.limit + 1 == self._refused_at else 1
        if tried:
            needed = self.limit
        if self.limit == self.most or self._answers < needed:
            return
        if tried:
            self._refused_at, self._patience = self.most + 1, FIRST_PATIENCE
        self.limit += 1
        self._answers = 0
