"""Runs of the engine `collaborative`, and what is left of them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from tiny import COLLABORATIVE

from flows.execution import Options, run_chain
from flows.step_work import StageOutcome
from tasks.contract import no_progress
from tasks.supervision import OwnedProcess, processes

DRIVER = Path(__file__).with_name("collaboration_driver.py")
GONE_SECONDS = 15.0


def pack(store: Path) -> Path:
    options = Options("demo", until="pack", set_=COLLABORATIVE, store=str(store), workers=1)
    run_chain(options, lambda node, work: work(no_progress))
    return store


def pretrain(store: Path, *changes: str, progress: Any = no_progress) -> StageOutcome:
    options = Options("demo", only="pretrain", set_=(*COLLABORATIVE, *changes), store=str(store), workers=2)
    (outcome,) = run_chain(options, lambda node, work: work(progress))
    return outcome


def swarm_folder(store: Path) -> Path | None:
    return next(iter(store.glob("work/pretrain/*/scratch/swarm")), None)


def recorded(store: Path) -> dict[str, OwnedProcess]:
    folder = swarm_folder(store)
    return {} if folder is None else processes(folder)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    log = folder / "logs" / "training.jsonl"
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [line for line in lines_of(folder) if "contributions" in line]


def work_folder(store: Path) -> Path:
    (folder,) = store.glob("work/pretrain/*")
    return folder


def wait_for(what: Callable[[], Any], run: subprocess.Popen[str] | None = None, seconds: float = 90) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen"
        assert run is None or run.poll() is None, "the run ended"
        time.sleep(0.1)
    return found


def members_below(store: Path) -> list[psutil.Process]:
    """All processes, daemons included, that belong to the swarms of a store."""
    found = []
    for process in psutil.process_iter():
        try:
            owner = process.environ().get("SAHAJFLOW_OWNED_BY", "")
            if str(store) not in owner and str(store) not in " ".join(process.cmdline()):
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def start_driver(store: Path, *changes: str) -> subprocess.Popen[str]:
    """A run in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-P", str(DRIVER), str(store), *COLLABORATIVE, *changes],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def join(address: str, name: str, store: Path, home: Path, *options: str) -> subprocess.Popen[str]:
    program = str(Path(sys.executable).with_name("sahajflow"))
    return subprocess.Popen(
        [program, "join", address, "--name", name, "--store", str(store), "--workers", "1", *options],
        env={**os.environ, "SAHAJFLOW_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def runs(pid: int, created: float) -> bool:
    """Whether that very process still runs; a zombie does not."""
    try:
        process = psutil.Process(pid)
        return process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_gone(store: Path, seconds: float = GONE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while (left := members_below(store)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left, [process.cmdline() for process in left]
