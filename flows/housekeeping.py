"""What is running and resumable, and removing what nothing refers to."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from tasks import durable, locks
from tasks.contract import UserError
from tasks.store import Store


def usable_store(store_folder: str | None) -> Store:
    """The store at a folder, which may not exist yet or be empty; nothing is written.

    Raises:
        UserError: the place is a file, cannot be read, or is a folder with something else in it.
    """
    try:
        store = Store(store_folder)
    except RuntimeError:
        raise UserError(f"--store {store_folder}: there is no such user; name a folder") from None
    try:
        if store.holds_something_else():
            raise UserError(f"{store.root}: is not empty and no store; give --store a store, or a new folder")
        store.check_format()
    except FileNotFoundError:
        pass  # a new one
    except NotADirectoryError:
        raise UserError(f"{store.root}: is a file, or lies below one; give --store a folder") from None
    except OSError as error:
        raise UserError(f"{store.root}: cannot be read ({error.strerror}); give --store another folder") from None
    return store


def status(store_folder: str | None) -> list[str]:
    """Lines that say which stages are running, by whom, and which unfinished ones the next run goes on with."""
    store = usable_store(store_folder)
    lines = [f"store {store.root}"]
    for lock in sorted((store.root / "locks").glob("*.lock")):
        holder = locks.holder_of(lock)
        if holder is not None:
            since = datetime.fromtimestamp(holder["started"]).strftime("%H:%M:%S")
            lines.append(f"running    {lock.stem}  process {holder['pid']} on {holder['host']} since {since}")
    for work in sorted((store.root / "work").glob("*/*")):
        if locks.holder_of(store.lock(work.parent.name, work.name)) is None:
            minutes = (time.time() - _last_change(work)) / 60
            lines.append(f"resumable  {work.parent.name}-{work.name}  untouched for {minutes:.0f} min")
    if len(lines) == 1:
        lines.append("nothing is running, nothing is unfinished")
    return lines


def _last_change(folder: Path) -> float:
    """The newest modification time below a folder, in seconds since 1970."""
    newest = 0.0
    for place, _, files in os.walk(folder):
        for path in (Path(place), *(Path(place, file) for file in files)):
            with suppress(FileNotFoundError):  # whoever works there has moved it on
                newest = max(newest, path.lstat().st_mtime)
    return newest


def clean(store_folder: str | None, *, work: bool, dry_run: bool) -> list[str]:
    """Remove the trash, and with ``work`` the unfinished work that no process holds.

    Returns:
        A line for each folder that was removed, or would be (``dry_run``), with its size.

    Raises:
        UserError: the folder is no store, or something in it cannot be removed.
    """
    store = usable_store(store_folder)
    lines = [_remove(store, path, dry_run) for path in sorted((store.root / "trash").glob("*"))]
    for path in sorted((store.root / "work").glob("*/*")) if work else []:
        lock = store.lock(path.parent.name, path.name)
        if dry_run:
            if locks.holder_of(lock) is None:
                lines.append(_remove(store, path, dry_run))
            continue
        with suppress(_Busy), locks.held(lock, _give_up):
            lines.append(_remove(store, path, dry_run))
    return lines or ["nothing to remove"]


class _Busy(Exception):
    """Somebody holds the lock."""


def _give_up(holder: dict[str, Any]) -> None:
    raise _Busy


def _remove(store: Store, path: Path, dry_run: bool) -> str:
    try:
        files = durable.files_in(path) if path.is_dir() and not path.is_symlink() else [path]
        size = sum(file.lstat().st_size for file in files)
        if not dry_run:
            durable.remove(path)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be removed ({error.strerror}); mend it and try again") from None
    return f"{'would remove' if dry_run else 'removed'} {path.relative_to(store.root)}  {size / 1e6:.1f} MB"
