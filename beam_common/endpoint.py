"""One request to an OpenAI-compatible `/chat/completions`, and what came of it.

`Endpoint.ask` gives a value, never an exception, for everything an endpoint can do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import string
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from beam_common.cli import shown_url
from beam_common.failure import TLS_ADVICE, ErrorBody, Failure, Flags, meaning, named_wait
from beam_common.messages import one_line
from beam_common.reply import Outcome, Received, Reply
from beam_common.rows import VERSION, Json, Row
from beam_common.transport import Transport

CONNECT_SECONDS = 15.0  # TLS included; a server that does not speak it may just wait
WHOLE_ATTEMPT = 3  # times the longest silence
ENOUGH_SECONDS = 15.0  # of silence, where what has come says enough without its end
LARGE_BODY = 10**6  # bytes; from here on the size may be what a failure is about


class Watch:
    """Is told how far a request is; this one does not care."""

    def sent(self) -> None:
        """The body has gone out."""

    def begun(self) -> None:
        """A first piece of the reply has come, content or reasoning."""


# ------------------------------------------------------------------------------------------------
# The body of a request.


def request_parameters(settings: Json, extra: Json) -> Row:
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


class Patience:
    """Ends an attempt after a silence, and when it takes too long as a whole."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._silence = min(timeout, CONNECT_SECONDS)
        self._clock = asyncio.get_running_loop().time
        self._end = self._clock() + WHOLE_ATTEMPT * timeout
        self.bound = asyncio.timeout(self._silence)

    def renew(self, enough: bool = False) -> None:
        """Something has come or gone: the silence begins anew, and is short after `enough`."""
        self._silence = min(self._timeout, ENOUGH_SECONDS) if enough else self._timeout
        self.bound.reschedule(min(self._clock() + self._silence, self._end))

    def __str__(self) -> str:
        if self._clock() < self._end:
            return f"the endpoint was silent for {self._silence:g} s"
        return f"no whole reply within {WHOLE_ATTEMPT * self._timeout:g} s"


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
        headers: dict[str, str],
        flags: Flags,
        longest_reply: int,
    ) -> None:
        self.base_url = base_url
        self.last_byte_at = time.monotonic()
        self._timeout, self._longest_reply = timeout, longest_reply
        self._flags = replace(flags, url=shown_url(base_url))
        parts = urlsplit(base_url)
        path = parts.path.rstrip("/") + "/chat/completions"
        self._transport = transport = Transport(urlunsplit(parts._replace(path=path)))
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
    ) -> Outcome:
        """Send one request and read its reply.

        `first_piece_only`: a streamed reply is cut at its first piece, and counts.
        """
        received = Received(self._flags, watch.begun, first_piece_only)
        patience = Patience(self._timeout)
        size = sum(map(len, body))
        chat_id = quote(chat_id, string.punctuation + " ", errors="replace")
        headers = [(name, v.replace("{chat_id}", chat_id)) for name, v in self._headers.items()]
        headers.append(("content-length", str(size)))
        try:
            async with patience.bound, self._transport.connection() as connection:
                request = self._transport.request(headers, _slices(body, patience, watch))
                response = await connection.handle_async_request(request)
                await self._receive(response, received, patience)
        except self._transport.troubles as error:
            if not received.is_enough:
                return self._explained(self._broken(error, patience), received, size)
        outcome = received.outcome()
        return outcome if isinstance(outcome, Reply) else self._explained(outcome, received, size)

    async def _receive(self, response: Any, received: Received, patience: Patience) -> None:
        """Read a reply as far as it matters."""
        received.status = response.status
        received.headers = {n.decode().lower(): v.decode("latin-1") for n, v in response.headers}
        left = self._longest_reply
        async with contextlib.aclosing(response.aiter_stream()) as pieces:
            patience.renew(received.is_enough)
            async for data in pieces:
                self.last_byte_at = time.monotonic()
                left -= len(data)
                if left < 0:
                    raise OSError(f"the reply is longer than {self._longest_reply // 2**20} MiB")
                received.feed(data)
                if received.over:
                    return
                patience.renew(received.is_enough)

    def _broken(self, error: Exception, patience: Patience) -> Failure:
        """What it means that a connection could not be made, or broke."""
        reason = str(error) or str(patience)
        if reason[:3].isdigit():  # a status of the proxy
            told = ErrorBody("the proxy does not open the way to the server")
            return meaning(int(reason[:3]), told, self._flags)
        if isinstance(error, ConnectionError) and error.errno:
            reason = os.strerror(error.errno)
        text = f"{self._flags.url}: {one_line(reason, 160)}"
        for names, advice in TLS_ADVICE.items():
            if re.search(names, reason):
                return Failure("fatal", text, self._flags.advice(advice))
        return Failure("transient", text)

    def _explained(self, failure: Failure, received: Received, size: int) -> Failure:
        """The failure with its wait, and its text made fit for people."""
        said = received.text() if received.status >= 300 else failure.text
        text = one_line(failure.text)
        if failure.kind == "refused" or size > LARGE_BODY:
            text += f" (request of {size:,} bytes)"
        if self._transport.proxy:
            proxy = shown_url(self._transport.proxy.geturl())
            text += f" (through the proxy {proxy}; set NO_PROXY to go around it)"
        return replace(failure, text=text, wait=named_wait(received.headers, time.time(), said))


async def _slices(body: Sequence[bytes], patience: Patience, watch: Watch) -> AsyncIterator[bytes]:
    for piece in body:
        patience.renew()
        yield piece
    patience.renew()
    watch.sent()
