"""Try everything in a minute, offline and without a model: sample data, answered and judged.

Starts examples/scripted_endpoint.py inside this process and runs the programs against it as a user
would, over HTTP, with the command lines shown. Answers are judged with the built-in prompt, since
the benchmark's official one comes with the release. The results stay in a folder of their own.

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
from pathlib import Path

from scripted_endpoint import STAND_IN, ScriptedEndpoint

PROJECT = Path(__file__).resolve().parent.parent


def commands(base_url: str, folder: Path) -> list[list[str]]:
    """What a user types: answer, judge, look at it."""
    answers, scores = str(folder / "answers.jsonl"), str(folder / "scores.jsonl")
    endpoint = ["--model", "stand-in", "--base-url", base_url, "--api-key", "none-needed"]
    judge = [f"--judge-{flag[2:]}" if flag.startswith("--") else flag for flag in endpoint]
    return [
        ["beam_generate.py", "--tag", "sample", *endpoint, "--output", answers],
        ["beam_judge.py", "--answers", answers, *judge, "--criterion-prompt", "builtin",
         "--output", scores],
        ["beam_report.py", scores, "--html", str(folder / "report.html")],
    ]  # fmt: skip


def run(program: str, *arguments: str, quiet: bool = False) -> None:
    """Run a program with its output passed through. Raises CalledProcessError when it fails."""
    command = [sys.executable, os.path.relpath(PROJECT / program), *arguments]
    print(f"\n$ {shlex.join(command)}", flush=True)
    no_proxy = dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1")  # none reaches this machine
    subprocess.run(command, env={**os.environ, **no_proxy}, check=True,
                   stdout=subprocess.DEVNULL if quiet else None)  # fmt: skip


def show_first_answer(answers: Path) -> None:
    """Print the answer to the first question; the file holds them in the order they came in."""
    rows = map(json.loads, answers.read_text("utf-8").splitlines())
    row = min(rows, key=lambda row: (row["chat_id"], row["question_type"], row["question_index"]))
    print("\nThe first answer:")
    print(json.dumps(row, ensure_ascii=False, indent=2), flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", metavar="DIR", type=Path, help="folder for the results")
    args = parser.parse_args(argv)
    folder = args.keep or Path(tempfile.mkdtemp(prefix="beam_quickstart_"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ScriptedEndpoint() as endpoint:
            generate, judge, report = commands(endpoint.base_url, folder)
            run(*generate)
            show_first_answer(folder / "answers.jsonl")
            print("\nJudged with the built-in prompt: the official one comes with the release.")
            run(*judge)
            run(*report, quiet=True)
    except subprocess.CalledProcessError as failure:
        print(f"error: {failure.cmd[1]} ended with code {failure.returncode}", file=sys.stderr)
        return 1
    print("\nanswers, scores, every reply of the judge, a page to open in a browser:")
    for name in ("answers.jsonl", "scores.jsonl", "scores.verdicts.jsonl", "report.html"):
        print(f"  {folder / name}")
    print(f"\n{STAND_IN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
