"""The record of a generation run: its settings, what was selected, which model answered."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from beam_common.cli import shown_url
from beam_common.files import sha256_of_file
from beam_common.messages import one_line, say
from beam_common.reply import Reply
from beam_common.rows import QuestionRow, Row
from beam_common.settings import now_text, package_versions, save_sidecar


def new_record(args: argparse.Namespace, body: Row, chats_sha256: str, questions: Path) -> Row:
    """What answers.run.json holds; `settings` and `data` bind a later resume."""
    named = args.chats_file or args.questions_file
    return {
        "program": "beam_generate.py",
        "output": args.output.name,
        "started": [now_text()],
        "settings": {
            "base_url": shown_url(args.base_url),
            "body": body,
        },
        "data": {
            "tag": "" if named else args.tag,
            "questions_sha256": sha256_of_file(questions),
            "chats_sha256": chats_sha256,
        },
        "shard": ["/".join(map(str, args.shard))],
        "run": {
            name: getattr(args, name)
            for name in ("concurrency", "open_chats", "max_retries", "timeout", "on_overflow")
        },
        "versions": package_versions(["openai", "httpx2", "tiktoken", "transformers"]),
    }


def counted(questions: Sequence[QuestionRow], earlier: Row) -> Row:
    """chat -> ability -> how many questions are selected, those of earlier runs included."""
    now = Counter((str(q["chat_id"]), q["question_type"]) for q in questions)
    selected = {chat: dict(abilities) for chat, abilities in earlier.items()}
    for (chat, ability), n in now.items():
        of_chat = selected.setdefault(chat, {})
        of_chat[ability] = max(n, of_chat.get(ability, 0))
    return selected


class Record:
    """answers.run.json while the run lasts: which model answered, which chats were cut further."""

    def __init__(self, path: Path, content: Row, asked: str) -> None:
        self._path, self.content, self._asked = path, content, asked
        self._served: Counter[str] = Counter(content.get("served", {}))

    def note_model(self, reply: Reply) -> bool:
        """Count the model that a reply names; whether it is a new one.

        One that was not asked for, or is named after another, is told of once.
        """
        if not reply.model:
            return False
        name = reply.model + (f" via {reply.provider}" if reply.provider else "")
        name = one_line(name, 200)
        new = name not in self._served
        if new and (self._served or reply.model != self._asked):
            say(f"note: the endpoint names the model that answers {name} (asked: {self._asked})")
        self._served[name] += 1
        return new

    def save(self) -> None:
        self.content["served"] = dict(self._served)
        save_sidecar(self._path, self.content)
