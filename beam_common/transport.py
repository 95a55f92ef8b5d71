"""One HTTP request on a connection of its own, by httpcore.

No connection is used twice: what came before a request was sent cannot be taken for its reply. That
costs no more than the pool of a general client. Proxies and certificates of the environment are
heeded.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import string
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from beam_common.messages import UsageError, one_line

CONNECT_SECONDS = 15.0  # TLS included; a server that does not speak it may just wait
SMALL_BODY = 2**16  # bytes; up to here copying a body is cheaper than sending it in slices
# A peer that vanished without a word is noticed after about three minutes.
KEEPALIVE = {
    "TCP_KEEPIDLE": 60,  # seconds without a byte before the first probe; as macOS calls it:
    "TCP_KEEPALIVE": 60,
    "TCP_KEEPINTVL": 20,
    "TCP_KEEPCNT": 6,
    "TCP_USER_TIMEOUT": 180_000,  # milliseconds for bytes that were sent to be acknowledged
}


class Transport:
    """The way to a URL, as the environment has it. UsageError where that cannot be used."""

    def __init__(self, url: str) -> None:
        import httpcore2

        parts = urlsplit(quote(url, safe=string.punctuation))
        self.host = parts.netloc.rpartition("@")[2]
        self.authorization = _basic(parts)
        self.proxy = _proxy_for(parts)
        self._url = httpcore2.URL(urlunsplit(parts._replace(netloc=self.host)))
        self._tls = _tls_context() if parts.scheme == "https" else None
        self.socket_options: list[Any] = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
        for name, value in KEEPALIVE.items():
            if option := getattr(socket, name, None):
                self.socket_options.append((socket.IPPROTO_TCP, option, value))

    @contextlib.asynccontextmanager
    async def post(
        self,
        headers: Mapping[str, str],
        body: Sequence[bytes],
        sent: Callable[[], None],
        timeout: float,
    ) -> AsyncIterator[Any]:
        """The response to a request, an httpcore Response; `sent` is called when it has gone out.

        Raises what `troubles` lists. `timeout`: seconds of the longest silence.
        """
        import httpcore2

        size = sum(map(len, body))
        waits = dict.fromkeys(("read", "write", "pool"), timeout)
        request = httpcore2.Request(
            "POST",
            self._url,
            headers=[*headers.items(), ("content-length", str(size))],
            content=_slices(body if size > SMALL_BODY else [b"".join(body)], sent),
            extensions={"timeout": {**waits, "connect": min(timeout, CONNECT_SECONDS)}},
        )
        async with self._connection() as connection:
            yield await connection.handle_async_request(request)

    def _connection(self) -> Any:
        import httpcore2

        if self.proxy is None:
            return httpcore2.AsyncHTTPConnection(
                self._url.origin, self._tls, socket_options=self.socket_options
            )
        credentials = _basic(self.proxy)
        return httpcore2.AsyncHTTPProxy(
            urlunsplit(self.proxy._replace(netloc=self.proxy.netloc.rpartition("@")[2])),
            proxy_headers={"proxy-authorization": credentials} if credentials else None,
            ssl_context=self._tls,
            socket_options=self.socket_options,
        )


def troubles() -> tuple[type[Exception], ...]:
    """What a connection that cannot be made, or breaks, raises."""
    import httpcore2 as core

    return (core.NetworkError, core.TimeoutException, core.ProtocolError, core.ProxyError, OSError)


async def _slices(body: Sequence[bytes], sent: Callable[[], None]) -> AsyncIterator[bytes]:
    for piece in body:
        yield piece
    sent()


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
