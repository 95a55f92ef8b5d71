"""A small OpenAI-compatible endpoint without a model: for trying the programs out, and for tests.

It answers from the prompt it was sent and from nothing else. A question about a chat gets the
sentences of the chat that share most words with it (of the model `stand-in-short`: only one), or
the statement that the chat holds nothing about it; a built-in judge prompt gets a verdict by the
share of the criterion's words that occur in the response. Standard library only.

    python examples/scripted_endpoint.py --port 8000

In tests a script sees each request and says what goes on the wire, faults included:

    with ScriptedEndpoint(lambda request: status(503) if request.number == 0 else None) as endpoint:
        ...                      # talk to endpoint.base_url
    endpoint.requests            # everything that was asked, in order of arrival
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Self

from scripted_answers import *  # noqa: F403 - what a script can say, for `from scripted_endpoint`
from scripted_answers import Answer, Say, after, as_json, say, status
from word_overlap import answer, judge, sections_of

STAND_IN = "This endpoint is a stand-in that compares words: its answers and scores mean nothing."
SENTENCES, SHORT = 4, "stand-in-short"  # of an answer; the model whose answers have only one


@dataclass(eq=False)
class Recorded:
    """One request as it arrived. Times are `time.monotonic()` seconds."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    client: str  # address:port, the same for all requests of one connection
    received: float
    number: int = -1  # from 0, in order of arrival
    answered: float | None = None  # None while it is in flight
    refused: bool = False  # for want of a place

    def json(self) -> Any:
        """The body parsed. Raises ValueError when it is no JSON."""
        return json.loads(self.body)

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        """Raises TypeError or LookupError when the body holds none."""
        return list(self.json()["messages"])

    @property
    def last(self) -> str:
        return str(self.messages[-1]["content"])

    @property
    def chat(self) -> list[str]:
        return [message["content"] for message in self.messages[:-1]]

    @cached_property
    def prefix(self) -> str:
        """Digest of the chat, for a prefix cache; empty where there is none."""
        return hashlib.sha256(as_json(self.chat)).hexdigest() if self.chat else ""


def question_of(request: Recorded) -> str:
    """The question of a generation prompt or of a judge prompt."""
    asked = request.last
    return sections_of(asked).get("question") or asked.partition("Question: ")[2] or asked


def criterion_of(request: Recorded) -> str:
    """The criterion of a judge prompt; empty for every other prompt."""
    return sections_of(request.last).get("criterion", "")


def is_judge(request: Recorded) -> bool:
    return not sections_of(request.last).keys().isdisjoint({"criterion", "reference"})


class ScriptedEndpoint(ThreadingTCPServer):
    """The endpoint, listening from construction, serving inside a `with` block.

    The script is called for each request, from several threads; None leaves the honest answer. What
    it raises is raised again at the end of the block. `delay`: seconds before each honest answer;
    `places`: requests answered at a time, others get a 429 (0: any number); without `keep_bodies`
    a request's body is forgotten when it has been answered.
    """

    request_queue_size = 256
    allow_reuse_address = True
    daemon_threads = True

    def __init__(
        self,
        script: Callable[[Recorded], Answer | None] | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        delay: float = 0.0,
        places: int = 0,
        keep_bodies: bool = True,
    ) -> None:
        self.script, self.delay, self.keep_bodies = script, delay, keep_bodies
        self.places = places or math.inf
        self.requests: list[Recorded] = []
        self.problems: list[BaseException] = []
        self.in_flight = self.most_in_flight = 0
        self.changed = threading.Condition()  # guards all that is counted or kept here
        self.connections: set[socket.socket] = set()
        self.cached: set[str] = set()  # prefixes to which a reply has begun
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
        with self.changed:
            for connection in self.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.wait_until(lambda: not self.connections, seconds=5)
        if self.problems and raised[0] is None:
            raise self.problems[0]

    def wait_until(self, condition: Callable[[], bool], seconds: float = 30.0) -> bool:
        """Wait for something about requests, in_flight or connections; False: not in time."""
        with self.changed:
            return self.changed.wait_for(condition, seconds)

    def handle_error(self, request: Any, client_address: Any) -> None:
        problem = sys.exc_info()[1]
        if problem and not isinstance(problem, ConnectionError):  # clients may leave
            self.problems.append(problem)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        with self.changed:
            self.connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self.changed:
            self.connections.discard(request)
            self.changed.notify_all()

    def arrived(self, request: Recorded) -> None:
        with self.changed:
            request.number = len(self.requests)
            request.refused = self.in_flight >= self.places
            self.requests.append(request)
            self.in_flight += not request.refused
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.changed.notify_all()

    def left(self, request: Recorded) -> None:
        with self.changed:
            if request.answered is None:
                request.answered = time.monotonic()
                self.in_flight -= not request.refused
                self.changed.notify_all()

    def answer_to(self, request: Recorded) -> Answer:
        if request.refused:
            error = {"message": "Too many requests at a time", "code": "rate_limit_exceeded"}
            return status(429, {"error": error})
        scripted = self.script(request) if self.script else None
        planned = scripted or after(self.delay, self.honest(request))
        if not isinstance(planned, Say):
            return planned
        spoken = planned.spoken(self.usage(request, planned.content), request.json())
        return replace(spoken, prefix=request.prefix)

    def honest(self, request: Recorded) -> Answer:
        if (request.method, request.path) != ("POST", "/v1/chat/completions"):
            return status(404, {"error": {"message": f"no such path: {request.path}"}})
        try:
            if is_judge(request):
                return say(judge(request.last))
        except (ValueError, TypeError, LookupError) as problem:
            return status(400, {"error": {"message": f"bad request: {problem!r}"}})
        most = 1 if request.json().get("model") == SHORT else SENTENCES
        return say(answer(request.chat, question_of(request), most))

    def usage(self, request: Recorded, content: Any) -> dict[str, Any]:
        """Rough counts, four bytes to a token; a chat is cached once a reply to it has begun."""
        chat = sum(map(tokens_in, request.chat))
        asked, completed = chat + tokens_in(request.last), tokens_in(str(content))
        cached = chat if request.prefix in self.cached else 0
        return {
            "prompt_tokens": asked,
            "completion_tokens": completed,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def tokens_in(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass")) // 4 + 1


class Connection(BaseHTTPRequestHandler):
    """One client connection: reads requests, plays the answers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ScriptedEndpoint

    def log_message(self, *args: Any) -> None:
        """No log: stderr belongs to the programs that are tried out."""

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionAbortedError("the client left within its request")
        headers = {name.lower(): value for name, value in self.headers.items()}
        client = "{}:{}".format(*self.client_address[:2])
        request = Recorded(self.command, self.path, headers, body, client, time.monotonic())
        self.server.arrived(request)
        try:
            self._play(self.server.answer_to(request), request)
        finally:
            self.server.left(request)
            if not self.server.keep_bodies:  # megabytes; that it came, and when, stays
                request.body = b""
                vars(request).pop("messages", None)

    do_GET = do_POST

    def _play(self, answer: Answer, request: Recorded) -> None:
        self.close_connection |= answer.then != "keep"
        there = self._wait(answer.delay)
        for part in answer.parts if there else ():
            self.server.cached.add(answer.prefix)
            self.connection.sendall(part)
            if not (there := self._wait(answer.pause)):
                break
        if not there or (answer.then == "hang" and not self._wait(math.inf)):
            self.close_connection = True
            return
        self.server.left(request)  # before the client can know, and ask again
        self.server.cached.add(answer.prefix)
        self.connection.sendall(answer.end)
        if answer.then == "reset":
            self._wait(0.05)  # so that the client can read what was sent
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.rfile.close()
            self.connection.close()

    def _wait(self, seconds: float) -> bool:
        """Whether the time passed with the client still there and the server not closing."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return seconds <= 0 or not poll.poll(None if seconds == math.inf else seconds * 1000)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--port", type=int, default=0, help="port to listen on (default: a free one)")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--delay", type=float, default=0.0, metavar="S", help="seconds before each answer")
    add("--places", type=int, default=0, metavar="N", help="answer N at a time, others get a 429")
    args = parser.parse_args(argv)
    try:
        endpoint = ScriptedEndpoint(**vars(args), keep_bodies=False)
    except (OSError, OverflowError) as problem:
        parser.error(f"cannot listen on {args.host}, port {args.port}: {problem}")
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with endpoint:
        print(f"{endpoint.base_url}\n{STAND_IN}\nCtrl-C ends it.", flush=True)
        signal.sigwait(signals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
