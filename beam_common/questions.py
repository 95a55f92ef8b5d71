"""The questions of a run: found by tag, read, checked, selected, dealt to shards."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from beam_common.command import started_by
from beam_common.jsonl import QUESTION, read_lines
from beam_common.messages import UsageError
from beam_common.release import TIERS, nearest_tag, tag_of
from beam_common.rows import DATA_DIR, QuestionKey, QuestionRow, key_of, name_of


def select(
    questions: Sequence[QuestionRow],
    types: Sequence[str] = (),
    chats: Sequence[str] = (),
    shard: tuple[int, int] = (1, 1),
    limit: int = 0,
) -> list[QuestionRow]:
    """The questions of this run in the order of the file: by ability, by chat, then every N-th
    chat, then the first ones.

    Chats are dealt to shards round-robin as they first occur, whole, so that N shards together are
    the unsharded set.
    """
    in_chats = [q for q in questions if not chats or str(q["chat_id"]) in chats]
    dealt = list(dict.fromkeys(str(q["chat_id"]) for q in in_chats))
    part, parts = shard
    ours = set(dealt[part - 1 :: parts])
    chosen = [
        q
        for q in in_chats
        if str(q["chat_id"]) in ours and (not types or q["question_type"] in types)
    ]
    return chosen[:limit] if limit else chosen


def data_files(tag: str, chats: str | None, questions: str | None) -> tuple[Path, Path]:
    """The chats and questions file of a tag or of the flags that name others; UsageError where one
    is missing."""
    tag = tag_of(tag)
    files = []
    for given, flag, name in (
        (chats, "--chats-file", f"beam_{tag}_chats.jsonl.gz"),
        (questions, "--questions-file", f"beam_{tag}_questions.jsonl"),
    ):
        path = Path(given) if given else DATA_DIR / name
        if not path.is_file():
            way_out = f"check {flag}" if given else _way_to_data(tag)
            raise UsageError(f"no data: there is no file {path}; {way_out}")
        files.append(path)
    return files[0], files[1]


def _way_to_data(tag: str) -> str:
    if tag in TIERS:
        make = f"{started_by('prepare_data.py')} --tag {tag}"
        return f"make it with `{make}`, or try the sample that is here: --tag sample"
    near = nearest_tag(tag)
    return f"did you mean --tag {near}?" if near else f"the tags are {', '.join(TIERS)} and sample"


def read_questions(path: Path) -> list[QuestionRow]:
    """The questions of a file; UsageError naming the line of what is none or stands twice."""
    questions: dict[QuestionKey, QuestionRow] = {}
    for line in read_lines(path, QUESTION):
        if line.row is None:
            raise UsageError(
                f"{path} line {line.number}: not a question ({line.problem}); make the file anew"
            )
        key = key_of(line.row)
        if key in questions:
            raise UsageError(f"{path} line {line.number}: {name_of(key)} stands twice; keep one")
        questions[key] = cast(QuestionRow, line.row)
    if not questions:
        raise UsageError(f"{path} holds no questions; make it anew with prepare_data.py")
    return list(questions.values())


def selected_questions(args: argparse.Namespace, path: Path) -> list[QuestionRow]:
    """The questions of the file that the flags select; UsageError for names that it lacks."""
    questions = read_questions(path)
    for flag, wanted, known in (
        ("--question-types", args.question_types, [q["question_type"] for q in questions]),
        ("--chats", args.chats, [str(q["chat_id"]) for q in questions]),
    ):
        if strangers := [name for name in wanted if name not in known]:
            there = ", ".join(dict.fromkeys(known))
            raise UsageError(f"{flag} {', '.join(strangers)}: not in {path}, which has {there}")
    return select(questions, args.question_types, args.chats, args.shard, args.limit)
