"""What the scripts share: identity, secrets, sidecars, addresses, values of flags, whole files, exit codes."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import beam_cli
import beam_common
from beam_cli import normalise_base_url, shown_url
from beam_common import (
    StoppedEarly,
    UsageError,
    beside,
    keep_public,
    keep_secret,
    key_of,
    name_of,
    one_line,
    plural,
    redacted,
    say,
    sha256_of_file,
    sha256_of_text,
    write_whole,
)
from beam_settings import bind_settings, differences, load_sidecar, save_sidecar

ROOT = Path(beam_common.__file__).parent
KEY = "sk-Abc123+/=xyz"  # with signs that mean something in patterns and URLs


def python(code: str, *argv: str, **popen: Any) -> subprocess.CompletedProcess[str]:
    """A process of its own that runs `code`."""
    return subprocess.run([sys.executable, "-c", code, *argv], cwd=ROOT, capture_output=True, text=True, **popen)


# --- Identity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chat", "index"),
    [pytest.param(3, 0, id="numbers"), pytest.param("3", 0, id="chat-as-text"), pytest.param("3", "0", id="texts"),
     pytest.param(3, 0.0, id="index-as-float")],
)  # fmt: skip
def test_a_question_is_the_same_however_its_numbers_are_written(chat: Any, index: Any) -> None:
    row = {"chat_id": chat, "question_type": "abstention", "question_index": index, "more": 1}
    assert key_of(row) == ("3", "abstention", 0)
    assert name_of(row) == "chat 3 abstention/0"


@pytest.mark.parametrize("other", [("03", "abstention", 0), ("3", "Abstention", 0), ("3", "abstention", 1)], ids=str)
def test_other_questions_are_others(other: tuple[str, str, int]) -> None:
    row = dict(zip(("chat_id", "question_type", "question_index"), other, strict=True))
    assert key_of(row) != ("3", "abstention", 0)


# --- Messages and secrets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: [hidden].", id="key"),
        pytest.param(f"Bearer {KEY}", "Bearer [hidden]", id="bearer"),
        pytest.param(f'{{"key": "{KEY}"}}', '{"key": "[hidden]"}', id="key-in-json"),
        pytest.param(f"{KEY} and {KEY}", "[hidden] and [hidden]", id="twice"),
        pytest.param("at http://user:pass@host:80/v1", "at http://host:80/v1", id="credentials"),
        pytest.param("at http://user:p@ss@host/v1", "at http://host/v1", id="at-sign-in-a-password"),
        pytest.param("at https://token@host/v1", "at https://host/v1", id="token-as-user"),
        pytest.param("socks5://u:p@h:1080 refused", "socks5://h:1080 refused", id="proxy"),
        pytest.param("write to me@host.org about http://host/x@y", "write to me@host.org about http://host/x@y", id="mail"),
        pytest.param("nothing to hide", "nothing to hide", id="nothing"),
    ],
)  # fmt: skip
def test_no_secret_is_shown(text: str, expected: str) -> None:
    keep_secret(KEY)
    assert redacted(text) == expected
    assert one_line(text) == expected


@pytest.mark.parametrize("word", ["none", "EMPTY", "test", "1234", "abc", ""])
def test_placeholders_are_no_secrets(word: str) -> None:
    """A key that a local server ignores must not tear holes into messages and records."""
    keep_secret(word)
    text = f"of them {word}: port {word}"
    assert redacted(text) == text


def test_a_word_that_holds_the_secret_is_no_secret() -> None:
    keep_secret("local-key")
    assert redacted("local-keyboard, my local-key") == "local-keyboard, my [hidden]"


def test_the_longer_of_two_secrets_is_hidden_whole() -> None:
    keep_secret("abcd")
    keep_secret("abcd-efgh")
    assert redacted("abcd-efgh") == "[hidden]"


def test_a_part_of_a_public_name_is_no_secret() -> None:
    keep_secret("my-model")
    keep_secret("my-secret-model")
    keep_public("lab/my-model")
    assert redacted("lab/my-model, my-model, my-secret-model") == "lab/my-model, my-model, [hidden]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("two\nlines\r\n\tand blanks ", "two lines and blanks", id="white-space"),
        pytest.param("a\x1b[31mred\x1b[0m\x07\x9b", "a [31mred [0m", id="control-characters"),
        pytest.param("é 雪", "é 雪", id="non-ascii"),
        pytest.param("x" * 301, "x" * 299 + "…", id="too-long"),
        pytest.param("x" * 300, "x" * 300, id="just-fits"),
    ],
)
def test_texts_for_rows_are_one_short_line(text: str, expected: str) -> None:
    assert one_line(text) == expected


def test_a_message_is_one_plain_line_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    keep_secret(KEY)
    say(f"a\x1b[2J\rb {KEY} http://u:p@h/")
    assert capsys.readouterr() == ("", "a [2J b [hidden] http://h/\n")


@pytest.mark.parametrize("n", ["0 questions", "1 question", "2 questions", "1,200 questions"])
def test_plural(n: str) -> None:
    assert plural(int(n.split()[0].replace(",", "")), "question") == n


# --- Digests and whole files -----------------------------------------------------------------------------------------


def test_digests(tmp_path: Path) -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256_of_file(tmp_path / "abc") == sha256_of_text("abc") == abc
    assert sha256_of_text("") == empty
    assert sha256_of_text("\ud83d") != sha256_of_text("\ud83e")


def write_abc(file: BinaryIO) -> None:
    file.write(b"abc")


def test_a_whole_file_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o600)
    inode = path.stat().st_ino
    write_whole(path, write_abc)
    assert path.read_bytes() == b"abc"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_ino != inode
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)], ids=oct)
def test_a_new_whole_file_follows_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "file", write_abc)
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@pytest.mark.parametrize("trouble", [OSError("disk"), UsageError("input"), KeyboardInterrupt()], ids=repr)
def test_a_whole_file_appears_whole_or_not_at_all(tmp_path: Path, trouble: BaseException) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(file: BinaryIO) -> None:
        file.write(b"half")
        file.flush()
        assert path.read_bytes() == b"old"
        raise trouble

    with pytest.raises(type(trouble)):
        write_whole(path, write)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_whole_file_behind_a_link_replaces_the_target(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    write_whole(tmp_path / "link", write_abc)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"abc"


@pytest.mark.parametrize(
    ("output", "sidecar"),
    [
        ("answers.jsonl", "answers.run.json"),
        ("runs/a.b.jsonl", "runs/a.b.run.json"),
        ("answers", "answers.run.json"),
        ("answers.json", "answers.json.run.json"),
    ],
)
def test_sidecars_are_named_after_the_output(output: str, sidecar: str) -> None:
    assert beside(output, ".run.json") == Path(sidecar)


# --- Sidecars --------------------------------------------------------------------------------------------------------


def settings_of(**changes: Any) -> dict[str, Any]:
    settings = {"model": "m", "temperature": 1.0, "extra_body": {}} | changes
    return {"program": "p", "started": ["now"], "settings": settings, "data": {"questions_sha256": "a"}}


@pytest.mark.parametrize(
    ("recorded", "now", "expected"),
    [
        pytest.param({"a": 1}, {"a": 1}, [], id="equal"),
        pytest.param({"a": 1}, {"a": 1.0}, [], id="equal-numbers"),
        pytest.param({"temperature": 1.0}, {"temperature": 0.7}, ["temperature (recorded 1.0, now 0.7)"], id="number"),
        pytest.param({"model": "a"}, {"model": "b"}, ["model (recorded a, now b)"], id="text"),
        pytest.param({"tokenizer": ""}, {"tokenizer": "x"}, ["tokenizer (recorded empty, now x)"], id="empty"),
        pytest.param({"a": 1, "b": 2}, {"b": 3, "a": 0}, ["b (recorded 2, now 3)", "a (recorded 1, now 0)"], id="two"),
        pytest.param({}, {"new": 1}, [], id="unknown-to-an-older-version"),
        pytest.param({"old": 1}, {}, [], id="unknown-to-this-version"),
        pytest.param({"extra_body": {"k": 1}}, {"extra_body": {}}, ['extra_body (recorded {"k": 1}, now {})'], id="key-gone"),
        pytest.param({"judge_extra_body": {}}, {"judge_extra_body": {"k": None}},
                     ['judge_extra_body (recorded {}, now {"k": null})'], id="key-new"),
        pytest.param({"b": {"k": {"x": 1, "y": 2}}}, {"b": {"k": {"y": 2, "x": 1}}}, [], id="order-of-keys"),
    ],
)  # fmt: skip
def test_differences_are_named(recorded: dict[str, Any], now: dict[str, Any], expected: list[str]) -> None:
    assert differences(recorded, now) == expected


def bind(path: Path, content: dict[str, Any], *, binding: bool = True, allow_mixed: bool = False, **kw: Any) -> None:
    options = {"output": "answers.jsonl", **kw}
    bind_settings(path, content, binding=binding, allow_mixed=allow_mixed, **options)


def test_a_sidecar_binds_and_collects_the_starts(tmp_path: Path) -> None:
    path = tmp_path / "answers.run.json"
    bind(path, settings_of())
    bind(path, settings_of())
    content = load_sidecar(path)
    assert content is not None
    assert content["started"] == ["now", "now"]
    assert content["version"] == beam_common.VERSION
    before = path.read_bytes()
    with pytest.raises(
        UsageError, match=r"answers\.jsonl was made with other settings: model \(recorded m, now n\)\. "
    ):
        bind(path, settings_of(model="n"))
    with pytest.raises(UsageError, match="questions_sha256"):
        bind(path, {**settings_of(), "data": {"questions_sha256": "b"}})
    assert path.read_bytes() == before


def test_what_may_change_may_change(tmp_path: Path) -> None:
    path = tmp_path / "scores.run.json"
    bind(path, settings_of())
    bind(path, settings_of(temperature=0.3), may_change=("temperature",))
    assert load_sidecar(path)["settings"]["temperature"] == 0.3  # type: ignore[index]


def test_allow_mixed_is_recorded_for_good(tmp_path: Path) -> None:
    path = tmp_path / "answers.run.json"
    bind(path, settings_of(), binding=False)
    bind(path, settings_of(model="n"), allow_mixed=True)
    bind(path, settings_of(model="n"))
    content = load_sidecar(path)
    assert content is not None
    assert content["settings"]["model"] == "n"
    assert [mixed["settings"]["model"] for mixed in content["mixed_with"]] == ["m"]
    bind(path, settings_of(), allow_mixed=True)
    assert [mixed["settings"]["model"] for mixed in load_sidecar(path)["mixed_with"]] == ["m", "n"]  # type: ignore[index]


def test_rows_without_a_record_are_of_unknown_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever made them: what this run would use is noted only where it adds rows, and beside them."""
    path = tmp_path / "answers.run.json"
    bind(path, settings_of(), adds=False)
    content = load_sidecar(path)
    assert content is not None
    assert (content["settings"], content["data"], "mixed_with" in content) == ({}, {}, False)
    assert "no record of its settings (answers.run.json)" in capsys.readouterr().err
    bind(path, settings_of())
    bind(path, settings_of())
    content = load_sidecar(path)
    assert content is not None
    assert (content["settings"]["model"], content["mixed_with"]) == ("m", [{"settings": {}, "data": {}}])
    assert capsys.readouterr().err.count("no record") == 1


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(json.dumps(settings_of(model="wrong")).encode(), id="other-settings"),
        pytest.param(b'{"program": "beam_gen', id="torn"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * 100, id="zero-bytes"),
        pytest.param(b"[]", id="list"),
    ],
)
def test_a_sidecar_that_does_not_bind_is_replaced_whatever_it_holds(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answers.run.json"
    path.write_bytes(content)
    bind(path, settings_of(), binding=False)
    assert load_sidecar(path)["settings"]["model"] == "m"  # type: ignore[index]
    assert load_sidecar(path)["started"] == ["now"]  # type: ignore[index]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{"program": "beam_gen', id="torn"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * 100, id="zero-bytes"),
        pytest.param(b"\xff{}", id="not-utf-8"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"settings": []}', id="settings-as-list"),
        pytest.param(b'{"started": 5}', id="starts-as-number"),
        pytest.param(b"[" * 100_000, id="nested-too-deep"),
    ],
)
def test_a_binding_sidecar_that_cannot_be_read_is_refused_untouched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answers.run.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"answers\.run\.json: .*move the file away"):
        bind(path, settings_of())
    assert path.read_bytes() == content


def test_no_sidecar_is_none(tmp_path: Path) -> None:
    assert load_sidecar(tmp_path / "answers.run.json") is None


def test_a_sidecar_is_utf8_for_readers(tmp_path: Path) -> None:
    path = tmp_path / "answers.run.json"
    save_sidecar(path, {"model": "模型", "odd": "\ud83d"})
    assert path.read_bytes() == '{\n "model": "模型",\n "odd": "\\ud83d"\n}\n'.encode()
    assert load_sidecar(path) == {"model": "模型", "odd": "\ud83d"}


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        pytest.param("missing/answers.run.json", UsageError, "No such file or directory", id="no-folder"),
        pytest.param("file/answers.run.json", UsageError, "Not a directory", id="folder-is-a-file"),
        pytest.param("folder", UsageError, "Is a directory", id="a-folder-in-its-place"),
        pytest.param("full", StoppedEarly, "make room", id="full-disk"),
    ],
)
def test_a_sidecar_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    if path == "full":

        def fsync(fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(error, match=message):
        save_sidecar(tmp_path / path, {"settings": {}})
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "folder"]


# Places where a secret may get into the settings, and a part of it that must not be found in the file.
QUOTED = 'quo"te\\d-key'
SECRETS = [
    pytest.param(settings_of(extra_body={"note": f"key {KEY}"}), id="the-key-in-a-text"),
    pytest.param(settings_of(extra_body={"list": [{"deep": KEY}]}), id="the-key-deep-inside"),
    pytest.param(settings_of(extra_body={"note": QUOTED}), id="a-key-that-json-escapes"),
    pytest.param(settings_of(extra_body={KEY: 1}), id="the-key-as-a-name"),
    pytest.param(settings_of(extra_body={"proxy": "http://user:hunter2@proxy:8080"}), id="password-in-a-url"),
    pytest.param(settings_of(extra_body={"api_key": "hunter2"}), id="another-key-by-its-name"),
    pytest.param(settings_of(extra_body={"headers": {"X-Api-Key": "hunter2"}}), id="header-by-its-name"),
    pytest.param(settings_of(extra_body={"Authorization": "Bearer hunter2"}), id="authorization"),
    pytest.param(settings_of(extra_body={"auth": {"password": "abc-hunter2"}}), id="password"),
    pytest.param(settings_of(extra_body={"access_token": "hunter2"}), id="token"),
]


@pytest.mark.parametrize("content", SECRETS)
def test_no_secret_gets_into_a_sidecar_and_the_resume_still_binds(tmp_path: Path, content: dict[str, Any]) -> None:
    keep_secret(KEY)
    keep_secret(QUOTED)
    path = tmp_path / "answers.run.json"
    bind(path, content)
    text = path.read_text(encoding="utf-8")
    assert not any(part in text for part in (KEY, "hunter2", "quo", "te\\\\d-key"))
    assert "[hidden]" in text or "http://proxy:8080" in text
    bind(path, content)
    with pytest.raises(UsageError, match="extra_body"):
        bind(path, settings_of(extra_body={"another": 1}))


@pytest.mark.parametrize("key", ["settings", "data", "model", "started"])
def test_a_key_that_is_a_word_of_the_record_leaves_it_readable(tmp_path: Path, key: str) -> None:
    keep_secret(key)
    path = tmp_path / "answers.run.json"
    bind(path, settings_of())
    bind(path, settings_of())
    assert {"settings", "data", "started"} <= json.loads(path.read_bytes()).keys()


def test_two_outputs_have_no_common_record(tmp_path: Path) -> None:
    """`answers` and `answers.jsonl` have one name for it; a file that was renamed with its record keeps it."""
    path = tmp_path / "answers.run.json"
    (tmp_path / "answers.jsonl").touch()
    bind(path, settings_of(), output=tmp_path / "answers.jsonl")
    with pytest.raises(UsageError, match=r"holds the settings of .*answers\.jsonl, which this run would replace"):
        bind(path, settings_of(), output=tmp_path / "answers")
    (tmp_path / "answers.jsonl").rename(tmp_path / "kept.jsonl")
    path.rename(tmp_path / "kept.run.json")
    (tmp_path / "answers.jsonl").touch()
    bind(tmp_path / "kept.run.json", settings_of(), output=tmp_path / "kept.jsonl")
    assert json.loads((tmp_path / "kept.run.json").read_bytes())["output"] == "kept.jsonl"


def test_settings_that_only_look_like_secrets_are_recorded(tmp_path: Path) -> None:
    body = {
        "eos_token": "<|end|>",
        "max_tokens": 5,
        "stop_token_ids": [1],
        "thinking": {"type": "none", "budget_tokens": 9},
    }
    keep_secret("none")
    keep_secret("12345678")
    bind(tmp_path / "answers.run.json", settings_of(extra_body=body, max_context=12345678))
    recorded = load_sidecar(tmp_path / "answers.run.json")["settings"]  # type: ignore[index]
    assert (recorded["extra_body"], recorded["max_context"]) == (body, 12345678)


# --- Addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("http://h:8000/v1", "http://h:8000/v1", id="as-it-is"),
        pytest.param("http://h:8000/v1/", "http://h:8000/v1", id="slash"),
        pytest.param("http://h:8000/v1//", "http://h:8000/v1", id="slashes"),
        pytest.param(" http://h:8000/v1 ", "http://h:8000/v1", id="blanks"),
        pytest.param("http://h:8000/v1\n", "http://h:8000/v1", id="line-end"),
        pytest.param("http://h:8000", "http://h:8000/v1", id="bare-host"),
        pytest.param("http://h:8000/", "http://h:8000/v1", id="bare-host-slash"),
        pytest.param("http://h:8000/v1/chat/completions", "http://h:8000/v1", id="whole-path"),
        pytest.param("http://h:8000/v1/chat/completions/", "http://h:8000/v1", id="whole-path-slash"),
        pytest.param("http://h:8000/chat/completions", "http://h:8000", id="whole-path-without-v1"),
        pytest.param("https://h/api/paas/v4", "https://h/api/paas/v4", id="another-path"),
        pytest.param("HTTP://Host.Example:80/V1", "http://host.example/V1", id="case-and-default-port"),
        pytest.param("https://h:443/v1", "https://h/v1", id="default-port-of-https"),
        pytest.param("https://h:80/v1", "https://h:80/v1", id="port-of-the-other-scheme"),
        pytest.param("http://[::1]:8000/v1", "http://[::1]:8000/v1", id="ipv6"),
        pytest.param("http://u:pw@h/v1", "http://u:pw@h/v1", id="credentials"),
        pytest.param("https://h/openai?api-version=1", "https://h/openai?api-version=1", id="query"),
        pytest.param("https://h/v1#part", "https://h/v1", id="fragment"),
    ],
)
def test_base_urls_are_normalised(text: str, expected: str) -> None:
    assert normalise_base_url(text, "--base-url") == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "localhost:8000", "localhost:8000/v1", "h/v1", "ftp://h/v1", "http://", "http:///v1", "http://h:port/v1",
     "http://h:99999/v1", "http://[::1/v1", "http://h h/v1", "http://h/v 1", "user:hunter2@h:8000", "//h/v1",
     "http://u:hunter2/x@h/v1", "h/v1?key=hunter2"],
)  # fmt: skip
def test_what_is_no_url_is_refused_without_showing_a_password(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--base-url .* is not a URL; give one such as http") as caught:
        normalise_base_url(text, "--base-url")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:pw@h:1/v1", "http://h:1/v1"),
        ("http://u:p@w@h:1/v1", "http://h:1/v1"),
        ("https://h/v1?key=secret", "https://h/v1"),
        ("https://h/v1", "https://h/v1"),
    ],
)
def test_shown_urls_hold_no_credentials(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("url", "leak"),
    [("http://u:hun%40ter2@h/v1", "hun@ter2"), ("http://u:hunter2@h/v1", "hunter2"), ("http://tok-en-123@h/v1", "tok-en-123")],
    ids=["percent-encoded", "plain", "user-only"],
)  # fmt: skip
def test_the_password_of_a_base_url_is_hidden_where_a_server_repeats_it(url: str, leak: str) -> None:
    normalise_base_url(url, "--base-url")
    assert redacted(f"bad password {leak}") == "bad password [hidden]"


# --- Values of flags -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (beam_cli.positive_int, "1", 1),
        (beam_cli.non_negative_int, "0", 0),
        (beam_cli.positive_float, "0.5", 0.5),
        (beam_cli.positive_float, "1e3", 1000.0),
        (beam_cli.non_negative_float, "0", 0.0),
        (beam_cli.probability, "1", 1.0),
        (beam_cli.probability, "0.95", 0.95),
        (beam_cli.json_object, "", {}),
        (beam_cli.json_object, " ", {}),
        (beam_cli.json_object, '{"a": {"b": null}}', {"a": {"b": None}}),
        (beam_cli.comma_list, "a, b,c", ["a", "b", "c"]),
        (beam_cli.comma_list, "a,,", ["a"]),
        (beam_cli.header, "X-A=b", ("X-A", "b")),
        (beam_cli.header, "X-A = b=c ", ("X-A", "b=c")),
        (beam_cli.header, "X-A=", ("X-A", "")),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value),
)
def test_values_of_flags(kind: Callable[[str], Any], text: str, expected: Any) -> None:
    value = kind(text)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *[(beam_cli.positive_int, text) for text in ("0", "-1", "1.5", "x", "", "9" * 5000)],
        *[(beam_cli.non_negative_int, text) for text in ("-1", "1.0", "none")],
        *[(beam_cli.positive_float, text) for text in ("0", "-1", "nan", "inf", "1e999", "x")],
        *[(beam_cli.non_negative_float, text) for text in ("-0.1", "nan", "inf", "")],
        *[(beam_cli.probability, text) for text in ("0", "1.01", "nan", "-1")],
        *[(beam_cli.comma_list, text) for text in ("", " ", ",,")],
        *[(beam_cli.json_object, text) for text in ("[]", "1", "null", "{", "{'a': 1}", '{"a": NaN}', "[" * 99999)],
        *[(beam_cli.header, text) for text in ("X", "=b", "X A=b", "X:=b", "X=\n", "X=é", "X=a\x7fb", "é=b")],
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value)[:12],
)
def test_values_that_flags_refuse(kind: Callable[[str], Any], text: str) -> None:
    if text == "X=\n":
        assert kind(text) == ("X", "")  # a line end that a shell left behind is no part of the value
        return
    with pytest.raises(argparse.ArgumentTypeError):
        kind(text)


def test_header_values_are_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    beam_cli.header("Authorization=Basic dXNlcjpodW50ZXIy")
    say("refused: Basic dXNlcjpodW50ZXIy (dXNlcjpodW50ZXIy)")
    assert "dXNl" not in capsys.readouterr().err


def test_keys_in_a_json_flag_are_secrets() -> None:
    beam_cli.json_object('{"provider": {"api_key": "or-hunter2", "order": ["a-provider"]}}')
    assert redacted("or-hunter2 at a-provider") == "[hidden] at a-provider"


@pytest.mark.parametrize(
    ("given", "environment", "key"),
    [
        pytest.param("flag-key", "env-key", "flag-key", id="flag-wins"),
        pytest.param(None, "env-key", "env-key", id="environment"),
        pytest.param(None, " env-key\n", "env-key", id="blanks-around"),
    ],
)
def test_api_keys(monkeypatch: pytest.MonkeyPatch, given: str | None, environment: str, key: str) -> None:
    monkeypatch.setenv("BEAM_API_KEY", environment)
    assert beam_cli.api_key(given, "BEAM_API_KEY", "--api-key") == key
    assert redacted(f"<{key}>") == "<[hidden]>"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(None, "no API key: pass --api-key or set BEAM_API_KEY; a local server without keys still needs some text",
                     id="none"),
        pytest.param("", "no API key", id="empty"),
        pytest.param(" ", "no API key", id="blank"),
        pytest.param("schlüssel", "characters that no key has", id="not-ascii"),
        pytest.param("two\nlines", "characters that no key has", id="line-end-inside"),
    ],
)  # fmt: skip
def test_api_keys_that_cannot_be(given: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        beam_cli.api_key(given, "BEAM_API_KEY", "--api-key")
    assert not given or not given.strip() or given not in str(caught.value)


def test_a_wrong_flag_is_one_line_and_no_abbreviation_is_taken() -> None:
    parser = beam_cli.Parser("Doc.", prog="program")
    parser.add_argument("--number", type=beam_cli.positive_int)
    for argv in (["--number", "x"], ["--num", "1"], ["more"]):
        with pytest.raises(UsageError, match=r"^[^\n]+ \(see program --help\)$"):
            parser.parse_args(argv)


# --- Exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        pytest.param(UsageError("why"), 2, "error: why\n", id="usage"),
        pytest.param(StoppedEarly("why"), 1, "stopped: why\n", id="stopped"),
        pytest.param(KeyboardInterrupt(), 130, "interrupted\n", id="interrupt"),
        pytest.param(beam_common.Terminated(), 143, "terminated\n", id="terminated"),
    ],
)
def test_exit_codes(capsys: pytest.CaptureFixture[str], raised: BaseException, code: int, message: str) -> None:
    @beam_cli.command
    def main(argv: Any = None) -> int:
        raise raised

    assert main([]) == code
    assert capsys.readouterr() == ("", message)


def test_a_mistake_of_ours_is_loud_but_shows_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    @beam_cli.command
    def main(argv: Any = None) -> int:
        keep_secret(KEY)
        raise RuntimeError(f"headers were {{'Authorization': 'Bearer {KEY}'}} for http://u:hunter2@h/v1")

    assert main([]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "RuntimeError: headers were {'Authorization': 'Bearer [hidden]'} for http://h/v1" in err
    assert "this is a mistake of the program" in err
    assert KEY not in err


def test_sigterm_outside_a_run_is_exit_143_and_the_handler_is_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)

    @beam_cli.command
    def main(argv: Any = None) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    assert main([]) == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err == "terminated\n"


def test_an_ignored_sigterm_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)

    @beam_cli.command
    def main(argv: Any = None) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    try:
        assert main([]) == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


PROGRAM = """
import sys
from beam_cli import command
from beam_common import say
@command
def main(argv=None):
    {body}
    return 0
sys.exit(main())
"""


def test_a_reader_of_stdout_that_has_gone_ends_the_program_without_a_traceback() -> None:
    code = PROGRAM.format(body="[print('line', flush=True) for _ in range(99999)]")
    done = subprocess.run(
        ["/bin/sh", "-c", f'{sys.executable} -c "$0" | head -1', code], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("line\n", "")


@pytest.mark.parametrize("stderr", ["/dev/full", "closed"])
def test_a_stderr_that_is_lost_ends_no_program(stderr: str) -> None:
    code = PROGRAM.format(body="say('message'); print('result')")
    redirect = "2>&-" if stderr == "closed" else "2>/dev/full"
    done = subprocess.run(
        ["/bin/sh", "-c", f'{sys.executable} -c "$0" {redirect}', code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "result\n"


def test_no_file_takes_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """Else what another writes to stderr, an interpreter's last words say, would land in the file."""
    body = f"file = open({str(tmp_path / 'f')!r}, 'w'); import os; print(file.fileno() > 2, file=file); os.write(2, b'lost')"
    command = f'exec <&- >&- 2>&-; exec {sys.executable} -c "$0"'
    done = subprocess.run(["/bin/sh", "-c", command, PROGRAM.format(body=body)], cwd=ROOT)
    assert done.returncode == 0
    assert (tmp_path / "f").read_text() == "True\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_text_can_be_printed(encoding: str) -> None:
    code = PROGRAM.format(body=r"say('雪 \ud83d'); print('é \ud83d')")
    done = python(code, env={**os.environ, "PYTHONIOENCODING": encoding}, errors="replace")
    assert (done.returncode, "\\ud83d" in done.stdout, "\\ud83d" in done.stderr) == (0, True, True)


def test_streams_of_tests_without_a_file_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called from a notebook, say, the streams are no text files."""
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    say("hello")
    assert out.getvalue() == "hello\n"


def test_a_key_glued_to_other_characters_is_hidden_too() -> None:
    keep_secret("sk-0123456789abcdef")
    assert "sk-0123" not in redacted(r"Bearer\nsk-0123456789abcdef\tx")


def test_a_key_in_the_query_of_a_base_url_is_a_secret() -> None:
    beam_cli.normalise_base_url("https://host/v1?key=AIzaSyAbcdefgh&version=2", "--base-url")
    assert redacted("refused: key AIzaSyAbcdefgh, version 2") == "refused: key [hidden], version 2"


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--apikey", "hunter2secret"], "unrecognized arguments: --apikey (see"),
        (["--apikey=hunter2secret"], "unrecognized arguments: --apikey (see"),
        (["stray"], "unrecognized arguments: stray (see"),
        (["sk-hunter2-and-more"], "unrecognized arguments: [hidden] (see"),
        (["--limit", "one"], "argument --limit"),
        (["--thinking-json", '{"api_key": "hunter2'], "the text is not JSON"),
        (["--thinking-json", "{max_tokens: 3}"], "'{max_tokens: 3}' is not JSON"),
        (["--thinking-json", '{"a":' + "[" * 300 + "]" * 300 + "}"], "nested more than 200 levels"),
    ],
    ids=lambda value: value[0][:20] if isinstance(value, list) else "",
)
def test_errors_of_arguments_show_no_key(argv: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    import beam_generate

    assert beam_generate.main(["--model", "m", "--base-url", "http://x/v1", *argv]) == 2
    said = capsys.readouterr().err
    assert shown in said
    assert "hunter2" not in said
