"""A program as a process: exit codes, signals, what an error looks like to people."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import resource
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from beam_common.files import NO_ROOM
from beam_common.messages import StoppedEarly, UsageError, say
from beam_common.rows import PROJECT

SPARE_FILES = 64  # descriptors beside those of the connections


def _terminate(number: int, frame: object) -> None:
    """A signal arrived outside the event loop."""
    raise KeyboardInterrupt(number)


def started_by(script: str) -> str:
    """How a program of ours is started from the working directory."""
    return f"python {shlex.quote(os.path.relpath(PROJECT / script))}"


def run(main: Callable[[], int]) -> NoReturn:
    """Run a program's `main` as the process. After a signal nothing may hold up the end."""
    code = main()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code > 128:
        os._exit(code)
    sys.exit(code)


def command(main: Callable[[Sequence[str] | None], int]) -> Callable[..., int]:
    """Wrap a program's `main`: errors become one line and an exit code, output is unbuffered."""

    @functools.wraps(main)
    def wrapped(argv: Sequence[str] | None = None) -> int:
        _prepare_streams()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:  # an ignored one stays ignored
                signal.signal(number, _terminate)
        try:
            return main(argv)
        except UsageError as error:
            say(f"error: {error}")
            return 2
        except StoppedEarly as error:
            say(f"stopped: {error}")
            return 1
        except BrokenPipeError:  # the reader of stdout has gone, as with `| head`
            _give_up_stdout()
            return 1
        except KeyboardInterrupt as error:
            say("interrupted")
            return 128 + int(error.args[0] if error.args else signal.SIGINT)
        except ModuleNotFoundError as error:
            if str(error.name).startswith("beam"):
                raise
            requirements = shlex.quote(str(PROJECT / "requirements.txt"))
            say(f"error: the package {error.name} is not installed: pip install -r {requirements}")
            return 2
        except Exception as error:
            return _unforeseen(error)

    return wrapped


def _prepare_streams() -> None:
    """Let any text be printed at once. What is written to a closed stream goes nowhere."""
    for name in ("stdin", "stdout", "stderr"):  # so each gets its number before a file of ours does
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115 - for the rest of the process
        if reconfigure := getattr(getattr(sys, name), "reconfigure", None):
            reconfigure(errors="backslashreplace", line_buffering=True)


def _give_up_stdout() -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process


def _unforeseen(error: Exception) -> int:
    """Say what no program of ours expected; the exit code."""
    if isinstance(error, OSError) and error.filename:
        say(f"error: {error.filename}: {error.strerror}; name another file, or change its rights")
        return 2
    if isinstance(error, FileNotFoundError):
        say("error: the working directory is gone; change to one that is there")
        return 2
    if isinstance(error, OSError) and error.errno in NO_ROOM:  # stdout is a file on a full disk
        _give_up_stdout()
        say(f"stopped: results cannot be printed: {error.strerror}; what is on disk is whole")
        return 1
    say("".join(traceback.format_exception(error)).rstrip())
    say(
        "stopped: this is a mistake of the program, not of the endpoint; what is on disk is whole. "
        "Please report it"
    )
    return 1


@contextlib.contextmanager
def signals_caught(handler: Callable[[int], None]) -> Iterator[None]:
    """In an event loop: let `handler` have SIGINT, SIGTERM, SIGHUP; ignored ones stay ignored."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, handler, number)
    yield  # the loop takes its handlers away when it is closed


def connections_allowed(wanted: int) -> int:
    """`wanted`, or as many as the system lets this process have; raises its soft limit for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_FILES
    for limit in (needed, hard):
        if 0 <= soft < needed:  # -1 is no limit
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                soft = limit
    if not 0 <= soft < needed:
        return wanted
    say(f"warning: this process may open {soft:,} files (ulimit -n): fewer requests in flight")
    return max(1, soft - SPARE_FILES)
