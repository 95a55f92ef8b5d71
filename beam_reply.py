"""Reading a reply: a completion as JSON, or as a stream of server-sent events; its text, its counts, or its failure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from beam_common import one_line
from beam_failure import MESSAGE_NAMES, Failure, error_inside, read_error, shown


@dataclass(frozen=True)
class Reply:
    """An answer as received. Token counts are None where the endpoint did not report them."""

    text: str
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


TEXT_TYPES = (None, "text", "output_text")  # of a part; there are also parts of reasoning
MOST_COUNTED = 10**12  # tokens; above it is junk
NO_REASON = ("", "null", "none", "nil", "undefined")  # some servers send the word with every piece
BROKEN = re.compile(r"(?i)error|abort|cancel|fail|time[d_ ]*out|interrupt|disconnect|overload|unavailable|insufficient")
HEARTBEATS = ("ping", "heartbeat", "keepalive", "keep-alive")
TROUBLE = re.compile(rf"{BROKEN.pattern}|\berr\b|exception|died|crash|success\W{{1,4}}false")
NO_ERROR = re.compile(r'"error"\s*:\s*(?:null|""|\{\s*\}|\[\s*\]|false)')
FILTERED = re.compile(r"content_?filter|sensitive|safety|prohibited", re.I)


def text_of(content: object) -> str:
    """A message's content as text: a string, or the text parts of a list joined; None is an empty answer."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = ({"text": part} if isinstance(part, str) else part for part in content)
        texts = (p.get("text") for p in parts if isinstance(p, dict) and p.get("type") in TEXT_TYPES)
        return "".join(text for text in texts if isinstance(text, str))
    return ""


def join_surrogates(text: str) -> str:
    """Halves of a surrogate pair that came in two pieces become one character; lone ones stay."""
    return re.sub(
        "[\ud800-\udbff][\udc00-\udfff]",
        lambda m: m.group().encode("utf-16-le", "surrogatepass").decode("utf-16-le"),
        text,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_COUNTED else None


def token_counts(usage: object) -> tuple[int | None, int | None, int | None]:
    """(prompt, completion, cached) tokens of a usage object, each None where it is not reported or cannot be."""
    if not isinstance(usage, dict):
        return None, None, None
    details = usage.get("prompt_tokens_details")
    places = [details.get("cached_tokens") if isinstance(details, dict) else None]
    places += [usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens")]
    prompt = _count(usage.get("prompt_tokens"))
    cached = (n for n in map(_count, places) if n is not None and prompt is not None and n <= prompt)
    return prompt, _count(usage.get("completion_tokens")), next(cached, None)


def _reason(choice: Mapping[str, Any]) -> object:
    """The finish_reason of a choice, None while it is not finished."""
    reason = choice.get("finish_reason") or None
    return None if isinstance(reason, str) and reason.strip().lower() in NO_REASON else reason


def _finished(text: str, finish_reason: object, usage: object) -> Reply | Failure:
    reason = finish_reason if isinstance(finish_reason, str) else json.dumps(finish_reason) if finish_reason else None
    if reason and FILTERED.search(reason):
        return Failure("record", f"the endpoint's content filter stopped the reply (finish_reason {reason[:60]})")
    if reason and BROKEN.search(reason):
        return Failure("retry", f"the reply ended with finish_reason {reason[:60]}")
    prompt, completion, cached = token_counts(usage)
    return Reply(join_surrogates(text), reason if isinstance(finish_reason, str) else None, prompt, completion, cached)


def _is_heartbeat(body: Mapping[str, Any]) -> bool:
    return str(body.get("type") or body.get("event")).lower() in HEARTBEATS


def _reports_error(body: Mapping[str, Any], answered: bool) -> bool:
    """Whether a body of status 200 is an error; beside an answer only one with a code is, some gateways send empty ones."""
    if body.get("error"):
        error = read_error(body)
        good = (error.status or 200) < 300 and error.code.strip().lower() in ("", "0", "200", "ok", "success")
        return not (answered and good)
    if answered or _is_heartbeat(body):
        return False
    if body.get("object") == "error" or body.get("message") or body.get("detail"):
        return True
    place = base if isinstance(base := body.get("base_resp"), dict) else body  # MiniMax's
    codes = (str(place.get(name) or 0).lower() for name in ("code", "status_code", "error_code", "errcode"))
    return any(map(place.get, MESSAGE_NAMES)) and any(code not in ("0", "200", "ok", "success") for code in codes)


def read_completion(body: object, wait: float | None = None) -> Reply | Failure:
    """A reply that is not streamed, as parsed JSON. `wait`: seconds that its headers name, for an error in it."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    if not isinstance(body, dict):
        return Failure("retry", "the reply is JSON, but no completion")
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    message = choice.get("message") if choice else None
    answered = isinstance(message, dict)
    if _reports_error(body, answered):
        return error_inside(body, wait)
    if choice and choice.get("error") and _reports_error(choice, answered):
        return error_inside(choice, wait)
    if not choice or not isinstance(message, dict):
        text = one_line(json.dumps(body, ensure_ascii=False)[:1000], 120)
        return Failure("retry", f"the reply holds no {'message' if choice else 'choices'}: {text}")
    if not isinstance(content := message.get("content"), str | list | None):
        return Failure("retry", f"the reply's content has an unknown shape: {one_line(json.dumps(content), 60)}")
    return _finished(text_of(content), _reason(choice), body.get("usage"))


DONE = b"[DONE]"


class EventLines:
    """Splits the bytes of a stream of server-sent events into the data of each event."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of a line whose end has not come yet
        self._data: list[bytes] = []
        self._event = ""  # its name
        self._after_return = False  # a line feed that comes next is the second half of a line end

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of every event that `chunk` completes; at the end, feed two line ends."""
        if self._after_return and chunk:
            chunk, self._after_return = chunk.removeprefix(b"\n"), False
        if b"\n" not in chunk and b"\r" not in chunk:
            self._pieces.append(chunk)
            return
        lines = b"".join([*self._pieces, chunk]).splitlines(keepends=True)
        self._after_return = lines[-1].endswith(b"\r")
        self._pieces = [] if lines[-1].endswith((b"\r", b"\n")) else [lines.pop()]
        for line in lines:
            yield from self._line(line.rstrip(b"\r\n"))

    def _line(self, line: bytes) -> Iterator[bytes]:
        field, _, value = line.partition(b":")
        if field == b"event":
            self._event = value.strip().lower().decode("ascii", "replace")
        if field in (b"data", b"error"):  # llama.cpp's server has its errors in a field of their own
            self._data.append(value.removeprefix(b" "))
            self._event = "error" if field == b"error" else self._event
        if self._data and (not line or self._data[-1].strip() == DONE):  # after [DONE] nothing is worth waiting for
            data, self._data, event, self._event = self._data, [], self._event, ""
            if event in HEARTBEATS:
                return
            whole = b"\n".join(data)
            if "error" in event and b'"error"' not in whole and _is_json(whole):
                whole, data = b'{"error":' + whole + b"}", data[:1]
            yield from [whole] if len(data) == 1 or _is_json(whole) else data
        elif not line:
            self._event = ""  # an event without data is none


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
        return True
    except (ValueError, RecursionError):
        return False


@dataclass
class Stream:
    """What has come of a streamed completion."""

    wait: float | None = None  # seconds that the headers name, for an error among the events
    parts: list[str] = field(default_factory=list)
    finish_reason: object = None
    usage: object = None
    failure: Failure | None = None
    done: bool = False
    begun: bool = False  # a choice has come
    unknown: str = ""  # an event that is no piece of a completion, and tells of trouble in a dialect of its own
    first_piece: bool = False  # content or reasoning has come: the prompt's prefix is cached now

    def take(self, data: bytes) -> None:
        """One event's data."""
        if self.done or not data.strip():
            return
        if data.strip().upper() == DONE:
            self.done = True
            return
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            if not self.finish_reason:
                self.failure = Failure("retry", f"an event of the stream is not JSON: {shown(data)}")
            return
        if isinstance(chunk, list) and len(chunk) == 1:
            chunk = chunk[0]
        is_piece = isinstance(chunk, dict) and "choices" in chunk
        if not is_piece and TROUBLE.search(NO_ERROR.sub("", data.decode("utf-8", "replace"))):
            self.unknown = shown(data)
        if not isinstance(chunk, dict):
            return
        if not self.finish_reason and _reports_error(chunk, answered=bool(chunk.get("choices"))):
            self.failure = error_inside(chunk, self.wait)
            return
        self.usage = chunk.get("usage") or self.usage
        if isinstance(own := chunk.get("x_groq"), dict) and own.get("error"):
            self.unknown = shown(data)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if not isinstance(choice, dict) or choice.get("index") not in (0, None):
                continue
            failed = not self.finish_reason and choice.get("error")
            if failed and _reports_error(choice, answered=bool(choice.get("delta"))):
                self.failure = error_inside(choice, self.wait)
                return
            delta = choice.get("delta") or (None if self.begun else choice.get("message"))
            self.begun |= "delta" in choice or isinstance(delta, dict)
            content = delta.get("content") if isinstance(delta, dict) else None
            if not isinstance(delta, dict | None) or not isinstance(content, str | list | None):
                if self.finish_reason:
                    continue
                self.failure = Failure("retry", f"a piece of the stream has an unknown shape: {shown(data)}")
                return
            if delta is not None:
                self.parts.append(text_of(content))
                self.first_piece |= bool(self.parts[-1] or delta.get("reasoning_content") or delta.get("reasoning"))
            self.usage = choice.get("usage") or self.usage  # Moonshot puts it here
            self.finish_reason = _reason(choice) or self.finish_reason

    def result(self) -> Reply | Failure:
        """The answer, once the stream is over."""
        if self.failure:
            return self.failure
        if not self.finish_reason and not self.done:
            return Failure("retry", "the stream ended before the reply did")
        if not self.finish_reason and self.unknown:
            return Failure("retry", f"the stream ended without a finish_reason, after this event: {self.unknown}")
        if not self.begun:
            return Failure("retry", "the stream holds no choices")
        return _finished("".join(self.parts), self.finish_reason, self.usage)
