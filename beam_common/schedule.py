"""Which request goes next: a chat's opener first, then its followers, oldest chat first.

Pure: without a clock and without a network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from beam_common.places import WAITS
from beam_common.rows import QuestionKey


@dataclass(eq=False)
class Job:
    """One request to be made, with its further attempts: a question, or one call of the judge."""

    group: Group
    question: QuestionKey
    item: Any
    attempts: int = 0  # used up
    alone: bool = False  # no other request was in flight while it was
    task: asyncio.Task[None] | None = None  # which asks and saves
    turn: asyncio.Future[None] | None = None  # that it waits for, to ask again
    may_drop: bool = False  # it holds no reply that is to be saved


@dataclass(eq=False)
class Group:
    """Jobs that share a prefix: the questions of a chat, or the calls about one answer."""

    item: Any
    fresh: deque[Job] = field(default_factory=deque)  # never sent
    due: deque[Job] = field(default_factory=deque)  # to be sent again now
    flying: set[Job] = field(default_factory=set)
    leaving: set[Job] = field(default_factory=set)  # in flight, body not yet gone out whole
    last_piece: float | None = None  # when a reply last showed that the prefix is cached

    def add(self, question: QuestionKey, item: Any) -> None:
        self.fresh.append(Job(self, question, item))

    @property
    def over(self) -> bool:
        """Nothing is in flight or in line."""
        return not (self.fresh or self.due or self.flying)


class Order:
    """Which request goes next.

    A group is opened by one request; its others follow once the prefix is cached (`opener_first`),
    oldest group first. A new group is opened only while fewer than `open_limit` are in progress.
    While an opener waits for its next attempt the group's next job opens: nothing waits for a
    request that is not running. After a long time without a reply a prefix is taken as lost.
    """

    def __init__(self, groups: Sequence[Group], open_limit: int, opener_first: bool) -> None:
        self.chats = len({job.question[0] for group in groups for job in group.fresh})
        self._groups = iter(groups)
        self._open_limit, self._opener_first = open_limit, opener_first
        self._open: list[Group] = []
        self.over = False  # no job is left that was never sent

    def next(self, now: float) -> Job | None:
        """The job to send now; None when there is none. `now`: seconds of a monotonic clock."""
        self._open = [group for group in self._open if not group.over]
        for group in self._open:
            if self._opener_first and group.flying and not self._cached(group, now):
                continue
            if group.due or group.fresh:
                return self._send(group, now)
        in_progress = [group for group in self._open if group.fresh or group.leaving]
        if len(in_progress) >= self._open_limit:
            return None
        opened = next(self._groups, None)
        if not opened:
            self.over = not any(group.fresh for group in self._open)
            return None
        self._open.append(opened)
        return self._send(opened, now)

    def _send(self, group: Group, now: float) -> Job:
        job = (group.due or group.fresh).popleft()
        if not self._cached(group, now):
            group.last_piece = None  # this job opens the group, at first or after a long pause
        group.flying.add(job)
        group.leaving.add(job)
        return job

    def sent(self, job: Job) -> None:
        """The body of the job's request has gone out."""
        job.group.leaving.discard(job)

    def begun(self, job: Job, now: float) -> None:
        """A first piece of the reply has come: the group's prefix is cached."""
        job.group.last_piece = now

    def landed(self, job: Job) -> None:
        """The job's request is over."""
        job.group.flying.discard(job)
        job.group.leaving.discard(job)

    def again(self, job: Job) -> None:
        """Put a job that was sent before back in line."""
        job.group.due.append(job)
        if job.group not in self._open:
            self._open.insert(0, job.group)  # all of it was sent: none is older

    def reopen(self) -> None:
        """Prefixes are taken as lost: each group is opened by one request again."""
        for group in self._open:
            group.last_piece = None

    def _cached(self, group: Group, now: float) -> bool:
        if group.last_piece is None:
            return False
        return bool(group.flying) or now - group.last_piece < WAITS.cache_life
