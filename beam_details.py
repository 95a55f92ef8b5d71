"""What the judge is asked about an answer, what is kept of its words, and when they still hold.

A row of the details is the one source of a score: whatever happens to the scores file, it can be made from them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beam_answers import Answer, response_of
from beam_common import QuestionKey
from beam_prompts import ALIGNMENT, Template, numbered
from beam_verdict import question_score, read_alignment, read_ordering, read_score, tau_score

if TYPE_CHECKING:
    from beam_failure import Failure
    from beam_reply import Reply

ORDERING_ABILITY = "event_ordering"


@dataclass(frozen=True)
class Call:
    """One call of the judge: its prompt, and how to read the reply. The criterion goes into the details."""

    index: int
    criterion: str | list[str]
    prompt: str
    read: Callable[[str, str | None], float | None]


@dataclass(frozen=True)
class Prompts:
    criterion: Template
    ordering: Template
    tau: bool

    @property
    def mode(self) -> str:
        return "tau" if self.tau else "strict"


def calls_for(row: Mapping[str, Any], prompts: Prompts) -> list[Call]:
    """The calls that score one answer: one for each criterion, or one for a question of event_ordering."""
    question, rubric, response = row.get("question") or "", list(row["rubric"]), response_of(row)
    if row["question_type"] != ORDERING_ABILITY:
        return [
            Call(
                index,
                item,
                prompts.criterion.fill({"question": question, "rubric_item": item, "response": response}),
                read_score,
            )
            for index, item in enumerate(rubric)
        ]
    texts = {"question": question, "reference_order": numbered(rubric)}
    if not prompts.tau:
        return [Call(0, rubric, prompts.ordering.fill({**texts, "response": response}), read_ordering)]
    lines = [line for line in response.splitlines() if line.strip()]

    def read(reply: str, finish_reason: str | None) -> float | None:
        matches = read_alignment(reply, finish_reason, len(lines), rubric)
        return None if matches is None else tau_score(matches, len(rubric))

    fences = {"question": "question", "reference_order": "reference", "response": "lines"}
    return [Call(0, rubric, ALIGNMENT.fill({**texts, "response": numbered(lines)}, fences), read)]


def verdict(call: Call, outcome: Reply | Failure, level: float | None) -> dict[str, Any]:
    """What the details keep of one call."""
    kept: dict[str, Any] = {"criterion": call.criterion, "level": level}
    if hasattr(outcome, "kind"):
        return kept | {
            "status": "failed",
            "reply": None,
            "finish_reason": None,
            "prompt_tokens": None,
            "completion_tokens": None,
            "error": outcome.text,
        }
    return kept | {
        "status": "unreadable" if level is None else "scored",
        "reply": outcome.text,
        "finish_reason": outcome.finish_reason,
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "error": None,
    }


def pending(call: Call, had: dict[str, Any] | None) -> dict[str, Any]:
    """What the details keep of a call when the run stops: its verdict, if it was had."""
    return had or {"criterion": call.criterion, "level": None, "status": "pending", "reply": None}


def detail_row(answer: Answer, status: str, mode: str | None, verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """The details of one question. status: `judged`; `empty` or `error` where no call was made; `partial` with calls to
    be made yet, and without a score."""
    return {
        **dict(zip(("chat_id", "question_type", "question_index"), answer.key, strict=True)),
        "response_sha256": answer.response_sha256,
        "status": status,
        "ordering": mode if answer.key[1] == ORDERING_ABILITY else None,
        "verdicts": verdicts,
    }


def score_of(detail: Mapping[str, Any]) -> float:
    """A question's score from its details: the mean of its cut levels; for tau the level as it is."""
    if detail["status"] != "judged":
        return 0.0
    return question_score([v["level"] for v in detail["verdicts"]], cut=detail.get("ordering") != "tau")


def score_row(detail: Mapping[str, Any]) -> dict[str, Any]:
    return {name: detail[name] for name in ("chat_id", "question_type", "question_index")} | {"score": score_of(detail)}


def has_gaps(detail: Mapping[str, Any]) -> bool:
    """Whether a verdict could not be read or had."""
    return any(v["status"] != "scored" for v in detail["verdicts"])


def had_reply(detail: Mapping[str, Any]) -> bool:
    return any(v["status"] in ("scored", "unreadable") for v in detail["verdicts"])


def still_holds(detail: Mapping[str, Any], answer: Answer, mode: str) -> bool:
    """Whether details are about this very answer and rubric, in this mode of event_ordering."""
    if detail["response_sha256"] != answer.response_sha256:
        return False
    if detail["status"] in ("empty", "error"):
        return bool(detail["status"] == "error") == (answer.error is not None)
    in_order = answer.key[1] == ORDERING_ABILITY
    asked = [list(answer.rubric)] if in_order else list(answer.rubric)
    if answer.error is not None or asked != [verdict.get("criterion") for verdict in detail["verdicts"]]:
        return False
    return not in_order or mode == detail.get("ordering", "")


def recorded_mode(settings: Mapping[str, Any]) -> str | None:
    """What the settings beside a scores file say of its event_ordering: `strict`, `tau`, `mixed`, or None: nothing."""
    mode = settings.get("event_ordering")
    return mode if mode in ("strict", "tau", "mixed") else None


def ordering_modes(
    scored: Iterable[QuestionKey], details: Mapping[QuestionKey, Mapping[str, Any]], recorded: str | None
) -> set[str | None]:
    """The modes that scores of event_ordering are of: what their details say, `recorded` for those without any.

    None is a mode that is not known. An answer that scores 0 unjudged does so in either mode and does not count.
    """
    modes = set()
    for key in scored:
        if key[1] == ORDERING_ABILITY:
            detail = details.get(key)
            if detail is None or detail["status"] == "judged":
                modes.add((detail or {}).get("ordering") or recorded)
    return modes


def one_mode(modes: set[str | None]) -> str | None:
    """The mode that all are of; `mixed` for several; None where there is none or one is not known."""
    if len(modes) > 1 and None not in modes:
        return "mixed"
    return next(iter(modes)) if len(modes) == 1 else None


def essence(row: dict[str, Any]) -> dict[str, Any]:
    """What a resume needs of the details: everything of those with gaps, of the others not the judge's words."""
    if has_gaps(row):
        return row
    return {**row, "verdicts": [{k: v for k, v in verdict.items() if k != "reply"} for verdict in row["verdicts"]]}


def plan(
    answers: Sequence[Answer], scores: Mapping[QuestionKey, Any], details: Mapping[QuestionKey, Any], mode: str,
    earlier_mode: str | None, retry_errors: bool,
) -> tuple[list[Answer], list[dict[str, Any]], list[dict[str, Any]]]:  # fmt: skip
    """(answers to judge, details to write without a call, details on disk whose score is missing).

    Scores without details (another tool's) stand, unless they are of the other mode of event_ordering.
    """
    to_judge, without_call, unscored = [], [], []
    for answer in answers:
        detail, scored = details.get(answer.key), answer.key in scores
        if detail and still_holds(detail, answer, mode):
            if detail["status"] == "partial" or (retry_errors and has_gaps(detail)):
                to_judge.append(answer)
            elif not scored or scores[answer.key]["score"] != score_of(detail):  # stopped between details and score
                unscored.append(detail)
        elif detail is None and scored and not (answer.key[1] == ORDERING_ABILITY and earlier_mode not in (mode, None)):
            continue
        elif reason := answer.score_without_call():
            without_call.append(detail_row(answer, reason, None, []))
        else:
            to_judge.append(answer)
    return to_judge, without_call, unscored
