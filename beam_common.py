"""What the scripts share: rows and their identity, the settings of a run, and the pieces of a command line."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

VERSION = "1.0.0"
HERE = Path(__file__).resolve().parent
DATA_DIR = HERE / "data"
TOKENIZER_DIR = HERE / "tokenizer"

ABILITIES = (
    "abstention",
    "contradiction_resolution",
    "event_ordering",
    "information_extraction",
    "instruction_following",
    "knowledge_update",
    "multi_session_reasoning",
    "preference_following",
    "summarization",
    "temporal_reasoning",
)

# ---------------------------------------------------------------------------------------------------------------
# Rows. Each type lists the keys of one line in the order in which they are written.

QuestionKey = tuple[str, str, int]


class QuestionRow(TypedDict):
    chat_id: str
    question_type: str
    question_index: int
    question: str
    gold_answer: str
    rubric: list[str]
    difficulty: str


class AnswerRow(TypedDict):
    chat_id: str
    question_type: str
    question_index: int
    question: str
    gold_answer: str
    rubric: list[str]
    response: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    error: str | None


class ScoreRow(TypedDict):
    chat_id: str
    question_type: str
    question_index: int
    score: float


def key_of(row: Mapping[str, Any]) -> QuestionKey:
    """A question's identity: (chat_id as text, question_type, question_index), so that chat 3 and chat "3" are one."""
    return str(row["chat_id"]), row["question_type"], int(row["question_index"])


def name_of(row: Mapping[str, Any]) -> str:
    """How messages call a question: `chat 3 abstention/0`."""
    chat, ability, index = key_of(row)
    return f"chat {chat} {ability}/{index}"


# ---------------------------------------------------------------------------------------------------------------
# Errors and messages. Secrets registered once never reach the screen, a log or a row.


class UsageError(Exception):
    """Bad usage or input, or a refusal: one line that names the flag, file or line and the way out. Exit code 2."""


class StoppedEarly(Exception):
    """The run cannot go on although questions are left: one line for the user. Exit code 1."""


class Terminated(BaseException):
    """SIGTERM arrived outside the event loop. Exit code 143."""


HIDDEN = "[hidden]"
_secrets: set[str] = set()
_public: set[str] = set()
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CREDENTIALS_IN_URL = re.compile(r"(\w{1,20}://)[^/?#\s]*@")
# What people pass where no key is needed. Hiding these words would only make messages and records unreadable.
_NO_SECRETS = {"none", "null", "true", "false", "empty", "test", "dummy", "fake", "local", "no-key", "nokey", "unused"}
_NAMES_OF_SECRETS = re.compile(
    r"(^|[_-]|api|access|secret|private)(api-?key|key|secret|password|passwd|auth(orization)?|credentials?|cookie)$"
    r"|^((access|api|auth|bearer|hf|id)[_-]?)?token$",
    re.IGNORECASE,
)


def keep_secret(text: str) -> None:
    """From now on `text` (a key, a password, the value of a header) is replaced wherever a message would show it."""
    if len(text) >= 4 and text.lower() not in _NO_SECRETS and not (text.isdigit() and len(text) < 8):
        _secrets.add(text)


def keep_public(text: str) -> None:
    """From now on `text` (a model's name, a host) is shown, also where a key or a header's value is a part of it."""
    _public.add(text)


def redacted(text: str) -> str:
    """`text` without registered secrets and without `user:password@` in URLs."""
    text = _CREDENTIALS_IN_URL.sub(r"\1", text)
    secrets = [secret for secret in _secrets if not any(secret in known for known in _public)]
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 16:  # a real key; a short word may be part of another
            text = text.replace(secret, HIDDEN)
        else:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", HIDDEN, text)
    return text


def without_secrets(value: Any, users: bool = False) -> Any:
    """A JSON value with every text in it redacted, and hidden whole where its name is that of a secret.

    Names are redacted only in a user's own object, which --thinking-json and its like give: the others are ours.
    """
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        kept = {}
        for name, item in value.items():
            hide = isinstance(item, str) and _NAMES_OF_SECRETS.search(name)
            inner = HIDDEN if hide else without_secrets(item, users or name.endswith("extra_body"))
            kept[redacted(name) if users else name] = inner
        return kept
    return [without_secrets(item, users) for item in value] if isinstance(value, list | tuple) else value


def keep_secrets_in(value: Any, name: str = "") -> None:
    """Register the texts that stand under a name such as `api_key` or `Authorization`, however deep in a JSON value."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            keep_secrets_in(item, key)
    elif isinstance(value, list):
        for item in value:
            keep_secrets_in(item, name)
    elif isinstance(value, str) and _NAMES_OF_SECRETS.search(name):
        for part in {value, *value.split()}:
            if len(part) >= 8 or part == value:
                keep_secret(part)


def one_line(text: str, limit: int = 300) -> str:
    """`text` fit for a row or a message: one line, no control characters, no secret, at most `limit` characters."""
    text = " ".join(_CONTROL.sub(" ", redacted(text)).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def say(text: str) -> None:
    """One message for people on stderr, at once, without disturbing a progress bar. A lost stderr ends no run."""
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


# ---------------------------------------------------------------------------------------------------------------
# Files.


def sha256_of_file(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_text(text: str) -> str:
    """Digest of the UTF-8 bytes; lone surrogates count as the three bytes they would take."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def write_whole(path: str | Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a new file beside `path`, then put it in place of `path`: it appears whole or not at all."""
    path = Path(os.path.realpath(path))
    if path.exists() and not (path.is_file() or path.is_dir()):  # a device or a pipe is never replaced
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
NO_WAY_TO_A_FILE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)


def unwritable(path: str | Path, error: OSError) -> UsageError | StoppedEarly:
    """What to raise when a file cannot be written: StoppedEarly for a full disk, else UsageError."""
    if error.errno in NO_ROOM:
        return StoppedEarly(f"{path} cannot be written: {error.strerror}; make room, then start again")
    return UsageError(f"{path} cannot be written: {error.strerror or error}; name another --output")


def beside(output: str | Path, ending: str) -> Path:
    """The sidecar of an output file: `answers.jsonl` and `.run.json` give `answers.run.json`."""
    return Path(str(output).removesuffix(".jsonl") + ending)
