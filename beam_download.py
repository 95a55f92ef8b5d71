"""Fetching files of the BEAM release: at most once, four at a time, resumed after a break, used only when verified.

What a file must be is known beforehand: `data/release.tsv` names each path of the pinned commit with its git blob id,
the SHA-1 of `blob <length>`, a zero byte and the content. A file on its way is `<name>.part`; it gets its name once
its id is right. So whatever stops a download, the next one goes on from what is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import random
import re
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from beam_cli import keep_plain_cookies, making_a_client, shown_url
from beam_common import DATA_DIR, StoppedEarly, UsageError, one_line, plural, say
from beam_release import QUESTIONS, TRUNCATED_CHAT

if TYPE_CHECKING:
    import httpx2

    from beam_run import Progress

COMMIT = "b2a3ee8ba12d68f83143dda191097dc3e028ddd3"
MIRROR = f"https://raw.githubusercontent.com/mohammadtavakoli78/BEAM/{COMMIT}"
MANIFEST = DATA_DIR / "release.tsv"

AT_ONCE = 4
ATTEMPTS = 6  # in a row without progress
LONGEST_WAIT = 60.0  # seconds between two attempts
LONGEST_NAMED_WAIT = 300.0  # seconds, where the server says when to come back
READ_TIMEOUT = 30.0  # seconds without a byte
ANSWER_TIMEOUT = 60.0  # seconds until the headers of a reply are there, redirects included
SLOWEST = 1024  # bytes a second over READ_TIMEOUT; below that a connection counts as stalled
LARGEST = 1 << 28  # bytes; no file of the release is a quarter of that long
PROGRESS = 1 << 16  # bytes that an attempt must bring for the count of attempts to start anew


@dataclass(frozen=True)
class ReleaseFile:
    path: str  # chats/1M/3/chat.json
    blob_id: str  # 40 hexadecimal digits

    @property
    def chat_id(self) -> str:
        return self.path.split("/")[2]


class AttemptFailed(Exception):
    """One attempt came to nothing; another may do better. `wait` is what the server asked for, in seconds."""

    def __init__(self, problem: str, wait: float | None = None) -> None:
        super().__init__(problem)
        self.wait = wait


class Refused(AttemptFailed):
    """Another attempt would end the same way."""


class NotThere(Refused):
    """The server does not have the file."""


class NotWritten(Refused):
    """The file cannot be written here, whoever sends it."""


Outcome = tuple[ReleaseFile, AttemptFailed | None]  # None: it is there


# ---------------------------------------------------------------------------------------------------------------
# Rules.


def read_manifest(path: Path, tier: str) -> list[ReleaseFile]:
    """The files of one tier: lines of blob id, tab, path; `#` begins a remark."""
    lines = (line.split("\t") for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#"))
    return [ReleaseFile(name, blob_id) for blob_id, name in lines if name.startswith(f"chats/{tier}/")]


def files_for(files: Sequence[ReleaseFile], chats: Collection[str], prefer_truncated: bool) -> list[ReleaseFile]:
    """What has to be fetched for these chats: the questions and one variant of each chat."""
    truncated = {file.chat_id for file in files if prefer_truncated and file.path.endswith(TRUNCATED_CHAT)}
    return [
        file
        for file in files
        if file.chat_id in chats
        and (file.path.endswith(QUESTIONS) or file.path.endswith(TRUNCATED_CHAT) == (file.chat_id in truncated))
    ]


def blob_id(path: Path) -> str:
    """The id under which git knows the content of a file."""
    with open(path, "rb") as file:
        digest = hashlib.sha1(b"blob %d\0" % os.fstat(file.fileno()).st_size, usedforsecurity=False)
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def foreign(file: ReleaseFile, path: Path) -> str:
    """What tells a local file from the release's; empty when they are the same, or when this one cannot be read."""
    try:
        found = blob_id(path)
    except OSError:  # whoever needs the content says so
        return ""
    return "" if found == file.blob_id else f"git blob {found[:12]}, listed {file.blob_id[:12]}"


def is_whole(path: Path, wanted: str) -> bool:
    return path.is_file() and blob_id(path) == wanted


def body_start(status: int, content_range: str, wait: float | None, held: int) -> int:
    """Where in the file the body of a reply belongs, when `held` bytes of it are there and the rest was asked for.

    0 says that the file starts over: the server sends all of it. Raises what another status means; `wait` is what such
    a reply asks for.
    """
    if status == 200:
        return 0
    if status == 206:
        found = re.match(r"bytes (\d+)-", content_range)
        if found and int(found[1]) == held:
            return held
        raise AttemptFailed(f"the server answered with another part of the file ({one_line(content_range, 40)!r})")
    if status == 416:
        raise AttemptFailed("the server has no more bytes, but what is here is not the file")
    if status == 404:
        raise NotThere("HTTP 404, the server does not have it")
    if status in (408, 425, 429) or status >= 500:
        raise AttemptFailed(f"HTTP {status}", wait)
    raise Refused(f"HTTP {status}")


def wait_before(failures: int, asked: float | None) -> float:
    """Seconds until the next attempt after so many failures in a row: 1, 2, 4 … with jitter, or as the server asks."""
    return max(
        min(LONGEST_NAMED_WAIT, asked or 0.0), min(LONGEST_WAIT, 2.0 ** (failures - 1) * random.uniform(0.75, 1.25))
    )


def pause(seconds: float) -> None:
    """Wait between two attempts; tests put something quicker in its place."""
    time.sleep(seconds)


# ---------------------------------------------------------------------------------------------------------------
# One file.


class Fetcher:
    """Fetches files below one mirror into one folder, from several threads; `received` counts bytes for the display."""

    def __init__(self, client: httpx2.Client, mirror: str, folder: Path) -> None:
        self.client = client
        self.mirror = mirror
        self.folder = folder
        self.stopping = threading.Event()
        self.received = 0
        self._counting = threading.Lock()

    def fetch(self, file: ReleaseFile) -> None:
        """Bring a file, by as many attempts as it takes. Raises the last AttemptFailed when it cannot be had."""
        part = self.folder / f"{file.path}.part"
        farthest = size_of(part)
        failures = 0
        while not self.stopping.is_set():
            try:
                self._attempt(file, part)
                return
            except Refused:
                raise
            except AttemptFailed as error:
                if size_of(part) >= farthest + PROGRESS:
                    farthest, failures = size_of(part), 0
                failures += 1
                if failures >= ATTEMPTS:
                    raise
                wait = wait_before(failures, error.wait)
                say(f"{file.path}: {error}; attempt {failures + 1} of {ATTEMPTS} in {wait:.0f} s")
                pause(wait)
        raise Refused("stopped")

    def _attempt(self, file: ReleaseFile, part: Path) -> None:
        import ssl

        import httpx2

        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            if not is_whole(part, file.blob_id):  # it is, when a kill came between its last byte and its name
                self._receive(file, part)
                self._verify(file, part)
            part.replace(part.with_suffix(""))
        except httpx2.TimeoutException as error:
            raise AttemptFailed(f"no byte for {READ_TIMEOUT:g} s") from error
        except httpx2.DecodingError as error:
            part.unlink(missing_ok=True)  # asked for the rest of it, the server would encode that in the same way
            raise AttemptFailed(one_line(str(error), 120)) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise AttemptFailed(one_line(str(error), 120) or type(error).__name__) from error
        except ssl.SSLError as error:  # no matter of the disk, though an OSError
            raise AttemptFailed(one_line(str(error), 120)) from error
        except OSError as error:
            raise NotWritten(f"{part} cannot be written: {error.strerror}") from error

    def _answer(self, url: str, headers: Mapping[str, str]) -> httpx2.Response:
        """The reply to a request once its headers are there.

        The client's timeout counts from the last byte, so headers that drip would be waited for without end. Hence a
        thread of its own waits for them, which is left behind when they take too long.
        """
        import httpx2

        request = self.client.build_request("GET", url, headers=headers)
        answer: queue.SimpleQueue[httpx2.Response | Exception] = queue.SimpleQueue()

        def send() -> None:
            try:
                answer.put(self.client.send(request, stream=True))
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                answer.put(error)
            except OSError as error:
                answer.put(AttemptFailed(one_line(str(error), 120)))
            except RuntimeError as error:
                answer.put(Refused("stopped") if self.stopping.is_set() else error)  # the client is closed then

        threading.Thread(target=send, daemon=True).start()
        try:
            found = answer.get(timeout=ANSWER_TIMEOUT)
        except queue.Empty:
            raise AttemptFailed(f"no reply within {ANSWER_TIMEOUT:g} s") from None
        if isinstance(found, Exception):
            raise found
        return found

    def _receive(self, file: ReleaseFile, part: Path) -> None:
        """Append to the part what the server sends. Unbuffered, so that a kill loses nothing that has arrived."""
        from beam_failure import named_wait

        held = size_of(part)
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={held}-"} if held else {})
        with contextlib.closing(self._answer(f"{self.mirror}/{file.path}", headers)) as response:
            wait = named_wait(response.headers, time.time())
            try:
                start = body_start(response.status_code, response.headers.get("Content-Range", ""), wait, held)
            except AttemptFailed:
                if response.status_code in (206, 416):
                    part.unlink(missing_ok=True)
                raise
            since, received, length = time.monotonic(), 0, start
            with open(part, "ab" if start else "wb", buffering=0) as out:
                for piece in response.iter_bytes():
                    out.write(piece)
                    received += len(piece)
                    length += len(piece)
                    with self._counting:
                        self.received += len(piece)
                    if self.stopping.is_set():
                        raise Refused("stopped")
                    if length > LARGEST:
                        break  # its id will be wrong
                    if time.monotonic() - since > READ_TIMEOUT:
                        if received < SLOWEST * READ_TIMEOUT:
                            raise AttemptFailed(f"only {plural(received, 'byte')} in {READ_TIMEOUT:g} s")
                        since, received = time.monotonic(), 0

    def _verify(self, file: ReleaseFile, part: Path) -> None:
        found = blob_id(part)
        if found == file.blob_id:
            return
        with open(part, "rb") as received:
            html = received.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")
        what = f"{'an HTML page' if html else 'another content'} ({plural(size_of(part), 'byte')})"
        part.unlink()
        raise AttemptFailed(f"{what} came instead: git blob id expected {file.blob_id}, found {found}; thrown away")


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


# ---------------------------------------------------------------------------------------------------------------
# Many files.


def fetch_all(files: Sequence[ReleaseFile], mirror: str, folder: Path, allow_missing: bool) -> None:
    """Bring every file into `folder`; what is whole there already is not fetched again.

    A file that the server does not have raises UsageError, unless `allow_missing`; any other that cannot be had raises
    StoppedEarly, and a later call goes on from there.
    """
    # The HTTP client that the openai package brings: streams, follows redirects, honours proxies, has certificates on
    # macOS, too. urllib has none of the last on some Pythons.
    import httpx2

    from beam_run import Progress

    mirror = mirror.rstrip("/")
    todo = [file for file in files if not is_whole(folder / file.path, file.blob_id)]
    here = f", {len(files) - len(todo):,} of them already here" if len(todo) < len(files) else ""
    say(f"{plural(len(files), 'file')} of the release{here}; from {shown_url(mirror)} into {folder}")
    if not todo:
        return
    waiting: queue.SimpleQueue[ReleaseFile] = queue.SimpleQueue()
    done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    for file in todo:
        waiting.put(file)
    with making_a_client():
        client = httpx2.Client(follow_redirects=True, timeout=READ_TIMEOUT)
        keep_plain_cookies(client)
    fetcher = Fetcher(client, mirror, folder)

    def work() -> None:
        while not fetcher.stopping.is_set():
            try:
                file = waiting.get_nowait()
            except queue.Empty:
                return
            outcome: AttemptFailed | None = Refused("a mistake of the program, see above")
            try:
                fetcher.fetch(file)
                outcome = None
            except AttemptFailed as error:
                outcome = error
            finally:
                done.put((file, outcome))

    # Daemons: a signal ends the program at once, not when a stalled read times out.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(todo)))]
    progress = Progress(len(todo), 0, "file", lambda: f"{fetcher.received / 1e6:,.1f} MB received")
    missing: list[str] = []
    try:
        for thread in threads:
            thread.start()
        for _ in todo:
            file, error = next_outcome(done, progress)
            progress.step()
            progress.tick()
            if isinstance(error, NotThere) and allow_missing:
                missing.append(file.path)
            elif error:
                give_up(file, error, mirror)
    finally:
        fetcher.stopping.set()
        progress.close()
        for thread in threads:
            if thread.ident is not None:
                thread.join(0.1)
        client.close()
    if missing:
        more = f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""
        say(f"warning: HTTP 404, the server does not have {', '.join(missing[:3])}{more}; left out")


def next_outcome(done: queue.SimpleQueue[Outcome], progress: Progress) -> Outcome:
    """Wait for the next file, whether it came or not; the display goes on meanwhile."""
    while True:
        try:
            return done.get(timeout=0.1)
        except queue.Empty:
            progress.step(0)
            progress.tick()


def give_up(file: ReleaseFile, error: AttemptFailed, mirror: str) -> None:
    place = f"{shown_url(mirror)}/{file.path}"
    if isinstance(error, NotThere):
        raise UsageError(f"{place}: {error}; correct --mirror, or leave such chats out with --allow-missing") from error
    if isinstance(error, NotWritten):
        raise StoppedEarly(
            f"{error}; what has arrived is kept: make room or put that right, then start again"
        ) from error
    raise StoppedEarly(
        f"{place}: {error}; what has arrived is kept: start again to go on, with --mirror from another host, or take a "
        "checkout of the release with --src"
    ) from error
