"""Downloading over real HTTP from a scripted server: verified, retried, resumed, never used
wrong."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_common import download
from beam_common.download import blob_id, fetch_all, release_files
from beam_common.messages import StoppedEarly, UsageError
from beam_common.rows import PROJECT

CONTENT = bytes(range(1, 251)) * 4000  # a megabyte: more than one packet


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Mirror(http.server.ThreadingHTTPServer):
    """Serves `files`; `faults[path]` says what happens to the next requests for a path."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.faults: dict[str, list[str]] = {}
        self.ranges: dict[str, list[str]] = {}  # of each path, the Range headers in order
        self.release = threading.Event()  # ends what stalls
        self.lock = threading.Lock()
        self.now = self.most = 0  # requests at once
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *request: object) -> None:
        """A client that was killed is no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Mirror

    def do_GET(self) -> None:
        path, asked = self.path[1:], self.headers["Range"]
        with self.server.lock:
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
            self.server.ranges.setdefault(path, []).append(asked)
            faults = self.server.faults.get(path, [])
            fault = faults.pop(0) if faults else ""
        content = self.server.files.get(path)
        start = int(re.findall(r"\d+", asked)[0])
        if fault == "four at once":
            for _ in range(200):  # until three more are here, or have been
                if self.server.most >= 4 or self.server.release.wait(0.02):
                    break
        if content is None:
            self.reply(404, b"404: Not Found")
        elif fault.isdigit():
            self.reply(int(fault), b"trouble")
        elif fault.startswith("sends "):
            self.reply(200, fault.removeprefix("sends ").encode())
        elif fault == "no ranges":
            self.reply(200, content)
        elif fault == "another range":
            self.reply(206, content[5:], first=5)
        elif start and start >= len(content):
            self.reply(416, b"")
        else:
            self.reply(206, content[start:], first=start, fault=fault)
        with self.server.lock:
            self.server.now -= 1

    def reply(self, status: int, body: bytes, first: int = 0, fault: str = "") -> None:
        self.send_response(status)
        if status == 206:
            end = first + len(body)
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{end}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        is_whole = fault not in ("cut", "stall")
        self.wfile.write(body if is_whole else body[: len(body) // 2])
        if fault == "stall":
            self.server.release.wait(30)
        self.close_connection = not is_whole

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    server = Mirror({"a/chat.json": CONTENT})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(download, "LONGEST_SILENCE", 0.5)


def fetch(mirror: Mirror, folder: Path) -> list[str]:
    files = {path: git_id(content) for path, content in mirror.files.items()}
    return fetch_all(files, mirror.url, folder)


def test_blob_ids_are_git_s_own(tmp_path: Path) -> None:
    """`printf hello | git hash-object --stdin`"""
    (tmp_path / "f").write_bytes(b"hello")
    assert blob_id(tmp_path / "f") == "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0"
    assert blob_id(tmp_path / "none") == ""


def test_the_list_of_the_release() -> None:
    files = release_files()
    assert files["src/prompts.py"] == "d1179f4fd38fa5f03bb876e2365ea9733517440a"
    folders = {tuple(path.split("/")[1:3]) for path in files if path.startswith("chats/")}
    counts = [sum(tier == name for tier, _ in folders) for name in ("100K", "500K", "1M", "10M")]
    assert counts == [20, 35, 35, 10]
    assert {len(blob) for blob in files.values()} == {40}


@pytest.mark.parametrize(
    ("faults", "asked"),
    [
        pytest.param([], [0], id="nothing happens"),
        pytest.param(["cut"], [0, 500_000], id="connection breaks: goes on from there"),
        pytest.param(["cut"] * 7, None, id="breaks more often than there are attempts"),
        pytest.param(["stall"], [0, 500_000], id="silence"),
        pytest.param(["503", "429", "408"], [0, 0, 0, 0], id="busy"),
        pytest.param(["no ranges"], [0], id="server knows no ranges"),
        pytest.param(["cut", "no ranges"], [0, 500_000], id="server forgets ranges"),
        pytest.param(["cut", "another range"], [0, 500_000, 0], id="another range than asked for"),
        pytest.param(["sends <!DOCTYPE html>Log in"], [0, 0], id="HTML with status 200"),
        pytest.param(["cut", "416"], [0, 500_000, 0], id="no such range"),
    ],
)
def test_a_file_arrives(
    faults: list[str], asked: list[int] | None, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.faults["a/chat.json"] = faults
    assert fetch(mirror, tmp_path) == []
    assert (tmp_path / "a/chat.json").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["chat.json"], "no part is left"
    if asked:
        assert mirror.ranges["a/chat.json"] == [f"bytes={start}-" for start in asked]


@pytest.mark.parametrize(
    ("part", "asked"),
    [
        pytest.param(CONTENT[:1000], [1000], id="begun"),
        pytest.param(b"x" * 1000, [1000, 0], id="begun with something else"),
        pytest.param(CONTENT, [1_000_000, 0], id="whole"),
        pytest.param(CONTENT + b"x", [1_000_001, 0], id="too long"),
    ],
)
def test_a_part_left_behind(part: bytes, asked: list[int], mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/chat.json.part").write_bytes(part)
    assert fetch(mirror, tmp_path) == []
    assert (tmp_path / "a/chat.json").read_bytes() == CONTENT
    assert mirror.ranges["a/chat.json"] == [f"bytes={start}-" for start in asked]


def test_what_is_whole_is_not_fetched_again(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files |= {"b": b"b", "c": b"c"}
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "c").write_bytes(b"damaged")
    assert fetch(mirror, tmp_path) == []
    assert fetch(mirror, tmp_path) == []
    assert {path: len(ranges) for path, ranges in mirror.ranges.items()} == {
        "a/chat.json": 1,
        "c": 1,
    }
    assert (tmp_path / "c").read_bytes() == b"c"


@pytest.mark.parametrize(
    ("fault", "problem", "requests"),
    [
        pytest.param("403", "HTTP 403", 1, id="forbidden: at once"),
        pytest.param("500", "HTTP 500", 6, id="server in trouble"),
        pytest.param("sends 404: Not Found", 'a server\'s "404: Not Found"', 6, id="404 as 200"),
        pytest.param("sends <html>", "an HTML page", 6, id="HTML page"),
        pytest.param(
            "sends version https://git-lfs.github.com/spec/v1", "a Git LFS pointer", 6, id="LFS"
        ),
        pytest.param("sends x", "another content than the release's", 6, id="another content"),
    ],
)
def test_a_wrong_file_is_never_used(
    fault: str,
    problem: str,
    requests: int,
    mirror: Mirror,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mirror.faults["a/chat.json"] = [fault] * 9
    with pytest.raises(StoppedEarly, match=re.escape(f"{mirror.url}/a/chat.json: ")) as caught:
        fetch(mirror, tmp_path)
    assert problem in str(caught.value)
    assert len(mirror.ranges["a/chat.json"]) == requests
    assert not (tmp_path / "a/chat.json").exists()
    assert len(capsys.readouterr().err.splitlines()) <= 3, "equal retries are told once"


def test_many_files_in_the_same_trouble_are_one_line(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.files = {f"f{n}": b"%d" % n for n in range(20)}
    mirror.faults = {path: ["503"] for path in mirror.files}
    assert fetch(mirror, tmp_path) == []
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[-1] for line in lines[1:]] == [
        "HTTP 503; trying again",
        "the same 19 more times",
    ]


def test_what_the_server_does_not_have_is_named(mirror: Mirror, tmp_path: Path) -> None:
    files = {"x": "0" * 40, "a/chat.json": git_id(CONTENT), "y": "1" * 40}
    assert fetch_all(files, mirror.url, tmp_path) == ["x", "y"]
    assert (tmp_path / "a/chat.json").exists()


def test_four_at_a_time(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files = {f"f{n}": b"%d" % n for n in range(12)}
    mirror.faults = {path: ["four at once"] for path in mirror.files}
    assert fetch(mirror, tmp_path) == []
    assert mirror.most == 4


def test_nobody_listens(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(StoppedEarly, match="refused"):
        fetch_all({"x": "0" * 40}, "http://127.0.0.1:9", tmp_path)


@pytest.mark.parametrize("place", ["a/chat.json.part", "a"])
def test_nothing_is_written_through_a_link(place: str, mirror: Mirror, tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "download"
    if place == "a":
        victim.mkdir()
    else:
        victim.write_text("mine")
    (folder / place).parent.mkdir(parents=True)
    (folder / place).symlink_to(victim)
    with pytest.raises(StoppedEarly, match="is a link"):
        fetch(mirror, folder)
    assert list(victim.iterdir()) == [] if place == "a" else victim.read_text() == "mine"


def test_a_folder_that_cannot_be_written(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file where a folder belongs")
    with pytest.raises(StoppedEarly, match="start again"):
        fetch(mirror, tmp_path)


def test_a_proxy_that_cannot_be_used_is_one_line(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "nonsense://127.0.0.1")
    with pytest.raises(UsageError, match="check the proxy variables"):
        fetch(mirror, tmp_path)


# ------------------------------------------------------------------------------------------------
# Stopped from outside.

PROGRAM = """
import json, sys, prepare_data
from beam_common import command
prepare_data.release_files = lambda: json.loads(sys.argv[1])
command.run(lambda: prepare_data.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_stopped_by_a_signal_and_started_again(
    number: int, code: int, mirror: Mirror, tmp_path: Path
) -> None:
    chat = json.dumps([{"turns": [[{"role": "user", "content": "w" * 100_000}]]}]).encode()
    asked = json.dumps({"abstention": [{"question": "Which?", "rubric": ["r"]}]}).encode()
    chat_path = "chats/1M/2/chat.json"
    questions_path = "chats/1M/2/probing_questions/probing_questions.json"
    prompt = b'unified_llm_judge_base_prompt = "<question>"\n'
    mirror.files = {chat_path: chat, questions_path: asked, "src/prompts.py": prompt}
    mirror.faults[chat_path] = ["stall"]
    files = json.dumps({path: git_id(content) for path, content in mirror.files.items()})
    flags = [files, "--mirror", mirror.url, "--out-dir", str(tmp_path)]
    command = [sys.executable, "-c", PROGRAM, *flags]
    process = subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True)
    part = tmp_path / ".download" / f"{chat_path}.part"
    while process.poll() is None and not (part.exists() and part.stat().st_size == len(chat) // 2):
        mirror.release.wait(0.02)
    process.send_signal(number)
    _, screen = process.communicate(timeout=10)
    assert process.returncode == code
    assert "Traceback" not in screen
    assert subprocess.run(command, cwd=PROJECT, check=False).returncode == 0
    assert mirror.ranges[chat_path] == ["bytes=0-", f"bytes={len(chat) // 2}-"]
    assert (tmp_path / "official_criterion_prompt.txt").read_text() == "<question>"
    assert (tmp_path / "beam_1m_chats.jsonl.gz").exists()
