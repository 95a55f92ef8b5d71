"""One run of the judge as numbers and as text: its scores and what lies beside them.

Beside `scores.jsonl` stand `scores.verdicts.jsonl` (the judge's words), `scores.run.json` (the
settings, and where the answers are) and the answers. Each may be missing: what it would have told
is then unknown, and shown as unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean

from beam_common.files import sidecar_path
from beam_common.jsonl import ANSWER, SCORE, VERDICT, latest, read_rows
from beam_common.messages import UsageError
from beam_common.release import known_data, recorded
from beam_common.rows import Json, QuestionKey, Row, is_empty, key_of
from beam_common.settings import load_sidecar
from beam_common.stats import Scores, clustered_mean, mean_of, wilson_interval
from beam_common.tables import ABOUT, interval, label, number

Verdicts = Mapping[QuestionKey, Sequence[Json]]  # by rubric item
UNKNOWN = "unknown, not all files are there"
ANSWERS = "{cut} cut at the length limit, {empty} empty, {failed} with an error"
VERDICTS = "{unreadable} unreadable, {failed} failed calls"


@dataclass(frozen=True)
class Run:
    """One scores file with what lies beside it. What is unknown is empty."""

    path: Path
    scores: Scores
    half_points: Scores  # mean levels; empty unless all are known
    verdicts: Verdicts  # of each rubric item the one that counts
    calls: Counter[str]  # replies of the judge of each status
    answers: Mapping[QuestionKey, Json]  # of what has a score; empty unless all files are there
    answer_files: Sequence[Path]
    record: Json  # the sidecar
    facts: Mapping[str, str]  # data and settings by their names, for people; empty if unknown


def kinds_of(answer: Json) -> list[str]:
    """What a score hides of an answer: `failed`, or `cut` (at the length limit) and `empty`."""
    if answer.get("error"):
        return ["failed"]
    return ["cut"] * (answer.get("finish_reason") == "length") + ["empty"] * is_empty(answer)


def by_ability(scores: Scores) -> dict[str, Scores]:
    """The scores of each ability that has any, in the order of their names."""
    names = sorted({ability for _, ability, _ in scores})
    return {name: {key: scores[key] for key in scores if key[1] == name} for name in names}


# ------------------------------------------------------------------------------------------------
# Reading.


def load_run(path: Path) -> Run:
    """A scores file with what lies beside it. UsageError where it holds no scores."""
    scores = {key: float(row["score"]) for key, row in latest(read_rows(path, SCORE)).items()}
    if not scores:
        raise UsageError(f"{path} holds no scores; name a file that beam_judge.py wrote")
    record = load_sidecar(sidecar_path(path, ".run.json")) or {}
    files = [(path.parent / name).resolve() for name in record.get("files", [])]
    answers = {}
    if all(file.is_file() for file in files):
        answers = latest(row for file in files for row in read_rows(file, ANSWER))
    replies_path = sidecar_path(path, ".verdicts.jsonl")
    replies = list(read_rows(replies_path, VERDICT)) if replies_path.exists() else []
    verdicts = _verdicts_of(replies)
    return Run(
        path=path,
        scores=scores,
        half_points=_half_points(scores, verdicts),
        verdicts=verdicts,
        calls=Counter(row["status"] for row in replies),
        answers={key: answers[key] for key in scores if key in answers},
        answer_files=files,
        record=record,
        facts=_facts_of(record, scores) if record else {},
    )


def _verdicts_of(replies: Iterable[Row]) -> Verdicts:
    """Of each question the replies that count, by rubric item."""
    counting = latest(replies, lambda row: (key_of(row), row["item"]))
    groups = groupby(sorted(counting), lambda place: place[0])
    return {key: [counting[place] for place in places] for key, places in groups}


def _half_points(scores: Scores, verdicts: Verdicts) -> Scores:
    """Mean levels of all questions; none where some have none, as scores of another tool."""
    called = {key: fmean(row["level"] or 0.0 for row in rows) for key, rows in verdicts.items()}
    levels = {key: called.get(key, score) for key, score in scores.items()}
    # A question that needed no call scores 0 and has no verdicts.
    return levels if called and all(key in called or not levels[key] for key in levels) else {}


def _facts_of(record: Json, scores: Scores) -> dict[str, str]:
    """What was judged, and every setting on one line, those of the body like the others."""
    answers = record.get("answers", {})
    facts = {"data": _data_of(answers.get("data", {}), scores)}
    for whose, made in (("answers'", answers), ("judge's", record)):
        settings = made.get("settings", {})
        for name, value in {**settings, **settings.get("body", {})}.items():
            if name != "body" and not name.endswith("_sha256"):
                facts[f"{whose} {name}"] = label(str(value))
    return facts


def _data_of(data: Json, scores: Scores) -> str:
    """What was judged: `the published 1M files; 9 of 35 chats`; other data by their digests."""
    questions, chats = (str(data.get(f"{part}_sha256")) for part in ("questions", "chats"))
    name = known_data(questions, chats) or f"questions {questions[:8]}, chats {chats[:8]}"
    tags = recorded()["tags"].values()
    all_chats = {tag["questions"]["sha256"]: f"of {tag['chats']['number']} " for tag in tags}
    scored = len({chat for chat, _, _ in scores})
    return f"{name if data else 'unknown'}; {scored} {all_chats.get(questions, '')}chats"


# ------------------------------------------------------------------------------------------------
# Text.


def summary_lines(run: Run) -> list[str]:
    """The summary of a run. It begins with a block whose lines are a stable format."""
    block = [f"=== BEAM summary (n={len(run.scores)}) ==="]
    table = [f"{'':28}{'95 % interval':16}half points"]
    for ability, scores in (("", run.scores), *by_ability(run.scores).items()):
        found = clustered_mean(scores)
        name = f"  {label(ability, 24)}" if ability else "overall"
        n = f" (n={found.n})" if ability else ""
        block.append(f"{name}: {number(found.mean, 4)}{n}")
        half = mean_of([run.half_points[key] for key in scores if key in run.half_points])
        table.append(f"{name:28}{interval(wilson_interval(found)):16}{number(half, 4)}")
    files = [run.path, sidecar_path(run.path, ".verdicts.jsonl"), *run.answer_files]
    places = ", ".join(label(str(file), 1000) for file in files)
    facts = [*(f"{name}: {value}" for name, value in run.facts.items()), f"files: {places}"]
    return [*block, "", *notes_of(run), *table, ABOUT, "", *count_lines(run), *facts]


def count_lines(run: Run) -> dict[str, bool]:
    """How much is scored and what the score hides, each with whether the score suffers from it."""
    chats = run.record.get("selected", {}).values()
    selected = sum(sum(abilities.values()) for abilities in chats)
    scored = len(run.scores)
    items = Counter(row["status"] for rows in run.verdicts.values() for row in rows)
    kinds = Counter(kind for row in run.answers.values() for kind in kinds_of(row))
    answers = ANSWERS.format_map(kinds) if run.answers else UNKNOWN
    verdicts = VERDICTS.format_map(items) if run.calls else UNKNOWN
    return {
        f"scored: {scored} of {selected or 'unknown'} selected questions": selected > scored,
        f"answers: {answers}": False,
        f"verdicts: {verdicts}": items["scored"] < items.total(),
    }


def notes_of(run: Run) -> list[str]:
    """What makes the number something else than one judge's scores of one model's answers."""
    bad, good = run.calls["unreadable"], run.calls["scored"]
    answered = run.record.get("answers", {})
    served = answered.get("served", {})
    models = ", ".join(f"{name} ({n})" for name, n in served.items())
    shrunk = answered.get("shrunk", {})
    foreign = run.record.get("foreign", [])
    shards = run.record.get("missing_shards", [])
    found = {
        # Its scores mean nothing then.
        f"WARNING: the judge did not answer in the form in {bad} of {bad + good} calls": bad > good,
        "settings of the judge are unknown": not run.record,
        "settings of the answers are unknown": not answered.get("settings"),
        f"served as {models}": {*map(label, served)} - {run.facts.get("answers' model")},
        f"chats cut further to fit the endpoint: {len(shrunk)}": shrunk,
        "answered partly with other settings": answered.get("mixed"),
        "judged partly with other settings": run.record.get("mixed"),
        f"scores of another tool, without verdicts: {len(foreign)}": foreign,
        f"missing shards: {', '.join(shards)}": shards,
    }
    return [label(text, 300) for text, holds in found.items() if holds]
