"""What is running and resumable, whether this machine is fit, and removing what nothing refers to."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path

from tasks import durable, locks
from tasks.contract import UserError
from tasks.store import Store

GIBIBYTE = 2**30

MINIMUM_FREE_DISK = 5 * GIBIBYTE
"""A small language's corpus, its packed shards and two checkpoints of a base-size model with optimiser state."""

MINIMUM_OPEN_FILES = 1024
"""What Prefect, torch's workers and the peers' sockets need together; many systems allow just this."""


def status(store_folder: str | None) -> list[str]:
    """Lines that say which stages are running, by whom, and which unfinished ones the next run goes on with."""
    store = Store(store_folder)
    lines = [f"store {store.root}"]
    for lock in sorted((store.root / "locks").glob("*.lock")):
        holder = locks.holder_of(lock)
        if holder is not None:
            since = datetime.fromtimestamp(holder["started"]).strftime("%H:%M:%S")
            lines.append(f"running    {lock.stem}  process {holder['pid']} on {holder['host']} since {since}")
    for work in sorted((store.root / "work").glob("*/*")):
        if locks.holder_of(store.lock(work.parent.name, work.name)) is None:
            minutes = (time.time() - work.stat().st_mtime) / 60
            lines.append(f"resumable  {work.parent.name}-{work.name}  untouched for {minutes:.0f} min")
    if len(lines) == 1:
        lines.append("nothing is running, nothing is unfinished")
    return lines


def clean(store_folder: str | None, *, work: bool, dry_run: bool) -> list[str]:
    """Remove the trash, and with ``work`` the unfinished work that no process holds.

    Returns:
        A line for each folder that was removed, or would be (``dry_run``), with its size.
    """
    store = Store(store_folder)
    store.check_format()
    doomed = sorted((store.root / "trash").glob("*"))
    if work:
        doomed += [
            path
            for path in sorted((store.root / "work").glob("*/*"))
            if locks.holder_of(store.lock(path.parent.name, path.name)) is None
        ]
    lines = []
    for path in doomed:
        size = sum(file.stat().st_size for file in durable.files_in(path)) if path.is_dir() else path.stat().st_size
        lines.append(f"{'would remove' if dry_run else 'removed'} {path.relative_to(store.root)}  {size / 1e6:.1f} MB")
        if not dry_run:
            durable.remove(path)
    return lines or ["nothing to remove"]


@dataclass(frozen=True)
class Finding:
    """One thing that `doctor` looked at; ``remedy`` is what to do if it is not fine."""

    what: str
    fine: bool
    remedy: str = ""


def doctor(store_folder: str | None) -> list[Finding]:
    """Check this machine for what the chain needs."""
    store = Store(store_folder)
    return [_python(), *_libraries(), _engines(), _disk(store), _memory(), _open_files(), _store(store), _lock(store)]


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
    while not path.exists():
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


def _store(store: Store) -> Finding:
    try:
        store.check_format()
    except UserError as error:
        return Finding(str(error), False, "use another --store")
    place = _existing(store.root)
    return Finding(f"{store.root} can be written", os.access(place, os.W_OK), "use --store, or mend the permissions")


def _lock(store: Store) -> Finding:
    """Whether the file system keeps a lock between two descriptors; some network ones silently do not."""
    if not store.root.is_dir():
        return Finding("locks: not tried, the store does not exist yet", True)
    path = store.root / "locks" / "doctor.lock"
    try:
        with locks.held(path):
            works = locks.holder_of(path) is not None
    except OSError as error:
        return Finding(f"locks fail on {store.root}: {error.strerror}", False, "put the store on a local disk")
    return Finding("locks work in the store", works, "put the store on a local disk or on NFS 4 with locking")
