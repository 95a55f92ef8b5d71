"""What a generation run counts, and what looks wrong about its answers as they come."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from beam_common.chats import Prompt, utf8_length
from beam_common.messages import say
from beam_common.progress import duration_text, short_count
from beam_common.reply import Reply
from beam_common.rows import Json, is_empty, key_of, name_of

REASONING_MARKS = re.compile(
    r"</?think(ing)?>|\[/?THINK\]|<\|channel\|?>|<\|(start|message)\|>|◁/?think▷|</?reasoning>",
    re.I,
)
FIRST_ANSWERS = 10  # that all end at the length limit
SHARE_OF_OUR_COUNT = 0.5  # prompt tokens reported below this share of ours: a silent cut
BYTES_A_TOKEN = 8  # more than any text has
EQUAL_COUNTS = 3  # of prompts that differ by so many bytes:
DIFFERENT_LENGTH = 96  # three questions of one chat may have as many tokens, and hardly differ so
NO_ROOM_SHARE = 0.5  # of max_tokens; an answer cut below it ran into the server's own window


class Tally:
    """Counts of questions are of the file, those of tokens of this run."""

    def __init__(self, total: int) -> None:
        self.total = total  # selected questions
        self.counts: Counter[str] = Counter()

    @property
    def left(self) -> int:
        return self.total - self.counts["answered"] - self.counts["failed"]

    def add_row(self, row: Json) -> None:
        if row.get("error") is not None:
            self.counts["failed"] += 1
        else:
            cut = row.get("finish_reason") == "length"
            self.counts.update(answered=1, empty=is_empty(row), cut=cut)

    def add_reply(self, reply: Reply) -> None:
        tokens = {"prompt": reply.prompt_tokens, "completion": reply.completion_tokens}
        for name, count in tokens.items():
            self.counts[name] += count or 0
            self.counts[f"unknown {name}"] += count is None
        if reply.cached_tokens is not None:
            self.counts["cached"] += reply.cached_tokens
            self.counts["of cached"] += reply.prompt_tokens or 0

    def cached_share(self) -> str:
        of = self.counts["of cached"]
        return f"{self.counts['cached'] / of:.1%}" if of else "not reported"

    def status(self) -> str:
        """For the progress; what matters most comes first."""
        tokens = short_count(self.counts["prompt"])
        counts = f"{self.counts['failed']:,} failed, {self.counts['empty']:,} empty"
        return f"{counts}, cached {self.cached_share()}, {tokens} tokens in"

    def lines(self, seconds: float) -> list[str]:
        """The closing statement."""
        n = self.counts
        lines = [
            f"answered: {n['answered']:,} of {self.total:,} selected",
            f"  of them empty: {n['empty']:,}",
            f"  of them ended at the length limit: {n['cut']:,}",
            f"failed: {n['failed']:,}",
        ]
        for name in ("prompt", "completion"):
            unknown = n[f"unknown {name}"]
            note = f" (unknown for {unknown:,})" if unknown else ""
            lines.append(f"{name} tokens of this run: {n[name]:,}{note}")
        cached = f"cached share of the prompt tokens: {self.cached_share()}"
        return [*lines, cached, f"elapsed: {duration_text(seconds)}"]


class Suspicions:
    """Warnings about answers, each at most once a run."""

    def __init__(self, max_tokens: int | None) -> None:
        self._max_tokens = max_tokens or 0
        self._said: set[str] = set()
        self._answers = self._cut = 0
        self._sizes: dict[int, set[int]] = defaultdict(set)  # bytes of prompts, by their tokens

    def look_at(self, row: Json, prompt: Prompt) -> None:
        """`row`: an answer of this run; `prompt`: what it was asked with."""
        name = name_of(key_of(row))
        self._answers += 1
        if REASONING_MARKS.search(row["response"]):
            self._warn(
                "reasoning",
                f"{name}: the answer holds marks of reasoning; answers are stored and judged as "
                "received: start the server with a reasoning parser if they should not be there",
            )
        if row["finish_reason"] == "length":
            self._cut += 1
            if self._cut == self._answers == FIRST_ANSWERS:
                self._warn(
                    "all cut",
                    f"the first {FIRST_ANSWERS} answers all ended at the length limit: what they "
                    "would have said is lost; raise --max-tokens, or let the model think less",
                )
            tokens = row["completion_tokens"]
            if tokens is not None and tokens < NO_ROOM_SHARE * self._max_tokens:
                self._warn(
                    "no room",
                    f"{name}: the answer ended after {tokens:,} of {self._max_tokens:,} tokens: "
                    "the server's window left no room; raise --reserve-tokens or lower "
                    "--max-context-tokens",
                )
        reported = row["prompt_tokens"]
        if reported is not None and self._is_too_small(reported, row["question"], prompt):
            self._warn(
                "cut prompt",
                f"{name}: the endpoint reports {reported:,} prompt tokens for "
                f"{prompt.kept_bytes:,} bytes of chat: it may cut long prompts silently, so that "
                "its answers are about another chat; lower --max-context-tokens to what it takes",
            )

    def _is_too_small(self, reported: int, question: str, prompt: Prompt) -> bool:
        """Whether a prompt must have more tokens than that."""
        sizes = self._sizes[reported]
        sizes.add(utf8_length(question) + prompt.kept_bytes)
        if len(sizes) >= EQUAL_COUNTS and max(sizes) - min(sizes) >= DIFFERENT_LENGTH:
            return True
        by_bytes = prompt.kept_bytes / BYTES_A_TOKEN
        return reported < (SHARE_OF_OUR_COUNT * prompt.kept_tokens if prompt.counted else by_bytes)

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            say(f"warning: {text}")
