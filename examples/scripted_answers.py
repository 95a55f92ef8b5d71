"""What a scripted endpoint (scripted_endpoint.py) can put on the wire: replies and trouble."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from http.client import responses
from itertools import chain
from typing import Any, Literal

Then = Literal["keep", "close", "hang", "reset"]


@dataclass(frozen=True)
class Answer:
    """Bytes to put on the wire, and what becomes of the connection afterwards."""

    parts: Iterable[bytes] = ()  # a packet each; a generator may wait for something in between
    end: bytes = b""  # the last packet
    then: Then = "keep"
    pause: float = 0.0  # seconds after each part
    delay: float = 0.0  # seconds before the first packet
    prefix: str = ""  # what a prefix cache holds once the first packet is out


@dataclass(frozen=True)
class Say(Answer):
    """A completion; whether it is streamed and what its usage is depends on the request."""

    content: Any = ""
    finish_reason: str | None = "stop"
    usage: Any = "counted"  # or what stands for it; "absent"
    stream: bool | None = None  # None: as the request asks
    members: Mapping[str, Any] = field(default_factory=dict)  # join the message or the first delta

    def spoken(self, counted: Mapping[str, Any], asked: Mapping[str, Any]) -> Answer:
        """The completion as bytes, whole or as a stream of several chunks, as it was `asked`."""
        model = {"model": asked.get("model")}
        usage = {"usage": counted if self.usage == "counted" else self.usage}
        usage = {} if self.usage == "absent" else usage
        if not (asked.get("stream") if self.stream is None else self.stream):
            whole = completion(self.content, self.finish_reason, **self.members)
            return after(self.delay, status(200, {**whole, **model, **usage}))
        text = self.content if isinstance(self.content, str) else ""
        width = max(8, math.ceil(len(text) / 20))
        events = [chunk("", role="assistant", **self.members)]
        events += [chunk(text[start : start + width]) for start in range(0, len(text), width)]
        if self.finish_reason:
            events.append(chunk(finish_reason=self.finish_reason))
        if usage and (asked.get("stream_options") or {}).get("include_usage"):
            events.append({**chunk(), "choices": [], **usage})
        return after(self.delay, sse([{**event, **model} for event in events]))


def say(content: Any, finish_reason: str | None = "stop", **more: Any) -> Say:
    """A completion. `more`: `usage` and `stream` of it, members of its message."""
    known = {name: more.pop(name) for name in ("usage", "stream") if name in more}
    return Say(content=content, finish_reason=finish_reason, members=more, **known)


def as_json(value: Any) -> bytes:
    """UTF-8, non-ASCII as itself; lone surrogates become JSON escapes."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")


def head_of(code: int, content_type: str, headers: Mapping[str, str]) -> bytes:
    fields = {"Content-Type": content_type, **headers}
    lines = [f"HTTP/1.1 {code} {responses.get(code, 'Unnamed')}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def completion(content: Any, finish_reason: str | None = "stop", **members: Any) -> dict[str, Any]:
    """The JSON of a reply that is not streamed, without usage. `members` join the message."""
    message = {"role": "assistant", "content": content, **members}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    about = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": "stand-in"}
    return {**about, "choices": [choice]}


def chunk(content: Any = None, finish_reason: str | None = None, **members: Any) -> dict[str, Any]:
    """One event of a streamed reply. `members` join the delta."""
    delta = members if content is None else {**members, "content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {**completion(None), "object": "chat.completion.chunk", "choices": [choice]}


def status(
    code: int,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
) -> Answer:
    """A reply with Content-Length. `body`: bytes, text, or what becomes JSON; None: an error."""
    if body is None:
        body = {"error": {"message": f"scripted {code}", "type": "scripted", "code": code}}
    text = body.encode() if isinstance(body, str) else body
    data = text if isinstance(text, bytes) else as_json(text)
    fields = {"Content-Length": str(len(data)), **(headers or {})}
    return Answer(end=head_of(code, content_type, fields) + data)


def pieces(
    parts: Iterable[bytes],
    then: Then = "keep",
    pause: float = 0.0,
    content_type: str = "application/json",
    last: bytes = b"",
) -> Answer:
    """A chunked 200 and a `last` piece; it lacks its end unless `then` is keep. May be endless."""
    head = head_of(200, content_type, {"Transfer-Encoding": "chunked"})
    framed = chain([head], map(frame, parts))
    end = frame(last) + (b"0\r\n\r\n" if then == "keep" else b"")
    return Answer(list(framed) if isinstance(parts, list) else framed, end, then, pause)


def frame(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""


def sse(
    events: Iterable[str | bytes | dict[str, Any]],
    ending: Literal["done", "none", "cut", "hang", "reset"] = "done",
    pause: float = 0.0,
) -> Answer:
    """Server-sent events: texts and dicts become the data of one each, bytes go out as they are.

    `done` sends [DONE]; `none` ends the body properly without it; the others never end the body.
    """
    ends: dict[str, Then] = {"cut": "close", "hang": "hang", "reset": "reset"}
    parts = map(event_of, events)
    known = list(parts) if isinstance(events, list) else parts
    last = event_of("[DONE]") if ending == "done" else b""
    return pieces(known, ends.get(ending, "keep"), pause, "text/event-stream", last)


def event_of(data: str | bytes | dict[str, Any]) -> bytes:
    if isinstance(data, bytes):
        return data
    return b"data: %b\n\n" % (data.encode() if isinstance(data, str) else as_json(data))


def raw(*parts: bytes, then: Then = "close") -> Answer:
    """Bytes on the wire as they are, a packet each, status line included."""
    return Answer(parts, then=then)


def drop(after: float = 0.0) -> Answer:
    """The connection is closed without a reply, after so many seconds."""
    return Answer(then="close", delay=after)


def hang() -> Answer:
    """Nothing at all, until the client leaves."""
    return drop(math.inf)


def reset() -> Answer:
    """The connection is reset (RST) without a reply."""
    return Answer(then="reset")


def after(seconds: float, answer: Answer) -> Answer:
    return replace(answer, delay=answer.delay + seconds)
