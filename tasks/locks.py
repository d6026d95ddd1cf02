"""One writer per fingerprint, by an operating-system lock.

``flock`` belongs to the open file description, so it ends with the last process that holds the descriptor, however
that process dies; children that inherit it keep it, which is wanted: a living orphan must not meet a second writer.
The ``filelock`` package offers the same lock but hides the descriptor that children have to inherit. The JSON beside
the lock only tells people who holds it; nothing is decided from it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.5
"""How often a waiting process asks again: the bound on the time to take over from a dead holder."""


def holder_of(lock: Path) -> dict[str, Any] | None:
    """Who says to hold the lock (host, pid, started), if a process really holds it now; else None."""
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        descriptor = os.open(lock, os.O_RDONLY)  # of a store that may only be read
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _told_holder(lock)
    finally:
        os.close(descriptor)
    return None


@contextmanager
def held(
    lock: Path,
    waiting: Callable[[dict[str, Any]], None] | None = None,
    facts: Mapping[str, Any] | None = None,
    *,
    must_tell: bool = True,
) -> Iterator[int]:
    """Hold the lock for the body of the ``with``; wait as long as somebody else has it.

    Args:
        lock: the lock file; it is created and never deleted, since deleting one that others wait for splits them.
        waiting: called once, with what the holder says of itself, if there is something to wait for.
        facts: what else to say beside the lock, as JSON; it stays there after the lock is released.
        must_tell: false to hold the lock even where a full disk has no room for what there is to say beside it.

    Yields:
        The descriptor, to be passed on to child processes that write on the holder's behalf.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waiting is not None and not told:
                    waiting(_told_holder(lock))
                    told = True
                time.sleep(POLL_SECONDS)
        try:
            _tell(lock, {"host": socket.gethostname(), "pid": os.getpid(), "started": time.time(), **(facts or {})})
        except OSError as error:
            if must_tell or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        yield descriptor
    finally:
        os.close(descriptor)


def last_note(lock: Path) -> dict[str, Any]:
    """What the present or the last holder says, or said, of itself; empty if nobody has."""
    return _told_holder(lock) if _note(lock).exists() else {}


def _note(lock: Path) -> Path:
    return lock.with_suffix(".json")


def _tell(lock: Path, holder: dict[str, Any]) -> None:
    building = _note(lock).with_name(f".{lock.name}.{os.getpid()}")
    try:
        building.write_text(json.dumps(holder), encoding="utf-8")
        building.replace(_note(lock))
    except OSError:
        building.unlink(missing_ok=True)
        raise


def _told_holder(lock: Path) -> dict[str, Any]:
    try:
        holder: dict[str, Any] = json.loads(_note(lock).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        holder = {"host": "unknown", "pid": 0, "started": time.time()}
    return holder
