"""The answers to be judged, over one or more files of one run, and what is known of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from beam_common.files import sidecar_path
from beam_common.jsonl import ANSWER, latest, read_rows
from beam_common.messages import UsageError
from beam_common.rows import Json, QuestionKey, Row, name_of
from beam_common.settings import differences, load_sidecar

Answers = dict[QuestionKey, Row]


def read_answers(paths: Sequence[Path]) -> Answers:
    """Of each question the row that counts, in the order of first occurrence.

    An answered row beats one with an error. UsageError where two files answer a question in
    different ways, or ask another one.
    """
    answers: Answers = {}
    for path in paths:
        for key, row in latest(read_rows(path, ANSWER, "left out and not judged")).items():
            row["error"] = row.get("error") or None  # another tool may write "" for none
            earlier = answers.get(key)
            if earlier and _differ(earlier, row):
                raise UsageError(
                    f"--answers: {path} answers {name_of(key)} in another way than a file before "
                    "it; these are two runs: judge each into an --output of its own"
                )
            if earlier is None or (earlier["error"] and not row["error"]):
                answers[key] = row
    if not answers:
        files = ", ".join(map(str, paths))
        raise UsageError(f"no answers yet in {files}; run beam_generate.py first")
    return answers


def _differ(one: Json, other: Json) -> bool:
    answered = not one["error"] and not other["error"]
    return one["rubric"] != other["rubric"] or (answered and one["response"] != other["response"])


def describe(paths: Sequence[Path], allow_mixed: bool) -> Row:
    """What the records beside the answers files say, for the record of the scores.

    `answers`: settings and data of the answers, which bind; `selected`: chat -> ability -> number
    of questions, {} where a file has no record. UsageError where two files have other settings.
    """
    records = [load_sidecar(sidecar_path(path, ".run.json")) or {} for path in paths]
    first = records[0]
    mixed = False
    selected: Row = {}
    shrunk: Row = {}
    served: Counter[str] = Counter()
    for path, record in zip(paths, records, strict=True):
        found = differences(first, record)
        mixed |= bool(found) or record.get("mixed", False)
        if found and not allow_mixed:
            raise UsageError(
                f"--answers: {path} was made with other settings than {paths[0]}: "
                f"{'; '.join(found)}; judge each into an --output of its own, or accept mixed "
                "scores with --allow-mixed"
            )
        served.update(record.get("served", {}))
        shrunk |= record.get("shrunk", {})
        for chat, abilities in record.get("selected", {}).items():
            selected[chat] = {**selected.get(chat, {}), **abilities}
    return {
        "answers": {
            "settings": first.get("settings", {}),
            "data": first.get("data", {}),
            "mixed": mixed,
            "served": dict(served),
            "shrunk": shrunk,
        },
        "selected": selected if all(records) else {},
        "missing_shards": missing_shards(records),
    }


def missing_shards(records: Sequence[Json]) -> list[str]:
    """The shards, as `I/N`, of which no answers are there although there are others of the N."""
    there = {shard for record in records for shard in record.get("shard", [])}
    if "1/1" in there:
        return []
    parts = {int(shard.partition("/")[2]) for shard in there}
    wanted = [f"{i}/{n}" for n in sorted(parts) for i in range(1, n + 1)]
    return [shard for shard in wanted if shard not in there]
