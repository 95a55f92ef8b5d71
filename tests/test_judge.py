"""beam_judge.py through its front door: answers and a scripted judge in; scores, verdicts out.

A number in an id or a docstring stands for a trouble that users have met.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import Pair, Programs, Ran, read_rows, write_lines
from scripted_endpoint import Answer, Recorded, ScriptedEndpoint, hang, say, status
from word_overlap import sections_of

import beam_judge
from beam_common.files import sha256_of_text
from beam_common.prompts import CRITERION
from beam_common.rowlog import RowLog
from beam_common.rows import ABILITIES

Rows = Sequence[dict[str, Any]]
Serve = Callable[..., ScriptedEndpoint]
PATIENCE = 30.0  # seconds that a script waits for something that should come at once
YES = say('{"score": 1.0, "reason": "it is there"}')
# What the judge says to a criterion, or to an order of events, that begins with this word.
REPLIES = {
    "yes": YES,
    "half": say('{"score": 0.5, "reason": "in part"}'),
    "no": say('{"score": 0.0, "reason": "it is not there"}'),
    "most": say('{"score": 0.7, "reason": "nearly"}', usage=None),
    "unclear": say("I cannot decide."),
    "refused": status(400),
}


def criterion_of(request: Recorded) -> str:
    parts = sections_of(request.last)
    return parts.get("criterion") or parts.get("reference", "")


def by_words(request: Recorded) -> Answer:
    return REPLIES[criterion_of(request).split()[0]]


def answer(*rubric: str, index: int = 0, **changes: Any) -> dict[str, Any]:
    """A row of an answers file."""
    identity = {"chat_id": "1", "question_type": "summarization", "question_index": index}
    asked = {"question": f"question {index}?", "rubric": list(rubric)}
    return {**identity, **asked, "response": "gold", "error": None, **changes}


def answers(*rubrics: str) -> list[dict[str, Any]]:
    """An answer for each rubric, whose criteria stand between commas; the indices are 0, 1, …"""
    return [answer(*text.split(", "), index=n) for n, text in enumerate(rubrics)]


def many(questions: int) -> list[dict[str, Any]]:
    """Four criteria each, and no two of them are one."""
    return answers(*(f"yes {n}.0, yes {n}.1, yes {n}.2, yes {n}.3" for n in range(questions)))


@dataclass
class Bench:
    """A judge whose script can change from run to run, and the program's front door."""

    programs: Programs
    endpoint: Serve
    served: ScriptedEndpoint = field(init=False)

    def __call__(self, rows: Rows, *flags: str, script: Any = by_words, **more: Any) -> Ran:
        path = write_lines(self.programs.folder / "answers.jsonl", list(rows))
        self.served = self.endpoint(script, **more)
        return self.programs.judge(path, self.served.base_url, *flags)

    @property
    def asked(self) -> list[str]:
        """The criteria of the last run's requests, sorted."""
        return sorted(map(criterion_of, self.served.requests))

    @property
    def scores(self) -> dict[tuple[str, int], float]:
        """By ability and index; there is one line for each."""
        rows = read_rows(self.programs.folder / "scores.jsonl")
        scores = {(row["question_type"], row["question_index"]): row["score"] for row in rows}
        assert len(scores) == len(rows)
        return scores

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        return read_rows(self.programs.folder / "scores.verdicts.jsonl")


@pytest.fixture
def bench(programs: Programs, endpoint: Serve) -> Bench:
    return Bench(programs, endpoint)


# --- What is asked and what is kept -------------------------------------------------------------


def test_a_request(bench: Bench) -> None:
    flags = ["--judge-reasoning-effort", "high", "--header", "X-Chat={chat_id}"]
    extra = '{"max_tokens": null, "max_completion_tokens": 7, "think": {"on": true}}'
    assert bench([answer("yes")], *flags, "--judge-extra-json", extra).rc == 0
    (request,) = bench.served.requests
    texts = {"question": "question 0?", "rubric_item": "yes", "response": "gold"}
    assert request.json() == {
        **{"model": "j", "temperature": 0.3, "reasoning_effort": "high"},
        **{"max_completion_tokens": 7, "think": {"on": True}},
        "messages": [{"role": "user", "content": CRITERION.fill(texts)}],
    }
    assert (request.headers["authorization"], request.headers["x-chat"]) == ("Bearer k", "1")


def test_a_verdict_of_each_criterion_and_the_score_of_each_question(bench: Bench) -> None:
    rubrics = ["yes", "half", "most, yes", "yes, half, no", "no, no, yes, yes", "yes, refused"]
    ran = bench(answers(*rubrics))
    assert ran.rc == 0
    assert bench.asked == sorted(", ".join(rubrics).split(", "))
    scores = [1.0, 0.0, 0.5, 1 / 3, 0.5, 0.5]
    assert [bench.scores["summarization", n] for n in range(6)] == pytest.approx(scores)
    block = ["=== BEAM summary (n=6) ===", "overall: 0.4722", "  summarization: 0.4722 (n=6)"]
    assert ran.out.splitlines()[:3] == block


def test_rows(bench: Bench) -> None:
    bench(answers("most, refused"), "--concurrency", "1")
    identity = {"chat_id": "1", "question_type": "summarization", "question_index": 0}
    assert read_rows(bench.programs.folder / "scores.jsonl") == [{**identity, "score": 0.0}]
    scored, failed = sorted(bench.verdicts, key=lambda row: row["item"])
    assert (list(failed), failed["status"]) == (list(scored), "failed")
    assert failed["error"].startswith("HTTP 400")
    assert scored == {
        **{**identity, "item": 0, "criterion": "most", "status": "scored", "level": 0.7},
        **{"reply": '{"score": 0.7, "reason": "nearly"}', "finish_reason": "stop", "error": None},
        **{"prompt_tokens": None, "completion_tokens": None},
        "prompt_sha256": sha256_of_text(bench.served.requests[0].last),
    }


def test_the_limit_is_one_of_calls(bench: Bench) -> None:
    gate = threading.Barrier(5, timeout=PATIENCE)  # opens only for five calls at once

    def together(_: Recorded) -> Answer:
        gate.wait()
        return YES

    rubrics = ["yes, yes, yes", "yes, yes, yes", "yes, yes, yes, yes"]
    ran = bench(answers(*rubrics), "--concurrency", "5", script=together)
    assert (ran.rc, bench.served.most_in_flight) == (0, 5)


ORDERS = {
    "in-order": ("strict", {"all_present": True, "order_correct": True, "score": 1.0}, 1.0),
    "out-of-order": ("strict", {"all_present": True, "order_correct": False, "score": 0}, 0.0),
    # tau of 1 2 3 and 1 3 2 is (2 - 1) / 3
    "rank-correlation": ("tau", {"matches": [1, 3, 2]}, (1 / 3 + 1) / 2),
}


@pytest.mark.parametrize(("mode", "reply", "score"), ORDERS.values(), ids=ORDERS)
def test_an_order_is_one_call(bench: Bench, mode: str, reply: Any, score: float) -> None:
    row = answer("order", "solder", "test", question_type="event_ordering", response="a\n\nb\nc")
    ran = bench([row], "--event-ordering", mode, script=lambda _: say(json.dumps(reply)))
    assert (ran.rc, bench.asked) == (0, ["1. order\n2. solder\n3. test"])
    assert bench.scores == {("event_ordering", 0): pytest.approx(score)}


def test_what_scores_0_without_a_call(bench: Bench) -> None:
    rows = [answer("yes", "no", question_type=ability, response=" \n") for ability in ABILITIES]
    failed = {"question_type": "abstention", "response": "", "error": "HTTP 400: no"}
    ran = bench([*rows, answer("yes", index=1, **failed)])
    assert (ran.rc, bench.asked) == (0, ["no", "yes"])
    zeros = {(ability, 0): 0.0 for ability in ABILITIES}
    assert bench.scores == {**zeros, ("abstention", 0): 0.5, ("abstention", 1): 0.0}
    assert "10 empty, 1 with an error" in ran.out


def test_a_question_without_a_criterion_is_left_unscored(bench: Bench) -> None:
    ran = bench([answer(index=0), answer(" ", index=1), answer("yes", index=2)])
    assert (ran.rc, bench.scores) == (0, {("summarization", 2): 1.0})
    assert ran.err.count("has no criterion in its rubric") == 2


# --- Verdicts that cannot be read or had --------------------------------------------------------


def test_a_verdict_that_cannot_be_read_is_asked_for_again(bench: Bench) -> None:
    """59, 82, 88: two more times; then it counts 0."""
    unclear = REPLIES["unclear"]
    ran = bench(answers("yes"), script=lambda r: YES if r.number == 2 else unclear)
    assert (ran.rc, len(bench.asked), [*bench.scores.values()]) == (0, 3, [1.0])
    assert "the judge did not answer in the form in 2 of 3 calls" in ran.out
    for flags, asked, score in (
        ([], ["unclear"] * 3, 0.5),
        ([], [], 0.5),  # what is used up is used up
        (["--retry-errors"], ["unclear"] * 3, 0.5),
    ):
        ran = bench(answers("yes, unclear"), *flags)
        assert (ran.rc, bench.asked, [*bench.scores.values()]) == (0, asked, [score])
    bench(answers("yes, unclear"), "--retry-errors", script=lambda _: YES)
    assert (bench.asked, [*bench.scores.values()]) == (["unclear"], [1.0])


def test_each_call_has_its_attempts(bench: Bench) -> None:
    """Also when it is made again since its reply could not be read."""
    down, unclear = status(500), REPLIES["unclear"]
    replies = [down, down, unclear, down, down, YES]
    ran = bench([answer("x")], "--max-retries", "3", script=lambda r: replies[r.number])
    assert (ran.rc, [*bench.scores.values()]) == (0, [1.0])


def test_a_judge_with_few_places_judges_everything(bench: Bench) -> None:
    """42"""
    ran = bench(many(20), places=2, script=lambda _: YES)
    assert (ran.rc, {*bench.scores.values()}, len(bench.scores)) == (0, {1.0}, 20)
    assert "overall: 1.0000" in ran.out


# --- Stops --------------------------------------------------------------------------------------


def test_a_stop_keeps_every_verdict_and_shows_no_score_that_is_not_there(bench: Bench) -> None:
    """7; also where the file for the scores was there before."""
    (bench.programs.folder / "scores.jsonl").touch()
    script: Any = lambda r: YES if r.number < 3 else status(402)  # noqa: E731
    ran = bench(many(1), "--concurrency", "1", script=script)
    assert (ran.rc, ran.out, len(bench.verdicts)) == (1, "", 3)
    assert "1 answer left to judge: start the same command again" in ran.err
    ran = bench(many(1))
    assert (ran.rc, bench.asked, len(bench.scores)) == (0, ["yes 0.3"], 1)


def test_a_stop_while_an_unreadable_reply_is_saved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stopped: threading.Event
) -> None:
    """Its verdict is not asked for again, and the run ends."""
    saving, append = threading.Event(), RowLog.append

    def slow(log: RowLog, rows: Rows) -> None:
        if any(row.get("status") == "unreadable" for row in rows):
            saving.set()
            assert stopped.wait(PATIENCE)
        append(log, rows)

    def script(request: Recorded) -> Answer:
        if criterion_of(request) == "unclear":
            return REPLIES["unclear"]
        assert saving.wait(PATIENCE)
        return status(401)

    monkeypatch.setattr(RowLog, "append", slow)
    ran = bench(answers("unclear", "key"), script=script)
    assert (ran.rc, bench.asked) == (1, ["key", "unclear"])
    assert "--judge-api-key" in ran.err
    assert [row["criterion"] for row in bench.verdicts] == ["unclear"]


@pytest.mark.parametrize("how", ["kill-9", "a-mistake-of-ours"])
def test_exactly_the_missing_verdicts_are_asked_for_after(
    bench: Bench,
    launch: Callable[..., subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    """30, 60"""
    if how == "kill-9":
        folder = bench.programs.folder
        rows = write_lines(folder / "answers.jsonl", many(25))
        bench.served = bench.endpoint(lambda r: YES if r.number < 60 else hang())
        argv = ["--judge-base-url", bench.served.base_url, "--criterion-prompt", "builtin"]
        argv += ["--output", str(folder / "scores.jsonl"), "--answers", str(rows)]
        process = launch("beam_judge.py", "{}", "--judge-model=j", "--judge-api-key=k", *argv)
        assert bench.served.wait_until(lambda: len(bench.served.requests) == 60 + 32)
        process.kill()
        process.wait()
    else:
        note = beam_judge.Record.note_model
        with monkeypatch.context() as patch:
            mistaken: Any = lambda *a: note(*a) if len(bench.verdicts) < 40 else 1 / 0  # noqa: E731
            patch.setattr(beam_judge.Record, "note_model", mistaken)
            assert bench(many(25)).rc == 1
    had = [row["criterion"] for row in bench.verdicts]
    assert len(had) == 60 if how == "kill-9" else 40 <= len(had) <= 60
    ran = bench(many(25))
    everything = [text for row in many(25) for text in row["rubric"]]
    assert (ran.rc, bench.asked) == (0, sorted({*everything} - {*had}))
    assert (len(bench.verdicts), len(bench.scores)) == (100, 25)


# --- Resume -------------------------------------------------------------------------------------

CHANGES: dict[str, tuple[dict[str, Any], list[str], float]] = {
    "77-question": ({"question": "another?"}, ["half", "yes"], 1.0),
    "response": ({"response": "silver"}, ["half", "yes"], 1.0),
    "response-gone": ({"response": " "}, [], 0.0),
    "rubric": ({"rubric": ["yes", "yes b"]}, ["yes b"], 1.0),
}


@pytest.mark.parametrize(("changes", "asked", "score"), CHANGES.values(), ids=CHANGES)
def test_what_has_changed_is_judged_again(
    bench: Bench, changes: dict[str, Any], asked: list[str], score: float
) -> None:
    bench([answer("yes", "half")])
    ran = bench([answer("yes", "half", **changes)], script=lambda _: YES)
    assert (ran.rc, bench.asked, bench.scores) == (0, asked, {("summarization", 0): score})


def test_a_score_that_had_no_room_follows_from_its_verdicts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """31: although every call was made."""
    write = RowLog._write

    def full(log: RowLog, data: bytes) -> None:
        if data and "verdicts" not in log.path.name:
            raise OSError(28, "No space left on device")
        write(log, data)

    with monkeypatch.context() as patch:
        patch.setattr(RowLog, "_write", full)
        ran = bench(answers("yes, no"))
    assert (ran.rc, ran.out, len(bench.verdicts)) == (1, "", 2)
    assert "scores.jsonl cannot be written: No space left on device; make room" in ran.err
    ran = bench(answers("yes, no", "half"))
    assert (ran.rc, bench.asked, sorted(bench.scores.values())) == (0, ["half"], [0.0, 0.5])


def test_scores_of_another_tool_are_kept(bench: Bench) -> None:
    score = {"chat_id": 1, "question_type": "summarization", "question_index": "0"}
    write_lines(bench.programs.folder / "scores.jsonl", [{**score, "score": 0.25}])
    for asked in (["no"], []):
        ran = bench(answers("yes", "no"))
        assert (ran.rc, bench.asked) == (0, asked)
        assert [row["score"] for row in ran.rows] == [0.25, 0.0]
        assert "scores of another tool, without verdicts: 1" in ran.out


SETTINGS: dict[str, tuple[list[str], str, str]] = {
    "judge": (["--judge-model", "k"], "m", "model (recorded j, now k)"),
    "mode": (["--event-ordering", "tau"], "m", "event_ordering (recorded strict, now tau)"),
    "61-answers-of-another-model": ([], "n", "model (recorded m, now n) of the answers"),
}


@pytest.mark.parametrize(("flags", "model", "said"), SETTINGS.values(), ids=SETTINGS)
def test_other_settings_are_refused_unless_they_may_be_mixed(
    bench: Bench, flags: list[str], model: str, said: str
) -> None:
    folder = bench.programs.folder
    record = '{"program": "beam_generate.py", "settings": {"body": {"model": "%s"}}}'
    (folder / "answers.run.json").write_text(record % "m", "utf-8")
    bench(answers("yes"))
    (folder / "answers.run.json").write_text(record % model, "utf-8")
    before = {path: path.read_bytes() for path in folder.glob("scores*")}
    ran = bench(answers("yes", "no"), *flags)
    assert (ran.rc, bench.asked) == (2, [])
    assert said in ran.err
    assert "write to another --output" in ran.err
    assert {path: path.read_bytes() for path in folder.glob("scores*")} == before
    ran = bench(answers("yes", "no"), *flags, "--allow-mixed")
    assert (ran.rc, bench.asked) == (0, ["no"])
    assert "judged partly with other settings" in ran.out


# --- Answers files ------------------------------------------------------------------------------


def test_answers_that_came_meanwhile_are_judged_by_the_next_run(bench: Bench) -> None:
    ran = bench(answers("yes a", "yes b", "no c"), "--limit", "2")
    assert (ran.rc, bench.asked) == (0, ["yes a", "yes b"])
    ran = bench(answers("yes a", "yes b", "no c"))
    assert (ran.rc, bench.asked, len(bench.scores)) == (0, ["no c"], 3)


@pytest.mark.parametrize("files", [1, 2], ids=["in-one-file", "in-two-files"])
def test_parts_of_a_run_and_how_many_of_it_are_scored(
    bench: Bench, make_pair: Callable[..., Pair], files: int
) -> None:
    """62, 78: two shards, of which one stopped half way; a third one is missing."""
    pair, folder = make_pair(3, 10), bench.programs.folder
    names = [str(folder / f"part{n % files}.jsonl") for n in range(2)]
    for shard, most, output in (("1/3", 10, names[0]), ("2/3", 5, names[1])):
        served = bench.endpoint(lambda r, n=most: say("gold") if r.number < n else status(402))
        bench.programs.generate(pair, served.base_url, "--shard", shard, "--output", output)
    judge = bench.endpoint(lambda _: YES)
    ran = bench.programs.judge(folder / "part0.jsonl", judge.base_url, *names[1:files])
    assert (ran.rc, len(ran.rows)) == (0, 15)
    assert "scored: 15 of 20 selected questions" in ran.out
    assert "no answers of shard 3/3" in ran.err
