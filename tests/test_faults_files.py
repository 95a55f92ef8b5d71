"""Faults that users have met with output files and with runs, replayed against both programs through their front doors.

Each test says in its id which line of the list of faults it stands for, `24-torn-in-a-string`; the ids that begin with
`+` are cases of the same kinds.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import LAUNCHER, Pair, Programs, Ran, answer_rows, read_rows, write_lines
from scripted_endpoint import (
    Recorded,
    ScriptedEndpoint,
    chunk,
    criterion_of,
    hang,
    is_judge,
    question_of,
    say,
    sse,
    status,
)

Launch = Callable[..., "subprocess.Popen[bytes]"]
Serve = Callable[..., ScriptedEndpoint]
MakePair = Callable[..., Pair]
KILLS = int(os.environ.get("BEAM_TEST_KILLS", "8"))  # moments at which each program is killed
BOM = b"\xef\xbb\xbf"


def key(row: dict[str, Any]) -> tuple[str, str, int]:
    return str(row["chat_id"]), row["question_type"], int(row["question_index"])


def by_key(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int], dict[str, Any]]:
    return {key(row): row for row in rows}


def line_of(row: Any) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def asked(endpoint: ScriptedEndpoint) -> list[str]:
    """The questions of all requests so far, sorted; with the judge, once for each call."""
    return sorted(question_of(request) for request in endpoint.requests)


def marked(start: int) -> list[str]:
    """Flags of a run whose requests are to be told from those of others."""
    return ["--header", f"X-Start={start}"]


def asked_by(endpoint: ScriptedEndpoint, start: int) -> list[str]:
    """The questions of a marked run. Position does not tell: what a stopped run had sent may arrive after its end."""
    return sorted(question_of(request) for request in endpoint.requests if request.headers.get("x-start") == str(start))


def sidecar_of(output: Path) -> dict[str, Any]:
    return dict(json.loads(output.with_suffix(".run.json").read_bytes()))


def details_of(scores: Path) -> Path:
    return scores.with_suffix(".details.jsonl")


def judge_says(level: float = 1.0) -> Any:
    return say(json.dumps({"score": level, "reason": "because"}))


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Every write beyond `size` bytes of a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def generate_argv(pair: Pair, base_url: str, output: Path, *flags: str) -> list[str]:
    argv = ["--base-url", base_url, "--model", "m", "--api-key", "k", "--output", str(output), "--tokenizer", ""]
    return [*argv, *pair.flags, *flags]


def judge_argv(answers: Path, base_url: str, output: Path, *flags: str) -> list[str]:
    argv = ["--judge-base-url", base_url, "--judge-model", "j", "--judge-api-key", "k", "--output", str(output)]
    return [*argv, "--answers", str(answers), *flags]


def no_numbers_that_are_none(ran: Ran) -> None:
    assert not re.search(r"\b(nan|inf|infinity)\b", ran.out + ran.err, re.IGNORECASE)
    assert "Traceback" not in ran.err


# --- 24 to 28: what stands in the files ------------------------------------------------------------------------------

ROWS = [{**row, "response": "yes, 雪"} for row in answer_rows(1, 4)]
WHOLE, LAST = b"".join(map(line_of, ROWS[:3])), line_of(ROWS[3])

# The end of a file of four rows, and how many of them are whole.
TORN_ENDS = [
    pytest.param(LAST[:150], 3, id="24-torn-in-a-string"),
    pytest.param(LAST[: LAST.index("雪".encode()) + 2], 3, id="24-torn-in-a-character"),
    pytest.param(LAST[:-2], 3, id="24-only-the-brace-is-missing"),
    pytest.param(LAST[:-1], 4, id="24-only-the-line-end-is-missing"),
    pytest.param(LAST + b"\0" * 4096, 4, id="24-zero-bytes-after-a-line"),
    pytest.param(LAST[:-1] + b"\0" * 4096, 4, id="24-zero-bytes-after-a-row"),
    pytest.param(LAST[:150] + b"\0" * 4096, 3, id="24-zero-bytes-after-a-torn-row"),
    pytest.param(b"null\n", 3, id="+24-null-at-the-end"),
    pytest.param(b"[]\n", 3, id="+24-list-at-the-end"),
    pytest.param(LAST[:150] + b"\n", 3, id="+24-torn-row-and-a-line-end"),
    pytest.param(b"", 3, id="+24-cut-between-two-lines"),
]


@pytest.mark.parametrize(("end", "whole"), TORN_ENDS)
def test_a_torn_end_costs_the_torn_question_only(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], tmp_path: Path, end: bytes, whole: int
) -> None:
    output = tmp_path / "answers.jsonl"
    output.write_bytes(WHOLE + end)
    served = endpoint()
    ran = run_generate(make_pair(1, 4), served.base_url)
    assert ran.rc == 0, ran.err
    assert asked(served) == ["1.0?", "1.1?", "1.2?", "1.3?"][whole:]
    assert output.read_bytes().startswith(WHOLE)
    assert sorted(map(key, ran.rows)) == sorted(map(key, ROWS))
    assert list(ran.rows[0]) == list(ROWS[0])
    torn = end.removeprefix(LAST).removeprefix(LAST[:-1]) if whole == 4 else end
    moved = tmp_path / "answers.jsonl.damaged"
    assert (moved.read_bytes().rstrip(b"\n") if moved.exists() else b"") == torn.rstrip(b"\n")


@pytest.mark.parametrize(("end", "whole"), TORN_ENDS)
def test_the_judge_leaves_a_torn_answer_out(
    endpoint: Serve, run_judge: Callable[..., Ran], tmp_path: Path, end: bytes, whole: int
) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_bytes(WHOLE + end)
    served = endpoint(lambda request: judge_says())
    ran = run_judge(answers, served.base_url)
    assert ran.rc == 0, ran.err
    assert len(served.requests) == whole or (whole == 4 and b"\0" in end and len(served.requests) == 3)
    assert answers.read_bytes() == WHOLE + end
    assert ("line 4" in ran.err) == (len(served.requests) == 3 and end != b"")


@dataclass
class Judged:
    """Four answers with two criteria each and their finished scores. `level` is what the judge finds in the first one."""

    answers: Path
    scores: Path
    served: ScriptedEndpoint
    programs: Programs
    level: float = 0.5

    @property
    def details(self) -> Path:
        return details_of(self.scores)

    @property
    def calls(self) -> list[str]:
        """The questions of the calls since then."""
        return sorted(question_of(request) for request in self.served.requests[8:])

    def again(self, *flags: str) -> Ran:
        return self.programs.judge(self.answers, self.served.base_url, *flags)

    def change_last_answer(self) -> None:
        rows = read_rows(self.answers)
        write_lines(self.answers, [*rows[:3], {**rows[3], "response": "another"}])


@pytest.fixture
def judged(endpoint: Serve, programs: Programs, tmp_path: Path) -> Judged:
    answers = write_lines(tmp_path / "answers.jsonl", [{**row, "rubric": ["é one", "two"]} for row in ROWS])
    served = endpoint(lambda request: judge_says(1.0 if criterion_of(request) == "two" else made.level))
    made = Judged(answers, tmp_path / "scores.jsonl", served, programs)
    ran = made.again()
    assert (ran.rc, len(served.requests), len(ran.rows)) == (0, 8, 4)
    return made


def cut_last_line(path: Path, keep: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:keep])


@pytest.mark.parametrize(
    ("cut", "calls"),
    [
        pytest.param({"scores": 30}, 0, id="24-score-torn-its-details-there"),
        pytest.param({"scores": 0}, 0, id="+24-stopped-between-details-and-score"),
        pytest.param({"scores": -1}, 0, id="24-score-without-line-end"),
        pytest.param({"details": -1}, 0, id="24-details-without-line-end"),
        pytest.param({"scores": 0, "details": 90}, 2, id="24-details-torn-no-score"),
        pytest.param({"scores": 30, "details": 0}, 2, id="+24-score-torn-no-details"),
        pytest.param({"details": 90}, 0, id="+24-details-torn-their-score-there"),
    ],
)
def test_torn_scores_and_details(judged: Judged, cut: dict[str, int], calls: int) -> None:
    before, details = judged.scores.read_bytes(), read_rows(judged.details)
    last = key(read_rows(judged.scores)[-1])
    write_lines(judged.details, sorted(details, key=lambda row: key(row) == last))  # the same question is last in both
    for name, keep in cut.items():
        cut_last_line(judged.scores if name == "scores" else judged.details, keep)
    ran = judged.again()
    assert ran.rc == 0, ran.err
    assert len(judged.calls) == calls
    assert judged.scores.read_bytes() == before
    if cut != {"details": 90}:
        assert by_key(read_rows(judged.details)) == by_key(details)


MIDDLES = [
    pytest.param(b"null", id="25-null"),
    pytest.param(b"[]", id="25-list"),
    pytest.param(LAST[:150], id="25-torn-row"),
    pytest.param(LAST.strip() + LAST.strip(), id="25-two-rows-glued"),
    pytest.param(b"\0" * 512, id="+25-zero-bytes"),
    pytest.param(b'{"chat_id": "1\xff"}', id="+25-invalid-utf-8"),
    pytest.param(line_of({**ROWS[3], "question_index": None}).strip(), id="+25-row-without-index"),
    pytest.param(b'{"chat_id": "1"}', id="+25-object-of-another-kind"),
]


@pytest.mark.parametrize("middle", MIDDLES)
def test_damage_in_the_middle_is_named_and_asked_again(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], tmp_path: Path, middle: bytes
) -> None:
    output = tmp_path / "answers.jsonl"
    content = line_of(ROWS[0]) + middle + b"\n" + line_of(ROWS[1]) + line_of(ROWS[2])
    output.write_bytes(content)
    served = endpoint()
    ran = run_generate(make_pair(1, 4), served.base_url)
    assert ran.rc == 0, ran.err
    assert asked(served) == ["1.3?"]
    assert "answers.jsonl line 2 is damaged" in ran.err
    after = output.read_bytes()
    assert after.startswith(content)
    assert key(json.loads(after[len(content) :])) == key(ROWS[3])
    again = run_generate(make_pair(1, 4), served.base_url)
    assert (again.rc, len(served.requests), output.read_bytes()) == (0, 1, after)


@pytest.mark.parametrize("middle", MIDDLES)
def test_damage_in_the_answers_is_named_by_the_judge(
    endpoint: Serve, run_judge: Callable[..., Ran], tmp_path: Path, middle: bytes
) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_bytes(line_of(ROWS[0]) + middle + b"\n" + line_of(ROWS[1]))
    ran = run_judge(answers, endpoint(lambda request: judge_says()).base_url)
    assert (ran.rc, sorted(map(key, ran.rows))) == (0, [key(ROWS[0]), key(ROWS[1])])
    assert "answers.jsonl line 2: " in ran.err


def damage_line(path: Path, number: int, to: bytes) -> bytes:
    """Put `to` in place of a line; the whole content afterwards."""
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = to
    path.write_bytes(b"\n".join(lines))
    return path.read_bytes()


@pytest.mark.parametrize("details", ["kept", "gone"])
@pytest.mark.parametrize(
    "middle", [b"null", b"[]", b'{"chat_id": "1", "question_ty'], ids=["25-null", "25-list", "25-torn"]
)
def test_damage_in_the_scores(judged: Judged, middle: bytes, details: str) -> None:
    before = by_key(read_rows(judged.scores))
    content = damage_line(judged.scores, 2, middle)
    if details == "gone":
        judged.details.unlink()
    ran = judged.again()
    assert ran.rc == 0, ran.err
    assert "scores.jsonl line 2 is damaged" in ran.err
    assert len(judged.calls) == (0 if details == "kept" else 2)
    assert judged.scores.read_bytes().startswith(content)
    lines = [json.loads(line) for line in judged.scores.read_bytes().splitlines() if line != middle]
    assert by_key(lines) == before
    assert len(lines) == 4


def test_damage_in_the_details_costs_no_call(judged: Judged) -> None:
    """25: the score of that question is there, and a score without details stands."""
    before = judged.scores.read_bytes()
    content = damage_line(judged.details, 3, b"null")
    ran = judged.again()
    assert (ran.rc, judged.calls) == (0, [])
    assert "scores.details.jsonl line 3 is damaged" in ran.err
    assert (judged.scores.read_bytes(), judged.details.read_bytes()) == (before, content)


def foreign(data: bytes, how: str) -> bytes:
    """What another program makes of a file when it saves it."""
    return {"26-mark": BOM + data, "26-crlf": data.replace(b"\n", b"\r\n"), "26-both": BOM + data.replace(b"\n", b"\r\n"),
            "+26-blank-lines": data.replace(b"\n", b"\n\n"), "26-as-it-is": data}[how]  # fmt: skip


SAVED = ["26-mark", "26-crlf", "26-both", "+26-blank-lines", "26-as-it-is"]
ODD_TEXT = "one\u2028two\x85three\x0bfour\x1cfive\u2029six"


@pytest.mark.parametrize("how", SAVED)
def test_one_record_a_line_in_every_file(
    make_pair: MakePair,
    endpoint: Serve,
    run_generate: Callable[..., Ran],
    run_judge: Callable[..., Ran],
    tmp_path: Path,
    how: str,
) -> None:
    pair = make_pair(1, 3)
    questions = [json.loads(line) | {"question": f"{n} {ODD_TEXT}"} for n, line in enumerate(pair.questions.open())]
    pair.questions.write_bytes(foreign(b"".join(map(line_of, questions)), how))
    chat = {"chat_id": "1", "messages": [{"role": "user", "content": ODD_TEXT}, {"role": "assistant", "content": "a"}]}
    pair.chats.write_bytes(gzip.compress(foreign(line_of(chat), how)))
    output = tmp_path / "answers.jsonl"
    kept = [{**row, "response": ODD_TEXT} for row in answer_rows(1, 2)]
    output.write_bytes(foreign(b"".join(map(line_of, kept)), how))

    served = endpoint(lambda request: judge_says() if is_judge(request) else say(ODD_TEXT))
    ran = run_generate(pair, served.base_url)
    assert ran.rc == 0, ran.err
    assert [request.messages[0]["content"] for request in served.requests] == [ODD_TEXT]
    assert served.requests[0].messages[-1]["content"].endswith(f"Question: 2 {ODD_TEXT}")
    lines = output.read_bytes().removeprefix(BOM).split(b"\n")
    assert [json.loads(line)["response"] for line in lines if line.strip()] == [ODD_TEXT] * 3

    assert run_judge(output, served.base_url).rc == 0
    scores = tmp_path / "scores.jsonl"
    assert [row["score"] for row in read_rows(scores)] == [1.0] * 3
    calls = len(served.requests)
    assert calls == 1 + 3
    for path in (scores, details_of(scores)):
        path.write_bytes(foreign(path.read_bytes(), how))
    before = scores.read_bytes()
    again = run_judge(output, served.base_url)
    assert (again.rc, len(served.requests), scores.read_bytes()) == (0, calls, before)
    assert "overall: 1.0000" in again.out
    assert "warning" not in again.err


SURROGATES = [
    pytest.param(say("a \ud83d b"), "a \ud83d b", id="27-lone-surrogate"),
    pytest.param(sse([chunk("a \ud83d"), chunk("\ude00 b"), chunk(finish_reason="stop")]), "a 😀 b", id="27-split-over-two-chunks"),
    pytest.param(sse([chunk("a \ud83d"), chunk(" b"), chunk(finish_reason="stop")]), "a \ud83d b", id="27-lone-in-a-chunk"),
    pytest.param(say("\udcff", stream=False), "\udcff", id="27-not-streamed"),
    pytest.param(say("\ude00\ud83d"), "\ude00\ud83d", id="+27-pair-in-the-wrong-order"),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "text"), SURROGATES)
def test_half_characters_are_saved_and_judged(
    make_pair: MakePair,
    endpoint: Serve,
    run_generate: Callable[..., Ran],
    run_judge: Callable[..., Ran],
    reply: Any,
    text: str,
) -> None:
    ran = run_generate(make_pair(), endpoint(lambda request: reply).base_url)
    assert ran.rc == 0, ran.err
    ran.output.read_bytes().decode("utf-8")
    assert [row["response"] for row in ran.rows] == [text]
    served = endpoint(lambda request: say(json.dumps({"score": 1, "reason": "x"}) + " \ud83d"))
    scored = run_judge(ran.output, served.base_url)
    assert scored.rc == 0, scored.err
    assert text in served.requests[0].messages[-1]["content"]
    details_of(scored.output).read_bytes().decode("utf-8")
    assert [row["score"] for row in scored.rows] == [1.0]
    assert run_judge(ran.output, served.base_url).rc == 0  # the digest of the response is the same on the next start
    assert len(served.requests) == 1


def test_a_key_or_text_with_half_a_character_reaches_the_sidecar(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran]
) -> None:
    """+27: and the next start finds the same settings in it."""
    served, pair = endpoint(), make_pair(1, 2)
    for limit in ("1", "2"):
        ran = run_generate(pair, served.base_url, "--thinking-json", r'{"stop": "\ud83d"}', "--limit", limit)
        assert ran.rc == 0, ran.err
    ran.output.with_suffix(".run.json").read_bytes().decode("utf-8")


@pytest.mark.parametrize("in_answers", [3, "3"], ids=["28-number-in-answers", "28-text-in-answers"])
@pytest.mark.parametrize("in_questions", [3, "3"], ids=["number-in-questions", "text-in-questions"])
def test_the_same_question_whatever_the_type_of_its_chat(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], in_answers: Any, in_questions: Any
) -> None:
    pair = make_pair(3, 2)
    rows = [json.loads(line) for line in pair.questions.open()]
    write_lines(pair.questions, [{**row, "chat_id": in_questions} for row in rows if row["chat_id"] == "3"])
    chats = gzip.decompress(pair.chats.read_bytes())
    pair.chats.write_bytes(gzip.compress(chats.replace(b'"chat_id": "3"', b'"chat_id": 3')))
    output = pair.chats.parent / "answers.jsonl"
    write_lines(output, [{**answer_rows(3, 1)[2], "chat_id": in_answers}])
    served = endpoint()
    ran = run_generate(pair, served.base_url, "--chats", "3")
    assert (ran.rc, asked(served)) == (0, ["3.1?"])


def test_chat_3_and_chat_three_as_text_are_one_question(
    make_pair: MakePair, endpoint: Serve, run_judge: Callable[..., Ran], tmp_path: Path
) -> None:
    """28: the judge scores it once, and the scores of both spellings are one."""
    first = answer_rows(3, 1)[2]
    other = {**first, "chat_id": 3, "response": "the later one"}
    answers = write_lines(tmp_path / "answers.jsonl", [first, other])
    served = endpoint(lambda request: judge_says())
    ran = run_judge(answers, served.base_url)
    assert (ran.rc, len(served.requests), list(map(key, ran.rows))) == (0, 1, [key(first)])
    assert "the later one" in served.requests[0].messages[-1]["content"]
    write_lines(ran.output, [{**ran.rows[0], "chat_id": 3}, ran.rows[0]])
    again = run_judge(answers, served.base_url)
    assert (again.rc, len(served.requests), len(again.rows)) == (0, 1, 1)


@pytest.mark.parametrize("index", ["0", 0.0], ids=["+28-index-as-text", "+28-index-as-float"])
def test_the_same_question_whatever_the_type_of_its_index(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], run_judge: Callable[..., Ran], index: Any
) -> None:
    pair, served = make_pair(1, 2), endpoint(lambda request: judge_says() if is_judge(request) else None)
    output = write_lines(pair.chats.parent / "answers.jsonl", [{**answer_rows(1, 1)[0], "question_index": index}])
    ran = run_generate(pair, served.base_url)
    assert (ran.rc, asked(served)) == (0, ["1.1?"])
    scored = run_judge(output, served.base_url)
    assert scored.rc == 0
    assert sorted(map(key, scored.rows)) == [("1", "information_extraction", n) for n in (0, 1)]
    assert all(type(row["question_index"]) is int for row in scored.rows)


# --- Which row counts ------------------------------------------------------------------------------------------------

GOOD = ROWS[0]
BAD = {**GOOD, "response": "", "error": "HTTP 500: gone", "finish_reason": None}


@pytest.mark.parametrize(
    ("rows", "flags", "requests", "lines"),
    [
        pytest.param([GOOD, BAD], [], 0, [GOOD, BAD], id="error-after-answer"),
        pytest.param([BAD, GOOD], [], 0, [BAD, GOOD], id="answer-after-error"),
        pytest.param([BAD], [], 0, [BAD], id="error-counts-as-done"),
        pytest.param([GOOD, BAD], ["--retry-errors"], 0, [GOOD], id="retry-finds-the-answer-before-the-error"),
        pytest.param([BAD, GOOD, BAD], ["--retry-errors"], 0, [GOOD], id="retry-finds-the-answer-between-errors"),
        pytest.param([BAD, BAD], ["--retry-errors"], 1, None, id="retry-asks-again"),
    ],
)
def test_last_answer_without_an_error_counts(
    make_pair: MakePair,
    endpoint: Serve,
    run_generate: Callable[..., Ran],
    rows: list[dict[str, Any]],
    flags: list[str],
    requests: int,
    lines: list[dict[str, Any]] | None,
) -> None:
    pair, served = make_pair(), endpoint()
    write_lines(pair.chats.parent / "answers.jsonl", rows)
    ran = run_generate(pair, served.base_url, *flags)
    assert (ran.rc, len(served.requests)) == (0, requests), ran.err
    if lines is None:
        assert [row["error"] for row in ran.rows] == [None]
    else:
        assert ran.rows == lines
        assert f"answered: {int(GOOD in lines)} of 1 selected" in ran.out


@pytest.mark.parametrize(
    ("rows", "score"),
    [
        pytest.param([GOOD, BAD], 1.0, id="error-after-answer"),
        pytest.param([BAD, GOOD], 1.0, id="answer-after-error"),
        pytest.param([BAD], 0.0, id="only-an-error"),
        pytest.param([{n: v for n, v in GOOD.items() if n != "error"}], 1.0, id="another-tool-without-an-error-key"),
        pytest.param([{n: GOOD[n] for n in ("chat_id", "question_type", "question_index", "question", "rubric", "response")}],
                     1.0, id="another-tool-with-the-least"),
        pytest.param([{**GOOD, "response": None}], 0.0, id="null-response"),
    ],
)  # fmt: skip
def test_the_judge_takes_the_answer_that_counts(
    endpoint: Serve, run_judge: Callable[..., Ran], tmp_path: Path, rows: list[dict[str, Any]], score: float
) -> None:
    answers = write_lines(tmp_path / "answers.jsonl", rows)
    served = endpoint(lambda request: judge_says())
    ran = run_judge(answers, served.base_url)
    assert (ran.rc, len(served.requests), [row["score"] for row in ran.rows]) == (0, int(score), [score])


def test_retry_errors_that_is_stopped_in_the_middle_keeps_one_line_a_question(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran]
) -> None:
    pair = make_pair(1, 6)
    rows = answer_rows(1, 6)
    bad = [{**row, "response": "", "error": "HTTP 500"} for row in rows[:5]]
    output = write_lines(pair.chats.parent / "answers.jsonl", [*bad, rows[5]])
    stopping = endpoint(lambda request: status(402) if len(request.messages) and request.number >= 2 else None)
    ran = run_generate(pair, stopping.base_url, "--retry-errors", "--concurrency", "1")
    assert ran.rc == 1
    assert len(ran.rows) == 6
    assert sum(row["error"] is None for row in ran.rows) == 3
    assert "3 left" in ran.err
    served = endpoint()
    ran = run_generate(pair, served.base_url, "--retry-errors", "--allow-mixed")  # another port is another endpoint
    assert (ran.rc, len(served.requests), len(ran.rows), ran.errors) == (0, 3, 6, [])
    assert read_rows(output)[0] == rows[5]


# --- 29 and 30: two processes, and the end of one ------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["29-generate", "29-judge"])
def test_a_second_process_is_refused_and_a_killed_one_frees_the_output(
    make_pair: MakePair, endpoint: Serve, launch: Launch, programs: Programs, tmp_path: Path, program: str
) -> None:
    stuck = endpoint(lambda request: hang())
    answers = write_lines(tmp_path / "given.jsonl", answer_rows(1, 3))
    pair, output = make_pair(1, 3), tmp_path / ("answers.jsonl" if "generate" in program else "scores.jsonl")
    if "generate" in program:
        first = launch("generate", *generate_argv(pair, stuck.base_url, output))
    else:
        first = launch("judge", *judge_argv(answers, stuck.base_url, output))
    assert stuck.wait_until(lambda: stuck.in_flight > 0)
    sidecar = output.with_suffix(".run.json").read_bytes()
    served = endpoint(lambda request: judge_says() if is_judge(request) else None)

    def second() -> Ran:
        if "generate" in program:
            return programs.generate(pair, served.base_url, "--model", "another")
        return programs.judge(answers, served.base_url, "--judge-model", "another")

    ran = second()
    assert (ran.rc, served.requests) == (2, [])
    assert f"{output} is being written by another process" in ran.err
    assert output.with_suffix(".run.json").read_bytes() == sidecar
    first.send_signal(signal.SIGKILL)
    first.wait(30)
    ran = second()
    assert (ran.rc, len(ran.rows)) == (0, 3), ran.err


def name_of(row: dict[str, Any]) -> str:
    return f"{row['chat_id']}.{row['question_index']}?"


def sent_by(endpoint: ScriptedEndpoint, start: str) -> int:
    return sum(request.headers.get("x-start") == start for request in endpoint.requests)


def serving_at_most(serve: Serve, most: int) -> ScriptedEndpoint:
    """Of a marked run, requests beyond `most` get no answer: however late its kill comes, the next start finds work."""

    def script(request: Recorded) -> Any:
        start = request.headers.get("x-start")
        return hang() if start and sent_by(served, start) > most else None

    served: ScriptedEndpoint = serve(script, delay=0.01)
    return served


def killed_at_random(
    start: Callable[[int], subprocess.Popen[bytes]], endpoint: ScriptedEndpoint, output: Path, per_question: int
) -> list[set[str]]:
    """Start, kill at a random moment, start again, KILLS times. Returns the questions whose rows were there after each.

    After each kill all lines but the last are whole.
    """
    chance = random.Random(30)
    saved: list[set[str]] = []
    for number in range(KILLS):
        process = start(number)
        wanted = chance.randrange(1, 5 * per_question)
        assert endpoint.wait_until(partial(lambda name, n: sent_by(endpoint, name) >= n, str(number), wanted))
        time.sleep(chance.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        lines = output.read_bytes().split(b"\n")[:-1] if output.exists() else []
        saved.append({name_of(json.loads(line)) for line in lines})
    return saved


def met_by_kills(endpoint: ScriptedEndpoint, saved: list[set[str]]) -> Counter[str]:
    """How often each question was met by a kill. No question whose row was there may have been asked again."""
    assert endpoint.wait_until(lambda: not endpoint.connections)
    met: Counter[str] = Counter()
    for number, (before, after) in enumerate(pairwise([set(), *saved])):
        again = set(asked_by(endpoint, number))
        assert not again & before
        met.update(again - after)
    return met


def test_kills_at_random_moments_lose_the_requests_in_flight_only(
    make_pair: MakePair, endpoint: Serve, launch: Launch, programs: Programs, tmp_path: Path
) -> None:
    """30"""
    pair, served, output = make_pair(4, 10 * KILLS), serving_at_most(endpoint, 36), tmp_path / "answers.jsonl"
    flags = ["--concurrency", "4"]

    def start(number: int) -> subprocess.Popen[bytes]:
        return launch("generate", *generate_argv(pair, served.base_url, output, *flags, *marked(number)))

    saved = killed_at_random(start, served, output, per_question=3)
    ran = programs.generate(pair, served.base_url, *flags)
    assert ran.rc == 0, ran.err
    assert len(ran.rows) == len(by_key(ran.rows)) == 40 * KILLS
    lost = met_by_kills(served, saved)
    times = Counter(question_of(request) for request in served.requests)
    assert times == Counter(map(name_of, ran.rows)) + lost
    assert lost.total() <= 4 * KILLS


def test_kills_of_the_judge_at_random_moments_pay_no_verdict_twice_but_of_questions_in_progress(
    endpoint: Serve, launch: Launch, programs: Programs, tmp_path: Path
) -> None:
    """30"""
    words = ["gold", "answer to", "1.1", "something else"]
    answers = write_lines(tmp_path / "answers.jsonl", [{**row, "rubric": words} for row in answer_rows(2, 10 * KILLS)])
    whole = programs.judge(answers, endpoint().base_url, "--output", str(tmp_path / "whole.jsonl"))
    assert whole.rc == 0
    served, output = serving_at_most(endpoint, 76), tmp_path / "scores.jsonl"

    def start(number: int) -> subprocess.Popen[bytes]:
        return launch("judge", *judge_argv(answers, served.base_url, output, "--concurrency", "8", *marked(number)))

    saved = killed_at_random(start, served, details_of(output), per_question=8)
    ran = programs.judge(answers, served.base_url)
    assert ran.rc == 0, ran.err
    lost = met_by_kills(served, saved)
    assert len(ran.rows) == 20 * KILLS
    assert by_key(ran.rows) == by_key(read_rows(tmp_path / "whole.jsonl"))
    details = read_rows(details_of(output))
    assert len(details) == 20 * KILLS
    for row in details:
        assert [verdict["criterion"] for verdict in row["verdicts"]] == words
        assert all(verdict["status"] == "scored" and verdict["reply"] for verdict in row["verdicts"])
    calls = Counter((question_of(request), criterion_of(request)) for request in served.requests)
    assert all(1 <= count <= 1 + lost[question] for (question, _), count in calls.items())
    assert len(calls) == 80 * KILLS
    assert "overall:" in ran.out
    assert ran.out.splitlines()[1] == whole.out.splitlines()[1]


def test_a_kill_before_the_compacted_file_is_in_place_leaves_every_answer(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], tmp_path: Path
) -> None:
    """+30: --retry-errors rewrites the file at its end."""
    pair, served = make_pair(1, 2), endpoint()
    output = write_lines(tmp_path / "answers.jsonl", [BAD, ROWS[1]])
    code = (
        "import os, sys; sys.argv[0] = 'beam_generate.py'; import beam_generate\n"
        "replace = os.replace\n"
        "os.replace = lambda new, old: os.kill(os.getpid(), 9) if 'answers.jsonl' in str(old) else replace(new, old)\n"
        "beam_generate.main(sys.argv[1:])"
    )
    argv = [*generate_argv(pair, served.base_url, output), "--retry-errors"]
    done = subprocess.run([sys.executable, "-c", code, *argv], cwd=LAUNCHER.parent.parent, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert len(read_rows(output)) == 3
    ran = run_generate(pair, served.base_url, "--retry-errors")
    assert (ran.rc, len(served.requests), len(ran.rows), ran.errors) == (0, 1, 2, [])


# --- 31: full disks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["31-generate", "31-judge"])
def test_dev_full_stops_at_once_with_one_message(
    make_pair: MakePair, endpoint: Serve, programs: Programs, tmp_path: Path, program: str
) -> None:
    served = endpoint(lambda request: judge_says() if is_judge(request) else None)
    before = sorted(Path("/dev").glob("*.json"))
    flags = ["--output", "/dev/full", "--concurrency", "4"]
    if "generate" in program:
        ran = programs.generate(make_pair(2, 50), served.base_url, *flags)
    else:
        answers = write_lines(tmp_path / "given.jsonl", answer_rows(2, 50))
        ran = programs.judge(answers, served.base_url, *flags)
    assert ran.rc == 1
    assert ran.err.count("No space left on device") == 1
    assert "100" in ran.err
    assert len(served.requests) <= 12  # what was in flight, and what followed until the first write came back
    assert sorted(Path("/dev").glob("*.json")) == before


@pytest.mark.parametrize("program", ["31-generate", "31-judge"])
def test_a_disk_that_fills_up_keeps_whole_rows_and_the_next_start_goes_on(
    make_pair: MakePair, endpoint: Serve, programs: Programs, tmp_path: Path, program: str
) -> None:
    served = endpoint(lambda request: judge_says() if is_judge(request) else None)
    answers = write_lines(tmp_path / "given.jsonl", answer_rows(2, 50))
    pair = make_pair(2, 50)

    def run(number: int) -> Ran:
        if "generate" in program:
            return programs.generate(pair, served.base_url, "--concurrency", "4", *marked(number))
        return programs.judge(answers, served.base_url, "--concurrency", "4", *marked(number))

    with files_of_at_most(5000):  # bytes: for about fifteen rows
        ran = run(1)
    assert ran.rc == 1
    assert ran.err.count("File too large") == 1, ran.err
    there = set(map(name_of, ran.rows))
    saved = len(ran.rows)
    assert 5 <= saved <= 30
    assert len(served.requests) <= saved + 12
    assert f"{100 - saved} " in ran.err  # left
    ran = run(2)
    assert (ran.rc, len(ran.rows), len(by_key(ran.rows))) == (0, 100, 100), ran.err
    assert asked_by(served, 2) == sorted(set(map(name_of, ran.rows)) - there)
    assert not list(tmp_path.glob("*.damaged"))


@pytest.mark.parametrize("program", ["31-generate", "31-judge"])
def test_no_room_for_the_sidecar_is_said_before_the_first_request(
    make_pair: MakePair, endpoint: Serve, programs: Programs, tmp_path: Path, program: str
) -> None:
    served = endpoint()
    answers, pair = write_lines(tmp_path / "given.jsonl", answer_rows(1, 3)), make_pair(1, 3)
    with files_of_at_most(100):
        ran = programs.generate(pair, served.base_url) if "gen" in program else programs.judge(answers, served.base_url)
    assert (ran.rc, served.requests) == (1, [])
    assert re.search(r"\.run\.json cannot be written: File too large; make room", ran.err)
    assert "Traceback" not in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given.jsonl", pair.chats.name, pair.questions.name]


def test_a_full_disk_behind_stdout_is_one_message_and_costs_no_answer(
    make_pair: MakePair, endpoint: Serve, launch: Launch, tmp_path: Path
) -> None:
    """31"""
    output = tmp_path / "answers.jsonl"
    with open("/dev/full", "wb") as full:
        process = launch("generate", *generate_argv(make_pair(1, 2), endpoint().base_url, output), stdout=full)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, len(read_rows(output))) == (1, 2)
    assert err.decode().count("results cannot be printed: No space left on device") == 1
    assert b"Traceback" not in err


def test_no_room_for_the_details_keeps_the_earlier_score_and_details(judged: Judged) -> None:
    """31: an answer has changed since; its new verdicts do not fit. The old ones stay together, and the next start judges."""
    judged.change_last_answer()
    judged.level = 1.0
    before = judged.scores.read_bytes(), judged.details.read_bytes()
    with files_of_at_most(len(before[1])):
        ran = judged.again()
    assert ran.rc == 1
    assert ran.err.count("scores.details.jsonl cannot be written: File too large") == 1
    assert (judged.scores.read_bytes(), judged.details.read_bytes()) == before
    ran = judged.again()
    assert (ran.rc, judged.calls) == (0, ["1.3?"] * 4)
    assert by_key(ran.rows)[key(ROWS[3])]["score"] == 1.0


def test_no_room_for_the_score_restores_it_from_the_details(
    endpoint: Serve, run_judge: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """31: the details fit, the score does not: no call is paid again."""
    answers = write_lines(tmp_path / "answers.jsonl", answer_rows(1, 3))
    served = endpoint(lambda request: judge_says())
    write = os.write

    def full(fd: int, data: Any) -> int:
        if b'"score"' in bytes(data) and b"verdicts" not in bytes(data):
            raise OSError(28, "No space left on device")
        return write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        ran = run_judge(answers, served.base_url, "--concurrency", "1")
    assert (ran.rc, ran.rows) == (1, [])
    kept = set(map(name_of, read_rows(details_of(ran.output))))
    assert kept
    ran = run_judge(answers, served.base_url, *marked(2))
    assert (ran.rc, len(ran.rows)) == (0, 3)
    assert asked_by(served, 2) == sorted({"1.0?", "1.1?", "1.2?"} - kept)


def test_no_room_to_rewrite_loses_nothing(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """31: --retry-errors writes a new file at its end."""
    pair, served = make_pair(1, 2), endpoint()
    output = write_lines(pair.chats.parent / "answers.jsonl", [BAD, ROWS[1]])
    import beam_log

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(beam_log, "write_whole", full)
        ran = run_generate(pair, served.base_url, "--retry-errors")
    assert ran.rc == 1
    assert "could not be cleared of replaced rows: No space left on device; nothing is lost" in ran.err
    assert len(read_rows(output)) == 3
    ran = run_generate(pair, served.base_url, "--retry-errors")
    assert (ran.rc, len(served.requests), len(ran.rows), ran.errors) == (0, 1, 2, [])


# --- 32: other settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        pytest.param(["--model", "n"], "model (recorded m, now n)", id="32-model"),
        pytest.param(["--temperature", "0.7"], "temperature (recorded 1.0, now 0.7)", id="32-temperature"),
        pytest.param(["--top-p", "0.5"], "top_p (recorded 0.95, now 0.5)", id="32-top-p"),
        pytest.param(["--max-tokens", "9"], "max_tokens (recorded 32768, now 9)", id="32-max-tokens"),
        pytest.param(["--thinking-json", '{"top_k": 4}'], 'extra_body (recorded {}, now {"top_k": 4})', id="32-extra-body"),
        pytest.param(["--base-url", "http://127.0.0.1:9/v1"], "base_url (recorded http://127.0.0.1:", id="32-endpoint"),
        pytest.param(["--max-context-tokens", "99999"], "max_context_tokens", id="32-truncation"),
        pytest.param(["--reserve-tokens", "1"], "reserve_tokens", id="32-reserve"),
        pytest.param(["data"], "questions_sha256", id="32-data"),
    ],
)  # fmt: skip
def test_a_resume_with_other_settings_is_refused(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], flags: list[str], named: str
) -> None:
    pair, served = make_pair(1, 2), endpoint()
    assert run_generate(pair, served.base_url, "--limit", "1").rc == 0
    output = pair.chats.parent / "answers.jsonl"
    before = output.read_bytes(), output.with_suffix(".run.json").read_bytes()
    if flags == ["data"]:
        flags = []
        write_lines(pair.questions, [{**json.loads(line), "gold_answer": "x"} for line in pair.questions.open()])
    ran = run_generate(pair, served.base_url, *flags)
    assert (ran.rc, len(served.requests)) == (2, 1)
    assert named in ran.err
    assert "--allow-mixed" in ran.err
    assert (output.read_bytes(), output.with_suffix(".run.json").read_bytes()) == before


def test_allow_mixed_goes_on_and_is_recorded(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran]
) -> None:
    """32"""
    pair, served = make_pair(1, 3), endpoint()
    assert run_generate(pair, served.base_url, "--limit", "1").rc == 0
    ran = run_generate(pair, served.base_url, "--temperature", "0.5", "--allow-mixed", "--limit", "2")
    assert (ran.rc, len(ran.rows)) == (0, 2)
    assert "temperature (recorded 1.0, now 0.5)" in ran.err
    assert [mixed["settings"]["temperature"] for mixed in sidecar_of(ran.output)["mixed_with"]] == [1.0]
    assert run_generate(pair, served.base_url, "--temperature", "0.5").rc == 0
    assert len(sidecar_of(ran.output)["mixed_with"]) == 1
    assert sidecar_of(ran.output)["settings"]["temperature"] == 0.5


def test_other_settings_that_asked_nothing_are_not_recorded(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran]
) -> None:
    """+32"""
    pair, served = make_pair(1, 2), endpoint()
    sidecar = run_generate(pair, served.base_url).output.with_suffix(".run.json")
    before = sidecar.read_bytes()
    assert run_generate(pair, served.base_url, "--temperature", "0.5", "--allow-mixed").rc == 0
    assert (len(served.requests), sidecar.read_bytes()) == (2, before)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        pytest.param(["--judge-model", "n"], "judge_model (recorded j, now n)", id="32-judge"),
        pytest.param(["--judge-temperature", "0"], "judge_temperature (recorded 0.3, now 0.0)", id="32-temperature"),
        pytest.param(["--judge-reasoning-effort", "high"], "judge_reasoning_effort (recorded empty, now high)", id="32-effort"),
        pytest.param(["--judge-extra-json", '{"top_k": 4}'], 'judge_extra_body (recorded {}, now {"top_k": 4})', id="32-extra"),
        pytest.param(["--judge-max-tokens", "9"], "judge_max_tokens", id="32-max-tokens"),
        pytest.param(["--judge-base-url", "http://127.0.0.1:9/v1"], "judge_base_url", id="32-endpoint"),
        pytest.param(["--criterion-prompt", "prompt.txt"], "criterion_prompt_sha256", id="32-prompt"),
    ],
)  # fmt: skip
def test_scores_of_another_judge_are_refused(
    judged: Judged, monkeypatch: pytest.MonkeyPatch, flags: list[str], named: str
) -> None:
    (judged.answers.parent / "prompt.txt").write_text("{question} {rubric_item} {response}")
    monkeypatch.chdir(judged.answers.parent)
    sidecar = judged.scores.with_suffix(".run.json")
    before = judged.scores.read_bytes(), sidecar.read_bytes()
    ran = judged.again(*flags)
    assert ran.rc == 2
    assert named in ran.err
    assert (judged.scores.read_bytes(), sidecar.read_bytes()) == before
    ran = judged.again(*flags, "--allow-mixed")
    assert ran.rc == 0, ran.err
    assert (judged.calls, sidecar.read_bytes()) == ([], before[1])  # nothing to judge: no score is of these settings
    assert "A part was judged with other settings" not in ran.out


def test_verdicts_of_another_judge_without_a_score_bind_too(judged: Judged) -> None:
    """+32: killed between the details and the first score; the details alone must not be taken over by another judge."""
    judged.scores.unlink()
    ran = judged.again("--judge-model", "another")
    assert (ran.rc, ran.rows) == (2, [])
    assert "judge_model (recorded j, now another)" in ran.err


@pytest.mark.parametrize("rest", ["", "/", "/v1/", "/v1/chat/completions", "/v1 "])
def test_the_same_endpoint_written_otherwise_is_the_same(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], rest: str
) -> None:
    """32"""
    pair, served = make_pair(1, 2), endpoint()
    assert run_generate(pair, served.base_url, "--limit", "1").rc == 0
    ran = run_generate(pair, served.base_url.removesuffix("/v1").replace("http", "HTTP") + rest)
    assert (ran.rc, len(served.requests)) == (0, 2), ran.err


@pytest.mark.parametrize("rows", [[], [BAD]], ids=["32-nothing-there-yet", "32-only-errors-there"])
def test_a_wrong_url_does_not_lock_out_the_right_one(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], rows: list[dict[str, Any]]
) -> None:
    pair, served = make_pair(1, 2), endpoint()
    wrong = endpoint(lambda request: status(404))
    if rows:
        write_lines(pair.chats.parent / "answers.jsonl", rows)
    ran = run_generate(pair, wrong.base_url, "--model", "wrong")
    assert (ran.rc, sidecar_of(ran.output)["settings"]["model"]) == (1, "wrong")
    ran = run_generate(pair, served.base_url, "--retry-errors")
    assert (ran.rc, len(ran.rows), ran.errors) == (0, 2, []), ran.err
    assert (sidecar_of(ran.output)["settings"]["model"], len(sidecar_of(ran.output)["started"])) == ("m", 1)


def test_a_wrong_judge_does_not_lock_out_the_right_one(
    endpoint: Serve, run_judge: Callable[..., Ran], tmp_path: Path
) -> None:
    """32: scores of empty answers need no judge, and bind none."""
    answers = write_lines(tmp_path / "answers.jsonl", [{**ROWS[0], "response": ""}, ROWS[1]])
    ran = run_judge(answers, endpoint(lambda request: status(404)).base_url, "--judge-model", "wrong")
    assert (ran.rc, [row["score"] for row in ran.rows]) == (1, [0.0])
    ran = run_judge(answers, endpoint(lambda request: judge_says()).base_url)
    assert (ran.rc, sorted(row["score"] for row in ran.rows)) == (0, [0.0, 1.0]), ran.err


@pytest.mark.parametrize(
    "content", [b'{"settings": {"mod', b"", b"\0" * 64, b"[]"], ids=["torn", "empty", "zeros", "list"]
)
def test_a_sidecar_that_cannot_be_read(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], content: bytes
) -> None:
    """+32: refused where answers rest on it, else replaced."""
    pair, served = make_pair(1, 2), endpoint()
    sidecar = pair.chats.parent / "answers.run.json"
    sidecar.write_bytes(content)
    assert run_generate(pair, served.base_url, "--limit", "1").rc == 0
    sidecar.write_bytes(content)
    ran = run_generate(pair, served.base_url)
    assert (ran.rc, len(served.requests), sidecar.read_bytes()) == (2, 1, content)
    assert "answers.run.json" in ran.err
    assert "Traceback" not in ran.err
    sidecar.unlink()
    assert run_generate(pair, served.base_url).rc == 0


@pytest.mark.parametrize("content", [b'{"settings": {"mod', b""], ids=["torn", "empty"])
def test_a_sidecar_of_scores_that_cannot_be_read(judged: Judged, content: bytes) -> None:
    """+32"""
    sidecar, before = judged.scores.with_suffix(".run.json"), judged.scores.read_bytes()
    sidecar.write_bytes(content)
    ran = judged.again()
    assert (ran.rc, judged.calls, sidecar.read_bytes(), judged.scores.read_bytes()) == (2, [], content, before)
    assert "scores.run.json: the settings of the earlier run cannot be read" in ran.err
    judged.scores.unlink()
    judged.details.unlink()
    ran = judged.again()
    assert (ran.rc, len(judged.calls)) == (0, 8), ran.err


def test_neither_key_nor_password_nor_header_gets_into_any_file_or_message(
    make_pair: MakePair,
    endpoint: Serve,
    run_generate: Callable[..., Ran],
    run_judge: Callable[..., Ran],
    tmp_path: Path,
) -> None:
    """+32: the server repeats whatever it got; settings are compared all the same."""
    secrets = ["sk-KEY-1234567", "pass-WORD-1", "Header-Value-99", "or-INNER-KEY"]

    def repeats(request: Recorded) -> Any:
        if request.number % 3 == 1:
            return status(400, {"error": {"message": f"{' '.join(secrets)} {request.headers.get('authorization')}"}})
        return judge_says() if is_judge(request) else None

    served, pair = endpoint(repeats), make_pair(1, 4)
    url = served.base_url.replace("http://", "http://user:pass-WORD-1@")
    body = '{"provider": {"api_key": "or-INNER-KEY"}, "note": "sk-KEY-1234567"}'
    flags = ["--header", "X-Gateway=Header-Value-99", "--concurrency", "1"]
    ran = run_generate(pair, url, "--api-key", secrets[0], "--thinking-json", body, *flags, "--limit", "3")
    texts = [ran.out, ran.err]
    assert (ran.rc, len(ran.errors)) == (0, 1)
    assert b"or-INNER-KEY" in served.requests[0].body  # what is asked for is sent
    ran = run_generate(pair, url, "--api-key", secrets[0], "--thinking-json", body, *flags)
    assert ran.rc == 0, ran.err
    scored = run_judge(ran.output, url, "--judge-api-key", secrets[0], "--judge-extra-json", body, *flags)
    assert scored.rc == 0, scored.err
    texts += [ran.out, ran.err, scored.out, scored.err]
    files = [path for path in tmp_path.iterdir() if path.name.startswith(("answers", "scores"))]
    assert len(files) == 5
    texts += [path.read_text(encoding="utf-8") for path in files]
    assert not [secret for secret in secrets for text in texts if secret in text]
    assert "[hidden]" in ran.output.read_text()


# --- 33: paths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["generate", "judge"])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        pytest.param("folder", "is a directory", id="33-directory"),
        pytest.param("missing/out.jsonl", "the folder does not exist", id="33-no-folder"),
        pytest.param("file/out.jsonl", "Not a directory", id="33-below-a-file"),
        pytest.param("readonly/out.jsonl", "Permission denied", id="33-read-only-folder"),
        pytest.param("circle", "symbolic links", id="+33-circular-link"),
        pytest.param("nowhere", "the folder does not exist", id="+33-link-into-no-folder"),
        pytest.param("packed.jsonl", "gzip file", id="+33-gzip"),
        pytest.param("diary.jsonl", "none of a run of this kind", id="+33-file-of-another-kind"),
        pytest.param("input", "none of a run of this kind", id="+33-the-input-itself"),
        pytest.param("sidecar.jsonl", "sidecar.run.json", id="+33-folder-in-place-of-the-sidecar"),
        pytest.param("details.jsonl", "details.details.jsonl", id="+33-folder-in-place-of-the-details"),
    ],
)
def test_an_output_that_cannot_be_written_is_said_before_the_first_request(
    make_pair: MakePair, endpoint: Serve, programs: Programs, tmp_path: Path, program: str, path: str, message: str
) -> None:
    if path.startswith("readonly") and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    if path.startswith("details") and program == "generate":
        pytest.skip("no details here")
    for folder in ("folder", "readonly", "sidecar.run.json", "details.details.jsonl"):
        (tmp_path / folder).mkdir()
    (tmp_path / "readonly").chmod(0o500)
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "nowhere").symlink_to("missing/out.jsonl")
    (tmp_path / "packed.jsonl").write_bytes(gzip.compress(line_of(ROWS[0])))
    (tmp_path / "diary.jsonl").write_bytes(b"dear diary\n")
    pair, answers = make_pair(1, 1), write_lines(tmp_path / "given.jsonl", answer_rows(1, 1))
    output = tmp_path / path
    if path == "input":
        output = pair.questions if program == "generate" else answers
    before = {item: item.read_bytes() for item in tmp_path.iterdir() if item.is_file()}
    served = endpoint()
    flags = ["--output", str(output)]
    ran = programs.generate(pair, served.base_url, *flags) if program == "generate" else programs.judge(
        answers, served.base_url, *flags
    )  # fmt: skip
    assert (ran.rc, served.requests) == (2, [])
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert {item: item.read_bytes() for item in tmp_path.iterdir() if item.is_file()} == before


@pytest.mark.parametrize("program", ["33-generate", "33-judge"])
def test_a_link_whose_target_is_not_there_yet_is_filled(
    make_pair: MakePair, endpoint: Serve, programs: Programs, tmp_path: Path, program: str
) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "out.jsonl"
    link.symlink_to("disk/real.jsonl")
    served = endpoint(lambda request: judge_says() if is_judge(request) else None)
    if "generate" in program:
        ran = programs.generate(make_pair(1, 2), served.base_url, "--output", str(link))
    else:
        answers = write_lines(tmp_path / "given.jsonl", answer_rows(1, 2))
        ran = programs.judge(answers, served.base_url, "--output", str(link))
    assert ran.rc == 0, ran.err
    assert link.is_symlink()
    assert len(read_rows(tmp_path / "disk" / "real.jsonl")) == 2
    assert link.with_suffix(".run.json").exists()


@pytest.mark.parametrize("program", ["33-generate", "33-judge"])
def test_a_named_pipe_gets_the_rows_and_nothing_else_is_made(
    make_pair: MakePair, endpoint: Serve, programs: Programs, tmp_path: Path, program: str
) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    served = endpoint(lambda request: judge_says() if is_judge(request) else None)
    pair, answers = make_pair(1, 2), write_lines(tmp_path / "given.jsonl", answer_rows(1, 2))
    before = sorted(tmp_path.iterdir())
    flags = ["--output", str(pipe)]
    ran = programs.generate(pair, served.base_url, *flags) if "gen" in program else programs.judge(
        answers, served.base_url, *flags
    )  # fmt: skip
    reader.join(30)
    assert ran.rc == 0, ran.err
    assert len([json.loads(line) for line in got[0].splitlines()]) == 2
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("target", ["pipe", "file"])
def test_dev_stdout_gets_the_rows_before_the_closing_lines(
    make_pair: MakePair, endpoint: Serve, launch: Launch, tmp_path: Path, target: str
) -> None:
    """+33: also when a shell's `> file` stands behind it, which must not be read, locked or overwritten."""
    pair, served = make_pair(1, 3), endpoint()
    argv = generate_argv(pair, served.base_url, Path("/dev/stdout"))
    before = sorted([*tmp_path.iterdir(), *Path("/dev").glob("*.json")])
    with (tmp_path / "all.txt").open("w+b") as file:
        process = launch("generate", *argv, **({} if target == "pipe" else {"stdout": file}))
        out, err = process.communicate(timeout=60)
        file.seek(0)
        lines = (out if target == "pipe" else file.read()).decode().splitlines()
    assert process.returncode == 0, err
    assert sorted(key(json.loads(line)) for line in lines[:3]) == [("1", "information_extraction", n) for n in range(3)]
    assert lines[3].startswith("answered: 3 of 3")
    after = sorted([*tmp_path.iterdir(), *Path("/dev").glob("*.json")])
    assert after == sorted([*before, tmp_path / "all.txt"])


@pytest.mark.parametrize("fate", ["deleted", "replaced"])
def test_an_output_that_is_taken_away_stops_the_run(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], tmp_path: Path, fate: str
) -> None:
    """+33: else every further answer would be paid for and written into nowhere."""
    output, other = tmp_path / "answers.jsonl", tmp_path / "other"
    other.write_bytes(b"of somebody else\n")
    gone = threading.Event()

    def take_away(request: Recorded) -> None:
        if request.number == 5:
            if fate == "replaced":
                other.replace(output)
            else:
                output.unlink()
            gone.set()
        elif request.number > 5:
            gone.wait(30)

    served = endpoint(take_away)
    ran = run_generate(make_pair(1, 40), served.base_url, "--concurrency", "2")
    assert ran.rc == 1
    assert "was moved, deleted or replaced" in ran.err
    assert len(served.requests) <= 12
    if fate == "replaced":
        assert output.read_bytes() == b"of somebody else\n"


# --- 34 to 37: runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["34-generate", "34-judge"])
def test_a_log_is_plain_and_grows_while_the_run_goes_on(
    make_pair: MakePair, endpoint: Serve, launch: Launch, tmp_path: Path, program: str
) -> None:
    go_on = threading.Event()

    def script(request: Recorded) -> Any:
        if request.number >= 5:
            go_on.wait(60)
        return judge_says() if is_judge(request) else say("a\x1b[31m\r answer")

    served = endpoint(script)
    log = tmp_path / "nohup.out"
    with log.open("wb") as file:
        output = tmp_path / "out.jsonl"
        if "generate" in program:
            argv = generate_argv(make_pair(1, 9), served.base_url, output, "--concurrency", "2")
        else:
            answers = write_lines(tmp_path / "given.jsonl", answer_rows(1, 9))
            argv = judge_argv(answers, served.base_url, output, "--concurrency", "2")
        process = launch(program[3:], *argv, stdout=file, stderr=file)
        try:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                if b"of 9 questions" in log.read_bytes() and output.exists() and output.stat().st_size:
                    break
                time.sleep(0.02)
            assert process.poll() is None
            assert b"of 9 questions" in log.read_bytes()
            assert 0 < len(output.read_bytes().splitlines()) < 9  # rows appear while it runs, too
        finally:
            go_on.set()
        assert process.wait(60) == 0
    text = log.read_bytes()
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", text)
    assert text.decode().endswith("\n")


@contextmanager
def hangup_ignored() -> Iterator[None]:
    """What is started meanwhile ignores SIGHUP, as under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("program", ["generate", "judge"])
@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGTERM, 143, id="35-sigterm"), pytest.param(signal.SIGINT, 130, id="35-sigint")],
)
def test_a_signal_ends_a_long_run_soon_and_keeps_what_is_done(
    make_pair: MakePair, endpoint: Serve, launch: Launch, tmp_path: Path, program: str, number: int, code: int
) -> None:
    """Thousands of questions are queued and the requests in flight never end."""

    def script(request: Recorded) -> Any:
        if request.number >= 20:
            return hang()
        return judge_says() if is_judge(request) else None

    served, output = endpoint(script), tmp_path / "out.jsonl"
    if program == "generate":
        argv = generate_argv(make_pair(2, 3000), served.base_url, output)
    else:
        answers = write_lines(tmp_path / "given.jsonl", answer_rows(2, 3000))
        argv = judge_argv(answers, served.base_url, output)
    with hangup_ignored():
        process = launch(program, *argv)
    in_flight = 16 if program == "generate" else 32
    assert served.wait_until(lambda: len(served.requests) == 20 + in_flight)
    process.send_signal(signal.SIGHUP)  # as when the terminal of a `nohup` run is closed
    time.sleep(0.2)
    assert process.poll() is None
    sent = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - sent < 8  # 5 s, with slack for a busy machine
    assert process.returncode == code, err
    assert len(served.requests) == 20 + in_flight
    rows = read_rows(output)
    assert len(rows) == len(by_key(rows)) == 20
    assert "5,980" in err.decode()  # left
    assert "Traceback" not in err.decode()
    if program == "generate":
        assert "answered: 20 of 6,000 selected" in out.decode()
    else:
        assert "=== BEAM summary (n=20" in out.decode()


@pytest.mark.parametrize("program", ["generate", "judge"])
def test_an_ignored_hangup_does_not_end_a_run(
    make_pair: MakePair, endpoint: Serve, launch: Launch, tmp_path: Path, program: str
) -> None:
    """35"""
    go_on = threading.Event()

    def script(request: Recorded) -> Any:
        go_on.wait(60)
        return judge_says() if is_judge(request) else None

    served, output = endpoint(script), tmp_path / "out.jsonl"
    answers = write_lines(tmp_path / "given.jsonl", answer_rows(1, 3))
    argv = judge_argv(answers, served.base_url, output)
    if program == "generate":
        argv = generate_argv(make_pair(1, 3), served.base_url, output)
    with hangup_ignored():
        process = launch(program, *argv)
    try:
        assert served.wait_until(lambda: served.in_flight > 0)
        process.send_signal(signal.SIGHUP)
    finally:
        go_on.set()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, len(read_rows(output))) == (0, 3), err


def test_a_signal_while_the_run_begins_is_exit_143_too(make_pair: MakePair, launch: Launch, tmp_path: Path) -> None:
    """+35: here while the output, a pipe, waits for its reader."""
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    process = launch("generate", *generate_argv(make_pair(), "http://127.0.0.1:9/v1", pipe))
    assert process.stderr is not None
    assert b"the run begins when something reads it" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(10)
    except subprocess.TimeoutExpired:  # it came just before the system call, which Python then does not break off
        process.send_signal(signal.SIGTERM)
        code = process.wait(30)
    assert code == 143


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"LC_ALL": "C"}, id="36-c-locale"),
        pytest.param({}, id="36-empty-environment"),
        pytest.param({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, id="+36-no-utf-8-mode"),
    ],
)
def test_files_are_utf8_whatever_the_locale(
    make_pair: MakePair, endpoint: Serve, tmp_path: Path, environment: dict[str, str]
) -> None:
    pair = make_pair(1, 2)
    questions = [{**json.loads(line), "question": "Wo? 雪", "gold_answer": "naïve"} for line in pair.questions.open()]
    write_lines(pair.questions, questions)
    served = endpoint(lambda request: judge_says() if request.json()["model"] == "j" else say("Übung 雪 😀"))
    output, scores = tmp_path / "out.jsonl", tmp_path / "scores.jsonl"
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("雪 {question} {rubric_item} {response}", encoding="utf-8")
    flags = ["--model", "modèle", "--thinking-json", '{"x": "é"}'] if "PYTHONUTF8" not in environment else []
    argvs = [
        ["generate", *generate_argv(pair, served.base_url, output, *flags)],
        ["judge", *judge_argv(output, served.base_url, scores, "--criterion-prompt", str(prompt))],
    ]
    for argv in argvs:
        done = subprocess.run(
            [sys.executable, str(LAUNCHER), *argv], env=environment, cwd=tmp_path, capture_output=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    assert served.requests[0].json()["model"] == ("modèle" if flags else "m")
    assert "雪" in served.requests[-1].messages[-1]["content"]
    for row in read_rows(output):
        assert (row["question"], row["gold_answer"], row["response"]) == ("Wo? 雪", "naïve", "Übung 雪 😀")
    assert "Übung 雪 😀".encode() in output.read_bytes()
    assert ("modèle".encode() in output.with_suffix(".run.json").read_bytes()) == bool(flags)
    assert [row["score"] for row in read_rows(scores)] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "holds no questions", id="37-empty-questions-file"),
        pytest.param(b"\n\n", "holds no questions", id="37-blank-lines"),
        pytest.param(BOM, "holds no questions", id="37-only-a-mark"),
        pytest.param(gzip.compress(b""), "holds no questions", id="37-empty-gzip"),
        pytest.param(b"{}\n", "line 1: not a question", id="37-no-question"),
    ],
)
def test_no_questions_are_said(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], content: bytes, message: str
) -> None:
    pair, served = make_pair(), endpoint()
    pair.questions.write_bytes(content)
    for flags in ([], ["--dry-run"]):
        ran = run_generate(pair, served.base_url, *flags)
        assert (ran.rc, ran.out, served.requests) == (2, "", [])
        assert message in ran.err
        assert ran.err.count("\n") == 1
        assert not ran.output.exists()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        pytest.param(["--chats", "2", "--question-types", "abstention"], 2, "no question is selected", id="37-nothing-selected"),
        pytest.param(["--chats", "7"], 2, "--chats 7: not in", id="37-unknown-chat"),
        pytest.param(["--question-types", "summary"], 2, "--question-types summary: not in", id="37-unknown-ability"),
        pytest.param(["--shard", "3/3"], 0, "--shard 3/3 is empty", id="+37-an-empty-part-is-fine"),
    ],
)  # fmt: skip
def test_nothing_selected_is_said(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], flags: list[str], code: int, message: str
) -> None:
    pair, served = make_pair(2, 1), endpoint()
    rows = [json.loads(line) for line in pair.questions.open()]
    write_lines(pair.questions, [{**rows[0], "question_type": "abstention"}, rows[1]])
    for extra in ([], ["--dry-run"]):
        ran = run_generate(pair, served.base_url, *flags, *extra)
        assert (ran.rc, served.requests) == (code, [])
        assert message in ran.err
        no_numbers_that_are_none(ran)
        assert not ran.output.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "no answers yet", id="37-empty"),
        pytest.param(b"\n", "no answers yet", id="37-blank-line"),
        pytest.param(None, "no such file", id="37-missing"),
        pytest.param(LAST[:99], "no answers yet", id="37-only-a-torn-row"),
    ],
)
def test_no_answers_yet_is_said(
    endpoint: Serve, run_judge: Callable[..., Ran], tmp_path: Path, content: bytes | None, message: str
) -> None:
    answers, served = tmp_path / "answers.jsonl", endpoint()
    if content is not None:
        answers.write_bytes(content)
    ran = run_judge(answers, served.base_url)
    assert (ran.rc, ran.out, served.requests) == (2, "", [])
    assert message in ran.err
    no_numbers_that_are_none(ran)
    assert not list(tmp_path.glob("scores*"))


def test_answers_without_any_criterion_give_no_numbers(
    endpoint: Serve, run_judge: Callable[..., Ran], tmp_path: Path
) -> None:
    """+37"""
    answers = write_lines(tmp_path / "answers.jsonl", [{**ROWS[0], "rubric": []}])
    served = endpoint()
    ran = run_judge(answers, served.base_url)
    assert (served.requests, ran.rows) == ([], [])
    assert "has no criterion in its rubric: left unscored" in ran.err
    no_numbers_that_are_none(ran)


def test_a_run_of_errors_only_gives_no_numbers_that_are_none(
    make_pair: MakePair, endpoint: Serve, run_generate: Callable[..., Ran], run_judge: Callable[..., Ran]
) -> None:
    """+37"""
    served = endpoint(lambda request: status(400))
    ran = run_generate(make_pair(1, 3), served.base_url)
    assert (ran.rc, len(ran.errors)) == (0, 3)
    no_numbers_that_are_none(ran)
    scored = run_judge(ran.output, served.base_url)
    assert (scored.rc, "overall: 0.0000" in scored.out, "answers with an error: 3" in scored.out) == (0, True, True)
    no_numbers_that_are_none(scored)


# --- Scores and details that do not go together --------------------------------------------------------------------------


def test_scores_without_details_stand(judged: Judged) -> None:
    judged.details.unlink()
    judged.scores.with_suffix(".run.json").unlink()
    before = judged.scores.read_bytes()
    ran = judged.again()
    assert (ran.rc, judged.calls, judged.scores.read_bytes()) == (0, [], before)


def test_a_changed_answer_is_judged_again_and_its_score_replaced(judged: Judged) -> None:
    judged.change_last_answer()
    judged.level = 1.0
    ran = judged.again()
    assert (ran.rc, judged.calls) == (0, ["1.3?", "1.3?"])
    assert {index: row["score"] for (_, _, index), row in by_key(ran.rows).items()} == {0: 0.5, 1: 0.5, 2: 0.5, 3: 1.0}
    assert len(ran.rows) == len(read_rows(judged.details)) == 4


def test_an_old_score_beside_newer_details_is_replaced_without_a_call(judged: Judged) -> None:
    """Killed after the details of a changed answer, before its score: the old score is of another response."""
    old = judged.scores.read_bytes()
    judged.change_last_answer()
    judged.level = 1.0
    assert judged.again().rc == 0
    judged.scores.write_bytes(old)
    ran = judged.again()
    assert (ran.rc, judged.calls) == (0, ["1.3?", "1.3?"])
    assert by_key(ran.rows)[key(ROWS[3])]["score"] == 1.0
    assert len(ran.rows) == 4


def test_older_details_are_judged_again(judged: Judged) -> None:
    """Details restored from a backup are of the response before: they say nothing about this one."""
    old = judged.details.read_bytes()
    judged.change_last_answer()
    assert judged.again().rc == 0
    judged.details.write_bytes(old)
    assert judged.again().rc == 0
    assert judged.calls == ["1.3?"] * 4


@pytest.mark.parametrize("shape", ["no-status", "verdict-is-a-text", "no-digest"])
def test_details_of_another_shape_count_as_none(judged: Judged, shape: str) -> None:
    rows = read_rows(judged.details)
    change: dict[str, Callable[[dict[str, Any]], Any]] = {
        "no-status": lambda row: row.pop("status"),
        "verdict-is-a-text": lambda row: row.update(verdicts=["fine"]),
        "no-digest": lambda row: row.pop("response_sha256"),
    }
    change[shape](rows[0])
    write_lines(judged.details, rows)
    before = judged.scores.read_bytes()
    ran = judged.again()
    assert (ran.rc, judged.calls, judged.scores.read_bytes()) == (0, [], before), ran.err
    assert "scores.details.jsonl line 1 is damaged" in ran.err


def test_several_lines_a_question_in_the_scores_become_one(judged: Judged) -> None:
    rows = read_rows(judged.scores)
    write_lines(judged.scores, [{**rows[0], "score": 0.0}, *rows, {**rows[1], "chat_id": 1}])
    ran = judged.again()
    assert ran.rc == 0, ran.err
    assert by_key(ran.rows) == by_key(rows) | {key(rows[1]): {**rows[1], "chat_id": 1}}
    assert len(ran.rows) == 4


def test_answers_that_change_while_they_are_judged_are_not_mixed_up(
    endpoint: Serve, run_judge: Callable[..., Ran], tmp_path: Path
) -> None:
    """Another process compacts the answers meanwhile: rows of the same length move to the places of others."""
    answers = write_lines(tmp_path / "answers.jsonl", answer_rows(1, 9))

    def script(request: Recorded) -> Any:
        if request.number == 0:
            answers.write_bytes(b"".join(map(line_of, reversed(answer_rows(1, 9)))))
        return judge_says()

    served = endpoint(script)
    ran = run_judge(answers, served.base_url, "--concurrency", "1")
    assert ran.rc == 2
    assert "was changed while it was being judged; start again" in ran.err
    for request in served.requests:
        assert f"answer to {question_of(request)}" in request.messages[-1]["content"]
    assert run_judge(answers, served.base_url).rc == 0
    assert len(read_rows(tmp_path / "scores.jsonl")) == 9


def test_the_judge_can_work_on_answers_that_are_still_being_written(
    endpoint: Serve, run_judge: Callable[..., Ran], tmp_path: Path
) -> None:
    """A last line that is half there is left for the next start; nothing judged before is paid again."""
    answers = tmp_path / "answers.jsonl"
    answers.write_bytes(WHOLE + LAST[:200])
    served = endpoint(lambda request: judge_says())
    assert run_judge(answers, served.base_url).rc == 0
    answers.write_bytes(WHOLE + LAST)
    ran = run_judge(answers, served.base_url)
    assert (ran.rc, len(served.requests), len(ran.rows)) == (0, 4, 4)
