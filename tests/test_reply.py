"""Replies read: completions as JSON, streams of events, token counts."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from beam_common.failure import Failure, Flags
from beam_common.reply import Outcome, Received, Reply, token_counts, whole_characters

FLAGS = Flags(no_stream="try --no-stream")


def table(names: str, *rows: tuple[Any, ...]) -> pytest.MarkDecorator:
    """A test for each row, whose first column says what it stands for."""
    return pytest.mark.parametrize(names.split(), [r[1:] for r in rows], ids=[r[0] for r in rows])


def outcome_of(outcome: Outcome) -> str:
    """What tables compare: the text of a reply, the kind of a failure in brackets."""
    return outcome.text if isinstance(outcome, Reply) else f"<{outcome.kind}>"


def completion(content: Any, finish_reason: Any = "stop", **message: Any) -> dict[str, Any]:
    choice = {"message": {"content": content, **message}, "finish_reason": finish_reason}
    return {"choices": [choice]}


def chunk(content: Any = None, finish_reason: Any = None, **delta: Any) -> dict[str, Any]:
    """One event of a stream."""
    return {"choices": [{"delta": {"content": content, **delta}, "finish_reason": finish_reason}]}


def cached(tokens: object) -> dict[str, Any]:
    return {"prompt_tokens_details": {"cached_tokens": tokens}}


# --- Completions in one piece


def read(body: object) -> Outcome:
    received = Received(FLAGS, lambda: None)
    received.feed(json.dumps(body).encode())
    return received.outcome()


@table(
    "body expected",
    ("plain", completion("hello"), "hello"),
    ("empty-answer", completion(""), ""),
    ("reasoning-is-no-answer", completion(None, reasoning_content="hm"), ""),
    ("no-content", {"choices": [{"message": {}}]}, ""),
    ("parts", completion([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "ab"),
    ("other-parts", completion([{"type": "thinking", "text": "a"}, {"text": "b"}, {}]), "b"),
    ("length", completion("a", "length"), "a"),
    ("no-finish-reason", completion("a", None), "a"),
    ("error-null", {**completion("a"), "error": None}, "a"),
    ("a-list", [], "<transient>"),
    ("a-text", "text", "<transient>"),
    ("choices-absent", {}, "<transient>"),
    ("choices-null", {"choices": None}, "<transient>"),
    ("choices-empty", {"choices": []}, "<transient>"),
    ("choice-null", {"choices": [None]}, "<transient>"),
    ("message-null", {"choices": [{"message": None}]}, "<transient>"),
    ("another-interface", {"choices": [{"text": "a"}]}, "<transient>"),
    ("content-of-unknown-shape", completion({"a": 1}), "<transient>"),
    ("finish-error", completion("half", "error"), "<transient>"),
    ("finish-abort", completion("half", "abort"), "<transient>"),
    ("finish-resource", completion("half", "insufficient_system_resource"), "<transient>"),
    ("content-filter", completion(None, "content_filter"), "<refused>"),
    ("error-502", {"error": {"code": 502}}, "<transient>"),
    ("error-beside-an-answer", {"error": {"code": 429}, **completion("half")}, "<busy>"),
    ("bare-error", {"object": "error", "code": 400, "message": "m"}, "<refused>"),
)
def test_read_completion(body: object, expected: str) -> None:
    assert outcome_of(read(body)) == expected


def test_everything_of_a_completion_is_read() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, **cached(4)}
    body = {**completion("a", "length"), "usage": usage, "model": "m-2", "provider": "P"}
    assert read(body) == Reply("a", "length", 9, 2, 4, "m-2", "P")


def test_what_is_no_completion_is_shown() -> None:
    outcome = read({"success": False, "errors": ["no route"]})
    assert isinstance(outcome, Failure)
    assert "{'success': False, 'errors': ['no route']}" in outcome.text


@table(
    "usage expected",
    ("null", None, (None, None, None)),
    ("no-object", [], (None, None, None)),
    ("plain", {"prompt_tokens": 9, "completion_tokens": 2}, (9, 2, None)),
    ("null-member", {"prompt_tokens": None}, (None, None, None)),
    ("null-details", {"prompt_tokens": 9, "prompt_tokens_details": None}, (9, None, None)),
    ("cached-openai", {"prompt_tokens": 9, **cached(0)}, (9, None, 0)),
    ("cached-deepseek", {"prompt_tokens": 9, "prompt_cache_hit_tokens": 5}, (9, None, 5)),
    ("cached-moonshot", {"prompt_tokens": 9, **cached(None), "cached_tokens": 6}, (9, None, 6)),
    ("left-out", {"prompt_tokens": 27, "cached_tokens": 9400}, (9427, None, 9400)),
    ("cached-of-unknown", {"cached_tokens": 6}, (None, None, 6)),
    ("junk", {"prompt_tokens": -1, "completion_tokens": "3", **cached(True)}, (None, None, None)),
)
def test_token_counts(usage: object, expected: tuple[int | None, ...]) -> None:
    assert token_counts(usage) == expected


@table(
    "text expected",
    ("pair", "a\ud83d\ude42b", "a🙂b"),
    ("lone-high", "a\ud83d", "a\ud83d"),
    ("wrong-way-round", "\ude42\ud83d", "\ude42\ud83d"),
    ("lone-then-pair", "\ud83d\ud83d\ude42", "\ud83d🙂"),
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


@table(
    "events expected",
    ("x", [chunk("", role="assistant"), chunk("a"), chunk("b"), END, DONE], "ab"),
    ("finish-without-done", [chunk("a"), END], "a"),
    ("text-in-the-last-piece", [chunk("a"), chunk("b", "stop"), DONE], "ab"),
    ("finish-reason-empty", [chunk("a", ""), END, DONE], "a"),
    ("no-choices", [{"choices": []}, chunk("a"), {"choices": None}, END], "a"),
    ("delta-null", [{"choices": [{"delta": None}]}, chunk("a"), END], "a"),
    ("content-null", [chunk(None), chunk("a"), END], "a"),
    ("content-in-parts", [chunk([{"type": "text", "text": "a"}]), END], "a"),
    ("reasoning-is-no-answer", [chunk(reasoning_content="hm"), END, DONE], ""),
    ("fields", [b": ping\n\n", b"event: message\nid: 1\n", chunk("a"), END], "a"),
    ("an-event-of-another-kind", [chunk("a"), {"type": "ping"}, END], "a"),
    ("split-surrogates", [chunk("\ud83d"), chunk("\ude42"), END], "🙂"),
    ("lone-surrogate", [chunk("a\ud83d"), END], "a\ud83d"),
    ("nothing-after-done", [chunk("a"), END, DONE, chunk("X")], "a"),
    ("error-after-the-finish", [chunk("a"), END, {"error": {"code": 500}}], "a"),
    ("junk-after-the-finish", [chunk("a"), END, b"data: {cut\n\n"], "a"),
    ("nothing", [], "<transient>"),
    ("only-done", [DONE], "<transient>"),
    ("no-finish", [chunk("a"), chunk("b")], "<transient>"),
    ("interrupted-at-once", [chunk("", role="assistant"), DONE], "<transient>"),
    ("done-but-no-finish", [chunk("two"), chunk(" words"), DONE], "<transient>"),
    ("error", [chunk("a"), {"error": {"message": "x"}}, DONE], "<transient>"),
    ("error-400", [chunk("a"), {"error": {"code": 400}}, END], "<refused>"),
    ("error-quota", [{"error": {"code": "insufficient_quota"}}], "<fatal>"),
    ("error-event", [chunk("a"), b'event: error\ndata: {"code": "X1"}\n\n'], "<transient>"),
    ("llama-cpp", [chunk("a"), b'error: {"code": 500}\n\n'], "<transient>"),
    ("not-json", [chunk("a"), b"data: {cut\n\n", END], "<transient>"),
    ("unknown-shape", [chunk("a"), chunk({"a": 1}), END], "<transient>"),
    ("finish-error", [chunk("a"), chunk(None, "error")], "<transient>"),
    ("finish-abort", [chunk("a"), chunk(None, "abort")], "<transient>"),
    ("finish-filter", [chunk("a"), chunk(None, "content_filter")], "<refused>"),
)
def test_streams(events: list[object], expected: str) -> None:
    assert outcome_of(streamed(*events).outcome()) == expected


@table(
    "last",
    ("openai", {"choices": [], "usage": USAGE}),
    ("moonshot", {"choices": [{"usage": USAGE}]}),
)
def test_everything_of_a_stream_is_read(last: dict[str, Any]) -> None:
    empty = {"choices": [], "model": ""}  # Azure
    first = {**chunk("a"), "model": "m-2", "provider": "P"}
    stream = streamed(empty, first, chunk("b"), END, last, DONE)
    assert stream.outcome() == Reply("ab", "stop", 9, 2, None, "m-2", "P")


def test_an_unfinished_stream_points_to_its_flag_and_shows_what_it_ended_with() -> None:
    outcome = streamed(chunk("a"), b'error: {"code": 500}\n\n').outcome()
    assert isinstance(outcome, Failure)
    assert outcome.text == 'the reply broke off (finish_reason absent) error: {"code": 500}'
    assert outcome.advice == "try --no-stream"


@table(
    "text",
    ("line-feeds", "data: {}\n\n: x\n\ndata:{}\n\ndata: [DONE]\n\n"),
    ("crlf", "data: {}\r\n\r\ndata:  {}\r\n\r\ndata: [DONE]\r\n\r\n"),
    ("no-line-end-at-the-end", "data: {}\ndata: {}\ndata:[DONE]"),
)
def test_streams_read_alike_however_their_bytes_are_split(text: str) -> None:
    chunks = (chunk("漢\x85"), chunk("🙂", "stop"))
    data = text.format(*(json.dumps(each, ensure_ascii=False) for each in chunks)).encode()

    def read(*parts: bytes) -> str:
        return outcome_of(streamed(*parts).outcome())

    assert read(*(bytes([byte]) for byte in data)) == "漢\x85🙂"
    for first, second in itertools.combinations(range(0, len(data) + 1, 3), 2):
        assert read(data[:first], data[first:second], data[second:]) == "漢\x85🙂"


@table(
    "event begun",
    ("comment", b": ping\n\n", False),
    ("no-choices", {"choices": []}, False),
    ("role", chunk("", role="assistant"), False),
    ("llama-cpp-null-first", chunk(None), False),
    ("content", chunk("a"), True),
    ("reasoning-content", chunk(None, reasoning_content="hm"), True),
    ("reasoning", chunk(None, reasoning="hm"), True),
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
    stream = streamed(*(data[start : start + 1000] for start in range(0, len(data), 1000)))
    assert outcome_of(stream.outcome()) == "a" * 4_000_000
