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
import re
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from beam_common.cli import shown_url
from beam_common.failure import ErrorBody, Failure, Flags, meaning, named_wait, read_error
from beam_common.messages import one_line
from beam_common.reply import Reply, Stream, read_completion
from beam_common.rows import VERSION
from beam_common.transport import CONNECT_SECONDS, Transport, troubles

WHOLE_ATTEMPT = 3  # times the longest silence
AFTER_FINISH_SECONDS = 30.0  # how long a finished answer waits for its usage and [DONE]
REFUSAL_SECONDS = 10.0  # of silence within a refusal: its status says the most
LARGE_BODY = 10**6  # bytes; from here on a broken connection may be a refusal
BLANKS = b"\xef\xbb\xbf \t\r\n"  # before a reply, a byte order mark among them
NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


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
        self._transport = transport = Transport(urlunsplit(parts._replace(path=path)))
        self._troubles = troubles()
        self._headers = {
            "host": transport.host,
            "user-agent": f"BEAM/{VERSION}",
            "accept": "application/json",
            "accept-encoding": "identity",
            "connection": "close",
            "content-type": "application/json",
            "authorization": transport.authorization or f"Bearer {api_key}",
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
        headers = self._headers_for(chat_id)
        try:
            async with (
                asyncio.timeout(WHOLE_ATTEMPT * self._timeout) as bound,
                self._transport.post(headers, body, watch.sent, self._timeout) as response,
            ):
                outcome = await self._outcome(response, stream, bound)
        except self._troubles as error:
            if stream.finish_reason:  # only the end of the connection is missing
                return stream.result()
            outcome = self._broken(error, size)
        return self._explained(outcome, size) if isinstance(outcome, Failure) else outcome

    def _headers_for(self, chat_id: str) -> dict[str, str]:
        if not (chat_id.isascii() and chat_id.isprintable()):
            chat_id = quote(chat_id, safe="", errors="backslashreplace")
        return {n: v.replace("{chat_id}", chat_id) for n, v in self._headers.items()}

    async def _outcome(
        self, response: Any, stream: Stream, bound: asyncio.Timeout
    ) -> Reply | Failure:
        """What comes back for a request that was sent."""
        headers = {n.decode().lower(): v.decode("latin-1") for n, v in response.headers}
        async with contextlib.aclosing(self._pieces(response)) as pieces:
            if 200 <= response.status < 300:
                outcome = await self._read(pieces, stream, bound)
                text = outcome.text
            else:
                text = await self._beginning(pieces)
                outcome = self._refused(response.status, headers, text)
        if isinstance(outcome, Failure):
            outcome = replace(outcome, wait=named_wait(headers, time.time(), text))
        return outcome

    def _refused(self, status: int, headers: Mapping[str, str], text: str) -> Failure:
        if status < 400:
            text = f"a redirect to {headers.get('location', '').partition('?')[0]}"
        return meaning(status, read_error(_parsed(text), text), self._flags)

    async def _pieces(self, response: Any) -> AsyncGenerator[bytes]:
        """What comes of a body."""
        left = self._longest_reply
        async with contextlib.aclosing(response.aiter_stream()) as pieces:
            async for data in pieces:
                self.last_byte_at = time.monotonic()
                left -= len(data)
                if left < 0:
                    raise OSError(f"the reply is longer than {self._longest_reply // 2**20} MiB")
                yield data

    async def _read(
        self, pieces: AsyncIterator[bytes], stream: Stream, bound: asyncio.Timeout
    ) -> Reply | Failure:
        """A reply of status 200: its first bytes tell whether it is a stream."""
        start = b""
        async for data in pieces:
            start = data.lstrip(BLANKS)
            if start:
                break
        if start[:1] in (b"{", b"[", b"<", b""):
            return self._whole(start + b"".join([data async for data in pieces]))
        stream.feed(start)
        while not stream.over and (data := await anext(pieces, b"")):
            stream.feed(data)
            if stream.finish_reason:  # the answer is there: the bound must not cost it
                wait = min(self._timeout, AFTER_FINISH_SECONDS)
                bound.reschedule(asyncio.get_running_loop().time() + wait)
        return stream.result()

    def _whole(self, body: bytes) -> Reply | Failure:
        """A reply in one piece."""
        if body[:1] == b"<":
            advice = self._flags.advice()
            return Failure("fatal", "the endpoint answers with an HTML page", advice=advice)
        content = _parsed(body)
        if content is None:
            return Failure("transient", f"the reply is {'not whole JSON' if body else 'empty'}")
        return read_completion(content, self._flags)

    async def _beginning(self, pieces: AsyncIterator[bytes]) -> str:
        """The text of a refusal, as far as it comes soon."""
        body = b""
        with contextlib.suppress(*self._troubles):  # TimeoutError is an OSError
            async with asyncio.timeout(min(self._timeout, REFUSAL_SECONDS)):
                async for data in pieces:
                    body += data
        return body.decode("utf-8", "replace")

    def _broken(self, error: Exception, size: int) -> Failure:
        """What it means that a connection could not be made, or broke."""
        reason = self._reason(error)
        text = f"{shown_url(self.base_url)}: {one_line(reason, 160)}"
        if refused := re.match(r"(\d{3}) ", str(error)):  # by the proxy, which opens no way
            told = ErrorBody("the proxy does not open the way to the server")
            return meaning(int(refused[1]), told, self._flags)
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            advice = "let SSL_CERT_FILE name the certificate of the authority that signed it"
            return Failure("fatal", text, advice=advice)
        if any(name in reason for name in NOT_TLS):
            advice = f"the server does not speak https: check the scheme of {self._flags.base_url}"
            return Failure("fatal", text, advice=advice)
        if size > LARGE_BODY:
            text += f" (request of {size:,} bytes: a server that refuses such a size may hang up)"
        return Failure("transient", text)

    def _reason(self, error: BaseException) -> str:
        """The trouble in words of the system, which lie behind those of the libraries."""
        kind = type(error).__name__
        if isinstance(error, TimeoutError):
            return f"no whole reply within {WHOLE_ATTEMPT * self._timeout:g} s"
        if kind == "ConnectTimeout":
            return f"no connection within {min(self._timeout, CONNECT_SECONDS):g} s"
        if kind.endswith("Timeout"):
            return f"the endpoint was silent for {self._timeout:g} s"
        while error.__cause__ and not isinstance(error.__cause__, ExceptionGroup):
            error = error.__cause__
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
            return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
        return str(error) or kind

    def _explained(self, failure: Failure, size: int) -> Failure:
        """The failure with its text made fit for people."""
        text = one_line(failure.text)
        if failure.kind == "refused":
            text += f" (request of {size:,} bytes)"
        if self._transport.proxy:
            proxy = shown_url(self._transport.proxy.geturl())
            text += f" (through the proxy {proxy}; set NO_PROXY to go around it)"
        return replace(failure, text=text)


def _parsed(body: str | bytes) -> Any:
    """A body as JSON; None where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
