"""The arithmetic of means, intervals, differences and p values. Expected values are worked out by hand or by scipy."""

from __future__ import annotations

import importlib.util
import math
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_common import QuestionKey
from beam_stats import Estimate, clustered_mean, holm, paired_difference, t_cdf, t_quantile, t_two_sided

Scores = dict[QuestionKey, float]


def scores(**chats: list[float]) -> Scores:
    return {(chat, "abstention", place): value for chat, values in chats.items() for place, value in enumerate(values)}


# Each case: scores by chat; n, chats, mean, SE² as (numerator, denominator), t with G − 1 degrees of freedom.
BY_HAND = [
    # Deviations of the chats −0.5 and +0.5: SE² = 2/1 · 0.5 / 16 = 1/16.
    pytest.param(scores(a=[1, 0], b=[1, 1]), 4, 2, 0.75, Fraction(1, 16), 12.7062, id="two-chats"),
    # Deviations 0.5, −0.5 and 0: SE² = 3/2 · 0.5 / 36 = 1/48.
    pytest.param(scores(a=[1], b=[0, 0, 1], c=[0.5, 0.5]), 6, 3, 0.5, Fraction(1, 48), 4.30265, id="unequal-chats"),
    # One question a chat is the usual variance of a mean: 4/3 · (3 · 1/16 + 9/16) / 16 = 1/16, s²/n = 0.25/4.
    pytest.param(scores(a=[1], b=[0], c=[0], d=[0]), 4, 4, 0.25, Fraction(1, 16), 3.18245, id="one-question-a-chat"),
    # What happens inside a chat cancels out: each chat's deviations sum to 0.
    pytest.param(scores(a=[1, 0], b=[0, 1]), 4, 2, 0.5, Fraction(0), 12.7062, id="all-variation-inside-chats"),
    pytest.param(scores(a=[0, 0], b=[0, 0]), 4, 2, 0.0, Fraction(0), 12.7062, id="all-zero"),
    pytest.param(scores(a=[0.1] * 3, b=[0.1] * 7), 10, 2, 0.1, Fraction(0), 12.7062, id="all-equal-inexact-in-binary"),
]


@pytest.mark.parametrize(("values", "n", "chats", "mean", "squared_error", "t"), BY_HAND)
def test_mean_and_interval(values: Scores, n: int, chats: int, mean: float, squared_error: Fraction, t: float) -> None:
    found = clustered_mean(values)
    error = math.sqrt(squared_error)
    assert (found.n, found.chats) == (n, chats)
    assert found.mean == pytest.approx(mean)
    assert found.standard_error == pytest.approx(error)
    assert found.low == pytest.approx(mean - t * error, rel=1e-5)
    assert found.high == pytest.approx(mean + t * error, rel=1e-5)


def test_chats_of_perfectly_dependent_questions_count_once() -> None:
    """Copying each question ten times must not narrow the interval."""
    single = clustered_mean(scores(a=[1], b=[0], c=[0], d=[1]))
    copied = clustered_mean(scores(a=[1] * 10, b=[0] * 10, c=[0] * 10, d=[1] * 10))
    assert copied.standard_error == pytest.approx(single.standard_error)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param({}, Estimate(0, 0, None), id="no-question"),
        pytest.param(scores(a=[0.5]), Estimate(1, 1, 0.5), id="one-question"),
        pytest.param(scores(a=[1, 0, 0, 1]), Estimate(4, 1, 0.5), id="one-chat"),
    ],
)
def test_no_interval_without_two_chats(values: Scores, expected: Estimate) -> None:
    assert clustered_mean(values) == expected
    assert expected.direction is None


def test_paired_difference_by_hand() -> None:
    first = scores(a=[1, 0, 1], b=[1, 1], only_here=[1])
    second = scores(a=[0, 0, 1], b=[0, 0], only_there=[1, 1])
    # Pairs: a −1, 0, 0; b −1, −1. Mean −3/5; deviations of the chats 4/5 and −4/5; SE² = 2 · 32/25 / 25.
    found = paired_difference(first, second)
    assert (found.only_first, found.only_second) == (1, 2)
    assert (found.estimate.n, found.estimate.chats) == (5, 2)
    assert found.estimate.mean == pytest.approx(-0.6)
    assert found.estimate.standard_error == pytest.approx(math.sqrt(64 / 625))
    # t = −0.6 / 0.32 = −1.875 with one degree of freedom: p = 1 − 2 atan(1.875) / π.
    assert found.estimate.p == pytest.approx(1 - 2 * math.atan(1.875) / math.pi)
    assert found.estimate.direction == 0


@pytest.mark.parametrize(
    ("first", "second", "mean", "p", "direction"),
    [
        pytest.param(scores(a=[0.3], b=[0.7]), scores(a=[0.3], b=[0.7]), 0, 1, 0, id="identical"),
        pytest.param(scores(a=[0.7], b=[0.1]), scores(a=[0.4], b=[0.4]), 0, None, 0, id="cancelling-inexact-in-binary"),
        pytest.param(scores(a=[0.3], b=[0.1]), scores(a=[0.1], b=[0.3]), 0, None, 0, id="cancelling"),
        pytest.param(scores(a=[1], b=[1]), scores(a=[0], b=[0]), -1, 0, -1, id="one-always-lower"),
        pytest.param(scores(a=[0.1], b=[0.5]), scores(a=[0.2], b=[0.6]), 0.1, 0, 1, id="the-same-step-everywhere"),
    ],
)
def test_differences_without_spread(
    first: Scores, second: Scores, mean: float, p: float | None, direction: int
) -> None:
    found = paired_difference(first, second).estimate
    assert found.mean == pytest.approx(mean, rel=1e-12, abs=0)  # a difference of 0 is exactly 0
    assert found.p == (pytest.approx(1) if p is None else p)
    assert found.direction == direction


def test_nothing_in_common() -> None:
    found = paired_difference(scores(a=[1]), scores(b=[1, 1]))
    assert (found.estimate, found.only_first, found.only_second) == (Estimate(0, 0, None), 1, 2)


@pytest.mark.parametrize(
    ("given_p", "expected"),
    [
        pytest.param([], [], id="none"),
        pytest.param([0.03], [0.03], id="one"),
        # In order: 0.005 · 4, 0.01 · 3, 0.03 · 2, and 0.04 · 1, which may not fall below the one before.
        pytest.param([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02], id="four"),
        pytest.param([0.9, 0.5], [1.0, 1.0], id="at-most-one"),
        pytest.param([0.02, 0.02], [0.04, 0.04], id="ties"),
        pytest.param([0.0, 1.0], [0.0, 1.0], id="extremes"),
    ],
)
def test_holm(given_p: list[float], expected: list[float]) -> None:
    assert holm(given_p) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("t", "df", "expected"),
    [
        pytest.param(1, 1, 0.75, id="cauchy"),
        pytest.param(-1, 1, 0.25, id="cauchy-lower"),
        pytest.param(math.sqrt(2), 2, 0.5 + math.sqrt(2) / 4, id="two"),  # 1/2 + t / (2 √(2 + t²))
        pytest.param(0, 7, 0.5, id="middle"),
    ],
)
def test_t_cdf_in_closed_form(t: float, df: int, expected: float) -> None:
    assert t_cdf(t, df) == pytest.approx(expected, rel=1e-13)


def test_t_against_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for df in range(1, 201):
        for probability in (1e-6, 0.005, 0.025, 0.3, 0.5, 0.6, 0.95, 0.975, 0.9999):
            assert t_quantile(probability, df) == pytest.approx(stats.t.ppf(probability, df), rel=1e-10, abs=1e-12)
        for t in (0, 0.001, 0.01, 0.5, 1, 1.96, 3, 12, 80):
            assert t_two_sided(t, df) == pytest.approx(2 * stats.t.sf(t, df), rel=1e-9, abs=1e-300)
            assert t_cdf(-t, df) == pytest.approx(stats.t.cdf(-t, df), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("probability", [0, 1, -0.1, 1.5, math.nan])
def test_quantile_refuses_what_is_no_probability(probability: float) -> None:
    with pytest.raises(ValueError, match="probability between 0 and 1"):
        t_quantile(probability, 3)


def test_holm_against_its_definition() -> None:
    """The adjusted value of each hypothesis is the smallest level at which Holm's procedure rejects it."""
    p_values = [0.001, 0.2, 0.013, 0.013, 0.04]
    for place, adjusted in enumerate(holm(p_values)):
        assert place in rejected(p_values, adjusted + 1e-9)
        assert place not in rejected(p_values, adjusted - 1e-9)


def rejected(p_values: list[float], level: float) -> set[int]:
    found: set[int] = set()
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[place] > level / (len(p_values) - step):
            break
        found.add(place)
    return found


KEYS = st.tuples(st.sampled_from("abcdef"), st.just("abstention"), st.integers(0, 5))
VALUES = st.integers(1, 6).flatmap(lambda items: st.integers(0, items).map(lambda met: met / items))
TABLES = st.dictionaries(KEYS, VALUES, max_size=30)


@given(TABLES)
def test_any_scores_against_exact_arithmetic(values: Scores) -> None:
    found = clustered_mean(values)
    exact = {key: Fraction(value).limit_denominator(6) for key, value in values.items()}
    chats = {key[0] for key in values}
    assert (found.n, found.chats) == (len(values), len(chats))
    if not values:
        return
    mean = sum(exact.values(), Fraction(0)) / len(exact)
    assert found.mean == pytest.approx(float(mean), abs=1e-12)
    if len(chats) < 2:
        assert found.standard_error is found.low is found.high is found.p is None
        return
    sums = [sum((x - mean for key, x in exact.items() if key[0] == chat), Fraction(0)) for chat in chats]
    squared = Fraction(len(chats), len(chats) - 1) * sum((x * x for x in sums), Fraction(0)) / len(exact) ** 2
    assert found.standard_error == pytest.approx(math.sqrt(squared), abs=1e-12)
    assert found.low is not None
    assert found.mean is not None
    assert found.high is not None
    assert found.p is not None
    assert found.low <= found.mean <= found.high
    assert 0 <= found.p <= 1


@given(TABLES, TABLES)
def test_differences_turn_with_their_sides(first: Scores, second: Scores) -> None:
    one, other = paired_difference(first, second), paired_difference(second, first)
    assert (one.only_first, one.only_second) == (other.only_second, other.only_first)
    estimate, turned = one.estimate, other.estimate
    assert estimate.n == turned.n
    assert estimate.p == pytest.approx(turned.p)
    assert one.only_first + estimate.n == len(first)
    if estimate.direction is not None and turned.direction is not None and estimate.p is not None:
        assert estimate.direction == -turned.direction
        assert (estimate.direction != 0) == (estimate.p < 0.05)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_keeps_order_and_never_lowers(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= after <= 1 for p, after in zip(p_values, adjusted, strict=True))
    ranked = [after for _, after in sorted(zip(p_values, adjusted, strict=True))]
    assert ranked == sorted(ranked)


# The simulation that shows how often the intervals are right


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    pytest.importorskip("numpy")
    path = Path(__file__).resolve().parent.parent / "benchmarks" / "coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_simulation", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def test_simulation_draws_the_world_it_names(coverage: ModuleType) -> None:
    """Expected score and correlation of two questions of one ability and chat, measured in many draws."""
    import numpy

    place = coverage.world([3], [0.3], 0.25)
    (drawn,) = coverage.draw(numpy.random.default_rng(5), place, (1.0,), 3000)
    assert set(numpy.unique(drawn * 3).round(9)) == {0, 1, 2, 3}
    assert drawn.mean() == pytest.approx(0.3, abs=0.005)
    pairs = drawn.reshape(-1, 2) - 0.3
    assert (pairs[:, 0] * pairs[:, 1]).mean() / (pairs**2).mean() == pytest.approx(0.25, abs=0.015)


def test_simulation_uses_the_formula_of_the_report(coverage: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy

    drawn = numpy.random.default_rng(1).integers(0, 4, (10, 35, 20)) / 3
    coverage.compare_with_single(drawn)
    monkeypatch.setattr(coverage, "t_quantile", lambda probability, df: 1.96)
    with pytest.raises(ArithmeticError, match="beam_stats says"):
        coverage.compare_with_single(drawn)


def test_simulation_prints_a_table(coverage: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    coverage.main(["--draws", "20"])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("overall, mean 0.3") for line in lines) == 5
    assert any(line.startswith("one ability, mean 0.03") for line in lines)
