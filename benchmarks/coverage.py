"""How often the 95 % intervals are right, and how often two equal models are called different, by simulation.

    python benchmarks/coverage.py [--draws 20000] [--seed 1]

Needs numpy. Takes about half a minute; prints a table; exit code 1 when a row of the upper part is out of range.

Each draw is a benchmark of 35 chats with 20 questions, two for each of ten abilities, scored as the judge scores: a
question has as many rubric items as that ability has on average in the 1M release (event_ordering: one verdict), each
item is met or not, and the score is the share of items met. An item of question q in chat c is met by model m when

    ability's level + chat c + (chat c, model m) + question q + (question q, model m) + noise of the item > 0

with independent normal terms. So chats and questions are hard or easy for all models alike, and each model has chats
and questions of its own that it is good at: the differences of two models are correlated within chats, too. The
truth, the expected score, is known exactly. The correlation of two scores of one chat (about their abilities' means)
is set exactly to the value in the table by solving for the variance of the chat terms, half of which is the model's
own.

Columns: `mean`, how often the interval of a mean covers the truth; `difference`, the same for the paired difference of
two models of which one is better by 0.03 (a tenth of the mean); `equal models called different`, how often the interval
of the difference of two equally good models leaves out 0. An interval that keeps its promise gives 95, 95 and 5 %.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from beam_common import plural
from beam_stats import LEVEL, clustered_mean, t_quantile

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Scores = NDArray[numpy.float64]  # draws × chats × questions

CHATS, QUESTIONS = 35, 2  # questions of each ability in a chat
# For each ability, in order: rubric items a question, and its level relative to the mean over abilities. The levels
# are made up, spread as widely as those of a real table.
ITEMS = (1, 4, 1, 3, 2, 1, 4, 3, 6, 2)
LEVELS = (2.0, 0.2, 0.2, 1.5, 1.2, 1.3, 1.0, 1.5, 0.6, 0.5)
# Latent variances; the noise of an item has 1. The terms of chats and questions share LATENT, so that the items of a
# question are met together more often than not. Half of what belongs to a chat or question is one model's own.
LATENT, OWN = 2.0, 0.5
CORRELATIONS = (0.0, 0.1, 0.2, 0.3, 0.4)
COVERAGE_RANGE, FALSE_ALARM_RANGE = (0.94, 0.96), (0.04, 0.06)
BATCH = 500  # draws at a time: bounds the memory


@dataclass(frozen=True)
class World:
    """The distribution that draws come from: which abilities, their expected scores, the variance of the chat terms."""

    items: tuple[int, ...]
    means: tuple[float, ...]
    chat_variance: float


@dataclass(frozen=True)
class Rates:
    """Shares of all draws."""

    mean: float
    difference: float
    false_alarm: float


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def normal_quantile(probability: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)


def expectation(function: Callable[[float], float]) -> float:
    """E[function(Z)] of a standard normal Z; the trapezoidal rule, exact to many digits for such smooth functions."""
    step = 0.05
    points = [step * place for place in range(-160, 161)]
    return step * math.fsum(function(z) * math.exp(-z * z / 2) for z in points) / math.sqrt(2 * math.pi)


def shared_probability(mean: float, variance: float) -> float:
    """P(two items are met) when terms of that variance are common to both, of LATENT + 1 in all, and one has `mean`."""
    level, rest = normal_quantile(mean) * math.sqrt(LATENT + 1), math.sqrt(LATENT + 1 - variance)
    return expectation(lambda z: normal_cdf((level + math.sqrt(variance) * z) / rest) ** 2)


def correlation(items: Sequence[int], means: Sequence[float], chat_variance: float) -> float:
    """Covariance of two scores of one ability and chat over the variance of a score, both averaged over abilities."""
    covariance = variance = 0.0
    for count, mean in zip(items, means, strict=True):
        covariance += shared_probability(mean, chat_variance) - mean**2
        together = shared_probability(mean, LATENT)
        variance += mean / count + together * (count - 1) / count - mean**2
    return covariance / variance


def world(items: Sequence[int], means: Sequence[float], wanted: float) -> World:
    """The world in which scores of a chat have the wanted correlation. Raises ValueError when LATENT is too small."""
    if wanted == 0:
        return World(tuple(items), tuple(means), 0.0)
    low, high = 0.0, LATENT
    if correlation(items, means, high) < wanted:
        raise ValueError(f"a correlation of {wanted} needs more latent variance than {LATENT}")
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if correlation(items, means, middle) < wanted else (low, middle)
    return World(tuple(items), tuple(means), high)


def draw(random: numpy.random.Generator, place: World, shifts: Sequence[float], draws: int) -> list[Scores]:
    """The scores of several models on the same questions; a model's expected scores are the world's times its shift."""
    import numpy

    def normal(*shape: int) -> NDArray[numpy.float32]:
        return random.standard_normal((draws, CHATS, *shape), dtype=numpy.float32)

    questions = LATENT - place.chat_variance
    common_chat = math.sqrt(place.chat_variance * (1 - OWN)) * normal(1)
    own_chats = [math.sqrt(place.chat_variance * OWN) * normal(1) for _ in shifts]
    parts: list[list[Scores]] = [[] for _ in shifts]
    for count, mean in zip(place.items, place.means, strict=True):
        common = common_chat + math.sqrt(questions * (1 - OWN)) * normal(QUESTIONS)
        for part, own_chat, shift in zip(parts, own_chats, shifts, strict=True):
            level = normal_quantile(mean * shift) * math.sqrt(LATENT + 1)
            latent = common + own_chat + math.sqrt(questions * OWN) * normal(QUESTIONS) + level
            met = normal(QUESTIONS, count) + latent[..., None] > 0
            part.append(met.mean(axis=-1))
    return [numpy.concatenate(part, axis=-1) for part in parts]


def intervals(values: Scores) -> tuple[Scores, Scores]:
    """`beam_stats.clustered_mean` for many draws at once: mean and half width, one of each a draw."""
    import numpy

    chats, questions = values.shape[1:]
    means = values.mean(axis=(1, 2))
    sums = (values - means[:, None, None]).sum(axis=2)
    errors = numpy.sqrt(chats / (chats - 1) * (sums**2).sum(axis=1)) / (chats * questions)
    errors[errors < 1e-12] = 0
    return means, t_quantile((1 + LEVEL) / 2, chats - 1) * errors


def compare_with_single(values: Scores) -> None:
    """Raises ArithmeticError when `intervals` and `beam_stats.clustered_mean` disagree."""
    means, margins = intervals(values)
    for one, mean, margin in zip(values, means, margins, strict=True):
        keyed = {(str(chat), "any", place): float(x) for chat, row in enumerate(one) for place, x in enumerate(row)}
        found = clustered_mean(keyed)
        if found.low is None or abs(found.low - (mean - margin)) > 1e-9 or abs((found.mean or 0) - mean) > 1e-9:
            raise ArithmeticError(f"beam_stats says {found}, the vectorised formula {mean} ± {margin}")


def measure(place: World, draws: int, seed: Sequence[int]) -> Rates:
    """Three models on the same questions: one, its equal, and one a tenth better."""
    import numpy

    random = numpy.random.default_rng(list(seed))
    truth = math.fsum(place.means) / len(place.means)
    covered = differ_covered = alarms = 0
    for start in range(0, draws, BATCH):
        first, equal, better = draw(random, place, (1.0, 1.0, 1.1), min(BATCH, draws - start))
        if start == 0:
            compare_with_single(first[:20])
            compare_with_single((equal - first)[:20])
        means, margins = intervals(first)
        covered += int((abs(means - truth) <= margins).sum())
        means, margins = intervals(better - first)
        differ_covered += int((abs(means - truth / 10) <= margins).sum())
        means, margins = intervals(equal - first)
        alarms += int((abs(means) > margins).sum())
    return Rates(covered / draws, differ_covered / draws, alarms / draws)


def in_range(rates: Rates) -> bool:
    low, high = COVERAGE_RANGE
    few, many = FALSE_ALARM_RANGE
    return low <= rates.mean <= high and low <= rates.difference <= high and few <= rates.false_alarm <= many


def line(label: str, wanted: float, rates: Rates) -> str:
    return f"{label:<34}{wanted:>9.1f}{rates.mean:>11.2%}{rates.difference:>12.2%}{rates.false_alarm:>13.2%}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20_000, help="for each row (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    args = parser.parse_args(argv)
    started = time.monotonic()
    scale = len(LEVELS) / math.fsum(LEVELS)

    def overall(mean: float) -> tuple[Sequence[int], Sequence[float]]:
        return ITEMS, [mean * scale * level for level in LEVELS]

    print(f"{args.draws:,} draws a row, seed {args.seed}, {CHATS} chats; a share has a standard error of about "
          f"{math.sqrt(0.95 * 0.05 / args.draws):.2%}\n")  # fmt: skip
    print(f"{'':<34}{'corr.':>9}{'mean':>11}{'difference':>12}{'equal, but':>13}")
    print(f"{'':<34}{'in chat':>9}{'covered':>11}{'covered':>12}{'called diff.':>13}")
    print(f"{'must be within':<34}{'':>9}{'94–96 %':>11}{'94–96 %':>12}{'4–6 %':>13}")
    fine = True
    for place, wanted in enumerate(CORRELATIONS):
        rates = measure(world(*overall(0.3), wanted), args.draws, (args.seed, 0, place))
        fine &= in_range(rates)
        print(line("overall, mean 0.3, 700 questions", wanted, rates) + " OUT" * (not in_range(rates)), flush=True)
    print("for comparison, without a range")
    rows = [(f"overall, mean {mean}, 700 questions", *overall(mean)) for mean in (0.1, 0.03)]
    rows += [
        (f"one ability, mean {mean}, {plural(count, 'item')}", [count], [mean])
        for count in (3, 1)
        for mean in (0.3, 0.1, 0.03)
    ]
    for order, (label, items, means) in enumerate(rows, 1):
        for place, wanted in enumerate((0.0, 0.2, 0.4)):
            if correlation(items, means, LATENT) > wanted:  # else no such world: single rare items correlate less
                rates = measure(world(items, means, wanted), args.draws, (args.seed, order, place))
                print(line(label, wanted, rates), flush=True)
    print(f"\n{'all within range' if fine else 'OUT OF RANGE'}, {time.monotonic() - started:.0f} s")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
