"""What one comparison of two models can see, and how often it is wrong, by simulation.

    python benchmarks/power.py [--draws 20000] [--seed 1]

Needs numpy and a minute. Prints the table of docs/statistics.md; exit code 1 where a rate is off.

Each draw has the structure of the 1M tier: 35 chats, two questions for each of ten abilities, as
many rubric items as that ability has on average. An item is met by a run of a model when

    ability's level + chat + question + item + (question, run) + noise > 0

with independent normal terms; the score is the share of items met. Runs of equal models share all
but the last two terms. How far such runs agree nobody has published: three worlds stand for little,
some and much agreement. The expected score is known exactly.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from beam_common.comparison import verdict_of
from beam_common.stats import Estimate, clustered_mean, t_quantile, wilson_interval

Numbers = NDArray[numpy.float64]  # scores: draws × chats × questions
Models = Sequence[Sequence[Numbers]]  # the scores of each run of each model

CHATS, QUESTIONS = 35, 2  # questions of each ability in a chat
# For each ability: rubric items of a question (event_ordering: its one verdict); its level in terms
# of the mean, made up, as far apart as in real tables.
ITEMS = (1, 4, 1, 3, 2, 1, 4, 3, 6, 2)
LEVELS = (2.0, 0.2, 0.2, 1.5, 1.2, 1.3, 1.0, 1.5, 0.6, 0.5)
MEAN, MARGIN, DROP, VENDORS = 0.31, 0.03, 0.02, 7
# Loss of the mean and number of runs: the reference, an equal model, one with a real drop, one that
# is worse by exactly the margin, further equal ones.
MODELS = ((0, 3), (0, 3), (DROP, 3), (MARGIN, 3), *[(0, 1)] * (VENDORS - 1))
T95, T975, T80 = (t_quantile(p, CHATS - 1) for p in (0.95, 0.975, 0.8))
T_HOLM = t_quantile(1 - 0.05 / (2 * VENDORS), CHATS - 1)  # the first step, without which none is
# Where a rate must lie in each world.
RANGES = {
    "equal model called lower or higher": [(0.04, 0.06)] * 3,
    "any of seven equal ones called so": [(0.0, 0.06)] * 3,
    "equal model called not worse, 1 run": [(0.46, 0.56), (0.59, 0.69), (0.73, 0.83)],
    "equal model called not worse, 3 runs": [(0.84, 0.94), (0.91, 1.0), (0.94, 1.0)],
    "worse by the margin, called not worse, 1 run": [(0.04, 0.07)] * 3,
    "worse by the margin, called not worse, 3 runs": [(0.04, 0.07)] * 3,
}
BATCH = 200  # draws at a time: bounds the memory
# Variances of the terms of chats, questions, items and a question's runs; the noise has 1.
WORLDS = {
    "unsteady": (0.12, 0.0, 0.0, 0.4),
    "middle": (0.19, 0.75, 0.0, 0.2),
    "steady": (0.32, 1.6, 0.7, 0.0),
}


def draw(random: numpy.random.Generator, world: Sequence[float], draws: int) -> list[list[Numbers]]:
    """For each of MODELS the scores of each of its runs."""

    def normal(variance: float, *shape: int) -> NDArray[numpy.float32]:
        terms = random.standard_normal((draws, CHATS, *shape), dtype=numpy.float32)
        return terms * numpy.float32(math.sqrt(variance))

    of_chat, of_question, of_item, of_run = world
    chats = normal(of_chat, 1)
    scores: list[list[list[Numbers]]] = [[[] for _ in range(runs)] for _, runs in MODELS]
    for items, level in zip(ITEMS, LEVELS, strict=True):
        common = (chats + normal(of_question, QUESTIONS))[..., None]
        common = common + normal(of_item, QUESTIONS, items)
        for (loss, _), runs in zip(MODELS, scores, strict=True):
            bar = -NormalDist().inv_cdf((MEAN - loss) * level) * math.sqrt(sum(world) + 1)
            for run in runs:
                own = normal(of_run, QUESTIONS)[..., None] + normal(1, QUESTIONS, items)
                run.append((common + own > bar).mean(axis=-1))
    return [[numpy.concatenate(run, axis=-1) for run in runs] for runs in scores]


def estimates(values: Numbers) -> tuple[Numbers, Numbers]:
    """`clustered_mean` for many draws at once: means and standard errors."""
    means = values.mean(axis=(1, 2))
    sums = (values - means[:, None, None]).sum(axis=2)
    errors = numpy.sqrt(CHATS / (CHATS - 1) * (sums**2).sum(axis=1)) / values[0].size
    return means, errors


def check_against_program(values: Numbers) -> None:
    """Raises ArithmeticError where the program's own arithmetic says otherwise."""
    for chats, mean, error in zip(values, *estimates(values), strict=True):
        cells = numpy.ndenumerate(chats)
        found = clustered_mean({(str(chat), "", place): x for (chat, place), x in cells})
        lower = verdict_of(found, found.p, MARGIN).startswith("lower")
        if abs((found.se or 0) - error) > 1e-9 or lower != (mean + T975 * error < 0):
            raise ArithmeticError(f"the program: {found}, lower: {lower}; here: {mean}, {error}")


def score_rates(reference: Sequence[Numbers]) -> dict[str, NDArray[Any]]:
    """How steady a score is, and whether its interval holds the truth."""
    means, errors = estimates(reference[0])
    size = reference[0][0].size
    ends = [
        wilson_interval(Estimate(size, CHATS, m, e)) for m, e in zip(means, errors, strict=True)
    ]
    low, high = numpy.array(ends, dtype=float).T
    both = zip(*(scores.reshape(len(scores), -1) for scores in reference[:2]), strict=True)
    agreement = [numpy.corrcoef(one, other)[0, 1] for one, other in both]
    again = reference[1].mean(axis=(1, 2))
    return {
        "correlation of two runs' question scores": numpy.array(agreement),
        "SD of the score between two runs": abs(means - again) * math.sqrt(math.pi) / 2,
        "interval of a score, ±": (high - low) / 2,
        "score within its interval": (low <= MEAN) & (high >= MEAN),
    }


def difference_rates(models: Models, runs: int) -> dict[str, NDArray[Any]]:
    """What is said of an equal model, of a drop, and of one that is worse by the margin."""
    reference, *others = (numpy.mean(model[:runs], axis=0) for model in models[:4])
    found = [estimates(other - reference) for other in others]
    (same, error), (drop, drop_error), (worse, worse_error) = found
    many = "1 run" if runs == 1 else f"{runs} runs"
    return {
        f"interval of a difference, {many}, ±": T975 * error,
        f"smallest difference seen in 80 %, {many}": (T975 + T80) * error,
        f"true drop of {DROP} called lower, {many}": drop + T975 * drop_error < 0,
        f"equal model called not worse, {many}": same - T95 * error > -MARGIN,
        f"worse by the margin, called not worse, {many}": worse - T95 * worse_error > -MARGIN,
    }


def vendor_rates(models: Models) -> dict[str, NDArray[Any]]:
    """False alarms among equal models, and how far apart their abilities look."""
    gaps = [model[0] - models[0][0] for model in (models[1], *models[4:])]
    t = numpy.array([abs(means) / errors for means, errors in map(estimates, gaps)])
    by_ability = gaps[0].reshape(len(gaps[0]), CHATS, len(ITEMS), QUESTIONS).mean(axis=(1, 3))
    return {
        "equal model called lower or higher": t[0] > T975,
        "any of seven equal ones called so": t.max(axis=0) > T_HOLM,
        "largest": abs(by_ability).max(axis=1),
    }


def measure(world: Sequence[float], draws: int, seed: int) -> dict[str, float]:
    """The column of the table for one world."""
    random, batches = numpy.random.default_rng(seed), []
    for _ in range(0, draws, BATCH):
        models = draw(random, world, BATCH)
        rates = score_rates(models[0]) | vendor_rates(models)
        batches.append(rates | difference_rates(models, 1) | difference_rates(models, 3))
    check_against_program(models[2][0] - models[0][0])
    whole = {name: numpy.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    largest = whole.pop("largest")
    for name, quantile in (("median", 0.5), ("95 %", 0.95)):
        whole[f"largest difference of ten abilities, {name}"] = numpy.quantile(largest, quantile)
    return {name: float(values.mean()) for name, values in whole.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=20_000, help="for each world")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    started = time.monotonic()
    columns = [measure(world, args.draws, args.seed) for world in WORLDS.values()]
    outside = 0
    print(f"| {args.draws:,} draws | {' | '.join(WORLDS)} |", "|---|---|---|---|", sep="\n")
    for name in columns[0]:
        digits = ".1%" if "called" in name or "within" in name else ".3f"
        cells = [format(column[name], digits) for column in columns]
        for place, (low, high) in enumerate(RANGES.get(name, [])):
            if not low <= columns[place][name] <= high:
                cells[place] += " OUTSIDE"
                outside += 1
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"\n{outside} outside their ranges, {time.monotonic() - started:.0f} s")
    return 1 if outside else 0


if __name__ == "__main__":
    raise SystemExit(main())
