"""Which request goes next: a chat's opener first, then its followers, oldest chat first; without clock or network."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from beam_failure import Failure


@dataclass(frozen=True)
class Waits:
    """Seconds. `first` doubles from attempt to attempt up to `longest`; the others bound what an endpoint may ask for."""

    first: float = 1.0
    longest: float = 60.0
    named_once: float = 300.0  # longest wait honoured at a time
    named_total: float = 7200.0  # of rate limits that do not use up an attempt, for one question
    hung: float = 60.0  # a request in flight for longer does not hold up finding out whether an outage is over
    young_outage: float = 120.0  # for so long new requests try a failing endpoint in growing numbers
    cache_life: float = 240.0  # after so long without a reply a chat's prefix may have left the endpoint's cache


def backoff(attempt: int, waits: Waits, chance: Callable[[], float] = random.random) -> float:
    """Seconds before the next attempt when `attempt` (from 1) has failed: 1, 2, 4 … 60, of which up to a quarter is jitter."""
    return float(min(waits.longest, waits.first * 2 ** min(attempt - 1, 30)) * (1 - 0.25 * chance()))


@dataclass(eq=False)
class Job:
    """One request to be made: a question, or one call of the judge."""

    group: Group
    item: Any
    attempts: int = 0  # used up
    sent_at: float = 0.0
    waited: float = 0.0  # seconds of waits that did not use up an attempt
    last: Failure | None = None
    second_chance: bool = False
    successes_before: int = 0  # how many requests had succeeded when it was last sent


@dataclass(eq=False)
class Group:
    """Jobs that share a prefix: the questions of a chat, or the calls about one answer."""

    item: Any
    fresh: deque[Job] = field(default_factory=deque)  # never sent
    due: deque[Job] = field(default_factory=deque)  # to be sent again now
    flying: set[Job] = field(default_factory=set)
    leaving: set[Job] = field(default_factory=set)  # in flight, but their bodies have not gone out whole
    waiting: int = 0  # for their next attempt
    changed_at: float = 0.0  # when the prefix became another one
    last_piece: float | None = None  # when a reply last showed that the prefix is cached

    @classmethod
    def of(cls, item: Any, jobs: Iterable[Any]) -> Group:
        group = cls(item)
        group.fresh.extend(Job(group, job) for job in jobs)
        return group

    @property
    def in_progress(self) -> bool:
        """Opened, with a question not yet sent: what `--open-chats` counts."""
        return bool(self.fresh or self.leaving)

    @property
    def opening(self) -> bool:
        """A request with the prefix as it is now is in flight."""
        return any(job.sent_at >= self.changed_at for job in self.flying)

    @property
    def over(self) -> bool:
        return not (self.fresh or self.due or self.flying or self.waiting)


class Order:
    """Which request goes next.

    A group is opened by one request; its others follow once the prefix is cached (`opener_first`), oldest group first.
    A new group is opened only while fewer than `open_limit` are in progress. While an opener waits for its next attempt
    the group's next job opens: nothing waits for a request that is not running.
    """

    def __init__(self, groups: Iterable[Group], open_limit: int, opener_first: bool, cache_life: float = 240.0) -> None:
        self._groups: Iterator[Group] = iter(groups)
        self._limit = open_limit
        self._opener_first = opener_first
        self._cache_life = cache_life
        self._open: list[Group] = []
        self._exhausted = False
        self.started = 0  # jobs that were sent, not attempts

    def next(self, now: float, may_start: bool = True) -> Job | None:
        """The job to send now; None when there is none. `may_start`: jobs that were never sent may be among them."""
        self._open = [group for group in self._open if not group.over]
        for group in self._open:
            if self._opener_first and group.opening and not self._cached(group, now):
                continue
            if group.due:
                return self._sent(group, group.due, now)
            if group.fresh and may_start:
                return self._sent(group, group.fresh, now)
        if not may_start or sum(group.in_progress for group in self._open) >= self._limit:
            return None
        while (opened := next(self._groups, None)) is not None:
            if opened.fresh:
                self._open.append(opened)
                return self._sent(opened, opened.fresh, now)
        self._exhausted = True
        return None

    @property
    def over(self) -> bool:
        """No job is left to send; some may be in flight or waiting."""
        return self._exhausted and not any(group.fresh or group.due for group in self._open)

    @property
    def due(self) -> bool:
        """Some job that was sent before is to be sent again now."""
        return any(group.due for group in self._open)

    def landed(self, job: Job) -> None:
        """The job's request is over."""
        job.group.flying.discard(job)
        job.group.leaving.discard(job)

    def again(self, job: Job) -> None:
        """Put a job that was sent before back in line."""
        job.group.due.append(job)
        if job.group not in self._open:
            self._open.append(job.group)

    def reopen(self, jobs: Sequence[Job]) -> None:
        """Jobs whose attempts were used up are new again, their groups opened one after the other as at first."""
        for job in jobs:
            job.group.fresh.append(job)
            job.group.last_piece = None
        self._open = [group for group in self._open if not group.fresh]
        self._groups = iter(dict.fromkeys(job.group for job in jobs))
        self._exhausted = False

    def _cached(self, group: Group, now: float) -> bool:
        if group.last_piece is None:
            return False
        return bool(group.flying) or now - group.last_piece < self._cache_life

    def _sent(self, group: Group, queue: deque[Job], now: float) -> Job:
        job = queue.popleft()
        self.started += queue is group.fresh
        if not self._cached(group, now):
            group.last_piece = None  # this job opens the group, for the first time or after a long pause
        group.flying.add(job)
        job.sent_at = now
        if self._opener_first:
            group.leaving.add(job)
        return job
