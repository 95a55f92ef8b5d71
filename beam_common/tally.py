"""What a generation run counts, and what looks wrong about its answers as they come."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from beam_common.chats import Prompt
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


def is_cut(row: Json) -> bool:
    """Whether an answer ended at the length limit."""
    return row.get("error") is None and row.get("finish_reason") == "length"


@dataclass
class Tally:
    """Tokens are of this run, questions of the file."""

    total: int  # selected questions
    answered: int = 0
    empty: int = 0
    cut: int = 0
    failed: int = 0
    tokens: Counter[str] = field(default_factory=Counter)  # prompt, completion, cached, of_cached
    unknown: Counter[str] = field(default_factory=Counter)  # replies that did not report a count

    def add_row(self, row: Json) -> None:
        if row.get("error") is not None:
            self.failed += 1
            return
        self.answered += 1
        self.empty += is_empty(row)
        self.cut += is_cut(row)

    def add_reply(self, reply: Reply) -> None:
        counts = {"prompt": reply.prompt_tokens, "completion": reply.completion_tokens}
        for name, count in counts.items():
            self.tokens[name] += count or 0
            self.unknown[name] += count is None
        if reply.cached_tokens is not None:
            self.tokens["cached"] += reply.cached_tokens
            self.tokens["of_cached"] += reply.prompt_tokens or 0

    def cached_share(self) -> str:
        of = self.tokens["of_cached"]
        return f"{self.tokens['cached'] / of:.1%}" if of else "not reported"

    def status(self) -> str:
        """For the progress; what matters most comes first."""
        tokens = short_count(self.tokens["prompt"])
        counts = f"{self.failed:,} failed, {self.empty:,} empty"
        return f"{counts}, cached {self.cached_share()}, {tokens} tokens in"

    def lines(self, seconds: float) -> list[str]:
        """The closing statement."""
        lines = [
            f"answered: {self.answered:,} of {self.total:,} selected",
            f"  of them empty: {self.empty:,}",
            f"  of them ended at the length limit: {self.cut:,}",
            f"failed: {self.failed:,}",
        ]
        for name in ("prompt", "completion"):
            unknown = f" (unknown for {self.unknown[name]:,})" if self.unknown[name] else ""
            lines.append(f"{name} tokens of this run: {self.tokens[name]:,}{unknown}")
        lines.append(f"cached share of the prompt tokens: {self.cached_share()}")
        lines.append(f"elapsed: {duration_text(seconds)}")
        return lines


class Suspicions:
    """Warnings about answers, each at most once a run."""

    def __init__(self, max_tokens: int | None) -> None:
        self._max_tokens = max_tokens
        self._said: set[str] = set()
        self._answers = self._cut = 0
        self._sizes: dict[int, list[int]] = defaultdict(list)  # bytes of prompts, by their tokens

    def look_at(self, row: Json, prompt: Prompt) -> None:
        """`row`: an answer of this run; `prompt`: what it was asked with."""
        name = name_of(key_of(row))
        if REASONING_MARKS.search(row["response"]):
            self._say_once(
                f"{name}: the answer holds marks of reasoning; answers are stored and judged as "
                "received: start the server with a reasoning parser if they should not be there"
            )
        self._look_for_cut_answers(row, name)
        if row["prompt_tokens"] is not None:
            self._look_for_cut_prompt(row, prompt, name)

    def _look_for_cut_answers(self, row: Json, name: str) -> None:
        self._answers += 1
        self._cut += is_cut(row)
        if self._cut == self._answers == FIRST_ANSWERS:
            self._say_once(
                f"the first {FIRST_ANSWERS} answers all ended at the length limit: what they would "
                "have said is lost; raise --max-tokens, or let the model think less"
            )
        completion, most = row["completion_tokens"], self._max_tokens or 0
        if is_cut(row) and completion is not None and completion < NO_ROOM_SHARE * most:
            self._say_once(
                f"{name}: the answer ended after {completion:,} of {most:,} tokens: the server's "
                "window left no room; raise --reserve-tokens or lower --max-context-tokens",
                "no room",
            )

    def _look_for_cut_prompt(self, row: Json, prompt: Prompt, name: str) -> None:
        reported = row["prompt_tokens"]
        if prompt.counted:
            expected = SHARE_OF_OUR_COUNT * prompt.kept_tokens
        else:
            expected = prompt.kept_bytes / BYTES_A_TOKEN
        sizes = self._sizes[reported]
        sizes.append(prompt.kept_bytes + len(row["question"].encode("utf-8", "surrogatepass")))
        differ = max(sizes) - min(sizes) >= DIFFERENT_LENGTH
        if reported < expected or (differ and len(set(sizes)) >= EQUAL_COUNTS):
            self._say_once(
                f"{name}: the endpoint reports {reported:,} prompt tokens for "
                f"{prompt.kept_bytes:,} bytes of chat: it may cut long prompts silently, so that "
                "its answers are about another chat; lower --max-context-tokens to what it takes",
                "cut prompt",
            )

    def _say_once(self, text: str, kind: str = "") -> None:
        kind = kind or text.partition(": ")[2] or text
        if kind not in self._said:
            self._said.add(kind)
            say(f"warning: {text}")
