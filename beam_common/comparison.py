"""Several runs against the first: the object of which text, picture and page are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from beam_common.messages import UsageError, one_line, plural
from beam_common.rows import QuestionKey
from beam_common.stats import (
    ALPHA,
    Estimate,
    clustered_mean,
    detectable,
    fisher,
    holm,
    is_not_worse,
    paired_difference,
    reach,
    runs_needed,
    wilson_interval,
)
from beam_common.summary import (
    Row,
    Run,
    Scores,
    Shown,
    by_ability,
    count_lines,
    data_of,
    interval,
    judge_trouble,
    kinds_of,
    label,
    load_run,
    mean,
    notes_of,
    number,
)

# Kinds of answers that a score hides, and what is said of them.
KINDS = {"cut": "were cut at the length limit", "empty": "were empty", "failed": "failed"}
REMARKABLE = 0.01  # p of the exact test below which they are named before the verdict
WORDS = {
    "reference": "reference",
    "lower": "lower by {size:.3f} ({near:.3f} to {far:.3f})",
    "lower within margin": "lower by {size:.3f} ({near:.3f} to {far:.3f}), "
    "not worse by more than {margin:g}",
    "not worse": "not worse by more than {margin:g}",
    "higher": "higher by {size:.3f} ({near:.3f} to {far:.3f})",
    "undecided": "undecided: this comparison sees differences from {seen:.3f} on; "
    "{more} would settle {margin:g}",
}
MAY_DIFFER = ("answers' base_url", "answers' model")


@dataclass(frozen=True)
class Subject:
    """What is compared: a run of one or more files, averaged question by question.

    Answers that were judged more than once count once.
    """

    name: str
    files: Sequence[Run]
    scores: Scores
    half_points: Scores  # none unless all are known
    answers: Sequence[tuple[QuestionKey, Row]] | None  # None where some are unknown
    difference: Estimate  # to the reference

    def marked(self, kind: str) -> list[QuestionKey]:
        """The question of each answer of that kind."""
        return [key for key, answer in self.answers or () if kind in kinds_of(answer)]


NOBODY = Subject("", (), {}, {}, None, Estimate(0, 0))  # whom the reference is compared with


# ------------------------------------------------------------------------------------------------
# Reading.


def load_subjects(arguments: Sequence[str]) -> list[Subject]:
    """The runs of a command line, `[NAME=]SCORES[,SCORES…]` each; the first is the reference."""
    given = [_name_and_files(argument) for argument in arguments]
    loaded = [[load_run(path) for path in paths] for _, paths in given]
    pairs = zip(given, loaded, strict=True)
    proposed = [[name] if name else _names(runs[0]) for (name, _), runs in pairs]
    subjects: list[Subject] = []
    for own, runs in zip(proposed, loaded, strict=True):
        name = next((n for n in own if sum(n in names for names in proposed) == 1), None)
        if name is None:
            raise UsageError(f"two runs are called {own[-1]}; give one a name: NAME=SCORES")
        subjects.append(_subject(name, runs, subjects[0] if subjects else NOBODY))
    return subjects


def _name_and_files(argument: str) -> tuple[str, list[Path]]:
    """A `=` behind a `/` belongs to a path."""
    name, equals, files = argument.partition("=")
    if not equals or "/" in name:
        name, files = "", argument
    return label(name), [Path(file) for file in files.split(",")]


def _names(run: Run) -> list[str]:
    """What a run may be called: by its model, by its model and host, by its file."""
    model, url = (run.facts.get(f"answers' {name}") for name in ("model", "base_url"))
    path = label(str(run.path))
    return [model, f"{model} ({urlsplit(url).netloc})", path] if model and url else [path]


def _subject(name: str, runs: Sequence[Run], reference: Subject) -> Subject:
    scores = _averaged([run.scores for run in runs])
    halves = [run.half_points for run in runs if len(run.half_points) == len(run.scores)]
    answers = {tuple(run.answer_files): run.answers for run in runs}.values()
    return Subject(
        name,
        runs,
        scores,
        _averaged(halves) if len(halves) == len(runs) else {},
        None if None in answers else [pair for rows in answers for pair in (rows or {}).items()],
        paired_difference(reference.scores, scores),
    )


def _averaged(files: Sequence[Scores]) -> dict[QuestionKey, float]:
    """Each question's mean over the files that have it."""
    keys = {key for file in files for key in file}
    return {key: mean([file[key] for file in files if key in file]) or 0.0 for key in keys}


# ------------------------------------------------------------------------------------------------
# The object.


def report_object(subjects: Sequence[Subject], margin: float) -> dict[str, Any]:
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


def _adjust(rows: Sequence[dict[str, Any]]) -> None:
    """Adjust the p values of all rows together."""
    tested = [row for row in rows if row["p"] is not None]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p


def _run_row(subject: Subject, reference: Subject, margin: float) -> dict[str, Any]:
    answers = subject.answers
    tokens = [answer.get("completion_tokens") for _, answer in answers or ()]
    halves = paired_difference(reference.half_points, subject.half_points)
    return {
        "name": subject.name,
        "files": [str(run.path) for run in subject.files],
        "n": len(subject.scores),
        "chats": len({chat for chat, _, _ in subject.scores}),
        **_score(subject.scores),
        "half_points": mean(subject.half_points.values()),
        **{kind: None if answers is None else len(subject.marked(kind)) for kind in KINDS},
        "mean_completion_tokens": mean([count for count in tokens if count is not None]),
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


def _score(scores: Scores) -> dict[str, Any]:
    found = clustered_mean(scores)
    low, high = wilson_interval(found)
    return {"n": found.n, "score": found.mean, "low": low, "high": high}


def _difference(found: Estimate) -> dict[str, Any]:
    ends = {"difference_low": found.low, "difference_high": found.high}
    return {"difference": found.mean, **ends, "p": found.p, "p_holm": None}


def _exact_p(subject: Subject, reference: Subject, kind: str) -> float | None:
    """p of the exact test whether both have the same share of answers of that kind."""
    if subject.answers is None or reference.answers is None:
        return None
    sides = (subject.marked(kind), subject.answers, reference.marked(kind), reference.answers)
    return fisher(*map(len, sides))


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
    reference = subjects[0]
    wanted = _made_with(reference.files[0])
    said: dict[str, dict[str, None]] = {}  # text, names of runs
    for subject in subjects:
        apart = len(subject.scores.keys() ^ reference.scores.keys())
        texts = [f"left out of the difference, scored on one side only: {apart}"] * (apart > 0)
        for run in subject.files:
            texts += [*judge_trouble(run), *notes_of(run)]
            texts += [line for line, odd in count_lines(run).items() if odd]
            facts = _made_with(run)
            for name in wanted | facts if wanted and facts else ():
                mine, other = (side.get(name, "not set") for side in (facts, wanted))
                texts += [f"{name} differs: {mine}, reference: {other}"] * (mine != other)
        for text in texts:
            said.setdefault(text, {})[subject.name] = None
    return [one_line(f"{text} ({', '.join(names)})") for text, names in said.items()]


def _made_with(run: Run) -> dict[str, str]:
    """What should not differ between runs; nothing where a run has no record."""
    facts = {name: value for name, value in run.facts.items() if name not in MAY_DIFFER}
    return facts and {"data": data_of(run), **facts}


# ------------------------------------------------------------------------------------------------
# Words.


def words_of(row: Row, margin: float) -> str:
    """The verdict of a run in words, the same wherever it is shown."""
    if row["verdict"] == "undecided" and row["detectable"] is None:
        return "undecided: too few chats in common with the reference"
    near, far = sorted(abs(row[end] or 0) for end in ("difference_low", "difference_high"))
    times = row["runs_needed"] or 0
    more = f"about {times} runs of each" if len(row["files"]) == 1 else f"{times} times the runs"
    return WORDS[row["verdict"]].format(
        size=abs(row["difference"] or 0),
        near=near,
        far=far,
        margin=margin,
        seen=row["detectable"] or 0,
        more=more if times > 1 else "more runs of each",
    )


def shown_of(subjects: Sequence[Subject], report: Row) -> list[Shown]:
    """What is said of each run beside its numbers."""
    shown = []
    for subject, row in zip(subjects, report["runs"], strict=True):
        found, low, high = subject.difference, None, None
        if found.mean is not None and found.se is not None:
            half = reach(found, 1 - ALPHA / 2 / (len(subjects) - 1))
            low, high = found.mean - half, found.mean + half
        count = None if subject.answers is None else len(subject.answers)
        hides = hides_of(subject, subjects[0], row)
        shown.append(Shown(words_of(row, report["margin"]), low, high, count, hides))
    return shown


def hides_of(subject: Subject, reference: Subject, row: Row) -> list[str]:
    """`lower by 0.35, of it 0.35 from 21 answers that failed`, where that is beyond chance."""
    rest = {
        key: score - reference.scores[key]
        for key, score in subject.scores.items()
        if key in reference.scores
    }
    pairs = len(rest)
    size = row["difference"] or 0
    parts = []
    for kind, p in row["hides"].items():
        if p is not None and p < REMARKABLE and pairs:
            mine, others = subject.marked(kind), reference.marked(kind)
            part = sum(rest.pop(key, 0) for key in {*mine, *others}) / pairs
            beyond = min(bound for bound in (0.001, REMARKABLE) if p < bound)
            parts.append(
                f"{_amount(part if size > 0 else -part)} from {plural(len(mine), 'answer')} that "
                f"{KINDS[kind]} (reference: {len(others)}; p < {beyond})"
            )
    if not parts:
        return []
    left = clustered_mean(rest)
    return [
        f"{'higher' if size > 0 else 'lower'} by {_amount(abs(size))}, of it {', '.join(parts)}; "
        f"over the other {plural(left.n, 'question')} {number(left.mean, sign='+')} "
        f"({interval(left.low, left.high, '+')})"
    ]


def _amount(value: float) -> str:
    """Two digits: as many as a part of a difference deserves."""
    return f"{round(value, 3) + 0.0:.2g}"
