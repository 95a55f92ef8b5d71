"""A reply read: a completion as JSON, or as a stream of events; its text, its counts, its failure.

What is no whole answer is none: a stream counts only when it came to a finish_reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from beam_common.failure import Failure, Flags, error_inside, meaning, parsed, read_error
from beam_common.rows import Row


@dataclass(frozen=True)
class Reply:
    """An answer as received. Counts are None where the endpoint did not report them."""

    text: str
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    model: str | None = None  # as the reply names it
    provider: str | None = None  # behind a gateway that tells it


Outcome = Reply | Failure

BROKEN_OFF = r"(?i)^$|error|abort|cancel|insufficient_system_resource"  # finish_reasons
TEXT_PARTS = (None, "text", "output_text")  # types; there are also parts of reasoning
SURROGATE = re.compile("[\ud800-\udfff]")
BLANKS = b"\xef\xbb\xbf \t\r\n"  # before a reply, a byte order mark among them
IN_ONE_PIECE = b"{[<"  # how a reply begins that is no stream
FIELDS = (b"", b"event", b"id", b"retry")  # lines of a stream that hold nothing, comments first


def text_of(message: object) -> str | None:
    """A message's text, whose content is a string, null or a list of parts; None for others."""
    if not isinstance(message, dict):
        return None
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(
            _text(part.get("text")) or ""
            for part in map(_object, content)
            if part.get("type") in TEXT_PARTS
        )
    return content if isinstance(content, str) else None


def whole_characters(text: str) -> str:
    """Halves of a surrogate pair that came in two pieces are one character; lone ones stay."""
    if not SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def token_counts(usage: object) -> tuple[int | None, int | None, int | None]:
    """(prompt, completion, cached) tokens as reported.

    More cached tokens than prompt tokens mean that the latter leave them out.
    """
    used = _object(usage)
    details = _object(used.get("prompt_tokens_details"))
    hits = details.get("cached_tokens"), used.get("prompt_cache_hit_tokens")
    cached = _count(*hits, used.get("cached_tokens"))
    prompt = _count(used.get("prompt_tokens"))
    if prompt is not None and cached is not None and cached > prompt:
        prompt += cached
    return prompt, _count(used.get("completion_tokens")), cached


def _count(*values: object) -> int | None:
    """The first that is a number of tokens."""
    return next((n for n in values if type(n) is int and n >= 0), None)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _object(value: object) -> Row:
    return value if isinstance(value, dict) else {}


class Received:
    """What has come of a reply, fed with bytes as they arrive.

    Whether it is a stream of events is told by its first bytes, not by what was asked for: servers
    differ in whether they heed `stream`. `begun` is called when content or reasoning has come: the
    prompt's prefix is cached now. With `first_piece_only` that is answer enough.
    """

    def __init__(
        self, flags: Flags, begun: Callable[[], None], first_piece_only: bool = False
    ) -> None:
        self._flags, self._tell_begun, self._first_piece_only = flags, begun, first_piece_only
        self._status = 200
        self.headers: dict[str, str] = {}
        self._body = bytearray()  # of a stream the line that has not come to its end
        self._is_stream = self._begun = False
        self._parts: list[str] = []
        self._head: Row = {}  # the completion, or its first piece
        self._usage: object = None
        self._odd = ""  # the last line of a stream that is no event
        self._failure: Failure | None = None
        self.finish_reason: str | None = None
        self.over = False  # nothing more is to be read

    @property
    def is_enough(self) -> bool:
        """Whether the rest of the reply would change little."""
        return self._status >= 300 or self.finish_reason is not None

    def begin(self, response: Any) -> None:
        """The head of the reply has come; a Response of httpcore."""
        self._status = response.status
        self.headers = {n.decode().lower(): v.decode("latin-1") for n, v in response.headers}

    def feed(self, data: bytes) -> None:
        if not (self._body or self._is_stream or self._status >= 300):
            data = data.lstrip(BLANKS)
            self._is_stream = data[:1] not in IN_ONE_PIECE
        self._body += data
        if self._is_stream and b"\n" in data:
            *lines, self._body = self._body.split(b"\n")
            for line in lines:
                self._line(line.strip(BLANKS))

    def _line(self, line: bytearray) -> None:
        name, _, data = line.partition(b":")
        data = data.strip()
        if self.over or name in FIELDS:
            return
        if data == b"[DONE]":
            self.over = True
        elif name == b"data" and data:
            self._piece(data)
        else:
            self._odd = _shown(line)

    def _piece(self, data: bytearray) -> None:
        """A completion, or a piece of one."""
        content = _object(parsed(data))
        choices = content.get("choices")
        choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
        part: Any = choice.get("delta") or {} if self._is_stream else choice.get("message")
        text = text_of(part)
        if content.get("error") or (content and not choice and not self._is_stream):
            self.fail(error_inside(content, self._flags))
        elif not content or text is None:
            self.fail(Failure("transient", f"the reply is no completion: {_shown(data)}"))
        else:
            self._head = self._head or (content if choice else {})
            self._usage = content.get("usage") or choice.get("usage") or self._usage
            self._parts.append(text)
            self.finish_reason = _text(choice.get("finish_reason")) or self.finish_reason
            if not self._begun and (text or part.get("reasoning_content") or part.get("reasoning")):
                self._begun = True
                self._tell_begun()
                if self._first_piece_only:
                    self.over, self.finish_reason = True, "first piece"

    def fail(self, failure: Failure) -> None:
        """Trouble ends a reply, unless its answer is there already."""
        if not self.finish_reason:
            self._failure = self._failure or failure
            self.over = True

    def outcome(self) -> Outcome:
        """What the reply means, once it has come to its end, or far enough."""
        if self._status >= 300:
            text = self.headers.get("location", "").partition("?")[0]  # of a redirect
            text = text or self._body.decode("utf-8", "replace")
            return meaning(self._status, read_error(parsed(text), text), self._flags)
        if self._is_stream:
            self.feed(b"\n")
        elif self._body[:1] == b"<":
            advice = self._flags.advice()
            return Failure("fatal", "the endpoint answers with an HTML page", advice)
        else:
            self._piece(self._body)
        return self._failure or self._finished()

    def _finished(self) -> Outcome:
        reason = self.finish_reason or ("" if self._is_stream else "not told")
        text = f"the reply broke off (finish_reason {reason or 'absent'}) {self._odd}"
        if "content_filter" in reason:
            return Failure("refused", text)
        if re.search(BROKEN_OFF, reason):
            return Failure("transient", text, "" if reason else self._flags.no_stream)
        model, provider = (_text(self._head.get(name)) for name in ("model", "provider"))
        text = whole_characters("".join(self._parts))
        return Reply(text, self.finish_reason, *token_counts(self._usage), model, provider)


def _shown(data: bytearray) -> str:
    """The beginning of what an endpoint sent, for a message."""
    return data[:200].decode("utf-8", "replace")
