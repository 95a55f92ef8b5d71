"""What people read: no secret in it, one line, and never the end of a run."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_common.messages import (
    Repeats,
    keep_public,
    keep_secret,
    keep_secrets_in,
    one_line,
    plural,
    redacted,
    say,
    without_secrets,
)
from beam_common.rows import PROJECT

Capsys = pytest.CaptureFixture[str]

KEY = "sk-Abc123+/=xyz"  # with signs that mean something in patterns and URLs
SHOWN = {
    "key-in-json-twice": (f'{{"key": "{KEY}"}} {KEY}', '{"key": "[hidden]"} [hidden]'),
    "credentials": ("at http://user:pass@host:80/v1", "at http://host:80/v1"),
    "at-sign-in-a-password": ("at http://user:p@ss@host/v1", "at http://host/v1"),
    "hash-in-a-password": ("http_proxy='http://usr:PW#x@h:9'", "http_proxy='http://h:9'"),
    "token-as-user-of-a-proxy": ("socks5://token@h:1080", "socks5://h:1080"),
    "mail-and-path": ("me@host.org, http://h/x@y", "me@host.org, http://h/x@y"),
    "the-longer-of-two-secrets": ("abcd-efgh", "[hidden]"),
    "a-short-one-inside-a-word": ("abcdef, my abcd", "abcdef, my [hidden]"),
    "a-long-one-glued-to-others": (r"\nsk-0123456789abcdef\t", r"\n[hidden]\t"),
    "part-of-a-public-name": ("lab/my-model, my-model", "lab/my-model, my-model"),
    "placeholders": ("of them none: test 1234 abc", "of them none: test 1234 abc"),
}


@pytest.mark.parametrize(("text", "expected"), SHOWN.values(), ids=SHOWN)
def test_no_secret_is_shown(text: str, expected: str) -> None:
    for secret in (KEY, "abcd", "abcd-efgh", "sk-0123456789abcdef", "my-model"):
        keep_secret(secret)
    for placeholder in ("none", "test", "1234", "abc", ""):
        keep_secret(placeholder)
    keep_public("lab/my-model")
    assert redacted(text) == one_line(text) == expected


def test_secrets_in_json_are_found_by_their_names() -> None:
    value: dict[str, Any] = {
        "provider": {"api_key": "or-hunter2", "order": ["a-provider"]},
        "headers": [{"Authorization": "Bearer abc-hunter2"}],
        "eos_token": "<|end|>",
        "prompt_cache_key": "shared-key",
    }
    keep_secrets_in(value)
    said = redacted("or-hunter2, abc-hunter2 of a-provider, <|end|>, shared-key")
    assert said == "[hidden], [hidden] of a-provider, <|end|>, shared-key"
    assert without_secrets(value) == value | {
        "provider": {"api_key": "[hidden]", "order": ["a-provider"]},
        "headers": [{"Authorization": "[hidden]"}],
    }


@given(st.text(), st.integers(2, 50))
def test_a_text_for_a_row_is_one_short_plain_line(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1
    assert one_line(line, limit) == line


def test_a_message_is_plain_and_without_secrets(capsys: Capsys) -> None:
    keep_secret(KEY)
    say(f"a\x1b[2J\rb\x9b {KEY} http://u:p@h/ 雪")
    say(f"{plural(1, 'call')} of {plural(1200, 'question')}")
    assert capsys.readouterr() == (
        "",
        "a [2J b  [hidden] http://h/ 雪\n1 call of 1,200 questions\n",
    )
    assert one_line("a\x1b[31mred\r\n\tb\x07" + "x" * 300) == "a [31mred b " + "x" * 287 + "…"


def test_equal_messages_in_a_row_are_counted(capsys: Capsys) -> None:
    repeats = Repeats()
    for about in ("chat 1", "chat 2", "chat 3"):
        repeats.say(f"HTTP 500 to {about[-1]},234,567 bytes", about)
    for _ in range(2):
        repeats.say("HTTP 503")
    repeats.flush()
    repeats.flush()
    said = [
        "chat 1: HTTP 500 to 1,234,567 bytes",
        "the same 2 more times",
        "HTTP 503",
        "the same 1 more time",
    ]
    assert capsys.readouterr().err.splitlines() == said


def test_a_message_goes_beside_a_bar_and_a_lost_stderr_ends_no_run() -> None:
    code = "import tqdm; from beam_common.messages import say; say('message'); print('result')"
    for redirect, shown in (("2>&1", "message\nresult\n"), ("2>/dev/full", "result\n")):
        command = ["/bin/sh", "-c", f'{sys.executable} -uc "$0" {redirect}', code]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
        assert done.stdout == shown
