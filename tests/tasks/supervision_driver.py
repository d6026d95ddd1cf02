"""A stage process and its commands, for test_supervision.py, which starts, kills and counts them.

``stage FOLDER END`` owns a coordinator and two peers until END: "wait" for the leader, "raise", "fork" a process that
holds a copy of all descriptors. ``command FOLDER NAME KIND`` is one of them. Each process that comes to be notes
itself in FOLDER/born.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

from tasks import lifeline
from tasks.supervision import Command, Owned

GRACE = 1.5


def note(folder: Path, name: str) -> None:
    created = psutil.Process().create_time()
    building = folder / "born" / f".{name}"
    building.write_text(f"{os.getpid()} {created!r}")
    building.rename(folder / "born" / name)


def commands(folder: Path, kinds: dict[str, str]) -> list[Command]:
    (folder / "born").mkdir(exist_ok=True)
    return [
        Command(
            name,
            (sys.executable, "-P", __file__, "command", str(folder), name, kind),
            {"NAME_OF_COMMAND": name},
            folder / "logs" / f"{name}.log",
        )
        for name, kind in kinds.items()
    ]


def stage(folder: Path, end: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background may start us with it ignored
    note(folder, "stage")
    with Owned(
        commands(folder, {"coordinator": "orderly", "peer-0": "orderly", "peer-1": "stubborn"}),
        leader="coordinator",
        folder=folder / "swarm",
        grace_seconds=GRACE,
    ) as owned:
        if end == "fork" and os.fork() == 0:
            note(folder, "copy")
            time.sleep(60)
        (folder / "inside").touch()
        while end == "raise" and not (folder / "go on").exists():
            time.sleep(0.02)
        if end == "raise":
            raise ValueError("the stage fails")
        while not owned.ended():
            time.sleep(0.05)


def command(folder: Path, name: str, kind: str) -> None:
    """Kinds: "orderly" leaves on SIGTERM and on the lifeline's end, "stubborn" on neither, "done" leaves with 0
    and "bad" with 3 once there is a file "end NAME". The first two have helpers, one of them hard to find."""
    leave = threading.Event()
    print(f"{os.environ['NAME_OF_COMMAND']} starts", flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if kind == "stubborn" else lambda *_: leave.set())
    lifeline.watch((lambda: None) if kind == "stubborn" else leave.set, grace_seconds=GRACE)
    if kind in ("done", "bad"):
        note(folder, name)
        while not (folder / f"end {name}").exists():
            time.sleep(0.02)
        sys.exit(0 if kind == "done" else 3)
    start_helpers(folder, name)
    note(folder, name)
    while not leave.wait(0.05):
        pass
    print(f"{name} leaves", flush=True)


def start_helpers(folder: Path, name: str) -> None:
    """A forked helper as hivemind has them, and one as bad as it gets: orphaned, in its own session, deaf."""
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(folder, f"{name} helper")
        time.sleep(60)
        os._exit(0)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        note(folder, f"{name} daemon")
        time.sleep(60)
        os._exit(0)


if __name__ == "__main__":
    {"stage": stage, "command": command}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
