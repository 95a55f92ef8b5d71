"""JSONL files: what is read, what is repaired, who may write, and that no cut, crash or full disk costs a whole row."""

from __future__ import annotations

import errno
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import beam_log
from beam_common import StoppedEarly, UsageError, key_of, write_whole
from beam_log import ANSWER, DETAIL, IDENTITY, QUESTION, SCORE, RowLog, encode_row, problem_of, read_lines, read_rows

ROOT = Path(beam_log.__file__).parent


def answer(index: int, response: str = "yes", **changes: Any) -> dict[str, Any]:
    row = {"chat_id": "3", "question_type": "abstention", "question_index": index, "question": "q?"}
    row |= {"gold_answer": "g", "rubric": ["r"], "response": response, "finish_reason": "stop"}
    return {**row, "prompt_tokens": 1, "completion_tokens": 2, "error": None, **changes}


def score(index: int, value: Any = 1.0, chat: Any = "3") -> dict[str, Any]:
    return {"chat_id": chat, "question_type": "abstention", "question_index": index, "score": value}


def lines_of(*rows: dict[str, Any]) -> bytes:
    return b"".join(map(encode_row, rows))


def kept(path: Path) -> dict[Any, dict[str, Any]]:
    """The rows of a file by a reader of its own; every line must be whole."""
    data = path.read_bytes()
    assert data.endswith(b"\n")
    rows = [json.loads(line) for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n")[:-1] if line.strip()]
    return {key_of(row): row for row in rows}


def open_and_close(path: Path, wanted: beam_log.Wanted = ANSWER) -> dict[Any, dict[str, Any]]:
    with RowLog(path, wanted) as log:
        return log.rows


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Every write beyond `size` bytes fails as on a full disk (EFBIG in place of ENOSPC)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def python(code: str, *argv: str, **popen: Any) -> subprocess.Popen[str]:
    """A process of its own that runs `code`."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **popen}
    return subprocess.Popen([sys.executable, "-c", code, *argv], cwd=ROOT, **pipes)


# --- Rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "wanted", "problem"),
    [
        pytest.param(answer(0), ANSWER, None, id="answer"),
        pytest.param({**answer(0), "response": None}, ANSWER, None, id="null-response-is-an-empty-one"),
        pytest.param({**answer(0), "chat_id": 3}, ANSWER, None, id="chat-as-number"),
        pytest.param({**answer(0), "question_index": "12"}, ANSWER, None, id="index-as-text"),
        pytest.param({**answer(0), "question_index": 0.0}, ANSWER, None, id="index-as-float"),
        pytest.param({**answer(0), "extra": 1}, ANSWER, None, id="further-keys"),
        pytest.param({n: v for n, v in answer(0).items() if n != "gold_answer"}, ANSWER, None, id="no-gold-answer"),
        pytest.param(score(0, 0), SCORE, None, id="score-0"),
        pytest.param(score(0, 0.25), SCORE, None, id="score-between"),
        pytest.param(None, ANSWER, "not a JSON object", id="null"),
        pytest.param([], ANSWER, "not a JSON object", id="list"),
        pytest.param({}, IDENTITY, "no 'chat_id'", id="empty-object"),
        pytest.param({**answer(0), "chat_id": True}, ANSWER, "'chat_id' is true", id="chat-as-boolean"),
        pytest.param({**answer(0), "chat_id": None}, ANSWER, "'chat_id' is null", id="chat-null"),
        pytest.param({**answer(0), "question_index": 0.5}, ANSWER, "not a whole number", id="index-with-fraction"),
        pytest.param({**answer(0), "question_index": float("nan")}, ANSWER, "not a whole number", id="index-nan"),
        pytest.param({**answer(0), "question_index": "1.0"}, ANSWER, "not a whole number", id="index-as-decimal-text"),
        pytest.param({**answer(0), "question_index": "first"}, ANSWER, "not a whole number", id="index-as-word"),
        pytest.param({**answer(0), "question_index": "٣"}, ANSWER, "not a whole number", id="index-in-other-digits"),
        pytest.param({**answer(0), "rubric": "r"}, ANSWER, "'rubric' is \"r\"", id="rubric-as-text"),
        pytest.param({**answer(0), "rubric": [1]}, ANSWER, "no text", id="criterion-as-number"),
        pytest.param({**answer(0), "response": 5}, ANSWER, "'response' is 5", id="response-as-number"),
        pytest.param(
            {n: v for n, v in answer(0).items() if n != "response"}, ANSWER, "no 'response'", id="question-row-as-answer"
        ),
        pytest.param(answer(0), SCORE, "no 'score'", id="answer-as-score"),
        pytest.param(score(0), QUESTION, "no 'question'", id="score-as-question"),
        pytest.param(score(0, 1.5), SCORE, "'score' is 1.5, not from 0 to 1", id="score-too-high"),
        pytest.param(score(0, -0.1), SCORE, "not from 0 to 1", id="score-below-0"),
        pytest.param(score(0, float("nan")), SCORE, "not from 0 to 1", id="score-nan"),
        pytest.param(score(0, float("inf")), SCORE, "not from 0 to 1", id="score-infinite"),
        pytest.param(score(0, True), SCORE, "'score' is true", id="score-as-boolean"),
        pytest.param(score(0, None), SCORE, "'score' is null", id="score-null"),
        pytest.param(score(0, "1"), SCORE, "'score' is \"1\"", id="score-as-text"),
        pytest.param(
            {**score(0), "response_sha256": "e", "status": "judged", "verdicts": [None]}, DETAIL, "no object", id="verdict-null"
        ),
    ],
)  # fmt: skip
def test_what_counts_as_a_row(row: Any, wanted: beam_log.Wanted, problem: str | None) -> None:
    found = problem_of(row, wanted)
    assert found is None if problem is None else problem in str(found)


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


# --- Reading ---------------------------------------------------------------------------------------------------------

TWO = (answer(0), answer(1, "a\u2028b\x85c\x0bd\x1ce"))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lines_of(*TWO), id="as-written"),
        pytest.param(b"\xef\xbb\xbf" + lines_of(*TWO), id="byte-order-mark"),
        pytest.param(lines_of(*TWO).replace(b"\n", b"\r\n"), id="crlf"),
        pytest.param(lines_of(*TWO).replace(b"\n", b"\n\n \t\n"), id="blank-lines"),
        pytest.param(lines_of(*TWO).removesuffix(b"\n"), id="last-line-without-its-end"),
        pytest.param(gzip.compress(lines_of(*TWO)), id="gzip"),
        pytest.param(gzip.compress(lines_of(TWO[0])) + gzip.compress(lines_of(TWO[1])), id="gzip-in-two-members"),
    ],
)
def test_one_record_a_line_whatever_another_tool_did(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(content)
    assert list(read_rows(path, ANSWER)) == list(TWO)


def test_lines_are_numbered_and_placed_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + lines_of(answer(0, "雪")) + b"\n[]\n" + lines_of(answer(1)))
    found = list(read_lines(path, ANSWER))
    assert [(line.number, line.row is None) for line in found] == [(1, False), (3, True), (4, False)]
    assert all(path.read_bytes()[line.start :].startswith(line.raw) for line in found)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"not json", id="text"),
        pytest.param(encode_row(answer(1)).strip()[:-9], id="cut-row"),
        pytest.param(encode_row(answer(1)).strip() + encode_row(answer(2)).strip(), id="two-rows-glued"),
        pytest.param(b"\0" * 40 + encode_row(answer(1)).strip(), id="zero-bytes-before-a-row"),
        pytest.param(b'{"chat_id": "\xff"}', id="invalid-utf8"),
        pytest.param(b"[" * 100_000, id="nested-too-deep"),
        pytest.param(b'{"chat_id": ' + b"1" * 5000 + b"}", id="number-too-long"),
        pytest.param(b"\xef\xbb\xbf" + encode_row(answer(1)).strip(), id="byte-order-mark-in-the-middle"),
    ],
)
def test_a_damaged_line_is_named_left_out_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    path = tmp_path / "answers.jsonl"
    content = lines_of(answer(0)) + line + b"\n" + lines_of(answer(5))
    path.write_bytes(content)
    assert [row["question_index"] for row in read_rows(path, ANSWER)] == [0, 5]
    assert f"{path} line 2: " in capsys.readouterr().err
    assert {key[2] for key in open_and_close(path)} == {0, 5}
    assert "line 2 is damaged" in capsys.readouterr().err
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(gzip.compress(lines_of(*TWO))[:-12], "damaged gzip file", id="cut-gzip"),
        pytest.param(gzip.compress(lines_of(*TWO))[:-8] + b"12345678", "damaged gzip file", id="gzip-of-wrong-checksum"),
        pytest.param(None, "No such file", id="missing"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_to_its_end_is_an_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "answers.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        list(read_rows(path, ANSWER))


# --- Which row of a question counts ----------------------------------------------------------------------------------

GOOD, LATER, FAILED = answer(0, "first"), answer(0, "second"), answer(0, "", error="HTTP 500")


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        pytest.param([GOOD, LATER], LATER, id="later-answer"),
        pytest.param([FAILED, GOOD], GOOD, id="answer-after-error"),
        pytest.param([GOOD, FAILED], GOOD, id="error-after-answer"),
        pytest.param([GOOD, FAILED, LATER, FAILED], LATER, id="last-without-error"),
        pytest.param([FAILED, {**FAILED, "error": "HTTP 503"}], {**FAILED, "error": "HTTP 503"}, id="last-of-errors"),
        pytest.param([{**GOOD, "chat_id": 3}, LATER], LATER, id="chat-as-number-and-text"),
        pytest.param([{**GOOD, "question_index": "0"}, LATER], LATER, id="index-as-text-and-number"),
        pytest.param([{n: v for n, v in GOOD.items() if n != "error"}, FAILED],
                     {n: v for n, v in GOOD.items() if n != "error"}, id="row-without-an-error-key"),
    ],
)  # fmt: skip
def test_last_row_without_an_error_counts_else_the_last(
    tmp_path: Path, rows: list[dict[str, Any]], counts: dict[str, Any]
) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(lines_of(*rows, answer(1)))
    with RowLog(path, ANSWER) as log:
        assert log.rows == {("3", "abstention", 0): counts, ("3", "abstention", 1): answer(1)}
        log.compact()
    assert path.read_bytes() == lines_of(counts, answer(1))
    other = tmp_path / "other.jsonl"
    with RowLog(other, ANSWER) as log:  # and the same when the rows come one after the other
        for row in rows:
            log.append([row])
        log.compact()
    assert other.read_bytes() == lines_of(counts)


# --- The end of a file -----------------------------------------------------------------------------------------------

ROW, TORN = lines_of(answer(0, "雪")), lines_of(answer(1, "雪雪雪"))


@pytest.mark.parametrize(
    ("content", "repaired", "moved"),
    [
        pytest.param(ROW + TORN[:60], ROW, TORN[:60], id="torn-in-a-string"),
        pytest.param(ROW + TORN.partition("雪".encode())[0] + b"\xe9", ROW,
                     TORN.partition("雪".encode())[0] + b"\xe9", id="torn-in-a-character"),
        pytest.param(ROW + TORN[:-1], ROW + TORN, None, id="only-the-line-end-is-missing"),
        pytest.param(ROW + TORN[:-1] + b"\r", ROW + TORN[:-1] + b"\r\n", None, id="torn-in-a-crlf"),
        pytest.param(ROW + b"  ", ROW + b"  \n", None, id="blanks-without-a-line-end"),
        pytest.param(ROW + b"\0" * 4096, ROW, b"\0" * 4096, id="zero-bytes-after-a-line"),
        pytest.param(ROW[:-1] + b"\0" * 4096, ROW, b"\0" * 4096, id="zero-bytes-in-place-of-the-line-end"),
        pytest.param(ROW[:-1] + b"\0" * 9 + b"\n", ROW, b"\0" * 9, id="zero-bytes-and-a-line-end"),
        pytest.param(ROW + TORN[:60] + b"\0" * 99, ROW, TORN[:60] + b"\0" * 99, id="zero-bytes-after-a-torn-row"),
        pytest.param(ROW + b"null\n", ROW, b"null", id="null"),
        pytest.param(ROW + b"[]\n", ROW, b"[]", id="list"),
        pytest.param(ROW + b"{\n", ROW, b"{", id="damaged-with-a-line-end"),
        pytest.param(ROW + b"nonsense\n\n\n", ROW, b"nonsense", id="damaged-before-blank-lines"),
        pytest.param(TORN[:1], None, TORN[:1], id="only-line-torn-after-one-byte"),
        pytest.param(TORN[:60], None, TORN[:60], id="only-line-torn"),
        pytest.param(TORN[:60] + b"\0" * 9, None, TORN[:60] + b"\0" * 9, id="only-line-torn-with-zero-bytes"),
        pytest.param(b"\xef\xbb\xbf" + TORN[:60], None, b"\xef\xbb\xbf" + TORN[:60], id="only-line-torn-after-a-mark"),
        pytest.param(b"\0" * 4096, None, b"\0" * 4096, id="nothing-but-zero-bytes"),
        pytest.param(b"", None, None, id="empty"),
        pytest.param(b"\n \n", b"\n \n", None, id="blank-lines-only"),
    ],
)  # fmt: skip
def test_end_of_file_is_mended_before_anything_is_appended(
    tmp_path: Path, content: bytes, repaired: bytes | None, moved: bytes | None
) -> None:
    path, damaged = tmp_path / "answers.jsonl", tmp_path / "answers.jsonl.damaged"
    path.write_bytes(content)
    with RowLog(path, ANSWER) as log:
        assert path.read_bytes() == (repaired or b"")
        log.append([answer(2)])
    assert path.read_bytes() == (repaired or b"") + lines_of(answer(2))
    assert damaged.exists() == (moved is not None)
    if moved is not None:
        assert damaged.read_bytes() == moved + b"\n"


def test_what_was_moved_earlier_stays(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    for torn in (TORN[:60], TORN[:70]):
        path.write_bytes(ROW + torn)
        open_and_close(path)
    assert (tmp_path / "answers.jsonl.damaged").read_bytes() == TORN[:60] + b"\n" + TORN[:70] + b"\n"


texts = st.text(st.characters() | st.sampled_from('\n\r\u2028\x85\0\ud83d\ude00"\\{}雪'), max_size=12)
responses = st.lists(texts, min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(responses, st.data(), st.sampled_from([b"", b"\xef\xbb\xbf"]), st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
       st.sampled_from([0, 0, 1, 4096]))  # fmt: skip
def test_any_cut_then_resume_gives_the_rows_of_an_uninterrupted_run(
    responses: list[str], data: st.DataObject, mark: bytes, line_end: bytes, zero_bytes: int
) -> None:
    rows = [answer(index, text) for index, text in enumerate(responses)]
    whole = mark + lines_of(*rows).replace(b"\n", line_end)
    cut = whole[: data.draw(st.integers(0, len(whole)), label="cut at")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "answers.jsonl")
        path.write_bytes(cut + b"\0" * zero_bytes)
        with RowLog(path, ANSWER) as log:
            survivors = len(log.rows)
            assert survivors >= cut.count(b'"error": null}' + line_end)
            log.append([row for row in rows if key_of(row) not in log.rows])
        assert kept(path) == {key_of(row): row for row in rows}
        assert path.read_bytes().count(b'{"chat_id": "3"') == len(rows)
        assert path.read_bytes().startswith(cut[: cut.rfind(line_end) + 1])
        assert open_and_close(path) == {key_of(row): row for row in rows}


# --- Files of others -------------------------------------------------------------------------------------------------

CHAT = b'{"chat_id": "3", "messages": [{"role": "user", "content": "hello"}]}\n'
QUESTION_ROW = {n: v for n, v in answer(0).items() if n in ("chat_id", "question_type", "question_index", "question",
                                                            "gold_answer", "rubric")}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        pytest.param(b"dear diary\n", ANSWER, id="one-line-of-text"),
        pytest.param(b"dear diary", ANSWER, id="text-without-line-end"),
        pytest.param(b"# a\n# b\n", ANSWER, id="lines-of-text"),
        pytest.param(b"[1, 2]\n", ANSWER, id="json-list"),
        pytest.param(b'{"results": []}', ANSWER, id="json-object"),
        pytest.param(CHAT, ANSWER, id="the-only-chat-of-a-chats-file"),
        pytest.param(CHAT + CHAT.replace(b"3", b"4"), ANSWER, id="chats-file"),
        pytest.param(lines_of(QUESTION_ROW), ANSWER, id="one-question"),
        pytest.param(lines_of(QUESTION_ROW, QUESTION_ROW), ANSWER, id="questions-file"),
        pytest.param(lines_of(score(0)), ANSWER, id="one-score-as-answers"),
        pytest.param(lines_of(score(0), score(1)), ANSWER, id="scores-as-answers"),
        pytest.param(lines_of(answer(0)), SCORE, id="one-answer-as-scores"),
        pytest.param(lines_of(answer(0), answer(1)), SCORE, id="answers-as-scores"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + bytes(range(256)), ANSWER, id="picture"),
        pytest.param("\ufeffa,b\n1,2\n".encode("utf-16"), ANSWER, id="utf-16"),
        pytest.param(gzip.compress(lines_of(answer(0))), ANSWER, id="gzip-of-answers"),
    ],
)
def test_a_file_of_another_kind_is_refused_untouched(tmp_path: Path, content: bytes, wanted: beam_log.Wanted) -> None:
    path = tmp_path / "output"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"none of a run of this kind|gzip file, to which rows cannot be appended"):
        open_and_close(path, wanted)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


# --- Paths -----------------------------------------------------------------------------------------------------------


def test_a_path_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "circle").symlink_to("circle")
    for path, message in {
        tmp_path: "is a directory",
        tmp_path / "missing" / "answers.jsonl": "the folder does not exist",
        tmp_path / "file" / "answers.jsonl": "cannot be opened for writing: Not a directory",
        tmp_path / "circle": "cannot be opened for writing: Too many levels of symbolic links",
        tmp_path / ("n" * 300): "cannot be opened for writing: File name too long",
    }.items():
        with pytest.raises(UsageError, match=message):
            open_and_close(path)


def test_a_link_is_followed_also_when_compacting(tmp_path: Path) -> None:
    target, link = tmp_path / "disk2" / "real.jsonl", tmp_path / "answers.jsonl"
    target.parent.mkdir()
    link.symlink_to(target)
    with RowLog(link, ANSWER) as log:
        log.append([answer(0, "old"), answer(0, "new")])
        log.compact()
        with pytest.raises(UsageError, match="is being written by another process"):
            open_and_close(target)
    assert link.is_symlink()
    assert not target.is_symlink()
    assert target.read_bytes() == lines_of(answer(0, "new"))


def test_a_dangling_link_stays_when_nothing_was_written(tmp_path: Path) -> None:
    target, link = tmp_path / "real.jsonl", tmp_path / "answers.jsonl"
    link.symlink_to(target)
    open_and_close(link)
    assert link.is_symlink()
    assert not target.exists()


def test_a_run_that_brought_nothing_leaves_no_new_file(tmp_path: Path) -> None:
    new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    old.touch()
    for path in (new, old):
        open_and_close(path)
    assert list(tmp_path.iterdir()) == [old]


def test_new_files_follow_the_umask_and_compacted_ones_keep_their_mode(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    before = os.umask(0o027)
    try:
        with RowLog(path, ANSWER) as log:
            log.append([answer(0), answer(0)])
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o664)
        with RowLog(path, ANSWER) as log:
            log.compact()
        assert path.stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


def test_a_named_pipe_is_only_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    with RowLog(path, ANSWER) as log:
        assert not log.regular
        log.append([answer(0)])
        log.append([answer(1)])
        log.append([answer(0)])
        log.compact()  # of what is no file nothing is rewritten, and it is never replaced by one
    reader.join(10)
    assert got == [lines_of(answer(0), answer(1), answer(0))]
    assert list(tmp_path.iterdir()) == [path]
    assert path.is_fifo()
    with pytest.raises(OSError, match="not a regular file"):
        write_whole(path, lambda file: None)
    assert path.is_fifo()


def test_a_pipe_whose_reader_has_gone_stops_the_run(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with RowLog(path, ANSWER) as log:
        os.close(reader)
        with pytest.raises(StoppedEarly, match="Broken pipe"):
            log.append([answer(0)])


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_an_open_stream_is_written_behind_what_stands_there(tmp_path: Path, name: str) -> None:
    """A shell's `> file` behind /dev/stdout: rows and the summary share one position, nothing is read or locked."""
    code = (
        "import json, sys; from beam_log import *; print('before', flush=True)\n"
        "with RowLog(sys.argv[1], ANSWER) as log: log.append([json.loads(sys.argv[2])])\n"
        "print('after', log.regular)"
    )
    target = tmp_path / "out.txt"
    with target.open("wb") as out:
        assert python(code, name, json.dumps(answer(0)), stdout=out).wait(30) == 0
    assert target.read_bytes() == b"before\n" + lines_of(answer(0)) + b"after False\n"
    assert list(tmp_path.iterdir()) == [target]


# --- Full disks ------------------------------------------------------------------------------------------------------


def test_a_full_device_stops_the_run() -> None:
    with RowLog("/dev/full", ANSWER) as log, pytest.raises(StoppedEarly, match="No space left on device"):
        log.append([answer(0)])


def test_a_full_disk_harms_nothing_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    old = [answer(0, "old"), answer(1)]
    with RowLog(path, ANSWER) as log:
        log.append(old)
        with files_of_at_most(len(lines_of(*old)) + 300), pytest.raises(StoppedEarly, match="make room"):
            log.append([answer(0, "new"), answer(2, "x" * 200)])  # the first fits, the second is torn by the limit
        assert path.read_bytes() == lines_of(*old)
        assert list(log.rows.values()) == old
        log.append([answer(3)])
        log.compact()
    assert path.read_bytes() == lines_of(*old, answer(3))


def test_rows_not_saved_do_not_replace_saved_ones_when_compacting(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with RowLog(path, ANSWER) as log:
        log.append([answer(0, "old"), answer(1, "a"), answer(1, "b")])
        with files_of_at_most(path.stat().st_size), pytest.raises(StoppedEarly):
            log.append([answer(0, "new")])
        log.compact()
    assert path.read_bytes() == lines_of(answer(0, "old"), answer(1, "b"))


def test_a_full_disk_at_compaction_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    content = lines_of(answer(0, "old"), answer(0, "new"), answer(1))
    path.write_bytes(content)
    with RowLog(path, ANSWER) as log:
        with files_of_at_most(200), pytest.raises(StoppedEarly, match="could not be cleared of replaced rows"):
            log.compact()
        with pytest.raises(UsageError, match="is being written"):
            open_and_close(path)
        log.append([answer(2)])
    assert path.read_bytes() == content + lines_of(answer(2))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [ROW + TORN[:60], ROW[:-1]], ids=["torn-row", "missing-line-end"])
def test_a_full_disk_while_mending_loses_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(content)
    with files_of_at_most(0), pytest.raises(StoppedEarly, match="make room"):
        open_and_close(path)
    assert path.read_bytes() == content
    assert len(open_and_close(path)) == 1


def test_a_place_for_the_torn_end_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(ROW + TORN[:60])
    (tmp_path / "answers.jsonl.damaged").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        open_and_close(path)
    assert path.read_bytes() == ROW + TORN[:60]


# --- Files that change under a run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["deleted", "moved", "replaced"])
def test_a_file_taken_away_stops_the_run(tmp_path: Path, fate: str) -> None:
    path, elsewhere = tmp_path / "answers.jsonl", tmp_path / "elsewhere.jsonl"
    with RowLog(path, ANSWER) as log:
        log.append([answer(0), answer(0)])
        path.rename(elsewhere)
        if fate == "deleted":
            elsewhere.unlink()
        if fate == "replaced":
            path.write_bytes(b"of somebody else\n")
        with pytest.raises(StoppedEarly, match="was moved, deleted or replaced"):
            log.append([answer(1)])
        log.compact()
    if fate != "deleted":
        assert elsewhere.read_bytes() == lines_of(answer(0), answer(0), answer(1))
    assert path.exists() == (fate == "replaced")
    if fate == "replaced":
        assert path.read_bytes() == b"of somebody else\n"


# --- Compaction ------------------------------------------------------------------------------------------------------


def test_compaction_keeps_order_damage_and_foreign_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    crlf = encode_row(answer(1, "crlf")).replace(b"\n", b"\r\n")
    path.write_bytes(lines_of(answer(0, "old")) + b"damaged\n" + crlf + lines_of(answer(0, "new"), answer(2)))
    with RowLog(path, ANSWER) as log:
        log.compact()
        assert path.read_bytes() == b"damaged\n" + crlf + lines_of(answer(0, "new"), answer(2))
        log.append([answer(1, "again")])
        log.compact()
    assert path.read_bytes() == b"damaged\n" + lines_of(answer(0, "new"), answer(2), answer(1, "again"))


def test_a_file_with_one_line_a_question_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(lines_of(answer(0), answer(1)))
    inode = path.stat().st_ino
    with RowLog(path, ANSWER) as log:
        log.compact()
    assert path.stat().st_ino == inode


def test_rows_can_be_held_by_their_essence_only(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(lines_of(answer(0, "long")))
    with RowLog(path, ANSWER, lambda row: {"length": len(row["response"]), "error": row["error"]}) as log:
        log.append([answer(1, "longer"), answer(0, "", error="late failure")])
        assert list(log.rows.values()) == [{"length": 4, "error": None}, {"length": 6, "error": None}]


# --- Locks -----------------------------------------------------------------------------------------------------------

HOLD = """
import sys
from beam_log import *
with RowLog(sys.argv[1], ANSWER) as log:
    print("held", flush=True)
    sys.stdin.read()
"""

TRY_UNTIL_TOLD = """
import os, select, sys
from beam_common import UsageError
from beam_log import *
tried = opened = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    tried += 1
    if tried == 20:
        print("trying", flush=True)
    try:
        with RowLog(sys.argv[1], ANSWER):
            opened += 1
    except UsageError as error:
        assert "is being written by another process" in str(error), error
print(opened)
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(lines_of(answer(0)))
    first = python(HOLD, str(path))
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    with pytest.raises(UsageError, match="is being written by another process"):
        open_and_close(path)
    second = python(HOLD, str(path))
    out, err = second.communicate(timeout=30)
    assert (out, "is being written by another process" in err) == ("", True)
    first.send_signal(signal.SIGKILL)
    first.wait(30)
    assert len(open_and_close(path)) == 1
    first.communicate()


def test_there_is_no_unlocked_moment_in_a_compaction(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with RowLog(path, ANSWER) as log:
        log.append([answer(0)])
        other = python(TRY_UNTIL_TOLD, str(path))
        assert other.stdout is not None
        assert other.stdout.readline() == "trying\n"
        for count in range(200):
            log.append([answer(0, str(count))])
            log.compact()
        out, err = other.communicate("stop\n", timeout=30)
    assert (out, err) == ("0\n", "")
    assert path.read_bytes() == lines_of(answer(0, "199"))


def test_a_kill_before_the_new_file_takes_its_place_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    content = lines_of(answer(0, "old"), answer(0, "new"), answer(1))
    path.write_bytes(content)
    code = (
        "import os, sys; from beam_log import *\n"
        "os.replace = lambda *where: os.kill(os.getpid(), 9)\n"
        "with RowLog(sys.argv[1], ANSWER) as log: log.compact()"
    )
    assert python(code, str(path)).wait(30) == -signal.SIGKILL
    assert path.read_bytes() == content
    with RowLog(path, ANSWER) as log:
        log.compact()
    assert path.read_bytes() == lines_of(answer(0, "new"), answer(1))


def test_a_file_system_without_locks_is_said_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(beam_log.fcntl, "flock", flock)
    with RowLog(tmp_path / "answers.jsonl", ANSWER) as log:
        log.append([answer(0)])
    assert "no lock to be had here (No locks available)" in capsys.readouterr().err
