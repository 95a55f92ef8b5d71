"""From the chats file to the shared bytes of a prompt: find a chat, count it, truncate it, serialise it, each once.

A chats file is scanned once before anything is sent: that finds damage, tells which chats there are, and gives the digest
of the data. Afterwards a chat is read when its questions are due and forgotten when they are done, so memory does not
depend on the size of the file. Reading goes forward; questions in another order than the chats cost one more pass over
the file for each step back.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from beam_common import UsageError, one_line, plural, say
from beam_log import open_maybe_gzip

SLICE_BYTES = 256 * 1024  # of a prompt sent at a time
SHRINK_WITHOUT_FIGURES = 0.02  # share of the history dropped when an overflow does not say by how much

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_CHAT_ID = re.compile(rb'\s*\{\s*"chat_id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)\s*,')


class TokenCounter(Protocol):
    """What truncation needs of a tokenizer; see beam_tokenizer."""

    name: str
    bytes_bound: bool  # a text has at most as many tokens as UTF-8 bytes

    def count(self, texts: Sequence[str]) -> list[int]: ...

    def check(self) -> None: ...

    def load(self) -> object: ...


# ---------------------------------------------------------------------------------------------------------------
# Truncation.


def first_kept(roles: Sequence[str], counts: Sequence[int], budget: int) -> int:
    """Index of the first message that stays: whole messages go from the front while the rest is over `budget` tokens,
    then more until a user message comes first. A chat that fits stays whole; len(counts) means that nothing is left."""
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


def _is_message(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)


# ---------------------------------------------------------------------------------------------------------------
# The file.


@dataclass(frozen=True)
class Place:
    """Where a chat stands: line number from 1, offset and length in bytes of the unpacked file."""

    line: int
    start: int
    length: int


class ChatsFile:
    """The chats of a file, found by one scan. Raises UsageError for a damaged file, naming the line."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.places: dict[str, Place] = {}
        digest = hashlib.sha256()
        try:
            self._file: BinaryIO = open_maybe_gzip(path)
            start = 0
            for number, raw in enumerate(self._file, 1):
                digest.update(raw)
                if raw.strip():
                    self._note(number, start, raw)
                start += len(raw)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._damaged(error) from error
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from error
        self.sha256 = digest.hexdigest()  # of the unpacked text

    def _damaged(self, error: Exception) -> UsageError:
        return UsageError(
            f"{self.path}: damaged gzip file ({one_line(str(error), 80)}); make it anew with prepare_data.py"
        )

    def _note(self, number: int, start: int, raw: bytes) -> None:
        raw_id = _CHAT_ID.match(raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw)
        try:
            quick = str(json.loads(raw_id[1])) if raw_id and raw.rstrip().endswith(b"}") else None
        except ValueError:
            quick = None
        chat_id = str(self._parse(number, raw)["chat_id"]) if quick is None else quick
        if chat_id in self.places:
            raise UsageError(
                f"{self.path}: chat {chat_id} stands on line {self.places[chat_id].line} and on line {number}; keep one"
            )
        self.places[chat_id] = Place(number, start, len(raw))

    def _parse(self, number: int, raw: bytes) -> dict[str, Any]:
        try:
            row = json.loads(raw.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.path} line {number}: not JSON ({one_line(str(error), 80)})") from error
        messages = row.get("messages") if isinstance(row, dict) else None
        if not (
            isinstance(messages, list) and isinstance(row.get("chat_id"), str | int) and all(map(_is_message, messages))
        ):
            raise UsageError(
                f'{self.path} line {number}: not a chat {{"chat_id": …, "messages": [{{"role", "content"}}]}}'
            )
        return dict(row)

    def messages(self, chat_id: str) -> list[dict[str, str]]:
        """The messages of one chat, each with role and content only. Forward in the file this is one pass in all."""
        place = self.places[chat_id]
        try:
            self._file.seek(place.start)
            raw = self._file.read(place.length)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._damaged(error) from error
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror or error}") from error
        return [{"role": m["role"], "content": m["content"]} for m in self._parse(place.line, raw)["messages"]]


# ---------------------------------------------------------------------------------------------------------------
# Prompts.


@dataclass(frozen=True)
class Prompt:
    """A chat as it is sent: its kept messages as JSON, each followed by a comma, in slices shared by all its requests."""

    chat_id: str
    messages: int  # of the whole chat
    first: int  # index of the first one kept
    tokens: int | None  # of the whole chat; None where it was not counted
    kept_tokens: int | None
    kept_bytes: int  # UTF-8 bytes of the kept contents: an upper bound of their tokens
    characters: int  # of the whole chat's contents
    pieces: tuple[bytes, ...]


@dataclass
class _Measure:
    """What is remembered of a chat once it was counted: never counted again, however often it is read."""

    roles: tuple[str, ...]
    sizes: list[int]  # tokens of each message, or bytes where `counted` is False
    counted: bool
    first: int


class PromptBuilder:
    """Builds prompts, one at a time (call it from one worker thread). `budget` is None when nothing is truncated."""

    def __init__(self, chats: ChatsFile, counter: TokenCounter | None, budget: int | None) -> None:
        self._chats, self._counter, self._budget = chats, counter, budget
        self._measures: dict[str, _Measure] = {}
        self.shrunk: dict[str, int] = {}  # chats cut further at the endpoint's word, and the first message kept

    def prepare(self, chat_ids: Iterable[str]) -> None:
        """Load the tokenizer if one of these chats must be counted; raises UsageError where it is not there.

        Loading holds the interpreter for longer than requests in flight should wait, so this comes before them.
        """
        for chat_id in chat_ids:
            if self._counter is None or self._budget is None:
                return
            if self._fits_by_bytes(self._chats.places[chat_id].length):  # the line is longer than the texts in it
                continue
            if not self._fits_by_bytes(sum(utf8_length(m["content"]) for m in self._chats.messages(chat_id))):
                self._counter.check()
                self._counter.load()
                return

    def build(self, chat_id: str) -> Prompt:
        """Read, measure, truncate and serialise one chat. Reports a truncation the first time."""
        messages = self._chats.messages(chat_id)
        lengths = [utf8_length(m["content"]) for m in messages]
        measure = self._measures.get(chat_id)
        if measure is None and not any(lengths):
            say(f"warning: chat {chat_id} holds no text: its questions are asked without any history")
        if measure is None:
            measure = self._measures[chat_id] = self._measured(chat_id, messages, lengths)
        first = max(measure.first, self.shrunk.get(chat_id, 0))
        return Prompt(
            chat_id,
            messages=len(messages),
            first=first,
            tokens=sum(measure.sizes) if measure.counted else None,
            kept_tokens=sum(measure.sizes[first:]) if measure.counted else None,
            kept_bytes=sum(lengths[first:]),
            characters=sum(len(m["content"]) for m in messages),
            pieces=tuple(sliced(messages[first:])),
        )

    def is_cut_further(self, prompt: Prompt) -> bool:
        """Whether the chat has been shrunk since this prompt of it was built."""
        return self.shrunk.get(prompt.chat_id, 0) > prompt.first

    def shrink(self, prompt: Prompt, over: tuple[int, int] | None) -> bool:
        """Cut more of a prompt's oldest history, by the excess the endpoint stated or 2 %; False when nothing is left."""
        measure = self._measures[prompt.chat_id]
        share = (over[0] - over[1]) / over[0] if over else SHRINK_WITHOUT_FIGURES
        kept = sum(measure.sizes[prompt.first :])
        first = first_kept(measure.roles, measure.sizes, min(int(kept * (1 - share * 1.01)), kept - 1))
        if first >= prompt.messages:
            return False
        self.shrunk[prompt.chat_id] = first
        say(
            f"chat {prompt.chat_id}: the endpoint calls the prompt too long; {plural(first - prompt.first, 'more message')} "
            f"left out, {first:,} of {prompt.messages:,} in all"
        )
        return True

    def _measured(self, chat_id: str, messages: list[dict[str, str]], lengths: list[int]) -> _Measure:
        roles = tuple(m["role"] for m in messages)
        if self._counter is None or self._budget is None or self._fits_by_bytes(sum(lengths)):
            return _Measure(roles, lengths, counted=False, first=0)
        counts = self._counter.count([m["content"] for m in messages])
        first = first_kept(roles, counts, self._budget)
        total, kept = sum(counts), sum(counts[first:])
        if first == len(messages):
            say(
                f"warning: chat {chat_id}: nothing is left of its {total:,} tokens within the budget of {self._budget:,}: its "
                "questions are asked without any history"
            )
        elif first:
            say(
                f"chat {chat_id}: {total:,} tokens, over the budget of {self._budget:,}: the oldest {first:,} of "
                f"{len(messages):,} messages are left out, {kept:,} tokens stay"
            )
        return _Measure(roles, counts, counted=True, first=first)

    def _fits_by_bytes(self, size: int) -> bool:
        return bool(self._counter and self._counter.bytes_bound and self._budget is not None and size <= self._budget)


def sliced(messages: Iterable[dict[str, str]]) -> Iterator[bytes]:
    """The messages as JSON, each followed by a comma, joined into slices of about SLICE_BYTES."""
    parts: list[bytes] = []
    size = 0
    for message in messages:
        parts.append(_encode(message).encode("utf-8", "backslashreplace") + b",")
        size += len(parts[-1])
        if size >= SLICE_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)
