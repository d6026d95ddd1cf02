"""The named points of a run at which tests kill it: start and middle of each node of the chain, and each system call
that publishes a result or a part.

`watched` shows them to a function while the product's own code runs. Only these processes of tests know of points: the
product has no switch for them.

    pack start                                   the work folder is open, the stage's function begins
    pack middle                                  half of what the stage tells as its progress is done
    pack record: fsync new record                before that call on the way to the result's record
    pack publish: rename work to artifact        before that call of the publishing itself
    pack part: fsync part                        before that call of publishing a part of an unfinished result
    pack record: fsync work 2                    before the second call of that name

Points of parts count once a part was published by this process, so that whoever kills there always gets on.
"""

from __future__ import annotations

import builtins
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows import execution
from flows.graph import Node
from flows.step_work import Work
from tasks import durable
from tasks.parts import Parts
from tasks.store import Store

RECORD, PUBLISH, PART = "record", "publish", "part"

MANY = ("output", "part", "old scratch")
"""Places of which a result has any number; of the equal calls on them only the first is a point."""


def watched(root: Path, visit: Callable[[str], None]) -> None:
    """Call ``visit`` with the name of each point that this process passes, from now on.

    Args:
        root: the store's folder.
        visit: called before the point is passed; it may kill the process.
    """
    publishing = _Publishing(root, visit)
    _watch_stages(publishing, visit)
    _watch_calls(publishing)


class _Publishing:
    """What is being published, and the calls that were made for it."""

    def __init__(self, root: Path, visit: Callable[[str], None]):
        self.node = ""
        self._root = root
        self._visit = visit
        self._thread = 0
        self._what = ""
        self._seen: Counter[str] = Counter()
        self._parts = 0

    def within(self, what: str, function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            before = self._thread, self._what, self._seen
            self._thread, self._what, self._seen = threading.get_ident(), what, Counter()
            try:
                return function(*arguments, **keywords)
            finally:
                self._thread, self._what, self._seen = before
                self._parts += what == PART

        return call

    def made(self, call: str, *paths: Path) -> None:
        if self._thread != threading.get_ident() or (self._what == PART and not self._parts):
            return
        places = [place_of(path.relative_to(self._root)) for path in paths if path.is_relative_to(self._root)]
        if self._what == PART:
            places = ["part" if place == "scratch" else place for place in places]
        name = f"{self._what}: {call} {' to '.join(places)}"
        self._seen[name] += 1
        count = self._seen[name]
        if count == 1:
            self._visit(f"{self.node} {name}")
        elif places[0] not in MANY:
            self._visit(f"{self.node} {name} {count}")


def place_of(path: Path) -> str:
    """What a path in the store is to whoever publishes, whichever stage and fingerprint it belongs to."""
    top, *rest = path.parts
    if top == "work" and len(rest) > 2:
        name = rest[2]
        if name == "scratch" and len(rest) > 3:
            names = rest[3:]
            if names[0] != "parts":
                return "part"
            return "parts" if len(names) == 1 else "new record" if names[1].startswith(".") else "record"
        if "record.json" in name:
            return "new record" if name.startswith(".") else "record"
        return "scratch" if name == "scratch" else "output"
    if top == "work":
        return "work" if len(rest) == 2 else "work of the stage"
    if top == "artifacts":
        return "artifact" if len(rest) == 2 else "artifacts of the stage"
    return "old scratch" if top == "trash" and rest else top


def _watch_stages(publishing: _Publishing, visit: Callable[[str], None]) -> None:
    work_of, open_work = execution.work_of, Store.open_work

    def watched_work(step: Any, *arguments: Any, **keywords: Any) -> Work:
        work, node = work_of(step, *arguments, **keywords), step.node

        def watched(progress: Any) -> Any:
            publishing.node = node.name
            return work(_halved(progress, node, visit))

        return watched

    def opened(*arguments: Any, **keywords: Any) -> Path:
        folder = open_work(*arguments, **keywords)
        visit(f"{publishing.node} start")
        return folder

    execution.work_of = watched_work
    Store.open_work = opened  # type: ignore[method-assign]
    Store.finish = publishing.within(RECORD, Store.finish)  # type: ignore[method-assign]
    Store.publish = publishing.within(PUBLISH, Store.publish)  # type: ignore[method-assign]
    Parts.finish = publishing.within(PART, Parts.finish)  # type: ignore[method-assign]


def _halved(progress: Any, node: Node, visit: Callable[[str], None]) -> Any:
    passed = False

    def told(done: float, total: float, **keywords: Any) -> None:
        nonlocal passed
        progress(done, total, **keywords)
        if done >= total / 2 and not passed:
            passed = True
            visit(f"{node.name} middle")

    return told


def _watch_calls(publishing: _Publishing) -> None:
    def wrapped(name: str, function: Any) -> Any:
        def call(*arguments: Any, dir_fd: int | None = None, **keywords: Any) -> Any:
            publishing.made(name, *(_path(one, dir_fd) for one in arguments[: 2 if name == "rename" else 1]))
            return function(*arguments, **({} if dir_fd is None else {"dir_fd": dir_fd}), **keywords)

        return call

    def opened(path: Any, mode: str = "r", *rest: Any, **keywords: Any) -> Any:
        if "w" in mode:
            publishing.made("open", Path(path))
        return builtins.open(path, mode, *rest, **keywords)

    for name in ("rename", "fsync", "mkdir", "unlink", "rmdir"):
        setattr(os, name, wrapped(name, getattr(os, name)))
    durable.open = opened  # type: ignore[attr-defined]


def _path(named: Any, folder: int | None) -> Path:
    if isinstance(named, int):
        return Path(os.readlink(f"/proc/self/fd/{named}"))
    return Path(os.readlink(f"/proc/self/fd/{folder}"), named) if folder is not None else Path(named)
