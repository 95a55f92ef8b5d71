"""Run one of the programs as a process of its own with other waits, given as JSON.

    python tests/launcher.py beam_generate.py '{"first": 0.01, "longest": 0.08}' --tag sample …

Names are those of `beam_common.places.Waits`; `progress` stands for the seconds between two lines
of progress. What is not named stays as it is.
"""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from beam_common import places, progress  # noqa: E402 - before a program imports what is in them


def main() -> None:
    program, waits, *argv = sys.argv[1:]
    seconds = json.loads(waits)
    progress.PLAIN_SECONDS = seconds.pop("progress", progress.PLAIN_SECONDS)
    places.WAITS = replace(places.WAITS, **seconds)
    sys.argv = [program, *argv]
    runpy.run_path(str(PROJECT / program), run_name="__main__")


if __name__ == "__main__":
    main()
