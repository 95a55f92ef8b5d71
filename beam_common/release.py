"""The BEAM release: its chats and questions, the pair of data files made of them, known digests.

A checkout of the release holds
    chats/<tier>/<chat>/chat.json                                  one conversation
    chats/<tier>/<chat>/chat_trunecated.json                       a shorter variant of some
    chats/<tier>/<chat>/probing_questions/probing_questions.json   {ability: [question, …]}
"""

from __future__ import annotations

import contextlib
import difflib
import gzip
import hashlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from beam_common.files import open_maybe_gzip, placeholder
from beam_common.jsonl import QUESTION, Wanted, encode_row, problem_of, read_lines
from beam_common.messages import UsageError, one_line, say
from beam_common.rows import ABILITIES, DATA_DIR, Message, QuestionRow, key_of, name_of

# Our tags and what the release calls its tiers.
TIERS = {"128k": "100K", "500k": "500K", "1m": "1M", "10m": "10M"}
SAMPLE = "sample"
CHAT = "chat.json"
TRUNCATED_CHAT = "chat_trunecated.json"  # the release's own spelling
QUESTIONS = "probing_questions/probing_questions.json"
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
    lower = text.strip().lower()
    return next((tag for tag, tier in TIERS.items() if lower in (tag, tier.lower())), text)


def nearest_tag(text: str) -> str:
    """The tag that a misspelt one may mean; empty where none is near."""
    near = difflib.get_close_matches(text.lower(), ["100k", *TIERS, SAMPLE], n=1)
    return tag_of(near[0]) if near else ""


def recorded() -> Any:
    """What `data/digests.json` holds: `tags`, each with the digests of its pair, and `prompt`."""
    return json.loads((DATA_DIR / "digests.json").read_bytes())


def known_data(questions_sha256: str, chats_sha256: str) -> str:
    """What data of these digests are called, chats being of the unpacked text; empty if unknown."""
    for tag, digests in recorded()["tags"].items():
        if digests["questions"]["sha256"] == questions_sha256:
            name = f"the published {TIERS[tag]}" if tag in TIERS else f"the {tag}"
            known = digests["chats"].get("sha256", "")
            if known == chats_sha256:
                return f"{name} files"
            return f"{name} questions, {'other' if known else 'unrecorded'} chats"
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
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None
    except (ValueError, TypeError, AttributeError) as error:
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


def read_questions(path: Path, chat_id: str) -> Iterator[QuestionRow]:
    """The rows of a chat's questions: abilities in the order of the file, each numbered from 0."""
    with _parsed(path) as abilities:
        for ability, questions in abilities.items():
            for index, question in enumerate(questions):
                row = _question_row(question, chat_id, ability, index)
                problem = problem_of(row, QUESTION)
                if problem or ability not in ABILITIES:
                    place = f"{path}: {one_line(ability, 40)}[{index}]"
                    raise UsageError(f"{place}: {problem or 'there is no such ability'}")
                yield row


def _question_row(question: dict[str, Any], chat_id: str, ability: str, index: int) -> QuestionRow:
    rubric = _texts(question.get("rubric") or [])
    gold = question.get(GOLD_FIELD.get(ability, ""))
    difficulty = question.get("difficulty")
    text: Any = question.get("question")
    return {
        "chat_id": chat_id,
        "question_type": ability,
        "question_index": index,
        "question": text,
        "gold_answer": "\n".join(rubric if gold is None else _texts(gold)),
        "rubric": rubric,
        "difficulty": "unknown" if difficulty is None else str(difficulty),
    }


def _texts(value: Any) -> list[str]:
    """A text or a list of texts as a list of texts; a number counts as its text."""
    return [str(part) for part in (value if isinstance(value, list) else [value])]


# ------------------------------------------------------------------------------------------------
# The pair of data files.


def pair_of(folder: Path, tag: str) -> tuple[Path, Path]:
    """The chats and the questions file of a tag."""
    return folder / f"beam_{tag}_chats.jsonl.gz", folder / f"beam_{tag}_questions.jsonl"


def write_pair(folder: Path, tag: str, sources: Iterable[Path]) -> dict[str, Any]:
    """Make both files of chat files with their questions beside them, one chat at a time, read
    them back, then put them in place, whole or not at all; their digests."""
    with tempfile.TemporaryDirectory(prefix=f".beam_{tag}.", dir=folder) as work:
        new_chats, new_questions = pair_of(Path(work), tag)
        # Neither name nor time in the header: the same input gives the same bytes.
        with (
            open(new_questions, "wb") as rows,
            open(new_chats, "wb") as packed,
            gzip.GzipFile("", "wb", compresslevel=6, fileobj=packed, mtime=0) as out,
        ):
            for path in sources:
                chat_id, messages = path.parent.name, read_messages(path)
                out.write(encode_row({"chat_id": chat_id, "messages": messages}))
                rows.writelines(map(encode_row, read_questions(path.parent / QUESTIONS, chat_id)))
        found = read_pair(new_chats, new_questions)
        chats, questions = pair_of(folder, tag)
        questions.unlink(missing_ok=True)  # a kill must not leave it beside new chats
        new_chats.replace(chats)
        new_questions.replace(questions)
    return found


def read_pair(chats: Path, questions: Path) -> dict[str, Any]:
    """The digests of both files, as in the digests file; UsageError names what is wrong in them."""
    messages: Counter[str] = Counter()
    for row in _rows(chats, _CHAT):
        chat = str(row["chat_id"])
        if chat in messages or not all(map(_is_message, row["messages"])):
            raise UsageError(f"{chats.name}: chat {chat} is there twice, or has an odd message")
        messages[chat] = len(row["messages"])
    asked: Counter[tuple[str, str]] = Counter()
    for row in _rows(questions, QUESTION):
        chat, ability, index = key = key_of(row)
        if chat not in messages or index != asked[chat, ability]:
            raise UsageError(f"{questions.name}: {name_of(key)} is out of place, or has no chat")
        if not any(map(str.strip, row["rubric"])):
            raise UsageError(f"{questions.name}: {name_of(key)} has an empty rubric")
        asked[chat, ability] += 1
    totals = Counter(chat for chat, _ in asked.elements())
    if odd := [f"{chat} ({totals[chat]})" for chat in messages if totals[chat] != QUESTIONS_A_CHAT]:
        say(f"warning: chats with other than {QUESTIONS_A_CHAT} questions: {', '.join(odd)}")
    sizes = {"number": len(messages), "messages": messages.total()}
    lines = {"lines": asked.total()}
    return {"chats": sizes | _digest(chats), "questions": lines | _digest(questions)}


def _rows(path: Path, wanted: Wanted) -> Iterator[dict[str, Any]]:
    for line in read_lines(path, wanted):
        if line.row is None:
            raise UsageError(f"{path.name} line {line.number}: {line.problem}")
        yield line.row


def _is_message(value: Any) -> bool:
    match value:
        case {"role": "user" | "assistant", "content": str(text)}:
            return text != ""
    return False


def _digest(path: Path) -> dict[str, Any]:
    """Length and SHA-256 of a file, unpacked."""
    with open_maybe_gzip(path) as file:
        digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}
