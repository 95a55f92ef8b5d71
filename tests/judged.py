"""The files of a judged run, as beam_judge.py leaves them, for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

Question = dict[str, Any]


def question(
    chat: int,
    *levels: float | None,
    ability: str = "abstention",
    index: int = 0,
    score: float | None = None,
    **answer: Any,
) -> Question:
    """A question with the levels of its rubric items (None: unreadable); none: no call was made."""
    cut = [int(level or 0) for level in levels]
    return {
        "identity": {"chat_id": str(chat), "question_type": ability, "question_index": index},
        "levels": levels,
        "score": score if score is not None else sum(cut) / len(cut) if cut else 0.0,
        "answer": {
            "question": f"question {index} of chat {chat}",
            "gold_answer": "gold",
            "rubric": [f"item {item}" for item in range(len(levels))],
            "response": "an answer",
            "finish_reason": "stop",
            "completion_tokens": 100,
            "error": None,
            **answer,
        },
    }


def questions(chats: int, each: Iterable[float], **answer: Any) -> list[Question]:
    """So many chats that all hold a question with each of these levels."""
    return [
        question(chat, level, index=index, **answer)
        for chat in range(1, chats + 1)
        for index, level in enumerate(each)
    ]


def failed(chat: int, index: int = 0) -> Question:
    lost = {"finish_reason": None, "completion_tokens": None, "error": "HTTP 429"}
    return question(chat, index=index, response="", **lost)


def record_of(model: str, host: str, selected: int) -> dict[str, Any]:
    """What `scores.run.json` holds."""
    return {
        "program": "beam_judge.py",
        "output": "scores.jsonl",
        "settings": {
            "base_url": "http://judge/v1",
            "body": {"model": "judge-1", "temperature": 0.3},
            "criterion_prompt": "official",
            "ordering_prompt": "builtin",
            "event_ordering": "strict",
        },
        "answers": {
            "settings": {
                "base_url": f"http://{host}/v1",
                "body": {"model": model, "temperature": 1.0, "max_tokens": 1000},
                "tokenizer": "Kimi-K2.6",
            },
            "data": {"tag": "own", "questions_sha256": "1" * 64, "chats_sha256": "2" * 64},
            "mixed": False,
            "served": {model: selected},
            "shrunk": {},
        },
        "files": ["answers.jsonl"],
        "selected": {"1": {"abstention": selected}},
    }


def write_run(
    folder: Path,
    run: Collection[Question],
    *,
    model: str = "m",
    host: str = "host",
    without: Collection[str] = (),
    verdicts: Iterable[Mapping[str, Any]] = (),
    **changes: Any,
) -> Path:
    """Write a run's files, but for `without` (answers, verdicts, record); the scores file's path.

    `verdicts` stand before the others; `settings__body={…}` changes what the record says there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = list(verdicts)
    for one in run:
        for item, level in enumerate(one["levels"]):
            status = "unreadable" if level is None else "scored"
            lines.append(verdict(one, item, status, level))
    scores = folder / "scores.jsonl"
    write_rows(scores, ({**one["identity"], "score": one["score"]} for one in run))
    if "answers" not in without:
        rows = ({**one["identity"], **one["answer"]} for one in run)
        write_rows(folder / "answers.jsonl", rows)
    if "verdicts" not in without:
        write_rows(folder / "scores.verdicts.jsonl", lines)
    if "record" not in without:
        record = record_of(model, host, len(run))
        for path, value in changes.items():
            *places, name = path.split("__")
            part = record
            for place in places:
                part = part[place]
            part[name] = value
        (folder / "scores.run.json").write_text(json.dumps(record), "utf-8")
    return scores


def verdict(of: Question, item: int, status: str, level: float | None) -> dict[str, Any]:
    return {
        **of["identity"],
        "item": item,
        "criterion": f"item {item}",
        "prompt_sha256": "3" * 64,
        "status": status,
        "level": level,
        "reply": None if status == "failed" else f"verdict {level}",
        "error": "timeout" if status == "failed" else None,
    }


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
