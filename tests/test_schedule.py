"""Which request goes next: by hand, and against a simulated endpoint with a prefix cache."""

from __future__ import annotations

import heapq
import itertools
import random
from typing import Any

import pytest

from beam_common.schedule import Group, Job, Order


def order_of(*sizes: int, open_limit: int = 2, opener_first: bool = True) -> Order:
    """Of groups a, b, c …, whose jobs are named a0, a1 …"""
    groups = [Group(name) for name, _ in zip("abcdefgh", sizes, strict=False)]
    for group, size in zip(groups, sizes, strict=True):
        for n in range(size):
            group.add((group.item, "abstention", n), f"{group.item}{n}")
    return Order(groups, open_limit, opener_first)


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
    order = order_of(3, 2, 2)
    a0, b0 = drain(order)
    assert names([a0, b0]) == ["a0", "b0"], "no more than two chats in progress"
    order.begun(b0, 0.0)
    b1, c0 = drain(order)
    assert names([b1, c0]) == ["b1", "c0"], "b is all sent: the next chat opens"
    order.begun(c0, 0.0)
    order.begun(a0, 0.0)
    order.landed(a0)
    assert names(drain(order)) == ["a1", "a2", "c1"]
    assert order.over


@pytest.mark.parametrize("gone", [Order.sent, Order.landed], ids=["sent", "broken-off"])
def test_a_chat_whose_bodies_are_still_going_out_holds_its_place(gone: Any) -> None:
    """Else the next opener overtakes them, and in a small cache they find their prefix gone."""
    order = order_of(2, 2, open_limit=1)
    (opener,) = drain(order)
    order.begun(opener, 0.0)
    last = order.next(0.0)
    assert last is not None
    assert order.next(0.0) is None
    gone(order, last)
    assert names(drain(order)) == ["b0"]


def test_while_a_failed_opener_waits_the_next_question_opens() -> None:
    order = order_of(3)
    (first,) = drain(order)
    order.landed(first)
    (second,) = drain(order)
    assert second.item == "a1"
    order.again(first)
    assert drain(order) == [], "one opener at a time, retried or not"
    order.landed(second)
    assert names(drain(order)) == ["a0"], "what was sent before goes first"


def test_a_question_that_is_asked_again_goes_before_those_of_later_chats() -> None:
    order = order_of(1, 3)
    a0, b0 = drain(order)
    order.landed(a0)
    order.begun(b0, 0.0)
    assert order.next(0.0) is not None
    order.again(a0)
    assert names(drain(order)) == ["a0", "b2"]


def test_a_prefix_not_used_for_long_is_opened_again_by_one_request() -> None:
    order = order_of(5)
    (first,) = drain(order)
    order.begun(first, 0.0)
    order.landed(first)
    second = order.next(239.0)
    assert second is not None, "it is cached"
    order.landed(second)
    assert names(drain(order, now=241.0)) == ["a2"]
    assert drain(order, now=242.0) == []


def test_after_an_outage_each_chat_is_opened_by_one_request() -> None:
    order = order_of(4, 4)
    openers = drain(order)
    for job in openers:
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
    order = order_of(2, 1, 2, open_limit=1, opener_first=False)
    assert names(drain(order)) == ["a0", "a1", "b0", "c0", "c1"]
    assert order.over


def simulate(order: Order, places: int, cached_chats: int, failing: float = 0.0) -> list[str]:
    """Drive an order to its end; the chat of each request that found no prefix in the cache.

    A reply begins after 50 s, with a cached prefix after 1 s; then the prefix is cached, and the
    least recently used one goes. A share of the requests fails and is asked again after 5 s.
    """
    chance, number = random.Random(1), itertools.count()
    cache: list[str] = []
    uncached, done = list[str](), list[str]()
    events: list[tuple[float, int, str, Job]] = []
    now, in_flight = 0.0, 0
    while True:
        while in_flight < places and (job := order.next(now)):
            in_flight += 1
            chat = job.group.item
            if chat not in cache:
                uncached.append(chat)
            begins = now + (1.0 if chat in cache else 50.0)
            coming = {"sent": now, "begun": begins, "done": begins + chance.uniform(20, 120)}
            if chance.random() < failing:
                coming = {"sent": now, "failed": begins, "again": begins + 5.0}
            for what, when in coming.items():
                heapq.heappush(events, (when, next(number), what, job))
        if not events:
            assert len(set(done)) == len(done) == 8 * 20, "each is answered once"
            return uncached
        now, _, what, job = heapq.heappop(events)
        if what == "sent":
            order.sent(job)
        elif what == "begun":
            order.begun(job, now)
            others = [chat for chat in cache if chat != job.group.item]
            cache = [*others, job.group.item][-cached_chats:]
        elif what == "again":
            order.again(job)
        else:
            in_flight -= 1
            order.landed(job)
            done += [job.item] * (what == "done")


@pytest.mark.parametrize("open_chats", [1, 2, 4])
@pytest.mark.parametrize("places", [1, 3, 16, 100])
def test_each_chat_is_computed_once_where_the_cache_holds_those_in_progress(
    open_chats: int, places: int
) -> None:
    order = order_of(*[20] * 8, open_limit=open_chats)
    assert simulate(order, places, open_chats) == list("abcdefgh")


def test_sending_all_at_once_computes_the_same_prefix_again_and_again() -> None:
    """What the order is for: the simulation tells the difference."""
    assert len(simulate(order_of(*[20] * 8, opener_first=False), 16, 2)) > 40


@pytest.mark.parametrize("failing", [0.1, 0.4])
def test_failing_requests_lose_no_question_and_hold_up_no_chat(failing: float) -> None:
    simulate(order_of(*[20] * 8), 16, 3, failing)
