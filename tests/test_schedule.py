"""Which request goes next: by hand, and against a simulated endpoint with a prefix cache."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest

from beam_common.schedule import Group, Job, Order


def groups(*sizes: int) -> list[Group]:
    """Groups a, b, c …, whose jobs are named a0, a1 …"""
    made = []
    for name, size in zip("abcdefgh", sizes, strict=False):
        group = Group(name)
        for n in range(size):
            group.add((name, "abstention", n), f"{name}{n}")
        made.append(group)
    return made


def order_of(made: list[Group], open_limit: int = 2, opener_first: bool = True) -> Order:
    return Order(made, open_limit, opener_first, cache_life=240.0)


def drain(order: Order, now: float = 0.0) -> list[Job]:
    """Everything that may be sent now; the bodies go out at once."""
    found = []
    while job := order.next(now):
        order.sent(job)
        found.append(job)
    return found


def names(jobs: list[Job]) -> list[str]:
    return [job.item for job in jobs]


def test_one_opener_a_chat_then_its_followers_oldest_chat_first() -> None:
    order = order_of(groups(3, 2, 3))
    a0, b0 = drain(order)
    assert names([a0, b0]) == ["a0", "b0"], "no more chats than two in progress"
    order.begun(b0, 0.0)
    assert names(drain(order)) == ["b1", "c0"], "b is all sent: the next chat opens"
    order.begun(a0, 0.0)
    assert names(drain(order)) == ["a1", "a2"]
    assert not order.over
    order.begun(order._open[-1].flying.copy().pop(), 0.0)
    assert names(drain(order)) == ["c1", "c2"]
    assert order.over


def test_followers_go_at_the_latest_with_the_whole_reply() -> None:
    order = order_of(groups(3))
    (opener,) = drain(order)
    order.begun(opener, 0.0)
    order.landed(opener)
    assert names(drain(order)) == ["a1", "a2"]


def test_a_chat_whose_bodies_are_still_going_out_holds_its_place() -> None:
    """Else the next opener overtakes them, and in a small cache they find their prefix gone."""
    order = order_of(groups(2, 2), open_limit=1)
    (opener,) = drain(order)
    order.begun(opener, 0.0)
    last = order.next(0.0)
    assert last is not None
    assert order.next(0.0) is None
    order.sent(last)
    assert names(drain(order)) == ["b0"]


def test_while_a_failed_opener_waits_the_next_question_opens() -> None:
    order = order_of(groups(3))
    (first,) = drain(order)
    order.landed(first)
    (second,) = drain(order)
    assert second.item == "a1"
    order.again(first)
    assert drain(order) == [], "one opener at a time, retried or not"
    order.landed(second)
    assert names(drain(order)) == ["a0"], "what was sent before goes first"


def test_a_question_that_is_asked_again_goes_before_those_of_later_chats() -> None:
    order = order_of(groups(1, 3))
    a0, b0 = drain(order)
    order.landed(a0)
    order.begun(b0, 0.0)
    assert order.next(0.0) is not None
    order.again(a0)
    assert names(drain(order)) == ["a0", "b2"]


def test_a_prefix_not_used_for_long_is_opened_again_by_one_request() -> None:
    order = order_of(groups(5))
    (first,) = drain(order)
    order.begun(first, 0.0)
    order.landed(first)
    second = order.next(239.0)
    assert second is not None, "it is cached"
    order.landed(second)
    assert names(drain(order, now=241.0)) == ["a2"]
    assert drain(order, now=242.0) == []


def test_after_an_outage_each_chat_is_opened_by_one_request() -> None:
    order = order_of(groups(4, 4))
    a0, b0 = drain(order)
    for job in (a0, b0):
        order.begun(job, 0.0)
        order.landed(job)
    sent = drain(order)
    assert names(sent) == ["a1", "a2", "a3", "b1", "b2", "b3"]
    for job in sent:
        order.landed(job)
        order.again(job)
    order.reopen()
    assert names(drain(order)) == ["a1", "b1"]


def test_without_openers_everything_goes_at_once_group_after_group() -> None:
    order = order_of(groups(2, 1, 2), open_limit=1, opener_first=False)
    assert names(drain(order)) == ["a0", "a1", "b0", "c0", "c1"]
    assert order.over


# --- Against a cache ------------------------------------------------------------------------------


class Endpoint:
    """Keeps the prefixes of so many chats, the least recently used goes first.

    An entry is there once the first reply to it has begun: after 50 s; with it a reply begins
    after 1 s. A share of the requests fails.
    """

    def __init__(self, chats: int, failing: float = 0.0) -> None:
        self.chats, self.failing = chats, failing
        self.cache: dict[str, None] = {}
        self.uncached: list[str] = []
        self.random = random.Random(1)

    def take(self, job: Job) -> tuple[float, float, bool]:
        """Seconds until the reply begins and until it is over, and whether it succeeds."""
        name = job.group.item
        known = name in self.cache
        if known:
            self.touch(name)
        else:
            self.uncached.append(name)
        begins = 1.0 if known else 50.0
        failed = self.random.random() < self.failing
        return begins, begins + self.random.uniform(20, 120), not failed

    def touch(self, name: str) -> None:
        self.cache.pop(name, None)
        self.cache[name] = None
        while len(self.cache) > self.chats:
            del self.cache[next(iter(self.cache))]


def run(order: Order, endpoint: Endpoint, places: int) -> list[str]:
    """Drive an order to its end; the jobs in the order of their completion."""
    done: list[str] = []
    events: list[tuple[float, int, str, Job]] = []
    number = itertools.count()
    now, in_flight = 0.0, 0

    def at(when: float, what: str, job: Job) -> None:
        heapq.heappush(events, (when, next(number), what, job))

    while True:
        while in_flight < places and (job := order.next(now)):
            in_flight += 1
            begins, ends, succeeds = endpoint.take(job)
            at(now, "sent", job)
            if succeeds:
                at(now + begins, "begun", job)
            at(now + (ends if succeeds else begins), "done" if succeeds else "failed", job)
        if not events:
            return done
        now, _, what, job = heapq.heappop(events)
        if what == "sent":
            order.sent(job)
        elif what == "begun":
            endpoint.touch(job.group.item)
            order.begun(job, now)
        elif what == "again":
            order.again(job)
        else:
            in_flight -= 1
            order.landed(job)
            if what == "done":
                done.append(job.item)
            else:
                at(now + 5.0, "again", job)


@pytest.mark.parametrize("open_chats", [1, 2, 4])
@pytest.mark.parametrize("places", [1, 3, 16, 100])
def test_each_chat_is_computed_once_where_the_cache_holds_those_in_progress(
    open_chats: int, places: int
) -> None:
    endpoint = Endpoint(open_chats)
    done = run(order_of(groups(*[20] * 8), open_chats), endpoint, places)
    assert sorted(endpoint.uncached) == list("abcdefgh")
    assert len(set(done)) == len(done) == 8 * 20


def test_sending_all_at_once_computes_the_same_prefix_again_and_again() -> None:
    """What the order is for: the simulation tells the difference."""
    endpoint = Endpoint(2)
    run(order_of(groups(*[20] * 8), opener_first=False), endpoint, 16)
    assert len(endpoint.uncached) > 40


def test_failing_requests_lose_no_question_and_hold_up_no_chat() -> None:
    endpoint = Endpoint(3, failing=0.4)
    done = run(order_of(groups(*[20] * 8)), endpoint, 16)
    assert len(set(done)) == len(done) == 8 * 20
