"""Downloading over real HTTP from a scripted server: verified, retried, resumed, fetched once, never used wrong."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import beam_download
import prepare_data
from beam_common import HERE, StoppedEarly, UsageError
from beam_download import AttemptFailed, NotThere, Refused, ReleaseFile, body_start, fetch_all, files_for, wait_before
from beam_pair import Pair, read_pair

OFFICIAL = os.environ.get("BEAM_OFFICIAL", "")
needs_release = pytest.mark.skipif(not OFFICIAL, reason="BEAM_OFFICIAL names no copy of the release")


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


# ---------------------------------------------------------------------------------------------------------------
# A server over a mapping of paths to contents. `faults[path]` lists what it does to the next requests for a path.


@dataclass
class Mirror:
    files: Mapping[str, bytes]
    faults: dict[str, list[str]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)  # path and Range header
    held: threading.Event = field(default_factory=threading.Event)  # a request has come to `hold`
    release: threading.Event = field(default_factory=threading.Event)
    most_at_once: int = 0
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def asked(self, path: str) -> list[str]:
        """The Range headers of the requests for a path, in order."""
        return [asked for name, asked in self.requests if name == path]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    mirror: Mirror

    def do_GET(self) -> None:
        mirror = self.mirror
        with mirror.lock:
            mirror.now += 1
            mirror.most_at_once = max(mirror.most_at_once, mirror.now)
        try:
            self.answer()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with mirror.lock:
                mirror.now -= 1

    def answer(self) -> None:
        path = self.path.split("://")[-1].partition("/")[2]  # a proxy is asked for the whole URL
        asked = self.headers.get("Range", "")
        with self.mirror.lock:
            self.mirror.requests.append((path, asked))
            faults = self.mirror.faults.get(path, [])
            fault = faults.pop(0) if faults else ""
        content = self.mirror.files.get(path.removeprefix("moved/"))
        if content is None or fault == "404":
            self.reply(404, b"404: Not Found")
        elif fault.isdigit():
            self.reply(int(fault), b"<html>trouble</html>")
        elif fault == "429 with a wait":
            self.reply(429, b"", {"Retry-After": "7"})
        elif fault == "HTML":
            self.reply(200, b"\n<!DOCTYPE html><html>Log in first</html>", {"Content-Type": "text/html"})
        elif fault == "wrong byte":
            self.reply(200, content[:-1] + bytes([content[-1] ^ 1]))
        elif fault == "short":
            self.reply(200, content[: len(content) // 2])
        elif fault == "redirect":
            self.reply(302, b"", {"Location": f"/moved/{path}"})
        elif fault == "loop":
            self.reply(302, b"", {"Location": self.path})
        elif fault == "other range":
            self.reply(206, content[5:], {"Content-Range": f"bytes 5-{len(content) - 1}/{len(content)}"})
        elif fault == "bad gzip":
            self.reply(206 if asked else 200, content, {"Content-Encoding": "gzip", **self.range_of(content, asked)})
        elif fault == "unasked range":
            self.reply(206, content, self.range_of(content, "bytes=0-"))
        elif fault == "dripping headers":
            self.drip()
        else:
            self.serve(content, asked if fault != "no ranges" else "", fault)

    def serve(self, content: bytes, asked: str, fault: str) -> None:
        start = int(re.findall(r"\d+", asked)[0]) if asked else 0
        if start and start >= len(content):
            self.reply(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        headers = self.range_of(content, asked)
        body = content[start:]
        if fault not in ("cut", "stall", "trickle", "hold"):
            self.reply(206 if start else 200, body, headers)
            return
        half = len(body) // 2
        self.reply(206 if start else 200, body[:half], headers, announced=len(body))
        if fault == "hold":
            self.mirror.held.set()
            self.mirror.release.wait(30)
        elif fault == "stall":
            self.mirror.release.wait(30)
        elif fault == "trickle":
            for byte in body[half:]:  # until the client leaves
                self.wfile.write(bytes([byte]))
                if self.mirror.release.wait(0.05):
                    break
        self.close_connection = True

    def range_of(self, content: bytes, asked: str) -> dict[str, str]:
        """The header that says which part of the content comes, when a part was asked for."""
        start = asked.removeprefix("bytes=").removesuffix("-")
        return {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if asked else {}

    def drip(self) -> None:
        """Headers that do not end before the patience of a test does, a byte at a time."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        for _ in range(250):
            self.wfile.write(b"x")
            if self.mirror.release.wait(0.02):
                break
        self.close_connection = True

    def reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None, announced: int = -1) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if announced < 0 else announced))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no news."""


def serving(files: Mapping[str, bytes]) -> Iterator[Mirror]:
    mirror = Mirror(files)
    handler = type("ThisHandler", (Handler,), {"mirror": mirror})
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    mirror.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield mirror
    finally:
        mirror.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


# ---------------------------------------------------------------------------------------------------------------
# A small release of our own.


def chat_of(words: int) -> bytes:
    turns = [
        [{"role": "user", "content": f"Good morning {n}"}, {"role": "assistant", "content": "Hello"}]
        for n in range(words)
    ]
    return json.dumps([{"turns": turns}]).encode()


QUESTIONS = json.dumps(
    {"abstention": [{"question": "Which?", "ideal_response": "Not told", "rubric": ["says so"]}]}
).encode()
CHAT = "chats/1M/2/chat.json"
SMALL: dict[str, bytes] = {
    "chats/1M/2/chat.json": chat_of(3000),  # about 270 kB: more than one packet
    "chats/1M/2/probing_questions/probing_questions.json": QUESTIONS,
    "chats/1M/10/chat.json": chat_of(3),
    "chats/1M/10/chat_trunecated.json": chat_of(2),
    "chats/1M/10/probing_questions/probing_questions.json": QUESTIONS,
    "chats/100K/1/chat.json": chat_of(1),
    "chats/100K/1/probing_questions/probing_questions.json": QUESTIONS,
}
RELEASE = [ReleaseFile(path, git_id(content)) for path, content in SMALL.items() if path.startswith("chats/1M/")]


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    yield from serving(SMALL)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits between attempts are noted instead of waited."""
    noted: list[float] = []
    monkeypatch.setattr(beam_download, "pause", noted.append)
    return noted


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs' manifest becomes that of the small release."""
    path = tmp_path / "release.tsv"
    path.write_text("# remark\n" + "".join(f"{git_id(content)}\t{name}\n" for name, content in SMALL.items()))
    monkeypatch.setattr(prepare_data, "MANIFEST", path)
    return path


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------------------------------------------------
# Rules.


def test_blob_id_is_git_s_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello\n")
    assert beam_download.blob_id(path) == "ce013625030ba8dba906f756967f9e9ca394464a"  # as `git hash-object` says


def test_manifest_of_the_release() -> None:
    counts = {
        tier: len(beam_download.read_manifest(beam_download.MANIFEST, tier)) for tier in ("100K", "500K", "1M", "10M")
    }
    assert counts == {"100K": 20 + 20 + 10, "500K": 35 + 35, "1M": 35 + 35 + 16, "10M": 10 + 10 + 10}
    assert beam_download.COMMIT in beam_download.MANIFEST.read_text()
    assert beam_download.COMMIT in beam_download.MIRROR


@pytest.mark.parametrize(
    ("chats", "prefer_truncated", "expected"),
    [
        pytest.param(["2"], False, ["2/chat.json", "2/p"], id="one chat"),
        pytest.param(["2", "10"], False, ["2/chat.json", "2/p", "10/chat.json", "10/p"], id="chat.json by default"),
        pytest.param(
            ["2", "10"], True, ["2/chat.json", "2/p", "10/chat_trunecated.json", "10/p"], id="truncated where there"
        ),
        pytest.param([], False, [], id="none"),
    ],
)
def test_which_files(chats: Sequence[str], prefer_truncated: bool, expected: list[str]) -> None:
    found = [file.path.removeprefix("chats/1M/") for file in files_for(RELEASE, chats, prefer_truncated)]
    assert [re.sub("probing_questions/.*", "p", path) for path in found] == expected


@pytest.mark.parametrize(
    ("status", "content_range", "held", "start"),
    [
        pytest.param(200, "", 0, 0, id="all of it"),
        pytest.param(200, "", 70, 0, id="ranges ignored: starts over"),
        pytest.param(206, "bytes 70-99/100", 70, 70, id="goes on"),
        pytest.param(206, "bytes 70-99/*", 70, 70, id="goes on, length unknown"),
        pytest.param(206, "bytes 0-99/100", 0, 0, id="a range that nobody asked for, from the start"),
    ],
)
def test_where_a_body_belongs(status: int, content_range: str, held: int, start: int) -> None:
    assert body_start(status, content_range, None, held) == start


@pytest.mark.parametrize(
    ("status", "content_range", "kind"),
    [
        pytest.param(206, "bytes 0-99/100", AttemptFailed, id="206 from the start"),
        pytest.param(206, "bytes 71-99/100", AttemptFailed, id="206 from further on"),
        pytest.param(206, "", AttemptFailed, id="206 without range"),
        pytest.param(416, "bytes */50", AttemptFailed, id="416"),
        pytest.param(429, "", AttemptFailed, id="429"),
        pytest.param(503, "", AttemptFailed, id="503"),
        pytest.param(404, "", NotThere, id="404"),
        pytest.param(403, "", Refused, id="403"),
        pytest.param(204, "", Refused, id="204"),
    ],
)
def test_what_a_status_means(status: int, content_range: str, kind: type[AttemptFailed]) -> None:
    with pytest.raises(AttemptFailed) as caught:
        body_start(status, content_range, 5.0, 70)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("failures", "asked", "least", "most"),
    [
        pytest.param(1, None, 0.75, 1.25, id="first"),
        pytest.param(4, None, 6, 10, id="doubled"),
        pytest.param(40, None, 60, 60, id="bounded"),
        pytest.param(1, 90.0, 90, 90, id="as the server asks"),
        pytest.param(1, 9999.0, 300, 300, id="the server asks too much"),
        pytest.param(4, 0.5, 6, 10, id="the server asks less"),
    ],
)
def test_wait(failures: int, asked: float | None, least: float, most: float) -> None:
    assert least <= wait_before(failures, asked) <= most


# ---------------------------------------------------------------------------------------------------------------
# Faults. Each is named on the screen, and the file is right in the end.


@pytest.mark.parametrize(
    ("faults", "named", "ranges"),
    [
        pytest.param([], "", [""], id="none"),
        pytest.param(["wrong byte"], "another content", ["", ""], id="wrong byte"),
        pytest.param(["short"], "another content", ["", ""], id="short file that claims to be whole"),
        pytest.param(["HTML"], "an HTML page", ["", ""], id="HTML with status 200"),
        pytest.param(["503", "500"], "HTTP 500", ["", "", ""], id="503 and 500"),
        pytest.param(["bad gzip"], "attempt 2 of 6", ["", ""], id="a content encoding that is none"),
        pytest.param(
            ["cut", "bad gzip"], "attempt 3 of 6", ["", "half", ""], id="cut, then an encoding that is none: all anew"
        ),
        pytest.param(["unasked range"], "", [""], id="206 for all of it, which was not asked for"),
        pytest.param(["redirect"], "", [""], id="redirect is followed"),
        pytest.param(["loop"] * 21, "redirect", [""] * 22, id="redirect in circles"),
        pytest.param(["cut"], "attempt 2 of 6", ["", "half"], id="cut, then resumed"),
        pytest.param(["cut", "no ranges"], "attempt 2 of 6", ["", "half"], id="cut, server without ranges"),
        pytest.param(["cut", "other range"], "another part", ["", "half", ""], id="cut, then another range"),
        pytest.param(["cut", "503"], "HTTP 503", ["", "half", "half"], id="cut, 503, then resumed"),
        pytest.param(["cut", "wrong byte"], "another content", ["", "half", ""], id="cut, then a wrong byte: all anew"),
    ],
)
def test_fault(
    faults: list[str],
    named: str,
    ranges: list[str],
    mirror: Mirror,
    tmp_path: Path,
    waits: list[float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    mirror.faults[CHAT] = list(faults)
    fetch_all(RELEASE, mirror.url, tmp_path, allow_missing=False)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == {
        file.path: SMALL[file.path] for file in RELEASE
    }
    half = f"bytes={len(SMALL[CHAT]) // 2}-"
    assert mirror.asked(CHAT) == [asked and half for asked in ranges]
    screen = capsys.readouterr().err
    assert named in screen
    if named:
        assert f"{CHAT}: " in screen
    assert bool(waits) == bool(named)


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        pytest.param("stall", "no byte for 2 s", id="stalled"),
        pytest.param("trickle", "bytes in 2 s", id="so slow that it counts as stalled"),
    ],
)
def test_slow_server(
    fault: str,
    named: str,
    mirror: Mirror,
    tmp_path: Path,
    waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(beam_download, "READ_TIMEOUT", 2.0)  # more than a busy machine takes for the first half
    monkeypatch.setattr(beam_download, "SLOWEST", 10**7)
    mirror.faults[CHAT] = [fault]
    fetch_all(RELEASE[:1], mirror.url, tmp_path, allow_missing=False)
    assert (tmp_path / CHAT).read_bytes() == SMALL[CHAT]
    assert mirror.asked(CHAT)[1].startswith("bytes="), "it went on where it was"
    assert named in capsys.readouterr().err


def test_headers_that_drip(
    mirror: Mirror,
    tmp_path: Path,
    waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The silence between two bytes stays short, so only a bound on the whole wait ends it."""
    monkeypatch.setattr(beam_download, "ANSWER_TIMEOUT", 1.0)
    mirror.faults[CHAT] = ["dripping headers"]
    fetch_all(RELEASE[:1], mirror.url, tmp_path, allow_missing=False)
    assert (tmp_path / CHAT).read_bytes() == SMALL[CHAT]
    assert f"{CHAT}: no reply within 1 s; attempt 2 of 6" in capsys.readouterr().err


def test_a_wait_that_the_server_names(mirror: Mirror, tmp_path: Path, waits: list[float]) -> None:
    mirror.faults[CHAT] = ["429 with a wait"]
    fetch_all(RELEASE, mirror.url, tmp_path, allow_missing=False)
    assert waits == [7.0]


def test_attempts_that_bring_something_are_not_counted(mirror: Mirror, tmp_path: Path, waits: list[float]) -> None:
    """A connection that is cut again and again still gets the file home: 7 cuts, though 6 attempts are the limit."""
    big = {"chats/1M/2/chat.json": os.urandom(1 << 24)}
    mirror.files = big
    mirror.faults[CHAT] = ["cut"] * 7  # each halves what is left: 8 MB … 128 kB
    fetch_all([ReleaseFile(CHAT, git_id(big[CHAT]))], mirror.url, tmp_path, allow_missing=False)
    assert (tmp_path / CHAT).read_bytes() == big[CHAT]
    assert len(mirror.requests) == 8


def test_wrong_content_to_the_end(mirror: Mirror, tmp_path: Path, waits: list[float]) -> None:
    mirror.faults[CHAT] = ["wrong byte"] * 99
    with pytest.raises(StoppedEarly) as caught:
        fetch_all(RELEASE, mirror.url, tmp_path, allow_missing=False)
    wrong = SMALL[CHAT][:-1] + bytes([SMALL[CHAT][-1] ^ 1])
    for part in (CHAT, git_id(SMALL[CHAT]), git_id(wrong), "--src"):
        assert part in str(caught.value)
    assert len(mirror.asked(CHAT)) == 6
    assert len(waits) == 5, "no wait after the last attempt"
    assert not [name for name in names(tmp_path) if name.startswith(CHAT)], "the bad part is thrown away"


@pytest.mark.parametrize("status", ["401", "403", "410"])
def test_refused_at_once(status: str, mirror: Mirror, tmp_path: Path, waits: list[float]) -> None:
    mirror.faults[CHAT] = [status]
    with pytest.raises(StoppedEarly, match=f"{CHAT}: HTTP {status}"):
        fetch_all(RELEASE, mirror.url, tmp_path, allow_missing=False)
    assert len(mirror.asked(CHAT)) == 1


def test_nobody_listens(tmp_path: Path, waits: list[float]) -> None:
    with pytest.raises(StoppedEarly, match=r"127\.0\.0\.1:9/chats/1M/"):
        fetch_all(RELEASE[:1], "http://127.0.0.1:9", tmp_path, allow_missing=False)
    assert len(waits) == 5


def test_not_there(mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mirror.faults[CHAT] = ["404", "404"]
    with pytest.raises(UsageError, match=f"{CHAT}: HTTP 404.*--allow-missing"):
        fetch_all(RELEASE[:1], mirror.url, tmp_path, allow_missing=False)  # alone: no other thread outlives the error
    fetch_all(RELEASE, mirror.url, tmp_path, allow_missing=True)
    assert names(tmp_path) == {file.path for file in RELEASE} - {CHAT}
    assert f"warning: HTTP 404, the server does not have {CHAT}; left out" in capsys.readouterr().err


def test_many_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [ReleaseFile(f"chats/1M/{n}/chat.json", "0" * 40) for n in range(9)]
    for mirror in serving({}):
        fetch_all(files, mirror.url, tmp_path, allow_missing=True)
    assert len(lines := [line for line in capsys.readouterr().err.splitlines() if "warning" in line]) == 1
    assert lines[0].count("chats/1M/") == 3
    assert lines[0].endswith(" and 6 more; left out")


def test_a_slash_at_the_end_of_the_mirror_is_not_doubled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mirror in serving({}):
        with pytest.raises(UsageError, match=f"^{mirror.url}/{CHAT}: HTTP 404"):
            fetch_all(RELEASE[:1], mirror.url + "//", tmp_path, allow_missing=False)
        assert mirror.asked(CHAT) == [""]
        assert f"from {mirror.url} into" in capsys.readouterr().err


def let_go(mirror: Mirror) -> None:
    """Once four requests are held, wait a little for a fifth, which should not come, then answer them."""
    wait_until(lambda: mirror.now == 4)
    time.sleep(0.1)
    mirror.release.set()


def test_four_at_a_time(tmp_path: Path, waits: list[float]) -> None:
    files = {f"chats/1M/{n}/chat.json": bytes([n]) * 1000 for n in range(12)}
    for mirror in serving(files):
        mirror.faults = {name: ["hold"] for name in list(files)[:4]}
        threading.Thread(target=let_go, args=(mirror,)).start()
        fetch_all([ReleaseFile(name, git_id(content)) for name, content in files.items()], mirror.url, tmp_path, False)
        assert mirror.most_at_once == 4
        assert names(tmp_path) == set(files)


def test_whole_files_are_never_fetched_again(mirror: Mirror, tmp_path: Path) -> None:
    fetch_all(RELEASE, mirror.url, tmp_path, allow_missing=False)
    (tmp_path / RELEASE[1].path).write_bytes(b"damaged on the disk")
    mirror.requests.clear()
    fetch_all(RELEASE, mirror.url, tmp_path, allow_missing=False)
    assert mirror.requests == [(RELEASE[1].path, "")]
    assert (tmp_path / RELEASE[1].path).read_bytes() == SMALL[RELEASE[1].path]


@pytest.mark.parametrize(
    ("part", "ranges"),
    [
        pytest.param(SMALL[CHAT], [], id="killed between the last byte and the name"),
        pytest.param(SMALL[CHAT][:1000], ["bytes=1000-"], id="the beginning"),
        pytest.param(b"x" * 1000, ["bytes=1000-", ""], id="a wrong beginning"),
        pytest.param(SMALL[CHAT] + b"x", [f"bytes={len(SMALL[CHAT]) + 1}-", ""], id="longer than the file"),
        pytest.param(b"", [""], id="empty"),
    ],
)
def test_a_part_left_behind(part: bytes, ranges: list[str], mirror: Mirror, tmp_path: Path, waits: list[float]) -> None:
    left = tmp_path / f"{CHAT}.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(part)
    fetch_all(RELEASE[:1], mirror.url, tmp_path, allow_missing=False)
    assert mirror.asked(CHAT) == ranges
    assert names(tmp_path) == {CHAT}
    assert (tmp_path / CHAT).read_bytes() == SMALL[CHAT]


def test_a_file_that_never_ends(tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_download, "LARGEST", 100_000)
    for mirror in serving({CHAT: b"[" * 300_000}):
        with pytest.raises(StoppedEarly, match="another content") as caught:
            fetch_all(RELEASE[:1], mirror.url, tmp_path, allow_missing=False)
    assert "(300,000 bytes)" not in str(caught.value), "it was not read to its end"
    assert names(tmp_path) == set()


def test_cache_that_cannot_be_written(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "chats").write_text("a file where the folder should be")
    with pytest.raises(StoppedEarly, match="cannot be written") as caught:
        fetch_all(RELEASE, mirror.url, tmp_path, allow_missing=False)
    assert "--mirror" not in str(caught.value), "another host is no help"


def test_a_disk_that_is_full(mirror: Mirror, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StoppedEarly, match=r"cannot be written: File too large; .*make room") as caught:
            fetch_all(RELEASE[:1], mirror.url, tmp_path, allow_missing=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "--mirror" not in str(caught.value), "another host is no help"
    fetch_all(RELEASE[:1], mirror.url, tmp_path, allow_missing=False)
    assert mirror.asked(CHAT) == ["", "bytes=100000-"]
    assert (tmp_path / CHAT).read_bytes() == SMALL[CHAT]


def test_a_proxy_from_the_environment(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", mirror.url)
    fetch_all(RELEASE, "http://release.invalid", tmp_path, allow_missing=False)
    assert names(tmp_path) == {file.path for file in RELEASE}


@pytest.mark.parametrize("arguments", [["--chats", "1"], ["--tokenizer", "hub"]], ids=["data", "vocabulary"])
@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "gopher://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_one_line(
    proxy: str,
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if proxy.startswith("socks"):
        monkeypatch.setitem(sys.modules, "socksio", None)  # as where it is not installed
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    assert prepare_data.main([*arguments, "--out-dir", str(tmp_path / "data")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert "proxy" in error
    assert not list(tmp_path.glob("data/beam_*"))


# ---------------------------------------------------------------------------------------------------------------
# The front door.


def test_downloads_the_tier_of_the_tag(
    mirror: Mirror, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "data"
    assert prepare_data.main(["--tag", "128k", "--mirror", mirror.url + "/", "--out-dir", str(out)]) == 0
    assert {path for path, _ in mirror.requests} == {path for path in SMALL if "/100K/" in path}
    captured = capsys.readouterr()
    assert "1 chat, 2 messages" in captured.out
    assert not {"\x1b", "\r"} & set(captured.err), "plain lines where there is no terminal"


def test_selection_and_truncated_variant(mirror: Mirror, manifest: Path, tmp_path: Path) -> None:
    arguments = ["--mirror", mirror.url, "--out-dir", str(tmp_path / "data"), "--prefer-truncated"]
    assert prepare_data.main([*arguments, "--chats", "10"]) == 0
    assert sorted(path for path, _ in mirror.requests) == [
        "chats/1M/10/chat_trunecated.json",
        "chats/1M/10/probing_questions/probing_questions.json",
    ]
    assert read_pair(Pair.of(tmp_path / "data", "1m")).messages == {"10": 4}


def test_unknown_chat_is_said_before_anything_is_fetched(
    mirror: Mirror, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare_data.main(["--mirror", mirror.url, "--out-dir", str(tmp_path / "data"), "--chats", "2,4"]) == 2
    assert "error: --chats: no chat 4 in the 1m tier; there are 2, 10" in capsys.readouterr().err
    assert mirror.requests == []


def test_missing_on_the_server(
    mirror: Mirror, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.faults[CHAT] = ["404", "404"]
    arguments = ["--mirror", mirror.url, "--out-dir"]
    assert prepare_data.main([*arguments, str(tmp_path / "data")]) == 2
    assert not list((tmp_path / "data").glob("beam_*"))
    # Another folder: in this process, threads of the first run may still be writing into theirs.
    assert prepare_data.main([*arguments, str(tmp_path / "other"), "--allow-missing"]) == 0
    captured = capsys.readouterr()
    assert "1 chat, 6 messages" in captured.out
    assert captured.err.count("error: ") == 1
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param(["--tag", "2m"], ["128k, 500k, 1m, 10m", "--src"], id="unknown tag"),
        pytest.param(["--tag", "../1m", "--src", "."], ["--tag"], id="a tag that is a path"),
        pytest.param(["--mirror", "ftp://host/x"], ["--mirror"], id="no web address"),
        pytest.param(["--mirror", "host/x"], ["--mirror"], id="no scheme"),
        pytest.param(["--mirror", "http://[host/x"], ["--mirror"], id="half an address"),
        pytest.param(["--mirror", "http://host/x?token=1"], ["--mirror http://host/x has a query"], id="query"),
        pytest.param(["--mirror", "http://host/x?"], ["--mirror http://host/x has a query"], id="empty query"),
        pytest.param(
            ["--mirror", "http://host/x#y"], ["--mirror http://host/x has a query or a fragment"], id="fragment"
        ),
        pytest.param(["--chats", ","], ["--chats"], id="no chat"),
    ],
)
def test_bad_usage(arguments: list[str], named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare_data.main([*arguments, "--out-dir", str(tmp_path / "data")]) == 2
    screen = capsys.readouterr().err
    assert screen.startswith("error: ")
    assert screen.count("\n") == 1
    assert all(part in screen for part in named)


# ---------------------------------------------------------------------------------------------------------------
# Real processes, stopped in the middle.

PROGRAM = """
import pathlib, sys, time
import beam_download, prepare_data
beam_download.pause = lambda seconds: time.sleep(min(seconds, 0.05))
prepare_data.MANIFEST = pathlib.Path(sys.argv[1])
sys.exit(prepare_data.main(sys.argv[2:]))
"""


def start(manifest: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", PROGRAM, str(manifest), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("stop", "code"),
    [
        pytest.param(signal.SIGKILL, -9, id="kill -9"),
        pytest.param(signal.SIGTERM, 143, id="SIGTERM"),
        pytest.param(signal.SIGINT, 130, id="Ctrl-C"),
    ],
)
def test_stopped_twice_and_started_again(
    stop: signal.Signals, code: int, mirror: Mirror, manifest: Path, tmp_path: Path
) -> None:
    out = tmp_path / "data"
    arguments = ("--mirror", mirror.url, "--out-dir", str(out))
    size = len(SMALL[CHAT])
    first = size // 2  # `hold` sends half of what is asked for, then nothing
    second = first + (size - first) // 2
    for arrived in (first, second):
        mirror.faults[CHAT] = ["hold"]
        process = start(manifest, *arguments)
        wait_until(lambda: part_of(out) == arrived)  # noqa: B023  (called before the loop goes on)
        wait_until(lambda: len(list((out / ".download").rglob("*.json"))) == 3)
        process.send_signal(stop)
        _, screen = process.communicate(timeout=30)
        assert process.returncode == code, screen
        assert "Traceback" not in screen
        assert not list(out.glob("beam_*")), "nothing half made"
    process = start(manifest, *arguments)
    _, screen = process.communicate(timeout=30)
    assert process.returncode == 0, screen
    assert mirror.asked(CHAT) == ["", f"bytes={first}-", f"bytes={second}-"]
    assert all(len(mirror.asked(file.path)) == 1 for file in files_for(RELEASE, ["2", "10"], False)[1:])
    assert read_pair(Pair.of(out, "1m")).messages == {"2": 6000, "10": 6}


def part_of(out: Path) -> int:
    return beam_download.size_of(out / ".download" / f"{CHAT}.part")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


def test_a_second_process_is_refused(mirror: Mirror, manifest: Path, tmp_path: Path) -> None:
    arguments = ("--mirror", mirror.url, "--out-dir", str(tmp_path / "data"))
    mirror.faults[CHAT] = ["hold"]
    first = start(manifest, *arguments)
    assert mirror.held.wait(30)
    second = start(manifest, *arguments)
    _, screen = second.communicate(timeout=30)
    assert second.returncode == 2
    assert "another prepare_data.py is at work" in screen
    mirror.release.set()
    assert first.wait(30) == 0


@needs_release
def test_the_release_with_faults_and_kills_equals_the_checkout(tmp_path: Path) -> None:
    root = Path(OFFICIAL)
    folders = [root / f"chats/1M/{chat}" for chat in ("3", "6", "8")]
    files = {str(p.relative_to(root)): p.read_bytes() for folder in folders for p in folder.rglob("*.json")}
    out, selection = tmp_path / "a", ("--chats", "3,6,8", "--out-dir")
    whole: set[str] = set()
    for mirror in serving(files):
        arguments = (*selection, str(out), "--mirror", mirror.url)
        asked_in_vain: list[str] = []  # for files that were whole before
        for faults in (
            {
                "chats/1M/3/chat.json": ["503", "hold"],
                "chats/1M/6/chat.json": ["503"] * 5 + ["hold"],
                "chats/1M/8/chat.json": ["HTML"],
                "chats/1M/6/probing_questions/probing_questions.json": ["HTML", "redirect"],
            },
            {"chats/1M/3/chat.json": ["cut", "wrong byte"], "chats/1M/6/chat.json": ["cut", "hold"]},
        ):
            mirror.faults = faults
            mirror.held.clear()
            process = start(beam_download.MANIFEST, *arguments)
            assert mirror.held.wait(60)
            process.kill()
            process.communicate(timeout=30)
            asked_in_vain += [path for path, _ in mirror.requests if path in whole]
            whole = names(out / ".download")
            mirror.requests.clear()
        mirror.faults = {"chats/1M/6/chat.json": ["no ranges"], "chats/1M/8/chat.json": ["short"]}
        assert finished(start(beam_download.MANIFEST, *arguments)) == 0
        asked_in_vain += [path for path, _ in mirror.requests if path in whole]
        assert asked_in_vain == []
        mirror.requests.clear()
        assert finished(start(beam_download.MANIFEST, *arguments)) == 0
        assert mirror.requests == [], "everything is there"
    assert prepare_data.main([*selection, str(tmp_path / "b"), "--src", str(root / "chats/1M")]) == 0
    for name in ("beam_1m_chats.jsonl.gz", "beam_1m_questions.jsonl"):
        assert (out / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def finished(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=120)
    return process.returncode
