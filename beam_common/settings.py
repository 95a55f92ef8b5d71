"""The settings of a run: recorded beside its output, and compared when the output is resumed."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

from beam_common.files import unwritable, write_whole
from beam_common.messages import UsageError, one_line, say, without_secrets
from beam_common.rows import VERSION, Json, Row

# What a sidecar may hold, by example; `answers` is such a record, too.
SIDECAR = {
    "program": "",
    "output": "",
    "mixed": True,
    "settings": {},
    "data": {},
    "answers": {"settings": {}, "data": {}, "served": {"": 0}, "shrunk": {"": 0}},
    "selected": {"": {"": 0}},
    "served": {"": 0},
    "shrunk": {"": 0},
    **{name: [""] for name in ("started", "shard", "missing_shards", "files", "foreign")},
}
LOCAL = re.compile(r"https?://(localhost|127\.[\d.]+|0\.0\.0\.0|\[::1\])(:|/|$)")


def load_sidecar(path: Path) -> Row | None:
    """What a sidecar holds; None where there is none. UsageError when it is no sidecar."""
    try:
        content: Row = json.loads(path.read_bytes())
        if not _is_like(content, SIDECAR) or not content.get("program", "").startswith("beam_"):
            raise ValueError("not the settings of a run")
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise UsageError(
            f"{path}: {one_line(str(error), 80)}; move the file away to go on without a record of "
            "the settings, or write to another --output"
        ) from error
    return content


def _is_like(value: Any, example: Any) -> bool:
    """Whether a JSON value has the shape of an example, in which "" stands for every name."""
    if not isinstance(value, type(example)):
        return False
    if isinstance(example, dict):
        known = {n: example.get(n, example.get("")) for n in value}
        return all(_is_like(value[n], e) for n, e in known.items() if e is not None)
    return not isinstance(example, list) or all(_is_like(item, example[0]) for item in value)


def save_sidecar(path: Path, content: Json) -> None:
    """Write a sidecar whole, indented for readers, without secrets."""
    text = json.dumps(without_secrets(content), indent=1, ensure_ascii=False) + "\n"
    try:
        write_whole(path, lambda file: file.write(text.encode("utf-8", "backslashreplace")))
    except OSError as error:
        raise unwritable(path, error) from error


def differences(recorded: Json, now: Json) -> list[str]:
    """What differs between two records in what binds: settings, data, and those of the answers.

    One text each: `temperature (recorded 1.0, now 0.7)`. Addresses of this machine are one, and
    data files are known by their digests, whatever they are called.
    """
    found: list[str] = []
    for part in ("settings", "data"):
        found += _different("", recorded.get(part, {}), now.get(part, {}))
    if "answers" in recorded or "answers" in now:
        of_answers = differences(recorded.get("answers", {}), now.get("answers", {}))
        found += [f"{text} of the answers" for text in of_answers]
    return found


def _different(name: str, recorded: Any, now: Any) -> list[str]:
    if isinstance(recorded, dict) and isinstance(now, dict):
        found: list[str] = []
        for key in {**recorded, **now}:
            found += _different(key, recorded.get(key), now.get(key))
        return found
    here = name == "base_url" and LOCAL.match(str(recorded)) and LOCAL.match(str(now))
    if here or name == "tag" or recorded == now:
        return []
    return [f"{name} (recorded {_shown(recorded)}, now {_shown(now)})"]


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return one_line(text[:12] if len(text) == 64 else text, 90) or "empty"  # a digest's beginning


def bind_settings(path: Path, new: Row, *, binding: bool, allow_mixed: bool) -> tuple[Row, Row]:
    """(the record of this run, the record that the output rests on: empty where there is none).

    `binding` says that the output holds a row without an error: until then an earlier record does
    not bind, so that a wrong URL does not lock out the right one. Raises UsageError where settings
    differ from those that the output rests on, or the record at `path` is another output's.
    """
    new = without_secrets({"version": VERSION, **new})
    earlier = load_sidecar(path) or {}
    known = new | earlier
    output = new["output"]
    renamed = not (path.parent / known["output"]).exists()
    if known["program"] != new["program"] or not (renamed or known["output"] == output):
        raise UsageError(
            f"{path} holds the settings of {known['output']} by {known['program']}, which this run "
            "would replace; name another --output"
        )
    if not binding:
        return new, {}
    if not earlier:
        say(f"warning: what {output} holds has no record of its settings; they are unknown")
    found = "; ".join(differences(earlier, new)) if earlier else ""
    if found and not allow_mixed:
        raise UsageError(
            f"{output} was made with other settings: {found}. Go on with the recorded ones "
            f"({path.name}), write to another --output, or accept a mixed file with --allow-mixed"
        )
    if found:
        say(f"warning: {output} gets mixed, as all that is made of it will say: {found}")
    record = {**earlier, **new, "started": [*earlier.get("started", []), *new["started"]]}
    if found or not earlier:
        record["mixed"] = True
    return record, earlier


def now_text() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
