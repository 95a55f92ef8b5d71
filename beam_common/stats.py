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
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from beam_common.rows import QuestionKey

Scores = Mapping[QuestionKey, float]
Ends = tuple[float, float] | tuple[None, None]
UNKNOWN = (None, None)

ALPHA = 0.05
POWER = 0.8
# Scores are fractions with small denominators: what is below this is the rounding of their sums.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A mean with its uncertainty; None where it cannot be known, never NaN.

    `mean` is None without values; `se` and `p` are None with fewer than two chats. `p` is
    two-sided, for the hypothesis that the true mean is 0: of use for differences only.
    """

    n: int
    chats: int
    mean: float | None = None
    se: float | None = None
    p: float | None = None

    def reach(self, probability: float) -> float:
        """How far this quantile lies from the mean."""
        return t_quantile(probability, self.chats - 1) * (self.se or 0)

    def interval(self, alpha: float = ALPHA) -> Ends:
        """The ends of the interval that misses the true mean in a share `alpha` of cases."""
        if self.mean is None or self.se is None:
            return UNKNOWN
        half = self.reach(1 - alpha / 2)
        return self.mean - half, self.mean + half


def mean_of(values: Collection[float]) -> float | None:
    """None for no values."""
    return fmean(values) if values else None


def clustered_mean(scores: Scores) -> Estimate:
    """The mean with its error; the chat of a question is the first part of its key."""
    if not scores:
        return Estimate(0, 0)
    n = len(scores)
    mean = _exact(fmean(scores.values()))
    sums: defaultdict[str, float] = defaultdict(float)
    for (chat, _, _), score in scores.items():
        sums[chat] += score - mean
    g = len(sums)
    if g == 1:
        return Estimate(n, g, mean)
    se = _exact(math.sqrt(g / (g - 1)) * math.hypot(*sums.values()) / n)
    # Without any spread, that all chats fall on one side of 0 is all there is.
    p = t_two_sided(mean / se, g - 1) if se else 2.0 ** (1 - g) if mean else 1.0
    return Estimate(n, g, mean, se, p)


def _exact(value: float) -> float:
    return 0.0 if abs(value) < ROUNDING else value


def paired_difference(first: Scores, second: Scores) -> Estimate:
    """The mean of second − first over the questions in both."""
    return clustered_mean({key: second[key] - first[key] for key in first if key in second})


def wilson_interval(found: Estimate) -> Ends:
    """The interval of a mean between 0 and 1, which stays there; Nones with fewer than two chats.

    Wilson's, with the number of independent answers that would give this standard error in place
    of n, and Student's t in place of the normal quantile. Without spread each chat counts as one.
    """
    if found.mean is None or found.se is None:
        return UNKNOWN
    variance = found.mean * (1 - found.mean)
    n = variance / found.se**2 if found.se else found.chats
    w = t_quantile(1 - ALPHA / 2, found.chats - 1) ** 2 / n
    half = math.sqrt(w * (variance + w / 4))
    centre = found.mean + w / 2
    return max(0.0, (centre - half) / (1 + w)), min(1.0, (centre + half) / (1 + w))


def is_not_worse(found: Estimate, margin: float) -> bool:
    """Whether the one-sided 95 % bound of a difference rules out a loss of `margin` or more.

    Without spread there is no bound, and all chats on one side of it must be enough of them.
    """
    enough = found.se or 2.0**-found.chats < ALPHA
    return bool(enough) and (found.mean or 0) - found.reach(1 - ALPHA) > -margin


def detectable(found: Estimate) -> float | None:
    """The smallest true difference that such a comparison calls different in 80 % of cases."""
    return found.reach(1 - ALPHA / 2) + found.reach(POWER) if found.se else None


def runs_needed(found: Estimate, margin: float) -> int | None:
    """How many times as many runs of each would show an equal run "not worse" in 80 % of cases."""
    if not found.se:
        return None
    return math.ceil(((found.reach(1 - ALPHA) + found.reach(POWER)) / margin) ** 2)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given (Holm 1979): the k-th smallest of m p values
    times m − k + 1, never falling, at most 1."""
    highest, adjusted = 0.0, {}
    for rank, p in enumerate(sorted(p_values)):
        highest = max(highest, (len(p_values) - rank) * p)
        adjusted[p] = min(1.0, highest)
    return [adjusted[p] for p in p_values]


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
    term = cosine**odd
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
