"""What several tests share: a clean environment, data, endpoints, the programs' front doors."""

from __future__ import annotations

import functools
import gzip
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from scripted_endpoint import ScriptedEndpoint

from beam_common import messages, run
from beam_common.places import WAITS

PATIENCE = 60  # seconds after which a stuck run of a program fails its test
# Started in the background: what we start shall hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
LAUNCHER = Path(__file__).with_name("launcher.py")
# The same examples in every run, without a limit of time; --hypothesis-profile=default looks for
# new ones.
hypothesis.settings.load_profile("ci")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches a test, and no secret of one test the next."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(
            ("OPENAI_", "BEAM_API_", "JUDGE_API_")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setattr(messages, "_secrets", set())
    monkeypatch.setattr(messages, "_public", set())


@pytest.fixture(scope="session", autouse=True)
def one_tls_context() -> Iterator[None]:
    """Every client loads all certificates, which takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


# --- Data -----------------------------------------------------------------------------------------


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_bytes(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows))
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of an output; a missing file holds none. Every line must be JSON and whole."""
    data = path.read_bytes() if path.exists() else b""
    assert not data or data.endswith(b"\n")
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def question_rows(
    chats: int, questions: int, ability: str = "information_extraction"
) -> list[dict[str, Any]]:
    """Question n (from 0) of chat c (from 1) reads `c.n?`."""
    return [
        {
            "chat_id": str(chat),
            "question_type": ability,
            "question_index": number,
            "question": f"{chat}.{number}?",
            "gold_answer": "gold",
            "rubric": ["the answer names gold"],
            "difficulty": "unknown",
        }
        for chat in range(1, chats + 1)
        for number in range(questions)
    ]


@dataclass(frozen=True)
class Pair:
    """A chats file and a questions file."""

    chats: Path
    questions: Path

    @property
    def flags(self) -> list[str]:
        return ["--chats-file", str(self.chats), "--questions-file", str(self.questions)]


@pytest.fixture
def make_pair(tmp_path: Path) -> Callable[..., Pair]:
    """`make_pair(chats=2, questions=3, rounds=2)`: chats of so many user/assistant pairs."""

    def make(chats: int = 1, questions: int = 1, rounds: int = 2) -> Pair:
        rows = []
        for chat in range(1, chats + 1):
            texts = [
                text
                for n in range(rounds)
                for text in (f"chat {chat} says {n}", f"chat {chat} hears {n}")
            ]
            roles = ("user", "assistant") * rounds
            messages = [
                {"role": role, "content": text} for role, text in zip(roles, texts, strict=True)
            ]
            rows.append(json.dumps({"chat_id": str(chat), "messages": messages}).encode() + b"\n")
        pair = Pair(tmp_path / "small_chats.jsonl.gz", tmp_path / "small_questions.jsonl")
        pair.chats.write_bytes(gzip.compress(b"".join(rows), mtime=0))
        write_lines(pair.questions, question_rows(chats, questions))
        return pair

    return make


def answer_rows(chats: int, questions: int, **changes: Any) -> list[dict[str, Any]]:
    """Rows of an answers file, for the judge."""
    rows = []
    for question in question_rows(chats, questions):
        del question["difficulty"]
        answer = {"response": f"answer to {question['question']}", "finish_reason": "stop"}
        rows.append(
            {
                **question,
                **answer,
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "error": None,
                **changes,
            }
        )
    return rows


# --- Endpoints and programs -----------------------------------------------------------------------


@pytest.fixture
def endpoint() -> Iterator[Callable[..., ScriptedEndpoint]]:
    """`endpoint(script)`: a scripted endpoint until the test is over; honest without a script."""
    with ExitStack() as serving:
        yield lambda script=None, **kwargs: serving.enter_context(
            ScriptedEndpoint(script, **kwargs)
        )


@dataclass(frozen=True)
class Ran:
    """What a run of a program left: its exit code, what it printed, and the rows of its output."""

    rc: int
    out: str
    err: str
    output: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read_rows(self.output)

    @property
    def errors(self) -> list[str]:
        return [row["error"] for row in self.rows if row["error"] is not None]


def _stuck(*_: object) -> None:
    raise AssertionError(f"the program did not end within {PATIENCE} s")


@dataclass
class Programs:
    """The programs' front doors in this process, with short waits. Later flags win over ours."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def _run(self, main: Callable[[list[str]], int], argv: list[str], output: Path) -> Ran:
        self.capsys.readouterr()
        before = signal.signal(signal.SIGALRM, _stuck)
        signal.alarm(PATIENCE)
        try:
            rc = main(argv)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        captured = self.capsys.readouterr()
        return Ran(rc, captured.out, captured.err, output)

    def generate(self, pair: Pair, base_url: str, *flags: str) -> Ran:
        import beam_generate

        output = self.folder / "answers.jsonl"
        argv = [
            "--base-url",
            base_url,
            "--model",
            "m",
            "--api-key",
            "k",
            "--output",
            str(output),
            "--tokenizer",
            "",
        ]
        return self._run(beam_generate.main, [*argv, *pair.flags, *flags], output)

    def judge(self, answers: Path, base_url: str, *flags: str) -> Ran:
        import beam_judge

        output = self.folder / "scores.jsonl"
        argv = [
            "--judge-base-url",
            base_url,
            "--judge-model",
            "j",
            "--judge-api-key",
            "k",
            "--output",
            str(output),
        ]
        argv += ["--criterion-prompt", "builtin"]
        return self._run(beam_judge.main, [*argv, "--answers", str(answers), *flags], output)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between attempts take no time worth mentioning, and nothing waits for the disk."""
    monkeypatch.setattr(run, "WAITS", replace(WAITS, first=0.01, longest=0.08))
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a run has stopped: for an endpoint that must not outrun it."""
    done, stop = threading.Event(), run.Run.stop

    def noticed(*args: Any, **kwargs: Any) -> None:
        stop(*args, **kwargs)
        done.set()

    monkeypatch.setattr(run.Run, "stop", noticed)
    return done


@pytest.fixture
def programs(tmp_path: Path, capsys: pytest.CaptureFixture[str], quick: None) -> Programs:
    return Programs(tmp_path, capsys)


@pytest.fixture
def run_generate(programs: Programs) -> Callable[..., Ran]:
    """`run_generate(pair, base_url, *flags)`."""
    return programs.generate


@pytest.fixture
def run_judge(programs: Programs) -> Callable[..., Ran]:
    """`run_judge(answers_file, base_url, *flags)`."""
    return programs.judge


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`launch("generate", *argv, env={...}, **popen)`: a program as a process of this test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        program: str, *argv: str, env: dict[str, str] | None = None, **popen: Any
    ) -> subprocess.Popen[bytes]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": tmp_path, **popen}
        environment = {**os.environ, **(env or {})}
        process = subprocess.Popen(
            [sys.executable, str(LAUNCHER), program, *argv], env=environment, **pipes
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
