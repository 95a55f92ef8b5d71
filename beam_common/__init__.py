"""What the four programs share. Nothing in here imports a program."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - it may be started with any
    raise SystemExit(
        "BEAM needs Python 3.11 or newer: start the program with one, such as python3.12 (this is "
        + sys.version.split()[0]
        + ")"
    )
