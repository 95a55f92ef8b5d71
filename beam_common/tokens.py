"""Counting tokens for truncation: with the bundled vocabulary of Kimi-K2.6, or with any tokenizer
that transformers loads.

Counts are of each text alone: the text of special tokens counts as plain text, nothing is added.
A counter is made quickly; `load()` does the slow part. It is used by one thread at a time.
"""

from __future__ import annotations

import binascii
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from beam_common.command import started_by
from beam_common.files import placeholder, sha256_of_file
from beam_common.messages import UsageError, one_line
from beam_common.rows import TOKENIZER_DIR

KIMI = "Kimi-K2.6"  # as --tokenizer: the bundled one
VOCABULARY_FILE = "tiktoken.model"

# tiktoken panics at a run of 999,999 blanks, with memory growing up to there: a longer run than
# this is counted in parts, which add up: the longest token of blanks, of 256, divides this.
MOST_BLANKS = 2**17
_LONG_RUN = re.compile(rf"(?<!\s)\s{{{MOST_BLANKS}}}(?=\s)")
FEWEST_TOKENS = 256  # a vocabulary with fewer tokens than there are bytes is a shell without files
PLAIN = {"add_special_tokens": False, "split_special_tokens": True}


class TokenCounter:
    """What truncation needs of a tokenizer."""

    name: str
    bytes_bound = False  # whether a text has at most as many tokens as UTF-8 bytes

    def load(self) -> None:
        """Read what counting needs. UsageError where that fails."""
        self.count(["a trial"])

    def count(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text."""
        raise NotImplementedError


def load_counter(spec: str, trust_remote_code: bool = False) -> TokenCounter:
    """The counter for a `--tokenizer` that is not empty: KIMI, a local path, a Hugging Face id.

    A path that is, or holds, the vocabulary of the bundled tokenizer means that tokenizer,
    whatever lies beside it.
    """
    bundled = BundledCounter()
    if spec == KIMI:
        return bundled
    path = Path(spec, VOCABULARY_FILE) if Path(spec).is_dir() else Path(spec)
    if path.is_file() and sha256_of_file(path) == bundled.sha256:
        return BundledCounter(path)
    return LibraryCounter(spec, trust_remote_code)


def well_formed(text: str) -> str:
    """`text` with U+FFFD for each lone surrogate; a pair of them becomes its character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class BundledCounter(TokenCounter):
    """Counts with tiktoken and a file of ranks, exactly; no code of a model's repository runs.

    Loading takes 0.4 s, of which building the encoding holds the interpreter for 0.2 s.
    """

    bytes_bound = True  # each token covers at least one byte

    def __init__(self, path: Path | None = None, folder: Path = TOKENIZER_DIR) -> None:
        self.manifest = json.loads((folder / "manifest.json").read_bytes())
        self.sha256 = self.manifest["sha256"]
        self.name = f"{KIMI} (sha256 {self.sha256[:12]})"
        self._path = path or folder / VOCABULARY_FILE

    def count(self, texts: Sequence[str]) -> list[int]:
        return list(map(self._count, texts))

    def _count(self, text: str) -> int:
        tokens = 0
        while run := _LONG_RUN.search(text):
            tokens += len(self._encode(text[: run.end()]))
            text = text[run.end() :]
        return tokens + len(self._encode(text))

    @functools.cached_property
    def _encode(self) -> Callable[[str], list[int]]:
        import tiktoken

        lines = (line.split() for line in self.read().splitlines())
        encoding = tiktoken.Encoding(  # which itself reads lone surrogates as U+FFFD
            self.name,
            pat_str="|".join(self.manifest["split_pattern"]),
            mergeable_ranks={binascii.a2b_base64(token): int(rank) for token, rank in lines},
            special_tokens={},
        )
        return encoding.encode_ordinary

    def read(self) -> bytes:
        """The vocabulary's file, which is the known one. UsageError with the ways out."""
        try:
            content = self._path.read_bytes()
            if hashlib.sha256(content).hexdigest() == self.sha256:
                return content
            problem = placeholder(content) or f"this is not the vocabulary of {self.name}"
        except OSError as error:
            problem = str(error.strerror)
        raise UsageError(
            f"{self._path}, needed to count tokens: {problem}; install it with "
            f"`{started_by('prepare_data.py')} --tokenizer hub` (or the path of a local copy in "
            "place of hub), point --tokenizer at another tokenizer, or pass an empty --tokenizer "
            "to send chats whole"
        )


class LibraryCounter(TokenCounter):
    """Counts with what `transformers.AutoTokenizer` loads for an id or a folder: it may add a mark
    in front or spell out what it normalises, so that bytes bound nothing. Loading takes seconds."""

    def __init__(self, spec: str, trust_remote_code: bool) -> None:
        self.name, self._trusted = spec, trust_remote_code

    def count(self, texts: Sequence[str]) -> list[int]:
        return [len(self._encode(well_formed(text), **PLAIN)["input_ids"]) for text in texts]

    @functools.cached_property
    def _encode(self) -> Any:
        """What transformers loads; UsageError, in one line, for whatever goes wrong."""
        for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY"):
            os.environ.setdefault(name, "error")  # read at import: advice, lines on retries
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        from transformers import AutoTokenizer

        try:
            _refuse_own_code(self.name, self._trusted)
            load = AutoTokenizer.from_pretrained
            tokenizer = load(self.name, trust_remote_code=self._trusted)
            tokenizer("a trial", **PLAIN)  # what its own code does not support shows now
            if len(tokenizer) < FEWEST_TOKENS:
                raise ValueError(
                    f"{len(tokenizer)} tokens: the file with its vocabulary is missing"
                )
        except UsageError:
            raise
        except Exception as error:  # the libraries and a folder's own code raise whatever they like
            problem = one_line(str(error) or type(error).__name__, 160)
            raise UsageError(
                f"--tokenizer {self.name} cannot be loaded ({problem}); check the name, the "
                "network, HF_ENDPOINT and HF_TOKEN, or name a folder that holds all the files of "
                "a tokenizer"
            ) from error
        return tokenizer


def _refuse_own_code(spec: str, trusted: bool) -> None:
    """UsageError for a tokenizer that transformers would, without its code, read in another way."""
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    has_code = bool(get_tokenizer_config(spec).get("auto_map"))
    folder = Path(spec)
    only_ranks = (folder / VOCABULARY_FILE).exists() and not (folder / "tokenizer.json").exists()
    if (has_code and not trusted) or (only_ranks and not has_code):
        raise UsageError(
            f"--tokenizer {spec} needs Python code of its own: name a folder that holds it, and "
            f"pass --trust-remote-code to run it; {KIMI} itself needs none: leave --tokenizer out"
        )
