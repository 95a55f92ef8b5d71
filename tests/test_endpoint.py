"""One request over real HTTP: what goes out, what counts as an answer, what each trouble means."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import trustme

from beam_common import endpoint as endpoint_module
from beam_common.endpoint import Endpoint, encode_body, encode_json, request_parameters
from beam_common.failure import Failure, Flags
from beam_common.messages import UsageError
from beam_common.reply import Outcome, Reply

LONG = 20.0  # seconds that no test waits for
LARGE = [b"x" * 2**20] * 40
BODY = encode_body(b'{"model":"m"}', [], b'{"role":"user","content":"q"}')
FLAGS = Flags(no_stream="start again with --no-stream")


def table(names: str, *rows: tuple[Any, ...]) -> pytest.MarkDecorator:
    """A test for each row, whose first column says what it stands for."""
    return pytest.mark.parametrize(names.split(), [r[1:] for r in rows], ids=[r[0] for r in rows])


# --- A server that plays what it is told


class HangUp(Exception):
    """Raised by a play: the connection is closed."""


Play = Callable[[socket.socket], None]


class Server:
    """Listens on a free port. Answers each request with its play, the last one again and again."""

    def __init__(self, *plays: Play, tls: ssl.SSLContext | None = None, bodies: bool = True):
        self.plays, self.tls, self.bodies = plays, tls, bodies
        self.requests: list[tuple[list[str], bytes]] = []  # lines of the head, body
        self.gone = threading.Event()  # the client has closed a connection
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}/v1"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self.listening.accept()[0]
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, HangUp), connection:
            if self.tls:
                connection = self.tls.wrap_socket(connection, server_side=True)
            self.serve_requests(connection)
        self.gone.set()

    def serve_requests(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            while head := list(itertools.takewhile(bytes.strip, file)):
                lines = [line.decode("latin-1").strip() for line in head]
                lengths = [line for line in lines if line.lower().startswith("content-length:")]
                size = int(lengths[0].split(":")[1]) if lengths and self.bodies else 0
                self.requests.append((lines, file.read(size)))
                self.plays[min(len(self.requests), len(self.plays)) - 1](connection)

    def headers(self, number: int = 0) -> dict[str, str]:
        pairs = (line.split(": ", 1) for line in self.requests[number][0][1:])
        return {name.lower(): value for name, value in pairs}


def sends(*parts: bytes, ending: str = "") -> Play:
    """Sends bytes, then keeps the connection open, or ends it: `close`, `reset`, `wait`."""

    def play(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
        if ending == "wait":  # until the client goes
            connection.recv(1)
        if ending == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if ending:
            raise HangUp

    return play


def reply(
    status: int, body: Any = b"", content_type: str = "application/json", **headers: str
) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} x", f"Content-Type: {content_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(content: str = "", finish_reason: str | None = None) -> bytes:
    piece = {"choices": [{"delta": {"content": content}, "finish_reason": finish_reason}]}
    return b"data: %b\n\n" % json.dumps(piece).encode()


def stream(*events: bytes) -> bytes:
    return STREAM_HEAD + b"".join(map(chunked, events)) + chunked(b"")


def completion(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}


YES = sends(reply(200, completion("yes")))


def make(url: str, **changes: Any) -> Endpoint:
    settings = {"timeout": LONG, "headers": {}, "flags": FLAGS, "longest_reply": 2**26, **changes}
    return Endpoint(url, "secret-key", **settings)


def ask(url: str, body: list[bytes] = BODY, chat_id: str = "", **changes: Any) -> Outcome:
    return asyncio.run(make(url, **changes).ask(body, chat_id=chat_id))


def failure_of(play: Play | str, **changes: Any) -> Failure:
    outcome = ask(play if isinstance(play, str) else Server(play).url, **changes)
    assert isinstance(outcome, Failure)
    return outcome


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("SSL_CERT_"):
            monkeypatch.delenv(name)


# --- What goes out


@table(
    "settings extra expected",
    ("another-key", {"model": "m"}, {"top_k": 4}, {"model": "m", "top_k": 4}),
    ("wins", {"temperature": 1.0}, {"temperature": 0.2}, {"temperature": 0.2}),
    ("null-removes", {"model": "m", "top_p": 1}, {"top_p": None}, {"model": "m"}),
    ("nested-null-stays", {}, {"a": {"b": None}}, {"a": {"b": None}}),
    ("replaced-whole", {"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"y": 2}}),
    ("false-is-no-null", {"stream": True}, {"stream": False}, {"stream": False}),
)
def test_request_parameters(
    settings: dict[str, Any], extra: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert request_parameters(settings, extra) == expected


@table(
    "value expected",
    ("no-blanks", {"a": 1, "b": [1.5, None]}, b'{"a":1,"b":[1.5,null]}'),
    ("as-itself", "žÜ漢🙂\u2028", '"žÜ漢🙂\u2028"'.encode()),
    ("control-characters", '"\\\n\x00', b'"\\"\\\\\\n\\u0000"'),
    ("lone-surrogate", "a\ud83db", b'"a\\ud83db"'),
)
def test_encode_json(value: object, expected: bytes) -> None:
    assert encode_json(value) == expected
    assert json.loads(expected) == value


@pytest.mark.parametrize("shared", [0, 2])
def test_encode_body(shared: int) -> None:
    settings = {"model": "m", "temperature": 0.5}
    slices = encode_body(encode_json(settings), [b'{"n":%d},' % n for n in range(shared)], b"{}")
    messages = [*({"n": n} for n in range(shared)), {}]
    assert json.loads(b"".join(slices)) == {**settings, "messages": messages}


@pytest.mark.parametrize("size", [10, 3 * 2**20], ids=["small", "megabytes"])
def test_a_body_arrives_as_it_is_with_its_length(size: int) -> None:
    server = Server(YES)
    body = [b"{", *[b"x" * size] * 3, b"}"]
    assert ask(server.url, body) == Reply("yes", "stop")
    lines, received = server.requests[0]
    assert lines[0] == "POST /v1/chat/completions HTTP/1.1"
    assert received == b"".join(body)
    assert server.headers()["content-length"] == str(3 * size + 2)
    assert "transfer-encoding" not in server.headers()


def test_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORG_ID", "PROJECT_ID", "API_KEY", "BASE_URL", "CUSTOM_HEADERS"):
        monkeypatch.setenv(f"OPENAI_{name}", "x-leak: leak")
    server = Server(YES)
    ask(server.url, headers={"X-Team": "bench"})
    sent = server.headers()
    assert sent["host"] == f"127.0.0.1:{server.port}"
    assert sent["authorization"] == "Bearer secret-key"
    assert sent["content-type"] == "application/json"
    assert sent["connection"] == "close"
    assert sent["x-team"] == "bench"
    assert "leak" not in str(server.requests)


def test_a_header_replaces_the_keys_however_it_is_spelt() -> None:
    server = Server(YES)
    ask(server.url, headers={"AUTHORIZATION": "Basic zzz"})
    [line] = [line for line in server.requests[0][0] if line.lower().startswith("auth")]
    assert line.endswith("Basic zzz")


@table(
    "chat_id sent",
    ("number", "3", "chat-3"),
    ("printable", "a/b c", "chat-a/b c"),
    ("no-header-can-carry-it", "漢\n", "chat-%E6%BC%A2%0A"),
)
def test_chat_id_in_a_header(chat_id: str, sent: str) -> None:
    server = Server(YES)
    ask(server.url, chat_id=chat_id, headers={"x-session-affinity": "chat-{chat_id}"})
    assert server.headers()["x-session-affinity"] == sent


@table(
    "tail path",
    ("slash", "/v1/", "/v1/chat/completions"),
    ("azure", "/openai/x?api-version=1", "/openai/x/chat/completions?api-version=1"),
    ("escapes", "/m%2Fn/ž", "/m%2Fn/%C5%BE/chat/completions"),
)
def test_path(tail: str, path: str) -> None:
    server = Server(YES)
    ask(server.url.removesuffix("/v1") + tail)
    assert server.requests[0][0][0] == f"POST {path} HTTP/1.1"


def test_credentials_of_the_url_are_sent_and_not_shown() -> None:
    server = Server(sends(reply(404)))
    failure = failure_of(server.url.replace("://", "://user:pass%21@"))
    assert server.headers()["authorization"] == "Basic dXNlcjpwYXNzIQ=="
    assert server.url in failure.advice
    assert "pass" not in failure.with_advice


def test_no_answer_comes_from_bytes_that_arrived_before_its_question() -> None:
    """A proxy writes each reply twice on a connection that is kept alive."""
    first, second = (reply(200, completion(text)) for text in ("first", "second"))
    server = Server(sends(first + first), sends(second + second))

    async def both() -> list[Outcome]:
        endpoint = make(server.url)
        return [await endpoint.ask(BODY) for _ in range(2)]

    assert asyncio.run(both()) == [Reply("first", "stop"), Reply("second", "stop")]


def test_a_vanished_peer_is_noticed_within_minutes() -> None:
    seen: list[int] = []

    def play(connection: socket.socket) -> None:
        """Looks at the client's socket, which is one of this process."""
        for number in range(3, 256):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as sock:
                if sock.getpeername() == connection.getsockname():
                    idle = getattr(socket, "TCP_KEEPIDLE", None) or socket.TCP_KEEPALIVE
                    names = (idle, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                    first, every, times = (sock.getsockopt(socket.IPPROTO_TCP, n) for n in names)
                    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
                        seen.append(first + every * times)
        YES(connection)

    ask(Server(play).url)
    [seconds] = seen
    assert 60 <= seconds <= 300


# --- What counts as an answer

EVENTS = [event("žl"), event("uť"), event("", "stop"), b"data: [DONE]\n\n"]
WHOLE = json.dumps(completion("žluť"), ensure_ascii=False).encode()
BOM = b"\xef\xbb\xbf"


@table(
    "sent",
    ("stream", [stream(*EVENTS)]),
    ("stream-called-json", [reply(200, b"".join(EVENTS))]),
    ("stream-after-a-comment", [stream(b": ping\n\n", BOM + b"\n", *EVENTS)]),
    ("json", [reply(200, WHOLE)]),
    ("json-called-stream", [reply(200, WHOLE, "text/event-stream")]),
    ("json-after-blanks", [reply(201, BOM + b" \n" + WHOLE)]),
    ("json-after-signs-of-life", [stream(*[b"\n"] * 50, WHOLE)]),
    ("continue-first", [b"HTTP/1.1 100 Continue\r\n\r\n", reply(200, WHOLE)]),
    ("until-the-connection-closes", [b"HTTP/1.0 200 OK\r\n\r\n" + WHOLE]),
)
def test_answers(sent: list[bytes]) -> None:
    assert ask(Server(sends(*sent, ending="close")).url) == Reply("žluť", "stop")


def test_a_reply_split_into_bytes() -> None:
    data = stream(*EVENTS)
    assert ask(Server(sends(*(data[i : i + 1] for i in range(len(data))))).url).text == "žluť"


@pytest.mark.parametrize("ending", ["close", "reset", "wait"])
def test_a_finished_answer_is_one_whatever_becomes_of_the_connection(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "SHORT_SILENCE", 0.1)
    play = sends(STREAM_HEAD, *map(chunked, EVENTS[:3]), ending=ending)
    assert ask(Server(play).url) == Reply("žluť", "stop")


# --- What trouble means

PAGE = b"\n<!DOCTYPE html>\n<html><body>portal</body></html>"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


@table(
    "play kind",
    ("closed", sends(ending="close"), "transient"),
    ("reset", sends(ending="reset"), "transient"),
    ("no-http", sends(b"no http\r\n\r\n", ending="close"), "transient"),
    ("cut-json", sends(CUT + b'{"cho', ending="close"), "transient"),
    ("reset-after-the-headers", sends(CUT, ending="reset"), "transient"),
    ("cut", sends(STREAM_HEAD + chunked(WHOLE[:9]), ending="close"), "transient"),
    ("stream-without-a-finish", sends(stream(*EVENTS[:2])), "transient"),
    ("done-without-a-finish", sends(stream(EVENTS[0], EVENTS[3])), "transient"),
    ("json-ends-in-a-string", sends(reply(200, b'{"a": "hal')), "transient"),
    ("json-too-deep", sends(reply(200, b"[" * 100_000)), "transient"),
    ("blank", sends(reply(200, b" \n")), "transient"),
    ("plain-text", sends(reply(200, b"OK", "text/plain")), "transient"),
    ("no-content", sends(b"HTTP/1.1 204 x\r\n\r\n"), "transient"),
    ("page-of-a-gateway", sends(reply(504, PAGE)), "transient"),
    ("queue", sends(reply(503, b"queue full")), "busy"),
    ("refusal-that-is-no-text", sends(reply(400, b"\xff")), "refused"),
    ("refusal-of-megabytes", sends(reply(403, b"x" * 3_000_000)), "refused"),
    ("page", sends(reply(200, PAGE)), "fatal"),
    ("page-with-bom", sends(reply(200, BOM + PAGE)), "fatal"),
    ("path", sends(reply(200, {"error": "Unexpected endpoint"})), "fatal"),
)
def test_failures(play: Play, kind: str) -> None:
    failure = failure_of(play)
    assert failure.kind == kind
    assert "portal" not in failure.text
    assert len(failure.text.splitlines()) == 1


def test_a_redirect_is_not_followed() -> None:
    other = Server(YES)
    failure = failure_of(sends(reply(307, Location=f"{other.url}?token=leak")))
    assert failure.kind == "fatal"
    assert failure.text == f"HTTP 307: {other.url}"
    assert not other.requests


@table(
    "answer wait",
    ("header", reply(429, Retry_After="2"), 2.0),
    ("words", reply(429, {"error": {"message": "try again in 41.3s"}}), 41.3),
    ("google", reply(429, {"error": [{"retryDelay": "34s"}]}), 34.0),
    ("inside", reply(200, {"error": {"code": 429}}, Retry_After="3"), 3.0),
    ("none", reply(429), 0.0),
)
def test_waits(answer: bytes, wait: float) -> None:
    assert failure_of(sends(answer)).wait == wait


def test_a_refusal_names_the_size() -> None:
    failure = failure_of(sends(reply(413)))
    assert failure.text == f"HTTP 413: no reason given (request of {sum(map(len, BODY))} bytes)"


def test_a_refusal_counts_without_the_end_of_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "SHORT_SILENCE", 0.1)
    play = sends(b"HTTP/1.1 402 x\r\nContent-Length: 100\r\n\nno money", ending="wait")
    failure = failure_of(play)
    assert (failure.kind, failure.text) == ("fatal", "HTTP 402: no money")


def test_a_connection_broken_by_a_large_request_names_its_size(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(sends(ending="reset"), bodies=False)
    failure = failure_of(server.url, body=LARGE)
    assert failure.kind == "transient"
    assert "request of 41,943,040 bytes" in failure.text
    assert not caplog.records  # asyncio's about writing on after the end


def test_a_refusal_sent_before_the_body_was_read_is_not_lost() -> None:
    def play(connection: socket.socket) -> None:
        connection.sendall(reply(413))
        threading.Event().wait(0.2)  # what is not read by then resets the connection
        raise HangUp

    failure = failure_of(Server(play, bodies=False).url, body=LARGE)
    assert failure.text == "HTTP 413: no reason given (request of 41,943,040 bytes)"


def test_nobody_listens() -> None:
    server = Server(YES)
    server.listening.shutdown(socket.SHUT_RDWR)
    server.listening.close()
    failure = failure_of(server.url)
    assert failure.kind == "transient"
    assert re.fullmatch(rf"{server.url}: \[Errno \d+\] Connect call failed \(.*\)", failure.text)


def test_silence_is_bounded() -> None:
    failure = failure_of(sends(STREAM_HEAD + chunked(EVENTS[0]), ending="wait"), timeout=0.2)
    assert failure.kind == "transient"
    assert failure.text.endswith("no whole reply in time (see --timeout)")


def test_an_attempt_is_bounded_however_often_it_shows_signs_of_life() -> None:
    def play(connection: socket.socket) -> None:
        connection.sendall(STREAM_HEAD)
        for _ in range(100):
            connection.sendall(chunked(b": ping\n\n"))
            threading.Event().wait(0.05)
        raise HangUp

    failure = failure_of(play, timeout=0.2)
    assert failure.kind == "transient"
    assert failure.text.endswith("no whole reply in time (see --timeout)")


@pytest.mark.parametrize("data", [WHOLE, b"".join(EVENTS)], ids=["json", "stream"])
def test_a_reply_has_a_longest_size(data: bytes) -> None:
    assert failure_of(sends(reply(200, data)), longest_reply=20).kind == "transient"
    assert ask(Server(sends(reply(200, data))).url, longest_reply=len(data)).text == "žluť"


# --- How far a request is


class Seen:
    """A watch that keeps what it is told, and how many bytes the server had received."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.first = threading.Event()

    def sent(self) -> None:
        self.told.append("sent")

    def begun(self) -> None:
        self.told.append("begun")
        self.first.set()


def test_the_first_piece_is_told_while_the_reply_goes_on() -> None:
    seen = Seen()
    told_in_time = []

    def play(connection: socket.socket) -> None:
        connection.sendall(STREAM_HEAD + chunked(event("")) + chunked(EVENTS[0]))
        told_in_time.append(seen.first.wait(LONG))
        connection.sendall(b"".join(map(chunked, EVENTS[1:])))

    endpoint = make(Server(play).url)
    before = endpoint.last_byte_at
    assert asyncio.run(endpoint.ask(BODY, seen)) == Reply("žluť", "stop")
    assert told_in_time == [True]
    assert seen.told == ["sent", "begun"]
    assert endpoint.last_byte_at > before


def test_a_probe_is_over_with_the_first_piece() -> None:
    server = Server(sends(STREAM_HEAD + chunked(EVENTS[0]), ending="wait"))
    assert isinstance(asyncio.run(make(server.url).ask(BODY, first_piece_only=True)), Reply)
    assert server.gone.wait(LONG)


def test_a_stream_left_early_leaves_no_messages_behind(caplog: pytest.LogCaptureFixture) -> None:
    failure_of(sends(STREAM_HEAD + chunked(b"data: {cut\n\n"), ending="wait"))
    assert not caplog.records  # asyncio's about generators that were not closed


def test_a_cancelled_request_leaves_the_endpoint() -> None:
    reached = threading.Event()

    def play(connection: socket.socket) -> None:
        reached.set()
        connection.recv(1)
        raise HangUp

    server = Server(play)

    async def cancelled() -> None:
        task = asyncio.create_task(make(server.url).ask(BODY))
        assert await asyncio.to_thread(reached.wait, LONG)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert server.gone.wait(LONG)


# --- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_server(authority: trustme.CA) -> Server:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return Server(YES, tls=context)


@pytest.fixture
def trusted(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterable[None]:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return ()


@pytest.mark.usefixtures("trusted")
def test_a_certificate_of_an_own_authority(tls_server: Server) -> None:
    assert ask(tls_server.url) == Reply("yes", "stop")


def test_a_certificate_that_is_not_trusted(tls_server: Server) -> None:
    failure = failure_of(tls_server.url)
    assert failure.kind == "fatal"
    assert "SSL_CERT_FILE" in failure.advice


def test_https_to_a_server_that_speaks_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(reply(400))
                connection.recv(4096)

        threading.Thread(target=serve, daemon=True).start()
        outcome = ask(f"https://127.0.0.1:{listening.getsockname()[1]}/v1")
    assert isinstance(outcome, Failure)
    assert outcome.kind == "fatal"
    assert "check the scheme of --base-url https://127.0.0.1" in outcome.advice


def test_certificates_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(UsageError, match="SSL_CERT_FILE"):
        make("https://model.example/v1")


# --- Proxies


def proxied(server: Server, monkeypatch: pytest.MonkeyPatch, name: str, target: str) -> Outcome:
    monkeypatch.setenv(name, f"http://user:pass-word@127.0.0.1:{server.port}")
    return ask(target)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_proxy_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Server(YES)
    assert proxied(proxy, monkeypatch, name, "http://model.example/v1") == Reply("yes", "stop")
    assert proxy.requests[0][0][0].startswith("POST http://model.example/v1/chat/completions ")
    assert proxy.headers()["proxy-authorization"] == "Basic dXNlcjpwYXNzLXdvcmQ="


def test_a_failure_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Server(sends(reply(502)))
    outcome = proxied(proxy, monkeypatch, "HTTP_PROXY", "http://model.example/v1")
    assert outcome.text == (
        f"HTTP 502: no reason given (through the proxy http://127.0.0.1:{proxy.port}; "
        "set NO_PROXY to go around it)"
    )


@pytest.mark.usefixtures("trusted")
def test_a_proxy_opens_the_way_to_a_tls_server(
    tls_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", tls_server.port)) as server:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=copy, args=(server, connection))
            back.start()
            copy(connection, server)
            back.join()
        raise HangUp

    proxy = Server(play)
    assert proxied(proxy, monkeypatch, "HTTPS_PROXY", tls_server.url) == Reply("yes", "stop")
    assert proxy.requests[0][0][0] == f"CONNECT 127.0.0.1:{tls_server.port} HTTP/1.1"
    assert proxy.headers()["proxy-authorization"] == "Basic dXNlcjpwYXNzLXdvcmQ="
    assert "proxy-authorization" not in tls_server.headers()


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    ("status", "kind"), [(407, "fatal"), (403, "refused"), (503, "transient")], ids=str
)
def test_a_proxy_that_does_not_open_the_way(
    status: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Server(sends(reply(status)))
    outcome = proxied(proxy, monkeypatch, "HTTPS_PROXY", "https://model.example/v1")
    assert isinstance(outcome, Failure)
    assert outcome.kind == kind
    assert outcome.text.startswith(f"HTTP {status}: the proxy does not open the way to the server")


def test_around_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "example.org,127.0.0.1")
    assert ask(Server(YES).url) == Reply("yes", "stop")
    assert "proxy" not in failure_of(sends(reply(503))).text


@pytest.mark.parametrize(
    "proxy", ["socks5://127.0.0.1:9", "http://[", "http://usr:PASSWORD#x@127.0.0.1:9"]
)
def test_a_proxy_that_cannot_be_used(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(UsageError, match="HTTP_PROXY") as raised:
        make("http://model.example/v1")
    assert "PASSWORD" not in str(raised.value)
