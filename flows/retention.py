"""`sahajflow clean`: what may go, and what must stay.

The trash goes, what a killed pull had fetched, and with ``work`` unfinished work that nobody holds. With a number of
days, all that was not used for so long goes: results, unfinished work, logs of attempts, comparisons. A result was
used when a run made it, reused it or read it. What a lock or something that stays refers to stays, however old it is:
the inputs of a result, and of unfinished work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.attempts import attempts
from tasks import durable, locks
from tasks.contract import UserError
from tasks.record import Damaged, read_record
from tasks.store import Store

DAY = 86_400
"""Seconds."""


def note_use(store: Store, artifact: Path) -> None:
    """Remember that a run has just used a result; on a store that cannot be written, do without."""
    note = _note(store, artifact)
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def _note(store: Store, artifact: Path) -> Path:
    return store.root / "cache" / "used" / f"{artifact.parent.name}-{artifact.name}"


def last_use(store: Store, artifact: Path) -> float:
    """When a result was used last or published, in seconds since 1970."""
    found = 0.0
    for path in (_note(store, artifact), artifact / "record.json", artifact):
        with suppress(OSError):
            found = max(found, path.stat().st_mtime)
    return found


def last_change(folder: Path) -> float:
    """The newest modification time below a folder, in seconds since 1970."""
    newest = 0.0
    for place, _, files in os.walk(folder):
        for path in (Path(place), *(Path(place, file) for file in files)):
            with suppress(FileNotFoundError):  # whoever works there has moved it on
                newest = max(newest, path.lstat().st_mtime)
    return newest


def clean(store: Store, *, work: bool, unused_days: float | None = None, dry_run: bool) -> list[str]:
    """Remove what may go.

    Args:
        store: an existing or new store.
        work: also unfinished work that no process holds.
        unused_days: also what was not used for so many days.
        dry_run: remove nothing.

    Returns:
        A line for each thing that was removed, or would be (``dry_run``), with its size.

    Raises:
        UserError: something cannot be removed, or the history of what is removed cannot be written.
    """
    if not dry_run:
        _keep_history(store)
    before = None if unused_days is None else time.time() - unused_days * DAY
    lines = [_remove(store, [path], dry_run) for path in sorted((store.root / "trash").glob("*"))]
    for path in sorted((store.root / "arriving").glob("*/*")):
        lines += _remove_free(store, path, None, dry_run)
    for path in sorted((store.root / "work").glob("*/*")):
        if work or (before is not None and last_change(path) < before):
            lines += _remove_free(store, path, before, dry_run)
    if before is not None:
        staying = set(_staying(store, before))
        for path in sorted((store.root / "artifacts").glob("*/*")):
            if path not in staying:
                lines += _remove_free(store, path, before, dry_run)
        for path in sorted((store.root / "rendered" / "compared").glob("*")):
            lines += [_remove(store, [path], dry_run)] if last_change(path) < before else []
        lines += _remove_logs(store, before, dry_run)
    return lines or ["nothing to remove"]


def _keep_history(store: Store) -> None:
    """Write down what evaluations leave in their recipes' histories: what goes may be the only copy of one."""
    from eval.history import keep_all

    try:
        keep_all(store)
    except OSError as error:
        raise UserError(f"{error.filename}: the history cannot be written ({error.strerror})") from None


def _staying(store: Store, before: float) -> Iterator[Path]:
    """Results that were used lately, and all that they, running stages and unfinished work refer to."""
    waiting = [path for path in (store.root / "artifacts").glob("*/*") if last_use(store, path) >= before]
    for lock in (store.root / "locks").glob("*.lock"):
        stage, _, fingerprint = lock.stem.rpartition("-")
        if locks.holder_of(lock) is not None or store.work(stage, fingerprint).exists():
            inputs = locks.last_note(lock).get("inputs")
            waiting += [store.root / path for path in (inputs if isinstance(inputs, list) else [])]
            waiting.append(store.artifact(stage, fingerprint))
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            yield path
            with suppress(Damaged):
                waiting += [store.root / source.path for source in read_record(path).inputs.values()]


class _Busy(Exception):
    """Somebody holds the lock."""


def _give_up(holder: dict[str, Any]) -> None:
    raise _Busy


def _remove_free(store: Store, path: Path, before: float | None, dry_run: bool) -> list[str]:
    """Remove work or a result under its lock, unless somebody holds that, or has used the result meanwhile."""
    lock = store.lock(path.parent.name, path.name)
    if dry_run:
        return [] if locks.holder_of(lock) is not None else [_remove(store, [path], dry_run)]
    facts = {"inputs": locks.last_note(lock).get("inputs", [])}
    # Not `must_tell`: a full disk is what one cleans for.
    with suppress(_Busy), locks.held(lock, _give_up, facts, must_tell=False):
        result = path.parent.parent.name == "artifacts"
        if result and before is not None and last_use(store, path) >= before:
            return []
        if not result:
            return [_remove(store, [path], dry_run)]
        # Moved first: what is killed in the middle must not leave half a result among the finished ones.
        name = path.relative_to(store.root).as_posix()
        line = _remove(store, [store.discard(path)], dry_run, name)
        durable.remove(_note(store, path))
        return [line]
    return []


def _remove_logs(store: Store, before: float, dry_run: bool) -> list[str]:
    old = [one.path for one in attempts(store) if one.started.timestamp() < before and one.state != "running"]
    return [_remove(store, old, dry_run, f"{len(old):,} logs of attempts")] if old else []


def _remove(store: Store, paths: Iterable[Path], dry_run: bool, name: str = "") -> str:
    size = 0
    try:
        for path in paths:
            files = durable.files_in(path) if path.is_dir() and not path.is_symlink() else [path]
            size += sum(file.lstat().st_size for file in files)
            name = name or path.relative_to(store.root).as_posix()
            if not dry_run:
                durable.remove(path)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be removed ({error.strerror}); mend it and try again") from None
    return f"{'would remove' if dry_run else 'removed'} {name}  {size / 1e6:.1f} MB"
