"""The pair of data files that the benchmark reads: written whole, read back, counted, compared with what is recorded.

    beam_<tag>_chats.jsonl.gz    {"chat_id", "messages": [{"role", "content"}, …]}, a line for each chat
    beam_<tag>_questions.jsonl   {"chat_id", "question_type", "question_index", "question", "gold_answer", "rubric",
                                 "difficulty"}, a line for each question

A line of chats may hold 40 MB, so chats are written and read message by message.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from beam_common import ABILITIES, UsageError, name_of, one_line, plural, say
from beam_log import QUESTION, encode_row, read_lines
from beam_release import ROLES, ChatFiles, JsonReader, belongs, read_messages, read_questions


@dataclass(frozen=True)
class Pair:
    chats: Path
    questions: Path

    @classmethod
    def of(cls, folder: Path, tag: str) -> Pair:
        return cls(folder / f"beam_{tag}_chats.jsonl.gz", folder / f"beam_{tag}_questions.jsonl")


@dataclass(frozen=True)
class Content:
    """Counts, the digests of the uncompressed texts as in the digests file, and problems with their places."""

    messages: dict[str, int]  # of each chat
    questions: Counter[tuple[str, str]]  # of each chat and ability
    chats_digest: dict[str, Any]  # number, messages, bytes, sha256
    questions_digest: dict[str, Any]  # lines, bytes, sha256
    problems: list[str] = field(default_factory=list)


def differing(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What differs from a recorded digest, one text each, with the first 12 digits of a SHA-256; what is not recorded
    does not."""

    def show(value: Any) -> str:
        return f"{value:,}" if isinstance(value, int) else str(value)[:12]

    names = {"number": "chats", "sha256": "SHA-256"}
    return [
        f"{names.get(name, name)} expected {show(value)}, found {show(found[name])}"
        for name, value in expected.items()
        if value is not None and value != found[name]
    ]


# ---------------------------------------------------------------------------------------------------------------
# Reading.


class Hashing:
    """Passes bytes on and keeps their number, lines and SHA-256."""

    def __init__(self, file: BinaryIO | gzip.GzipFile) -> None:
        self._file = file
        self.bytes = 0
        self.lines = 0
        self.sha256 = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.bytes += len(data)
        self.lines += data.count(b"\n")
        self.sha256.update(data)
        return data


def read_pair(pair: Pair) -> Content:
    """Read both files to their ends. Raises UsageError where one cannot be read."""
    problems: list[str] = []
    messages, chats_digest = _read_chats(pair.chats, problems)
    questions: Counter[tuple[str, str]] = Counter()
    for line in read_lines(pair.questions, QUESTION):
        place = f"{pair.questions.name} line {line.number}"
        if line.row is None:
            problems.append(f"{place}: {line.problem}")
            continue
        chat, ability = str(line.row["chat_id"]), line.row["question_type"]
        if chat not in messages:
            problems.append(f"{place}: chat {chat} is not in {pair.chats.name}")
        if ability not in ABILITIES:
            problems.append(f"{place}: unknown ability {one_line(ability, 40)!r}")
        if line.row["question_index"] != questions[chat, ability]:
            problems.append(f"{place}: {name_of(line.row)} stands where {questions[chat, ability]} is next")
        if not any(item.strip() for item in line.row["rubric"]):
            problems.append(f"{place}: {name_of(line.row)} has an empty rubric")
        questions[chat, ability] += 1
    asked = {chat for chat, _ in questions}
    problems += [f"{pair.questions.name}: no question about chat {chat}" for chat in messages if chat not in asked]
    with open(pair.questions, "rb") as file:
        hashing = Hashing(file)
        while hashing.read(1 << 20):
            pass
    digest = {"lines": hashing.lines, "bytes": hashing.bytes, "sha256": hashing.sha256.hexdigest()}
    return Content(messages, questions, chats_digest, digest, problems)


def _read_chats(path: Path, problems: list[str]) -> tuple[dict[str, int], dict[str, Any]]:
    """The number of messages of each chat, and the digest; message by message, since a line may hold 40 MB."""
    counts: dict[str, int] = {}
    try:
        with gzip.open(path, "rb") as file:
            hashing = Hashing(file)
            reader = JsonReader(hashing.read, str(path))
            while reader.peek():
                chat = ""
                for key in reader.members():
                    if key == "chat_id":
                        chat = str(reader.value())
                        if chat in counts:
                            problems.append(f"{path.name}: chat {chat} is there twice")
                        counts[chat] = 0
                    elif key != "messages" or chat not in counts:
                        reader.fail(f"{key!r} is no key of a chat, or is in the wrong place")
                    else:
                        for index in reader.elements():
                            counts[chat] += 1
                            problem = _message_problem(reader.value())
                            if problem:
                                problems.append(f"{path.name}: chat {chat}, message {index}: {problem}")
                if not counts.get(chat):
                    problems.append(f"{path.name}: chat {chat} has no messages")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: damaged gzip file ({one_line(str(error), 80)})") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if hashing.lines != len(counts):
        problems.append(f"{path.name}: {plural(hashing.lines, 'line')} for {plural(len(counts), 'chat')}")
    total, sha256 = sum(counts.values()), hashing.sha256.hexdigest()
    return counts, {"number": len(counts), "messages": total, "bytes": hashing.bytes, "sha256": sha256}


def _message_problem(message: object) -> str:
    if not isinstance(message, dict) or set(message) != {"role", "content"}:
        return "not a role and a content"
    if message["role"] not in ROLES:
        return f"role {one_line(str(message['role']), 40)!r}"
    return "" if isinstance(message["content"], str) and message["content"] else "empty content"


# ---------------------------------------------------------------------------------------------------------------
# Writing.


def write_chat(out: gzip.GzipFile, files: ChatFiles) -> tuple[int, int]:
    """Write the line of a chat, message by message. Returns the numbers of messages written and left out."""
    written = dropped = 0
    name = json.dumps(files.chat_id, ensure_ascii=False).encode("utf-8", "backslashreplace")
    out.write(b'{"chat_id": ' + name + b', "messages": [')
    for message in read_messages(files.chat):
        if not belongs(message):
            dropped += 1
            continue
        row = encode_row({"role": message["role"], "content": message["content"]})
        out.write((b", " if written else b"") + row.removesuffix(b"\n"))
        written += 1
    out.write(b"]}\n")
    if not written:
        raise UsageError(f"{files.chat}: no message of a user or an assistant in it")
    return written, dropped


def write_pair(pair: Pair, chats: Sequence[ChatFiles]) -> Content:
    """Write both files, read them back, then put both in place."""
    messages: dict[str, int] = {}
    questions: Counter[tuple[str, str]] = Counter()
    left_out = 0
    for path in (pair.chats, pair.questions):
        if path.is_dir():
            raise UsageError(f"{path} is a directory; move it away or use another --out-dir")
    folder = pair.chats.parent
    prefix = f".{pair.chats.name}."
    for left in folder.glob(f"{prefix}*"):  # of a process that was killed: the folder is locked, so it is gone
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as temporary:
        new = Pair(Path(temporary) / pair.chats.name, Path(temporary) / pair.questions.name)
        with open(new.chats, "wb") as packed, open(new.questions, "wb") as rows:
            # Neither name nor time in the header: the same input gives the same bytes.
            with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=packed, mtime=0) as out:
                for files in chats:
                    messages[files.chat_id], dropped = write_chat(out, files)
                    left_out += dropped
                    for row in read_questions(files.questions, files.chat_id):
                        rows.write(encode_row(row))
                        questions[files.chat_id, row["question_type"]] += 1
            for file in (packed, rows):
                file.flush()
                os.fsync(file.fileno())
        content = read_pair(new)
        if not content.problems and (content.messages, content.questions) != (messages, questions):
            content.problems.append("the counts read back are not those written; check the disk")
        if content.problems:
            more = f" (and {len(content.problems) - 1:,} more)" if len(content.problems) > 1 else ""
            raise UsageError(f"{content.problems[0]}{more}; nothing was installed")
        # A kill between the two must not leave new chats beside old questions: a missing file is noticed, that is not.
        pair.questions.unlink(missing_ok=True)
        new.chats.replace(pair.chats)
        new.questions.replace(pair.questions)
    if left_out:
        say(f"note: {plural(left_out, 'message')} of other roles or without content left out")
    return content
