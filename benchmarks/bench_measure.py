"""What the benchmarks share: made-up chats, children with their CPU time and memory, the conditions, tables."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parent
VOCABULARY = SCRIPTS / "tokenizer" / "tiktoken.model"
LONGEST_CHILD = 900.0  # seconds; a child that takes longer is ended, and the benchmark with it

# Half prose, half the identifiers, figures and punctuation of technical chats: a token takes 4.2 bytes, as in real ones.
WORDS = (
    "the a of to and in is that it for on with as was be this have from or by we can an are not you if more will one "
    "about when there which their time would make like just know take into year good some could them see other than "
    "then now look only come its over think also back after use two how our work first well way even new want because "
    "any these give day most us project budget deadline meeting schedule database endpoint function server request "
    "response question answer customer feature version release test result error memory context token cache query "
    "table column index update review design plan travel recipe garden weather lesson chapter character essay loan "
    "interest payment doctor exercise protein marathon family sister birthday kitchen apartment contract manager "
    "deployment authentication middleware dashboard migration integration performance optimization documentation"
).split()
IDENTIFIERS = ("user_id", "getAccount", "app.config", "/api/v1/login", "JWT", "redis", "useState", "SQLAlchemy", "npm",
               "README.md", "TODO:", "async def", "{x}", "self._rows", "Flask-Login", "Kubernetes")  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------
# Made-up data.


def sentences(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        words = chance.choices(WORDS, k=chance.randint(10, 24))
        words.insert(chance.randrange(len(words)), chance.choice(IDENTIFIERS))
        words.insert(chance.randrange(len(words)), f"{chance.randrange(1, 100_000):,}.{chance.randrange(100):02}")
        words.insert(chance.randrange(len(words)), f"2024-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02},")
        made.append(" ".join(words).capitalize() + chance.choice((". ", ". ", "? ", ":\n- ", " (see above). ")))
    return made


def messages(count: int, characters: int, pool: Sequence[str], seed: int) -> list[dict[str, str]]:
    """A chat of `count` messages and about so many characters, user and assistant in turn."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        size = characters // count * (1 if number % 2 else 0.2) / 0.6
        text = ""
        while len(text) < size:
            text += "".join(chance.choices(pool, k=8))
        made.append({"role": "assistant" if number % 2 else "user", "content": text[: int(size)]})
    return made


ABILITIES_ASKED = (
    "abstention", "contradiction_resolution", "event_ordering", "information_extraction", "instruction_following",
    "knowledge_update", "multi_session_reasoning", "preference_following", "summarization", "temporal_reasoning",
)  # fmt: skip


def question_rows(chats: int, each: int, rubric: Sequence[str] = ("says so",)) -> list[dict[str, Any]]:
    """`each` questions about every chat, dealt over the abilities."""
    return [
        {
            "chat_id": str(chat), "question_type": ABILITIES_ASKED[number % 10], "question_index": number // 10,
            "question": f"What was said about matter {number} of chat {chat}, and when was it changed for the last time?",
            "gold_answer": "a short answer", "rubric": list(rubric), "difficulty": "easy",
        }
        for chat in range(1, chats + 1)
        for number in range(each)
    ]  # fmt: skip


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8", newline="\n")
    return path


def make_chats(path: Path, chats: int, distinct: int, messages_each: int, characters: int) -> None:
    """`write_chats` in a child, so that this process stays small: see `run_child`."""
    sizes = (chats, distinct, messages_each, characters)
    run_child([beside("bench_measure.py"), str(path), *map(str, sizes)]).checked()


def write_chats(path: Path, chats: int, distinct: int, messages_each: int, characters: int) -> Path:
    """A chats file in which `distinct` texts come again and again; every third of them is 5 % longer.

    The longer ones are over the default budget where a chat has a million tokens, so that truncation takes part.
    """
    pool = sentences(20_000, 1)
    texts: list[bytes] = []
    with gzip.GzipFile(path, "wb", compresslevel=1, mtime=0) as file:
        for number in range(1, chats + 1):
            if len(texts) < distinct:
                size = characters * 105 // 100 if len(texts) % 3 == 2 else characters
                texts.append(json.dumps(messages(messages_each, size, pool, number), ensure_ascii=False).encode())
            file.write(b'{"chat_id": "%d", "messages": %b}\n' % (number, texts[number % len(texts)]))
    return path


# ---------------------------------------------------------------------------------------------------------------
# Children.


@dataclass(frozen=True)
class Used:
    """What a child took: CPU and wall seconds, the most memory in bytes; its exit code and what it wrote."""

    cpu: float
    wall: float
    memory: int
    code: int
    out: str
    err: str

    def checked(self, code: int = 0) -> Used:
        """Itself. Raises ChildFailed for another exit code."""
        if self.code != code:
            raise ChildFailed(f"exit code {self.code} instead of {code}\n{self.out[-2000:]}\n{self.err[-4000:]}")
        return self

    def report(self) -> Any:
        """The JSON in the last line of its output."""
        return json.loads(self.checked().out.splitlines()[-1])


class ChildFailed(Exception):
    """A program that was measured did not do its work."""


def run_child(arguments: Sequence[str], timeout: float = LONGEST_CHILD) -> Used:
    """Run Python with `arguments`, as a user would, and say what it took, its own children included.

    The memory of a child counts from that of its parent at the start, so whoever calls this must be small itself.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = start_child(arguments, out, err)
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        unit = 1 if sys.platform == "darwin" else 1024
        return Used(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * unit, process.returncode,
                    out.read().decode("utf-8", "replace"), err.read().decode("utf-8", "replace"))  # fmt: skip


def start_child(
    arguments: Sequence[str], out: Any, err: Any, stdin: Any = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    hosts = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"]))
    environment = {**os.environ, "no_proxy": hosts, "NO_PROXY": hosts}
    return subprocess.Popen([sys.executable, *arguments], stdout=out, stderr=err, stdin=stdin, env=environment)


def script(name: str) -> str:
    return str(SCRIPTS / name)


def beside(name: str) -> str:
    """The path of a program of this folder."""
    return str(HERE / name)


def best(runs: Sequence[float]) -> float:
    return min(runs)


# ---------------------------------------------------------------------------------------------------------------
# What is printed.


def conditions(packages: Sequence[str], more: Sequence[str] = ()) -> str:
    from importlib import metadata

    versions = []
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = ", ".join([f"Python {platform.python_version()}", *versions])
    place = f"{platform.system()} {platform.machine()}, {cpus} CPUs, load {os.getloadavg()[0]:.1f} at the start"
    return "\n".join([f"{today}; {python}; {place}", *more])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be, the first one to the left, the others to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]

    def laid_out(line: Sequence[str]) -> str:
        cells = [line[0].ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)
        ]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([laid_out(lines[0]), rule, *map(laid_out, lines[1:])])


def verdict(fine: bool) -> str:
    return "ok" if fine else "MISSED"


@contextlib.contextmanager
def workplace(keep: str | None = None) -> Iterator[Path]:
    """A folder for the data, gone afterwards unless it was named; SIGTERM cleans up, too."""
    folder = Path(keep) if keep else Path(tempfile.mkdtemp(prefix="beam_bench_"))
    folder.mkdir(parents=True, exist_ok=True)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield folder
    finally:
        signal.signal(signal.SIGTERM, before)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    write_chats(Path(sys.argv[1]), *map(int, sys.argv[2:]))
