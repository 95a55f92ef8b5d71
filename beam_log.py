"""All that is known about JSONL files: reading, appending rows durably, repairing a torn end, locking, compacting.

A file is UTF-8, one JSON object a line, and only "\\n" ends a line: U+2028 or U+0085 inside a text do not. Reading
accepts what other tools leave behind (a byte order mark, CRLF, gzip); writing gives exactly one complete line for each row.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import itertools
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, BinaryIO, Self

from beam_common import (
    NO_ROOM,
    QuestionKey,
    StoppedEarly,
    UsageError,
    key_of,
    one_line,
    plural,
    say,
    unwritable,
    write_whole,
)

# What a row must hold to be one of ours: names and types. Further keys are allowed.
Wanted = Mapping[str, tuple[type, ...]]
IDENTITY: Wanted = {"chat_id": (str, int), "question_type": (str,), "question_index": (int, str, float)}
QUESTION: Wanted = {**IDENTITY, "question": (str,), "gold_answer": (str,), "rubric": (list,)}
ANSWER: Wanted = {**IDENTITY, "question": (str,), "rubric": (list,), "response": (str, NoneType)}
SCORE: Wanted = {**IDENTITY, "score": (int, float)}
DETAIL: Wanted = {**IDENTITY, "response_sha256": (str,), "status": (str,), "verdicts": (list,)}
BOM = b"\xef\xbb\xbf"
# Names of streams that are open already, whatever is behind them.
_OPEN_STREAM = re.compile(r"/dev/(?:stdout|stderr|fd/(\d+))|/proc/self/fd/(\d+)")


@dataclass(frozen=True)
class Line:
    """One line of a file: its number from 1, its offset and bytes (line end included), and its row or what is wrong."""

    number: int
    start: int
    raw: bytes
    row: dict[str, Any] | None
    problem: str | None


def encode_row(row: Mapping[str, Any]) -> bytes:
    """One complete line. Non-ASCII text is written as itself, lone surrogates as JSON escapes: always valid UTF-8."""
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def problem_of(row: object, wanted: Wanted) -> str | None:
    """What keeps `row` from being one of the wanted kind; None when it is one."""
    if not isinstance(row, dict):
        return "not a JSON object"
    for name, types in wanted.items():
        value = row.get(name)
        if name not in row:
            return f"no {name!r}"
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            return f"{name!r} is {json.dumps(value, default=str)[:40]}"
        if oddity := _oddity(name, value):
            return f"{name!r} {oddity}"
    return _odd_detail(row) if wanted is DETAIL else None


def _oddity(name: str, value: Any) -> str | None:
    """What is wrong with a value of the right type; None for what can be used."""
    if name == "question_index" and not _is_whole(value):
        return f"is {json.dumps(value)[:40]}, not a whole number"
    if name == "score" and not 0 <= value <= 1:
        return f"is {value}, not from 0 to 1"
    if name == "rubric" and not all(isinstance(item, str) for item in value):
        return "holds something that is no text"
    if name == "verdicts" and not all(isinstance(item, dict) for item in value):
        return "holds something that is no object"
    return None


def _odd_detail(row: Mapping[str, Any]) -> str | None:
    """What keeps details of the right types from giving a score; None for those that give one."""
    if row["status"] not in ("judged", "partial", "empty", "error"):
        return f"'status' is {json.dumps(row['status'])[:40]}"
    if row.get("ordering") not in (None, "strict", "tau"):
        return f"'ordering' is {json.dumps(row['ordering'])[:40]}"
    if row["status"] == "judged" and not row["verdicts"]:
        return "'verdicts' is empty"
    for verdict in row["verdicts"]:
        level, status = verdict.get("level", "missing"), verdict.get("status")
        is_level = type(level) in (int, float) and 0 <= level <= 1
        if not (is_level if status == "scored" else level is None and status in ("unreadable", "failed", "pending")):
            return f"a verdict has the level {json.dumps(level)[:40]} and the status {json.dumps(status)[:40]}"
    if (row["status"] == "partial") != any(verdict["status"] == "pending" for verdict in row["verdicts"]):
        return "'status' and pending verdicts contradict each other"
    return None


def _is_whole(value: int | str | float) -> bool:
    """Whether a question_index is a whole number, also where another tool wrote it as "0" or 0.0."""
    if isinstance(value, str):
        return re.fullmatch(r"[0-9]{1,9}", value) is not None
    return isinstance(value, int) or value.is_integer()


def parse_line(number: int, start: int, raw: bytes, wanted: Wanted) -> Line | None:
    """The line as a row of the wanted kind or with its problem; None for a blank line."""
    content = raw.removeprefix(BOM) if number == 1 else raw
    content = content.strip(b" \t\r\n")
    if not content:
        return None
    try:
        row = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return Line(number, start, raw, None, one_line(str(error), 100))
    problem = problem_of(row, wanted)
    if wanted is ANSWER and problem is None and row.get("error") in ("", False):  # as another tool may write: none
        row["error"] = None
    return Line(number, start, raw, row if problem is None else None, problem)


def is_gzip(file: BinaryIO) -> bool:
    """Whether a file just opened is a gzip file, whatever its name; it stands at its beginning again."""
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return packed


def open_maybe_gzip(path: str | Path) -> BinaryIO:
    """The file's bytes, unpacked if it is a gzip file."""
    file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    return gzip.open(file) if is_gzip(file) else file  # type: ignore[return-value]


def read_lines(path: str | Path, wanted: Wanted) -> Iterator[Line]:
    """Every line of a file that is not blank. Raises UsageError where the file cannot be read to its end."""
    try:
        with open_maybe_gzip(path) as file:
            start = 0
            for number, raw in enumerate(file, 1):
                line = parse_line(number, start, raw, wanted)
                start += len(raw)
                if line:
                    yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: damaged gzip file ({one_line(str(error), 80)}); make or copy it anew") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def sound_lines(path: str | Path, wanted: Wanted, fate: str = "left out") -> Iterator[tuple[Line, dict[str, Any]]]:
    """The lines of a file that are rows, with these; others are reported, those of one problem in a row together."""
    for problem, lines in itertools.groupby(read_lines(path, wanted), lambda line: line.problem):
        if problem is None:
            yield from ((line, line.row) for line in lines if line.row is not None)
        else:
            numbers = [line.number for line in lines]
            place = f"line {numbers[0]}" if len(numbers) == 1 else f"lines {numbers[0]} to {numbers[-1]}"
            say(f"warning: {path} {place}: {problem}; {fate}")


def read_rows(path: str | Path, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """The rows of a file; a line that is none is reported with its number and left out."""
    return (row for _, row in sound_lines(path, wanted))


def counts_over(row: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> bool:
    """Whether a later row of a question replaces an earlier one: the last without an error counts, else the last."""
    return earlier is None or row.get("error") is None or earlier.get("error") is not None


class RowLog:
    """A JSONL file that one process appends to, one row a question; a context manager.

    On entry the file is locked (by the kernel, so the lock dies with its holder), a torn last line is moved to
    `<path>.damaged`, and `rows` holds of each question the row that counts. Something that is no regular file (a pipe,
    /dev/full) is only written to. Raises UsageError when the file is locked, foreign or cannot be opened.
    """

    def __init__(
        self,
        path: str | Path,
        wanted: Wanted,
        essence: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row,
    ) -> None:
        self.path = Path(path)
        self.wanted = wanted
        self._essence = essence
        self.rows: dict[
            QuestionKey, dict[str, Any]
        ] = {}  # of each question the row that counts, as `essence` leaves it
        self._line_of: dict[QuestionKey, int] = {}  # the offset of that row's line
        self._superseded = False
        self._fd = -1
        self._size = 0
        self.regular = True
        self._created = False

    def __enter__(self) -> Self:
        self._open()
        try:
            if self.regular:
                self._read()
        except OSError as error:  # where the file had to be repaired
            self._close()
            raise unwritable(self.path, error) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._close()

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write each row as one complete line, then flush to the disk: afterwards they count.

        Raises StoppedEarly when the disk takes no more; what was there before is then unharmed, in the file and in `rows`.
        """
        start, places = self._size, []
        try:
            for row in rows:
                line = encode_row(row)
                self._write(line)
                places.append(self._size)
                self._size += len(line)
            if self.regular:
                os.fsync(self._fd)
        except OSError as error:
            self._size = start
            if self.regular:
                with contextlib.suppress(OSError):  # else the next start finds a torn end
                    os.ftruncate(self._fd, start)
            way_out = "make room" if error.errno in NO_ROOM else "mend that"
            raise StoppedEarly(
                f"{self.path} cannot be written: {error.strerror}; {way_out}, then start again"
            ) from error
        for row, place in zip(rows, places, strict=True):
            self._note(dict(row), place)
        if self.regular and not self._is_at_path():
            raise StoppedEarly(
                f"{self.path} was moved, deleted or replaced during the run; its last rows are in the file that was there. "
                "Put that back, if it is still there, then start again"
            )

    def compact(self) -> None:
        """Leave one line a question: the one that counts. Damaged lines stay; the new file takes the old one's place at once."""
        if not self.regular or not self._superseded or not self._is_at_path():
            return
        counting = set(self._line_of.values())
        held = -1

        def write(file: BinaryIO) -> None:
            nonlocal held
            held = os.dup(file.fileno())  # keeps the lock beyond the closing of `file`: there is no unlocked moment
            fcntl.fcntl(held, fcntl.F_SETFL, os.O_APPEND)
            self._flock(held)
            for line in read_lines(self.path, self.wanted):
                if line.row is None or line.start in counting:
                    file.write(line.raw)

        try:
            write_whole(self.path, write)
        except OSError as error:
            if held >= 0:
                os.close(held)
            raise StoppedEarly(
                f"{self.path} could not be cleared of replaced rows: {error.strerror}; nothing is lost, start again"
            ) from error
        os.close(self._fd)
        self._fd = held
        self._superseded = False
        self._size = 0
        for line in read_lines(self.path, self.wanted):
            self._size = line.start + len(line.raw)
            if line.row is not None:
                self._line_of[key_of(line.row)] = line.start

    # -- opening ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            if stream := _OPEN_STREAM.fullmatch(str(self.path)):
                # Opened anew, a file behind it would be written from another offset than by its other writers.
                number = stream[1] or stream[2] or ("1" if self.path.name == "stdout" else "2")
                self._fd, self.regular = os.dup(int(number)), False
                return
            while True:
                self._created = not self.path.exists()
                self.regular = self._created or self.path.is_file()
                if not self.regular and self.path.is_fifo():
                    say(f"note: {self.path} is a pipe; the run begins when something reads it")
                access = os.O_RDWR | os.O_CREAT if self.regular else os.O_WRONLY
                self._fd = os.open(self.path, access | os.O_APPEND | os.O_CLOEXEC, 0o666)
                self.regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
                if not self.regular or self._lock():
                    return
                os.close(self._fd)
        except OSError as error:
            if error.errno == errno.EISDIR:
                raise UsageError(f"--output {self.path} is a directory; name a file") from error
            if error.errno == errno.ENOENT:
                raise UsageError(f"--output {self.path}: the folder does not exist; create it first") from error
            raise UsageError(f"--output {self.path} cannot be opened for writing: {error.strerror}") from error

    def _lock(self) -> bool:
        """Lock the open file; False when another one took its place meanwhile, so that it must be opened again."""
        try:
            self._flock(self._fd)
        except BlockingIOError:
            self._created = False
            os.close(self._fd)
            self._fd = -1
            raise UsageError(
                f"{self.path} is being written by another process; wait for it, stop it, or use another --output"
            ) from None
        return self._is_at_path()

    def _is_at_path(self) -> bool:
        """Whether the open file is the one that the path names."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def _flock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            say(f"warning: {self.path}: no lock to be had here ({error.strerror}); do not start a second run on it")

    def _read(self) -> None:
        with open(self.path, "rb") as file:
            if is_gzip(file):
                raise UsageError(f"{self.path} is a gzip file, to which rows cannot be appended; unpack it first")
        ours, damaged, last = 0, [], None
        for line in read_lines(self.path, self.wanted):
            if last is not None and last.row is None:
                damaged.append(last)
            last = line
            ours += line.row is not None or (self.wanted is DETAIL and _has_names(line.raw, DETAIL))
            if line.row is not None:
                self._note(line.row, line.start)
        self._size = os.fstat(self._fd).st_size
        torn = last if last is not None and last.row is None else None
        if not ours and (damaged or (torn and not _could_be_ours(torn.raw))):
            raise UsageError(
                f"{self.path} holds lines, but none of a run of this kind; it is left as it is: name another --output"
            )
        for line in damaged:
            say(f"warning: {self.path} line {line.number} is damaged ({line.problem}); left as it is, and not counted")
        if torn:
            self._set_aside(torn)
        elif self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
            self._write(b"\n")
            self._size += 1

    def _set_aside(self, torn: Line) -> None:
        """Move the torn end of the file to `<path>.damaged`. Zero bytes after a whole row are such an end, too."""
        whole = torn.raw.rstrip(b"\0\r\n")
        line = parse_line(torn.number, torn.start, whole, self.wanted)
        keep = len(whole) if line and line.row is not None else 0
        place = Path(f"{self.path}.damaged")
        with open(place, "ab") as file:
            file.write(torn.raw[keep:].rstrip(b"\n") + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._size = torn.start + keep
        os.ftruncate(self._fd, self._size)
        say(
            f"warning: {self.path} line {torn.number} was torn; its {plural(len(torn.raw) - keep, 'byte')} moved to {place}"
        )
        if line and line.row is not None:
            self._note(line.row, line.start)
            self._write(b"\n")
            self._size += 1

    # -- keeping ------------------------------------------------------------------------------------------------

    def _note(self, row: dict[str, Any], start: int) -> None:
        key = key_of(row)
        earlier = self.rows.get(key)
        self._superseded |= earlier is not None
        if counts_over(row, earlier):
            self.rows[key] = self._essence(row)
            self._line_of[key] = start

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def _close(self) -> None:
        if self._fd < 0:
            return
        empty = self.regular and os.fstat(self._fd).st_size == 0
        if empty and self._created and self._is_at_path():
            self.path.resolve().unlink()  # a run that brought nothing leaves no file behind
        os.close(self._fd)
        self._fd = -1


def _has_names(raw: bytes, wanted: Wanted) -> bool:
    """Whether a damaged line still holds an object with the names of a row of the wanted kind."""
    line = parse_line(1, 0, raw, {})
    return line is not None and line.row is not None and wanted.keys() <= line.row.keys()


def _could_be_ours(raw: bytes) -> bool:
    """Whether the only line of a file may be the torn beginning of a first row (or the zero bytes of a power loss).

    A whole JSON object is not torn: a row of another kind, or the only chat of a chats file.
    """
    beginning = b'{"chat_id": '
    whole = parse_line(1, 0, raw, {})
    raw = raw.removeprefix(BOM).rstrip(b"\0\r\n")
    torn = raw.startswith(beginning) or beginning.startswith(raw) or BOM.startswith(raw)
    return torn and (whole is None or whole.row is None)
