"""Replies read: completions as JSON, streams of events, token counts."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from beam_common.failure import Failure, Flags
from beam_common.reply import Outcome, Received, Reply, token_counts, whole_characters

FLAGS = Flags(no_stream="try --no-stream")


def outcome_of(outcome: Outcome) -> str:
    """What tables compare: the text of a reply, the kind of a failure in brackets."""
    return outcome.text if isinstance(outcome, Reply) else f"<{outcome.kind}>"


def completion(content: Any, finish_reason: Any = "stop", **message: Any) -> dict[str, Any]:
    choice = {"message": {"content": content, **message}, "finish_reason": finish_reason}
    return {"choices": [choice]}


def chunk(content: Any = None, finish_reason: Any = None, **delta: Any) -> dict[str, Any]:
    """One event of a stream."""
    return {"choices": [{"delta": {"content": content, **delta}, "finish_reason": finish_reason}]}


# --- Completions in one piece


def read(body: object) -> Outcome:
    received = Received(FLAGS, lambda: None)
    received.feed(json.dumps(body).encode())
    return received.outcome()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(completion("hello"), "hello", id="plain"),
        pytest.param(completion(""), "", id="empty-answer"),
        pytest.param(completion(None, reasoning_content="hm"), "", id="reasoning-is-no-answer"),
        pytest.param({"choices": [{"message": {}}]}, "", id="no-content"),
        pytest.param(
            completion([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
            "ab",
            id="parts",
        ),
        pytest.param(
            completion([{"type": "thinking", "text": "hm"}, {"text": "b"}, {"type": "image_url"}]),
            "b",
            id="other-parts",
        ),
        pytest.param(completion("a", "length"), "a", id="length"),
        pytest.param(completion("a", None), "a", id="no-finish-reason"),
        pytest.param({**completion("a"), "error": None}, "a", id="error-null"),
        pytest.param([], "<transient>", id="a-list"),
        pytest.param("text", "<transient>", id="a-text"),
        pytest.param({}, "<transient>", id="choices-absent"),
        pytest.param({"choices": None}, "<transient>", id="choices-null"),
        pytest.param({"choices": []}, "<transient>", id="choices-empty"),
        pytest.param({"choices": [None]}, "<transient>", id="choice-null"),
        pytest.param({"choices": [{"message": None}]}, "<transient>", id="message-null"),
        pytest.param({"choices": [{"text": "a"}]}, "<transient>", id="another-interface"),
        pytest.param(completion({"a": 1}), "<transient>", id="content-of-unknown-shape"),
        pytest.param(completion("half", "error"), "<transient>", id="finish-error"),
        pytest.param(completion("half", "abort"), "<transient>", id="finish-abort"),
        pytest.param(
            completion("half", "insufficient_system_resource"), "<transient>", id="finish-resource"
        ),
        pytest.param(completion(None, "content_filter"), "<refused>", id="content-filter"),
        pytest.param({"error": {"code": 502}}, "<transient>", id="error-502"),
        pytest.param(
            {"error": {"code": 429}, **completion("half")}, "<busy>", id="error-beside-an-answer"
        ),
        pytest.param(
            {"object": "error", "code": 400, "message": "m"}, "<refused>", id="bare-error"
        ),
    ],
)
def test_read_completion(body: object, expected: str) -> None:
    assert outcome_of(read(body)) == expected


def test_everything_of_a_completion_is_read() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    body = {**completion("a", "length"), "usage": usage, "model": "m-2", "provider": "P"}
    assert read(body) == Reply("a", "length", 9, 2, 4, "m-2", "P")


def test_what_is_no_completion_is_shown() -> None:
    outcome = read({"success": False, "errors": ["no route"]})
    assert isinstance(outcome, Failure)
    assert "{'success': False, 'errors': ['no route']}" in outcome.text


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(None, (None, None, None), id="null"),
        pytest.param([], (None, None, None), id="no-object"),
        pytest.param({"prompt_tokens": 9, "completion_tokens": 2}, (9, 2, None), id="plain"),
        pytest.param({"prompt_tokens": None}, (None, None, None), id="null-member"),
        pytest.param(
            {"prompt_tokens": 9, "prompt_tokens_details": None}, (9, None, None), id="null-details"
        ),
        pytest.param(
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}},
            (9, None, 0),
            id="cached-openai",
        ),
        pytest.param(
            {"prompt_tokens": 9, "prompt_cache_hit_tokens": 5}, (9, None, 5), id="cached-deepseek"
        ),
        pytest.param(
            {
                "prompt_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": None},
                "cached_tokens": 6,
            },
            (9, None, 6),
            id="cached-moonshot",
        ),
        pytest.param(
            {"prompt_tokens": 27, "cached_tokens": 9400}, (9427, None, 9400), id="left-out"
        ),
        pytest.param({"cached_tokens": 6}, (None, None, 6), id="cached-of-unknown"),
        pytest.param(
            {"prompt_tokens": -1, "completion_tokens": "3", "cached_tokens": True},
            (None, None, None),
            id="junk",
        ),
    ],
)
def test_token_counts(usage: object, expected: tuple[int | None, ...]) -> None:
    assert token_counts(usage) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a\ud83d\ude42b", "a🙂b", id="pair"),
        pytest.param("a\ud83d", "a\ud83d", id="lone-high"),
        pytest.param("\ude42\ud83d", "\ude42\ud83d", id="wrong-way-round"),
        pytest.param("\ud83d\ud83d\ude42", "\ud83d🙂", id="lone-then-pair"),
    ],
)
def test_whole_characters(text: str, expected: str) -> None:
    assert whole_characters(text) == expected


# --- Streams

USAGE = {"prompt_tokens": 9, "completion_tokens": 2}
END = chunk(finish_reason="stop")
DONE = b"data: [DONE]\n\n"


def as_event(event: object) -> bytes:
    """The bytes of an event; bytes as they are."""
    return event if isinstance(event, bytes) else b"data: %b\n\n" % json.dumps(event).encode()


def streamed(*events: object) -> Received:
    stream = Received(FLAGS, lambda: None)
    for event in events:
        stream.feed(as_event(event))
    return stream


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(
            [chunk("", role="assistant"), chunk("a"), chunk("b"), END, DONE], "ab", id="x"
        ),
        pytest.param([chunk("a"), END], "a", id="finish-without-done"),
        pytest.param([chunk("a"), chunk("b", "stop"), DONE], "ab", id="text-in-the-last-piece"),
        pytest.param([chunk("a", ""), END, DONE], "a", id="finish-reason-empty"),
        pytest.param([{"choices": []}, chunk("a"), {"choices": None}, END], "a", id="no-choices"),
        pytest.param([{"choices": [{"delta": None}]}, chunk("a"), END], "a", id="delta-null"),
        pytest.param([chunk(None), chunk("a"), END], "a", id="content-null"),
        pytest.param([chunk([{"type": "text", "text": "a"}]), END], "a", id="content-in-parts"),
        pytest.param([chunk(reasoning_content="hm"), END, DONE], "", id="reasoning-is-no-answer"),
        pytest.param(
            [b": ping\n\n", b"event: message\nid: 1\n", chunk("a"), END], "a", id="fields"
        ),
        pytest.param([chunk("a"), {"type": "ping"}, END], "a", id="an-event-of-another-kind"),
        pytest.param([chunk("\ud83d"), chunk("\ude42"), END], "🙂", id="split-surrogates"),
        pytest.param([chunk("a\ud83d"), END], "a\ud83d", id="lone-surrogate"),
        pytest.param([chunk("a"), END, DONE, chunk("X")], "a", id="nothing-after-done"),
        pytest.param([chunk("a"), END, {"error": {"code": 500}}], "a", id="error-after-the-finish"),
        pytest.param([chunk("a"), END, b"data: {cut\n\n"], "a", id="junk-after-the-finish"),
        pytest.param([], "<transient>", id="nothing"),
        pytest.param([DONE], "<transient>", id="only-done"),
        pytest.param([chunk("a"), chunk("b")], "<transient>", id="no-finish"),
        pytest.param([chunk("", role="assistant"), DONE], "<transient>", id="interrupted-at-once"),
        pytest.param([chunk("two"), chunk(" words"), DONE], "<transient>", id="done-but-no-finish"),
        pytest.param([chunk("a"), {"error": {"message": "x"}}, DONE], "<transient>", id="error"),
        pytest.param([chunk("a"), {"error": {"code": 400}}, END], "<refused>", id="error-400"),
        pytest.param([{"error": {"code": "insufficient_quota"}}], "<fatal>", id="error-quota"),
        pytest.param(
            [chunk("a"), b'event: error\ndata: {"code": "X1"}\n\n'], "<transient>", id="error-event"
        ),
        pytest.param([chunk("a"), b'error: {"code": 500}\n\n'], "<transient>", id="llama-cpp"),
        pytest.param([chunk("a"), b"data: {cut\n\n", END], "<transient>", id="not-json"),
        pytest.param([chunk("a"), chunk({"a": 1}), END], "<transient>", id="unknown-shape"),
        pytest.param([chunk("a"), chunk(None, "error")], "<transient>", id="finish-error"),
        pytest.param([chunk("a"), chunk(None, "abort")], "<transient>", id="finish-abort"),
        pytest.param([chunk("a"), chunk(None, "content_filter")], "<refused>", id="finish-filter"),
    ],
)
def test_streams(events: list[object], expected: str) -> None:
    assert outcome_of(streamed(*events).outcome()) == expected


@pytest.mark.parametrize(
    "last",
    [
        pytest.param({"choices": [], "usage": USAGE}, id="openai"),
        pytest.param({"choices": [{"usage": USAGE}]}, id="moonshot"),
    ],
)
def test_everything_of_a_stream_is_read(last: dict[str, Any]) -> None:
    first = {**chunk("a"), "model": "m-2", "provider": "P"}
    stream = streamed(first, chunk("b"), END, last, DONE)
    assert stream.outcome() == Reply("ab", "stop", 9, 2, None, "m-2", "P")


def test_an_unfinished_stream_points_to_its_flag_and_shows_what_it_ended_with() -> None:
    outcome = streamed(chunk("a"), b'error: {"code": 500}\n\n').outcome()
    assert isinstance(outcome, Failure)
    assert outcome.text == 'the reply broke off (finish_reason absent) error: {"code": 500}'
    assert outcome.advice == "try --no-stream"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('data: {}\n\n: {"x"}\n\ndata:{}\n\ndata: [DONE]\n\n', id="line-feeds"),
        pytest.param("data: {}\r\n\r\ndata:  {}\r\n\r\ndata: [DONE]\r\n\r\n", id="crlf"),
        pytest.param("data: {}\ndata: {}\ndata:[DONE]", id="no-line-end-at-the-end"),
    ],
)
def test_streams_read_alike_however_their_bytes_are_split(text: str) -> None:
    pieces = [
        json.dumps(piece, ensure_ascii=False) for piece in (chunk("漢\x85"), chunk("🙂", "stop"))
    ]
    data = text.replace("{}", "%s", 2).replace("%s", pieces[0], 1).replace("%s", pieces[1]).encode()

    def read(*parts: bytes) -> str:
        stream = Received(FLAGS, lambda: None)
        for part in parts:
            stream.feed(part)
        return outcome_of(stream.outcome())

    assert read(*(bytes([byte]) for byte in data)) == "漢\x85🙂"
    for first, second in itertools.combinations(range(0, len(data) + 1, 3), 2):
        assert read(data[:first], data[first:second], data[second:]) == "漢\x85🙂"


@pytest.mark.parametrize(
    ("event", "begun"),
    [
        pytest.param(b": ping\n\n", False, id="comment"),
        pytest.param({"choices": []}, False, id="no-choices"),
        pytest.param(chunk("", role="assistant"), False, id="role"),
        pytest.param(chunk(None), False, id="llama-cpp-null-first"),
        pytest.param(chunk("a"), True, id="content"),
        pytest.param(chunk(None, reasoning_content="hm"), True, id="reasoning-content"),
        pytest.param(chunk(None, reasoning="hm"), True, id="reasoning"),
    ],
)
def test_a_reply_has_begun_with_its_first_piece(event: object, begun: bool) -> None:
    told = []
    stream = Received(FLAGS, lambda: told.append("begun"))
    stream.feed(as_event(event))
    stream.feed(as_event(event))
    assert told == (["begun"] if begun else [])


def test_a_probe_is_content_with_the_first_piece() -> None:
    stream = Received(FLAGS, lambda: None, first_piece_only=True)
    stream.feed(as_event(chunk("", role="assistant")))
    assert not stream.over
    stream.feed(as_event(chunk("a")))
    assert stream.over
    assert isinstance(stream.outcome(), Reply)


def test_a_line_of_megabytes_is_read_in_linear_time() -> None:
    """Quadratic reading would take minutes here."""
    data = as_event({**chunk("a" * 4_000_000, "stop")})
    stream = Received(FLAGS, lambda: None)
    for start in range(0, len(data), 1000):
        stream.feed(data[start : start + 1000])
    assert outcome_of(stream.outcome()) == "a" * 4_000_000
