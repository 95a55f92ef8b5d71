"""A program as a process: exit codes, signals, what an error looks like to people."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from beam_common.files import NO_ROOM
from beam_common.messages import StoppedEarly, UsageError, say
from beam_common.rows import PROJECT

NO_WAY_TO_A_FILE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)


class Terminated(BaseException):
    """A signal arrived outside the event loop."""


def started_by(script: str) -> str:
    """How a program of ours is started from the working directory."""
    path = str(PROJECT / script)
    with contextlib.suppress(OSError):  # the working directory may have been deleted
        path = os.path.relpath(path)
    return f"python {shlex.quote(path)}"


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
        for stream in (sys.stdout, sys.stderr):
            if reconfigure := getattr(stream, "reconfigure", None):
                reconfigure(errors="backslashreplace", line_buffering=True)
        before = _catch_signals()
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
        except KeyboardInterrupt:
            say("interrupted")
            return 128 + signal.SIGINT
        except Terminated as error:
            say("terminated")
            return 128 + int(error.args[0])
        except ModuleNotFoundError as error:
            if str(error.name).startswith("beam"):
                raise
            say(
                f"error: the package {error.name} is not installed: pip install -r "
                f"{shlex.quote(os.path.relpath(PROJECT / 'requirements.txt'))}"
            )
            return 2
        except Exception as error:
            return _unforeseen(error)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    return wrapped


def _catch_signals() -> Mapping[int, Any]:
    """Let SIGTERM and SIGHUP raise Terminated; ignored ones stay ignored. Gives what was before."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    caught = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    return {number: signal.signal(number, _terminated) for number in caught}


def _terminated(number: int, frame: object) -> None:
    raise Terminated(number)


def _give_up_stdout() -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process


def _unforeseen(error: Exception) -> int:
    """Say what no program of ours expected; the exit code."""
    if isinstance(error, OSError) and error.filename and error.errno in NO_WAY_TO_A_FILE:
        say(f"error: {error.filename}: {error.strerror}; name another file, or change its rights")
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
