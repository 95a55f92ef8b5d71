"""Troubles of endpoints that users of such programs have met, replayed over HTTP through the programs' front doors.

The number in a test's id or name is the trouble's number; letters tell variants of a kind apart.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import launcher
import pytest
from conftest import Pair, Ran, answer_rows, read_rows, write_lines
from scripted_endpoint import (
    Answer,
    Recorded,
    ScriptedEndpoint,
    after,
    chunk,
    completion,
    criterion_of,
    drop,
    hang,
    pieces,
    question_of,
    raw,
    reset,
    say,
    sse,
    status,
)

import beam_endpoint
import beam_run

Serve = Callable[..., ScriptedEndpoint]
MakePair = Callable[..., Pair]
Generate = Callable[..., Ran]
Judge = Callable[..., Ran]
Script = Callable[[Recorded], Answer | None]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is durable before it counts, which takes longer than anything else here."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


PATIENCE = 30.0  # seconds that a script waits for something that should come at once
END = chunk(finish_reason="stop")
PAGE = "<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>portal</body></html>"


def failing(code: int | str | None = None, message: str = "scripted", **members: Any) -> dict[str, Any]:
    """An error body."""
    return {"error": {"message": message, "code": code, **members}}


def at_first(answer: Answer, times: int = 1, question: str = "1.0?") -> Script:
    """A question meets this answer so many times, then an honest one; the other questions are answered at once."""
    left = itertools.count(1 - times)

    def script(request: Recorded) -> Answer | None:
        return answer if question_of(request) == question and next(left) <= 0 else None

    return script


def always(answer: Answer, question: str = "1.0?") -> Script:
    return at_first(answer, 10**6, question)


def asked(server: ScriptedEndpoint) -> list[str]:
    """The questions in the order of their requests."""
    return [question_of(request) for request in server.requests]


def named(rows: list[dict[str, Any]]) -> list[str]:
    return [row["question"] for row in rows]


def judged(request: Recorded) -> str:
    """The question of an answer that is judged."""
    found = re.search(r"\d+\.\d+\?", question_of(request))
    assert found
    return found.group()


def done_by_the_run(monkeypatch: pytest.MonkeyPatch, method: str) -> threading.Event:
    """Set once the run has done this for the first time: for an endpoint that must not outrun it."""
    done, original = threading.Event(), getattr(beam_run.Run, method)

    def noticed(run: beam_run.Run, *args: Any, **kwargs: Any) -> None:
        original(run, *args, **kwargs)
        done.set()

    monkeypatch.setattr(beam_run.Run, method, noticed)
    return done


@pytest.fixture
def closed_port() -> Iterator[socket.socket]:
    """Bound to a port of its own, which refuses connections and which no other test can be given meanwhile."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        yield port


def url_of(port: socket.socket) -> str:
    return "http://{}:{}/v1".format(*port.getsockname())


CUT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
HALF = b'{"choices": [{"message": {"content": "half'

# --- Trouble that passes --------------------------------------------------------------------------------------------

PASSING = {
    "01-error-in-200-502": status(200, failing(502, "upstream")),
    "01-error-in-200-524": status(200, failing(524, "upstream")),
    "01-error-in-200-429": status(200, failing(429, "slow down")),
    "01-error-in-200-502-as-text": status(200, failing("502", "upstream")),
    "01-error-in-200-choices-null": status(200, {**failing(502), "choices": None}),
    "01-error-in-200-beside-half-an-answer": status(200, {**failing(502), **completion("half", None)}),
    "01-error-in-200-without-code": status(200, {"error": {"message": "upstream went away"}}),
    "01-error-in-200-in-the-choice": status(200, {"choices": [{**failing(502), "message": {"content": ""}}]}),
    "01-error-in-200-anthropic": status(200, {"type": "error", "error": {"type": "overloaded_error", "message": "O"}}),
    "01-error-in-200-google": status(200, [failing(503, "The model is overloaded.", status="UNAVAILABLE")]),
    "01-error-in-200-code-beside": status(200, {"error": "upstream", "status": 502}),
    "03-choices-empty": status(200, {"choices": []}),
    "03-choices-null": status(200, {"choices": None}),
    "03-choices-absent": status(200, {"id": "x"}),
    "03-message-null": status(200, {"choices": [{"message": None, "finish_reason": "stop"}]}),
    "03-choice-null": status(200, {"choices": [None]}),
    "03-empty-body": status(200, b""),
    "03-null": status(200, b"null"),
    "03-finish-reason-error": status(200, completion("", "error")),
    "03-finish-reason-no-resource": status(200, completion("half", "insufficient_system_resource")),
    "03-finish-reason-network-error": status(200, completion("half", "network_error")),
    "03-finish-reason-cancelled": sse([chunk("half"), chunk("", "cancelled")]),
    "03-delta-content-an-object": sse([chunk({"text": "half"}), END]),
    "03-delta-content-a-number": sse([chunk(5), END]),
    "01-bare-code-500": status(200, {"code": 500, "msg": "busy", "success": False}),
    "01-bare-code-of-minimax": status(200, {"base_resp": {"status_code": 1002, "status_msg": "rate limit"}}),
    "03-finish-reason-abort": status(200, completion("half", "abort")),
    "06-rate-limit": status(429, failing("rate_limit_exceeded", "Rate limit reached", type="requests")),
    "06-rate-limit-google": status(
        429, [failing(429, "Resource exhausted (check quota).", status="RESOURCE_EXHAUSTED")]
    ),
    **{f"08-{code}": status(code) for code in (408, 409, 425, 500, 502, 503, 520, 522, 524, 529)},
    "08-500-empty-body": status(500, b""),
    "09-504-page": status(504, PAGE, content_type="text/html"),
    "09-503-page-with-bom": status(503, "\ufeff" + PAGE),
    "10-cut-body": raw(CUT + HALF + b"x" * 150),
    "10-cut-chunked": pieces([HALF], then="close"),
    "10-json-ends-in-a-string": status(200, HALF),
    "10-reset-after-headers": raw(CUT, then="reset"),
    "10-reset-before-headers": reset(),
    "10-closed": drop(),
    "19-error-event-after-text": sse([chunk("par"), chunk("tial"), failing(None, "upstream")]),
    "19-error-event-with-code": sse([chunk("par"), chunk("tial"), failing(502)], ending="none"),
    "19-error-event-named-so": sse([chunk("par"), b'event: error\ndata: {"message": "upstream"}\n\n'], ending="hang"),
    "19-error-event-of-openrouter": sse([chunk("par"), {**failing(502), **chunk("", "error")}]),
    "19-no-finish-no-done": sse([chunk("par"), chunk("tial")], ending="none"),
    "19-cut-finish-reason-null": sse([chunk("par", "null"), chunk("tial", "null")], ending="cut"),
    "19-end-finish-reason-none": sse([chunk("par", "none"), chunk("tial", "")], ending="none"),
    "19-cut": sse([chunk("par"), chunk("tial")], ending="cut"),
    "19-reset": sse([chunk("par"), chunk("tial")], ending="reset"),
    "19-torn-event": sse([chunk("par"), b'data: {"choices": [{"del\n\n'], ending="none"),
    "39-loading": status(503, failing(503, "Loading model", type="unavailable_error")),
}


@pytest.mark.parametrize("answer", PASSING.values(), ids=PASSING.keys())
def test_passing_trouble_is_tried_again(
    answer: Answer, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(at_first(answer, times=2))
    ran = run_generate(make_pair(chats=1, questions=2), server.base_url, "--max-retries", "3")
    assert ran.rc == 0
    assert Counter(asked(server)) == {"1.0?": 3, "1.1?": 1}
    assert sorted(named(ran.rows)) == ["1.0?", "1.1?"]
    assert not ran.errors
    assert "half" not in str(ran.rows)
    assert "partial" not in str(ran.rows)
    assert "Traceback" not in ran.err


JUDGE_PASSING = [
    "01-error-in-200-502", "01-error-in-200-429", "03-choices-null", "03-message-null", "03-finish-reason-abort", "08-408",
    "08-529", "09-504-page", "10-cut-body", "10-closed", "19-no-finish-no-done", "39-loading",
]  # fmt: skip


@pytest.mark.parametrize("answer", [PASSING[name] for name in JUDGE_PASSING], ids=JUDGE_PASSING)
def test_judge_tries_again(answer: Answer, endpoint: Serve, tmp_path: Path, run_judge: Judge) -> None:
    server = endpoint(lambda request: answer if request.number < 2 else None)
    answers = write_lines(tmp_path / "answers.jsonl", answer_rows(1, 1))
    ran = run_judge(answers, server.base_url, "--max-retries", "3")
    assert ran.rc == 0
    assert len(server.requests) == 3
    assert len(ran.rows) == 1
    assert "failed calls: 0" in re.sub(" +", " ", ran.out)
    assert "Traceback" not in ran.err


def test_09_page_of_a_gateway_is_one_short_line(
    endpoint: Serve, make_pair: MakePair, run_generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = done_by_the_run(monkeypatch, "_try_again")
    page = always(status(504, PAGE * 50, content_type="text/html"), "2.0?")

    def script(request: Recorded) -> Answer | None:
        if question_of(request) == "1.0?":  # in flight until 2.0 has failed, then 1.1 shows that the endpoint is up
            assert heard.wait(PATIENCE)
        return page(request)

    flags = ["--max-retries", "3", "--open-chats", "3", "--limit", "3"]
    ran = run_generate(make_pair(chats=2, questions=2), endpoint(script).base_url, *flags)
    assert ran.rc == 0
    assert ran.errors == ["HTTP 504: an HTML page"]
    tried_again, recorded = (line for line in ran.err.splitlines() if "504" in line)
    assert tried_again.startswith("an attempt failed and is made again")
    assert max(len(tried_again), len(recorded)) < 200
    assert "portal" not in ran.err + str(ran.rows)


def test_10_refused_connections(closed_port: socket.socket, make_pair: MakePair, run_generate: Generate) -> None:
    ran = run_generate(make_pair(chats=1, questions=1), url_of(closed_port), "--max-retries", "3")
    assert ran.rc == 0
    assert len(ran.errors) == 1
    assert "no connection" in ran.errors[0]


def test_39_endpoint_that_starts_later(closed_port: socket.socket, make_pair: MakePair, run_generate: Generate) -> None:
    url, number = url_of(closed_port), closed_port.getsockname()[1]
    late: list[ScriptedEndpoint] = []

    def start() -> None:
        closed_port.close()
        late.append(ScriptedEndpoint(at_first(status(503, failing(503, "Loading model")), times=3), port=number))
        late[0].__enter__()

    timer = threading.Timer(0.3, start)
    timer.start()
    try:
        ran = run_generate(make_pair(chats=1, questions=2), url, "--max-retries", "100")
    finally:
        timer.join()
        late[0].__exit__(None, None, None)
    assert ran.rc == 0
    assert len(ran.rows) == 2
    assert not ran.errors


@pytest.mark.parametrize("retries", [1, 2, 4])
def test_attempts_are_max_retries_in_all(
    retries: int, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(lambda request: status(503))
    ran = run_generate(make_pair(chats=1, questions=1), server.base_url, "--max-retries", str(retries))
    assert ran.rc == 0
    assert ran.errors == ["HTTP 503: scripted 503"]
    assert len(server.requests) == retries


# --- Usage and odd answers ------------------------------------------------------------------------------------------

USAGES: dict[str, Any] = {
    "04-absent": "absent",
    "04-null": None,
    "04-null-members": {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None},
    "04-null-details": {"prompt_tokens": None, "completion_tokens": None, "prompt_tokens_details": None},
    "04-a-list": [],
    "04-absurd-members": {"prompt_tokens": 10**400, "completion_tokens": 10**13, "cached_tokens": 10**400},
    "04-only-cached": {"cached_tokens": 6},
    "04-text-members": {"prompt_tokens": "9", "completion_tokens": "2"},
}


@pytest.mark.parametrize("usage", USAGES.values(), ids=USAGES.keys())
@pytest.mark.parametrize("flag", ["--stream", "--no-stream"])
def test_usage_that_is_not_reported(
    usage: Any, flag: str, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    known = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}

    def script(request: Recorded) -> Answer:
        return say("yes", usage=known if question_of(request) == "1.2?" else usage)

    ran = run_generate(make_pair(chats=1, questions=3), endpoint(script).base_url, flag)
    assert ran.rc == 0
    assert [row["response"] for row in ran.rows] == ["yes"] * 3
    assert sorted(str(row["prompt_tokens"]) for row in ran.rows) == ["9", "None", "None"]
    assert "prompt tokens of this run: 9 (unknown for 2)" in ran.out
    assert "completion tokens of this run: 2 (unknown for 2)" in ran.out
    assert "cached share of the prompt tokens: not reported" in ran.out


ODD_STREAMS = {
    "18-comments": [b": hello\n\n", chunk("ab"), b":\n\n", chunk("c"), END],
    "18-no-blank-after-data": [b'data:{"choices":[{"delta":{"content":"abc"}}]}\n\n', END],
    "18-crlf": [b'data: {"choices":[{"delta":{"content":"abc"},"finish_reason":"stop"}]}\r\n\r\n'],
    "18-carriage-returns": [b'data: {"choices":[{"delta":{"content":"abc"},"finish_reason":"stop"}]}\r\r'],
    "18-line-over-128-kb": [{**chunk("abc"), "padding": "x" * 140_000}, END],
    "18-choices-empty": [{"choices": []}, chunk("abc"), END, {"choices": []}],
    "18-delta-null": [
        {"choices": [{"delta": None}]},
        chunk("abc"),
        {"choices": [{"delta": None, "finish_reason": "stop"}]},
    ],
    "18-content-null-first": [{"choices": [{"delta": {"content": None}}]}, chunk("abc"), END],
    "18-text-in-the-finishing-chunk": [chunk("ab"), chunk("c", "stop")],
    "18-finish-reason-empty": [chunk("ab", ""), chunk("c", ""), END],
    "18-second-choice": [chunk("abc"), {"choices": [{"index": 1, "delta": {"content": "X"}}]}, END],
    "18-parts": [chunk([{"type": "text", "text": "ab"}]), chunk([{"type": "text", "text": "c"}]), END],
    "18-empty-data": [b"data:\n\n", chunk("abc"), b"data: \n\n", END],
    "18-event-names": [b"event: chunk\nid: 1\nretry: 9\n", chunk("abc"), END],
    "18-multi-line-event": [b'data: {"choices":\ndata: [{"delta": {"content": "abc"}}]}\n\n', END],
    "22-reasoning": [chunk(reasoning_content="I think"), chunk(reasoning="so"), chunk("abc"), END],
}


@pytest.mark.parametrize("events", ODD_STREAMS.values(), ids=ODD_STREAMS.keys())
def test_odd_streams_give_the_same_answer(
    events: list[Any], endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    server = endpoint(lambda request: sse([*events, usage], ending="none"))
    ran = run_generate(make_pair(), server.base_url)
    [row] = ran.rows
    assert (row["response"], row["finish_reason"], row["error"]) == ("abc", "stop", None)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (9, 2)
    assert len(server.requests) == 1


def test_18_characters_split_over_packets(endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    text = "žluťoučký 漢字 🙂\u2028\x85"
    stream = b"".join(b"data: %b\n\n" % json.dumps(c, ensure_ascii=False).encode() for c in (chunk(text), END))
    parts = [bytes([byte]) for byte in stream]
    server = endpoint(lambda request: pieces(parts, pause=0.0, content_type="text/event-stream"))
    ran = run_generate(make_pair(), server.base_url)
    assert [row["response"] for row in ran.rows] == [text]


ODD_ANSWERS: dict[str, tuple[Answer, str]] = {
    "20-stream-ignored": (say("abc", stream=False), "abc"),
    "20-stream-ignored-but-called-so": (
        status(200, completion("abc"), content_type="text/event-stream; charset=utf-8"),
        "abc",
    ),
    "20-whole-message-as-one-event": (sse([completion("abc")]), "abc"),
    "20-indented-json-after-blank-lines": (status(200, "\n\n" + json.dumps(completion("abc"), indent=2)), "abc"),
    "22-parts": (
        say([{"type": "text", "text": "ab"}, {"type": "image"}, {"type": "text", "text": "c"}], stream=False),
        "abc",
    ),
    "22-part-of-reasoning": (
        say([{"type": "reasoning", "text": "I think"}, {"type": "text", "text": "abc"}], stream=False),
        "abc",
    ),
    "22-content-null-with-reasoning": (say(None, stream=False, reasoning_content="I think"), ""),
    "22-reasoning-only-stream": (sse([chunk(reasoning_content="I think"), END]), ""),
    "22-empty-answer": (say("", stream=False), ""),
}


@pytest.mark.parametrize(("answer", "expected"), ODD_ANSWERS.values(), ids=ODD_ANSWERS.keys())
def test_odd_answers_count(
    answer: Answer, expected: str, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(lambda request: answer)
    ran = run_generate(make_pair(), server.base_url)
    assert ran.rc == 0
    assert [(row["response"], row["error"]) for row in ran.rows] == [(expected, None)]
    assert len(server.requests) == 1
    assert f"of them empty: {int(not expected)}" in ran.out


# --- Waits that the endpoint names ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limited:
    """A rate limit: its headers, when they name a date how far ahead, and the least seconds that must pass."""

    headers: dict[str, str]
    least: float
    date: float | None = None
    code: int = 429

    def answer(self) -> Answer:
        dated = {"Retry-After": formatdate(time.time() + self.date, usegmt=True)} if self.date is not None else {}
        return status(self.code, failing("rate_limit_exceeded", "slow down"), {**self.headers, **dated})


NAMED = {
    "05-seconds": Limited({"Retry-After": "2"}, 2.0),
    "05-fraction": Limited({"Retry-After": "0.4"}, 0.4),
    "05-seconds-twice": Limited({"Retry-After": "0.4, 0.4"}, 0.4),
    "05-date": Limited({}, 2.0, date=3.0),
    "05-zero": Limited({"Retry-After": "0"}, 0.0),
    "05-date-past": Limited({}, 0.0, date=-60.0),
    "05-junk": Limited({"Retry-After": "soon"}, 0.0),
    "05-negative": Limited({"Retry-After": "-5"}, 0.0),
    "05-empty": Limited({"Retry-After": ""}, 0.0),
    "05-over-the-cap": Limited({"Retry-After": "9999"}, 0.5),
    "05-far-over-the-cap": Limited({"Retry-After": "99999999999999999999"}, 0.5),
    "05-date-over-the-cap": Limited({}, 0.5, date=86400.0),
    "05-of-503": Limited({"Retry-After": "0.4"}, 0.4, code=503),
    "05-inside-200": Limited({"Retry-After": "0.4"}, 0.4, code=200),
    "40-milliseconds": Limited({"retry-after-ms": "400"}, 0.4),
    "40-of-a-provider": Limited({"llm_provider-retry-after": "0.4"}, 0.4),
    "40-milliseconds-beside-junk": Limited({"retry-after-ms": "400", "Retry-After": "soon"}, 0.4),
}


@pytest.mark.parametrize("limited", NAMED.values(), ids=NAMED.keys())
def test_named_waits(
    limited: Limited, endpoint: Serve, make_pair: MakePair, run_generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    cap = 0.5 if "cap" in next(name for name, each in NAMED.items() if each is limited) else 300.0
    monkeypatch.setattr(beam_run, "WAITS", replace(launcher.QUICK_WAITS, named_once=cap))
    server = endpoint(lambda request: limited.answer() if request.number == 0 else None)
    ran = run_generate(make_pair(chats=1, questions=3), server.base_url, "--concurrency", "1")
    assert ran.rc == 0
    assert len(ran.rows) == 3
    assert not ran.errors
    first, *others = server.requests
    assert first.answered
    since = first.answered if limited.date is None else first.received  # a date is written before the answer goes out
    for request in others:  # all requests wait, those of other questions too
        assert request.received - since >= limited.least


def test_05_a_wait_holds_back_every_chat(
    endpoint: Serve, make_pair: MakePair, run_generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)  # so that both openers are in flight when the first is limited
    heard = done_by_the_run(monkeypatch, "_try_again")

    def script(request: Recorded) -> Answer | None:
        if request.number < 2:
            both.wait(PATIENCE)
        if request.number == 0:
            return status(429, failing(), {"retry-after-ms": "600"})
        if request.number == 1:
            assert heard.wait(PATIENCE)
            return say("late")
        return None

    server = endpoint(script)
    ran = run_generate(make_pair(chats=3, questions=2), server.base_url)
    assert ran.rc == 0
    limited = server.requests[0].answered
    assert limited
    assert all(request.received - limited >= 0.6 for request in server.requests[2:])
    assert "late" in [row["response"] for row in ran.rows]  # what was in flight goes on


@pytest.mark.parametrize("retries", [1, 2])
def test_05_limits_that_name_a_wait_use_up_no_attempt(
    retries: int, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(at_first(status(429, failing(), {"retry-after-ms": "30"}), times=5))
    ran = run_generate(make_pair(), server.base_url, "--max-retries", str(retries))
    assert ran.rc == 0
    assert len(server.requests) == 6
    assert not ran.errors


def test_05_limits_without_a_wait_use_up_attempts(endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    server = endpoint(at_first(status(429, failing()), times=5))
    ran = run_generate(make_pair(), server.base_url, "--max-retries", "2")
    assert len(server.requests) == 2
    assert len(ran.errors) == 1


def test_05_waits_are_bounded_for_one_question(
    endpoint: Serve, make_pair: MakePair, run_generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam_run, "WAITS", replace(launcher.QUICK_WAITS, named_total=0.35))
    server = endpoint(always(status(429, failing(), {"retry-after-ms": "100"})))
    ran = run_generate(make_pair(), server.base_url, "--max-retries", "2")
    assert len(ran.errors) == 1
    assert len(server.requests) == 3 + 2  # three waits within the bound, then two attempts


def test_05_judge_waits(endpoint: Serve, tmp_path: Path, run_judge: Judge) -> None:
    limited = status(429, failing(), {"Retry-After": "0.3"})
    server = endpoint(lambda request: limited if request.number < 3 else None)
    answers = write_lines(tmp_path / "answers.jsonl", answer_rows(1, 3))
    ran = run_judge(answers, server.base_url, "--max-retries", "1", "--concurrency", "1")
    assert ran.rc == 0
    assert len(ran.rows) == 3
    gaps = [later.received - (one.answered or 0) for one, later in itertools.pairwise(server.requests[:4])]
    assert min(gaps) >= 0.3


# --- Trouble that every question would meet -------------------------------------------------------------------------

OVERLOADED = "You exceeded your current quota, please check your plan and billing details."
STOPPING: dict[str, tuple[Answer, list[str]]] = {
    "01-error-in-200-401": (status(200, failing(401, "bad key")), ["bad key", "--api-key"]),
    "01-bare-code-401": (status(200, {"code": 401, "msg": "token expired"}), ["token expired", "--api-key"]),
    "01-bare-code-401-in-a-stream": (sse([{"code": "401", "message": "expired"}]), ["expired", "--api-key"]),
    "02-wrong-path": (status(200, {"error": "Unexpected endpoint or method"}), ["/v1", "{url}"]),
    "02-wrong-path-with-method": (
        status(200, {"error": "Unexpected endpoint or method. (POST /chat/completions). Returning 200 anyway"}),
        ["/v1", "{url}"],
    ),
    "02-wrong-path-as-object": (status(200, {"error": {"message": "Unknown path /chat/completions"}}), ["/v1"]),
    "06-insufficient-quota-code": (status(429, failing("insufficient_quota", OVERLOADED)), ["quota"]),
    "06-insufficient-quota-type": (status(429, failing(None, OVERLOADED, type="insufficient_quota")), ["quota"]),
    "06-insufficient-quota-with-wait": (
        status(429, failing("insufficient_quota", OVERLOADED), {"Retry-After": "1"}),
        ["quota"],
    ),
    "06-exceeded-current-quota": (status(429, failing(None, "m", type="exceeded_current_quota_error")), ["quota"]),
    "06-quota-inside-200": (status(200, failing("insufficient_quota", OVERLOADED)), ["quota"]),
    "06-quota-in-a-stream": (sse([failing("insufficient_quota", OVERLOADED)]), ["quota"]),
    "06-quota-as-403": (status(403, failing("insufficient_quota", OVERLOADED)), ["quota"]),
    "07-402": (status(402, failing(402, "Insufficient Balance")), ["Insufficient Balance"]),
    "09-page": (status(200, PAGE, content_type="text/html"), ["--base-url", "{url}", "/v1"]),
    "09-page-with-bom-and-blanks": (status(200, "\ufeff\n \n" + PAGE), ["--base-url", "{url}", "/v1"]),
    "09-page-called-stream": (status(200, PAGE.lower(), content_type="text/event-stream"), ["{url}", "/v1"]),
    "14-401": (status(401, failing("invalid_api_key", "Incorrect API key")), ["Incorrect API key", "--api-key"]),
    "14-401-fastapi": (status(401, {"detail": "Invalid token"}), ["Invalid token", "--api-key"]),
    "14-404-model": (status(404, failing("model_not_found", "The model `m` does not exist")), ["`m`", "--model"]),
    "14-404-path": (status(404, "404 page not found", content_type="text/plain"), ["{url}", "/v1"]),
    "14-404-page": (status(404, PAGE, content_type="text/html"), ["{url}", "/v1"]),
    "14-405": (status(405, {"detail": "Method Not Allowed"}), ["{url}", "/v1"]),
    **{
        f"14-{code}": (status(code, "", {"Location": "/v2/"}), ["redirect", "{url}", "/v1"])
        for code in (301, 302, 303, 307, 308)
    },
    "21-stream-options": (
        status(400, failing(None, "Unrecognized request argument supplied: stream_options")),
        ["--no-stream"],
    ),
    "21-stream-options-422": (
        status(422, {"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]}),
        ["--no-stream"],
    ),
    "21-stream": (status(400, failing(None, "unsupported", param="stream")), ["--no-stream"]),
}


@pytest.mark.parametrize(("answer", "expected"), STOPPING.values(), ids=STOPPING.keys())
def test_stopping_at_once(
    answer: Answer, expected: list[str], endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(lambda request: answer)
    pair = make_pair(chats=3, questions=4)
    ran = run_generate(pair, server.base_url)
    assert ran.rc == 1
    assert not ran.rows
    assert len(server.requests) <= 2  # the openers of two chats
    [stopped] = [line for line in ran.err.splitlines() if line.startswith("stopped: ")]
    for part in expected:
        assert part.format(url=server.base_url) in stopped
    assert len(stopped) < 700
    assert "portal" not in ran.err
    assert "12 left" in ran.err
    assert "Traceback" not in ran.err
    right = endpoint()  # what was wrong is put right: the run goes on, no row and no sidecar stands in its way
    assert run_generate(pair, right.base_url).rc == 0


JUDGE_STOPPING = {
    name: STOPPING[name]
    for name in (
        "01-error-in-200-401", "02-wrong-path", "06-insufficient-quota-code", "07-402", "09-page", "14-401", "14-404-model",
        "14-404-path", "14-405", "14-307",
    )
}  # fmt: skip


@pytest.mark.parametrize(("answer", "expected"), JUDGE_STOPPING.values(), ids=JUDGE_STOPPING.keys())
def test_judge_stops_at_once(
    answer: Answer, expected: list[str], endpoint: Serve, tmp_path: Path, run_judge: Judge
) -> None:
    server = endpoint(lambda request: answer)
    answers = write_lines(tmp_path / "answers.jsonl", answer_rows(2, 3))
    ran = run_judge(answers, server.base_url, "--concurrency", "2")
    assert ran.rc == 1
    assert not ran.rows
    assert len(server.requests) <= 2
    [stopped] = [line for line in ran.err.splitlines() if line.startswith("stopped: ")]
    for part in expected:
        flag = f"--judge{part[1:]}" if part.startswith("--") else part
        assert flag.format(url=server.base_url) in stopped
    assert "6 answers left" in ran.err
    assert run_judge(answers, endpoint().base_url).rc == 0


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(status(402, failing(402, "Insufficient Balance")), id="07-402"),
        pytest.param(status(429, failing("insufficient_quota")), id="06-quota"),
        pytest.param(status(401), id="14-401"),
        pytest.param(status(200, PAGE), id="09-page"),
    ],
)
def test_stops_in_the_middle_let_requests_in_flight_finish(
    answer: Answer, endpoint: Serve, make_pair: MakePair, run_generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = done_by_the_run(monkeypatch, "stop")

    def script(request: Recorded) -> Answer | None:
        match question_of(request):
            case "1.0?":
                return say("opened")
            case "1.1?":
                assert stopped.wait(PATIENCE)
                return say("late")
            case "1.2?":
                assert server.wait_until(lambda: "1.1?" in asked(server), PATIENCE)
                return answer
        return say("never asked")

    server = endpoint(script)
    pair = make_pair(chats=1, questions=6)
    ran = run_generate(pair, server.base_url, "--concurrency", "2")
    assert ran.rc == 1
    assert [(row["question"], row["response"]) for row in ran.rows] == [("1.0?", "opened"), ("1.1?", "late")]
    assert sorted(asked(server)) == ["1.0?", "1.1?", "1.2?"]
    assert "4 left" in ran.err
    server.script = None
    assert run_generate(pair, server.base_url).rc == 0
    assert sorted(asked(server)[3:]) == ["1.2?", "1.3?", "1.4?", "1.5?"]


def test_07_account_empties_during_the_run(endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    server = endpoint(lambda request: status(402) if request.number >= 5 else None)
    ran = run_generate(make_pair(chats=2, questions=6), server.base_url, "--concurrency", "2")
    assert ran.rc == 1
    assert len(ran.rows) == 5
    assert not ran.errors
    assert len(server.requests) <= 7


def test_judge_stops_in_the_middle_and_goes_on(endpoint: Serve, tmp_path: Path, run_judge: Judge) -> None:
    server = endpoint(lambda request: status(402) if request.number >= 3 else None)
    answers = write_lines(tmp_path / "answers.jsonl", answer_rows(2, 4))
    ran = run_judge(answers, server.base_url, "--concurrency", "1")
    assert ran.rc == 1
    assert len(ran.rows) == 3
    assert len(server.requests) == 4
    server.script = None
    ran = run_judge(answers, server.base_url)
    assert ran.rc == 0
    assert len(ran.rows) == 8
    assert len(server.requests) == 4 + 5


def test_14_exit_code_of_the_process(endpoint: Serve, make_pair: MakePair, launch: Callable[..., Any]) -> None:
    server = endpoint(lambda request: status(401, failing("invalid_api_key", "wrong key sk-very-secret")))
    process = launch(
        "generate", "--base-url", server.base_url, "--model", "m", "--tokenizer", "", *make_pair(2, 3).flags,
        env={"BEAM_API_KEY": "sk-very-secret"},
    )  # fmt: skip
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert server.requests[0].headers["authorization"] == "Bearer sk-very-secret"
    assert b"wrong key [hidden]" in err
    assert b"sk-very-secret" not in err
    assert b"\r" not in err


# --- Refusals of one request ----------------------------------------------------------------------------------------

LLAMA = {"code": 400, "message": "the request exceeds the available context size", "n_prompt_tokens": 9000}
REFUSED: dict[str, tuple[Answer, str]] = {
    "01-error-in-200-403": (status(200, failing(403, "not for you")), "not for you"),
    "01-error-in-200-400": (status(200, failing(400, "bad request")), "bad request"),
    "01-error-in-200-400-choices-null": (status(200, {**failing(400, "bad request"), "choices": None}), "bad request"),
    "12-context-length-exceeded": (
        status(400, failing("context_length_exceeded", "This model's maximum context length is 8192 tokens")),
        "8192",
    ),
    "12-context-length-exceeded-500": (status(500, failing(None, "upstream: context_length_exceeded")), "context"),
    "12-context-length-llama-cpp": (status(400, {"error": {**LLAMA, "n_ctx": 8192}}), "8192"),
    "12-context-length-inside-200": (status(200, {"error": {"message": "prompt is too long"}}), "too long"),
    "12-context-length-inside-200-vllm": (
        status(200, {"object": "error", "message": "maximum context length is 8192 tokens", "code": 400}),
        "8192",
    ),
    "12-context-length-in-a-stream": (sse([failing(None, "context window exceeded")]), "context window"),
    "12-context-length-413": (status(413, failing(None, "prompt is too long: 9000 tokens > 8192 maximum")), "9000"),
    "12-context-length-422-fastapi": (status(422, {"detail": "input tokens exceed the limit"}), "exceed"),
    "12-echoed-prompt": (
        status(400, failing(400, "[{'msg': 'rejected', 'input': {'messages': [{'content': 'What is overdue?'}]}}]")),
        "rejected",
    ),
    "13-413-empty": (status(413, b""), "HTTP 413 (request of "),
    "13-413-page": (status(413, PAGE, content_type="text/html"), "HTTP 413: an HTML page (request of "),
    "13-400-invalid-json": (status(400, failing(None, "invalid json")), "invalid json (request of "),
    "13-422": (status(422, {"detail": [{"loc": ["body"], "msg": "field required"}]}), "field required"),
    "14-403": (status(403, failing(None, "not for you")), "not for you"),
    "14-410": (status(410), "HTTP 410"),
    "15-400-content-filter": (
        status(400, failing("content_filter", "triggering Azure OpenAI's content management policy")),
        "content management policy",
    ),
    "15-finish-reason": (status(200, completion(None, "content_filter")), "content_filter"),
    "15-finish-reason-streamed": (sse([chunk(finish_reason="content_filter")]), "content_filter"),
}


@pytest.mark.parametrize(("answer", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals_are_recorded_after_one_request(
    answer: Answer, expected: str, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(always(answer, "1.1?"))
    ran = run_generate(make_pair(chats=2, questions=3), server.base_url)
    assert ran.rc == 0
    assert Counter(asked(server)) == dict.fromkeys(["1.0?", "1.1?", "1.2?", "2.0?", "2.1?", "2.2?"], 1)
    [row] = [row for row in ran.rows if row["error"] is not None]
    assert len(ran.rows) == 6
    assert row["question"] == "1.1?"
    assert (row["response"], row["prompt_tokens"]) == ("", None)
    assert expected in row["error"]
    assert "portal" not in row["error"]
    assert row["error"] in ran.err
    assert "failed: 1" in ran.out


JUDGE_REFUSED = [
    "01-error-in-200-403", "12-context-length-exceeded", "13-413-empty", "14-403", "15-400-content-filter", "15-finish-reason",
]  # fmt: skip


@pytest.mark.parametrize(("answer", "expected"), [REFUSED[name] for name in JUDGE_REFUSED], ids=JUDGE_REFUSED)
def test_judge_counts_refusals_as_failed_calls(
    answer: Answer, expected: str, endpoint: Serve, tmp_path: Path, run_judge: Judge
) -> None:
    server = endpoint(lambda request: answer if judged(request) == "1.1?" else None)
    answers = write_lines(tmp_path / "answers.jsonl", answer_rows(1, 3))
    ran = run_judge(answers, server.base_url)
    assert ran.rc == 0
    assert len(server.requests) == 3
    assert len(ran.rows) == 3
    assert "failed calls: 1" in re.sub(" +", " ", ran.out)
    details = read_rows(tmp_path / "scores.details.jsonl")
    [failed] = [v for detail in details for v in detail["verdicts"] if v["status"] == "failed"]
    assert expected in failed["error"]


def test_13_size_in_the_error_is_the_size_sent(endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    server = endpoint(lambda request: status(413, b""))
    ran = run_generate(make_pair(chats=1, questions=1, rounds=500), server.base_url)
    assert ran.errors == [f"HTTP 413 (request of {len(server.requests[0].body):,} bytes)"]


@pytest.mark.parametrize(
    ("answer", "most_kept"),
    [
        pytest.param(status(400, failing("context_length_exceeded", "too long")), 100, id="12-without-figures"),
        pytest.param(status(500, failing(None, "context_length_exceeded")), 100, id="12-wrapped-in-500"),
        pytest.param(
            status(400, {"error": {**LLAMA, "n_prompt_tokens": 1000, "n_ctx": 500}}), 50, id="12-with-figures"
        ),
        pytest.param(status(200, {"error": "prompt is too long: 1000 tokens > 500 maximum"}), 50, id="12-inside-200"),
    ],
)
def test_overflow_with_shrink(
    answer: Answer, most_kept: int, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    def script(request: Recorded) -> Answer:
        return answer if len(request.messages) == 101 else say("fits")

    server = endpoint(script)
    ran = run_generate(make_pair(chats=1, questions=2, rounds=50), server.base_url, "--on-overflow", "shrink")
    assert ran.rc == 0
    assert [row["response"] for row in ran.rows] == ["fits", "fits"]
    whole, *cut = (request.messages for request in server.requests)
    assert len(cut) == 2
    for messages in cut:
        assert len(messages) - 1 <= most_kept
        assert messages[:-1] == whole[101 - len(messages) : -1]  # the oldest are gone, the rest is as it was
        assert messages[0]["role"] == "user"


@pytest.mark.parametrize(
    ("message", "tries", "most_left_out"),
    [
        pytest.param("you requested {size} tokens", 1, 24, id="plain"),
        pytest.param("you requested {size} tokens (request id: 20251130103609123456789AbCd)", 1, 24, id="request-id"),
        pytest.param("you requested {size} tokens. [trace 1764498969]", 1, 24, id="epoch"),
        pytest.param("you requested {size} tokens. Your tier allows 200000 tokens per minute.", 1, 24, id="tier"),
        pytest.param(
            "your request has {prompt} input tokens (1600 > 3600 - {prompt})", 1, 42, id="room-for-the-answer"
        ),
        pytest.param("you requested a total of at least 3601 tokens", 5, 24, id="at-least"),
    ],
)
def test_12_shrinking_by_what_the_endpoint_really_states(
    message: str, tries: int, most_left_out: int, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    """200 messages of 20 tokens each, of which the endpoint takes 3600 with the answer."""

    def script(request: Recorded) -> Answer:
        size = 20 * len(request.messages)
        said = f"maximum context length is 3600 tokens. However, {message.format(size=size, prompt=size - 1600)}"
        return status(400, failing(None, said)) if size > 3600 else say("fits")

    server = endpoint(script)
    pair = make_pair(chats=1, questions=1, rounds=100)
    ran = run_generate(pair, server.base_url, "--on-overflow", "shrink")
    assert [row["response"] for row in ran.rows] == ["fits"]
    assert len(server.requests) <= tries + 1
    assert 201 - len(server.requests[-1].messages) <= most_left_out


def test_14_403_for_the_seventh_question_only(endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    server = endpoint(lambda request: status(403) if request.number == 6 else None)
    ran = run_generate(make_pair(chats=2, questions=6), server.base_url, "--concurrency", "1")
    assert ran.rc == 0
    assert [row["error"] is not None for row in ran.rows] == [False] * 6 + [True] + [False] * 5
    assert len(server.requests) == 12


# --- Time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [hang(), sse([chunk("a")], ending="hang")], ids=["11-no-reply", "11-stream-stops"])
def test_question_that_never_answers(
    answer: Answer, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(always(answer, "1.1?"))
    ran = run_generate(make_pair(chats=2, questions=3), server.base_url, "--timeout", "1", "--max-retries", "2")
    assert ran.rc == 0
    assert len(ran.rows) == 6
    assert len(ran.errors) == 1
    assert "silent for 1 s" in ran.errors[0]
    assert asked(server).count("1.1?") in (2, 4)


def test_11_endpoint_slower_than_the_timeout(endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    server = endpoint(lambda request: after(5, say("too late")))
    ran = run_generate(
        make_pair(chats=2, questions=2), server.base_url, "--timeout", "0.6", "--max-retries", "2", "--no-stream"
    )
    assert ran.rc == 0
    assert len(ran.errors) == 4
    assert server.wait_until(lambda: len(server.requests) >= 8)  # the last may be read when its client has left
    assert len(server.requests) == 8
    assert "Traceback" not in ran.err


def padded(seconds: float, step: bytes) -> Iterator[bytes]:
    for _ in range(int(seconds / 0.1)):
        yield step


@pytest.mark.parametrize("flag", ["--stream", "--no-stream"])
@pytest.mark.parametrize(
    ("step", "last"),
    [
        pytest.param(b"\n", json.dumps(completion("abc")).encode(), id="17-blank-lines"),
        pytest.param(
            b": ping\n\n", b'data: {"choices":[{"message":{"content":"abc"}}]}\n\ndata: [DONE]\n\n', id="17-pings"
        ),
    ],
)
def test_signs_of_life_longer_than_the_timeout(
    step: bytes, last: bytes, flag: str, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(lambda request: pieces([*padded(2.4, step), last], pause=0.1))
    ran = run_generate(make_pair(), server.base_url, "--timeout", "2", flag)
    assert [row["response"] for row in ran.rows] == ["abc"]
    assert len(server.requests) == 1


@pytest.mark.parametrize("step", [b"\n", b": ping\n\n"], ids=["17-blank-lines", "17-pings"])
def test_signs_of_life_for_ever_are_bounded(
    step: bytes, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    script = always(pieces(itertools.repeat(step), pause=0.05), "1.1?")
    ran = run_generate(make_pair(questions=3), endpoint(script).base_url, "--timeout", "1.2", "--max-retries", "1")
    assert ran.rc == 0
    assert len(ran.rows) == 3
    assert ran.errors == ["no whole reply within 3.6 s"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(sse([chunk("abc"), END, "[DONE]"], ending="hang"), id="18-open-after-done"),
        pytest.param(sse([chunk("abc"), END], ending="hang"), id="18-open-after-finish"),
        pytest.param(sse([chunk("abc"), END], ending="reset"), id="18-reset-after-finish"),
        pytest.param(pieces(itertools.chain([b"data: [DONE]\n"]), then="hang"), id="18-nothing-but-done"),
    ],
)
def test_connections_left_open(
    answer: Answer, endpoint: Serve, make_pair: MakePair, run_generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam_endpoint, "AFTER_FINISH_SECONDS", 0.3)
    server = endpoint(lambda request: answer if request.number == 0 else say("abc"))
    ran = run_generate(make_pair(), server.base_url)  # the timeout is an hour
    assert [row["response"] for row in ran.rows] == ["abc"]


# --- Base URL and proxy ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        pytest.param("{host}", id="16-host"),
        pytest.param("{host}/", id="16-host-slash"),
        pytest.param("{host}/v1", id="16-v1"),
        pytest.param("{host}/v1/", id="16-v1-slash"),
        pytest.param("{host}/v1//", id="16-v1-slashes"),
        pytest.param("{host}/v1/chat/completions", id="16-whole-path"),
        pytest.param("{host}/v1/chat/completions/", id="16-whole-path-slash"),
        pytest.param("{host}/v1 ", id="16-trailing-blank"),
        pytest.param(" {host}/v1\n", id="16-blanks"),
        pytest.param("HTTP://LocalHost:{port}/v1", id="16-capitals"),
    ],
)
def test_base_url_forms_mean_the_same(
    form: str, endpoint: Serve, make_pair: MakePair, run_generate: Generate, run_judge: Judge
) -> None:
    server = endpoint()
    host = server.base_url.removesuffix("/v1")
    url = form.format(host=host, port=server.server_address[1])
    ran = run_generate(make_pair(), url)
    assert ran.rc == 0
    assert run_judge(ran.output, url).rc == 0
    assert {request.path for request in server.requests} == {"/v1/chat/completions"}


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("localhost:8000/v1", id="16-no-scheme"),
        pytest.param("127.0.0.1:8000", id="16-only-address"),
        pytest.param("ftp://localhost/v1", id="16-other-scheme"),
        pytest.param("http:///v1", id="16-no-host"),
        pytest.param("http://local host/v1", id="16-blank-inside"),
        pytest.param("http://localhost:port/v1", id="16-port-no-number"),
        pytest.param("http://localhost:99999/v1", id="16-port-too-high"),
        pytest.param("http://[::1/v1", id="16-bracket"),
        pytest.param("v1", id="16-path-only"),
    ],
)
def test_bad_base_urls_are_said_before_anything_is_sent(url: str, make_pair: MakePair, run_generate: Generate) -> None:
    ran = run_generate(make_pair(), url)
    assert ran.rc == 2
    assert "--base-url" in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not ran.output.exists()


def test_23_failure_names_the_proxy(
    closed_port: socket.socket, endpoint: Serve, make_pair: MakePair, run_generate: Generate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    server = endpoint()
    proxy = url_of(closed_port).removesuffix("/v1")
    monkeypatch.setenv("HTTP_PROXY", proxy)
    pair = make_pair()
    ran = run_generate(pair, server.base_url, "--max-retries", "1")
    assert len(ran.errors) == 1
    assert proxy in ran.errors[0]
    assert "NO_PROXY" in ran.errors[0]
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert run_generate(pair, server.base_url, "--retry-errors").rc == 0
    assert len(server.requests) == 1


def test_23_page_of_a_proxy_stops_and_names_it(
    endpoint: Serve, make_pair: MakePair, run_generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = endpoint(lambda request: status(200, PAGE, content_type="text/html"))
    monkeypatch.setenv("http_proxy", proxy.base_url.removesuffix("/v1"))
    ran = run_generate(make_pair(), "http://localhost:9/v1")
    assert ran.rc == 1
    assert f"through the proxy {proxy.base_url.removesuffix('/v1')}" in ran.err


def test_23_unusable_proxy(make_pair: MakePair, run_generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "carrier-pigeon://127.0.0.1:9")
    ran = run_generate(make_pair(), "http://localhost:9/v1")
    assert ran.rc == 2
    assert "ALL_PROXY" in ran.err
    assert not ran.rows


# --- Order of requests ----------------------------------------------------------------------------------------------


def held(server: Callable[[], ScriptedEndpoint], before: list[Any], piece: dict[str, Any], seen: list[int]) -> Answer:
    """A reply whose pieces before the first one bring no follower, and which does not end before the followers came."""

    def events() -> Iterator[Any]:
        for event in before:
            yield event
            time.sleep(0.1)
            seen.append(len(server().requests))
        yield piece
        assert server().wait_until(lambda: len(server().requests) >= 4, PATIENCE)
        yield END

    return sse(events())


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        pytest.param([], chunk("a"), id="content"),
        pytest.param([chunk("", role="assistant"), b": ping\n\n"], chunk("a"), id="role-and-comment-first"),
        pytest.param([{"choices": []}], chunk(reasoning_content="hm"), id="reasoning-content"),
        pytest.param([chunk("")], chunk(reasoning="hm"), id="reasoning"),
    ],
)
def test_order_followers_go_after_the_first_piece(
    before: list[Any], piece: dict[str, Any], endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    seen: list[int] = []

    def script(request: Recorded) -> Answer | None:
        return held(lambda: server, before, piece, seen) if request.number == 0 else None

    server = endpoint(script)
    ran = run_generate(make_pair(chats=1, questions=4), server.base_url, "--concurrency", "4")
    assert ran.rc == 0
    assert seen == [1] * len(before)
    assert len(ran.rows) == 4


@pytest.mark.parametrize(
    ("flags", "answer"),
    [
        pytest.param(["--no-stream"], after(0.3, say("whole")), id="no-stream"),
        pytest.param([], after(0.3, say("whole", stream=False)), id="stream-ignored"),
        pytest.param(["--no-stream"], pieces([b" "] * 3 + [json.dumps(completion("w")).encode()], 0.1), id="padded"),
    ],
)
def test_order_followers_go_after_a_whole_reply(
    flags: list[str], answer: Answer, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(lambda request: answer if request.number == 0 else None)
    ran = run_generate(make_pair(chats=1, questions=4), server.base_url, *flags)
    assert ran.rc == 0
    opener, *followers = server.requests
    assert opener.answered
    assert len(followers) == 3
    assert all(request.received >= opener.answered for request in followers)


@pytest.mark.parametrize("flag", ["--stream", "--no-stream"])
def test_order_while_a_failed_opener_waits_the_next_question_opens(
    flag: str, endpoint: Serve, make_pair: MakePair, run_generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam_run, "WAITS", replace(launcher.QUICK_WAITS, first=2.0, longest=2.0))

    def script(request: Recorded) -> Answer | None:
        if request.number == 0:
            return status(503)
        return after(0.2, say("opened")) if request.number == 1 else None

    server = endpoint(script)
    ran = run_generate(make_pair(chats=1, questions=4), server.base_url, "--concurrency", "4", flag)
    assert ran.rc == 0
    assert not ran.errors
    assert asked(server)[:2] == ["1.0?", "1.1?"]
    assert sorted(asked(server)[2:4]) == ["1.2?", "1.3?"]
    assert asked(server)[4] == "1.0?"
    failed, opener, *followers = server.requests
    assert opener.answered
    assert followers[-1].received - (failed.answered or 0) >= 1.5  # the wait, less its jitter
    if flag == "--no-stream":
        assert all(request.received >= opener.answered for request in followers)


def test_waiting_attempt_occupies_no_place(
    endpoint: Serve, make_pair: MakePair, run_generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam_run, "WAITS", replace(launcher.QUICK_WAITS, first=40.0, longest=40.0))
    skipped = 0.0
    monkeypatch.setattr(beam_run, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + skipped))
    fail_first = at_first(status(503))

    def script(request: Recorded) -> Answer | None:
        nonlocal skipped
        if question_of(request) == "2.1?":
            skipped = 40.0  # the wait is over, whatever time the others took
        return fail_first(request)

    server = endpoint(script)
    ran = run_generate(make_pair(chats=2, questions=2), server.base_url, "--concurrency", "1")
    assert asked(server) == ["1.0?", "1.1?", "2.0?", "2.1?", "1.0?"]
    assert named(ran.rows) == ["1.1?", "2.0?", "2.1?", "1.0?"]


def test_order_oldest_chat_first(endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    server = endpoint()
    run_generate(make_pair(chats=3, questions=3), server.base_url, "--concurrency", "1", "--open-chats", "3")
    assert asked(server) == [f"{chat}.{n}?" for chat in (1, 2, 3) for n in range(3)]


@pytest.mark.parametrize("open_chats", [1, 2, 3])
def test_order_open_chats(open_chats: int, endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    checked = threading.Event()

    def script(request: Recorded) -> Answer | None:
        if request.number < open_chats:  # the openers: none gives a piece before all are there and no more come
            assert server.wait_until(lambda: len(server.requests) >= open_chats, PATIENCE)
            if request.number == 0:
                assert not server.wait_until(lambda: len(server.requests) > open_chats, 0.3)
                checked.set()
            assert checked.wait(PATIENCE)
        return None

    server = endpoint(script)
    ran = run_generate(make_pair(chats=5, questions=3), server.base_url, "--open-chats", str(open_chats))
    assert ran.rc == 0
    assert sorted(asked(server)[:open_chats]) == [f"{chat}.0?" for chat in range(1, open_chats + 1)]
    assert len(ran.rows) == 15


def test_order_a_new_chat_opens_when_all_questions_of_another_are_sent(
    endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    def script(request: Recorded) -> Answer | None:
        if question_of(request) == "1.1?":  # sent, but not answered before the next chat has opened
            assert server.wait_until(lambda: "2.0?" in asked(server), PATIENCE)
        return None

    server = endpoint(script)
    ran = run_generate(make_pair(chats=2, questions=2), server.base_url, "--open-chats", "1")
    assert ran.rc == 0


def test_order_first_remaining_question_opens_on_a_resume(
    endpoint: Serve, make_pair: MakePair, run_generate: Generate, tmp_path: Path
) -> None:
    write_lines(tmp_path / "answers.jsonl", [answer_rows(1, 3)[n] for n in (0, 2)])
    server = endpoint(lambda request: after(0.3, say("opened", stream=False)) if request.number == 0 else None)
    ran = run_generate(make_pair(chats=1, questions=5), server.base_url)
    assert ran.rc == 0
    opener, *followers = server.requests
    assert question_of(opener) == "1.1?"
    assert sorted(map(question_of, followers)) == ["1.3?", "1.4?"]
    assert all(request.received >= (opener.answered or 0) for request in followers)


def test_order_one_uncached_request_for_each_chat(endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    server = endpoint()
    ran = run_generate(make_pair(chats=4, questions=5, rounds=50), server.base_url)
    assert ran.rc == 0
    assert "cached share of the prompt tokens: 7" in ran.out or "cached share of the prompt tokens: 8" in ran.out


OPENERS = {"38-opener-fails": status(503), "38-opener-hangs": hang(), "38-opener-hangs-in-its-stream": sse([], "hang")}


@pytest.mark.parametrize("answer", OPENERS.values(), ids=OPENERS.keys())
@pytest.mark.parametrize("chats", [1, 2])
def test_opener_that_fails_for_ever(
    answer: Answer, chats: int, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(always(answer))
    ran = run_generate(
        make_pair(chats=chats, questions=4), server.base_url, "--timeout", "1", "--max-retries", "2",
        "--concurrency", "4", "--open-chats", "1",
    )  # fmt: skip
    assert ran.rc == 0
    assert len(ran.rows) == 4 * chats
    assert [row["question"] for row in ran.rows if row["error"] is not None] == ["1.0?"]
    assert ran.rows[-1]["question"] == "1.0?"
    assert all(count == 1 for question, count in Counter(asked(server)).items() if question != "1.0?")


# --- Outages --------------------------------------------------------------------------------------------------------


@dataclass
class Outage:
    """All requests fail from the `start`-th on, until so many have failed."""

    start: int
    failures: int
    answer: Answer = status(503)  # noqa: RUF009 (it is frozen)
    begins: threading.Event | None = None  # not before this

    def __call__(self, request: Recorded) -> Answer | None:
        if not self.start <= request.number < self.start + self.failures:
            return None
        assert self.begins is None or self.begins.wait(PATIENCE)
        return self.answer


@pytest.fixture
def first_saved(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once an answer is on the disk: what fails before may stop the run, as if nothing had been answered."""
    return done_by_the_run(monkeypatch, "_count")


@pytest.mark.parametrize("concurrency", ["1", "4", "16"])
@pytest.mark.parametrize(
    ("chats", "questions", "start", "failures"),
    [
        pytest.param(3, 20, 6, 70, id="41-in-the-middle"),
        pytest.param(30, 2, 3, 70, id="41-many-chats"),
        pytest.param(1, 8, 4, 3, id="41-short-and-few-left"),
        pytest.param(1, 6, 3, 5, id="41-all-attempts-but-one"),
    ],
)
def test_outage_costs_no_answer(
    chats: int, questions: int, start: int, failures: int, concurrency: str, endpoint: Serve, make_pair: MakePair,
    run_generate: Generate, first_saved: threading.Event,
) -> None:  # fmt: skip
    server = endpoint(Outage(start, failures, begins=first_saved))
    ran = run_generate(
        make_pair(chats=chats, questions=questions), server.base_url, "--max-retries", "2", "--concurrency", concurrency
    )
    assert ran.rc == 0
    assert not ran.errors
    assert sorted(named(ran.rows)) == sorted(f"{c}.{n}?" for c in range(1, chats + 1) for n in range(questions))


def test_41_success_that_overtakes_the_last_failures(
    endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    """The endpoint is back when the last questions' last attempts are still being refused: they are asked again."""

    def script(request: Recorded) -> Answer | None:
        if request.number in (6, 7):
            return after(0.5, status(503))  # both land when number 8 has been answered
        return status(503) if 3 <= request.number < 6 else None

    server = endpoint(script)
    ran = run_generate(make_pair(chats=1, questions=6), server.base_url, "--max-retries", "2", "--concurrency", "16")
    assert ran.rc == 0
    assert not ran.errors
    assert len(ran.rows) == 6


def test_41_outage_costs_few_attempts(
    endpoint: Serve, make_pair: MakePair, run_generate: Generate, first_saved: threading.Event
) -> None:
    """Questions that were never sent wait for the end of an outage instead of using up their attempts in it."""
    server = endpoint(Outage(5, 60, begins=first_saved))
    ran = run_generate(make_pair(chats=4, questions=25), server.base_url, "--max-retries", "3", "--concurrency", "4")
    assert ran.rc == 0
    assert not ran.errors
    failed = set(asked(server)[5:65])
    assert len(failed) <= 60 / 3 + 10


@pytest.mark.parametrize("concurrency", ["4", "8", "16"])
def test_41_outage_that_lasts(
    concurrency: str,
    endpoint: Serve,
    make_pair: MakePair,
    run_generate: Generate,
    monkeypatch: pytest.MonkeyPatch,
    first_saved: threading.Event,
) -> None:
    """Five times as long as the attempts of a question; what was sent before it is still answered while it has begun."""
    monkeypatch.setattr(beam_run, "WAITS", replace(launcher.QUICK_WAITS, first=0.2, longest=0.8))
    began: list[float] = []

    def script(request: Recorded) -> Answer | None:
        if request.number >= 6:
            assert first_saved.wait(PATIENCE)
            began.append(time.monotonic())
            if time.monotonic() - began[0] < 1.0:
                return status(503)
        return after(0.05, say("yes"))

    ran = run_generate(
        make_pair(chats=2, questions=20), endpoint(script).base_url, "--max-retries", "2", "--concurrency", concurrency
    )
    assert ran.rc == 0
    assert not ran.errors
    assert len(ran.rows) == 40


def test_41_second_chances_open_their_chats_one_by_one(
    endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    """Those that an outage used up are asked at the end, grouped by chat, an opener first."""
    tried: Counter[str] = Counter()

    def script(request: Recorded) -> Answer | None:
        question = question_of(request)
        tried[question] += 1
        if question in ("1.1?", "1.2?", "1.3?", "2.1?", "2.2?") and tried[question] <= 2:
            return status(503)
        if question == "2.0?":  # the first chat is sent as a whole before the other one: 2.4 is the last to be sent
            assert server.wait_until(lambda: {f"1.{n}?" for n in range(5)} <= set(asked(server)), PATIENCE)
        if question == "2.4?":  # the last one to succeed
            assert server.wait_until(lambda: len(server.requests) >= 15, PATIENCE)
            return after(0.2, say("yes"))
        return after(0.1, say("yes", stream=False)) if tried[question] == 3 else None

    server = endpoint(script)
    ran = run_generate(make_pair(chats=2, questions=5), server.base_url, "--max-retries", "2", "--concurrency", "8")
    assert ran.rc == 0
    assert not ran.errors
    last = [request for number, request in enumerate(server.requests) if asked(server)[:number].count(
        question_of(request)) == 2]  # fmt: skip
    assert sorted(map(question_of, last)) == ["1.1?", "1.2?", "1.3?", "2.1?", "2.2?"]
    for chat in "12":
        opener, *followers = (request for request in last if question_of(request).startswith(chat))
        assert all(request.received >= (opener.answered or 0) for request in followers)
    assert "recovered" in ran.err


def test_41_second_chance_is_one(endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    def tried(question: str) -> int:
        return asked(server).count(question)

    def script(request: Recorded) -> Answer | None:
        match question_of(request):
            case "1.0?":
                return status(503)
            case "2.0?" if tried("2.0?") <= 2:
                return status(503)
            case "2.0?":  # succeeds after the second chance of 1.0 is used up
                assert server.wait_until(lambda: tried("1.0?") == 4, PATIENCE)
                return after(0.3, say("yes"))
            case "3.0?":  # succeeds after the attempts of both are used up
                assert server.wait_until(lambda: tried("1.0?") == tried("2.0?") == 2, PATIENCE)
                return after(0.3, say("yes"))
        return None

    server = endpoint(script)
    ran = run_generate(make_pair(chats=3, questions=2), server.base_url, "--max-retries", "2", "--open-chats", "3")
    assert ran.rc == 0
    assert Counter(asked(server)) == {"1.0?": 4, "2.0?": 3, "1.1?": 1, "2.1?": 1, "3.0?": 1, "3.1?": 1}
    assert ran.errors == ["HTTP 503: scripted 503"]


NEVER = {
    "41-never-503": status(503),
    "41-never-429": status(429),
    "41-never-closed": drop(),
    "41-never-no-choices": status(200, {"choices": []}),
}


@pytest.mark.parametrize("answer", NEVER.values(), ids=NEVER.keys())
@pytest.mark.parametrize("concurrency", ["1", "4", "16"])
def test_endpoint_that_never_answers(
    answer: Answer, concurrency: str, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(lambda request: answer)
    pair = make_pair(chats=3, questions=10)
    ran = run_generate(pair, server.base_url, "--max-retries", "3", "--concurrency", concurrency)
    assert ran.rc == 1
    assert len(ran.rows) == len(ran.errors) == 10
    assert set(Counter(asked(server)).values()) == {3}
    assert len(server.requests) == 30
    assert "20 left" in ran.err
    assert "--stop-after-failures" in ran.err
    server.script = None
    assert run_generate(pair, server.base_url, "--retry-errors").rc == 0
    assert len(server.requests) == 60


def test_41_never_answers_but_takes_requests(endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    server = endpoint(lambda request: hang())
    flags = ["--max-retries", "2", "--timeout", "0.6", "--open-chats", "5"]
    ran = run_generate(make_pair(chats=5, questions=4), server.base_url, *flags)
    assert ran.rc == 1
    assert len(ran.errors) == 10
    assert server.wait_until(lambda: len(server.requests) >= 20)  # the last may be read when its client has left
    assert set(Counter(asked(server)).values()) == {2}


def test_41_never_answers_with_a_question_a_chat(endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    """No more chats are opened than would stop the run: ten are recorded, each after all its attempts."""
    server = endpoint(lambda request: status(503))
    flags = ["--max-retries", "3", "--concurrency", "10"]  # more might be sent before the first has failed
    ran = run_generate(make_pair(chats=30, questions=1), server.base_url, *flags)
    assert ran.rc == 1
    assert len(ran.rows) == len(ran.errors) == 10
    requests = Counter(asked(server))
    assert all(requests[question] == 3 for question in named(ran.rows))
    assert max(requests.values()) == 3
    assert len(requests) == 10


def test_41_never_answers_but_must_not_stop(endpoint: Serve, make_pair: MakePair, run_generate: Generate) -> None:
    server = endpoint(lambda request: status(503))
    flags = ["--max-retries", "2", "--stop-after-failures", "0"]
    ran = run_generate(make_pair(chats=3, questions=5), server.base_url, *flags)
    assert ran.rc == 0
    assert len(ran.errors) == 15
    assert set(Counter(asked(server)).values()) == {2}


@pytest.mark.parametrize("answer", [status(400), status(503)], ids=["refused", "never-answered"])
@pytest.mark.parametrize("limit", [1, 3])
def test_stop_after_failures(
    answer: Answer, limit: int, endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(lambda request: answer)
    flags = ["--stop-after-failures", str(limit), "--concurrency", "1", "--max-retries", "2"]
    ran = run_generate(make_pair(chats=2, questions=5), server.base_url, *flags)
    assert ran.rc == 1
    assert len(ran.errors) == limit
    assert f"{10 - limit} left" in ran.err


def test_one_answer_among_the_first_failures_and_the_run_goes_on(
    endpoint: Serve, make_pair: MakePair, run_generate: Generate
) -> None:
    server = endpoint(lambda request: None if request.number == 9 else status(400))
    ran = run_generate(make_pair(chats=2, questions=10), server.base_url, "--concurrency", "1")
    assert ran.rc == 0
    assert len(ran.errors) == 19


# --- The judge ------------------------------------------------------------------------------------------------------


def test_41_outage_of_the_judge_costs_no_score(endpoint: Serve, tmp_path: Path, run_judge: Judge) -> None:
    server = endpoint(Outage(6, 40))
    answers = write_lines(tmp_path / "answers.jsonl", answer_rows(4, 6, rubric=["one", "two"]))
    ran = run_judge(answers, server.base_url, "--max-retries", "2", "--concurrency", "4")
    assert ran.rc == 0
    assert len(ran.rows) == 24
    assert "failed calls: 0" in re.sub(" +", " ", ran.out)


@pytest.mark.parametrize("concurrency", ["1", "4", "32"])
def test_41_judge_that_never_answers(concurrency: str, endpoint: Serve, tmp_path: Path, run_judge: Judge) -> None:
    server = endpoint(lambda request: status(503))
    answers = write_lines(tmp_path / "answers.jsonl", answer_rows(5, 5, rubric=["one", "two"]))
    ran = run_judge(answers, server.base_url, "--max-retries", "2", "--concurrency", concurrency)
    assert ran.rc == 1
    assert len(ran.rows) == 10
    assert "15 answers left" in ran.err
    server.script = None
    assert run_judge(answers, server.base_url, "--retry-errors").rc == 0
    assert len(read_rows(tmp_path / "scores.jsonl")) == 25


def test_judge_question_with_a_failed_call_counts_it(endpoint: Serve, tmp_path: Path, run_judge: Judge) -> None:
    def script(request: Recorded) -> Answer | None:
        failing_call = judged(request) == "1.0?" and criterion_of(request) == "two"
        return status(503) if failing_call else say('{"score": 1.0}')

    server = endpoint(script)
    answers = write_lines(tmp_path / "answers.jsonl", answer_rows(1, 3, rubric=["one", "two"]))
    ran = run_judge(answers, server.base_url, "--max-retries", "2")
    assert ran.rc == 0
    assert {row["question_index"]: row["score"] for row in ran.rows} == {0: 0.5, 1: 1.0, 2: 1.0}
    assert "failed calls: 1" in re.sub(" +", " ", ran.out)
    assert len(server.requests) in (5 + 2, 5 + 4)
    before = len(server.requests)
    server.script = lambda request: say('{"score": 1.0}')
    ran = run_judge(answers, server.base_url, "--retry-errors")  # only the call that failed is made again
    assert len(server.requests) == before + 1
    assert [row["score"] for row in ran.rows] == [1.0] * 3


def test_11_judge_that_hangs_on_one_call(endpoint: Serve, tmp_path: Path, run_judge: Judge) -> None:
    server = endpoint(lambda request: hang() if judged(request) == "1.1?" else None)
    answers = write_lines(tmp_path / "answers.jsonl", answer_rows(1, 4))
    ran = run_judge(answers, server.base_url, "--timeout", "0.5", "--max-retries", "2")
    assert ran.rc == 0
    assert len(ran.rows) == 4
    assert "failed calls: 1" in re.sub(" +", " ", ran.out)
