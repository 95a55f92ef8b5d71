"""One request to an OpenAI-compatible `/chat/completions`, and what came of it.

`Endpoint.ask` gives a value, never an exception, for everything an endpoint can do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import string
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from beam_common.cli import shown_url
from beam_common.failure import TLS_ADVICE, ErrorBody, Failure, Flags, meaning, named_wait
from beam_common.messages import one_line
from beam_common.reply import Outcome, Received, Reply
from beam_common.rows import VERSION, Json, Row
from beam_common.transport import Transport

SHORT_SILENCE = 15.0  # seconds, until there is a connection, and after what says enough
WHOLE_ATTEMPT = 3  # times the longest silence
LARGE_BODY = 1_000_000  # bytes; from here on the size may be what a failure is about


class Watch:
    """Is told how far a request is; this one does not care."""

    def sent(self) -> None:
        """The body has gone out."""

    def begun(self) -> None:
        """A first piece of the reply has come, content or reasoning."""


def request_parameters(settings: Json, extra: Json) -> Row:
    """All of a body but the messages: the keys of `extra` win, a null in it takes a key out."""
    return {name: value for name, value in {**settings, **extra}.items() if value is not None}


def encode_json(value: object) -> bytes:
    """JSON in UTF-8, without blanks; lone surrogates as JSON escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def encode_body(settings: bytes, shared: Sequence[bytes], last_message: bytes) -> list[bytes]:
    """The body in slices: the settings, then the messages; each of `shared` ends in a comma."""
    return [settings[:-1] + b',"messages":[', *shared, last_message + b"]}"]


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
        self._transport = Transport(base_url)
        self._headers = {
            "host": self._transport.host,
            "user-agent": f"BEAM/{VERSION}",
            "accept-encoding": "identity",
            "connection": "close",
            "content-type": "application/json",
            "authorization": self._transport.authorization or f"Bearer {api_key}",
            **{name.lower(): value for name, value in headers.items()},
        }

    async def ask(
        self,
        body: Sequence[bytes],
        watch: Watch = Watch(),  # noqa: B008 - it has no state
        chat_id: str = "",
        first_piece_only: bool = False,
    ) -> Outcome:
        """Send one request and read its reply; a stream's first piece is enough on request."""
        received = Received(self._flags, watch.begun, first_piece_only)
        size = sum(map(len, body))
        chat_id = quote(chat_id, string.punctuation + " ", errors="replace")
        headers = [(name, v.replace("{chat_id}", chat_id)) for name, v in self._headers.items()]
        headers.append(("content-length", str(size)))
        silence = asyncio.timeout_at(self._deadline(short=True))
        content = self._sending(body, silence, watch)
        request = self._transport.request(headers=headers, content=content)
        try:
            async with (
                asyncio.timeout(WHOLE_ATTEMPT * self._timeout),
                silence,
                self._transport.connection() as connection,
            ):
                response = await connection.handle_async_request(request)
                await self._receive(response, silence, received)
        except self._transport.troubles as error:
            received.fail(self._broken(error))
        outcome = received.outcome()
        if isinstance(outcome, Reply):
            return outcome
        text = one_line(outcome.text)
        if outcome.kind == "refused" or size > LARGE_BODY:
            text += f" (request of {size:,} bytes)"
        if proxy := self._transport.proxy:
            text += f" (through the proxy {proxy}; set NO_PROXY to go around it)"
        wait = named_wait(received.headers, time.time(), outcome.text)
        return replace(outcome, text=text, wait=wait)

    def _deadline(self, short: bool = False) -> float:
        """When a silence that begins now is too long."""
        seconds = min(self._timeout, SHORT_SILENCE) if short else self._timeout
        return asyncio.get_running_loop().time() + seconds

    async def _sending(
        self, body: Sequence[bytes], silence: asyncio.Timeout, watch: Watch
    ) -> AsyncIterator[bytes]:
        for piece in body:
            silence.reschedule(self._deadline())
            yield piece
        watch.sent()

    async def _receive(self, response: Any, silence: asyncio.Timeout, received: Received) -> None:
        """Read a reply as far as it matters."""
        received.begin(response)
        left = self._longest_reply
        async with contextlib.aclosing(response.aiter_stream()) as pieces:
            silence.reschedule(self._deadline(received.is_enough))
            async for data in pieces:
                self.last_byte_at = time.monotonic()
                left -= len(data)
                if left < 0:
                    raise OSError(f"the reply is longer than {self._longest_reply:,} bytes")
                received.feed(data)
                if received.over:
                    return
                silence.reschedule(self._deadline(received.is_enough))

    def _broken(self, error: Exception) -> Failure:
        """What it means that a connection could not be made, or broke."""
        reason = str(error) or "no whole reply in time (see --timeout)"
        if reason[:3].isdigit():  # a status of the proxy
            told = ErrorBody("the proxy does not open the way to the server")
            return meaning(int(reason[:3]), told, self._flags)
        text = f"{self._flags.url}: {reason}"
        for names, advice in TLS_ADVICE.items():
            if re.search(names, reason):
                return Failure("fatal", text, self._flags.advice(advice))
        return Failure("transient", text)
