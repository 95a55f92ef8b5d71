"""Summary, comparison and plot from one or more scores.jsonl; no endpoint is needed.

    python beam_report.py scores.jsonl [more.jsonl ...] [--format text|markdown|json] [--plot FILE]

Prints the summary of each file and, with two or more, the difference of each to the first: paired by question,
with its 95 % interval, and whether it is beyond noise. Intervals count chats, not questions, because the questions
of a chat stand or fall together; with a single chat there is none. The overall difference is the result; those of
single abilities are exploratory, and their p values are adjusted for their number (Holm).

Beside each scores.jsonl its scores.details.jsonl gives the mean with half points kept and what was unreadable, and
its scores.run.json the names of model and judge. Both may be missing: what is then unknown is shown as unknown.
Damaged lines are named and left out; of several lines of one question the last counts.

JSON keys, null where something is unknown:
  version, level, runs, comparisons
  run: name, file, n, selected, event_ordering, mixed_settings, mixed_answers, shrunk, settings, data, counts, overall, abilities
  counts: unreadable, failed, empty, errors, unscorable, not_judged, stale, outdated, without_details
  overall and each ability of a run: n, chats, mean, standard_error, low, high, half_points
  comparison: first, second, headline, notes, only_first, only_second, overall, abilities
  overall and each ability of a comparison: n, chats, difference (second - first), standard_error, low, high, p,
  p_holm (abilities), verdict (lower, higher, noise, or null without an interval)
Bounds in JSON are the formula's own; text, markdown and plot end them where a score ends, at 0 and 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import beam_plot
from beam_cli import Parser, command
from beam_common import VERSION, UsageError, beside, one_line, plural, say
from beam_settings import load_sidecar
from beam_stats import LEVEL, Difference, Estimate, holm, paired_difference
from beam_summary import (
    Run,
    bounds,
    by_ability,
    counts_lines,
    interval,
    load_run,
    mixed_lines,
    number,
    ordering_of,
    print_lines,
    summary_lines,
    summary_rows,
)
from beam_width import WIDTH, columns, filled, label, shortened, wrapped

ALPHA = 1 - LEVEL
# What must agree between two runs for their scores to be comparable: key in the settings, name for people.
COMPARED = {
    "judge_model": "judge",
    "judge_base_url": "judge endpoint",
    "judge_temperature": "judge temperature",
    "judge_max_tokens": "judge max tokens",
    "judge_reasoning_effort": "judge reasoning effort",
    "judge_extra_body": "judge extra body",
    "criterion_prompt_sha256": "criterion prompt",
    "ordering_prompt_sha256": "ordering prompt",
}
VERDICTS = {"lower": "lower", "higher": "higher", "noise": "no difference beyond noise"}
SHORTEST_NAME = 8  # columns; less than that would be left of a name in a title that says much already
SHORT_VERDICTS = VERDICTS | {"noise": "within noise"}


@dataclass(frozen=True)
class Comparison:
    """The second run against the first. `adjusted` holds Holm's p values of the abilities that have an interval."""

    first: Run
    second: Run
    notes: list[str]
    overall: Difference
    abilities: Mapping[str, Difference]
    adjusted: Mapping[str, float]


# ---------------------------------------------------------------------------------------------------------------
# Comparisons.


def compare(first: Run, second: Run) -> Comparison:
    """The differences between two runs and what to know before reading them."""
    overall = paired_difference(first.scores, second.scores)
    one, other = by_ability(first.scores), by_ability(second.scores)
    names = [*one, *(name for name in other if name not in one)]
    abilities = {name: paired_difference(one.get(name, {}), other.get(name, {})) for name in names}
    tested = {name: found.estimate.p for name, found in abilities.items() if found.estimate.p is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    return Comparison(first, second, notes_on(first, second, overall), overall, abilities, adjusted)


def notes_on(first: Run, second: Run, overall: Difference) -> list[str]:
    """What makes the two runs hard to compare, one text each."""
    one, other = comparable(first), comparable(second)
    first_name, second_name = shortened(first.name, 40), shortened(second.name, 40)
    notes = [
        f"{name} differs: {_setting(one[name])} for {first_name}, {_setting(other[name])} for {second_name}"
        for name in one
        if name in other and one[name] != other[name]
    ]
    wanted = [*COMPARED.values(), "event_ordering", "questions file", "chats file"]
    if unknown := [name for name in wanted if name not in one or name not in other]:
        notes.append(f"not known of both runs, and possibly different: {', '.join(unknown)}")
    for run, name in ((first, first_name), (second, second_name)):
        if run.size.endswith("selected"):
            notes.append(f"{name} is partial: {run.size}")
        if run.mixed_settings:
            notes.append(f"{name} was judged with settings that changed on the way, or are unknown of a part")
        if run.mixed_answers:
            notes.append(f"{name} was answered with settings that changed on the way, or are unknown of a part")
        if run.counts.outdated:
            notes.append(f"{name}: {plural(run.counts.outdated, 'score')} of answers that have changed since")
        if lost := (run.counts.unreadable or 0) + (run.counts.failed or 0):
            notes.append(f"{name}: {plural(lost, 'verdict')} unreadable or failed, counted as 0")
    if overall.only_first or overall.only_second:
        notes.append(
            f"left out: {plural(overall.only_first, 'question')} only in {first_name}, "
            f"{overall.only_second:,} only in {second_name}"
        )
    return notes


def comparable(run: Run) -> dict[str, Any]:
    """What must agree with another run, by the names that people read; what is unknown is left out."""
    known = {name: run.settings[key] for key, name in COMPARED.items() if key in run.settings}
    if run.ordering != "unknown":
        known["event_ordering"] = run.ordering
    if run.ordering in ("tau", "mixed") and "alignment_prompt_sha256" in run.settings:
        known["alignment prompt"] = run.settings["alignment_prompt_sha256"]
    known |= {f"{name} of the answers": value for name, value in run.asked.items()}
    return known | {f"{part} file": ", ".join(digests) for part, digests in run.data.items()}


def _setting(value: Any) -> str:
    """A setting for people; of a digest its first 12 digits."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return label(re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text), 60) or "none"


def verdict_of(found: Difference, adjusted: float | None = None) -> str | None:
    """`lower`, `higher` or `noise`; None without an interval. An adjusted p value, where given, has the last word."""
    direction = found.estimate.direction
    if direction is None:
        return None
    if direction == 0 or (adjusted is not None and adjusted >= ALPHA):
        return "noise"
    return "higher" if direction > 0 else "lower"


def headline(comparison: Comparison) -> str:
    """The overall verdict in words: `lower than FIRST by 0.021 (0.006 to 0.036)`."""
    found, first = comparison.overall.estimate, shortened(comparison.first.name, 40)
    if found.mean is None:
        return f"no question in common with {first}"
    verdict, ends = verdict_of(comparison.overall), bounds(found, lowest=-1)
    if verdict == "noise":
        return "no difference beyond noise"
    if verdict is None or ends is None:
        return f"{number(found.mean, 3, sign=True)} against {first}; one chat in common: no interval, no verdict"
    near, far = sorted(map(abs, ends))
    return f"{verdict} than {first} by {amount(found.mean)} ({amount(near)} to {amount(far)})"


def amount(difference: float) -> str:
    """The size of a difference that is beyond noise: what rounds to 0 is not shown as 0."""
    return number(abs(difference), 3) if abs(difference) >= 0.0005 else "<0.001"


def distinct_names(runs: Sequence[Run], hosts: Sequence[str]) -> list[Run]:
    """The runs, those of one model told apart by the hosts of its endpoints, or by as much of their path as it takes."""
    named = []
    for place, run in enumerate(runs):
        twins = [other.path for other in runs if other.name == run.name and other is not run]
        endpoints = [host for other, host in zip(runs, hosts, strict=True) if other.name == run.name]
        name = run.name
        if twins and all(endpoints) and len(set(endpoints)) == len(endpoints):
            name = f"{run.name} ({hosts[place]})"
        elif twins:
            parts = run.path.parts
            tails = (Path(*parts[-length:]) for length in range(1, len(parts) + 1))
            tail = next((tail for tail in tails if not any(_ends_with(twin, tail) for twin in twins)), None)
            file = one_line(str(tail), 100) if tail else f"{run.path.name}, no. {place + 1}"
            name = f"{run.name} ({file})" if run.name != run.path.name else file
        named.append(replace(run, name=name))
    return named


def hosts_of(run: Run) -> str:
    """The hosts (with ports) that gave a run's answers; empty unless its sidecar tells that of every answers file."""
    try:
        sidecar = load_sidecar(beside(str(run.path).removesuffix(".gz"), ".run.json")) or {}
        files = [item if isinstance(item, dict) else {} for item in sidecar.get("answers", [])]
        hosts = [urlsplit(str(file.get("base_url") or "")).netloc.rpartition("@")[2] for file in files]
    except (UsageError, ValueError):  # of the sidecar it has been said
        return ""
    return label(" + ".join(dict.fromkeys(hosts)), 60) if all(hosts) else ""


def _ends_with(path: Path, tail: Path) -> bool:
    return path.parts[-len(tail.parts) :] == tail.parts


# ---------------------------------------------------------------------------------------------------------------
# Text.


def comparison_rows(comparison: Comparison) -> list[tuple[str, Difference, float | None]]:
    """Name, difference and adjusted p value of each row of a comparison, overall (whose p needs no adjusting) first."""
    rows: list[tuple[str, Difference, float | None]] = [("overall", comparison.overall, None)]
    return rows + [(name, found, comparison.adjusted.get(name)) for name, found in comparison.abilities.items()]


def difference_interval(estimate: Estimate) -> str:
    """The interval of a difference as text, `-0.036 to +0.006`; `-` without one."""
    ends = bounds(estimate, lowest=-1)
    return f"{signed(ends[0])} to {signed(ends[1])}" if ends else "-"


def signed(end: float) -> str:
    """An end of an interval with its sign, also where it rounds to 0: on which side of 0 it lies is what matters."""
    text = number(end, 3, sign=True)
    return text if not end or float(text) else f"{'-' if end < 0 else '+'}{text}"


def p_text(p: float | None) -> str:
    """A p value; beside the threshold with as many digits as show on which side of it the value lies."""
    if p is None or p < 0.001:
        return "-" if p is None else "<0.001"
    digits = next((digits for digits in range(3, 9) if float(f"{p:.{digits}f}") != round(ALPHA, 9)), 3)
    return f"{p:.{digits}f}"


def comparison_lines(comparison: Comparison) -> list[str]:
    """A comparison for people, in lines of at most 80 columns."""
    names = (comparison.second.name, comparison.first.name)
    room = WIDTH - len("===  against  ===")
    second, first = (shortened(a, max(room // 2, room - columns(b))) for a, b in (names, names[::-1]))
    lines = [f"=== {second} against {first} ==="]
    for note in comparison.notes:
        lines += wrapped(f"note: {note}")
    lines += wrapped(f"verdict: {headline(comparison)}")
    lines += ["", f"{'':26}{'difference':>10}  {'95 % interval':<16}{'pairs':>6}{'p (Holm)':>9}"]
    for name, found, adjusted in comparison_rows(comparison):
        left = filled(name if name == "overall" else f"  {label(name, 24)}", 26)
        estimate = found.estimate
        cells = f"{number(estimate.mean, sign=True):>10}  {difference_interval(estimate):<16}{estimate.n:>6}"
        if name == "overall":
            lines += [
                f"{left}{cells}",
                f"exploratory (p adjusted for {plural(len(comparison.adjusted), 'comparison')}):",
            ]
        else:
            words = SHORT_VERDICTS.get(verdict_of(found, adjusted) or "", "")
            lines.append(f"{left}{cells}{p_text(adjusted):>7} {words}".rstrip())
    return lines


def titled(line: str, name: str) -> str:
    """The first line of a summary with the run's name, where that fits. Its beginning is a stable format: never cut."""
    room = WIDTH - len(line) - len(" · ")
    if name and room >= SHORTEST_NAME:
        return f"{line} · {shortened(name, room)}"
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def text_lines(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> list[str]:
    lines: list[str] = []
    for run in runs:
        first, *others = summary_lines(run)
        lines += [titled(first, run.name if len(runs) > 1 else ""), *(shortened(line, WIDTH) for line in others), ""]
    for comparison in comparisons:
        lines += [*comparison_lines(comparison), ""]
    return lines[:-1]


# ---------------------------------------------------------------------------------------------------------------
# Markdown and JSON.


def _cell(text: str) -> str:
    """A text fit for a Markdown table. An underscore between letters is one already."""
    return re.sub(r"([\\|*~&<>`\[\]]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", label(text, 1000))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; the first and a last column `verdict` are text, the others are numbers."""
    rule = [":--" if place == 0 or head == "verdict" else "--:" for place, head in enumerate(heads)]
    return ["| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows)]


def markdown_lines(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> list[str]:
    """Tables to paste into a report: the scores of each run, then each difference to the first."""
    lines: list[str] = []
    for run in runs:
        rows: list[tuple[str, ...]] = []
        for row in summary_rows(run):
            cells = (number(row.estimate.mean), interval(row.estimate), number(row.half_points), f"{row.estimate.n}")
            rows.append((_bold(row.name), *cells))
        mode = ordering_of(run)
        ordering = mode and f", event_ordering: {mode}"
        chats = f"Intervals by {plural(len({chat for chat, _, _ in run.scores}), 'chat')}."
        lines += [f"### {_cell(run.name)} ({run.size})", "", f"Judge: {_cell(run.judge)}{ordering}. {chats}", ""]
        lines += [f"**{line}**\n" for line in mixed_lines(run)]
        lines += [*_table(("", "score", "95 % interval", "half points kept", "n"), rows), ""]
        lines += [f"- {line}" for line in counts_lines(run)] + [""]
    for comparison in comparisons:
        second, first = _cell(comparison.second.name), _cell(comparison.first.name)
        lines += [f"### {second} against {first}", ""]
        if comparison.notes:
            lines += [*(f"- {_cell(note)}" for note in comparison.notes), ""]
        lines += [f"**Overall: {_cell(headline(comparison))}.**", ""]
        rows = []
        for name, found, adjusted in comparison_rows(comparison):
            verdict = VERDICTS.get(verdict_of(found, adjusted) or "", "no interval")
            estimate = found.estimate
            ends = (number(estimate.mean, sign=True), difference_interval(estimate))
            rows.append((_bold(name), *ends, f"{estimate.n}", p_text(adjusted), verdict))
        lines += [*_table(("", "difference", "95 % interval", "pairs", "p (Holm)", "verdict"), rows), ""]
        lines += ["Single abilities are exploratory; their p values are adjusted after Holm.", ""]
    return lines[:-1]


def _bold(name: str) -> str:
    return "**overall**" if name == "overall" else _cell(name)


def report_object(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """All that is known, as the help page lists it."""
    return {
        "version": VERSION,
        "level": LEVEL,
        "runs": [_run_object(run) for run in runs],
        "comparisons": [_comparison_object(comparison) for comparison in comparisons],
    }


def _run_object(run: Run) -> dict[str, Any]:
    rows = []
    for row in summary_rows(run):
        rows.append((row.name, asdict(row.estimate) | {"half_points": row.half_points}))
        del rows[-1][1]["p"]  # that a mean score is not 0 says nothing
    return {
        "name": run.name,
        "file": str(run.path),
        "n": len(run.scores),
        "selected": run.selected,
        "event_ordering": run.ordering,
        "mixed_settings": run.mixed_settings,
        "mixed_answers": run.mixed_answers,
        "shrunk": run.shrunk,
        "settings": run.settings,
        "data": run.data,
        "counts": asdict(run.counts),
        "overall": rows[0][1],
        "abilities": dict(rows[1:]),
    }


def _comparison_object(comparison: Comparison) -> dict[str, Any]:
    rows = []
    for name, found, adjusted in comparison_rows(comparison):
        row = asdict(found.estimate)
        row["difference"] = row.pop("mean")
        rows.append((name, row | {"p_holm": adjusted, "verdict": verdict_of(found, adjusted)}))
    del rows[0][1]["p_holm"]
    return {
        "first": comparison.first.name,
        "second": comparison.second.name,
        "headline": headline(comparison),
        "notes": comparison.notes,
        "only_first": comparison.overall.only_first,
        "only_second": comparison.overall.only_second,
        "overall": rows[0][1],
        "abilities": dict(rows[1:]),
    }


# ---------------------------------------------------------------------------------------------------------------
# Command line.


def parser() -> Parser:
    flags = Parser(__doc__ or "")
    flags.add_argument("scores", nargs="+", metavar="SCORES", help="a scores.jsonl; others are compared with the first")
    flags.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="(default: %(default)s)")
    flags.add_argument("--plot", metavar="FILE", help="write a plot, too: .png, .svg or .pdf; needs matplotlib")
    return flags


@command
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if args.plot is not None:
        beam_plot.check(args.plot)
    runs = [load_run(path) for path in args.scores]
    runs = distinct_names(runs, [hosts_of(run) for run in runs])
    comparisons = [compare(runs[0], run) for run in runs[1:]]
    if args.format == "json":
        print(json.dumps(report_object(runs, comparisons), indent=1, allow_nan=False))
    else:
        print_lines((text_lines if args.format == "text" else markdown_lines)(runs, comparisons))
    if args.plot is not None:
        beam_plot.write(args.plot, runs)
        say(f"plot written to {args.plot}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
