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
        self.starts: dict[str, list[int]] = {}  # of each path, from where it was asked for
        self.release = threading.Event()  # ends what stalls
        self.at_once = threading.Semaphore(0)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *request: object) -> None:
        """A client that was killed is no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        path, start = self.path[1:], int(re.findall(r"\d+", self.headers["Range"])[0])
        self.server.starts.setdefault(path, []).append(start)
        faults = self.server.faults.get(path, [])
        fault = faults.pop(0) if faults else ""
        content = self.server.files.get(path, b"")
        status, body, length = 206, content[start:], len(content) - start
        if path not in self.server.files:
            status, body, length = 404, b"404: Not Found", 14
        elif fault.isdigit() or (start and start >= len(content)):
            status, body, length = int(fault or 416), b"trouble", 7
        elif fault.startswith("sends "):
            status, body, length = 200, fault[6:].encode(), len(fault[6:])
        elif fault == "no ranges":
            status, body, length = 200, content, len(content)
        elif fault == "another range":
            start, body, length = start + 5, body[5:], length - 5
        elif fault in ("cut", "stall"):
            body = body[: length // 2]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{start + length - 1}/{len(content)}")
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)
        if fault == "stall":
            self.server.at_once.release()
            self.server.release.wait(30)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    server = Mirror({"a/chat.json": CONTENT})
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.release.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(download, "LONGEST_SILENCE", 0.5)


def fetch(mirror: Mirror, folder: Path) -> None:
    files = {path: git_id(content) for path, content in mirror.files.items()}
    fetch_all(files, mirror.url, folder)


def test_the_list_of_the_release(tmp_path: Path) -> None:
    files = release_files()
    assert files["src/prompts.py"] == "d1179f4fd38fa5f03bb876e2365ea9733517440a"
    chats = {tuple(path.split("/")[1:3]) for path in files if path.startswith("chats/")}
    tiers = [tier for tier, _ in chats]
    assert [tiers.count(tier) for tier in ("100K", "500K", "1M", "10M")] == [20, 35, 35, 10]
    (tmp_path / "f").write_bytes(b"hello")  # printf hello | git hash-object --stdin
    assert blob_id(tmp_path / "f") == "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0"


@pytest.mark.parametrize(
    ("part", "faults", "starts"),
    [
        pytest.param(b"", [], [0], id="nothing happens"),
        pytest.param(b"", ["cut"], [0, 500_000], id="connection breaks: goes on from there"),
        pytest.param(b"", ["cut"] * 7, None, id="breaks more often than there are attempts"),
        pytest.param(b"", ["stall"], [0, 500_000], id="silence"),
        pytest.param(b"", ["503", "429", "408"], [0, 0, 0, 0], id="busy"),
        pytest.param(b"", ["cut", "no ranges"], [0, 500_000], id="server knows no ranges"),
        pytest.param(b"", ["cut", "another range"], [0, 500_000, 0], id="not the range asked for"),
        pytest.param(b"", ["cut", "416"], [0, 500_000, 0], id="no such range"),
        pytest.param(b"", ["sends <!DOCTYPE html>Log in"], [0, 0], id="HTML with status 200"),
        pytest.param(CONTENT[:1000], [], [1000], id="begun by an earlier run"),
        pytest.param(b"x" * 1000, [], [1000, 0], id="begun with something else"),
        pytest.param(CONTENT, [], [1_000_000, 0], id="whole, but not under its name"),
    ],
)
def test_a_file_arrives(
    part: bytes, faults: list[str], starts: list[int] | None, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.faults["a/chat.json"] = faults
    (tmp_path / "a").mkdir()
    if part:
        (tmp_path / "a/chat.json.part").write_bytes(part)
    fetch(mirror, tmp_path)
    assert (tmp_path / "a/chat.json").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["chat.json"], "no part is left"
    assert starts is None or mirror.starts["a/chat.json"] == starts
    before = len(mirror.starts["a/chat.json"])
    fetch(mirror, tmp_path)
    assert len(mirror.starts["a/chat.json"]) == before, "what is whole is not fetched again"


@pytest.mark.parametrize(
    ("fault", "problem", "requests"),
    [
        pytest.param("403", "HTTP 403", 1, id="forbidden: at once"),
        pytest.param("500", "HTTP 500", 6, id="server in trouble"),
        pytest.param("sends 404: Not Found", 'a server\'s "404: Not Found"', 6, id="404 as 200"),
        pytest.param("sends <html>", "an HTML page", 6, id="HTML"),
        pytest.param("sends version https://git-lfs.github", "a Git LFS pointer", 6, id="LFS"),
        pytest.param("sends x", "another content than the release's", 6, id="another content"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_never_used(
    fault: str, problem: str, requests: int, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.faults["a/chat.json"] = [fault] * 9
    with pytest.raises(StoppedEarly, match=re.escape(f"{mirror.url}/a/chat.json: ")) as caught:
        fetch(mirror, tmp_path)
    assert problem in str(caught.value)
    assert len(mirror.starts["a/chat.json"]) == requests
    assert not (tmp_path / "a/chat.json").exists()


def test_many_files_in_the_same_trouble_are_one_line(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.files = {f"f{n}": b"%d" % n for n in range(20)}
    mirror.faults = {path: ["503"] for path in mirror.files}
    fetch(mirror, tmp_path)
    lines = [line.split(": ")[-1] for line in capsys.readouterr().err.splitlines()]
    assert lines[1:] == ["HTTP 503; asking again", "the same 19 more times"]


def test_four_at_a_time(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LONGEST_SILENCE", 30)
    mirror.files = {f"f{n}": b"%d" % n for n in range(12)}
    mirror.faults = {path: ["stall"] for path in mirror.files}
    thread = threading.Thread(target=fetch, args=(mirror, tmp_path))
    thread.start()
    assert all(mirror.at_once.acquire(timeout=30) for _ in range(4))
    assert not mirror.at_once.acquire(timeout=0.1), "no fifth one"
    mirror.release.set()
    thread.join()
    assert len(list(tmp_path.iterdir())) == 12


@pytest.mark.parametrize("place", ["a/chat.json.part", "a"])
def test_nothing_is_written_through_a_link(place: str, mirror: Mirror, tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "download"
    (victim / "chat.json").mkdir(parents=True)
    (folder / place).parent.mkdir(parents=True)
    (folder / place).symlink_to(victim)
    with pytest.raises(StoppedEarly, match="is a link"):
        fetch(mirror, folder)
    assert [path.name for path in victim.rglob("*")] == ["chat.json"]


def test_a_proxy_that_cannot_be_used(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "nonsense://127.0.0.1")
    with pytest.raises(UsageError, match="check --mirror, the proxy variables"):
        fetch(mirror, tmp_path)


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
    chat = "chats/1M/2/chat.json"
    said = [{"turns": [[{"role": "user", "content": "w" * 100_000}]]}]
    asked = {"abstention": [{"question": "Which?", "rubric": ["r"]}]}
    mirror.files = {
        chat: json.dumps(said).encode(),
        "chats/1M/2/probing_questions/probing_questions.json": json.dumps(asked).encode(),
        "src/prompts.py": b'unified_llm_judge_base_prompt = "<question>"\n',
    }
    mirror.faults[chat] = ["stall"]
    files = json.dumps({path: git_id(content) for path, content in mirror.files.items()})
    flags = [files, "--mirror", mirror.url, "--out-dir", str(tmp_path)]
    command = [sys.executable, "-c", PROGRAM, *flags]
    process = subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True)
    part, half = tmp_path / ".download" / f"{chat}.part", len(mirror.files[chat]) // 2
    while process.poll() is None and not (part.exists() and part.stat().st_size == half):
        mirror.release.wait(0.02)
    process.send_signal(number)
    _, screen = process.communicate(timeout=10)
    assert process.returncode == code
    assert "Traceback" not in screen
    assert subprocess.run(command, cwd=PROJECT, check=False).returncode == 0
    assert mirror.starts[chat] == [0, half]
    assert (tmp_path / "beam_1m_chats.jsonl.gz").exists()
