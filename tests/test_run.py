"""The order of requests and what outcomes do, without a network: the scheduler is driven by hand or by scripted outcomes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from launcher import QUICK_WAITS

from beam_common import StoppedEarly
from beam_failure import Failure
from beam_reply import Reply
from beam_run import Ended, GroupCommit, Limits, Run
from beam_schedule import Group, Job, Order, Waits, backoff

OK = Reply("fine", "stop")
DOWN = Failure("retry", "HTTP 503")


def groups(*sizes: int) -> list[Group]:
    """Groups a, b, c …, whose jobs are named a0, a1 …"""
    return [Group.of(name, [f"{name}{n}" for n in range(size)]) for name, size in zip("abcdefgh", sizes, strict=False)]


def names(jobs: list[Job]) -> list[str]:
    return [job.item for job in jobs]


def drain(order: Order, now: float = 0.0, may_start: bool = True) -> list[Job]:
    """Everything that may be sent now, and whose bodies go out at once."""
    found = []
    while job := order.next(now, may_start):
        job.group.leaving.clear()
        found.append(job)
    return found


# --- Order ----------------------------------------------------------------------------------------------------------


def test_one_opener_a_chat_and_no_more_chats_than_open_chats() -> None:
    order = Order(groups(3, 3, 3), open_limit=2, opener_first=True)
    assert names(drain(order)) == ["a0", "b0"]


def test_followers_go_once_the_first_piece_has_come_oldest_chat_first() -> None:
    a, b = groups(3, 3)
    order = Order([a, b], open_limit=2, opener_first=True)
    drain(order)
    b.last_piece = 0.0
    assert names(drain(order)) == ["b1", "b2"]
    a.last_piece = 0.0
    assert names(drain(order)) == ["a1", "a2"]


def test_a_chat_whose_questions_are_all_sent_makes_room_for_the_next_one() -> None:
    a, b = groups(2, 2)
    order = Order([a, b], open_limit=1, opener_first=True)
    assert names(drain(order)) == ["a0"]
    a.last_piece = 0.0
    assert names(drain(order)) == ["a1", "b0"]


def test_a_chat_whose_bodies_are_still_going_out_holds_its_place() -> None:
    """Else the next chat's opener overtakes them, and on an endpoint with a small cache they find their prefix gone."""
    a, b = groups(2, 2)
    order = Order([a, b], open_limit=1, opener_first=True)
    drain(order)
    a.last_piece = 0.0
    last = order.next(0.0)
    assert last is not None
    assert order.next(0.0) is None
    a.leaving.discard(last)
    assert names(drain(order)) == ["b0"]


def test_open_chats_come_before_new_ones() -> None:
    a, b, c = groups(2, 3, 1)
    order = Order([a, b, c], open_limit=2, opener_first=True)
    drain(order)
    a.last_piece = b.last_piece = 0.0
    assert names(drain(order)) == ["a1", "b1", "b2", "c0"]


def test_while_a_failed_opener_waits_the_next_question_opens() -> None:
    (a,) = groups(3)
    order = Order([a], open_limit=2, opener_first=True)
    (first,) = drain(order)
    order.landed(first)
    a.waiting += 1
    assert names(drain(order)) == ["a1"]


def test_an_opener_that_failed_does_not_make_its_chat_cached() -> None:
    (a,) = groups(3)
    order = Order([a], open_limit=2, opener_first=True)
    (first,) = drain(order)
    order.landed(first)
    order.again(first)
    assert names(drain(order)) == ["a0"], "one opener at a time, retried or not"


def test_a_prefix_not_used_for_long_is_opened_again_by_one_request() -> None:
    (a,) = groups(5)
    order = Order([a], open_limit=1, opener_first=True, cache_life=240)
    (first,) = drain(order)
    a.last_piece = 0.0
    order.landed(first)
    (second,) = [order.next(100.0)]
    assert second is not None, "recent enough: no new opener"
    order.landed(second)
    assert names(drain(order, now=300.0)) == ["a2"]


def test_without_openers_everything_goes_at_once_group_after_group() -> None:
    order = Order(iter(groups(2, 0, 2)), open_limit=1, opener_first=False)
    assert names(drain(order)) == ["a0", "a1", "c0", "c1"]
    assert order.over


def test_jobs_never_sent_wait_while_none_may_start() -> None:
    (a,) = groups(2)
    order = Order([a], open_limit=1, opener_first=True)
    (first,) = drain(order)
    order.landed(first)
    order.again(first)
    assert names(drain(order, may_start=False)) == ["a0"]
    order.landed(first)
    assert drain(order, may_start=False) == []
    assert not order.over, "a1 was never sent"


def test_a_changed_prefix_waits_for_its_own_opener_only() -> None:
    """Requests with the prefix as it was before may take for ever."""
    (a,) = groups(4)
    order = Order([a], open_limit=1, opener_first=True)
    drain(order, now=1.0)
    a.last_piece = 1.0
    second = order.next(1.0)
    assert second is not None
    a.changed_at = second.sent_at = 2.0  # it was found too long, was cut and is asked again
    a.last_piece = None
    assert drain(order, now=3.0) == []
    order.landed(second)  # it failed; the first is still in flight
    assert names(drain(order, now=4.0)) == ["a2"], "the next question opens"


def test_reopened_jobs_are_grouped_with_their_opener_first() -> None:
    a, b = groups(2, 2)
    order = Order([a, b], open_limit=2, opener_first=True)
    sent = []
    for group in (a, b):
        group.last_piece = 0.0
    while job := order.next(0.0):
        sent.append(job)
        job.group.leaving.clear()
        job.group.last_piece = 0.0
    for job in sent:
        order.landed(job)
    assert order.over
    order.reopen([sent[3], sent[0], sent[2], sent[1]])
    assert names(drain(order)) == ["b1", "a0"]


@pytest.mark.parametrize(
    ("attempt", "chance", "expected"),
    [(1, 0.0, 1.0), (2, 0.0, 2.0), (3, 0.0, 4.0), (6, 0.0, 32.0), (7, 0.0, 60.0), (99, 0.0, 60.0), (1, 1.0, 0.75), (99, 1.0, 45.0)],
)  # fmt: skip
def test_backoff_doubles_up_to_a_minute_with_jitter(attempt: int, chance: float, expected: float) -> None:
    assert backoff(attempt, Waits(), lambda: chance) == expected


# --- Run ------------------------------------------------------------------------------------------------------------


class Scripted:
    """Runs jobs whose outcomes come from `outcome(job name, n-th attempt of this job, n-th request of all)`."""

    def __init__(
        self, outcome: Callable[[str, int, int], Any], *sizes: int, waits: Waits = QUICK_WAITS, **limits: int
    ) -> None:
        self.outcome = outcome
        self.asked: list[str] = []
        self.settled: dict[str, Reply | Failure] = {}
        self.in_flight = self.most_in_flight = 0
        bounds = {"concurrency": 4, "max_retries": 3, "stop_after_failures": 0, "open_chats": 2, **limits}
        order = Order(groups(*sizes), bounds.pop("open_chats"), opener_first=True)
        self.run = Run(order, Limits(**bounds), self.attempt, self.settle, lambda job, failed: failed, waits=waits)

    async def attempt(self, job: Job) -> Reply | Failure:
        self.asked.append(job.item)
        self.run.sent(job)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            outcome = self.outcome(job.item, self.asked.count(job.item), len(self.asked))
            await asyncio.sleep(0.001)
            return await outcome if asyncio.iscoroutine(outcome) else outcome
        finally:
            self.in_flight -= 1

    async def settle(self, job: Job, outcome: Reply | Failure) -> None:
        assert job.item not in self.settled, "settled once"
        await asyncio.sleep(0)
        self.settled[job.item] = outcome

    def go(self) -> Ended:
        return asyncio.run(asyncio.wait_for(self.run.go(), 30))


def test_everything_is_asked_once_when_nothing_fails() -> None:
    scripted = Scripted(lambda *_: OK, 5, 5, 5)
    assert scripted.go() == Ended(0)
    assert sorted(scripted.asked) == sorted(f"{g}{n}" for g in "abc" for n in range(5))
    assert scripted.most_in_flight <= 4


@pytest.mark.parametrize("retries", [1, 2, 5])
def test_attempts_are_max_retries_in_all(retries: int) -> None:
    scripted = Scripted(lambda *_: DOWN, 2, max_retries=retries)
    assert scripted.go() == Ended(0)
    assert Counter(scripted.asked) == {"a0": retries, "a1": retries}
    assert set(scripted.settled.values()) == {DOWN}


def test_a_refusal_is_not_tried_again() -> None:
    refused = Failure("record", "HTTP 400")
    scripted = Scripted(lambda name, *_: refused if name == "a1" else OK, 3)
    scripted.go()
    assert scripted.asked.count("a1") == 1
    assert scripted.settled["a1"] is refused


def test_a_rate_limit_that_names_its_wait_uses_up_no_attempt() -> None:
    limited = Failure("retry", "HTTP 429", wait=0.01, free=True)
    scripted = Scripted(lambda name, nth, _: limited if nth <= 20 else OK, 1, max_retries=2)
    assert scripted.go() == Ended(0)
    assert scripted.settled == {"a0": OK}


def test_named_waits_are_bounded_for_one_question() -> None:
    limited = Failure("retry", "HTTP 429", wait=0.01, free=True)
    scripted = Scripted(lambda *_: limited, 1, max_retries=2, waits=replace(QUICK_WAITS, named_total=0.05))
    scripted.go()
    assert len(scripted.asked) == 5 + 2
    assert scripted.settled == {"a0": limited}


def test_a_named_wait_holds_all_requests_back() -> None:
    started: list[float] = []

    def outcome(name: str, nth: int, total: int) -> Reply | Failure:
        started.append(asyncio.get_running_loop().time())
        return Failure("retry", "HTTP 429", wait=0.3, free=True) if total == 1 else OK

    Scripted(outcome, 1, 1, 1, concurrency=1).go()
    assert started[1] - started[0] >= 0.3
    assert len(started) == 4


def test_an_outage_costs_no_answer() -> None:
    """Requests 6 to 60 all fail: far longer than all attempts of the questions in flight last."""
    scripted = Scripted(lambda name, nth, total: DOWN if 6 <= total <= 60 else OK, 20, 20, 20)
    assert scripted.go() == Ended(0)
    assert set(scripted.settled.values()) == {OK}
    assert len(scripted.settled) == 60


def test_an_outage_uses_up_the_attempts_of_few_questions() -> None:
    scripted = Scripted(lambda *_: DOWN, 20, 20, 20, stop_after_failures=10, max_retries=4)
    assert scripted.go().code == 1
    assert len(set(scripted.asked)) <= 14
    assert len(scripted.settled) == 10


def test_a_request_that_hangs_does_not_hold_up_the_recovery() -> None:
    """One request of an outage never answers; the others try again as soon as the endpoint is back."""
    waits = replace(QUICK_WAITS, hung=0.05)

    async def hang() -> Reply:  # for as long as the others are held up
        while len(scripted.settled) < 28:  # all but those whose second chance comes at the end
            await asyncio.sleep(0.01)
        return OK

    def outcome(name: str, nth: int, total: int) -> Any:
        return hang() if name == "a5" and nth == 1 else DOWN if 6 <= total <= 30 else OK

    scripted = Scripted(outcome, 20, 20, waits=waits)
    assert scripted.go() == Ended(0)
    assert len(scripted.settled) == 40


def test_a_second_outage_is_recorded_as_it_is() -> None:
    """a0 fails for ever: it gets its second chance, as others succeed after it, and not a third one."""
    scripted = Scripted(lambda name, *_: DOWN if name == "a0" else OK, 300, max_retries=2)
    scripted.go()
    assert scripted.asked.count("a0") == 4
    assert scripted.settled["a0"] is DOWN


def test_without_any_success_afterwards_there_is_no_second_chance() -> None:
    scripted = Scripted(lambda name, *_: DOWN if name == "a1" else OK, 2, max_retries=2)
    scripted.go()
    assert scripted.asked.count("a1") == 2


def test_first_failures_do_not_stop_a_run_that_has_an_answer_on_its_way_to_the_disk() -> None:
    """Failures count at once, an answer once it is saved: a slow disk must not make it look as if there were none."""
    refused = Failure("record", "HTTP 400")
    scripted = Scripted(lambda name, *_: OK if name == "a0" else refused, 12, stop_after_failures=10)
    saved = scripted.settle

    async def settle(job: Job, outcome: Reply | Failure) -> None:
        while outcome is OK and len(set(scripted.asked)) < 12:
            await asyncio.sleep(0.001)
        await saved(job, outcome)

    scripted.run._settle = settle
    assert scripted.go() == Ended(0)
    assert len(scripted.settled) == 12


def test_the_first_failures_stop_the_run_and_are_recorded() -> None:
    scripted = Scripted(lambda *_: Failure("record", "HTTP 400"), 30, 30, stop_after_failures=10, concurrency=16)
    ended = scripted.go()
    assert ended.code == 1
    assert "first 10 finished questions" in ended.reason
    assert len(scripted.settled) == 10


def test_one_success_among_the_first_and_the_run_goes_on() -> None:
    refused = Failure("record", "no")
    scripted = Scripted(lambda name, *_: OK if name == "a3" else refused, 15, stop_after_failures=10, concurrency=1)
    assert scripted.go() == Ended(0)
    assert len(scripted.settled) == 15


def test_a_fatal_answer_stops_and_lets_requests_in_flight_finish() -> None:
    fatal = Failure("stop", "HTTP 401", way_out="check the key")

    async def later() -> Reply:
        while not scripted.run.stopping:
            await asyncio.sleep(0.001)
        return OK

    def outcome(name: str, *_: int) -> Any:
        return OK if name == "a0" else fatal if name == "a2" else later()

    scripted = Scripted(outcome, 30)
    ended = scripted.go()
    assert ended.code == 1
    assert "check the key" in ended.reason
    assert "a1" in scripted.settled, "it was in flight"
    assert "a2" not in scripted.settled, "nothing is recorded for the one that met it"
    assert len(scripted.asked) <= 5


def test_our_own_mistakes_are_raised() -> None:
    def outcome(*_: Any) -> Reply:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Scripted(outcome, 5).go()


def test_a_changed_prefix_is_opened_by_one_request() -> None:
    """a1 finds the chat too long and cuts it; all come back, and one opens it while the others wait for its first piece."""
    scripted = Scripted(lambda *_: OK, 8, concurrency=8)
    attempt = scripted.attempt
    before: list[str] = []
    after: list[str] = []

    async def shrinking(job: Job) -> Reply | Failure | None:
        if len(before) < 8:
            before.append(job.item)
            if job.item == "a0":
                return await attempt(job)
            while len(before) < 8 or not (job.item == "a1" or job.group.changed_at):
                await asyncio.sleep(0.001)
            if job.item == "a1":
                scripted.run.changed(job.group)
            return None
        after.append(job.item)
        if len(after) == 1:
            await asyncio.sleep(0.05)
            assert len(after) == 1, "the others wait until the prefix is cached"
        return await attempt(job)

    scripted.run._attempt = shrinking
    assert scripted.go() == Ended(0)
    assert len(scripted.settled) == 8
    assert sorted(after) == sorted(before[1:])


def test_settling_may_ask_again_at_once() -> None:
    scripted = Scripted(lambda *_: OK, 1)
    refused: list[str] = []

    def settle(job: Job, outcome: Reply | Failure) -> bool:
        refused.append(job.item)
        return len(refused) == 3

    scripted.run._settle = settle
    assert scripted.go() == Ended(0)
    assert scripted.asked == ["a0"] * 3


# --- Saving ---------------------------------------------------------------------------------------------------------


def test_rows_saved_meanwhile_are_committed_together_and_each_save_waits_for_its_own() -> None:
    batches: list[list[int]] = []

    async def save_all() -> None:
        commit: GroupCommit[int] = GroupCommit(lambda batch: batches.append(list(batch)))
        await asyncio.gather(*(commit.save(n) for n in range(20)))
        await commit.save(20)

    asyncio.run(save_all())
    assert [n for batch in batches for n in batch] == list(range(21))
    assert len(batches) < 21


def test_a_full_disk_reaches_every_save_of_the_batch() -> None:
    def full(batch: list[int]) -> None:
        raise StoppedEarly("no space")

    async def save_all() -> list[Any]:
        commit: GroupCommit[int] = GroupCommit(full)
        return await asyncio.gather(*(commit.save(n) for n in range(3)), return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(save_all())] == [StoppedEarly] * 3


def test_any_other_trouble_reaches_them_too() -> None:
    def vanished(batch: list[int]) -> None:
        raise NotADirectoryError("the folder is a file now")

    async def save_all() -> list[Any]:
        commit: GroupCommit[int] = GroupCommit(vanished)
        return await asyncio.gather(*(commit.save(n) for n in range(3)), return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(save_all())] == [NotADirectoryError] * 3
