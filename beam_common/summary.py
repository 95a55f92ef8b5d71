"""One run of the judge as numbers and as text: its scores and what lies beside them.

Beside `scores.jsonl` stand `scores.verdicts.jsonl` (the judge's words), `scores.run.json` (settings,
and where the answers files are) and the answers. Each may be missing: what it would have told is
then unknown, and shown as unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beam_common.files import sidecar_path
from beam_common.jsonl import ANSWER, SCORE, VERDICT, latest, read_rows
from beam_common.messages import UsageError, one_line
from beam_common.rows import ABILITIES, QuestionKey, is_empty, key_of
from beam_common.settings import load_sidecar
from beam_common.stats import clustered_mean, wilson_interval

Row = Mapping[str, Any]
# Where a run comes from: name for people, and where the sidecar says it.
ORIGIN = {
    "model": ("answers", "settings", "body", "model"),
    "endpoint": ("answers", "settings", "base_url"),
    "judge": ("settings", "body", "model"),
    "judge endpoint": ("settings", "base_url"),
    "criterion prompt": ("settings", "criterion_prompt"),
    "ordering prompt": ("settings", "ordering_prompt"),
    "event_ordering": ("settings", "event_ordering"),
}


@dataclass(frozen=True)
class Run:
    """One scores file with what lies beside it; None, or nothing in it, where that is not there."""

    path: Path
    scores: Mapping[QuestionKey, float]
    half_points: Mapping[QuestionKey, float]  # mean levels
    verdicts: Mapping[QuestionKey, Sequence[Row]]  # of each rubric item the line that counts
    calls: Mapping[str, int] | None  # replies of the judge of each status
    answers: Mapping[QuestionKey, Row] | None  # of the questions with a score
    waiting: int  # answers without a score
    answer_files: Sequence[Path]
    sidecar: Row

    def setting(self, *names: str) -> Any:
        """What the sidecar says under these names, one inside the other; None for nothing."""
        value: Any = self.sidecar
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def origin(self, name: str) -> str:
        """What is known under a name of ORIGIN, on one line."""
        return one_line(str(self.setting(*ORIGIN[name]) or "unknown"), 120)


@dataclass(frozen=True)
class Shown:
    """What is said of a run beside its numbers in a report, for the picture and the page."""

    words: str  # the verdict
    adjusted_low: float | None  # interval of the difference, adjusted for the number of runs
    adjusted_high: float | None
    hides: list[str]  # sentences on what the score hides


def kinds_of(answer: Row) -> list[str]:
    """What a score hides of an answer: `failed`, or `cut` (at the length limit) and `empty`."""
    if answer.get("error") is not None:
        return ["failed"]
    found = {"cut": answer.get("finish_reason") == "length", "empty": is_empty(answer)}
    return [kind for kind, holds in found.items() if holds]


def by_ability(keys: Iterable[QuestionKey]) -> dict[str, list[QuestionKey]]:
    """The questions of each ability that has any: the ten in their order, others after them."""
    groups: dict[str, list[QuestionKey]] = {ability: [] for ability in ABILITIES}
    for key in sorted(keys):
        groups.setdefault(key[1], []).append(key)
    return {ability: group for ability, group in groups.items() if group}


def mean(values: Collection[float]) -> float | None:
    """None for no values."""
    return sum(values) / len(values) if values else None


# ------------------------------------------------------------------------------------------------
# Reading.


def load_run(path: Path) -> Run:
    """A scores file with what lies beside it. UsageError where it holds no scores."""
    scores = {key: float(row["score"]) for key, row in latest(read_rows(path, SCORE)).items()}
    if not scores:
        raise UsageError(f"{path} holds no scores; name a file that beam_judge.py wrote")
    sidecar = load_sidecar(sidecar_path(path, ".run.json")) or {}
    files = [path.parent / str(name) for name in sidecar.get("files", [])]
    answers = None
    if files and all(file.is_file() for file in files):
        answers = latest(row for file in files for row in read_rows(file, ANSWER))
    calls, verdicts = _read_verdicts(sidecar_path(path, ".verdicts.jsonl"))
    levels = {key: [row["level"] or 0.0 for row in rows] for key, rows in verdicts.items()}
    return Run(
        path=path,
        scores=scores,
        half_points={  # a question that needed no call scores 0
            key: mean(levels.get(key, [])) or 0.0
            for key, score in scores.items()
            if key in levels or (score == 0 and calls is not None)
        },
        verdicts=verdicts,
        calls=calls,
        answers=answers and {key: answers[key] for key in scores if key in answers},
        waiting=len((answers or {}).keys() - scores.keys()),
        answer_files=files,
        sidecar=sidecar,
    )


def _read_verdicts(path: Path) -> tuple[Counter[str] | None, dict[QuestionKey, list[Row]]]:
    """How many lines there are of each status, and of each question those that count, by item."""
    if not path.exists():
        return None, {}
    rows = list(read_rows(path, VERDICT))
    found: dict[QuestionKey, list[Row]] = {}
    last = latest(rows, lambda row: (key_of(row), row["item"]))
    for row in sorted(last.values(), key=lambda row: int(row["item"])):
        found.setdefault(key_of(row), []).append(row)
    return Counter(row["status"] for row in rows), found


# ------------------------------------------------------------------------------------------------
# Text.


def number(value: float | None, digits: int = 3, sign: str = "") -> str:
    """`0.123`, with the sign `+` also `+0.123`; `-` for None, never `-0.000`."""
    if value is None:
        return "-"
    value = round(value, digits) + 0.0
    return f"{value:{sign if value else ''}.{digits}f}"


def interval(ends: Sequence[float | None] | None, sign: str = "") -> str:
    """`0.281 to 0.343`; `-` without one."""
    if ends is None or None in ends:
        return "-"
    return " to ".join(number(end, 3, sign) for end in ends)


def fitted(text: str, width: int) -> str:
    """A name in so many columns: filled with blanks, or cut in its middle, as ends differ."""
    if len(text) > width:
        text = f"{text[: width // 2]}…{text[width // 2 + 1 - width :]}"
    return text.ljust(width)


def summary_lines(run: Run) -> list[str]:
    """The summary of a run. It begins with a block whose lines are a stable format."""
    overall = clustered_mean(run.scores)
    lines = [f"=== BEAM summary (n={overall.n}) ===", f"overall: {number(overall.mean, 4)}"]
    table = [f"{'':28}{'95 % interval':16}half points", _table_row("overall", run, run.scores)]
    for ability, keys in by_ability(run.scores).items():
        name = f"  {one_line(ability, 24)}"
        score = mean([run.scores[key] for key in keys])
        lines.append(f"{name}: {number(score, 4)} (n={len(keys)})")
        table.append(_table_row(name, run, keys))
    lines += ["", *judge_trouble(run), *table]
    if overall.chats > 1:
        lines.append(f"intervals: by {overall.chats} chats, for other chats; a rerun varies less")
    lines += ["", f"scored: {len(run.scores)} of {selected(run) or 'unknown'} selected questions"]
    lines += [f"{name}: {'unknown' if n is None else n}" for name, n in counts(run).items()]
    lines += [f"note: {text}" for text in notes(run)]
    return lines + origin_lines(run)


def _table_row(name: str, run: Run, keys: Iterable[QuestionKey]) -> str:
    found = clustered_mean({key: run.scores[key] for key in keys})
    halves = [run.half_points[key] for key in keys if key in run.half_points]
    half = number(mean(halves) if len(halves) == found.n else None, 4)
    return f"{name:28}{interval(wilson_interval(found)):16}{half}"


def judge_trouble(run: Run) -> list[str]:
    """A line where a judge mostly did not answer in the form: its scores mean nothing then."""
    calls = run.calls or {}
    bad, good = calls.get("unreadable", 0), calls.get("scored", 0)
    if bad <= good:
        return []
    return [f"WARNING: the judge did not answer in the form in {bad} of {bad + good} calls"]


def selected(run: Run) -> int:
    """How many questions were selected for the run; 0 where that is not known."""
    return sum(sum(abilities.values()) for abilities in run.sidecar.get("selected", {}).values())


def counts(run: Run) -> dict[str, int | None]:
    """What the score hides, None where it is unknown: numbers of answers and of rubric items."""
    kinds = Counter(kind for row in (run.answers or {}).values() for kind in kinds_of(row))
    items = Counter(row["status"] for rows in run.verdicts.values() for row in rows)
    known, judged = run.answers is not None, run.calls is not None
    return {
        "answers cut at the length limit": kinds["cut"] if known else None,
        "answers empty": kinds["empty"] if known else None,
        "answers failed": kinds["failed"] if known else None,
        "answers not judged yet": run.waiting if known else None,
        "verdicts unreadable": items["unreadable"] if judged else None,
        "judge calls failed": items["failed"] if judged else None,
    }


def notes(run: Run) -> list[str]:
    """What makes the number something else than one judge's scores of one model's answers."""
    cramped = _cramped(run)
    shrunk = run.setting("answers", "shrunk")
    foreign = run.setting("foreign")
    shards = run.setting("missing_shards")
    found = {
        f"{cramped} answers were cut far below --max-tokens, the server's window left no room: "
        "raise --reserve-tokens or lower --max-context-tokens": cramped,
        f"chats cut further to fit the endpoint: {len(shrunk or ())}": shrunk,
        "answered partly with other settings": run.setting("answers", "mixed"),
        "judged partly with other settings": run.setting("mixed"),
        f"scores of another tool, without verdicts: {len(foreign or ())}": foreign,
        f"missing shards: {', '.join(map(str, shards or ()))}": shards,
    }
    return [text for text, holds in found.items() if holds]


def _cramped(run: Run) -> int:
    """How many answers were cut although they are not half as long as was asked for."""
    most = run.setting("answers", "settings", "body", "max_tokens") or 0
    rows = [row for row in (run.answers or {}).values() if "cut" in kinds_of(row)]
    return sum(2 * (row.get("completion_tokens") or most) < most for row in rows)


def origin_lines(run: Run) -> list[str]:
    """What was judged, by whom, and where the files are."""
    lines = [f"{name}: {run.origin(name)}" for name in ORIGIN]
    served = run.setting("answers", "served") or {}
    if set(served) - {run.origin("model")}:
        lines.insert(1, "served as: " + ", ".join(f"{name} ({n})" for name, n in served.items()))
    names = [run.path, sidecar_path(run.path, ".verdicts.jsonl"), *run.answer_files]
    lines.append(f"files: {', '.join(map(str, names))}")
    return [one_line(line) for line in lines]
