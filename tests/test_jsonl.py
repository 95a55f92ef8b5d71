"""JSONL: what counts as a row, what is read although another tool wrote it, which line counts."""

from __future__ import annotations

import gzip
import json
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
    Wanted,
    encode_row,
    latest,
    parse_line,
    problem_of,
    read_lines,
    read_rows,
)
from beam_common.messages import UsageError
from beam_common.rows import key_of, name_of

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
VERDICT_ROW = {**ID, "item": 0, "prompt_sha256": "e3", "status": "scored", "level": 0.5}


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


# --- Rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "wanted", "problem"),
    [
        pytest.param(ROW, ANSWER, None, id="answer"),
        pytest.param({**ROW, "response": None}, ANSWER, None, id="null-response-is-an-empty-one"),
        pytest.param({**ROW, "chat_id": 3}, ANSWER, None, id="chat-as-number"),
        pytest.param({**ROW, "question_index": "12"}, ANSWER, None, id="index-as-text"),
        pytest.param({**ROW, "extra": 1}, ANSWER, None, id="further-keys"),
        pytest.param(without("gold_answer"), ANSWER, None, id="nobody-judges-by-the-gold-answer"),
        pytest.param({**ID, "error": None}, RESUME, None, id="a-resume-needs-identity-and-error"),
        pytest.param({**ID, "score": 0}, SCORE, None, id="score-0"),
        pytest.param({**ID, "score": 0.25}, SCORE, None, id="score-between"),
        pytest.param(VERDICT_ROW, VERDICT, None, id="verdict"),
        pytest.param({**VERDICT_ROW, "level": None}, VERDICT, None, id="verdict-without-a-level"),
        pytest.param(None, ANSWER, "not a JSON object", id="null"),
        pytest.param([], ANSWER, "not a JSON object", id="list"),
        pytest.param({}, IDENTITY, "no 'chat_id'", id="empty-object"),
        pytest.param({**ROW, "chat_id": True}, ANSWER, "'chat_id' is true", id="chat-as-boolean"),
        pytest.param({**ROW, "chat_id": None}, ANSWER, "'chat_id' is null", id="chat-null"),
        pytest.param(
            {**ID, "question_index": -1}, IDENTITY, "'question_index' is -1", id="below-0"
        ),
        pytest.param({**ID, "question_index": 0.5}, IDENTITY, "is 0.5", id="index-with-fraction"),
        pytest.param({**ID, "question_index": "1.0"}, IDENTITY, 'is "1.0"', id="index-as-decimal"),
        pytest.param(
            {**ID, "question_index": "٣"}, IDENTITY, "'question_index' is", id="arabic-index"
        ),
        pytest.param(
            {**ID, "question_index": "9" * 5000}, IDENTITY, 'is "99', id="5000-digit-index"
        ),
        pytest.param({**ROW, "rubric": "r"}, ANSWER, "'rubric' is \"r\"", id="rubric-as-text"),
        pytest.param({**ROW, "rubric": [1]}, ANSWER, "'rubric' is [1]", id="criterion-as-number"),
        pytest.param({**ROW, "response": 5}, ANSWER, "'response' is 5", id="response-as-number"),
        pytest.param(without("response"), ANSWER, "no 'response'", id="question-as-answer"),
        pytest.param(without("error"), RESUME, "no 'error'", id="question-as-answer-to-resume"),
        pytest.param(ROW, SCORE, "no 'score'", id="answer-as-score"),
        pytest.param({**ID, "score": 1}, QUESTION, "no 'question'", id="score-as-question"),
        pytest.param({**ID, "score": 1.5}, SCORE, "'score' is 1.5", id="score-too-high"),
        pytest.param({**ID, "score": -0.1}, SCORE, "'score' is -0.1", id="score-below-0"),
        pytest.param({**ID, "score": float("nan")}, SCORE, "'score' is NaN", id="score-nan"),
        pytest.param({**ID, "score": True}, SCORE, "'score' is true", id="score-as-boolean"),
        pytest.param({**ID, "score": None}, SCORE, "'score' is null", id="score-null"),
        pytest.param(
            {**VERDICT_ROW, "status": "fine"}, VERDICT, "'status' is", id="unknown-status"
        ),
        pytest.param({**VERDICT_ROW, "level": 2}, VERDICT, "'level' is 2", id="level-too-high"),
        pytest.param({**VERDICT_ROW, "item": -1}, VERDICT, "'item' is -1", id="item-below-0"),
    ],
)
def test_what_counts_as_a_row(row: Any, wanted: Wanted, problem: str | None) -> None:
    found = problem_of(row, wanted)
    assert found is None if problem is None else problem in str(found)


def test_a_question_is_the_same_however_its_numbers_are_written() -> None:
    texts = {"chat_id": "3", "question_type": "abstention", "question_index": "0"}
    numbers = {"chat_id": 3, "question_type": "abstention", "question_index": 0}
    assert key_of(texts) == key_of(numbers) == ("3", "abstention", 0)
    assert key_of({**texts, "chat_id": "03"}) != key_of(texts)
    assert name_of(key_of(texts)) == "chat 3 abstention/0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("naïve 雪 🎉", "naïve 雪 🎉", id="non-ascii-as-itself"),
        pytest.param("a\nb\r\tc\0", r"a\nb\r\tc\u0000", id="controls-escaped"),
        pytest.param("a\u2028b\x85c", "a\u2028b\x85c", id="unicode-line-ends-raw"),
        pytest.param("\ud83d!", r"\ud83d!", id="lone-surrogate-as-escape"),
    ],
)
def test_an_encoded_row_is_one_line_of_valid_utf8(text: str, expected: str) -> None:
    line = encode_row({"response": text})
    assert line == f'{{"response": "{expected}"}}\n'.encode()
    assert json.loads(line) == {"response": text}


texts = st.text(
    st.characters() | st.sampled_from('\n\r\u2028\x85\0\ud83d\ude00"\\{}雪'), max_size=40
)


@given(texts, st.integers(1, 2))
def test_what_is_encoded_is_read_back(text: str, number: int) -> None:
    row = answer(0, text)
    raw = encode_row(row)
    assert raw.count(b"\n") == 1
    line = parse_line(number, 7, raw, ANSWER)
    assert line is not None
    assert (line.number, line.start, line.raw, line.problem) == (number, 7, raw, None)
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert line.row == {**row, "response": joined}  # halves that meet are one character


# --- Reading --------------------------------------------------------------------------------------

TWO = (answer(0), answer(1, "a\u2028b\x85c\x0bd\x1ce"))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lines_of(*TWO), id="as-written"),
        pytest.param(MARK + lines_of(*TWO), id="byte-order-mark"),
        pytest.param(lines_of(*TWO).replace(b"\n", b"\r\n"), id="crlf"),
        pytest.param(lines_of(*TWO).replace(b"\n", b"\n\n \t\n"), id="blank-lines"),
        pytest.param(lines_of(*TWO).removesuffix(b"\n"), id="last-line-without-its-end"),
        pytest.param(gzip.compress(lines_of(*TWO)), id="gzip-whatever-the-name"),
        pytest.param(
            b"".join(gzip.compress(lines_of(row)) for row in TWO), id="gzip-of-two-members"
        ),
    ],
)
def test_one_record_a_line_whatever_another_tool_did(tmp_path: Path, content: bytes) -> None:
    assert list(read_rows(written(tmp_path, content), ANSWER)) == list(TWO)


def test_lines_are_numbered_and_placed_in_bytes(tmp_path: Path) -> None:
    content = MARK + lines_of(answer(0, "雪")) + b"\n[]\n" + lines_of(answer(1))
    found = list(read_lines(written(tmp_path, content), ANSWER))
    places = [(line.number, line.row is None) for line in found]
    assert places == [(1, False), (3, True), (4, False)]
    assert all(content[line.start :].startswith(line.raw) for line in found)


DAMAGED = [
    pytest.param(b"null", id="null"),
    pytest.param(b"[]", id="list"),
    pytest.param(b"not json", id="text"),
    pytest.param(lines_of(answer(1))[:-9], id="cut-row"),
    pytest.param(lines_of(answer(1)).strip() + lines_of(answer(2)).strip(), id="two-rows-glued"),
    pytest.param(b"\0" * 40 + lines_of(answer(1)).strip(), id="zero-bytes-before-a-row"),
    pytest.param(b'{"chat_id": "\xff"}', id="invalid-utf8"),
    pytest.param(b"[" * 100_000, id="nested-too-deep"),
    pytest.param(b'{"chat_id": ' + b"1" * 5000 + b"}", id="number-too-long"),
    pytest.param(MARK + lines_of(answer(1)).strip(), id="byte-order-mark-in-the-middle"),
]


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_line_is_left_out_and_named_by_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: bytes
) -> None:
    path = written(tmp_path, lines_of(answer(0)) + damaged + b"\n" + lines_of(answer(5)))
    rows = list(read_rows(path, ANSWER, "not judged"))
    assert [row["question_index"] for row in rows] == [0, 5]
    err = capsys.readouterr().err
    assert err.startswith(f"warning: {path} line 2: ")
    assert err.endswith("; not judged\n")
    assert err.count("\n") == 1


def test_a_thousand_lines_of_one_problem_are_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, lines_of(answer(0)) + b"{}\n" * 1000)
    assert len(list(read_rows(path, ANSWER))) == 1
    assert capsys.readouterr().err == (f"warning: {path} lines 2 to 1001: no 'chat_id'; left out\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(gzip.compress(lines_of(*TWO))[:-12], "damaged gzip file", id="cut-gzip"),
        pytest.param(
            gzip.compress(lines_of(*TWO))[:-8] + b"12345678", "damaged gzip", id="wrong-checksum"
        ),
        pytest.param(None, "No such file", id="missing"),
    ],
)
def test_a_file_that_cannot_be_read_to_its_end_is_an_error(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "answers.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=rf"^{path}: .*{message}"):
        list(read_rows(path, ANSWER))


# --- Which line of a question counts --------------------------------------------------------------

GOOD, LATER, FAILED = answer(0, "first"), answer(0, "second"), answer(0, "", error="HTTP 500")
FAILED_AGAIN = {**FAILED, "error": "HTTP 503"}


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        pytest.param([GOOD, LATER], LATER, id="later-answer"),
        pytest.param([FAILED, GOOD], GOOD, id="answer-after-error"),
        pytest.param([GOOD, FAILED], GOOD, id="error-after-answer"),
        pytest.param([GOOD, FAILED, LATER, FAILED], LATER, id="last-without-error"),
        pytest.param([FAILED, FAILED_AGAIN], FAILED_AGAIN, id="last-of-errors"),
        pytest.param([{**GOOD, "chat_id": 3}, LATER], LATER, id="chat-as-number-and-text"),
        pytest.param(
            [{**GOOD, "question_index": "0"}, LATER], LATER, id="index-as-text-and-number"
        ),
        pytest.param([without("error"), FAILED], without("error"), id="row-without-an-error-key"),
    ],
)
def test_last_line_without_an_error_counts_else_the_last(
    rows: list[dict[str, Any]], counts: dict[str, Any]
) -> None:
    assert latest([*rows, answer(1)]) == {
        ("3", "abstention", 0): counts,
        ("3", "abstention", 1): answer(1),
    }
