"""Errors and messages for people. A secret registered once never reaches screen, log or row.

Exception
    UsageError      bad usage or input, or a refusal; exit code 2
    StoppedEarly    the run cannot go on although questions are left; exit code 1
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from typing import Any


class UsageError(Exception):
    """One line that names the flag, file or line and the way out."""


class StoppedEarly(Exception):
    """One line that says why the run stopped and how to go on."""


HIDDEN = "[hidden]"
LONG_SECRET = 16  # characters; a shorter one may be part of another word
_secrets: set[str] = set()
_public: set[str] = set()
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CREDENTIALS_IN_URL = re.compile(r"(\w{1,20}://)[^/?\s]*@")
# What people pass where no key is needed. Hiding these words would only make messages unreadable.
_NO_SECRETS = set("none null true false empty test dummy fake local no-key {chat_id}".split())
_NAMES_OF_SECRETS = re.compile(
    r"(^|[_-]|api|access|secret|private)"
    r"(api-?key|(?<!cache_)key|secret|password|passwd|pwd|auth(orization)?|bearer|credentials?"
    r"|cookie)$"
    r"|^((access|api|auth|bearer|hf|id|refresh|x)[_-]?)*token$",
    re.IGNORECASE,
)


def keep_secret(text: str) -> None:
    """From now on `text` (a key, a password, a header's value) is hidden wherever it would show.

    Its longer words are, too, such as the key after `Bearer`.
    """
    for part in (text, *(word for word in text.split() if len(word) >= 8)):
        if len(part) >= (8 if part.isdigit() else 4) and part.lower() not in _NO_SECRETS:
            _secrets.add(part)


def keep_public(text: str) -> None:
    """From now on `text` (a model's name, a host) is shown, also where a secret is a part of it."""
    _public.add(text)


def keep_secrets_in(value: Any, name: str = "") -> None:
    """Register what stands under a name such as `api_key`, however deep in a JSON value."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            keep_secrets_in(item, key)
    elif isinstance(value, list):
        for item in value:
            keep_secrets_in(item, name)
    elif isinstance(value, str) and _NAMES_OF_SECRETS.search(name):
        keep_secret(value)


def redacted(text: str) -> str:
    """`text` without registered secrets and without `user:password@` in URLs."""
    text = _CREDENTIALS_IN_URL.sub(r"\1", text)
    for secret in sorted(_secrets, key=len, reverse=True):
        if any(secret in known for known in _public):
            continue
        pattern = re.escape(secret)
        if len(secret) < LONG_SECRET:
            pattern = rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"
        text = re.sub(pattern, HIDDEN, text)
    return text


def without_secrets(value: Any, name: str = "") -> Any:
    """A JSON value with every text redacted, and hidden whole under a name such as `api_key`."""
    if isinstance(value, str):
        return HIDDEN if _NAMES_OF_SECRETS.search(name) else redacted(value)
    if isinstance(value, Mapping):
        return {redacted(key): without_secrets(item, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item, name) for item in value]
    return value


def one_line(text: str, limit: int = 300) -> str:
    """`text` fit for a row or a message: one line, no control characters, no secret, not long."""
    text = " ".join(_CONTROL.sub(" ", redacted(text)).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def say(text: str) -> None:
    """One message on stderr, at once, beside a progress bar. A lost stderr ends no run."""
    text = _CONTROL.sub(" ", redacted(text))
    bar = sys.modules.get("tqdm")
    with contextlib.suppress(OSError):
        if bar is None:
            sys.stderr.write(text + "\n")  # in one piece: threads may speak at once
        else:
            bar.tqdm.write(text, file=sys.stderr)
        sys.stderr.flush()


def plural(n: int, noun: str) -> str:
    """`1 question`, `3 questions`, `1,200 questions`."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


class Repeats:
    """Messages of which equal ones in a row are shown once, then counted."""

    def __init__(self) -> None:
        self._last = ""
        self._count = 0

    def say(self, text: str, about: str = "") -> None:
        """`about` names what the message is of; it does not make two messages differ."""
        kind = re.sub(r"\d[\d,]{3,}", "", text)  # sizes make no other error, a status does
        if kind == self._last:
            self._count += 1
            return
        self.flush()
        self._last = kind
        say(f"{about}: {text}" if about else text)

    def flush(self) -> None:
        """Say how often the last message was repeated."""
        if self._count:
            say(f"the same {plural(self._count, 'more time')}")
        self._last, self._count = "", 0
