"""What is recorded of a run: its settings, what was selected, which model answered."""

from __future__ import annotations

from argparse import Namespace as Args
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from beam_common.cli import shown_url
from beam_common.failure import Failure
from beam_common.files import sidecar_path
from beam_common.messages import one_line, say
from beam_common.reply import Outcome, Reply
from beam_common.rows import Json, QuestionRow, Row
from beam_common.settings import bind_settings, now_text, save_sidecar


def new_record(program: str, args: Args, body: Row) -> Row:
    """What the record of either program holds; `settings` binds a later resume."""
    return {
        "program": program,
        "output": args.output.name,
        "started": [now_text()],
        "settings": {"base_url": shown_url(args.base_url), "body": body},
    }


def outcome_columns(outcome: Outcome) -> Row:
    """What a row says of a reply besides its text, or of a failure."""
    names = ("finish_reason", "prompt_tokens", "completion_tokens")
    columns = {name: getattr(outcome, name, None) for name in names}
    return columns | {"error": outcome.text if isinstance(outcome, Failure) else None}


def counted(questions: Sequence[QuestionRow], earlier: Row) -> Row:
    """chat -> ability -> how many questions are selected, those of earlier runs included."""
    now: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for question in questions:
        now[str(question["chat_id"])][question["question_type"]] += 1
    return earlier | {chat: dict(n | Counter(earlier.get(chat, {}))) for chat, n in now.items()}


class Record:
    """The file .run.json beside an output while the run lasts.

    UsageError where one of the output's `rows` was made with other settings than those of `new`.
    `asked`: the model that is asked for.
    """

    def __init__(self, args: Args, new: Row, rows: Iterable[Json], asked: str) -> None:
        self._path, self._asked = sidecar_path(args.output, ".run.json"), asked
        binding = any(row.get("error") is None for row in rows)
        self.content, self.earlier = bind_settings(
            self._path, new, binding=binding, allow_mixed=args.allow_mixed
        )
        self._served: Counter[str] = Counter(self.content.get("served", {}))

    def note_model(self, reply: Reply) -> bool:
        """Count the model that a reply names; whether it is a new one.

        One that was not asked for, or is named after another, is told of once.
        """
        if not reply.model:
            return False
        via = f" via {reply.provider}" if reply.provider else ""
        name = one_line(reply.model + via, 200)
        new = name not in self._served
        if new and (self._served or reply.model != self._asked):
            say(f"note: the endpoint names the model that answers {name} (asked: {self._asked})")
        self._served[name] += 1
        return new

    def save(self) -> None:
        self.content["served"] = dict(self._served)
        save_sidecar(self._path, self.content)
