"""The settings of a run: recorded beside its output, and compared when the output is resumed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from beam_common import VERSION, UsageError, beside, one_line, say, unwritable, without_secrets, write_whole


def load_sidecar(path: Path) -> dict[str, Any] | None:
    """What a sidecar holds; None where there is none. Raises UsageError when it cannot be read."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise UsageError(
            f"{path}: the settings of the earlier run cannot be read ({one_line(str(error), 80)}); move the file away "
            "to go on without them, or write to another --output"
        ) from error
    shapes = {"settings": dict, "data": dict, "started": list, "mixed_with": list, "shrunk": dict, "selected": int,
              "answers": list, "counts": dict}  # fmt: skip
    if (
        not isinstance(content, dict)
        or not all(isinstance(content.get(name, shape()), shape) for name, shape in shapes.items())
        or not all(isinstance(m, dict) and isinstance(m.get("settings"), dict) for m in content.get("mixed_with", []))
    ):
        raise UsageError(f"{path}: not the settings of a run; move the file away or write to another --output")
    return content


def save_sidecar(path: Path, content: Mapping[str, Any]) -> None:
    """Write a sidecar whole, indented for readers, without secrets. Raises UsageError or StoppedEarly: see unwritable."""
    text = json.dumps(without_secrets(content), indent=1, ensure_ascii=False)
    data = (text + "\n").encode("utf-8", "backslashreplace")

    def write(file: BinaryIO) -> None:
        file.write(data)

    try:
        write_whole(path, write)
    except OSError as error:
        raise unwritable(path, error) from error


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two settings, one text each: `temperature (recorded 1.0, now 0.7)`.

    Only names that both know are compared, so that files of an older version can be resumed.
    """
    found: list[str] = []
    for name, value in now.items():
        if name not in recorded:
            continue
        before = recorded[name]
        if before != value:
            old, new = (one_line(v if isinstance(v, str) else json.dumps(v, ensure_ascii=False), 90)
                        for v in (before, value))  # fmt: skip
            found.append(f"{name} (recorded {old or 'empty'}, now {new or 'empty'})")
    return found


def bind_settings(
    path: Path,
    content: dict[str, Any],
    *,
    binding: bool,
    allow_mixed: bool,
    output: str | Path,
    may_change: Sequence[str] = (),
    adds: bool = True,
) -> None:
    """Record the settings of this run at `path`; refuse to mix them with others that an output already rests on.

    `binding` says that the output holds a row without an error: until then an earlier sidecar is replaced, so that a
    wrong URL does not lock out the right one. `content["settings"]` and `content["data"]` are what is compared, but for
    the settings that `may_change`. Where they differ and this run `adds` nothing, the record stays what it is. Rows
    without a record are of unknown settings, whatever this run has. The record of another program or of another output
    is never replaced.
    """
    content = {"program": content["program"], "version": VERSION, "output": Path(output).name, **content}
    _refuse_foreign(path, content)
    content = without_secrets(content)
    earlier = load_sidecar(path) if binding else None
    started = [*(earlier or {}).get("started", []), *content["started"]] if binding else content["started"]
    unknown = binding and not (earlier or {}).get("settings")
    if unknown:
        say(f"warning: what {output} holds has no record of its settings ({path.name}); they are noted as unknown")
        earlier = {**(earlier or {}), "settings": {}}
        if not adds:
            content = {**content, "settings": {}, "data": {}}
    if earlier:
        compared = {name: value for name, value in content["settings"].items() if name not in may_change}
        found = differences(earlier["settings"], compared)
        found += differences(earlier.get("data", {}), content.get("data", {}))
        if found and not allow_mixed:
            raise UsageError(
                f"{output} was made with other settings: {'; '.join(found)}. Go on with the recorded ones ({path.name}), "
                "write to another --output, or accept a mixed file with --allow-mixed"
            )
        if found and not adds:
            return
        mixed = list(earlier.get("mixed_with", []))
        if adds and (found or unknown):
            shrunk = {"shrunk": earlier["shrunk"]} if "shrunk" in earlier else {}
            mixed.append({"settings": earlier["settings"], "data": earlier.get("data", {}), **shrunk})
        if found:
            say(
                f"warning: {output} gets mixed, which its record and all that is made of it will say: {'; '.join(found)}"
            )
        if mixed:
            content = {**content, "mixed_with": mixed}
        content = {**content, "data": {**earlier.get("data", {}), **content.get("data", {})}}
    save_sidecar(path, {**content, "started": started})


def _refuse_foreign(path: Path, content: Mapping[str, Any]) -> None:
    """Raises UsageError where the record at `path` is another program's or another output's; a damaged one is nobody's."""
    try:
        found = {**content, **(load_sidecar(path) or {})}
    except UsageError:
        return
    other = path.parent / str(found["output"])
    moved = other.name == content["output"] or beside(other, ".run.json") != path or not other.exists()
    if found["program"] != content["program"] or not moved:
        whose = found["program"] if moved else str(other)
        raise UsageError(f"{path} holds the settings of {whose}, which this run would replace; name another --output")


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of installed packages, for the record; packages that are not there are left out."""
    from importlib import metadata

    found = {"python": sys.version.split()[0]}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def now_text() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    import datetime

    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
