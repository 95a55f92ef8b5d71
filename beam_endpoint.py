"""One request to an OpenAI-compatible `/chat/completions`: its body, the client, and how its reply comes in.

`Endpoint.ask` gives a value, never an exception, for everything an endpoint can do: a Reply (see beam_reply), possibly
empty, or a Failure (see beam_failure) that says what follows from it. The prompt's shared bytes are sent in slices with a
Content-Length; a reply is read as JSON or as server-sent events by what it is, not by what was asked for, since servers
differ in whether they heed `stream`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import httpx2
import openai

from beam_cli import keep_plain_cookies, making_a_client, shown_url
from beam_common import UsageError, one_line
from beam_failure import (
    BOM,
    NO_STREAM,
    PASSING_STATUS,
    Failure,
    looks_like_html,
    meaning,
    named_wait,
    named_wait_inside,
    read_error,
    shown,
)
from beam_reply import EventLines, Reply, Stream, read_completion

LONGEST_REPLY = 64 * 2**20  # bytes; more than any answer, so a server that never ends cannot fill the memory
LONGEST_REFUSAL = 2**20  # bytes of an error's body that are read
SMALL_BODY = 2**16  # bytes; up to here copying a body is cheaper than sending it in slices
LARGE_BODY = 10**6  # bytes; from here on a broken connection may be a refusal
CONNECT_SECONDS = 60.0
AFTER_FINISH_SECONDS = 30.0  # how long a finished answer is held back for its usage and [DONE]
BROKEN = (httpx2.HTTPError, OSError)  # a TLS error while reading comes as the OSError it is
CHUNKS_AT_ONCE = 32  # of a stream, before others get their turn
REFUSAL_SECONDS = 10.0  # how long a refusal's body may take: its status is known and says the most
DRAIN_SECONDS = 0.25  # how long a finished stream may take to close before its connection is given up


@dataclass(frozen=True)
class Flags:
    """What the flags of an endpoint are called, for messages."""

    base_url: str = "--base-url"
    api_key: str = "--api-key"
    model: str = "--model"


# ---------------------------------------------------------------------------------------------------------------
# The body of a request.


def parameters(settings: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Everything in a body but the messages: the keys of `extra` win, a null in it takes a key out."""
    merged = {**settings, **extra}
    return {name: value for name, value in merged.items() if not (name in extra and value is None)}


def encode_json(value: object) -> bytes:
    """JSON as the SDK writes it: UTF-8, no blanks; lone surrogates, on which the SDK fails, as JSON escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def encode_body(settings: bytes, shared: Sequence[bytes], last_message: bytes) -> list[bytes]:
    """The body in slices: `settings` (a JSON object), then the messages: `shared` (each followed by a comma), the last."""
    head = settings[:-1] + (b"," if len(settings) > 2 else b"") + b'"messages":['
    return [head, *shared, last_message + b"]}"]


# ---------------------------------------------------------------------------------------------------------------
# The endpoint.


class Endpoint:
    """A client for one base URL. `ask` may run many times at once on one event loop."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        timeout: float,
        connections: int,
        headers: Mapping[str, str],
        flags: Flags,
        streams: bool = False,
    ) -> None:
        self.base_url = base_url
        self.timeout = timeout
        self.flags = flags
        self.streams = streams
        parts = urlsplit(base_url)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=connections)
        bounds = httpx2.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS), pool=None)
        with making_a_client():
            self.proxy = _proxy_for(parts.scheme, parts.hostname or "")
            self._http = openai.DefaultAsyncHttpxClient(follow_redirects=False, limits=limits, timeout=bounds)
            keep_plain_cookies(self._http)
        try:
            with _without_openai_variables():
                client = openai.AsyncOpenAI(
                    api_key=api_key,
                    base_url=urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")),
                    default_headers=dict(headers),
                    http_client=self._http,
                )
            # What the SDK would send, taken once: its own way to a request costs more CPU than the request.
            known = {**client.auth_headers, **client.default_headers}
            # By lower-case name: a --header replaces what it names, however it is spelt.
            self._headers = {name.lower(): value for name, value in known.items() if isinstance(value, str)}
            query = parse_qsl(parts.query, keep_blank_values=True)
            self._url = httpx2.URL(f"{client.base_url}chat/completions", **({"params": query} if query else {}))
        except httpx2.InvalidURL as error:
            raise UsageError(
                f"{flags.base_url} {shown_url(base_url)!r} is no URL: {one_line(str(error), 120)}"
            ) from error

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self,
        body: Sequence[bytes],
        on_first_piece: Callable[[], None] = lambda: None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> Reply | Failure:
        """Send one request and read its reply.

        `on_sent` is called when the body has gone out, `on_first_piece` when the reply has begun. No silence longer
        than `timeout` seconds, and three times that in all.
        """
        try:
            async with asyncio.timeout(3 * self.timeout) as bound:
                outcome = await self._ask(body, on_first_piece, on_sent, bound)
        except TimeoutError:
            outcome = Failure("retry", f"no whole reply within {3 * self.timeout:g} s")
        except BROKEN as error:
            outcome = self._no_connection(error)
        return outcome if isinstance(outcome, Reply) else self._explained(outcome, sum(map(len, body)))

    async def _ask(
        self,
        body: Sequence[bytes],
        on_first_piece: Callable[[], None],
        on_sent: Callable[[], None],
        bound: asyncio.Timeout,
    ) -> Reply | Failure:
        size = sum(map(len, body))
        slices = body if size > SMALL_BODY else [b"".join(body)]
        headers = {**self._headers, "content-length": str(size)}
        request = self._http.build_request("POST", self._url, headers=headers, content=_slices(slices, on_sent))
        try:
            response = await self._http.send(request, stream=True)
        except (httpx2.ReadError, httpx2.WriteError, httpx2.WriteTimeout, httpx2.RemoteProtocolError, OSError) as error:
            failure = self._no_connection(error)
            if size > LARGE_BODY:  # such a refusal is lost with the connection
                note = f"request of {size:,} bytes: a server that refuses such a size, or the key, may close like this"
                failure = replace(failure, text=f"{failure.text}; {note}")
            return failure
        try:
            if response.is_success:
                return await self._read(response, on_first_piece, bound)
            return self._refused(response, await _beginning(response, min(self.timeout, REFUSAL_SECONDS)))
        finally:
            with contextlib.suppress(*BROKEN):
                await response.aclose()

    def _refused(self, response: httpx2.Response, body: bytes) -> Failure:
        wait = named_wait(response.headers, time.time()) or named_wait_inside(body)
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            content = None
        failure = meaning(response.status_code, read_error(content, body), wait)
        if response.is_redirect:
            try:
                place = shown_url(response.headers.get("location", "")) or "nowhere"
            except ValueError:
                place = "what is no URL"
            failure = replace(failure, text=f"HTTP {response.status_code}: a redirect to {place}")
        return failure

    async def _read(
        self, response: httpx2.Response, on_first_piece: Callable[[], None], bound: asyncio.Timeout
    ) -> Reply | Failure:
        """Read a reply of status 200: what its first bytes are decides whether it is JSON or a stream."""
        wait = named_wait(response.headers, time.time())
        chunks = response.aiter_bytes()
        start = b""
        async for chunk in chunks:
            start = (start + chunk).lstrip().removeprefix(BOM).lstrip()
            if len(start) >= 6:
                break
        if start[:1] in (b"{", b"[", b"<", b""):
            body = await _rest(start, chunks)
            if body is None:
                return Failure("retry", f"the reply is longer than {LONGEST_REPLY // 2**20} MB")
            return self._whole(body, wait)
        if re.match(rb"(data|event|id|retry|error)?:", start):
            return await self._streamed(start, chunks, on_first_piece, wait, bound)
        return Failure("retry", f"the reply is neither JSON nor a stream: {shown(start)}")

    def _whole(self, body: bytes, wait: float | None) -> Reply | Failure:
        if looks_like_html(body):
            return Failure("stop", "the endpoint answered with an HTML page", way_out="status 404")
        if not body.strip():
            return Failure("retry", "the reply is empty")
        try:
            return read_completion(json.loads(body), wait)
        except (ValueError, RecursionError) as error:
            return Failure("retry", f"the reply is not whole JSON ({one_line(str(error), 80)})")

    async def _streamed(
        self,
        start: bytes,
        chunks: AsyncIterator[bytes],
        on_first_piece: Callable[[], None],
        wait: float | None,
        bound: asyncio.Timeout,
    ) -> Reply | Failure:
        lines, stream, begun, size = EventLines(), Stream(wait), False, 0
        try:
            async with asyncio.timeout(None) as rest:
                async for chunk in _after(start, chunks):
                    size += len(chunk)
                    for data in lines.feed(chunk):
                        stream.take(data)
                    if stream.first_piece and not begun:
                        begun = True
                        on_first_piece()
                    if size > LONGEST_REPLY:
                        stream.failure = Failure("retry", f"the reply is longer than {LONGEST_REPLY // 2**20} MB")
                    if stream.done or stream.failure:
                        break
                    if stream.finish_reason and rest.when() is None:
                        rest.reschedule(asyncio.get_running_loop().time() + min(self.timeout, AFTER_FINISH_SECONDS))
                        bound.reschedule(None)  # the answer is there
                else:
                    for data in lines.feed(b"\n\n"):
                        stream.take(data)
        except BROKEN:  # TimeoutError is one
            if not stream.finish_reason:  # else only the end of the connection is missing, not of the reply
                raise
        if stream.done:
            await _drain(chunks)
        return stream.result()

    def _no_connection(self, error: BaseException) -> Failure:
        kind = type(error).__name__
        if isinstance(error, httpx2.TimeoutException):
            limit = min(self.timeout, CONNECT_SECONDS) if isinstance(error, httpx2.ConnectTimeout) else self.timeout
            return Failure("retry", f"the endpoint was silent for {limit:g} s ({kind})")
        text = f"no connection or a broken one: {one_line(str(error), 160) or kind} ({kind})"
        refusal = re.match(r"4\d\d\b", str(error)) if isinstance(error, httpx2.ProxyError) else None
        if refusal and int(refusal[0]) not in PASSING_STATUS:
            return Failure(
                "stop", text, way_out="status 407" if refusal[0] == "407" else "the proxy refuses: see NO_PROXY"
            )
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return Failure(
                "stop", text, way_out=f"the certificate of the server is not trusted; check {self.flags.base_url}"
            )
        return Failure("retry", text)

    def _explained(self, failure: Failure, size: int) -> Failure:
        """The failure with its text made fit for people: one line, no secret, with the size, URL or flag it is about."""
        if failure.way_out == NO_STREAM and not self.streams:
            failure = replace(failure, kind="record", way_out="")
        flags, text, way_out = self.flags, one_line(failure.text), failure.way_out
        url = shown_url(self.base_url)
        if failure.over and failure.over[0] > size:  # no prompt has more tokens than bytes
            failure = replace(failure, over=None)
        if failure.kind in ("record", "overflow") and re.search(r"\b(400|413|422)\b", text):
            text += f" (request of {size:,} bytes)"
        if self.proxy:
            text += f" (through the proxy {self.proxy}; set NO_PROXY to go around it)"
        wrong_path = f"check {flags.base_url} {url} (most servers want /v1 at its end)"
        status = way_out.removeprefix("status ")
        if way_out.startswith("status "):
            way_out = {
                "401": f"the key is refused: check {flags.api_key}",
                "402": "the account must be topped up, then start again",
                "404": f"{wrong_path} and {flags.model}",
                "407": "the proxy wants credentials",
            }.get(status, wrong_path)
        return replace(failure, text=text, way_out=way_out)


async def _slices(body: Sequence[bytes], on_sent: Callable[[], None]) -> AsyncIterator[bytes]:
    for piece in body:
        yield piece
    on_sent()


async def _after(start: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """All chunks of a stream. Gives way now and then, so that many replies at once do not hold up the event loop."""
    yield start
    read = 0
    async for chunk in chunks:
        yield chunk
        read += 1
        if not read % CHUNKS_AT_ONCE:
            await asyncio.sleep(0)


async def _rest(start: bytes, chunks: AsyncIterator[bytes]) -> bytes | None:
    """The whole body; None when it is longer than any reply."""
    parts, size = [start], len(start)
    async for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > LONGEST_REPLY:
            return None
    return b"".join(parts)


async def _beginning(response: httpx2.Response, seconds: float) -> bytes:
    """The body of a refusal, as far as it comes soon and as far as it matters: its status says the most."""
    body = b""
    with contextlib.suppress(*BROKEN):  # TimeoutError is one
        async with asyncio.timeout(seconds):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > LONGEST_REFUSAL:
                    break
    return body


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read a finished stream to its end, so that its connection can be used again; give up soon or on any trouble."""
    with contextlib.suppress(*BROKEN):  # TimeoutError is one
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in chunks:
                pass


def _proxy_for(scheme: str, host: str) -> str | None:
    """The proxy that the environment sets for this host, without credentials."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    return shown_url(proxy if "://" in proxy else f"http://{proxy}")


@contextlib.contextmanager
def _without_openai_variables() -> Iterator[None]:
    """The SDK takes keys, organisations and headers from OPENAI_* variables; none of them is meant for this endpoint."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("OPENAI_")}
    try:
        yield
    finally:
        os.environ.update(hidden)
