"""One run of the judge as numbers and as text: what its scores, details and settings say together.

The summary is the same wherever it is printed: at the end of `beam_judge.py` and by `beam_report.py`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beam_common import ABILITIES, QuestionKey, UsageError, beside, key_of, one_line, say
from beam_details import ORDERING_ABILITY, one_mode, ordering_modes, recorded_mode
from beam_log import DETAIL, SCORE, read_rows
from beam_settings import load_sidecar
from beam_stats import Estimate, clustered_mean
from beam_verdict import question_score
from beam_width import WIDTH, shortened

MIXED = "A part was judged with other settings or unknown ones: judge, prompts, data."
MIXED_ANSWERS = "A part was answered with other settings or unknown ones: model, sampling, data."
# For terminals that cannot show these characters.
PLAIN = str.maketrans("▏▎▍▌▋▊▉█│·…", "   #####|-~")


@dataclass(frozen=True)
class Counts:
    """What a score hides; None where it is unknown."""

    unreadable: int | None = None  # verdicts
    failed: int | None = None  # judge calls
    empty: int | None = None  # answers
    errors: int | None = None  # answers
    unscorable: int | None = None  # questions without any criterion
    not_judged: int | None = None  # answers
    stale: int | None = None  # scored questions that the answers files do not hold any more
    outdated: int | None = None  # scores of answers that have changed since
    without_details: int = 0  # scored questions of which the judge's words are not there


@dataclass(frozen=True)
class Run:
    """One scores file with what lies beside it. `half_points` holds the questions whose details are there."""

    name: str
    path: Path
    scores: Mapping[QuestionKey, float]
    half_points: Mapping[QuestionKey, float]
    counts: Counts
    selected: int | None
    ordering: str  # strict, tau, mixed or unknown
    mixed_settings: bool
    mixed_answers: bool
    shrunk: int  # chats cut further at the endpoint's word
    settings: Mapping[str, Any]
    data: Mapping[str, list[str]]  # the digests known for each data file
    asked: Mapping[str, str]  # how the answers were asked for: settings known of every answers file, as JSON

    @property
    def size(self) -> str:
        """`n=700`, or `n=412 of 700 selected` while the run is partial."""
        partial = self.selected is not None and self.selected > len(self.scores)
        return f"n={len(self.scores)}" + (f" of {self.selected} selected" if partial else "")

    @property
    def judge(self) -> str:
        """The judge's name on one line, `unknown` without a sidecar."""
        name = self.settings.get("judge_model")
        return one_line(name, 200) if isinstance(name, str) else "unknown"


@dataclass(frozen=True)
class SummaryRow:
    """One line of a summary: overall or an ability. `half_points` is None where not every question has details."""

    name: str
    estimate: Estimate
    half_points: float | None


def half_point_mean(detail: Mapping[str, Any]) -> float:
    """A question's score with half points kept: the mean of its verdicts' levels, an unread one counting 0."""
    if detail["status"] != "judged":
        return 0.0
    return question_score([verdict["level"] for verdict in detail["verdicts"]], cut=False)


def by_ability(values: Mapping[QuestionKey, float]) -> dict[str, dict[QuestionKey, float]]:
    """The values of each of the ten abilities, in their order and also where there is none; unknown ones follow."""
    groups: dict[str, dict[QuestionKey, float]] = {ability: {} for ability in ABILITIES}
    for key in sorted(values, key=lambda key: key[1]):
        groups.setdefault(key[1], {})[key] = values[key]
    return groups


def summary_rows(run: Run) -> list[SummaryRow]:
    """The rows of a summary: overall, then each ability."""
    groups = [("overall", run.scores), *by_ability(run.scores).items()]
    return [SummaryRow(name, clustered_mean(values), _half_points(run, values)) for name, values in groups]


def _half_points(run: Run, keys: Mapping[QuestionKey, float]) -> float | None:
    """The mean with half points kept over `keys`; None unless the details of every one of them are there."""
    if not keys or not all(key in run.half_points for key in keys):
        return None
    return math.fsum(run.half_points[key] for key in keys) / len(keys)


# ---------------------------------------------------------------------------------------------------------------
# Reading.


def load_run(scores_path: str | Path) -> Run:
    """A scores file with its details and sidecar. Raises UsageError when there is no score in it."""
    path = Path(scores_path)
    scores = {key_of(row): float(row["score"]) for row in read_rows(path, SCORE)}
    if not scores:
        raise UsageError(f"{path} holds no scores; name a scores.jsonl that beam_judge.py wrote")
    base = str(path).removesuffix(".gz")
    details_path = beside(base, ".details.jsonl")
    details = {key_of(row): row for row in read_rows(details_path, DETAIL)} if details_path.exists() else {}
    details = {key: row for key, row in details.items() if key in scores and row["status"] != "partial"}
    half_points = {key: half_point_mean(row) for key, row in details.items()}
    try:
        sidecar = load_sidecar(beside(base, ".run.json")) or {}
    except UsageError as error:
        say(f"warning: {error.args[0].partition(';')[0]}; model, judge and data of {path} are taken as unknown")
        sidecar = {}
    sidecar = json.loads(json.dumps(sidecar), parse_constant=lambda constant: None)  # no NaN goes further than here
    answers = [item for item in _list(sidecar.get("answers")) if isinstance(item, dict)]
    settings = _mapping(sidecar.get("settings"))
    half_points |= {key: scores[key] for key in half_points if key[1] == ORDERING_ABILITY}
    models = [model for item in answers for model in (*_list(item.get("mixed_models")), item.get("model"))]
    named = dict.fromkeys(one_line(model, 200) for model in models if isinstance(model, str))
    name = " + ".join(filter(None, named)) or path.name
    made_with = {json.dumps([item.get("model"), item.get("settings")], sort_keys=True) for item in answers}
    selected = [item["selected"] for item in answers if type(item.get("selected")) is int]
    return Run(
        name=name.encode("utf-8", "backslashreplace").decode("utf-8"),
        path=path,
        scores=scores,
        half_points=half_points,
        counts=_counts(len(scores), details, _mapping(sidecar.get("counts"))),
        selected=sum(selected) if selected and len(selected) == len(answers) else None,
        ordering=_ordering(scores, details, settings),
        mixed_settings=bool(sidecar.get("mixed_with")),
        mixed_answers=any(_list(item.get("mixed_models")) for item in answers) or len(made_with) > 1,
        shrunk=sum(len(_mapping(item.get("shrunk"))) for item in answers),
        settings=settings,
        data=_digests(answers),
        asked=_asked(answers),
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _counts(scored: int, details: Mapping[QuestionKey, Mapping[str, Any]], recorded: Mapping[str, Any]) -> Counts:
    """What went wrong on the way: verdicts by the details; answers as the judge recorded them, else by the details."""
    known = {name: count for name, count in recorded.items() if type(count) is int}
    statuses = [verdict["status"] for row in details.values() for verdict in row["verdicts"]]
    outcomes = [row["status"] for row in details.values()]
    answers, unscorable = known.get("answers"), known.get("unscorable")
    stale, outdated = known.get("stale"), known.get("outdated")
    current = scored - (stale or 0) - (outdated or 0)
    return Counts(
        unreadable=statuses.count("unreadable") if details else None,
        failed=statuses.count("failed") if details else None,
        empty=known.get("empty", outcomes.count("empty") if details else None),
        errors=known.get("answers_with_error", outcomes.count("error") if details else None),
        unscorable=unscorable,
        not_judged=None if answers is None else max(0, answers - (unscorable or 0) - current),
        stale=stale,
        outdated=outdated,
        without_details=scored - len(details),
    )


def _ordering(
    scores: Mapping[QuestionKey, float], details: Mapping[QuestionKey, Mapping[str, Any]], settings: Mapping[str, Any]
) -> str:
    """How event_ordering was scored: as the details of judged questions say; for scores without any, as the settings do."""
    recorded = recorded_mode(settings)
    return one_mode(ordering_modes(scores, details, recorded) or {recorded}) or "unknown"


def _digests(answers: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The digests of the data behind the answers; a part is left out unless known for each answers file."""
    found = {}
    for part in ("questions", "chats"):
        digests = [_mapping(item.get("data")).get(f"{part}_sha256") for item in answers]
        texts = {digest for digest in digests if isinstance(digest, str)}
        if texts and None not in digests:
            found[part] = sorted(texts)
    return found


def _asked(answers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The settings with which the answers were generated, as far as they are known for each answers file."""
    found: dict[str, list[str]] = {}
    for item in answers:
        known = _mapping(item.get("settings"))
        if "shrunk" in item:
            known = {**known, "shrunk": item["shrunk"]}
        for name, value in known.items():
            found.setdefault(name, []).append(json.dumps(value, ensure_ascii=False, sort_keys=True))
    return {name: ", ".join(sorted(set(v))) for name, v in found.items() if len(v) == len(answers)}


# ---------------------------------------------------------------------------------------------------------------
# Text.


def number(value: float | None, digits: int = 4, sign: bool = False) -> str:
    """`0.1234`, `-` for None, never `-0.0000`."""
    if value is None:
        return "-"
    value = round(value, digits) + 0.0
    return f"{value:+.{digits}f}" if sign and value else f"{value:.{digits}f}"


def bounds(estimate: Estimate, lowest: float = 0.0) -> tuple[float, float] | None:
    """The interval for people: no further than the scale from `lowest` to 1 goes. None without an interval."""
    if estimate.low is None or estimate.high is None:
        return None
    return max(lowest, estimate.low), min(1.0, estimate.high)


def interval(estimate: Estimate) -> str:
    """The interval of a score as text, `0.281 to 0.343`; `-` without one."""
    ends = bounds(estimate)
    return f"{number(ends[0], 3)} to {number(ends[1], 3)}" if ends else "-"


def bar(value: float | None, cells: int) -> str:
    """A bar of `cells` characters from 0 to 1 in steps of an eighth of a character; empty for None."""
    whole, eighths = divmod(round((value or 0.0) * cells * 8), 8)
    return ("█" * whole + " ▏▎▍▌▋▊▉"[eighths] * (eighths > 0)).ljust(cells)


def summary_lines(run: Run) -> list[str]:
    """The summary of a run, in lines of at most 80 columns. The beginning of each line is a stable format."""
    rows = summary_rows(run)
    starts = [f"overall: {number(rows[0].estimate.mean)}"]
    starts += [f"  {one_line(row.name, 24)}: {number(row.estimate.mean)} (n={row.estimate.n})" for row in rows[1:]]
    left = max(len("  contradiction_resolution: 0.1234 (n=700)"), *map(len, starts))
    cells = WIDTH - left - len("  0.000 to 0.000  0.0000  ││")
    mode = ordering_of(run)
    named = "" if mode in ("", "strict") else f" · event_ordering: {mode}"
    lines = [f"=== BEAM summary ({run.size}) ==={named}"]
    for start, row in zip(starts, rows, strict=True):
        drawn = "" if row.estimate.mean is None else f"  │{bar(row.estimate.mean, cells)}│"
        lines.append(f"{start:<{left}}  {interval(row.estimate):<14}  {number(row.half_points):<6}{drawn}".rstrip())
    chats = rows[0].estimate.chats
    spread = "one chat: no interval" if chats == 1 else f"95 % interval by {chats} chats"
    lines += [f"(score · {spread} · half points kept · bar from 0 to 1)", "", *counts_lines(run)]
    lines += [shortened(f"model: {run.name}", WIDTH), shortened(f"judge: {run.judge}", WIDTH)]
    return lines + mixed_lines(run)


def mixed_lines(run: Run) -> list[str]:
    """What the number is not: of one judge, of one model; one line each."""
    return [line for line, said in ((MIXED_ANSWERS, run.mixed_answers), (MIXED, run.mixed_settings)) if said]


def ordering_of(run: Run) -> str:
    """The mode of event_ordering for people; empty where it is not known and no score depends on it."""
    words = {"mixed": "partly tau", "unknown": "mode unknown"}
    scored = any(ability == ORDERING_ABILITY for _, ability, _ in run.scores)
    return "" if run.ordering == "unknown" and not scored else words.get(run.ordering, run.ordering)


def counts_lines(run: Run) -> list[str]:
    """What a score hides, one line each."""
    counts = run.counts
    named = {
        "unreadable verdicts": counts.unreadable,
        "failed calls": counts.failed,
        "empty answers": counts.empty,
        "answers with an error": counts.errors,
        "answers not judged yet": counts.not_judged,
    }
    if counts.unscorable:
        named["questions without a criterion, not scored"] = counts.unscorable
    if counts.outdated:
        named["scores of answers that have changed since"] = counts.outdated
    if counts.stale:
        named["scores of questions that are not in the answers"] = counts.stale
    lines = [f"{name}: {'unknown' if count is None else count}" for name, count in named.items()]
    if 0 < counts.without_details < len(run.scores):
        lines.append(f"scored questions without details: {counts.without_details}")
    if run.shrunk:
        lines.append(f"chats cut further to fit the endpoint: {run.shrunk}")
    return lines


def print_lines(lines: Sequence[str]) -> None:
    """Print to stdout; where its encoding lacks the characters of the bars, with plain ones in their place."""
    text = "\n".join(lines)
    try:
        "█│·…".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(PLAIN)
    print(text)
