"""Reading what judges say, and the arithmetic on it. Expected values are worked out by hand."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_tau import kendall_tau_b, one_to_one, tau_score
from beam_verdict import cut, last_fence, question_score, read_alignment, read_ordering, read_score

CASES = Path(
    os.environ.get("BEAM_CASES") or Path(__file__).resolve().parents[2] / "shared" / "cases" / "judge_replies.jsonl"
)


def table(*rows: tuple[object, ...]) -> list[object]:
    """Rows (id, value, …) as parameters with that id."""
    ids = [str(row[0]) for row in rows]
    assert len(set(ids)) == len(ids), "two rows with one id"
    return [pytest.param(*row[1:], id=name) for name, row in zip(ids, rows, strict=True)]


# ---- criterion verdicts: the whole reply is JSON ----


@pytest.mark.parametrize(
    ("reply", "level"),
    table(
        ("one", '{"score": 1.0, "reason": "names the river"}', 1.0),
        ("half", '{"score": 0.5, "reason": "names one of two"}', 0.5),
        ("integer-zero", '{"score": 0, "reason": "silent"}', 0.0),
        ("between-the-levels", '{"score": 0.7}', 0.7),
        ("score-last", '{"reason": "fine", "score": 1}', 1.0),
        ("blank-around", '\n \t{"score": 0.5}\r\n', 0.5),
        ("byte-order-mark", '\ufeff{"score": 1}', 1.0),
        ("byte-order-mark-and-think-in-reason", '\ufeff{"score": 1, "reason": "</think>"}', 1.0),
        ("no-break-space-around", '\u00a0{"score": 1}\u3000', 1.0),
        ("raw-line-break-in-string", '{"score": 1, "reason": "first\nsecond"}', 1.0),
        ("raw-control-characters-in-string", '{"score": 1, "reason": "a\x00b\x1b[0m"}', 1.0),
        ("lone-surrogate-in-string", '{"score": 1, "reason": "\ud83d"}', 1.0),
        ("minus-zero", '{"score": -0.0}', 0.0),
        ("integer-minus-zero", '{"score": -0}', 0.0),
        ("exponent", '{"score": 5e-1}', 0.5),
        ("text", '{"score": "0.5"}', 0.5),
        ("text-padded", '{"score": "\\t1.0 "}', 1.0),
        ("text-plus", '{"score": "+1"}', 1.0),
        ("text-no-decimals", '{"score": "1."}', 1.0),
        ("text-no-integer", '{"score": ".5"}', 0.5),
        ("list-of-one", '{"score": [0.5]}', 0.5),
        ("list-of-one-text", '{"score": ["1.0"]}', 1.0),
        ("over-one", '{"score": "0.5/1.0"}', 0.5),
        ("over-one-spaced", '{"score": " 1.0 / 1 "}', 1.0),
        ("capital-key", '{"Score": 1.0}', 1.0),
        ("shouted-key", '{"SCORE": 0.5}', 0.5),
        ("padded-key", '{" score ": 0.5}', 0.5),
        ("key-twice-agreeing", '{"score": 1, "score": 1.0}', 1.0),
        ("key-twice-differing", '{"score": 0, "score": 1}', None),
        ("key-in-two-cases-differing", '{"Score": 0, "score": 1}', None),
        ("below-one-key", '{"verdict": {"score": 0.5}, "usage": {"n": 3}}', 0.5),
        ("own-score-before-one-below", '{"score": 1, "parts": {"score": 0}}', 1.0),
        ("two-below", '{"a": {"score": 1}, "b": {"score": 1}}', None),
        ("below-a-reasoning-field", '{"reason": {"score": 1.0}}', None),
        ("below-a-reasoning-field-in-a-list", '[{"Explanation ": {"score": 1.0}}]', None),
        ("below-another-field-and-a-reasoning-field", '{"result": {"score": 0.5}, "reasoning": {"score": 1.0}}', 0.5),
        ("own-score-beside-a-reasoning-field", '{"rationale": {"score": 1.0}, "score": 0.5}', 0.5),
        ("two-below-under-one-name", '{"a": {"score": 0}, "a": {"score": 1}}', None),
        ("two-levels-below", '{"a": {"b": {"score": 1}}}', None),
        ("below-a-list", '{"results": [{"score": 1}]}', None),
        ("list-with-the-object", '[{"score": 0.5, "reason": "x"}]', 0.5),
        ("list-with-one-score-and-more", '["verdict", {"reason": "x"}, {"score": 1}]', 1.0),
        ("list-with-two-scores", '[{"score": 1}, {"score": 0}]', None),
        ("list-with-two-equal-scores", '[{"score": 1}, {"score": 1}]', None),
        ("list-of-a-number", "[1]", None),
        ("list-of-a-list", '[[{"score": 1}]]', None),
        ("empty-list", "[]", None),
        ("empty-object", "{}", None),
        ("number", "0.5", None),
        ("null", "null", None),
        ("true", "true", None),
        ("quoted-number", '"1.0"', None),
        ("no-score", '{"reason": "good"}', None),
        ("no-score-but-in-reason", '{"reason": "I would say score: 1.0"}', None),
        ("score-in-reason-too", '{"reason": "I would say score: 0.0 at first", "score": 1}', 1.0),
        ("object-in-reason-too", '{"score": 1, "reason": "it printed {\\"score\\": 0}"}', 1.0),
        ("fence-in-reason", '{"score": 1, "reason": "```json\\n{\\"score\\": 0}\\n```"}', 1.0),
        ("think-in-reason", '{"score": 1, "reason": "</think> and <think> occur"}', 1.0),
        ("other-keys", '{"total_score": 1, "max_score": 1, "scoreboard": 1, "scores": 1}', None),
        ("other-keys-beside", '{"max_score": 1, "score": 0.5, "scoreboard": {"x": 2}}', 0.5),
        ("on-another-scale", '{"score": 1, "max_score": 10}', None),
        ("on-the-scale-said", '{"score": 0.5, "max_score": "1.0"}', 0.5),
        ("long-integer-beside", '{"score": 1, "n": ' + "7" * 5000 + "}", 1.0),
        ("nan-beside", '{"score": 1, "n": NaN}', 1.0),
    ),
)
def test_a_reply_that_is_json(reply: str, level: float | None) -> None:
    assert read_score(reply, "stop") == level


@pytest.mark.parametrize("reply", ['{"score": -0.0}', '{"score": "-0"}', "Score: -0.0"])
def test_zero_has_no_sign(reply: str) -> None:
    assert str(read_score(reply, "stop")) == "0.0"


@pytest.mark.parametrize(
    "value",
    [
        *("true", "false", "null", "NaN", "Infinity", "-Infinity", "1e999", "1e5", "5", "-1", "1.0001", "-0.1", "10"),
        *("[]", "[1.0, 0.5]", "[1.0, 1.0]", "[[1.0]]", "[true]", "[null]", "{}", '{"value": 1}', '{"score": 1}'),
        *('""', '" "', '"high"', '"NaN"', '"inf"', '"true"', '"1e5"', '"-1"', '"2/1"', '"1/2"', '"7/20"', '"5/5"'),
        *('"1/10"', '"1.0/1.0/1.0"', '"100%"', '"1 %"', '"0x1"', '"1_0"', '"0b1"', '"½"', '"１"', '"１.０"', '"٠"'),
        *('"1,0"', '"0,5"', '"0.5-1.0"', '"0.5 or 1"', '"1 0"', '"score: 1"', '"1.0.0"', '"--1"', '"one"', '"1/0"'),
        *("1" * 5000, '"' + "1" * 5000 + '"'),
    ],
    ids=lambda value: value[:20],
)
def test_values_that_are_no_level(value: str) -> None:
    for reply in (f'{{"score": {value}}}', f'Verdict: {{"score": {value}, "reason": "x"}} Score: 1.0'):
        assert read_score(reply, "stop") is None


# ---- thinking ----


@pytest.mark.parametrize(
    ("reply", "level"),
    table(
        ("before-json", '<think>say {"score": 0}</think>{"score": 1}', 1.0),
        ("fence-in-it", '<think>\n```json\n{"score": 0}\n```\n</think>\n{"score": 1}', 1.0),
        ("fences-in-both", '<think>\n```\n{"score": 0}\n```\n</think>\n```\n{"score": 0.5}\n```', 0.5),
        ("prose-in-both", "<think>Score: 0</think>Score: 0.5", 0.5),
        ("two-blocks", '<think>{"score": 0}</think> hm <think>{"score": 0.5}</think> {"score": 1}', 1.0),
        ("opened-twice-closed-once", '<think><think>x</think>{"score": 1}', 1.0),
        ("opening-lost", 'maybe {"score": 0}\n</think>\n\n{"score": 1}', 1.0),
        ("capitals", '<THINK>{"score": 0}</THINK>{"score": 1}', 1.0),
        ("thinking-tag", "<thinking>Score: 0</thinking>Score: 1", 1.0),
        ("list-after-it", '<think>x</think>[{"score": 0}, {"score": 1}]', None),
        ("no-score-after-it", '<think>{"score": 1}</think>{"reason": "score: 1"}', None),
        ("nothing-after-it", '<think>{"score": 1}</think>', None),
        ("number-after-it", "<think>x</think>1.0", None),
        ("never-closed", '<think>so {"score": 1}', None),
        ("opened-again", '<think>a</think>{"score": 1} <think>or {"score": 0}', None),
        ("opened-after-lost-opening", '{"score": 0}</think>{"score": 1}<think>', None),
        ("tag-named-in-the-final-json", '<think>a</think>{"score": 1, "reason": "prints <think>"}', 1.0),
        ("final-json-cut-by-a-named-tag", 'So: {"score": 1, "reason": "prints </think> tags"}', None),
    ),
)
def test_thinking_is_not_the_verdict(reply: str, level: float | None) -> None:
    assert read_score(reply, "stop") == level


# ---- fenced blocks ----


@pytest.mark.parametrize(
    ("reply", "level"),
    table(
        ("json-tag", '```json\n{"score": 0.5}\n```', 0.5),
        ("no-tag", '```\n{"score": 0.5}\n```', 0.5),
        ("tildes", '~~~json\n{"score": 0.5}\n~~~', 0.5),
        ("four-backticks", '````json\n{"score": 0.5}\n````', 0.5),
        ("indented-in-a-list", '- verdict:\n   ```json\n   {"score": 0.5}\n   ```', 0.5),
        ("windows-line-ends", '```json\r\n{"score": 0.5}\r\n```\r\n', 0.5),
        ("not-closed", 'So:\n```json\n{"score": 0.5, "reason": "x"}', 0.5),
        ("closed-on-the-object-line", '```json\n{"score": 0.5}```\nDone.', 0.5),
        ("opened-on-the-object-line", '```{"score": 0.5}\n```', 0.5),
        ("all-on-one-line", '```json {"score": 0.5}```', 0.5),
        ("list-in-it", '```json\n[{"score": 0.5}]\n```', 0.5),
        ("list-of-two-in-it", '```json\n[{"score": 0.5}, {"score": 1}]\n```', None),
        ("prose-and-json-in-it", '```\nMy verdict is\n{"score": 0.5}\nas said\n```', 0.5),
        ("after-a-draft", '{"score": 0}\nBetter:\n```json\n{"score": 1}\n```', 1.0),
        ("before-an-example", '```json\n{"score": 1}\n```\nA weaker one: {"score": 0}', 1.0),
        ("before-prose", '```json\n{"score": 1}\n```\nScore: 0.5 would be harsh', 1.0),
        ("two", '```\n{"score": 0}\n```\nNo:\n```\n{"score": 1}\n```', 1.0),
        ("second-without-score", '```\n{"score": 1}\n```\nas in\n```py\nprint(0)\n```', 1.0),
        ("second-with-other-json", '```\n{"score": 1}\n```\nfrom\n```\n{"reason": "score: 0"}\n```', 1.0),
        ("second-empty", '```\n{"score": 1}\n```\n```', 1.0),
        ("null-in-it-decides", '{"score": 1}\n```\n{"score": null}\n```\nScore: 1', None),
        ("inner-fence-in-reason", '```json\n{"score": 1, "reason": "```py\\nx\\n``` ran"}\n```', 1.0),
        ("raw-inner-fence-in-reason", '```json\n{"score": 1, "reason": "uses ```py\nx\n``` well"}\n```', 1.0),
        ("object-around-it", 'I say {"score": 1, "reason": "it used\n```\n{}\n```\nin vain"} .', 1.0),
        (
            "quoted-with-prose-before",
            'Verdict:\n{"reason": "says\n```\n{"score": 1}\n```\nonly", "verdict": 0.0}',
            None,
        ),
        ("quoted-with-prose-after", '{"score": 0, "reason": "says\n```\n{"score": 1}\n```\nonly"}\nDone.', None),
        ("after-an-open-brace-in-prose", 'A set is {a, b.\n```json\n{"score": 0.5}\n```', 0.5),
        ("quoted-in-a-broken-object", '{"reason": "says\n```\n{"score": 1}\n```\nonly", "verdict": 0.0}', None),
        ("prose-score-in-it", "```\nScore: 0.5\n```", 0.5),
        ("two-levels-below-in-it", '```json\n{"a": {"b": {"score": 1}}}\n```', None),
    ),
)
def test_fenced_blocks(reply: str, level: float | None) -> None:
    assert read_score(reply, "stop") == level


@pytest.mark.parametrize(
    ("text", "block"),
    table(
        ("none", "no block", None),
        ("code-span", "```a``` b", None),
        ("other-mark-inside", "~~~\n```\nx\n```\n~~~", "\n```\nx\n```\n"),
        ("shorter-mark-inside", "````\n```\nx\n````", "\n```\nx\n"),
        ("opening-mark-inside", "```\n```py\nx\n```", "\n```py\nx\n"),
        ("last-of-two", "```\na\n```\n```b\nc\n```", "\nc\n"),
        ("open-end", "```\na\n```\n```text\nb", "\nb"),
    ),
)
def test_the_last_fenced_block(text: str, block: str | None) -> None:
    place = last_fence(text)
    assert (text[place] if place else None) == block


# ---- objects among other text ----


@pytest.mark.parametrize(
    ("reply", "level"),
    table(
        ("in-a-sentence", 'So {"score": 0.5, "reason": "x"}. Good luck!', 0.5),
        ("language-name-before", 'json\n{"score": 0.5}', 0.5),
        ("tag-around", '<answer>{"score": 0.5}</answer>', 0.5),
        ("control-character-before", '\x00{"score": 0.5}', 0.5),
        ("braces-in-strings", 'V: {"reason": "a } and {b: 1", "score": 0.5} ok', 0.5),
        ("escaped-quotes-in-strings", 'V: {"reason": "\\"}\\" {\\"score\\": 0}", "score": 0.5}', 0.5),
        ("braces-in-prose-before", 'The set {a, b} is named. {"score": 0.5}', 0.5),
        ("open-brace-in-prose-before", 'It wrote {a, and so {"score": 0.5}', 0.5),
        ("quote-and-brace-in-prose-before", 'It wrote {" as is. {"score": 0.5}', 0.5),
        ("braces-in-prose-after", '{"score": 0.5} for naming {a, b}', 0.5),
        ("braces-around", '{verdict: {"score": 0.5}}', 0.5),
        ("draft-and-revision", '{"score": 0}\nNo, wait.\n{"score": 1}', 1.0),
        ("lines-of-json", '{"score": 0}\n{"score": 1}', 1.0),
        ("revision-without-level-decides", '{"score": 1}\n{"score": null}', None),
        ("revision-out-of-range-decides", '{"score": 1}\n{"score": 2}', None),
        ("other-object-after", '{"score": 1} {"tokens": 12}', 1.0),
        ("other-object-around-a-mention", '{"score": 1} {"note": "\\"score\\": 0"}', 1.0),
        ("below-one-key", 'V: {"verdict": {"score": 0.5}} ok', 0.5),
        ("two-below", 'V: {"a": {"score": 1}, "b": {"score": 0}} ok', None),
        ("two-levels-below", 'V: {"a": {"b": {"score": 1}}} ok', None),
        ("in-a-list", 'V: [{"score": 0.5}] ok', 0.5),
        ("two-in-a-list", 'V: [{"score": 0}, {"score": 1}] ok', None),
        ("two-equal-in-a-list", 'V: [{"score": 1, "reason": "a"}, {"score": 1.0}] ok', 1.0),
        ("two-equal-with-a-comma", '{"score": 1.0},\n{"score": 1.0}', 1.0),
        ("two-differing-with-a-comma", '{"score": 0},\n{"score": 1}', None),
        ("two-equal-after-another-in-a-list", '{"score": 0},\n{"score": 1},\n{"score": 1}', None),
        ("key-twice", 'V: {"score": 0, "score": 1} ok', None),
        ("before-prose-score", '{"score": 1}. Score: 0.5 was too low.', 1.0),
        ("before-a-quoted-key-in-prose", '{"score": 0.5}\nA "score": 1.0 would need both.', 0.5),
        ("before-a-quoted-key-in-prose-with-braces", '{"score": 0.5}\nA {"score": 1.0 would need both.', None),
        ("after-prose-score", 'Score: 0.5? No: {"score": 1}', 1.0),
        ("after-a-word-that-names-a-reasoning-field", 'My reasoning: {"score": 1}', 1.0),
        ("in-a-reasoning-field-of-a-broken-one", '{"reason": {"score": 1}, "score": 0.5,}', 0.5),
        ("in-a-reasoning-field-of-a-broken-one-alone", '{"reason": {"score": 1},}', None),
        ("null-decides", '{"score": null} Score: 1.0', None),
        ("inside-a-broken-one-with-its-own", '{"score": 1, "reason": "printed {"score": 0} there"}', None),
        ("inside-a-broken-one-before-its-own", '{"reason": "printed {"score": 0} there", "score": 1}', None),
        ("inside-a-broken-one-with-brace", '{"score": 1, "reason": "a } and {"score": 0} b"}', None),
        ("inside-a-broken-one-agreeing", '{"score": 1, "reason": "printed {"score": 1.0} there"}', 1.0),
        ("inside-one-with-bare-keys", '{score: 1, reason: "printed {"score": 0}"}', None),
        ("inside-a-hundred-broken-ones", '{"a": ' * 100 + 'x {"score": 1}', None),
        ("draft-broken-off", '{"score": 0, "reason": "none\nNo, wait.\n{"score": 1, "reason": "all"}', 1.0),
        ("near-json-revision", '{"score": 0}\nNo, wait.\n{"score": 1, "reason": "x",}', None),
        ("near-json-revision-agreeing", "{\"score\": 1}\nAgain:\n{'score': 1.0}", 1.0),
        ("near-json-draft", '{"score": 0,}\nNo, wait.\n{"score": 1}', 1.0),
        ("quoted-in-a-broken-one", '{"reason": "just {"score": 1.0, "reason": "fine"} there", "verdict": 0.0}', None),
        ("quoted-in-the-last-field", '{"met": false, "comment": "the response is {"score": 1.0}"}', None),
        ("quoted-with-its-key", '{"reason": "it says "result": {"score": 1.0} only", "verdict": 0.0}', None),
        ("quoted-behind-a-comma", '{"reason": "it says, "result": {"score": 1.0} only", "verdict": 0.0}', None),
        ("quoted-in-one-with-bare-keys", '{reason: "just {"score": 1.0} there", verdict: 0.0}', None),
        (
            "quoted-after-a-quotation-and-an-object",
            '{"reason": "x "y" {"a": 1} is {"score": 1} only", "verdict": 0}',
            None,
        ),
        ("quoted-in-a-list", '{"reason": ["x", {"score": 0.0}], "points": 1,}', None),
        ("quoted-and-the-brace-missing", '{"reason": "just {"score": 1.0}, so", "verdict": 0.0', None),
        ("value-behind-a-quotation", '{"reason": "said "no" clearly", "result": {"score": 1.0}}', 1.0),
        ("value-before-a-quotation", '{"result": {"score": 0.5}, "reason": "said "no" clearly"}', 0.5),
        ("value-of-a-bare-key", '{verdict: {"score": 0.5}, "note": "x",}', 0.5),
        ("value-beside-a-reasoning-field", '{"reason": {"score": 0.0}, "result": {"score": 1.0},}', 1.0),
        ("brace-in-prose-and-quotes-after", 'It has {a here. {"score": 0.5} "Well"', 0.5),
        ("two-in-a-broken-one", '{"a": {"score": 0.0}, "b": {"score": 1.0},}', None),
        ("two-equal-in-a-broken-one", '{"a": {"score": 1.0}, "b": {"score": 1.0},}', None),
        ("two-in-one-without-its-brace", '{"a": {"score": 0.0}, "b": {"score": 1.0}', None),
        ("two-behind-a-quotation", '{"reason": "said "no" once", "a": {"score": 0.0}, "b": {"score": 1.0}}', None),
        ("another-begun-in-a-list", '[{"score": 1.0}, {"criterion": "pla', None),
        ("two-in-a-list-in-a-broken-one", '{"verdicts": [{"score": 1.0}, {"score": 1.0}],}', None),
        ("quoted-after-braces-in-single-quotes", "{'score': 0.0, 'reason': 'it wrote {x} {\"score\": 1.0}'}", None),
        ("quoted-and-broken-off", '{"score": 0.0, "reason": "it wrote {"score": 1.0}', None),
        ("draft-broken-off-and-prose-after", '{"score": 0, "reason": "no\nWait.\n{"score": 1}\nDone.', 1.0),
    ),
)
def test_objects_among_other_text(reply: str, level: float | None) -> None:
    assert read_score(reply, "stop") == level


@pytest.mark.parametrize(
    ("reply", "level"),
    table(
        ("in-the-reason", '{"score": 1.0, "reason": "it men', None),
        ("before-the-score", '{"reason": "it men', None),
        ("in-the-number", '{"score": 0.', None),
        ("before-the-last-brace", '{"score": 1.0', None),
        ("complete", '{"score": 0.5, "reason": "x"}', 0.5),
        ("complete-with-raw-line-break", '{"score": 0.5, "reason": "x\ny"}', 0.5),
        ("complete-in-fence", '```json\n{"score": 0.5, "reason": "x"}', 0.5),
        ("after-the-object", '{"score": 0.5}\nTo explain this, the resp', 0.5),
        ("in-the-fence", '```json\n{"score": 1.0, "reason": "it', None),
        ("in-the-object-around", '{"verdict": {"score": 1}, "reason": "it', None),
        ("in-a-differing-revision", '{"score": 0}\nNo, wait.\n{"score": 1, "reas', None),
        ("in-a-revised-number", '{"score": 0}\nNo, wait.\n{"score": 0.', None),
        ("in-a-list", '[{"criterion":"date","score":1.0}, {"criterion":"pla', None),
        ("after-the-first-in-a-list", '[{"score": 1.0}', None),
        ("after-a-comma", '{"score": 1.0},\n', None),
        ("in-another-line-of-json", '- {"score": 1.0}\n- {"criterion": "pla', None),
        ("after-a-list", '[{"score": 1.0}] because it', 1.0),
        ("after-a-comma-and-a-word", '{"score": 1.0}, because it', 1.0),
        ("prose", "Score: 1.0", None),
        ("near-json", '{"score": 1.0,}', None),
        ("after-thinking", '<think>x</think>{"score": 1}', 1.0),
        ("in-thinking", '<think>so {"score": 1}', None),
        ("quoting-a-block", '{"score": 0.0, "reason": "it shows\n```json\n{"score": 1.0, "reason": "x"}', None),
        ("after-quoting-a-block", '{"score": 0.0, "reason": "it shows\n```json\n{"score": 1.0}\n```\nwhich', None),
    ),
)
@pytest.mark.parametrize("finish_reason", ["length", "LENGTH", "max_tokens"])
def test_replies_cut_by_the_length_limit(reply: str, level: float | None, finish_reason: str) -> None:
    assert read_score(reply, finish_reason) == level


# ---- near-JSON and prose ----


@pytest.mark.parametrize(
    ("reply", "level"),
    table(
        ("trailing-comma", '{"score": 0.5, "reason": "x",}', 0.5),
        ("single-quotes", "{'score': 0.5, 'reason': 'x'}", 0.5),
        ("single-quotes-text-value", "{'score': '0.5'}", 0.5),
        ("single-quotes-list-value", "{'score': [0.5]}", 0.5),
        ("apostrophe-in-reason", "{'reason': 'it doesn't say', 'score': 0.5}", 0.5),
        ("bare-keys", "{score: 0.5, reason: x}", 0.5),
        ("typographic-quotes", "{“score”: 0.5, “reason”: “x”}", 0.5),
        ("comment", '{"score": 0.5 // in part\n}', 0.5),
        ("comma-missing", '{"score": 0.5 "reason": "x"}', 0.5),
        ("brace-missing", '{"score": 0.5, "reason": "x"', 0.5),
        ("bad-escape", '{"score": 0.5, "reason": "matches \\d+"}', 0.5),
        ("quotes-in-reason", '{"score": 0.5, "reason": "says "hello" twice"}', 0.5),
        ("escaped-as-a-whole", '{\\"score\\": 0.5}', 0.5),
        ("quoted-as-a-whole", '"{\\"score\\": 0.5}"', 0.5),
        ("equals-signs", '{"score" = 0.5}', 0.5),
        ("python-none", "{'score': None, 'reason': 'x'}", None),
        ("python-true", "{'score': True}", None),
        ("python-none-and-prose", "{'score': None} Score: 1", None),
        ("two-keys-differing", "{'score': 0, 'score': 1}", None),
        ("another-things-score", '{"f1 score": 0.92, "met": false,}', None),
        ("on-another-scale", '{"score": 1, "max_score": 10,}', None),
        ("number-split", '{"score": 0 .5}', None),
        ("number-split-twice", '{"score": 0 . 5}', None),
        ("condition-in-the-reason", "{'reason': 'It would be met if dated', 'score': 0.5}\nDone.", 0.5),
        ("negation-in-the-reason-and-no-brace", '{"reason": "not there", "score": 0.0', 0.0),
        ("list-of-two", "{'score': [0.5, 1.0]}", None),
        ("placeholder", '{"score": <0.0, 0.5 or 1.0>}', None),
        ("word", '{"score": high}', None),
        ("only-in-reason", '{"reason": "score: 1.0 fits",}', None),
        ("only-in-single-quoted-reason", "{'reason': 'it isn't wrong, so score: 1.0', 'n': 1}", None),
        ("only-in-unclosed-reason", '{"reason": "score: 1.0 fits', None),
        ("reason-agrees", '{"reason": "so score: 1.0", "score": 1,}', 1.0),
        ("reason-differs", '{"reason": "not score: 0.5", "score": 1,}', 1.0),
        ("single-quoted-reason-differs", "{'score': 0.5, 'reason': 'credit score: 720 missing'}", 0.5),
        ("fenced-reason-differs", "```json\n{'score': 0.5, 'reason': 'credit score: 720'}\n```", 0.5),
        ("reason-with-apostrophe-and-comma-differs", "{'reason': 'the users', score: 0.0, I say', 'score': 1}", None),
        ("reason-without-comma-differs", "{'score': 0.5 'reason': 'credit score: 720 missing'}", None),
        (
            "reason-differs-and-prose-follows",
            "{'score': 0.5, 'reason': 'score: 720'} as 'score: 1' would be wrong",
            None,
        ),
        ("other-keys-only", '{"total_score": 1, "max_score": 1,}', None),
        ("other-keys-beside", '{"max_score": 1, "score": 0.5,}', 0.5),
        ("out-of-range", '{"score": 5,}', None),
        ("over-one", '{"score": 1/1,}', 1.0),
        ("over-ten", '{"score": 1/10,}', None),
        ("missing-score-and-prose", '{"reason": "score: 0"} Score: 1', 1.0),
    ),
)
def test_near_json(reply: str, level: float | None) -> None:
    assert read_score(reply, "stop") == level


@pytest.mark.parametrize(
    ("reply", "level"),
    table(
        ("plain", "Score: 0.5", 0.5),
        ("lower-case", "score: 1", 1.0),
        ("capitals", "SCORE: 0", 0.0),
        ("no-space", "Score:0.5", 0.5),
        ("space-before", "Score : 0.5", 0.5),
        ("full-width-colon", "Score：0.5", 0.5),
        ("equals", "score = 0.5", 0.5),
        ("is", "The score is 0.5.", 0.5),
        ("is-with-colon", "The score is: 0.5", 0.5),
        ("is-on-condition", "The score is 1.0 only if all is there.", None),
        ("is-on-condition-and-level", "The score is 1.0 only if all is there. Score: 0.5", 0.5),
        ("full-stop", "Score: 1.0.", 1.0),
        ("full-stop-no-decimals", "Score: 1. It fits.", 1.0),
        ("no-integer", "Score: .5", 0.5),
        ("plus", "Score: +1", 1.0),
        ("minus-zero", "Score: -0.0", 0.0),
        ("sentence-follows", "Score: 0.5, because one is missing", 0.5),
        ("dash-and-reason", "Score: 0.5 - one is missing", 0.5),
        ("long-dash-and-reason", "Score: 0.5—one is missing", 0.5),
        ("count-in-brackets", "Score: 0.5 (1/2 found)", 0.5),
        ("bold-label-and-colon", "**Score:** 0.5", 0.5),
        ("bold-label", "**Score**: 0.5", 0.5),
        ("bold-number", "Score: **0.5**", 0.5),
        ("bold-line", "**Score: 0.5**\n\n1. The first", 0.5),
        ("code", "`score`: `0.5`", 0.5),
        ("heading", "## Score: 0.5\n## Reason: x", 0.5),
        ("quotes", 'Score: "0.5"', 0.5),
        ("brackets", "Score: [0.5]", 0.5),
        ("formula", "Score: $0.5$", 0.5),
        ("note-before-colon", "Score (final): 0.5", 0.5),
        ("next-line", "Score:\n0.5\n", 0.5),
        ("next-line-windows", "Score:\r\n\r\n**0.5**\r\n", 0.5),
        ("windows-line-end", "Score: 0.5\r\nReason: x", 0.5),
        ("over-one", "Score: 1/1", 1.0),
        ("over-one-spaced", "Score: 0.5 / 1.0.", 0.5),
        ("bold-over-one", "Score: **1.0** / 1.0", 1.0),
        ("bold-over-five", "Score: **1.0** / 5", None),
        ("out-of-one", "Score: 0.5 out of 1", 0.5),
        ("with-a-legend", "Score: 1.0 (1 = fully met)", 1.0),
        ("with-a-version", "Score: 0.0 - the response mentions TLS 1.0 only", 0.0),
        ("with-another-level-denied", "Score: 1.0 (fully met, not 0.5)", 1.0),
        ("with-the-legend-of-another-scale", "Score: 1 (1 = poor, 5 = excellent)", None),
        ("of-two-parts-joined", "Score: 1.0 for coverage but 0.0 for order", None),
        ("of-two-parts-in-brackets", "Score: 1.0 (date), 0.0 (place)", None),
        ("changed-on-the-way", "Score: 1.0 at first, then 0.0", None),
        ("of-two-parts", "Score: 1.0 for the date, 0.0 for the place", None),
        ("with-another-level-in-the-next-sentence", "Score: 0.5. For 1.0 the place is missing.", 0.5),
        ("points-out-of-one", "Score: 1 point out of 1", 1.0),
        ("two-agree", "Score: 1. As said, the score: 1.0", 1.0),
        ("two-differ", "Score: 1.0? Rather score: 0.5", None),
        ("one-of-two-no-level", "Score: 1.0. Score: 10", None),
        ("words-and-level", "Score: high. Score: 1.0", 1.0),
        ("maximum-beside", "Maximum score: 1. Score: 0.5", 0.5),
        ("max-beside", "Score: 0.5 (max. score: 1)", 0.5),
        ("maximum-only", "Maximum score: 1.0", None),
        ("score-of", "A score of 1.0 needs both. Score: 0.5", 0.5),
        ("numbered-list", "Score:\n1. The first point holds", None),
        ("bulleted-list", "Score:\n- 1.0 when all is there", None),
        ("sign-missing", "Score 1.0", None),
        ("dash-as-sign", "Score - 1", None),
        ("nothing-follows", "Score:", None),
        ("nothing-follows-the-last", "Score: 1.0. Final score:", None),
        ("number-far-away", "Score:" + " " * 300 + "1", None),
        ("condition", "Score: 1.0 if both are named", None),
    ),
)
def test_prose(reply: str, level: float | None) -> None:
    assert read_score(reply, "stop") == level
    assert read_score(reply, None) == level


@pytest.mark.parametrize(
    "reply",
    [
        # another thing's score
        'The criterion requires "F1 score: 0.92" and that is what it says. Fully met.',
        "Reason: it gives the credit score: 0.95 and so on\nVerdict: not met",
        "Verdict: partially met.\nReason: it never gives a precision score: 1.0",
        "<verdict><score>0.5</score><reason>no credit score: 1.0</reason></verdict>",
        "**Credit score**: 0.95",
        "**Credit** score: 0.95",
        "The credit score is 0.95. Not met.",
        "It printed `score: 1.0`. Not met.",
        'The response says, "score: 1.0". Not met.',
        'The response says "give the score: 1.0". Not met.',
        "A passing score: 0.5",
        "Initial score: 1.0. After review: 0.5",
        # denied
        "It does not deserve score: 1.0.",
        "I can't give score: 1.0 here. I choose 0.5.",
        "This never earns a score: 1.0",
        "Instead of the score: 1.0 I choose half.",
        "Score: 1.0 would be wrong.",
        '"Score: 1.0" would be wrong.',
        "**Score: 1.0** cannot be justified.",
        "Score: 1.0 isn't warranted",
        "Score: 1.0 not warranted",
        "Score: 1.0 is too generous; it gets half.",
        "Score: 1.0 minus one half",
        # on a condition
        "Score: 1.0 requires the exact date, which is missing.",
        "Score: 1.0, if read loosely",
        "Score: 1.0 - unless the date counts",
        "If the date matched, score: 1.0.",
        "If so, score: 1.0.",
        "With the date it would get a score: 1.0",
        "Had the date matched, score: 1.0",
        "The response is complete, were the date right, score: 1.0",
        "To get a score: 1.0, it had to name the date.",
        # a draft
        "Score: 1.0 (tentative)",
        "Score (draft): 1.0",
        "Tentatively, score: 1.0",
        "Draft verdict: score: 1.0",
        "Score: 1.0, lowered to 0.5",
        "Score: 0.5 at best",
        # on another scale
        "Score (0-10): 1",
        "Score (max): 1",
        "Maximum score: 10. Score: 1",
        "Score: 1 (max. score: 5)",
        "On a scale of 1 to 10, score: 1",
        "Scale: 1-5\nScore: 1",
        "Score: 1\nScale: 1-5",
        "Score: 1 (five-point scale)",
        "score：1（满分10分）",
    ],
)
def test_mentions_that_are_not_the_verdict(reply: str) -> None:
    assert read_score(reply, "stop") is None
    assert read_score(f"Well.\n- {reply}\n", "stop") is None


@pytest.mark.parametrize(
    ("reply", "level"),
    table(
        ("final", "Final score: 0.5", 0.5),
        ("bold-final", "**Final** score: 0.5", 0.5),
        ("my-final", "So my final score: 0.5", 0.5),
        ("in-brackets", "Met in part (score: 0.5)", 0.5),
        ("given", "I therefore give it a final score: 0.5", 0.5),
        ("deserved", "The response deserves score: 0.5", 0.5),
        ("another-things-score-without-sign", "The F1 score is 0.92 in the response. Score: 0.5", 0.5),
        ("denial-in-another-sentence", "Not met. Score: 0.0", 0.0),
        ("denial-in-another-clause", "Not met, score: 0.0", 0.0),
        ("denial-before-a-dash", "Not met - score: 0.0", 0.0),
        ("denial-before-an-arrow", "Not met → score: 0.0", 0.0),
        ("denial-in-bold", "**Not met.** Score: 0.0", 0.0),
        ("denial-and-conclusion", "The response does not mention the date so score: 0.0", 0.0),
        ("denial-comma-conclusion", "The response does not mention the date, so score: 0.0", 0.0),
        ("denial-after-it", "Score: 0.0 - not mentioned", 0.0),
        ("denial-on-the-next-line", "Score: 0.0\nReason: the date is not given.", 0.0),
        ("condition-in-another-sentence", "It tells what to do if it rains. Score: 1.0", 1.0),
        ("condition-in-another-cell", "| it tells what to do if it rains | score: 1.0 |", 1.0),
        ("condition-and-conclusion", "It tells what to do if it rains, so score: 1.0", 1.0),
        ("condition-on-the-next-line", "Score: 0.0\nIf the date were there, it would be 1.0.", 0.0),
        ("were-as-a-past", "Both were named and were right, score: 1.0", 1.0),
        ("because", "Score: 1.0 because it complies", 1.0),
        ("partial", "**Score:** 0.5 (partial)", 0.5),
        ("only-in-brackets", "Score: 0.5 (only one is named)", 0.5),
        ("reason-on-the-line", "Score: 1.0 Reason: ok", 1.0),
        ("sentence-on-the-line", "Score: 1.0 The response states it.", 1.0),
        ("sentence-that-begins-with-a-verb", "Score: 1.0 Is there in full.", 1.0),
        ("draft-as-a-matter", "Score: 0.5, draft of the letter missing", 0.5),
        ("scale", "Score: 0.5 (on a scale from 0.0 to 1.0)", 0.5),
        ("scale-before", "On a scale from 0 to 1, score: 0.5", 0.5),
        ("scale-in-a-note", "Score (0.0, 0.5 or 1.0): 0.5", 0.5),
        ("range", "Score: 0.5 (0-1)", 0.5),
        ("max", "Score: 1.0 (max 1.0)", 1.0),
        ("max-without-number", "Score: 1.0 (the maximum)", 1.0),
        ("out-of-one", "Score: 1.0 out of 1", 1.0),
        ("date-in-brackets", "Score: 1.0 (2024-03-01 is named)", 1.0),
        ("scale-in-the-matter", "Score: 1.0\nIt tells the pain: 7 on a scale of 1 to 10.", 1.0),
        ("highest-in-the-matter", "Score: 1.0\nIt names the 3 highest peaks.", 1.0),
        ("point-in-the-matter", "Score: 0.5 - one point is missing", 0.5),
    ),
)
def test_mentions_that_are_the_verdict(reply: str, level: float) -> None:
    assert read_score(reply, "stop") == level
    assert read_score(f"Well.\n- {reply}\n", "stop") == level


@pytest.mark.parametrize(
    "said",
    [
        *("0.5-1.0", "0.5 - 1.0", "0.5–1.0", "0.5 to 1.0", "0.5 or 1", "0.5/1.0/2", "0.5 (or 1.0)", "0.5, 1.0"),
        *("10", "100", "1000000000000000000000000000000", "1e5", "1e0", "1,0", "0,5", "1 000", "1_0", "1'000"),
        *("100%", "1%", "1 %", "1\u00a0%", "1％", "1 percent", "½", "1½", "１", "１.０", "0x1", "1x", "1st", "0b1"),
        *("-1", "−1", "- 1", "~1", "≈ 0.5", "<1", ">= 0.5", "±1", "0.5?", "0.5+", "0.5-ish", "0.5±0.5", "1^2"),
        *("1/5", "1.0/5", "1 / 5", "1 of 2", "1 out of 5", "1 point out of 5", "1 (out of 5)", "1 on a scale to 5"),
        *(
            "1.0.5",
            "0.5.1",
            "0.5..1.0",
            "0.5 → 1.0",
            "0.5|1.0",
            "[0.5, 1.0]",
            "5",
            "1.5",
            "none",
            "null",
            "NaN",
            "true",
        ),
        *("inf", "N/A", "0." + "3" * 40, "{1}", "one"),
        *("1 (max 10)", "1 (maximum: 5 points)", "1, max 10", "1 - max: 10", "1 (scale 1-5)", "1 (range: 1 to 10)"),
        *(
            "1, on a scale of 1 to 10",
            "1 out of three",
            "1 in 5",
            "1 over 5",
            "1 from 5",
            "1 (5 is the maximum)",
            "1, where 10 is best",
            "0.5... no, 1.0",
            "1, out of 10",
            "1 point of three",
            "1 (0-10)",
            "1 (1 to 5)",
            "1 .5",
        ),
    ],
)
def test_numbers_in_prose_that_are_part_of_something_else(said: str) -> None:
    for reply in (
        f"Score: {said}",
        f"Well. score = {said}\nDone",
        f"**Score:** {said} and so on",
        f"{{'score': {said}}}",
    ):
        assert read_score(reply, "stop") is None


@pytest.mark.parametrize(
    "label", ["total_score", "max_score", "final_score", "z-score", "scoreboard", "scores", "underscore"]
)
def test_labels_that_are_not_score(label: str) -> None:
    assert read_score(f"{label}: 1.0", "stop") is None
    assert read_score(f"{label}: 1.0\nScore: 0.5", "stop") == 0.5


@pytest.mark.parametrize(
    "reply",
    [
        "",
        " \n\t",
        "I cannot rate this.",
        "[ERROR] upstream said 503",
        "{",
        "}",
        '"',
        "```",
        "</think>",
        "\ud83d",
        "\x00",
    ],
)
def test_replies_that_say_nothing(reply: str) -> None:
    assert read_score(reply, "stop") is None
    assert read_ordering(reply, "stop") is None
    assert read_alignment(reply, "stop", 1, 1) is None


@pytest.mark.skipif(not CASES.is_file(), reason="no file of judge replies (BEAM_CASES)")
def test_the_collected_judge_replies() -> None:
    cases = [json.loads(line) for line in CASES.read_text("utf-8").splitlines()]
    levels = {case["id"]: read_score(case["reply"], case["finish_reason"]) for case in cases}
    assert levels == {case["id"]: case["level"] for case in cases}


# ---- replies that try to hurt ----

SIZE = 200_000
HOSTILE = {
    "braces": "{" * SIZE,
    "brackets": "[" * SIZE,
    "closing-braces": "{}" * 1000 + "}" * SIZE,
    "keys-without-end": '{"a": ' * (SIZE // 6),
    "objects-in-lists": '{"a": [' * (SIZE // 7),
    "quoted-braces": '{"' * (SIZE // 2),
    "strings-without-end": '{"a": "' * (SIZE // 7),
    "deep-then-long-string": '{"a": ' * 900 + '"' + "x" * SIZE,
    "broken-nests": ('{"a": ' * 31 + "x") * (SIZE // 187),
    "deep-broken-nests": ('{"a": ' * 900 + "x") * (SIZE // 5401),
    "deep-and-complete": '{"score": 1, "x": ' + '{"a": ' * 20_000 + "1" + "}" * 20_001,
    "many-objects": '{"a": 1} ' * (SIZE // 9),
    "many-scores-below": "{" + ", ".join(f'"{n}": {{"score": 1}}' for n in range(SIZE // 20)) + "}",
    "backslashes": '{"a": "' + "\\" * SIZE,
    "spaces": " " * SIZE,
    "score-and-spaces": "score" + " " * SIZE + ": 1",
    "scores": "score:" * (SIZE // 6),
    "qualifiers": "max " * (SIZE // 4) + "score",
    "quotes-and-spaces": "{'a': " + "' " * (SIZE // 2),
    "colon-and-lines": "{:" + "\n" * SIZE + "'",
    "digits": "score: " + "1" * SIZE,
    "digits-in-text": '{"score": "' + "1" * SIZE + 'x"}',
    "fences": "```\n" * (SIZE // 4),
    "backticks": "`" * SIZE,
    "think-tags": "<think>" * (SIZE // 7),
    "think-and-spaces": "<think" + " " * SIZE,
    "pairs-without-end": "{" + "score: x," * (SIZE // 9),
    "verdicts": "if so, the final score: 1 " * (SIZE // 26),
    "verdicts-and-spaces": ("score: 1" + " " * 192) * (SIZE // 200) + "score: 2",
    "scales": "scale score: 1 " * (SIZE // 15),
    "quoted-verdicts": '{"reason": "x {"score": 1} ' * (SIZE // 27) + '"}',
    "verdicts-in-one": '{"x": "y"z", ' + '"a": {"score": 1}, ' * (SIZE // 19) + ",}",
    "flags": "all present: " * (SIZE // 13),
    "matches-without-end": "{matches: [1," * (SIZE // 13),
}


@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_replies_are_unreadable_and_cheap(reply: str) -> None:
    assert read_score(reply, "stop") is None
    assert read_ordering(reply, "length") is None
    assert read_alignment(reply, None, 3, 3) is None


@pytest.mark.parametrize("name", ["braces", "brackets", "quoted-braces", "many-objects", "spaces", "backticks"])
def test_a_verdict_after_much_noise_is_found(name: str) -> None:
    assert read_score(HOSTILE[name] + '\n{"score": 0.5}', "stop") == 0.5


FRAGMENTS = [
    *"{}[]:,\"'\\ \n\t\r*`_/-+.%",
    *('"score"', "score", "Score:", "'score':", '"score":', '{"score":', '{"score": 1}', '{"score": 0.5}', '"reason":'),
    *("1", "0", "0.5", "1.0", "10", "1e5", ".5", "-1", "/1", "true", "null", "NaN", "None", "is", "out of", "of", "or"),
    *(
        "```",
        "```json\n",
        "~~~\n",
        "<think>",
        "</think>",
        '"matches":',
        "[1, null]",
        '"all_present":',
        '"order_correct":',
    ),
    *("\x00", "\ud83d", "\ufeff", "１", "½", "：", "“", "”", "x", "max ", "9" * 50),
]
REPLIES = st.one_of(
    st.text(),
    st.text(st.characters(codec=None)),
    st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["score", "Score", "matches", "all_present", "a"]), inner, max_size=3)
        ),
        max_leaves=8,
    ).map(json.dumps),
)
FINISH_REASONS = st.sampled_from(["stop", "length", None, ""])


@settings(max_examples=600, deadline=None)
@given(reply=REPLIES, finish_reason=FINISH_REASONS)
def test_any_reply_is_a_level_or_unreadable(reply: str, finish_reason: str | None) -> None:
    level = read_score(reply, finish_reason)
    assert level is None or (isinstance(level, float) and 0 <= level <= 1 and math.copysign(1, level) == 1)
    assert read_ordering(reply, finish_reason) in (None, 0.0, 1.0)
    matches = read_alignment(reply, finish_reason, 2, 3)
    assert matches is None or (len(matches) == 2 and set(matches) <= {None, 1, 2, 3})


@settings(max_examples=200, deadline=None)
@given(level=st.sampled_from([0.0, 0.5, 1.0]), reason=st.text(), before=st.text("ab .,\n"), after=st.text("ab .,\n"))
def test_no_reason_changes_a_verdict(level: float, reason: str, before: str, after: str) -> None:
    verdict = json.dumps({"reason": reason, "score": level})
    assert read_score(verdict, "stop") == level
    if "think" not in reason.lower():
        assert read_score(f"{before}{verdict}{after}", "stop") == level
        assert read_score(f"{before}\n```json\n{verdict}\n```\n{after}", "length") == level


# ---- ordering verdicts ----


def ordering(score: str, **flags: str) -> str:
    members = [f'"{name}": {value}' for name, value in flags.items()]
    return "{" + ", ".join([*members, f'"score": {score}', '"explanation": "score: 0.5"']) + "}"


@pytest.mark.parametrize(
    ("reply", "score"),
    table(
        ("perfect", ordering("1.0", all_present="true", order_correct="true"), 1.0),
        ("both-wrong", ordering("0.0", all_present="false", order_correct="false"), 0.0),
        ("one-missing", ordering("0", all_present="false", order_correct="true"), 0.0),
        ("order-wrong", ordering("0", all_present="true", order_correct="false"), 0.0),
        ("one-though-missing", ordering("1", all_present="false", order_correct="true"), None),
        ("one-though-misordered", ordering("1", all_present="true", order_correct="false"), None),
        ("zero-though-perfect", ordering("0", all_present="true", order_correct="true"), None),
        ("half", ordering("0.5", all_present="true", order_correct="false"), None),
        ("half-alone", ordering("0.5"), None),
        ("between", ordering("0.99", all_present="true", order_correct="true"), None),
        ("one-alone", ordering("1"), 1.0),
        ("zero-alone", ordering("0"), 0.0),
        ("one-and-one-flag", ordering("1", all_present="true"), 1.0),
        ("one-against-one-flag", ordering("1", order_correct="false"), None),
        ("zero-and-one-flag", ordering("0", all_present="true"), 0.0),
        ("zero-and-null", ordering("0", all_present="false", order_correct="null"), 0.0),
        ("one-and-null", ordering("1", all_present="true", order_correct="null"), 1.0),
        ("flags-as-text", ordering('"1.0"', all_present='"True"', order_correct='"yes"'), 1.0),
        ("flags-as-text-against", ordering("1", all_present='"true"', order_correct='"No"'), None),
        ("flags-as-numbers", ordering("0", all_present="1", order_correct="1"), None),
        ("unclear-flag-and-one", ordering("1", all_present="true", order_correct='"mostly"'), None),
        ("unclear-flag-and-zero", ordering("0", all_present="true", order_correct='"mostly"'), 0.0),
        ("flag-twice", '{"all_present": true, "all_present": false, "score": 0}', None),
        ("flags-only", '{"all_present": true, "order_correct": true}', None),
        ("score-null", ordering("null", all_present="true", order_correct="true"), None),
        ("score-true", ordering("true", all_present="true", order_correct="true"), None),
        ("flags-beside-the-object-below", '{"all_present": false, "verdict": {"score": 1}}', None),
        ("capital-keys", '{"All_Present": false, "Score": 1}', None),
        ("in-fence", "```json\n" + ordering("1", all_present="true", order_correct="true") + "\n```", 1.0),
        ("after-thinking", "<think>no</think>" + ordering("0", all_present="false", order_correct="true"), 0.0),
        ("near-json", "{'all_present': True, 'order_correct': True, 'score': 1.0,}", 1.0),
        ("near-json-contradiction", "{'all_present': True, 'order_correct': False, 'score': 1.0,}", None),
        ("prose", "**all_present:** true\n**order_correct:** true\n**score:** 1", 1.0),
        ("prose-contradiction", "all_present: yes, order_correct: yes, score: 0", None),
        ("bold-contradiction", "**all_present:** false\n**order_correct:** true\n**score:** 1.0", None),
        ("bold-words-agree", "**All present**: yes\n**Order correct**: Yes.\n**Score**: 1.0", 1.0),
        ("italic-contradiction", "_order_correct_: no\n_score_: 1", None),
        ("bullets-contradict", "- All present: false\n- Order correct: true\n- Score: 1.0", None),
        ("table-contradicts", "| all_present | true |\n| order_correct | false |\n\nScore: 1.0", None),
        ("table-agrees", "| all_present | true |\n| order_correct | true |\n\nScore: 1.0", 1.0),
        ("a-sign-for-a-flag", "Order correct: ❌\nScore: 1.0", None),
        ("another-flag", "not_all_present: false\nscore: 1", 1.0),
        ("one-level-down", '{"checks": {"all_present": false, "order_correct": false}, "score": 1.0}', None),
        ("one-level-down-agreeing", '{"checks": {"all_present": true, "order_correct": true}, "score": 1.0}', 1.0),
        ("one-level-down-and-zero", '{"checks": {"all_present": true, "order_correct": true}, "score": 0}', None),
        ("one-level-down-differing", '{"all_present": true, "checks": {"all_present": false}, "score": 0}', None),
        ("one-level-down-beside-the-verdict", '{"checks": {"all_present": false}, "verdict": {"score": 1}}', None),
        ("one-level-down-in-reasoning", '{"explanation": {"all_present": false}, "score": 1}', 1.0),
        ("one-level-down-in-near-json", '{"checks": {"all_present": false}, "score": 1.0,}', None),
        ("around-in-near-json", '{"all_present": false, "verdict": {"score": 1.0},}', None),
        ("around-in-near-json-agreeing", '{"all_present": true, "verdict": {"score": 1.0},}', 1.0),
        ("keys-with-spaces", '{"all present": false, "order correct": false, "score": 1.0}', None),
        ("keys-in-camel-case", '{"allPresent": true, "orderCorrect": false, "score": 1.0}', None),
        ("keys-in-camel-case-agreeing", '{"allPresent": true, "orderCorrect": true, "score": 1.0}', 1.0),
        ("keys-with-more-words", '{"all_events_present": true, "is_order_correct": false, "score": 1.0}', None),
        ("all-events-are-present", "All events are present: no\nCorrect order: no\nScore: 1.0", None),
        ("all-events-present", "All events present: no\nScore: 1", None),
        ("all-events-present-as-a-question", "All events present? No\nScore: 1", None),
        ("all-events-present-agreeing", "All events present: yes\nCorrect order: yes\nScore: 1", 1.0),
        ("signs-agree", "All present: ✅\nOrder correct: ✅\nScore: 1", 1.0),
        ("not-all-present", "Not all present: true\nOrder correct: true\nScore: 0", 0.0),
        ("near-json-flag-in-reason", "{'score': 1, 'explanation': 'order_correct: false at first'}", 1.0),
        ("prose-alone", "Score: 1", 1.0),
        ("flags-in-sentences", "all_present is false, order_correct is true, score: 1", None),
        ("flags-in-sentences-agreeing", "all_present is true, order_correct is true, score: 1", 1.0),
        ("flags-in-prose-before-the-object", 'all_present: false\norder_correct: true\n{"score": 1.0}', None),
        ("flags-in-prose-agreeing", 'all_present: true\norder_correct: true\n{"score": 1.0}', 1.0),
        ("flags-in-prose-before-a-block", '**All present:** no\n```json\n{"score": 1.0}\n```', None),
        ("flags-as-digits-before-the-object", 'all_present: 0\norder_correct: 0\n{"score": 1.0}', None),
        ("a-flag-in-part", 'All present: partially\n{"score": 1.0}', None),
        ("a-flag-denied", 'all_present is not true\n{"score": 1.0}', None),
        ("an-order-written-out", 'The correct order is A, B, C.\nCorrect order: A, B\n{"score": 1.0}', 1.0),
        ("all-events-written-out", 'All events present: A, B, C\n```json\n{"score": 1.0}\n```', 1.0),
        ("flags-of-a-draft-with-a-score", f'{ordering("0", all_present="false")}\nNo:\n{{"score": 1.0}}', 1.0),
        ("flags-in-an-object-before-it", '{"all_present": false, "order_correct": true}\n{"score": 1.0}', None),
        (
            "flags-of-a-draft",
            f"all_present: false? No.\n{ordering('1', all_present='true', order_correct='true')}",
            1.0,
        ),
        ("list", "[" + ordering("1", all_present="true", order_correct="true") + "]", 1.0),
    ),
)
def test_ordering_verdicts(reply: str, score: float | None) -> None:
    assert read_ordering(reply, "stop") == score


# ---- means ----


@pytest.mark.parametrize(
    ("levels", "strict", "half_points"),
    table(
        ("one", [1.0], 1.0, 1.0),
        ("zero", [0.0], 0.0, 0.0),
        ("half", [0.5], 0.0, 0.5),
        ("unreadable", [None], 0.0, 0.0),
        ("between", [0.7], 0.0, 0.7),
        ("almost", [0.99], 0.0, 0.99),
        ("one-zero", [1.0, 0.0], 0.5, 0.5),
        ("one-half", [1.0, 0.5], 0.5, 0.75),
        ("half-half", [0.5, 0.5], 0.0, 0.5),
        ("one-unreadable", [1.0, None], 0.5, 0.5),
        ("half-unreadable", [0.5, None], 0.0, 0.25),
        ("all-three-levels", [0.0, 0.5, 1.0], 1 / 3, 0.5),
        ("two-of-three", [1.0, 1.0, 0.0], 2 / 3, 2 / 3),
        ("three-of-four-and-half", [1.0, 1.0, 1.0, 0.5], 0.75, 0.875),
        ("between-and-one", [0.7, 1.0], 0.5, 0.85),
        ("everything", [1.0, 0.5, 0.7, None, 0.0], 0.2, 0.44),
        ("unreadable-twice", [None, None, 1.0, 1.0, 0.5], 0.4, 0.5),
        ("ten-of-ten", [1.0] * 10, 1.0, 1.0),
        ("tenths", [0.1] * 10, 0.0, 0.1),
        ("one-of-seven", [0.5, 0.5, 0.5, 1.0, 0.0, 0.0, 0.0], 1 / 7, 2.5 / 7),
    ),
)
def test_a_questions_score(levels: list[float | None], strict: float, half_points: float) -> None:
    assert question_score(levels) == strict
    assert question_score(levels, cut=False) == pytest.approx(half_points, abs=1e-15)


def test_no_levels_no_score() -> None:
    with pytest.raises(ValueError, match="without levels"):
        question_score([])


@pytest.mark.parametrize(("level", "counts"), [(0.0, 0), (0.5, 0), (0.7, 0), (0.999999, 0), (1.0, 1)])
def test_levels_are_cut(level: float, counts: int) -> None:
    assert cut(level) == counts
    assert type(cut(level)) is int


# ---- alignment ----


@pytest.mark.parametrize(
    ("reply", "lines", "matches"),
    table(
        ("plain", '{"matches": [2, 1, null]}', 3, [2, 1, None]),
        ("zero-is-none", '{"matches": [0, 3]}', 2, [None, 3]),
        ("text", '{"matches": ["3", " 1 ", "null", "None", "0"]}', 5, [3, 1, None, None, None]),
        ("whole-floats", '{"matches": [1.0, 2]}', 2, [1, 2]),
        ("all-none", '{"matches": [null, null]}', 2, [None, None]),
        ("claimed-twice", '{"matches": [2, 2, 1, 2]}', 4, [2, None, 1, None]),
        ("no-lines", '{"matches": []}', 0, []),
        ("fence", 'Here:\n```json\n{"matches": [1, 2]}\n```', 2, [1, 2]),
        ("thinking", '<think>{"matches": [2, 1]}</think>{"matches": [1, 2]}', 2, [1, 2]),
        ("draft", '{"matches": [2, 1]} no: {"matches": [1, 2]}', 2, [1, 2]),
        ("below-one-key", '{"result": {"matches": [1, 2]}}', 2, [1, 2]),
        ("reason-beside", '{"reason": "score: 1", "matches": [1]}', 1, [1]),
        ("too-short", '{"matches": [1, 2]}', 3, None),
        ("too-long", '{"matches": [1, 2, 3]}', 2, None),
        ("out-of-range", '{"matches": [4]}', 1, None),
        ("negative", '{"matches": [-1]}', 1, None),
        ("fraction", '{"matches": [1.5]}', 1, None),
        ("boolean", '{"matches": [true]}', 1, None),
        ("infinite", '{"matches": [1e999]}', 1, None),
        ("nan", '{"matches": [NaN]}', 1, None),
        ("list-in-list", '{"matches": [[1]]}', 1, None),
        ("text-with-more", '{"matches": ["event 1"]}', 1, None),
        ("text-full-width", '{"matches": ["１"]}', 1, None),
        ("long-digits", '{"matches": [' + "1" * 5000 + "]}", 1, None),
        ("no-list", '{"matches": 1}', 1, None),
        ("object", '{"matches": {"1": 1}}', 1, None),
        ("null", '{"matches": null}', 0, None),
        ("key-twice", '{"matches": [1], "matches": [1]}', 1, None),
        ("bare-list", "[1, 2]", 2, None),
        ("no-matches", '{"score": 1}', 1, None),
        ("trailing-commas", '{"matches": [2, 1, null,],}', 3, [2, 1, None]),
        ("python-none", '{"matches": [1, 2, None]}', 3, [1, 2, None]),
        ("single-quotes", "```json\n{'matches': ['2', 1], 'reason': 'x'}\n```", 2, [2, 1]),
        ("bare-key", "Here: {reason: fine, matches: [2, 1]}", 2, [2, 1]),
        ("near-json-and-no-lines", '{"matches": [],}', 0, []),
        ("near-json-twice-agreeing", '{"matches": [1,],} so {"matches": [1],', 1, [1]),
        ("near-json-twice-differing", '{"matches": [1,],} no {"matches": [2,],}', 1, None),
        ("near-json-in-the-reason-too", '{"reason": "not {matches: [2]}", "matches": [1],}', 1, [1]),
        ("near-json-in-the-reason-only", '{"reason": "as {matches: [2]}",}', 1, None),
        ("near-json-hole", '{"matches": [1,,2],}', 2, None),
        ("quoted-in-a-broken-one", '{"reason": "as {"matches": [2]} says", "result": [1]}', 1, None),
        ("value-in-a-broken-one", '{"result": {"matches": [2]}, "n": 1,}', 1, [2]),
        ("two-in-a-broken-one", '{"a": {"matches": [2]}, "b": {"matches": [1]},}', 1, None),
        ("near-json-words", '{"matches": [first],}', 1, None),
        ("in-a-reasoning-field", '{"reasoning": {"matches": [1]}}', 1, None),
        ("prose", "matches: [1]", 1, None),
        ("cut", '{"matches": [1, 2', 2, None),
    ),
)
def test_alignments(reply: str, lines: int, matches: list[int | None] | None) -> None:
    assert read_alignment(reply, "stop", lines, 3) == matches


def test_near_json_of_an_alignment_that_was_cut_is_not_read() -> None:
    assert read_alignment('{"matches": [1, 2,],}', "length", 2, 3) is None


def test_an_alignment_with_equal_events() -> None:
    assert read_alignment('{"matches": [1, 1, 1, 2]}', "stop", 4, ["call", "visit", "call"]) == [1, 3, None, 2]


@pytest.mark.parametrize(
    ("matches", "events", "expected"),
    table(
        ("different", [2, 1], ["a", "b"], [2, 1]),
        ("taken", [1, 1], ["a", "b"], [1, None]),
        ("taken-but-an-equal-one-is-free", [1, 1], ["a", "b", "a"], [1, 3]),
        ("earlier-equal-one-is-free", [3, 1], ["a", "b", "a"], [1, 3]),
        ("all-equal", [2, 2, 2], ["a", "a"], [1, 2, None]),
        ("none-stays-none", [None, 1, None], ["a"], [None, 1, None]),
        ("no-lines", [], ["a"], []),
    ),
)
def test_each_event_to_one_line(matches: list[int | None], events: list[str], expected: list[int | None]) -> None:
    assert one_to_one(matches, events) == expected
    assert one_to_one(expected, events) == expected


# ---- rank correlation ----


@pytest.mark.parametrize(
    ("x", "y", "tau"),
    table(
        ("same", [1, 2, 3], [4, 5, 6], 1.0),
        ("reversed", [1, 2, 3], [3, 2, 1], -1.0),
        ("one-swap", [1, 2, 3], [2, 1, 3], 1 / 3),
        ("tie-on-one-side", [1, 2, 3], [1, 1, 2], 2 / math.sqrt(6)),
        ("tie-on-both-sides", [1, 1, 2], [1, 1, 2], 1.0),
        ("crossed-ties", [1, 1, 2, 2], [1, 2, 1, 2], 0.0),
        ("constant", [1, 1, 1], [1, 2, 3], None),
        ("constant-other-side", [1, 2, 3], [7, 7, 7], None),
        ("one-item", [1], [1], None),
        ("nothing", [], [], None),
    ),
)
def test_tau_b(x: list[float], y: list[float], tau: float | None) -> None:
    assert kendall_tau_b(x, y) == pytest.approx(tau, abs=1e-15)


def test_tau_b_needs_pairs() -> None:
    with pytest.raises(ValueError, match="shorter"):
        kendall_tau_b([1, 2], [1])


def test_tau_b_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(20)
    for _ in range(3000):
        size, values = draw.randint(2, 14), draw.choice([2, 3, 5, 20])
        x, y = ([draw.randrange(values) for _ in range(size)] for _ in "xy")
        expected = float(stats.kendalltau(x, y, variant="b").statistic)
        tau = kendall_tau_b(x, y)
        assert (tau is None) == math.isnan(expected)
        assert tau is None or tau == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("order", "events", "score"),
    table(
        ("perfect", [1, 2, 3], 3, 1.0),
        ("reversed", [3, 2, 1], 3, 0.0),
        ("one-swap-of-three", [2, 1, 3], 3, 2 / 3),
        ("one-swap-of-four", [1, 3, 2, 4], 4, 5 / 6),
        ("empty", [], 3, 0.0),
        ("empty-and-no-events", [], 0, 0.0),
        ("single-event-told", [1], 1, 1.0),
        ("single-event-not-told", [None], 1, 0.0),
        ("no-events", [None], 0, 0.0),
        # the missing third event is last in both orders
        ("last-missing", [1, 2], 3, 1.0),
        # ranks 1 2 3 and 3 1 2 (the first event is missing and so last): two of three pairs are turned round
        ("first-missing", [2, 3], 3, 1 / 3),
        # ranks 1 2 3 and last last 1: two pairs turned round, one tied
        ("only-the-third", [3], 3, (1 - 2 / math.sqrt(6)) / 2),
        # events 1 2 and the line u: ranks 1 2 3 and 1 3 2
        ("foreign-line-between", [1, None, 2], 2, 2 / 3),
        ("foreign-line-at-the-end", [1, 2, None], 2, 1.0),
        # ranks 1 2 3 4 4 and 3 3 3 1 2: six pairs turned round, one tied in the first order, three in the second
        ("only-foreign-lines", [None, None], 3, (1 - 6 / math.sqrt(63)) / 2),
        # ranks 1 2 3 3 and 1 2 3 4: five pairs agree, one is tied in the first order
        ("two-foreign-lines-at-the-end", [1, 2, None, None], 2, (1 + 5 / math.sqrt(30)) / 2),
    ),
)
def test_tau_score(order: list[int | None], events: int, score: float) -> None:
    assert tau_score(order, events) == pytest.approx(score, abs=1e-15)


def test_tau_score_is_the_papers_formula() -> None:
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(21)
    for _ in range(1000):
        events = draw.randint(1, 8)
        told: list[int | None] = draw.sample(range(1, events + 1), draw.randint(0, events))
        order = told + [None] * draw.randint(0 if told else 1, 3)
        draw.shuffle(order)
        lines = [f"event {event}" if event else f"foreign {place}" for place, event in enumerate(order)]
        reference = [f"event {event}" for event in range(1, events + 1)]
        union = list(dict.fromkeys(reference + lines))
        ranks = [[names.index(item) if item in names else len(union) for item in union] for names in (reference, lines)]
        tau = float(stats.kendalltau(*ranks, variant="b").statistic) if len(union) > 1 else math.nan
        expected = float(reference == lines) if math.isnan(tau) else (tau + 1) / 2
        assert tau_score(order, events) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("order", [[1, 1], [3], [0], [-1]], ids=str)
def test_tau_score_refuses_what_is_no_alignment(order: list[int | None]) -> None:
    with pytest.raises(ValueError, match="one-to-one"):
        tau_score(order, 2)
