"""Run one of the programs as a process of its own, with waits short enough for tests.

In:  `generate` or `judge`, then the program's own arguments:

    python tests/launcher.py generate --tag sample …
"""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE))

import beam_run  # noqa: E402

QUICK_WAITS = replace(beam_run.WAITS, first=0.01, longest=0.08)  # what an endpoint names is waited for in full
QUICK_PROGRESS = 0.2


def main() -> None:
    program, *argv = sys.argv[1:]
    beam_run.WAITS = QUICK_WAITS
    beam_run.PROGRESS_SECONDS = QUICK_PROGRESS
    sys.argv = [f"beam_{program}.py", *argv]
    runpy.run_path(str(HERE / f"beam_{program}.py"), run_name="__main__")


if __name__ == "__main__":
    main()
