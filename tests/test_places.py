"""How many requests are in flight, how long is waited, whether the endpoint is up: without one."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_common.outage import Outage
from beam_common.places import Places, Waits, backoff

SECONDS = {"fast": [0.2], "slow": [30.0], "mixed": [0.5, 3.0, 40.0, 1.0, 8.0]}


class Simulated:
    """An endpoint that takes `capacity(now)` requests at a time and refuses the rest at once.

    A refused request is asked again at once when others are in flight, else after a second.
    """

    def __init__(self, concurrency: int, capacity: Callable[[float], int], seconds: list[float]):
        self.places = Places(concurrency)
        self.capacity, self.seconds = capacity, itertools.cycle(seconds)
        self.answered = self.refused = self.in_flight = self.served = 0
        self.most_in_flight: list[int] = []  # at each answer
        self.now = self.free_at = 0.0

    def ask(self, questions: int) -> float:
        """Seconds until all are answered."""
        waiting, events, numbers = questions, list[tuple[float, int, bool]](), itertools.count()
        while waiting or events:
            while waiting and self.in_flight < self.places.limit and self.now >= self.free_at:
                taken = self.served < self.capacity(self.now)
                over = self.now + (next(self.seconds) if taken else 0.01)
                heapq.heappush(events, (over, next(numbers), taken))
                waiting -= 1
                self.in_flight += 1
                self.served += taken
            if not events or (waiting and self.now < self.free_at < events[0][0]):
                self.now = self.free_at
                continue
            self.now, _, taken = heapq.heappop(events)
            self.in_flight -= 1
            self.served -= taken
            if taken:
                self.answered += 1
                self.most_in_flight.append(self.places.limit)
                self.places.answered()
            else:
                self.refused += 1
                waiting += 1
                self.places.busy(self.in_flight)
                self.free_at = self.now + (0 if self.in_flight else 1)
            assert 1 <= self.places.limit <= self.places.most
        return self.now


@pytest.mark.parametrize("kind", SECONDS)
@pytest.mark.parametrize("capacity", [1, 4, 16])
def test_an_endpoint_with_few_places_answers_everything(capacity: int, kind: str) -> None:
    """In hardly more time than with as many requests in flight as it takes."""
    endpoint = Simulated(32 if capacity == 16 else 16, lambda now: capacity, SECONDS[kind])
    seconds = endpoint.ask(90)
    assert endpoint.answered == 90
    assert endpoint.refused <= 0.5 * 90
    ideal = Simulated(capacity, lambda now: capacity, SECONDS[kind])
    assert seconds <= 1.2 * ideal.ask(90)
    assert ideal.refused == 0


def test_long_afterwards_only_one_request_in_many_is_refused() -> None:
    endpoint = Simulated(16, lambda now: 4, SECONDS["slow"])
    endpoint.ask(90)
    before = endpoint.refused
    endpoint.ask(600)
    assert 0 < endpoint.refused - before <= 600 / 50


def test_after_a_hiccup_the_number_in_flight_comes_back() -> None:
    """For ten seconds nothing is taken: down to one in flight, then up to all again."""
    endpoint = Simulated(16, lambda now: 0 if 20 < now < 30 else 16, [2.0])
    endpoint.ask(400)
    assert endpoint.answered == 400
    assert min(endpoint.most_in_flight) == 1
    lowest = endpoint.most_in_flight.index(1)
    assert endpoint.most_in_flight[lowest:].index(16) <= 8 + 16 + 16
    assert endpoint.refused < 16 + 10 + 1


def test_a_server_that_grows_is_used_as_far_as_it_takes() -> None:
    endpoint = Simulated(16, lambda now: 2 if now < 600 else 16, [30.0])
    endpoint.ask(300)
    assert endpoint.places.limit == 16


def test_without_a_refusal_nothing_is_lowered() -> None:
    endpoint = Simulated(16, lambda now: 16, SECONDS["mixed"])
    endpoint.ask(100)
    assert set(endpoint.most_in_flight) == {16}


def test_requests_refused_together_leave_as_many_as_were_taken() -> None:
    places = Places(16)
    for others in (15, 14, 13, 12):
        places.busy(others)
    assert places.limit == 12
    places.busy(14)  # a late refusal among requests of before
    assert places.limit == 12
    for answers, limit in ((7, 12), (1, 13)):  # it is tried again after eight answers …
        for _ in range(answers):
            places.answered()
        assert places.limit == limit
    places.busy(12)
    for answers, limit in ((15, 12), (1, 13)):  # … then after sixteen
        for _ in range(answers):
            places.answered()
        assert places.limit == limit
    for answers, limit in ((12, 13), (1, 14), (1, 15), (1, 16), (5, 16)):  # a round went well
        for _ in range(answers):
            places.answered()
        assert places.limit == limit


@given(st.integers(1, 40), st.lists(st.integers(0, 40) | st.none(), max_size=200))
def test_the_limit_stays_between_one_and_the_most(most: int, events: list[int | None]) -> None:
    places = Places(most)
    for others in events:
        before = places.limit
        if others is None:
            places.answered()
            assert before <= places.limit <= min(most, before + 1)
        else:
            places.busy(others)
            assert max(1, min(before, others)) == places.limit


@pytest.mark.parametrize(
    ("attempt", "chance", "expected"),
    [
        (1, 0, 1),
        (2, 0, 2),
        (3, 0, 4),
        (6, 0, 32),
        (7, 0, 60),
        (99, 0, 60),
        (1, 1, 0.75),
        (99, 1, 45),
    ],
)
def test_backoff_doubles_up_to_a_minute_with_jitter(
    attempt: int, chance: float, expected: float
) -> None:
    assert backoff(attempt, Waits(), lambda: chance) == expected


def test_four_failures_in_a_row_are_an_outage_until_something_comes_back() -> None:
    outage = Outage(4)
    assert [outage.failed(now) for now in (1.0, 2.0, 3.0)] == [False] * 3
    outage.replied()
    assert outage.has_answered
    assert [outage.failed(now) for now in (4.0, 5.0, 6.0)] == [False] * 3, "counted anew"
    assert not outage.down
    assert [outage.failed(now) for now in (7.0, 8.0)] == [True, False], "it goes down once"
    assert (outage.down, outage.since) == (True, 4.0)
    outage.confirmed = True
    outage.replied()
    assert not outage.down
    assert not outage.confirmed
