"""Many requests at once: which goes next, when one is tried again, what an outage or a stop does to the rest.

`Order` decides what goes next, without a clock or a network. `Run` acts: it keeps `concurrency` requests in flight, waits
between attempts without occupying a place, honours the endpoint's waits for all requests, gives questions that an outage
used up a second chance at the end, and stops in a state that can be resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from beam_common import StoppedEarly, UsageError, plural, say
from beam_failure import Failure
from beam_reply import Reply
from beam_schedule import Group, Job, Order, Waits, backoff

WAITS = Waits()
FAILURES_OF_AN_OUTAGE = 4  # attempts in a row
PROGRESS_SECONDS = 30.0  # between two plain progress lines
BAR_FORMAT = "{percentage:3.0f}%|{bar:8}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"  # fits 80 columns


# ---------------------------------------------------------------------------------------------------------------
# Saving rows from the event loop.

Item = TypeVar("Item")


class GroupCommit(Generic[Item]):
    """Rows are saved in a thread, those that came meanwhile together; `save` returns when its row is durable."""

    def __init__(self, commit: Callable[[list[Item]], None]) -> None:
        self._commit = commit
        self._pending: list[tuple[Item, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def save(self, item: Item) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((item, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        await future

    async def _work(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            work = asyncio.to_thread(self._commit, [item for item, _ in batch])
            (trouble,) = await asyncio.gather(work, return_exceptions=True)
            for _, future in batch:  # whatever the trouble is: who waits for a row must learn of it
                if isinstance(trouble, BaseException):
                    future.set_exception(trouble)
                else:
                    future.set_result(None)


# ---------------------------------------------------------------------------------------------------------------
# Progress.


class Progress:
    """A tqdm bar on a terminal, else one plain line at most every 30 s."""

    def __init__(self, total: int, done: int, unit: str, status: Callable[[], str]) -> None:
        self._total, self._done, self._unit, self._status = total, done, unit, status
        self._started, self._first_done = time.monotonic(), done
        self._shown = self._started
        self._bar: Any = None
        if sys.stderr.isatty():
            import tqdm

            self._bar = tqdm.tqdm(
                total=total, initial=done, bar_format=BAR_FORMAT, postfix=status(), file=sys.stderr, dynamic_ncols=True
            )

    def step(self, n: int = 1) -> None:
        self._done += n
        if self._bar is not None:
            self._bar.set_postfix_str(self._status(), refresh=False)
            self._bar.update(n)

    def tick(self) -> None:
        """Show a plain line if one is due; bring a bar up to date."""
        now = time.monotonic()
        if self._bar is not None:
            self._bar.refresh()
        elif now - self._shown >= PROGRESS_SECONDS:
            self._shown = now
            new = self._done - self._first_done
            left = (now - self._started) / new * (self._total - self._done) if new else None
            remaining = f", {_duration(left)} left" if left is not None else ""
            say(f"{self._done:,} of {self._total:,} {self._unit}s, {self._status()}{remaining}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def short_count(n: int) -> str:
    """`950`, `12.3k`, `34.9M`, for lines without much room."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if n >= size:
            return f"{n / size:.1f}{unit}"
    return str(n)


def _duration(seconds: float) -> str:
    minutes = int(seconds / 60 + 0.5)
    return f"about {minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"about {max(minutes, 1)} min"


# ---------------------------------------------------------------------------------------------------------------
# The run.


@dataclass(frozen=True)
class Limits:
    concurrency: int
    max_retries: int  # attempts in all
    stop_after_failures: int  # 0: never
    unsaved: int = 0  # rows that may be on their way to the disk while their places go on: what a kill may lose


@dataclass(frozen=True)
class Ended:
    """How a run ended: code 0 when nothing is left to ask, 1 stopped early, 130 or 143 signal."""

    code: int
    reason: str = ""

    @property
    def way_on(self) -> str:
        """How to go on, to be said behind what is left."""
        if "--retry-errors" in self.reason:
            return ""
        first = "once that is mended, " if self.code in (1, 2) else ""
        return f"; {first}start the same command again to go on"


class Run:
    """Drives jobs to their end.

    `attempt(job)` makes one request and gives its outcome, or None: the job goes back in line. `settle(job, outcome)`
    deals with a job's final outcome (a reply, or the failure to record): it gives True when the job is over, False to ask
    it again at once, or something to await that saves a row, after which the job is over. `finish(job)` is called when a
    job is over or put off to the end of the run; it gives True or False when that finishes a question (did it fail?),
    None when it does not.
    """

    def __init__(
        self,
        order: Order,
        limits: Limits,
        attempt: Callable[[Job], Awaitable[Reply | Failure | None]],
        settle: Callable[[Job, Reply | Failure], bool | Awaitable[None]],
        finish: Callable[[Job, bool], bool | None],
        tick: Callable[[], None] = lambda: None,
        waits: Waits | None = None,
    ) -> None:
        self._order, self._limits, self._waits = order, limits, waits or WAITS
        self._attempt, self._settle, self._finish, self._tick = attempt, settle, finish, tick
        self._asking: dict[asyncio.Task[None], Job] = {}  # may be dropped
        self._settling: set[asyncio.Task[None]] = set()  # have an answer that is being saved
        self._waiting: list[tuple[float, int, Job]] = []
        self._serial = itertools.count()
        self._put_off: list[Job] = []  # their attempts were used up by trouble that may pass
        self._wake = asyncio.Event()
        self._pause_until = 0.0
        self._stop: Ended | None = None
        self._drop = False
        self._broken: BaseException | None = None
        self._successes = 0
        self._finished = 0
        self._failed_in_a_row = 0  # attempts
        self._failing_since = 0.0
        self._next_note_at = 0.0  # about a failed attempt
        self._stopped_by_failures = False
        self._wave = 0  # of new jobs sent into an outage
        self._wave_left = 0
        self._next_wave_at = 0.0

    async def go(self) -> Ended:
        """Run until nothing is left to ask or something stops it. Raises what was no endpoint's trouble."""
        with self._signals():
            while True:
                self._start_due()
                if not (self._asking or self._settling):
                    if self._stop:
                        break
                    if not self._waiting and self._order.over:
                        if await self._second_chances():
                            continue
                        break
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._wake.wait()
                self._tick()
                if self._drop:
                    await self._drop_requests()
                if self._broken:
                    await self._drop_requests()
                    raise self._broken
            if self._stopped_by_failures:
                await self._settle_put_off()
        return self._stop or Ended(0)

    @property
    def stopping(self) -> bool:
        """No further request may be sent."""
        return self._stop is not None

    def touch(self, job: Job) -> None:
        """A first piece of a reply has come: the group's prefix is cached, if it is still the one of this request."""
        if job.sent_at >= job.group.changed_at:
            job.group.last_piece = time.monotonic()
            self._wake.set()

    def changed(self, group: Group) -> None:
        """The prefix of a group has changed: one request opens it anew, whatever is in flight with the old one."""
        group.last_piece, group.changed_at = None, time.monotonic()

    def sent(self, job: Job) -> None:
        """The body of a job's request has gone out."""
        job.group.leaving.discard(job)
        if not job.group.in_progress:
            self._wake.set()

    def stop(self, ended: Ended, *, drop: bool = False) -> None:
        """Send no further request; with `drop` those in flight are given up."""
        self._stop = self._stop or ended
        self._drop |= drop
        self._wake.set()

    # -- sending ------------------------------------------------------------------------------------------------

    def _start_due(self) -> None:
        while len(self._asking) < self._limits.concurrency and (job := self._next()):
            task = asyncio.create_task(self._work(job))
            self._asking[task] = job
            task.add_done_callback(self._landed)

    def _next(self) -> Job | None:
        """The job to send now, if any may be sent."""
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            due = heapq.heappop(self._waiting)[2]
            due.group.waiting -= 1
            self._order.again(due)
        if self._stop or now < self._pause_until:
            return None
        try:
            job = self._order.next(now, self._may_start(now))
        except UsageError as error:  # an answers file that is gone
            self.stop(Ended(2, str(error)))
            return None
        if job is not None:
            self._wave_left -= 1
            job.successes_before = self._successes
        return job

    def _may_start(self, now: float) -> bool:
        """Whether a job that was never sent may be sent: into an outage only a few at a time.

        After a few failed attempts in a row the endpoint counts as down. Then those that were sent keep trying; when their
        attempts are used up, a wave of new ones finds out whether it is back: one, then two, four … up to `concurrency`
        while the outage is young, afterwards one at a time. Otherwise it would use up the attempts of all that is left.
        Before anything has succeeded a failure is more likely a wrong setting: no more jobs try than would stop the run.
        """
        young = now - self._failing_since < self._waits.young_outage
        wave = min(2 ** max(self._wave - 1, 0), self._limits.concurrency) if young else 1
        down = self._failed_in_a_row >= FAILURES_OF_AN_OUTAGE
        if not self._successes and self._limits.stop_after_failures:
            wave = self._limits.stop_after_failures
            down = self._failed_in_a_row > 0 and self._order.started >= wave
        if not down:
            return True
        if self._idle() and now >= self._next_wave_at:
            self._wave_left = wave
        return self._wave_left > 0

    def _idle(self) -> bool:
        """No request is in flight or will be made again."""
        long_ago = time.monotonic() - self._waits.hung  # what hangs since an outage began holds nothing up
        running = any(job.sent_at > long_ago for job in self._asking.values())
        return not (running or self._waiting or self._order.due)

    def _pause(self) -> float | None:
        """Seconds until something is due without a request landing."""
        now = time.monotonic()
        if self._stop:
            return PROGRESS_SECONDS
        due = [PROGRESS_SECONDS, self._waits.hung]  # the latter: see _idle
        if self._waiting:
            due.append(max(self._waiting[0][0] - now, 0.0))
        if now < self._pause_until:
            due.append(self._pause_until - now)
        if now < self._next_wave_at:
            due.append(self._next_wave_at - now)
        return min(due)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._asking.pop(task, None)
        self._settling.discard(task)
        if not task.cancelled() and (error := task.exception()):
            if isinstance(error, StoppedEarly):
                self.stop(Ended(1, str(error)), drop=True)
            elif isinstance(error, UsageError):  # a damaged chat: what is in flight is paid for and may finish
                self.stop(Ended(2, str(error)))
            else:
                self._broken = self._broken or error
        self._wake.set()

    async def _work(self, job: Job) -> None:
        """Make requests one after the other in one place, as long as there are any to make and they succeed."""
        task = asyncio.current_task()
        assert task is not None
        following: Job | None = job
        while following is not None:
            self._asking[task] = job = following
            try:
                outcome = await self._attempt(job)
            finally:
                self._order.landed(job)
            del self._asking[task]
            if outcome is None:
                self._answered(job)
                self._order.again(job)
                self._wake.set()
                following = self._next()
                continue
            saving = self._take(job, outcome)
            if saving is not None and len(self._settling) > self._limits.unsaved:
                self._asking[task] = job
                await asyncio.wait([saving])
                del self._asking[task]
            # After trouble the other outcomes that have come meanwhile are looked at first.
            following = self._next() if isinstance(outcome, Reply) else None
        self._wake.set()

    # -- what an outcome does -----------------------------------------------------------------------------------

    def _take(self, job: Job, outcome: Reply | Failure) -> asyncio.Task[None] | None:
        """Decide what follows from an outcome; the task that saves it, where it is final."""
        if isinstance(outcome, Reply):
            self._successes += 1
            self._answered(job)
            self.touch(job)
        elif outcome.kind == "stop":
            self.stop(Ended(1, f"{outcome.text}; {outcome.way_out}"))
            return None
        elif outcome.kind == "retry":
            self._try_again(job, outcome)
            return None
        else:
            self._answered(job)  # a refusal shows that the endpoint is there
            if self._stopped_by_failures:
                return None  # enough of them are recorded
            job.last = outcome
            self._count(job, failed=True)
        settled = self._settle(job, outcome)
        if isinstance(settled, bool):
            if not settled and not self._stop:
                self._order.again(job)
            elif settled and isinstance(outcome, Reply):
                self._count(job, failed=False)
            return None
        saving = asyncio.create_task(self._save(job, outcome, settled))  # a stop lets it finish
        self._settling.add(saving)
        saving.add_done_callback(self._landed)
        return saving

    async def _save(self, job: Job, outcome: Reply | Failure, saving: Awaitable[None]) -> None:
        await saving
        if isinstance(outcome, Reply):
            self._count(job, failed=False)

    def _answered(self, job: Job) -> None:
        """The endpoint is up, unless this request was sent before it began to fail."""
        if job.sent_at >= self._failing_since:
            self._failed_in_a_row = self._wave = self._wave_left = 0
            self._next_wave_at = 0.0

    def _try_again(self, job: Job, failure: Failure) -> None:
        now, wait, job.last = time.monotonic(), 0.0, failure
        if self._stop:
            return
        if not self._failed_in_a_row:
            self._failing_since = now
            if now >= self._next_note_at:
                self._next_note_at = now + PROGRESS_SECONDS
                say(f"an attempt failed and is made again, up to {self._limits.max_retries} in all: {failure.text}")
        self._failed_in_a_row += 1
        if failure.wait is not None:
            wait = min(failure.wait, self._waits.named_once)
            self._pause_until = max(self._pause_until, now + wait)
        if failure.free and job.waited + wait <= self._waits.named_total:
            wait = max(wait, self._waits.first)
            job.waited += wait
        else:
            job.attempts += 1
            wait = max(wait, backoff(job.attempts, self._waits))
        if job.attempts < self._limits.max_retries:
            job.group.waiting += 1
            heapq.heappush(self._waiting, (now + wait, next(self._serial), job))
            return
        if self._idle():
            self._wave += 1
            self._next_wave_at = now + backoff(min(self._wave, self._limits.max_retries), self._waits)
            if self._wave == 1 and not self._order.over:
                say(
                    f"the endpoint seems to be down: {self._failed_in_a_row:,} attempts in a row failed, the last with "
                    f"{failure.text}; it is tried again with a few requests at a time until it answers"
                )
        self._put_off.append(job)
        self._count(job, failed=True)

    def _count(self, job: Job, failed: bool) -> None:
        """Count a finished question, once; stop when the first ones have all failed."""
        failed_question = None if job.second_chance else self._finish(job, failed)
        if failed_question is None:
            return
        self._finished += 1
        # An answer may be on its way to the disk, so what counts is that none has come.
        if failed_question and not self._successes and self._finished == self._limits.stop_after_failures:
            last = f"; the last one: {job.last.text}" if job.last else ""
            self.stop(
                Ended(
                    1,
                    f"the first {plural(self._finished, 'finished question')} of this run all failed, which looks like a "
                    f"wrong setting{last}. Mend it and start again with --retry-errors (--stop-after-failures 0 would go on "
                    "regardless)",
                )
            )
            self._stopped_by_failures = True

    async def _second_chances(self) -> bool:
        """Ask again what an outage used up, if requests succeeded since it was sent; else settle it. False: nothing is left."""
        again = [job for job in self._put_off if not job.second_chance and job.successes_before < self._successes]
        if again:
            self._put_off = [job for job in self._put_off if job not in again]
            say(f"the endpoint has recovered: {plural(len(again), 'request')} that failed meanwhile get fresh attempts")
            for job in again:
                job.second_chance, job.attempts, job.waited = True, 0, 0.0
            self._order.reopen(again)
            return True
        await self._settle_put_off()
        return False

    async def _settle_put_off(self) -> None:
        """Record the failures that were put off, as they are."""
        jobs, self._put_off = self._put_off, []
        for job in jobs:
            assert job.last is not None
            settled = self._settle(job, job.last)
            if not isinstance(settled, bool):
                await settled

    # -- stopping -----------------------------------------------------------------------------------------------

    async def _drop_requests(self) -> None:
        for task in list(self._asking):
            task.cancel()
        tasks = [*self._asking, *self._settling]
        if tasks:
            await asyncio.wait(tasks)
        self._asking.clear()
        self._settling.clear()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM drop what is in flight; what is being saved is saved. Ignored signals stay ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        caught = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
        before = {number: signal.getsignal(number) for number in caught}
        for number in caught:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    def _signalled(self, number: int) -> None:
        self._stop = None  # a signal also ends a stop that waits for requests in flight
        self.stop(Ended(128 + number, signal.Signals(number).name), drop=True)
