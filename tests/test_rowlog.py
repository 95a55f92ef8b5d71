"""An output that grows: no cut, kill, full disk or second process costs a whole row."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_common import files
from beam_common.jsonl import ANSWER, RESUME, SCORE, Wanted, encode_row
from beam_common.messages import StoppedEarly, UsageError
from beam_common.rowlog import RowLog, output_path
from beam_common.rows import PROJECT, key_of

MARK = b"\xef\xbb\xbf"


def answer(index: int, response: str = "yes", **changes: Any) -> dict[str, Any]:
    row = {"chat_id": "3", "question_type": "abstention", "question_index": index}
    return {**row, "rubric": ["r"], "response": response, "error": None, **changes}


def score(index: int) -> dict[str, Any]:
    return {"chat_id": "3", "question_type": "abstention", "question_index": index, "score": 1.0}


def lines_of(*rows: dict[str, Any]) -> bytes:
    return b"".join(map(encode_row, rows))


def kept(path: Path) -> dict[Any, dict[str, Any]]:
    """The rows of a file by a reader of its own; every line must be whole."""
    data = path.read_bytes()
    assert data.endswith(b"\n")
    lines = data.removeprefix(MARK).split(b"\n")[:-1]
    rows = [json.loads(line) for line in lines if line.strip()]
    return {key_of(row): row for row in rows}


def open_and_close(path: Path, wanted: Wanted = ANSWER) -> dict[Any, dict[str, Any]]:
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


def python(code: str, *argv: str) -> subprocess.Popen[str]:
    """A process of its own that runs `code`."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, *argv]
    return subprocess.Popen(command, cwd=PROJECT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


# --- The end of a file ----------------------------------------------------------------------------

ROW, TORN = lines_of(answer(0, "雪")), lines_of(answer(1, "雪雪雪"))
IN_A_CHARACTER = TORN.partition("雪".encode())[0] + b"\xe9"
ZEROS = b"\0" * 4096


@pytest.mark.parametrize(
    ("content", "repaired", "moved"),
    [
        pytest.param(ROW + TORN[:60], ROW, TORN[:60], id="torn-in-a-string"),
        pytest.param(ROW + IN_A_CHARACTER, ROW, IN_A_CHARACTER, id="torn-in-a-character"),
        pytest.param(ROW + TORN[:-1], ROW + TORN, None, id="only-the-line-end-is-missing"),
        pytest.param(ROW + TORN[:-1] + b"\r", ROW + TORN[:-1] + b"\r\n", None, id="torn-crlf"),
        pytest.param(ROW + b"  ", ROW + b"  \n", None, id="blanks-without-a-line-end"),
        pytest.param(ROW + ZEROS, ROW, ZEROS, id="zero-bytes-after-a-line"),
        pytest.param(ROW[:-1] + ZEROS, ROW, ZEROS, id="zero-bytes-in-place-of-the-line-end"),
        pytest.param(ROW[:-1] + b"\0" * 9 + b"\n", ROW, b"\0" * 9, id="zero-bytes-and-a-line-end"),
        pytest.param(ROW + TORN[:60] + ZEROS, ROW, TORN[:60] + ZEROS, id="zero-bytes-after-torn"),
        pytest.param(ROW + b"null\n", ROW, b"null", id="null"),
        pytest.param(ROW + b"[]\n", ROW, b"[]", id="list"),
        pytest.param(ROW + b"{\n", ROW, b"{", id="damaged-with-a-line-end"),
        pytest.param(ROW + b"nonsense\n\n\n", ROW, b"nonsense", id="damaged-before-blank-lines"),
        pytest.param(TORN[:1], b"", TORN[:1], id="only-line-torn-after-one-byte"),
        pytest.param(TORN[:60], b"", TORN[:60], id="only-line-torn"),
        pytest.param(MARK + TORN[:60], b"", MARK + TORN[:60], id="only-line-torn-after-a-mark"),
        pytest.param(ZEROS, b"", ZEROS, id="nothing-but-zero-bytes"),
        pytest.param(b"", b"", None, id="empty"),
        pytest.param(b"\n \n", b"\n \n", None, id="blank-lines-only"),
    ],
)
def test_end_of_file_is_mended_before_anything_is_appended(
    tmp_path: Path, content: bytes, repaired: bytes, moved: bytes | None
) -> None:
    path, damaged = tmp_path / "answers.jsonl", tmp_path / "answers.jsonl.damaged"
    path.write_bytes(content)
    with RowLog(path, ANSWER) as log:
        assert path.read_bytes() == repaired
        log.append([answer(2)])
    assert path.read_bytes() == repaired + lines_of(answer(2))
    assert damaged.exists() == (moved is not None)
    assert moved is None or damaged.read_bytes() == moved + b"\n"


def test_what_is_moved_is_said_and_what_was_moved_earlier_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answers.jsonl"
    for torn in (TORN[:60], TORN[:70]):
        path.write_bytes(ROW + torn)
        open_and_close(path)
    damaged = tmp_path / "answers.jsonl.damaged"
    assert damaged.read_bytes() == TORN[:60] + b"\n" + TORN[:70] + b"\n"
    said = f"warning: {path} line 2 was torn; 60 bytes moved to {damaged}\n"
    assert capsys.readouterr().err.startswith(said)


def test_damage_in_the_middle_is_named_not_counted_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answers.jsonl"
    content = ROW + b"null\n" + lines_of(answer(5))
    path.write_bytes(content)
    assert {key[2] for key in open_and_close(path)} == {0, 5}
    assert "line 2 is damaged (not a JSON object)" in capsys.readouterr().err
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


texts = st.text(
    st.characters() | st.sampled_from('\n\r\u2028\x85\0\ud83d\ude00"\\{}雪'), max_size=12
)


@given(
    st.lists(texts, min_size=1, max_size=5),
    st.data(),
    st.sampled_from([b"", MARK]),
    st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
    st.sampled_from([0, 0, 1, 4096]),
)
def test_any_cut_then_resume_gives_the_rows_of_an_uninterrupted_run(
    responses: list[str], data: st.DataObject, mark: bytes, line_end: bytes, zero_bytes: int
) -> None:
    """A kill at any byte, zero bytes of a power loss included: whole rows stay, one may be torn."""
    rows = [json.loads(encode_row(answer(i, text))) for i, text in enumerate(responses)]
    whole = mark + lines_of(*rows).replace(b"\n", line_end)
    cut = whole[: data.draw(st.integers(0, len(whole)), label="cut at")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "answers.jsonl")
        path.write_bytes(cut + b"\0" * zero_bytes)
        with RowLog(path, ANSWER) as log:
            assert len(log.rows) >= cut.count(b'"error": null}' + line_end)
            log.append([row for row in rows if key_of(row) not in log.rows])
        assert kept(path) == {key_of(row): row for row in rows}
        assert path.read_bytes().count(b'{"chat_id": "3"') == len(rows)
        assert path.read_bytes().startswith(cut[: cut.rfind(line_end) + 1])


# --- Files of others and paths --------------------------------------------------------------------

CHAT = b'{"chat_id": "3", "messages": [{"role": "user", "content": "hello"}]}\n'
NAMES = ("chat_id", "question_type", "question_index", "rubric")
QUESTION = lines_of({name: answer(0)[name] for name in NAMES})


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        pytest.param(b"dear diary\n", RESUME, id="one-line-of-text"),
        pytest.param(b"dear diary", RESUME, id="text-without-line-end"),
        pytest.param(b"# a\n# b\n", RESUME, id="lines-of-text"),
        pytest.param(b"[1, 2]\n", RESUME, id="json-list"),
        pytest.param(b'{"results": []}', RESUME, id="json-object"),
        pytest.param(CHAT, RESUME, id="the-only-chat-of-a-chats-file"),
        pytest.param(CHAT + CHAT.replace(b"3", b"4"), RESUME, id="chats-file"),
        pytest.param(QUESTION, RESUME, id="one-question"),
        pytest.param(QUESTION + QUESTION, RESUME, id="questions-file"),
        pytest.param(lines_of(score(0), score(1)), RESUME, id="scores-as-answers"),
        pytest.param(lines_of(answer(0)), SCORE, id="one-answer-as-scores"),
        pytest.param(lines_of(answer(0), answer(1)), SCORE, id="answers-as-scores"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + bytes(range(256)), RESUME, id="picture"),
        pytest.param("\ufeffa,b\n1,2\n".encode("utf-16"), RESUME, id="utf-16"),
        pytest.param(gzip.compress(lines_of(answer(0))), RESUME, id="gzip-of-answers"),
    ],
)
def test_a_file_of_another_kind_is_refused_untouched(
    tmp_path: Path, content: bytes, wanted: Wanted
) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"none of a run of this kind|gzip file; unpack it"):
        open_and_close(path, wanted)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["README.md", "run.py", "answers.json", "a.jsonl.gz", "", "."])
def test_an_output_is_named_like_one(name: str) -> None:
    with pytest.raises(UsageError, match=r"^--output .*name a file that ends in \.jsonl$"):
        output_path(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("folder", "not a regular file; name another --output", id="folder"),
        pytest.param("pipe", "not a regular file", id="named-pipe"),
        pytest.param("/dev/full", "not a regular file", id="device"),
        pytest.param("circle", "not a regular file", id="link-to-itself"),
        pytest.param("no/a.jsonl", "No such file or directory; create the folder", id="no-folder"),
        pytest.param("file/a.jsonl", "Not a directory; name another", id="folder-is-a-file"),
    ],
)
def test_a_path_that_cannot_be_written_is_said(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    path = output_path(str(tmp_path / name))
    with pytest.raises(UsageError, match=f"^{path} cannot be written: {message}"):
        open_and_close(path)


def test_an_output_that_is_a_link_stands_for_the_file_behind_it(tmp_path: Path) -> None:
    target, link = tmp_path / "disk2" / "real.jsonl", tmp_path / "answers.jsonl"
    target.parent.mkdir()
    link.symlink_to(target)
    assert output_path(str(link)) == target
    with RowLog(output_path(str(link)), ANSWER) as log:
        log.append([answer(0, "old"), answer(0, "new")])
        log.compact()
    assert link.is_symlink()
    assert target.read_bytes() == lines_of(answer(0, "new"))


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.jsonl.damaged"])
@pytest.mark.parametrize("exists", [True, False], ids=["link-to-a-file", "dangling-link"])
def test_nothing_is_written_through_a_planted_link(tmp_path: Path, name: str, exists: bool) -> None:
    path, target = tmp_path / "answers.jsonl", tmp_path / "precious.jsonl"
    if exists:
        target.write_bytes(b"")
    if name != path.name:
        path.write_bytes(ROW + TORN[:60])
    (tmp_path / name).symlink_to(target)
    with pytest.raises(UsageError, match=rf"{name} cannot be written: not a regular file"):
        open_and_close(path)
    assert target.exists() == exists
    assert not exists or target.read_bytes() == b""
    assert path.is_symlink() or path.read_bytes() == ROW + TORN[:60]


def test_a_run_that_brought_nothing_leaves_no_new_file(tmp_path: Path) -> None:
    new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    old.touch()
    for path in (new, old):
        open_and_close(path)
    assert list(tmp_path.iterdir()) == [old]


# --- Full disks and odd drives --------------------------------------------------------------------


def test_a_full_disk_harms_nothing_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    old = [answer(0, "old"), answer(1)]
    with RowLog(path, ANSWER) as log:
        log.append(old)
        limit = path.stat().st_size + 200  # the first fits, the second is torn by the limit
        new = [answer(0, "new"), answer(2, "x" * 200)]
        with (
            files_of_at_most(limit),
            pytest.raises(StoppedEarly, match="File too large; make room or mend the drive"),
        ):
            log.append(new)
        assert path.read_bytes() == lines_of(*old)
        assert list(log.rows.values()) == old
        log.append([answer(3)])
        log.compact()
    assert path.read_bytes() == lines_of(*old, answer(3))


def test_a_full_disk_at_compaction_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    content = lines_of(answer(0, "old"), answer(0, "new"), answer(1))
    path.write_bytes(content)
    with RowLog(path, ANSWER) as log:
        with files_of_at_most(150), pytest.raises(StoppedEarly, match="could not be cleared"):
            log.compact()
        log.append([answer(2)])
    assert path.read_bytes() == content + lines_of(answer(2))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [ROW + TORN[:60], ROW[:-1]], ids=["torn", "no-line-end"])
def test_a_full_disk_while_mending_loses_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(content)
    with files_of_at_most(0), pytest.raises(StoppedEarly, match="make room"):
        open_and_close(path)
    assert path.read_bytes() == content
    assert len(open_and_close(path)) == 1


def test_a_disk_that_fails_at_the_flush_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "answers.jsonl"
    with RowLog(path, ANSWER) as log:
        log.append([answer(0)])
        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(StoppedEarly, match=r"Input/output error; .*mend the drive"):
            log.append([answer(1)])
    assert path.read_bytes() == lines_of(answer(0)), "what is not durable is not there"


def test_a_drive_without_locks_flushes_and_modes_is_said_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    files._say_once.cache_clear()
    path = tmp_path / "answers.jsonl"
    with monkeypatch.context() as drive:
        drive.setattr(fcntl, "flock", refuse)
        drive.setattr(os, "fsync", refuse)
        drive.setattr(Path, "chmod", refuse)
        with RowLog(path, ANSWER) as log:
            for text in ("old", "new"):
                log.append([answer(0, text)])
            log.compact()
    assert path.read_bytes() == lines_of(answer(0, "new"))
    err = capsys.readouterr().err
    assert f"{path}: no lock to be had here (Operation not supported)" in err
    assert err.count("this drive refuses to flush files") == 1
    assert err.count("this drive refuses file modes") == 1


# --- Files that change under a run ----------------------------------------------------------------


def truncated(path: Path) -> None:
    os.truncate(path, 0)


def edited_in_place(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"by hand\n")


def deleted(path: Path) -> None:
    path.unlink()


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere.jsonl"))


def replaced(path: Path) -> None:
    moved(path)
    path.write_bytes(b"of somebody else\n")


@pytest.mark.parametrize(
    "change", [truncated, edited_in_place, deleted, moved, replaced], ids=lambda f: f.__name__
)
def test_a_file_that_changes_under_the_run_stops_it(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "answers.jsonl"
    with RowLog(path, ANSWER) as log:
        log.append([answer(0), answer(0)])
        change(path)
        with pytest.raises(StoppedEarly, match="was cut, moved or replaced during the run"):
            log.append([answer(1)])
    if change is replaced:
        assert path.read_bytes() == b"of somebody else\n"
    elif change is truncated:
        assert path.read_bytes() == lines_of(answer(1)), "what was paid for is there"
    if change in (moved, replaced):
        elsewhere = tmp_path / "elsewhere.jsonl"
        assert elsewhere.read_bytes() == lines_of(answer(0), answer(0), answer(1))


# --- One line a key -------------------------------------------------------------------------------


def test_compaction_leaves_the_lines_that_count_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    crlf = lines_of(answer(1, "crlf")).replace(b"\n", b"\r\n")
    failed = answer(1, "", error="HTTP 500")
    content = lines_of(answer(0, "old")) + b"damaged\n" + crlf + lines_of(answer(0, "new"), failed)
    path.write_bytes(content)
    with RowLog(path, ANSWER) as log:
        log.append([answer(2)])
        log.compact()
    assert path.read_bytes() == b"damaged\n" + crlf + lines_of(answer(0, "new"), answer(2))


def test_rows_are_held_as_keep_leaves_them_and_by_their_key(tmp_path: Path) -> None:
    def length(row: dict[str, Any]) -> dict[str, Any]:
        return {"length": len(row["response"]), "error": row["error"]}

    path = tmp_path / "answers.jsonl"
    path.write_bytes(lines_of(answer(0, "long")))
    with RowLog(path, ANSWER, lambda row: row["question_index"], length) as log:
        log.append([answer(1, "longer"), answer(0, "", error="late failure")])
        assert log.rows == {0: {"length": 4, "error": None}, 1: {"length": 6, "error": None}}


# --- Locks ----------------------------------------------------------------------------------------

HOLD = """
import pathlib, sys
from beam_common.jsonl import ANSWER
from beam_common.rowlog import RowLog
with RowLog(pathlib.Path(sys.argv[1]), ANSWER) as log:
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("content", [b"", ROW], ids=["empty", "with-a-row"])
def test_a_second_process_is_refused_until_the_first_is_gone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(content)
    first = python(HOLD, str(path))
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    with pytest.raises(UsageError, match="is being written by another process; wait for it"):
        open_and_close(path)
    assert path.read_bytes() == content
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert len(open_and_close(path)) == len(content.splitlines())


def test_who_comes_second_never_removes_the_file_of_who_was_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is made by another between our look at the path and our opening it."""
    path = tmp_path / "answers.jsonl"
    first = RowLog(path, ANSWER)
    real_open = os.open

    def slow_open(*args: Any, **kwargs: Any) -> int:
        monkeypatch.setattr(os, "open", real_open)
        first.__enter__()
        return real_open(*args, **kwargs)

    monkeypatch.setattr(os, "open", slow_open)
    with pytest.raises(UsageError, match="is being written by another process"):
        open_and_close(path)
    assert path.exists()
    first.append([answer(0)])
    first.__exit__()
    assert path.read_bytes() == lines_of(answer(0))


# --- Saving from the event loop -------------------------------------------------------------------


def test_rows_saved_meanwhile_are_written_together_and_each_save_waits_for_its_own(
    tmp_path: Path,
) -> None:
    path = tmp_path / "answers.jsonl"
    batches: list[int] = []

    class Counting(RowLog):
        def append(self, rows: Any) -> None:
            batches.append(len(rows))
            super().append(rows)

    async def save(log: RowLog, index: int) -> None:
        await log.save(answer(index))
        assert ("3", "abstention", index) in log.rows

    async def save_all() -> None:
        await asyncio.gather(*(save(log, n) for n in range(20)))
        await save(log, 20)

    with Counting(path, ANSWER) as log:
        asyncio.run(save_all())
    assert path.read_bytes() == lines_of(*map(answer, range(21)))
    assert sum(batches) == 21
    assert len(batches) < 21


@pytest.mark.parametrize("trouble", [StoppedEarly("full"), ZeroDivisionError()], ids=repr)
def test_trouble_of_a_batch_reaches_every_save_in_it(tmp_path: Path, trouble: Exception) -> None:
    class Broken(RowLog):
        def append(self, rows: Any) -> None:
            raise trouble

    async def save_all() -> list[Any]:
        saves = (log.save(answer(n)) for n in range(3))
        return await asyncio.gather(*saves, return_exceptions=True)

    with Broken(tmp_path / "answers.jsonl", ANSWER) as log:
        assert asyncio.run(save_all()) == [trouble] * 3
