"""From the chats file to the shared bytes of a prompt: find a chat, count it, truncate it,
serialise it, each once.

A chats file is scanned once before anything is sent: that finds damage, tells which chats there
are, and gives the digest of the data. Afterwards a chat is read when its questions are due, so
memory does not depend on the size of the file. Reading goes forward; questions in another order
than the chats cost one more pass over the file for each step back.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from beam_common.files import open_maybe_gzip
from beam_common.jsonl import Wanted, problem_of, unique_rows
from beam_common.messages import UsageError, say
from beam_common.rows import Message, QuestionRow, key_of, name_of
from beam_common.tokens import TokenCounter

SLICE_BYTES = 256 * 1024  # of a prompt sent at a time
FIRST_SHRINK = 0.02  # share of the history dropped for a prompt that is too long, then doubled

CHAT: Wanted = {"chat_id": (str, int), "messages": (list,)}
MESSAGE: Wanted = {"role": (str,), "content": (str,)}
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def first_kept(roles: Sequence[str], counts: Sequence[int], budget: float) -> int:
    """Index of the first message that stays: whole messages go from the front while the rest is
    over `budget` tokens, then more until a user message comes first. A chat that fits stays whole;
    len(counts) means that nothing is left."""
    total, first = sum(counts), 0
    while first < len(counts) and (total > budget or (first and roles[first] != "user")):
        total -= counts[first]
        first += 1
    return first


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def sliced(messages: Iterable[Message]) -> tuple[bytes, ...]:
    """The messages as JSON, each followed by a comma, cut into slices of SLICE_BYTES."""
    text = "".join(_encode(message) + "," for message in messages)
    body = text.encode("utf-8", "backslashreplace")
    return tuple(body[start : start + SLICE_BYTES] for start in range(0, len(body), SLICE_BYTES))


# ------------------------------------------------------------------------------------------------
# The file.


class ChatsFile:
    """The chats of a file, found by one scan. UsageError for damage, naming the line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.starts: dict[str, int] = {}  # of each chat, its line's offset in the unpacked file
        self.sizes: dict[str, int] = {}  # and the UTF-8 bytes of its contents
        digest = hashlib.sha256()
        for line, row in unique_rows(path, CHAT):
            chat_id, messages = str(row["chat_id"]), row["messages"]
            problems = (problem_of(message, MESSAGE) for message in messages)
            if problem := next(filter(None, problems), None):
                raise UsageError(f"{path} line {line.number}: a message: {problem}")
            self.starts[chat_id] = line.start
            self.sizes[chat_id] = sum(utf8_length(message["content"]) for message in messages)
            digest.update(line.raw)
        self.sha256 = digest.hexdigest()  # of the unpacked text, blank lines apart
        self._file = open_maybe_gzip(path)

    def check(self, questions: Iterable[QuestionRow], path: Path) -> None:
        """UsageError where a question of the file `path` is about a chat that is not here."""
        for key in map(key_of, questions):
            if key[0] not in self.starts:
                raise UsageError(
                    f"{path}: {name_of(key)} is about a chat that is not in "
                    f"{self.path}; the two files must be of one pair"
                )

    def messages(self, chat_id: str) -> list[Message]:
        """The messages of one chat. Forward in the file this is one pass in all."""
        self._file.seek(self.starts[chat_id])
        row = json.loads(self._file.readline())
        return [{"role": m["role"], "content": m["content"]} for m in row["messages"]]


# ------------------------------------------------------------------------------------------------
# Prompts.


@dataclass(frozen=True)
class Prompt:
    """A chat as it is sent: its kept messages as JSON, each followed by a comma, in slices that all
    its requests share."""

    chat_id: str
    messages: int  # of the whole chat
    first: int  # index of the first one kept
    counted: bool
    tokens: int  # of the whole chat; UTF-8 bytes, an upper bound, where it was not counted
    kept_tokens: int
    kept_bytes: int
    pieces: tuple[bytes, ...]


class Chats:
    """The prompts of a run. `counter` and `budget` are None where nothing is truncated."""

    def __init__(self, file: ChatsFile, counter: TokenCounter | None, budget: int | None) -> None:
        self.file = file
        self.shrunk: dict[str, int] = {}  # chats cut further, and the first message kept
        self._counter = counter
        self._budget = math.inf if budget is None else budget
        fitting = {chat for chat, size in file.sizes.items() if size <= self._budget}
        self._uncounted = fitting if counter and counter.bytes_bound else set()
        # Of chats that were read, which are never counted again: the role and size of each message,
        # and whether sizes are tokens, not bytes.
        self._measures: dict[str, tuple[list[str], list[int], bool]] = {}
        self._shrinks: Counter[str] = Counter()
        self._prompts: dict[str, asyncio.Future[Prompt]] = {}
        self._worker = ThreadPoolExecutor(1, "chats")

    def prepare(self, chat_ids: Iterable[str]) -> None:
        """Load the tokenizer if one of these chats must be counted; UsageError where that fails.

        Loading holds the interpreter for longer than requests in flight should wait, so this comes
        before them.
        """
        if self._counter and {*chat_ids} - self._uncounted:
            self._counter.load()

    async def prompt(self, chat_id: str) -> Prompt:
        """The prompt of a chat: built once for all who ask, off the event loop, and held until it
        is forgotten."""
        if chat_id not in self._prompts:
            loop = asyncio.get_running_loop()
            self._prompts[chat_id] = loop.run_in_executor(self._worker, self.build, chat_id)
        return await asyncio.shield(self._prompts[chat_id])

    def forget(self, chat_id: str) -> None:
        """Hold the prompt of a chat no longer: no question about it is left to send."""
        self._prompts.pop(chat_id, None)

    def build(self, chat_id: str) -> Prompt:
        """Read, measure, truncate and serialise one chat. Says a truncation the first time."""
        messages = self.file.messages(chat_id)
        lengths = [utf8_length(message["content"]) for message in messages]
        new = chat_id not in self._measures
        if new:
            counter = None if chat_id in self._uncounted else self._counter
            sizes = counter.count([m["content"] for m in messages]) if counter else lengths
            self._measures[chat_id] = [m["role"] for m in messages], sizes, counter is not None
        roles, sizes, counted = self._measures[chat_id]
        first = first_kept(roles, sizes, self._budget)
        if new and first:
            say(
                f"chat {chat_id}: {sum(sizes):,} tokens, over the budget of {self._budget:,}: the "
                f"oldest {first:,} of {len(sizes):,} messages are left out, "
                f"{sum(sizes[first:]):,} tokens stay"
            )
        first = max(first, self.shrunk.get(chat_id, 0))
        return Prompt(
            chat_id,
            messages=len(messages),
            first=first,
            counted=counted,
            tokens=sum(sizes),
            kept_tokens=sum(sizes[first:]),
            kept_bytes=sum(lengths[first:]),
            pieces=sliced(messages[first:]),
        )

    def shrink(self, prompt: Prompt) -> bool:
        """Cut more of a chat whose prompt was too long, unless that has happened since it was
        built; False where nothing would be left: at the latest after six cuts, of 2 to 64 %."""
        chat_id = prompt.chat_id
        if self.shrunk.get(chat_id, 0) > prompt.first:
            return True
        roles, sizes, _ = self._measures[chat_id]
        share = FIRST_SHRINK * 2 ** self._shrinks[chat_id]
        first = first_kept(roles, sizes, sum(sizes[prompt.first :]) * (1 - share))
        if first == prompt.messages:
            return False
        self._shrinks[chat_id] += 1
        self.shrunk[chat_id] = first
        self.forget(chat_id)
        say(
            f"chat {chat_id}: the endpoint calls the prompt too long: the oldest {first:,} of "
            f"{prompt.messages:,} messages are left out now"
        )
        return True
