"""The record beside an output: what it holds, what it refuses, what a resume is bound by."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from beam_common.messages import StoppedEarly, UsageError, keep_secret
from beam_common.record import Record, counted
from beam_common.reply import Reply
from beam_common.rows import VERSION
from beam_common.settings import bind_settings, differences, load_sidecar, save_sidecar

Capsys = pytest.CaptureFixture[str]

KEY = "sk-Abc123+/=xyz"  # with signs that mean something in patterns and URLs
A, B, C = "a" * 64, "b" * 64, "c" * 64


def record_of(base_url: str = "http://h/v1", **body: Any) -> dict[str, Any]:
    settings = {"base_url": base_url, "body": {"model": "m", "temperature": 1.0, **body}}
    data = {"tag": "1m", "questions_sha256": A, "chats_sha256": B}
    program = {"program": "beam_generate.py", "output": "answers.jsonl", "started": ["now"]}
    return {**program, "settings": settings, "data": data}


HERE, THERE = ({"base_url": f"http://{host}/v1"} for host in ("localhost:8000", "10.0.0.7:8000"))
OTHER_HOST = ["base_url (recorded http://localhost:8000/v1, now http://10.0.0.7:8000/v1)"]
OTHER_DATA = ["chats_sha256 (recorded bbbbbbbbbbbb, now cccccccccccc)"]
DIFFERENCES = {
    "equal-numbers-in-another-order": ({"a": 1, "b": {"x": 2}}, {"b": {"x": 2}, "a": 1.0}, {}, []),
    "number": ({"t": 1.0}, {"t": 0.7}, {}, ["t (recorded 1.0, now 0.7)"]),
    "empty": ({"t": ""}, {"t": "x"}, {}, ["t (recorded empty, now x)"]),
    "new-key": ({}, {"new": 1}, {}, ["new (recorded not set, now 1)"]),
    "key-gone": ({"old": [1]}, {}, {}, ["old (recorded [1], now not set)"]),
    "deep": ({"b": {"t": {"x": 1}}}, {"b": {"t": {"x": 2}}}, {}, ["x (recorded 1, now 2)"]),
    "digest": ({"sha": A}, {"sha": B}, {}, ["sha (recorded aaaaaaaaaaaa, now bbbbbbbbbbbb)"]),
    "this-machine-whatever-the-port": (HERE, {"base_url": "https://127.0.0.1/v1"}, {}, []),
    "this-machine-by-version-6": ({"base_url": "http://[::1]:1/v1"}, HERE, {}, []),
    "another-machine": (HERE, THERE, {}, OTHER_HOST),
    "the-same-files-by-another-name": ({}, {}, {"tag": "small"}, []),
    "other-data": ({}, {}, {"tag": "", "chats_sha256": C}, OTHER_DATA),
}


@pytest.mark.parametrize(
    ("recorded", "now", "data", "expected"), DIFFERENCES.values(), ids=DIFFERENCES
)
def test_differences_are_named(recorded: Any, now: Any, data: Any, expected: list[str]) -> None:
    one = {"settings": recorded, "data": record_of()["data"]}
    other = {"settings": now, "data": record_of()["data"] | data}
    assert differences(one, other) == expected
    of_answers = differences({"answers": one}, {"answers": other})
    assert of_answers == [f"{text} of the answers" for text in expected]


def bind(path: Path, new: dict[str, Any], binding: bool = True, mixed: bool = False) -> Any:
    """Bind, save as the programs do, and give what the file holds then."""
    record, _ = bind_settings(path, new, binding=binding, allow_mixed=mixed)
    save_sidecar(path, record)
    return load_sidecar(path)


@pytest.fixture
def sidecar(tmp_path: Path) -> Path:
    """The record of a first run that made an answer."""
    (tmp_path / "answers.jsonl").touch()
    bind(tmp_path / "answers.run.json", record_of(), binding=False)
    return tmp_path / "answers.run.json"


def test_a_record_binds_and_collects_the_starts(sidecar: Path) -> None:
    started = {"started": ["now", "now"]}
    assert bind(sidecar, record_of()) == {"version": VERSION, **record_of(), **started}
    before = sidecar.read_bytes()
    message = r"^answers\.jsonl was made with other settings: model \(recorded m, now n\)\. .*mix"
    with pytest.raises(UsageError, match=message):
        bind(sidecar, record_of(model="n"))
    assert sidecar.read_bytes() == before


def test_what_makes_a_file_mixed_is_recorded_for_good(sidecar: Path, capsys: Capsys) -> None:
    content = bind(sidecar, record_of("http://right/v1"), binding=False)
    assert content == {"version": VERSION, **record_of("http://right/v1")}, "nothing rested on it"
    assert capsys.readouterr().err == ""
    bind(sidecar, record_of(model="n"), mixed=True)
    assert "gets mixed, as all that is made of it will say: base_url" in capsys.readouterr().err
    content = bind(sidecar, record_of(model="n"))
    assert (content["mixed"], content["settings"]["body"]["model"]) == (True, "n")
    assert capsys.readouterr().err == ""
    sidecar.unlink()
    assert bind(sidecar, record_of())["mixed"] is True
    said = "warning: what answers.jsonl holds has no record of its settings; they are unknown\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("binding", [True, False])
@pytest.mark.parametrize("other", [{"program": "beam_judge.py"}, {"output": "answers"}], ids=str)
def test_the_record_of_others_is_not_replaced(
    sidecar: Path, binding: bool, other: dict[str, str]
) -> None:
    before = sidecar.read_bytes()
    with pytest.raises(UsageError, match=r"holds the settings of \S+ by \S+, which this"):
        bind(sidecar, record_of() | other, binding)
    assert sidecar.read_bytes() == before


def test_an_output_renamed_with_its_record_keeps_it(sidecar: Path) -> None:
    path = sidecar.rename(sidecar.with_name("kept.run.json"))
    sidecar.with_name("answers.jsonl").rename(sidecar.with_name("kept.jsonl"))
    assert bind(path, {**record_of(), "output": "kept.jsonl"})["output"] == "kept.jsonl"
    with pytest.raises(UsageError, match="model"):
        bind(path, {**record_of(model="n"), "output": "kept.jsonl"})


OURS = b'{"program": "beam_generate.py", '


@pytest.mark.parametrize(
    "content",
    [
        *(b'{"program": "beam_gen', b"", b"\0" * 100, b"\xff{}", b"[" * 100_000, b"[]", b"{}"),
        *(b'{"program": "webpack"}', b'{"program": 5}', OURS + b'"settings": []}'),
        *(OURS + b'"started": 5}', OURS + b'"mixed": "no"}', OURS + b'"selected": {"3": 5}}'),
        *(OURS + b'"selected": {"3": {"abstention": null}}}', OURS + b'"served": {"m": "4"}}'),
        *(OURS + b'"shard": [1]}', OURS + b'"answers": {"data": 5}}'),
    ],
    ids=lambda content: content.removeprefix(OURS)[:24].decode("latin-1").strip("\0") or "no text",
)
def test_what_is_no_record_is_refused_untouched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answers.run.json"
    path.write_bytes(content)
    for binding in (True, False):
        with pytest.raises(UsageError, match=rf"^{path}: .*move the file away.* another --output$"):
            bind(path, record_of(), binding)
    assert path.read_bytes() == content


def test_a_record_is_utf8_for_readers(tmp_path: Path) -> None:
    path = tmp_path / "answers.run.json"
    assert load_sidecar(path) is None
    content = {"program": "beam_judge.py", "model": "模型", "odd": "\ud83d"}
    save_sidecar(path, content)
    text = '{\n "program": "beam_judge.py",\n "model": "模型",\n "odd": "\\ud83d"\n}\n'
    assert path.read_bytes() == text.encode()
    assert load_sidecar(path) == content


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no-folder/a", UsageError, "No such file or directory; create the folder first"),
        ("folder", UsageError, "not a regular file"),
        ("planted-link", UsageError, "not a regular file"),
        ("dangling-link", UsageError, "not a regular file"),
        ("full-disk", StoppedEarly, "No space left on device; make room"),
    ],
)
def test_a_record_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: Any, message: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "planted-link").symlink_to(tmp_path / "precious")
    (tmp_path / "dangling-link").symlink_to(tmp_path / "nothing")
    (tmp_path / "precious").write_text("precious")
    before = sorted(tmp_path.iterdir())
    if name == "full-disk":
        no_room = OSError(28, "No space left on device")
        monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(no_room))
    with pytest.raises(error, match=f"^{tmp_path / name} cannot be written: {message}"):
        save_sidecar(tmp_path / name, {"settings": {}})
    assert sorted(tmp_path.iterdir()) == before, "nothing half-written stays"
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize(
    "extra",
    [
        *({"note": f"key {KEY}"}, {"list": [{"deep": KEY}]}, {KEY: 1}, {"pwd": "hunter2"}),
        *({"proxy": "http://user:hunter2@proxy:8080"}, {"headers": {"X-Api-Key": "hunter2"}}),
        *({"bearer": "hunter2"}, {"refresh_token": "hunter2"}, {"x-auth-token": "hunter2"}),
    ],
    ids=str,
)
def test_no_secret_gets_into_a_record_and_the_resume_still_binds(
    tmp_path: Path, extra: dict[str, Any]
) -> None:
    keep_secret(KEY)
    path = tmp_path / "answers.run.json"
    bind(path, record_of(**extra), binding=False)
    text = path.read_text("utf-8")
    assert KEY not in text
    assert "hunter2" not in text
    bind(path, record_of(**extra))
    with pytest.raises(UsageError, match="another"):
        bind(path, record_of(another=1))


def test_selected_questions_add_up_over_the_runs_of_a_file() -> None:
    """`--chats 1` stopped at 5 of 20, then `--chats 2`; the same selection again adds nothing."""
    first = counted([{"chat_id": 1, "question_type": a} for a in "aabb"], {})  # type: ignore[misc]
    assert first == {"1": {"a": 2, "b": 2}}
    rows = [("2", "a"), ("2", "a"), (1, "a")]
    both = counted([{"chat_id": c, "question_type": a} for c, a in rows], first)
    assert both == {"1": {"a": 2, "b": 2}, "2": {"a": 2}}


@pytest.mark.parametrize(
    ("named", "told"),
    [
        pytest.param(["m", "m", ""], 0, id="as-asked-or-nothing"),
        pytest.param(["m-2024"] * 3, 1, id="another-one-all-along"),
        pytest.param(["m", "other", "m", "other"], 1, id="a-fallback-now-and-then"),
        pytest.param(["m via x", "m via y"] * 2, 1, id="two-providers-in-turns"),
    ],
)
def test_the_models_that_answer_are_counted_and_each_is_told_of_once(
    tmp_path: Path, capsys: Capsys, named: list[str], told: int
) -> None:
    args = Namespace(output=tmp_path / "answers.jsonl", allow_mixed=False)
    for expected in (told, 0):  # the second run knows them from the first
        record = Record(args, record_of(), [{"error": None}], "m")
        for name in named:
            model, _, provider = name.partition(" via ")
            record.note_model(Reply("", model=model or None, provider=provider or None))
        record.save()
        assert capsys.readouterr().err.count("names the model that answers") == expected
    assert record.content["served"] == {name: 2 * named.count(name) for name in named if name}
