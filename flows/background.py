"""Processes that outlive the command that started them: the local Prefect server and its worker.

Each has a folder with three files: ``lock`` (held while somebody starts or stops it), ``process.json`` (process id,
the process's start time, and what the starter wants to remember, such as an address) and ``<name>.log``. A process
id alone is not trusted, since the system gives it to others later: only together with the start time does it name
a process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks import durable, locks
from tasks.contract import UserError

STOP_SECONDS = 15.0
"""How long a process may take to end after SIGTERM before it is killed."""


@dataclass(frozen=True)
class Background:
    """One background process: its place on disk, and how to start, find and stop it."""

    name: str
    folder: Path

    @property
    def log(self) -> Path:
        """The file that takes the process's output."""
        return self.folder / f"{self.name}.log"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others from starting or stopping the process meanwhile; ends with whoever holds it, however it dies.

        Raises:
            UserError: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "lock").touch()
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot be written ({error.strerror}); set SAHAJFLOW_HOME to a folder of yours"
            ) from None
        with locks.held(self.folder / "lock"):
            yield

    def state(self) -> dict[str, Any]:
        """What the last starter noted (``pid``, ``started`` and its own facts); empty if there is nothing to read."""
        try:
            state: dict[str, Any] = json.loads(self._state_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            state = {}
        return state

    def running(self) -> bool:
        """Whether the process that was noted still lives."""
        state = self.state()
        return bool(state) and state["started"] is not None and start_time(state["pid"]) == state["started"]

    def start(self, command: Sequence[str], environment: Mapping[str, str], **facts: Any) -> None:
        """Start the process in a session of its own, so that Ctrl-C in the starter's terminal does not reach it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # Noted at once, before the process can serve: whoever interrupts the starter leaves something to stop.
        self.note(process.pid, **facts)

    def note(self, pid: int, **facts: Any) -> None:
        """Note which process it is, and facts about it; it should lead a group of its own, by which it is stopped."""
        durable.write_json(self._state_file, {"pid": pid, "started": start_time(pid), **facts})

    def stop(self) -> bool:
        """End the process and its group; false if none was running."""
        was_running = self.running()
        if was_running:
            pid = self.state()["pid"]
            os.killpg(pid, signal.SIGTERM)
            if not self._ends_within(STOP_SECONDS):
                os.killpg(pid, signal.SIGKILL)
                self._ends_within(STOP_SECONDS)
        self._state_file.unlink(missing_ok=True)
        return was_running

    @property
    def _state_file(self) -> Path:
        return self.folder / "process.json"

    def _ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        group = self.state()["pid"]
        while self.running() or _group_lives(group):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True


def start_time(pid: int) -> str | None:
    """When a process started, as the system writes it; None if there is no such process or it is only a zombie."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # a dead child of this very process would stay a zombie for ever
    if not Path("/proc/self").exists():  # macOS
        ps = subprocess.run(
            ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        state, _, started = ps.stdout.strip().partition(" ")
        return None if state[:1] in "Z" else started.strip()
    fields = _fields(Path(f"/proc/{pid}/stat"))
    return fields[19] if fields else None


def _group_lives(group: int) -> bool:
    return any(fields[2] == str(group) for fields in map(_fields, Path("/proc").glob("[0-9]*/stat")) if fields)


def _fields(stat: Path) -> list[str] | None:
    """What the system says of a process from its state on; None if there is no such process or only a zombie."""
    try:
        text = stat.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # proc(5): the second field is the program's name in parentheses, which may hold blanks and parentheses. After it
    # come state (field 3), parent, process group (field 5) and, as field 22, the start time in clock ticks since boot.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields
