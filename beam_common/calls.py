"""What the judge is asked about an answer, and what has been asked already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from beam_common.failure import Failure
from beam_common.files import sha256_of_text
from beam_common.prompts import Template, numbered
from beam_common.record import outcome_columns
from beam_common.reply import Outcome, Reply
from beam_common.rows import ABSTENTION, EVENT_ORDERING, Json, QuestionKey, Row, identity, key_of
from beam_common.verdict import (
    question_score,
    read_alignment,
    read_ordering,
    read_score,
    tau_score,
)

VerdictKey = tuple[QuestionKey, int]


@dataclass(frozen=True)
class Prompts:
    criterion: Template
    ordering: Template
    mode: str  # of event_ordering: strict or tau

    def settings(self) -> Row:
        """For the record: which prompts, by name and by digest."""
        return {
            "criterion_prompt": self.criterion.name,
            "criterion_prompt_sha256": self.criterion.sha256,
            "ordering_prompt": self.ordering.name,
            "ordering_prompt_sha256": self.ordering.sha256,
            "event_ordering": self.mode,
        }


@dataclass(eq=False)
class Call:
    """One call of the judge: about one item of a rubric, or about the order of all."""

    answer: Json
    item: int
    criterion: str
    template: Template
    mode: str  # strict or tau; "" for one item
    tries: int = 1  # replies that may be asked for until one can be read

    def prompt(self) -> str:
        """Made when it is needed: long responses times their criteria are not held in memory."""
        response = self.answer["response"] or ""
        if self.mode == "tau":
            response = numbered(response_lines(self.answer))
        about = "reference_order" if self.mode else "rubric_item"
        question = self.answer.get("question") or ""
        texts = {"question": question, "response": response, about: self.criterion}
        return self.template.fill(texts)

    def read(self, reply: Reply) -> float | None:
        """The level of a reply, 0.0–1.0; None where it cannot be read."""
        if self.mode != "tau":
            read = read_ordering if self.mode else read_score
            return read(reply.text, reply.finish_reason, self.template.text)
        events, lines = self.answer["rubric"], len(response_lines(self.answer))
        order = read_alignment(reply.text, reply.finish_reason, lines, events)
        return None if order is None else tau_score(order, len(events))

    def row(self, sha256: str, outcome: Outcome) -> Row:
        """The line of one reply, or of the failure of the call; `sha256`: the prompt's."""
        if isinstance(outcome, Failure):
            status, level, text = "failed", None, None
        else:
            level, text = self.read(outcome), outcome.text
            status = "unreadable" if level is None else "scored"
        return identity(self.answer) | {
            "item": self.item,
            "criterion": self.criterion,
            "prompt_sha256": sha256,
            "status": status,
            "level": level,
            "reply": text,
            **outcome_columns(outcome),
        }


def response_lines(answer: Json) -> list[str]:
    return [line for line in (answer["response"] or "").splitlines() if line.strip()]


def calls_for(answer: Json, prompts: Prompts) -> list[Call]:
    """One call for each criterion; one for a question of event_ordering."""
    rubric = answer["rubric"]
    if answer["question_type"] == EVENT_ORDERING:
        return [Call(answer, 0, numbered(rubric), prompts.ordering, prompts.mode)]
    return [Call(answer, item, text, prompts.criterion, "") for item, text in enumerate(rubric)]


def scores_without_call(answer: Json) -> bool:
    """Whether an answer scores 0 unseen: its question failed, or it is blank and no abstention."""
    blank = not (answer["response"] or "").strip()
    return bool(answer["error"]) or (blank and answer["question_type"] != ABSTENTION)


def verdict_key(row: Json) -> VerdictKey:
    return key_of(row), row["item"]


class Known:
    """The verdicts on disk, without the judge's words: what is left to ask follows from them."""

    def __init__(self, most: int, retry_errors: bool) -> None:
        self._most = most  # replies in all that a verdict may take
        self._retry_errors = retry_errors
        self._unreadable: Counter[tuple[VerdictKey, str]] = Counter()

    def keep(self, row: Row) -> Row:
        """What is held of a row; counts the replies that could not be read."""
        if row["status"] == "unreadable":
            self._unreadable[verdict_key(row), row["prompt_sha256"]] += 1
        return {name: row.get(name) for name in ("prompt_sha256", "status", "level", "error")}

    def tries(self, key: VerdictKey, sha256: str, row: Json | None) -> int:
        """How many replies may be asked for; 0 where the verdict on disk, `row`, stands."""
        if row is None or row["prompt_sha256"] != sha256:
            return self._most
        if row["status"] == "scored":
            return 0
        if self._retry_errors:
            return self._most
        had = self._unreadable[key, sha256]
        return max(0, self._most - had) if row["status"] == "unreadable" else 0


@dataclass(eq=False)
class Question:
    """An answer while it is judged: the levels that stand, and the calls left to make."""

    answer: Json
    mode: str  # of event_ordering
    levels: dict[int, float | None] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def plan(self, prompts: Prompts, verdicts: Mapping[VerdictKey, Json], known: Known) -> None:
        """Find out which verdicts on disk stand, and which calls are left."""
        if scores_without_call(self.answer):
            return
        for call in calls_for(self.answer, prompts):
            key = key_of(self.answer), call.item
            row = verdicts.get(key)
            call.tries = known.tries(key, sha256_of_text(call.prompt()), row)
            if call.tries:
                self.calls.append(call)
            elif row:
                self.levels[call.item] = row["level"]

    def row(self) -> Row:
        """The line of the question's score: the mean of its cut levels, 0 without a call.

        A rank correlation stays as it is.
        """
        is_tau = self.mode == "tau" and self.answer["question_type"] == EVENT_ORDERING
        levels = list(self.levels.values())
        score = question_score(levels, cut=not is_tau) if levels else 0.0
        return identity(self.answer) | {"score": score}
