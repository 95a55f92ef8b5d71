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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from beam_common.files import open_maybe_gzip
from beam_common.jsonl import Wanted, read_lines
from beam_common.messages import UsageError, say
from beam_common.rows import Message, QuestionRow, key_of, name_of
from beam_common.tokens import TokenCounter

SLICE_BYTES = 256 * 1024  # of a prompt sent at a time
FIRST_SHRINK = 0.02  # share of the history dropped for a prompt that is too long, then doubled

CHAT: Wanted = {"chat_id": (str, int), "messages": (list,)}
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def first_kept(roles: Sequence[str], counts: Sequence[int], budget: float) -> int:
    """Index of the first message that stays: whole messages go from the front while the rest is
    over `budget` tokens, then more until a user message comes first. A chat that fits stays whole;
    len(counts) means that nothing is left."""
    total = sum(counts)
    if total <= budget:
        return 0
    first = 0
    while first < len(counts) and (total > budget or roles[first] != "user"):
        total -= counts[first]
        first += 1
    return first


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def sliced(messages: Iterable[Message]) -> Iterator[bytes]:
    """The messages as JSON, each followed by a comma, in slices of about SLICE_BYTES."""
    slice_ = bytearray()
    for message in messages:
        slice_ += _encode(message).encode("utf-8", "backslashreplace") + b","
        if len(slice_) >= SLICE_BYTES:
            yield bytes(slice_)
            slice_.clear()
    if slice_:
        yield bytes(slice_)


# ------------------------------------------------------------------------------------------------
# The file.


class ChatsFile:
    """The chats of a file, found by one scan. UsageError for damage, naming the line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.starts: dict[str, int] = {}  # of each chat, its line's offset in the unpacked file
        self.sizes: dict[str, int] = {}  # and the UTF-8 bytes of its contents
        digest = hashlib.sha256()
        for line in read_lines(path, CHAT):
            digest.update(line.raw)
            row = line.row or {"chat_id": "", "messages": []}
            chat_id, messages, problem = str(row["chat_id"]), row["messages"], line.problem
            if chat_id in self.starts:
                problem = f"chat {chat_id} stands twice"
            elif not all(map(_is_message, messages)):
                problem = "a message without a role or content"
            if problem:
                raise UsageError(f"{path} line {line.number}: {problem}; make the file anew")
            self.starts[chat_id] = line.start
            self.sizes[chat_id] = sum(utf8_length(message["content"]) for message in messages)
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


def _is_message(item: object) -> bool:
    return isinstance(item, dict) and {type(item.get(n)) for n in ("role", "content")} == {str}


# ------------------------------------------------------------------------------------------------
# Prompts.


@dataclass(frozen=True)
class Prompt:
    """A chat as it is sent: its kept messages as JSON, each followed by a comma, in slices that all
    its requests share."""

    chat_id: str
    messages: int  # of the whole chat
    first: int  # index of the first one kept
    tokens: int | None  # of the whole chat; None where it was not counted
    kept_tokens: int | None
    kept_bytes: int  # UTF-8 bytes of the kept contents: an upper bound of their tokens
    characters: int  # of the whole chat's contents
    pieces: tuple[bytes, ...]


@dataclass(frozen=True)
class _Measure:
    """What is remembered of a chat that was read: it is never counted again."""

    roles: list[str]
    sizes: list[int]  # tokens of each message, or bytes where it was not `counted`
    counted: bool
    first: int


class Chats:
    """The prompts of a run. `counter` and `budget` are None where nothing is truncated."""

    def __init__(self, file: ChatsFile, counter: TokenCounter | None, budget: int | None) -> None:
        self.file = file
        self.shrunk: dict[str, int] = {}  # chats cut further, and the first message kept
        self._counter = counter
        self._budget = math.inf if budget is None else budget
        self._measures: dict[str, _Measure] = {}
        self._shrinks: Counter[str] = Counter()
        self._prompts: dict[str, asyncio.Future[Prompt]] = {}
        self._worker = ThreadPoolExecutor(1, "chats")

    def prepare(self, chat_ids: Iterable[str]) -> None:
        """Load the tokenizer if one of these chats must be counted; UsageError where that fails.

        Loading holds the interpreter for longer than requests in flight should wait, so this comes
        before them.
        """
        if counter := next(filter(None, map(self._counter_for, chat_ids)), None):
            counter.load()

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
        contents = [message["content"] for message in messages]
        lengths = list(map(utf8_length, contents))
        if chat_id not in self._measures:
            counter = self._counter_for(chat_id)
            sizes = counter.count(contents) if counter else lengths
            roles = [message["role"] for message in messages]
            self._measures[chat_id] = self._measured(chat_id, roles, sizes, counter is not None)
        measure = self._measures[chat_id]
        first = max(measure.first, self.shrunk.get(chat_id, 0))
        return Prompt(
            chat_id,
            messages=len(messages),
            first=first,
            tokens=sum(measure.sizes) if measure.counted else None,
            kept_tokens=sum(measure.sizes[first:]) if measure.counted else None,
            kept_bytes=sum(lengths[first:]),
            characters=sum(map(len, contents)),
            pieces=tuple(sliced(messages[first:])),
        )

    def shrink(self, prompt: Prompt) -> bool:
        """Cut more of a chat whose prompt was too long, unless that has happened since it was
        built; False where nothing would be left: at the latest after six cuts, of 2 to 64 %."""
        chat_id, measure = prompt.chat_id, self._measures[prompt.chat_id]
        if self.shrunk.get(chat_id, 0) > prompt.first:
            return True
        share = FIRST_SHRINK * 2 ** self._shrinks[chat_id]
        kept = sum(measure.sizes[prompt.first :])
        first = first_kept(measure.roles, measure.sizes, kept * (1 - share))
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

    def _counter_for(self, chat_id: str) -> TokenCounter | None:
        """What must count a chat; None where it is sent whole without counting."""
        counter, size = self._counter, self.file.sizes[chat_id]
        return None if counter and counter.bytes_bound and size <= self._budget else counter

    def _measured(
        self, chat_id: str, roles: list[str], sizes: list[int], counted: bool
    ) -> _Measure:
        first = first_kept(roles, sizes, self._budget)
        if first:
            say(
                f"chat {chat_id}: {sum(sizes):,} tokens, over the budget of {self._budget:,}: the "
                f"oldest {first:,} of {len(sizes):,} messages are left out, "
                f"{sum(sizes[first:]):,} tokens stay"
            )
        return _Measure(roles, sizes, counted, first)
