"""Try everything in a minute, offline and without a model: the sample data, answered and judged by a stand-in.

Starts examples/scripted_endpoint.py inside this process and runs beam_generate.py and beam_judge.py against it as a
user would, over HTTP, with the command lines shown. The results stay in a folder of their own, whose path is printed,
so that they can be looked at. The endpoint only compares words: the scores mean nothing.

    python examples/quickstart.py
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripted_endpoint import STAND_IN, ScriptedEndpoint

SCRIPTS = Path(__file__).resolve().parent.parent
LONGEST_TEXT = 160  # characters shown of one text of the first answer


def generate_command(base_url: str, folder: Path) -> list[str]:
    return [
        sys.executable, script("beam_generate.py"), "--tag", "sample",
        "--model", "stand-in", "--base-url", base_url, "--api-key", "none-needed",
        "--output", str(folder / "answers.jsonl"),
    ]  # fmt: skip


def judge_command(base_url: str, folder: Path) -> list[str]:
    return [
        sys.executable, script("beam_judge.py"), "--answers", str(folder / "answers.jsonl"),
        "--judge-model", "stand-in", "--judge-base-url", base_url, "--judge-api-key", "none-needed",
        "--output", str(folder / "scores.jsonl"),
    ]  # fmt: skip


def script(name: str) -> str:
    """The path of a script as one would type it from here."""
    return os.path.relpath(SCRIPTS / name)


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with this machine left out of any proxy, which could not reach the endpoint."""
    kept = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = ",".join(filter(None, [kept, "127.0.0.1", "localhost"]))
    return {**environment, "no_proxy": hosts, "NO_PROXY": hosts}


def shortened(value: Any) -> Any:
    """The same value with its long texts cut, to be read on a screen."""
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return value[:LONGEST_TEXT] + "…"
    if isinstance(value, list):
        return [shortened(each) for each in value]
    if isinstance(value, dict):
        return {key: shortened(each) for key, each in value.items()}
    return value


def results_folder(wanted: Path | None) -> Path:
    """The folder for the results, made if need be. Raises FileExistsError when it holds something already."""
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="beam_quickstart_"))
    wanted.mkdir(parents=True, exist_ok=True)
    if any(wanted.iterdir()):
        raise FileExistsError(f"{wanted} is not empty; name a new folder")
    return wanted


def run(command: list[str]) -> None:
    """Runs a script with its output passed through. Raises CalledProcessError when it fails."""
    print(f"\n$ {shlex.join(command)}", flush=True)
    subprocess.run(command, env=without_proxy(os.environ), check=True)


def show_first_answer(answers: Path) -> None:
    """Prints the answer to the first question: the file holds them in the order in which they came."""
    with answers.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    row = min(rows, key=lambda row: (row["chat_id"], row["question_type"], row["question_index"]))
    print(f"\nThe first answer, shortened:\n{json.dumps(shortened(row), ensure_ascii=False, indent=2)}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--keep",
        metavar="DIR",
        type=Path,
        help="new or empty folder for the results (default: a temporary one, left in place)",
    )
    args = parser.parse_args(argv)
    try:
        folder = results_folder(args.keep)
    except OSError as problem:
        parser.error(f"--keep: {problem}")
    print(STAND_IN, flush=True)
    try:
        with ScriptedEndpoint() as endpoint:
            run(generate_command(endpoint.base_url, folder))
            show_first_answer(folder / "answers.jsonl")
            run(judge_command(endpoint.base_url, folder))
    except subprocess.CalledProcessError as failure:
        print(f"error: {failure.cmd[1]} ended with exit code {failure.returncode}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print()
    for what in ("answers.jsonl", "scores.jsonl", "scores.details.jsonl"):
        print(f"{what:<21} {folder / what}")
    print(f"\n{STAND_IN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
