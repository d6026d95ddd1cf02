"""What is running and resumable."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

from flows.attempts import Attempt, attempts
from flows.retention import last_change
from tasks import locks
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
    newest: dict[str, Attempt] = {}
    for attempt in attempts(store):
        newest.setdefault(f"{attempt.stage}-{attempt.fingerprint}", attempt)
    for lock in sorted((store.root / "locks").glob("*.lock")):
        holder = locks.holder_of(lock)
        if holder is not None:
            since = f"{datetime.fromtimestamp(holder['started']):%Y-%m-%d %H:%M:%S}"
            who = f"process {holder['pid']} on {holder['host']} since {since}"
            lines.append(f"running    {_named(lock)}  {who}")
    for work in sorted((store.root / "work").glob("*/*")):
        lock = store.lock(work.parent.name, work.name)
        if locks.holder_of(lock) is None:
            minutes = max(0.0, time.time() - last_change(work)) / 60
            name = f"{work.parent.name}-{work.name}"
            ended = newest.pop(name, None)
            how = f"  {ended.state}{f': {ended.reason}' * bool(ended.reason)}" if ended else ""
            lines.append(f"resumable  {_named(lock)}  untouched for {minutes:.0f} min{how}")
    if len(lines) == 1:
        lines.append("nothing is running, nothing is unfinished")
    return lines


def _named(lock: Path) -> str:
    """ "seed-run-0123456789abcdef (seed-run/pretrained/ner/1)": the node too, where it says more than the stage."""
    title = locks.last_note(lock).get("title", "")
    return f"{lock.stem} ({title})" if title and title != lock.stem.rpartition("-")[0] else lock.stem
