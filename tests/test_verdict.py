"""Reading what judges say, and the arithmetic on it. Expected values are worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_common.prompts import CRITERION_PROMPT, ORDERING_PROMPT
from beam_common.verdict import (
    question_score,
    read_alignment,
    read_ordering,
    read_score,
    tau_score,
)

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "judge_replies.jsonl"
SIZE = 200_000


def table(*rows: tuple[Any, ...]) -> list[Any]:
    """Rows (id, value, …) as parameters with that id."""
    assert len({row[0] for row in rows}) == len(rows), "two rows with one id"
    return [pytest.param(*row[1:], id=row[0]) for row in rows]


def level_of(reply: str, finish_reason: str | None = "stop") -> float | None:
    return read_score(reply, finish_reason, CRITERION_PROMPT)


# --- Verdicts in JSON -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "level"),
    table(
        ("integer-zero", '{"score": 0}', 0.0),
        ("between-the-levels", '{"score": 0.7}', 0.7),
        ("byte-order-mark", '\ufeff{"score": 1}', 1.0),
        ("raw-line-break-in-string", '{"score": 1, "reason": "first\nsecond"}', 1.0),
        ("capital-key", '{"Score": 0.5}', 0.5),
        ("text", '{"score": "\\t0.5 "}', 0.5),
        ("text-over-one", '{"score": " 0.5 / 1.0"}', 0.5),
        ("list-of-one-text", '{"score": ["1.0"]}', 1.0),
        ("fence", 'So:\n```json\n{"score": 0.5}\n```\nDone.', 0.5),
        ("fence-not-closed", '```json\n{"score": 0.5, "reason": "x"}', 0.5),
        ("fence-in-reason", '{"score": 1, "reason": "```\\n{\\"score\\": 0}\\n```"}', 1.0),
        ("prose-around", 'So {"score": 0.5, "reason": "x"}. Good luck!', 0.5),
        ("braces-in-strings", 'V: {"reason": "a } and {b: 1", "score": 0.5} ok', 0.5),
        ("braces-in-prose", 'The set {a, b} is named. {"score": 0.5} for {c}', 0.5),
        ("apostrophe-in-prose", 'It doesn\'t. {"score": 0.0}', 0.0),
        ("one-level-down", 'V: {"verdict": {"score": 0.5}, "n": 3} ok', 0.5),
        ("trailing-comma", '{"score": 0.5, "met": true,}', 0.5),
        ("single-quotes", "```\n{'score': 0.5, 'reason': 'is \\d'}\n```", 0.5),
        ("single-quotes-with-text", "{'score': '0.5', 'n': None}", 0.5),
        ("the-same-in-prose", '**Score: 0.5**\n\n{"score": 0.5}', 0.5),
        ("own-and-below-differ", '{"score": 1, "parts": {"score": 0}}', None),
        ("two-below", '{"a": {"score": 1}, "b": {"score": 1}}', None),
        ("two-levels-down", '{"a": {"b": {"score": 1}}}', None),
        ("key-twice", '{"score": 0, "score": 1}', None),
        ("key-twice-in-two-cases", '{"Score": 0, "score": 1}', None),
        ("key-twice-in-single-quotes", "{'score': 0, 'score': 1}", None),
        ("list-of-two", '[{"score": 1}, {"score": 0}]', None),
        ("draft-and-revision", '{"score": 0}\nNo, wait.\n{"score": 1}', None),
        ("fenced-and-bare", '```\n{"score": 1}\n```\nNo: {"score": 0}', None),
        ("revision-is-no-level", '{"score": 1}\n{"score": null}', None),
        ("broken-revision", '{"score": 1}\nNo: {"score": 0, "reason": "says "no""}', None),
        ("other-score-in-prose", '{"score": 1}\nScore: 0.5', None),
        ("quoted-by-a-broken-one", '{"reason": "just {"score": 1} there", "verdict": 0}', None),
        ("fence-in-a-broken-one", '{"reason": "says\n```\n{"score": 1}\n```\n", "n": 0}', None),
        ("quotes-in-the-reason", '{"score": 0.5, "reason": "says "no" twice"}', None),
        ("brace-missing", '{"score": 0.5, "reason": "x"', None),
        ("number-alone", "1.0", None),
        ("list-of-a-number", "[1.0]", None),
        ("quoted-as-a-whole", '"{\\"score\\": 1}"', None),
        ("nothing", "", None),
    ),
)
@pytest.mark.filterwarnings("error")
def test_verdicts_in_json(reply: str, level: float | None) -> None:
    assert level_of(reply) == level
    assert level_of(reply, None) == level


def test_a_verdict_said_twice_alike_is_one() -> None:
    assert level_of('{"score": 0.5} As said:\n```\n{"score": 0.5, "reason": "x"}\n```') == 0.5


def test_zero_has_no_sign() -> None:
    assert str(level_of('{"score": -0.0}')) == "0.0"


@pytest.mark.parametrize(
    "value",
    [
        *("true", "false", "null", "NaN", "Infinity", "1e999", "5", "-1", "1.0001", "-0.1"),
        *("[]", "[1.0, 0.5]", "[[1.0]]", "[true]", "{}", '{"value": 1}', '""', '"high"'),
        *('"NaN"', '"true"', '"1e5"', '"-1"', '"2/1"', '"1/2"', '"7/20"', '"1.0/1.0/1.0"'),
        *('"100%"', '"0x1"', '"1_0"', '"½"', '"１"', '"1,0"', '"0.5-1.0"', '"0.5 or 1"'),
        *("1" * 5000, '"' + "1" * 5000 + '"'),
    ],
    ids=lambda value: value[:14],
)
def test_values_that_are_no_level(value: str) -> None:
    assert level_of(f'{{"score": {value}}}') is None
    assert level_of(f'Verdict:\n```\n{{"reason": "x", "score": {value},}}\n```') is None


# --- Reasoning, cuts, program text, copies of the form ------------------------------------------


@pytest.mark.parametrize(
    ("opened", "closed"),
    [
        ("<think>", "</think>"),
        ("", "</think>"),
        ("<THINKING>", "</THINKING>"),
        ("<think><think>", "</think>"),
        ("<seed:think>", "</seed:think>"),
        ("<reasoning>", "</reasoning>"),
        ("[THINK]", "[/THINK]"),
        ("◁think▷", "◁/think▷"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|channel>thought\n", "<channel|>"),
        ("<|channel|>analysis<|message|>", "<|end|><|channel|>final<|message|>"),
        ("<|channel|>analysis<|message|>", "<|channel|>final <|constrain|>json<|message|>"),
    ],
    ids=lambda mark: mark.strip() or "opened-by-the-template",
)
def test_reasoning_is_not_the_verdict(opened: str, closed: str) -> None:
    for draft in ('{"score": 0.0}\nScore: 0.0\n', 'As in {"score": 0.0, "reason": "x. So {a'):
        reasoning = opened + draft + closed
        for finish_reason in ("stop", "length"):
            assert level_of(reasoning + '\n{"score": 1.0, "reason": "x"}', finish_reason) == 1.0
        assert level_of(reasoning + "\nScore: 0.5") == 0.5
        assert level_of(reasoning) is None
    if opened:
        assert level_of(opened + '{"score": 1.0}') is None
        assert level_of('</think>{"score": 1.0}' + opened + "or rather") is None


def test_a_mark_that_a_verdict_quotes_is_none() -> None:
    quoted = """{"score": 0.0, "reason": "the response says <think></think>{'score': 1.0}"}"""
    assert level_of(f"```json\n{quoted}\n```") == 0.0
    assert level_of(f'<think>{{"score": 1.0}}</think>{quoted}') == 0.0


@pytest.mark.parametrize(
    ("reply", "level"),
    table(
        ("complete", '{"score": 0.5, "reason": "x"}', 0.5),
        ("complete-in-a-list", '[{"score": 0.5}]', 0.5),
        ("in-the-reason", '{"score": 1.0, "reason": "it men', None),
        ("in-a-fence", '```json\n{"score": 0.5, "reason": "x"}', None),
        ("after-the-object", '{"score": 0.5}\nTo explain this, the resp', None),
        ("draft-in-reasoning-without-mark", 'The form is {"score": 1.0}. It mentions', None),
        ("draft-in-reasoning", '<think>The form is {"score": 1.0}. It mentions', None),
        ("prose", "Score: 1.0", None),
        ("single-quotes", "{'score': 1.0}", None),
    ),
)
def test_replies_cut_by_the_length_limit(reply: str, level: float | None) -> None:
    assert level_of(reply, "length") == level


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param('json_data["score"] = 1.0\njson_data["score"] = 2.0', id="two-assignments"),
        pytest.param('data = {"score": 1.0}\ndata["score"] = 1.0', id="assigned-again"),
        pytest.param('```python\nverdict = {"score": 1.0}\n```', id="assigned"),
        pytest.param("```python\nverdict = {'score': 1.0}\n```", id="assigned-single-quotes"),
        pytest.param('def f():\n    return {"score": 1.0}', id="returned"),
        pytest.param('print(json.dumps({"score": 1.0}))', id="passed"),
        pytest.param("score = 1.0", id="assignment-alone"),
        pytest.param("check(score=1.0)\nScore: 1.0", id="keyword"),
        pytest.param('if a:\n {"score": 1}\nif b:\n {"score": 1}\n {"score": 1}', id="three-times"),
    ],
)
def test_program_text_is_no_verdict(reply: str) -> None:
    assert level_of(reply) is None


OTHER_FORM = 'Say {"score": 0.5, "reason": "why"} or\n"[what of the\n  criterion holds and why]".'


@pytest.mark.parametrize(
    ("prompt", "reason", "is_echo"),
    table(
        ("form", CRITERION_PROMPT, "one or two sentences", True),
        ("form-with-other-blanks", CRITERION_PROMPT, "one or\n  two sentences", True),
        ("form-with-a-full-stop", CRITERION_PROMPT, "one or two sentences.", True),
        ("form-of-one-word", OTHER_FORM, "why", True),
        ("form-in-brackets", OTHER_FORM, "[what of the criterion holds and why]", True),
        ("form-without-its-brackets", OTHER_FORM, "what of the criterion holds and why", True),
        ("sentence-of-the-prompt", CRITERION_PROMPT, "0.0: no part holds. 0.5: some parts", True),
        ("form-of-another-prompt", OTHER_FORM, "one or two sentences", False),
        ("word-of-the-prompt", CRITERION_PROMPT, "criterion", False),
        ("more-than-the-form", CRITERION_PROMPT, "one or two sentences name the river", False),
        ("empty", CRITERION_PROMPT, "", False),
    ),
)
def test_a_copy_of_the_form_is_no_verdict(prompt: str, reason: str, is_echo: bool) -> None:
    level = None if is_echo else 1.0
    reply = json.dumps({"score": 1.0, "reason": reason})
    assert read_score(reply, "stop", prompt) == level
    assert read_score(f'```\n{{"result": {reply}}}\n```', "stop", prompt) == level


# --- Prose ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "level"),
    table(
        ("plain", "Score: 0.5", 0.5),
        ("full-width-colon", "Score：0.5", 0.5),
        ("bold-label", "**Score:** 0.5\r\n**Reason:** one of two", 0.5),
        ("bold-number", "Reason: x\n\n## Score: **0.5**", 0.5),
        ("list-and-code", "- `score`: `0.5`", 0.5),
        ("over-one", "Score: 1.0/1.0", 1.0),
        ("repeated", "Score: 1.0\nSo the score: 1", 1.0),
        ("two-differ", "Score: 0.5\nFinal score: 1.0", None),
        ("in-a-sentence", "I lean to score: 0.5", None),
        ("more-on-the-line", "Score: 1.0 if both are named", None),
        ("over-twenty", "Score: 7/20", None),
        ("out-of-range", "Score: 5", None),
        ("negative", "Score: -1", None),
        ("line-that-a-broken-object-quotes", '{"reason": "says "\nScore: 1\n" only"}', None),
        ("label-of-another-thing", "total_score: 1.0", None),
    ),
)
def test_a_line_that_says_only_the_score(reply: str, level: float | None) -> None:
    assert level_of(reply) == level


# --- Collected, hostile and random replies ----------------------------------------------------


@pytest.mark.skipif(not CASES.is_file(), reason="no file of judge replies")
def test_the_collected_judge_replies() -> None:
    cases = [json.loads(line) for line in CASES.read_text("utf-8").splitlines()]
    for case in cases:
        level = level_of(case["reply"], case["finish_reason"])
        assert level == case["level"] or (case.get("any") and level is None), case["id"]


HOSTILE = {
    "braces": "{" * SIZE,
    "nested-opens": '{"score":' * (SIZE // 9),
    "quoted-braces": '{"' * (SIZE // 2),
    "braces-in-strings": '{"}":' * (SIZE // 5),
    "deep-and-complete": '{"score": 1, "x": ' + '{"a": ' * 20_000 + "1" + "}" * 20_001,
    "broken-objects": "{score}\n" * (SIZE // 8),
    "broken-literals": "{'score':} " * (SIZE // 11),
    "many-objects": '{"score": 1} ' * (SIZE // 13),
    "many-below": "{" + ", ".join(f'"{n}": {{"score": 1}}' for n in range(SIZE // 20)) + "}",
    "escapes": "{'a': \"" + '\\"' * (SIZE // 2) + "\\",
    "hexadecimal": "{'score': 1, 'reason': 0x" + "f" * 9_000 + "}",
    "long-literal": "{'score': 1, 'reason': '" + "x" * SIZE + "'}",
    "signs": "{'score': " + "-" * SIZE + "1}",
    "attributes": "{'score': a" + ".a" * 9_000 + "}",
    "brackets-in-a-literal": "{'score': " + "[" * 150 + "a b" + "]" * 150 + "}",
    "digits": '{"score": "' + "1" * SIZE + 'x"}',
    "score-and-blanks": ("score" + " " * 500) * (SIZE // 505),
    "backticks": "`" * SIZE,
    "equals": "=" + " " * SIZE,
}


@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_replies_are_unreadable_and_end_no_run(reply: str) -> None:
    assert level_of(reply) is None
    assert read_ordering(reply, "length", ORDERING_PROMPT) is None
    assert read_alignment(reply, None, 3, ["a", "b", "c"]) is None


PIECES = [
    *"{}[]:,\"'\\ \n*`=-.",
    *('"score"', "Score:", '{"score": 1}', "{'score': 0.5}", '"matches": [1]', "<think>", "1.0"),
    *("</think>", "```json\n", "[THINK]", "<|channel|>final<|message|>", "null", "\0", "return "),
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.sampled_from(["length", ""]))
def test_no_reply_makes_a_reader_raise_or_leave_its_range(reply: str, finish_reason: str) -> None:
    assert level_of(reply, finish_reason) in (None, 0.0, 0.5, 1.0)
    assert read_ordering(reply, finish_reason, ORDERING_PROMPT) in (None, 0.0, 1.0)
    assert read_alignment(reply, finish_reason, 1, ["a"]) in (None, [1], [None])


# --- Ordering ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "level"),
    table(
        ("both", '"all_present": true, "order_correct": true, "score": 1.0', 1.0),
        ("one", '"all_present": true, "order_correct": false, "score": 0.0', 0.0),
        ("text", '"all_present": "True", "order_correct": "true", "score": "1.0"', 1.0),
        ("trailing-comma", '"all_present": true, "order_correct": true, "score": 1.0,', 1.0),
        ("flags-below", '"score": 0, "f": {"all_present": true, "order_correct": false}', 0.0),
        ("no-flags", '"score": 1.0', 1.0),
        ("one-flag", '"order_correct": true, "score": 0', 0.0),
        ("one-against", '"all_present": true, "order_correct": false, "score": 1.0', None),
        ("both-against", '"all_present": true, "order_correct": true, "score": 0.0', None),
        ("below-against", '"score": 1, "f": {"order_correct": false}', None),
        ("twice", '"all_present": true, "all_present": false, "score": 0.0', None),
        ("unclear-and-one", '"all_present": "mostly", "score": 1.0', None),
        ("part-of-a-point", '"all_present": true, "order_correct": false, "score": 0.5', None),
        ("form-copied", '"score": 1.0, "explanation": "one or two sentences"', None),
        ("no-score", '"all_present": true, "order_correct": true', None),
    ),
)
def test_ordering_verdicts(said: str, level: float | None) -> None:
    assert read_ordering(f"So:\n```json\n{{{said}}}\n```", "stop", ORDERING_PROMPT) == level


@pytest.mark.parametrize(
    ("matches", "n_lines", "events", "order"),
    table(
        ("in-order", "[1, 2, 3]", 3, "abc", [1, 2, 3]),
        ("none-and-out-of-order", "[2, null, 1]", 3, "abc", [2, None, 1]),
        ("claimed-twice-the-first-has-it", "[2, 2, 1]", 3, "abc", [2, None, 1]),
        ("equal-events-in-turn", "[3, 3, 1]", 3, "aba", [1, 3, None]),
        ("too-few", "[1]", 2, "ab", None),
        ("too-many", "[1, 2]", 1, "ab", None),
        ("negative", "[-1]", 1, "abc", None),
        ("name-of-an-event", '["a"]', 1, "abc", None),
        ("list-in-it", "[[1]]", 1, "abc", None),
    ),
)
def test_alignments(
    matches: str, n_lines: int, events: str, order: list[int | None] | None
) -> None:
    reply = f'<think>{{"matches": []}}</think>So {{"matches": {matches}}}.'
    assert read_alignment(reply, "stop", n_lines, list(events)) == order


def test_two_alignments_are_unreadable() -> None:
    assert read_alignment('{"matches": [1]} {"matches": [2]}', "stop", 1, ["a", "b"]) is None


# --- Arithmetic -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "cut", "half_points"),
    table(
        ("one", [1.0], 1.0, 1.0),
        ("half-counts-nothing", [1.0, 0.5, 0.0, 1.0], 0.5, 0.625),
        ("just-below-one", [0.99], 0.0, 0.99),
        ("unreadable", [None, 1.0], 0.5, 0.5),
    ),
)
def test_question_score(levels: list[float | None], cut: float, half_points: float) -> None:
    assert question_score(levels) == cut
    assert question_score(levels, cut=False) == half_points


@pytest.mark.parametrize(
    ("order", "n_events", "score"),
    table(
        ("same", [1, 2, 3], 3, 1.0),
        ("reversed", [3, 2, 1], 3, 0.0),
        ("two-swapped", [2, 1, 3], 3, 2 / 3),  # tau (2 - 1) / 3
        ("one-event-told", [1], 1, 1.0),
        ("nothing-told", [], 3, 0.0),
        ("no-reference", [None, None], 0, 0.0),
        # ranks 1 2 3 4 4 and 3 3 3 1 2: six pairs turned round, one and three tied
        ("only-foreign-lines", [None, None], 3, (1 - 6 / math.sqrt(9 * 7)) / 2),
        # ranks 1 2 3 3 and 1 2 3 4: five pairs agree, one is tied in the first order
        ("foreign-lines-at-the-end", [1, 2, None, None], 2, (1 + 5 / math.sqrt(5 * 6)) / 2),
    ),
)
def test_tau_score(order: list[int | None], n_events: int, score: float) -> None:
    assert tau_score(order, n_events) == pytest.approx(score, abs=1e-15)


@settings(deadline=None)  # the import of scipy takes its time
@given(st.data())
def test_tau_score_is_the_papers_formula(data: st.DataObject) -> None:
    """Against Kendall's tau-b by scipy, over the names in the reference and in the response."""
    stats = pytest.importorskip("scipy.stats")
    n_events = data.draw(st.integers(1, 6))
    every = [*range(1, n_events + 1), None, None, None]
    order = data.draw(st.permutations(every))[: data.draw(st.integers(1, len(every)))]
    lines = [f"event {event}" if event else f"line {i}" for i, event in enumerate(order)]
    reference = [f"event {event}" for event in range(1, n_events + 1)]
    union = list(dict.fromkeys(reference + lines))
    ranks = [
        [names.index(item) if item in names else len(union) for item in union]
        for names in (reference, lines)
    ]
    tau = float(stats.kendalltau(*ranks).statistic) if len(union) > 1 else math.nan
    expected = float(reference == lines) if math.isnan(tau) else (tau + 1) / 2
    assert tau_score(order, n_events) == pytest.approx(expected, abs=1e-12)
