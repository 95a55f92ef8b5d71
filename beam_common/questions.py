"""The questions of a run: found by tag, read, checked, selected, dealt to shards."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from beam_common.command import started_by
from beam_common.jsonl import QUESTION, unique_rows
from beam_common.messages import UsageError
from beam_common.release import SAMPLE, TIERS, pair_of, tag_hint, tag_of
from beam_common.rows import DATA_DIR, QuestionRow


def select(
    questions: Sequence[QuestionRow],
    types: Sequence[str],
    chats: Sequence[str],
    shard: tuple[int, int],
    limit: int,
) -> list[QuestionRow]:
    """The questions of this run in the order of the file: by ability, by chat, then every N-th
    chat, then the first ones.

    Chats are dealt to shards round-robin as they first occur, whole, so that N shards together are
    the unsharded set.
    """
    known = dict.fromkeys(str(q["chat_id"]) for q in questions)
    part, parts = shard
    ours = [chat for chat in known if not chats or chat in chats][part - 1 :: parts]
    chosen = [
        q
        for q in questions
        if str(q["chat_id"]) in ours and (not types or q["question_type"] in types)
    ]
    return chosen[: limit or None]


def data_files(tag: str, chats: str | None, questions: str | None) -> tuple[Path, Path]:
    """The chats and questions file of a tag or of the flags that name others; UsageError where one
    is missing."""
    tag = tag_of(tag)
    pair = pair_of(DATA_DIR, tag)
    paths = Path(chats or pair[0]), Path(questions or pair[1])
    if absent := [path for path in paths if not path.is_file()]:
        way_out = tag_hint(tag, SAMPLE)
        if chats or questions:
            way_out = "check --chats-file and --questions-file"
        elif tag in TIERS:
            make = f"{started_by('prepare_data.py')} --tag {tag}"
            way_out = f"make it with `{make}`, or try the sample that is here: --tag sample"
        raise UsageError(f"no data: there is no file {absent[0]}; {way_out}")
    return paths


def read_questions(path: Path) -> list[QuestionRow]:
    """The questions of a file; UsageError naming the line of what is none or stands twice."""
    rows = [row for _, row in unique_rows(path, QUESTION)]
    if not rows:
        raise UsageError(f"{path} holds no questions; make it anew with prepare_data.py")
    return cast(list[QuestionRow], rows)


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
