"""The report through its front door: files in; stdout, stderr, exit code and pictures out."""

from __future__ import annotations

import builtins
import gzip
import json
import math
import os
import re
import subprocess
import sys
import unicodedata
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import beam_plot
import beam_report
import beam_width
from beam_common import ABILITIES
from beam_stats import Estimate
from beam_summary import bar, half_point_mean, load_run, number, summary_lines

SCRIPT = Path(beam_report.__file__)
SETTINGS = {
    "judge_model": "judge-1",
    "judge_base_url": "http://judge/v1",
    "judge_temperature": 0.3,
    "judge_max_tokens": 16384,
    "judge_reasoning_effort": "",
    "judge_extra_body": {},
    "criterion_prompt_sha256": "c" * 64,
    "ordering_prompt_sha256": "d" * 64,
    "event_ordering": "strict",
}
DATA = {"questions_sha256": "1" * 64, "chats_sha256": "2" * 64}
Question = tuple[str, str, int]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def identity(question: Question) -> dict[str, Any]:
    return {"chat_id": question[0], "question_type": question[1], "question_index": question[2]}


def write_scores(path: Path, scores: Mapping[Question, float]) -> Path:
    return write_lines(path, [{**identity(question), "score": score} for question, score in scores.items()])


def detail(question: Question, levels: list[float | None], **changes: Any) -> dict[str, Any]:
    """A line of details whose verdicts have these levels; None is an unreadable one."""
    verdicts = [
        {"criterion": "c", "level": level, "status": "unreadable" if level is None else "scored", "reply": "{}",
         "finish_reason": "stop", "prompt_tokens": 9, "completion_tokens": 9}
        for level in levels
    ]  # fmt: skip
    row = {**identity(question), "response_sha256": "e" * 64, "status": "judged", "ordering": None}
    return {**row, "verdicts": verdicts, **changes}


def write_run(scores: Path, **content: Any) -> None:
    """The sidecar of a scores file with just this content."""
    scores.with_suffix(".run.json").write_text(json.dumps(content))


def write_sidecar(scores: Path, model: str = "model-a", **changes: Any) -> None:
    """The settings beside a scores file. `changes` go into the settings, or are `selected`, `counts`, `data`, `base_url`."""
    answers = {"file": "answers.jsonl", "model": model, "data": changes.pop("data", DATA)}
    answers["base_url"] = changes.pop("base_url", "http://x/v1")
    if "selected" in changes:
        answers["selected"] = changes.pop("selected")
    counts = changes.pop("counts", {"answers": 4, "unscorable": 0, "answers_with_error": 0, "empty": 0})
    content = {"program": "beam_judge.py", "settings": SETTINGS | changes, "answers": [answers], "counts": counts}
    scores.with_suffix(".run.json").write_text(json.dumps(content), encoding="utf-8")


def four(a: float, b: float, c: float, d: float) -> dict[Question, float]:
    """Two abstention questions in each of two chats."""
    return {(chat, "abstention", index): x for (chat, index), x in
            zip((("1", 0), ("1", 1), ("2", 0), ("2", 1)), (a, b, c, d), strict=True)}  # fmt: skip


def many(shift: float, chats: int = 6) -> dict[Question, float]:
    """Two questions of each ability in each chat, scores in halves that wander, shifted and kept in 0 to 1."""
    return {
        (str(chat), ability, index): min(1.0, max(0.0, (chat * 7 + place * 3 + index) % 3 / 2 * 0.8 + shift))
        for chat in range(1, chats + 1)
        for place, ability in enumerate(ABILITIES)
        for index in range(2)
    }


def report(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = beam_report.main([str(argument) for argument in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# The summary


def test_summary_of_a_judged_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_scores(tmp_path / "scores.jsonl", four(1, 0, 1, 1))
    write_lines(
        tmp_path / "scores.details.jsonl",
        [
            detail(("1", "abstention", 0), [0.0]),  # judged again below: the last line counts
            detail(("1", "abstention", 0), [1.0]),
            detail(("1", "abstention", 1), [0.5, None]),  # 0.25 with half points kept
            detail(("2", "abstention", 0), [1.0, 1.0]),
            detail(("2", "abstention", 1), [1.0]),
            detail(("9", "abstention", 1), [None]),  # not scored: left aside
        ],
    )
    write_sidecar(path, counts={"answers": 7, "unscorable": 1, "answers_with_error": 3, "empty": 2})
    code, out, err = report(capsys, path)
    assert (code, err) == (0, "")
    # The mean is 0.75 with an interval far beyond 0 to 1 (two chats); half points: (1 + 0.25 + 1 + 1) / 4.
    assert out.splitlines() == [
        "=== BEAM summary (n=4) ===",
        "overall: 0.7500                             0.000 to 1.000  0.8125  │███████▌  │",
        "  abstention: 0.7500 (n=4)                  0.000 to 1.000  0.8125  │███████▌  │",
        "  contradiction_resolution: - (n=0)         -               -",
        "  event_ordering: - (n=0)                   -               -",
        "  information_extraction: - (n=0)           -               -",
        "  instruction_following: - (n=0)            -               -",
        "  knowledge_update: - (n=0)                 -               -",
        "  multi_session_reasoning: - (n=0)          -               -",
        "  preference_following: - (n=0)             -               -",
        "  summarization: - (n=0)                    -               -",
        "  temporal_reasoning: - (n=0)               -               -",
        "(score · 95 % interval by 2 chats · half points kept · bar from 0 to 1)",
        "",
        "unreadable verdicts: 1",
        "failed calls: 0",
        "empty answers: 2",
        "answers with an error: 3",
        "answers not judged yet: 2",
        "questions without a criterion, not scored: 1",
        "model: model-a",
        "judge: judge-1",
    ]


def test_interval_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Chats of 1/1, 0/0, 1/0, 0/1: deviations 1, −1, 0, 0; SE² = 4/3 · 2 / 64 = 1/24; t(3) = 3.18245."""
    rows = four(1, 1, 0, 0) | {("3", "summarization", i): s for i, s in enumerate((1, 0))}
    rows |= {("4", "summarization", i): s for i, s in enumerate((0, 1))}
    path = write_scores(tmp_path / "scores.jsonl", rows)
    found = json.loads(report(capsys, path, "--format", "json")[1])["runs"][0]["overall"]
    margin = 3.18245 / math.sqrt(24)
    assert (found["n"], found["chats"], found["mean"]) == (8, 4, 0.5)
    assert found["low"] == pytest.approx(0.5 - margin, rel=1e-5)
    assert found["high"] == pytest.approx(0.5 + margin, rel=1e-5)
    assert found["standard_error"] == pytest.approx(1 / math.sqrt(24))


def test_files_of_another_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither details nor sidecar: what is unknown is shown as unknown, and half points not as a number."""
    path = write_scores(tmp_path / "mine.jsonl", four(1, 0, 1, 1))
    out = report(capsys, path)[1]
    assert "  abstention: 0.7500 (n=4)                  0.000 to 1.000  -       │███████▌  │" in out
    for name in ("unreadable verdicts", "failed calls", "empty answers", "answers with an error"):
        assert f"{name}: unknown\n" in out
    assert "model: mine.jsonl\njudge: unknown\n" in out


def test_half_points_need_the_details_of_every_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = four(1, 0, 1, 1) | {("1", "summarization", 0): 0.0}
    path = write_scores(tmp_path / "scores.jsonl", rows)
    write_lines(tmp_path / "scores.details.jsonl", [detail(("1", "summarization", 0), [0.5])])
    out = report(capsys, path, "--format", "json")[1]
    run = json.loads(out)["runs"][0]
    assert run["overall"]["half_points"] is None
    assert run["abilities"]["abstention"]["half_points"] is None
    assert run["abilities"]["summarization"]["half_points"] == 0.5
    assert "scored questions without details: 4" in report(capsys, path)[1]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param(detail(("1", "a", 0), [1.0, 0.5, 0.0]), 0.5, id="levels"),
        pytest.param(detail(("1", "a", 0), [0.7]), 0.7, id="between-levels"),
        pytest.param(detail(("1", "a", 0), [1, None]), 0.5, id="unreadable-counts-0"),
        pytest.param(detail(("1", "a", 0), [], status="empty"), 0.0, id="empty-answer"),
        pytest.param(detail(("1", "a", 0), [], status="error"), 0.0, id="answer-with-error"),
    ],
)
def test_half_point_mean(row: dict[str, Any], expected: float) -> None:
    assert half_point_mean(row) == expected


def test_odd_details_are_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_scores(tmp_path / "scores.jsonl", four(1, 0, 1, 1))
    rows = [detail(question, [1.0]) for question in four(1, 0, 1, 1)]
    rows[2]["verdicts"][0]["level"] = 99
    write_lines(tmp_path / "scores.details.jsonl", rows)
    _, out, err = report(capsys, path)
    assert 'scores.details.jsonl line 3: a verdict has the level 99 and the status "scored"; left out' in err
    assert "scored questions without details: 1" in out


@pytest.mark.parametrize(
    ("modes", "recorded", "title"),
    [  # the modes of two questions by their details (`no` details, or details without a mode); the recorded mode
        pytest.param(["strict", "strict"], "strict", "=== BEAM summary (n=2) ===", id="strict"),
        pytest.param(["tau", "tau"], "tau", "=== BEAM summary (n=2) === · event_ordering: tau", id="tau"),
        pytest.param([None, None], "tau", "=== BEAM summary (n=2) === · event_ordering: tau", id="only-recorded"),
        pytest.param(
            ["tau", "strict"],
            "tau",
            "=== BEAM summary (n=2) === · event_ordering: partly tau",
            id="interrupted-between-the-modes",
        ),
        pytest.param(["tau", "no"], "tau", "=== BEAM summary (n=2) === · event_ordering: tau", id="one-only-recorded"),
        pytest.param(
            ["tau", "no"],
            "strict",
            "=== BEAM summary (n=2) === · event_ordering: partly tau",
            id="one-recorded-otherwise",
        ),
        pytest.param(
            ["strict", "no"],
            "mixed",
            "=== BEAM summary (n=2) === · event_ordering: partly tau",
            id="one-recorded-as-mixed",
        ),
        pytest.param(
            ["tau", "no"], None, "=== BEAM summary (n=2) === · event_ordering: mode unknown", id="one-unknown"
        ),
        pytest.param(
            ["no", "no"], None, "=== BEAM summary (n=2) === · event_ordering: mode unknown", id="both-unknown"
        ),
        pytest.param(["tau", "tau"], None, "=== BEAM summary (n=2) === · event_ordering: tau", id="only-by-details"),
    ],
)
def test_title_names_the_ordering_mode(
    tmp_path: Path, modes: list[str | None], recorded: str | None, title: str
) -> None:
    questions = [("1", "event_ordering", 0), ("1", "event_ordering", 1)]
    path = write_scores(tmp_path / "scores.jsonl", dict.fromkeys(questions, 0.75))
    named = [pair for pair in zip(questions, modes, strict=True) if pair[1] != "no"]
    write_lines(
        tmp_path / "scores.details.jsonl", [detail(question, [0.75], ordering=mode) for question, mode in named]
    )
    write_sidecar(path, event_ordering=recorded)
    assert summary_lines(load_run(path))[0] == title


def test_unjudged_answers_do_not_mix_the_ordering_modes(tmp_path: Path) -> None:
    """An empty answer scores 0 in either mode and is not looked at again when the mode changes."""
    questions = [("1", "event_ordering", 0), ("1", "event_ordering", 1)]
    path = write_scores(tmp_path / "scores.jsonl", dict.fromkeys(questions, 0.0))
    rows = [detail(questions[0], [], status="empty", ordering="strict"), detail(questions[1], [0.0], ordering="tau")]
    write_lines(tmp_path / "scores.details.jsonl", rows)
    assert load_run(path).ordering == "tau"


def test_half_points_of_event_ordering_are_its_score(tmp_path: Path) -> None:
    """A strict ordering verdict between the levels was cut: there is no half of a perfect order."""
    path = write_scores(tmp_path / "scores.jsonl", {("1", "event_ordering", 0): 0.0})
    write_lines(tmp_path / "scores.details.jsonl", [detail(("1", "event_ordering", 0), [0.5], ordering="strict")])
    assert load_run(path).half_points == {("1", "event_ordering", 0): 0.0}


@pytest.mark.parametrize(
    ("selected", "title"),
    [
        pytest.param(700, "=== BEAM summary (n=4 of 700 selected) ===", id="partial"),
        pytest.param(4, "=== BEAM summary (n=4) ===", id="whole"),
        pytest.param(None, "=== BEAM summary (n=4) ===", id="not-recorded"),
    ],
)
def test_title_of_a_partial_run(tmp_path: Path, selected: int | None, title: str) -> None:
    path = write_scores(tmp_path / "scores.jsonl", four(1, 0, 1, 1))
    write_sidecar(path, selected=selected)
    assert summary_lines(load_run(path))[0] == title


@pytest.mark.parametrize(
    ("selected", "total"),
    [
        pytest.param([360, 340], 700, id="shards"),
        pytest.param([360, None], None, id="one-unknown"),
        pytest.param([True], None, id="no-number"),
    ],
)
def test_selected_questions_of_shards_add_up(tmp_path: Path, selected: list[Any], total: int | None) -> None:
    path = write_scores(tmp_path / "scores.jsonl", four(1, 0, 1, 1))
    shards = [{"model": "m", "selected": count, "data": DATA} for count in selected]
    path.with_suffix(".run.json").write_text(json.dumps({"answers": shards}))
    run = load_run(path)
    assert (run.selected, run.name) == (total, "m")


def test_one_chat_has_no_interval_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_scores(tmp_path / "scores.jsonl", {("3", "abstention", 0): 1.0, ("3", "abstention", 1): 0.0})
    out = report(capsys, path)[1]
    assert "  abstention: 0.5000 (n=2)                  -               -       │█████     │" in out
    assert "(score · one chat: no interval · half points kept · bar from 0 to 1)" in out


def test_an_ability_that_is_none_of_the_ten_is_shown_after_them(tmp_path: Path) -> None:
    path = write_scores(tmp_path / "scores.jsonl", four(1, 0, 1, 1) | {("1", "overall", 0): 0.0})
    lines = summary_lines(load_run(path))
    assert lines[1].startswith("overall: 0.6000 ")
    assert lines[12].startswith("  overall: 0.0000 (n=1) ")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_lines_stay_within_80_columns_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    name = "accounts/provider/models/" + "a-very-long-name-" * 12
    paths = [write_scores(tmp_path / str(place) / "scores.jsonl", many(place / 10)) for place in range(3)]
    for path in paths:
        write_sidecar(path, name, judge_model=f"judge {path.parent.name} " * 30, selected=1000)
    environment = {"PYTHONIOENCODING": encoding, "PATH": ""}
    ran = subprocess.run([sys.executable, SCRIPT, *paths], capture_output=True, env=environment, check=True, cwd="/")
    lines = ran.stdout.decode(encoding).splitlines()
    assert len(lines) > 60
    assert max(map(len, lines)) <= 80
    assert not any("\\u" in line for line in lines)
    assert ("│███" if encoding == "utf-8" else "|###") in lines[1]


def columns_of(line: str) -> int:
    """How many columns of a terminal a line takes."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a-very-long-name-" * 12, id="latin"),
        pytest.param("模型" * 100, id="chinese"),
        pytest.param("模型 model🙂" * 30, id="mixed"),
    ],
)
def test_the_widest_lines_have_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Rows within noise, whose interval goes from end to end, and names in scripts of double width."""
    paths = []
    for place, scores in enumerate((four(1, 0, 1, 1), four(1, 1, 1, 0))):
        rows = {(chat, ability, index): score for (chat, _, index), score in scores.items()
                for ability in ("contradiction_resolution", name)}  # fmt: skip
        paths.append(write_scores(tmp_path / str(place) / "scores.jsonl", rows))
        write_sidecar(paths[-1], f"{name}{place}", judge_model=f"{place}{name}", selected=1000)
    lines = report(capsys, *paths)[1].splitlines()
    widest = "  contradiction_resolution    0.0000  -1.000 to +1.000     4  1.000 within noise"
    assert widest in lines
    assert {columns_of(line) for line in lines if line.endswith("within noise")} == {80}
    assert max(map(columns_of, lines)) == 80


@settings(deadline=None)
@given(st.text("ab -é模🙂"), st.integers(4, 30))
def test_cut_and_wrapped_texts_have_their_width(text: str, width: int) -> None:
    cut = beam_width.shortened(text, width)
    assert columns_of(cut) == beam_width.columns(cut) <= width
    assert (cut == text) == (columns_of(text) <= width)
    lines = beam_width.wrapped(text, width)
    assert all(columns_of(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split()), "nothing is lost"
    assert columns_of(beam_width.filled(text, width)) == max(width, columns_of(text))


# Comparison


def test_comparison_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four chats of one question; second − first: −0.2, −0.3, −0.2, −0.3. Mean −0.25, SE² = 4/3 · 0.01 / 16."""
    chats = "1234"
    first = {(chat, "abstention", 0): 0.5 for chat in chats} | {("1", "summarization", 0): 1.0}
    second = {(chat, "abstention", 0): x for chat, x in zip(chats, (0.3, 0.2, 0.3, 0.2), strict=True)}
    second |= {("9", "summarization", 0): 1.0, ("9", "summarization", 1): 1.0}
    one = write_scores(tmp_path / "one.jsonl", first)
    other = write_scores(tmp_path / "other.jsonl", second)
    write_sidecar(one, "model-a")
    write_sidecar(other, "model-b")
    out = report(capsys, one, other)[1]
    block = out[out.index("=== model-b against model-a ===") :].splitlines()
    # SE = 0.028868, t(3) = 3.18245: the interval is −0.25 ± 0.09187; p = 0.0033 (t = −8.66, df 3).
    assert block[:7] == [
        "=== model-b against model-a ===",
        "note: left out: 1 question only in model-a, 2 only in model-b",
        "verdict: lower than model-a by 0.250 (0.158 to 0.342)",
        "",
        "                          difference  95 % interval    pairs p (Holm)",
        "overall                      -0.2500  -0.342 to -0.158     4",
        "exploratory (p adjusted for 1 comparison):",
    ]
    assert block[7] == "  abstention                 -0.2500  -0.342 to -0.158     4  0.003 lower"
    assert block[15] == "  summarization                    -  -                    0      -"


@pytest.mark.parametrize(
    ("first", "second", "headline"),
    [
        pytest.param(four(1, 0, 1, 1), four(1, 0, 1, 1), "no difference beyond noise", id="the-same-scores"),
        pytest.param(four(1, 0, 1, 1), four(1, 1, 1, 0), "no difference beyond noise", id="noise"),
        pytest.param(many(0.1), many(0.15), "higher than model-a by 0.050 (0.050 to 0.050)", id="higher-everywhere"),
        pytest.param(many(0.1), many(0.1002), "higher than model-a by <0.001 (<0.001 to <0.001)", id="rounds-to-zero"),
        pytest.param(
            {("1", "abstention", 0): 1.0},
            {("1", "abstention", 0): 0.0},
            "-1.000 against model-a; one chat in common: no interval, no verdict",
            id="one-chat",
        ),
        pytest.param(
            {("1", "abstention", 0): 1.0},
            {("2", "abstention", 0): 1.0},
            "no question in common with model-a",
            id="none",
        ),
    ],
)
def test_verdict_in_words(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    first: Mapping[Question, float],
    second: Mapping[Question, float],
    headline: str,
) -> None:
    one, other = write_scores(tmp_path / "one.jsonl", first), write_scores(tmp_path / "other.jsonl", second)
    write_sidecar(one, "model-a")
    write_sidecar(other, "model-b")
    assert f"\nverdict: {headline}\n" in report(capsys, one, other)[1]
    in_markdown = headline.replace("<", "\\<")
    assert f"**Overall: {in_markdown}.**" in report(capsys, one, other, "--format", "markdown")[1]
    assert json.loads(report(capsys, one, other, "--format", "json")[1])["comparisons"][0]["headline"] == headline


def test_an_ability_is_judged_by_its_adjusted_p_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone the difference of one ability would be beyond noise; among ten it is not, and the word follows that."""
    first = {(str(chat), ability, 0): 0.5 for chat in range(4) for ability in ABILITIES}
    steps = (0.1, 0.2, 0.2, 0.3)  # mean 0.2, SE 0.0408, t = 4.9 with 3 degrees of freedom: p = 0.016
    second = {key: 0.5 + (steps[int(key[0])] if key[1] == "summarization" else 0) for key in first}
    one, other = write_scores(tmp_path / "one.jsonl", first), write_scores(tmp_path / "other.jsonl", second)
    found = json.loads(report(capsys, one, other, "--format", "json")[1])["comparisons"][0]
    ability = found["abilities"]["summarization"]
    assert ability["low"] > 0
    assert ability["p"] == pytest.approx(0.0163, abs=1e-4)
    assert ability["p_holm"] == pytest.approx(10 * ability["p"])
    assert ability["verdict"] == "noise"
    assert found["overall"]["verdict"] == "higher"
    assert "p_holm" not in found["overall"]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        pytest.param({"judge_model": "judge-2"}, "judge differs: judge-1 for A, judge-2 for B", id="judge"),
        pytest.param({"judge_base_url": "http://y/v1"}, "judge endpoint differs: http://judge/v1 for A, ", id="url"),
        pytest.param({"judge_temperature": 0}, "judge temperature differs: 0.3 for A, 0 for B", id="temperature"),
        pytest.param(
            {"judge_reasoning_effort": "low"}, "judge reasoning effort differs: none for A, low for B", id="effort"
        ),
        pytest.param(
            {"criterion_prompt_sha256": "9" * 64},
            "criterion prompt differs: cccccccccccc for A, 999999999999 for B",
            id="prompt",
        ),
        pytest.param({"event_ordering": "tau"}, "event_ordering differs: strict for A, tau for B", id="mode"),
        pytest.param(
            {"data": DATA | {"questions_sha256": "7" * 64}},
            "questions file differs: 111111111111 for A, 777777777777 for B",
            id="data",
        ),
        pytest.param(
            {"data": {}}, "not known of both runs, and possibly different: questions file, chats file", id="no-data"
        ),
        pytest.param({"selected": 9}, "B is partial: n=4 of 9 selected", id="partial"),
    ],
)
def test_notes_on_what_differs(tmp_path: Path, changes: dict[str, Any], note: str) -> None:
    one = write_scores(tmp_path / "one.jsonl", four(1, 0, 1, 1))
    other = write_scores(tmp_path / "other.jsonl", four(1, 0, 1, 1))
    write_sidecar(one, "A")
    write_sidecar(other, "B", **changes)
    notes = beam_report.compare(load_run(one), load_run(other)).notes
    assert len(notes) == 1
    assert notes[0].startswith(note)


def test_no_note_when_nothing_differs(tmp_path: Path) -> None:
    one = write_scores(tmp_path / "one.jsonl", four(1, 0, 1, 1))
    write_sidecar(one)
    assert beam_report.compare(load_run(one), load_run(one)).notes == []


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param("tau", ["alignment prompt differs: one for A, two for B"], id="tau"),
        pytest.param("strict", [], id="strict-has-no-alignment"),
    ],
)
def test_alignment_prompts_matter_in_tau_mode_only(tmp_path: Path, mode: str, expected: list[str]) -> None:
    runs = []
    for name, prompt in (("A", "one"), ("B", "two")):
        path = write_scores(tmp_path / f"{name}.jsonl", four(1, 0, 1, 1))
        write_sidecar(path, name, event_ordering=mode, alignment_prompt_sha256=prompt)
        runs.append(load_run(path))
    assert beam_report.compare(*runs).notes == expected


@pytest.mark.parametrize(
    ("p", "text"),
    [(None, "-"), (0.0004, "<0.001"), (0.04, "0.040"), (0.0496, "0.0496"), (0.0504, "0.0504"), (0.04996, "0.04996"),
     (0.05, "0.050"), (1.0, "1.000")],
)  # fmt: skip
def test_p_values_show_on_which_side_of_the_threshold_they_lie(p: float | None, text: str) -> None:
    assert beam_report.p_text(p) == text


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_every_form_says_what_the_scores_are_a_mixture_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    path = write_scores(tmp_path / "one.jsonl", {(chat, "event_ordering", 0): 1.0 for chat in "12"})
    sidecar = {"settings": {}, "answers": [{"model": "A"}], "mixed_with": [{"settings": {}}]}
    (tmp_path / "one.run.json").write_text(json.dumps(sidecar))
    shown = report(capsys, path, "--format", form)[1]
    assert "event_ordering: mode unknown" in shown
    assert "A part was judged with other settings or unknown ones: judge, prompts, data." in shown
    assert "A part was answered with" not in shown
    sidecar["answers"] = [{"model": "A", "mixed_models": [None]}, {"model": "B", "mixed_models": ["C", "A"]}]
    (tmp_path / "one.run.json").write_text(json.dumps(sidecar))
    shown = report(capsys, path, "--format", form)[1]
    assert "A part was answered with other settings or unknown ones: model, sampling, data." in shown
    assert "A + C + B" in shown


def test_the_summary_alone_keeps_to_its_width_too(tmp_path: Path) -> None:
    path = write_scores(tmp_path / "one.jsonl", four(1, 0, 1, 1) | {("1", "event_ordering", 0): 1.0})
    write_run(
        path,
        settings={"judge_model": "裁判" * 60, "event_ordering": "mixed"},
        answers=[{"model": "模型" * 60, "selected": 70_000, "mixed_models": ["m"], "shrunk": {"1": 2}}],
        counts={"answers": 70_000, "outdated": 70_000, "stale": 70_000, "unscorable": 70_000},
        mixed_with=[{"settings": {}}],
    )
    assert max(map(columns_of, summary_lines(load_run(path)))) <= 80


def test_notes_on_lost_verdicts_and_mixed_settings(tmp_path: Path) -> None:
    one = write_scores(tmp_path / "one.jsonl", four(1, 0, 1, 1))
    write_lines(tmp_path / "one.details.jsonl", [detail(("1", "abstention", 1), [None, None])])
    sidecar = {"settings": SETTINGS, "answers": [{"model": "A", "data": DATA}], "mixed_with": [{"settings": {}}]}
    (tmp_path / "one.run.json").write_text(json.dumps(sidecar))
    notes = beam_report.compare(load_run(one), load_run(one)).notes
    assert notes[:2] == [
        "A was judged with settings that changed on the way, or are unknown of a part",
        "A: 2 verdicts unreadable or failed, counted as 0",
    ]


def test_a_file_without_a_record_beside_one_with_makes_the_answers_mixed(tmp_path: Path) -> None:
    path = write_scores(tmp_path / "one.jsonl", four(1, 0, 1, 1))
    known = {"model": "A", "settings": {"temperature": 1.0, "top_p": 0.9}}
    for answers, mixed in (
        ([known, {"model": None, "settings": {}}], True),
        ([known, {"model": "A", "settings": {"top_p": 0.9, "temperature": 1.0}}], False),
        ([known, {"model": "A", "settings": {"top_p": 0.9, "temperature": 0.2}}], True),
    ):
        write_run(path, answers=answers)
        assert load_run(path).mixed_answers == mixed


def test_notes_on_mixed_and_changed_answers_and_shrunk_chats(tmp_path: Path) -> None:
    one = write_scores(tmp_path / "one.jsonl", four(1, 0, 1, 1))
    other = write_scores(tmp_path / "other.jsonl", four(1, 0, 1, 1))
    write_run(one, answers=[{"model": "A", "data": DATA, "shrunk": {}}])
    write_run(
        other,
        answers=[{"model": "B", "data": DATA, "shrunk": {"3": 390}, "mixed_models": ["B"]}],
        counts={"outdated": 1},
    )
    notes = beam_report.compare(load_run(one), load_run(other)).notes
    assert 'shrunk of the answers differs: {} for A, {"3": 390} for B' in notes
    assert "B was answered with settings that changed on the way, or are unknown of a part" in notes
    assert "B: 1 score of answers that have changed since" in notes
    assert "chats cut further to fit the endpoint: 1" in summary_lines(load_run(other))
    assert not [line for line in summary_lines(load_run(one)) if "cut further" in line]


@pytest.mark.parametrize(
    ("models", "files", "names"),
    [
        pytest.param(("A", "B"), ("x/s.jsonl", "y/s.jsonl"), ["A", "B"], id="different-models"),
        pytest.param(("A", "A"), ("a.jsonl", "b.jsonl"), ["A (a.jsonl)", "A (b.jsonl)"], id="file-names"),
        pytest.param(("A", "A"), ("x/s.jsonl", "y/s.jsonl"), ["A (x/s.jsonl)", "A (y/s.jsonl)"], id="folders"),
        pytest.param(
            ("A", "B", "A"),
            ("x/s.jsonl", "y/s.jsonl", "z/s.jsonl"),
            ["A (x/s.jsonl)", "B", "A (z/s.jsonl)"],
            id="three",
        ),
        pytest.param((None, None), ("x/s.jsonl", "y/s.jsonl"), ["x/s.jsonl", "y/s.jsonl"], id="no-sidecars"),
    ],
)
def test_runs_are_told_apart(
    tmp_path: Path, models: tuple[str | None, ...], files: tuple[str, ...], names: list[str]
) -> None:
    runs = []
    for model, file in zip(models, files, strict=True):
        path = write_scores(tmp_path / file, four(1, 0, 1, 1))
        if model:
            write_sidecar(path, model)
        runs.append(load_run(path))
    assert [run.name for run in beam_report.distinct_names(runs, [""] * len(runs))] == names


@pytest.mark.parametrize(
    ("urls", "names"),
    [
        pytest.param(["http://localhost:8000/v1", "https://p.example/v1"], ["localhost:8000", "p.example"], id="hosts"),
        pytest.param(["http://localhost:1/v1", "http://localhost:2/v1"], ["localhost:1", "localhost:2"], id="ports"),
        pytest.param(["http://u:p@one/v1", "http://two/v1"], ["one", "two"], id="credentials"),
        pytest.param(["http://x/a/v1", "http://x/b/v1"], ["0.jsonl", "1.jsonl"], id="one-host"),
        pytest.param(
            ["http://x/v1", "http://y/v1", "http://x/v1"], ["0.jsonl", "1.jsonl", "2.jsonl"], id="two-of-three"
        ),
        pytest.param(["http://x/v1", None], ["0.jsonl", "1.jsonl"], id="not-recorded"),
        pytest.param(["http://x/v1", "http://[y/v1"], ["0.jsonl", "1.jsonl"], id="no-url"),
    ],
)
def test_runs_of_one_model_are_told_apart_by_their_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], urls: list[str | None], names: list[str]
) -> None:
    paths = [write_scores(tmp_path / f"{place}.jsonl", four(1, 0, 1, 1)) for place in range(len(urls))]
    for path, url in zip(paths, urls, strict=True):
        write_sidecar(path, "m", base_url=url)
    runs = json.loads(report(capsys, *paths, "--format", "json")[1])["runs"]
    assert [run["name"] for run in runs] == [f"m ({name})" for name in names]


def test_hosts_of_shards(tmp_path: Path) -> None:
    run = load_run(write_scores(tmp_path / "s.jsonl", four(1, 0, 1, 1)))
    assert beam_report.hosts_of(run) == ""
    shards = [{"base_url": url} for url in ("http://a/v1", "http://b/v1", "http://a/v2")]
    (tmp_path / "s.run.json").write_text(json.dumps({"answers": shards}))
    assert beam_report.hosts_of(run) == "a + b"


def test_titles_hold_names_whole_where_they_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write_scores(tmp_path / name, four(1, 0, 1, 1)) for name in ("scores.jsonl", "provider.scores.jsonl")]
    for path in paths:
        write_sidecar(path, "my-model")
    titles = [line for line in report(capsys, *paths)[1].splitlines() if line.startswith("===")]
    assert titles == [
        "=== BEAM summary (n=4) === · my-model (scores.jsonl)",
        "=== BEAM summary (n=4) === · my-model (provider.scores.jsonl)",
        "=== my-model (provider.scores.jsonl) against my-model (scores.jsonl) ===",
    ]
    assert report(capsys, paths[0])[1].startswith("=== BEAM summary (n=4) ===\n"), "one run needs no name there"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "=== BEAM summary (n=4) ===", "=== BEAM summary (n=4) === · " + "a" * 25 + "…" + "a" * 25, id="cut"
        ),
        pytest.param("=" * 70, "=" * 70, id="no-room"),
        pytest.param("=" * 88, "=" * 79 + "…", id="too-long-without-a-name"),
    ],
)
def test_the_start_of_a_title_is_never_cut(line: str, expected: str) -> None:
    assert beam_report.titled(line, "a" * 60) == expected


def test_the_same_file_twice_has_two_names(tmp_path: Path) -> None:
    run = load_run(write_scores(tmp_path / "s.jsonl", four(1, 0, 1, 1)))
    assert [named.name for named in beam_report.distinct_names([run, load_run(run.path)], ["x", "x"])] == [
        "s.jsonl, no. 1",
        "s.jsonl, no. 2",
    ]


# Files as they come


def test_identity_and_the_last_line_of_a_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"chat_id": 3, "question_type": "abstention", "question_index": 0, "score": 0},
        {"chat_id": "3", "question_type": "abstention", "question_index": 0, "score": 1},
        {"chat_id": "4", "question_type": "abstention", "question_index": 0, "score": 0.5},
    ]
    assert "  abstention: 0.7500 (n=2)" in report(capsys, write_lines(tmp_path / "scores.jsonl", rows))[1]


ROW = '{"chat_id": "1", "question_type": "abstention", "question_index": 0, "score": %s}'


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param('{"chat_id": "1", "question_ty', id="torn"),
        pytest.param("null", id="null"),
        pytest.param("[]", id="list"),
        pytest.param(ROW % "NaN", id="nan"),
        pytest.param(ROW % "1e999", id="infinite"),
        pytest.param(ROW % "-0.5", id="negative"),
        pytest.param(ROW % "true", id="boolean"),
        pytest.param(ROW % '"1"', id="text"),
        pytest.param('{"chat_id": "1", "question_type": "abstention", "question_index": 0}', id="no-score"),
        pytest.param('{"chat_id": "1", "question_type": ["a"], "question_index": 0, "score": 1}', id="list-as-ability"),
    ],
)
def test_damaged_lines_are_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: str) -> None:
    path = write_scores(tmp_path / "scores.jsonl", four(1, 0, 1, 1))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], damaged, *lines[2:]]) + "\n")
    code, out, err = report(capsys, path)
    assert code == 0
    assert "overall: 0.7500" in out
    assert "scores.jsonl line 3" in err
    assert len(err.splitlines()) == 1
    path.write_text(damaged + "\n")
    code, out, err = report(capsys, path)
    assert (code, out) == (2, "")
    assert "holds no scores" in err.splitlines()[-1]


def test_a_file_of_another_kind_is_one_warning_and_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines(tmp_path / "answers.jsonl", [identity(question) | {"response": "a"} for question in many(0)])
    code, _, err = report(capsys, path)
    assert code == 2
    warning, error = err.splitlines()
    assert warning == f"warning: {path} lines 1 to 120: no 'score'; left out"
    assert error.startswith(f"error: {path} holds no scores")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("empty.jsonl", b"", "holds no scores", id="empty"),
        pytest.param("missing.jsonl", None, "No such file", id="missing"),
        pytest.param("bad.jsonl.gz", b"\x1f\x8b\x08\x00broken", "damaged gzip", id="broken-gzip"),
    ],
)
def test_files_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, out, err = report(capsys, tmp_path / name)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert name in err
    assert message in err


def test_gzip_with_its_neighbours(tmp_path: Path) -> None:
    plain = write_scores(tmp_path / "scores.jsonl", four(1, 0, 1, 1))
    write_sidecar(plain, "model-a")
    packed = tmp_path / "scores.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load_run(packed).name == "model-a"
    assert load_run(packed).scores == load_run(plain).scores


ODD_SIDECARS = [
    "null", "[]", "{", '"x"', "{}", '{"settings": 3, "answers": {}, "counts": []}',
    '{"answers": [3, {"model": 7, "selected": "700", "data": []}], "counts": {"answers": null, "empty": true}}',
    '{"answers": [{"model": "m", "data": {"chats_sha256": null}}], "settings": {"judge_temperature": NaN}}',
    '{"answers": [{"model": "a\\u0000\\u001b[31m\\ud83d\\nb", "selected": -4}], "settings": {"judge_model": 5}}',
]  # fmt: skip


@pytest.mark.parametrize("sidecar", ODD_SIDECARS)
@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_odd_sidecars_never_stop_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sidecar: str, form: str
) -> None:
    path = write_scores(tmp_path / "scores.jsonl", four(1, 0, 1, 1))
    path.with_suffix(".run.json").write_text(sidecar)
    code, out, _ = report(capsys, path, path, "--format", form)
    assert code == 0
    assert "nan" not in out.lower()
    assert "\x1b" not in out
    out.encode("utf-8")


# Markdown and JSON


def test_markdown_is_a_table_to_paste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_scores(tmp_path / "one.jsonl", four(1, 0, 1, 1))
    other = write_scores(tmp_path / "other.jsonl", four(1, 0, 1, 0))
    write_sidecar(one, "a|b*c", selected=9)
    write_sidecar(other, "model-b")
    lines = report(capsys, one, other, "--format", "markdown")[1].splitlines()
    assert lines[:9] == [
        "### a\\|b\\*c (n=4 of 9 selected)",
        "",
        "Judge: judge-1, event_ordering: strict. Intervals by 2 chats.",
        "",
        "|  | score | 95 % interval | half points kept | n |",
        "| :-- | --: | --: | --: | --: |",
        "| **overall** | 0.7500 | 0.000 to 1.000 | - | 4 |",
        "| abstention | 0.7500 | 0.000 to 1.000 | - | 4 |",
        "| contradiction_resolution | - | - | - | 0 |",
    ]
    assert "### model-b against a\\|b\\*c" in lines
    assert "| abstention | -0.2500 | -1.000 to +1.000 | 4 | 0.500 | no difference beyond noise |" in lines
    for block in "\n".join(lines).split("\n\n"):
        if block.startswith("|"):
            assert len({row.replace("\\|", "").count("|") for row in block.splitlines()}) == 1


def test_json_holds_what_the_help_page_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_scores(tmp_path / "one.jsonl", many(0))
    other = write_scores(tmp_path / "other.jsonl", many(0.1, chats=5))
    write_sidecar(one, selected=700)
    out = report(capsys, one, other, "--format", "json")[1]
    found = json.loads(out, parse_constant=pytest.fail)
    page = beam_report.__doc__ or ""
    listed = {line.split(":")[0].strip(): line.split(":", 1)[1] for line in page.splitlines() if line.startswith("  ")
              and ":" in line}  # fmt: skip

    def names(line: str) -> list[str]:
        return [part.split("(")[0].strip() for part in line.split(",") if part.split("(")[0].strip()]

    assert list(found) == ["version", "level", "runs", "comparisons"]
    assert list(found["runs"][0]) == names(listed["run"])
    assert list(found["runs"][0]["counts"]) == names(listed["counts"])
    assert list(found["runs"][0]["overall"]) == names(listed["overall and each ability of a run"])
    assert list(found["comparisons"][0]) == names(listed["comparison"])
    assert list(found["runs"][0]["abilities"]) == list(ABILITIES)
    comparison = found["comparisons"][0]
    assert (comparison["only_first"], comparison["only_second"], comparison["overall"]["n"]) == (20, 0, 100)
    assert sorted(comparison["abilities"]["summarization"]) == sorted(
        ["n", "chats", "difference", "standard_error", "low", "high", "p", "p_holm", "verdict"]
    )


ODD_NAMES = [
    pytest.param("one\ntwo", "one two", id="line feed"),
    pytest.param("one|two", "one|two", id="bar"),
    pytest.param("one\u2028\ttwo\x1b[31m", "one two [31m", id="other controls"),
    pytest.param("one\ud83dtwo", "one\\ud83dtwo", id="lone surrogate"),
]


@pytest.mark.parametrize(("name", "shown"), ODD_NAMES)
def test_odd_names_of_abilities(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, shown: str) -> None:
    rows = {(chat, name, 0): 1.0 for chat in "12"}
    path = write_scores(tmp_path / "scores.jsonl", rows)
    write_sidecar(path, name, judge_model=name)
    text = report(capsys, path, path)[1]
    assert f"\n  {shown}".ljust(27) + "    0.0000" in text
    lines = report(capsys, path, path, "--format", "markdown")[1].split("\n")
    escaped = re.sub(r"([\\|\[])", r"\\\1", shown)
    assert len([line for line in lines if line.startswith(f"| {escaped} | ")]) == 3, "two runs and their difference"
    for block in "\n".join(lines).split("\n\n"):
        if block.startswith("|"):
            assert all(row.startswith("| ") and row.endswith(" |") for row in block.strip().split("\n"))
            assert len({row.replace("\\|", "").count("|") for row in block.strip().split("\n")}) == 1


SCORED = st.dictionaries(
    st.tuples(st.sampled_from("123"), st.sampled_from(ABILITIES[:3]), st.integers(0, 2)),
    st.integers(1, 6).flatmap(lambda items: st.integers(0, items).map(lambda met: met / items)),
    min_size=1,
)


@settings(deadline=None)
@given(first=SCORED, second=SCORED)
def test_no_format_ever_shows_nan(
    tmp_path_factory: pytest.TempPathFactory, first: dict[Question, float], second: dict[Question, float]
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    runs = [load_run(write_scores(folder / name, rows)) for name, rows in (("a.jsonl", first), ("b.jsonl", second))]
    comparisons = [beam_report.compare(runs[0], runs[1])]
    json.dumps(beam_report.report_object(runs, comparisons), allow_nan=False)
    for lines in (beam_report.text_lines(runs, comparisons), beam_report.markdown_lines(runs, comparisons)):
        assert not {"nan", "inf", "-0.0000", "-0.000"} & set("\n".join(lines).lower().split())


@pytest.mark.parametrize(
    ("value", "digits", "sign", "expected"),
    [
        pytest.param(0.12345, 4, False, "0.1235", id="rounded"),
        pytest.param(None, 4, False, "-", id="none"),
        pytest.param(-0.00004, 4, False, "0.0000", id="no-negative-zero"),
        pytest.param(0.00004, 3, True, "0.000", id="zero-has-no-sign"),
        pytest.param(0.021, 3, True, "+0.021", id="plus"),
        pytest.param(-0.021, 3, True, "-0.021", id="minus"),
    ],
)
def test_numbers(value: float | None, digits: int, sign: bool, expected: str) -> None:
    assert number(value, digits, sign) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "        "),
        (0.0, "        "),
        (0.5, "████    "),
        (0.45, "███▋    "),
        (0.99, "███████▉"),
        (1.0, "████████"),
    ],
)
def test_bars(value: float | None, expected: str) -> None:
    assert bar(value, 8) == expected


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(1, 40))
def test_bars_have_their_width(value: float, cells: int) -> None:
    assert len(bar(value, cells)) == cells


def test_shortened_names_keep_both_ends() -> None:
    assert beam_width.shortened("abcdefghij", 10) == "abcdefghij"
    assert beam_width.shortened("abcdefghijk", 10) == "abcde…hijk"


# The plot


@pytest.fixture
def two_runs(tmp_path: Path) -> list[Path]:
    paths = [write_scores(tmp_path / name, many(shift)) for name, shift in (("a.jsonl", 0), ("b.jsonl", 0.2))]
    write_sidecar(paths[0], "_starts with an underscore and has $dollars$ 模型")
    write_sidecar(paths[1], "x" * 300)
    return paths


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_plot_in_each_format(
    two_runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str, start: bytes
) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / f"plot{suffix}"
    code, out, err = report(capsys, *two_runs, "--plot", target)
    assert code == 0
    assert out.startswith("=== BEAM summary")
    assert err == f"plot written to {target}\n"
    assert target.read_bytes().startswith(start)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_plot_shows_each_run_and_nothing_is_cut_off(two_runs: list[Path]) -> None:
    pytest.importorskip("matplotlib")
    figure = beam_plot.draw([load_run(path) for path in two_runs])
    axes = figure.axes[0]
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_texts()[0].get_text().startswith("_starts with an underscore and has $dollars$ 模型:  overall ")
    assert not legend.get_texts()[0].get_parse_math()
    looks = {(line.get_color(), line.get_marker()) for line in axes.lines if line.get_marker() != "None"}
    assert len({colour for colour, _ in looks}) == len({marker for _, marker in looks}) == 2
    tops = [label.get_text() for label in axes.get_yticklabels()]
    assert tops[:2] == ["overall", "abstention"]
    with warnings.catch_warnings(action="ignore"):  # the font has no Chinese letters
        inside = figure.get_tightbbox()
    assert inside.x0 >= 0
    assert inside.x1 <= figure.get_figwidth()
    assert inside.y0 >= 0
    assert inside.y1 <= figure.get_figheight()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("one\ntwo", id="line feed"),
        pytest.param("one\ud83dtwo", id="lone surrogate"),
        pytest.param("模型🙂" * 60, id="double width"),
        pytest.param("long-name " * 30, id="long"),
        pytest.param("long-name" * 30, id="one long word"),
    ],
)
def test_plot_of_odd_names(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    pytest.importorskip("matplotlib")
    path = write_scores(tmp_path / "scores.jsonl", {("1", name, 0): 1.0, ("1", "abstention", 0): 1.0})
    write_sidecar(path, name, judge_model=name)
    assert report(capsys, path, path, "--plot", tmp_path / "plot.svg")[0] == 0
    axes = (figure := beam_plot.draw([load_run(path)])).axes[0]
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert all("\n" not in text and columns_of(text) <= 24 for text in shown)
    with warnings.catch_warnings(action="ignore"):  # the font has no Chinese letters
        inside = figure.get_tightbbox()
    assert inside.x0 >= 0
    assert inside.x1 <= figure.get_figwidth()


def test_plot_of_one_chat_and_missing_abilities(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = load_run(write_scores(tmp_path / "s.jsonl", {("1", "abstention", 0): 0.0, ("1", "abstention", 1): 0.0}))
    figure = beam_plot.draw([run] * 9)
    assert "One chat gives no interval." in figure.texts[0].get_text().replace("\n", " ")


@pytest.mark.parametrize(
    ("highest", "end"), [(0.0, 0.2), (0.11, 0.2), (0.31, 0.4), (0.395, 0.5), (0.97, 1.0), (1.0, 1.0)]
)
def test_scale_ends_beyond_the_highest_point(highest: float, end: float) -> None:
    assert beam_plot.scale_end([Estimate(2, 1, highest / 2), Estimate(2, 2, 0.1, 0.1, -0.1, highest)]) == end


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("plot.jpg", "must end in one of .png, .svg, .pdf", id="suffix"),
        pytest.param("plot", "must end in one of .png, .svg, .pdf", id="no-suffix"),
        pytest.param("missing/plot.png", "its folder does not exist", id="folder"),
        pytest.param("folder.png", "this is a folder", id="is-a-folder"),
    ],
)
def test_plot_names_are_checked_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    (tmp_path / "folder.png").mkdir()
    code, out, err = report(capsys, tmp_path / "no-such-scores.jsonl", "--plot", tmp_path / name)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_without_matplotlib_one_line_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    code, out, err = report(capsys, tmp_path / "scores.jsonl", "--plot", tmp_path / "plot.png")
    assert (code, out, err) == (2, "", "error: --plot needs matplotlib, get it with: pip install matplotlib\n")


# The command line


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param([], "the following arguments are required: SCORES", id="no-file"),
        pytest.param(["x.jsonl", "--format", "html"], "invalid choice: 'html'", id="format"),
    ],
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    code, out, err = report(capsys, *argv)
    assert (code, out) == (2, "")
    assert message in err


def test_help_is_the_module_docstring() -> None:
    ran = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=True)
    assert (beam_report.__doc__ or "").strip() in ran.stdout


def test_heavy_packages_are_not_imported_without_a_plot(two_runs: list[Path]) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import beam_report; "
        f"beam_report.main({[str(path) for path in two_runs]!r}); "
        "assert not {'matplotlib', 'numpy', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_closed_pipe_is_no_traceback(two_runs: list[Path]) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # before the report begins: it cannot have written everything by then
    with open(writing, "wb") as pipe:
        ran = subprocess.run([sys.executable, SCRIPT, *two_runs], stdout=pipe, stderr=subprocess.PIPE)
    assert b"Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("end", "text"),
    [(0.0, "0.000"), (-0.000313, "-0.000"), (0.0004, "+0.000"), (-0.021, "-0.021"), (0.5, "+0.500")],
    ids=["zero", "just-below", "just-above", "negative", "positive"],
)
def test_an_end_of_a_difference_keeps_its_side_of_zero(end: float, text: str) -> None:
    assert beam_report.signed(end) == text
