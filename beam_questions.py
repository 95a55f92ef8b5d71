"""The questions of a run: read from the data of a tag, checked, selected, dealt to shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beam_common import (
    ABILITIES,
    DATA_DIR,
    QuestionKey,
    UsageError,
    key_of,
    name_of,
)
from beam_log import QUESTION, problem_of, read_lines

if TYPE_CHECKING:
    import argparse

    from beam_chats import ChatsFile


def select(
    questions: Sequence[dict[str, Any]],
    types: Sequence[str] = (),
    chats: Sequence[str] = (),
    shard: tuple[int, int] = (1, 1),
    limit: int = 0,
) -> list[dict[str, Any]]:
    """The questions of this run in the order of the file: by ability, by chat, then every N-th chat, then the first ones.

    Chats are dealt to shards round-robin as they first occur, whole, so that N shards together are the unsharded set.
    """
    in_chats = [q for q in questions if not chats or str(q["chat_id"]) in chats]
    dealt = {chat: n for n, chat in enumerate(dict.fromkeys(str(q["chat_id"]) for q in in_chats))}
    part, parts = shard
    chosen = [
        q
        for q in in_chats
        if dealt[str(q["chat_id"])] % parts == part - 1 and (not types or q["question_type"] in types)
    ]
    return chosen[:limit] if limit else chosen


def data_files(tag: str, chats: str | None, questions: str | None) -> tuple[Path, Path]:
    """The chats and questions file of a tag or of the flags that name others; UsageError where one is missing."""
    files = (
        Path(chats) if chats else DATA_DIR / f"beam_{tag}_chats.jsonl.gz",
        Path(questions) if questions else DATA_DIR / f"beam_{tag}_questions.jsonl",
    )
    for path, flag in zip(files, ("--chats-file", "--questions-file"), strict=True):
        if path.is_dir():
            raise UsageError(f"{path} is a folder; {flag} takes a file")
        if not path.exists():
            given = chats if flag == "--chats-file" else questions
            make = f"make it with: python prepare_data.py --tag {tag}"
            way = f"check {flag}" if given else f"{make} (or try the sample that is here: --tag sample)"
            raise UsageError(f"no data: {path} does not exist; {way}")
    return files


def read_questions(path: Path) -> list[dict[str, Any]]:
    """The questions of a file; raises UsageError naming the line of what is none, or of a question that stands twice."""
    questions: dict[QuestionKey, dict[str, Any]] = {}
    for line in read_lines(path, QUESTION):
        if line.row is None:
            raise UsageError(f"{path} line {line.number}: not a question ({line.problem}); make the file anew")
        if problem := problem_of(line.row, QUESTION):
            raise UsageError(f"{path} line {line.number}: {problem}")
        key = key_of(line.row)
        if key in questions:
            raise UsageError(f"{path} line {line.number}: {name_of(line.row)} stands twice; keep one")
        questions[key] = line.row
    if not questions:
        raise UsageError(f"{path} holds no questions; make it anew with prepare_data.py")
    return list(questions.values())


def selected_questions(args: argparse.Namespace, path: Path) -> list[dict[str, Any]]:
    questions = read_questions(path)
    unknown = [name for name in args.question_types if name not in {q["question_type"] for q in questions}]
    if unknown:
        raise UsageError(
            f"--question-types {', '.join(unknown)}: not in {path}; the abilities are {', '.join(ABILITIES)}"
        )
    known = {str(q["chat_id"]) for q in questions}
    if strangers := [chat for chat in args.chats if chat not in known]:
        raise UsageError(f"--chats {', '.join(strangers)}: not in {path}, which has {_some(known)}")
    return select(questions, args.question_types, args.chats, args.shard, args.limit)


def _some(ids: Iterable[str]) -> str:
    ordered = sorted(ids, key=lambda i: (len(i), i))
    return f"chats {', '.join(ordered[:12])}" + (f" … {ordered[-1]}" if len(ordered) > 12 else "")


def check_chats(chats: ChatsFile, questions: Sequence[dict[str, Any]], path: Path) -> None:
    for question in questions:
        if str(question["chat_id"]) not in chats.places:
            raise UsageError(
                f"{path}: {name_of(question)} is about a chat that is not in {chats.path}; the two files must be of one pair"
            )
