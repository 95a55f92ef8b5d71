"""Fetching files of the BEAM release: four at a time, resumed after a break.

`data/release.tsv` names each path of the pinned commit with its git blob id. A file on its way is
`<name>.part` and gets its name once its id is right: nothing else is ever used.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from beam_common.cli import shown_url
from beam_common.files import placeholder
from beam_common.messages import Repeats, StoppedEarly, UsageError, one_line, plural, say
from beam_common.progress import Progress
from beam_common.rows import DATA_DIR

COMMIT = "b2a3ee8ba12d68f83143dda191097dc3e028ddd3"
MIRROR = f"https://raw.githubusercontent.com/mohammadtavakoli78/BEAM/{COMMIT}"
AT_ONCE = 4
ATTEMPTS = 6  # in a row that bring nothing new
FIRST_WAIT = 2.0  # seconds before a second attempt; twice as long before each further one
LONGEST_SILENCE = 30.0  # seconds without a byte


def release_files() -> dict[str, str]:
    """The git blob id of each file of the release that is used, by its path."""
    lines = (DATA_DIR / "release.tsv").read_text("utf-8").splitlines()
    return {path: blob for blob, path in map(str.split, lines)}


def blob_id(path: Path) -> str:
    """The id under which git knows the content of a file; empty where there is no file."""
    if not path.is_file():
        return ""
    content = path.read_bytes()
    data = b"blob %d\0" % len(content) + content
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class Download:
    """Fetches files below one mirror into one folder, from several threads."""

    def __init__(self, mirror: str, folder: Path) -> None:
        import httpx2  # the client that the openai package brings, with certificates of its own

        self._mirror, self._folder = shown_url(mirror), folder.resolve()
        self._failed = httpx2.HTTPError  # another attempt may do better
        self.repeats = Repeats()
        self.stopping = threading.Event()
        try:
            if not mirror.startswith(("http://", "https://")):
                raise ValueError(f"{mirror} is no URL such as https://host/BEAM")
            self._client = httpx2.Client(
                base_url=mirror, follow_redirects=True, timeout=LONGEST_SILENCE
            )
        except (ValueError, ImportError, OSError, httpx2.InvalidURL) as error:
            raise UsageError(
                f"no download: {one_line(str(error), 120)}; check --mirror, the proxy variables "
                "and SSL_CERT_FILE"
            ) from error

    def fetch(self, path: str, blob: str) -> None:
        """Bring a file, unless it is there or the server has none. StoppedEarly: other trouble."""
        part = self._folder / f"{path}.part"
        failures = 0
        while blob_id(part.with_suffix("")) != blob:
            held = size_of(part)
            try:
                if not self._attempt(path, blob, part, held):
                    return
            except (OSError, self._failed) as error:
                failures = 1 if size_of(part) > held else failures + 1
                problem = one_line(str(error), 160) or type(error).__name__
                if failures >= ATTEMPTS or isinstance(error, OSError):
                    raise StoppedEarly(
                        f"{self._mirror}/{path}: {problem}; what has arrived is kept: start again "
                        "to go on, or take a checkout of the release with --src"
                    ) from error
                if self.stopping.wait(FIRST_WAIT * 2 ** (failures - 1)):
                    raise
                self.repeats.say(f"{problem}; asking again", path)

    def _attempt(self, path: str, blob: str, part: Path, held: int) -> bool:
        """Whether the server has the file. OSError: another attempt would end the same way."""
        if part.resolve() != part:
            raise OSError(f"{part} is a link; remove it")
        part.parent.mkdir(parents=True, exist_ok=True)
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={held}-"}
        with self._client.stream("GET", path, headers=headers) as reply:
            status, content_range = reply.status_code, reply.headers.get("Content-Range", "")
            resumed = status == 206 and content_range.startswith(f"bytes {held}-")
            if status == 404:
                self.repeats.say("HTTP 404: the server has no such file", path)
                return False
            if status in (206, 416) and not resumed:  # what is here is no beginning of the file
                part.unlink(missing_ok=True)
            if status != 200 and not resumed:
                passing = status >= 500 or status in (206, 408, 416, 425, 429)
                raise (self._failed if passing else OSError)(f"HTTP {status}")
            # Unbuffered: a kill loses nothing that has arrived.
            with open(part, "ab" if resumed else "wb", buffering=0) as out:
                for piece in reply.iter_bytes():
                    out.write(piece)
                    if self.stopping.is_set():
                        raise OSError("stopped")
        if blob_id(part) != blob:
            what = placeholder(part.read_bytes()) or "another content than the release's"
            part.unlink()
            raise self._failed(f"what came is {what}")
        part.replace(part.with_suffix(""))
        return True


def fetch_all(files: Mapping[str, str], mirror: str, folder: Path) -> None:
    """Bring files, given with their blob ids, into `folder`; not those that the server lacks."""
    download = Download(mirror, folder)
    say(f"{plural(len(files), 'file')} from {shown_url(mirror)} into {folder}")
    progress = Progress(len(files), 0, "file", lambda: f"into {folder}")
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        for _ in pool.map(download.fetch, files, files.values()):
            progress.step()
            progress.tick()
    finally:
        download.stopping.set()
        pool.shutdown(wait=False, cancel_futures=True)
        progress.close()
        download.repeats.flush()
