"""From the chats file to the shared bytes of a prompt."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from beam_chats import SLICE_BYTES, ChatsFile, PromptBuilder, first_kept, sliced
from beam_common import UsageError

Message = dict[str, str]


class WordCounter:
    """Counts words; remembers what it was asked to count."""

    name = "words"

    def __init__(self, bytes_bound: bool = True, missing: bool = False) -> None:
        self.bytes_bound, self.missing = bytes_bound, missing
        self.counted: list[str] = []

    def check(self) -> None:
        if self.missing:
            raise UsageError("no vocabulary")

    def load(self) -> None:
        self.check()

    def count(self, texts: Sequence[str]) -> list[int]:
        self.counted += texts
        return [len(text.split()) for text in texts]


def chat(*contents: str) -> list[Message]:
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(contents)]


def write_chats(path: Path, chats: dict[Any, list[Any]], packed: bool = True) -> Path:
    text = "".join(json.dumps({"chat_id": c, "messages": m}, ensure_ascii=False) + "\n" for c, m in chats.items())
    data = text.encode("utf-8", "backslashreplace")
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return path


def sent(pieces: Sequence[bytes]) -> list[Message]:
    """The messages that the shared slices of a prompt hold."""
    return list(json.loads(b"[" + b"".join(pieces).rstrip(b",") + b"]"))


# --- Truncation -----------------------------------------------------------------------------------------------------

U, A = "user", "assistant"


@pytest.mark.parametrize(
    ("roles", "counts", "budget", "kept_from"),
    [
        pytest.param([U, A, U, A], [5, 5, 5, 5], 20, 0, id="fits-exactly"),
        pytest.param([U, A, U, A], [5, 5, 5, 5], 19, 2, id="one-over-drops-one-then-its-answer"),
        pytest.param([U, A, U, A], [5, 5, 5, 5], 10, 2, id="two-messages-fit"),
        pytest.param([U, A, U, A], [5, 5, 5, 5], 9, 4, id="an-answer-alone-does-not-stay"),
        pytest.param([U, A, U, A], [50, 1, 1, 1], 3, 2, id="big-first-message"),
        pytest.param([U, A, A, U, A], [9, 1, 1, 1, 1], 4, 3, id="two-answers-in-a-row"),
        pytest.param([A, U, A], [1, 1, 1], 3, 0, id="fits-though-an-answer-comes-first"),
        pytest.param([A, U, A], [1, 1, 1], 2, 1, id="first-answer-dropped"),
        pytest.param([U, A], [9, 9], 1, 2, id="nothing-left"),
        pytest.param([], [], 1, 0, id="no-messages"),
        pytest.param([U, U, U], [3, 0, 3], 3, 1, id="empty-message-costs-nothing-and-stays"),
    ],
)
def test_first_kept(roles: list[str], counts: list[int], budget: int, kept_from: int) -> None:
    assert first_kept(roles, counts, budget) == kept_from


# --- The file -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False], ids=["gzip", "plain"])
def test_chats_are_found_in_any_order(tmp_path: Path, packed: bool) -> None:
    chats = {str(n): chat(f"hello {n}", "…" * n) for n in range(1, 6)}
    file = ChatsFile(write_chats(tmp_path / "chats", chats, packed))
    for chat_id in "3152433":
        assert file.messages(chat_id) == chats[chat_id]


def test_the_digest_is_of_the_unpacked_text(tmp_path: Path) -> None:
    chats = {"1": chat("a", "b")}
    packed = ChatsFile(write_chats(tmp_path / "a.gz", chats))
    plain = ChatsFile(write_chats(tmp_path / "b.jsonl", chats, packed=False))
    assert packed.sha256 == plain.sha256


def test_a_number_as_chat_id_is_the_same_as_its_text(tmp_path: Path) -> None:
    file = ChatsFile(write_chats(tmp_path / "c.gz", {3: chat("a")}))
    assert list(file.places) == ["3"]


def test_further_keys_and_another_order_of_keys_are_read(tmp_path: Path) -> None:
    row = {"note": "x", "messages": [{"content": "c", "id": 7, "role": "user"}], "chat_id": "a-1"}
    (tmp_path / "c.jsonl").write_text(json.dumps(row) + "\n")
    file = ChatsFile(tmp_path / "c.jsonl")
    assert file.messages("a-1") == [{"role": "user", "content": "c"}]


def test_a_byte_order_mark_and_crlf_do_no_harm(tmp_path: Path) -> None:
    row = json.dumps({"chat_id": "1", "messages": chat("a")}).encode()
    (tmp_path / "c.jsonl").write_bytes(b"\xef\xbb\xbf" + row + b"\r\n")
    assert ChatsFile(tmp_path / "c.jsonl").messages("1") == chat("a")


GOOD = json.dumps({"chat_id": "1", "messages": chat("a", "b")}).encode() + b"\n"


@pytest.mark.parametrize(
    ("data", "named"),
    [
        pytest.param(gzip.compress(GOOD * 1)[:-9], "damaged gzip", id="gzip-cut"),
        pytest.param(gzip.compress(GOOD)[:20] + b"\0" * 30, "damaged gzip", id="gzip-overwritten"),
        pytest.param(GOOD + b'{"chat_id": "2", "messages": [', "line 2", id="last-line-torn"),
        pytest.param(GOOD + b"{}\n", "line 2", id="no-chat"),
        pytest.param(GOOD + b'["chat_id"]\n', "line 2", id="a-list"),
        pytest.param(GOOD + GOOD, "line 1 and on line 2", id="twice"),
        pytest.param(b"\xff\xfe" + GOOD, "line 1", id="utf-16"),
    ],
)
def test_damage_is_found_before_anything_is_sent(tmp_path: Path, data: bytes, named: str) -> None:
    (tmp_path / "c.gz").write_bytes(data)
    with pytest.raises(UsageError, match=named) as found:
        ChatsFile(tmp_path / "c.gz")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "messages",
    [[{"role": "user"}], [{"role": None, "content": "x"}], ["x"], [{"role": "user", "content": None}], "x", None],
    ids=["no-content", "role-null", "a-text", "content-null", "messages-a-text", "messages-null"],
)
def test_a_chat_of_another_shape_is_named_by_its_line(tmp_path: Path, messages: Any) -> None:
    with pytest.raises(UsageError, match="line 1"):
        ChatsFile(write_chats(tmp_path / "c.gz", {"1": messages})).messages("1")


# --- Prompts --------------------------------------------------------------------------------------------------------


def builder(tmp_path: Path, messages: list[Message], counter: WordCounter | None, budget: int | None) -> PromptBuilder:
    return PromptBuilder(ChatsFile(write_chats(tmp_path / "c.gz", {"1": messages})), counter, budget)


ODD = ["emoji 🦜", "CJK 记忆", 'quotes " and \\', "control \x00\x07\t\n", "separators \u2028\u2029\x85", ""]


@pytest.mark.parametrize("text", [*ODD, "lone \ud83d surrogate"], ids=range(len(ODD) + 1))
def test_contents_arrive_as_they_are(tmp_path: Path, text: str) -> None:
    messages = chat(text, "answer", text)
    assert sent(builder(tmp_path, messages, None, None).build("1").pieces) == messages


def test_a_chat_that_fits_by_its_bytes_is_not_counted(tmp_path: Path) -> None:
    counter = WordCounter(missing=True)
    built = builder(tmp_path, chat("one two", "é"), counter, 9)
    built.prepare(["1"])
    prompt = built.build("1")
    assert (prompt.tokens, prompt.kept_bytes, counter.counted) == (None, 9, [])


def test_a_byte_more_and_it_is_counted_once_however_often_it_is_read(tmp_path: Path) -> None:
    counter = WordCounter()
    built = builder(tmp_path, chat("one two", "é"), counter, 8)
    for _ in range(3):
        assert built.build("1").tokens == 3
    assert counter.counted == ["one two", "é"]


def test_a_tokenizer_without_the_byte_bound_always_counts(tmp_path: Path) -> None:
    counter = WordCounter(bytes_bound=False)
    assert builder(tmp_path, chat("one two"), counter, 100).build("1").tokens == 2


def test_a_missing_vocabulary_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no vocabulary"):
        builder(tmp_path, chat("one two", "three"), WordCounter(missing=True), 5).prepare(["1"])


def test_truncation_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = builder(tmp_path, chat("a a a", "b b", "c c", "d"), WordCounter(), 4)
    for _ in range(2):
        prompt = built.build("1")
    assert sent(prompt.pieces) == [{"role": "user", "content": "c c"}, {"role": "assistant", "content": "d"}]
    assert (prompt.first, prompt.tokens, prompt.kept_tokens) == (2, 8, 3)
    assert capsys.readouterr().err.count("chat 1: 8 tokens, over the budget of 4") == 1


def test_nothing_left_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = builder(tmp_path, chat("a a a", "b b b"), WordCounter(), 2).build("1")
    assert prompt.pieces == ()
    assert "nothing is left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("over", "kept_from"),
    [
        pytest.param((200, 100), 12, id="half-of-it-is-too-much"),
        pytest.param((1000, 990), 2, id="a-hundredth"),
        pytest.param(None, 2, id="not-stated-two-percent"),
        pytest.param((10**6, 1), 20, id="nearly-everything-is-not-possible"),
    ],
)
def test_shrinking_drops_what_the_endpoint_states(tmp_path: Path, over: tuple[int, int] | None, kept_from: int) -> None:
    built = builder(tmp_path, chat(*["word " * 10] * 20), None, None)
    possible = built.shrink(built.build("1"), over)
    assert possible == (kept_from < 20)
    assert built.build("1").first == (kept_from if possible else 0)


def test_a_prompt_knows_that_another_question_has_shrunk_the_chat(tmp_path: Path) -> None:
    built = builder(tmp_path, chat(*["word " * 10] * 20), None, None)
    first = built.build("1")
    assert not built.is_cut_further(first)
    assert built.shrink(first, None)
    assert built.is_cut_further(first)
    assert not built.is_cut_further(built.build("1"))


def test_slices_are_of_bounded_size_and_join_to_the_whole() -> None:
    messages = chat(*[f"{n} " + "x" * 1000 for n in range(1000)])
    pieces = list(sliced(messages))
    assert sent(pieces) == messages
    assert all(len(piece) < SLICE_BYTES + 1100 for piece in pieces)
    assert len(pieces) > 3


def test_forward_reading_is_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats in the order of the file are read without going back; that is what keeps reading cheap."""
    file = ChatsFile(write_chats(tmp_path / "c.gz", {str(n): chat("x" * 50_000) for n in range(20)}))
    rewinds: list[int] = []
    raw: Any = file._file
    original: Callable[[], None] = raw._buffer.raw._rewind
    monkeypatch.setattr(raw._buffer.raw, "_rewind", lambda: (rewinds.append(1), original())[1])
    for n in range(20):
        file.messages(str(n))
    assert len(rewinds) == 1, "once, after the scan"
