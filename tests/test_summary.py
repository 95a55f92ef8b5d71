"""One run of the judge: what is read beside its scores, and the summary."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from judged import Question, failed, question, questions, verdict, write_rows, write_run

from beam_common.messages import UsageError
from beam_common.release import recorded
from beam_common.summary import load_run, summary_lines
from beam_common.tables import fitted, interval, label, number

RUN = [
    question(1, 1.0, 0.0, ability="summarization"),
    question(1, 0.5, ability="event_ordering"),
    question(2, 1.0, 1.0, 0.5, ability="summarization"),
    question(2, 1.0, ability="abstention"),
]


def summary(folder: Path, run: list[Question], **how: Any) -> str:
    return "\n".join(summary_lines(load_run(write_run(folder, run, **how))))


def test_block_that_scripts_parse(tmp_path: Path) -> None:
    """n, the mean over questions, and each ability that has any, in the order of the ten."""
    lines = summary(tmp_path, RUN).splitlines()
    assert lines[:6] == [
        "=== BEAM summary (n=4) ===",
        "overall: 0.5417",  # (1/2 + 0 + 2/3 + 1) / 4
        "  abstention: 1.0000 (n=1)",
        "  event_ordering: 0.0000 (n=1)",
        "  summarization: 0.5833 (n=2)",
        "",
    ]
    assert [line for line in lines if re.match(r"overall: [0-9.]*$", line)] == [lines[1]]


def test_half_points_and_intervals(tmp_path: Path) -> None:
    """Levels kept as they are: 1/2, 1/2, 5/6 and 1, mean 17/24. A single chat has no interval."""
    text = summary(tmp_path, RUN)
    assert re.search(r"^overall +0\.\d{3} to 0\.\d{3} +0\.7083$", text, re.MULTILINE)
    assert re.search(r"^  abstention +- +1\.0000$", text, re.MULTILINE)
    assert re.search(r"^  event_ordering +- +0\.5000$", text, re.MULTILINE)
    assert "Intervals are about other chats; a rerun on the same chats varies less." in text


def test_what_the_score_hides(tmp_path: Path) -> None:
    run = [
        question(1, 1.0, finish_reason="length"),
        question(1, 0.0, index=1, response=" \n", finish_reason="length"),
        question(1, index=2, response=""),
        failed(2),
        question(2, None, 1.0, index=1),
    ]
    lost = verdict(question(2, 0.0, index=2), 0, "failed", None)
    text = summary(tmp_path, [*run, question(2, index=2)], verdicts=[lost])
    assert "answers: 2 cut at the length limit, 2 empty, 1 with an error" in text
    assert "verdicts: 1 unreadable, 1 failed calls" in text
    assert "scored: 6 of 6 selected questions" in text


def test_last_readable_verdict_of_an_item_counts(tmp_path: Path) -> None:
    """Replies stand in the file as they came: unreadable ones, a failed one, then a verdict."""
    asked = question(1, 1.0, 0.5, index=3)
    earlier = [
        verdict(asked, 1, "unreadable", None),
        verdict(asked, 1, "failed", None),
        verdict(asked, 0, "unreadable", None),
    ]
    run = load_run(write_run(tmp_path, [asked], verdicts=earlier))
    [(key, rows)] = run.verdicts.items()
    assert [(row["item"], row["level"]) for row in rows] == [(0, 1.0), (1, 0.5)]
    assert run.half_points == {key: 0.75}
    assert run.calls == {"unreadable": 2, "failed": 1, "scored": 2}


@pytest.mark.parametrize(
    ("unreadable", "readable", "said"),
    [
        pytest.param(87, 46, True, id="most-replies-in-no-form"),
        pytest.param(5, 5, False, id="half-of-them"),
        pytest.param(0, 0, False, id="no-call-was-needed"),
    ],
)
def test_judge_that_does_not_answer_in_the_form_is_named_first(
    tmp_path: Path, unreadable: int, readable: int, said: bool
) -> None:
    run = [question(1, index=0)]
    lines = [verdict(run[0], 0, "unreadable", None)] * unreadable
    lines += [verdict(run[0], 0, "scored", 1.0)] * readable
    text = summary(tmp_path, run, verdicts=lines).splitlines()
    assert text[3] == ""  # after the block
    wanted = "WARNING: the judge did not answer in the form in 87 of 133 calls"
    assert (text[4] == wanted) is said
    assert ("WARNING" in "".join(text)) is said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"selected": {}}, "scored: 4 of unknown selected", id="selection-unknown"),
        pytest.param({"selected": {"1": {"a": 2}, "7": {"b": 5}}}, "scored: 4 of 7", id="half-way"),
        pytest.param({"mixed": True}, "judged partly with other settings", id="mixed-judge"),
        pytest.param({"answers__mixed": True}, "answered partly with other", id="mixed-answers"),
        pytest.param({"answers__shrunk": {"3": 120, "5": 7}}, "fit the endpoint: 2", id="shrunk"),
        pytest.param({"foreign": ["x"]}, "another tool, without verdicts: 1", id="foreign"),
        pytest.param({"missing_shards": ["2/3", "3/3"]}, "missing shards: 2/3, 3/3", id="shards"),
        pytest.param({}, "answers' base_url: http://host/v1\n", id="endpoint"),
        pytest.param({}, "judge's criterion_prompt: official\njudge's ordering_", id="prompts"),
        pytest.param({"settings__event_ordering": "tau"}, "event_ordering: tau", id="other-mode"),
        pytest.param(
            {"answers__served": {"m-fp8 via x": 3, "m": 1}},
            "served as m-fp8 via x (3), m (1)\n",
            id="served-by-another-model",
        ),
        pytest.param({"answers__settings": {}}, "of the answers are unknown", id="no-record"),
    ],
)
def test_what_the_record_says(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert said in summary(tmp_path, RUN, **changes)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(
            {
                "tag": "1m",
                "questions_sha256": recorded()["tags"]["1m"]["questions"]["sha256"],
                "chats_sha256": recorded()["tags"]["1m"]["chats"]["sha256"],
            },
            "data: the published 1M files; 2 of 35 chats",
            id="published",
        ),
        pytest.param(
            {"tag": "own", "questions_sha256": "1" * 64, "chats_sha256": "2" * 64},
            "data: questions 11111111, chats 22222222; 2 chats",
            id="own-data",
        ),
        pytest.param({}, "data: unknown; 2 chats", id="unknown"),
    ],
)
def test_what_was_judged(tmp_path: Path, data: dict[str, str], said: str) -> None:
    assert said in summary(tmp_path, RUN, answers__data=data)


def test_the_record_says_where_the_answers_are(tmp_path: Path) -> None:
    """Relative to the scores' folder, and over several files of shards."""
    scores = write_run(tmp_path / "s", RUN, without=["answers"], files=["../a.jsonl", "../b.jsonl"])
    rows = [{**one["identity"], **one["answer"]} for one in RUN]
    write_rows(tmp_path / "a.jsonl", [{**rows[0], "error": "HTTP 500"}, rows[1]])
    write_rows(tmp_path / "b.jsonl", rows[:1] + rows[2:])
    run = load_run(scores)
    assert run.answers is not None
    assert len(run.answers) == 4
    assert all(row["error"] is None for row in run.answers.values())


@pytest.mark.parametrize(
    ("without", "said"),
    [
        pytest.param(["answers"], "answers: unknown, not all files are there", id="no-answers"),
        pytest.param(["verdicts"], "verdicts: unknown, not all files are there", id="no-verdicts"),
        pytest.param(["record"], "settings of the judge are unknown", id="no-record"),
        pytest.param(["record"], "answers: unknown", id="no-record-that-names-the-answers"),
        pytest.param(["verdicts"], "overall .* -\n", id="half-points-without-verdicts"),
    ],
)
def test_what_is_missing_is_unknown(tmp_path: Path, without: list[str], said: str) -> None:
    text = summary(tmp_path, RUN, without=without)
    assert re.search(said, text)
    assert text.startswith("=== BEAM summary (n=4) ===\noverall: 0.5417\n")


def test_scores_of_another_tool_have_no_half_points(tmp_path: Path) -> None:
    run = [question(1, 1.0), question(2, score=0.5)]
    text = summary(tmp_path, run)
    assert "overall: 0.7500" in text
    assert re.search(r"^overall .* -$", text, re.MULTILINE)


@pytest.mark.parametrize("content", ["", "{}\n", '{"chat_id": "1"}\n'], ids=["empty", "{}", "torn"])
def test_no_scores_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match="holds no scores"):
        load_run(path)


def test_hostile_names_stay_on_their_line(tmp_path: Path) -> None:
    model = "evil\n=== BEAM summary (n=1) ===\roverall: 1.0\x1b[2J\ud800" + "x" * 500
    text = summary(tmp_path, questions(2, [1.0, 0.0]), model=model)
    assert text.count("\n=== BEAM") == 0
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 1010  # lone surrogates are written as escapes
    text.encode("utf-8")


def test_numbers_and_names_in_columns() -> None:
    assert [number(x, 4) for x in (None, 0.12345, -0.00001)] == ["-", "0.1235", "0.0000"]
    assert [number(x, sign="+") for x in (0.02, -0.02, -0.0001)] == ["+0.020", "-0.020", "+0.000"]
    assert interval((0.2, 0.4)) == "0.200 to 0.400"
    assert interval((-3.93, 2.43), "+") == "-1.000 to +1.000"  # two chats say nothing
    assert fitted("abc") == "abc"
    assert fitted("moonshotai/kimi-k2.6-instruct-fp8") == "moonshotai/k…instruct-fp8"  # both ends
    assert label("a\tb\u2028c\x85\ud800") == "a b c \\ud800"
