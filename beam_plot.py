"""The picture of one or more runs: abilities as rows, runs as points with their intervals.

matplotlib is optional and is imported only when a plot is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from beam_common import ABILITIES, UsageError, write_whole
from beam_stats import Estimate
from beam_summary import Run, bounds, number, summary_rows
from beam_width import label, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, told apart by the colour-blind too; the markers tell the runs apart in black and white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DARK, GREY, LIGHT, SHADE = "#222222", "#666666", "#dddddd", "#f2f2f2"
# Inches: the figure is as wide as the text of a page; names of abilities stand left, numbers of questions right.
WIDTH, LEFT, RIGHT, ABOVE = 7.2, 1.95, 0.85, 0.5
OVERALL_GAP = 0.35  # rows between overall and the abilities


def check(path: str) -> None:
    """Refuse a plot that could not be written, before any work is done. Raises UsageError."""
    place = Path(path)
    if place.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: the name must end in one of {', '.join(FORMATS)}")
    if place.is_dir() or not place.parent.is_dir():
        raise UsageError(f"--plot {path}: {'this is a folder' if place.is_dir() else 'its folder does not exist'}")
    try:
        import matplotlib  # noqa: F401  (only whether it is there)
    except ImportError as error:
        raise UsageError("--plot needs matplotlib, get it with: pip install matplotlib") from error


def write(path: str, runs: Sequence[Run]) -> None:
    """Draw the runs into a file, whose suffix says the format; it appears whole or not at all. Raises UsageError."""
    import warnings

    figure, suffix = draw(runs), Path(path).suffix.lower()[1:]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # a model's name may be in any script
            write_whole(path, lambda file: figure.savefig(file, format=suffix, dpi=200))
    except OSError as error:
        raise UsageError(f"--plot {path} cannot be written: {error.strerror or error}") from error


def draw(runs: Sequence[Run]) -> Figure:
    """The figure: overall set apart at the top, an ability a row, each run a point with its 95 % interval."""
    from matplotlib.figure import Figure

    scores = [{row.name: row.estimate for row in summary_rows(run)} for run in runs]
    names = list(dict.fromkeys(name for of_run in scores for name in of_run))
    places = {name: place + OVERALL_GAP * (place > 0) for place, name in enumerate(names)}
    notes = small_print(runs)
    below = 0.6 + 0.2 * len(runs) + 0.15 * len(notes)
    rows = (len(names) + OVERALL_GAP) * (0.27 + 0.1 * (len(runs) - 1))
    figure = Figure(figsize=(WIDTH, ABOVE + rows + below))
    across, up = WIDTH, ABOVE + rows + below
    axes = figure.add_axes((LEFT / across, below / up, (WIDTH - LEFT - RIGHT) / across, rows / up))
    _frame(axes, places, scores)
    step = min(0.24, 0.66 / len(runs))
    handles = [
        _points(axes, order, {name: places[name] + (order - (len(runs) - 1) / 2) * step for name in names}, of_run)
        for order, of_run in enumerate(scores)
    ]
    legend = axes.legend(
        handles, [str(order) for order in range(len(runs))],
        loc="upper left", bbox_to_anchor=(0.02 / across, (below - 0.5) / up), bbox_transform=figure.transFigure,
        frameon=False, borderpad=0, borderaxespad=0, labelspacing=0.45, handletextpad=0.2, fontsize=9, labelcolor=DARK,
    )  # fmt: skip
    for text, run, of_run in zip(legend.get_texts(), runs, scores, strict=True):
        # set only here, because the legend drops a label that begins with an underscore
        text.set_text(f"{label(run.name, 64)}:  overall {number(of_run['overall'].mean, 3)}, {run.size}")
        text.set_parse_math(False)
    figure.text(0.12 / across, 0.1 / up, "\n".join(notes), size=7, color=GREY, linespacing=1.4, parse_math=False)
    figure.text(0.12 / across, 1 - 0.16 / up, "BEAM score by ability", size=12, weight="bold", color=DARK, va="top")
    return figure


def _frame(axes: Axes, places: Mapping[str, float], scores: Sequence[Mapping[str, Estimate]]) -> None:
    """Scale, grid and the texts at both ends of each row."""
    end = scale_end([estimate for of_run in scores for estimate in of_run.values()])
    axes.set_xlim(0, end)
    axes.set_ylim(max(places.values()) + 0.5, -0.5)
    axes.axhspan(-0.5, 0.5, color=SHADE, zorder=0, linewidth=0)
    axes.grid(axis="x", color=LIGHT, linewidth=0.7, zorder=1)
    axes.set_axisbelow(True)
    axes.set_xticks([tick / 10 for tick in range(0, round(end * 10) + 1, 2 if end > 0.8 else 1)])
    shown = [
        name.replace("multi_s", "multi-s").replace("_", " ") if name in ABILITIES else label(name, 20)
        for name in places
    ]
    axes.set_yticks(list(places.values()), shown)
    for text, name in zip(axes.get_yticklabels(), places, strict=True):
        text.set(weight="bold" if name == "overall" else "normal", parse_math=False)
    axes.tick_params(axis="both", length=0, pad=7, labelsize=9, labelcolor=DARK)
    axes.set_xlabel("mean score with 95 % interval", size=8.5, color=DARK)
    for side in axes.spines.values():
        side.set_visible(False)
    for name, place in places.items():
        numbers = sorted({of_run[name].n for of_run in scores if name in of_run})
        count = "–".join(str(n) for n in dict.fromkeys((numbers[0], numbers[-1])))
        right = axes.get_yaxis_transform()
        axes.text(1.02, place, f"n={count}", transform=right, size=7.5, color=GREY, va="center_baseline")


def _points(axes: Axes, order: int, heights: Mapping[str, float], of_run: Mapping[str, Estimate]) -> Line2D:
    """Draw one run, with a colour and a marker of its own; give back what stands for it in the legend."""
    colour = COLOURS[order % len(COLOURS)]
    means = {name: estimate.mean for name, estimate in of_run.items() if estimate.mean is not None}
    for name in means:
        ends = bounds(of_run[name])
        if ends:
            axes.plot(ends, (heights[name],) * 2, color=colour, linewidth=1.5, solid_capstyle="butt", zorder=2)
    (points,) = axes.plot(
        list(means.values()), [heights[name] for name in means], linestyle="none", clip_on=False, zorder=3,
        color=colour, marker=MARKERS[order % len(MARKERS)], markersize=6, markeredgewidth=1.1,
        markerfacecolor=colour if order < len(MARKERS) else "white",  # filled, then hollow
    )  # fmt: skip
    return points


def scale_end(estimates: Sequence[Estimate]) -> float:
    """Where the scale from 0 ends: the next tenth beyond every point and interval, between 0.2 and 1."""
    highest = max((max(estimate.mean or 0, *(bounds(estimate) or (0,))) for estimate in estimates), default=0)
    return min(1.0, max(0.2, math.ceil(highest * 10 + 0.1) / 10))


def small_print(runs: Sequence[Run]) -> list[str]:
    """Judge, ordering mode and what the intervals are, in lines that fit below the plot."""
    judges = list(dict.fromkeys(label(run.judge, 48) for run in runs))
    modes = list(dict.fromkeys(run.ordering for run in runs))
    chats = sorted({len({key[0] for key in run.scores}) for run in runs})
    many = "–".join(str(count) for count in dict.fromkeys((chats[0], chats[-1])))
    judged_by = "Judge" if len(judges) == 1 else "Judges, which differ"
    text = (
        f"{judged_by}: {', '.join(judges)}. event_ordering: {', '.join(modes)}. "
        f"Intervals: clustered by chat ({many} {'chat' if many == '1' else 'chats'}), Student's t."
    )
    if chats[0] == 1:
        text += " One chat gives no interval."
    return wrapped(text, 135)
