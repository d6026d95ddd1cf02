"""What is running and resumable, whether this machine is fit, and removing what nothing refers to."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tasks import durable, locks
from tasks.contract import UserError
from tasks.store import Store

GIBIBYTE = 2**30

MINIMUM_FREE_DISK = 5 * GIBIBYTE
"""A small language's corpus, its packed shards and two checkpoints of a base-size model with optimiser state."""

MINIMUM_OPEN_FILES = 1024
"""What Prefect, torch's workers and the peers' sockets need together; many systems allow just this."""


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
    from eval.history import keep_all

    store = usable_store(store_folder)
    if not dry_run:
        try:
            keep_all(store)  # the trash may hold the only copy of an evaluation
        except OSError as error:
            raise UserError(f"{error.filename}: the history cannot be written ({error.strerror})") from None
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


@dataclass(frozen=True)
class Finding:
    """One thing that `doctor` looked at; ``remedy`` is what to do if it is not fine."""

    what: str
    fine: bool
    remedy: str = ""


def doctor(store_folder: str | None) -> list[Finding]:
    """Check this machine for what the chain needs."""
    machine = [_python(), *_libraries(), _engines(), _memory(), _open_files()]
    try:
        store = usable_store(store_folder)
    except UserError as error:
        return [*machine, Finding(str(error), False, "use another --store")]
    return [*machine, _disk(store), _writable(store), _lock(store)]


def _python() -> Finding:
    return Finding(
        f"Python {platform.python_version()}",
        sys.version_info >= (3, 11),
        "install Python 3.11 or newer, remove .venv",
    )


def _libraries() -> list[Finding]:
    findings = []
    for name in ("torch", "transformers", "datasets", "tokenizers", "prefect", "seqeval", "scikit-learn"):
        try:
            findings.append(Finding(f"{name} {metadata.version(name)}", True))
        except metadata.PackageNotFoundError:
            findings.append(Finding(f"{name} is not installed", False, "pip install -c constraints.txt ."))
    import tokenizers

    # A folder called tokenizers on the path would be imported as an empty package, without any error.
    real = hasattr(tokenizers, "Tokenizer")
    findings.append(
        Finding(
            "import tokenizers gives the library", real, f"{getattr(tokenizers, '__path__', '?')} hides it; move it"
        )
    )
    return findings


def _engines() -> Finding:
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return Finding("engines for this platform: local (collaborative needs hivemind, whose wheel fits here)", True)
    return Finding(f"engines for {sys.platform} {platform.machine()}: local (hivemind has no wheel here)", True)


def _existing(path: Path) -> Path:
    while not os.path.exists(path):  # Path.exists() raises where it may not look
        path = path.parent
    return path


def _disk(store: Store) -> Finding:
    free = shutil.disk_usage(_existing(store.root)).free
    return Finding(
        f"{free / GIBIBYTE:.1f} GiB free for {store.root}",
        free >= MINIMUM_FREE_DISK,
        "give --store a larger disk, or: sahajflow clean",
    )


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Finding(
        f"{total / GIBIBYTE:.1f} GiB of memory", total >= 4 * GIBIBYTE, "4 GiB carry the demo; use a larger one"
    )


def _open_files() -> Finding:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Finding(f"{soft} open files allowed", soft >= MINIMUM_OPEN_FILES, f"ulimit -n {MINIMUM_OPEN_FILES}")


def _writable(store: Store) -> Finding:
    place = _existing(store.root)
    return Finding(f"{store.root} can be written", os.access(place, os.W_OK), "use --store, or mend the permissions")


def _lock(store: Store) -> Finding:
    """Whether the file system keeps a lock between two descriptors; some network ones silently do not."""
    if not (store.root / "format.json").exists():
        return Finding("locks: not tried, the store does not exist yet", True)
    path = store.root / "locks" / "doctor.lock"
    try:
        with locks.held(path):
            works = locks.holder_of(path) is not None
    except OSError as error:
        return Finding(f"locks fail on {store.root}: {error.strerror}", False, "put the store on a local disk")
    return Finding("locks work in the store", works, "put the store on a local disk or on NFS 4 with locking")
