"""The arithmetic of a score: intervals, paired differences, exact test. No files, no network.

The questions of a chat are about one conversation and succeed or fail together, so they are not
independent draws. Intervals therefore count chats: with n values x in G chats around their mean m

    SE² = G / (G − 1) · Σ over chats (Σ over the chat's values (x − m))² / n²

with Student's t for G − 1 degrees of freedom (the cluster-robust variance of a mean, Liang and
Zeger 1986, with the correction for few clusters). One chat gives no interval. Two runs are compared
on the questions both have: what makes a question hard for both cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from beam_common.rows import QuestionKey

ALPHA = 0.05
POWER = 0.8
# Scores are fractions with small denominators: what is below this is the rounding of their sums.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A mean with its uncertainty; None where it cannot be known, never NaN.

    `mean` is None without values; `se`, `low`, `high` and `p` are None with fewer than two chats.
    `p` is two-sided, for the hypothesis that the true mean is 0: of use for differences only.
    """

    n: int
    chats: int
    mean: float | None = None
    se: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def clustered_mean(values: Mapping[QuestionKey, float]) -> Estimate:
    """Mean of `values` with its interval; the chat of a question is the first part of its key."""
    n = len(values)
    chats: dict[str, list[float]] = {}
    for key, value in values.items():
        chats.setdefault(key[0], []).append(value)
    if n == 0:
        return Estimate(0, 0)
    mean = _exact_zero(math.fsum(values.values()) / n)
    g = len(chats)
    if g == 1:
        return Estimate(n, g, mean)
    squares = math.fsum(math.fsum(x - mean for x in chat) ** 2 for chat in chats.values())
    se = _exact_zero(math.sqrt(g / (g - 1) * squares) / n)
    half = t_quantile(1 - ALPHA / 2, g - 1) * se
    return Estimate(n, g, mean, se, mean - half, mean + half, _p_value(mean, se, g))


def paired_difference(
    first: Mapping[QuestionKey, float], second: Mapping[QuestionKey, float]
) -> Estimate:
    """The mean of second − first over the questions in both."""
    return clustered_mean({key: second[key] - first[key] for key in first if key in second})


def _exact_zero(value: float) -> float:
    return 0.0 if abs(value) < ROUNDING else value


def _p_value(mean: float, se: float, chats: int) -> float:
    """Two-sided p. Without any spread, that all chats fall on one side of 0 is all there is."""
    if se > 0:
        return t_two_sided(mean / se, chats - 1)
    return 1.0 if mean == 0 else 2.0 ** (1 - chats)


def reach(found: Estimate, probability: float) -> float:
    """How far the quantile of a mean lies from it, in terms of its standard error."""
    return t_quantile(probability, found.chats - 1) * (found.se or 0.0)


def wilson_interval(found: Estimate) -> tuple[float, float] | tuple[None, None]:
    """The interval of a mean between 0 and 1, which stays there; Nones with fewer than two chats.

    Wilson's, with the number of independent answers that would give this standard error in place
    of n, and Student's t in place of the normal quantile. Without spread each chat counts as one.
    """
    if found.mean is None or found.se is None:
        return None, None
    m = found.mean
    n = m * (1 - m) / found.se**2 if found.se else found.chats
    t2 = t_quantile(1 - ALPHA / 2, found.chats - 1) ** 2
    half = math.sqrt(t2 * (m * (1 - m) / n + t2 / (2 * n) ** 2))
    centre, scale = m + t2 / (2 * n), 1 + t2 / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def is_not_worse(found: Estimate, margin: float) -> bool:
    """Whether the one-sided 95 % bound of a difference rules out a loss of `margin` or more.

    Without spread there is no bound, and all chats on one side of it must be enough of them.
    """
    if found.mean is None or found.se is None:
        return False
    enough = found.se > 0 or 2.0**-found.chats < ALPHA
    return enough and found.mean - reach(found, 1 - ALPHA) > -margin


def detectable(found: Estimate) -> float | None:
    """The smallest true difference that such a comparison calls different in 80 % of cases."""
    return reach(found, 1 - ALPHA / 2) + reach(found, POWER) if found.se else None


def runs_needed(found: Estimate, margin: float) -> int | None:
    """How many times as many runs of each would show an equal run "not worse" in 80 % of cases."""
    if not found.se:
        return None
    return math.ceil(((reach(found, 1 - ALPHA) + reach(found, POWER)) / margin) ** 2)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given (Holm 1979): the k-th smallest of m p values
    times m − k + 1, never falling, at most 1."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, (len(p_values) - rank) * p_values[place])
        adjusted[place] = min(1.0, highest)
    return adjusted


def fisher(hits: int, n: int, other_hits: int, other_n: int) -> float:
    """Two-sided p of Fisher's exact test: `hits` of `n` against `other_hits` of `other_n`."""
    total = hits + other_hits
    ways = [math.comb(n, k) * math.comb(other_n, total - k) for k in range(total + 1)]
    return sum(count for count in ways if count <= ways[hits]) / sum(ways)


# ------------------------------------------------------------------------------------------------
# Student's t for whole degrees of freedom, so that no scientific package is needed.


def t_two_sided(t: float, df: int) -> float:
    """P(|T| ≥ |t|), by the finite series for whole `df` (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(df))
    cosine = math.cos(angle)
    odd = df % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(1 + odd, df, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    inside = math.sin(angle) * total
    if odd:
        inside = 2 / math.pi * (angle + inside)
    return max(0.0, 1 - inside)


@cache
def t_quantile(probability: float, df: int) -> float:
    """The t with P(T ≤ t) = `probability`, which lies between 0.5 and 1, both excluded."""
    low, high = 0.0, 1e6
    while low < (middle := (low + high) / 2) < high:  # until no number is left between the two
        if t_two_sided(middle, df) > 2 * (1 - probability):
            low = middle
        else:
            high = middle
    return high
