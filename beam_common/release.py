"""The BEAM release: its chats and questions, the pair of data files made of them, known digests.

A checkout of the release holds
    chats/<tier>/<chat>/chat.json                                  one conversation
    chats/<tier>/<chat>/chat_trunecated.json                       a shorter variant of some
    chats/<tier>/<chat>/probing_questions/probing_questions.json   {ability: [question, …]}
"""

from __future__ import annotations

import difflib
import functools
import gzip
import hashlib
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beam_common.files import placeholder, sha256_of_file
from beam_common.jsonl import QUESTION, Wanted, encode_row, read_lines
from beam_common.messages import UsageError, one_line, plural, say
from beam_common.rows import ABILITIES, DATA_DIR, Message, QuestionRow, key_of, name_of

# Our tags and what the release calls its tiers.
TIERS = {"128k": "100K", "500k": "500K", "1m": "1M", "10m": "10M"}
SAMPLE = "sample"
CHAT = "chat.json"
TRUNCATED_CHAT = "chat_trunecated.json"  # the release's own spelling
QUESTIONS = "probing_questions/probing_questions.json"
ROLES = ("user", "assistant")
QUESTIONS_A_CHAT = 20

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
_CHAT: Wanted = {"chat_id": (str, int), "messages": (list,)}


# ------------------------------------------------------------------------------------------------
# Tags and what is known of their files.


def tag_of(text: str) -> str:
    """Our tag for any spelling of a tier (`100K`, `1M`, `128K`); other texts as they are."""
    ours = {tier.lower(): tag for tag, tier in TIERS.items()}
    lower = text.strip().lower()
    return ours.get(lower, lower if lower in TIERS else text)


def nearest_tag(text: str) -> str:
    """The tag that a misspelt one may mean; empty where none is near."""
    known = [*TIERS, *(tier.lower() for tier in TIERS.values()), SAMPLE]
    near = difflib.get_close_matches(text.lower(), known, n=1)
    return tag_of(near[0]) if near else ""


@functools.cache
def recorded() -> dict[str, Any]:
    """What `data/digests.json` holds: `tags`, each with the digests of its pair, and `prompt`."""
    record: dict[str, Any] = json.loads((DATA_DIR / "digests.json").read_bytes())
    return record


def known_data(questions_sha256: str, chats_sha256: str) -> str:
    """What data of these digests are called, chats being of the unpacked text; empty if unknown."""
    for tag, digests in recorded()["tags"].items():
        if digests["questions"]["sha256"] == questions_sha256:
            name = "the sample" if tag == SAMPLE else f"the published {TIERS[tag]}"
            known = digests["chats"].get("sha256")
            if known == chats_sha256:
                return name if tag == SAMPLE else f"{name} files"
            return f"{name} questions, {'other chats' if known else 'chats of unknown digest'}"
    return ""


def differing(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """What differs from a recorded digest, in words; what is not recorded does not."""
    names = {"number": "chats", "sha256": "SHA-256"}
    return "; ".join(
        f"{names.get(name, name)} expected {str(value)[:12]}, found {str(found[name])[:12]}"
        for name, value in expected.items()
        if value != found[name]
    )


# ------------------------------------------------------------------------------------------------
# Reading the release.


def read_content(path: Path) -> bytes:
    """A whole file; UsageError for what is none, and for what stands in the place of one."""
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no regular file")
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if what := placeholder(content):
        raise UsageError(f"{path} is {what}")
    return content


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_content(path))
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON ({one_line(str(error), 100)})") from None


def read_messages(path: Path) -> list[dict[str, Any]]:
    """The messages of a chat file in order, as they are; UsageError naming the place of what is
    none."""
    try:
        return list(_messages(read_json(path), f"{path}: chat"))
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None


def _messages(value: Any, place: str) -> Iterator[dict[str, Any]]:
    """The messages below a list, a batch (`turns`) or, at 10M, an object of plans."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _messages(item, f"{place}[{index}]")
        return
    keys = value if isinstance(value, dict) else {}
    parts = [key for key in keys if key == "turns" or _PLAN.fullmatch(key)]
    for key in parts:
        yield from _messages(value[key], f"{place}.{key}")
    if parts:
        return
    if not {"role", "content"} & set(keys):
        raise UsageError(f"{place} is no list, no message, no batch with 'turns', no plan")
    if not isinstance(value.get("content"), str | None):
        raise UsageError(f"{place}: the content is no text")
    yield value


def read_questions(path: Path, chat_id: str) -> list[QuestionRow]:
    """The rows of a chat's questions: abilities in the order of the file, each numbered from 0."""
    abilities = read_json(path)
    if not isinstance(abilities, dict):
        raise UsageError(f"{path}: not an object of abilities")
    rows = []
    for ability, questions in abilities.items():
        if ability not in ABILITIES or not isinstance(questions, list):
            raise UsageError(f"{path}: {one_line(ability, 40)!r} is no ability with its questions")
        for index, question in enumerate(questions):
            place = f"{path}: {ability}[{index}]"
            rows.append(_question_row(question, chat_id, ability, index, place))
    return rows


def _question_row(
    question: Any, chat_id: str, ability: str, index: int, place: str
) -> QuestionRow:
    text = question.get("question") if isinstance(question, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{place}: no question")
    rubric = _texts(question.get("rubric"), f"{place}: rubric")
    gold = question.get(GOLD_FIELD.get(ability, ""))
    difficulty = question.get("difficulty")
    return {
        "chat_id": chat_id,
        "question_type": ability,
        "question_index": index,
        "question": text,
        "gold_answer": "\n".join(rubric if gold is None else _texts(gold, f"{place}: gold answer")),
        "rubric": rubric,
        "difficulty": "unknown" if difficulty is None else str(difficulty),
    }


def _texts(value: Any, place: str) -> list[str]:
    """A text or a list of texts as a list of texts; a number counts as its text, null as none."""
    parts = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(part, str | int | float) for part in parts):
        raise UsageError(f"{place}: neither a text nor a list of texts")
    return [part if isinstance(part, str) else json.dumps(part) for part in parts]
