"""The record beside an output: what it holds, what it refuses, what a resume is bound by."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from beam_common.messages import StoppedEarly, UsageError, keep_secret
from beam_common.record import Record, counted
from beam_common.reply import Reply
from beam_common.rows import VERSION
from beam_common.settings import bind_settings, differences, load_sidecar, save_sidecar

KEY = "sk-Abc123+/=xyz"  # with signs that mean something in patterns and URLs
HERE = "http://localhost:8000/v1"


def record_of(base_url: str = HERE, **body: Any) -> dict[str, Any]:
    settings = {"base_url": base_url, "body": {"model": "m", "temperature": 1.0, **body}}
    data = {"tag": "1m", "questions_sha256": "a" * 64, "chats_sha256": "b" * 64}
    program = {"program": "beam_generate.py", "output": "answers.jsonl", "started": ["now"]}
    return {**program, "settings": settings, "data": data}


# --- What differs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recorded", "now", "expected"),
    [
        pytest.param({"a": 1}, {"a": 1.0}, [], id="equal-numbers"),
        pytest.param({"b": {"x": 1, "y": 2}}, {"b": {"y": 2, "x": 1}}, [], id="order-of-keys"),
        pytest.param({"t": 1.0}, {"t": 0.7}, ["t (recorded 1.0, now 0.7)"], id="number"),
        pytest.param({"m": "a"}, {"m": "b"}, ["m (recorded a, now b)"], id="text"),
        pytest.param({"t": ""}, {"t": "x"}, ["t (recorded empty, now x)"], id="empty"),
        pytest.param({}, {"new": 1}, ["new (recorded not set, now 1)"], id="new-key"),
        pytest.param({"old": [1]}, {}, ["old (recorded [1], now not set)"], id="key-gone"),
        pytest.param(
            {"body": {"thinking": {"type": "on"}}},
            {"body": {"thinking": {"type": "off"}}},
            ["type (recorded on, now off)"],
            id="deep-inside",
        ),
        pytest.param(
            {"sha": "a" * 64},
            {"sha": "b" * 64},
            [f"sha (recorded {'a' * 12}, now {'b' * 12})"],
            id="digests-by-their-beginning",
        ),
    ],
)
def test_differences_of_settings_are_named(
    recorded: dict[str, Any], now: dict[str, Any], expected: list[str]
) -> None:
    assert differences({"settings": recorded}, {"settings": now}) == expected


@pytest.mark.parametrize(
    ("recorded", "now", "same"),
    [
        (HERE, "http://127.0.0.1:8001/v1", True),
        ("http://[::1]:1/v1", "https://0.0.0.0/v1", True),
        (HERE, "http://localhost.example.org/v1", False),
        (HERE, "http://10.0.0.7:8000/v1", False),
        ("https://a.org/v1", "https://a.org:8443/v1", False),
    ],
)
def test_addresses_of_this_machine_are_one(recorded: str, now: str, same: bool) -> None:
    assert (differences(record_of(recorded), record_of(now)) == []) == same


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"tag": "small"}, [], id="the-same-files-by-another-name"),
        pytest.param(
            {"tag": "128k", "chats_sha256": "c" * 64},
            ["data (recorded 1m, now 128k)"],
            id="another-tag",
        ),
        pytest.param(
            {"tag": "", "chats_sha256": "c" * 64},
            [
                f"data (recorded {'a' * 12} {'b' * 12}, now {'a' * 12} {'c' * 12})",
            ],
            id="files-named-by-flags",
        ),
    ],
)
def test_data_are_compared_by_their_digests(changes: dict[str, str], expected: list[str]) -> None:
    now = record_of()
    now["data"] |= changes
    assert differences(record_of(), now) == expected
    scores = [{"answers": record} for record in (record_of(), now)]
    assert differences(*scores) == [f"{text} of the answers" for text in expected]


# --- What binds -----------------------------------------------------------------------------------


def bind(path: Path, new: dict[str, Any], binding: bool = True, mixed: bool = False) -> Any:
    """Bind, save as the programs do, and give what the file holds then."""
    record, _ = bind_settings(path, new, binding=binding, allow_mixed=mixed)
    save_sidecar(path, record)
    return load_sidecar(path)


@pytest.fixture
def sidecar(tmp_path: Path) -> Path:
    """The record of a first run that made an answer."""
    path = tmp_path / "answers.run.json"
    (tmp_path / "answers.jsonl").touch()
    bind(path, record_of(), binding=False)
    return path


def test_a_record_binds_and_collects_the_starts(sidecar: Path) -> None:
    content = bind(sidecar, record_of())
    assert content == {"version": VERSION, **record_of(), "started": ["now", "now"]}
    before = sidecar.read_bytes()
    with pytest.raises(
        UsageError,
        match=r"^answers\.jsonl was made with other settings: model \(recorded m, now n\)\. Go on "
        r"with the recorded ones \(answers\.run\.json\), write to another --output, or .*mixed$",
    ):
        bind(sidecar, record_of(model="n"))
    assert sidecar.read_bytes() == before


def test_a_record_of_a_run_without_answers_does_not_bind(sidecar: Path) -> None:
    content = bind(sidecar, record_of("http://right/v1"), binding=False)
    assert content["settings"]["base_url"] == "http://right/v1"
    assert content["started"] == ["now"]
    assert "mixed" not in content


def test_mixing_is_recorded_for_good(sidecar: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bind(sidecar, record_of(model="n"), mixed=True)["mixed"] is True
    assert "gets mixed, as all that is made of it will say: model" in capsys.readouterr().err
    content = bind(sidecar, record_of(model="n"))
    assert content["mixed"] is True
    assert content["settings"]["body"]["model"] == "n"


def test_rows_without_a_record_are_of_unknown_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bind(tmp_path / "answers.run.json", record_of())["mixed"] is True
    err = capsys.readouterr().err
    assert err == (
        "warning: what answers.jsonl holds has no record of its settings; they are unknown\n"
    )


@pytest.mark.parametrize("binding", [True, False])
@pytest.mark.parametrize(
    ("changes", "whose"),
    [
        ({"program": "beam_judge.py"}, "beam_generate.py"),
        ({"output": "answers"}, "answers.jsonl"),
    ],
    ids=["another-program", "another-output"],
)
def test_the_record_of_others_is_not_replaced(
    sidecar: Path, binding: bool, changes: dict[str, str], whose: str
) -> None:
    before = sidecar.read_bytes()
    with pytest.raises(UsageError, match=f"holds the settings of {whose}, which this run would"):
        bind(sidecar, record_of() | changes, binding)
    assert sidecar.read_bytes() == before


def test_an_output_renamed_with_its_record_keeps_it(sidecar: Path) -> None:
    path = sidecar.rename(sidecar.with_name("kept.run.json"))
    sidecar.with_name("answers.jsonl").rename(sidecar.with_name("kept.jsonl"))
    assert bind(path, {**record_of(), "output": "kept.jsonl"})["output"] == "kept.jsonl"
    with pytest.raises(UsageError, match="model"):
        bind(path, {**record_of(model="n"), "output": "kept.jsonl"})


# --- Files of others, odd shapes, disks -----------------------------------------------------------

OURS = '{"program": "beam_generate.py", '


@pytest.mark.parametrize(
    "content",
    [
        pytest.param('{"program": "beam_gen', id="torn"),
        pytest.param("", id="empty"),
        pytest.param("\0" * 100, id="zero-bytes"),
        pytest.param("\udcff{}", id="not-utf-8"),
        pytest.param("[" * 100_000, id="nested-too-deep"),
        pytest.param("[]", id="list"),
        pytest.param("{}", id="a-file-of-somebody-else"),
        pytest.param('{"program": "webpack", "settings": {}}', id="of-another-program"),
        pytest.param('{"program": 5}', id="program-as-number"),
        pytest.param(OURS + '"settings": []}', id="settings-as-list"),
        pytest.param(OURS + '"started": 5}', id="starts-as-number"),
        pytest.param(OURS + '"mixed": "no"}', id="mixed-as-text"),
        pytest.param(OURS + '"selected": {"3": 5}}', id="selected-without-abilities"),
        pytest.param(OURS + '"selected": {"3": {"abstention": null}}}', id="null-questions"),
        pytest.param(OURS + '"served": {"m": "400"}}', id="served-as-text"),
        pytest.param(OURS + '"shard": [1]}', id="shard-as-number"),
        pytest.param(OURS + '"answers": {"data": 5}}', id="data-of-the-answers-as-number"),
    ],
)
def test_what_is_no_record_is_refused_untouched(tmp_path: Path, content: str) -> None:
    path = tmp_path / "answers.run.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    before = path.read_bytes()
    for binding in (True, False):
        with pytest.raises(UsageError, match=rf"^{path}: .*move the file away.* another --output$"):
            bind(path, record_of(), binding)
    assert path.read_bytes() == before


def test_a_record_is_utf8_for_readers(tmp_path: Path) -> None:
    path = tmp_path / "answers.run.json"
    assert load_sidecar(path) is None
    content = {"program": "beam_generate.py", "model": "模型", "odd": "\ud83d"}
    save_sidecar(path, content)
    text = '{\n "program": "beam_generate.py",\n "model": "模型",\n "odd": "\\ud83d"\n}\n'
    assert path.read_bytes() == text.encode()
    assert load_sidecar(path) == content


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        pytest.param("no/a.run.json", UsageError, "No such file .*; create the", id="no-folder"),
        pytest.param("folder", UsageError, "not a regular file", id="a-folder-in-its-place"),
        pytest.param("link", UsageError, "not a regular file", id="planted-link"),
        pytest.param("dangling", UsageError, "not a regular file", id="planted-dangling-link"),
        pytest.param("full", StoppedEarly, "No space left on device; make room", id="full-disk"),
    ],
)
def test_a_record_that_cannot_be_written_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: type[Exception],
    message: str,
) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    if name == "full":

        def fsync(fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(error, match=f"^{tmp_path / name} cannot be written: {message}"):
        save_sidecar(tmp_path / name, {"settings": {}})
    assert sorted(tmp_path.iterdir()) == before, "nothing half-written stays"
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({"note": f"key {KEY}"}, id="the-key-in-a-text"),
        pytest.param({"list": [{"deep": KEY}]}, id="the-key-deep-inside"),
        pytest.param({KEY: 1}, id="the-key-as-a-name"),
        pytest.param({"proxy": "http://user:hunter2@proxy:8080"}, id="password-in-a-url"),
        pytest.param({"headers": {"X-Api-Key": "hunter2"}}, id="another-key-by-its-name"),
        pytest.param({"pwd": "hunter2"}, id="pwd"),
        pytest.param({"bearer": "hunter2"}, id="bearer"),
        pytest.param({"refresh_token": "hunter2"}, id="refresh-token"),
        pytest.param({"x-auth-token": "hunter2"}, id="x-auth-token"),
    ],
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


def test_settings_that_only_look_like_secrets_are_recorded(tmp_path: Path) -> None:
    body = {"eos_token": "<|end|>", "max_tokens": 5, "prompt_cache_key": "beam-{chat_id}"}
    recorded = bind(tmp_path / "answers.run.json", record_of(**body), binding=False)
    assert recorded["settings"]["body"].items() >= body.items()


# --- What a generation run adds -------------------------------------------------------------------


def test_selected_questions_add_up_over_the_runs_of_a_file() -> None:
    """`--chats 1` stopped at 5 of 20, then `--chats 2`; the same selection again adds nothing."""

    def questions(chat: int, abstention: int, summarization: int) -> list[Any]:
        abilities = ["abstention"] * abstention + ["summarization"] * summarization
        return [{"chat_id": chat, "question_type": ability} for ability in abilities]

    first = counted(questions(1, 2, 2), {})
    assert first == {"1": {"abstention": 2, "summarization": 2}}
    both = counted(questions(2, 2, 0) + questions(1, 1, 0), first)
    assert both == {"1": {"abstention": 2, "summarization": 2}, "2": {"abstention": 2}}
    assert first == {"1": {"abstention": 2, "summarization": 2}}


@pytest.mark.parametrize(
    ("named", "told"),
    [
        pytest.param(["m", "m", None], 0, id="as-asked-or-nothing"),
        pytest.param(["m-2024"] * 3, 1, id="another-one-all-along"),
        pytest.param(["m", "other", "m", "other"], 1, id="a-fallback-now-and-then"),
        pytest.param(["a", "b", "a", "b"], 2, id="two-in-turns"),
        pytest.param(["m via x", "m via y"] * 2, 1, id="two-providers-in-turns"),
    ],
)
def test_the_models_that_answer_are_counted_and_each_is_told_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: list[str | None], told: int
) -> None:
    path = tmp_path / "answers.run.json"
    record = Record(path, {"program": "beam_generate.py", "served": {}}, "m")
    for name in named:
        model, _, provider = (name or "").partition(" via ")
        record.note_model(Reply("", model=model or None, provider=provider or None))
    assert capsys.readouterr().err.count("names the model that answers") == told
    record.save()
    names = [name for name in named if name]
    assert json.loads(path.read_text())["served"] == {
        n: names.count(n) for n in dict.fromkeys(names)
    }
    resumed = Record(path, json.loads(path.read_text()), "m")
    assert not any(resumed.note_model(Reply("", model=name)) for name in names if " " not in name)
    assert capsys.readouterr().err == "", "told in the run before"
