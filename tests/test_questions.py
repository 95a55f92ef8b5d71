"""The questions of a run: found by tag, read, checked, selected, dealt to shards."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from beam_common import questions as module
from beam_common.messages import UsageError
from beam_common.questions import data_files, read_questions, select, selected_questions


def question(chat: Any, ability: str = "abstention", index: int = 0, **changes: Any) -> Any:
    row = {"chat_id": chat, "question_type": ability, "question_index": index}
    return {**row, "question": "?", "gold_answer": "", "rubric": [], **changes}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# Chats b, 10 and 2 in this order; a question of each of two abilities.
SIX = [question(c, a) for c in ("b", 10, "2") for a in ("abstention", "summarization")]


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        pytest.param({}, [0, 1, 2, 3, 4, 5], id="all"),
        pytest.param({"types": ["summarization"]}, [1, 3, 5], id="an-ability"),
        pytest.param({"chats": ["2", "10"]}, [2, 3, 4, 5], id="chats-in-the-order-of-the-file"),
        pytest.param({"shard": (1, 2)}, [0, 1, 4, 5], id="first-half-has-every-other-chat"),
        pytest.param({"shard": (2, 2)}, [2, 3], id="second-half"),
        pytest.param({"shard": (4, 4)}, [], id="an-empty-part"),
        pytest.param({"shard": (1, 2), "chats": ["10", "2"]}, [2, 3], id="dealt-after-chats"),
        pytest.param({"shard": (2, 2), "limit": 1}, [2], id="limited-after-dealing"),
        pytest.param(
            {"shard": (2, 2), "types": ["summarization"]}, [3], id="dealt-whatever-the-abilities"
        ),
    ],
)
def test_select(choice: dict[str, Any], chosen: list[int]) -> None:
    everything = {"types": [], "chats": [], "shard": (1, 1), "limit": 0}
    assert select(SIX, **{**everything, **choice}) == [SIX[n] for n in chosen]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        pytest.param([], "no questions", id="empty"),
        pytest.param([question(3), [1]], "line 2: not a JSON object", id="a-list"),
        pytest.param([question(3, rubric="x")], "line 1: .*'rubric' is \"x\"", id="bare-rubric"),
        pytest.param(
            [question(3), question("3")], "line 2: chat 3 abstention 0 stands twice", id="twice"
        ),
    ],
)
def test_damage_is_named_by_its_line(tmp_path: Path, rows: list[Any], said: str) -> None:
    with pytest.raises(UsageError, match=rf"q\.jsonl.* {said}"):
        read_questions(write(tmp_path / "q.jsonl", *rows))


def test_names_that_the_file_lacks_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", *SIX)
    flags = argparse.Namespace(question_types=["summarization"], chats=[], shard=(1, 1), limit=2)
    assert selected_questions(flags, path) == [SIX[1], SIX[3]]
    flags.question_types = ["summarisation"]
    with pytest.raises(UsageError, match=r"--question-types summarisation: .*abstention, summari"):
        selected_questions(flags, path)
    flags.question_types, flags.chats = [], ["10", "4"]
    with pytest.raises(UsageError, match=r"--chats 4: .*which has b, 10, 2"):
        selected_questions(flags, path)


def test_the_release_s_own_names_of_tiers_mean_our_tags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DATA_DIR", tmp_path)
    files = (tmp_path / "beam_128k_chats.jsonl.gz", tmp_path / "beam_128k_questions.jsonl")
    for path in files:
        path.touch()
    assert data_files("100K", None, None) == files
    other = write(tmp_path / "other.jsonl")
    assert data_files("128k", None, str(other)) == (files[0], other)


@pytest.mark.parametrize(
    ("tag", "chats_file", "said"),
    [
        pytest.param("1M", None, r"prepare_data\.py --tag 1m`.* --tag sample", id="not-made-yet"),
        pytest.param("smaple", None, "did you mean --tag sample", id="misspelt"),
        pytest.param("xyz", None, "128k or 500k or 1m or 10m or sample", id="like-nothing-known"),
        pytest.param("1m", "nowhere.gz", r"nowhere\.gz; check --chats-file", id="other-file"),
    ],
)
def test_missing_data_names_a_way_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str, chats_file: str | None, said: str
) -> None:
    monkeypatch.setattr(module, "DATA_DIR", tmp_path)
    with pytest.raises(UsageError, match=said):
        data_files(tag, chats_file, None)
