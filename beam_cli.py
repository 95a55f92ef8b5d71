"""What the command lines share: parsers and types of flags, keys and base URLs, exit codes."""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import json
import math
import os
import re
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from beam_common import (
    HIDDEN,
    NO_ROOM,
    NO_WAY_TO_A_FILE,
    VERSION,
    StoppedEarly,
    Terminated,
    UsageError,
    keep_public,
    keep_secret,
    keep_secrets_in,
    one_line,
    say,
)

# ---------------------------------------------------------------------------------------------------------------
# Endpoints' addresses.


def normalise_base_url(text: str, flag: str) -> str:
    """The base URL to which `/chat/completions` is appended; raises UsageError for what cannot be one.

    A blank at the end, a trailing `/` and a trailing `/chat/completions` are taken off. A bare host gets `/v1`, where
    such servers listen; a full URL of another server is taken as it is.
    """
    try:
        parts = urlsplit(text.strip())
        scheme, host, port = parts.scheme.lower(), (parts.hostname or "").lower(), parts.port
        if scheme not in ("http", "https") or not host or re.search(r"\s", parts.netloc + parts.path):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"{flag} {shown_address(text)!r} is not a URL; give one such as http://localhost:8000/v1"
        ) from None
    path = parts.path.rstrip("/")
    if path.endswith("/chat/completions"):
        path = path.removesuffix("/chat/completions").rstrip("/")
    elif not path:
        path = "/v1"
    credentials = parts.netloc.rpartition("@")[0]
    if credentials:
        user, _, password = credentials.partition(":")
        keep_secret(password or user)
        keep_secret(unquote(password or user))
        keep_secret(base64.b64encode(unquote(credentials).encode()).decode())  # as the Authorization header has it
    keep_secrets_in(dict(parse_qsl(parts.query)))  # such as ?key=…
    keep_public(host)
    host = f"[{host}]" if ":" in host else host
    if port is not None and port != {"http": 80, "https": 443}[scheme]:
        host += f":{port}"
    return urlunsplit((scheme, f"{credentials}@{host}" if credentials else host, path, parts.query, ""))


def shown_address(text: str) -> str:
    """What is no URL, for a message: all the same without a password before an @ and a key behind a ?."""
    return one_line(text.rpartition("@")[2].partition("?")[0])


def shown_url(url: str) -> str:
    """A base URL for the record and for messages: without credentials and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@contextlib.contextmanager
def making_a_client() -> Iterator[None]:
    """Where an HTTP client is made: proxy or certificates of the environment that cannot be used raise UsageError."""
    from urllib.request import getproxies

    try:
        for scheme, proxy in getproxies().items():
            if scheme != "no":
                _ = urlsplit(proxy if "://" in proxy else f"http://{proxy}").port  # raises for one beyond 65535
        yield
    except OSError as error:
        raise UsageError(
            f"the certificates that SSL_CERT_FILE or SSL_CERT_DIR name cannot be read ({one_line(str(error), 120)}); "
            "unset these variables or let them name what is there"
        ) from error
    except Exception as error:  # SOCKS without its package, an unknown scheme, no URL, no port: each its own exception
        raise UsageError(
            f"the proxy that the environment sets cannot be used ({one_line(str(error), 120)}); unset HTTP_PROXY, "
            "HTTPS_PROXY and ALL_PROXY, or let them name an http:// proxy"
        ) from error


def keep_plain_cookies(client: Any) -> None:
    """Keep no cookie that a header cannot carry: an HTTP client would fail on it at its next request."""
    from http.cookiejar import Cookie, DefaultCookiePolicy

    class Policy(DefaultCookiePolicy):
        def set_ok(self, cookie: Cookie, request: Any) -> bool:
            text = f"{cookie.name}={cookie.value}"
            return text.isascii() and text.isprintable() and super().set_ok(cookie, request)

    client.cookies.jar.set_policy(Policy())


# ---------------------------------------------------------------------------------------------------------------
# Command lines.


LONGEST_STRAY = 16  # characters of arguments that nobody knows: what is longer may be a key


class Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors of one line and whose help shows the module docstring and defaults."""

    def __init__(self, doc: str | None, **kwargs: Any) -> None:
        super().__init__(
            description=(doc or "").strip(),  # python -OO has no docstrings
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **kwargs,
        )
        self.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")

    def error(self, message: str) -> NoReturn:
        before, unknown, arguments = message.partition("unrecognized arguments: ")
        if unknown:  # what follows a misspelt --api-key is a key
            flags = [word.partition("=")[0] for word in arguments.split() if word.startswith("--")]
            message = before + unknown + (" ".join(flags) or (arguments if len(arguments) < LONGEST_STRAY else HIDDEN))
        raise UsageError(f"{message} (see {self.prog} --help)")


def add_endpoint_flags(parser: Parser, *, timeout: int, one: str, failed: str) -> None:
    """The flags on how an endpoint is asked that both programs have; `one` and `failed` end two of their help texts."""
    add = parser.add_argument
    add(
        "--max-retries",
        type=positive_int,
        default=8,
        metavar="N",
        help=f"attempts in all for one {one} (default: %(default)s)",
    )
    add(
        "--timeout",
        type=positive_float,
        default=timeout,
        metavar="S",
        help="longest silence of the endpoint in seconds; an attempt is cut at three times that (default: %(default)s)",
    )
    add("--header", type=header, action="append", default=[], metavar="K=V", help="further request header; repeatable")
    add(
        "--stop-after-failures",
        type=non_negative_int,
        default=10,
        metavar="N",
        help=f"stop when the first N finished questions of a run {failed}; 0: never (default: %(default)s)",
    )
    add("--allow-mixed", action="store_true", help="resume a file made with other settings")


def _number(text: str, convert: Callable[[str], Any], fits: Callable[[Any], bool], wanted: str) -> Any:
    try:
        value = convert(text)
    except ValueError:
        value = None
    if value is None or not fits(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return value


def positive_int(text: str) -> int:
    return int(_number(text, int, lambda n: n > 0, "a whole number above 0"))


def non_negative_int(text: str) -> int:
    return int(_number(text, int, lambda n: n >= 0, "a whole number from 0 up"))


def positive_float(text: str) -> float:
    return float(_number(text, float, lambda x: 0 < x < float("inf"), "a number above 0"))


def non_negative_float(text: str) -> float:
    return float(_number(text, float, lambda x: 0 <= x < float("inf"), "a number from 0 up"))


def probability(text: str) -> float:
    return float(_number(text, float, lambda x: 0 < x <= 1, "a number above 0 and at most 1"))


def public_text(text: str) -> str:
    """A text that is shown and recorded as it is: see keep_public."""
    keep_public(text)
    return text


DEEPEST = 200  # levels of a JSON object that are accepted
_MAY_BE_SECRET = re.compile(r"key|secret|passw|auth|bearer|(?<!max_)(?<!completion_)token", re.IGNORECASE)


def _depth(value: Any) -> int:
    """How many levels a JSON value has."""
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = [item for item in level if isinstance(item, dict | list)]
        level = [part for item in inner for part in (item.values() if isinstance(item, dict) else item)]
    return depth


def json_object(text: str) -> dict[str, Any]:
    """The value of a flag that takes a JSON object; an empty text is an empty object."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    def finite(number: str) -> float:
        return value if math.isfinite(value := float(number)) else refuse(number)

    try:
        value = json.loads(text, parse_constant=refuse, parse_float=finite) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        shown = "the text" if _MAY_BE_SECRET.search(text) else f"{one_line(text, 60)!r}"
        raise argparse.ArgumentTypeError(f"{shown} is not JSON: {one_line(str(error), 80)}") from None
    if _depth(value) > DEEPEST:
        raise argparse.ArgumentTypeError(f"the JSON is nested more than {DEEPEST} levels deep")
    keep_secrets_in(value)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{one_line(text, 60)!r} is not a JSON object such as '{{\"top_k\": 40}}'")
    return value


def header(text: str) -> tuple[str, str]:
    """`Name=value` of a request header. Its value is kept out of every message."""
    name, equals, value = text.partition("=")
    name, value = name.strip(), value.strip()
    if not equals or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
        raise argparse.ArgumentTypeError("not of the form NAME=VALUE")
    if not value.isascii() or not value.isprintable():
        raise argparse.ArgumentTypeError(f"the value of {name} must be printable ASCII")
    for part in {value, *value.split()}:
        if len(part) >= 8:
            keep_secret(part)
    return name, value


def comma_list(text: str) -> list[str]:
    """`a, b,c` as ['a', 'b', 'c']; empty parts are left out, but a list of nothing else is no list: all would be meant."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise argparse.ArgumentTypeError("nothing is listed; leave the flag out to mean all")
    return parts


def api_key(given: str | None, variable: str, flag: str) -> str:
    """The key of an endpoint, from its flag or the environment; registered as a secret."""
    key = (given if given is not None else os.environ.get(variable, "")).strip()
    if not key:
        raise UsageError(
            f"no API key: pass {flag} or set {variable}; a local server without keys still needs some text, such as "
            f"{flag} none"
        )
    if not key.isascii() or not key.isprintable():
        raise UsageError(
            f"the API key ({flag} or {variable}) holds characters that no key has; check how it was copied"
        )
    keep_secret(key)
    return key


def run(main: Callable[..., int]) -> NoReturn:
    """Run a script's `main` as the process. After a signal nothing may hold up the end, no thread either."""
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code >= 128:
        os._exit(code)
    sys.exit(code)


def started_by(script: str) -> str:
    """How a script of ours is started from the working directory."""
    path = str(Path(__file__).with_name(script))
    with contextlib.suppress(OSError):  # the working directory may have been deleted
        path = os.path.relpath(path)
    return f"python {shlex.quote(path)}"


def command(main: Callable[[Sequence[str] | None], int]) -> Callable[..., int]:
    """Wrap a script's `main`: errors become one line and an exit code, streams are unbuffered and never fail to encode."""

    @functools.wraps(main)
    def wrapped(argv: Sequence[str] | None = None) -> int:
        _open_closed_streams()
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure:
                reconfigure(errors="backslashreplace", line_buffering=True)
        in_main_thread = threading.current_thread() is threading.main_thread()
        ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN  # as the caller wished
        before = signal.signal(signal.SIGTERM, _terminated) if in_main_thread and not ignored else None
        try:
            return main(argv)
        except UsageError as error:
            say(f"error: {error}")
            return 2
        except StoppedEarly as error:
            say(f"stopped: {error}")
            return 1
        except BrokenPipeError:  # the reader of stdout has gone, as with `| head`
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
            return 1
        except KeyboardInterrupt:
            say("interrupted")
            return 130
        except Terminated:
            say("terminated")
            return 143
        except Exception as error:
            if isinstance(error, OSError) and error.filename and error.errno in NO_WAY_TO_A_FILE:
                say(f"error: {error.filename}: {error.strerror}; name another file, or change who may use this one")
                return 2
            if isinstance(error, OSError) and error.errno in NO_ROOM:  # stdout is a file on a full disk
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
                say(f"stopped: results cannot be printed: {error.strerror}; what is on disk is whole")
                return 1
            say(traceback.format_exc().rstrip())
            say(
                "stopped: this is a mistake of the program, not of the endpoint; what is on disk is whole. Please report it"
            )
            return 1
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)

    return wrapped


def _open_closed_streams() -> None:
    """Let no file of ours get the number of a standard stream that the caller closed: others would write into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            fd = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            setattr(sys, name, os.fdopen(fd, "w" if number else "r", encoding="utf-8"))


def _terminated(signum: int, frame: object) -> None:
    raise Terminated
