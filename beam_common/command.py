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
import threading
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
        if threading.current_thread() is threading.main_thread():
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
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.getsignal(n) for n in signals if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number, earlier in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, earlier)


def connections_allowed(wanted: int) -> int:
    """`wanted`, or as many as the system lets this process have; raises its soft limit for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft < needed:
        say(f"warning: this process may open {soft:,} files (ulimit -n): fewer requests in flight")
    return max(1, min(wanted, soft - SPARE_FILES))
