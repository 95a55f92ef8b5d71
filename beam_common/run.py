"""Many requests at once: who is sent when, what is asked again, what ends a run.

A job is a task that calls `Run.ask` and saves what it gets. It holds one of the `Places` from its
turn until it has saved a reply; while it waits for another attempt it holds none. A failed one is
held until another is answered: only then it is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from argparse import Namespace as Args
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from beam_common.command import connections_allowed, signals_caught
from beam_common.endpoint import Endpoint, Watch
from beam_common.failure import Failure
from beam_common.messages import Repeats, StoppedEarly, UsageError, plural, say
from beam_common.outage import Outage, wait_until_up
from beam_common.places import WAITS, Places, backoff
from beam_common.progress import Progress, duration_text
from beam_common.reply import Outcome, Reply
from beam_common.schedule import Job, Order

NOTE_SECONDS = 30.0  # between two notes about failed attempts


@dataclass(frozen=True)
class Ended:
    """How a run ended: code 0 when nothing is left to ask, 1 stopped, 128 + n by a signal."""

    code: int
    reason: str = ""


@dataclass(frozen=True)
class Flight(Watch):
    """One request on its way: what the endpoint tells of it."""

    run: Run
    job: Job

    def sent(self) -> None:
        self.run.order.sent(self.job)
        self.run.send()

    def begun(self) -> None:
        self.run.order.begun(self.job, time.monotonic())
        self.run.send()


class Run:
    """Drives jobs to their end. `probe`: the body of a request that finds out who is there."""

    _probing: asyncio.Task[None] | None = None
    _pause_until = _next_note = 0.0
    _stopped: Ended | None = None
    _broken: Exception | None = None
    _has_answered = False
    _last = ""  # failure that was final

    def __init__(self, endpoint: Endpoint, order: Order, args: Args, probe: Sequence[bytes]):
        self._endpoint, self.order, self._args, self._probe_body = endpoint, order, args, probe
        self.places = Places(connections_allowed(args.concurrency))
        self._outage = Outage()
        self._jobs: set[Job] = set()  # whose tasks run
        self._placed: set[Job] = set()  # in flight, or with a reply that is being saved
        self._flying: set[Job] = set()  # with a request on its way
        self._held: dict[Job, asyncio.Future[bool]] = {}
        self._suspects: list[Job] = []  # that failed since the endpoint last replied
        self._over = asyncio.Event()
        self.errors = Repeats()

    def in_flight(self) -> str:
        """For the progress: how many are in flight, where fewer may be than was asked for."""
        lowered = self.places.limit < self.places.most
        return f"{len(self._flying)} in flight, " if lowered else ""

    async def go(self, work: Callable[[Job], Awaitable[None]], progress: Progress) -> Ended:
        """Run `work` for each job until nothing is left or something stops the run.

        Raises what was no endpoint's trouble, once what was paid for is saved.
        """
        self._work = work
        with signals_caught(self._signalled):
            self.send()
            while not self._over.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), progress.interval)
                progress.tick(self._endpoint.last_byte_at if self._flying else None)
        self.errors.flush()
        progress.close()
        if self._broken:
            raise self._broken
        return self._stopped or Ended(0)

    async def ask(
        self,
        job: Job,
        body: Callable[[], Awaitable[Sequence[bytes]]],
        again: Callable[[Failure], bool] = lambda failure: False,
    ) -> Outcome:
        """A job's outcome, once it is final: a reply, or the failure to record.

        `body` is called for each attempt. `again` says of a refused request whether it is worth
        asking anew, since its body will be another one.
        """
        job.may_drop, job.attempts = True, 0  # a job may ask more than once
        try:
            while True:
                await self._turn(job)
                outcome = await self._attempt(job, await body())
                if isinstance(outcome, Reply):
                    self._has_answered = True
                    self.places.answered()
                    self.order.begun(job, time.monotonic())
                    self._replied()
                    self._release_held(self._held, True)
                    return outcome
                if outcome.kind == "fatal":
                    self.stop(Ended(1, outcome.with_advice))
                if self._stopped:
                    raise asyncio.CancelledError
                if outcome.kind == "refused":
                    self._replied()
                    final = not again(outcome)
                else:
                    final = await self._wait_after(job, outcome)
                if final and await self._may_record(job, outcome):
                    return outcome
        finally:
            job.may_drop = False

    def stop(self, ended: Ended, drop: bool = False) -> None:
        """Send no further request. What waits is given up, with `drop` what is in flight, too."""
        self._stopped = self._stopped or ended
        self._held.clear()  # an answer that is still to come does not record them
        if self._probing:
            self._probing.cancel()
        for job in self._jobs:
            if job.task and job.may_drop and (drop or job not in self._flying):
                job.task.cancel()
        self._look_for_end()

    def send(self) -> None:
        """Give each free place to the next job."""
        now = time.monotonic()
        halted = self._stopped or self._outage.down or now < self._pause_until
        while not halted and len(self._placed) < self.places.limit:
            job = self.order.next(now)
            if not job:
                break
            self._placed.add(job)
            if job.turn:
                job.turn.set_result(None)
            else:
                self._jobs.add(job)
                job.task = asyncio.create_task(self._do(job))
        self._look_for_end()

    async def _turn(self, job: Job) -> None:
        """Wait for a place; a job has one when its task begins. CancelledError after a stop."""
        if self._stopped:
            raise asyncio.CancelledError
        if job in job.group.flying:
            return
        self._placed.discard(job)
        self.order.again(job)
        job.turn = asyncio.Future()
        self.send()
        await job.turn

    async def _attempt(self, job: Job, body: Sequence[bytes]) -> Outcome:
        job.alone = not self._flying
        for other in self._flying:
            other.alone = False
        self._flying.add(job)
        try:
            return await self._endpoint.ask(body, Flight(self, job), job.question[0])
        finally:
            self._flying.discard(job)
            self.order.landed(job)

    async def _do(self, job: Job) -> None:
        try:
            with self._guarded():
                await self._work(job)
        finally:
            self._jobs.discard(job)
            self._placed.discard(job)
            self.send()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """An error that is no endpoint's ends the run."""
        try:
            yield
        except StoppedEarly as error:
            self.stop(Ended(1, str(error)), drop=True)
        except UsageError as error:  # what is in flight is paid for and may finish
            self.stop(Ended(2, str(error)))
        except Exception as error:
            self._broken = self._broken or error
            self.stop(Ended(1), drop=True)

    def _replied(self) -> None:
        if self._outage.confirmed:
            for job in self._suspects:  # their attempts were the outage's
                job.attempts -= 1
            self._release_held(self._suspects, False)
            self.order.reopen()
            down = time.monotonic() - self._outage.since
            say(f"the endpoint answers again, after {duration_text(down)}")
        self._suspects.clear()
        self._outage.replied()
        if self._probing:
            self._probing.cancel()
        self.send()

    async def _wait_after(self, job: Job, failure: Failure) -> bool:
        """Wait as long as a failure asks for; whether the job's attempts are used up."""
        now = time.monotonic()
        if now >= self._next_note:
            self._next_note = now + NOTE_SECONDS
            self.errors.say(f"asked again: {failure.text}")
        wait = min(failure.wait or 0.0, WAITS.longest_named)
        if failure.kind == "busy":
            self.places.busy(len(self._flying))
            if not job.alone:
                self._pause(wait)
                return False
        if not self._outage.confirmed:
            job.attempts += 1
        used_up = job.attempts >= self._args.max_retries
        if failure.kind == "transient":
            if not self._outage.confirmed:
                self._suspects.append(job)
            if self._outage.failed(now, used_up):
                self._probing = asyncio.create_task(self._probe())
        if used_up:
            return True
        pause = max(wait, backoff(job.attempts, WAITS))
        self._pause(pause if failure.kind == "busy" else wait)
        self._placed.discard(job)
        self.send()
        await asyncio.sleep(pause)
        return False

    def _pause(self, seconds: float) -> None:
        """Send nothing for so long: a wait that the endpoint names is meant for all requests."""
        until = time.monotonic() + seconds
        if until > self._pause_until:
            self._pause_until = until
            loop = asyncio.get_running_loop()
            loop.call_later(seconds + 0.001, loop.call_soon, self.send)

    async def _probe(self) -> None:
        most = self._args.max_outage
        with self._guarded():
            why = await wait_until_up(self._endpoint, self._probe_body, self._outage, most, WAITS)
            if why:
                self.stop(Ended(1, why))
            else:
                self._replied()

    async def _may_record(self, job: Job, failure: Failure) -> bool:
        """Wait until an answer shows that the endpoint works; False: ask again, it was down."""
        self._placed.discard(job)
        held = self._held[job] = asyncio.Future()
        self._last = failure.with_advice
        self.send()
        return await held

    def _release_held(self, jobs: Iterable[Job], record: bool) -> None:
        for job in list(jobs):
            if held := self._held.pop(job, None):
                held.set_result(record)

    def _look_for_end(self) -> None:
        """End a run with nothing left to do, or in which too many questions failed in a row."""
        if not self._jobs and (self._stopped or self.order.over):
            self._over.set()
        if self._stopped or self._outage.down or not self._held:
            return
        questions = {job.question for job in self._held}
        chats = {question[0] for question in questions}
        most = self._args.stop_after_failures
        if most and len(questions) >= most and len(chats) >= min(2, self.order.chats):
            failed = f"{plural(len(questions), 'question')} in a row failed, none is recorded"
            self.stop(Ended(1, f"{failed}; it looks like a wrong setting: {self._last}"))
        elif self.order.over and len(self._held) == len(self._jobs):
            if self._has_answered:
                self._release_held(self._held, True)
            else:
                self.stop(Ended(1, f"nothing was answered, nothing is recorded: {self._last}"))

    def _signalled(self, number: int) -> None:
        self._stopped = None  # a signal also ends a stop that waits for requests in flight
        self.stop(Ended(128 + number, signal.Signals(number).name), drop=True)
