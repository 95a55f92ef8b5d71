"""What the benchmarks share: made-up data, children and what they take, budgets."""

from __future__ import annotations

import gzip
import json
import os
import platform
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "examples")]

from beam_common.places import WAITS  # noqa: E402
from beam_common.rows import ABILITIES, DATA_DIR  # noqa: E402

USAGE = {"prompt_tokens": 1_000_000, "completion_tokens": 300}
VERDICT = '{"score": 1.0, "reason": "The response states what the criterion asks for."}'


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), "utf-8", newline="\n")
    return path


def sample_sentences() -> list[str]:
    """Sentences of the sample's chats: their tokens are as long as those of real chats."""
    with gzip.open(DATA_DIR / "beam_sample_chats.jsonl.gz", "rt", encoding="utf-8") as file:
        chats = [json.loads(line)["messages"] for line in file]
    text = "\n".join(message["content"] for chat in chats for message in chat)
    return re.findall(r"[^.?!\n]{20,}[.?!\n]+", text)


def write_chats(path: Path, chats: int, distinct: int, messages: int, characters: int) -> None:
    """A chats file in which `distinct` texts come again and again; every third is 5 % longer."""
    sentences, chance = sample_sentences(), random.Random(1)
    texts: list[bytes] = []
    with gzip.GzipFile(path, "wb", compresslevel=1, mtime=0) as file:
        for number in range(chats):
            if len(texts) < distinct:
                size = characters * (1.05 if number % 3 == 2 else 1) / messages
                rows = []
                for role, share in (("user", 0.4), ("assistant", 1.6)) * (messages // 2):
                    content = ""
                    while len(content) < size * share:
                        content += chance.choice(sentences)
                    rows.append({"role": role, "content": content[: int(size * share)]})
                texts.append(json.dumps(rows, ensure_ascii=False).encode())
            text = texts[number % distinct]
            file.write(b'{"chat_id": "%d", "messages": %b}\n' % (number + 1, text))


def question_rows(chats: int, each: int) -> list[dict[str, Any]]:
    """`each` questions about every chat, dealt over the abilities."""
    return [
        {
            "chat_id": str(chat),
            "question_type": ABILITIES[number % 10],
            "question_index": number // 10,
            "question": f"What was said about matter {number} of chat {chat}, and when?",
            "gold_answer": "a short answer",
            "rubric": ["says so"],
        }
        for chat in range(1, chats + 1)
        for number in range(each)
    ]


def answer_rows(count: int, criteria: int) -> list[dict[str, Any]]:
    """Answers of a few sentences, with so many criteria each."""
    pool = sample_sentences()
    rows = question_rows(-(-count // 20), 20)[:count]
    for n, row in enumerate(rows):
        row["question_type"], row["question_index"] = "summarization", n  # no event_ordering
        row["rubric"] = [f"The response should state: {pool[n + k]}" for k in range(criteria)]
        row |= {"response": "".join(pool[n : n + 4]), "finish_reason": "stop", "error": None}
        row |= USAGE
    return rows


def small_run(program: str, place: str, requests: int, base_url: str) -> list[object]:
    """Flags for so many requests: questions about small chats, or answers of two criteria."""
    folder = Path(place)
    if program == "beam_judge.py":
        answers = write_rows(folder / "judged.jsonl", answer_rows(requests // 2, 2))
        asking = ["--judge-model", "m", "--judge-base-url", base_url, "--judge-api-key", "none"]
        return ["--answers", answers, *asking, "--criterion-prompt", "builtin"]
    chats = -(-requests // 20)
    write_chats(folder / "chats.gz", chats, chats, 2, 100)
    questions = write_rows(folder / "questions.jsonl", question_rows(chats, 20)[:requests])
    files = ["--chats-file", folder / "chats.gz", "--questions-file", questions]
    return [*files, "--model", "m", "--base-url", base_url, "--api-key", "none"]


@dataclass(frozen=True)
class Used:
    """What a child took: CPU and wall seconds, the most memory in MiB; the last line it wrote."""

    cpu: float
    wall: float
    memory: float
    last: str


def run_python(*arguments: object) -> Used:
    """Run Python as a user would, and say what it took. Raises RuntimeError when it fails."""
    words = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    with tempfile.TemporaryFile() as out:
        files = [(os.POSIX_SPAWN_DUP2, out.fileno(), number) for number in (1, 2)]
        started = time.perf_counter()
        child = os.posix_spawn(sys.executable, words, environment, file_actions=files)
        _, code, usage = os.wait4(child, 0)
        wall = time.perf_counter() - started
        out.seek(0)
        said = out.read().decode("utf-8", "replace")
    if code:
        raise RuntimeError(f"{' '.join(words)}\nended with {code}:\n{said[-4000:]}")
    memory = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return Used(usage.ru_utime + usage.ru_stime, wall, memory, said.strip().rpartition("\n")[2])


def launcher(program: str, shorter: float) -> list[object]:
    """How to start a program whose waits are so many times shorter."""
    waits = {name: seconds / shorter for name, seconds in asdict(WAITS).items()}
    return [PROJECT / "tests" / "launcher.py", program, json.dumps(waits)]


class Budgets:
    """What was measured beside what is allowed."""

    def __init__(self, note: str) -> None:
        self.rows: list[list[str]] = [["budget", "measured", "allowed", ""]]
        versions = [f"{name} {metadata.version(name)}" for name in ("openai", "tiktoken")]
        python = f"Python {platform.python_version()}, {', '.join(versions)}"
        load = f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start"
        print(f"{time.strftime('%Y-%m-%d')}; {python}; {load}\n{note}\n", flush=True)

    def add(self, what: str, measured: float, sign: str, limit: float) -> None:
        fine = measured <= limit if sign == "≤" else measured >= limit
        figures = [f"{measured:.4g}", f"{sign} {limit:g}"]
        self.rows.append([what, *figures, "ok" if fine else "MISSED"])

    def show(self) -> int:
        """Print all; the exit code of the benchmark."""
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        for row in self.rows:
            what, *others = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            print("  ".join([what, *others]).rstrip())
        return int(any(row[-1] == "MISSED" for row in self.rows))
