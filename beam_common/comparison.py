"""Several runs against the first: the object of which text, picture and page are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from urllib.parse import urlsplit

from beam_common.messages import UsageError, one_line, plural
from beam_common.rows import Json, QuestionKey, Row, key_of
from beam_common.stats import (
    ALPHA,
    Estimate,
    Scores,
    clustered_mean,
    detectable,
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
    kinds_of,
    load_run,
    notes_of,
)
from beam_common.tables import KINDS, interval, label, number

REMARKABLE = 0.01  # p of the exact test below which answers are named before the verdict
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
    """What is compared: a run of one or more files, averaged question by question."""

    name: str
    files: Sequence[Run]

    @cached_property
    def scores(self) -> Scores:
        return _averaged([run.scores for run in self.files])

    @cached_property
    def half_points(self) -> Scores:
        return _averaged([run.half_points for run in self.files])

    @cached_property
    def answers(self) -> Sequence[Json]:
        """All answers, those that were judged more than once once; none where some are unknown."""
        answers = {tuple(run.answer_files): run.answers for run in self.files}.values()
        return [row for rows in answers for row in rows.values()] if all(answers) else []

    def marked(self, kind: str) -> list[QuestionKey]:
        """The question of each answer of that kind."""
        return [key_of(answer) for answer in self.answers if kind in kinds_of(answer)]


NOBODY = Subject("", ())  # whom the reference is compared with


def _averaged(files: Sequence[Scores]) -> Scores:
    """Each question's mean over the files that have it; nothing where a file has nothing."""
    keys = {key for file in files for key in file} if all(files) else ()
    return {key: fmean(file[key] for file in files if key in file) for key in keys}


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
        subjects.append(Subject(own[0], runs))
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


# ------------------------------------------------------------------------------------------------
# The object.

# Of a run, beside what JSON has: the difference with its uncertainty, of how many answers `cut`,
# `empty` and `failed` are (0: unknown), sentences on what the score hides, the verdict in words;
# what is drawn: the difference, its interval, and the one adjusted for the number of runs.
FOR_PEOPLE = ("estimate", "answers", "hidden", "words", "point", "ends", "adjusted")


def report_object(subjects: Sequence[Subject], margin: float) -> Row:
    """What is said of the runs, for programs and FOR_PEOPLE."""
    reference, *others = subjects
    alpha = ALPHA / (len(others) or 1)
    rows = [_run_row(subject, reference, margin, alpha) for subject in others]
    rows.insert(0, _run_row(reference, NOBODY, margin, alpha) | {"point": 0})
    for group in (rows, [part for row in rows for part in row["abilities"].values()]):
        tested = [part for part in group if part["p"] is not None]
        for part, p in zip(tested, holm([part["p"] for part in tested]), strict=True):
            part["p_holm"] = p
    for row in rows:
        if row["name"] != reference.name:
            row["verdict"] = verdict_of(row["estimate"], row["p_holm"], margin)
        row["words"] = words_of(row, margin)
    notes = notes_on(subjects)
    return {"margin": margin, "reference": reference.name, "notes": notes, "runs": rows}


def for_programs(report: Json) -> Row:
    """What `--format json` prints."""
    runs = [{name: row[name] for name in row if name not in FOR_PEOPLE} for row in report["runs"]]
    return {**report, "runs": runs}


def _run_row(subject: Subject, reference: Subject, margin: float, alpha: float) -> Row:
    n, other_n = len(subject.answers), len(reference.answers)
    tokens = [answer.get("completion_tokens") for answer in subject.answers]
    found = paired_difference(reference.scores, subject.scores)
    halves = paired_difference(reference.half_points, subject.half_points)
    marked = {kind: (subject.marked(kind), reference.marked(kind)) for kind in KINDS}
    hides = {
        kind: fisher(len(mine), n, len(others), other_n) if n and other_n else None
        for kind, (mine, others) in marked.items()
    }
    return {
        "name": subject.name,
        "files": [str(run.path) for run in subject.files],
        "n": len(subject.scores),
        "chats": len({chat for chat, _, _ in subject.scores}),
        **_score(subject.scores),
        "half_points": mean_of(subject.half_points.values()),
        **{kind: len(mine) if n else None for kind, (mine, _) in marked.items()},
        "mean_completion_tokens": mean_of([count for count in tokens if count is not None]),
        **_difference(found),
        "half_points_difference": halves.mean,
        "detectable": detectable(found),
        "runs_needed": runs_needed(found, margin),
        "verdict": "reference",
        "hides": hides,
        "abilities": {
            ability: _score(scores) | _difference(paired_difference(reference.scores, scores))
            for ability, scores in by_ability(subject.scores).items()
        },
        "estimate": found,
        "answers": n,
        "hidden": [
            hides_of(subject, reference, found, kind, p)
            for kind, p in hides.items()
            if p is not None and p < REMARKABLE and found.n
        ],
        "point": found.mean,
        "ends": found.interval(),
        "adjusted": found.interval(alpha),
    }


def _score(scores: Scores) -> Row:
    found = clustered_mean(scores)
    low, high = wilson_interval(found)
    return {"n": found.n, "score": found.mean, "low": low, "high": high}


def _difference(found: Estimate) -> Row:
    low, high = found.interval()
    ends = {"difference_low": low, "difference_high": high}
    return {"difference": found.mean, **ends, "p": found.p, "p_holm": None}


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
    wanted = reference.files[0].facts
    said: dict[str, list[str]] = {}  # text, names of runs
    for subject in subjects:
        texts = []
        if apart := len(subject.scores.keys() ^ reference.scores.keys()):
            texts.append(f"left out of the difference, scored on one side only: {apart}")
        for run in subject.files:
            texts += notes_of(run)
            texts += [line for line, suffers in count_lines(run).items() if suffers]
            differing = {name for name, _ in run.facts.items() ^ wanted.items()} - MAY_DIFFER
            for name in sorted(differing) if wanted and run.facts else ():
                mine, other = (facts.get(name, "not set") for facts in (run.facts, wanted))
                texts.append(f"{name} differs: {mine}, reference: {other}")
        for text in dict.fromkeys(texts):
            said.setdefault(text, []).append(subject.name)
    return [one_line(f"{text} ({', '.join(names)})") for text, names in said.items()]


# ------------------------------------------------------------------------------------------------
# Words.


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


def hides_of(subject: Subject, reference: Subject, found: Estimate, kind: str, p: float) -> str:
    """`lower by 0.350, of it 0.350 from 21 answers that failed`."""
    mine, others = subject.marked(kind), reference.marked(kind)
    rest = {key: x for key, x in subject.scores.items() if key not in [*mine, *others]}
    left = paired_difference(reference.scores, rest)
    total = found.mean or 0
    part = total - (left.mean or 0) * left.n / found.n
    word, sign = ("higher", 1) if total > 0 else ("lower", -1)
    return (
        f"{word} by {number(sign * total)}, of it {number(sign * part)} from "
        f"{plural(len(mine), 'answer')} that {KINDS[kind]} (reference: {len(others)}; p < "
        f"{0.001 if p < 0.001 else REMARKABLE}); over the other {plural(left.n, 'question')} "
        f"{number(left.mean, sign='+')} ({interval(left.interval(), '+')})"
    )
