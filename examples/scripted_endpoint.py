"""A small OpenAI-compatible endpoint that needs no model: for trying the programs out, and for tests.

Honest mode, the default, answers from the prompt it was sent and from nothing else:

- a question about a chat gets the two or three sentences of the chat that share most words with it, or the
  statement that the chat holds nothing about it;
- a judge prompt gets a verdict by the share of the criterion's words that occur in the response.

That exercises the whole chain and means nothing about any model's memory. Standard library only.

    python examples/scripted_endpoint.py --port 8000

Scripted mode serves tests. A script sees each request and says what goes on the wire, faults included:

    with ScriptedEndpoint(lambda request: status(503) if request.number == 0 else None) as endpoint:
        ...                      # talk to endpoint.base_url
    endpoint.requests            # everything that was asked, in order of arrival
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import queue
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Self

from scripted_answers import (
    Answer,
    Say,
    after,
    as_json,
    chunk,
    completion,
    drop,
    event_of,
    hang,
    pieces,
    raw,
    reset,
    say,
    spoken,
    sse,
    status,
)
from word_overlap import ChatIndex, judge, sections_of

__all__ = [
    "Answer", "Recorded", "Say", "ScriptedEndpoint", "after", "chunk", "completion", "criterion_of", "drop",
    "event_of", "hang", "is_judge", "pieces", "question_of", "raw", "reset", "say", "sse", "status",
]  # fmt: skip

STAND_IN = "This endpoint is a stand-in that compares words: there is no model behind it, and its scores mean nothing."

PREFIXES_KEPT = 4  # chats whose words are kept at a time


# --- Requests -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Recorded:
    """One request as it arrived. Times are `time.monotonic()` seconds; `answered` is None while it is in flight."""

    number: int  # from 0, in order of arrival
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    client: str  # address:port, the same for all requests of one connection
    received: float
    answered: float | None = None

    @cached_property
    def _parsed(self) -> Any:
        return json.loads(self.body)

    def json(self) -> Any:
        """The body parsed, once. Raises ValueError when it is no JSON."""
        return self._parsed

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages asked with. Raises ValueError when the body holds none."""
        body = self.json()
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            raise ValueError("messages must be a list of objects, and not an empty one")
        return messages

    def forget(self) -> None:
        """Drop what was sent, megabytes of it; that it came, and when, stays."""
        self.body = b""
        vars(self).pop("_parsed", None)

    @cached_property
    def prefix(self) -> str:
        """Digest of all messages but the last: what a prefix cache would know the chat by. Empty for one message."""
        digest = hashlib.sha256()
        for message in self.messages[:-1]:
            digest.update(as_json([message.get("role"), text_of(message)]))
        return digest.hexdigest() if len(self.messages) > 1 else ""


def text_of(message: Mapping[str, Any]) -> str:
    """The content of a message, given as a text, as a list of parts or not at all."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)


def question_of(request: Recorded) -> str:
    """The question of a generation prompt or of a judge prompt."""
    last = text_of(request.messages[-1])
    return sections_of(last).get("question") or last.partition("Question: ")[2] or last


def criterion_of(request: Recorded) -> str:
    """The criterion of a judge prompt; empty for every other prompt."""
    return sections_of(text_of(request.messages[-1])).get("criterion", "")


def is_judge(request: Recorded) -> bool:
    return not sections_of(text_of(request.messages[-1])).keys().isdisjoint({"criterion", "reference"})


# --- The server ---------------------------------------------------------------------------------------------------

Script = Callable[[Recorded], Answer | None]


class ScriptedEndpoint(ThreadingTCPServer):
    """The endpoint, listening from construction, serving inside a `with` block.

    The script is called for each request, from several threads; None leaves the honest answer. What it raises is
    raised again at the end of the block. `delay` is the seconds before each honest answer; without `keep_bodies` a
    request's body is forgotten when it has been answered.
    """

    request_queue_size = 256
    allow_reuse_address = True
    daemon_threads = True

    def __init__(
        self,
        script: Script | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        delay: float = 0.0,
        keep_bodies: bool = True,
    ) -> None:
        self.script, self.delay, self.keep_bodies = script, delay, keep_bodies
        self.requests: list[Recorded] = []
        self.problems: list[BaseException] = []
        self.in_flight = self.most_in_flight = 0
        self.changed = threading.Condition()  # guards all that is counted or kept here
        self.connections: set[socket.socket] = set()
        self.closing, self._close = socket.socketpair()  # the first is readable once the server closes
        self._reading = threading.Lock()
        self._prefixes: set[str] = set()
        self._indexes: OrderedDict[str, ChatIndex] = OrderedDict()
        super().__init__((host, port), Connection)

    @property
    def base_url(self) -> str:
        return "http://{}:{}/v1".format(*self.server_address[:2])

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *raised: Any) -> None:
        self.shutdown()
        self.server_close()
        self._close.close()
        with self.changed:
            for connection in self.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.wait_until(lambda: not self.connections, seconds=5)
        self.closing.close()
        if self.problems and raised[0] is None:
            raise self.problems[0]

    def wait_until(self, condition: Callable[[], bool], seconds: float = 30.0) -> bool:
        """Waits for something about requests, in_flight or connections; False when it does not come true in time."""
        with self.changed:
            return self.changed.wait_for(condition, seconds)

    def handle_error(self, request: Any, client_address: Any) -> None:
        problem = sys.exc_info()[1]
        if problem and not isinstance(problem, ConnectionError):  # clients that leave are no problem of ours
            self.problems.append(problem)

    def arrived(self, method: str, path: str, headers: dict[str, str], body: bytes, client: str) -> Recorded:
        with self.changed:
            request = Recorded(len(self.requests), method, path, headers, body, client, time.monotonic())
            self.requests.append(request)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.changed.notify_all()
            return request

    def left(self, request: Recorded) -> None:
        with self.changed:
            if request.answered is None:
                request.answered = time.monotonic()
                self.in_flight -= 1
                self.changed.notify_all()

    def cache(self, prefix: str) -> None:
        with self.changed:
            self._prefixes.add(prefix)

    def answer_to(self, request: Recorded) -> Answer:
        answer = self.script(request) if self.script else None
        if answer is None:
            answer = after(self.delay, self.honest(request))
        if not isinstance(answer, Say):
            return answer
        asked = request.json()
        with_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        answer = spoken(answer, self.usage(request, answer.content), bool(asked.get("stream")), with_usage)
        return replace(answer, prefix=request.prefix)

    def honest(self, request: Recorded) -> Answer:
        route = request.method, request.path.partition("?")[0]
        if route == ("GET", "/v1/models"):
            return status(200, {"object": "list", "data": [{"id": "stand-in", "object": "model", "created": 0}]})
        if route != ("POST", "/v1/chat/completions"):
            return status(404, {"error": {"message": f"no such path: {request.path}", "code": 404}})
        if "transfer-encoding" in request.headers:
            return status(411, {"error": {"message": "send the body with a Content-Length", "code": 411}})
        try:
            messages = request.messages
        except ValueError as problem:
            return status(400, {"error": {"message": f"bad request: {problem}", "code": 400}})
        if is_judge(request):
            return say(judge(sections_of(text_of(messages[-1]))))
        return say(self.index_of(request).answer(question_of(request)))

    def index_of(self, request: Recorded) -> ChatIndex:
        """The words of the chat in this prompt; the last few chats are remembered."""
        key = request.prefix
        with self._reading:  # the other questions of a chat wait for its index instead of building it too
            if key not in self._indexes:
                self._indexes[key] = ChatIndex([text_of(message) for message in request.messages[:-1]])
            self._indexes.move_to_end(key)
            while len(self._indexes) > PREFIXES_KEPT:
                self._indexes.popitem(last=False)
            return self._indexes[key]

    def usage(self, request: Recorded, content: Any) -> dict[str, Any]:
        """Rough counts, four bytes to a token; a prefix counts as cached once a reply to it has begun."""
        counts = [tokens_in(text_of(message)) for message in request.messages]
        completed = tokens_in(content) if isinstance(content, str) else 1
        with self.changed:
            cached = sum(counts[:-1]) if request.prefix in self._prefixes else 0
        return {
            "prompt_tokens": sum(counts),
            "completion_tokens": completed,
            "total_tokens": sum(counts) + completed,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def tokens_in(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass")) // 4 + 1


class Connection(BaseHTTPRequestHandler):
    """One client connection: reads requests, plays the answers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ScriptedEndpoint

    def setup(self) -> None:
        super().setup()
        with self.server.changed:
            self.server.connections.add(self.connection)

    def finish(self) -> None:
        super().finish()
        with self.server.changed:
            self.server.connections.discard(self.connection)
            self.server.changed.notify_all()

    def log_message(self, format: str, *args: Any) -> None:
        """No log: stderr belongs to the programs that are tried out."""

    def do_POST(self) -> None:
        body = self._chunked_body() if "transfer-encoding" in self.headers else self._body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        client = "{}:{}".format(*self.client_address[:2])
        request = self.server.arrived(self.command, self.path, headers, body, client)
        try:
            self._play(self.server.answer_to(request), request)
        finally:
            self.server.left(request)
            if not self.server.keep_bodies:
                request.forget()

    do_GET = do_POST

    def _body(self) -> bytes:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionAbortedError("the client left within its request")
        return body

    def _chunked_body(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0] or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _play(self, answer: Answer, request: Recorded) -> None:
        self.close_connection |= answer.then != "keep"
        wait = answer.delay
        for packet, last in answer.packets():
            if not self._wait(wait):
                self.close_connection = True
                return
            if last and answer.then != "hang":
                self.server.left(request)  # before the client can know: its next request must not count beside this one
            if answer.prefix:
                self.server.cache(answer.prefix)
            self.connection.sendall(packet)
            wait = answer.pause
        if answer.then == "hang":
            self._wait(math.inf)
        if answer.then == "reset":
            self._wait(0.05)  # so that the client can take what was sent before the reset discards it
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()

    def _wait(self, seconds: float) -> bool:
        """Whether the time passed with the client still there and the server not closing."""
        if seconds <= 0:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            selector.register(self.server.closing, selectors.EVENT_READ)
            return not selector.select(None if seconds == math.inf else seconds)


# --- The program --------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        endpoint = ScriptedEndpoint(port=args.port, host=args.host, delay=args.delay, keep_bodies=False)
    except (OSError, OverflowError) as problem:
        parser.error(f"cannot listen on {args.host}, port {args.port}: {problem}")
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()  # an Event set by a handler within its own wait() hangs
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.put(None))
    with endpoint:
        print(f"{endpoint.base_url}\n{STAND_IN}\nCtrl-C ends it.", flush=True)
        ended.get()
    return 0


if __name__ == "__main__":
    sys.exit(main())
