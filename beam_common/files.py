"""Whole files: digests, writing in one piece, what an error of the disk means."""

from __future__ import annotations

import contextlib
import errno
import functools
import gzip
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from beam_common.messages import StoppedEarly, UsageError, say

GZIP = b"\x1f\x8b"  # how such a file begins
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
PLACEHOLDERS = {
    b"version https://git-lfs": "a Git LFS pointer, not the file itself: fetch it with `git lfs "
    "pull`",
    b"<": "an HTML page, not the file itself: fetch it anew",
    b"404: Not Found": 'a server\'s "404: Not Found", not the file itself: fetch it anew',
}
REFUSED_BY_DRIVE = (errno.EPERM, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.ENOTTY)


def sha256_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_text(text: str) -> str:
    """Digest of the UTF-8 bytes; lone surrogates count as the three bytes they would take."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def placeholder(content: bytes) -> str:
    """What stands in the place of a file, told by its beginning; empty where nothing does."""
    start = content[:200].removeprefix(b"\xef\xbb\xbf").lstrip()
    return next((what for mark, what in PLACEHOLDERS.items() if start.startswith(mark)), "")


def open_maybe_gzip(path: Path) -> BinaryIO:
    """The file's bytes, unpacked if it is a gzip file, whatever its name."""
    with open(path, "rb") as file:
        file.seek(0)  # OSError for a pipe, whose beginning would be lost
        packed = file.read(2) == GZIP
    return gzip.open(path) if packed else open(path, "rb")  # type: ignore[return-value]


def sync(fd: int) -> None:
    """Flush a file to the disk. A drive that refuses this is told of once."""
    with _refusal_told("to flush files; a power loss may cost rows"):
        os.fsync(fd)


_say_once = functools.cache(say)


@contextlib.contextmanager
def _refusal_told(what: str) -> Iterator[None]:
    """Where the drive refuses something this is told once, and no error."""
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSED_BY_DRIVE:
            raise
        _say_once(f"warning: this drive refuses {what} ({error.strerror})")


def check_regular(path: Path) -> None:
    """OSError where a folder, a device, a pipe or a link stands in the place of a file to write."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a new file beside `path`, then put it in its place: whole or not at all.

    What is there and no regular file is never replaced: OSError.
    """
    check_regular(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            sync(file.fileno())
        if path.exists():
            with _refusal_told("file modes"):
                shutil.copymode(path, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def unwritable(path: Path, error: OSError, what: str = "--output") -> UsageError | StoppedEarly:
    """What to raise for a file that cannot be written: StoppedEarly where the disk is full."""
    reason = f"{path} cannot be written: {error.strerror or error}"
    if error.errno in NO_ROOM:
        return StoppedEarly(f"{reason}; make room or mend the drive, then start again")
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{reason}; create the folder first")
    return UsageError(f"{reason}; name another {what}")


def sidecar_path(output: Path, ending: str) -> Path:
    """What lies beside an output: `answers.jsonl` and `.run.json` give `answers.run.json`."""
    return Path(str(output).removesuffix(".jsonl") + ending)
