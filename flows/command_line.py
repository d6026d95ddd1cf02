"""The command line. Exit status: 0 done, 1 a stage failed, 2 the user's input is wrong, 130 interrupted.

Everything heavy is imported where it is used, so that ``--help`` answers within half a second and ``plan`` within one
and a half.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from flows.argument_types import say
from flows.arguments import parser

MACHINE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE}
"""What the machine refuses (a full disk, a lacking permission): no traceback helps there."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):  # one that is closed is None
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a terminal may know fewer characters than recipes and tasks
    options = parser().parse_args(arguments)
    from flows.local_server import NO_TELEMETRY  # after --help has answered
    from tasks.contract import StageError, UserError

    os.environ.update({name: os.environ.get(name, value) for name, value in NO_TELEMETRY.items()})

    # A scheduler's or a system's SIGTERM ends the run as Ctrl-C does: the work folder stays, the children go.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _check_home()
        status: int = options.command(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except UserError as error:
        return say(f"sahajflow: {error}", 2)
    except StageError as error:
        return say(f"sahajflow: {error}", 1)
    except KeyboardInterrupt:
        if getattr(options, "force", None):
            return say("sahajflow: interrupted; the same command goes on with the forced stage where it can", 130)
        return say("sahajflow: interrupted; run the same command again to go on from here", 130)
    except BrokenPipeError:
        _close_output()  # the reader (head, less) has gone
        return 0
    except OSError as error:
        if error.errno not in MACHINE_ERRORS:
            return _unexpected(error)
        _close_output()
        return say(f"sahajflow: {error.filename or 'the output'}: {error.strerror}", 1)
    except Exception as error:
        return _unexpected(error)
    return status


def _unexpected(error: Exception) -> int:
    import traceback

    traceback.print_exception(error)
    return say(f"sahajflow: {type(error).__name__}: {error}", 1)


def _close_output() -> None:
    """Drop what could not be written: Python would complain once more when it flushes at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_home() -> None:
    from tasks.contract import UserError
    from tasks.store import home

    try:
        home()
    except RuntimeError:
        raise UserError(
            f"SAHAJFLOW_HOME={os.environ.get('SAHAJFLOW_HOME', '')}: there is no such user; name a folder"
        ) from None


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
