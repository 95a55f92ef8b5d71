"""What a scripted endpoint (scripted_endpoint.py) can put on the wire: replies and trouble."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from http.client import responses
from itertools import chain
from typing import Any, Literal

Then = Literal["keep", "close", "hang", "reset"]
Usage = Mapping[str, Any] | Literal["counted", "absent"] | None
NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Answer:
    """Bytes to put on the wire, a packet a piece, and what becomes of the connection afterwards."""

    head: bytes = b""
    pieces: Iterable[bytes] = ()  # may be endless, may be a generator that waits for something
    chunked: bool = False
    then: Then = "keep"
    pause: float = 0.0  # seconds between two pieces
    delay: float = 0.0  # seconds before the first
    prefix: str = ""  # what a prefix cache holds once the first packet is out

    def packets(self) -> Iterator[tuple[bytes, bool]]:
        """Each packet, and whether it is the last. Head and end go with the pieces next to them."""
        known = len(self.pieces) if isinstance(self.pieces, Sized) else math.inf
        packet = self.head
        for number, piece in enumerate(self.pieces, start=1):
            packet += b"%x\r\n%b\r\n" % (len(piece), piece) if self.chunked and piece else piece
            if number < known:
                yield packet, False
                packet = b""
        yield packet + (b"0\r\n\r\n" if self.chunked and self.then == "keep" else b""), True


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


@dataclass(frozen=True)
class Say(Answer):
    """A completion; whether it is streamed and what its usage is depends on the request."""

    content: Any = ""
    finish_reason: str | None = "stop"
    usage: Usage = "counted"
    stream: bool | None = None
    members: Mapping[str, Any] = field(default_factory=dict)  # join the message or the first delta


def say(content: Any, finish_reason: str | None = "stop", **more: Any) -> Say:
    """A completion. `more`: `usage` and `stream` of it, members of its message."""
    known = {name: more.pop(name) for name in ("usage", "stream") if name in more}
    return Say(content=content, finish_reason=finish_reason, members=more, **known)


def status(
    code: int,
    body: Any = None,
    headers: Mapping[str, str] = NO_HEADERS,
    content_type: str = "application/json",
) -> Answer:
    """A reply with Content-Length. `body`: bytes, text, or what becomes JSON; None: an error."""
    if body is None:
        body = {"error": {"message": f"scripted {code}", "type": "scripted", "code": code}}
    text = body.encode() if isinstance(body, str) else body
    data = text if isinstance(text, bytes) else as_json(text)
    return Answer(head_of(code, content_type, {"Content-Length": str(len(data)), **headers}) + data)


def pieces(
    parts: Iterable[bytes],
    pause: float = 0.02,
    then: Then = "keep",
    content_type: str = "application/json",
) -> Answer:
    """A chunked 200 whose body goes out piece by piece; unless `then` is keep it lacks its end."""
    return Answer(
        head_of(200, content_type, {"Transfer-Encoding": "chunked"}), parts, True, then, pause
    )


def sse(
    events: Iterable[str | bytes | dict[str, Any]],
    ending: Literal["done", "none", "cut", "hang", "reset"] = "done",
    pause: float = 0.0,
) -> Answer:
    """Server-sent events: texts and dicts become the data of one each, bytes go out as they are.

    `done` sends [DONE]; `none` ends the body properly without it; the others never end the body.
    """
    ends: dict[str, Then] = {"cut": "close", "hang": "hang", "reset": "reset"}
    all_events = chain(events, ["[DONE]"] if ending == "done" else [])
    parts = (event if isinstance(event, bytes) else event_of(event) for event in all_events)
    known = list(parts) if isinstance(events, Sized) else parts
    return pieces(known, pause, ends.get(ending, "keep"), "text/event-stream")


def event_of(data: str | dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % (data.encode() if isinstance(data, str) else as_json(data))


def raw(*parts: bytes, then: Then = "close", pause: float = 0.0) -> Answer:
    """Bytes on the wire as they are, status line included."""
    return Answer(b"", parts, then=then, pause=pause)


def hang(seconds: float = math.inf) -> Answer:
    """Nothing at all for so long, then the connection is closed."""
    return Answer(then="close", delay=seconds)


def drop() -> Answer:
    """The connection is closed without a reply."""
    return Answer(then="close")


def reset() -> Answer:
    """The connection is reset (RST) without a reply."""
    return Answer(then="reset")


def after(seconds: float, answer: Answer) -> Answer:
    return replace(answer, delay=answer.delay + seconds)


def spoken(say: Say, counted: Mapping[str, Any], asked: Mapping[str, Any]) -> Answer:
    """A completion as bytes, whole or as a stream of several chunks, as the request `asked`."""
    model = {"model": asked.get("model")}
    usage = {"usage": counted if say.usage == "counted" else say.usage}
    if say.usage == "absent":
        usage = {}
    if not (asked.get("stream") if say.stream is None else say.stream):
        whole = completion(say.content, say.finish_reason, **say.members)
        return replace(status(200, {**whole, **model, **usage}), delay=say.delay)
    text = say.content if isinstance(say.content, str) else ""
    width = max(8, math.ceil(len(text) / 20))
    events = [chunk("", role="assistant", **say.members)]
    events += [chunk(text[start : start + width]) for start in range(0, len(text), width)]
    if say.finish_reason:
        events.append(chunk(finish_reason=say.finish_reason))
    if usage and (asked.get("stream_options") or {}).get("include_usage"):
        events.append({**chunk(), "choices": [], **usage})
    return replace(sse([{**event, **model} for event in events]), delay=say.delay)
