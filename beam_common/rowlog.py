"""A JSONL file that grows while a run lasts: lock, repair, durable appending, one line a key."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Self

from beam_common.files import GZIP, check_regular, sync, unwritable, write_whole
from beam_common.jsonl import BOM, Line, Wanted, encode_row, latest, read_lines, supersedes
from beam_common.messages import StoppedEarly, UsageError, say
from beam_common.rows import Row, key_of


def output_path(text: str) -> Path:
    """The path of an output such as `answers.jsonl`; a link stands for the file behind it."""
    path = Path(text)
    if path.suffix not in ("", ".jsonl") or not path.name:
        raise UsageError(f"--output {text}: name a file that ends in .jsonl")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


class RowLog:
    """A JSONL file that one process appends to; a context manager.

    On entry the file is locked (by the kernel, so the lock dies with its holder), a torn last line
    is moved to `<path>.damaged`, and `rows` holds of each key the row that counts, as `keep` leaves
    it. Raises UsageError when the file is locked, foreign or cannot be opened.
    """

    _size = 0
    _fd = -1
    _trouble: Exception | None = None

    def __init__(
        self,
        path: Path,
        wanted: Wanted,
        key: Callable[[Row], Hashable] = key_of,
        keep: Callable[[Row], Row] = lambda row: row,
    ) -> None:
        self.path, self.wanted = path, wanted
        self.rows: dict[Any, Row] = {}
        self._key, self._keep = key, keep
        self._pending: list[Row] = []
        self._saving = asyncio.Lock()

    def __enter__(self) -> Self:
        try:
            check_regular(self.path)
            self._open()
            self._read()
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise unwritable(Path(error.filename or self.path), error) from error
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if not self._size and self._is_at_path():
            self.path.unlink()  # a run that brought nothing leaves no file behind
        self._close()

    def append(self, rows: Sequence[Row]) -> None:
        """Write each row as one line, then flush to the disk: afterwards they count.

        Raises StoppedEarly when the disk takes no more, or when the file is not what it was: it was
        cut, moved or replaced under the run. What was there before stays whole.
        """
        try:
            self._write(b"".join(map(encode_row, rows)))
        except OSError as error:
            with contextlib.suppress(OSError):  # else the next start finds a torn end
                os.ftruncate(self._fd, self._size)
            raise StoppedEarly(str(unwritable(self.path, error))) from error
        for row in rows:
            self._note(row)
        if not self._is_at_path() or os.fstat(self._fd).st_size != self._size:
            raise StoppedEarly(
                f"{self.path} was cut, moved or replaced during the run; put back what was there, "
                "or start again to ask for what is missing"
            )

    async def save(self, row: Row) -> None:
        """Append a row from the event loop; returns when it is durable.

        The writing is done in a thread, rows that came meanwhile together. After trouble nothing
        more is written.
        """
        self._pending.append(row)
        async with self._saving:
            batch, self._pending = self._pending, []
            if batch and not self._trouble:
                try:
                    await asyncio.to_thread(self.append, batch)
                except Exception as error:
                    self._trouble = error
        if self._trouble:
            raise self._trouble

    def compact(self) -> None:
        """Leave one line a key: the one that counts. The last thing to be done with the log."""
        if not self._is_at_path():
            return
        lines = list(read_lines(self.path, self.wanted))
        rows = [{**line.row, "start": line.start} for line in lines if line.row]
        kept = {row["start"] for row in latest(rows, self._key).values()}
        if len(kept) == len(rows):
            return
        left = [line.raw for line in lines if not line.row or line.start in kept]
        try:
            write_whole(self.path, lambda file: file.writelines(left))
        except OSError as error:
            raise StoppedEarly(str(unwritable(self.path, error))) from error

    # -- opening ---------------------------------------------------------------------------------

    def _open(self) -> None:
        access = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        while True:
            self._fd = os.open(self.path, access, 0o666)
            self._lock()
            if self._is_at_path():
                return
            self._close()  # another file took its place meanwhile

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{self.path} is being written by another process; wait for it, stop it, or use "
                "another --output"
            ) from None
        except OSError as error:
            say(
                f"warning: {self.path}: no lock to be had here ({error.strerror}); do not start a "
                "second run on it"
            )

    def _is_at_path(self) -> bool:
        """Whether the open file is the one that the path names."""
        return self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(self._fd))

    def _read(self) -> None:
        if os.pread(self._fd, 2, 0) == GZIP:
            raise UsageError(f"{self.path} is a gzip file; unpack it first")
        self._size = os.fstat(self._fd).st_size
        damaged: list[Line] = []
        last: Line | None = None
        for last in read_lines(self.path, self.wanted):
            if last.row:
                self._note(last.row)
            else:
                damaged.append(last)
        torn = damaged.pop() if last and not last.row else None
        if not self.rows and (damaged or (torn and not _may_be_torn(torn.raw))):
            raise UsageError(
                f"{self.path} holds lines, but none of a run of this kind; it is left as it is: "
                "name another --output"
            )
        for line in damaged:
            say(
                f"warning: {self.path} line {line.number} is damaged: {line.problem}; left as it is"
            )
        if torn:
            self._set_aside(torn)
        elif self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
            self._write(b"\n")

    def _set_aside(self, torn: Line) -> None:
        """Move the torn end to `<path>.damaged`."""
        place = Path(f"{self.path}.damaged")
        check_regular(place)
        with open(place, "ab") as file:
            file.write(torn.raw.rstrip(b"\n") + b"\n")
        self._size = torn.start
        os.ftruncate(self._fd, self._size)
        say(f"warning: {self.path} line {torn.number} was torn; moved to {place}")

    # -- keeping ---------------------------------------------------------------------------------

    def _note(self, row: Row) -> None:
        key = self._key(row)
        if supersedes(row, self.rows.get(key)):
            self.rows[key] = self._keep(row)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        sync(self._fd)
        self._size += len(data)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _may_be_torn(raw: bytes) -> bool:
    """Whether a file's only line may be the beginning of a first row, or zeros of a power loss."""
    begun = raw.removeprefix(BOM).strip(b"\0")[:12]
    return not raw.endswith(b"\n") and b'{"chat_id": '.startswith(begun)
