"""The process between a stage and its child processes: ``python -P -m tasks.supervisor SPEC.json``.

It starts the commands, keeps ``processes.json``, and ends everything when the leading command has exited, when the
stage is gone (its standard input ends), or on a signal. Started by ``tasks/supervision.py``, which says what for.

It is a process of its own, and imports next to nothing, so that there is nothing in it that fails or blocks; whatever
goes wrong all the same, it ends the commands before it exits. On Linux it is made the *subreaper*: a descendant whose
parent dies becomes its child instead of process 1's, so none of them gets out of sight.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tasks.lifeline import MARK, sweep
from tasks.locks import held

LOCK = "swarm.lock"
"""File in the swarm's folder that a supervisor holds locked as long as it lives."""

PROCESSES = "processes.json"
"""File in the swarm's folder: ``{"supervisor": {"pid", "create_time"}, "commands": {name: {"pid", "create_time",
"exit_status"}}}``; times in seconds since 1970; the exit status is null while the command runs and ``-n`` after signal
``n``."""

POLL_SECONDS = 0.2
KILL_SECONDS = 4.0
"""How long the supervisor goes on killing; only a process that hangs inside the kernel lasts that long."""

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Supervisor:
    """The commands of one swarm, from their start to the end of the last of their descendants.

    Args:
        spec: ``{"folder", "leader", "stage_pid", "grace_seconds", "commands": [{"name", "argv", "environment",
            "log"}]}`` with absolute paths.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.folder = Path(spec["folder"])
        self.leader: str = spec["leader"]
        self.stage_pid: int = spec["stage_pid"]
        self.grace_seconds: float = spec["grace_seconds"]
        self.commands: list[dict[str, Any]] = spec["commands"]
        self.told_to_end = False
        self.lifeline, self.held_end = os.pipe()
        self.running: dict[int, str] = {}
        """Names of the commands that have not been reaped, by pid. Until a child is reaped its pid is not reused."""
        self.facts: dict[str, dict[str, Any]] = {}

    def supervise(self) -> None:
        """Start the commands, return when there is a reason to end, and end them in any case."""
        try:
            reason = self.reason_to_end()  # the stage may have died while this process started
            if reason is None:
                for command in self.commands:
                    self.start(command)
            while reason is None:
                for name in self.reap():
                    sweep(self.folder / name)  # a dead peer's helpers would go on answering the others
                reason = self.reason_to_end(wait_seconds=POLL_SECONDS)
            tell(f"ending: {reason}")
        finally:
            self.end()

    def start(self, command: dict[str, Any]) -> None:
        """Start one command in a session of its own, with this process's lifeline as its standard input."""
        name = command["name"]
        Path(command["log"]).parent.mkdir(parents=True, exist_ok=True)
        with open(command["log"], "ab") as log:
            process = subprocess.Popen(
                command["argv"],
                env={**os.environ, **command["environment"], MARK: str(self.folder / name)},
                stdin=self.lifeline,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.returncode = 0  # `reap` waits for all children; this object must not try, and does not matter again
        self.running[process.pid] = name
        self.facts[name] = {**identity(process.pid), "exit_status": None}
        self.write()

    def reason_to_end(self, wait_seconds: float = 0.0) -> str | None:
        """Why everything has to end now, or None; waits that long for the stage's end of the pipe to close."""
        readable, _, _ = select.select([0], [], [], wait_seconds)
        if self.told_to_end:
            return "a signal asked for it"
        # A process that the stage forked may hold a copy of the pipe's end, so the parent is looked at too.
        if (readable and not os.read(0, 1)) or os.getppid() != self.stage_pid:
            return "the stage is gone"
        leader = self.facts.get(self.leader)
        if leader and leader["exit_status"] is not None:
            return f"{self.leader} has exited with status {leader['exit_status']}"
        return None

    def reap(self) -> list[str]:
        """Take note of all children that have ended, orphans included; the names of the commands among them."""
        names = []
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in self.running:
                    names.append(self.running.pop(pid))
                    self.facts[names[-1]]["exit_status"] = os.waitstatus_to_exitcode(status)
        if names:
            self.write()
        return names

    def end(self) -> None:
        """SIGTERM to the commands, some time to leave by themselves, then SIGKILL to every descendant until none."""
        for pid in self.running:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + self.grace_seconds
        while self.running and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.02)
        deadline = time.monotonic() + KILL_SECONDS
        while left := psutil.Process().children(recursive=True):
            if time.monotonic() > deadline:
                tell(f"processes that cannot be killed: {sorted(process.pid for process in left)}")
                break
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.02)
            self.reap()

    def write(self) -> None:
        """Write ``processes.json``; a reader sees the old content or the new one."""
        # Not synced: it means nothing after a power cut, and behind a large checkpoint a sync would delay the end.
        building = self.folder / f".{PROCESSES}"
        facts = {"supervisor": identity(os.getpid()), "commands": self.facts}
        try:
            building.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
            building.replace(self.folder / PROCESSES)
        except OSError as error:  # a full disk or a deleted folder is no reason to give the processes up
            tell(f"{PROCESSES} cannot be written: {error}")


def identity(pid: int) -> dict[str, Any]:
    """What tells a process from another one that is given its pid later."""
    return {"pid": pid, "create_time": psutil.Process(pid).create_time()}


def tell(text: str) -> None:
    """One line to the supervisor's log, if it can be written."""
    with suppress(OSError):
        print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)


def become_subreaper() -> None:
    """Get the orphans among the descendants as children; where the system has no such thing, only the log says so."""
    try:
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            tell(f"no subreaper: {os.strerror(ctypes.get_errno())}")
    except AttributeError:
        tell("no subreaper: only Linux has them")


def main(spec: Path) -> None:
    """Supervise the commands that the JSON file describes."""
    supervisor = Supervisor(json.loads(spec.read_text(encoding="utf-8")))

    def ask_to_end(number: int, frame: Any) -> None:
        supervisor.told_to_end = True

    # Set, not ignored, also because the commands then start with the default actions, whatever the stage ignores.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask_to_end)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    become_subreaper()
    # What the commands' libraries leave in the temporary folder when they are killed (sockets, for one) goes with it.
    scratch = tempfile.TemporaryDirectory(prefix="sahajflow-", ignore_cleanup_errors=True)
    with held(supervisor.folder / LOCK), scratch as place:
        os.environ["TMPDIR"] = place
        supervisor.supervise()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
