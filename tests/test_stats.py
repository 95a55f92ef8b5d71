"""Intervals, p values and verdict bounds: worked out by hand, and against scipy on random data."""

from __future__ import annotations

import math
import random

import pytest

from beam_common.rows import QuestionKey
from beam_common.stats import (
    Estimate,
    clustered_mean,
    detectable,
    fisher,
    holm,
    is_not_worse,
    paired_difference,
    runs_needed,
    t_quantile,
    t_two_sided,
    wilson_interval,
)

Scores = dict[QuestionKey, float]
NOTHING = (None, None)


def scores(*chats: list[float]) -> Scores:
    """One list of scores for each chat."""
    return {
        (str(chat), "abstention", index): value
        for chat, values in enumerate(chats)
        for index, value in enumerate(values)
    }


def random_chats(seed: int) -> Scores:
    """Unbalanced chats of scores as rubrics give them."""
    source = random.Random(seed)
    chats = [
        [source.randint(0, 4) / 4 for _ in range(source.randint(1, 20))]
        for _ in range(source.randint(2, 36))
    ]
    return scores(*chats)


# Scores by chat; mean and SE².
BY_HAND = [
    # Deviations of the chats −0.5 and +0.5: 2/1 · 0.5 / 16.
    pytest.param([[1, 0], [1, 1]], 0.75, 1 / 16, id="two-chats"),
    # Deviations 0.5, −0.5 and 0: 3/2 · 0.5 / 36.
    pytest.param([[1], [0, 0, 1], [0.5, 0.5]], 0.5, 1 / 48, id="unbalanced-chats"),
    # With one question a chat it is the usual s²/n: 0.25 / 4.
    pytest.param([[1], [0], [0], [0]], 0.25, 1 / 16, id="one-question-a-chat"),
    pytest.param([[1, 0], [0, 1]], 0.5, 0, id="what-happens-inside-chats-cancels-out"),
    pytest.param([[0, 0], [0, 0]], 0, 0, id="all-zero"),
    pytest.param([[0.1] * 3, [0.1] * 7], 0.1, 0, id="all-equal-and-inexact-in-binary"),
]


@pytest.mark.parametrize(("chats", "mean", "squared_error"), BY_HAND)
def test_mean_and_error(chats: list[list[float]], mean: float, squared_error: float) -> None:
    found = clustered_mean(scores(*chats))
    t = {1: 12.7062, 2: 4.30265, 3: 3.18245}[len(chats) - 1]
    assert found.mean == pytest.approx(mean)
    assert found.se == pytest.approx(math.sqrt(squared_error))
    half = t * math.sqrt(squared_error)
    assert found.interval() == pytest.approx((mean - half, mean + half), rel=1e-5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param({}, Estimate(0, 0), id="no-question"),
        pytest.param(scores([1, 0, 0, 1]), Estimate(4, 1, 0.5), id="one-chat"),
    ],
)
def test_no_interval_without_two_chats(values: Scores, expected: Estimate) -> None:
    found = clustered_mean(values)
    assert found == expected
    assert found.interval() == wilson_interval(found) == NOTHING
    assert not is_not_worse(found, 0.03)
    assert (detectable(found), runs_needed(found, 0.03)) == NOTHING


def test_paired_difference_leaves_out_what_one_side_lacks() -> None:
    first = scores([1, 0, 1], [1, 1], [1])
    second = scores([0, 0, 1], [0, 0])
    # Pairs −1, 0, 0 and −1, −1: mean −3/5, chats' deviations ±4/5, SE² = 2 · 32/25 / 25 = 0.32².
    found = paired_difference(first, second)
    assert (found.n, found.chats) == (5, 2)
    assert found.mean == pytest.approx(-0.6)
    assert found.se == pytest.approx(0.32)
    # t = −1.875 with one degree of freedom.
    assert found.p == pytest.approx(1 - 2 * math.atan(1.875) / math.pi)


@pytest.mark.parametrize(
    ("first", "second", "mean", "p"),
    [
        pytest.param([[0.3], [0.7]], [[0.3], [0.7]], 0, 1, id="identical"),
        pytest.param([[0.7], [0.1]], [[0.4], [0.4]], 0, 1, id="cancelling-inexact-in-binary"),
        pytest.param([[1]] * 2, [[0]] * 2, -1, 0.5, id="two-chats-always-lower"),
        pytest.param([[1]] * 7, [[0]] * 7, -1, 1 / 64, id="seven-chats-always-lower"),
        pytest.param([[0.1], [0.5]], [[0.2], [0.6]], 0.1, 0.5, id="the-same-step-everywhere"),
    ],
)
def test_without_spread_p_counts_chats(
    first: list[list[float]], second: list[list[float]], mean: float, p: float
) -> None:
    found = paired_difference(scores(*first), scores(*second))
    assert found.mean == pytest.approx(mean, rel=1e-12, abs=0)
    assert found.p == pytest.approx(p)


@pytest.mark.parametrize("seed", range(12))
def test_interval_and_p_against_scipy(seed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    values = random_chats(seed)
    mean = sum(values.values()) / len(values)
    chats: dict[str, float] = {}
    for key, value in values.items():
        chats[key[0]] = chats.get(key[0], 0) + value - mean
    # A mean of chats' deviations, each weighted G/n, has the standard error of scipy's own mean.
    weighted = [total * len(chats) / len(values) for total in chats.values()]
    expected = stats.sem(weighted)
    found = clustered_mean(values)
    assert found.se == pytest.approx(expected)
    interval = stats.t.interval(0.95, len(chats) - 1, mean, expected)
    assert found.interval() == pytest.approx(interval)
    assert found.p == pytest.approx(stats.ttest_1samp(weighted, -mean).pvalue, abs=1e-12)


# ------------------------------------------------------------------------------------------------
# The interval of a score.


@pytest.mark.parametrize(
    ("chats", "low", "high"),
    [
        # t² = 4.1300; 4.13 / (35 + 4.13).
        pytest.param([[0, 0]] * 35, 0, 0.1055, id="all-zero"),
        pytest.param([[1]] * 35, 0.8945, 1, id="all-one"),
        # SE = 0: each chat counts as one answer. m = 0.5, n = 2, t² = 161.45: 0.5 ± 0.497.
        pytest.param([[1, 0], [0, 1]], 0.0031, 0.9969, id="no-spread-between-two-chats"),
    ],
)
def test_score_interval_without_spread(chats: list[list[float]], low: float, high: float) -> None:
    assert wilson_interval(clustered_mean(scores(*chats))) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_score_interval_solves_its_own_equation(seed: int) -> None:
    """Wilson's bounds b are where |m − b| is t standard errors of a share b of n_eff answers."""
    found = clustered_mean(random_chats(seed))
    assert found.mean is not None
    assert found.se
    n = found.mean * (1 - found.mean) / found.se**2
    for bound in wilson_interval(found):
        assert bound is not None
        reach = t_quantile(0.975, found.chats - 1) * math.sqrt(bound * (1 - bound) / n)
        assert abs(found.mean - bound) == pytest.approx(reach)


# ------------------------------------------------------------------------------------------------
# Verdict bounds. Quantiles of t with 34 degrees: 1.6909 (95 %), 2.0322 (97.5 %), 0.8523 (80 %).


def difference(mean: float, se: float, chats: int = 35) -> Estimate:
    return Estimate(20 * chats, chats, mean, se)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(difference(0.0, 0.0177), True, id="bound-at-minus-0.0299"),
        pytest.param(difference(0.0, 0.0178), False, id="bound-at-minus-0.0301"),
        pytest.param(difference(-0.02, 0.005), True, id="a-small-loss-seen-sharply"),
        pytest.param(difference(0.0, 0.01, 2), False, id="two-chats-with-t-of-6.3"),
        pytest.param(difference(0.0, 0.0, 4), False, id="four-chats-without-spread"),
        pytest.param(difference(0.0, 0.0, 5), True, id="five-chats-without-spread"),
        pytest.param(difference(-0.03, 0.0), False, id="exactly-the-margin-without-spread"),
    ],
)
def test_not_worse(found: Estimate, expected: bool) -> None:
    assert is_not_worse(found, 0.03) is expected


@pytest.mark.parametrize(
    ("se", "margin", "seen", "runs"),
    [
        pytest.param(0.0143, 0.03, 0.04125, 2, id="middle"),  # (2.5432 · 0.0143 / 0.03)² = 1.47
        pytest.param(0.0172, 0.02, 0.04961, 5, id="unsteady"),  # (2.5432 · 0.86)² = 4.78
        pytest.param(0.001, 0.03, 0.00288, 1, id="one-is-enough"),
        pytest.param(0.0, 0.03, None, None, id="without-spread-nothing-is-known"),
    ],
)
def test_what_is_seen_and_runs_needed(
    se: float, margin: float, seen: float | None, runs: int | None
) -> None:
    found = difference(0.0, se)
    assert detectable(found) == (seen and pytest.approx(seen, abs=1e-5))
    assert runs_needed(found, margin) == runs


# ------------------------------------------------------------------------------------------------
# Several comparisons, exact test, Student's t.


def test_holm() -> None:
    """In order: 0.005 · 4, 0.01 · 3, 0.03 · 2, and 0.04 · 1, which may not fall below."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.5]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("hits", "n", "other", "other_n", "expected"),
    [
        # Of the 70 ways to place four hits among eight answers, 1 + 1 and 16 + 16 + 1 + 1.
        pytest.param(4, 4, 0, 4, 2 / 70, id="all-against-none"),
        pytest.param(3, 4, 1, 4, 34 / 70, id="three-against-one"),
        pytest.param(0, 0, 3, 7, 1.0, id="nothing-to-compare"),
    ],
)
def test_fisher_by_counting(hits: int, n: int, other: int, other_n: int, expected: float) -> None:
    assert fisher(hits, n, other, other_n) == pytest.approx(expected)


def test_fisher_against_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    source = random.Random(1)
    for _ in range(300):
        n, other_n = source.randint(1, 90), source.randint(1, 90)
        hits, other = source.randint(0, n), source.randint(0, other_n)
        expected = stats.fisher_exact([[hits, n - hits], [other, other_n - other]]).pvalue
        assert fisher(hits, n, other, other_n) == pytest.approx(expected)


def test_student_against_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for df in range(1, 120):
        for probability in (0.8, 0.95, 0.975, 0.99, 1 - 0.05 / 80):
            expected = stats.t.ppf(probability, df)
            assert t_quantile(probability, df) == pytest.approx(expected, rel=1e-9)
        for t in (0, 0.01, 0.5, 1.96, -3, 12):
            expected = 2 * stats.t.sf(abs(t), df)
            assert t_two_sided(t, df) == pytest.approx(expected, abs=1e-13)
