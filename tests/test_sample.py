"""The sample data: every question can be answered from its chat, and the shipped files are made from their source."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import quickstart
from conftest import write_lines

import prepare_data
from beam_common import ABILITIES, DATA_DIR, HERE

CHATS = {
    row["chat_id"]: row["messages"]
    for row in map(json.loads, gzip.decompress((DATA_DIR / "beam_sample_chats.jsonl.gz").read_bytes()).splitlines())
}
QUESTIONS = [json.loads(line) for line in (DATA_DIR / "beam_sample_questions.jsonl").read_text("utf-8").splitlines()]
EVIDENCE = {
    (chat_id, *name.split("/")): strings
    for chat_id in CHATS
    for name, strings in json.loads((HERE / "tests" / "evidence" / f"{chat_id}.json").read_text("utf-8")).items()
}


def evidence_of(question: dict[str, Any]) -> dict[str, list[str]]:
    return EVIDENCE[question["chat_id"], question["question_type"], str(question["question_index"])]


def contents(chat_id: str) -> list[str]:
    return [message["content"] for message in CHATS[chat_id]]


def ids(question: dict[str, Any]) -> str:
    return f"{question['chat_id']}-{question['question_type']}-{question['question_index']}"


def test_three_chats_of_at_least_sixty_messages() -> None:
    assert len(CHATS) == 3
    for messages in CHATS.values():
        assert len(messages) >= 60
        assert [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2)


def test_two_questions_for_each_ability_of_each_chat() -> None:
    found = [(q["chat_id"], q["question_type"], q["question_index"]) for q in QUESTIONS]
    assert found == [(chat, ability, index) for chat in CHATS for ability in ABILITIES for index in (0, 1)]
    assert len(EVIDENCE) == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=ids)
def test_the_evidence_stands_in_the_chat(question: dict[str, Any]) -> None:
    texts = contents(question["chat_id"])
    evidence = evidence_of(question)
    for string in evidence["present"]:
        assert any(string in text for text in texts), string
    for string in evidence["absent"]:
        assert not any(string.lower() in text.lower() for text in texts), string
    if question["question_type"] == "abstention":
        assert evidence["absent"], "what is asked about must be shown to be missing"
    else:
        assert evidence["present"]


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q["question_type"] == "event_ordering"], ids=ids)
def test_events_first_occur_in_the_order_of_the_rubric(question: dict[str, Any]) -> None:
    texts = contents(question["chat_id"])
    first = [next(n for n, text in enumerate(texts) if s in text) for s in evidence_of(question)["present"]]
    assert first == sorted(set(first))
    assert len(first) == len(question["rubric"])


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q["question_type"] == "knowledge_update"], ids=ids)
def test_an_update_has_an_old_and_a_new_value(question: dict[str, Any]) -> None:
    texts = contents(question["chat_id"])
    first = [next(n for n, text in enumerate(texts) if s in text) for s in evidence_of(question)["present"]]
    assert len(set(first)) >= 2


def test_the_shipped_files_are_made_from_their_source_byte_for_byte(tmp_path: Path) -> None:
    argv = ["--tag", "sample", "--src", str(DATA_DIR / "sample"), "--out-dir", str(tmp_path)]
    assert prepare_data.main(argv) == 0
    for name in ("beam_sample_questions.jsonl", "beam_sample_chats.jsonl.gz"):
        assert gzip_text(tmp_path / name) == gzip_text(DATA_DIR / name)


def gzip_text(path: Path) -> bytes:
    """The text of a data file: what zlib makes of it may differ from one version of zlib to the next."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def test_the_quick_start_shows_answers_scores_and_a_summary(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "examples" / "quickstart.py"), "--keep", str(tmp_path / "run")]
    environment = {**os.environ, "HTTP_PROXY": "http://127.0.0.1:9"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "=== BEAM summary (n=60) ===" in done.stdout
    means = re.findall(r"^  (\w+): (\d\.\d{4}) \(n=6\)", done.stdout, re.MULTILINE)
    assert [name for name, _ in means] == list(ABILITIES)
    assert len({mean for _, mean in means}) >= 4
    assert any(0 < float(mean) < 1 for _, mean in means)
    assert len((tmp_path / "run" / "answers.jsonl").read_text("utf-8").splitlines()) == 60


def test_the_quick_start_shows_the_same_answer_whichever_came_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [("1", "abstention", 1), ("2", "abstention", 0), ("1", "abstention", 0), ("1", "summarization", 0)]
    rows = [dict(zip(("chat_id", "question_type", "question_index"), key, strict=True)) for key in keys]
    quickstart.show_first_answer(write_lines(tmp_path / "answers.jsonl", rows))
    assert json.loads(capsys.readouterr().out.partition(":")[2]) == rows[2]
