"""Runs compared: scores files in; table, verdicts, notes, JSON, picture and page out."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from judged import failed, question, questions, write_run

from beam_common.comparison import load_subjects, report_object, verdict_of, words_of
from beam_common.rows import ABILITIES
from beam_common.stats import Estimate
from beam_report import main, views_of

RUN_KEYS = (
    "name files n chats score low high half_points cut empty failed mean_completion_tokens "
    "difference difference_low difference_high p p_holm half_points_difference detectable "
    "runs_needed verdict hides abilities"
).split()
UNDECIDED = "undecided: this comparison sees differences from 0.042 on; "
ABILITY_KEYS = "n score low high difference difference_low difference_high p p_holm".split()


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What the program prints; it must end well."""
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    text = report(capsys, *arguments, "--format", "json")
    return json.loads(text, parse_constant=refuse)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    return found.err


# ------------------------------------------------------------------------------------------------
# The object.


def test_object_of_two_runs_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Differences −1, −1 in chat 1 and −1, 0 in chat 2: m = −0.75, SE² = 2 · 0.5 / 16 = 0.25²."""
    first = write_run(tmp_path / "a", [question(c, 1.0, index=i) for c in (1, 2) for i in (0, 1)])
    second = [
        question(1, 0.5, ability="abstention", finish_reason="length"),
        failed(1, index=1),
        question(2, response="", index=0),
        question(2, 1.0, index=1, completion_tokens=400),
    ]
    found = as_json(capsys, f"original={first}", write_run(tmp_path / "b", second))
    assert list(found) == ["margin", "reference", "notes", "runs"]
    assert (found["margin"], found["reference"]) == (0.03, "original")
    reference, run = found["runs"]
    assert list(reference) == list(run) == RUN_KEYS
    assert list(run["abilities"]) == ["abstention"]
    assert list(run["abilities"]["abstention"]) == ABILITY_KEYS

    assert (run["name"], run["files"]) == ("m", [str(tmp_path / "b/scores.jsonl")])
    assert (run["n"], run["chats"], run["score"]) == (4, 2, 0.25)
    assert (run["cut"], run["empty"], run["failed"]) == (1, 1, 1)
    assert run["mean_completion_tokens"] == 200  # (100 + 100 + 400) / 3
    assert (run["half_points"], run["half_points_difference"]) == (0.375, -0.625)
    assert run["difference"] == -0.75
    assert run["difference_low"] == pytest.approx(-0.75 - 12.7062 * 0.25, rel=1e-4)
    assert run["difference_high"] == pytest.approx(-0.75 + 12.7062 * 0.25, rel=1e-4)
    assert run["p"] == run["p_holm"] == pytest.approx(0.2048, abs=1e-4)  # 1 − 2 atan(3) / π
    assert run["detectable"] == pytest.approx((12.7062 + 1.3764) * 0.25, rel=1e-4)
    assert run["runs_needed"] == 4107  # ((6.3138 + 1.3764) · 0.25 / 0.03)² = 4106.9
    assert run["verdict"] == "undecided"
    assert run["hides"] == {"cut": 1, "empty": 1, "failed": 1}  # one of four against none
    assert [name for name, value in reference.items() if value is None] == RUN_KEYS[12:20]
    assert reference["verdict"] == "reference"
    assert set(reference["hides"].values()) == {None}


@pytest.mark.parametrize(
    ("mean", "se", "p_holm", "verdict"),
    [
        pytest.param(-0.041, 0.0143, 0.01, "lower", id="lower"),
        pytest.param(-0.015, 0.005, 0.01, "lower within margin", id="lower-by-less-than-margin"),
        pytest.param(0.041, 0.0143, 0.01, "higher", id="higher"),
        pytest.param(-0.001, 0.01, 0.9, "not worse", id="not-worse"),
        pytest.param(-0.001, 0.02, 0.9, "undecided", id="interval-too-wide"),
        pytest.param(-0.041, 0.0143, 0.07, "undecided", id="seen-alone-but-not-among-many"),
    ],
)
def test_verdicts(mean: float, se: float, p_holm: float, verdict: str) -> None:
    assert verdict_of(Estimate(700, 35, mean, se), p_holm, 0.03) == verdict


ROW = {
    "verdict": "undecided", "files": ["a"], "detectable": 0.0421, "runs_needed": 4,
    "difference_low": -0.070, "difference": -0.041, "difference_high": -0.012,
}  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("lower", "lower by 0.041 (0.012 to 0.070)"),
        ("lower within margin", "lower by 0.041 (0.012 to 0.070), not worse by more than 0.03"),
        ("higher", "higher by 0.041 (0.012 to 0.070)"),
        ("not worse", "not worse by more than 0.03"),
        ("reference", "reference"),
        ("undecided", UNDECIDED + "about 4 runs of each would settle 0.03"),
    ],
)
def test_verdict_in_words(verdict: str, words: str) -> None:
    assert words_of(ROW | {"verdict": verdict}, 0.03) == words


def test_undecided_names_more_runs_than_there_were() -> None:
    twice = words_of(ROW | {"files": ["a", "b"]}, 0.03)
    assert twice == UNDECIDED + "about 8 runs of each would settle 0.03"
    close = words_of(ROW | {"runs_needed": 1}, 0.03)
    assert close == UNDECIDED + "about 2 runs of each would settle 0.03"
    unknown = words_of(ROW | {"detectable": None, "runs_needed": None}, 0.03)
    assert unknown == "undecided: too few chats in common with the reference"


def test_files_of_one_run_are_averaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_run(tmp_path / "1", [question(1, 1.0), question(2, 1.0)])
    two = write_run(tmp_path / "2", [question(1, 0.0, finish_reason="length")])
    found = as_json(capsys, one, f"b={one},{two}")["runs"][1]
    assert (found["n"], found["score"], found["half_points"]) == (2, 0.75, 0.75)
    assert (found["cut"], found["mean_completion_tokens"]) == (1, 100)
    assert found["difference"] == -0.25


def test_answers_judged_again_count_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [question(1, 1.0, finish_reason="length"), question(2, 1.0)]
    write_run(tmp_path / "answers", run)
    there = {"files": ["../answers/answers.jsonl"], "without": ["answers"]}
    one, two = (write_run(tmp_path / name, run, **there) for name in ("1", "2"))
    assert as_json(capsys, f"{one},{two}")["runs"][0]["cut"] == 1


def test_p_is_adjusted_over_runs_and_over_all_abilities(tmp_path: Path) -> None:
    """Three runs of seven chats that all lost the same: p = 2^-6, times three."""
    paths = [str(write_run(tmp_path / "0", questions(7, [1.0, 1.0])))]
    paths += [f"{i}={write_run(tmp_path / i, questions(7, [1.0, 0.0]))}" for i in "123"]
    found = report_object(load_subjects(paths), 0.03)
    assert [row["p"] for row in found["runs"]] == [None, *[1 / 64] * 3]
    assert [row["p_holm"] for row in found["runs"]] == [None, *[3 / 64] * 3]
    assert {row["abilities"]["abstention"]["p_holm"] for row in found["runs"][1:]} == {3 / 64}
    assert [row["verdict"] for row in found["runs"]] == ["reference", *["lower"] * 3]


def test_adjusted_interval_is_wider_with_more_runs(tmp_path: Path) -> None:
    """t with six degrees: 2.4469 for one comparison, 2.9687 (97.5 % each) for two."""
    paths = [str(write_run(tmp_path / "0", questions(7, [1.0, 1.0])))]
    run = [*questions(6, [1.0, 0.0]), *questions(7, [1.0, 1.0])[12:]]
    paths += [f"{i}={write_run(tmp_path / i, run)}" for i in "12"]
    widths = []
    for count in (2, 3):
        subjects = load_subjects(paths[:count])
        reference, first, *_ = report_object(subjects, 0.03)["runs"]
        assert reference["adjusted"] == (None, None)
        low, high = first["adjusted"]
        widths.append(high - low)
    assert widths[1] / widths[0] == pytest.approx(2.9687 / 2.4469, rel=1e-4)


@pytest.mark.parametrize(
    "without", [["answers"], ["verdicts"], ["record"], ["answers", "verdicts", "record"]]
)
def test_what_is_missing_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], without: list[str]
) -> None:
    run = questions(3, [1.0, 0.0])
    paths = [write_run(tmp_path / "a", run), write_run(tmp_path / "b", run, without=without)]
    found = as_json(capsys, *paths)["runs"][1]
    answers_known = "answers" not in without and "record" not in without
    assert (found["cut"] is not None) is answers_known
    assert (found["hides"]["failed"] is not None) is answers_known
    assert (found["half_points"] is not None) is ("verdicts" not in without)
    assert found["difference"] == 0
    row = report(capsys, *paths).splitlines()
    assert any("undecided" in line and line.count(" -") >= 1 for line in row)


@pytest.mark.parametrize(
    "other", [questions(1, [1.0, 0.0]), [question(9, 1.0)]], ids=["one-chat", "nothing-in-common"]
)
def test_no_verdict_without_chats_in_common(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: list[dict[str, Any]]
) -> None:
    paths = [write_run(tmp_path / "a", questions(3, [1.0, 1.0])), write_run(tmp_path / "b", other)]
    assert as_json(capsys, *paths)["runs"][1]["verdict"] == "undecided"
    assert "undecided: too few chats in common with the reference" in report(capsys, *paths)


# ------------------------------------------------------------------------------------------------
# What the score hides.


def test_failed_answers_come_before_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """21 of 60 answers failed, spread over six chats; all others are right."""
    places = [(place % 6, place // 6) for place in range(60)]
    good = [question(chat, 1.0, index=index) for chat, index in places]
    run = [failed(chat, index) for chat, index in places[:21]] + good[21:]
    paths = [write_run(tmp_path / "a", good), f"b={write_run(tmp_path / 'b', run)}"]
    lines = report(capsys, *paths).splitlines()
    assert lines[0].startswith(
        "b: lower by 0.350, of it 0.350 from 21 answers that failed (reference: 0; p < 0.001); "
        "over the other 39 questions +0.000 (+0.000 to +0.000)"
    )
    assert any(re.match(r"b: lower by 0\.350 \(0\.\d+ to 0\.\d+\)$", line) for line in lines[1:])


def test_cut_answers_are_told_where_the_score_sees_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """10 % cut against none, all with the same scores."""
    good = questions(10, [1.0, 0.0] * 5)
    cut = [*questions(1, [1.0, 0.0] * 5, finish_reason="length"), *good[10:]]
    text = report(capsys, write_run(tmp_path / "a", good), f"b={write_run(tmp_path / 'b', cut)}")
    first = text.splitlines()[0]
    assert "of it 0.000 from 10 answers that were cut at the length limit" in first
    assert "(reference: 0; p < 0.01)" in first
    assert re.search(r"^b .* 10\.0% +0\.0% +0\.0% +100 +not worse$", text, re.MULTILINE)


def test_few_failed_answers_are_only_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = questions(10, [1.0] * 6)
    paths = [write_run(tmp_path / "a", good), write_run(tmp_path / "b", [failed(1), *good[1:]])]
    text = report(capsys, *paths)
    assert text.startswith("BEAM")
    assert "1.7%" in text


# ------------------------------------------------------------------------------------------------
# Names and notes.


def test_names(tmp_path: Path) -> None:
    """The model; of twins the host; of twins at one host the file; a name that was given."""
    run, paths = questions(2, [1.0]), {}
    for name, made in {"a": "m1 x", "b": "m2 x", "c": "m2 y:8", "d": "m3 x", "e": "m3 x"}.items():
        model, host = made.split()
        paths[name] = str(write_run(tmp_path / name, run, model=model, host=host))
    bare = str(write_run(tmp_path / "t=0.6", run, without=["record"]))
    arguments = [*paths.values(), bare, f"mine={paths['a']}"]
    names = [subject.name for subject in load_subjects(arguments)]
    assert names == ["m1", "m2 (x)", "m2 (y:8)", paths["d"], paths["e"], bare, "mine"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["x={a}", "x={b}"], "two runs are called x", id="one-name-for-two"),
        pytest.param(["{a}", "{a}"], "two runs are called", id="one-file-twice"),
        pytest.param(["{a}", "nothing.jsonl"], "nothing.jsonl", id="no-such-file"),
        pytest.param(["{a}", "--margin", "0"], "--margin", id="no-margin"),
        pytest.param(["{a}", "--plot", "x.txt"], ".png, .svg or .pdf", id="no-such-picture"),
        pytest.param(["{a}", "--html", "nowhere/x.html"], "--html", id="no-such-folder"),
        pytest.param(["{a}", "--html", "/dev/null"], "no link or device", id="device"),
    ],
)
def test_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    paths = {name: write_run(tmp_path / name, questions(2, [1.0])) for name in "ab"}
    assert said in refused(capsys, *(argument.format(**paths) for argument in arguments))


def test_notes_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {
        "settings__body": {"model": "judge-2", "temperature": 0.3},
        "settings__criterion_prompt": "builtin",
        "settings__event_ordering": "tau",
        "answers__data": {},
        "answers__settings__body": {"model": "m", "temperature": 0.6, "thinking": {"x": 1}},
        "answers__shrunk": {"1": 7},
        "mixed": True,
        "selected": {"1": {"abstention": 9}},
    }
    run = [question(1, None, 1.0), question(2, 1.0)]
    paths = [write_run(tmp_path / "a", questions(2, [1.0]))]
    paths += [f"{name}={write_run(tmp_path / name, run, **changes)}" for name in "bc"]
    notes = as_json(capsys, *paths)["notes"]
    said = [
        "chats cut further to fit the endpoint: 1",
        "judged partly with other settings",
        "scored: 2 of 9 selected questions",
        "verdicts: 1 unreadable, 0 failed calls",
        "answers' max_tokens differs: not set, reference: 1000",
        "answers' temperature differs: 0.6, reference: 1.0",
        "answers' thinking differs: {'x': 1}, reference: not set",
        "data differs: unknown; 2 chats, reference: questions 11111111, chats 22222222; 2 chats",
        "judge's criterion_prompt differs: builtin, reference: official",
        "judge's event_ordering differs: tau, reference: strict",
        "judge's model differs: judge-2, reference: judge-1",
    ]
    assert notes == [f"{note} (b, c)" for note in said]
    text = report(capsys, *paths)
    assert all(text.count(note) == 1 for note in notes)


def test_run_without_a_record_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = questions(2, [1.0])
    paths = [write_run(tmp_path / "a", run), write_run(tmp_path / "b", run, without=["record"])]
    unknown = [
        f"settings of the {whose} are unknown ({paths[1]})" for whose in ("judge", "answers")
    ]
    assert as_json(capsys, *paths)["notes"] == unknown


def test_runs_that_agree_have_no_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write_run(tmp_path / n, questions(2, [1.0]), model=n, host=n) for n in "ab"]
    assert as_json(capsys, *paths)["notes"] == []


# ------------------------------------------------------------------------------------------------
# Text, markdown, picture, page.


def eight_runs(tmp_path: Path, **how: Any) -> list[str]:
    """A reference and seven others, which have failed answers."""
    paths = []
    for place in range(8):
        run = [
            question(chat, float((chat + index + place) % 3 == 0), ability=ability, index=index)
            for chat in range(8)
            for ability in ABILITIES
            for index in range(2)
        ]
        run = [failed(1, index=9 + i) for i in range(20 * (place > 0))] + run
        paths.append(str(write_run(tmp_path / str(place), run, host=f"host{place}", **how)))
    return paths


def test_eight_runs_fit_a_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = report(capsys, *eight_runs(tmp_path))
    lines = text.splitlines()
    assert len(lines) <= 40
    table = lines.index(next(line for line in lines if line.startswith("run ")))
    rows = lines[table + 1 : table + 9]
    assert len({len(line) for line in rows}) == 1
    scores = [float(row.split()[2]) for row in rows]  # m (host3) 0.333 …
    assert scores == sorted(scores, reverse=True)
    assert "no difference" not in text
    assert "a rerun on the same chats varies less" in text


def test_abilities_are_one_line_unless_one_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = [question(c, float(c % 2), ability=a) for c in range(9) for a in ABILITIES]
    near = [question(c, float(c % 2 or (c == 0 and a == "summarization")), ability=a)
            for c in range(9) for a in ABILITIES]  # fmt: skip
    far = [
        question(c, float(c % 2 and a != "abstention"), ability=a)
        for c in range(9)
        for a in ABILITIES
    ]
    far += [question(c, 1.0, index=1) for c in range(9, 40)]
    same += [question(c, 0.0, index=1) for c in range(9, 40)]
    paths = [write_run(tmp_path / "a", same), f"b={write_run(tmp_path / 'b', near)}"]
    text = report(capsys, *paths)
    assert "largest difference is +0.111 (summarization, b); two equal models" in text
    assert "0.086 (median), one pair in twenty 0.146" in text
    text = report(capsys, *paths, f"c={write_run(tmp_path / 'c', far)}")
    assert "Abilities of c:" in text
    assert "Abilities of b:" not in text
    assert re.search(r"^abstention +40 .* <0\.001$", text, re.MULTILINE)
    assert "two equal models" not in text


def test_one_run_is_its_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path, questions(3, [1.0, 0.0]))
    assert report(capsys, path).startswith("=== BEAM summary (n=6) ===\noverall: 0.5000\n")
    text = report(capsys, path, "--format", "markdown")
    assert "Abilities of m:" in text
    assert re.search(r"^\|abstention +\| +6 \| 0\.500 \|", text, re.MULTILINE)


HOSTILE = ["a\x1b[31mb\r\n| c |\x00", "<script>|*x*_`~", "x" * 3000, "\ud800\udfff", " "]


@pytest.mark.parametrize(
    "name", HOSTILE, ids=["control", "markup", "long", "lone-surrogates", "blank"]
)
@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_hostile_names_break_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, form: str
) -> None:
    run = questions(3, [1.0, 0.0])
    plain = report(capsys, *(write_run(tmp_path / n, run, model=n) for n in "ab"), "--format", form)
    paths = [write_run(tmp_path / "c", run), write_run(tmp_path / "d", run, model=name)]
    text = report(capsys, *paths, "--format", form)
    assert text.count("\n") == plain.count("\n")
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    assert max(map(len, text.splitlines())) < 400
    text.encode("utf-8")
    if form == "markdown":
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {13}
        assert "<script>" not in text


def test_forty_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = questions(3, [1.0, 0.0])
    names = [f"{'very-long-name-' * 4}{i}" for i in range(40)]
    paths = [f"{n}={write_run(tmp_path / str(i), run)}" for i, n in enumerate(names)]
    lines = report(capsys, *paths).splitlines()
    rows = [line for line in lines if line.startswith("very-long-na…")]
    assert len(rows) == 40
    assert len({len(row) for row in rows}) == 1
    assert all(row.split()[0].endswith(f"-{i}") for i, row in enumerate(rows))


def test_questions_for_the_page(tmp_path: Path) -> None:
    one = [question(2, 1.0), question(10, 0.0, response="x"), question(2, 1.0, index=1)]
    two = [question(2, None, response="y", finish_reason="length")]
    paths = [str(write_run(tmp_path / "a", one)), f"b={write_run(tmp_path / 'b', two)}"]
    views = views_of(load_subjects(paths))
    places = [(view["chat_id"], view["question_index"]) for view in views]
    assert places == [("2", 0), ("2", 1), ("10", 0)]
    assert views[2]["question"] == "question 0 of chat 10"
    assert (views[2]["gold_answer"], views[2]["rubric"]) == ("gold", ["item 0"])
    assert views[2]["runs"][1] is None
    seen = views[0]["runs"][1]
    assert (seen["score"], seen["response"], seen["finish_reason"]) == (0.0, "y", "length")
    judged = {"item": 0, "status": "unreadable", "level": None, "reply": "verdict None"}
    assert seen["verdicts"] == [judged]  # the criterion is in the rubric


def test_picture_and_page_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    paths = [write_run(tmp_path / n, questions(3, [1.0, 0.0]), model=n) for n in "ab"]
    picture, page = tmp_path / "x.svg", tmp_path / "x.html"
    report(capsys, *paths, "--plot", picture, "--html", page)
    for file in (picture, page):
        text = file.read_text("utf-8")
        assert "judge-1" in text
        assert "not worse by more than 0.03" in text or "too few chats" in text


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        pytest.param(errno.ENOSPC, 1, "No space left on device; make room", id="full-disk"),
        pytest.param(errno.EACCES, 2, "Permission denied; name another file", id="no-permission"),
    ],
)
def test_page_that_cannot_be_written_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    code: int,
    said: str,
) -> None:
    def write_whole(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("beam_common.page.write_whole", write_whole)
    page = tmp_path / "x.html"
    scores = write_run(tmp_path, questions(2, [1.0]))
    assert main([str(scores), "--html", str(page)]) == code
    assert re.fullmatch(rf"\w+: {page} cannot be written: {said}.*\n", capsys.readouterr().err)
