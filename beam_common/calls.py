"""What the judge is asked about an answer, and what has been asked already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from beam_common.failure import Failure
from beam_common.files import sha256_of_text
from beam_common.prompts import ALIGNMENT, Template, numbered
from beam_common.reply import Reply
from beam_common.rows import (
    ABSTENTION,
    EVENT_ORDERING,
    Json,
    QuestionKey,
    Row,
    identity,
    key_of,
)
from beam_common.verdict import (
    question_score,
    read_alignment,
    read_ordering,
    read_score,
    tau_score,
)


@dataclass(frozen=True)
class Prompts:
    criterion: Template
    ordering: Template
    mode: str  # strict or tau

    def settings(self) -> Row:
        """For the record: which prompts, by name and by digest."""
        ordering = ALIGNMENT if self.mode == "tau" else self.ordering
        return {
            "criterion_prompt": self.criterion.name,
            "criterion_prompt_sha256": self.criterion.sha256,
            "ordering_prompt": ordering.name,
            "ordering_prompt_sha256": ordering.sha256,
            "event_ordering": self.mode,
        }


@dataclass(frozen=True)
class Call:
    """One call of the judge: about one item of a rubric, or about the order of all."""

    answer: Json
    item: int
    criterion: str
    prompts: Prompts

    def prompt(self) -> str:
        """Made when it is needed: long responses times their criteria are not held in memory."""
        texts = {
            "question": self.answer.get("question") or "",
            "response": self.answer["response"] or "",
        }
        if self.answer["question_type"] != EVENT_ORDERING:
            return self.prompts.criterion.fill({**texts, "rubric_item": self.criterion})
        if self.prompts.mode == "tau":
            lines = numbered(response_lines(self.answer))
            return ALIGNMENT.fill({**texts, "response": lines, "reference_order": self.criterion})
        return self.prompts.ordering.fill({**texts, "reference_order": self.criterion})

    def read(self, reply: Reply) -> float | None:
        """The level of a reply, 0.0–1.0; None where it cannot be read."""
        if self.answer["question_type"] != EVENT_ORDERING:
            return read_score(reply.text, reply.finish_reason, self.prompts.criterion.text)
        if self.prompts.mode == "strict":
            return read_ordering(reply.text, reply.finish_reason, self.prompts.ordering.text)
        events, lines = self.answer["rubric"], len(response_lines(self.answer))
        order = read_alignment(reply.text, reply.finish_reason, lines, events)
        return None if order is None else tau_score(order, len(events))


def response_lines(answer: Json) -> list[str]:
    return [line for line in (answer["response"] or "").splitlines() if line.strip()]


def calls_for(answer: Json, prompts: Prompts) -> list[Call]:
    """One call for each criterion; one for a question of event_ordering."""
    rubric = answer["rubric"]
    criteria = [numbered(rubric)] if answer["question_type"] == EVENT_ORDERING else rubric
    return [Call(answer, item, criterion, prompts) for item, criterion in enumerate(criteria)]


def scores_without_call(answer: Json) -> bool:
    """Whether an answer scores 0 unseen: its question failed, or it is blank and no abstention."""
    blank = not (answer["response"] or "").strip()
    return bool(answer["error"]) or (blank and answer["question_type"] != ABSTENTION)


def verdict_row(call: Call, sha256: str, outcome: Reply | Failure) -> Row:
    """The line of one reply, or of the failure of one call: see rows.VerdictRow."""
    failed = isinstance(outcome, Failure)
    reply = Reply("") if isinstance(outcome, Failure) else outcome
    level = None if failed else call.read(reply)
    return identity(call.answer) | {
        "item": call.item,
        "criterion": call.criterion,
        "prompt_sha256": sha256,
        "status": "failed" if failed else "unreadable" if level is None else "scored",
        "level": level,
        "reply": None if failed else reply.text,
        "finish_reason": reply.finish_reason,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "error": outcome.text if isinstance(outcome, Failure) else None,
    }


def verdict_key(row: Json) -> tuple[QuestionKey, int]:
    return key_of(row), row["item"]


class Known:
    """The verdicts on disk, without the judge's words: what is left to ask follows from them."""

    def __init__(self, most: int, retry_errors: bool) -> None:
        self._most = most  # replies in all that a verdict may take
        self._retry_errors = retry_errors
        self._unreadable: Counter[tuple[QuestionKey, int, str]] = Counter()

    def keep(self, row: Row) -> Row:
        """What is held of a row; counts the replies that could not be read."""
        if row["status"] == "unreadable":
            self._unreadable[key_of(row), row["item"], row["prompt_sha256"]] += 1
        return {name: row.get(name) for name in ("prompt_sha256", "status", "level", "error")}

    def tries(self, call: Call, sha256: str, row: Json | None) -> int:
        """How many replies may be asked for; 0 where the verdict on disk, `row`, stands."""
        if row is None or row["prompt_sha256"] != sha256:
            return self._most
        if row["status"] == "scored":
            return 0
        if self._retry_errors:
            return self._most
        had = self._unreadable[key_of(call.answer), call.item, sha256]
        return max(0, self._most - had) if row["status"] == "unreadable" else 0


@dataclass(eq=False)
class Question:
    """An answer while it is judged: the levels that stand, and the calls left to make."""

    answer: Json
    mode: str
    levels: dict[int, float | None] = field(default_factory=dict)
    calls: list[tuple[Call, int]] = field(default_factory=list)  # each with its tries

    @classmethod
    def planned(
        cls,
        answer: Json,
        prompts: Prompts,
        verdicts: Mapping[tuple[QuestionKey, int], Json],
        known: Known,
    ) -> Question:
        question = cls(answer, prompts.mode)
        if scores_without_call(answer):
            return question
        for call in calls_for(answer, prompts):
            row = verdicts.get((key_of(answer), call.item))
            if tries := known.tries(call, sha256_of_text(call.prompt()), row):
                question.calls.append((call, tries))
            elif row:
                question.levels[call.item] = row["level"]
        return question

    def score(self) -> float:
        """The mean of the cut levels; a rank correlation stays as it is; 0 without a call."""
        is_tau = self.mode == "tau" and self.answer["question_type"] == EVENT_ORDERING
        return question_score(list(self.levels.values()), cut=not is_tau) if self.levels else 0.0

    def row(self) -> Row:
        """The line of the question's score: see rows.ScoreRow."""
        return identity(self.answer) | {"score": self.score()}
