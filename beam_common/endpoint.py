"""One request to an OpenAI-compatible `/chat/completions`, and what came of it.

`Endpoint.ask` gives a value, never an exception, for everything an endpoint can do. A reply is read
as JSON or as a stream of events by what it is, not by what was asked for: servers differ in
whether they heed `stream`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import h11

from beam_common.cli import shown_url
from beam_common.connection import Connection, ProxyRefusal, Route, connect
from beam_common.failure import ErrorBody, Failure, Flags, meaning, named_wait, read_error
from beam_common.messages import one_line
from beam_common.reply import Reply, Stream, read_completion
from beam_common.rows import VERSION

WHOLE_ATTEMPT = 3  # times the longest silence
AFTER_FINISH_SECONDS = 30.0  # how long a finished answer waits for its usage and [DONE]
REFUSAL_SECONDS = 10.0  # of silence within a refusal: its status says the most
LARGE_BODY = 10**6  # bytes; from here on a broken connection may be a refusal
BLANKS = b"\xef\xbb\xbf \t\r\n"  # before a reply, a byte order mark among them
NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
BROKEN = (OSError, h11.RemoteProtocolError)  # TimeoutError and errors of TLS are OSErrors


class Watch:
    """Is told how far a request is; this one does not care."""

    def sent(self) -> None:
        """The body has gone out."""

    def begun(self) -> None:
        """A first piece of the reply has come, content or reasoning."""


# ------------------------------------------------------------------------------------------------
# The body of a request.


def request_parameters(settings: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """All of a body but the messages: the keys of `extra` win, a null in it takes a key out."""
    merged = {**settings, **extra}
    return {name: value for name, value in merged.items() if value is not None or name not in extra}


def encode_json(value: object) -> bytes:
    """JSON in UTF-8, without blanks; lone surrogates as JSON escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def encode_body(settings: bytes, shared: Sequence[bytes], last_message: bytes) -> list[bytes]:
    """The body in slices: the settings (a JSON object), then the messages.

    `shared` are the messages before the last one, each followed by a comma.
    """
    head = settings[:-1] + (b"," if len(settings) > 2 else b"") + b'"messages":['
    return [head, *shared, last_message + b"]}"]


# ------------------------------------------------------------------------------------------------
# The endpoint.


class Endpoint:
    """Where requests go. `ask` may run many times at once on one event loop.

    `timeout`: seconds of the longest silence; an attempt as a whole is cut at three times that.
    `longest_reply`: bytes. `{chat_id}` in the value of a header is replaced in each request.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        timeout: float,
        headers: Mapping[str, str],
        flags: Flags,
        longest_reply: int,
    ) -> None:
        self.base_url = base_url
        self.last_byte_at = time.monotonic()
        self._timeout, self._longest_reply = timeout, longest_reply
        self._flags = replace(flags, base_url=f"{flags.base_url} {shown_url(base_url)}")
        parts = urlsplit(base_url)
        path = parts.path.rstrip("/") + "/chat/completions"
        self._route = route = Route(urlunsplit(parts._replace(path=path)))
        self._headers = {
            "host": route.host,
            "user-agent": f"BEAM/{VERSION}",
            "accept": "application/json",
            "accept-encoding": "identity",
            "connection": "close",
            "content-type": "application/json",
            "authorization": route.authorization or f"Bearer {api_key}",
            **({} if route.tls else route.proxy_headers),
            **{name.lower(): value for name, value in headers.items()},
        }

    async def ask(
        self,
        body: Sequence[bytes],
        watch: Watch = Watch(),  # noqa: B008 - it has no state
        chat_id: str = "",
        first_piece_only: bool = False,
    ) -> Reply | Failure:
        """Send one request and read its reply.

        `first_piece_only`: a streamed reply is cut at its first piece, and counts.
        """
        stream = Stream(self._flags, watch.begun, first_piece_only)
        size = sum(map(len, body))
        try:
            async with asyncio.timeout(WHOLE_ATTEMPT * self._timeout):
                connection = await connect(self._route, self._timeout, self._longest_reply)
                try:
                    headers = self._headers_for(chat_id, size)
                    await connection.send(self._route.target, headers, body)
                    watch.sent()
                    outcome = await self._outcome(connection, stream)
                finally:
                    connection.abort()
        except BROKEN as error:
            if stream.finish_reason:  # only the end of the connection is missing
                return stream.result()
            outcome = self._broken(error, size)
        except ProxyRefusal as refusal:
            told = ErrorBody("the proxy does not open the way to the server")
            outcome = meaning(refusal.args[0], told, self._flags)
        return self._explained(outcome, size) if isinstance(outcome, Failure) else outcome

    def _headers_for(self, chat_id: str, size: int) -> list[tuple[str, str]]:
        if not (chat_id.isascii() and chat_id.isprintable()):
            chat_id = quote(chat_id, safe="", errors="backslashreplace")
        filled = [(n, v.replace("{chat_id}", chat_id)) for n, v in self._headers.items()]
        return [*filled, ("content-length", str(size))]

    async def _outcome(self, connection: Connection, stream: Stream) -> Reply | Failure:
        """What comes back for a request that was sent."""
        status, headers = await connection.response()
        if 200 <= status < 300:
            outcome = await self._read(connection, stream)
            text = outcome.text
        else:
            text = await _beginning(connection)
            if status < 400:
                text = f"a redirect to {headers.get('location', '').partition('?')[0]}"
            outcome = meaning(status, read_error(_parsed(text), text), self._flags)
        if isinstance(outcome, Failure):
            outcome = replace(outcome, wait=named_wait(headers, time.time(), text))
        return outcome

    async def _read(self, connection: Connection, stream: Stream) -> Reply | Failure:
        """A reply of status 200: its first bytes tell whether it is a stream."""
        start = b""
        while not start and (data := await self._next(connection)):
            start = data.lstrip(BLANKS)
        if start[:1] in (b"{", b"[", b"<", b""):
            return await self._whole(connection, start)
        data = start
        while data:
            stream.feed(data)
            if stream.finish_reason:
                connection.timeout = min(self._timeout, AFTER_FINISH_SECONDS)
            data = b"" if stream.over else await self._next(connection)
        return stream.result()

    async def _whole(self, connection: Connection, start: bytes) -> Reply | Failure:
        """A reply in one piece, of which `start` has come."""
        parts = [start]
        while data := await self._next(connection):
            parts.append(data)
        if start[:1] == b"<":
            advice = self._flags.advice()
            return Failure("fatal", "the endpoint answers with an HTML page", advice=advice)
        content = _parsed(b"".join(parts))
        if content is None:
            return Failure("transient", f"the reply is {'not whole JSON' if start else 'empty'}")
        return read_completion(content, self._flags)

    async def _next(self, connection: Connection) -> bytes:
        data = await connection.read()
        self.last_byte_at = time.monotonic()
        return data

    def _broken(self, error: Exception, size: int) -> Failure:
        """What it means that a connection could not be made, or broke."""
        reason = str(error) or f"no whole reply within {WHOLE_ATTEMPT * self._timeout:g} s"
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
            reason = os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
        text = f"{shown_url(self.base_url)}: {one_line(reason, 160)}"
        if isinstance(error, ssl.SSLCertVerificationError):
            advice = "let SSL_CERT_FILE name the certificate of the authority that signed it"
            return Failure("fatal", text, advice=advice)
        if isinstance(error, ssl.SSLError) and error.reason in NOT_TLS:
            advice = f"the server does not speak https: check the scheme of {self._flags.base_url}"
            return Failure("fatal", text, advice=advice)
        if size > LARGE_BODY:
            text += f" (request of {size:,} bytes: a server that refuses such a size may hang up)"
        return Failure("transient", text)

    def _explained(self, failure: Failure, size: int) -> Failure:
        """The failure with its text made fit for people."""
        text = one_line(failure.text)
        if failure.kind == "refused":
            text += f" (request of {size:,} bytes)"
        if self._route.proxy:
            proxy = shown_url(self._route.proxy.geturl())
            text += f" (through the proxy {proxy}; set NO_PROXY to go around it)"
        return replace(failure, text=text)


async def _beginning(connection: Connection) -> str:
    """The text of a refusal, as far as it comes soon."""
    parts = []
    connection.timeout = min(connection.timeout, REFUSAL_SECONDS)
    with contextlib.suppress(*BROKEN):
        while data := await connection.read():
            parts.append(data)
    return b"".join(parts).decode("utf-8", "replace")


def _parsed(body: str | bytes) -> Any:
    """A body as JSON; None where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
