"""The rows of every file, a question's identity, and the ten abilities."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

VERSION = "2.0.0"
PROJECT = Path(__file__).resolve().parent.parent
DATA_DIR = PROJECT / "data"
TOKENIZER_DIR = PROJECT / "tokenizer"

ABILITIES = (
    "abstention",
    "contradiction_resolution",
    "event_ordering",
    "information_extraction",
    "instruction_following",
    "knowledge_update",
    "multi_session_reasoning",
    "preference_following",
    "summarization",
    "temporal_reasoning",
)
ABSTENTION = "abstention"
EVENT_ORDERING = "event_ordering"

Row = dict[str, Any]  # a JSON object, to be changed or kept
Json = Mapping[str, Any]  # one that is only read
QuestionKey = tuple[str, str, int]  # chat_id, question_type, question_index


class Message(TypedDict):
    role: str
    content: str


class QuestionRow(TypedDict):
    chat_id: str
    question_type: str
    question_index: int
    question: str
    gold_answer: str
    rubric: list[str]
    difficulty: str


def key_of(row: Json) -> QuestionKey:
    """A question's identity; chat 3 and chat "3" are one."""
    return str(row["chat_id"]), row["question_type"], int(row["question_index"])


def identity(row: Json) -> Row:
    """The keys by which rows of one question are known."""
    return {name: row[name] for name in ("chat_id", "question_type", "question_index")}


def name_of(key: QuestionKey) -> str:
    """How messages call a question: `chat 3 abstention/0`."""
    chat, ability, index = key
    return f"chat {chat} {ability}/{index}"


def is_empty(row: Json) -> bool:
    """Whether an answer says nothing although its question did not fail."""
    return row.get("error") is None and not (row.get("response") or "").strip()
