"""The stand-in endpoint: it reads the prompt it is sent, and its faults are faults to a client."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scripted_endpoint
from scripted_endpoint import Answer, ScriptedEndpoint, chunk, drop, raw, reset, say, sse

from beam_common.prompts import ALIGNMENT, CRITERION, ORDERING, numbered

CHAT = ["My dog is called Balu.", "A fine name.", "Balu weighs 31 kg.", "We sail on Fridays."]
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"


def ask(endpoint: ScriptedEndpoint, *contents: str, **more: Any) -> tuple[int, str]:
    """Status and body of the reply to messages with these contents."""
    host, port = endpoint.server_address[:2]
    client = http.client.HTTPConnection(str(host), int(port), timeout=10)
    messages = [{"role": "user", "content": content} for content in contents]
    body = json.dumps({"model": "stand-in", "messages": messages, **more})
    client.request("POST", "/v1/chat/completions", body)
    with client.getresponse() as reply:
        return reply.status, reply.read().decode()


def said(endpoint: ScriptedEndpoint, *contents: str, **more: Any) -> str:
    return str(json.loads(ask(endpoint, *contents, **more)[1])["choices"][0]["message"]["content"])


def test_answers_come_from_the_chat_and_the_short_model_says_one_sentence() -> None:
    with ScriptedEndpoint() as endpoint:
        question = "Question: Which dog is called Balu?"
        assert said(endpoint, *CHAT, question).split("\n") == [CHAT[0], CHAT[2]]
        assert said(endpoint, *CHAT, question, model="stand-in-short") == CHAT[0]
        assert "no information" in said(endpoint, *CHAT, "Question: Which piano was tuned?")


def test_a_streamed_answer_is_the_plain_one_in_pieces() -> None:
    with ScriptedEndpoint(lambda request: say("a rather long answer " * 9)) as endpoint:
        *events, done, end = ask(endpoint, "?", stream=True)[1].split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events]
        pieces = [delta.get("content", "") for delta in deltas]
        assert len(pieces) > 9
        assert "".join(pieces) == said(endpoint, "?")


JUDGED = {"Balu, 31 kg": 1.0, "his name is Balu": 0.5, "We sail on Fridays.": 0.0}


@pytest.mark.parametrize(("response", "score"), JUDGED.items(), ids=JUDGED)
def test_a_criterion_is_judged_by_its_words(response: str, score: float) -> None:
    texts = {"question": "Which dog?", "rubric_item": "Balu weighs 31", "response": response}
    with ScriptedEndpoint() as endpoint:
        assert json.loads(said(endpoint, CRITERION.fill(texts)))["score"] == score


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2], [0, 2]], ids=["right", "wrong", "short"])
def test_an_order_is_judged_and_aligned(order: list[int]) -> None:
    events = ["The anchor was bought", "Sails were mended", "Varnish dried overnight"]
    lines = [events[number] for number in order]
    texts = {"question": "In which order?", "reference_order": numbered(events)}
    with ScriptedEndpoint() as endpoint:
        prompt = ORDERING.fill({**texts, "response": "\n".join(lines)})
        assert json.loads(said(endpoint, prompt))["score"] == float(order == [0, 1, 2])
        prompt = ALIGNMENT.fill({**texts, "response": numbered(lines)})
        assert json.loads(said(endpoint, prompt))["matches"] == [number + 1 for number in order]


def test_a_chat_is_cached_once_it_was_answered() -> None:
    with ScriptedEndpoint() as endpoint:
        usages = [json.loads(ask(endpoint, *CHAT, "?")[1])["usage"] for _ in range(2)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert 0 == cached[0] < cached[1] < usages[1]["prompt_tokens"]


def test_more_than_its_places_are_refused_until_one_is_free() -> None:
    go_on = threading.Event()
    held: list[tuple[int, str]] = []
    with ScriptedEndpoint(lambda request: say(str(go_on.wait(10))), places=1) as endpoint:
        first = threading.Thread(target=lambda: held.append(ask(endpoint, "?")))
        first.start()
        assert endpoint.wait_until(lambda: endpoint.in_flight == 1)
        assert ask(endpoint, "?")[0] == 429
        go_on.set()
        first.join()
        assert [held[0][0], ask(endpoint, "?")[0]] == [200, 200]
        assert [request.refused for request in endpoint.requests] == [False, True, False]


BROKEN = {
    "closed": (drop, http.client.RemoteDisconnected),
    "reset": (reset, ConnectionResetError),
    "body cut": (lambda: raw(HALF), http.client.IncompleteRead),
    "stream cut": (lambda: sse([chunk("half")], "cut"), http.client.IncompleteRead),
}


@pytest.mark.parametrize(("answer", "error"), BROKEN.values(), ids=BROKEN)
def test_broken_connections(answer: Callable[[], Answer], error: type[Exception]) -> None:
    with ScriptedEndpoint(lambda request: answer()) as endpoint, pytest.raises(error):
        ask(endpoint, "?")


def test_the_program_says_where_it_listens_and_ends_on_a_signal() -> None:
    command = [sys.executable, str(Path(scripted_endpoint.__file__))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
