"""Command lines and processes: addresses, keys, values of flags, exit codes, signals, streams."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_common import cli
from beam_common.cli import Parser, add_endpoint_flags, api_key, normalise_base_url, shown_url
from beam_common.command import command, connections_allowed, started_by
from beam_common.messages import StoppedEarly, UsageError, keep_secret, redacted
from beam_common.rows import PROJECT

Capsys = pytest.CaptureFixture[str]

KEY = "sk-Abc123+/=xyz"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" http://h:8000/v1/ \n", "http://h:8000/v1"), ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("http://h:8000/v1/chat/completions/", "http://h:8000/v1"),
        ("http://h:8000/chat/completions", "http://h:8000"),
        ("https://h/api/paas/v4", "https://h/api/paas/v4"), ("https://h:80/v1", "https://h:80/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"), ("http://u:pw@h/v1", "http://u:pw@h/v1"),
        ("https://h/openai?api-version=1#part", "https://h/openai?api-version=1"),
    ],
)  # fmt: skip
def test_base_urls_are_normalised(text: str, expected: str) -> None:
    assert normalise_base_url(text, "--base-url") == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "localhost:8000/v1", "h/v1", "ftp://h/v1", "http://", "http:///v1", "//h/v1"),
        *("http://h:port/v1", "http://h:99999/v1", "http://[::1/v1", "http://h h/v1"),
        *("http://h/v 1", "user:hunter2@h:8000", "http://u:hunter2/x@h/v1", "h/v1?key=hunter2"),
    ],
)
def test_what_is_no_url_is_refused_without_showing_a_password(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--base-url .* is not a URL; give one such") as caught:
        normalise_base_url(text, "--base-url")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "leak"),
    [
        ("http://u:percent%40encoded@h/v1", "percent@encoded"),
        ("http://user-only@h/v1", "user-only"),
        ("http://u:pw123@h/v1", "dTpwdzEyMw=="),  # as it is sent
        ("https://h/v1?key=in-the-query", "in-the-query"),
    ],
)
def test_secrets_of_a_url_are_hidden_wherever_they_show(url: str, leak: str) -> None:
    normalise_base_url(url, "--base-url")
    assert redacted(f"bad password {leak} at h") == "bad password [hidden] at h"
    assert shown_url(url) in ("http://h/v1", "https://h/v1")


def test_a_key_comes_from_its_flag_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (None, " ", "schlüssel", "two\nlines"):
        with pytest.raises(
            UsageError, match=r"^no API key: pass one by --api-key or BEAM_API_KEY;"
        ):
            api_key(wrong, "BEAM_API_KEY", "--api-key")
    monkeypatch.setenv("BEAM_API_KEY", " env-key\n")
    assert api_key("flag-key", "BEAM_API_KEY", "--api-key") == "flag-key"
    assert api_key(None, "BEAM_API_KEY", "--api-key") == "env-key"
    assert redacted("<flag-key env-key>") == "<[hidden] [hidden]>"


def by_name(value: object) -> str:
    return getattr(value, "__name__", "") or repr(value)[:20]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (cli.positive_int, "1", 1), (cli.non_negative_int, "0", 0),
        (cli.positive_float, "1e3", 1000.0), (cli.non_negative_float, "0", 0.0),
        (cli.probability, "1", 1.0), (cli.duration, "90s", 90.0), (cli.duration, "1.5m", 90.0),
        (cli.duration, "6h", 21600.0), (cli.json_object, " ", {}),
        (cli.json_object, '{"a": {"b": null}}', {"a": {"b": None}}),
        (cli.comma_list, "a, b,,c,", ["a", "b", "c"]), (cli.header, "X-A = b=c\n", ("X-A", "b=c")),
        (cli.shard, "2/4", (2, 4)),
    ],
    ids=by_name,
)  # fmt: skip
def test_values_of_flags(kind: Callable[[str], Any], text: str, expected: Any) -> None:
    assert kind(text) == expected
    assert type(kind(text)) is type(expected)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((cli.positive_int, text) for text in ("0", "-1", "1.5", "x", "", "9" * 5000)),
        *((cli.non_negative_int, text) for text in ("-1", "1.0")),
        *((cli.positive_float, text) for text in ("0", "nan", "inf", "1e999", "x")),
        *((cli.non_negative_float, text) for text in ("-0.1", "nan", "")),
        *((cli.probability, text) for text in ("0", "1.01", "nan")),
        *((cli.duration, text) for text in ("90", "h", "-1s", "6 h", "1d")),
        *((cli.comma_list, text) for text in ("", " ", ",,")),
        *((cli.json_object, text) for text in ("[]", "1", "null", "{", "{'a': 1}", '{"a": NaN}')),
        *((cli.json_object, text) for text in ('{"a": 1e999}', "[" * 99999, '{"messages": []}')),
        *((cli.json_object, text) for text in ("@no/such/file", f"@{__file__}", "@/")),
        *((cli.header, text) for text in ("X", "=b", "X A=b", "X:=b", "X=é", "X=a\x7fb", "é=b")),
        *((cli.shard, text) for text in ("0/2", "3/2", "1/0", "1", "1/2/3", "a/b", "-1/2")),
    ],
    ids=by_name,
)
def test_values_that_flags_refuse(kind: Callable[[str], Any], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        kind(text)


def test_values_of_headers_and_keys_in_a_json_file_are_secrets(tmp_path: Path) -> None:
    file = tmp_path / "extra.json"
    file.write_bytes(b'\xef\xbb\xbf{"provider": {"api_key": "or-hunter2"}}\n')
    assert cli.json_object(f"@{file}") == {"provider": {"api_key": "or-hunter2"}}
    cli.header("Authorization=Basic dXNlcjpodW50ZXIy")
    cli.header("x-session-affinity={chat_id}")
    said = redacted("or-hunter2, Basic dXNlcjpodW50ZXIy, dXNlcjpodW50ZXIy, {chat_id}")
    assert said == "[hidden], [hidden], [hidden], {chat_id}"


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ("--timout 5", "unrecognized arguments: --timout (did you mean --timeout?) (see"),
        ("--apikey=hunter2secret", "unrecognized arguments: --apikey"),
        ("--apikey hunter2secret", "unrecognized arguments: --apikey"),
        ("stray", "unrecognized arguments: stray (see"),
        ("sk-hunter2-and-more", "unrecognized arguments: [hidden] (see"),
        ("--timeout one", "argument --timeout: 'one' is not a number above 0 (see"),
        ("--max-outage 5", "'5' is not a time such as 90s, 30m or 6h"),
        ("--header hunter2", "argument --header: not of the form NAME=VALUE in"),
    ],
)
def test_a_wrong_argument_is_one_line_without_a_key(argv: str, shown: str) -> None:
    parser = Parser("Doc.", "program")
    add_endpoint_flags(parser, concurrency=16, timeout=600, one="call")
    with pytest.raises(UsageError, match=r"^[^\n]+ \(see program --help\)$") as caught:
        parser.parse_args(argv.split())
    assert shown in str(caught.value)
    assert "hunter2" not in str(caught.value)


def ended_by(error: BaseException) -> int:
    @command
    def main(argv: Any = None) -> int:
        raise error

    return main([])


FORBIDDEN = PermissionError(13, "Permission denied", "/f")
GONE = FileNotFoundError(2, "No such file or directory")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("why"), 2, "error: why"),
        (StoppedEarly("why"), 1, "stopped: why"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (FORBIDDEN, 2, "error: /f: Permission denied; name another file, or change its rights"),
        (GONE, 2, "error: the working directory is gone; change to one that is there"),
        (ModuleNotFoundError(name="tqdm"), 2, "error: the package tqdm is not installed: pip inst"),
    ],
    ids=repr,
)
def test_exit_codes(capsys: Capsys, error: BaseException, code: int, message: str) -> None:
    assert ended_by(error) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.startswith(message)) == ("", 1, True)


def test_a_mistake_of_ours_is_loud_but_shows_no_key(capsys: Capsys) -> None:
    keep_secret(KEY)
    assert ended_by(RuntimeError(f"sent 'Bearer {KEY}' to http://u:hunter2@h/v1")) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "RuntimeError: sent 'Bearer [hidden]' to http://h/v1" in err
    assert "this is a mistake of the program" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
@pytest.mark.parametrize("ignored", [False, True], ids=["heard", "ignored-as-by-nohup"])
def test_a_signal_outside_a_run(number: int, ignored: bool) -> None:
    before = signal.getsignal(number)
    during = signal.SIG_IGN if ignored else before
    signal.signal(number, during)
    try:
        main = command(lambda argv=None: os.kill(os.getpid(), number) or 0)
        assert main([]) == (0 if ignored else 128 + number)
        assert signal.getsignal(number) == during, "put back"
    finally:
        signal.signal(number, before)


PROGRAM = """
import os, sys
from beam_common import command
from beam_common.messages import say
@command.command
def main(argv=None):
    {body}
    return 0
command.run(main)
"""


def shell(line: str, body: str) -> tuple[int, str, str]:
    """Run `line` in a shell, with a program of that body as `$P`; exit code and outputs."""
    line = line.replace("$P", f'{sys.executable} -c "$0"')
    command = ["/bin/bash", "-c", line, PROGRAM.format(body=body)]
    pipes: Any = {"capture_output": True, "text": True, "errors": "replace"}
    done = subprocess.run(command, cwd=PROJECT, **pipes)
    return done.returncode, done.stdout, done.stderr


TWO = "say('message'); print('result')"
FULL = "stopped: results cannot be printed: No space left on device; what is on disk is whole\n"
STREAMS = {
    "a-reader-that-has-gone": (
        *("$P | head -1; exit ${PIPESTATUS[0]}", "[print('line') for _ in range(99999)]"),
        (1, "line\n", ""),
    ),
    "a-full-disk-behind-stdout": ("$P >/dev/full", TWO, (1, "", f"message\n{FULL}")),
    "a-full-disk-behind-stderr": ("$P 2>/dev/full", TWO, (0, "result\n", "")),
    "stderr-closed": ("$P 2>&-", TWO, (0, "result\n", "")),
    "all-closed": ("$P <&- >&- 2>&-", TWO, (0, "", "")),
    "an-encoding-without-the-text": (
        *("PYTHONIOENCODING=ascii $P", r"say('雪'); print('é \ud83d')"),
        (0, "\\xe9 \\ud83d\n", "\\u96ea\n"),
    ),
}


@pytest.mark.parametrize(("line", "body", "expected"), STREAMS.values(), ids=STREAMS)
def test_no_stream_takes_a_program_down(line: str, body: str, expected: Any) -> None:
    assert shell(line, body) == expected


def test_no_file_takes_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """Else what anybody writes to stderr, such as last words, would land in the file."""
    body = f"file = open({str(tmp_path / 'f')!r}, 'w'); print(file.fileno() > 2, file=file)"
    assert shell("exec <&- >&- 2>&-; exec $P", body)[0] == 0
    assert (tmp_path / "f").read_text() == "True\n"


def test_more_connections_than_files_may_be_open() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
    try:
        assert connections_allowed(400) == 400
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 400, "raised"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    _, out, err = shell("ulimit -n 100; $P", "print(command.connections_allowed(90))")
    assert out == "36\n", "100 files less 64 for others"
    assert "may open 100 files (ulimit -n): fewer requests in flight" in err


def test_commands_are_shown_as_they_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT / "docs")
    assert started_by("beam_judge.py") == "python ../beam_judge.py"
