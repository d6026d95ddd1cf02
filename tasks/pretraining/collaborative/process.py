"""The frame of a swarm's member: signals, lifeline, fork, and where its last words go."""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from hivemind.p2p import P2P

from tasks import lifeline
from tasks.contract import StageError, UserError

logger = logging.getLogger(__name__)


class Stop:
    """Set when the peer should leave: by SIGTERM or the end of the lifeline."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        signal.signal(signal.SIGTERM, lambda number, frame: self.asked.set())
        lifeline.watch(self.asked.set)


def even_time() -> None:
    """Give hivemind a time that goes on evenly from here, in this process and those that it forks.

    Its own is the machine's clock. If that is set back by an hour, all that a member tells counts as older than what
    it told before, and nobody hears of it for an hour: a swarm stood still. Time also passes while the machine sleeps.
    """
    before = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def get_dht_time() -> float:
        return before + time.clock_gettime(time.CLOCK_BOOTTIME)

    for name, module in list(sys.modules.items()):  # each has imported the function by its name
        if name.startswith(("hivemind.", __package__)) and hasattr(module, "get_dht_time"):
            vars(module)["get_dht_time"] = get_dht_time


def run_member(folder: Path, name: str, work: Callable[[Stop], None]) -> NoReturn:
    """The frame of a member's process: signals, lifeline, fork, the error file; does not return but exits.

    What hivemind leaves running at the end (threads, futures) must not hold up the exit, hence ``os._exit``.
    """
    even_time()
    multiprocessing.set_start_method("fork", force=True)  # hivemind's optimiser cannot be pickled
    P2P._UNIX_SOCKET_PREFIX = f"/unix{tempfile.gettempdir()}/hivemind-"  # its owner clears this folder, not /tmp
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each shared tensor is an open file
    status = 1
    error = folder / f"{name}.error"
    try:
        work(Stop())
        status = 0
    except UserError as problem:
        error.write_text(str(problem), encoding="utf-8")
        status = 2
    except StageError as problem:
        error.write_text(str(problem), encoding="utf-8")
    except Exception as problem:
        logger.exception("%s failed", name)
        error.write_text(f"{type(problem).__name__}: {' '.join(str(problem).splitlines())}", encoding="utf-8")
    finally:
        if lifeline.MARK in os.environ:
            lifeline.sweep(Path(os.environ[lifeline.MARK]))  # what hivemind has not ended has nobody else
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
