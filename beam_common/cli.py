"""What the command lines share: the parser, types of flags, keys and base URLs."""

from __future__ import annotations

import argparse
import base64
import difflib
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from beam_common.messages import (
    HIDDEN,
    UsageError,
    keep_public,
    keep_secret,
    keep_secrets_in,
    one_line,
)
from beam_common.rows import VERSION, Row

EXTRA_HELP = (
    "object merged into the request body, or @FILE; its keys win, a top-level null takes the key "
    "out, {chat_id} in a string is replaced"
)
SMALL = 1e-9  # the smallest number above 0 that makes sense
LONGEST_STRAY = 16  # characters of arguments that nobody knows: what is longer may be a key


# ------------------------------------------------------------------------------------------------
# Endpoints' addresses and keys.


def normalise_base_url(text: str, flag: str) -> str:
    """The base URL to which `/chat/completions` is appended; UsageError for what cannot be one.

    A blank at the end, a trailing `/` and a trailing `/chat/completions` are taken off. A bare host
    gets `/v1`, where such servers listen.
    """
    text = text.strip()
    try:
        parts = urlsplit(text)
        usable = re.match(r"https?://\S+$", text) and parts.hostname and parts.port != 0
    except ValueError:
        usable = None
    if not usable:
        shown = one_line(text.rpartition("@")[2].partition("?")[0])
        raise UsageError(
            f"{flag} {shown!r} is not a URL; give one such as http://localhost:8000/v1"
        )
    credentials, _, host = parts.netloc.rpartition("@")
    keep_secret(unquote(parts.password or parts.username or ""))
    keep_secret(base64.b64encode(unquote(credentials).encode()).decode())  # as it is sent
    keep_secrets_in(dict(parse_qsl(parts.query)))  # such as ?key=…
    keep_public(host)
    path = parts.path.rstrip("/")
    path = path.removesuffix("/chat/completions").rstrip("/") if path else "/v1"
    return urlunsplit(parts._replace(path=path, fragment=""))


def shown_url(url: str) -> str:
    """A URL for the record and for messages: without credentials and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def api_key(given: str | None, variable: str, flag: str) -> str:
    """The key of an endpoint, from its flag or the environment; registered as a secret."""
    key = (given if given is not None else os.environ.get(variable, "")).strip()
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError(
            f"no API key: pass one by {flag} or {variable}; a local server without keys still "
            f"needs some text, such as {flag} none"
        )
    keep_secret(key)
    return key


# ------------------------------------------------------------------------------------------------
# Flags.


class Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors of one line; its help shows the module docstring."""

    def __init__(self, doc: str | None, prog: str) -> None:
        super().__init__(
            prog=prog,
            description=(doc or "").strip(),  # python -OO has no docstrings
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")

    def flag(
        self, name: str, kind: Callable[[str], Any], default: Any, metavar: str, text: str
    ) -> None:
        """Add a flag with a value; its help says the default unless `text` does."""
        told = "default:" in text or default is None
        text = text if told else f"{text} (default: {'empty' if default == {} else '%(default)s'})"
        self.add_argument(name, type=kind, default=default, metavar=metavar, help=text)

    def switch(self, name: str, text: str, default: bool = False) -> None:
        self.add_argument(name, action="store_true", default=default, help=text)

    def error(self, message: str) -> NoReturn:
        before, unknown, arguments = message.partition("unrecognized arguments: ")
        if unknown:  # what follows a misspelt --api-key is a key
            flags = re.findall(r"--[\w-]+", arguments)
            stray = arguments if len(arguments) < LONGEST_STRAY else HIDDEN
            message = before + unknown + (" ".join(map(self._nearest, flags)) or stray)
        raise UsageError(f"{message} (see {self.prog} --help)")

    def _nearest(self, flag: str) -> str:
        near = difflib.get_close_matches(flag, self._option_string_actions, 1)
        return f"{flag} (did you mean {near[0]}?)" if near else flag


def add_endpoint_flags(parser: Parser, *, concurrency: int, timeout: int, one: str) -> None:
    """The flags on how an endpoint is asked, of both programs. `one`: a question or a call."""
    add = parser.flag
    add("--concurrency", positive_int, concurrency, "N",
        f"most {one}s in flight; fewer while the endpoint refuses some")  # fmt: skip
    add("--max-retries", positive_int, 8, "N", f"attempts in all for one {one}")
    add("--max-outage", duration, 6 * 3600.0, "TIME", "how long to wait for an endpoint that has "
        "answered and is down now, such as 90s, 30m (default: 6h)")  # fmt: skip
    add("--timeout", positive_float, timeout, "S",
        "longest silence in seconds; an attempt is cut at three times that")  # fmt: skip
    add("--stop-after-failures", non_negative_int, 10, "N",
        "stop when N finished questions in a row have failed; 0: never")  # fmt: skip
    parser.add_argument("--header", type=header, action="append", default=[], metavar="K=V",
                        help="further request header; {chat_id} in its value is replaced; "
                        "repeatable")  # fmt: skip
    parser.switch("--retry-errors", "ask again what failed in an earlier run")
    parser.switch("--allow-mixed", "resume a file made with other settings")


def number(kind: type, wanted: str, least: float, most: float = 1e15) -> Callable[[str], Any]:
    """The type of a flag whose value is a number; `wanted` tells people which."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan  # is neither small nor large
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
        return value

    return parse


positive_int = number(int, "a whole number above 0", 1)
non_negative_int = number(int, "a whole number from 0 up", 0)
positive_float = number(float, "a number above 0", SMALL)
non_negative_float = number(float, "a number from 0 up", 0)
probability = number(float, "a number above 0 and at most 1", SMALL, 1)


def duration(text: str) -> float:
    """Seconds of `90s`, `30m`, `6h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m or 6h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def public_text(text: str) -> str:
    """A text that is shown and recorded as it is: see keep_public."""
    keep_public(text)
    return text


def json_object(text: str) -> Row:
    """The value of a flag that takes a JSON object, or `@` and the file that holds it."""
    try:
        if text.startswith("@"):
            text = Path(text[1:]).read_text("utf-8-sig")
        value = json.loads(text) if text.strip() else {}
        json.dumps(value, allow_nan=False)
    except (OSError, ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not JSON: {one_line(str(error), 80)}") from None
    if not isinstance(value, dict) or "messages" in value:
        raise argparse.ArgumentTypeError(
            "not a JSON object without messages, such as '{\"top_k\": 40}'"
        )
    keep_secrets_in(value)
    return value


def header(text: str) -> tuple[str, str]:
    """`Name=value` of a request header. Its value is kept out of every message."""
    name, equals, value = (part.strip() for part in text.partition("="))
    sendable = re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) and value.isascii()
    if not equals or not sendable or not value.isprintable():
        raise argparse.ArgumentTypeError("not of the form NAME=VALUE in printable ASCII")
    if len(value) >= 8:
        keep_secret(value)
    return name, value


def comma_list(text: str) -> list[str]:
    """`a, b,c` as ['a', 'b', 'c']. A list of nothing is none: all would be meant."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise argparse.ArgumentTypeError("nothing is listed; leave the flag out to mean all")
    return parts


def shard(text: str) -> tuple[int, int]:
    """(part, parts) of `I/N`."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N, part I (from 1) of N, such as 1/4")
    return int(found[1]), int(found[2])
