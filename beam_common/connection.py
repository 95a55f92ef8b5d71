"""One HTTP request on a connection of its own, over asyncio and h11.

No connection is used twice: what came before a request was sent cannot be taken for its reply. A
new one costs less than the pool of a general client does. Proxies of the environment are heeded.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import ssl
import string
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

import h11

from beam_common.messages import UsageError, one_line

CONNECT_SECONDS = 60.0
HANDSHAKE_SECONDS = 15.0  # for TLS; a server that does not speak it may just wait
EYEBALLS_SECONDS = 0.25  # before another address of a server is tried, too
LONGEST_HEAD = 2**17  # bytes of a reply's headers
SMALL_BODY = 2**16  # bytes; up to here copying a body is cheaper than sending it in slices
# A peer that vanished without a word is noticed after about three minutes.
KEEPALIVE = {
    "TCP_KEEPIDLE": 60,  # seconds without a byte before the first probe; as macOS calls it:
    "TCP_KEEPALIVE": 60,
    "TCP_KEEPINTVL": 20,
    "TCP_KEEPCNT": 6,
    "TCP_USER_TIMEOUT": 180_000,  # milliseconds for bytes that were sent to be acknowledged
}


class ProxyRefusal(Exception):
    """A proxy does not open the way to the server; args[0] is its status."""


class Route:
    """The way to a URL, as the environment has it. UsageError where that cannot be used.

    `host`: as the Host header names it. `tls` is None where the server does not speak it; a proxy
    then reads the request, else it only opens the way.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(quote(url, safe=string.punctuation))
        self.proxy = _proxy_for(parts)
        self.address = _address(parts)
        self.host = parts.netloc.rpartition("@")[2]
        self.target = urlunsplit(("", "", parts.path, parts.query, ""))
        self.authorization = _basic(parts)
        self.tls = _tls_context() if parts.scheme == "https" else None
        credentials = self.proxy and _basic(self.proxy)
        self.proxy_headers = {"proxy-authorization": credentials} if credentials else {}
        if self.proxy and not self.tls:
            self.target = f"http://{self.host}{self.target}"


def _address(url: SplitResult) -> tuple[str, int]:
    return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


def _proxy_for(url: SplitResult) -> SplitResult | None:
    import urllib.request  # takes a while, which `--help` need not wait for

    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(url.hostname or ""):
        return None
    with contextlib.suppress(ValueError):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if parts.scheme == "http" and parts.hostname and parts.port != 0:
            return parts
    raise UsageError(
        "the proxy that the environment sets is no http:// address; change HTTP_PROXY, "
        "HTTPS_PROXY and ALL_PROXY, or set NO_PROXY to go around it"
    )


def _tls_context() -> ssl.SSLContext:
    import httpx2

    try:
        return httpx2.create_ssl_context()
    except OSError as error:
        raise UsageError(
            "the certificates that SSL_CERT_FILE or SSL_CERT_DIR name cannot be read "
            f"({one_line(str(error), 120)}); unset them, or let them name what is there"
        ) from error


def _basic(url: SplitResult) -> str:
    """The Authorization that the credentials in a URL stand for."""
    credentials = unquote(url.netloc.rpartition("@")[0])
    return "Basic " + base64.b64encode(credentials.encode()).decode() if credentials else ""


class Connection(asyncio.Protocol):
    """One request and its reply. Raises OSError and h11.RemoteProtocolError.

    `timeout`: seconds of the longest silence; `longest`: bytes of the longest reply.
    """

    def __init__(self, timeout: float, longest: int) -> None:
        self.timeout = timeout
        self._longest = self._left = longest
        self._transport: Any = None
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self._received: list[bytes] = []
        self._full = self._lost = self._over = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        self._changed.set()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost, self._error = True, error
        self._changed.set()

    # -- what a request calls

    async def send(
        self, target: str, headers: list[tuple[str, str]], body: Sequence[bytes]
    ) -> None:
        """Send a request, but no more of it once the server replies or hangs up.

        Then all has gone out but what fits into the buffers of transport and system.
        """
        head = self._http.send(h11.Request(method="POST", target=target, headers=headers))
        small = sum(map(len, body)) <= SMALL_BODY
        for piece in [b"".join([head, *body])] if small else [head, *body]:
            self._transport.write(piece)
            while self._full and not self._received and not self._lost:
                await self._change()
            if self._received or self._lost:
                return

    async def response(self) -> tuple[int, dict[str, str]]:
        """Status and headers, by lower-case names."""
        while not isinstance(event := self._http.next_event(), h11.Response):
            if event is h11.NEED_DATA:
                await self._receive()
        headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        return event.status_code, headers

    async def read(self) -> bytes:
        """What has come of the reply's body; b"" at its end."""
        parts: list[bytes] = []
        while not self._over:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                parts.append(event.data)
                self._left -= len(event.data)
            elif event is not h11.NEED_DATA:
                self._over = True
            elif parts:
                break
            else:
                await self._receive()
        if self._left < 0:
            raise OSError(f"the reply is longer than {self._longest // 2**20} MiB")
        return b"".join(parts)

    async def _receive(self) -> None:
        """Wait for bytes, or for the end of the connection."""
        while not self._received and not self._lost:
            await self._change()
        data = b"".join(self._received)
        self._received.clear()
        if not data and (self._error or self._http.their_state is h11.SEND_RESPONSE):
            raise self._error or ConnectionError("the server hung up without a reply")
        self._http.receive_data(data)

    async def _change(self) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(self.timeout):
                await self._changed.wait()
        except TimeoutError:
            raise OSError(f"the endpoint was silent for {self.timeout:g} s") from None

    async def start_tunnel(self, route: Route, tls: ssl.SSLContext) -> None:
        """Let the proxy open the way to the server, and speak TLS with that."""
        name, port = route.address
        way = f"{name}:{port}"
        headers = [("host", way), *route.proxy_headers.items()]
        request = h11.Request(method="CONNECT", target=way, headers=headers)
        self._transport.write(self._http.send(request))
        self._http.send(h11.EndOfMessage())
        status, _ = await self.response()
        if status >= 300:
            raise ProxyRefusal(status)
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        transport: Any = await asyncio.get_running_loop().start_tls(
            self._transport,
            self,
            tls,
            server_hostname=name,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
        )
        self.connection_made(transport)

    def abort(self) -> None:
        self._transport.abort()


async def connect(route: Route, timeout: float, longest: int) -> Connection:
    """A new connection. Raises OSError and ProxyRefusal."""
    seconds = min(timeout, CONNECT_SECONDS)
    address, tls = (_address(route.proxy), None) if route.proxy else (route.address, route.tls)
    try:
        async with asyncio.timeout(seconds):
            transport, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(timeout, longest),
                *address,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if tls else None,
                happy_eyeballs_delay=EYEBALLS_SECONDS,
            )
    except TimeoutError:
        raise OSError(f"no connection within {seconds:g} s") from None
    try:
        keep_alive(transport.get_extra_info("socket"))
        if route.proxy and route.tls:
            await connection.start_tunnel(route, route.tls)
    except BaseException:
        connection.abort()
        raise
    return connection


def keep_alive(sock: socket.socket) -> None:
    """Let the system find out when the peer of a socket has vanished."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if option := getattr(socket, name, None):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
