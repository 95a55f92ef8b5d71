"""The BEAM release: its tags, known digests, how its chats and questions are read.

A checkout of the release holds
    chats/<tier>/<chat>/chat.json                                  one conversation
    chats/<tier>/<chat>/chat_trunecated.json                       a shorter variant of some
    chats/<tier>/<chat>/probing_questions/probing_questions.json   {ability: [question, …]}
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beam_common.files import placeholder
from beam_common.jsonl import QUESTION, problem_of
from beam_common.messages import UsageError, one_line
from beam_common.rows import ABILITIES, DATA_DIR, Message, Row

# Our tags and what the release calls its tiers.
TIERS = {"128k": "100K", "500k": "500K", "1m": "1M", "10m": "10M"}
SPELT = {name.lower(): tag for tag, tier in TIERS.items() for name in (tag, tier)}
SAMPLE = "sample"
CHAT = "chat.json"
TRUNCATED_CHAT = "chat_trunecated.json"  # the release's own spelling
QUESTIONS = "probing_questions/probing_questions.json"

# Where a question keeps its gold answer. Questions of other abilities, or without the field, are
# known by their rubric.
GOLD_FIELD = {
    "abstention": "ideal_response",
    "contradiction_resolution": "ideal_answer",
    "summarization": "ideal_summary",
    "event_ordering": "answer",
    "information_extraction": "answer",
    "knowledge_update": "answer",
    "multi_session_reasoning": "answer",
    "temporal_reasoning": "answer",
}
_PLAN = re.compile(r"plan-\d+")


# ------------------------------------------------------------------------------------------------
# Tags and what is known of their files.


def tag_of(text: str) -> str:
    """Our tag for any spelling of a tier (`100K`, `1M`, `128K`); other texts as they are."""
    return SPELT.get(text.strip().lower(), text)


def tag_hint(text: str, *others: str) -> str:
    """Which tag a misspelt one may mean, of the release's and others."""
    near = difflib.get_close_matches(text.lower(), [*SPELT, *others], 1) or [*TIERS, *others]
    return f"did you mean --tag {' or '.join(near)}?"


def pair_of(folder: Path, tag: str) -> tuple[Path, Path]:
    """The chats and the questions file of a tag."""
    return folder / f"beam_{tag}_chats.jsonl.gz", folder / f"beam_{tag}_questions.jsonl"


def recorded() -> Any:
    """What `data/digests.json` holds: `tags`, each with a name and the digests of its pair."""
    return json.loads((DATA_DIR / "digests.json").read_bytes())


def known_data(questions_sha256: str, chats_sha256: str) -> str:
    """What data of these digests are called, chats being of the unpacked text; empty if unknown."""
    for digests in recorded()["tags"].values():
        if digests["questions"]["sha256"] == questions_sha256:
            name = digests["name"]
            if digests["chats"].get("sha256") == chats_sha256:
                return f"{name} files"
            return f"{name} questions, chats {chats_sha256[:8]}"
    return ""


# ------------------------------------------------------------------------------------------------
# Reading the release.


def read_content(path: Path) -> bytes:
    """A whole file; UsageError for what is none, and for what stands in the place of one."""
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file, or it is no regular one")
    content = path.read_bytes()
    if what := placeholder(content):
        raise UsageError(f"{path} is {what}")
    return content


@contextlib.contextmanager
def _parsed(path: Path) -> Iterator[Any]:
    """The JSON value of a file; UsageError for what is none, or has another form than is read."""
    try:
        yield json.loads(read_content(path))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        problem = one_line(str(error), 100)
        raise UsageError(f"{path}: not JSON in the release's form ({problem})") from None


def read_messages(path: Path) -> list[Message]:
    """The messages of a chat file in order: those of user and assistant that say something."""
    with _parsed(path) as value:
        messages = list(_messages(value, f"{path}: chat"))
    if not messages:
        raise UsageError(f"{path}: no message of a user or an assistant in it")
    return messages


def _messages(value: Any, place: str) -> Iterator[Message]:
    """The messages below a list, a batch (`turns`) or, at 10M, an object with a plan."""
    match value:
        case list():
            for index, item in enumerate(value):
                yield from _messages(item, f"{place}[{index}]")
        case {"turns": turns}:
            yield from _messages(turns, f"{place}.turns")
        case {"role": "user" | "assistant" as role, "content": str(text)} if text:
            yield {"role": role, "content": text}
        case {"role": _}:  # another role, or nothing said
            return
        case dict() if value and all(map(_PLAN.fullmatch, value)):
            for plan in value:
                yield from _messages(value[plan], f"{place}.{plan}")
        case _:
            raise UsageError(f"{place} is no list, batch, plan or message")


def read_questions(path: Path, chat_id: str) -> Iterator[Row]:
    """The rows of a chat's questions: abilities in the order of the file, each numbered from 0."""
    with _parsed(path) as abilities:
        for ability, questions in abilities.items():
            for index, question in enumerate(questions):
                rubric = _texts(question.get("rubric") or [])
                gold = question.get(GOLD_FIELD.get(ability, ""))
                row = {
                    "chat_id": chat_id,
                    "question_type": ability,
                    "question_index": index,
                    "question": question.get("question"),
                    "gold_answer": "\n".join(rubric if gold is None else _texts(gold)),
                    "rubric": rubric,
                    "difficulty": question.get("difficulty", "unknown"),
                }
                problem = problem_of(row, QUESTION)
                if ability not in ABILITIES:
                    problem = "there is no such ability"
                elif not any(map(str.strip, rubric)):
                    problem = problem or "the rubric is empty"
                if problem:
                    raise UsageError(f"{path}: {one_line(ability, 40)}[{index}]: {problem}")
                yield row


def _texts(value: Any) -> list[str]:
    """A text or a list of texts as a list of texts; a number counts as its text."""
    return [str(part) for part in (value if isinstance(value, list) else [value])]
