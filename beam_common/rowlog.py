"""A JSONL file that grows while a run lasts: lock, repair, durable appending, one line a key."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

from beam_common.files import (
    MAKE_ROOM,
    check_regular,
    is_gzip,
    sync,
    unwritable,
    write_whole,
)
from beam_common.jsonl import (
    BOM,
    Line,
    Wanted,
    encode_row,
    latest,
    read_lines,
    supersedes,
)
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
        self._has_superseded = False
        self._created = False
        self._size = 0
        self._fd = -1
        self._pending: list[tuple[Row, asyncio.Future[None]]] = []
        self._saving: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        try:
            check_regular(self.path)
            self._open()
            self._read()
        except OSError as error:
            self._close()
            raise unwritable(Path(error.filename or self.path), error) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
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
            reason = f"{self.path} cannot be written: {error.strerror}"
            raise StoppedEarly(f"{reason}; {MAKE_ROOM}") from error
        for row in rows:
            self._note(row)
        if not self._is_at_path() or os.fstat(self._fd).st_size != self._size:
            raise StoppedEarly(
                f"{self.path} was cut, moved or replaced during the run; put back what was there, "
                "or start again to ask for what is missing"
            )

    async def save(self, row: Row) -> None:
        """Append a row from the event loop; returns when it is durable.

        The writing is done in a thread, rows that came meanwhile together.
        """
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((row, saved))
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save_pending())
        await saved

    async def _save_pending(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            work = asyncio.to_thread(self.append, [row for row, _ in batch])
            (trouble,) = await asyncio.gather(work, return_exceptions=True)
            for _, saved in batch:
                if isinstance(trouble, BaseException):
                    saved.set_exception(trouble)
                else:
                    saved.set_result(None)

    def compact(self) -> None:
        """Leave one line a key: the one that counts. The last thing to be done with the log."""
        if not self._has_superseded or not self._is_at_path():
            return
        rows = (
            {"key": self._key(line.row), "error": line.row.get("error"), "start": line.start}
            for line in read_lines(self.path, self.wanted)
            if line.row is not None
        )
        kept = {row["start"] for row in latest(rows, lambda row: row["key"]).values()}

        def write(file: BinaryIO) -> None:
            for line in read_lines(self.path, self.wanted):
                if line.row is None or line.start in kept:
                    file.write(line.raw)

        try:
            write_whole(self.path, write)
        except OSError as error:
            raise StoppedEarly(
                f"{self.path} could not be cleared of replaced rows: {error.strerror}; nothing is "
                "lost, start again"
            ) from error
        self._close()

    # -- opening ---------------------------------------------------------------------------------

    def _open(self) -> None:
        access = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        while True:
            created = not self.path.exists()
            self._fd = os.open(self.path, access, 0o666)
            self._lock()
            if self._is_at_path():
                break
            self._close()  # another file took its place meanwhile
        self._created = created  # it is ours: until it was locked it may have been another's

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
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def _read(self) -> None:
        with open(self.path, "rb") as file:
            if is_gzip(file):
                raise UsageError(f"{self.path} is a gzip file; unpack it first")
        self._size = os.fstat(self._fd).st_size
        damaged: list[Line] = []
        last: Line | None = None
        for last in read_lines(self.path, self.wanted):
            if last.row is None:
                damaged.append(last)
            else:
                self._note(last.row)
        torn = damaged.pop() if last is not None and last.row is None else None
        if not self.rows and (damaged or (torn and not _may_be_torn(torn.raw))):
            raise UsageError(
                f"{self.path} holds lines, but none of a run of this kind; it is left as it is: "
                "name another --output"
            )
        for line in damaged:
            say(
                f"warning: {self.path} line {line.number} is damaged ({line.problem}); left as it "
                "is, and not counted"
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
            file.flush()
            sync(file.fileno())
        self._size = torn.start
        os.ftruncate(self._fd, self._size)
        say(f"warning: {self.path} line {torn.number} was torn; moved to {place}")

    # -- keeping ---------------------------------------------------------------------------------

    def _note(self, row: Row) -> None:
        key = self._key(row)
        earlier = self.rows.get(key)
        self._has_superseded |= earlier is not None
        if supersedes(row, earlier):
            self.rows[key] = self._keep(row)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        sync(self._fd)
        self._size += len(data)

    def _close(self) -> None:
        if self._fd < 0:
            return
        if self._created and os.fstat(self._fd).st_size == 0 and self._is_at_path():
            self.path.unlink()  # a run that brought nothing leaves no file behind
        os.close(self._fd)
        self._fd = -1


def _may_be_torn(raw: bytes) -> bool:
    """Whether a file's only line may be the beginning of a first row, or zeros of a power loss."""
    begun = raw.removeprefix(BOM).strip(b"\0")[:12]
    return not raw.endswith(b"\n") and b'{"chat_id": '.startswith(begun)
