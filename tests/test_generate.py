"""beam_generate.py through its front door: what is asked, what is saved, what is refused."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Pair, Ran, answer_rows, question_rows, read_rows, write_lines
from scripted_endpoint import Answer, Recorded, ScriptedEndpoint, after, hang, question_of, raw, say, status
from test_faults_endpoint import done_by_the_run

import beam_generate
from beam_common import HERE, VERSION, AnswerRow
from beam_generate import FINAL_MESSAGE, content_budget, final_message
from beam_questions import select

Generate = Callable[..., Ran]
MakePair = Callable[..., Pair]
Serve = Callable[..., ScriptedEndpoint]
SCRIPT = HERE / "beam_generate.py"


# --- The prompt -----------------------------------------------------------------------------------------------------


def test_the_final_message_is_bit_for_bit_the_benchmarks_own() -> None:
    assert final_message("Who?") == {
        "role": "user",
        "content": "NOTE: Only provide the answer without any explanations. \nQuestion: Who?",
    }


def test_a_question_is_inserted_literally() -> None:
    assert final_message("{question} %s {0}")["content"].endswith("Question: {question} %s {0}")


def test_requests_hold_the_chat_the_question_and_the_parameters(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    served = endpoint(lambda _: say("fine"))
    ran = run_generate(
        make_pair(1, 1), served.base_url, "--temperature", "0.7", "--top-p", "0.9", "--max-tokens", "77", "--header", "X-Team=beam"
    )  # fmt: skip
    assert ran.rc == 0
    (request,) = served.requests
    assert request.json() == {
        "model": "m",
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 77,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "user", "content": "chat 1 says 0"},
            {"role": "assistant", "content": "chat 1 hears 0"},
            {"role": "user", "content": "chat 1 says 1"},
            {"role": "assistant", "content": "chat 1 hears 1"},
            {"role": "user", "content": FINAL_MESSAGE.replace("{question}", "1.0?")},
        ],
    }
    assert request.path == "/v1/chat/completions"
    assert request.headers["x-team"] == "beam"
    assert request.headers["authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("extra", "changes"),
    [
        pytest.param('{"top_k": 5}', {"top_k": 5}, id="added"),
        pytest.param('{"kwargs": {"thinking": {"on": true}}}', {"kwargs": {"thinking": {"on": True}}}, id="nested"),
        pytest.param('{"temperature": 0.1}', {"temperature": 0.1}, id="its-keys-win"),
        pytest.param('{"max_tokens": null, "most": 9}', {"max_tokens": ..., "most": 9}, id="null-takes-out"),
        pytest.param('{"nested": {"a": null}}', {"nested": {"a": None}}, id="null-below-the-top-stays"),
        pytest.param('{"stream": null, "stream_options": null}', {"stream": ..., "stream_options": ...}, id="no-stream"),
    ],
)  # fmt: skip
def test_thinking_json_is_merged(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair, extra: str, changes: dict[str, Any]
) -> None:
    served = endpoint(lambda _: say("fine"))
    assert run_generate(make_pair(1, 1), served.base_url, "--thinking-json", extra).rc == 0
    body = served.requests[0].json()
    for name, value in changes.items():
        assert (name not in body) if value is ... else body[name] == value


def test_no_stream_asks_for_a_reply_in_one_piece(run_generate: Generate, endpoint: Serve, make_pair: MakePair) -> None:
    served = endpoint()
    assert run_generate(make_pair(1, 1), served.base_url, "--no-stream").rc == 0
    assert not {"stream", "stream_options"} & served.requests[0].json().keys()


# --- Rows -----------------------------------------------------------------------------------------------------------


def test_an_answered_row_has_exactly_its_keys_in_order(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    served = endpoint(lambda _: say("gold é", usage={"prompt_tokens": 11, "completion_tokens": 2}))
    (row,) = run_generate(make_pair(1, 1), served.base_url).rows
    assert list(row) == list(AnswerRow.__annotations__)
    assert row == {
        "chat_id": "1",
        "question_type": "information_extraction",
        "question_index": 0,
        "question": "1.0?",
        "gold_answer": "gold",
        "rubric": ["the answer names gold"],
        "response": "gold é",
        "finish_reason": "stop",
        "prompt_tokens": 11,
        "completion_tokens": 2,
        "error": None,
    }


def test_a_failed_row_has_an_empty_response_and_its_error(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    served = endpoint(lambda _: status(422, body={"error": {"message": "no such\nthing"}}))
    ran = run_generate(make_pair(1, 1), served.base_url)
    (row,) = ran.rows
    assert (row["response"], row["finish_reason"], row["prompt_tokens"]) == ("", None, None)
    assert "422" in row["error"]
    assert "\n" not in row["error"]
    assert ran.rc == 0, "the question is in the file"


def test_the_closing_statement(run_generate: Generate, endpoint: Serve, make_pair: MakePair) -> None:
    def script(request: Recorded) -> Answer:
        usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 80}}
        return {
            "1.0?": say("fine", usage=usage),
            "1.1?": say("", finish_reason="length", usage=usage),
            "1.2?": say(" \n", usage=None),
            "1.3?": status(400, body={"error": {"message": "no"}}),
        }[question_of(request)]

    ran = run_generate(make_pair(1, 4), endpoint(script).base_url)
    assert ran.out.splitlines() == [
        "answered: 3 of 4 selected",
        "  of them empty: 2 (1 at the length limit)",
        "failed: 1",
        "prompt tokens of this run: 200 (unknown for 1)",
        "completion tokens of this run: 14 (unknown for 1)",
        "cached share of the prompt tokens: 80.0%",
    ]


def test_cached_tokens_not_reported_is_said(run_generate: Generate, endpoint: Serve, make_pair: MakePair) -> None:
    served = endpoint(lambda _: say("x", usage={"prompt_tokens": 5, "completion_tokens": 1}))
    assert "cached share of the prompt tokens: not reported" in run_generate(make_pair(1, 2), served.base_url).out


def test_a_think_block_is_stored_as_received_with_one_warning(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    ran = run_generate(make_pair(1, 3), endpoint(lambda _: say("<think>hm</think>gold")).base_url)
    assert {row["response"] for row in ran.rows} == {"<think>hm</think>gold"}
    assert ran.err.count("<think>") == 1


def test_a_prompt_that_the_server_cut_is_warned_of_once_a_chat(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_chats import WordCounter

    monkeypatch.setattr(beam_generate, "token_counter", lambda args: WordCounter(bytes_bound=False))
    served = endpoint(lambda _: say("x", usage={"prompt_tokens": 7, "completion_tokens": 1}))
    ran = run_generate(make_pair(2, 3), served.base_url, "--tokenizer", "words")
    assert ran.err.count("may cut long prompts silently") == 2, "16 words were sent, 7 tokens reported"


# --- Selections -----------------------------------------------------------------------------------------------------

QUESTIONS = question_rows(chats=7, questions=2) + question_rows(chats=7, questions=1, ability="abstention")


def keys(questions: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return [(q["chat_id"], q["question_type"], q["question_index"]) for q in questions]


@pytest.mark.parametrize("parts", range(1, 10))
@pytest.mark.parametrize("types", [(), ("abstention",)], ids=["all", "one-ability"])
def test_shards_are_whole_chats_and_together_the_whole(parts: int, types: tuple[str, ...]) -> None:
    shards = [select(QUESTIONS, types=types, shard=(part, parts)) for part in range(1, parts + 1)]
    assert sorted(keys([q for shard in shards for q in shard])) == sorted(keys(select(QUESTIONS, types=types)))
    chats = [{q["chat_id"] for q in shard} for shard in shards]
    assert sum(map(len, chats)) == 7
    assert max(map(len, chats)) - min(map(len, chats)) <= 1


def test_chats_are_dealt_round_robin_in_the_order_of_the_file() -> None:
    assert list(dict.fromkeys(q["chat_id"] for q in select(QUESTIONS, shard=(2, 3)))) == ["2", "5"]


def test_shards_come_after_chats_and_before_the_limit() -> None:
    chosen = select(QUESTIONS, chats=["3", "5", "7"], shard=(2, 2), limit=2)
    assert [q["chat_id"] for q in chosen] == ["5", "5"]


def test_an_empty_shard_is_no_error(run_generate: Generate, make_pair: MakePair) -> None:
    ran = run_generate(make_pair(2, 1), "http://127.0.0.1:9/v1", "--shard", "3/3")
    assert ran.rc == 0
    assert "empty" in ran.err
    assert not ran.output.exists()


def test_limit_chats_and_types_select(run_generate: Generate, endpoint: Serve, make_pair: MakePair) -> None:
    pair, served = make_pair(3, 4), endpoint()
    ran = run_generate(
        pair, served.base_url, "--chats", "2,3", "--limit", "5", "--question-types", "information_extraction"
    )
    assert [(r["chat_id"], r["question_index"]) for r in sorted(ran.rows, key=lambda r: (r["chat_id"], r["question_index"]))] == [
        ("2", 0), ("2", 1), ("2", 2), ("2", 3), ("3", 0),
    ]  # fmt: skip


def test_questions_in_another_order_than_the_chats(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    pair, served = make_pair(3, 2), endpoint()
    rows = read_rows(pair.questions)
    write_lines(pair.questions, [*rows[4:], *rows[1:4], rows[0]])
    ran = run_generate(pair, served.base_url, "--open-chats", "1")
    assert ran.rc == 0
    assert len(ran.rows) == 6
    for request in served.requests:
        assert request.messages[0]["content"] == f"chat {question_of(request)[0]} says 0"


# --- Resume ---------------------------------------------------------------------------------------------------------


def test_finished_questions_are_not_asked_again(run_generate: Generate, endpoint: Serve, make_pair: MakePair) -> None:
    pair, served = make_pair(2, 5), endpoint()
    assert len(run_generate(pair, served.base_url, "--limit", "4").rows) == 4
    ran = run_generate(pair, served.base_url)
    assert Counter(question_of(r) for r in served.requests) == Counter(q["question"] for q in read_rows(pair.questions))
    assert len(ran.rows) == 10


def test_retry_errors_asks_only_for_those_and_leaves_one_line_each(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    pair = make_pair(1, 4)
    bad = endpoint(lambda r: status(400, body={"error": "no"}) if question_of(r) in ("1.1?", "1.2?") else say("ok"))
    first = run_generate(pair, bad.base_url)
    assert len(first.errors) == 2
    assert run_generate(pair, bad.base_url).rows == first.rows, "errors are finished unless asked for"
    good = endpoint(lambda _: say("now"))
    ran = run_generate(pair, good.base_url, "--retry-errors", "--allow-mixed")
    assert sorted(question_of(r) for r in good.requests) == ["1.1?", "1.2?"]
    assert Counter(r["question"] for r in ran.rows) == Counter({f"1.{n}?": 1 for n in range(4)})
    assert not ran.errors


def test_sigterm_half_way_then_again_every_question_once(
    launch: Callable[..., subprocess.Popen[bytes]], endpoint: Serve, make_pair: MakePair, tmp_path: Path
) -> None:
    again = threading.Event()  # until then the run does not get beyond its half
    served = endpoint(lambda r: say("fine") if r.number < 12 or again.is_set() else hang())
    pair = make_pair(3, 8)
    argv = ["--base-url", served.base_url, "--model", "m", "--api-key", "k", "--tokenizer", "", "--concurrency", "2"]
    argv += [*pair.flags, "--output", str(tmp_path / "a.jsonl")]
    process = launch("generate", *argv)
    assert served.wait_until(lambda: len(served.requests) > 12)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert 0 < len(read_rows(tmp_path / "a.jsonl")) <= 12
    again.set()
    assert launch("generate", *argv).wait(30) == 0
    asked = [row["question"] for row in read_rows(tmp_path / "a.jsonl")]
    assert sorted(asked) == sorted(q["question"] for q in read_rows(pair.questions))


# --- Shrinking ------------------------------------------------------------------------------------------------------


def too_long(limit: int) -> Callable[[Recorded], Answer]:
    """An endpoint whose own count is a token a byte of the history, at most `limit`."""

    def script(request: Recorded) -> Answer:
        size = sum(len(m["content"]) for m in request.messages[:-1])
        if size <= limit:
            return say("fits")
        message = f"maximum context length is {limit} tokens, however you requested {size} tokens"
        return status(400, body={"error": {"message": message, "code": "context_length_exceeded"}})

    return script


def test_overflow_is_recorded_by_default_with_one_request(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    served = endpoint(too_long(1000))
    ran = run_generate(make_pair(1, 1, rounds=100), served.base_url)
    assert len(served.requests) == 1
    assert len(ran.errors) == 1


def test_overflow_shrinks_once_for_all_questions_of_the_chat(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    served = endpoint(too_long(1000))
    ran = run_generate(make_pair(1, 6, rounds=100), served.base_url, "--on-overflow", "shrink", "--concurrency", "1")
    assert {row["response"] for row in ran.rows} == {"fits"}
    assert len(served.requests) <= 6 + 5
    assert served.requests[-1].messages[0]["role"] == "user"
    assert json.loads((ran.output.parent / "answers.run.json").read_text())["shrunk"]["1"] > 0


def test_a_chat_cut_for_a_longer_question_is_opened_anew_by_one_request(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    """Seven questions find at once that it no longer fits; the cut prefix is paid for in full by one of them."""
    pair = make_pair(1, 8, rounds=100)
    rows = read_rows(pair.questions)
    write_lines(pair.questions, [rows[0], *({**row, "question": row["question"] + "?" * 200} for row in rows[1:])])
    sizes: list[int] = []
    cut: list[Recorded] = []

    def script(request: Recorded) -> Answer:
        sizes.append(len(request.body))
        if len(request.messages) == 201:
            served.wait_until(lambda: len(sizes) == 1 or len(sizes) >= 8)  # the opener, then all others together
            message = "maximum context length is 2000 tokens, however you requested 2040 tokens"
            return say("fits") if len(sizes) == 1 else status(400, {"error": {"message": message}})
        cut.append(request)
        if len(cut) == 1:
            time.sleep(0.3)  # time enough for others that do not wait for the first piece
            assert len(cut) == 1
        return say("fits")

    served = endpoint(script)
    ran = run_generate(pair, served.base_url, "--on-overflow", "shrink")
    assert [row["response"] for row in ran.rows] == ["fits"] * 8
    assert (len(sizes), len(cut)) == (1 + 7 + 7, 7)


def test_what_was_cut_is_on_record_before_an_answer_counts(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    pair, limit = make_pair(1, 2, rounds=100), too_long(1000)
    recorded = []

    def script(request: Recorded) -> Answer:
        if read_rows(pair.chats.parent / "answers.jsonl"):
            recorded.append(json.loads((pair.chats.parent / "answers.run.json").read_text()).get("shrunk"))
        return limit(request)

    ran = run_generate(pair, endpoint(script).base_url, "--on-overflow", "shrink", "--concurrency", "1")
    assert [row["response"] for row in ran.rows] == ["fits", "fits"]
    assert recorded == [json.loads((pair.chats.parent / "answers.run.json").read_text())["shrunk"]]


def test_shrinking_ends_after_five_tries(run_generate: Generate, endpoint: Serve, make_pair: MakePair) -> None:
    refuse = status(400, body={"error": {"message": "prompt is too long", "code": "context_length_exceeded"}})
    served = endpoint(lambda _: refuse)
    ran = run_generate(make_pair(1, 1, rounds=500), served.base_url, "--on-overflow", "shrink")
    assert len(served.requests) == 6
    assert len(ran.errors) == 1


def test_a_resume_starts_where_the_history_was_cut_before(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    pair = make_pair(1, 2, rounds=100)
    served = endpoint(too_long(1000))
    run_generate(pair, served.base_url, "--on-overflow", "shrink", "--limit", "1")
    before = len(served.requests)
    ran = run_generate(pair, served.base_url, "--on-overflow", "shrink")
    assert len(served.requests) == before + 1
    assert "1 chat cut further by --on-overflow shrink: applied again" in ran.err


def test_other_chats_are_not_cut_as_the_recorded_ones_were(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    served = endpoint(too_long(1000))
    run_generate(make_pair(1, 2, rounds=100), served.base_url, "--on-overflow", "shrink", "--limit", "1")
    ran = run_generate(make_pair(1, 2, rounds=9), served.base_url, "--allow-mixed")
    assert (ran.rc, len(served.requests[-1].messages)) == (0, 19)


def test_a_cut_chat_waits_for_the_endpoint_like_all_others(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    """A wait that the endpoint names holds back the shorter prompt, too."""
    overflow = status(400, {"error": {"message": "prompt is too long: 2040 tokens > 2000"}})

    def script(request: Recorded) -> Answer:
        if request.number == 0:
            served.wait_until(lambda: len(served.requests) == 2 and served.requests[1].answered is not None)
            return after(0.2, overflow)
        return status(429, headers={"Retry-After": "1"}) if request.number == 1 else say("fits")

    served = endpoint(script)
    ran = run_generate(make_pair(2, 1, rounds=50), served.base_url, "--on-overflow", "shrink")
    assert [row["response"] for row in ran.rows] == ["fits", "fits"]
    limited, *later = sorted(served.requests[1:], key=lambda request: request.number)
    assert limited.answered is not None
    assert all(request.received >= limited.answered + 1 for request in later)


def test_nothing_is_asked_again_shrunk_once_the_run_has_stopped(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = done_by_the_run(monkeypatch, "stop")

    def script(request: Recorded) -> Answer:
        if question_of(request) == "1.0?":
            return say("opens")
        if question_of(request) == "1.1?":
            assert served.wait_until(lambda: len(served.requests) == 6)
            return status(401)
        assert stopped.wait(30)
        return too_long(10)(request)

    served = endpoint(script)
    ran = run_generate(make_pair(1, 6, rounds=50), served.base_url, "--on-overflow", "shrink")
    assert ran.rc == 1
    assert len(served.requests) == 6
    assert len(ran.rows) == 1


def test_a_damaged_chat_met_on_the_way_lets_paid_requests_finish(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    stopped = done_by_the_run(monkeypatch, "stop")

    def script(_: Recorded) -> Answer:
        assert stopped.wait(30)
        return say("paid")

    pair = make_pair(2, 3)
    first, second = gzip.decompress(pair.chats.read_bytes()).splitlines(keepends=True)
    pair.chats.write_bytes(gzip.compress(first + second.replace(b'"content"', b'"kontent"')))
    served = endpoint(script)
    ran = run_generate(pair, served.base_url)
    assert ran.rc == 2
    assert "line 2" in ran.err
    assert len(ran.rows) == len(served.requests) == 1


# --- Dry run and help -----------------------------------------------------------------------------------------------


def test_a_dry_run_needs_no_key_model_url_tokenizer_or_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert beam_generate.main(["--dry-run", "--tag", "sample", "--limit", "3"]) == 0
    out = capsys.readouterr().out
    assert "1 chat, 3 questions, 72 messages (0 left out)" in out
    assert "distinct prefixes" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(flag: str) -> None:
    code = f"import sys, beam_generate\ntry: beam_generate.main(['{flag}'])\nfinally: print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE).stdout
    assert (VERSION if flag == "--version" else "--thinking-json") in loaded
    for heavy in ("openai", "httpx2", "transformers", "tiktoken", "tqdm", "asyncio", "numpy"):
        assert f" {heavy} " not in loaded


@pytest.mark.parametrize("program", ["beam_generate", "beam_judge", "beam_report", "prepare_data"])
def test_programs_run_without_docstrings_and_assertions(program: str) -> None:
    command = [sys.executable, "-OO", str(HERE / f"{program}.py"), "--version"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == f"{program}.py {VERSION}\n"


# --- Bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        pytest.param(["--thinking-json", "[1]"], "--thinking-json", id="json-no-object"),
        pytest.param(["--thinking-json", "{"], "--thinking-json", id="json-torn"),
        pytest.param(["--thinking-json", '{"a": NaN}'], "--thinking-json", id="json-nan"),
        pytest.param(["--thinking-json", '{"messages": []}'], "--thinking-json", id="json-messages"),
        pytest.param(["--concurrency", "0"], "--concurrency", id="no-concurrency"),
        pytest.param(["--max-retries", "-1"], "--max-retries", id="negative-retries"),
        pytest.param(["--max-tokens", "many"], "--max-tokens", id="tokens-no-number"),
        pytest.param(["--temperature", "nan"], "--temperature", id="temperature-nan"),
        pytest.param(["--top-p", "0"], "--top-p", id="top-p-zero"),
        pytest.param(["--timeout", "0"], "--timeout", id="timeout-zero"),
        pytest.param(["--shard", "0/2"], "--shard", id="shard-from-zero"),
        pytest.param(["--shard", "3/2"], "--shard", id="shard-beyond"),
        pytest.param(["--shard", "1"], "--shard", id="shard-no-slash"),
        pytest.param(["--header", "nothing"], "--header", id="header-no-equals"),
        pytest.param(["--header", "X-Key=schlüssel"], "X-Key", id="header-not-ascii"),
        pytest.param(["--question-types", "singing"], "singing", id="unknown-ability"),
        pytest.param(["--chats", "99"], "99", id="unknown-chat"),
        pytest.param(["--tokenizer", "Kimi-K2.6", "--max-context-tokens", "30000"], "--max-context-tokens", id="budget-below-zero"),
        pytest.param(["--tag", "7m", "--chats-file", ""], "prepare_data.py --tag 7m", id="no-data"),
        pytest.param(["--base-url", "localhost:8000"], "--base-url", id="url-without-scheme"),
        pytest.param(["--base-url", ""], "--base-url", id="no-url"),
        pytest.param(["--model", ""], "--model", id="no-model"),
        pytest.param(["--api-key", " "], "BEAM_API_KEY", id="no-key"),
        pytest.param(["--outptu", "x"], "--outptu", id="unknown-flag"),
        pytest.param(["--lim", "3"], "--lim", id="abbreviated-flag"),
    ],
)  # fmt: skip
def test_bad_flags_are_one_line_and_nothing_is_written(
    run_generate: Generate, make_pair: MakePair, flags: list[str], named: str
) -> None:
    ran = run_generate(make_pair(1, 1), "http://127.0.0.1:9/v1", *flags)
    assert ran.rc == 2
    assert named in ran.err
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    assert not ran.output.exists()
    assert not ran.output.with_suffix(".run.json").exists()


def test_a_budget_needs_no_room_without_truncation(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    assert content_budget(10, 20, 0) == -10
    assert run_generate(make_pair(1, 1), endpoint().base_url, "--max-context-tokens", "10", "--tokenizer", "").rc == 0


@pytest.mark.parametrize("flag", ["--chats-file", "--questions-file", "--tokenizer", "--output"])
def test_a_name_that_no_file_can_have_is_one_line(run_generate: Generate, make_pair: MakePair, flag: str) -> None:
    ran = run_generate(make_pair(), "http://localhost:9/v1", flag, f"/{'long' * 100}/answers.jsonl")
    assert (ran.rc, ran.err.count("\n")) == (2, 1)
    assert "too long" in ran.err


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:abc", "http://127.0.0.1:99999", "what://h", "http://[::1"])
def test_a_proxy_that_cannot_be_one_is_one_line(
    run_generate: Generate, make_pair: MakePair, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    ran = run_generate(make_pair(), "http://model.invalid/v1")
    assert ran.rc == 2
    assert "the proxy that the environment sets cannot be used" in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err


def test_another_model_is_refused_although_its_name_is_also_a_header_or_the_key(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    pair, served = make_pair(1, 3), endpoint()
    for model in ("model-one", "model-two"):
        ran = run_generate(
            pair, served.base_url, "--model", model, "--api-key", model, "--header", f"X-Route={model}", "--limit", "1"
        )
    assert (ran.rc, len(served.requests)) == (2, 1)
    assert "model (recorded model-one, now model-two)" in ran.err


def test_a_cookie_that_no_header_can_carry_is_not_kept(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    cookies = itertools.cycle([b"a=\xff\xfe", b"sticky=node-7"])

    def script(_: Recorded) -> Answer:
        body = b'{"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nSet-Cookie: %s\r\nContent-Length: %d\r\n\r\n"
        return raw(head % (next(cookies), len(body)) + body)

    served = endpoint(script)
    ran = run_generate(make_pair(1, 3), served.base_url, "--concurrency", "1", "--no-stream")
    assert (ran.rc, ran.errors) == (0, [])
    assert [request.headers.get("cookie") for request in served.requests] == [None, None, "sticky=node-7"]


@pytest.mark.parametrize("none", ["", False])
def test_a_row_whose_error_says_nothing_has_none(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair, tmp_path: Path, none: object
) -> None:
    write_lines(tmp_path / "answers.jsonl", [{**row, "error": none} for row in answer_rows(1, 1)])
    served = endpoint()
    ran = run_generate(make_pair(1, 1), served.base_url, "--retry-errors")
    assert (ran.rc, served.requests) == (0, [])
    assert "failed: 0" in ran.out


def test_a_question_about_an_unknown_chat_is_named(run_generate: Generate, make_pair: MakePair) -> None:
    pair = make_pair(1, 1)
    write_lines(pair.questions, question_rows(2, 1))
    ran = run_generate(pair, "http://127.0.0.1:9/v1")
    assert ran.rc == 2
    assert "chat 2 information_extraction/0" in ran.err
    assert not ran.output.exists()


@pytest.mark.parametrize(
    ("line", "named"),
    [("{}", "chat_id"), ('{"chat_id": "1"', "line 2"), ("[]", "line 2"), (json.dumps(question_rows(1, 1)[0]), "twice")],
    ids=["no-keys", "torn", "a-list", "twice"],
)
def test_a_damaged_questions_file_is_named_by_line(
    run_generate: Generate, make_pair: MakePair, line: str, named: str
) -> None:
    pair = make_pair(1, 1)
    pair.questions.write_bytes(pair.questions.read_bytes() + line.encode() + b"\n")
    ran = run_generate(pair, "http://127.0.0.1:9/v1")
    assert ran.rc == 2
    assert "line 2" in ran.err
    assert named in ran.err


def test_a_damaged_gzip_is_said_before_anything_is_sent(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair
) -> None:
    pair, served = make_pair(2, 1), endpoint()
    pair.chats.write_bytes(pair.chats.read_bytes()[:-12])
    ran = run_generate(pair, served.base_url)
    assert ran.rc == 2
    assert "damaged gzip" in ran.err
    assert served.requests == []
    assert not ran.output.exists()


def test_a_missing_vocabulary_names_three_ways_out(
    run_generate: Generate, endpoint: Serve, make_pair: MakePair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import shutil

    import beam_tokenizer

    shutil.copy(beam_tokenizer.TOKENIZER_DIR / "manifest.json", tmp_path / "manifest.json")
    monkeypatch.setattr(beam_generate, "token_counter", lambda args: beam_tokenizer.bundled_counter(tmp_path))
    ran = run_generate(
        make_pair(1, 1, rounds=50), endpoint().base_url, "--tokenizer", "Kimi-K2.6", "--max-context-tokens", "38000"
    )
    assert ran.rc == 2
    for way in ("prepare_data.py", "--tokenizer", "empty --tokenizer"):
        assert way in ran.err
    assert not ran.output.exists()


# --- Real data ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.environ.get("BEAM_OFFICIAL"), reason="needs a part of the release: set BEAM_OFFICIAL")
def test_real_chats_are_sent_message_for_message(run_generate: Generate, endpoint: Serve, tmp_path: Path) -> None:
    import gzip

    import prepare_data

    release = Path(os.environ["BEAM_OFFICIAL"]) / "chats" / "100K"
    assert prepare_data.main(["--src", str(release), "--chats", "1,5", "--tag", "t", "--out-dir", str(tmp_path)]) == 0
    pair = Pair(tmp_path / "beam_t_chats.jsonl.gz", tmp_path / "beam_t_questions.jsonl")
    with gzip.open(pair.chats) as file:
        chats = {row["chat_id"]: row["messages"] for row in map(json.loads, file)}
    about = {q["question"]: q["chat_id"] for q in read_rows(pair.questions)}
    served = endpoint(lambda _: say("fine"))
    assert run_generate(pair, served.base_url).rc == 0
    assert len(served.requests) == 40
    for request in served.requests:
        assert request.messages[:-1] == chats[about[question_of(request)]]


def test_everything_is_written_within_the_run_not_at_its_end(
    launch: Callable[..., subprocess.Popen[bytes]], endpoint: Serve, make_pair: MakePair, tmp_path: Path
) -> None:
    pair, served = (
        make_pair(1, 3),
        endpoint(lambda r: after(60, say("late")) if question_of(r) == "1.2?" else say("soon")),
    )
    output = tmp_path / "a.jsonl"
    argv = ["--base-url", served.base_url, "--model", "m", "--api-key", "k", "--tokenizer", "", "--output", str(output)]
    launch("generate", *argv, *pair.flags)
    deadline = time.monotonic() + 30
    while len(read_rows(output)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(read_rows(output)) == 2
