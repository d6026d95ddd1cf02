"""Kills a process before and after every system call that publishing makes, and looks at what the next run finds.

Run by test_store.py in a process of its own, because it forks. Prints {"calls", "killed", "failures"} as JSON.
"""

from __future__ import annotations

import builtins
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.execution import carry_out
from flows.graph import Node
from flows.plan import Selection, make_plan
from tasks import durable
from tasks.contract import Settings, Stage
from tasks.store import Store

RUNS = "runs.log"


def stage_function(settings: Settings, inputs: Any, folder: Path, progress: Any) -> dict[str, Any]:
    """Leaves two files, a log and scratch, and notes in the test's own log that it ran."""
    with open(folder.parents[3] / RUNS, "a") as log:
        log.write("ran\n")
    for name in ("data/0.arrow", "data/1.arrow", "logs/times.jsonl", "scratch/parts/0.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return {}


NODE = Node("pack", Stage("pack", 1, Settings, stage_function), Settings(), {})
OTHER = Node("corpus", Stage("corpus", 1, Settings, stage_function), Settings(), {})


def run(store: Store, node: Node) -> Any:
    steps, inputs = make_plan([node], store, Selection(only=node.name))
    (outcome,) = carry_out(steps, inputs, store, lambda node, work: work(lambda *_, **__: None))
    return outcome


def watch(visit: Callable[[str, str], None]) -> None:
    """Let ``visit(call, side)`` see every call from the moment the stage has ended."""

    def wrapped(name: str, function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            path = "" if isinstance(arguments[0], int) else Path(str(arguments[0])).name
            # without process, thread and time
            told = re.sub(r"\.\d+-\d+$|(?<=scratch)-[\w-]+$", "", f"{name} {path}".strip())
            visit(told, "before")
            try:
                return function(*arguments, **keywords)
            finally:
                visit(told, "after")

        return call

    def opened(path: Any, mode: str = "r", *rest: Any, **keywords: Any) -> Any:
        function = wrapped("open", builtins.open) if "w" in mode else builtins.open
        return function(path, mode, *rest, **keywords)

    for name in ("rename", "fsync", "mkdir", "unlink", "rmdir"):
        setattr(os, name, wrapped(name, getattr(os, name)))
    durable.open = opened  # type: ignore[attr-defined]


def attempt(folder: Path, kill_at: int | None, log: Path) -> int:
    """Run the node in a child that kills itself at the given visit; returns the child's wait status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    count = 0

    def visit(call: str, side: str) -> None:
        nonlocal count
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "w") as file:
            file.write(json.dumps([call, side]) + "\n")
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    finish = Store.finish

    def watched(*arguments: Any, **keywords: Any) -> Any:
        watch(visit)
        return finish(*arguments, **keywords)

    Store.finish = watched  # type: ignore[method-assign]
    run(Store(folder / "store"), NODE)
    os._exit(0)


def visits(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def main(root: Path) -> None:
    assert attempt(root / "undisturbed", None, root / "undisturbed.log") == 0
    points = visits(root / "undisturbed.log")
    digest = run(Store(root / "undisturbed" / "store"), NODE).record.digest
    killed, failures = [], []
    for number, point in enumerate(points):
        folder = root / str(number)
        store = Store(folder / "store")
        bystander = run(store, OTHER)
        before = {path: path.stat().st_mtime_ns for path in durable.files_in(bystander.path)}
        (folder / RUNS).unlink()
        status = attempt(folder, number, root / f"{number}.log")
        if status == signal.SIGKILL:
            killed.append(visits(root / f"{number}.log")[-1])
        outcome = run(store, NODE)
        problems = {
            "digest": outcome.record.digest != digest,
            "planned again": make_plan([NODE], store, Selection(only="pack"), verify=True)[0][0].action != "reuse",
            "work left": any((store.root / "work" / "pack").glob("*")),
            "bystander": {path: path.stat().st_mtime_ns for path in durable.files_in(bystander.path)} != before,
            # Once the record is written, the stage's work is not done again.
            "ran twice": number > record_written(points) and (folder / RUNS).read_text() != "ran\n",
            "building file": any(store.root.rglob(".record.json.*")),
        }
        failures += [[point, problem] for problem, found in problems.items() if found]
    calls = [call for call, side in points if side == "before"]
    print(json.dumps({"calls": calls, "killed": killed, "failures": failures}))


def record_written(points: list[list[str]]) -> int:
    return next(
        number for number, (call, side) in enumerate(points) if call.startswith("rename .record") and side == "after"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
