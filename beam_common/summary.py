"""One run of the judge as numbers and as text: its scores and what lies beside them.

Beside `scores.jsonl` stand `scores.verdicts.jsonl` (the judge's words), `scores.run.json` (the
settings, and where the answers are) and the answers. Each may be missing: what it would have told
is then unknown, and shown as unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beam_common.files import sidecar_path
from beam_common.jsonl import ANSWER, SCORE, VERDICT, latest, read_rows
from beam_common.messages import UsageError, one_line
from beam_common.release import known_data, recorded
from beam_common.rows import QuestionKey, key_of
from beam_common.settings import load_sidecar
from beam_common.stats import clustered_mean, wilson_interval

Row = Mapping[str, Any]
Scores = Mapping[QuestionKey, float]
UNKNOWN = "unknown, not all files are there"
ANSWERS = "{cut} cut at the length limit, {empty} empty, {failed} with an error"
VERDICTS = "{unreadable} unreadable, {failed} failed calls"


@dataclass(frozen=True)
class Run:
    """One scores file with what lies beside it."""

    path: Path
    scores: Scores
    half_points: Scores  # mean levels, where verdicts are there
    verdicts: Mapping[QuestionKey, Sequence[Row]]  # of each rubric item the line that counts
    calls: Mapping[str, int] | None  # replies of the judge of each status; None without a file
    answers: (
        Mapping[QuestionKey, Row] | None
    )  # of what has a score; None unless all files are there
    answer_files: Sequence[Path]
    record: Row  # the sidecar
    answered: Row  # what it says of the answers
    facts: Mapping[str, str]  # settings by their names, for people


@dataclass(frozen=True)
class Shown:
    """What is said of a run beside its numbers in a report, for the picture and the page."""

    words: str  # the verdict
    adjusted_low: float | None  # interval of the difference, adjusted for the number of runs
    adjusted_high: float | None
    answers: int | None  # of how many the report's `cut`, `empty` and `failed` are
    hides: list[str]  # sentences on what the score hides


def kinds_of(answer: Row) -> list[str]:
    """What a score hides of an answer: `failed`, or `cut` (at the length limit) and `empty`."""
    if answer.get("error"):
        return ["failed"]
    empty = not (answer["response"] or "").strip()
    return ["cut"] * (answer.get("finish_reason") == "length") + ["empty"] * empty


def by_ability(scores: Scores) -> dict[str, dict[QuestionKey, float]]:
    """The scores of each ability that has any, in the order of their names."""
    groups: dict[str, dict[QuestionKey, float]] = {}
    for key in sorted(scores, key=lambda key: key[1]):
        groups.setdefault(key[1], {})[key] = scores[key]
    return groups


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
    record = load_sidecar(sidecar_path(path, ".run.json")) or {}
    answered = record.get("answers", {})
    files = [(path.parent / name).resolve() for name in record.get("files", [])]
    answers = None
    if files and all(file.is_file() for file in files):
        rows = latest(row for file in files for row in read_rows(file, ANSWER))
        answers = {key: rows[key] for key in scores if key in rows}
    calls, verdicts = _read_verdicts(sidecar_path(path, ".verdicts.jsonl"))
    # A question that needed no call scores 0 and has no verdicts.
    levels = {key: [0.0] for key in scores if calls is not None and not scores[key]}
    levels |= {key: [row["level"] or 0.0 for row in rows] for key, rows in verdicts.items()}
    return Run(
        path=path,
        scores=scores,
        half_points={key: mean(levels[key]) or 0.0 for key in scores if key in levels},
        verdicts=verdicts,
        calls=calls,
        answers=answers,
        answer_files=files,
        record=record,
        answered=answered,
        facts=_facts(
            {"answers'": answered.get("settings", {}), "judge's": record.get("settings", {})}
        ),
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


def _facts(settings: Mapping[str, Row]) -> dict[str, str]:
    """`judge's model: …`: every setting on one line, those of the body like the others."""
    return {
        f"{whose} {name}": label(str(value))
        for whose, known in settings.items()
        for name, value in {**known, **known.get("body", {})}.items()
        if name != "body" and not name.endswith("_sha256")
    }


# ------------------------------------------------------------------------------------------------
# Text.


def label(text: str, limit: int = 120) -> str:
    """A name that may hold anything, to be shown: one line that can be encoded, not too long."""
    return one_line(text, limit).encode("utf-8", "backslashreplace").decode()


def number(value: float | None, digits: int = 3, sign: str = "") -> str:
    """`0.123`, with the sign `+` also `+0.123`; `-` for None, never `-0.000`."""
    if value is None:
        return "-"
    value = round(value, digits) + 0.0
    return f"{value:{sign if value else ''}.{digits}f}"


def interval(low: float | None, high: float | None, sign: str = "") -> str:
    """`0.281 to 0.343`; `-` without one."""
    return "-" if low is None else f"{number(low, 3, sign)} to {number(high, 3, sign)}"


def fitted(text: str, width: int) -> str:
    """A text in so many columns: filled with blanks, or cut in its middle, as ends differ."""
    if len(text) > width:
        text = f"{text[: width // 2]}…{text[width // 2 + 1 - width :]}"
    return text.ljust(width)


def summary_lines(run: Run) -> list[str]:
    """The summary of a run. It begins with a block whose lines are a stable format."""
    overall = clustered_mean(run.scores)
    lines = [f"=== BEAM summary (n={overall.n}) ===", f"overall: {number(overall.mean, 4)}"]
    table = [f"{'':28}{'95 % interval':16}half points", _table_row("overall", run, run.scores)]
    for ability, scores in by_ability(run.scores).items():
        name = f"  {label(ability, 24)}"
        lines.append(f"{name}: {number(mean(scores.values()), 4)} (n={len(scores)})")
        table.append(_table_row(name, run, scores))
    if overall.chats > 1:
        table.append(f"intervals: by {overall.chats} chats, about other chats; a rerun varies less")
    lines += ["", *judge_trouble(run), *table, "", *count_lines(run)]
    lines += [f"note: {text}" for text in notes_of(run)]
    lines += [f"data: {data_of(run)}", *(f"{name}: {value}" for name, value in run.facts.items())]
    files = [run.path, sidecar_path(run.path, ".verdicts.jsonl"), *run.answer_files]
    return [*lines, f"files: {', '.join(label(str(file), 1000) for file in files)}"]


def _table_row(name: str, run: Run, scores: Scores) -> str:
    halves = [run.half_points[key] for key in scores if key in run.half_points]
    half = number(mean(halves), 4) if len(halves) == len(scores) else "-"
    return f"{name:28}{interval(*wilson_interval(clustered_mean(scores))):16}{half}"


def judge_trouble(run: Run) -> list[str]:
    """A line where a judge mostly did not answer in the form: its scores mean nothing then."""
    calls = run.calls or {}
    bad, good = calls.get("unreadable", 0), calls.get("scored", 0)
    if bad <= good:
        return []
    return [f"WARNING: the judge did not answer in the form in {bad} of {bad + good} calls"]


def count_lines(run: Run) -> dict[str, bool]:
    """How much is scored and what the score hides, each with whether the score suffers from it."""
    chats = run.record.get("selected", {}).values()
    selected, scored = sum(sum(abilities.values()) for abilities in chats), len(run.scores)
    items = Counter(row["status"] for rows in run.verdicts.values() for row in rows)
    kinds = Counter(kind for row in (run.answers or {}).values() for kind in kinds_of(row))
    answers = UNKNOWN if run.answers is None else ANSWERS.format_map(kinds)
    verdicts = UNKNOWN if run.calls is None else VERDICTS.format_map(items)
    return {
        f"scored: {scored} of {selected or 'unknown'} selected questions": selected > scored,
        f"answers: {answers}": False,
        f"verdicts: {verdicts}": items["unreadable"] + items["failed"] > 0,
    }


def notes_of(run: Run) -> list[str]:
    """What makes the number something else than one judge's scores of one model's answers."""
    cramped, shrunk = _cramped(run), run.answered.get("shrunk", {})
    foreign, shards = run.record.get("foreign", []), run.record.get("missing_shards", [])
    served = {label(name): n for name, n in run.answered.get("served", {}).items()}
    found = {
        "settings of the judge are unknown": not run.record,
        "settings of the answers are unknown": not run.answered.get("settings"),
        f"served as {', '.join(f'{name} ({n})' for name, n in served.items())}": served.keys()
        - {run.facts.get("answers' model")},
        f"{cramped} answers were cut far below --max-tokens, the server's window left no room: "
        "raise --reserve-tokens or lower --max-context-tokens": cramped,
        f"chats cut further to fit the endpoint: {len(shrunk)}": shrunk,
        "answered partly with other settings": run.answered.get("mixed"),
        "judged partly with other settings": run.record.get("mixed"),
        f"scores of another tool, without verdicts: {len(foreign)}": foreign,
        f"missing shards: {', '.join(map(str, shards))}": shards,
    }
    return [label(text, 300) for text, holds in found.items() if holds]


def _cramped(run: Run) -> int:
    """How many answers were cut although they are not half as long as was asked for."""
    most = run.answered.get("settings", {}).get("body", {}).get("max_tokens") or 0
    rows = [row for row in (run.answers or {}).values() if "cut" in kinds_of(row)]
    return sum(2 * (row.get("completion_tokens") or most) < most for row in rows)


def data_of(run: Run) -> str:
    """What was judged: `the published 1M files; 9 of 35 chats`; other data by their digests."""
    data = run.answered.get("data", {})
    questions, chats = (str(data.get(f"{part}_sha256")) for part in ("questions", "chats"))
    name = known_data(questions, chats) or f"questions {questions[:8]}, chats {chats[:8]}"
    tags = recorded()["tags"].values()
    all_chats = {tag["questions"]["sha256"]: f"of {tag['chats']['number']} " for tag in tags}
    scored = len({chat for chat, _, _ in run.scores})
    return f"{name if data else 'unknown'}; {scored} {all_chats.get(questions, '')}chats"
