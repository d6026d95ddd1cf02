"""Whether this machine is fit: a table of checks, each with what to do if it is not."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flows.housekeeping import usable_store
from tasks import locks
from tasks.checks import Check
from tasks.contract import UserError

if TYPE_CHECKING:
    from tasks.store import Store

GIBIBYTE = 2**30

MINIMUM_FREE_DISK = 5 * GIBIBYTE
"""A small language's corpus, its packed shards and two checkpoints of a base-size model with optimiser state."""

MINIMUM_OPEN_FILES = 1024
"""What Prefect, torch's workers and the peers' sockets need together; many systems allow just this."""

LIBRARIES = ("sahajflow", "torch", "transformers", "datasets", "tokenizers", "prefect", "seqeval", "scikit-learn")


def doctor(store_folder: str | None, engine: str | None = None, changes: Sequence[str] = ()) -> list[Check]:
    """Check this machine.

    Args:
        store_folder: of the store; None is the default one.
        engine: "gaudi" adds what that engine needs for the recipe ``bert-gaudi``.
        changes: to that recipe, each ``key=value``.

    Raises:
        UserError: a change or the hostfile is wrong.
    """
    machine = [_python(), *_libraries(), _hidden_tokenizers(), _engines(), _memory(), _open_files()]
    store = None
    try:
        store = usable_store(store_folder)
    except UserError as error:
        machine.append(Check("store", "fail", str(error), "use another --store"))
    else:
        machine += [_disk(store), _writable(store), _lock(store)]
    return machine if engine is None else [*machine, *_gaudi(store, changes)]


def table(checks: Sequence[Check]) -> list[str]:
    """The checks as lines, the remedy below what is not fine."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        state = check.state if check.state == "ok" else check.state.upper()
        lines.append(f"{state:<5} {check.name:<{width}}  {check.finding}")
        if check.state != "ok":
            lines.append(f"{'':<6}{'':<{width}}  {check.remedy}")
    return lines


def _gaudi(store: Store | None, changes: Sequence[str]) -> list[Check]:
    from flows.recipe import load_recipe
    from tasks.pretraining.gaudi.preflight import checks
    from tasks.pretraining.settings import PretrainSettings

    recipe = load_recipe("bert-gaudi", changes)
    if recipe.pretraining.engine != "gaudi":
        raise UserError("--set pretraining.engine: doctor --engine gaudi is about the engine gaudi; leave it out")
    settings = PretrainSettings(model=recipe.model, pretraining=recipe.pretraining)
    return checks(settings, None if store is None else store.root)


def _fit(fine: bool) -> Literal["ok", "fail"]:
    return "ok" if fine else "fail"


def _python() -> Check:
    fine = sys.version_info >= (3, 11)
    return Check("Python", _fit(fine), platform.python_version(), "install Python 3.11 or newer, remove .venv")


def _libraries() -> list[Check]:
    found = []
    for name in LIBRARIES:
        try:
            found.append(Check(name, "ok", metadata.version(name)))
        except metadata.PackageNotFoundError:
            found.append(Check(name, "fail", "not installed", "pip install -c constraints.txt ."))
    return found


def _hidden_tokenizers() -> Check:
    import tokenizers

    # A folder called tokenizers on the path would be imported as an empty package, without any error.
    real = hasattr(tokenizers, "Tokenizer")
    told = "import tokenizers gives the library" if real else "import tokenizers does not give the library"
    return Check("import", _fit(real), told, f"{getattr(tokenizers, '__path__', '?')} hides it; move it")


def _engines() -> Check:
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return Check(
            "engines", "ok", "local here; collaborative with hivemind, whose wheel fits; gaudi: --engine gaudi"
        )
    return Check("engines", "ok", f"local on {sys.platform} {platform.machine()} (hivemind has no wheel here)")


def _existing(path: Path) -> Path:
    while not os.path.exists(path):  # Path.exists() raises where it may not look
        path = path.parent
    return path


def _disk(store: Store) -> Check:
    free = shutil.disk_usage(_existing(store.root)).free
    told = f"{free / GIBIBYTE:.1f} GiB free for {store.root}"
    return Check("disk", _fit(free >= MINIMUM_FREE_DISK), told, "give --store a larger disk, or: sahajflow clean")


def _memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told = f"{total / GIBIBYTE:.1f} GiB"
    return Check("memory", _fit(total >= 4 * GIBIBYTE), told, "4 GiB carry the demo; use a larger machine")


def _open_files() -> Check:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Check("open files", _fit(soft >= MINIMUM_OPEN_FILES), f"{soft} allowed", f"ulimit -n {MINIMUM_OPEN_FILES}")


def _writable(store: Store) -> Check:
    fine = os.access(_existing(store.root), os.W_OK)
    told = f"{store.root} can {'' if fine else 'not '}be written"
    return Check("store", _fit(fine), told, "use --store, or mend the permissions")


def _lock(store: Store) -> Check:
    """Whether the file system keeps a lock between two descriptors; some network ones silently do not."""
    if not (store.root / "format.json").exists():
        return Check("locks", "ok", "not tried, the store does not exist yet")
    path = store.root / "locks" / "doctor.lock"
    try:
        with locks.held(path, must_tell=False):
            works = locks.holder_of(path) is not None
    except OSError as error:
        return Check("locks", "fail", f"fail on {store.root}: {error.strerror}", "put the store on a local disk")
    told = "locks work in the store" if works else "locks do not hold in the store"
    return Check("locks", _fit(works), told, "put the store on a local disk or on NFS 4 with locking")
