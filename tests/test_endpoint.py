"""One request: bodies, replies, streams, and what each failure means; the pure rules as tables, the rest over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import trustme
from scripted_endpoint import (
    Answer,
    Recorded,
    ScriptedEndpoint,
    chunk,
    completion,
    drop,
    hang,
    pieces,
    raw,
    reset,
    say,
    sse,
    status,
)

import beam_endpoint
from beam_cli import normalise_base_url
from beam_common import UsageError, keep_secret
from beam_endpoint import Endpoint, Flags, encode_body, encode_json, parameters
from beam_failure import ErrorBody, Failure, meaning, named_wait, read_error, stated_excess
from beam_reply import EventLines, Reply, Stream, join_surrogates, read_completion, text_of, token_counts

MIB = 2**20
LONG = 20.0  # a timeout that no test waits for

# --- The body of a request ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "extra", "expected"),
    [
        pytest.param({"model": "m"}, {}, {"model": "m"}, id="nothing-extra"),
        pytest.param({"model": "m"}, {"top_k": 40}, {"model": "m", "top_k": 40}, id="another-key"),
        pytest.param({"temperature": 1.0}, {"temperature": 0.2}, {"temperature": 0.2}, id="extra-wins"),
        pytest.param({"model": "m", "top_p": 0.95}, {"top_p": None}, {"model": "m"}, id="null-takes-out"),
        pytest.param({}, {"absent": None}, {}, id="null-of-an-absent-key"),
        pytest.param({}, {"a": {"b": None}}, {"a": {"b": None}}, id="nested-null-stays"),
        pytest.param({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"y": 2}}, id="nested-is-replaced-whole"),
        pytest.param({"stream": True}, {"stream": False}, {"stream": False}, id="false-is-no-null"),
    ],
)
def test_parameters(settings: dict[str, Any], extra: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parameters(settings, extra) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param({"a": 1, "b": [1.5, None]}, b'{"a":1,"b":[1.5,null]}', id="no-blanks"),
        pytest.param("žÜ漢🙂", '"žÜ漢🙂"'.encode(), id="as-itself"),
        pytest.param("\u2028\u2029\x85", '"\u2028\u2029\x85"'.encode(), id="line-separators-as-themselves"),
        pytest.param('"\\\n\x00\x1f\x7f', b'"\\"\\\\\\n\\u0000\\u001f\x7f"', id="control-characters"),
        pytest.param("a\ud83db", b'"a\\ud83db"', id="lone-high-surrogate"),
        pytest.param("\udc42", b'"\\udc42"', id="lone-low-surrogate"),
    ],
)
def test_encode_json(value: object, expected: bytes) -> None:
    assert encode_json(value) == expected
    assert json.loads(expected) == value


def test_encode_json_refuses_what_is_no_json() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        encode_json({"temperature": float("nan")})


@pytest.mark.parametrize("settings", [{}, {"model": "m", "stream": True}], ids=["no-settings", "settings"])
@pytest.mark.parametrize("shared", [0, 1, 3])
def test_encode_body(settings: dict[str, Any], shared: int) -> None:
    slices = encode_body(encode_json(settings), [b'{"n":%d},' % n for n in range(shared)], b'{"last":1}')
    assert json.loads(b"".join(slices)) == {**settings, "messages": [*({"n": n} for n in range(shared)), {"last": 1}]}


# --- The parts of a reply -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param("text", "text", id="text"),
        pytest.param(None, "", id="null"),
        pytest.param([], "", id="no-parts"),
        pytest.param([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", id="parts"),
        pytest.param([{"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}], "b", id="other-parts"),
        pytest.param(["a", None, 3, {"text": None}, {"text": "b"}], "ab", id="odd-parts"),
        pytest.param([{"type": "reasoning", "text": "I think"}, {"type": "text", "text": "b"}], "b", id="reasoning"),
        pytest.param([{"type": "thinking", "text": "hm"}, {"type": "output_text", "text": "b"}], "b", id="thinking"),
        pytest.param([{"type": ["text"], "text": "a"}, {"type": None, "text": "b"}], "b", id="odd-types"),
        pytest.param(7, "", id="number"),
        pytest.param({"text": "a"}, "", id="object"),
    ],
)
def test_text_of(content: object, expected: str) -> None:
    assert text_of(content) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a\ud83d\ude42b", "a🙂b", id="pair"),
        pytest.param("a\ud83d", "a\ud83d", id="lone-high"),
        pytest.param("\ude42\ud83d", "\ude42\ud83d", id="wrong-way-round"),
        pytest.param("\ud83d\ud83d\ude42", "\ud83d🙂", id="lone-then-pair"),
    ],
)
def test_join_surrogates(text: str, expected: str) -> None:
    assert join_surrogates(text) == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(None, (None, None, None), id="null"),
        pytest.param([], (None, None, None), id="no-object"),
        pytest.param({}, (None, None, None), id="empty"),
        pytest.param({"prompt_tokens": 9, "completion_tokens": 2}, (9, 2, None), id="plain"),
        pytest.param({"prompt_tokens": None, "completion_tokens": None}, (None, None, None), id="null-members"),
        pytest.param({"prompt_tokens": 9, "prompt_tokens_details": None}, (9, None, None), id="null-details"),
        pytest.param(
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, (9, None, 4), id="cached-openai"
        ),
        pytest.param(
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}, (9, None, 0), id="cached-zero"
        ),
        pytest.param({"prompt_tokens": 9, "prompt_cache_hit_tokens": 5}, (9, None, 5), id="cached-deepseek"),
        pytest.param({"prompt_tokens": 9, "cached_tokens": 6}, (9, None, 6), id="cached-moonshot"),
        pytest.param(
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": None}, "cached_tokens": 6},
            (9, None, 6),
            id="cached-second",
        ),
        pytest.param({"prompt_tokens": 9, "cached_tokens": 9}, (9, None, 9), id="cached-all"),
        pytest.param({"prompt_tokens": 9, "cached_tokens": 10}, (9, None, None), id="cached-more-than-all"),
        pytest.param({"cached_tokens": 6}, (None, None, None), id="cached-of-unknown"),
        pytest.param({"prompt_tokens": 10**400, "completion_tokens": 10**12 + 1}, (None, None, None), id="absurd"),
        pytest.param({"prompt_tokens": 10**12, "cached_tokens": 10**400}, (10**12, None, None), id="cached-absurd"),
        pytest.param({"prompt_tokens": float("nan"), "completion_tokens": float("inf")}, (None, None, None), id="nan"),
        pytest.param({"prompt_tokens": -1, "completion_tokens": "3"}, (None, None, None), id="junk"),
        pytest.param({"prompt_tokens": True, "completion_tokens": 2.5}, (None, None, None), id="other-types"),
    ],
)
def test_token_counts(usage: object, expected: tuple[int | None, int | None, int | None]) -> None:
    assert token_counts(usage) == expected


def outcome_of(outcome: Reply | Failure) -> object:
    """What tables compare: the text of a reply, the kind of a failure."""
    return outcome.text if isinstance(outcome, Reply) else {"failed": outcome.kind}


RETRY, RECORD, STOP, OVERFLOW = ({"failed": kind} for kind in ("retry", "record", "stop", "overflow"))


def choices(*given: object) -> dict[str, Any]:
    return {"choices": list(given)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(completion("hello"), "hello", id="plain"),
        pytest.param([completion("hello")], "hello", id="in-a-list"),
        pytest.param(completion(""), "", id="empty-answer"),
        pytest.param(completion(None), "", id="content-null"),
        pytest.param(completion(None, reasoning_content="I think"), "", id="reasoning-is-no-answer"),
        pytest.param(completion([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "ab", id="parts"),
        pytest.param(choices({"message": {"content": "a"}}), "a", id="no-finish-reason"),
        pytest.param(choices({"message": {"content": "a"}, "finish_reason": ""}), "a", id="finish-reason-empty"),
        pytest.param(completion("a", "length"), "a", id="length"),
        pytest.param(choices({"message": {}, "finish_reason": "stop"}), "", id="message-without-content"),
        pytest.param({}, RETRY, id="empty-object"),
        pytest.param([], RETRY, id="empty-list"),
        pytest.param("text", RETRY, id="a-string"),
        pytest.param(choices(), RETRY, id="no-choices"),
        pytest.param({"choices": None}, RETRY, id="choices-null"),
        pytest.param({"choices": {"0": {}}}, RETRY, id="choices-object"),
        pytest.param(choices(None), RETRY, id="choice-null"),
        pytest.param(choices({"message": None}), RETRY, id="message-null"),
        pytest.param(choices({"finish_reason": "stop"}), RETRY, id="message-absent"),
        pytest.param(choices({"message": "text"}), RETRY, id="message-text"),
        pytest.param(completion("a", "error"), RETRY, id="finish-error"),
        pytest.param(completion("a", "insufficient_system_resource"), RETRY, id="finish-no-resource"),
        pytest.param(completion("a", "abort"), RETRY, id="finish-abort"),
        *(
            pytest.param(completion("half", reason), RETRY, id=f"finish-{reason}")
            for reason in "network_error cancelled canceled failed server_error timeout timed_out Aborted".split()
        ),
        *(pytest.param(completion("a", reason), "a", id=f"finish-{reason}") for reason in ("null", "None", "eos")),
        pytest.param(completion(None, "content_filter"), RECORD, id="finish-content-filter"),
        pytest.param(completion("half", "content_filter: SAFETY"), RECORD, id="finish-content-filter-of-google"),
        pytest.param(completion("half", "sensitive"), RECORD, id="finish-sensitive"),
        pytest.param({"error": {"code": 502, "message": "up"}}, RETRY, id="error-502"),
        pytest.param({"error": {"code": "502", "message": "up"}}, RETRY, id="error-502-as-text"),
        pytest.param({"error": {"code": 524}, "choices": None}, RETRY, id="error-524-choices-null"),
        pytest.param({"error": {"code": 429}, **completion("half")}, RETRY, id="error-429-beside-an-answer"),
        pytest.param({"error": {"code": None, "message": ""}, **completion("a")}, "a", id="empty-error-beside"),
        pytest.param({"error": None, **completion("a")}, "a", id="null-error-beside"),
        pytest.param({"error": {}, "choices": []}, RETRY, id="empty-error-no-choices"),
        pytest.param(choices({"error": {"code": 502}, "message": {"content": ""}}), RETRY, id="error-in-choice"),
        pytest.param({"error": {"code": 403, "message": "no"}}, RECORD, id="error-403"),
        pytest.param({"error": {"code": 400, "message": "no"}}, RECORD, id="error-400"),
        pytest.param({"error": {"code": 401, "message": "no"}}, STOP, id="error-401"),
        pytest.param({"error": {"code": 404, "message": "no"}}, STOP, id="error-404"),
        pytest.param({"error": {"code": 0, "message": "upstream"}}, RETRY, id="error-code-zero"),
        pytest.param({"error": {"type": "overloaded_error", "message": "Overloaded"}}, RETRY, id="error-overloaded"),
        pytest.param({"error": "Unexpected endpoint or method"}, STOP, id="error-wrong-path"),
        pytest.param({"error": "Unexpected endpoint or method. (POST /v2)"}, STOP, id="error-wrong-path-lm-studio"),
        pytest.param({"error": "upstream went away"}, RETRY, id="error-text"),
        pytest.param({"error": True}, RETRY, id="error-true"),
        pytest.param({"error": "insufficient_quota"}, STOP, id="error-quota-as-text"),
        pytest.param({"error": {"code": "insufficient_quota"}}, STOP, id="error-quota"),
        pytest.param({"error": {"message": "maximum context length is 8 tokens"}}, OVERFLOW, id="error-overflow"),
        pytest.param({"error": {"message": "blocked by our content policy"}}, RECORD, id="error-content-filter"),
        pytest.param({"error": {"message": "m"}, "status": 400}, RECORD, id="code-beside-the-error"),
        pytest.param({"object": "error", "message": "prompt is too long", "code": 400}, OVERFLOW, id="object-error"),
        pytest.param({"detail": "Not Found"}, STOP, id="detail-not-found"),
        pytest.param({"message": "no Route matched with those values"}, STOP, id="message-wrong-path"),
        pytest.param({"message": "try again"}, RETRY, id="message-only"),
        pytest.param({"code": 401, "msg": "token expired"}, STOP, id="bare-401"),
        pytest.param({"code": "401", "msg": "token expired", "choices": None}, STOP, id="bare-401-as-text"),
        pytest.param({"code": 401, "message": "token expired", "choices": []}, STOP, id="bare-401-message"),
        pytest.param({"error_code": 401, "error_msg": "token expired"}, STOP, id="bare-401-baidu"),
        pytest.param({"code": 500, "msg": "busy", "success": False}, RETRY, id="bare-500"),
        pytest.param({"code": 403, "msg": "no"}, RECORD, id="bare-403"),
        pytest.param({"code": 400, "msg": "prompt is too long"}, OVERFLOW, id="bare-overflow"),
        pytest.param({"code": 401, "msg": "m", **completion("a")}, "a", id="bare-code-beside-an-answer"),
        pytest.param(
            {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}, "choices": None},
            STOP,
            id="minimax-quota",
        ),
        pytest.param(
            {"base_resp": {"status_code": 0, "status_msg": "success"}, **completion("a")}, "a", id="minimax-answer"
        ),
        pytest.param([{"error": {"code": 503, "status": "UNAVAILABLE"}}], RETRY, id="google-in-a-list"),
        pytest.param({"error": {"status": "INVALID_ARGUMENT", "message": "m"}}, RECORD, id="google-status-name"),
    ],
)
def test_read_completion(body: object, expected: object) -> None:
    assert outcome_of(read_completion(body)) == expected


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        pytest.param({"code": 401, "msg": "token expired"}, "error 401 inside a reply: token expired", id="bare-code"),
        pytest.param({"error_code": 336501, "error_msg": "Rate limit"}, "inside a reply: Rate limit", id="baidu"),
        pytest.param(
            {"base_resp": {"status_code": 1004, "status_msg": "login fail"}, "choices": None},
            "login fail",
            id="minimax",
        ),
        pytest.param({"success": False, "errors": [{"message": "no route"}]}, "no choices: {", id="unknown-dialect"),
    ],
)
def test_what_a_body_without_an_answer_says_is_shown(body: object, shown: str) -> None:
    outcome = read_completion(body)
    assert isinstance(outcome, Failure)
    assert shown in outcome.text


def test_reads_everything_of_a_completion() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    assert read_completion({**completion("a", "length"), "usage": usage}) == Reply("a", "length", 9, 2, 4)


def test_wait_of_the_headers_belongs_to_an_error_in_the_body() -> None:
    limited = read_completion({"error": {"code": 429, "message": "slow"}}, wait=7.0)
    assert isinstance(limited, Failure)
    assert (limited.wait, limited.free) == (7.0, True)


# --- Streams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(b"data: a\n\ndata: b\n\n", [b"a", b"b"], id="line-feeds"),
        pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"], id="crlf"),
        pytest.param(b"data: a\r\rdata: b\r\r", [b"a", b"b"], id="carriage-returns"),
        pytest.param(b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"], id="mixed"),
        pytest.param(b"data:a\n\ndata:  b\n\n", [b"a", b" b"], id="one-blank-belongs-to-the-field"),
        pytest.param(b": ping\n\ndata: a\n\n:\n\n", [b"a"], id="comments"),
        pytest.param(b"event: x\nid: 7\nretry: 3\ndata: a\n\n", [b"a"], id="other-fields"),
        pytest.param(b'data: {"a":\ndata: 1}\n\n', [b'{"a":\n1}'], id="json-over-two-lines"),
        pytest.param(b'data: {"a":\r\ndata: 1}\r\n\r\n', [b'{"a":\n1}'], id="json-over-two-crlf-lines"),
        pytest.param(b'data: {"a":1}\ndata: {"b":2}\n\n', [b'{"a":1}', b'{"b":2}'], id="no-blank-line-between"),
        pytest.param(b"data: a\n\n\n\ndata: b\n\n", [b"a", b"b"], id="more-blank-lines"),
        pytest.param(b"data: [DONE]\n", [b"[DONE]"], id="done-at-once"),
        pytest.param(b'data: {"a":1}\ndata:[DONE]\n', [b'{"a":1}', b"[DONE]"], id="done-takes-the-rest-along"),
        pytest.param("data: 漢\u2028\x85🙂\n\n".encode(), ["漢\u2028\x85🙂".encode()], id="unicode-line-ends-are-text"),
        pytest.param(b"data: a", [b"a"], id="end-without-line-end"),
        pytest.param(b"data: a\r", [b"a"], id="end-after-carriage-return"),
    ],
)
def test_event_lines_however_the_bytes_are_split(text: bytes, expected: list[bytes]) -> None:
    def events(*parts: bytes) -> list[bytes]:
        lines = EventLines()
        return [data for part in (*parts, b"\n\n") for data in lines.feed(part)]

    assert events(text) == expected
    assert events(*(bytes([byte]) for byte in text)) == expected
    assert events(*itertools.chain.from_iterable((bytes([byte]), b"") for byte in text)) == expected
    for first, second in itertools.combinations(range(len(text) + 1), 2):
        assert events(text[:first], text[first:second], text[second:]) == expected, (first, second)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(b'event: error\ndata: {"code":"X1"}\n\n', [b'{"error":{"code":"X1"}}'], id="by-its-name"),
        pytest.param(b'error: {"code":500}\n\n', [b'{"error":{"code":500}}'], id="in-a-field-of-its-own"),
        pytest.param(b'event: message\ndata: {"code":"X1"}\n\n', [b'{"code":"X1"}'], id="another-name"),
        pytest.param(b"event: error\ndata: {}\n\ndata: {}\n\n", [b'{"error":{}}', b"{}"], id="the-next-one-is-none"),
        pytest.param(b"event: ping\ndata: alive\n\ndata: {}\n\n", [b"{}"], id="heartbeat"),
        pytest.param(b"event: ping\n\ndata: {}\n\n", [b"{}"], id="heartbeat-without-data"),
        pytest.param(b"event: error\n\ndata: {}\n\n", [b"{}"], id="error-without-data"),
    ],
)
def test_event_names(text: bytes, expected: list[bytes]) -> None:
    assert list(EventLines().feed(text)) == expected


def test_event_lines_gives_an_event_when_its_end_has_come() -> None:
    lines = EventLines()
    assert [list(lines.feed(part)) for part in (b"data: a\r\r", b"\ndata: b\n", b"\n")] == [[b"a"], [], [b"b"]]


def streamed(*events: object) -> Stream:
    stream = Stream()
    for event in events:
        stream.take(event if isinstance(event, bytes) else encode_json(event))
    return stream


USAGE = {"prompt_tokens": 9, "completion_tokens": 2}
END = chunk(finish_reason="stop")
DONE = b"[DONE]"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([chunk("", role="assistant"), chunk("a"), chunk("b"), END, DONE], "ab", id="plain"),
        pytest.param([chunk("a"), END], "a", id="finish-without-done"),
        pytest.param([chunk("a"), DONE], "a", id="done-without-finish"),
        pytest.param([chunk("a", "stop"), DONE], "a", id="text-in-the-finishing-chunk"),
        pytest.param([chunk("a"), chunk(finish_reason=""), DONE], "a", id="finish-reason-empty"),
        pytest.param([{"choices": []}, chunk("a"), {"choices": [], "usage": USAGE}, END], "a", id="choices-empty"),
        pytest.param([{"choices": None}, {}, [], b"null", b"7", chunk("a"), END], "a", id="choices-absent"),
        pytest.param([choices({"delta": None}), chunk("a"), END], "a", id="delta-null"),
        pytest.param([choices({"delta": {"content": None}}), chunk("a"), END], "a", id="content-null"),
        pytest.param([b"", b"  ", chunk("a"), END], "a", id="empty-data"),
        pytest.param([chunk(reasoning_content="hm"), END, DONE], "", id="reasoning-is-no-answer"),
        pytest.param([chunk([{"type": "text", "text": "a"}]), chunk(["b"]), END], "ab", id="parts"),
        pytest.param([chunk("a"), choices({"index": 1, "delta": {"content": "X"}}), END], "a", id="second-choice"),
        pytest.param([completion("whole"), DONE], "whole", id="message-instead-of-delta"),
        pytest.param(
            [chunk("ab"), choices({"delta": {}, "message": {"content": "ab"}, "finish_reason": "stop"})],
            "ab",
            id="message-beside-the-deltas",
        ),
        pytest.param([chunk("\ud83d"), chunk("\ude42"), END], "🙂", id="surrogates-over-two-chunks"),
        pytest.param([chunk("a\ud83d"), END], "a\ud83d", id="lone-surrogate"),
        pytest.param([chunk("a"), END, DONE, chunk("X")], "a", id="nothing-after-done"),
        pytest.param([chunk("a"), END, {"error": {"code": 500}}], "a", id="error-after-the-finish"),
        pytest.param([chunk("a"), END, b"ping", b"[done]"], "a", id="text-after-the-finish"),
        pytest.param([chunk("a"), END, choices({"delta": "odd"}), DONE], "a", id="odd-piece-after-the-finish"),
        pytest.param([chunk("a"), {**choices(), "x_groq": {"error": "stopped"}}, DONE], RETRY, id="groq-error"),
        pytest.param([chunk("a"), {"error": None, **chunk("b")}, END], "ab", id="error-null"),
        pytest.param([chunk("a"), {"error": {"code": None}, **chunk("b")}, END], "ab", id="error-without-content"),
        pytest.param([], RETRY, id="nothing"),
        pytest.param([DONE], RETRY, id="only-done"),
        pytest.param([chunk("a"), chunk("b")], RETRY, id="no-finish-no-done"),
        pytest.param([{"choices": []}, DONE], RETRY, id="never-a-choice"),
        pytest.param([chunk("a"), {"error": {"message": "upstream"}}], RETRY, id="error-event"),
        pytest.param([chunk("a"), {"error": {"code": 502}, **chunk("", "error")}], RETRY, id="error-with-finish"),
        pytest.param([chunk("a"), {"error": {"code": 400, "message": "bad"}}], RECORD, id="error-400"),
        pytest.param([{"error": {"code": "insufficient_quota"}}], STOP, id="error-quota"),
        pytest.param([{"error": {"message": "context_length_exceeded"}}], OVERFLOW, id="error-overflow"),
        pytest.param([chunk("a"), {"message": "failed", "code": 400}], RECORD, id="event-error-without-error-key"),
        pytest.param([chunk("a"), {"object": "error", "code": 500}], RETRY, id="object-error"),
        pytest.param([choices({"error": {"code": 400}, "delta": {}})], RECORD, id="error-in-the-choice"),
        pytest.param([chunk("a"), b"{cut", END], RETRY, id="not-json"),
        pytest.param([chunk("a"), chunk(finish_reason="error")], RETRY, id="finish-error"),
        pytest.param([chunk("a"), chunk(finish_reason="abort")], RETRY, id="finish-abort"),
        pytest.param([chunk("a"), chunk(finish_reason="network_error"), DONE], RETRY, id="finish-network-error"),
        pytest.param([chunk("a", "error"), chunk("b", "null"), DONE], RETRY, id="finish-error-then-null"),
        *(
            pytest.param([chunk("a", word), chunk("b", word)], RETRY, id=f"unfinished-{word}")
            for word in ("null", "None", " NULL ", "none", "undefined")
        ),
        pytest.param([chunk("a", "null"), chunk("b", "null"), END], "ab", id="finish-after-null"),
        pytest.param([chunk("a", "null"), DONE], "a", id="done-after-null"),
        pytest.param([chunk("a", "null"), {"error": {"code": 502}}, DONE], RETRY, id="error-after-null"),
        pytest.param([chunk({"text": "a"}), END, DONE], RETRY, id="content-an-object"),
        pytest.param([chunk("a"), chunk(5), END, DONE], RETRY, id="content-a-number"),
        pytest.param([chunk([{"type": "thinking", "text": "hm"}]), chunk("a"), END], "a", id="part-of-thinking"),
        pytest.param([chunk("a"), {"code": 401, "msg": "expired"}], STOP, id="bare-401"),
        pytest.param([chunk("a"), {"choices": [], "code": 0, "msg": "ok"}, END], "a", id="bare-code-zero"),
        pytest.param(
            [chunk("a"), {"choices": [], "base_resp": {"status_code": 0, "status_msg": "success"}}, END],
            "a",
            id="minimax-success",
        ),
        pytest.param([chunk(finish_reason="content_filter")], RECORD, id="finish-content-filter"),
        pytest.param([chunk("a"), {"reason": "upstream died"}, DONE], RETRY, id="unknown-event-and-no-finish"),
        pytest.param([chunk("a"), b'"upstream died"', DONE], RETRY, id="a-text-and-no-finish"),
        pytest.param([chunk("a"), {"reason": "odd"}, END, DONE], "a", id="unknown-event-and-a-finish"),
        pytest.param([chunk("a"), {"usage": USAGE}, DONE], "a", id="usage-without-choices"),
        pytest.param([chunk("a"), {"error": None, "usage": USAGE}, DONE], "a", id="no-error-in-the-usage"),
        pytest.param(
            [chunk("a"), END, choices({"delta": {}, "error": {"code": 500}}), DONE], "a", id="choice-after-the-finish"
        ),
        pytest.param([chunk("a"), choices({"finish_reason": {"type": "error"}})], RETRY, id="finish-an-object"),
        pytest.param([{"type": "ping", "message": "alive"}, chunk("a"), END], "a", id="ping-with-a-message"),
        *(
            pytest.param([chunk("a"), event, DONE], "a", id=f"{name}-and-no-finish")
            for name, event in (
                ("ping", {"type": "ping"}),
                ("empty", {}),
                ("timings", {"timings": {"ms": 1}}),
                ("metadata", {"id": "x", "object": "chat.completion.chunk"}),
                ("text", b'"keepalive"'),
            )
        ),
        pytest.param([{**chunk("a"), "error": {"code": 200, "message": "OK"}}, END], "a", id="error-that-is-none"),
    ],
)
def test_stream(events: list[object], expected: object) -> None:
    assert outcome_of(streamed(*events).result()) == expected


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([chunk("a"), END, {"choices": [], "usage": USAGE}], id="last-chunk"),
        pytest.param([{**chunk("a"), "usage": USAGE}, {**END, "usage": None}], id="null-later"),
        pytest.param([chunk("a"), choices({"delta": {}, "finish_reason": "stop", "usage": USAGE})], id="in-the-choice"),
        pytest.param(
            [{**chunk("a"), "usage": {"prompt_tokens": 9, "completion_tokens": 1}}, {**END, "usage": USAGE}],
            id="every-chunk-counts-on",
        ),
    ],
)
def test_stream_usage(events: list[object]) -> None:
    assert streamed(*events).result() == Reply("a", "stop", 9, 2, None)


@pytest.mark.parametrize(
    ("event", "begun"),
    [
        pytest.param(chunk("", role="assistant"), False, id="role"),
        pytest.param(choices({"delta": {"content": None}}), False, id="content-null"),
        pytest.param({"choices": [], "usage": USAGE}, False, id="usage"),
        pytest.param(choices({"index": 1, "delta": {"content": "a"}}), False, id="second-choice"),
        pytest.param(chunk("a"), True, id="content"),
        pytest.param(chunk(reasoning_content="hm"), True, id="reasoning-content"),
        pytest.param(chunk(reasoning="hm"), True, id="reasoning"),
    ],
)
def test_first_piece(event: object, begun: bool) -> None:
    assert streamed(event).first_piece is begun


# --- What a failure means -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "raw_body", "expected"),
    [
        pytest.param({"error": {"message": "m", "code": "c"}}, b"", ErrorBody("m", "c", None), id="openai"),
        pytest.param(
            {"error": {"message": "m", "type": "invalid_request_error", "param": "stream", "code": None}},
            b"",
            ErrorBody("m", "invalid_request_error stream", 400),
            id="openai-type",
        ),
        pytest.param({"error": "m"}, b"", ErrorBody("m", "", None), id="text"),
        pytest.param({"error": "m", "code": 502}, b"", ErrorBody("m", "", 502), id="code-beside-text"),
        pytest.param({"error": {"message": "m"}, "status": 429}, b"", ErrorBody("m", "", 429), id="status-beside"),
        pytest.param({"error": {"message": "m"}, "status_code": 503}, b"", ErrorBody("m", "", 503), id="status-code"),
        pytest.param({"detail": "m"}, b"", ErrorBody("m", "", None), id="fastapi"),
        pytest.param({"detail": {"error": {"message": "m", "code": 400}}}, b"", ErrorBody("m", "", 400), id="nested"),
        pytest.param(
            {"detail": [{"loc": ["body", "top_p"], "msg": "too big"}, {"msg": "and more"}]},
            b"",
            ErrorBody("['body', 'top_p'] too big; and more", "", None),
            id="fastapi-list",
        ),
        pytest.param({"message": "m", "code": 40301}, b"", ErrorBody("m", "", None), id="bare-message-odd-code"),
        pytest.param(
            {"object": "error", "message": "m", "type": "BadRequestError", "code": 400},
            b"",
            ErrorBody("m", "BadRequestError", 400),
            id="vllm",
        ),
        pytest.param(
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            b"",
            ErrorBody("Overloaded", "overloaded_error error", 529),
            id="anthropic",
        ),
        pytest.param(
            [{"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}],
            b"",
            ErrorBody("m", "RESOURCE_EXHAUSTED", 429),
            id="google-in-a-list",
        ),
        pytest.param(
            {"error": {"status": "UNAUTHENTICATED", "message": "m"}},
            b"",
            ErrorBody("m", "UNAUTHENTICATED", 401),
            id="google-name-only",
        ),
        pytest.param(
            {"error": {"code": 400, "message": "m", "n_prompt_tokens": 9000, "n_ctx": 8192}},
            b"",
            ErrorBody('m {"n_prompt_tokens": 9000, "n_ctx": 8192}', "", 400),
            id="llama-cpp",
        ),
        pytest.param(
            {"error": {"message": "Bad gateway: <html><body>\n<h1>502</h1></body></html>"}},
            b"",
            ErrorBody("Bad gateway: an HTML page", "", None),
            id="page-inside-a-message",
        ),
        pytest.param({"error": {"message": {"deep": 1}}}, b"", ErrorBody('{"deep": 1}', "", None), id="object-message"),
        pytest.param({"reason": "m"}, b"", ErrorBody('{"reason": "m"}', "", None), id="unknown-dialect"),
        pytest.param({"error": {}}, b"", ErrorBody('{"error": {}}', "", None), id="empty-error"),
        pytest.param(None, b"", ErrorBody("", "", None), id="empty-body"),
        pytest.param(None, b"plain\n  text", ErrorBody("plain text", "", None), id="plain-text"),
        pytest.param(None, b"\xff\xfe", ErrorBody("��", "", None), id="not-utf-8"),
        pytest.param(None, b"\n <!DOCTYPE html><html>", ErrorBody("an HTML page", "", None), id="page"),
        pytest.param(None, b"\xef\xbb\xbf<html>", ErrorBody("an HTML page", "", None), id="page-with-bom"),
    ],
)
def test_read_error(body: object, raw_body: bytes, expected: ErrorBody) -> None:
    assert read_error(body, raw_body) == expected


def error(message: str = "m", code: str = "") -> ErrorBody:
    return ErrorBody(message, code, None)


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        *(pytest.param(code, error(), "retry", id=f"{code}") for code in (408, 409, 425, 429, 500, 502, 503, 504)),
        *(pytest.param(code, error(), "retry", id=f"{code}") for code in (501, 520, 522, 524, 529, 598)),
        *(pytest.param(code, error(), "record", id=f"{code}") for code in (400, 403, 410, 413, 414, 422, 451)),
        *(pytest.param(code, error(), "stop", id=f"{code}") for code in (301, 302, 303, 307, 308)),
        *(pytest.param(code, error(), "stop", id=f"{code}") for code in (401, 402, 404, 405, 407)),
        pytest.param(429, error(code="insufficient_quota"), "stop", id="429-quota"),
        pytest.param(429, error(code="exceeded_current_quota_error"), "stop", id="429-quota-moonshot"),
        pytest.param(
            429, error("You exceeded your current quota, please check your plan"), "stop", id="429-quota-said"
        ),
        pytest.param(429, error("Insufficient Balance"), "stop", id="429-balance"),
        pytest.param(429, error("insufficient_quota"), "stop", id="429-quota-as-text"),
        pytest.param(403, error(code="insufficient_quota"), "stop", id="403-quota"),
        pytest.param(429, error("Rate limit reached, limit 3 / min", "rate_limit_exceeded"), "retry", id="429-rate"),
        pytest.param(429, error("Resource has been exhausted (e.g. check quota)."), "retry", id="429-google"),
        pytest.param(429, error("Too many tokens per minute"), "retry", id="429-tokens-a-minute"),
        pytest.param(400, error(code="context_length_exceeded"), "overflow", id="400-overflow"),
        pytest.param(413, error("prompt is too long: 205616 tokens > 200000 maximum"), "overflow", id="413-overflow"),
        pytest.param(422, error("input tokens exceed the limit"), "overflow", id="422-overflow"),
        pytest.param(500, error("context_length_exceeded"), "overflow", id="500-overflow"),
        pytest.param(503, error("Loading model"), "retry", id="503-loading"),
        pytest.param(400, error("content management policy"), "record", id="400-content-filter"),
        pytest.param(400, error("Unrecognized argument: stream_options"), "stop", id="400-stream-options"),
        pytest.param(400, error("not for this model", "unsupported stream"), "stop", id="400-stream-as-param"),
        pytest.param(422, error("['body', 'stream_options'] extra input"), "stop", id="422-stream-options"),
        pytest.param(400, error("upstream says no"), "record", id="400-upstream-is-not-stream"),
        pytest.param(400, error("max_tokens is too large"), "record", id="400-other"),
        pytest.param(403, error("the stream is closed to you"), "record", id="403-names-stream"),
    ],
)
def test_meaning(code: int, body: ErrorBody, expected: str) -> None:
    failure = meaning(code, body)
    assert failure.kind == expected
    assert failure.text.startswith(f"HTTP {code}")
    assert (failure.way_out != "") == (expected == "stop")


@pytest.mark.parametrize(
    ("code", "body", "wait", "free"),
    [
        pytest.param(429, error(), 2.0, True, id="429-names-a-wait"),
        pytest.param(429, error(), None, False, id="429-without"),
        pytest.param(503, error(), 2.0, False, id="503-names-a-wait"),
        pytest.param(408, error(), 2.0, False, id="408-names-a-wait"),
        pytest.param(429, error("You exceeded your current quota"), 2.0, True, id="429-for-a-while-only"),
    ],
)
def test_waits_of_failures(code: int, body: ErrorBody, wait: float | None, free: bool) -> None:
    failure = meaning(code, body, wait)
    assert (failure.kind, failure.wait, failure.free) == ("retry", wait, free)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(
            "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens (131000 in the "
            "messages, 9000 in the completion).",
            (140000, 131072),
            id="openai",
        ),
        pytest.param("prompt is too long: 205616 tokens > 200000 maximum", (205616, 200000), id="anthropic"),
        pytest.param('too big {"n_prompt_tokens": 9000, "n_ctx": 8192}', (9000, 8192), id="llama-cpp"),
        pytest.param("Requested 1,100,000 tokens, limit 1,048,576", (1100000, 1048576), id="thousands"),
        pytest.param("input length 9000 exceeds the maximum of 8192", (9000, 8192), id="sglang"),
        pytest.param("context length exceeded: 9000 tokens, max 8192, max_tokens 4096", (9000, 8192), id="max-tokens"),
        pytest.param("max context of 8192, got 8500 + 700 = 9200", (9200, 8192), id="sum"),
        pytest.param(
            "This model's maximum context length is 9000 tokens. However, you requested 512 output tokens and your prompt "
            "contains at least 8489 input tokens, for a total of at least 9001 tokens.",
            None,
            id="at-least",
        ),
        pytest.param(
            "'max_tokens' or 'max_completion_tokens' is too large: 4000. This model's maximum context length is 9000 "
            "tokens and your request has 6035 input tokens (4000 > 9000 - 6035).",
            (6035, 5000),
            id="vllm-max-tokens",
        ),
        pytest.param(
            "max_tokens is too large: 9500. maximum context length is 9000 tokens (9500 > 9000 - 6035)",
            None,
            id="no-cut-helps",
        ),
        pytest.param(
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000", (188240, 178667), id="plus"
        ),
        pytest.param(
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            (1200000, 1048576),
            id="google",
        ),
        pytest.param("exceeded model token limit: 262144 (requested: 300000)", (300000, 262144), id="moonshot"),
        pytest.param(
            "Prompt contains 140000 tokens, too large for model with 131072 maximum context length",
            (140000, 131072),
            id="mistral",
        ),
        pytest.param(
            "number of tokens in the prompt cannot exceed 128000 - received 140000.", (140000, 128000), id="cohere"
        ),
        pytest.param(
            'the request exceeds the available context size {"n_prompt_tokens": 9000, "n_ctx": 8192}',
            (9000, 8192),
            id="llama-cpp-whole",
        ),
        pytest.param("input length 9000 > max 8192", (9000, 8192), id="greater"),
        pytest.param("prompt has 9000 tokens (8192-token limit)", (9000, 8192), id="hyphen"),
        pytest.param("the prompt of 9000 tokens exceeded the max length by 808 tokens", None, id="by-how-much"),
        pytest.param("you passed 9000 tokens in 12000 bytes of at most 8192 tokens", (9000, 8192), id="other-unit"),
        pytest.param("prompt of 9000 tokens is too long; at most 100 images", None, id="limit-of-something-else"),
        pytest.param("too long: 9000 tokens; at most 4096 output tokens", None, id="limit-of-the-answer"),
        pytest.param("You have 500000 tokens left. Limit 8192 tokens, you requested 9000", None, id="two-readings"),
        pytest.param("maximum is 131 072 tokens, requested 140 000 tokens", None, id="blanks-inside"),
        *(
            pytest.param(f"maximum context length is 9000 tokens, you requested 10035 tokens{suffix}", (10035, 9000))
            for suffix in (
                " (request id: 20251130103609123456789AbCdEfGh)",
                " (request id: 2025113010360912345)",
                " (request id: 140000)",
                " [trace 1764498969]",
                " [trace 12345678-90123-456]",
                " on 20251130",
                ". Your tier allows 200000 tokens per minute.",
                ". Your tier allows 200000 tokens.",
                ". Limit 30000 TPM, 9500 used",
                ". You may send 9900 tokens/min",
                "; retry in 9500 ms",
            )
        ),
        pytest.param("the prompt is too long", None, id="no-figures"),
        pytest.param("maximum context length is 8192 tokens", None, id="one-figure"),
        pytest.param("you sent 5000 tokens of at most 8192", None, id="not-over"),
    ],
)
def test_stated_excess(message: str, expected: tuple[int, int] | None) -> None:
    assert stated_excess(message) == expected


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({}, None, id="absent"),
        pytest.param({"retry-after": "2"}, 2.0, id="seconds"),
        pytest.param({"retry-after": " 2.5 "}, 2.5, id="fraction"),
        pytest.param({"retry-after": "9999"}, 9999.0, id="long"),
        pytest.param({"retry-after": "99999999999"}, 99999999999.0, id="longer"),
        pytest.param({"retry-after": "0"}, None, id="zero"),
        pytest.param({"retry-after": "-5"}, None, id="negative"),
        pytest.param({"retry-after": "soon"}, None, id="junk"),
        pytest.param({"retry-after": ""}, None, id="empty"),
        pytest.param({"retry-after": "nan"}, None, id="nan"),
        pytest.param({"retry-after": "inf"}, None, id="inf"),
        pytest.param({"retry-after": "٣"}, None, id="other-digits"),
        pytest.param({"retry-after": formatdate(NOW + 3, usegmt=True)}, 3.0, id="date"),
        pytest.param({"retry-after": formatdate(NOW - 3, usegmt=True)}, None, id="date-past"),
        pytest.param({"retry-after": time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime(NOW + 3))}, 3.0, id="asctime"),
        pytest.param({"retry-after": time.strftime("%A, %d-%b-%y %H:%M:%S GMT", time.gmtime(NOW + 3))}, 3.0, id="850"),
        pytest.param({"retry-after": "Fri, 99 Foo 2027 08:00:00 GMT"}, None, id="date-junk"),
        pytest.param({"retry-after-ms": "1500"}, 1.5, id="milliseconds"),
        pytest.param({"llm_provider-retry-after": "7"}, 7.0, id="provider"),
        pytest.param({"retry-after": "2", "retry-after-ms": "1500"}, 2.0, id="the-longest"),
        pytest.param({"retry-after": "2, 2"}, 2.0, id="twice"),
        pytest.param({"retry-after": "2,5"}, 5.0, id="two-that-differ"),
        pytest.param({"retry-after": "2, soon"}, None, id="half-junk"),
        pytest.param({"retry-after-ms": "1500, 1500"}, 1.5, id="milliseconds-twice"),
        pytest.param({"retry-after": "soon", "retry-after-ms": "1500"}, 1.5, id="junk-beside-a-good-one"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_named_wait(
    headers: Mapping[str, str], expected: float | None, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert named_wait(headers, NOW) == expected
    finally:
        monkeypatch.undo()
        time.tzset()


# --- Over HTTP ------------------------------------------------------------------------------------------------------

Serve = Callable[..., ScriptedEndpoint]
BODY = encode_body(
    encode_json({"model": "m", "stream": True, "stream_options": {"include_usage": True}}),
    [],
    encode_json({"role": "user", "content": "q"}),
)


def client(base_url: str, **changes: Any) -> Endpoint:
    settings = {"timeout": LONG, "connections": 4, "headers": {}, "flags": Flags(), "streams": True, **changes}
    return Endpoint(base_url, settings.pop("api_key", "secret-key"), **settings)


def ask(base_url: str, body: list[bytes] = BODY, times: int = 1, **changes: Any) -> Reply | Failure:
    """The outcome of the last of so many requests on one client."""

    async def asked() -> Reply | Failure:
        endpoint = client(base_url, **changes)
        try:
            outcomes = [await endpoint.ask(body) for _ in range(times)]
        finally:
            await endpoint.close()
        return outcomes[-1]

    return asyncio.run(asked())


def answer(endpoint: Serve, answered: Answer, **changes: Any) -> Reply | Failure:
    return ask(endpoint(lambda request: answered).base_url, **changes)


ODD_TEXTS = {
    "ascii": "plain",
    "emoji": "🙂👩‍👩‍👧‍👦 🇩🇪",
    "cjk": "漢字かな交じり文。한국어",
    "quotes": "\"'`\\ \\u0041 </s> {} %s",
    "control": "".join(map(chr, range(32))) + "\x7f\x80\x85\x9f",
    "separators": "a\u2028b\u2029c\xa0d\ufeffe",
    "noncharacters": "\ufffe\uffff\U0010ffff\u0000",
    "empty": "",
}


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())
@pytest.mark.parametrize("history", [0, 3])
def test_body_means_what_the_typed_call_sends(endpoint: Serve, text: str, history: int) -> None:
    import openai

    server = endpoint(lambda request: say("yes"))
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n}{text}"} for n in range(history)]
    last = {"role": "user", "content": text}
    settings = {"model": "m", "temperature": 1.0, "top_p": 0.95, "max_tokens": 32768}
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    extra = {"thinking": {"type": "enabled", "note": text, "nothing": None}, "top_k": 40}

    async def typed() -> None:
        async with openai.AsyncOpenAI(api_key="k", base_url=server.base_url) as sdk:
            create: Any = sdk.chat.completions.create
            reply = await create(messages=[*messages, last], **settings, **streaming, extra_body=extra)
            await reply.close()

    ask(
        server.base_url,
        encode_body(
            encode_json(parameters({**settings, **streaming}, extra)),
            [encode_json(message) + b"," for message in messages],
            encode_json(last),
        ),
    )
    asyncio.run(typed())
    ours, theirs = server.requests
    assert ours.json() == theirs.json()
    assert (ours.method, ours.path) == (theirs.method, theirs.path)
    for name in ("content-type", "authorization", "accept"):
        assert ours.headers[name].replace("secret-key", "k") == theirs.headers[name]


def test_lone_surrogates_go_out_as_escapes(endpoint: Serve) -> None:
    server = endpoint(lambda request: say("yes"))
    ask(server.base_url, encode_body(b"{}", [], encode_json({"role": "user", "content": "a\ud83d"})))
    assert b'"a\\ud83d"' in server.requests[0].body


def test_length_is_stated_and_never_chunked(endpoint: Serve) -> None:
    server = endpoint(lambda request: say("yes"))
    shared = [b'{"role":"user","content":"' + b"x" * MIB + b'"},' for _ in range(3)]
    assert outcome_of(ask(server.base_url, encode_body(b"{}", shared, b"{}"))) == "yes"
    headers = server.requests[0].headers
    assert "transfer-encoding" not in headers
    assert int(headers["content-length"]) == len(server.requests[0].body) > 3 * MIB


def test_sdk_variables_never_reach_the_endpoint(endpoint: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORG_ID", "PROJECT_ID", "API_KEY", "ADMIN_KEY", "ORGANIZATION", "WEBHOOK_SECRET"):
        monkeypatch.setenv(f"OPENAI_{name}", f"leak-{name}")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/leak")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-custom: leak")
    server = endpoint(lambda request: say("yes"))
    assert outcome_of(ask(server.base_url)) == "yes"
    [request] = server.requests
    assert "leak" not in json.dumps(request.headers) + request.path + request.body.decode()
    assert not any(name.startswith(("openai-", "x-custom")) for name in request.headers)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({}, {"authorization": "Bearer secret-key"}, id="key"),
        pytest.param({"X-Team": "bench"}, {"authorization": "Bearer secret-key", "x-team": "bench"}, id="further"),
        pytest.param({"Authorization": "Basic eA=="}, {"authorization": "Basic eA=="}, id="another-authorization"),
        pytest.param({"User-Agent": "bench"}, {"user-agent": "bench"}, id="another-user-agent"),
        pytest.param({"X-Team": ""}, {"x-team": ""}, id="empty-value"),
    ],
)
def test_headers(endpoint: Serve, headers: dict[str, str], expected: dict[str, str]) -> None:
    server = endpoint(lambda request: say("yes"))
    ask(server.base_url, headers=headers)
    assert {name: server.requests[0].headers[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        pytest.param("/v1", "/v1/chat/completions", id="plain"),
        pytest.param("/openai/deployments/x", "/openai/deployments/x/chat/completions", id="deeper"),
        pytest.param("/v1?api-version=2026-01", "/v1/chat/completions?api-version=2026-01", id="query"),
        pytest.param("/v1?a=1&b=x%20y", "/v1/chat/completions?a=1&b=x%20y", id="query-of-two"),
        pytest.param("/v1?empty=", "/v1/chat/completions?empty=", id="query-without-value"),
        pytest.param("/v1/m%2Fn", "/v1/m%2Fn/chat/completions", id="escaped-slash"),
    ],
)
def test_path_and_query(endpoint: Serve, tail: str, expected: str) -> None:
    server = endpoint(lambda request: say("yes"))
    ask(server.base_url.removesuffix("/v1") + tail)
    assert server.requests[0].path.replace("+", "%20") == expected


def test_credentials_of_the_url_are_sent_and_never_shown(endpoint: Serve) -> None:
    server = endpoint(lambda request: status(404))
    outcome = ask(server.base_url.replace("://", "://user:pass-word@"))
    assert server.requests[0].headers["authorization"] == "Basic dXNlcjpwYXNzLXdvcmQ="
    assert isinstance(outcome, Failure)
    assert server.base_url in outcome.way_out
    assert "pass-word" not in outcome.text + outcome.way_out


def test_credentials_that_a_gateway_echoes_are_hidden(endpoint: Serve) -> None:
    def echo(request: Recorded) -> Answer:
        return status(400, {"error": {"message": f"bad request with {request.headers['authorization']}"}})

    url = normalise_base_url(endpoint(echo).base_url.replace("://", "://user:pass-word%21@"), "--base-url")
    outcome = ask(url)
    assert isinstance(outcome, Failure)
    assert outcome.text.startswith("HTTP 400: bad request with Basic [hidden]")


def test_connections_are_used_again(endpoint: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_endpoint, "DRAIN_SECONDS", LONG)  # a pause of this machine shall not close one
    server = endpoint(lambda request: say("yes") if request.number % 2 else status(503))
    ask(server.base_url, times=6)
    assert len({request.client for request in server.requests}) == 1


# Replies: what counts as an answer, whatever it comes in.

STREAM = [chunk("", role="assistant"), chunk("žluť"), chunk("oučký 漢🙂"), END, {"choices": [], "usage": USAGE}]
WHOLE = {**completion("žluťoučký 漢🙂"), "usage": USAGE}
ANSWER = Reply("žluťoučký 漢🙂", "stop", 9, 2, None)


def events_text(events: list[dict[str, Any]], end: str = "\n", field: str = "data: ", done: bool = True) -> bytes:
    datas = [json.dumps(event, ensure_ascii=False) for event in events] + (["[DONE]"] if done else [])
    return "".join(f"{field}{data}{end}{end}" for data in datas).encode()


def reply(data: bytes, content_type: str = "text/event-stream", **headers: str) -> Answer:
    return status(200, data, {name.replace("_", "-"): value for name, value in headers.items()}, content_type)


def bytewise(data: bytes) -> Answer:
    return pieces([bytes([byte]) for byte in data], pause=0.0, content_type="text/event-stream")


@pytest.mark.parametrize(
    "answered",
    [
        pytest.param(sse(STREAM), id="stream"),
        pytest.param(bytewise(events_text(STREAM)), id="stream-byte-by-byte"),
        pytest.param(bytewise(events_text(STREAM, "\r\n")), id="crlf-byte-by-byte"),
        pytest.param(reply(events_text(STREAM, "\r")), id="carriage-returns"),
        pytest.param(reply(events_text(STREAM, field="data:")), id="no-blank-after-data"),
        pytest.param(reply(events_text(STREAM, done=False)), id="no-done"),
        pytest.param(reply(events_text(STREAM)[:-2]), id="done-without-line-end"),
        pytest.param(reply(b"\xef\xbb\xbf" + events_text(STREAM)), id="stream-with-bom"),
        pytest.param(reply(b"\n\n: hello\n\n" + events_text(STREAM)), id="comment-first"),
        pytest.param(reply(b"event: message\nid: 1\n" + events_text(STREAM)), id="event-field-first"),
        pytest.param(reply(b"retry: 5\n" + events_text(STREAM)), id="retry-field-first"),
        pytest.param(reply(events_text(STREAM), "application/json"), id="stream-called-json"),
        pytest.param(sse([b":\n\n" * 9, *STREAM, b": " + b"x" * 200_000 + b"\n\n"]), id="long-comment"),
        pytest.param(sse([*STREAM[:-1], {**STREAM[-1], "padding": "x" * 200_000}]), id="long-line"),
        pytest.param(status(200, WHOLE), id="json"),
        pytest.param(reply(json.dumps(WHOLE).encode()), id="json-called-stream"),
        pytest.param(reply(json.dumps(WHOLE).encode(), "text/plain"), id="json-called-text"),
        pytest.param(reply(b"\xef\xbb\xbf" + json.dumps(WHOLE).encode()), id="json-with-bom"),
        pytest.param(reply(b"\n \n" + json.dumps(WHOLE, indent=2).encode()), id="json-after-blanks"),
        pytest.param(pieces([bytes([b]) for b in json.dumps(WHOLE).encode()], pause=0.0), id="json-byte-by-byte"),
        pytest.param(status(201, WHOLE), id="201"),
        pytest.param(reply(gzip.compress(json.dumps(WHOLE).encode()), content_encoding="gzip"), id="json-gzip"),
        pytest.param(reply(gzip.compress(events_text(STREAM)), content_encoding="gzip"), id="stream-gzip"),
        pytest.param(raw(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(WHOLE).encode()), id="http-1.0-until-close"),
    ],
)
def test_answers(endpoint: Serve, answered: Answer) -> None:
    assert answer(endpoint, answered) == ANSWER


CUT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
PAGE = b"<!DOCTYPE html>\n<html><head><title>Welcome</title></head><body>portal</body></html>"


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        pytest.param(drop(), "retry", id="closed"),
        pytest.param(reset(), "retry", id="reset"),
        pytest.param(raw(b"not http at all\r\n\r\n"), "retry", id="not-http"),
        pytest.param(raw(CUT + b'{"choices": ['), "retry", id="cut-json"),
        pytest.param(raw(CUT, then="reset"), "retry", id="reset-after-headers"),
        pytest.param(pieces([b'{"choices": ['], then="close"), "retry", id="cut-chunked"),
        pytest.param(status(200, b'{"choices": [{"message": {"content": "hal'), "retry", id="json-ends-in-a-string"),
        pytest.param(status(200, b"[" * 100_000), "retry", id="json-too-deep"),
        pytest.param(status(200, b""), "retry", id="empty"),
        pytest.param(status(200, b" \n \n"), "retry", id="blank"),
        pytest.param(raw(b"HTTP/1.1 204 No Content\r\n\r\n"), "retry", id="204"),
        pytest.param(status(200, "OK", content_type="text/plain"), "retry", id="plain-text"),
        pytest.param(status(200, b'{"choices": "\xff"}'), "retry", id="json-not-utf-8"),
        pytest.param(reply(b"no gzip", content_encoding="gzip"), "retry", id="bad-gzip"),
        pytest.param(
            reply(gzip.compress(json.dumps(WHOLE).encode())[:-20], content_encoding="gzip"), "retry", id="cut-gzip"
        ),
        pytest.param(sse(STREAM[:2], ending="none"), "retry", id="stream-ends-early"),
        pytest.param(sse(STREAM[:2], ending="cut"), "retry", id="stream-cut"),
        pytest.param(sse(STREAM[:2], ending="reset"), "retry", id="stream-reset"),
        pytest.param(sse([]), "retry", id="stream-of-done-only"),
        pytest.param(sse([], ending="none"), "retry", id="stream-of-nothing"),
        pytest.param(sse([b": ping\n\n"] * 3, ending="none"), "retry", id="stream-of-comments"),
        pytest.param(sse([b'event: error\ndata: {"message": "no", "code": 400}\n\n']), "record", id="event-error"),
        pytest.param(status(200, {"error": {"code": 429}}, {"Retry-After": "3"}), "retry", id="429-inside"),
        pytest.param(status(200, PAGE, content_type="text/html"), "stop", id="page"),
        pytest.param(status(200, b"\xef\xbb\xbf" + PAGE, content_type="text/html"), "stop", id="page-with-bom"),
        pytest.param(status(200, b"\n\n  " + PAGE), "stop", id="page-called-json"),
        pytest.param(status(200, b"<html>"), "stop", id="page-short"),
        pytest.param(status(405, ""), "stop", id="405"),
    ],
)
def test_failures(endpoint: Serve, answered: Answer, expected: str) -> None:
    outcome = answer(endpoint, answered)
    assert isinstance(outcome, Failure)
    assert outcome.kind == expected
    assert "\n" not in outcome.text + outcome.way_out
    assert "portal" not in outcome.text + outcome.way_out


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(endpoint: Serve, code: int) -> None:
    other = endpoint()
    server = endpoint(lambda request: status(code, "", {"Location": f"{other.base_url}/chat/completions?token=leak"}))
    outcome = ask(server.base_url)
    assert not other.requests
    assert isinstance(outcome, Failure)
    assert outcome.kind == "stop"
    assert f"HTTP {code}" in outcome.text
    assert other.base_url in outcome.text
    assert "leak" not in outcome.text
    assert "--base-url" in outcome.way_out
    assert "/v1" in outcome.way_out


@pytest.mark.parametrize("location", ["/login", "http://[bad", "", "ťuk".encode().decode("latin-1")])
def test_redirects_to_odd_places(endpoint: Serve, location: str) -> None:
    outcome = answer(endpoint, status(302, "", {"Location": location}))
    assert outcome_of(outcome) == STOP


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        pytest.param(status(404, {"error": {"message": "no model `m`"}}), ["no model `m`", "--model"], id="model"),
        pytest.param(status(404, "404 page not found"), ["--base-url", "/v1", "{url}"], id="path"),
        pytest.param(status(401), ["--api-key"], id="key"),
        pytest.param(status(402), ["topped up"], id="money"),
        pytest.param(status(405), ["--base-url", "/v1", "{url}"], id="method"),
        pytest.param(status(200, PAGE), ["--base-url", "/v1", "{url}"], id="page"),
        pytest.param(status(400, {"error": {"message": "stream_options?"}}), ["--no-stream"], id="stream"),
        pytest.param(status(429, {"error": {"code": "insufficient_quota"}}), ["quota"], id="quota"),
    ],
)
def test_stops_say_the_way_out(endpoint: Serve, answered: Answer, expected: list[str]) -> None:
    server = endpoint(lambda request: answered)
    outcome = ask(server.base_url)
    assert isinstance(outcome, Failure)
    assert outcome.kind == "stop"
    for part in expected:
        assert part.format(url=server.base_url) in f"{outcome.text} {outcome.way_out}"


def test_refusal_of_stream_where_none_was_asked_for_is_recorded(endpoint: Serve) -> None:
    answered = status(400, {"error": {"message": "stream_options?"}})
    assert outcome_of(answer(endpoint, answered, streams=False)) == RECORD


def test_error_texts_are_short_and_hold_no_secret(endpoint: Serve) -> None:
    keep_secret("sk-very-secret")
    message = "wrong key sk-very-secret\n" + "and so on\x1b[31m " * 100
    outcome = answer(endpoint, status(403, {"error": {"message": message}}))
    assert isinstance(outcome, Failure)
    assert outcome.text.startswith("HTTP 403: wrong key [hidden] and so on")
    assert len(outcome.text) <= 330
    assert outcome.text.isprintable()


@pytest.mark.parametrize("code", [400, 413, 422])
def test_refusals_name_the_size_sent(endpoint: Serve, code: int) -> None:
    outcome = answer(endpoint, status(code, ""), body=[b"[", b"1" * 12_344, b"]"])
    assert isinstance(outcome, Failure)
    assert outcome.kind == "record"
    assert "12,346 bytes" in outcome.text


def test_excess_over_the_bytes_sent_is_none(endpoint: Serve) -> None:
    answered = status(400, {"error": {"message": "prompt is too long: 2000 tokens > 1000 maximum"}})
    assert answer(endpoint, answered, body=[b"1" * 1999]).over is None
    assert answer(endpoint, answered, body=[b"1" * 2000]).over == (2000, 1000)


@pytest.mark.parametrize("answered", [reset(), drop()], ids=["reset", "closed"])
def test_broken_connections_name_the_size_of_a_large_body(endpoint: Serve, answered: Answer) -> None:
    large, small = (answer(endpoint, answered, body=[b"[", b"1" * size, b"]"]) for size in (10**6, 999))
    assert outcome_of(large) == outcome_of(small) == RETRY
    assert "request of 1,000,002 bytes: a server that refuses such a size" in large.text
    assert "bytes" not in small.text


def test_refusal_while_the_body_is_still_being_sent() -> None:
    """A server answers without reading on, and closes: its reply is mostly lost. The error names the size all the same."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection = listening.accept()[0]
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")

        serving = threading.Thread(target=serve)
        serving.start()
        outcome = ask(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", [b"1" * MIB] * 32)
        serving.join()
    assert isinstance(outcome, Failure)
    assert "33,554,432 bytes" in outcome.text


@pytest.mark.parametrize("after", ["headers", "text", "finish"])
def test_a_broken_tls_record_is_a_broken_connection(
    after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The HTTP client lets its error through as it is."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setattr(ssl, "create_default_context", ssl.create_default_context.__wrapped__)  # type: ignore[attr-defined]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    events = {"headers": [], "text": [chunk("half")], "finish": [chunk("whole"), END]}[after]
    sent = b"".join(b"data: " + encode_json(event) + b"\n\n" for event in events)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            accepted = listening.accept()[0]
            with contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + sent)
                os.write(connection.fileno(), b"\x17\x03\x03\x00\x20" + b"garbage!" * 4)
                connection.unwrap()

        threading.Thread(target=serve, daemon=True).start()
        outcome = ask(f"https://127.0.0.1:{listening.getsockname()[1]}/v1")
    assert outcome_of(outcome) == ("whole" if after == "finish" else RETRY)


def test_a_refusal_whose_body_drips_keeps_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_endpoint, "REFUSAL_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError), listening.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 401 No\r\nContent-Length: 100000\r\n\r\n")
                while True:  # until the client has left
                    connection.sendall(b" ")
                    time.sleep(0.01)

        threading.Thread(target=serve, daemon=True).start()
        outcome = ask(f"http://127.0.0.1:{listening.getsockname()[1]}/v1")
    assert outcome_of(outcome) == STOP


def test_nobody_listens() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # held, so that nobody else comes to listen there
        outcome = ask(f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
    assert outcome_of(outcome) == RETRY


# Time: silence, bounds, and what must not be waited for. Timeouts are short, so that what hits them is quick, but a second
# or more where a machine that pauses for so long would change the outcome.


@dataclass(frozen=True)
class Endless:
    """One piece, then another for ever; it can be played again."""

    first: bytes
    step: bytes

    def __iter__(self) -> Iterator[bytes]:
        return itertools.chain([self.first], itertools.repeat(self.step))


def endless(first: bytes, step: bytes, pause: float = 0.05) -> Answer:
    return pieces(Endless(first, step), pause, content_type="text/event-stream")


@pytest.mark.parametrize(
    "answered",
    [
        pytest.param(hang(), id="no-reply"),
        pytest.param(raw(CUT, then="hang"), id="headers-only"),
        pytest.param(sse([chunk("a")], ending="hang"), id="stream-stops"),
    ],
)
def test_silence_is_bounded(endpoint: Serve, answered: Answer) -> None:
    started = time.monotonic()
    outcome = answer(endpoint, answered, timeout=1.0)
    assert 1.0 <= time.monotonic() - started < LONG / 2
    assert isinstance(outcome, Failure)
    assert outcome.kind == "retry"
    assert "silent for 1 s" in outcome.text


@pytest.mark.parametrize(
    "answered",
    [
        pytest.param(endless(b": hi\n\n", b": ping\n\n"), id="comments-for-ever"),
        pytest.param(endless(b" ", b"\n"), id="blanks-for-ever"),
        pytest.param(endless(*[events_text([chunk("a")], done=False)] * 2), id="text-for-ever"),
    ],
)
def test_attempts_are_bounded(endpoint: Serve, answered: Answer) -> None:
    server = endpoint(lambda request: answered)

    async def asked() -> Reply | Failure:
        one = client(server.base_url)
        one.timeout = 0.3  # for the whole only: a pause of this machine shall not count as silence
        try:
            return await one.ask(BODY)
        finally:
            await one.close()

    started = time.monotonic()
    outcome = asyncio.run(asked())
    assert 0.9 <= time.monotonic() - started < LONG / 2
    assert isinstance(outcome, Failure)
    assert outcome.kind == "retry"
    assert "no whole reply within 0.9 s" in outcome.text


@pytest.mark.parametrize(
    "answered",
    [
        pytest.param(sse([*([b": ping\n\n"] * 4), *STREAM], pause=0.25), id="comments"),
        pytest.param(pieces([*([b"\n"] * 9), json.dumps(WHOLE).encode()], pause=0.25), id="blank-lines"),
    ],
)
def test_signs_of_life_for_longer_than_the_timeout(endpoint: Serve, answered: Answer) -> None:
    started = time.monotonic()
    assert answer(endpoint, answered, timeout=2.0) == ANSWER
    assert time.monotonic() - started > 2.0


@pytest.mark.parametrize(
    "answered",
    [
        pytest.param(sse([*STREAM, "[DONE]"], ending="hang"), id="hang-after-done"),
        pytest.param(sse([*STREAM, b"data:[DONE]\n"], ending="hang"), id="hang-after-done-without-blank-line"),
        pytest.param(sse([*STREAM, b"data: [DONE]\r\r"], ending="hang"), id="hang-after-done-carriage-returns"),
        pytest.param(endless(events_text(STREAM), b": ping\n\n"), id="comments-after-done"),
    ],
)
def test_nothing_is_waited_for_after_done(endpoint: Serve, answered: Answer) -> None:
    started = time.monotonic()
    assert answer(endpoint, answered, timeout=LONG) == ANSWER
    assert time.monotonic() - started < LONG / 2


@pytest.mark.parametrize(
    "answered",
    [
        # The finish and the usage go out together: the grace must not end between them.
        pytest.param(sse([events_text(STREAM, done=False)], ending="hang"), id="hang"),
        pytest.param(sse([events_text(STREAM, done=False)], ending="cut"), id="cut"),
        pytest.param(sse([events_text(STREAM, done=False)], ending="reset"), id="reset"),
        pytest.param(endless(events_text(STREAM, done=False), b": ping\n\n"), id="comments"),
    ],
)
@pytest.mark.parametrize(("timeout", "grace"), [(2.0, 30.0), (LONG, 0.3)], ids=["short-timeout", "long-timeout"])
def test_finished_reply_counts_whatever_follows(
    endpoint: Serve, answered: Answer, timeout: float, grace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam_endpoint, "AFTER_FINISH_SECONDS", grace)
    assert answer(endpoint, answered, timeout=timeout) == ANSWER


@pytest.mark.parametrize(
    "answered",
    [
        pytest.param(endless(b"{", b" " * 65536, pause=0.0), id="json"),
        pytest.param(sse(itertools.repeat(chunk("x" * 65536))), id="stream"),
        pytest.param(endless(b"data: ", b"x" * 65536, pause=0.0), id="one-line"),
    ],
)
def test_endless_replies_are_cut(endpoint: Serve, answered: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_endpoint, "LONGEST_REPLY", MIB)
    outcome = answer(endpoint, answered)
    assert isinstance(outcome, Failure)
    assert outcome.kind == "retry"
    assert "longer than 1 MB" in outcome.text


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        pytest.param([], chunk("a"), id="content"),
        pytest.param([chunk("", role="assistant"), b": ping\n\n"], chunk("a"), id="after-role-and-comment"),
        pytest.param([{"choices": []}], chunk(reasoning_content="hm"), id="reasoning"),
    ],
)
def test_first_piece_is_told_once_and_at_once(endpoint: Serve, before: list[Any], piece: dict[str, Any]) -> None:
    told = threading.Event()
    seen: list[bool] = []

    def events() -> Iterator[Any]:
        for event in before:
            yield event
            seen.append(told.wait(0.1))  # must not be told yet
        yield piece
        seen.append(told.wait(LONG))  # while the reply is not over
        yield from (chunk("b"), END)

    server = endpoint(lambda request: sse(events()))
    calls: list[float] = []

    def first_piece() -> None:
        calls.append(time.monotonic())
        told.set()

    async def asked() -> None:
        one = client(server.base_url)
        await one.ask(BODY, first_piece)
        await one.close()

    asyncio.run(asked())
    assert seen == [False] * len(before) + [True]
    assert len(calls) == 1


def test_cancelled_request_leaves_the_endpoint(endpoint: Serve) -> None:
    server = endpoint(lambda request: hang())

    async def asked() -> None:
        one = client(server.base_url)
        task = asyncio.create_task(one.ask(BODY))
        assert await asyncio.to_thread(server.wait_until, lambda: server.in_flight == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await one.close()

    asyncio.run(asked())
    assert server.wait_until(lambda: server.in_flight == 0, LONG)


# Proxies of the environment.


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_proxy_is_used_and_named(endpoint: Serve, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: Recorded) -> Answer:
        return status(502, "no way through")

    proxy = endpoint(refuse)
    monkeypatch.setenv(name, proxy.base_url.removesuffix("/v1").replace("://", "://user:pass-word@"))
    outcome = ask("http://127.0.0.1:9/v1")
    assert proxy.requests[0].path == "http://127.0.0.1:9/v1/chat/completions"
    assert isinstance(outcome, Failure)
    assert f"through the proxy {proxy.base_url.removesuffix('/v1')}" in outcome.text
    assert "NO_PROXY" in outcome.text
    assert "pass-word" not in outcome.text


@pytest.mark.parametrize(("code", "expected"), [(407, STOP), (403, STOP), (429, RETRY), (503, RETRY)])
def test_a_proxy_that_refuses_the_way_to_a_tls_server(
    code: int, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(f"HTTP/1.1 {code} no\r\nContent-Length: 0\r\n\r\n".encode())

        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listening.getsockname()[1]}")
        outcome = ask("https://model.example/v1")
    assert outcome_of(outcome) == expected
    assert isinstance(outcome, Failure)
    assert str(code) in outcome.text


@pytest.mark.parametrize("around", ["127.0.0.1", "*", "example.org,127.0.0.1"])
def test_no_proxy(endpoint: Serve, around: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", around)
    assert outcome_of(answer(endpoint, say("yes"))) == "yes"
    outcome = answer(endpoint, status(503))
    assert isinstance(outcome, Failure)
    assert "proxy" not in outcome.text


@pytest.mark.parametrize("proxy", ["foo://127.0.0.1:9", "http://["])
def test_unusable_proxy_is_a_usage_error(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(UsageError, match="HTTP_PROXY"):
        client("http://127.0.0.1:9/v1")


# --- More dialects --------------------------------------------------------------------------------------------------


def refusal(status: int, message: str, **fields: Any) -> Failure:
    return meaning(status, read_error({"error": {"message": message, **fields}}))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        pytest.param(400, "Your credit balance is too low to access the API.", id="anthropic"),
        pytest.param(400, "Access denied, please make sure your account is in good standing.", id="dashscope"),
        pytest.param(403, "Sorry, your account balance is insufficient", id="siliconflow"),
        pytest.param(403, "The request failed because your account has an overdue balance.", id="volcano"),
        pytest.param(429, "您的账户已欠费，请充值后重试", id="zhipu-arrears"),
        pytest.param(429, "账户余额不足", id="zhipu-balance"),
        pytest.param(400, "Budget has been exceeded! Current cost: 5.01, Max budget: 5.0", id="litellm"),
        pytest.param(403, "Key limit exceeded (total limit).", id="openrouter"),
        pytest.param(403, "Out of call volume quota. Quota will be replenished in 02:11:11.", id="azure"),
        pytest.param(429, "Your team has used all available credits or reached its monthly spending limit.", id="xai"),
        pytest.param(403, "not enough balance", id="novita"),
        pytest.param(400, "You have reached your specified API usage limits.", id="anthropic-limit"),
        pytest.param(403, "用户额度不足, 剩余额度: $0.00", id="one-api"),
    ],
)
def test_an_empty_account_stops_whatever_its_words(status: int, message: str) -> None:
    assert refusal(status, message).kind == "stop"


@pytest.mark.parametrize(
    "message",
    [
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",
        "Prompt exceeds max length",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
        "Range of input length should be [1, 129024]",
        "`inputs` must have less than 131072 tokens. Given: 140000",
        "prompt token count of 140000 exceeds the limit of 131072",
        "Total tokens of image and text exceed max message tokens",
    ],
    ids=["moonshot", "zhipu", "tgi", "dashscope", "tgi-inputs", "copilot", "volcano"],
)
def test_an_overflow_is_known_by_its_words(message: str) -> None:
    assert refusal(400, message).kind == "overflow"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (503, "Request exceeds the maximum number of concurrent requests"),
        (529, "input tokens per minute limit exceeded"),
        (503, "the number of queued input tokens exceeded"),
        (500, "unable to allocate context window"),
        (503, "retry budget exceeded"),
        (503, "account suspended in pool 3: out of call volume quota"),
        (429, "API key limit exceeded: 60 requests per minute"),
        (429, "concurrency limit exceeded, your balance is too low for a higher tier"),
    ],
)
def test_a_busy_server_is_no_overflow_and_no_empty_account(status: int, message: str) -> None:
    """Else history would be cut for it, or the run stopped."""
    assert refusal(status, message).kind == "retry"


@pytest.mark.parametrize(
    "message",
    [
        "maximum context length is 131072 tokens, out of memory beyond",
        "litellm.APIConnectionError: the input length exceeds the context length",
        "request exceeds the available context size, try again with a shorter one",
    ],
)
def test_an_overflow_may_name_what_a_busy_server_would(message: str) -> None:
    assert refusal(500, message).kind == "overflow"


@pytest.mark.parametrize("name", ["rate_limit_error", "RateLimitError", "throttling_error"])
def test_a_quota_is_one_whatever_the_error_is_called(name: str) -> None:
    assert refusal(429, f"litellm.{name}: You exceeded your current quota, check your plan", type=name).kind == "stop"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param({"error": {"code": "data_inspection_failed", "message": "no"}}, RECORD, id="dashscope"),
        pytest.param({"base_resp": {"status_code": 1026, "status_msg": "input new_sensitive"}}, RECORD, id="minimax"),
        pytest.param({"error": {"code": "1301", "message": "可能包含不安全或敏感内容"}}, RECORD, id="zhipu"),
        pytest.param({"base_resp": {"status_code": 2013, "status_msg": "invalid params"}}, RECORD, id="parameters"),
        pytest.param({"base_resp": {"status_code": 1004, "status_msg": "login fail: no key"}}, STOP, id="login"),
        pytest.param(
            {"error_code": 110, "error_msg": "Access token invalid or no longer valid"}, STOP, id="baidu-token"
        ),
        pytest.param(
            {"error_code": 336007, "error_msg": "the max input characters is 20000"}, OVERFLOW, id="baidu-long"
        ),
        pytest.param({"error_code": 18, "error_msg": "Open api qps request limit reached"}, RETRY, id="baidu-rate"),
        pytest.param({"error": {"code": "budget_exceeded", "message": "no"}}, STOP, id="budget"),
        pytest.param({"error": "invalid request: upstream connection reset"}, RETRY, id="invalid-for-the-upstream"),
        pytest.param({"error": "CUDA error: invalid argument"}, RETRY, id="invalid-on-the-gpu"),
        pytest.param({"error": "upstream 401 Unauthorized, rotating key"}, RETRY, id="unauthorized-upstream"),
        pytest.param({"error": "Unauthorized"}, STOP, id="unauthorized"),
        pytest.param({"error": "Rate limit exceeded: too many tokens, please wait"}, RETRY, id="rate-of-tokens"),
    ],
)
def test_errors_of_vendors_in_a_reply_of_status_200(body: dict[str, Any], expected: object) -> None:
    """A refusal is not paid for again, a wrong key stops the run; only what may pass is tried again."""
    assert outcome_of(read_completion(body)) == expected


def test_an_error_is_read_however_large_or_deep_it_is() -> None:
    deep: Any = "end"
    for _ in range(5000):
        deep = {"a": deep}
    assert len(read_error({"error": {"message": deep}}).message) < 5000
    assert len(read_error({"error": {"message": "m", "code": "c" * 10**6}}).code) < 1000
    lines = EventLines()
    assert len(list(lines.feed(b"data: " + b"[" * 2000 + b"\ndata: " + b"]" * 2000 + b"\n\n"))) == 2


def test_the_request_echoed_in_a_refusal_does_not_count_as_its_words() -> None:
    detail = [{"type": "extra_forbidden", "loc": ["body", "x"], "msg": "Extra inputs", "input": {"stream": True}}]
    assert meaning(400, read_error({"detail": str(detail)})).kind == "record"


@pytest.mark.parametrize("words", ["Which are overdue?", "context_length_exceeded", "insufficient_quota"])
@pytest.mark.parametrize(
    "echo",
    [
        "[{{'msg': 'Value error, rejected', 'input': {{'messages': [{{'content': '{}'}}]}}}}]",
        '{{"msg": "rejected", "input": "{}"}}',
        '"{{\\"msg\\": \\"rejected\\", \\"input\\": \\"{}\\"}}"',
        "rejected [type=string_type, input_value={{'content': '{}'}}, input_type=dict]",
        "cannot take {{'model': 'm', 'messages': [{{'role': 'user', 'content': '{}'}}]}}",
        f"[{{{{'msg': 'rejected', 'input': '{'word ' * 2000} {{}}'}}}}]",
    ],
    ids=["pydantic", "json", "json-in-json", "input-value", "messages", "cut-in-the-middle"],
)
def test_words_of_an_echoed_prompt_mean_nothing(echo: str, words: str) -> None:
    assert refusal(400, echo.format(words)).kind == "record"
    assert outcome_of(read_completion({"error": {"message": echo.format(words)}})) == RETRY


def test_input_is_no_echo_where_it_is_a_word() -> None:
    assert refusal(400, "Invalid input: prompt is too long: 9000 tokens > 8192").over == (9000, 8192)


def test_a_content_filter_may_quote_the_prompt() -> None:
    assert refusal(400, "blocked by the content policy: 'Which invoices are overdue?'").kind == "record"


def test_a_prompt_echoed_in_a_refusal_is_not_looked_through() -> None:
    failure = refusal(400, "no: " + "word " * 10**6 + "; the end")
    assert len(failure.text) < 5000
    assert failure.text.endswith("the end")


def test_a_number_beyond_all_reason_is_no_token_count() -> None:
    assert stated_excess(f"maximum context length is {'9' * 5000} tokens") is None


@pytest.mark.parametrize(
    ("chunk", "kind"),
    [
        pytest.param({"choices": [{"delta": {}}], "error": {"code": "provider_gone", "message": "x"}}, "retry", id="unmapped"),
        pytest.param([{"error": {"code": 503, "message": "overloaded"}}], "retry", id="list-wrapped-503"),
        pytest.param([{"error": {"code": 401, "message": "key"}}], "stop", id="list-wrapped-401"),
        pytest.param({"choices": [{"index": 0, "delta": "text"}]}, "retry", id="delta-a-text"),
    ],
)  # fmt: skip
def test_what_breaks_a_stream_after_text_leaves_no_partial_answer(chunk: Any, kind: str) -> None:
    stream = Stream()
    stream.take(b'{"choices": [{"index": 0, "delta": {"content": "par"}}]}')
    stream.take(json.dumps(chunk).encode())
    stream.take(b"[DONE]")
    outcome = stream.result()
    assert isinstance(outcome, Failure)
    assert outcome.kind == kind


def test_pieces_of_another_interface_are_no_empty_answer() -> None:
    stream = Stream()
    stream.take(b'{"choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}]}')
    stream.take(b"[DONE]")
    assert isinstance(stream.result(), Failure)
    assert isinstance(read_completion({"choices": [{"message": {"content": {"a": 1}}}]}), Failure)


def test_a_wait_in_the_body_of_a_refusal_is_named(endpoint: Callable[..., Any]) -> None:
    from beam_failure import named_wait_inside

    assert named_wait_inside(b'{"error": {"details": [{"retryDelay": "34s"}]}}') == 34.0
    assert named_wait_inside(b'{"error": {"details": [{"retryDelay": "soon"}]}}') is None


@pytest.mark.parametrize("name", ["authorization", "AUTHORIZATION", "Authorization"])
def test_a_header_replaces_the_keys_however_it_is_spelled(name: str) -> None:
    """Looked at as raw bytes: a server's dictionary of headers would hide a second one."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection = listening.accept()[0]
            with connection:
                while b"}" not in b"".join(received):
                    received.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 400 no\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

        serving = threading.Thread(target=serve)
        serving.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"

        async def ask() -> None:
            asking = Endpoint(
                address, "sk-the-key", timeout=LONG, connections=1, headers={name: "Basic zzz"}, flags=Flags()
            )
            await asking.ask(encode_body(b"{}", [], b'{"role":"user","content":"x"}'))
            await asking.close()

        asyncio.run(ask())
        serving.join()
    sent = b"".join(received).lower()
    assert sent.count(b"\r\nauthorization:") == 1
    assert b"authorization: basic zzz" in sent
    assert b"sk-the-key" not in sent
    assert sent.count(b"\r\ncontent-length:") == 1
