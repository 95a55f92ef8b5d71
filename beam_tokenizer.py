"""Counting tokens for truncation: with the bundled Kimi-K2.6 vocabulary, or with any tokenizer that transformers loads.

Counts are of each text alone: the text of special tokens counts as plain text and nothing is added. Making a counter
reads nothing heavy; `check()` tells before anything is sent whether counting will work, `load()` does the slow part,
and `count()` does it by itself if need be. Counters may be used from several threads.
"""

from __future__ import annotations

import binascii
import hashlib
import importlib.util
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beam_common import TOKENIZER_DIR, UsageError, one_line, say

if TYPE_CHECKING:
    from beam_chats import TokenCounter

KIMI = "Kimi-K2.6"  # as --tokenizer: the bundled one

# tiktoken panics at a run of 999,999 blanks, with memory growing up to there: longer runs than this are counted apart.
# (Before 0.13 it also panicked at as many letters and was slow long before that: requirements.txt asks for a newer one.)
BLANKS_AT_ONCE = 100_000
# Regular expressions of other tokenizers give up on (or panic at) runs of some million characters.
CHARACTERS_AT_ONCE = 200_000
BATCH_CHARACTERS = 500_000  # handed to the tokenizers library at a time: bounds the memory of its results
FEWEST_TOKENS = 256  # a vocabulary with fewer tokens than there are bytes is a shell without its files

# White space of the Unicode property, as \s in the split pattern, but line ends; Python's own \s has four more.
_BLANKS = re.compile("[\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_EVERYTHING = "(?s:.+)"  # a split pattern that keeps a text in one piece
_WAYS_OUT = (
    "install it with `python prepare_data.py --tokenizer hub` (or the path of a local copy in place of hub), point "
    "--tokenizer at another tokenizer, or pass an empty --tokenizer to send chats whole"
)


def load_counter(spec: str, trust_remote_code: bool = False) -> TokenCounter:
    """The counter for a non-empty `--tokenizer`: `KIMI`, a Hugging Face id, or the path of a folder."""
    return bundled_counter() if spec == KIMI else LibraryCounter(spec, trust_remote_code)


# ---------------------------------------------------------------------------------------------------------------
# Texts that tokenizers cannot take as they are.


def well_formed(text: str) -> str:
    """`text` with U+FFFD for each lone surrogate, which no tokenizer takes; a pair of them becomes its character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def without_long_blanks(text: str, limit: int) -> tuple[list[str], list[str]]:
    """Cut runs of more than `limit` blanks out of `text`: (stretches to split by the pattern, runs that are one piece).

    Exact for the split pattern of Kimi-K2.6: before such a run a piece always ends; the run up to its last blank is a
    piece, and that blank belongs to what follows, unless the text ends there. A run before a line end stays, since it
    is matched together with it, by an alternative without look-ahead.
    """
    if len(text) <= limit:
        return [text], []
    stretches, runs, start = [], [], 0
    for found in _BLANKS.finditer(text):
        first, end = found.span()
        if end - first <= limit or text[end : end + 1] in ("\r", "\n"):
            continue
        cut = end if end == len(text) else end - 1
        stretches.append(text[start:first])
        runs.append(text[first:cut])
        start = cut
    return [*stretches, text[start:]], runs


def parts_of(text: str, limit: int = CHARACTERS_AT_ONCE) -> Iterator[str]:
    """`text` in parts of at most `limit` characters, cut before a space where there is one, so that no word is cut.

    A tokenizer whose rules are not known counts fewer than 4 tokens more or less for each cut (measured on five kinds:
    at most 2.5, as a mean over a text's cuts). Texts up to `limit` are never cut.
    """
    start = 0
    while len(text) - start > limit:
        space = text.rfind(" ", start + 1, start + limit)
        cut = space if space > 0 else start + limit
        yield text[start:cut]
        start = cut
    yield text[start:]


# ---------------------------------------------------------------------------------------------------------------
# The bundled tokenizer.


@dataclass(frozen=True)
class Vocabulary:
    """What the manifest says of a vocabulary: where it stands, how it is recognised, how texts are split for it."""

    name: str
    path: Path
    size: int  # bytes
    sha256: str
    pattern: str

    def read(self) -> bytes:
        """The file's content. Raises UsageError, with the ways out, where it is missing or another one."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            raise UsageError(f"the vocabulary of {self.name}, needed to count, is not installed: {_WAYS_OUT}") from None
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read ({error.strerror}): {_WAYS_OUT}") from error
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise UsageError(
                f"{self.path} is not the vocabulary of {self.name} (expected {self.size:,} bytes with SHA-256 "
                f"{self.sha256[:12]}…, found {len(content):,} with {digest[:12]}…): {_WAYS_OUT}"
            )
        return content


def read_manifest(folder: Path = TOKENIZER_DIR) -> Vocabulary:
    """Read `manifest.json` of `folder`; raises UsageError where it is missing or damaged."""
    path = folder / "manifest.json"
    try:
        row = json.loads(path.read_bytes())
        pattern = "|".join(row["split_pattern"])
        return Vocabulary(row["name"], folder / row["file"], row["bytes"], row["sha256"], pattern)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = one_line(repr(error), 80)
        raise UsageError(f"{path} is missing or damaged ({problem}); restore it from the repository") from error


def bundled_counter(folder: Path = TOKENIZER_DIR) -> BundledCounter:
    """The counter for the manifest and the vocabulary in `folder`."""
    return BundledCounter(read_manifest(folder))


class BundledCounter:
    """Counts with tiktoken and a vocabulary of ranks; no code of a model's repository runs. Exact for every text."""

    bytes_bound = True  # each token covers at least one byte

    def __init__(self, vocabulary: Vocabulary, blanks_at_once: int = BLANKS_AT_ONCE) -> None:
        self.name = f"{vocabulary.name} (sha256 {vocabulary.sha256[:12]})"
        self._vocabulary, self._limit = vocabulary, blanks_at_once
        self._lock = threading.RLock()
        self._ranks: dict[bytes, int] = {}
        self._encodings: dict[str, Any] = {}  # split pattern: tiktoken.Encoding

    def check(self) -> None:
        """Raise UsageError unless count() will work; a few milliseconds."""
        if importlib.util.find_spec("tiktoken") is None:
            raise UsageError("counting tokens needs the package tiktoken: pip install -r requirements.txt")
        self._vocabulary.read()

    def load(self) -> None:
        """Read the vocabulary, once: 0.4 s, of which building the encoding holds the interpreter for 0.2 s."""
        self._encoding(self._vocabulary.pattern)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        encode = self._encoding(self._vocabulary.pattern).encode_ordinary
        counts = []
        for text in texts:
            stretches, runs = without_long_blanks(well_formed(text), self._limit)
            tokens = sum(len(encode(stretch)) for stretch in stretches)
            if runs:
                in_one_piece = self._encoding(_EVERYTHING).encode_ordinary
                tokens += sum(len(in_one_piece(run)) for run in runs)
            counts.append(tokens)
        return counts

    def _encoding(self, pattern: str) -> Any:
        with self._lock:
            if not self._ranks:
                lines = (line.split() for line in self._vocabulary.read().splitlines())
                self._ranks = {binascii.a2b_base64(token): int(rank) for token, rank in lines}
            if pattern not in self._encodings:
                import tiktoken

                self._encodings[pattern] = tiktoken.Encoding(
                    self._vocabulary.name, pat_str=pattern, mergeable_ranks=self._ranks, special_tokens={}
                )
            return self._encodings[pattern]


# ---------------------------------------------------------------------------------------------------------------
# Any other tokenizer.


class LibraryCounter:
    """Counts with what `transformers.AutoTokenizer` loads for an id or a folder."""

    bytes_bound = False  # a tokenizer may add a mark in front or spell out what it normalises

    def __init__(self, spec: str, trust_remote_code: bool) -> None:
        self.name, self._trust = spec, trust_remote_code
        self._lock = threading.Lock()
        self._encode: Callable[[list[str]], list[int]] | None = None

    def check(self) -> None:
        """Load the tokenizer, once; raises UsageError where that fails. Seconds, more where it is fetched."""
        self.load()

    def load(self) -> Callable[[list[str]], list[int]]:
        with self._lock:
            if self._encode is None:
                with _Loading(self.name):
                    if Path(self.name).exists():
                        refuse_incomplete(Path(self.name))
                    else:
                        say(f"--tokenizer {self.name} is no local folder: looking for it on the Hugging Face hub")
                    self._encode = _library_encoder(self.name, self._trust)
            return self._encode

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text. Exact up to CHARACTERS_AT_ONCE characters; see `parts_of` for longer texts."""
        encode = self.load()
        counts = [0] * len(texts)
        parts = ((owner, part) for owner, text in enumerate(texts) for part in parts_of(well_formed(text)))
        for batch in batches(parts):
            for (owner, _), tokens in zip(batch, encode([part for _, part in batch]), strict=True):
                counts[owner] += tokens
        return counts


def batches(parts: Iterable[tuple[int, str]], characters: int = BATCH_CHARACTERS) -> Iterator[list[tuple[int, str]]]:
    """The parts in lists, each closed once it holds `characters` or more."""
    batch, size = [], 0
    for owner, part in parts:
        batch.append((owner, part))
        size += len(part)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def refuse_incomplete(path: Path) -> None:
    """Raise UsageError for a path that transformers would read without the tokenizer's own split pattern."""
    if not path.is_dir():
        raise UsageError(f"--tokenizer {path} is a file; name the folder that holds it")
    if any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return
    way_out = "name a folder with the tokenizer's files, or a Hugging Face id"
    if (path / "tiktoken.model").is_file():
        way_out = f"to use this vocabulary of {KIMI}, run `python prepare_data.py --tokenizer {path}`, then leave the flag out"
    raise UsageError(f"--tokenizer {path} holds no tokenizer.json or tokenizer_config.json; {way_out}")


def _library_encoder(spec: str, trust_remote_code: bool) -> Callable[[list[str]], list[int]]:
    """A function from texts to their numbers of tokens. Raises what transformers raises, ValueError for an empty shell."""
    for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY"):
        os.environ.setdefault(name, "error")  # read at import: advice on missing PyTorch, lines about retries
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(spec, trust_remote_code=trust_remote_code)
    if len(tokenizer) < FEWEST_TOKENS:
        raise ValueError(f"it has {len(tokenizer)} tokens: the file with its vocabulary is missing")
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)

    def encode_fast(texts: list[str]) -> list[int]:
        return [len(encoding) for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_slow(texts: list[str]) -> list[int]:
        options = {"add_special_tokens": False, "split_special_tokens": True, "truncation": False, "padding": False}
        return [len(ids) for ids in tokenizer(texts, **options)["input_ids"]]

    if not isinstance(backend, tokenizers.Tokenizer):
        encode_slow(["a trial"])  # what its own code does not support shows now
        return encode_slow
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True  # as plain text
    return encode_fast


class _Loading:
    """A context in which the errors of loading become a UsageError that names the flag and the way out.

    A class with __exit__ because the tokenizers library raises the bare class Exception for a file that it cannot
    read, and only that class itself is meant.
    """

    def __init__(self, spec: str) -> None:
        self._spec = spec

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        troubles = (OSError, ValueError, ImportError, LookupError, TypeError, AttributeError)
        if isinstance(error, troubles) or (error is not None and kind is Exception):
            raise UsageError(f"--tokenizer {self._spec}: {loading_problem(self._spec, error)}") from error


def loading_problem(spec: str, error: BaseException) -> str:
    """What an error of transformers means for the user, and the way out."""
    detail = one_line(str(error) or type(error).__name__, 160)
    folder = Path(spec)
    if "trust_remote_code" in str(error):
        bundled = f"; {KIMI} itself is read without it: leave --tokenizer out" if KIMI in spec else ""
        return f"it runs Python code of its own, which only --trust-remote-code allows{bundled}"
    if isinstance(error, ImportError):
        return f"a package is missing: {detail}; install it with pip"
    if isinstance(error, OSError) and not folder.exists():
        return (
            f"not found or not reached ({detail}); check the name, the network and HF_ENDPOINT, set HF_TOKEN where access "
            "is restricted, or pass the path of a local folder"
        )
    way_out = "its files may be incomplete, damaged, or newer than the installed transformers"
    if not (folder / "tokenizer.json").exists() and importlib.util.find_spec("sentencepiece") is None:
        way_out += "; without a tokenizer.json it may need `pip install sentencepiece`"
    return f"no tokenizer that transformers can read ({detail}); {way_out}"
