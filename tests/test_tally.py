"""What a generation run counts and says at its end, and what looks wrong about its answers."""

from __future__ import annotations

from typing import Any

import pytest

from beam_common.chats import Prompt
from beam_common.reply import Reply
from beam_common.tally import Suspicions, Tally

Capsys = pytest.CaptureFixture[str]


def row(**changes: Any) -> dict[str, Any]:
    question = {"chat_id": "3", "question_type": "abstention", "question_index": 0, "question": "?"}
    answer = {"response": "yes", "finish_reason": "stop", "completion_tokens": 5, "error": None}
    return {**question, **answer, "prompt_tokens": 1000, **changes}


def said(capsys: Capsys, *rows: dict[str, Any], tokens: int | None = 1000) -> str:
    """What is said of answers to a chat of 4,000 bytes and so many tokens by our count."""
    suspicions = Suspicions(max_tokens=100)
    for item in rows:
        counts = (tokens is not None, tokens or 0, tokens or 0)
        suspicions.look_at(item, Prompt("3", 2, 0, *counts, 4000, ()))
    err = capsys.readouterr().err
    assert err.count("\n") <= 1, "each is told of once"
    return err


def test_questions_are_of_the_file_and_tokens_of_this_run() -> None:
    tally = Tally(total=1200)
    for item in (row(), row(response=" \n"), row(finish_reason="length"), row(error="HTTP 500")):
        tally.add_row(item)
    assert "cached share of the prompt tokens: not reported" in tally.lines(0)
    tally.add_reply(Reply("", None, 1_000_000, 20, 900_000))
    tally.add_reply(Reply("", None, 1_000_000, None, 100_000))
    tally.add_reply(Reply("", None, None, 3, None))
    assert tally.lines(7500) == [
        "answered: 3 of 1,200 selected",
        "  of them empty: 1",
        "  of them ended at the length limit: 1",
        "failed: 1",
        "prompt tokens of this run: 2,000,000 (unknown for 1)",
        "completion tokens of this run: 23 (unknown for 1)",
        "cached share of the prompt tokens: 50.0%",
        "elapsed: 2 h 05 min",
    ]
    assert tally.status() == "1 failed, 1 empty, cached 50.0%, 2.0M tokens in"


@pytest.mark.parametrize(
    "response",
    [
        *("so</think>yes", "<think>so</think>yes", "[THINK]so[/THINK]yes", "◁/think▷ yes"),
        *("<|channel|>final<|message|>yes", "<|start|>assistant yes"),
    ],
)
def test_marks_of_reasoning_are_warned_of(capsys: Capsys, response: str) -> None:
    err = said(capsys, *[row(response=response)] * 3)
    assert err.startswith("warning: chat 3 abstention/0: the answer holds marks of reasoning")
    assert said(capsys, row(response="I think so; <b>yes</b> [1]")) == ""


def test_answers_that_all_end_at_the_length_limit_are_warned_of(capsys: Capsys) -> None:
    cut = row(finish_reason="length", completion_tokens=100)
    assert "the first 10 answers all ended at the length limit" in said(capsys, *[cut] * 25)
    assert said(capsys, *[cut] * 9, row(), *[cut] * 9) == ""


def test_an_answer_without_room_names_the_flags(capsys: Capsys) -> None:
    cut = row(finish_reason="length", completion_tokens=49)
    err = said(capsys, cut, cut)
    assert "ended after 49 of 100 tokens: the server's window left no room" in err
    assert "--reserve-tokens" in err
    for enough in (50, None):
        assert said(capsys, {**cut, "completion_tokens": enough}) == ""


@pytest.mark.parametrize(
    ("reported", "tokens", "warned"),
    [
        pytest.param(499, 1000, True, id="under-half-of-our-count"),
        pytest.param(500, 1000, False, id="half-of-our-count"),
        pytest.param(499, None, True, id="under-an-eighth-of-the-bytes"),
        pytest.param(500, None, False, id="an-eighth-of-the-bytes"),
        pytest.param(None, 1000, False, id="not-reported"),
    ],
)
def test_a_prompt_cut_silently_is_warned_of(
    capsys: Capsys, reported: int | None, tokens: int | None, warned: bool
) -> None:
    err = said(capsys, *[row(prompt_tokens=reported)] * 2, tokens=tokens)
    assert ("it may cut long prompts silently" in err) == warned


@pytest.mark.parametrize(
    ("lengths", "warned"),
    [
        pytest.param([10, 60, 106], True, id="three-of-different-length"),
        pytest.param([10, 106, 106], False, id="only-two-lengths"),
        pytest.param([10, 60, 105], False, id="lengths-that-equal-counts-may-have"),
    ],
)
def test_one_count_for_prompts_of_different_length_is_a_silent_cut(
    capsys: Capsys, lengths: list[int], warned: bool
) -> None:
    rows = [row(question="q" * n) for n in lengths]
    assert ("1,000 prompt tokens for 4,000 bytes" in said(capsys, *rows)) == warned
