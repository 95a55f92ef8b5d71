"""The answers to judge, over one or more files, and what their records say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from beam_common.answers import describe, missing_shards, read_answers
from beam_common.jsonl import encode_row
from beam_common.messages import UsageError


def answer(index: int, response: str | None = "yes", **changes: Any) -> dict[str, Any]:
    row = {"chat_id": "3", "question_type": "abstention", "question_index": index}
    return {**row, "rubric": ["r"], "response": response, "error": None, **changes}


def files(folder: Path, *contents: list[dict[str, Any]]) -> list[Path]:
    paths = [folder / f"{name}.jsonl" for name, _ in zip("abc", contents, strict=False)]
    for path, rows in zip(paths, contents, strict=True):
        path.write_bytes(b"".join(map(encode_row, rows)))
    return paths


FAILED, NUMBER = answer(0, "", error="HTTP 500"), {**answer(0), "chat_id": 3}
COUNTS = {
    "shards": ([[answer(1)], [answer(0)]], [answer(1), answer(0)]),
    "the-same-answer-twice": ([[NUMBER], [answer(0)]], [NUMBER]),
    "an-answer-beats-an-error": ([[FAILED], [answer(0)]], [answer(0)]),
    "whatever-the-order-of-files": ([[answer(0)], [FAILED]], [answer(0)]),
    "failed-in-both": ([[FAILED], [FAILED]], [FAILED]),
    "the-last-of-one-file": ([[answer(0), answer(0, "no")]], [answer(0, "no")]),
    "an-empty-error-is-none": ([[answer(0, error="")]], [answer(0)]),
    "null-response": ([[answer(0, None)]], [answer(0, None)]),
}


@pytest.mark.parametrize(("contents", "expected"), COUNTS.values(), ids=COUNTS)
def test_of_each_question_one_answer_counts(tmp_path: Path, contents: Any, expected: Any) -> None:
    assert list(read_answers(files(tmp_path, *contents)).values()) == expected


@pytest.mark.parametrize(
    "other",
    [answer(0, "no"), answer(0, rubric=["x"]), {**FAILED, "rubric": ["x"]}],
    ids=["response", "rubric", "rubric-of-a-failed-one"],
)
def test_two_runs_are_no_shards_of_one(tmp_path: Path, other: dict[str, Any]) -> None:
    a, b = files(tmp_path, [answer(0)], [other])
    with pytest.raises(UsageError, match=rf"{b} answers chat 3 abstention/0 in another way"):
        read_answers([a, b])


def test_what_holds_no_answers_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = files(tmp_path, [])
    for place, message in {
        path: r"no answers yet in .*a\.jsonl; run beam_generate\.py first",
        tmp_path / "missing.jsonl": r"missing\.jsonl: No such file",
    }.items():
        with pytest.raises(UsageError, match=message):
            read_answers([place])
    path.write_bytes(encode_row(answer(0)) + b"torn\n")
    assert len(read_answers([path])) == 1
    assert capsys.readouterr().err.endswith("left out and not judged\n")


def record(shard: str, model: str = "m", **changes: Any) -> dict[str, Any]:
    settings = {"base_url": "http://h/v1", "body": {"model": model}}
    known = {"program": "beam_generate.py", "settings": settings, "data": {"tag": "1m"}}
    counts = {"selected": {shard[0]: {"abstention": 2}}, "shrunk": {shard[0]: 7}}
    return {**known, **counts, "shard": [shard], "served": {model: 2}, **changes}


def described(folder: Path, *records: dict[str, Any], allow_mixed: bool = False) -> Any:
    for name, content in zip("abc", records, strict=False):
        (folder / f"{name}.run.json").write_text(json.dumps(content))
    return describe([folder / f"{name}.jsonl" for name in "abc"[: len(records)]], allow_mixed)


def test_what_is_known_of_several_files_is_brought_together(tmp_path: Path) -> None:
    one, two = record("1/3"), record("2/3", served={"m": 1, "n": 1})
    answers = {"settings": one["settings"], "data": one["data"], "mixed": False}
    assert described(tmp_path, one, two) == {
        "answers": {**answers, "served": {"m": 3, "n": 1}, "shrunk": {"1": 7, "2": 7}},
        "selected": {"1": {"abstention": 2}, "2": {"abstention": 2}},
        "missing_shards": ["3/3"],
    }


def test_files_of_other_settings_are_refused_or_mixed(tmp_path: Path) -> None:
    records = [record("1/2"), record("2/2", model="n")]
    message = r"b\.jsonl was made with other settings than .*a\.jsonl: model \(recorded m, now n\)"
    with pytest.raises(UsageError, match=message):
        described(tmp_path, *records)
    assert described(tmp_path, *records, allow_mixed=True)["answers"]["mixed"] is True
    assert described(tmp_path, record("1/1", mixed=True))["answers"]["mixed"] is True


def test_files_without_a_record_are_of_unknown_settings(tmp_path: Path) -> None:
    unknown = describe([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], False)
    answers = {"settings": {}, "data": {}, "mixed": False, "served": {}, "shrunk": {}}
    assert unknown == {"answers": answers, "selected": {}, "missing_shards": []}


@pytest.mark.parametrize(
    ("shards", "missing"),
    [
        ("1/1", []), ("2/2", ["1/2"]), ("1/2 2/2", []), ("3/4 1/4", ["2/4", "4/4"]),
        ("1/2 1/1", []),
    ],
)  # fmt: skip
def test_missing_shards_are_named(shards: str, missing: list[str]) -> None:
    assert missing_shards([{"shard": [shard]} for shard in shards.split()]) == missing
    assert missing_shards([{"shard": shards.split()}, {}]) == missing
