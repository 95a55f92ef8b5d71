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

    def __init__(self, most: int, capacity: Callable[[float], int], seconds: list[float]) -> None:
        self.places = Places(most)
        self.capacity, self.seconds = capacity, itertools.cycle(seconds)
        self.refused = 0
        self.limits: list[int] = []  # at each answer
        self.now = 0.0

    def ask(self, questions: int) -> float:
        """Seconds until all are answered."""
        waiting, number, free_at = questions, itertools.count(), 0.0
        flying: list[tuple[float, int, bool]] = []  # over when, in the order of sending, taken
        while waiting or flying:
            while waiting and len(flying) < self.places.limit and self.now >= free_at:
                taken = sum(taken for *_, taken in flying) < self.capacity(self.now)
                over = self.now + (next(self.seconds) if taken else 0.01)
                heapq.heappush(flying, (over, next(number), taken))
                waiting -= 1
            if not flying:
                self.now = free_at
                continue
            self.now, _, taken = heapq.heappop(flying)
            if taken:
                self.limits.append(self.places.limit)
                self.places.answered()
            else:
                self.refused += 1
                waiting += 1
                self.places.busy(len(flying))
                free_at = self.now + (0 if flying else 1)
        return self.now


@pytest.mark.parametrize("kind", SECONDS)
@pytest.mark.parametrize("capacity", [1, 4, 16])
def test_an_endpoint_with_few_places_answers_everything(capacity: int, kind: str) -> None:
    """In hardly more time than with as many requests in flight as it takes."""
    endpoint = Simulated(max(16, 2 * capacity), lambda now: capacity, SECONDS[kind])
    seconds = endpoint.ask(90)
    assert len(endpoint.limits) == 90
    assert endpoint.refused <= 0.5 * 90
    ideal = Simulated(capacity, lambda now: capacity, SECONDS[kind])
    assert seconds <= 1.2 * ideal.ask(90)
    assert (ideal.refused, set(ideal.limits)) == (0, {capacity})
    before = endpoint.refused
    endpoint.ask(600)
    assert 0 < endpoint.refused - before <= 600 / 20, "later on only one in many"


def test_after_a_hiccup_the_number_in_flight_comes_back() -> None:
    """For ten seconds nothing is taken: down to one in flight, then up to all again."""
    endpoint = Simulated(16, lambda now: 0 if 20 < now < 30 else 16, [2.0])
    endpoint.ask(400)
    lowest = endpoint.limits.index(1)
    assert endpoint.limits[lowest:].index(16) <= 8 + 16 + 16
    assert endpoint.refused <= 16 + 10


def test_what_was_refused_is_tried_after_eight_answers_then_after_sixteen() -> None:
    places = Places(16)

    def limits(answers: int) -> list[int]:
        found = []
        for _ in range(answers):
            places.answered()
            found.append(places.limit)
        return found

    for others in (15, 14, 13, 12, 14):  # refused together; the last one came late
        places.busy(others)
    assert limits(8) == [12] * 7 + [13]
    places.busy(12)
    assert limits(16) == [12] * 15 + [13]
    assert limits(17) == [13] * 12 + [14, 15, 16, 16, 16], "a round of answers went well"


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
        (1, 0, 1), (2, 0, 2), (3, 0, 4), (6, 0, 32), (7, 0, 60), (99, 0, 60), (1, 1, 0.75),
        (9, 1, 45),
    ],
)  # fmt: skip
def test_backoff_doubles_up_to_a_minute_with_jitter(
    attempt: int, chance: float, expected: float
) -> None:
    assert backoff(attempt, Waits(), lambda: chance) == expected


def test_four_failures_in_a_row_are_an_outage_until_something_comes_back() -> None:
    outage = Outage()
    assert [outage.failed(now, False) for now in (1.0, 2.0, 3.0)] == [False] * 3
    outage.replied()
    assert outage.has_answered
    assert [outage.failed(now, False) for now in (4.0, 5.0, 6.0)] == [False] * 3, "counted anew"
    assert [outage.failed(now, False) for now in (7.0, 8.0)] == [True, False], "it goes down once"
    assert (outage.down, outage.since) == (True, 4.0)
    outage.confirmed = True
    outage.replied()
    assert (outage.down, outage.confirmed) == (False, False)
    assert outage.failed(9.0, True), "or the last attempt of a question"
