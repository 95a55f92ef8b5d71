"""A reply read: a completion as JSON, or as a stream of events; its text, its counts, its failure.

What is no whole answer is none: a stream counts only when it came to a finish_reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from beam_common.failure import Failure, Flags, error_inside
from beam_common.messages import one_line
from beam_common.rows import Json, Row


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


BROKEN_OFF = re.compile(r"error|abort|cancel|insufficient_system_resource", re.I)  # finish_reasons
FILTERED = "content_filter"
TEXT_PARTS = (None, "text", "output_text")  # types; there are also parts of reasoning
REASONING = ("reasoning_content", "reasoning")
SURROGATE = re.compile("[\ud800-\udfff]")


def text_of(content: object) -> str | None:
    """A message's content as text: a string, null, or a list of parts; None for other shapes."""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        texts = [part.get("text") for part in parts if part.get("type") in TEXT_PARTS]
        return "".join(text for text in texts if isinstance(text, str))
    return "" if content is None else content if isinstance(content, str) else None


def whole_characters(text: str) -> str:
    """Halves of a surrogate pair that came in two pieces are one character; lone ones stay."""
    if not SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def token_counts(usage: object) -> tuple[int | None, int | None, int | None]:
    """(prompt, completion, cached) tokens as reported.

    More cached tokens than prompt tokens mean that the latter leave them out.
    """
    if not isinstance(usage, dict):
        return None, None, None
    details = usage.get("prompt_tokens_details")
    places = [details.get("cached_tokens")] if isinstance(details, dict) else []
    places += [usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens")]
    cached = next((n for n in map(_count, places) if n is not None), None)
    prompt = _count(usage.get("prompt_tokens"))
    if prompt is not None and cached is not None and cached > prompt:
        prompt += cached
    return prompt, _count(usage.get("completion_tokens")), cached


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _finished(text: str, reason: str | None, body: Json) -> Reply | Failure:
    """The outcome of a reply that came to its end; `body` tells who answered, and the usage."""
    if reason and FILTERED in reason:
        return Failure("refused", f"stopped by a content filter (finish_reason {reason[:60]})")
    if reason and BROKEN_OFF.search(reason):
        return Failure("transient", f"the reply ended with finish_reason {reason[:60]}")
    model, provider = (_text(body.get(name)) for name in ("model", "provider"))
    return Reply(whole_characters(text), reason, *token_counts(body.get("usage")), model, provider)


def _first_choice(body: Json) -> Row | None:
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else None


def read_completion(body: object, flags: Flags) -> Reply | Failure:
    """A reply that is not streamed, as parsed JSON."""
    if not isinstance(body, dict):
        return Failure("transient", "the reply is JSON, but no completion")
    choice = _first_choice(body)
    if choice is None or body.get("error"):
        return error_inside(body, flags)
    message = choice.get("message")
    text = text_of(message.get("content")) if isinstance(message, dict) else None
    if text is None:
        return Failure("transient", f"the reply holds no message: {one_line(str(body), 120)}")
    return _finished(text, _text(choice.get("finish_reason")), body)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def shown(data: bytes) -> str:
    """The beginning of what an endpoint sent, for a message."""
    return one_line(data[:200].decode("utf-8", "replace"))


class Stream:
    """What has come of a streamed completion, fed with bytes as they arrive.

    `begun` is called when content or reasoning has come: the prompt's prefix is cached now. With
    `first_piece_only` that is answer enough.
    """

    def __init__(
        self, flags: Flags, begun: Callable[[], None], first_piece_only: bool = False
    ) -> None:
        self._flags, self._tell_begun, self._first_piece_only = flags, begun, first_piece_only
        self._unfinished_line: list[bytes] = []
        self._parts: list[str] = []
        self._head: Row = {}  # the first chunk, with the last usage
        self._odd = ""  # the last line that is no part of a completion
        self._failure: Failure | None = None
        self._begun = False
        self.finish_reason: str | None = None
        self.over = False  # nothing more is to be read

    def feed(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._unfinished_line.append(line)
            self._line(b"".join(self._unfinished_line).strip())
            self._unfinished_line.clear()
        self._unfinished_line.append(rest)

    def _line(self, line: bytes) -> None:
        if self.over or not line or line.startswith(b":"):
            return
        name, _, data = line.partition(b":")
        data = data.strip()
        if data == b"[DONE]":
            self.over = True
        elif name == b"data" and data:
            self._event(data)
        elif name not in (b"data", b"event", b"id", b"retry"):
            self._odd = shown(line)

    def _event(self, data: bytes) -> None:
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            self._fail(Failure("transient", f"an event of the stream is not JSON: {shown(data)}"))
            return
        if not isinstance(chunk, dict):
            self._odd = shown(data)
            return
        choice = _first_choice(chunk) or {}
        if chunk.get("error"):
            self._fail(error_inside(chunk, self._flags))
        if "choices" not in chunk:
            self._odd = shown(data)
        self._head = self._head or chunk
        self._head["usage"] = chunk.get("usage") or choice.get("usage") or self._head.get("usage")
        self._piece(choice.get("delta"))
        self.finish_reason = _text(choice.get("finish_reason")) or self.finish_reason

    def _piece(self, delta: object) -> None:
        if not isinstance(delta, dict):
            return
        text = text_of(delta.get("content"))
        if text is None:
            self._fail(Failure("transient", "a piece of the stream has an unknown shape"))
            return
        self._parts.append(text)
        if not self._begun and (text or any(delta.get(name) for name in REASONING)):
            self._begun = True
            self._tell_begun()
            self.over = self.over or self._first_piece_only

    def _fail(self, failure: Failure) -> None:
        """Trouble ends a stream, unless its answer is there already."""
        if not self.finish_reason:
            self._failure = self._failure or failure
            self.over = True

    def result(self) -> Reply | Failure:
        """The answer, once the stream has ended."""
        self.feed(b"\n")
        if self._failure:
            return self._failure
        if not self.finish_reason and not (self._begun and self._first_piece_only):
            odd = f", after: {self._odd}" if self._odd else ""
            return Failure(
                "transient",
                f"the stream ended without a finish_reason{odd}",
                advice=f"try {self._flags.no_stream}" if self._flags.no_stream else "",
            )
        return _finished("".join(self._parts), self.finish_reason, self._head)
