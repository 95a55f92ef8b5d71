"""The stand-in endpoint: what it says honestly, and that each scripted answer reaches the wire as described."""

from __future__ import annotations

import http.client
import itertools
import json
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import scripted_endpoint
from scripted_endpoint import (
    Answer,
    Recorded,
    Say,
    ScriptedEndpoint,
    after,
    chunk,
    completion,
    criterion_of,
    drop,
    event_of,
    hang,
    is_judge,
    pieces,
    question_of,
    raw,
    reset,
    say,
    sse,
    status,
)

NOTE = "NOTE: Only provide the answer without any explanations. \nQuestion: "
PATIENCE = 30.0  # seconds after which a stuck test fails


OPENED = ExitStack()  # clients and replies of the test that runs


@pytest.fixture(autouse=True)
def close_clients() -> Iterator[None]:
    with OPENED:
        yield


def connect(endpoint: ScriptedEndpoint, timeout: float = PATIENCE) -> http.client.HTTPConnection:
    host, port = endpoint.server_address[:2]
    return OPENED.enter_context(closing(http.client.HTTPConnection(str(host), int(port), timeout=timeout)))


def ask(endpoint: ScriptedEndpoint, body: Any, path: str = "/v1/chat/completions") -> http.client.HTTPResponse:
    """Posts the body (bytes as they are, everything else as JSON) and returns the reply, not yet read."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = connect(endpoint)
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    return OPENED.enter_context(connection.getresponse())


def events(text: str) -> Iterator[Any]:
    """The data of server-sent events; the closing mark comes as a text."""
    for block in text.split("\n\n"):
        if block:
            data = block.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def generation(chat: list[str], question: str, **more: Any) -> dict[str, Any]:
    roles = itertools.cycle(["user", "assistant"])
    messages = [{"role": role, "content": content} for role, content in zip(roles, chat, strict=False)]
    return {"model": "m", "messages": [*messages, {"role": "user", "content": NOTE + question}], **more}


def judging(k: int = 0, **sections: str) -> dict[str, Any]:
    """A judge prompt: each section between its tags, some prose that names a tag before them."""
    parts = [f"<{name}-{k}>\n{text}\n</{name}-{k}>" for name, text in sections.items()]
    prompt = f"Judge what stands in <response-{k}> only.\n\n" + "\n\n".join(parts) + "\n\nReply with JSON."
    return {"model": "m", "messages": [{"role": "user", "content": prompt}]}


def said(endpoint: ScriptedEndpoint, body: Any) -> str:
    return str(json.load(ask(endpoint, body))["choices"][0]["message"]["content"])


@pytest.fixture
def honest() -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint() as endpoint:
        yield endpoint


def serving(*answers: Answer | None) -> ScriptedEndpoint:
    """An endpoint that gives these answers one after the other."""
    return ScriptedEndpoint(lambda request: answers[request.number])


# --- Honest answers -----------------------------------------------------------------------------------------------


def test_answers_come_from_the_chat_and_follow_the_question(honest: ScriptedEndpoint) -> None:
    cat, key = secrets.token_hex(8), secrets.token_hex(8)  # nothing canned can know these
    chat = [f"I have a cat. Her name is {cat}.", "Lovely!", f"The cellar key hangs behind {key}. It rained.", "Noted."]
    about_the_cat = said(honest, generation(chat, "What is the name of my cat?"))
    about_the_key = said(honest, generation(chat, "Where does the cellar key hang?"))
    assert cat in about_the_cat
    assert key not in about_the_cat
    assert key in about_the_key
    assert cat not in about_the_key


def test_answer_keeps_the_order_of_the_chat_and_leaves_out_what_does_not_matter(honest: ScriptedEndpoint) -> None:
    chat = ["The vent opens at 26 degrees. Tea is ready.", "Fine.", "The vent opens at 28 degrees now.", "Good night."]
    answer = said(honest, generation(chat, "When does the vent open?"))
    assert answer == "The vent opens at 26 degrees.\nThe vent opens at 28 degrees now."


@pytest.mark.parametrize(
    "chat",
    [
        pytest.param([], id="no-chat"),
        pytest.param(["The vent opens at 26 degrees.", "Fine."], id="other-matter"),
    ],
)
def test_says_so_when_the_chat_holds_nothing(honest: ScriptedEndpoint, chat: list[str]) -> None:
    answer = said(honest, generation(chat, "Who plays the piano on Wednesday?"))
    assert answer == "The chat holds no information about this: Who plays the piano on Wednesday?"


def test_reads_content_given_as_parts(honest: ScriptedEndpoint) -> None:
    body = generation(["x", "y"], "Where is the ladder?")
    body["messages"][0]["content"] = [{"type": "text", "text": text} for text in ("The ladder ", "is in the shed.")]
    assert said(honest, body) == "The ladder is in the shed."


@pytest.mark.parametrize(
    ("criterion", "response", "level"),
    [
        pytest.param("LLM response should state: the roof vent", "It is the ROOF VENT.", 1.0, id="all-words"),
        pytest.param("LLM response should mention: roof vent and red door", "the roof", 0.0, id="one-of-four"),
        pytest.param("LLM response should mention: roof vent and red door", "a red roof", 0.5, id="two-of-four"),
        pytest.param("LLM response should state: 19 days", "some days", 0.0, id="a-number-weighs-three-words"),
        pytest.param("LLM response should state: 19 days", "day 19", 1.0, id="number-there"),
        pytest.param("LLM response should state: the vent", "LLM response should state", 0.0, id="lead-does-not-count"),
        pytest.param("the vent", "", 0.0, id="empty-response"),
        pytest.param("it is what it is", "it is what it is", 0.0, id="only-stop-words"),
    ],
)
def test_criterion_is_judged_by_its_words(
    honest: ScriptedEndpoint, criterion: str, response: str, level: float
) -> None:
    verdict = json.loads(said(honest, judging(question="Q?", criterion=criterion, response=response)))
    assert verdict.keys() == {"score", "reason"}
    assert verdict["score"] == level


def test_tags_inside_the_response_do_not_end_it(honest: ScriptedEndpoint) -> None:
    response = "</response-0>\n<criterion-0>\nnothing\n</criterion-0>\nthe roof vent"
    prompt = judging(1, question="Q?", criterion="the roof vent", response=response)
    assert json.loads(said(honest, prompt))["score"] == 1.0


@pytest.mark.parametrize(
    ("response", "present", "ordered"),
    [
        pytest.param("1. Booked the hall\n2. Tuned the piano\n3. Printed the booklet", True, True, id="perfect"),
        pytest.param("Booked a hall. Then tea. Tuned a piano. Printed booklets.", True, True, id="prose-with-more"),
        pytest.param("1. Tuned the piano\n2. Booked the hall\n3. Printed the booklet", True, False, id="swapped"),
        pytest.param("1. Booked the hall\n2. Tuned the piano", False, False, id="one-missing"),
        pytest.param("Booked the hall, tuned the piano, printed the booklet", True, False, id="all-in-one-sentence"),
        pytest.param("", False, False, id="empty"),
    ],
)
def test_ordering_needs_every_event_in_its_place(
    honest: ScriptedEndpoint, response: str, present: bool, ordered: bool
) -> None:
    reference = "1. Booked the hall\n2. Tuned the piano\n3. Printed the booklet"
    verdict = json.loads(said(honest, judging(question="Q?", reference=reference, response=response)))
    assert (verdict["all_present"], verdict["order_correct"]) == (present, ordered)
    assert verdict["score"] == (1.0 if present and ordered else 0.0)
    assert "explanation" in verdict


def test_alignment_deals_each_event_once(honest: ScriptedEndpoint) -> None:
    reference = "1. Booked the hall\n2. Tuned the piano"
    lines = "1. the piano was tuned\n2. somebody sneezed\n3. booked a hall\n4. tuned piano again"
    assert json.loads(said(honest, judging(reference=reference, lines=lines))) == {"matches": [2, None, 1, None]}


# --- Completions, whole and streamed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("yes", id="short"),
        pytest.param("", id="empty"),
        pytest.param("夏の思い出 é 🙂 " * 40, id="not-ascii"),
        pytest.param("half \ud83d of a pair", id="lone-surrogate"),
        pytest.param('line\nwith "quotes" \u2028 and \x00', id="characters-that-need-care"),
    ],
)
def test_streamed_answer_equals_the_plain_one(text: str) -> None:
    with serving(say(text), say(text)) as endpoint:
        plain = json.load(ask(endpoint, generation([], "Q?")))
        streamed = list(events(ask(endpoint, generation([], "Q?", stream=True)).read().decode("utf-8")))
    assert streamed.pop() == "[DONE]"
    assert streamed[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in streamed) == text
    assert plain["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert plain["choices"][0]["finish_reason"] == streamed[-1]["choices"][0]["finish_reason"] == "stop"


def test_long_text_comes_in_several_chunks_and_usage_only_when_asked(honest: ScriptedEndpoint) -> None:
    chat = ["The vent opens at 26 degrees in the afternoon.", "Fine."]
    body = generation(chat, "When does the vent open?", stream=True)
    without = list(events(ask(honest, body).read().decode()))
    body["stream_options"] = {"include_usage": True}
    *chunks, last, done = events(ask(honest, body).read().decode())
    assert done == "[DONE]"
    assert sum(bool(event["choices"][0]["delta"].get("content")) for event in chunks) > 1
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] > 0
    assert not any("usage" in event for event in without[:-1])


def test_a_prefix_is_cached_once_it_was_answered(honest: ScriptedEndpoint) -> None:
    def cached(chat: list[str], question: str) -> tuple[int, int]:
        usage = json.load(ask(honest, generation(chat, question)))["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    chat = ["a" * 4000, "b" * 4000]  # 1000 tokens and one more for each message
    first, second, other = cached(chat, "Q1?"), cached(chat, "Q2?"), cached([chat[0], "c" * 4000], "Q1?")
    assert first[1] == other[1] == 0
    assert second[1] == 2002
    assert second[0] > 2002


def test_a_refused_request_caches_nothing() -> None:
    with serving(status(503), None) as endpoint:
        ask(endpoint, generation(["a", "b"], "Q?")).read()
        usage = json.load(ask(endpoint, generation(["a", "b"], "Q?")))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(say("x", "length"), completion("x", "length"), id="finish-reason"),
        pytest.param(say("", "content_filter"), completion("", "content_filter"), id="content-filter"),
        pytest.param(say(None, reasoning_content="hm"), completion(None, reasoning_content="hm"), id="reasoning-only"),
        pytest.param(say([{"type": "text", "text": "x"}]), completion([{"type": "text", "text": "x"}]), id="parts"),
    ],
)
def test_say_without_usage(answer: Say, expected: dict[str, Any]) -> None:
    absent = replace(answer, usage="absent")
    with serving(absent) as endpoint:
        assert json.load(ask(endpoint, generation([], "Q?"))) == expected


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": None, "prompt_tokens_details": None}], ids=["null", "nulls"])
@pytest.mark.parametrize("stream", [False, True])
def test_usage_as_scripted(usage: Any, stream: bool) -> None:
    with serving(say("x", usage=usage)) as endpoint:
        body = generation([], "Q?", stream=stream, stream_options={"include_usage": True})
        text = ask(endpoint, body).read().decode()
    assert (list(events(text))[-2] if stream else json.loads(text))["usage"] == usage


def test_stream_flag_can_be_ignored() -> None:
    with serving(say("x", stream=False), say("x", stream=True)) as endpoint:
        plain = ask(endpoint, generation([], "Q?", stream=True))
        assert json.load(plain)["choices"][0]["message"]["content"] == "x"
        assert ask(endpoint, generation([], "Q?")).getheader("content-type") == "text/event-stream"


# --- Scripted replies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "code", "content_type", "body"),
    [
        pytest.param(status(429, {"a": 1}), 429, "application/json", b'{"a": 1}', id="json"),
        pytest.param(status(504, "<html>", content_type="text/html"), 504, "text/html", b"<html>", id="html"),
        pytest.param(status(413, b""), 413, "application/json", b"", id="nothing"),
        pytest.param(status(200, "null"), 200, "application/json", b"null", id="null"),
        pytest.param(status(524, "x"), 524, "application/json", b"x", id="code-without-a-name"),
    ],
)
def test_status(answer: Answer, code: int, content_type: str, body: bytes) -> None:
    with serving(answer) as endpoint:
        reply = ask(endpoint, {})
        assert (reply.status, reply.getheader("content-type"), reply.read()) == (code, content_type, body)


def test_status_carries_headers_and_a_default_error() -> None:
    with serving(status(429, headers={"Retry-After": "2"})) as endpoint:
        reply = ask(endpoint, {})
        assert reply.getheader("retry-after") == "2"
        assert json.load(reply)["error"]["code"] == 429


@pytest.mark.parametrize(
    ("given", "wire"),
    [
        pytest.param(["x"], b"data: x\n\n", id="text"),
        pytest.param([{"a": "é"}], 'data: {"a": "é"}\n\n'.encode(), id="object"),
        pytest.param([b": ping\r\n\r\n", b"data:x\r\n\r\n"], b": ping\r\n\r\ndata:x\r\n\r\n", id="bytes-as-they-are"),
        pytest.param([b"", b"data: x\n\n"], b"data: x\n\n", id="empty-piece-does-not-end-the-body"),
        pytest.param([b"data: " + b"x" * 200_000 + b"\n\n"], b"data: " + b"x" * 200_000 + b"\n\n", id="long-line"),
    ],
)
def test_sse_events(given: list[str | bytes | dict[str, Any]], wire: bytes) -> None:
    with serving(sse(given, "none"), sse(given)) as endpoint:
        assert ask(endpoint, {}).read() == wire
        assert ask(endpoint, {}).read() == wire + event_of("[DONE]")


def test_surrogate_pair_split_over_two_chunks() -> None:
    with serving(sse([chunk("\ud83d"), chunk("\ude00")])) as endpoint:
        *halves, _ = events(ask(endpoint, {}).read().decode("utf-8"))
    assert [half["choices"][0]["delta"]["content"] for half in halves] == ["\ud83d", "\ude00"]


@pytest.mark.parametrize(
    ("ending", "error"),
    [("cut", http.client.IncompleteRead), ("reset", ConnectionResetError), ("hang", TimeoutError)],
)
def test_sse_that_never_ends_properly(ending: Any, error: type[Exception]) -> None:
    with serving(sse([chunk("a"), chunk("b")], ending)) as endpoint:
        connection = connect(endpoint)
        connection.request("POST", "/v1/chat/completions", b"{}")
        reply = connection.getresponse()
        assert json.loads(reply.readline().removeprefix(b"data: ")) == chunk("a")
        if error is TimeoutError:
            connection.sock.settimeout(0.3)
        with pytest.raises(error):
            reply.read()


def packets(endpoint: ScriptedEndpoint, seen_one: threading.Event | None = None) -> list[bytes]:
    """What single reads from a bare socket bring until the server closes or resets the connection."""
    seen = []
    with socket.create_connection(endpoint.server_address[:2], timeout=PATIENCE) as client:  # type: ignore[arg-type]
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        while packet := client.recv(65536):
            seen.append(packet)
            if seen_one:
                seen_one.set()
    return seen


def with_a_wait(first: bytes, second: bytes, go_on: threading.Event) -> Iterator[bytes]:
    yield first
    assert go_on.wait(PATIENCE)
    yield second


def test_character_split_over_two_packets() -> None:
    seen = threading.Event()
    split = with_a_wait(b"data: \xc3", b"\xa9\n\n", seen)
    with serving(pieces(split, then="close")) as endpoint:
        first, second = packets(endpoint, seen)
    assert first.endswith(b"\r\n\r\n7\r\ndata: \xc3\r\n")  # the head goes along with the first piece
    assert second == b"3\r\n\xa9\n\n\r\n"


def test_stream_can_wait_between_two_events() -> None:
    seen = threading.Event()
    with serving(sse(iter(with_a_wait(b"data: 1\n\n", b"data: 2\n\n", seen)))) as endpoint:
        reply = ask(endpoint, {})
        assert reply.read1() == b"data: 1\n\n"
        assert endpoint.in_flight == 1
        seen.set()
        assert reply.read() == b"data: 2\n\ndata: [DONE]\n\n"


def test_reply_padded_with_blank_lines() -> None:
    body = json.dumps(completion("x")).encode()
    with serving(pieces([b"\n\n", b" \n", body])) as endpoint:
        text = ask(endpoint, {}).read()
    assert text == b"\n\n \n" + body
    assert json.loads(text) == completion("x")


def test_endless_padding_ends_when_the_client_leaves() -> None:
    with serving(pieces(itertools.repeat(b"\n"), pause=0.01), None) as endpoint:
        connection = connect(endpoint)
        connection.request("POST", "/v1/chat/completions", b"{}")
        with connection.getresponse() as reply:
            assert reply.read(3) == b"\n\n\n"
            assert endpoint.in_flight == 1
            connection.close()
        assert endpoint.wait_until(lambda: endpoint.in_flight == 0)
        assert said(endpoint, generation([], "Q?"))


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"


def test_raw_bytes_go_out_as_they_are() -> None:
    with serving(raw(b"SSH-2.0-x\r\n"), raw(HEAD, b"{" * 200)) as endpoint:
        assert b"".join(packets(endpoint)) == b"SSH-2.0-x\r\n"
        assert b"".join(packets(endpoint)) == HEAD + b"{" * 200


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(raw(HEAD + b"{" * 200), http.client.IncompleteRead, id="body-shorter-than-its-length"),
        pytest.param(raw(HEAD, then="reset"), ConnectionResetError, id="reset-after-the-headers"),
        pytest.param(raw(HEAD, then="hang"), TimeoutError, id="silence-after-the-headers"),
        pytest.param(hang(), TimeoutError, id="silence"),
        pytest.param(hang(0.01), http.client.RemoteDisconnected, id="silence-that-ends"),
        pytest.param(drop(), http.client.RemoteDisconnected, id="drop"),
        pytest.param(reset(), ConnectionResetError, id="reset"),
        pytest.param(after(0.01, reset()), ConnectionResetError, id="reset-after-a-while"),
    ],
)
def test_broken_connections(answer: Answer, error: type[Exception]) -> None:
    with serving(answer) as endpoint:
        connection = connect(endpoint, timeout=1.0 if error is TimeoutError else PATIENCE)
        connection.request("POST", "/v1/chat/completions", b"{}")
        with pytest.raises(error) as raised:
            connection.getresponse().read()
        # A dropped connection is a subclass of a reset one in http.client: keep them apart.
        assert error is not ConnectionResetError or raised.type is ConnectionResetError


def test_after_answers_when_its_time_has_come() -> None:
    with serving(after(0.2, say("slow"))) as endpoint:
        assert said(endpoint, generation([], "Q?")) == "slow"
        (request,) = endpoint.requests
        assert request.answered
        assert request.answered - request.received >= 0.2


def test_after_lets_others_pass() -> None:
    slow = after(2 * PATIENCE, say("slow"))
    with ScriptedEndpoint(lambda request: slow if question_of(request) == "slow" else say("fast")) as endpoint:
        connect(endpoint).request("POST", "/v1/chat/completions", json.dumps(generation([], "slow")))
        assert endpoint.wait_until(lambda: len(endpoint.requests) == 1)
        assert said(endpoint, generation([], "fast")) == "fast"
        first, second = endpoint.requests
        assert first.answered is None
        assert second.answered


# --- The record and the server ------------------------------------------------------------------------------------


def test_requests_are_recorded_as_they_arrived(honest: ScriptedEndpoint) -> None:
    body = '{"messages": [{"role": "user", "content": "é"}], "x": 1.50}'.encode()
    connection = connect(honest)
    connection.request("POST", "/v1/chat/completions?a=b", body, {"X-Custom": "V", "Authorization": "Bearer k"})
    connection.getresponse().read()
    (recorded,) = honest.requests
    assert (recorded.number, recorded.method, recorded.path) == (0, "POST", "/v1/chat/completions?a=b")
    assert recorded.body == body
    assert recorded.json()["x"] == 1.5
    assert recorded.headers["x-custom"] == "V"
    assert recorded.headers["authorization"] == "Bearer k"
    assert recorded.answered is not None
    assert recorded.answered >= recorded.received


def test_bodies_can_be_forgotten_when_they_have_been_answered() -> None:
    chat = ["The vent opens at 26 degrees.", "Fine."]
    with ScriptedEndpoint(keep_bodies=False) as endpoint:
        answers = {said(endpoint, generation(chat, "When does the vent open?")) for _ in range(2)}
    assert answers == {"The vent opens at 26 degrees."}
    assert [(request.path, request.body) for request in endpoint.requests] == [("/v1/chat/completions", b"")] * 2


def test_connection_is_kept_for_further_requests(honest: ScriptedEndpoint) -> None:
    connection = connect(honest)
    for stream in (False, True, False):
        connection.request("POST", "/v1/chat/completions", json.dumps(generation([], "Q?", stream=stream)))
        connection.getresponse().read()
    assert len(honest.requests) == 3
    assert len({request.client for request in honest.requests}) == 1


def test_counts_what_is_in_flight() -> None:
    together = threading.Barrier(4)

    def script(request: Recorded) -> Answer:
        if question_of(request) == "together":
            together.wait(PATIENCE)
        return say("x")

    with ScriptedEndpoint(script) as endpoint:
        for _ in range(20):
            said(endpoint, generation([], "alone"))
        assert endpoint.most_in_flight == 1
        threads = [
            threading.Thread(target=said, args=(endpoint, generation([], "together"))) for _ in range(together.parties)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert endpoint.most_in_flight == 4
        assert endpoint.in_flight == 0
        assert [request.number for request in endpoint.requests] == list(range(24))


def test_closing_ends_hanging_answers_and_idle_connections() -> None:
    answers = {"mute": hang(), "stuck": raw(HEAD, then="hang"), "done": say("x")}
    with ScriptedEndpoint(lambda request: answers[question_of(request)]) as endpoint:
        clients = {question: connect(endpoint) for question in answers}
        for question, client in clients.items():
            client.request("POST", "/v1/chat/completions", json.dumps(generation([], question)))
        clients["done"].getresponse().read()
        assert endpoint.wait_until(lambda: len(endpoint.requests) == 3)
    assert endpoint.connections == set()
    assert endpoint.in_flight == 0
    with pytest.raises(http.client.RemoteDisconnected):
        clients["mute"].getresponse()


def test_mistake_in_a_script_is_not_hidden() -> None:
    def script(request: Recorded) -> Answer:
        raise KeyError("a mistake")

    endpoint = ScriptedEndpoint(script)
    with pytest.raises(KeyError, match="a mistake"), endpoint, suppress(http.client.RemoteDisconnected):
        ask(endpoint, {})


def test_a_large_body_arrives_whole() -> None:
    body = generation(["ä" * 10_000_000], "Q?")
    with serving(say("x")) as endpoint:
        assert said(endpoint, body) == "x"
        assert endpoint.requests[0].json() == body


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        pytest.param("/chat/completions", {}, 404, id="wrong-path"),
        pytest.param("/v1/chat/completions", b"{", 400, id="no-json"),
        pytest.param("/v1/chat/completions", b"\xff", 400, id="no-utf-8"),
        pytest.param("/v1/chat/completions", [], 400, id="no-object"),
        pytest.param("/v1/chat/completions", {"messages": []}, 400, id="no-messages"),
    ],
)
def test_honest_refusals(honest: ScriptedEndpoint, path: str, body: Any, code: int) -> None:
    reply = ask(honest, body, path)
    assert reply.status == code
    assert json.load(reply)["error"]["code"] == code


def test_body_without_length_is_refused(honest: ScriptedEndpoint) -> None:
    connection = connect(honest)
    connection.request("POST", "/v1/chat/completions", iter([b'{"mess', b'ages": []}']))
    assert connection.getresponse().status == 411
    assert honest.requests[0].body == b'{"messages": []}'


def test_models_are_listed(honest: ScriptedEndpoint) -> None:
    connection = connect(honest)
    connection.request("GET", "/v1/models")
    assert json.load(connection.getresponse())["data"][0]["object"] == "model"


def test_reading_prompts_of_requests(honest: ScriptedEndpoint) -> None:
    said(honest, generation(["Question: none", "<criterion-0>\nx\n</criterion-0>"], "Where?\nQuestion: and when?"))
    said(honest, judging(question="Where?", criterion="There", response="Question: x"))
    said(honest, judging(question="In what order?", reference="1. a", response="a"))
    asked, judged, ordered = honest.requests
    assert [is_judge(request) for request in honest.requests] == [False, True, True]
    assert question_of(asked) == "Where?\nQuestion: and when?"
    assert question_of(judged) == "Where?"
    assert [criterion_of(request) for request in honest.requests] == ["", "There", ""]
    assert question_of(ordered) == "In what order?"


# --- The program --------------------------------------------------------------------------------------------------

PROGRAM = [sys.executable, str(Path(scripted_endpoint.__file__))]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_program_says_where_it_listens_and_ends_cleanly(ending: signal.Signals) -> None:
    with subprocess.Popen([*PROGRAM, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stderr
        url = run.stdout.readline().strip()
        host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
        with closing(http.client.HTTPConnection(host, int(port), timeout=PATIENCE)) as connection:
            connection.request("GET", "/v1/models")
            assert connection.getresponse().read()
        run.send_signal(ending)
        assert run.wait(PATIENCE) == 0
        assert "scores mean nothing" in run.stdout.read()
        assert run.stderr.read() == ""


def test_program_names_a_port_that_is_taken(honest: ScriptedEndpoint) -> None:
    port = str(honest.server_address[1])
    run = subprocess.run([*PROGRAM, "--port", port], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 2
    assert f"port {port}" in run.stderr
    assert "Traceback" not in run.stderr
