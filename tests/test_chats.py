"""From the chats file to the shared bytes of a prompt."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from beam_common.chats import SLICE_BYTES, Chats, ChatsFile, Prompt, first_kept, sliced
from beam_common.messages import UsageError
from beam_common.rows import Message


class WordCounter:
    """Counts words; remembers what it was asked to count, and in which threads."""

    name = "words"

    def __init__(self, bytes_bound: bool = True, missing: bool = False) -> None:
        self.bytes_bound, self.missing = bytes_bound, missing
        self.counted: list[str] = []
        self.threads: set[threading.Thread] = set()

    def load(self) -> None:
        if self.missing:
            raise UsageError("no vocabulary")

    def count(self, texts: Sequence[str]) -> list[int]:
        self.threads.add(threading.current_thread())
        self.counted += texts
        return [len(text.split()) for text in texts]


def chat(*contents: str) -> list[Message]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]


def write_chats(path: Path, chats: dict[Any, list[Any]], packed: bool = True) -> Path:
    rows = ({"chat_id": c, "messages": m} for c, m in chats.items())
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    data = text.encode("utf-8", "backslashreplace")
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return path


def chats_of(
    tmp_path: Path, messages: list[Message], counter: Any = None, budget: int | None = None
) -> Chats:
    return Chats(ChatsFile(write_chats(tmp_path / "c.gz", {"1": messages})), counter, budget)


def sent(pieces: Sequence[bytes]) -> list[Message]:
    """The messages that the shared slices of a prompt hold."""
    return list(json.loads(b"[" + b"".join(pieces).removesuffix(b",") + b"]"))


# --- Truncation -----------------------------------------------------------------------------------

U, A = "user", "assistant"


@pytest.mark.parametrize(
    ("roles", "counts", "budget", "kept_from"),
    [
        pytest.param([U, A, U, A], [5, 5, 5, 5], 20, 0, id="fits-exactly"),
        pytest.param([U, A, U, A], [5, 5, 5, 5], 19, 2, id="one-over-drops-one-and-its-answer"),
        pytest.param([U, A, U, A], [5, 5, 5, 5], 10, 2, id="two-messages-fit"),
        pytest.param([U, A, U, A], [5, 5, 5, 5], 9, 4, id="an-answer-alone-does-not-stay"),
        pytest.param([U, A, A, U, A], [9, 1, 1, 1, 1], 4, 3, id="two-answers-in-a-row"),
        pytest.param([A, U, A], [1, 1, 1], 3, 0, id="fits-though-an-answer-comes-first"),
        pytest.param([A, U, A], [1, 1, 1], 2, 1, id="first-answer-dropped"),
        pytest.param([U, A], [9, 9], 1, 2, id="nothing-left"),
        pytest.param([], [], 1, 0, id="no-messages"),
        pytest.param([U, U, U], [3, 0, 3], 3, 1, id="an-empty-message-costs-nothing-and-stays"),
    ],
)
def test_first_kept(roles: list[str], counts: list[int], budget: int, kept_from: int) -> None:
    assert first_kept(roles, counts, budget) == kept_from


# --- The file -------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False], ids=["gzip", "plain"])
def test_chats_are_found_in_any_order(tmp_path: Path, packed: bool) -> None:
    chats = {n: chat(f"hello {n}", "…" * n) for n in range(1, 6)}
    file = ChatsFile(write_chats(tmp_path / "chats", chats, packed))
    for chat_id in "3152433":
        assert file.messages(chat_id) == chats[int(chat_id)]


def test_a_byte_order_mark_crlf_and_further_fields_do_no_harm(tmp_path: Path) -> None:
    row = {"note": "x", "messages": [{"content": "c", "id": 7, "role": "user"}], "chat_id": "a-1"}
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(row).encode() + b"\r\n\r\n")
    assert ChatsFile(path).messages("a-1") == [{"role": "user", "content": "c"}]
    path.write_bytes(gzip.compress(b'{"chat_id": "1", "messages": []}\n'))
    digest = "26fa5714a76b9a33c84d059003f6ae77"  # of the unpacked text
    assert ChatsFile(path).sha256.startswith(digest)


GOOD = json.dumps({"chat_id": "1", "messages": chat("a", "b")}).encode() + b"\n"


def of_messages(messages: Any) -> bytes:
    return json.dumps({"chat_id": "2", "messages": messages}).encode()


@pytest.mark.parametrize(
    ("data", "named"),
    [
        pytest.param(gzip.compress(GOOD)[:-9], "damaged gzip", id="gzip-cut"),
        pytest.param(GOOD + b'{"chat_id": "2", "messages": [', "line 2", id="last-line-torn"),
        pytest.param(GOOD + b'{"chat_id": 1, "messages": []}', "line 2: .*twice", id="twice"),
        pytest.param(b"\xff\xfe" + GOOD, "line 1", id="utf-16"),
        pytest.param(GOOD + of_messages([{"role": "user"}]), "line 2", id="no-content"),
        pytest.param(GOOD + of_messages([{"content": "x"}]), "line 2", id="no-role"),
        pytest.param(GOOD + of_messages(["x"]), "line 2", id="a-message-that-is-a-text"),
        pytest.param(GOOD + of_messages(None), "line 2", id="messages-null"),
        pytest.param(None, "No such file", id="missing"),
    ],
)
def test_damage_is_found_before_anything_is_sent(
    tmp_path: Path, data: bytes | None, named: str
) -> None:
    if data is not None:
        (tmp_path / "c.gz").write_bytes(data)
    with pytest.raises(UsageError, match=named) as found:
        ChatsFile(tmp_path / "c.gz")
    assert "\n" not in str(found.value)


def test_questions_must_be_about_chats_of_the_file(tmp_path: Path) -> None:
    row = {"question_type": "abstention", "question_index": 0}
    rows: Any = [{**row, "chat_id": 1}, {**row, "chat_id": "2"}]
    file = ChatsFile(write_chats(tmp_path / "c.gz", {"1": chat("a")}))
    file.check(rows[:1], tmp_path / "q.jsonl")
    with pytest.raises(UsageError, match=r"q\.jsonl: chat 2 abstention/0 .* not in .*c\.gz"):
        file.check(rows, tmp_path / "q.jsonl")


# --- Prompts --------------------------------------------------------------------------------------

ODD = ("🦜", "记忆", 'quotes " and \\', "\x00\x07\t\n", "\u2028\u2029\x85", "", "cut \ud83d off")


def test_the_bytes_of_a_prompt(tmp_path: Path) -> None:
    """No blanks between values, text as itself, lone surrogates as JSON escapes."""
    prompt = chats_of(tmp_path, chat("é\n\ud83d")).build("1")
    assert prompt.pieces == ('{"role":"user","content":"é\\n\\ud83d"},'.encode(),)
    assert sent(chats_of(tmp_path, chat(*ODD)).build("1").pieces) == chat(*ODD)


def test_slices_are_of_bounded_size_and_join_to_the_whole() -> None:
    messages = chat(*[f"{n} " + "x" * 1000 for n in range(1000)])
    pieces = sliced(messages)
    assert sent(pieces) == messages
    assert all(len(piece) < SLICE_BYTES + 1 for piece in pieces)
    assert len(pieces) == 4  # of 1,040 kB


def test_a_chat_that_fits_by_its_bytes_is_not_counted(tmp_path: Path) -> None:
    counter = WordCounter(missing=True)
    chats = chats_of(tmp_path, chat("one two", "é"), counter, 9)
    chats.prepare(["1"])
    prompt = chats.build("1")
    assert (prompt.counted, prompt.tokens, prompt.kept_bytes) == (False, 9, 9)
    assert counter.counted == []
    with pytest.raises(UsageError, match="no vocabulary"):  # before anything is sent
        chats_of(tmp_path, chat("one two", "é"), counter, 8).prepare(["1"])


def test_a_byte_more_and_it_is_counted_once_however_often_it_is_read(tmp_path: Path) -> None:
    counter = WordCounter()
    chats = chats_of(tmp_path, chat("one two", "é"), counter, 8)
    for _ in range(3):
        assert chats.build("1").tokens == 3
    assert counter.counted == ["one two", "é"]


def test_truncation_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chats = chats_of(tmp_path, chat("a a a", "b b", "c c", "d"), WordCounter(), 4)
    for _ in range(2):
        prompt = chats.build("1")
    assert sent(prompt.pieces) == chat("c c", "d")
    assert (prompt.messages, prompt.first, prompt.tokens, prompt.kept_tokens) == (4, 2, 8, 3)
    assert (prompt.kept_bytes, prompt.counted) == (4, True)
    assert capsys.readouterr().err == (
        "chat 1: 8 tokens, over the budget of 4: the oldest 2 of 4 messages are left out, "
        "3 tokens stay\n"
    )


def test_each_cut_drops_twice_the_share_of_what_is_left(tmp_path: Path) -> None:
    chats = chats_of(tmp_path, [{"role": "user", "content": "x" * 10}] * 1000)
    kept = [1000]
    while chats.shrink(prompt := chats.build("1")):
        assert chats.shrink(prompt), "no further cut for a prompt that was built before the last"
        kept.append(1000 - chats.build("1").first)
    # less 2 %, 4 %, 8 % … of 1000, 980, 940 …: whole messages
    assert kept == [1000, 980, 940, 864, 725, 493, 177]
    assert chats.shrunk == {"1": 823}
    assert sent(prompt.pieces) == [{"role": "user", "content": "x" * 10}] * 177


def test_a_short_chat_shrinks_to_its_last_exchange_and_no_further(tmp_path: Path) -> None:
    chats = chats_of(tmp_path, chat("a", "b", "c", "d"))
    assert chats.shrink(chats.build("1"))
    assert sent(chats.build("1").pieces) == chat("c", "d")
    assert not chats.shrink(chats.build("1"))
    assert chats.shrunk == {"1": 2}


def test_a_cut_recorded_by_an_earlier_run_is_applied(tmp_path: Path) -> None:
    counter = WordCounter()
    chats = chats_of(tmp_path, chat("a a", "b", "c", "d", "e", "f"), counter, 6)
    chats.shrunk["1"] = 4
    prompt = chats.build("1")
    assert sent(prompt.pieces) == chat("e", "f")
    assert (prompt.first, prompt.tokens, prompt.kept_tokens) == (4, 7, 2)


def test_all_who_ask_share_one_prompt_built_off_the_event_loop(tmp_path: Path) -> None:
    counter = WordCounter(bytes_bound=False)
    chats = chats_of(tmp_path, chat("one two", "three"), counter, 100)

    async def ask() -> None:
        cancelled = asyncio.create_task(chats.prompt("1"))
        await asyncio.sleep(0)
        cancelled.cancel()  # one question that is given up takes nothing from the others
        prompts = await asyncio.gather(*[chats.prompt("1") for _ in range(20)])
        assert {id(prompt) for prompt in prompts} == {id(await chats.prompt("1"))}

    asyncio.run(ask())
    assert counter.counted == ["one two", "three"]
    assert counter.threads.isdisjoint({threading.main_thread()})


def test_a_forgotten_or_shrunk_prompt_is_built_anew(tmp_path: Path) -> None:
    chats = chats_of(tmp_path, chat("a", "b", "c", "d"))

    async def ask() -> list[Prompt]:
        prompts = [await chats.prompt("1")]
        chats.forget("1")
        prompts.append(await chats.prompt("1"))
        assert chats.shrink(prompts[-1])
        return [*prompts, await chats.prompt("1")]

    first, second, third = asyncio.run(ask())
    assert first is not second
    assert first == second
    assert sent(third.pieces) == chat("c", "d")
