"""Whole files: digests, writing in one piece, what an error of the disk means."""

from __future__ import annotations

import errno
import functools
import gzip
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from beam_common.messages import StoppedEarly, UsageError, say

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
MAKE_ROOM = "make room or mend the drive, then start again"
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


def is_gzip(file: BinaryIO) -> bool:
    """Whether a file just opened is a gzip file, whatever its name; it stays at its beginning."""
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return packed


def placeholder(content: bytes) -> str:
    """What stands in the place of a file, told by its beginning; empty where nothing does."""
    start = content[:200].removeprefix(b"\xef\xbb\xbf").lstrip()
    return next((what for mark, what in PLACEHOLDERS.items() if start.startswith(mark)), "")


def open_maybe_gzip(path: Path) -> BinaryIO:
    """The file's bytes, unpacked if it is a gzip file."""
    file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    if not is_gzip(file):
        return file
    file.close()  # closing a reader of gzip would not
    return gzip.open(path)  # type: ignore[return-value]


def sync(fd: int) -> None:
    """Flush a file to the disk. A drive that refuses this is told of once."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in REFUSED_BY_DRIVE:
            raise
        _say_once(
            f"warning: this drive refuses to flush files ({error.strerror}); a power loss may cost "
            "rows"
        )


@functools.cache
def _say_once(text: str) -> None:
    say(text)


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
            _keep_mode(path, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _keep_mode(path: Path, new: Path) -> None:
    try:
        shutil.copymode(path, new)
    except OSError as error:
        _say_once(f"warning: this drive refuses file modes ({error.strerror}): left as they are")


def unwritable(path: Path, error: OSError, what: str = "--output") -> UsageError | StoppedEarly:
    """What to raise for a file that cannot be written: StoppedEarly where the disk is full."""
    reason = f"{path} cannot be written: {error.strerror or error}"
    if error.errno in NO_ROOM:
        return StoppedEarly(f"{reason}; {MAKE_ROOM}")
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{reason}; create the folder first")
    return UsageError(f"{reason}; name another {what}")


def sidecar_path(output: Path, ending: str) -> Path:
    """What lies beside an output: `answers.jsonl` and `.run.json` give `answers.run.json`."""
    return Path(str(output).removesuffix(".jsonl") + ending)
