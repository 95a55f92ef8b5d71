"""beam_generate.py through its front door: a command line in; exit code, files and output out.

A number in an id or a docstring stands for a trouble that users have met.
"""

from __future__ import annotations

import itertools
import json
import pkgutil
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from conftest import LAUNCHER, Pair, Programs, Ran, read_rows, write_lines
from scripted_endpoint import (
    Answer,
    Recorded,
    ScriptedEndpoint,
    chunk,
    drop,
    hang,
    question_of,
    raw,
    say,
    sse,
    status,
)

import beam_generate
from beam_common import run

Script = Callable[[Recorded], Answer | None]
Launch = Callable[..., subprocess.Popen[bytes]]
PATIENCE = 30.0  # seconds that a script waits for something that should come at once
FINE, NO = say("fine"), status(400)


@dataclass
class Bench:
    """Chats and questions, an endpoint, and the program's front door."""

    programs: Programs
    endpoint: Callable[..., ScriptedEndpoint]
    make_pair: Callable[..., Pair]
    served: ScriptedEndpoint = field(init=False)

    def __call__(
        self, script: Script | None, *flags: str, chats: int = 1, questions: int = 1, **more: Any
    ) -> Ran:
        pair = self.make_pair(chats, questions, more.pop("rounds", 2))
        self.served = self.endpoint(script, **more)
        return self.programs.generate(pair, self.served.base_url, *flags)

    def argv(self, script: Script | None, *flags: str, chats: int = 1, questions: int) -> list[str]:
        """For a process of its own."""
        pair, self.served = self.make_pair(chats, questions), self.endpoint(script)
        waits = '{"first": 0.01, "longest": 0.08, "progress": 0.05}'
        argv = ["beam_generate.py", waits, "--model", "m", "--api-key", "k", "--tokenizer", ""]
        where = ["--base-url", self.served.base_url, "--output", str(self.output)]
        return [*argv, *where, *pair.flags, *flags]

    @property
    def output(self) -> Any:
        return self.programs.folder / "answers.jsonl"

    @property
    def record(self) -> dict[str, Any]:
        return dict(json.loads(self.output.with_suffix(".run.json").read_bytes()))

    @property
    def asked(self) -> list[str]:
        """The questions in the order of their requests; probes are none."""
        return [question_of(request) for request in self.served.requests if request.chat]

    @property
    def probes(self) -> list[Recorded]:
        return [request for request in self.served.requests if not request.chat]

    def wait(self, condition: Callable[[], bool]) -> None:
        assert self.served.wait_until(condition, PATIENCE)


@pytest.fixture
def bench(
    programs: Programs,
    endpoint: Callable[..., ScriptedEndpoint],
    make_pair: Callable[..., Pair],
) -> Bench:
    return Bench(programs, endpoint, make_pair)


def named(ran: Ran) -> list[str]:
    return sorted(row["question"] for row in ran.rows)


def all_of(chats: int, questions: int) -> list[str]:
    return sorted(f"{chat}.{n}?" for chat in range(1, chats + 1) for n in range(questions))


def to(answers: dict[str, Answer]) -> Script:
    """These questions meet these answers; the others are answered."""
    return lambda request: answers.get(question_of(request), FINE)


# --- What is asked and what is kept -------------------------------------------------------------


def test_a_request(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-the-environment")
    extra = {"top_p": None, "temperature": 0.1, "think": {"on": 1}, "cache_key": "c-{chat_id}"}
    flags = ["--max-tokens", "77", "--header", "X-Session=s{chat_id}"]
    assert bench(None, *flags, "--thinking-json", json.dumps(extra)).rc == 0
    (request,) = bench.served.requests
    *chat, last = request.messages
    assert [m["content"] for m in chat] == [
        *("chat 1 says 0", "chat 1 hears 0", "chat 1 says 1", "chat 1 hears 1")
    ]
    note = "NOTE: Only provide the answer without any explanations. \nQuestion: 1.0?"
    assert last == {"role": "user", "content": note}
    assert request.json() == {
        **{"model": "m", "temperature": 0.1, "max_tokens": 77, "messages": request.messages},
        **{"stream": True, "stream_options": {"include_usage": True}},
        **{"think": {"on": 1}, "cache_key": "c-1"},
    }
    assert request.headers["authorization"] == "Bearer k"
    assert request.headers["x-session"] == "s1"
    assert "org-of-the-environment" not in str(request.headers)


def test_rows_of_an_answer_and_of_a_failure(bench: Bench) -> None:
    fine = say("gold é", usage={"prompt_tokens": 11, "completion_tokens": 2})
    ran = bench(to({"1.0?": status(422, "no such\nthing"), "1.1?": fine}), questions=2)
    failed, answered = sorted(ran.rows, key=lambda row: str(row["question_index"]))
    identity = {"chat_id": "1", "question_type": "information_extraction", "question_index": 1}
    asked = {"question": "1.1?", "gold_answer": "gold", "rubric": ["the answer names gold"]}
    reply = {"response": "gold é", "finish_reason": "stop"}
    counts = {"prompt_tokens": 11, "completion_tokens": 2}
    assert answered == {**identity, **asked, **reply, **counts, "error": None}
    assert list(failed) == list(answered)
    assert list(failed.values())[6:10] == ["", None, None, None]
    assert re.fullmatch(r"HTTP 422: no such thing \(request of \d+ bytes\)", failed["error"])
    assert (ran.rc, ran.out.splitlines()[0]) == (0, "answered: 1 of 2 selected")
    assert "--retry-errors" in ran.err


def test_what_was_sent_and_who_answered_is_on_record_and_what_looks_wrong_is_said(
    bench: Bench,
) -> None:
    """53, 57, 70: neither the model asked for is sent, nor the one that is sent answers."""
    odd = {**chunk("hm</think>gold", "stop"), "model": "fallback", "provider": "far"}
    extra = '{"model": "other", "temperature": 0}'
    ran = bench(lambda _: sse([odd]), "--thinking-json", extra, questions=3)
    assert {row["response"] for row in ran.rows} == {"hm</think>gold"}
    body = bench.record["settings"]["body"]
    assert (body["model"], body["temperature"], body["top_p"]) == ("other", 0, 0.95)
    assert bench.record["served"] == {"fallback via far": 3}
    assert bench.record["selected"] == {"1": {"information_extraction": 3}}
    assert ran.err.count("fallback via far") == ran.err.count("marks of reasoning") == 1


def test_followers_go_once_the_openers_reply_has_begun(bench: Bench) -> None:
    def begun() -> Iterator[dict[str, Any]]:
        yield chunk("a")
        bench.wait(lambda: len(bench.asked) == 4)
        yield chunk("b", "stop")

    ran = bench(lambda r: None if r.number else sse(begun()), questions=4)
    assert (ran.rc, named(ran)) == (0, all_of(1, 4))


def test_followers_go_after_the_openers_reply_where_nothing_is_streamed(bench: Bench) -> None:
    ran = bench(None, "--no-stream", questions=4)
    opener, *others = bench.served.requests
    assert (ran.rc, len(others)) == (0, 3)
    assert not {"stream", "stream_options"} & opener.json().keys()
    assert all(request.received >= (opener.answered or 0) for request in others)


def test_an_opener_that_never_answers_holds_up_nobody_and_is_bounded(bench: Bench) -> None:
    """11, 38"""
    flags = ["--timeout", "0.4", "--max-retries", "2", "--open-chats", "1"]
    ran = bench(to({"1.0?": hang()}), *flags, chats=2, questions=3)
    assert (ran.rc, named(ran)) == (0, all_of(2, 3))
    assert ran.errors == [f"{bench.served.base_url}: no whole reply in time (see --timeout)"]
    assert Counter(bench.asked) == Counter([*all_of(2, 3), "1.0?"])


# --- Trouble that passes ------------------------------------------------------------------------

PASSING = [  # 1, 8, 9, 10, 19, 39, 84
    status(200, {"error": {"code": 502, "message": "upstream"}, "choices": None}),
    status(524),
    status(504, "<!DOCTYPE html>\n<html>\n<body>Gateway time-out</body></html>"),
    raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b'{"choices": [{"mess'),
    sse([chunk("half"), {"error": {"message": "upstream went away"}}]),
    status(503, {"error": {"message": "Loading model"}}),
    sse([chunk("two words")]),
]


@pytest.mark.parametrize("concurrency", ["1", "16"])
def test_trouble_that_passes_costs_nothing(bench: Bench, concurrency: str) -> None:
    met: set[str] = set()

    def script(request: Recorded) -> Answer:
        question = question_of(request)
        if not request.chat or question in met:
            return FINE
        met.add(question)
        return PASSING[int(question[2])]

    ran = bench(script, "--concurrency", concurrency, questions=len(PASSING))
    assert (ran.rc, ran.errors) == (0, [])
    assert Counter(bench.asked) == dict.fromkeys(all_of(1, len(PASSING)), 2)
    assert bench.asked[:2] == ["1.0?", "1.1?"], "while one waits another one is asked"
    assert "<body>" not in ran.err


def test_a_question_that_fails_every_time_comes_last(bench: Bench) -> None:
    """48"""
    ran = bench(to({"1.3?": status(500)}), "--max-retries", "6", questions=4)
    assert (ran.rc, named(ran), ran.errors) == (0, all_of(1, 4), ["HTTP 500: scripted 500"])
    assert bench.asked.count("1.3?") == 6


def test_a_named_wait_holds_for_all(bench: Bench) -> None:
    """5, 40"""
    wait = status(429, headers={"retry-after-ms": "400"})
    ran = bench(lambda r: None if r.number else wait, "--concurrency", "1", chats=2)
    refused, *later = bench.served.requests
    assert (ran.rc, len(later)) == (0, 2)
    assert later[0].received - (refused.answered or 0) >= 0.4


@pytest.mark.parametrize("places", [1, 4])
def test_an_endpoint_with_few_places_answers_everything(bench: Bench, places: int) -> None:
    """42, 47"""
    ran = bench(None, chats=3, questions=20, places=places, delay=0.005)
    assert (ran.rc, ran.errors, named(ran)) == (0, [], all_of(3, 20))
    assert sum(request.refused for request in bench.served.requests) <= 0.5 * 60


def test_a_few_requests_a_while_and_no_word_when(bench: Bench) -> None:
    """71"""
    last = [0.0]

    def script(request: Recorded) -> Answer:
        if request.received - last[0] < 0.06:
            return status(429)
        last[0] = request.received
        return FINE

    ran = bench(script, "--concurrency", "4", chats=2, questions=10)
    assert (ran.rc, ran.errors, len(ran.rows)) == (0, [], 20)


def test_waiting_takes_no_time_of_the_processor(bench: Bench) -> None:
    """83, 85: a retry falls due while all places are taken."""
    bench(None)  # what is loaded late is there now
    bench.output.unlink()
    slow, before = replace(FINE, delay=1.5), time.process_time()
    flags = ["--concurrency", "2", "--open-chats", "6", "--no-stream"]
    ran = bench(lambda r: status(500) if r.number == 2 else slow, *flags, chats=6)
    assert (ran.rc, len(ran.rows)) == (0, 6)
    assert time.process_time() - before < 1


# --- Outages ------------------------------------------------------------------------------------


class Outages:
    """After so many answers all requests fail, until four probes have; then one more question."""

    def __init__(self, starts: list[int], answer: Answer) -> None:
        self.starts, self.answer = list(starts), answer
        self.lock, self.answered, self.probes, self.one_more = threading.Lock(), 0, 0, False

    def __call__(self, request: Recorded) -> Answer:
        with self.lock:
            if not self.starts or self.answered < self.starts[0]:
                if not request.chat:
                    return NO  # a model may refuse so few tokens
                failing, self.one_more = self.one_more, False
                self.answered += not failing
                return self.answer if failing else FINE
            self.probes += not request.chat
            if not request.chat and self.probes % 4 == 0:
                self.starts.pop(0)
                self.one_more = True
            return self.answer


@pytest.mark.parametrize(
    ("starts", "answer", "concurrency", "retries"),
    [
        pytest.param([7], drop(), 4, 4, id="in-the-middle"),
        pytest.param([17], drop(), 4, 4, id="in-the-last-minute"),
        pytest.param([19], drop(), 1, 8, id="at-the-last-question"),
        pytest.param([3, 9, 17], drop(), 4, 8, id="three-in-a-row"),
        pytest.param([6], status(502), 1, 2, id="of-a-gateway"),
    ],
)
def test_an_outage_costs_time_and_no_answer(
    bench: Bench, starts: list[int], answer: Answer, concurrency: int, retries: int
) -> None:
    """41: longer than all attempts; only probes are sent meanwhile."""
    flags = ["--max-retries", str(retries), "--concurrency", str(concurrency)]
    ran = bench(Outages(starts, answer), *flags, chats=4, questions=5)
    assert (ran.rc, ran.errors, named(ran)) == (0, [], all_of(4, 5))
    assert len(bench.asked) <= 20 + (max(4, 2 * concurrency) + 1) * len(starts)
    assert len(bench.probes) >= 4 * len(starts)
    body = bench.probes[0].json()
    assert (body["model"], body["max_tokens"], len(body["messages"])) == ("m", 1, 1)
    assert ran.err.count("the endpoint answers again") >= len(starts)


def test_an_outage_is_no_wrong_setting(bench: Bench) -> None:
    """However few attempts a question has, and however many of them are in flight."""
    early = ("1.0?", "1.1?", "1.2?", "2.0?", "2.1?")

    def script(request: Recorded) -> Answer:
        if len(bench.probes) >= 2 or question_of(request) in early:
            return FINE
        bench.wait(lambda: len(bench.asked) >= 20)  # so that the early ones are saved
        return drop()

    ran = bench(script, "--max-retries", "1", "--concurrency", "15", chats=2, questions=10)
    assert (ran.rc, ran.errors, named(ran)) == (0, [], all_of(2, 10))


def test_an_outage_that_begins_before_the_last_but_one_is_answered(bench: Bench) -> None:
    """The last question's attempts are used up before four have failed in a row."""

    def script(request: Recorded) -> Answer:
        down = len(bench.probes) < 3
        tries = bench.asked.count("1.2?")
        if question_of(request) == "1.1?":
            bench.wait(lambda: "1.2?" in bench.asked)
        elif down and tries:
            while tries == 2 and len(read_rows(bench.output)) < 2:
                time.sleep(0.001)
            return drop()
        return FINE

    ran = bench(script, "--max-retries", "3", "--concurrency", "2", questions=3)
    assert (ran.rc, ran.errors, named(ran)) == (0, [], all_of(1, 3))


def test_down_for_good(bench: Bench) -> None:
    """41"""
    flags = ["--max-outage", "0.5s", "--concurrency", "1"]
    ran = bench(lambda r: FINE if r.number < 5 else drop(), *flags, chats=2, questions=10)
    assert (ran.rc, len(ran.rows), ran.errors) == (1, 5, [])
    assert len(bench.asked) == 5 + 4
    assert len(bench.probes) > 4
    assert "--max-outage" in ran.err
    assert "5 answered, 15 left: start the same command again" in ran.err


def test_never_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """41"""
    monkeypatch.setattr(run, "WAITS", replace(run.WAITS, never_answered=0.3))
    with socket.socket() as port:  # which refuses connections
        port.bind(("127.0.0.1", 0))
        url = "http://{}:{}/v1".format(*port.getsockname())
        ran = bench.programs.generate(bench.make_pair(3, 3), url)
    assert (ran.rc, ran.output.exists()) == (1, False)
    assert f"nothing at {url} answers: is the server running?" in ran.err


# --- Questions that fail, runs that stop --------------------------------------------------------


MAX_TOKENS = "max_tokens must be less than or equal to 40960 … context_window"
STOPS = {  # an endpoint's answer to everything, flags, how many requests it gets, what is said
    "2-path": (status(404), "", 1, "check --base-url http://127.0.0.1"),
    "14-key": (status(401), "", 1, "check --api-key"),
    "busy-for-ever": (status(429), "--limit 1 --max-retries 4", 4, "nothing was answered"),
    "46-49-all-of-few": (status(400, MAX_TOKENS), "--limit 5", 5, "see --max-tokens"),
    "many-in-a-row": (NO, "", 10, "10 questions in a row failed"),
}


@pytest.mark.parametrize(("answer", "flags", "requests", "said"), STOPS.values(), ids=STOPS)
def test_a_run_without_an_answer_stops_and_records_nothing(
    bench: Bench, answer: Answer, flags: str, requests: int, said: str
) -> None:
    """Nor is a chat cut because a setting is refused."""
    always = ["--concurrency", "1", "--on-overflow", "shrink"]
    ran = bench(lambda _: answer, *always, *flags.split(), chats=3, questions=8)
    assert (ran.rc, ran.output.exists(), len(bench.asked)) == (1, False, requests)
    assert said in ran.err
    assert "left: start the same command again" in ran.err
    assert {len(request.chat) for request in bench.served.requests} == {4}


@pytest.mark.parametrize("flags", [[], ["--stop-after-failures", "2"]], ids=["7", "in-a-row"])
def test_what_is_in_flight_at_a_stop_is_kept(
    bench: Bench, stopped: threading.Event, flags: list[str]
) -> None:
    """A failed question waits for an answer, which comes after the stop."""

    def script(request: Recorded) -> Answer:
        match question_of(request):
            case "1.1?":
                bench.wait(lambda: len(bench.asked) >= 6)  # both chats' openers are saved
                return NO
            case "2.1?":
                bench.wait(lambda: len(bench.asked) == 7)
                return NO if flags else status(402)
            case "1.0?" | "2.0?":
                return FINE
        assert stopped.wait(PATIENCE)
        return FINE

    ran = bench(script, "--concurrency", "4", *flags, chats=2, questions=5)
    assert (ran.rc, ran.errors, len(bench.asked)) == (1, [], 7)
    assert named(ran) == sorted({*bench.asked} - {"1.1?", "2.1?"})
    assert "Traceback" not in ran.err


def test_failures_of_one_chat_alone_stop_nothing(bench: Bench) -> None:
    """50"""
    too_long = status(400, {"error": {"code": "context_length_exceeded"}})
    script: Script = lambda r: too_long if question_of(r)[0] == "1" else FINE  # noqa: E731
    ran = bench(script, "--concurrency", "1", chats=5, questions=20)
    assert (ran.rc, len(ran.rows), len(bench.asked)) == (0, 100, 100)
    assert Counter(row["chat_id"] for row in ran.rows if row["error"]) == {"1": 20}


def test_failures_between_answers_stop_nothing(bench: Bench) -> None:
    script: Script = lambda r: NO if r.number % 2 else FINE  # noqa: E731
    ran = bench(script, "--concurrency", "1", chats=2, questions=15)
    assert (ran.rc, len(ran.rows), len(ran.errors)) == (0, 30, 15)


def test_failures_in_a_row_are_fine_on_request(bench: Bench) -> None:
    flags = ["--stop-after-failures", "0", "--concurrency", "1"]
    ran = bench(lambda r: FINE if r.number == 23 else NO, *flags, chats=2, questions=12)
    assert (ran.rc, len(ran.rows), len(ran.errors)) == (0, 24, 23)


# --- Prompts that are too long ------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    ["maximum context length is 90, you requested 200", "at least 91 tokens: prompt too long"],
    ids=["12-says-how-long", "86-always-the-same"],
)
def test_shrinking(bench: Bench, words: str) -> None:
    """Once for all questions of a chat, and a resume begins where it ended."""
    script: Script = lambda r: FINE if len(r.chat) <= 90 else status(400, words)  # noqa: E731
    flags = ["--on-overflow", "shrink", "--concurrency", "4"]
    ran = bench(script, *flags, "--limit", "4", questions=6, rounds=100)
    assert (len(ran.rows), ran.errors) == (4, [])
    kept = [len(request.chat) for request in bench.served.requests]
    assert kept[0] == 200
    assert sorted({*kept}, reverse=True) == list(dict.fromkeys(kept)), "never longer again"
    assert len(kept) - 4 == len({*kept}) - 1 <= 6
    assert {request.messages[0]["role"] for request in bench.served.requests} == {"user"}
    assert bench.record["shrunk"] == {"1": 200 - kept[-1]}
    ran = bench(script, *flags, questions=6, rounds=100)
    assert [len(request.chat) for request in bench.served.requests] == [kept[-1]] * 2


# --- Resume -------------------------------------------------------------------------------------


def test_a_resume_asks_for_what_is_missing(bench: Bench) -> None:
    """24, 25, 28"""
    first = bench(None, "--limit", "4", "--concurrency", "1", questions=6)
    rows = [json.dumps({**row, "chat_id": 1}) for row in first.rows]
    bench.output.write_text("\n".join([rows[0], "null", rows[1], rows[2], rows[3][:-9]]), "utf-8")
    ran = bench(None, questions=6)
    assert (ran.rc, sorted(bench.asked)) == (0, ["1.3?", "1.4?", "1.5?"])
    assert "line 2 is damaged" in ran.err
    lines = bench.output.read_text("utf-8").splitlines()
    assert (lines[:4], len(lines)) == ([rows[0], "null", rows[1], rows[2]], 7)
    bench(None, questions=6)
    assert bench.asked == []


def test_retry_errors_leaves_one_line_a_question(bench: Bench) -> None:
    first = bench(to({"1.1?": NO, "1.2?": NO}), questions=4)
    assert bench(None, questions=4).rows == first.rows, "they are finished unless asked for"
    ran = bench(None, "--retry-errors", questions=4)
    assert sorted(bench.asked) == ["1.1?", "1.2?"]
    assert (ran.rc, ran.errors, named(ran)) == (0, [], all_of(1, 4))


def test_other_settings_are_refused_unless_they_may_be_mixed(bench: Bench) -> None:
    """32"""
    bench(None, "--limit", "1", questions=2)
    ran = bench(None, "--temperature", "0.5", questions=2)
    assert (ran.rc, bench.asked) == (2, [])
    assert "temperature (recorded 1.0, now 0.5)" in ran.err
    ran = bench(None, "--temperature", "0.5", "--allow-mixed", questions=2)
    assert (ran.rc, bench.asked, bench.record["mixed"]) == (0, ["1.1?"], True)


@pytest.mark.parametrize("place", ["rowlog.RowLog._write", "settings.write_whole"])
def test_a_full_disk_stops_the_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """31: others are in flight. What the record has no room for costs no answer."""
    module, _, name = f"beam_common.{place}".rpartition(".")
    writes, calls = pkgutil.resolve_name(f"{module}.{name}"), itertools.count()

    def full(*args: Any) -> Any:
        if next(calls) > 0:
            raise OSError(28, "No space left on device")
        return writes(*args)

    monkeypatch.setattr(f"{module}.{name}", full)
    ran = bench(None, "--concurrency", "4", questions=60)
    monkeypatch.undo()
    assert (ran.rc, ran.err.count("No space left on device; make room")) == (1, 1)
    assert len(ran.rows) >= 1
    assert len(bench.asked) <= 12
    ran = bench(None, questions=60)
    assert (ran.rc, named(ran)) == (0, all_of(1, 60))


# --- Processes ----------------------------------------------------------------------------------


def test_one_process_an_output_and_kill_9_costs_what_is_in_flight(
    bench: Bench, launch: Launch
) -> None:
    """29, 30"""
    script: Script = lambda r: FINE if r.number < 10 else hang()  # noqa: E731
    argv = bench.argv(script, "--concurrency", "4", chats=2, questions=9)
    first = launch(*argv)
    bench.wait(lambda: len(bench.asked) == 14)
    second = launch(*argv)
    _, err = second.communicate(timeout=60)
    assert (second.returncode, len(bench.asked)) == (2, 14)
    assert f"{bench.output} is being written by another process" in err.decode()
    first.kill()
    first.wait()
    saved = {row["question"] for row in read_rows(bench.output)}
    assert len(saved) == 10
    ran = bench(None, chats=2, questions=9)
    assert (ran.rc, named(ran), {*bench.asked}) == (0, all_of(2, 9), {*all_of(2, 9)} - saved)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_long_run_soon_and_keeps_what_is_done(
    bench: Bench, launch: Launch, number: signal.Signals
) -> None:
    """35, 80: thousands of questions are queued, and the requests in flight never end."""
    script: Script = lambda r: FINE if r.number < 20 else hang()  # noqa: E731
    process = launch(*bench.argv(script, chats=2, questions=2000))
    bench.wait(lambda: len(bench.asked) == 36)
    process.send_signal(number)
    out, err = process.communicate(timeout=8)  # 5 s, with slack for a busy machine
    assert process.returncode == 128 + number
    assert "answered: 20 of 4,000 selected" in out.decode()
    assert "20 answered, 3,980 left: start the same command again" in err.decode()
    assert len(read_rows(bench.output)) == 20


def test_a_log_is_plain_and_grows_while_the_run_goes_on(bench: Bench, launch: Launch) -> None:
    """34, and the SIGHUP of 35 that nohup ignores."""
    go_on = threading.Event()

    def script(request: Recorded) -> Answer:
        assert request.number < 5 or go_on.wait(PATIENCE)
        return say("a\x1b[31m\r answer")

    argv = bench.argv(script, "--concurrency", "2", questions=9)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process = launch(*argv, stderr=subprocess.STDOUT)
    signal.signal(signal.SIGHUP, before)
    assert process.stdout
    log = b""
    while b"5 of 9 questions" not in log and (line := process.stdout.readline()):
        log += line
    assert len(read_rows(bench.output)) == 5
    process.send_signal(signal.SIGHUP)
    go_on.set()
    log += process.stdout.read()
    assert process.wait(60) == 0
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", log)
    assert b"answered: 9 of 9 selected" in log


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {}], ids=["c-locale", "empty"])
def test_files_are_utf8_whatever_the_environment(bench: Bench, environment: dict[str, str]) -> None:
    """36"""
    argv = bench.argv(lambda _: say("Übung 雪 😀 \ud83d"), questions=1)
    questions = bench.programs.folder / "small_questions.jsonl"
    write_lines(questions, [{**row, "question": "Wo? 雪"} for row in read_rows(questions)])
    command = [sys.executable, str(LAUNCHER), *argv, "--thinking-json", '{"x": "é"}']
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert bench.asked == ["Wo? 雪"]
    assert "Übung 雪 😀 \\ud83d".encode() in bench.output.read_bytes()
    assert bench.record["settings"]["body"]["x"] == "é"


# --- Bad usage ----------------------------------------------------------------------------------

NO_ROOM = "--tokenizer Kimi-K2.6 --max-context-tokens 30000"
BAD_USAGE = {
    "no-model": ("--model=", "--model is required"),
    "no-url": ("--base-url localhost:8000", "--base-url 'localhost:8000' is not a URL"),
    "no-key": ("--api-key=", "BEAM_API_KEY"),
    "misspelt": ("--outptu x", "did you mean --output?"),
    "not-an-output": ("--output answers.md", "ends in .jsonl"),
    "no-folder": ("--output no/folder.jsonl", "create the folder first"),
    "37-unknown-chat": ("--chats 99", "99"),
    "37-unknown-ability": ("--question-types abstention", "information_extraction"),
    "no-budget": (NO_ROOM, "no room for the chat: --max-context-tokens 30,000"),
}


@pytest.mark.parametrize(("flags", "named"), BAD_USAGE.values(), ids=BAD_USAGE)
def test_bad_usage_is_one_line_and_nothing_is_written(bench: Bench, flags: str, named: str) -> None:
    ran = bench(None, *flags.split())
    assert (ran.rc, ran.out, ran.err.count("\n"), bench.asked) == (2, "", 1, [])
    assert named in ran.err
    assert not list(bench.programs.folder.glob("answers*"))


def test_an_empty_shard_is_no_error(bench: Bench) -> None:
    ran = bench(None, "--shard", "3/3", chats=2)
    assert (ran.rc, bench.asked, ran.output.exists()) == (0, [], False)
    assert "--shard 3/3 is empty" in ran.err


def test_a_dry_run_needs_nothing_and_writes_nothing(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.programs.folder)
    assert beam_generate.main(["--dry-run", "--tag", "sample", "--limit", "3"]) == 0
    assert "1 chat, 3 questions" in capsys.readouterr().out
    assert list(bench.programs.folder.iterdir()) == []
