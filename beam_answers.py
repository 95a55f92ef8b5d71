"""The answers to be judged: of each question the one that counts, over one or more answers files, and what is known
of these files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from beam_common import QuestionKey, UsageError, beside, key_of, say, sha256_of_text
from beam_log import ANSWER, counts_over, is_gzip, parse_line, sound_lines
from beam_settings import load_sidecar

ABSTENTION = "abstention"


@dataclass(frozen=True)
class Answer:
    """One question's answer: where it stands, and what decides whether it must be judged (again)."""

    key: QuestionKey
    path: Path
    start: int
    length: int
    response_sha256: str
    error: str | None
    blank: bool
    rubric: tuple[str, ...]
    also_in: tuple[Path, ...] = ()  # files that hold the question, too, and do not count

    @property
    def scorable(self) -> bool:
        """Whether any criterion says something. A blank one beside others is a call all the same, so that the score is
        the mean over the rubric as it stands."""
        return any(item.strip() for item in self.rubric)

    def row(self) -> dict[str, Any]:
        """The whole row, read from the file again: long answers are not held in memory."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                line = parse_line(2 if self.start else 1, self.start, file.read(self.length), ANSWER)
        except OSError as error:
            raise UsageError(f"--answers {self.path}: {error.strerror or error}") from error
        row = line.row if line else None
        if row is None or key_of(row) != self.key or sha256_of_text(response_of(row)) != self.response_sha256:
            raise UsageError(f"{self.path} was changed while it was being judged; start again")
        return row

    def score_without_call(self) -> str | None:
        """Why the answer scores 0 unseen: `error`, or `empty` (which is judged for abstention); else None."""
        if self.error is not None:
            return "error"
        return "empty" if self.blank and self.key[1] != ABSTENTION else None


def response_of(row: Mapping[str, Any]) -> str:
    return row.get("response") or ""


def read_answers(paths: Sequence[Path]) -> dict[QuestionKey, Answer]:
    """Of each question the answer that counts, over all files, in the order of first occurrence.

    An answered row beats one with an error. UsageError when two files answer one question differently, or another one.
    """
    answers: dict[QuestionKey, Answer] = {}
    for path in paths:
        if not path.is_file():
            raise UsageError(
                f"--answers {path}: {'not a file' if path.exists() else 'no such file'}; beam_generate.py makes it "
                "(a shard without chats has none)"
            )
        with open(path, "rb") as file:
            if is_gzip(file):
                raise UsageError(f"--answers {path} is a gzip file; unpack it first")
        in_file: dict[QuestionKey, tuple[dict[str, Any], Answer]] = {}
        for line, row in sound_lines(path, ANSWER, "left out and not judged"):
            key = key_of(row)
            if counts_over(row, in_file[key][0] if key in in_file else None):
                in_file[key] = ({"error": row.get("error")}, _answer(path, line.start, len(line.raw), row))
        for key, (_, answer) in in_file.items():
            answers[key] = _better(answers[key], answer) if key in answers else answer
    if not answers:
        files = ", ".join(map(str, paths))
        if any(path.stat().st_size for path in paths):
            raise UsageError(f"no answers yet in {files}: none of the lines is one; name what beam_generate.py wrote")
        raise UsageError(f"no answers yet in {files}; run beam_generate.py first")
    return answers


def _answer(path: Path, start: int, length: int, row: dict[str, Any]) -> Answer:
    response = response_of(row)
    digest = sha256_of_text(response)
    return Answer(
        key_of(row), path, start, length, digest, row.get("error"), not response.strip(), tuple(row["rubric"])
    )


def _better(earlier: Answer, later: Answer) -> Answer:
    """Of two files' answers to a question the one that counts."""
    chat, ability, index = later.key
    if earlier.rubric != later.rubric:
        raise UsageError(
            f"chat {chat} {ability}/{index} has another rubric in {earlier.path} than in {later.path}; these are of two sets "
            "of questions: judge them into two --output files"
        )
    if earlier.error is not None and later.error is None:
        return replace(later, also_in=(*earlier.also_in, earlier.path))
    if earlier.error is None and later.error is None and earlier.response_sha256 != later.response_sha256:
        raise UsageError(
            f"chat {chat} {ability}/{index} is answered differently in {earlier.path} and {later.path}; these are two runs: "
            "judge them into two --output files"
        )
    return replace(earlier, also_in=(*earlier.also_in, later.path))


# ---------------------------------------------------------------------------------------------------------------
# What the scores' sidecar keeps of the answers files.


def described_answers(
    path: Path, answers: Mapping[QuestionKey, Answer], scores_folder: Path, outdated: Collection[QuestionKey]
) -> dict[str, Any]:
    """What is known of an answers file: whose answers, about which data, how many were selected, what is in it.

    Questions that count from another file are left out of these numbers, so that those of several files add up.
    """
    try:
        run = load_sidecar(beside(path, ".run.json")) or {}
    except UsageError as error:
        say(f"warning: {error}")
        run = {}
    settings, selected, how = run.get("settings", {}), run.get("selected"), run.get("run")
    mixed = run.get("mixed_with", [])
    if type(selected) is int:
        selected -= sum(path in answer.also_in for answer in answers.values())
    return {
        "file": path.name,
        "path_sha256": _place_of(path, scores_folder),
        "model": settings.get("model"),
        "base_url": settings.get("base_url"),
        "settings": {name: value for name, value in settings.items() if name not in ("model", "base_url")},
        "mixed_models": [item["settings"].get("model") for item in mixed],
        "shrunk": {chat: first for part in (*mixed, run) for chat, first in part.get("shrunk", {}).items()},
        "data": run.get("data"),
        "selected": selected,
        "shard": how.get("shard") if isinstance(how, dict) else None,
        "counts": _counted(path, answers, outdated),
    }


def recounted(
    files: Sequence[dict[str, Any]],
    paths: Iterable[Path],
    answers: Mapping[QuestionKey, Answer],
    scores_folder: Path,
    outdated: Collection[QuestionKey],
) -> list[dict[str, Any]]:
    """The files on record, those at `paths` with what is in them by now."""
    counts = {_place_of(path, scores_folder): _counted(path, answers, outdated) for path in paths}
    return [{**file, "counts": counts.get(str(file.get("path_sha256")), file.get("counts"))} for file in files]


def _place_of(path: Path, scores_folder: Path) -> str:
    """Files of one name are told apart by a digest of where they lie, seen from the scores: so the record holds no path."""
    return sha256_of_text(os.path.relpath(path.resolve(), scores_folder.resolve()))[:16]


def _counted(path: Path, answers: Mapping[QuestionKey, Answer], outdated: Collection[QuestionKey]) -> dict[str, int]:
    own = [answer for answer in answers.values() if answer.path == path]
    return {
        "answers": len(own),
        "unscorable": sum(not a.scorable for a in own),
        "answers_with_error": sum(a.error is not None for a in own),
        "empty": sum(a.blank and a.error is None for a in own),
        "outdated": sum(a.key in outdated for a in own),
    }


def with_earlier(files: Sequence[dict[str, Any]], earlier: Sequence[Any]) -> list[dict[str, Any]]:
    """The answers files that a scores file rests on: those of earlier runs, then those named now, each once."""
    named = {file["path_sha256"] for file in files}
    others = [item for item in earlier if isinstance(item, dict) and item.get("path_sha256") not in named]
    return [*others, *files]


def summed_counts(files: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The counts of all files together; none where those of a file are not known."""
    total: dict[str, int] = {}
    for file in files:
        counts = file.get("counts")
        if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
            return {}
        total = {name: total.get(name, 0) + count for name, count in counts.items()}
    return total


def missing_shards(files: Sequence[Mapping[str, Any]]) -> list[str]:
    """The shards, as `I/N`, of which no answers file is there although there are others of the N."""
    there = [found for file in files if (found := re.fullmatch(r"(\d{1,4})/(\d{1,4})", str(file.get("shard"))))]
    of = {int(shard[2]) for shard in there}
    numbers = {(int(shard[1]), int(shard[2])) for shard in there}
    return [f"{part}/{parts}" for parts in sorted(of) for part in range(1, parts + 1) if (part, parts) not in numbers]


def origin(files: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Whose answers are judged and to which questions, as far as known: scores of two models must not get into one file."""
    known = [{**(file["data"] or {}), "answers_model": file["model"]} for file in files]
    names = ("answers_model", "questions_sha256", "chats_sha256")
    found = {name: {str(item[name]) for item in known if item.get(name)} for name in names}
    return {name: " + ".join(sorted(values)) for name, values in found.items() if values}
