"""From the release's layout to the two data files, and the vocabulary: exact bytes, bad input, checks, memory."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import beam_pair
import prepare_data
from beam_common import ABILITIES, HERE, UsageError
from beam_pair import Pair, read_pair, write_chat
from beam_release import GOLD_FIELD, JsonReader, numeric, read_questions

OFFICIAL = Path(os.environ.get("BEAM_OFFICIAL") or "nowhere")
needs_release = pytest.mark.skipif(not OFFICIAL.is_dir(), reason="BEAM_OFFICIAL names no copy of the release")
_named = Path(os.environ.get("KIMI_VOCABULARY") or "nowhere")
KIMI = _named / "tiktoken.model" if _named.is_dir() else _named
needs_vocabulary = pytest.mark.skipif(not KIMI.is_file(), reason="KIMI_VOCABULARY names no vocabulary")

DIGESTS = json.loads((HERE / "data/digests.json").read_bytes())["tags"]


# ---------------------------------------------------------------------------------------------------------------
# Small tiers.


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "id": 0, "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "id": 1, "content": text}


def question(**fields: Any) -> dict[str, Any]:
    return {"question": "Which?", "rubric": ["says so"], **fields}


CHAT = [{"batch_number": 1, "time_anchor": None, "turns": [[user("Hi ->-> 1,3"), assistant("Hello")]]}]
ASKED = {"abstention": [question(ideal_response="Not told", difficulty="easy")]}


def make_tier(folder: Path, chats: Mapping[str, Mapping[str, Any]]) -> Path:
    """A tier directory: of each chat the content of its files; text is written as it is, the rest as JSON."""
    for chat, files in chats.items():
        for name, content in files.items():
            path = folder / chat / ("probing_questions/" if name == "probing_questions.json" else "") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def chat_files(chat: Any = CHAT, asked: Any = ASKED) -> dict[str, Any]:
    return {"chat.json": chat, "probing_questions.json": asked}


def prepare(src: Path, out: Path, *arguments: str) -> int:
    return prepare_data.main(["--tag", "t", "--src", str(src), "--out-dir", str(out), *arguments])


def chats_text(out: Path, tag: str = "t") -> bytes:
    return gzip.decompress((out / f"beam_{tag}_chats.jsonl.gz").read_bytes())


def questions_text(out: Path, tag: str = "t") -> bytes:
    return (out / f"beam_{tag}_questions.jsonl").read_bytes()


def question_rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in questions_text(out).split(b"\n") if line]


# ---------------------------------------------------------------------------------------------------------------
# Formats, byte for byte.


def test_both_files_byte_for_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = [{"turns": [[user('Grüße\u2028 → 1,3\n"x"'), assistant("好")]]}, {"turns": [[user("b"), assistant("c")]]}]
    src = make_tier(tmp_path / "src", {"2": chat_files(chat)})
    assert prepare(src, tmp_path / "out") == 0
    assert chats_text(tmp_path / "out").decode() == (
        '{"chat_id": "2", "messages": [{"role": "user", "content": "Grüße\u2028 → 1,3\\n\\"x\\""}, '
        '{"role": "assistant", "content": "好"}, {"role": "user", "content": "b"}, '
        '{"role": "assistant", "content": "c"}]}\n'
    )
    assert questions_text(tmp_path / "out").decode() == (
        '{"chat_id": "2", "question_type": "abstention", "question_index": 0, "question": "Which?", '
        '"gold_answer": "Not told", "rubric": ["says so"], "difficulty": "easy"}\n'
    )
    screen = capsys.readouterr().out
    for part in ("1 chat, 4 messages", "1 question", "next: python beam_generate.py --dry-run --chats-file"):
        assert part in screen


def test_the_gzip_header_carries_no_time_and_no_name(tmp_path: Path) -> None:
    src = make_tier(tmp_path / "src", {"1": chat_files()})
    packed = []
    for name in ("a", "b"):
        assert prepare(src, tmp_path / name) == 0
        packed.append((tmp_path / name / "beam_t_chats.jsonl.gz").read_bytes())
    assert packed[0] == packed[1]
    assert packed[0][3:8] == b"\0\0\0\0\0", "flags (no name), then the time"


def test_chats_in_numeric_order_and_abilities_in_source_order(tmp_path: Path) -> None:
    asked = {"summarization": [question(), question()], "abstention": [question()]}
    src = make_tier(tmp_path / "src", {chat: chat_files(asked=asked) for chat in ("10", "9", "1")})
    assert prepare(src, tmp_path / "out") == 0
    assert [json.loads(line)["chat_id"] for line in chats_text(tmp_path / "out").splitlines()] == ["1", "9", "10"]
    found = [
        (row["chat_id"], row["question_type"][:3], row["question_index"]) for row in question_rows(tmp_path / "out")
    ]
    assert found == [(chat, kind, i) for chat in ("1", "9", "10") for kind, i in (("sum", 0), ("sum", 1), ("abs", 0))]


def test_chat_ids_sort_as_numbers_before_names() -> None:
    assert sorted(["b", "10", "2", "a"], key=numeric) == ["2", "10", "a", "b"]


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param([{"turns": [[user("a"), assistant("b")], [user("c"), assistant("d")]]}], id="batches"),
        pytest.param(
            [{"turns": [user("a"), assistant("b"), user("c"), assistant("d")]}], id="turns without inner lists"
        ),
        pytest.param([{"turns": [[[user("a"), assistant("b")]], [[user("c")], [assistant("d")]]]}], id="deeper lists"),
        pytest.param(
            [
                {"plan-1": [{"turns": [[user("a"), assistant("b")]]}]},
                {"plan-2": [{"turns": [[user("c"), assistant("d")]]}]},
            ],
            id="plans",
        ),
        pytest.param(
            [
                {"plan-10": [{"turns": [[user("a"), assistant("b")]]}], "plan-2": None},
                {"turns": [[user("c"), assistant("d")]]},
            ],
            id="plans in the order of the file, one null, then a batch",
        ),
    ],
)
def test_layouts_are_told_apart_by_content(layout: Any, tmp_path: Path) -> None:
    src = make_tier(tmp_path / "src", {"1": chat_files(layout)})
    assert prepare(src, tmp_path / "out") == 0
    messages = json.loads(chats_text(tmp_path / "out"))["messages"]
    assert [message["content"] for message in messages] == ["a", "b", "c", "d"]


def test_other_roles_and_empty_messages_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [[{"role": "system", "content": "s"}, user("a"), {"role": "user"}, user(""), assistant("b")]]
    turns += [[{"role": "user", "content": None}, user(" "), {"content": "no role"}]]
    src = make_tier(tmp_path / "src", {"1": chat_files([{"turns": turns}])})
    assert prepare(src, tmp_path / "out") == 0
    assert json.loads(chats_text(tmp_path / "out"))["messages"] == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": " "},
    ]
    assert "note: 5 messages of other roles or without content left out" in capsys.readouterr().err


def test_lone_surrogates_and_a_byte_order_mark(tmp_path: Path) -> None:
    chat = b'\xef\xbb\xbf[{"turns": [[{"role": "user", "content": "\\ud83d and \\ud83d\\ude00"}]]}]'
    asked = b'\xef\xbb\xbf{"abstention": [{"question": "\\ud83d?", "rubric": "r"}]}'
    src = make_tier(tmp_path / "src", {"1": chat_files(chat, asked)})
    assert prepare(src, tmp_path / "out") == 0
    assert '"\\ud83d and 😀"' in chats_text(tmp_path / "out").decode()
    assert '"\\ud83d?"' in questions_text(tmp_path / "out").decode()


# ---------------------------------------------------------------------------------------------------------------
# Questions.


@pytest.mark.parametrize(
    ("ability", "fields", "gold"),
    [
        ("abstention", {"ideal_response": "A", "answer": "x"}, "A"),
        ("contradiction_resolution", {"ideal_answer": "A", "answer": "x"}, "A"),
        ("summarization", {"ideal_summary": "A", "ideal_answer": "x"}, "A"),
        ("event_ordering", {"answer": "A"}, "A"),
        ("information_extraction", {"answer": "A"}, "A"),
        ("knowledge_update", {"answer": "A"}, "A"),
        ("multi_session_reasoning", {"answer": "A"}, "A"),
        ("temporal_reasoning", {"answer": "A"}, "A"),
        ("instruction_following", {"answer": "x"}, "one\ntwo"),
        ("preference_following", {"ideal_answer": "x"}, "one\ntwo"),
        pytest.param("abstention", {"answer": "x"}, "one\ntwo", id="field absent"),
        pytest.param("summarization", {"ideal_summary": None}, "one\ntwo", id="field null"),
        pytest.param("temporal_reasoning", {"answer": ""}, "", id="field empty"),
        pytest.param("temporal_reasoning", {"answer": 45}, "45", id="a number"),
        pytest.param("event_ordering", {"answer": ["a", "b"]}, "a\nb", id="a list"),
    ],
)
def test_gold_answer(ability: str, fields: dict[str, Any], gold: str, tmp_path: Path) -> None:
    path = tmp_path / "questions.json"
    path.write_text(json.dumps({ability: [question(rubric=["one", "two"], **fields)]}))
    assert [row["gold_answer"] for row in read_questions(path, "1")] == [gold]


def test_every_ability_but_two_has_a_gold_field() -> None:
    assert set(ABILITIES) - set(GOLD_FIELD) == {"instruction_following", "preference_following"}


@pytest.mark.parametrize(
    ("fields", "rubric", "difficulty"),
    [
        pytest.param({"rubric": ["a", "b"], "difficulty": "hard"}, ["a", "b"], "hard", id="as it is"),
        pytest.param({"rubric": "a\nb"}, ["a\nb"], "unknown", id="a bare string; difficulty absent"),
        pytest.param({"difficulty": None}, ["says so"], "unknown", id="difficulty null"),
        pytest.param({"difficulty": ""}, ["says so"], "", id="difficulty empty, as once in the release"),
        pytest.param({"rubric": [3]}, ["3"], "unknown", id="a number"),
    ],
)
def test_rubric_and_difficulty(fields: dict[str, Any], rubric: list[str], difficulty: str, tmp_path: Path) -> None:
    path = tmp_path / "questions.json"
    path.write_text(json.dumps({"abstention": [question(**fields)]}))
    (row,) = read_questions(path, "1")
    assert (row["rubric"], row["difficulty"]) == (rubric, difficulty)


# ---------------------------------------------------------------------------------------------------------------
# Reading JSON in pieces.


def reader_of(text: bytes, piece: int) -> JsonReader:
    at = iter([text[i : i + piece] for i in range(0, len(text), piece)])
    return JsonReader(lambda _: next(at, b""), "file.json")


def walk(reader: JsonReader) -> Any:
    """Everything below lists and objects, taken apart by the reader."""
    if reader.peek() == "[":
        return [walk(reader) for _ in reader.elements()]
    if reader.peek() == "{":
        return {key: walk(reader) for key in reader.members()}
    return reader.value()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(VALUES, st.integers(1, 9), st.sampled_from([None, 2]), st.booleans())
def test_json_in_pieces_reads_as_in_one(value: Any, piece: int, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "backslashreplace")
    expected = json.loads(text)
    for take in (walk, JsonReader.value):
        reader = reader_of(text, piece)
        assert take(reader) == expected
        assert reader.peek() == ""


@pytest.mark.parametrize("piece", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "not valid JSON: Expecting value (character 1)"),
        (b"[1, 2", "ends in the middle (character 6)"),
        (b"[1 2]", "expected ',', found '2' (character 4)"),
        (b"[1,]", "not valid JSON: Expecting value (character 4)"),
        (b'{"a" 1}', "expected ':', found '1' (character 6)"),
        (b"{a: 1}", "expected a key (character 2)"),
        (b'["abc', "not valid JSON: Unterminated string starting at (character 2)"),
        (b'["a\nb"]', "not valid JSON: Invalid control character at (character 4)"),
        (b"[" + b"1" * 5000 + b"]", "a number of too many digits (character 2)"),
        (b'["\xff"]', "not UTF-8"),
        (b'["\xe5\xa5', "not UTF-8"),
    ],
)
def test_bad_json_names_the_place(text: bytes, problem: str, piece: int) -> None:
    with pytest.raises(UsageError) as caught:
        walk(reader_of(text, piece))
    assert str(caught.value).startswith("file.json: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize("piece", [1000, 10_000])
def test_a_fraction_may_have_any_number_of_digits(piece: int) -> None:
    """Python limits the digits of integers only, and the first pieces of this look like one."""
    assert walk(reader_of(b"[" + b"1" * 300 + b"." + b"1" * 5000 + b"]", piece)) == [float("1" * 300)]
    assert walk(reader_of(b"[" + b"0." + b"1" * 5000 + b", " + b"1" * 5000 + b"e-5000]", piece)) == [1 / 9, 1 / 9]


# ---------------------------------------------------------------------------------------------------------------
# Bad input: one line that names file and place, exit code 2, what was there stays.

BAD_CHATS = [
    pytest.param(b"", "2/chat.json: the whole: expected a list of batches, found the end of the file", id="empty file"),
    pytest.param(b"[{", "2/chat.json: ends in the middle", id="cut"),
    pytest.param(b"<html>", "2/chat.json: the whole: expected a list of batches, found no JSON", id="HTML"),
    pytest.param(b"[]x", "2/chat.json: something follows", id="something follows"),
    pytest.param({"turns": []}, "2/chat.json: the whole: expected a list of batches, found an object", id="no list"),
    pytest.param([], "2/chat.json: no message of a user or an assistant", id="no batches"),
    pytest.param([CHAT[0], 7], "2/chat.json: [1]: expected a batch or a plan, found a number", id="batch is a number"),
    pytest.param([CHAT[0], {"turn": []}], "2/chat.json: [1]: neither a batch with 'turns' nor a plan", id="no turns"),
    pytest.param([{"turns": None}], "2/chat.json: [0].turns: expected a list, found null", id="turns null"),
    pytest.param(
        [{"plan-1": [CHAT[0], {"turns": [[user("a")], ["b"]]}]}],
        "2/chat.json: [0].plan-1[1].turns[1][0]: expected a message, found a text",
        id="text for a message, in a plan",
    ),
    pytest.param(
        [{"turns": [[user("a"), {"role": "user", "content": ["b"]}]]}],
        "2/chat.json: [0].turns[0][1]: the content is a list, not a text",
        id="content is a list",
    ),
    pytest.param(
        [{"turns": [[{"role": "system", "content": "a"}]]}], "2/chat.json: no message of a user", id="only system"
    ),
    pytest.param(b'[{"turns": ' + b"[" * 100_000, "2/chat.json: nested too deeply", id="nested without end"),
    pytest.param(
        b'[{"turns": [[{"role": "user", "content": ' + b"1" * 5000 + b"}]]}]",
        "2/chat.json: a number of too many digits (character 14)",
        id="a number that Python does not read",
    ),
]
QUESTIONS_FILE = "2/probing_questions/probing_questions.json: "
BAD_QUESTIONS = [
    pytest.param(b"{", QUESTIONS_FILE + "ends in the middle (character 2)", id="cut"),
    pytest.param(b'{"abstention": [}', QUESTIONS_FILE + "not valid JSON: Expecting value (character 17)", id="no JSON"),
    pytest.param(b"{} {}", QUESTIONS_FILE + "something follows the questions (character 4)", id="something follows"),
    pytest.param(
        b'{"abstention": [{"question": ' + b"1" * 5000 + b"}]}",
        QUESTIONS_FILE + "a number of too many digits (character 16)",
        id="a number that Python does not read",
    ),
    pytest.param(
        b'{"abstention": [], "summarization": [], "abstention": []}',
        QUESTIONS_FILE + "abstention is there twice (character 54)",
        id="an ability twice",
    ),
    pytest.param([], QUESTIONS_FILE + "expected an object of abilities, found a list", id="a list"),
    pytest.param({"telepathy": []}, QUESTIONS_FILE + "unknown ability 'telepathy'", id="unknown ability"),
    pytest.param({"abstention": {}}, QUESTIONS_FILE + "abstention: expected a list of questions", id="no list"),
    pytest.param({"abstention": ["x"]}, QUESTIONS_FILE + "abstention[0]: expected a question, found a text", id="text"),
    pytest.param(
        {"abstention": [question(), {"rubric": ["a"]}]}, QUESTIONS_FILE + "abstention[1]: no question text", id="none"
    ),
    pytest.param(
        {"abstention": [question(rubric=[])]}, QUESTIONS_FILE + "abstention[0]: the rubric is empty", id="rubric []"
    ),
    pytest.param(
        {"abstention": [question(rubric=" ")]}, QUESTIONS_FILE + "abstention[0]: the rubric is empty", id="blank"
    ),
    pytest.param(
        {"abstention": [{"question": "q"}]}, QUESTIONS_FILE + "abstention[0]: the rubric is empty", id="no rubric"
    ),
    pytest.param(
        {"abstention": [question(rubric=[{}])]}, QUESTIONS_FILE + "abstention[0]: rubric: an object", id="object"
    ),
    pytest.param({}, "no question about chat 2", id="no questions"),
]


@pytest.mark.parametrize(
    ("files", "problem"),
    [pytest.param({"chat.json": p.values[0]}, p.values[1], id=f"chat {p.id}") for p in BAD_CHATS]
    + [
        pytest.param({"probing_questions.json": p.values[0]}, p.values[1], id=f"questions {p.id}")
        for p in BAD_QUESTIONS
    ],
)
def test_bad_input(files: dict[str, Any], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert prepare(make_tier(tmp_path / "good", {"1": chat_files()}), out) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    capsys.readouterr()
    bad = make_tier(tmp_path / "bad", {"1": chat_files(), "2": {**chat_files(), **files}})
    assert prepare(bad, out) == 2
    screen = capsys.readouterr().err
    assert problem in screen
    assert screen.startswith("error: ")
    assert screen.count("\n") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(
    ("make", "arguments", "problem"),
    [
        pytest.param(
            lambda folder: folder / "nowhere", [], "nowhere does not exist; --src takes a tier", id="no such folder"
        ),
        pytest.param(lambda folder: folder / "1/chat.json", [], "is not a directory", id="a file"),
        pytest.param(lambda folder: folder.parent, [], "holds no chat directories", id="the folder above"),
        pytest.param(lambda folder: folder / "1", [], "is a single chat", id="a chat"),
        pytest.param(lambda folder: folder, ["--chats", "1,7"], "--chats: no chat 7 in", id="unknown chat"),
        pytest.param(lambda folder: folder, ["--chats", ","], "--chats: nothing is listed", id="no chat named"),
    ],
)
def test_bad_source(
    make: Any, arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    src = make_tier(tmp_path / "tiers" / "src", {"1": chat_files(), "2": chat_files()})
    assert prepare(make(src), tmp_path / "out", *arguments) == 2
    screen = capsys.readouterr().err
    assert problem in screen
    assert screen.count("\n") == 1
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("absent", "named"),
    [
        pytest.param(["3/chat.json"], "lacks 3/chat.json;", id="chat"),
        pytest.param(
            ["3/probing_questions/probing_questions.json"], "lacks 3/probing_questions/probing", id="questions"
        ),
        pytest.param(
            ["3/chat.json", "3/probing_questions/probing_questions.json"],
            "lacks 3/chat.json and 3/probing_questions/probing_questions.json;",
            id="both",
        ),
    ],
)
def test_missing_files(absent: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    src = make_tier(tmp_path / "src", {chat: chat_files() for chat in ("1", "3", "20")})
    for path in absent:
        (src / path).unlink()
    assert prepare(src, tmp_path / "out") == 2
    screen = capsys.readouterr().err
    assert named in screen
    assert "--allow-missing" in screen
    assert not list((tmp_path / "out").iterdir())
    assert prepare(src, tmp_path / "out", "--allow-missing") == 0
    assert "1 chat left out" in capsys.readouterr().err
    assert list(read_pair(Pair.of(tmp_path / "out", "t")).messages) == ["1", "20"]
    assert {row["chat_id"] for row in question_rows(tmp_path / "out")} == {"1", "20"}


def test_nothing_but_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    src = make_tier(tmp_path / "src", {"1": {"chat.json": CHAT}})
    assert prepare(src, tmp_path / "out", "--allow-missing") == 2
    assert "no chat is complete" in capsys.readouterr().err


def test_truncated_variant_only_when_preferred(tmp_path: Path) -> None:
    short = [{"turns": [[user("short"), assistant("b")]]}]
    src = make_tier(tmp_path / "src", {"1": {**chat_files(), "chat_trunecated.json": short}, "2": chat_files()})
    assert prepare(src, tmp_path / "a") == 0
    assert prepare(src, tmp_path / "b", "--prefer-truncated") == 0
    first = [
        [json.loads(line)["messages"][0]["content"] for line in chats_text(tmp_path / n).splitlines()] for n in "ab"
    ]
    assert first == [["Hi ->-> 1,3", "Hi ->-> 1,3"], ["short", "Hi ->-> 1,3"]]


def test_selection(tmp_path: Path) -> None:
    src = make_tier(tmp_path / "src", {chat: chat_files() for chat in ("1", "2", "10")})
    assert prepare(src, tmp_path / "out", "--chats", "10, 1,1") == 0
    assert [row["chat_id"] for row in question_rows(tmp_path / "out")] == ["1", "10"]


def test_a_tier_under_another_tag_is_remarked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    src = make_tier(tmp_path / "chats" / "100K", {"1": chat_files()})
    assert prepare_data.main(["--src", str(src), "--out-dir", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert "warning: " in captured.err
    assert "--tag 128k" in captured.err
    assert "not the recorded 1m files: --check says in what\n" in captured.out


def test_files_that_are_not_the_release_s_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listed file with another content is named; the same content, and a chat that is not listed, is not."""
    src = make_tier(tmp_path / "1M", {chat: chat_files() for chat in ("1", "2", "3", "4")})
    content = (src / "1/chat.json").read_bytes()
    right = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    other = "0123456789abcdef" + "0" * 24
    asked = "probing_questions/probing_questions.json"
    listed = [(right, "1/chat.json"), (other, f"1/{asked}"), (other, "2/chat.json"), (other, "9/chat.json")]
    listed += [(other, f"{chat}/{name}") for chat in "34" for name in ("chat.json", asked)]
    manifest = tmp_path / "release.tsv"
    manifest.write_text("".join(f"{blob}\tchats/1M/{name}\n" for blob, name in listed))
    monkeypatch.setattr(prepare_data, "MANIFEST", manifest)
    assert prepare(src, tmp_path / "out") == 0
    lines = capsys.readouterr().err.splitlines()
    starts = [f"1/{asked}", "2/chat.json", "3/chat.json", f"3/{asked}", "4/chat.json"]
    assert [line.partition(" (git blob ")[0] for line in lines] == [
        *(f"warning: {name} is not the release's file" for name in starts), "warning: and 1 more"
    ]  # fmt: skip
    assert lines[1].endswith(f" (git blob {right[:12]}, listed 0123456789ab)")
    shutil.copytree(src, tmp_path / "elsewhere")
    assert prepare(tmp_path / "elsewhere", tmp_path / "out") == 0
    assert capsys.readouterr().err == "", "the folder's name is that of no tier"


@needs_release
def test_the_release_s_own_files_are_not_remarked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(OFFICIAL / "chats/1M", tmp_path, "--chats", "3") == 0
    assert "not the release's file" not in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------
# Outputs: whole, as a pair, or not at all.


def test_a_disk_that_loses_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is read back is not what was written: here the writer claims three messages of two."""
    monkeypatch.setattr(beam_pair, "write_chat", lambda out, files: (write_chat(out, files)[0] + 1, 0))
    assert prepare(make_tier(tmp_path / "src", {"1": chat_files()}), tmp_path / "out") == 2
    assert "the counts read back are not those written" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


def test_a_kill_between_the_two_files_leaves_no_pair_that_does_not_match(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert prepare(make_tier(tmp_path / "src", {"1": chat_files()}), out) == 0
    real = Path.replace

    def replace(new: Path, target: Path) -> Path:
        if target.name.endswith("questions.jsonl"):
            raise KeyboardInterrupt
        return real(new, target)

    monkeypatch.setattr(Path, "replace", replace)
    assert prepare(make_tier(tmp_path / "src", {"2": chat_files()}), out) == 130
    assert [path.name for path in out.iterdir()] == ["beam_t_chats.jsonl.gz"]
    capsys.readouterr()
    assert check(out, "--tag", "t") == 1
    assert "t: differs: beam_t_questions.jsonl is missing" in capsys.readouterr().out


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    src = make_tier(tmp_path / "src", {"1": chat_files()})
    left = tmp_path / "out" / ".beam_t_chats.jsonl.gz.abc"
    left.mkdir(parents=True)
    (left / "beam_t_chats.jsonl.gz").write_bytes(b"half")
    assert prepare(src, tmp_path / "out") == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "beam_t_chats.jsonl.gz",
        "beam_t_questions.jsonl",
    ]


@pytest.mark.parametrize("blocked", ["beam_t_chats.jsonl.gz", "beam_t_questions.jsonl"])
def test_a_directory_in_the_place_of_an_output(
    blocked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    src = make_tier(tmp_path / "src", {"1": chat_files()})
    (tmp_path / "out" / blocked).mkdir(parents=True)
    assert prepare(src, tmp_path / "out") == 2
    assert f"{blocked} is a directory" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == [blocked]


def test_output_folder_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    src = make_tier(tmp_path / "src", {"1": chat_files()})
    (tmp_path / "out").write_text("")
    assert prepare(src, tmp_path / "out") == 2
    screen = capsys.readouterr().err
    assert "out cannot be written" in screen
    assert screen.count("\n") == 1


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    turns = [[user(hashlib.sha256(b"%d" % n).hexdigest() * 10), assistant("b")] for n in range(2000)]
    src = make_tier(tmp_path / "src", {"1": chat_files([{"turns": turns}])})
    out = tmp_path / "out"
    result = subprocess.run(
        [sys.executable, HERE / "prepare_data.py", "--tag", "t", "--src", src, "--out-dir", out],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "cannot be written: File too large" in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("chats", "questions", "problem"),
    [
        pytest.param([], [], "", id="as written"),
        pytest.param([('"role": "user"', '"role": "tool"')], [], "chat 1, message 0: role 'tool'", id="role"),
        pytest.param([('"content": "Hello"', '"content": ""')], [], "chat 1, message 1: empty content", id="content"),
        pytest.param([('"content"', '"text"')], [], "chat 1, message 0: not a role and a content", id="key"),
        pytest.param(
            [('"chat_id": "1"', '"chat_id": "3"')], [], "questions.jsonl line 1: chat 1 is not in", id="chat gone"
        ),
        pytest.param([("}\n", "} ")], [], "0 lines for 1 chat", id="no line end"),
        pytest.param([], [('["says so"]', "[]")], "line 1: chat 1 abstention/0 has an empty rubric", id="rubric"),
        pytest.param([], [('["says so"]', '"says so"')], "line 1: 'rubric' is \"says so\"", id="rubric is a text"),
        pytest.param([], [('"question_index": 0', '"question_index": 1')], "stands where 0 is next", id="index"),
        pytest.param([], [("abstention", "telepathy")], "line 1: unknown ability 'telepathy'", id="ability"),
        pytest.param([], [("{", "[")], "line 1: ", id="no JSON"),
    ],
)
def test_reading_back_names_file_and_place(
    chats: list[tuple[str, str]], questions: list[tuple[str, str]], problem: str, tmp_path: Path
) -> None:
    assert prepare(make_tier(tmp_path / "src", {"1": chat_files()}), tmp_path) == 0
    pair = Pair.of(tmp_path, "t")
    text = chats_text(tmp_path).decode()
    for old, new in chats:
        text = text.replace(old, new)
    pair.chats.write_bytes(gzip.compress(text.encode()))
    text = questions_text(tmp_path).decode()
    for old, new in questions:
        text = text.replace(old, new)
    pair.questions.write_text(text)
    problems = read_pair(pair).problems
    assert bool(problems) == bool(problem)
    assert problem in "\n".join(problems)
    assert all(line.startswith(("beam_t_chats.jsonl.gz: ", "beam_t_questions.jsonl")) for line in problems)


# ---------------------------------------------------------------------------------------------------------------
# The sample, the check.


def test_the_sample_is_made_from_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tag", "sample", "--src", str(HERE / "data/sample"), "--out-dir", str(tmp_path)]
    assert prepare_data.main(arguments) == 0
    shipped = HERE / "data"
    assert questions_text(tmp_path, "sample") == questions_text(shipped, "sample")
    assert chats_text(tmp_path, "sample") == chats_text(shipped, "sample")
    assert "they are the recorded sample files" in capsys.readouterr().out


def test_the_shipped_sample_is_not_replaced_by_other_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = questions_text(HERE / "data", "sample")
    assert prepare_data.main(["--tag", "sample", "--src", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "error: --tag sample would replace the sample that comes with the programs; name another --tag\n"
    )
    assert questions_text(HERE / "data", "sample") == before


def check(out: Path, *arguments: str) -> int:
    return prepare_data.main(["--check", "--out-dir", str(out), *arguments])


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A folder with the sample's pair."""
    for path in (HERE / "data").glob("beam_sample_*"):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_check_of_what_is_right(sample: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(sample) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("sample chats: ok: 3 chats, ")
    assert lines[1:] == [
        "sample questions: ok: 60 questions",
        "128k: not installed",
        "500k: not installed",
        "1m: not installed",
        "10m: not installed",
        "vocabulary: not installed",
    ]


def test_check_of_what_differs(sample: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sample / "beam_sample_questions.jsonl"
    path.write_bytes(path.read_bytes().replace(b"chat_id", b"chat_Id", 1))
    (tokenizer / "tiktoken.model").write_bytes(b"something else")
    assert check(sample) == 1
    screen = capsys.readouterr().out
    assert "sample chats: ok" in screen
    expected, found = DIGESTS["sample"]["questions"]["sha256"][:12], hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    assert f"sample questions: differs: SHA-256 expected {expected}, found {found} (" in screen
    assert "sample: differs: beam_sample_questions.jsonl line 1: no 'chat_id'" in screen
    assert "vocabulary: differs: bytes expected 22, found 14; SHA-256 expected " in screen


def test_check_of_a_vocabulary_that_cannot_be_read(
    sample: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tokenizer / "tiktoken.model").mkdir()
    assert check(sample) == 1
    assert f"\nvocabulary: differs: {tokenizer / 'tiktoken.model'}: Is a directory\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        pytest.param(lambda path: path.unlink(), "sample: differs: beam_sample_chats.jsonl.gz is missing", id="half"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-100]), "damaged gzip file", id="cut"),
        pytest.param(lambda path: path.write_bytes(b"\x1f\x8b\x08\0" + bytes(40)), "differs: ", id="no gzip"),
        pytest.param(
            lambda path: path.write_bytes(gzip.compress(b"[1]")), "not valid JSON: expected '{'", id="no chat"
        ),
        pytest.param(
            lambda path: path.write_bytes(gzip.compress(b'{"id": 1}')), "'id' is no key of a chat", id="other key"
        ),
        pytest.param(
            lambda path: path.write_bytes(gzip.compress(b'{"chat_id": ' + b"1" * 5000 + b"}")),
            "beam_sample_chats.jsonl.gz: a number of too many digits (character 13)",
            id="a number that Python does not read",
        ),
    ],
)
def test_check_of_damaged_chats(
    damage: Any, problem: str, sample: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(sample / "beam_sample_chats.jsonl.gz")
    assert check(sample) == 1
    assert problem in capsys.readouterr().out


def test_check_says_why_a_selection_differs(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    src = HERE / "data/sample"
    assert prepare_data.main(["--tag", "sample", "--src", str(src), "--out-dir", str(tmp_path), "--chats", "2"]) == 0
    assert "not the recorded sample files: a selection made with --chats differs" in capsys.readouterr().out
    assert check(tmp_path) == 1
    screen = capsys.readouterr().out
    assert "chats expected 3, found 1" in screen
    assert "a selection made with --chats, --prefer-truncated or --allow-missing differs for that reason" in screen


def test_check_of_one_tag(sample: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(sample, "--tag", "sample") == 0
    assert "128k" not in capsys.readouterr().out
    assert check(sample, "--tag", "1m") == 1, "asked for by name and not there"


def test_check_of_a_tag_of_one_s_own(tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(make_tier(tmp_path / "src", {"1": chat_files()}), tmp_path) == 0
    assert check(tmp_path, "--tag", "t") == 0
    assert "t chats: ok as far as is known: 1 chat, 2 messages; SHA-256 " in capsys.readouterr().out


def test_recorded_digests_are_whole() -> None:
    assert list(DIGESTS) == ["sample", "128k", "500k", "1m", "10m"]
    assert [DIGESTS[tag]["questions"]["lines"] for tag in DIGESTS] == [60, 400, 700, 700, 200]
    assert [DIGESTS[tag]["chats"]["number"] for tag in DIGESTS] == [3, 20, 35, 35, 10]
    assert {len(part["sha256"]) for tag in DIGESTS.values() for part in tag.values() if "sha256" in part} == {64}


# ---------------------------------------------------------------------------------------------------------------
# The release.


@needs_release
@pytest.mark.parametrize(("tag", "tier"), [("1m", "1M"), ("128k", "100K")])
def test_the_release_s_questions_are_the_published_ones(
    tag: str, tier: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All questions are here, but few chats: the others get one message."""
    for asked in (OFFICIAL / "chats" / tier).glob("*/probing_questions"):
        chat = tmp_path / tier / asked.parent.name
        chat.mkdir(parents=True)
        (chat / "chat.json").write_text(json.dumps(CHAT))
        (chat / "probing_questions").symlink_to(asked)
    arguments = ["--tag", tag, "--src", str(tmp_path / tier), "--out-dir", str(tmp_path)]
    assert prepare_data.main(arguments) == 0
    questions = questions_text(tmp_path, tag)
    assert hashlib.sha256(questions).hexdigest() == DIGESTS[tag]["questions"]["sha256"]
    capsys.readouterr()
    assert check(tmp_path, "--tag", tag) == 1
    screen = capsys.readouterr().out
    assert f"{tag} questions: ok: {DIGESTS[tag]['questions']['lines']} questions" in screen
    assert f"{tag} chats: differs: messages expected" in screen


def flattened(content: list[Any]) -> Iterator[dict[str, str]]:
    """The messages of a chat file, in the plainest way."""
    for batch in content:
        for key, value in batch.items():
            if key.startswith("plan-"):
                yield from flattened(value)
            elif key == "turns":
                yield from ({"role": m["role"], "content": m["content"]} for turn in value for m in turn)


@needs_release
@pytest.mark.parametrize(
    ("tier", "messages"),
    [
        ("1M", {"3": 1556, "6": 1772, "8": 1764}),
        ("100K", {"1": 188, "5": 238, "10": 344}),
        ("10M", {"4": 3214}),
    ],
)
def test_the_release_s_chats_go_through_unchanged(tier: str, messages: dict[str, int], tmp_path: Path) -> None:
    src = OFFICIAL / "chats" / tier
    assert prepare(src, tmp_path, "--chats", ",".join(messages)) == 0
    lines = chats_text(tmp_path).decode().split("\n")[:-1]
    assert len(lines) == len(messages)
    for (chat, count), line in zip(messages.items(), lines, strict=True):
        expected = list(flattened(json.loads((src / chat / "chat.json").read_bytes())))
        assert len(expected) == count
        assert line == json.dumps({"chat_id": chat, "messages": expected}, ensure_ascii=False)


@needs_release
def test_the_release_s_truncated_chat(tmp_path: Path) -> None:
    assert prepare(OFFICIAL / "chats/1M", tmp_path, "--chats", "6", "--prefer-truncated") == 0
    expected = json.loads((OFFICIAL / "chats/1M/6/chat_trunecated.json").read_bytes())
    assert json.loads(chats_text(tmp_path))["messages"] == list(flattened(expected))


# ---------------------------------------------------------------------------------------------------------------
# Memory and start-up.


def peak_bytes(*arguments: str | Path) -> int:
    """Most memory that a run of the program takes, the interpreter included."""
    program = f"""
import resource, subprocess, sys
subprocess.run([sys.executable, *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * {1 if sys.platform == "darwin" else 1024})
"""
    command: list[str | Path] = [sys.executable, "-c", program, HERE / "prepare_data.py", *arguments]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_memory_does_not_grow_with_the_chat(tmp_path: Path) -> None:
    """50 MB with one emoji in each message, for which Python takes four bytes a character: far less than the file."""
    turn = [user("wörter 😀 " * 150), assistant("and words " * 250)]
    files = chat_files([{f"plan-{n + 1}": [{"turns": [turn] * 1200}]} for n in range(10)])
    files["chat.json"] = json.dumps(files["chat.json"], ensure_ascii=False, indent=4).encode()
    assert len(files["chat.json"]) > 50_000_000
    src = make_tier(tmp_path / "src", {"1": files})
    peak = peak_bytes("--tag", "t", "--src", src, "--out-dir", tmp_path / "out")
    assert peak - peak_bytes("--version") < 15_000_000
    assert read_pair(Pair.of(tmp_path / "out", "t")).messages == {"1": 24_000}


def test_nothing_heavy_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    """Neither for --help nor for preparing from a checkout, which the standard library is enough for."""
    src = make_tier(tmp_path / "src", {"1": chat_files()})
    program = """
import sys, prepare_data
assert prepare_data.main(sys.argv[1:]) == 0
assert not {"httpx2", "openai", "tqdm", "huggingface_hub", "asyncio", "beam_endpoint"} & set(sys.modules)
"""
    command: list[str | Path] = [
        sys.executable,
        "-c",
        program,
        "--tag",
        "t",
        "--src",
        src,
        "--out-dir",
        tmp_path / "out",
    ]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(HERE)}, stdout=subprocess.DEVNULL)


# ---------------------------------------------------------------------------------------------------------------
# The vocabulary.

RANKS = b"aGVsbG8= 0\nd29ybGQ= 1\n"  # "hello" and "world"


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer folder whose manifest describes RANKS, in the place of the project's."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    manifest = {"sha256": hashlib.sha256(RANKS).hexdigest(), "bytes": len(RANKS), "tokens": 2}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(prepare_data, "TOKENIZER_DIR", folder)
    return folder


@pytest.mark.parametrize("source", ["tiktoken.model", "other name", "a folder"])
def test_vocabulary_from_a_file_or_folder(
    source: str, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / source
    if source == "a folder":
        path.mkdir()
    (path / "tiktoken.model" if path.is_dir() else path).write_bytes(RANKS)
    assert prepare_data.main(["--tokenizer", str(path)]) == 0
    assert {entry.name for entry in tokenizer.iterdir()} == {"manifest.json", "tiktoken.model"}
    assert (tokenizer / "tiktoken.model").read_bytes() == RANKS
    assert capsys.readouterr().out == f"installed {tokenizer / 'tiktoken.model'}\n", "alone, only that"
    assert check(tmp_path) == 0
    assert "vocabulary: ok: 2 tokens" in capsys.readouterr().out


def test_vocabulary_together_with_data(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(RANKS)
    src = make_tier(tmp_path / "src", {"1": chat_files()})
    assert prepare(src, tmp_path / "out", "--tokenizer", str(tmp_path / "v")) == 0
    assert (tokenizer / "tiktoken.model").exists()
    assert questions_text(tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(RANKS[:-1], "bytes expected 22, found 21", id="short"),
        pytest.param(RANKS.replace(b"1", b"2"), "SHA-256 expected ", id="another"),
        pytest.param(None, "No such file or directory; name tiktoken.model, its folder, or hub", id="no file"),
    ],
)
def test_wrong_vocabulary(
    content: bytes | None, problem: str, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiktoken.model"
    if content is not None:
        path.write_bytes(content)
    (tokenizer / "tiktoken.model").write_bytes(b"the one before")
    assert prepare_data.main(["--tokenizer", str(path)]) == 2
    screen = capsys.readouterr().err
    assert problem in screen
    assert screen.count("\n") == 1
    assert (tokenizer / "tiktoken.model").read_bytes() == b"the one before"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--check", "--tokenizer", "x"], id="check and install"),
        pytest.param(["--check", "--src", "x"], id="check and source"),
        pytest.param(["--tokenizer", "x", "--chats", "1"], id="alone with a selection of chats"),
    ],
)
def test_flags_that_do_not_go_together(
    arguments: list[str], tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare_data.main(arguments) == 2
    assert arguments[0] in capsys.readouterr().err


@needs_vocabulary
def test_the_vocabulary_itself(tokenizer: Path, tmp_path: Path) -> None:
    shutil.copy(HERE / "tokenizer/manifest.json", tokenizer)
    assert prepare_data.main(["--tokenizer", str(KIMI)]) == 0
    assert (tokenizer / "tiktoken.model").read_bytes() == KIMI.read_bytes()
    assert prepare_data.main(["--tokenizer", str(KIMI.parent)]) == 0


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a hub as one file needs."""

    protocol_version = "HTTP/1.1"
    content = RANKS

    def do_HEAD(self) -> None:
        there = self.path == "/moonshotai/Kimi-K2.6/resolve/main/tiktoken.model"
        self.send_response(200 if there else 404)
        if there:
            self.send_header("ETag", f'"{hashlib.sha1(self.content).hexdigest()}"')
            self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(self.content) if there else 0))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        if self.path.endswith("tiktoken.model"):
            self.wfile.write(self.content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("content", "environment", "code", "problem"),
    [
        pytest.param(RANKS, {}, 0, "", id="from the hub"),
        pytest.param(b"a login page", {}, 2, "is not the vocabulary of Kimi-K2.6", id="another file"),
        pytest.param(RANKS, {"HF_HUB_OFFLINE": "1"}, 2, "HF_HUB_OFFLINE", id="offline"),
        pytest.param(RANKS, {"HF_ENDPOINT": "nonsense"}, 2, "protocol", id="no URL"),
    ],
)
def test_vocabulary_from_the_hub(
    content: bytes, environment: dict[str, str], code: int, problem: str, tokenizer: Path, tmp_path: Path
) -> None:
    handler = type("ThisHub", (Hub,), {"content": content})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    program = "import pathlib, sys, prepare_data as p; p.TOKENIZER_DIR = pathlib.Path(sys.argv[1]); "
    program += "sys.exit(p.main(['--tokenizer', 'hub']))"
    clean = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    settings = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "hf")}
    settings |= {"PYTHONPATH": str(HERE), "HF_HUB_OFFLINE": "0"} | environment
    try:
        result = subprocess.run(
            [sys.executable, "-c", program, tokenizer],
            env={**clean, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert result.returncode == code, result.stderr
    assert problem in result.stderr
    assert result.stderr.count("\n") == (2 if code else 1), "where it comes from, and at most one error"
    assert (tokenizer / "tiktoken.model").exists() == (code == 0)
