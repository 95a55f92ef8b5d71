"""The pair of data files of a tag: made of the release's files, and read back."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from beam_common.chats import ChatsFile
from beam_common.files import write_whole
from beam_common.jsonl import encode_row
from beam_common.messages import say
from beam_common.questions import read_questions
from beam_common.release import QUESTIONS, pair_of, read_content, read_messages
from beam_common.release import read_questions as questions_of
from beam_common.rows import Row

QUESTIONS_A_CHAT = 20


def write_pair(folder: Path, tag: str, sources: Iterable[Path]) -> None:
    """Make both files of chat files with their questions beside them, one chat at a time, each
    whole or not at all."""
    chats, questions = pair_of(folder, tag)
    rows: list[Row] = []

    def pack(file: BinaryIO) -> None:
        # Neither name nor time in the header: the same input gives the same bytes.
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as out:
            for path in sources:
                chat_id, messages = path.parent.name, read_messages(path)
                out.write(encode_row({"chat_id": chat_id, "messages": messages}))
                rows.extend(questions_of(path.parent / QUESTIONS, chat_id))
        questions.unlink(missing_ok=True)  # a kill must not leave it beside new chats

    write_whole(chats, pack)
    write_whole(questions, lambda file: file.writelines(map(encode_row, rows)))


def read_pair(chats: Path, questions: Path) -> Row:
    """The digests of both files, as in the digests file; UsageError names what is wrong in them."""
    file, rows = ChatsFile(chats), read_questions(questions)
    file.check(rows, questions)
    totals = Counter(str(row["chat_id"]) for row in rows)
    if odd := [
        f"{chat} ({totals[chat]})" for chat in file.starts if totals[chat] != QUESTIONS_A_CHAT
    ]:
        say(f"warning: chats with other than {QUESTIONS_A_CHAT} questions: {', '.join(odd)}")
    return {
        "chats": {"number": len(file.starts), "sha256": file.sha256},
        "questions": {"lines": len(rows), **digest_of(questions)},
    }


def digest_of(path: Path) -> Row:
    content = read_content(path)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
