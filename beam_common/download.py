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


class AttemptFailed(Exception):
    """Another attempt may do better."""


class Refused(Exception):
    """Another attempt would end the same way."""


def release_files() -> dict[str, str]:
    """The git blob id of each file of the release that is used, by its path."""
    lines = (DATA_DIR / "release.tsv").read_text("utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {path: blob for blob, path in rows}


def blob_id(path: Path) -> str:
    """The id under which git knows the content of a file; empty where there is no file."""
    if not path.is_file():
        return ""
    content = path.read_bytes()
    digest = hashlib.sha1(b"blob %d\0" % len(content), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest()


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class Download:
    """Fetches files below one mirror into one folder, from several threads."""

    def __init__(self, mirror: str, folder: Path) -> None:
        import httpx2  # the client that the openai package brings, with certificates of its own

        self._mirror, self._folder = mirror, folder.resolve()
        self._errors = (httpx2.HTTPError, httpx2.InvalidURL)
        self.repeats = Repeats()
        self.stopping = threading.Event()
        try:
            self._client = httpx2.Client(follow_redirects=True, timeout=LONGEST_SILENCE)
        except (ValueError, ImportError, OSError) as error:
            ways_out = "check the proxy variables and SSL_CERT_FILE"
            raise UsageError(f"no download: {one_line(str(error), 120)}; {ways_out}") from error

    def fetch(self, path: str, blob: str) -> list[str]:
        """Bring a file; its path where the server does not have it. StoppedEarly: other trouble."""
        part = self._folder / f"{path}.part"
        failures, most = 0, 0
        while True:
            try:
                return [] if self._attempt(path, blob, part) else [path]
            except (AttemptFailed, Refused, OSError, *self._errors) as error:
                failures = 1 if size_of(part) > most else failures + 1
                most = max(most, size_of(part))
                problem = one_line(str(error), 160) or type(error).__name__
                if failures >= ATTEMPTS or isinstance(error, Refused | OSError):
                    raise StoppedEarly(
                        f"{shown_url(self._mirror)}/{path}: {problem}; what has arrived is kept: "
                        "start again to go on, or take a checkout of the release with --src"
                    ) from error
                if self.stopping.wait(FIRST_WAIT * 2 ** (failures - 1)):
                    raise
                self.repeats.say(f"{problem}; asking again", path)

    def _attempt(self, path: str, blob: str, part: Path) -> bool:
        if part.resolve() != part or (part.exists() and not part.is_file()):
            raise Refused(f"{part} is a link, or no regular file; remove it")
        part.parent.mkdir(parents=True, exist_ok=True)
        held = size_of(part)
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={held}-"}
        with self._client.stream("GET", f"{self._mirror}/{path}", headers=headers) as reply:
            status, content_range = reply.status_code, reply.headers.get("Content-Range", "")
            resumed = status == 206 and content_range.startswith(f"bytes {held}-")
            if status == 404:
                return False
            if status != 200 and not resumed:
                if status in (206, 416):  # what is here is no beginning of the file
                    part.unlink(missing_ok=True)
                final = status < 500 and status not in (206, 408, 416, 425, 429)
                raise (Refused if final else AttemptFailed)(f"HTTP {status}")
            # Unbuffered: a kill loses nothing that has arrived.
            with open(part, "ab" if resumed else "wb", buffering=0) as out:
                for piece in reply.iter_bytes():
                    out.write(piece)
                    if self.stopping.is_set():
                        raise Refused("stopped")
        if blob_id(part) != blob:
            what = placeholder(part.read_bytes()) or "another content than the release's"
            part.unlink()
            raise AttemptFailed(f"what came is {what}")
        part.replace(part.with_suffix(""))
        return True


def fetch_all(files: Mapping[str, str], mirror: str, folder: Path) -> list[str]:
    """Bring files, given with their blob ids, into `folder`, but those that are whole there; the
    paths that the server does not have."""
    todo = {path: blob for path, blob in files.items() if blob_id(folder / path) != blob}
    say(f"{plural(len(todo), 'file')} to fetch from {shown_url(mirror)} into {folder}")
    if not todo:
        return []
    download = Download(mirror, folder)
    progress = Progress(len(todo), 0, "file", lambda: f"into {folder}")
    pool = ThreadPoolExecutor(AT_ONCE)
    missing: list[str] = []
    try:
        for lacking in pool.map(download.fetch, todo, todo.values()):
            missing += lacking
            progress.step()
            progress.tick()
        return missing
    finally:
        download.stopping.set()
        pool.shutdown(wait=False, cancel_futures=True)
        progress.close()
        download.repeats.flush()
