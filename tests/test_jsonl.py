"""JSONL: what counts as a row, what is read although another tool wrote it, which line counts."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_common.jsonl import (
    ANSWER,
    IDENTITY,
    QUESTION,
    RESUME,
    SCORE,
    VERDICT,
    encode_row,
    latest,
    parse_line,
    problem_of,
    read_lines,
    read_rows,
)
from beam_common.messages import UsageError
from beam_common.rows import key_of, name_of

Capsys = pytest.CaptureFixture[str]

MARK = b"\xef\xbb\xbf"
ID = {"chat_id": "3", "question_type": "abstention", "question_index": 0}
ROW = {
    **ID,
    "question": "q?",
    "gold_answer": "g",
    "rubric": ["r"],
    "response": "yes",
    "error": None,
}
JUDGED = {**ID, "item": 0, "prompt_sha256": "e3", "status": "scored", "level": 0.5}


def answer(index: int, response: str = "yes", **changes: Any) -> dict[str, Any]:
    return {**ROW, "question_index": index, "response": response, **changes}


def without(name: str) -> dict[str, Any]:
    return {n: value for n, value in ROW.items() if n != name}


def lines_of(*rows: dict[str, Any]) -> bytes:
    return b"".join(map(encode_row, rows))


def written(folder: Path, content: bytes) -> Path:
    path = folder / "answers.jsonl"
    path.write_bytes(content)
    return path


SOUND = {
    "answer": (ROW, ANSWER),
    "null-response-is-an-empty-one": ({**ROW, "response": None}, ANSWER),
    "chat-as-number-index-as-text": ({**ROW, "chat_id": 3, "question_index": "12"}, ANSWER),
    "further-keys": ({**ROW, "extra": 1}, ANSWER),
    "a-resume-needs-identity-and-error": ({**ID, "error": None}, RESUME),
    "score": ({**ID, "score": 0.25}, SCORE),
    "verdict": (JUDGED, VERDICT),
    "verdict-without-a-level": ({**JUDGED, "level": None}, VERDICT),
}
UNSOUND = {
    "null": (None, ANSWER, "not a JSON object"),
    "empty-object": ({}, IDENTITY, "no 'chat_id'"),
    "chat-as-boolean": ({**ROW, "chat_id": True}, ANSWER, "'chat_id' is true"),
    "chat-null": ({**ROW, "chat_id": None}, ANSWER, "'chat_id' is null"),
    "index-below-0": ({**ID, "question_index": -1}, IDENTITY, "'question_index' is -1"),
    "index-with-fraction": ({**ID, "question_index": "1.0"}, IDENTITY, "'question_index' is \"1.0"),
    "index-in-other-digits": ({**ID, "question_index": "٣"}, IDENTITY, "'question_index' is"),
    "index-of-5000-digits": ({**ID, "question_index": "9" * 5000}, IDENTITY, 'is "99'),
    "rubric-as-text": ({**ROW, "rubric": "r"}, ANSWER, "'rubric' is \"r\""),
    "criterion-as-number": ({**ROW, "rubric": [1]}, ANSWER, "'rubric' is [1]"),
    "question-as-answer": (without("response"), ANSWER, "no 'response'"),
    "question-as-answer-to-resume": (without("error"), RESUME, "no 'error'"),
    "answer-as-score": (ROW, SCORE, "no 'score'"),
    "score-as-question": ({**ID, "score": 1}, QUESTION, "no 'question'"),
    "score-too-high": ({**ID, "score": 1.5}, SCORE, "'score' is 1.5"),
    "score-nan": ({**ID, "score": float("nan")}, SCORE, "'score' is NaN"),
    "score-as-boolean": ({**ID, "score": True}, SCORE, "'score' is true"),
    "score-null": ({**ID, "score": None}, SCORE, "'score' is null"),
    "unknown-status": ({**JUDGED, "status": "fine"}, VERDICT, "'status' is"),
    "level-below-0": ({**JUDGED, "level": -0.5}, VERDICT, "'level' is -0.5"),
    "item-below-0": ({**JUDGED, "item": -1}, VERDICT, "'item' is -1"),
}


@pytest.mark.parametrize(("row", "wanted"), SOUND.values(), ids=SOUND)
def test_what_counts_as_a_row(row: Any, wanted: Any) -> None:
    assert problem_of(row, wanted) is None


@pytest.mark.parametrize(("row", "wanted", "problem"), UNSOUND.values(), ids=UNSOUND)
def test_what_is_no_row_is_said(row: Any, wanted: Any, problem: str) -> None:
    assert problem in (problem_of(row, wanted) or "")


def test_a_question_is_the_same_however_its_numbers_are_written() -> None:
    assert key_of({**ID, "question_index": "0"}) == key_of({**ID, "chat_id": 3}) == key_of(ID)
    assert key_of({**ID, "chat_id": "03"}) != key_of(ID)
    assert name_of(key_of(ID)) == "chat 3 abstention/0"


TEXTS = {
    "non-ascii-as-itself": ("naïve 雪 🎉", "naïve 雪 🎉"),
    "controls-escaped": ("a\nb\r\tc\0", r"a\nb\r\tc\u0000"),
    "unicode-line-ends-raw": ("a\u2028b\x85c", "a\u2028b\x85c"),
    "lone-surrogate-as-escape": ("\ud83d!", r"\ud83d!"),
}


@pytest.mark.parametrize(("text", "expected"), TEXTS.values(), ids=TEXTS)
def test_an_encoded_row_is_one_line_of_valid_utf8(text: str, expected: str) -> None:
    assert encode_row({"response": text}) == f'{{"response": "{expected}"}}\n'.encode()


odd = st.sampled_from('\n\r\u2028\x85\0\ud83d\ude00"\\{}雪')
texts = st.text(st.characters() | odd, max_size=40)


@given(texts, st.integers(1, 2))
def test_what_is_encoded_is_read_back(text: str, number: int) -> None:
    raw = encode_row(answer(0, text))
    assert raw.count(b"\n") == 1
    line = parse_line(number, 7, raw, ANSWER)
    assert line is not None
    assert (line.number, line.start, line.raw, line.problem) == (number, 7, raw, None)
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert line.row == answer(0, joined)  # halves that meet are one character


TWO = (answer(0), answer(1, "a\u2028b\x85c\x0bd\x1ce"))
READABLE = {
    "as-written": lines_of(*TWO),
    "byte-order-mark": MARK + lines_of(*TWO),
    "crlf": lines_of(*TWO).replace(b"\n", b"\r\n"),
    "blank-lines": lines_of(*TWO).replace(b"\n", b"\n\n \t\n"),
    "last-line-without-its-end": lines_of(*TWO).removesuffix(b"\n"),
    "gzip-whatever-the-name": gzip.compress(lines_of(*TWO)),
    "gzip-of-two-members": b"".join(gzip.compress(lines_of(row)) for row in TWO),
}
DAMAGED = {
    "list": b"[]",
    "text": b"not json",
    "cut-row": lines_of(answer(1))[:-9],
    "two-rows-glued": lines_of(answer(1)).strip() + lines_of(answer(2)).strip(),
    "zero-bytes-before-a-row": b"\0" * 40 + lines_of(answer(1)).strip(),
    "invalid-utf8": b'{"chat_id": "\xff"}',
    "nested-too-deep": b"[" * 100_000,
    "number-too-long": b'{"chat_id": ' + b"1" * 5000 + b"}",
}
UNREADABLE = {
    "cut-gzip": (gzip.compress(lines_of(*TWO))[:-12], "damaged gzip file"),
    "gzip-of-wrong-checksum": (gzip.compress(lines_of(*TWO))[:-8] + b"12345678", "damaged gzip"),
    "missing": (None, "No such file"),
}


@pytest.mark.parametrize("content", READABLE.values(), ids=READABLE)
def test_one_record_a_line_whatever_another_tool_did(tmp_path: Path, content: bytes) -> None:
    assert list(read_rows(written(tmp_path, content), ANSWER)) == list(TWO)


def test_lines_are_numbered_and_placed_in_bytes(tmp_path: Path) -> None:
    content = MARK + lines_of(answer(0, "雪")) + b"\n[]\n" + lines_of(answer(1))
    found = list(read_lines(written(tmp_path, content), ANSWER))
    places = [(line.number, line.row is None) for line in found]
    assert places == [(1, False), (3, True), (4, False)]
    assert all(content[line.start :].startswith(line.raw) for line in found)


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_left_out_and_named_by_its_number(
    tmp_path: Path, capsys: Capsys, damaged: bytes
) -> None:
    path = written(tmp_path, lines_of(answer(0)) + damaged + b"\n" + lines_of(answer(5)))
    rows = list(read_rows(path, ANSWER, "not judged"))
    assert [row["question_index"] for row in rows] == [0, 5]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {path} line 2: ")
    assert line.endswith("; not judged")


def test_a_thousand_lines_of_one_problem_are_one_message(tmp_path: Path, capsys: Capsys) -> None:
    path = written(tmp_path, lines_of(answer(0)) + b"{}\n" * 1000)
    assert len(list(read_rows(path, ANSWER))) == 1
    said = f"warning: {path} lines 2 to 1001: no 'chat_id'; left out\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(("content", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_to_its_end_is_an_error(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = written(tmp_path, content or b"")
    if content is None:
        path.unlink()
    with pytest.raises(UsageError, match=rf"^{path}: .*{message}"):
        list(read_rows(path, ANSWER))


GOOD, LATER, FAILED = answer(0, "first"), answer(0, "second"), answer(0, "", error="HTTP 500")
LAST_FAILED = {**FAILED, "error": "HTTP 503"}
COUNTS = {
    "later-answer": ([GOOD, LATER], LATER),
    "answer-after-error": ([FAILED, GOOD], GOOD),
    "last-without-error": ([GOOD, FAILED, LATER, FAILED], LATER),
    "last-of-errors": ([FAILED, LAST_FAILED], LAST_FAILED),
    "chat-as-number-and-text": ([{**GOOD, "chat_id": 3}, LATER], LATER),
    "row-without-an-error-key": ([without("error"), FAILED], without("error")),
}


@pytest.mark.parametrize(("rows", "counts"), COUNTS.values(), ids=COUNTS)
def test_last_line_without_an_error_counts_else_the_last(rows: Any, counts: Any) -> None:
    assert latest([*rows, answer(1)]) == {key_of(ID): counts, key_of(answer(1)): answer(1)}
