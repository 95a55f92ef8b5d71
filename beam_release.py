"""Reading the BEAM release as its authors publish it: chats, message by message, and probing questions.

A checkout of the release holds
    chats/<tier>/<chat>/chat.json                                  one conversation, in one of two layouts
    chats/<tier>/<chat>/chat_trunecated.json                       a shorter variant, in the release's own spelling
    chats/<tier>/<chat>/probing_questions/probing_questions.json   {ability: [question, …]}
"""

from __future__ import annotations

import codecs
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from beam_common import ABILITIES, QuestionRow, UsageError, one_line, plural, say

# Our tags and what the release calls its tiers.
TIERS = {"128k": "100K", "500k": "500K", "1m": "1M", "10m": "10M"}
CHAT = "chat.json"
TRUNCATED_CHAT = "chat_trunecated.json"
QUESTIONS = "probing_questions/probing_questions.json"
ROLES = ("user", "assistant")

# Where a question keeps its gold answer. Other abilities, and questions without the field, are known by their rubric.
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

_PIECE = 1 << 16  # bytes read at once
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER_REST = re.compile(r"[-+.eE0-9]*")
_PLAN = re.compile(r"plan-\d+")


# ---------------------------------------------------------------------------------------------------------------
# JSON, piece by piece. Decoding a chat of 50 MB at once takes 200 MB for its text alone (one emoji makes Python keep
# four bytes a character) and as much again for its objects.


class JsonReader:
    """Walks through JSON of any size and holds no more than the piece it is at.

    `read(n)` gives at most n further bytes, b"" at the end. Whatever is not valid JSON or not UTF-8 raises a UsageError
    that begins with `name`.
    """

    def __init__(self, read: Callable[[int], bytes], name: str) -> None:
        self._read = read
        self._name = name
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._parse = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0  # in the text held
        self._passed = 0  # characters before the text held
        self._ended = False

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        raise UsageError(f"{self._name}: {problem} (character {self._passed + (self._at if at is None else at) + 1:,})")

    def peek(self) -> str:
        """The first character of what comes next, blanks passed over; empty at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def value(self) -> Any:
        """The next value, whole."""
        self.peek()
        while True:
            try:
                value, end = self._parse(self._text, self._at)
            except ValueError as error:
                if self._more():
                    continue
                if isinstance(error, json.JSONDecodeError):
                    self.fail(f"not valid JSON: {error.msg}", error.pos)
                self.fail("a number of too many digits")  # Python reads no integer of more than 4,300
            except RecursionError:
                self.fail("nested too deeply")
            if _NUMBER_REST.fullmatch(self._text, end) and self._more():
                continue  # a number may go on: "0." is read as 0
            self._at = end
            return value

    def elements(self) -> Iterator[int]:
        """Enter a list: yields 0, 1, 2 …, each time in front of an element, which the caller has to take."""
        self._take("[")
        if self.peek() != "]":
            for index in itertools.count():
                yield index
                if self.peek() == "]":
                    break
                self._take(",")
        self._take("]")

    def members(self) -> Iterator[str]:
        """Enter an object: yields each key in front of its value, which the caller has to take."""
        self._take("{")
        if self.peek() != "}":
            while True:
                if self.peek() != '"':
                    self.fail("not valid JSON: expected a key" if self.peek() else "ends in the middle")
                key = self.value()
                self._take(":")
                yield key
                if self.peek() == "}":
                    break
                self._take(",")
        self._take("}")

    def _take(self, wanted: str) -> None:
        found = self.peek()
        if found != wanted:
            self.fail(f"not valid JSON: expected {wanted!r}, found {found!r}" if found else "ends in the middle")
        self._at += 1

    def _more(self) -> bool:
        if self._ended:
            return False
        # At least as much as is held, so that a value longer than a piece is not parsed over and over.
        data = self._read(max(_PIECE, len(self._text) - self._at))
        self._ended = not data
        try:
            text = self._decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            self.fail(f"not UTF-8 ({error.reason})", len(self._text))
        self._passed += self._at
        self._text = self._text[self._at :] + text
        self._at = 0
        return True


# ---------------------------------------------------------------------------------------------------------------
# Chats.


def read_messages(path: Path) -> Iterator[dict[str, Any]]:
    """The messages of a chat file in order, one at a time, as they are; both layouts, told apart by what is there.

    Up to 1M a file is a list of batches, `{"turns": [[message, …], …]}`; at 10M a list of plans, each
    `{"plan-1": [batch, …]}`. Another shape raises a UsageError that names file and place.
    """
    try:
        with open(path, "rb") as file:
            reader = JsonReader(file.read, str(path))
            yield from _batches(reader, "")
            if reader.peek():
                reader.fail("something follows the chat")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: nested too deeply for a chat") from error


def _batches(reader: JsonReader, place: str) -> Iterator[dict[str, Any]]:
    if reader.peek() != "[":
        reader.fail(f"{place or 'the whole'}: expected a list of batches, found {_kind(reader.peek())}")
    for index in reader.elements():
        here = f"{place}[{index}]"
        if reader.peek() != "{":
            reader.fail(f"{here}: expected a batch or a plan, found {_kind(reader.peek())}")
        known = False
        for key in reader.members():
            if key == "turns":
                known = True
                yield from _turns(reader, f"{here}.turns")
            elif _PLAN.fullmatch(key) and reader.peek() != "n":  # a plan of null is the table form's "not this one"
                known = True
                yield from _batches(reader, f"{here}.{key}")
            else:
                reader.value()
        if not known:
            reader.fail(f"{here}: neither a batch with 'turns' nor a plan such as 'plan-1'")


def _turns(reader: JsonReader, place: str) -> Iterator[dict[str, Any]]:
    if reader.peek() != "[":
        reader.fail(f"{place}: expected a list, found {_kind(reader.peek())}")
    for index in reader.elements():
        here = f"{place}[{index}]"
        if reader.peek() == "[":
            yield from _turns(reader, here)
        elif reader.peek() == "{":
            message = reader.value()
            if not isinstance(message.get("content"), str | None):
                reader.fail(f"{here}: the content is {_kind(json.dumps(message['content']))}, not a text")
            yield message
        else:
            reader.fail(f"{here}: expected a message, found {_kind(reader.peek())}")


def _kind(beginning: str) -> str:
    """What a JSON value is, told by its first character."""
    names = {
        "": "the end of the file",
        "{": "an object",
        "[": "a list",
        '"': "a text",
        "n": "null",
        "t": "true",
        "f": "false",
    }
    return names.get(beginning[:1], "a number" if beginning[:1] in "-0123456789" else "no JSON")


def belongs(message: Mapping[str, Any]) -> bool:
    """Whether a message goes into the data: said by user or assistant, and not empty."""
    return message.get("role") in ROLES and bool(message.get("content"))


# ---------------------------------------------------------------------------------------------------------------
# Questions.


def read_questions(path: Path, chat_id: str) -> list[QuestionRow]:
    """The rows of a chat's probing questions: abilities in the order of the file, `question_index` from 0 in each.

    Another shape, an ability that is unknown or there twice, an empty question or rubric raises a UsageError that names
    file and place.
    """
    try:
        with open(path, "rb") as file:
            reader = JsonReader(file.read, str(path))
            rows = [
                _row(question, chat_id, ability, index, f"{path}: {ability}[{index}]")
                for ability, questions in _abilities(reader)
                for index, question in enumerate(questions)
            ]
            if reader.peek():
                reader.fail("something follows the questions")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: nested too deeply for questions") from error
    return rows


def _abilities(reader: JsonReader) -> Iterator[tuple[str, list[Any]]]:
    """Each ability of a file with its questions."""
    if reader.peek() != "{":
        reader.fail(f"expected an object of abilities, found {_kind(reader.peek())}")
    known: set[str] = set()
    for ability in reader.members():
        if ability not in ABILITIES:
            reader.fail(f"unknown ability {one_line(ability, 40)!r}; the ten are {', '.join(ABILITIES)}")
        if ability in known:
            reader.fail(f"{ability} is there twice")
        known.add(ability)
        if reader.peek() != "[":
            reader.fail(f"{ability}: expected a list of questions, found {_kind(reader.peek())}")
        yield ability, reader.value()


def gold_answer(ability: str, question: Mapping[str, Any], rubric: Sequence[str], place: str) -> str:
    """The answer a question is known by: its ability's own field, or else the rubric's lines."""
    value = question.get(GOLD_FIELD.get(ability, ""))
    return "\n".join(rubric if value is None else _texts(value, f"{place}: gold answer"))


def _row(question: object, chat_id: str, ability: str, index: int, place: str) -> QuestionRow:
    if not isinstance(question, dict):
        raise UsageError(f"{place}: expected a question, found {_kind(json.dumps(question))}")
    text = question.get("question")
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{place}: no question text")
    rubric = _texts(question.get("rubric"), f"{place}: rubric")
    if not any(line.strip() for line in rubric):
        raise UsageError(f"{place}: the rubric is empty")
    difficulty = question.get("difficulty")
    return {
        "chat_id": chat_id,
        "question_type": ability,
        "question_index": index,
        "question": text,
        "gold_answer": gold_answer(ability, question, rubric, place),
        "rubric": rubric,
        "difficulty": "unknown" if difficulty is None else str(difficulty),  # the release has an empty one
    }


def _texts(value: object, place: str) -> list[str]:
    """A text or a list of texts as a list of texts; a bare number becomes its text, null an empty list."""
    texts: list[str] = []
    for part in value if isinstance(value, list) else [] if value is None else [value]:
        if not isinstance(part, str | int | float):
            raise UsageError(f"{place}: {_kind(json.dumps(part))} where a text belongs")
        texts.append(part if isinstance(part, str) else json.dumps(part))
    return texts


# ---------------------------------------------------------------------------------------------------------------
# Folders of chats.


@dataclass(frozen=True)
class ChatFiles:
    chat_id: str
    chat: Path
    questions: Path


def numeric(chat_id: str) -> tuple[float, str]:
    """Sort key of chat ids: numbers by their value, before other names."""
    return (int(chat_id), chat_id) if chat_id.isascii() and chat_id.isdigit() else (float("inf"), chat_id)


def chat_ids(folder: Path) -> list[str]:
    """The chats of a tier directory in numeric order. Raises UsageError where there are none."""
    hint = "--src takes a tier directory such as BEAM/chats/1M, with one folder for each chat"
    if not folder.is_dir():
        raise UsageError(f"{folder} {'is not a directory' if folder.exists() else 'does not exist'}; {hint}")
    if (folder / CHAT).exists():
        raise UsageError(f"{folder} is a single chat; {hint}")
    try:
        names = [entry.name for entry in folder.iterdir() if entry.is_dir() and _is_chat(entry)]
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from error
    if not names:
        raise UsageError(f"{folder} holds no chat directories; {hint}")
    return sorted(names, key=numeric)


def _is_chat(folder: Path) -> bool:
    return folder.name.isdigit() or any((folder / name).exists() for name in (CHAT, TRUNCATED_CHAT, QUESTIONS))


def choose(known: Sequence[str], wanted: Sequence[str] | None, where: str) -> list[str]:
    """The chats that `--chats` names, in the order of `known`; all when it is not given."""
    if wanted is None:
        return list(known)
    unknown = [chat for chat in wanted if chat not in known]
    if unknown:
        raise UsageError(f"--chats: no chat {', '.join(unknown)} in {where}; there are {', '.join(known)}")
    return [chat for chat in known if chat in wanted]


def complete_chats(folder: Path, chats: Sequence[str], prefer_truncated: bool, allow_missing: bool) -> list[ChatFiles]:
    """The files of each chat; one that lacks its chat or its questions is an error, or left out (`allow_missing`)."""
    complete: list[ChatFiles] = []
    lacking: list[str] = []
    for chat in chats:
        truncated = folder / chat / TRUNCATED_CHAT
        conversation = truncated if prefer_truncated and truncated.exists() else folder / chat / CHAT
        files = ChatFiles(chat, conversation, folder / chat / QUESTIONS)
        absent = [str(path.relative_to(folder)) for path in (files.chat, files.questions) if not path.exists()]
        if absent:
            lacking.append(" and ".join(absent))
        else:
            complete.append(files)
    if not lacking:
        return complete
    more = f" and what belongs to {plural(len(lacking) - 3, 'further chat')}" if len(lacking) > 3 else ""
    problem = f"{folder} lacks {', '.join(lacking[:3])}{more}"
    if not complete:
        raise UsageError(f"{problem}; no chat is complete")
    if not allow_missing:
        raise UsageError(f"{problem}; complete it, or leave such chats out with --allow-missing")
    say(f"warning: {problem}; {plural(len(lacking), 'chat')} left out")
    return complete
