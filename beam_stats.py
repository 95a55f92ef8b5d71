"""The arithmetic of a score: mean, interval, paired difference, adjusted p values. No files, no network.

The questions of a chat are about one conversation, so they succeed and fail together and are not independent
draws. Intervals therefore count chats, not questions. With n questions x in G chats around their mean m

    SE² = G / (G − 1) · Σ over chats (Σ over the chat's questions (x − m))² / n²

and the 95 % interval is m ± t · SE, with Student's t for G − 1 degrees of freedom. This is the usual cluster-robust
variance of a mean (Liang and Zeger 1986) with the correction for few clusters. One chat gives no interval.
Two runs are compared on the questions both have: the difference of each pair is taken first and its mean treated the
same way, so what makes a question hard for both runs cancels out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from beam_common import QuestionKey

LEVEL = 0.95
# Scores are fractions with small denominators: a standard error or a difference below this is the rounding of
# floating-point sums, and is taken as the zero that it stands for.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A mean with its uncertainty. Every field that cannot be known is None, never NaN.

    `mean` is None without questions; `standard_error`, `low`, `high` and `p` are None with fewer than two chats.
    `low` and `high` are the formula's bounds, which may leave the range that a score can have.
    `p` is two-sided, for the hypothesis that the true mean is 0: of use for differences only.
    """

    n: int
    chats: int
    mean: float | None
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @property
    def direction(self) -> int | None:
        """1 or -1 when the whole interval lies above or below 0, 0 when it holds 0, None without an interval."""
        if self.low is None or self.high is None:
            return None
        return int(self.low > 0) - int(self.high < 0)


@dataclass(frozen=True)
class Difference:
    """Second run minus first run, over the questions that both have, and how many were left out on either side."""

    estimate: Estimate
    only_first: int
    only_second: int


def clustered_mean(values: Mapping[QuestionKey, float]) -> Estimate:
    """Mean of `values` with its interval; the chat of a question is the first part of its key."""
    n = len(values)
    if n == 0:
        return Estimate(n=0, chats=0, mean=None)
    by_chat: dict[str, list[float]] = {}
    for key, value in values.items():
        by_chat.setdefault(key[0], []).append(value)
    chats = len(by_chat)
    mean = _without_rounding(math.fsum(values.values()) / n)
    if chats < 2:
        return Estimate(n=n, chats=chats, mean=mean)
    squares = math.fsum(math.fsum(value - mean for value in chat) ** 2 for chat in by_chat.values())
    error = _without_rounding(math.sqrt(chats / (chats - 1) * squares) / n)
    margin = t_quantile((1 + LEVEL) / 2, chats - 1) * error
    return Estimate(n, chats, mean, error, mean - margin, mean + margin, _p_value(mean, error, chats - 1))


def paired_difference(first: Mapping[QuestionKey, float], second: Mapping[QuestionKey, float]) -> Difference:
    """The mean of second − first over the questions in both, clustered by chat."""
    differences = {key: _without_rounding(second[key] - value) for key, value in first.items() if key in second}
    pairs = len(differences)
    return Difference(clustered_mean(differences), only_first=len(first) - pairs, only_second=len(second) - pairs)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given: k-th smallest of m times (m − k + 1), never falling, at most 1.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def _without_rounding(value: float) -> float:
    return 0.0 if abs(value) < ROUNDING else value


def _p_value(mean: float, error: float, df: int) -> float:
    """Two-sided p. Without any spread the formula leaves no doubt: 1 for a mean of 0, otherwise 0."""
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return t_two_sided(mean / error, df)


# Student's t, so that no scientific package is needed for two functions


def t_two_sided(t: float, df: float) -> float:
    """P(|T| ≥ |t|) for Student's t with `df` > 0 degrees of freedom; exact far out in the tail, where 1 − cdf is 0."""
    return _incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t))


def t_cdf(t: float, df: float) -> float:
    """P(T ≤ t) for Student's t with `df` > 0 degrees of freedom."""
    tail = t_two_sided(t, df) / 2
    return tail if t < 0 else 1 - tail


@cache
def t_quantile(probability: float, df: float) -> float:
    """The t with P(T ≤ t) = `probability`, which must lie between 0 and 1, both excluded (ValueError)."""
    if not 0 < probability < 1:
        raise ValueError(f"a probability between 0 and 1 is needed, not {probability}")
    if probability == 0.5:
        return 0.0
    both_tails = 2 * min(probability, 1 - probability)
    low, high = 0.0, 1.0
    while t_two_sided(high, df) > both_tails:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:  # until no number is left between the two
        if t_two_sided(middle, df) > both_tails:
            low = middle
        else:
            high = middle
    return high if probability > 0.5 else -high


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function I_x(a, b) with `rest` = 1 − x, given apart to lose no digits.

    The continued fraction converges fast below the mean (a + 1) / (a + b + 2); above it the symmetry
    I_x(a, b) = 1 − I_rest(b, a) leads there. Source: Abramowitz and Stegun, 26.5.8 and 26.5.2.
    """
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, rest, x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    return math.exp(log_front) / (a * _beta_fraction(a, b, x))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction 1 + d1/(1 + d2/(1 + …)) of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300  # stands for an intermediate 0, which the method must not divide by
    numerator, denominator, value = 1.0, 0.0, 1.0
    for step in range(1, 10_000):
        m = step // 2
        if step % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominator = 1 / ((1 + d * denominator) or tiny)
        numerator = (1 + d / numerator) or tiny
        factor = numerator * denominator
        value *= factor
        if abs(factor - 1) < 1e-15:
            return value
    raise ArithmeticError(f"the incomplete beta function does not settle at a={a} b={b} x={x}")
