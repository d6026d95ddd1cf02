"""What is running and resumable, and whether this machine is fit."""

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

from flows.attempts import Attempt, attempts
from flows.retention import last_change
from tasks import locks
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
    newest: dict[str, Attempt] = {}
    for attempt in attempts(store):
        newest.setdefault(f"{attempt.stage}-{attempt.fingerprint}", attempt)
    for lock in sorted((store.root / "locks").glob("*.lock")):
        holder = locks.holder_of(lock)
        if holder is not None:
            since = datetime.fromtimestamp(holder["started"]).strftime("%H:%M:%S")
            lines.append(f"running    {lock.stem}  process {holder['pid']} on {holder['host']} since {since}")
    for work in sorted((store.root / "work").glob("*/*")):
        if locks.holder_of(store.lock(work.parent.name, work.name)) is None:
            minutes = (time.time() - last_change(work)) / 60
            name = f"{work.parent.name}-{work.name}"
            ended = newest.pop(name, None)
            how = f"  {ended.state}{f': {ended.reason}' * bool(ended.reason)}" if ended else ""
            lines.append(f"resumable  {name}  untouched for {minutes:.0f} min{how}")
    if len(lines) == 1:
        lines.append("nothing is running, nothing is unfinished")
    return lines


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
    for name in ("sahajflow", "torch", "transformers", "datasets", "tokenizers", "prefect", "seqeval", "scikit-learn"):
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
        with locks.held(path, must_tell=False):
            works = locks.holder_of(path) is not None
    except OSError as error:
        return Finding(f"locks fail on {store.root}: {error.strerror}", False, "put the store on a local disk")
    return Finding("locks work in the store", works, "put the store on a local disk or on NFS 4 with locking")
