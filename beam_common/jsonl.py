"""Reading JSONL files and making their lines; see rowlog for appending.

A file is UTF-8, one JSON object a line, and only "\\n" ends a line: U+2028 or U+0085 inside a text
do not. Reading accepts what other tools leave behind (a byte order mark, CRLF, gzip); writing gives
one complete line for each row.
"""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from beam_common.files import open_maybe_gzip, placeholder
from beam_common.messages import UsageError, one_line, say
from beam_common.rows import Json, Row, key_of

# What a row must hold to be one of ours: names and types. Further keys are allowed.
Wanted = Mapping[str, tuple[type, ...]]
IDENTITY: Wanted = {"chat_id": (str, int), "question_type": (str,), "question_index": (int, str)}
QUESTION: Wanted = {**IDENTITY, "question": (str,), "gold_answer": (str,), "rubric": (list,)}
RESUME: Wanted = {**IDENTITY, "error": (str, NoneType)}
ANSWER: Wanted = {**IDENTITY, "rubric": (list,), "response": (str, NoneType)}
SCORE: Wanted = {**IDENTITY, "score": (int, float)}
VERDICT: Wanted = {
    **IDENTITY,
    "item": (int,),
    "prompt_sha256": (str,),
    "status": (str,),
    "level": (int, float, NoneType),
}
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Line:
    """One line of a file: its number from 1, its offset and bytes, its row or what is wrong."""

    number: int
    start: int
    raw: bytes
    row: Row | None
    problem: str | None


def encode_row(row: Json) -> bytes:
    """One complete line: non-ASCII as itself, lone surrogates as JSON escapes; valid UTF-8."""
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


# ------------------------------------------------------------------------------------------------
# Reading.


def problem_of(row: object, wanted: Wanted) -> str | None:
    """What keeps `row` from being one of the wanted kind; None when it is one."""
    if not isinstance(row, dict):
        return "not a JSON object"
    for name, types in wanted.items():
        value = row.get(name)
        if name not in row:
            return f"no {name!r}"
        if not isinstance(value, types) or isinstance(value, bool) or _is_odd(name, value):
            return f"{name!r} is {one_line(json.dumps(value), 40)}"
    return None


def _is_odd(name: str, value: Any) -> bool:
    """Whether a value of the right type cannot be used."""
    if name in ("question_index", "item"):
        return not re.fullmatch("[0-9]{1,9}", str(value))
    if name in ("score", "level"):
        return value is not None and not 0 <= value <= 1
    if name == "rubric":
        return not all(isinstance(item, str) for item in value)
    return name == "status" and value not in ("scored", "unreadable", "failed")


def parse_line(number: int, start: int, raw: bytes, wanted: Wanted) -> Line | None:
    """The line as a row of the wanted kind or with its problem; None for a blank line."""
    if not raw.strip():
        return None
    row = None
    try:
        row = json.loads(raw)  # with a byte order mark, too
        problem = problem_of(row, wanted)
    except (ValueError, RecursionError) as error:
        problem = one_line(str(error), 100)
    return Line(number, start, raw, None if problem else row, problem)


def read_lines(path: Path, wanted: Wanted) -> Iterator[Line]:
    """Every line that is not blank. UsageError where the file cannot be read to its end."""
    try:
        with open_maybe_gzip(path) as file:
            start = 0
            for number, raw in enumerate(file, 1):
                line = parse_line(number, start, raw, wanted)
                start += len(raw)
                if number == 1 and line and line.problem and (what := placeholder(raw)):
                    raise UsageError(f"{path} is {what}")
                if line:
                    yield line
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "damaged gzip file; make or copy it anew"
        raise UsageError(f"{path}: {reason}") from error


def read_rows(path: Path, wanted: Wanted, fate: str = "left out") -> Iterator[Row]:
    """The rows of a file; lines that are none are reported by number and left out."""
    for problem, lines in itertools.groupby(read_lines(path, wanted), lambda line: line.problem):
        if problem is None:
            yield from (line.row for line in lines if line.row)
        else:
            first, *others = [line.number for line in lines]
            place = f"lines {first} to {others[-1]}" if others else f"line {first}"
            say(f"warning: {path} {place}: {problem}; {fate}")


def unique_rows(path: Path, wanted: Wanted) -> Iterator[tuple[Line, Row]]:
    """The rows of chats or questions, with their lines. UsageError for the first line that is
    damaged, or about what an earlier line was about."""
    seen: set[str] = set()
    for line in read_lines(path, wanted):
        row, problem = line.row or {}, line.problem
        label = " ".join(str(row[name]) for name in IDENTITY if name in row)
        if label in seen:
            problem = f"chat {label} stands twice"
        if problem:
            raise UsageError(f"{path} line {line.number}: {problem}; make the file anew")
        seen.add(label)
        yield line, row


def supersedes(row: Json, earlier: Json | None) -> bool:
    """Whether a later row replaces an earlier one: the last without an error, else the last."""
    return earlier is None or row.get("error") is None or earlier.get("error") is not None


def latest(rows: Iterable[Row], key: Callable[[Row], Hashable] = key_of) -> dict[Any, Row]:
    """Of each key the row that counts, in the order of first occurrence."""
    found: dict[Any, Row] = {}
    for row in rows:
        if supersedes(row, found.get(key(row))):
            found[key(row)] = row
    return found
