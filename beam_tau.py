"""Kendall's rank correlation between the order of the reference events and the order in a response.

As the BEAM paper (arXiv 2510.27246) reports event ordering; the judge only says which line tells which event.
"""

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Sequence


def one_to_one(matches: Sequence[int | None], events: Sequence[Hashable]) -> list[int | None]:
    """Each event (number from 1) is given to one line only: the first that claims it; later ones get None.

    Of equal events a line gets the first that is still free, whichever of them it claims.
    """
    free: dict[Hashable, list[int]] = {}
    for number in range(len(events), 0, -1):
        free.setdefault(events[number - 1], []).append(number)
    return [
        free[events[match - 1]].pop() if match is not None and free[events[match - 1]] else None for match in matches
    ]


def tau_score(order: Sequence[int | None], n_events: int) -> float:
    """(tau-b + 1) / 2 between the reference order 1..n and the response's lines, as in the BEAM paper.

    `order`: for each line its event or None, one-to-one. Both orders rank the union of the events and the unmatched
    lines; what an order lacks ties for its last rank. Where tau is undefined: 1 for identical orders, else 0.
    """
    if not order:
        return 0.0
    rank_of = {event: rank for rank, event in enumerate(order) if event is not None}
    extra = [rank for rank, event in enumerate(order) if event is None]
    if len(rank_of) + len(extra) < len(order) or any(not 1 <= event <= n_events for event in rank_of):
        raise ValueError(f"not a one-to-one alignment with {n_events} events: {list(order)}")
    last = n_events + len(order)
    reference = [*range(n_events), *(last for _ in extra)]
    response = [*(rank_of.get(event, last) for event in range(1, n_events + 1)), *extra]
    tau = kendall_tau_b(reference, response)
    if tau is None:
        return 1.0 if reference == response else 0.0
    return (tau + 1) / 2


def kendall_tau_b(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Kendall's rank correlation with ties counted, -1 to 1; None where one side has no two different values."""
    pairs = sorted(zip(x, y, strict=True))
    seen: list[float] = []
    discordant = 0
    for _, value in pairs:
        discordant += len(seen) - bisect_right(seen, value)
        insort(seen, value)
    every = len(pairs) * (len(pairs) - 1) // 2
    tied_x, tied_y, tied_both = (
        sum(count * (count - 1) // 2 for count in Counter(values).values()) for values in (x, y, pairs)
    )
    if every in (tied_x, tied_y):
        return None
    score = every - tied_x - tied_y + tied_both - 2 * discordant
    return max(-1.0, min(1.0, score / math.sqrt((every - tied_x) * (every - tied_y))))
