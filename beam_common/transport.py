"""The way to an endpoint: a connection for each request, by httpcore over asyncio's streams.

No connection is used twice: what came before a request was sent cannot be taken for its reply.
"""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import ssl
import string
from functools import partial
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from beam_common.messages import UsageError, one_line

ONE_PACKET = 65_536  # bytes that wait until more of a request follows, or its reply is read
# A peer that vanished without a word is noticed after about three minutes.
KEEPALIVE = {
    "TCP_KEEPIDLE": 60,  # seconds without a byte before the first probe; as macOS calls it:
    "TCP_KEEPALIVE": 60,
    "TCP_KEEPINTVL": 20,
    "TCP_KEEPCNT": 6,
    "TCP_USER_TIMEOUT": 180_000,  # milliseconds for bytes that were sent to be acknowledged
}
PROXY = r"(?:http://)?(?:([^/?#]*)@)?((?:[\w.-]+|\[[\da-fA-F:]+\])(?::\d+)?)/?"


class Transport:
    """The way to an endpoint, as the environment has it. UsageError where that cannot be used.

    `connection` and `request` make what httpcore calls so, `troubles` is what these raise.
    """

    def __init__(self, base_url: str) -> None:
        import httpcore2

        parts = urlsplit(quote(base_url, safe=string.punctuation))
        credentials, _, self.host = parts.netloc.rpartition("@")
        path = parts.path.rstrip("/") + "/chat/completions"
        url = httpcore2.URL(urlunsplit(parts._replace(netloc=self.host, path=path)))
        self.request = partial(httpcore2.Request, "POST", url)
        self.authorization = _basic(credentials)
        self.troubles = (httpcore2.ProtocolError, httpcore2.ProxyError, OSError)
        tls = _tls_context() if parts.scheme == "https" else None
        options: Any = {"ssl_context": tls, "network_backend": self}
        self.connection: Any = partial(httpcore2.AsyncHTTPConnection, url.origin, **options)
        self.proxy, credentials = _proxy_for(parts)
        if self.proxy:
            if credentials:
                options["proxy_headers"] = {"proxy-authorization": _basic(credentials)}
            self.connection = partial(httpcore2.AsyncHTTPProxy, self.proxy, **options)

    async def connect_tcp(self, host: str, port: int, **_: object) -> Stream:
        """For httpcore, whose network backend this is. Silence is bounded by who asks."""
        reader = Reader()
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader),
            host,
            port,
            # Until the next address of a name is tried beside the first; a number has one.
            happy_eyeballs_delay=0.25 if host.strip("0123456789.") else None,
        )
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if option := getattr(socket, name, None):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        return Stream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


class Reader(asyncio.StreamReader):
    """Gives what came before a connection broke, such as a refusal of what was still being sent."""

    def set_exception(self, exc: Exception) -> None:
        self.feed_eof()


class Stream:
    """What httpcore calls a network stream. Small pieces of a request go out together."""

    def __init__(self, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._unsent = b""
        self.get_extra_info = writer.get_extra_info

    async def write(self, data: bytes, timeout: object = None) -> None:
        import httpcore2

        self._unsent += data
        if len(self._unsent) < ONE_PACKET:
            return
        self._send()
        try:
            await self._writer.drain()
        except ConnectionError as error:  # httpcore goes on to what the server has to say
            raise httpcore2.WriteError from error

    async def read(self, most: int, timeout: object = None) -> bytes:
        self._send()
        return await self._reader.read(most)

    def _send(self) -> None:
        self._writer.write(self._unsent)
        self._unsent = b""

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str, timeout: object = None
    ) -> Stream:
        await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        return self

    async def aclose(self) -> None:
        self._writer.transport.abort()


def _proxy_for(url: SplitResult) -> tuple[str, str]:
    """The URL of the environment's proxy, and its credentials; "" for none."""
    import urllib.request  # takes a while, which `--help` need not wait for

    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(url.hostname or ""):
        return "", ""
    if found := re.fullmatch(PROXY, proxy):
        return "http://" + found[2], found[1] or ""
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


def _basic(credentials: str) -> str:
    """The Authorization that the credentials in a URL stand for."""
    encoded = base64.b64encode(unquote(credentials).encode()).decode()
    return f"Basic {encoded}" if credentials else ""
