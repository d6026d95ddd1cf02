"""What a child process of a stage needs so that it never outlives the stage, whoever is killed first.

A program that a supervisor starts (see ``tasks/supervision.py``) has a pipe as its standard input: its *lifeline*.
Only the supervisor holds the writing end, and nobody writes. When the reading ends, the supervisor is gone, perhaps by
``kill -9``, and the program must go too. In the ordinary case the supervisor lives and ends the program by SIGTERM,
which the program handles by itself.

Every process below such a program inherits a *mark* in its environment, by which it is found even if it has made a
session of its own and its parent is gone: the tree of processes and the process groups both lose sight of it then.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "SAHAJFLOW_OWNED_BY"
"""Environment variable of all owned processes: ``<folder of the swarm>/<name of the command>``."""

SWEEP_SECONDS = 4.0
"""How long ``sweep`` goes on; only a process that hangs inside the kernel survives SIGKILL that long."""


def watch(on_end: Callable[[], None], grace_seconds: float = 5.0) -> None:
    """Have ``on_end`` called when the supervisor is gone, and this program killed if it has not left then in time.

    Call it once, early, in a program that a supervisor started; returns at once. File descriptor 0 has to stay the
    pipe from then on: nothing else may read, close or replace it. Processes that the program forks later inherit only
    the reading end, so they keep nobody alive. A program that is started by hand needs a standard input that stays
    open (``/dev/null`` ends at once) and a process group of its own.

    Args:
        on_end: called in a thread of its own; it should make the main loop leave, and must not block.
        grace_seconds: time from then until all processes that this program started are killed, and its own process
            group with it. The program stays until then even if its main loop leaves earlier (``os._exit`` aside),
            since nobody else would end what it leaves behind.
    """

    def wait_for_end() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        # Not a daemon: the interpreter waits for it before it exits.
        threading.Thread(target=_kill_all, args=(grace_seconds,), name="lifeline-grace", daemon=False).start()
        on_end()

    threading.Thread(target=wait_for_end, name="lifeline", daemon=True).start()


def sweep(place: Path) -> None:
    """Kill all processes of this host that bear a mark at or below ``place``, except the caller.

    ``place`` is an absolute folder of a swarm, or such a folder with a command's name. Kills also what is forked
    meanwhile, and returns when none is left (a zombie is none), at the latest after ``SWEEP_SECONDS``.
    """
    deadline = time.monotonic() + SWEEP_SECONDS
    dying: set[psutil.Process] = set()
    while dying := {*_marked(place), *filter(_lives, dying)}:
        if time.monotonic() > deadline:
            break
        for process in dying:
            with suppress(psutil.Error):
                process.kill()  # psutil compares the start time first: never a process that was given the pid since
        time.sleep(0.02)


def _kill_all(grace_seconds: float) -> None:
    time.sleep(grace_seconds)
    if MARK in os.environ:
        # Its own only: programs that kill each other at the same moment leave what they had not yet come to.
        sweep(Path(os.environ[MARK]))
    os.killpg(0, signal.SIGKILL)


def _marked(place: Path) -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():
        # Other users' processes cannot be read, and any process may end while it is looked at.
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            mark = process.environ().get(MARK)
            if mark and pid != os.getpid() and Path(mark).is_relative_to(place):
                found.append(process)
    return found


def _lives(process: psutil.Process) -> bool:
    # A dying process loses its environment, and so its mark, before it closes its files and ports.
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
