"""Child processes that are gone within 15 s of any end of their stage.

A swarm's peers fork helpers and a daemon of another language. When a peer is killed these go on, hold ports, answer
other peers and keep pipes open; when the stage is killed, so do the peers. Neither a ``finally`` nor an ``atexit``
helps against ``kill -9``, process groups miss what makes a session of its own, and "die with my parent" (``prctl``)
means the *thread* that started a process and is not passed on to its children.

The rule: a stage starts its processes through one small supervisor (``tasks/supervisor.py``), which is bound to the
stage by a pipe that the operating system closes at the stage's end, whatever it was. The commands are bound to the
supervisor by another pipe (``tasks/lifeline.py``), in case that one is killed.

===============================  ===============================================================
what ends                        who ends the rest
===============================  ===============================================================
the ``with`` block, in any way   ``Owned.stop`` asks the supervisor, and waits for it
the stage, killed                the supervisor, when its pipe ends
the leading command              the supervisor
another command                  nobody: the rest goes on; its own descendants are killed
the supervisor, killed           ``Owned.stop``, without grace; each command's lifeline
supervisor and stage, killed     each command's lifeline; what escapes it, the next ``Owned``
===============================  ===============================================================
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tasks.contract import StageError
from tasks.lifeline import sweep
from tasks.locks import holder_of
from tasks.supervisor import KILL_SECONDS, LOCK, PROCESSES

LOCK_SECONDS = 20.0
"""How long a new swarm waits for the end of an older one in the same folder."""

START_SECONDS = 30.0
"""How long the supervisor may take to start all commands, on a machine that is busy."""

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Command:
    """One child process.

    Attributes:
        name: "coordinator", "peer-0"; unique in its swarm.
        argv: program and arguments, complete: ``(sys.executable, "-P", "-m", "tasks.…", …)``.
        environment: variables set in addition to the inherited ones.
        log: file to which standard output and error are appended; its folder is created.
    """

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    log: Path


@dataclass(frozen=True)
class OwnedProcess:
    """A process as its supervisor noted it.

    Attributes:
        name: the command's name, or "supervisor".
        pid: its process id.
        create_time: in seconds since 1970, as ``psutil`` has it: together with the pid it names one process for ever.
        exit_status: None while it runs, and for the supervisor; ``-n`` after signal ``n``.
    """

    name: str
    pid: int
    create_time: float
    exit_status: int | None


def processes(folder: Path) -> dict[str, OwnedProcess]:
    """What the supervisor of a swarm's folder noted last, by name, "supervisor" first; empty if there was none.

    A note may be of a swarm that was killed: a process is only running if one of its pid and start time is.
    """
    try:
        facts: dict[str, Any] = json.loads((folder / PROCESSES).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    noted = {"supervisor": {**facts["supervisor"], "exit_status": None}, **facts["commands"]}
    return {name: OwnedProcess(name, **values) for name, values in noted.items()}


def wait_for_older_swarm(folder: Path) -> None:
    """Wait until nobody owns processes of this swarm's folder any more; ``Owned`` does so at its entry.

    Raises:
        StageError: the older swarm does not end.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while (holder := holder_of(folder / LOCK)) is not None:
        if time.monotonic() > deadline:
            raise StageError(
                f"{folder}: an older swarm's supervisor (process {holder['pid']} on {holder['host']}) still "
                f"runs after {LOCK_SECONDS:.0f} s; end it with: kill {holder['pid']}"
            )
        time.sleep(POLL_SECONDS)


class Owned:
    """Context manager: the commands run from its entry on, and are gone after its end.

    May be used in any thread; the process's signal handlers stay as they are. Entering waits until all commands have
    been started, and raises StageError if that fails, or if an older swarm of the folder does not end.

    Args:
        commands: started in this order, each in a session of its own; they should call ``tasks.lifeline.watch``.
        leader: name of the command whose exit ends all others.
        folder: for the swarm's lock, notes and the supervisor's log; created. One swarm at a time.
        grace_seconds: time that the commands have to leave by themselves after SIGTERM; more than 5 s breaks the
            promise of 15 s in the worst case.
    """

    def __init__(self, commands: list[Command], leader: str, folder: Path, grace_seconds: float = 5.0) -> None:
        names = [command.name for command in commands]
        assert leader in names, f"no command is named {leader!r}"
        assert len(set(names)) == len(names), f"two commands have one name: {names}"
        assert "supervisor" not in names, "this name is taken"
        self.commands = commands
        self.leader = leader
        self.folder = folder.resolve()
        self.grace_seconds = grace_seconds
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Owned:
        self.folder.mkdir(parents=True, exist_ok=True)
        wait_for_older_swarm(self.folder)
        sweep(self.folder)  # what an older swarm may have left if its supervisor was killed too
        (self.folder / PROCESSES).unlink(missing_ok=True)
        try:
            self._start()
        except BaseException:  # `with` does not call __exit__ for an interrupt that comes before its body
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def ended(self) -> bool:
        """Whether the leader has exited, or nobody is left to say so because the supervisor is gone."""
        return self._supervisor is None or self._supervisor.poll() is not None or self.exit_status() is not None

    def exit_status(self) -> int | None:
        """The leader's exit status, ``-n`` after signal ``n``; None while it runs, or if nobody saw it."""
        leader = processes(self.folder).get(self.leader)
        return leader.exit_status if leader else None

    def stop(self) -> None:
        """End all processes and wait until they are gone; may be called again."""
        supervisor = self._supervisor
        if supervisor is None:
            return
        # If an interrupt cuts this short, the supervisor goes on without us: it has been told by then.
        supervisor.terminate()
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        try:
            supervisor.wait(self.grace_seconds + KILL_SECONDS + 1.0)  # 1 s to notice and to exit
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()
        sweep(self.folder)
        self._supervisor = None

    def _start(self) -> None:
        spec = {
            "folder": str(self.folder),
            "leader": self.leader,
            "stage_pid": os.getpid(),
            "grace_seconds": self.grace_seconds,
            "commands": [
                {
                    "name": command.name,
                    "argv": command.argv,
                    "environment": command.environment,
                    "log": str(command.log.absolute()),
                }
                for command in self.commands
            ],
        }
        spec_file, log_file = self.folder / "supervisor.json", self.folder / "supervisor.log"
        spec_file.write_text(json.dumps(spec, indent=1), encoding="utf-8")
        with open(log_file, "ab") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-P", "-m", "tasks.supervisor", str(spec_file)],
                stdin=subprocess.PIPE,  # its writing end is closed in whatever else this process executes
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is the stage's, which then ends the rest in order
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            over = self._supervisor.poll() is not None or time.monotonic() > deadline
            if len(processes(self.folder)) == 1 + len(self.commands):
                return
            if over:
                said = log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise StageError(
                    f"the child processes could not be started: {said[-1] if said else 'no answer'}; see {log_file}"
                )
            time.sleep(POLL_SECONDS)
