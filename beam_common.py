"""What the scripts share: rows and their identity, the settings of a run, and the pieces of a command line."""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import hashlib
import json
import math
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypedDict
from urllib.parse import unquote, urlsplit, urlunsplit

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
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CREDENTIALS_IN_URL = re.compile(r"(\w+://)[^/?#\s]*@")
# What people pass where no key is needed. Hiding these words would only make messages and records unreadable.
_NO_SECRETS = {"none", "null", "true", "false", "empty", "test", "dummy", "fake", "local", "no-key", "nokey", "unused"}
_NAMES_OF_SECRETS = re.compile(
    r"(^|[_-])(api-?key|key|secret|password|passwd|authorization|credentials?)$|^((access|api|auth|bearer|hf|id)[_-]?)?token$",
    re.IGNORECASE,
)


def keep_secret(text: str) -> None:
    """From now on `text` (a key, a password, the value of a header) is replaced wherever a message would show it."""
    if len(text) >= 4 and text.lower() not in _NO_SECRETS and not (text.isdigit() and len(text) < 8):
        _secrets.add(text)


def redacted(text: str) -> str:
    """`text` without registered secrets and without `user:password@` in URLs."""
    text = _CREDENTIALS_IN_URL.sub(r"\1", text)
    for secret in sorted(_secrets, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", HIDDEN, text)
    return text


def without_secrets(value: Any) -> Any:
    """A JSON value with every text in it redacted, and hidden whole where its name is that of a secret."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        hidden = {name for name, item in value.items() if isinstance(item, str) and _NAMES_OF_SECRETS.search(name)}
        return {redacted(n): HIDDEN if n in hidden else without_secrets(item) for n, item in value.items()}
    return [without_secrets(item) for item in value] if isinstance(value, list | tuple) else value


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
            print(text, file=sys.stderr, flush=True)
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


def unwritable(path: str | Path, error: OSError) -> UsageError | StoppedEarly:
    """What to raise when a file cannot be written: StoppedEarly for a full disk, else UsageError."""
    if error.errno in NO_ROOM:
        return StoppedEarly(f"{path} cannot be written: {error.strerror}; make room, then start again")
    return UsageError(f"{path} cannot be written: {error.strerror or error}; name another --output")


def beside(output: str | Path, ending: str) -> Path:
    """The sidecar of an output file: `answers.jsonl` and `.run.json` give `answers.run.json`."""
    return Path(str(output).removesuffix(".jsonl") + ending)


# ---------------------------------------------------------------------------------------------------------------
# Settings of a run: written beside the output, compared when the output is resumed.


def load_sidecar(path: Path) -> dict[str, Any] | None:
    """What a sidecar holds; None where there is none. Raises UsageError when it cannot be read."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise UsageError(
            f"{path}: the settings of the earlier run cannot be read ({one_line(str(error), 80)}); move the file away "
            "to go on without them, or write to another --output"
        ) from error
    shapes = {"settings": dict, "data": dict, "started": list, "mixed_with": list, "shrunk": dict, "selected": int}
    if not isinstance(content, dict) or not all(isinstance(content.get(n, t()), t) for n, t in shapes.items()):
        raise UsageError(f"{path}: not the settings of a run; move the file away or write to another --output")
    return content


def save_sidecar(path: Path, content: Mapping[str, Any]) -> None:
    """Write a sidecar whole, indented for readers, without secrets. Raises UsageError or StoppedEarly: see unwritable."""
    text = json.dumps(without_secrets(content), indent=1, ensure_ascii=False)
    data = (text + "\n").encode("utf-8", "backslashreplace")

    def write(file: BinaryIO) -> None:
        file.write(data)

    try:
        write_whole(path, write)
    except OSError as error:
        raise unwritable(path, error) from error


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two settings, one text each: `temperature (recorded 1.0, now 0.7)`.

    Only names that both know are compared, so that files of an older version can be resumed.
    """
    found: list[str] = []
    for name, value in now.items():
        if name not in recorded:
            continue
        before = recorded[name]
        if before != value:
            old, new = (one_line(v if isinstance(v, str) else json.dumps(v, ensure_ascii=False), 90)
                        for v in (before, value))  # fmt: skip
            found.append(f"{name} (recorded {old or 'empty'}, now {new or 'empty'})")
    return found


def bind_settings(
    path: Path,
    content: dict[str, Any],
    *,
    binding: bool,
    allow_mixed: bool,
    output: str | Path,
    may_change: Sequence[str] = (),
) -> None:
    """Record the settings of this run at `path`; refuse to mix them with others that an output already rests on.

    `binding` says that the output holds a row without an error: until then an earlier sidecar is replaced, so that a
    wrong URL does not lock out the right one. `content["settings"]` and `content["data"]` are what is compared, but for
    the settings that `may_change`.
    """
    content = without_secrets({"program": content["program"], "version": VERSION, **content})
    earlier = load_sidecar(path) if binding else None
    started = [*(earlier or {}).get("started", []), *content["started"]] if binding else content["started"]
    if earlier and binding:
        compared = {name: value for name, value in content["settings"].items() if name not in may_change}
        found = differences(earlier.get("settings", {}), compared)
        found += differences(earlier.get("data", {}), content.get("data", {}))
        if found and not allow_mixed:
            raise UsageError(
                f"{output} was made with other settings: {'; '.join(found)}. Go on with the recorded ones ({path.name}), "
                "write to another --output, or accept a mixed file with --allow-mixed"
            )
        mixed = list(earlier.get("mixed_with", []))
        if found:
            mixed.append({"settings": earlier.get("settings", {}), "data": earlier.get("data", {})})
        if mixed:
            content = {**content, "mixed_with": mixed}
    save_sidecar(path, {**content, "started": started})


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of installed packages, for the record; packages that are not there are left out."""
    from importlib import metadata

    found = {"python": sys.version.split()[0]}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def now_text() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    import datetime

    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


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
        shown = one_line(text.rpartition("@")[2])  # a password may stand before an @, also in a URL that is none
        raise UsageError(f"{flag} {shown!r} is not a URL; give one such as http://localhost:8000/v1") from None
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
    host = f"[{host}]" if ":" in host else host
    if port is not None and port != {"http": 80, "https": 443}[scheme]:
        host += f":{port}"
    return urlunsplit((scheme, f"{credentials}@{host}" if credentials else host, path, parts.query, ""))


def shown_url(url: str) -> str:
    """A base URL for the record and for messages: without credentials and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


# ---------------------------------------------------------------------------------------------------------------
# Command lines.


class Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors of one line and whose help shows the module docstring and defaults."""

    def __init__(self, doc: str, **kwargs: Any) -> None:
        super().__init__(
            description=doc.strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **kwargs,
        )
        self.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


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


def json_object(text: str) -> dict[str, Any]:
    """The value of a flag that takes a JSON object; an empty text is an empty object."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    def finite(number: str) -> float:
        return value if math.isfinite(value := float(number)) else refuse(number)

    try:
        value = json.loads(text, parse_constant=refuse, parse_float=finite) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{one_line(text, 60)!r} is not JSON: {one_line(str(error), 80)}") from None
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
    """`a, b,c` as ['a', 'b', 'c']; empty parts are left out."""
    return [part.strip() for part in text.split(",") if part.strip()]


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
