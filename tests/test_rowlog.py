"""An output that grows: no cut, kill, full disk or second process costs a whole row."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gzip
import json
import os
import resource
import shutil
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

Capsys = pytest.CaptureFixture[str]

MARK = b"\xef\xbb\xbf"
TAKEN = "is being written by another process; wait for it"


def answer(index: int, response: str = "yes", **changes: Any) -> dict[str, Any]:
    row = {"chat_id": "3", "question_type": "abstention", "question_index": index}
    return {**row, "rubric": ["r"], "response": response, "error": None, **changes}


def lines_of(*rows: dict[str, Any]) -> bytes:
    return b"".join(map(encode_row, rows))


def open_and_close(path: Path, wanted: Wanted = ANSWER) -> dict[Any, dict[str, Any]]:
    with RowLog(path, wanted) as log:
        return log.rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Every write beyond `size` bytes fails as on a full disk (EFBIG in place of ENOSPC)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


ROW, TORN = lines_of(answer(0, "雪")), lines_of(answer(1, "雪雪雪"))
HALF_CHARACTER = TORN.partition("雪".encode())[0] + b"\xe9"
ZEROS = b"\0" * 4096
ENDS = {  # content, what is left of it, what is moved
    "torn-in-a-string": (ROW + TORN[:60], ROW, TORN[:60]),
    "torn-in-a-character": (ROW + HALF_CHARACTER, ROW, HALF_CHARACTER),
    "only-the-line-end-is-missing": (ROW + TORN[:-1], ROW + TORN, None),
    "zero-bytes-after-a-line": (ROW + ZEROS, ROW, ZEROS),
    "null": (ROW + b"null\n", ROW, b"null"),
    "damaged-with-a-line-end": (ROW + b"{\n", ROW, b"{"),
    "damaged-before-blank-lines": (ROW + b"nonsense\n\n\n", ROW, b"nonsense"),
    "only-line-torn-after-one-byte": (TORN[:1], b"", TORN[:1]),
    "only-line-torn-after-a-mark": (MARK + TORN[:60], b"", MARK + TORN[:60]),
    "nothing-but-zero-bytes": (ZEROS, b"", ZEROS),
    "empty": (b"", b"", None),
    "blank-lines-only": (b"\n \n", b"\n \n", None),
}


@pytest.mark.parametrize(("content", "left", "moved"), ENDS.values(), ids=ENDS)
def test_the_end_of_a_file_is_mended_before_anything_is_appended(
    path: Path, capsys: Capsys, content: bytes, left: bytes, moved: bytes | None
) -> None:
    damaged = Path(f"{path}.damaged")
    path.write_bytes(content)
    damaged.write_bytes(b"moved earlier\n")
    with RowLog(path, ANSWER) as log:
        assert path.read_bytes() == left
        log.append([answer(2)])
    assert path.read_bytes() == left + lines_of(answer(2))
    assert (" was torn; " in capsys.readouterr().err) == (moved is not None)
    assert damaged.read_bytes() == b"moved earlier\n" + (b"" if moved is None else moved + b"\n")


odd = st.sampled_from('\n\r\u2028\x85\0\ud83d\ude00"\\{}雪')
texts = st.text(st.characters() | odd, max_size=9)


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
    cut = whole[: data.draw(st.integers(len(mark), len(whole)), label="cut at")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "answers.jsonl")
        path.write_bytes(cut + b"\0" * zero_bytes)
        with RowLog(path, ANSWER) as log:
            assert len(log.rows) >= cut.count(b'"error": null}' + line_end)
            log.append([row for row in rows if key_of(row) not in log.rows])
        content = path.read_bytes()
    assert content.startswith(cut[: cut.rfind(line_end) + 1])
    assert content.endswith(b"\n")
    lines = [line for line in content.removeprefix(MARK).split(b"\n") if line.strip()]
    assert [json.loads(line) for line in lines] == rows


CHAT = b'{"chat_id": "3", "messages": [{"role": "user", "content": "hello"}]}\n'
QUESTION = lines_of({n: answer(0)[n] for n in ("chat_id", "question_type", "question_index")})
FOREIGN = {
    "lines-of-text": (b"# a\n# b\n", RESUME),
    "json-object": (b'{"results": []}', RESUME),
    "the-only-chat-of-a-chats-file": (CHAT, RESUME),
    "questions-file": (QUESTION + QUESTION, RESUME),
    "answers-as-scores": (lines_of(answer(0), answer(1)), SCORE),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), RESUME),
    "gzip-of-answers": (gzip.compress(lines_of(answer(0))), RESUME),
}


@pytest.mark.parametrize(("content", "wanted"), FOREIGN.values(), ids=FOREIGN)
def test_a_file_of_another_kind_is_refused_untouched(
    tmp_path: Path, path: Path, content: bytes, wanted: Wanted
) -> None:
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"none of a run of this kind|gzip file; unpack it"):
        open_and_close(path, wanted)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["README.md", "run.py", "answers.json", "a.jsonl.gz", "", "."])
def test_an_output_is_named_like_one(name: str) -> None:
    with pytest.raises(UsageError, match=r"^--output .*name a file that ends in \.jsonl$"):
        output_path(name)
    assert output_path("answers") == Path("answers")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "not a regular file; name another --output"), ("pipe", "not a regular file"),
        ("/dev/full", "not a regular file"), ("link-to-itself", "not a regular file"),
        ("no-folder/a.jsonl", "No such file or directory; create the folder first"),
        ("file/a.jsonl", "Not a directory; name another --output"),
    ],
)  # fmt: skip
def test_a_path_that_cannot_be_written_is_said(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link-to-itself").symlink_to("link-to-itself")
    (tmp_path / "link").symlink_to("behind.jsonl")
    assert output_path(str(tmp_path / "link")) == tmp_path / "behind.jsonl"
    path = output_path(str(tmp_path / name))
    with pytest.raises(UsageError, match=f"^{path} cannot be written: {message}"):
        open_and_close(path)


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.jsonl.damaged"])
@pytest.mark.parametrize("exists", [True, False], ids=["link-to-a-file", "dangling-link"])
def test_nothing_is_written_through_a_planted_link(
    tmp_path: Path, path: Path, name: str, exists: bool
) -> None:
    target = path.with_name("precious.jsonl")
    path.write_bytes(ROW + TORN[:60])
    if exists:
        target.touch()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to(target)
    with pytest.raises(UsageError, match=rf"{name} cannot be written: not a regular file"):
        open_and_close(path)
    assert target.exists() == exists
    assert not exists or target.read_bytes() == b""
    assert path.is_symlink() or path.read_bytes() == ROW + TORN[:60]


def test_a_run_that_brought_nothing_leaves_no_file(path: Path) -> None:
    open_and_close(path)
    assert not path.exists()


def test_a_row_is_on_the_disk_before_it_counts(path: Path, monkeypatch: Any) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.fstat(fd).st_size))
    with RowLog(path, ANSWER) as log:
        log.append([answer(0)])
        assert flushed == [len(lines_of(answer(0)))]


def test_a_full_disk_harms_nothing_that_was_there(path: Path) -> None:
    old = [answer(0, "old"), answer(1)]
    with RowLog(path, ANSWER) as log:
        log.append(old)
        limit = path.stat().st_size + 200  # the first fits, the second is torn by the limit
        stopped = pytest.raises(StoppedEarly, match="File too large; make room or mend the drive")
        with files_of_at_most(limit), stopped:
            log.append([answer(0, "new"), answer(2, "x" * 200)])
        assert path.read_bytes() == lines_of(*old)
        assert list(log.rows.values()) == old
        log.append([answer(3)])
        log.compact()
    assert path.read_bytes() == lines_of(*old, answer(3))


@pytest.mark.parametrize("content", [ROW + TORN[:60], ROW[:-1]], ids=["torn", "no-line-end"])
def test_a_full_disk_while_mending_loses_nothing(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with files_of_at_most(0), pytest.raises(StoppedEarly, match="make room"):
        open_and_close(path)
    assert path.read_bytes() == content
    assert len(open_and_close(path)) == 1


def test_a_drive_without_locks_flushes_and_modes_is_said_and_goes_on(
    path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    files._say_once.cache_clear()
    with monkeypatch.context() as drive:
        for place, name in ((fcntl, "flock"), (os, "fsync"), (shutil, "copymode")):
            drive.setattr(place, name, refuse)
        with RowLog(path, ANSWER) as log:
            for text in ("old", "new"):
                log.append([answer(0, text)])
            log.compact()
    assert path.read_bytes() == lines_of(answer(0, "new"))
    err = capsys.readouterr().err
    assert f"{path}: no lock to be had here (Operation not supported)" in err
    assert err.count("this drive refuses to flush files") == 1
    assert err.count("this drive refuses file modes") == 1


CHANGES: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: os.truncate(path, 0),
    "edited": lambda path: path.write_bytes(b"by hand\n"),
    "deleted": lambda path: path.unlink(),
    "moved": lambda path: path.rename(path.with_suffix(".moved")),
    "replaced": lambda path: (CHANGES["moved"](path), path.write_bytes(b"of somebody else\n")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_under_the_run_stops_it(
    tmp_path: Path, path: Path, change: str
) -> None:
    with RowLog(path, ANSWER) as log:
        log.append([answer(0), answer(0)])
        CHANGES[change](path)
        with pytest.raises(StoppedEarly, match="was cut, moved or replaced during the run"):
            log.append([answer(1)])
        log.compact()
    old, new = lines_of(answer(0), answer(0)), lines_of(answer(1))
    expected = {
        "truncated": {"answers.jsonl": new},
        "edited": {"answers.jsonl": b"by hand\n" + new},
        "deleted": {},
        "moved": {"answers.moved": old + new},
        "replaced": {"answers.moved": old + new, "answers.jsonl": b"of somebody else\n"},
    }
    found = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    assert found == expected[change], "what was paid for is there"


def test_compaction_leaves_damage_and_the_lines_that_count_as_they_are(
    path: Path, capsys: Capsys
) -> None:
    crlf = lines_of(answer(1, "crlf")).replace(b"\n", b"\r\n")
    new = lines_of(answer(0, "new"), answer(1, "", error="HTTP 500"), answer(2))
    path.write_bytes(lines_of(answer(0, "old")) + b"null\n" + crlf + new)
    path.chmod(0o664)
    with RowLog(path, ANSWER) as log:
        assert "line 2 is damaged: not a JSON object; left as it is" in capsys.readouterr().err
        log.append([answer(3)])
        log.compact()
    counting = lines_of(answer(0, "new"), answer(2), answer(3))
    assert path.read_bytes() == b"null\n" + crlf + counting
    assert path.stat().st_mode & 0o777 == 0o664


def test_rows_are_held_as_keep_leaves_them_and_by_their_key(path: Path) -> None:
    path.write_bytes(lines_of(answer(0, "long")))
    with RowLog(path, ANSWER, lambda row: row["question_index"], lambda row: row["error"]) as log:
        log.append([answer(1, "longer")])
        assert log.rows == {0: None, 1: None}


HOLD = """
import pathlib, sys
from beam_common.jsonl import ANSWER
from beam_common.rowlog import RowLog
with RowLog(pathlib.Path(sys.argv[1]), ANSWER) as log:
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_gone(path: Path) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, cwd=PROJECT, stdin=pipe, stdout=pipe) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=TAKEN):
            open_and_close(path)
        assert path.read_bytes() == b""
        first.send_signal(signal.SIGKILL)
    assert open_and_close(path) == {}


class Watched(RowLog):
    """Notes how many rows are appended at once; `trouble` is raised in place of it."""

    def __init__(self, path: Path, trouble: Exception | None) -> None:
        super().__init__(path, ANSWER)
        self.trouble, self.batches = trouble, list[int]()

    def append(self, rows: Any) -> None:
        self.batches.append(len(rows))
        if self.trouble:
            raise self.trouble
        super().append(rows)


@pytest.mark.parametrize("trouble", [None, StoppedEarly("full"), ZeroDivisionError()], ids=repr)
def test_rows_saved_meanwhile_are_written_together_and_each_save_hears_of_its_own(
    path: Path, trouble: Exception | None
) -> None:
    async def save(index: int) -> bool:
        await log.save(answer(index))
        return ("3", "abstention", index) in log.rows

    async def save_all() -> list[Any]:
        return await asyncio.gather(*map(save, range(20)), return_exceptions=True)

    with Watched(path, trouble) as log:
        assert asyncio.run(save_all()) == [trouble or True] * 20
        assert path.read_bytes() == (b"" if trouble else lines_of(*map(answer, range(20))))
    assert len(log.batches) < 20
