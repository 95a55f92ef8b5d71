"""Several runs against the first: the object of which text, picture and page are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from urllib.parse import urlsplit

from beam_common.messages import UsageError, one_line, plural
from beam_common.rows import Json, QuestionKey, Row
from beam_common.stats import (
    ALPHA,
    Estimate,
    Scores,
    clustered_mean,
    detectable,
    differences,
    fisher,
    holm,
    is_not_worse,
    mean_of,
    paired_difference,
    runs_needed,
    wilson_interval,
)
from beam_common.summary import (
    Run,
    by_ability,
    count_lines,
    judge_trouble,
    kinds_of,
    load_run,
    notes_of,
)
from beam_common.tables import KINDS, interval, label, number

REMARKABLE = 0.01  # p of the exact test below which answers are named before the verdict
ENDED = {"cut": "were cut at the length limit", "empty": "were empty", "failed": "failed"}
WORDS = {
    "reference": "reference",
    "lower": "lower by {size:.3f} ({near:.3f} to {far:.3f})",
    "lower within margin": "lower by {size:.3f} ({near:.3f} to {far:.3f}), "
    "not worse by more than {margin:g}",
    "not worse": "not worse by more than {margin:g}",
    "higher": "higher by {size:.3f} ({near:.3f} to {far:.3f})",
    "undecided": "undecided: this comparison sees differences from {seen:.3f} on; "
    "about {runs} runs of each would settle {margin:g}",
}
MAY_DIFFER = {"answers' base_url", "answers' model"}


@dataclass(frozen=True)
class Subject:
    """What is compared: a run of one or more files, averaged question by question.

    Answers that were judged more than once count once.
    """

    name: str
    files: Sequence[Run]
    scores: Scores
    half_points: Scores  # none unless all are known
    answers: Sequence[tuple[QuestionKey, Json]]  # none unless all are known
    difference: Estimate  # to the reference

    def marked(self, kind: str) -> list[QuestionKey]:
        """The question of each answer of that kind."""
        return [key for key, answer in self.answers if kind in kinds_of(answer)]


NOBODY = Subject("", (), {}, {}, (), Estimate(0, 0))  # whom the reference is compared with


# ------------------------------------------------------------------------------------------------
# Reading.


def load_subjects(arguments: Sequence[str]) -> list[Subject]:
    """The runs of a command line, `[NAME=]SCORES[,SCORES…]` each; the first is the reference."""
    loaded = [_names_and_files(argument) for argument in arguments]
    subjects: list[Subject] = []
    for names, runs in loaded:
        own = [name for name in names if sum(name in others for others, _ in loaded) == 1]
        if not own:
            raise UsageError(f"two runs are called {names[-1]}; give one a name: NAME=SCORES")
        subjects.append(_subject(own[0], runs, subjects[0] if subjects else NOBODY))
    return subjects


def _names_and_files(argument: str) -> tuple[list[str], list[Run]]:
    """What a run may be called: as it is said, or by its model, by model and host, by its file."""
    name, equals, files = argument.partition("=")
    if not equals or "/" in name:  # a `=` behind a `/` belongs to a path
        name, files = "", argument
    runs = [load_run(Path(file)) for file in files.split(",")]
    if name := label(name):
        return [name], runs
    path = label(str(runs[0].path))
    model, url = (runs[0].facts.get(f"answers' {name}") for name in ("model", "base_url"))
    return [model, f"{model} ({urlsplit(url).netloc})", path] if model and url else [path], runs


def _subject(name: str, runs: Sequence[Run], reference: Subject) -> Subject:
    scores = _averaged([run.scores for run in runs])
    halves = [run.half_points for run in runs]
    answers = {tuple(run.answer_files): run.answers for run in runs}.values()
    return Subject(
        name,
        runs,
        scores,
        _averaged(halves) if all(halves) else {},
        [pair for rows in answers for pair in rows.items()] if all(answers) else [],
        paired_difference(reference.scores, scores),
    )


def _averaged(files: Sequence[Scores]) -> Scores:
    """Each question's mean over the files that have it."""
    keys = {key for file in files for key in file}
    return {key: fmean(file[key] for file in files if key in file) for key in keys}


# ------------------------------------------------------------------------------------------------
# The object.


def report_object(subjects: Sequence[Subject], margin: float) -> Row:
    """What `--format json` prints."""
    reference, *others = subjects
    rows = [_run_row(reference, NOBODY, margin)]
    rows += [_run_row(subject, reference, margin) for subject in others]
    _adjust(rows)
    _adjust([ability for row in rows for ability in row["abilities"].values()])
    for subject, row in zip(others, rows[1:], strict=True):
        row["verdict"] = verdict_of(subject.difference, row["p_holm"], margin)
    notes = notes_on(subjects)
    return {"margin": margin, "reference": reference.name, "notes": notes, "runs": rows}


def _adjust(rows: Sequence[Row]) -> None:
    """Adjust the p values of all rows together."""
    tested = [row for row in rows if row["p"] is not None]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p


def _run_row(subject: Subject, reference: Subject, margin: float) -> Row:
    tokens = [answer.get("completion_tokens") for _, answer in subject.answers]
    halves = paired_difference(reference.half_points, subject.half_points)
    return {
        "name": subject.name,
        "files": [str(run.path) for run in subject.files],
        "n": len(subject.scores),
        "chats": len({chat for chat, _, _ in subject.scores}),
        **_score(subject.scores),
        "half_points": mean_of(subject.half_points.values()),
        **{kind: len(subject.marked(kind)) if subject.answers else None for kind in KINDS},
        "mean_completion_tokens": mean_of([count for count in tokens if count is not None]),
        **_difference(subject.difference),
        "half_points_difference": halves.mean,
        "detectable": detectable(subject.difference),
        "runs_needed": runs_needed(subject.difference, margin),
        "verdict": "reference",
        "hides": {kind: _exact_p(subject, reference, kind) for kind in KINDS},
        "abilities": {
            ability: _score(scores) | _difference(paired_difference(reference.scores, scores))
            for ability, scores in by_ability(subject.scores).items()
        },
    }


def _score(scores: Scores) -> Row:
    found = clustered_mean(scores)
    low, high = wilson_interval(found)
    return {"n": found.n, "score": found.mean, "low": low, "high": high}


def _difference(found: Estimate) -> Row:
    ends = zip(("difference_low", "difference_high"), found.interval(), strict=True)
    return {"difference": found.mean, **dict(ends), "p": found.p, "p_holm": None}


def _exact_p(subject: Subject, reference: Subject, kind: str) -> float | None:
    """p of the exact test whether both have the same share of answers of that kind."""
    sides = (subject.marked(kind), subject.answers, reference.marked(kind), reference.answers)
    return fisher(*map(len, sides)) if subject.answers and reference.answers else None


def verdict_of(found: Estimate, p_holm: float | None, margin: float) -> str:
    """The verdict on a difference to the reference, as the object has it."""
    not_worse = is_not_worse(found, margin)
    if found.mean is None or p_holm is None or p_holm >= ALPHA:
        return "not worse" if not_worse else "undecided"
    if found.mean > 0:
        return "higher"
    return "lower within margin" if not_worse else "lower"


def notes_on(subjects: Sequence[Subject]) -> list[str]:
    """What differs from the reference, and what makes a score something else; each once."""
    said: dict[str, list[str]] = {}  # text, names of runs
    for subject in subjects:
        for text in sorted(_notes_of(subject, subjects[0])):
            said.setdefault(text, []).append(subject.name)
    return [one_line(f"{text} ({', '.join(names)})") for text, names in said.items()]


def _notes_of(subject: Subject, reference: Subject) -> set[str]:
    apart = len(subject.scores.keys() ^ reference.scores.keys())
    found = {f"left out of the difference, scored on one side only: {apart}"} if apart else set()
    wanted = reference.files[0].facts
    for run in subject.files:
        found.update(judge_trouble(run), notes_of(run))
        found.update(line for line, odd in count_lines(run).items() if odd)
        differing = {name for name, _ in wanted.items() ^ run.facts.items()} - MAY_DIFFER
        for name in differing if wanted and run.facts else ():
            mine, other = (facts.get(name, "not set") for facts in (run.facts, wanted))
            found.add(f"{name} differs: {mine}, reference: {other}")
    return found


# ------------------------------------------------------------------------------------------------
# Words.


def with_words(report: Json, subjects: Sequence[Subject]) -> Row:
    """The object with what is said and drawn of each run, for people.

    `words`: the verdict, `hidden`: sentences on what the score hides, `answers`: of how many `cut`,
    `empty` and `failed` are (0: unknown), `adjusted`: the interval of the difference adjusted
    for the number of runs.
    """
    comparisons = max(1, len(subjects) - 1)
    rows = [
        {
            **row,
            "words": words_of(row, report["margin"]),
            "hidden": hides_of(subject, subjects[0], row),
            "answers": len(subject.answers),
            "adjusted": subject.difference.interval(ALPHA / comparisons),
        }
        for subject, row in zip(subjects, report["runs"], strict=True)
    ]
    return {**report, "runs": rows}


def words_of(row: Json, margin: float) -> str:
    """The verdict of a run in words, the same wherever it is shown."""
    if row["verdict"] == "undecided" and row["detectable"] is None:
        return "undecided: too few chats in common with the reference"
    numbers = (row[f"difference{end}"] or 0 for end in ("", "_low", "_high"))
    near, size, far = sorted(min(abs(number), 1) for number in numbers)
    return WORDS[row["verdict"]].format(
        near=near,
        size=size,
        far=far,
        margin=margin,
        seen=row["detectable"] or 0,
        runs=max(2, row["runs_needed"] or 0) * len(row["files"]),
    )


def hides_of(subject: Subject, reference: Subject, row: Json) -> list[str]:
    """`lower by 0.35, of it 0.35 from 21 answers that failed`, where that is beyond chance."""
    gaps = differences(reference.scores, subject.scores)
    total = row["difference"] or 0
    word, sign = ("higher", 1) if total > 0 else ("lower", -1)
    said = []
    for kind, p in row["hides"].items():
        if p is None or p >= REMARKABLE or not gaps:
            continue
        mine, others = subject.marked(kind), reference.marked(kind)
        rest = {key: gap for key, gap in gaps.items() if key not in [*mine, *others]}
        left = clustered_mean(rest)
        part = total - sum(rest.values()) / len(gaps)
        said.append(
            f"{word} by {number(sign * total)}, of it {number(sign * part)} from "
            f"{plural(len(mine), 'answer')} that {ENDED[kind]} (reference: {len(others)}; p < "
            f"{0.001 if p < 0.001 else REMARKABLE}); over the other {plural(left.n, 'question')} "
            f"{number(left.mean, sign='+')} ({interval(left.interval(), '+')})"
        )
    return said
