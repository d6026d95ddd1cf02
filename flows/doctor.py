"""Whether this machine is fit: a table of checks, each with what to do if it is not."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flows.doctor_server import CLOCK_SECONDS, server_checks
from flows.housekeeping import usable_store
from tasks import locks
from tasks.checks import Check
from tasks.contract import UserError
from tasks.store import home
from tasks.tokenizer_memory import available_memory, total_memory

if TYPE_CHECKING:
    from tasks.store import Store

GIBIBYTE = 2**30

MINIMUM_FREE_DISK = 5 * GIBIBYTE
"""A small language's corpus, its packed shards and two checkpoints of a base-size model with optimiser state."""

MINIMUM_FREE_HOME = GIBIBYTE
"""The server's database, logs and compiled code."""

MINIMUM_PROCESSES = 1024
"""Threads count as processes here: server, worker, peers with their daemons, and the threads of each."""

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
    machine = [_python(), *_libraries(), _hidden_tokenizers(), _engines(), *_accelerators()]
    machine += [_memory(), _open_files(), _processes(), _home()]
    store = None
    try:
        store = usable_store(store_folder)
    except UserError as error:
        machine.append(Check("store", "fail", str(error), "use another --store"))
    else:
        machine += [_disk(store), _writable(store), _lock(store), _clock(store)]
    machine += server_checks()
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


def _accelerators() -> list[Check]:
    """What torch computes on; and a device of this machine that it does not see."""
    import torch

    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    found = [Check("GPU", "ok", f"{gpu.name}, {gpu.total_memory / GIBIBYTE:.0f} GiB") for gpu in gpus]
    if not gpus and os.path.exists("/dev/nvidiactl"):
        told = f"the driver is here, and torch {torch.__version__} sees none"
        found.append(
            Check("GPU", "warn", told, "run nvidia-smi; install the torch of your driver's CUDA: pytorch.org")
        )
    if any(os.path.exists(f"/dev/{name}") for name in ("accel/accel0", "hl0")):
        found.append(Check("HPU", "ok", "here; sahajflow doctor --engine gaudi looks closer"))
    return found or [Check("GPU", "ok", "none; the engines local and collaborative compute on the processor")]


def _existing(path: Path) -> Path:
    while not os.path.exists(path):  # Path.exists() raises where it may not look
        path = path.parent
    return path


def _disk(store: Store) -> Check:
    free = shutil.disk_usage(_existing(store.root)).free
    told = f"{free / GIBIBYTE:.1f} GiB free for {store.root}"
    return Check("disk", _fit(free >= MINIMUM_FREE_DISK), told, "give --store a larger disk, or: sahajflow clean")


def _memory() -> Check:
    total, free = total_memory(), available_memory()
    told = f"{total / GIBIBYTE:.1f} GiB, {free / GIBIBYTE:.1f} GiB of it free"
    if total < 4 * GIBIBYTE:
        return Check("memory", "fail", told, "4 GiB carry the demo; use a larger machine")
    return Check(
        "memory", "ok" if free >= 2 * GIBIBYTE else "warn", told, "end what else runs here: ps aux --sort -rss"
    )


def _open_files() -> Check:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Check("open files", _fit(soft >= MINIMUM_OPEN_FILES), f"{soft} allowed", f"ulimit -n {MINIMUM_OPEN_FILES}")


def _processes() -> Check:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    told = "as many as asked for" if soft == resource.RLIM_INFINITY else f"{soft} allowed"
    fine = soft == resource.RLIM_INFINITY or soft >= MINIMUM_PROCESSES
    return Check("processes", _fit(fine), told, f"ulimit -u {MINIMUM_PROCESSES}")


def _home() -> Check:
    """The place of server, workers and compiled code; it may be on another disk than the store."""
    place = _existing(home())
    free = shutil.disk_usage(place).free
    told = f"{home()}: {free / GIBIBYTE:.1f} GiB free"
    if not os.access(place, os.W_OK):
        return Check("home", "fail", f"{home()} cannot be written", "set SAHAJFLOW_HOME to a folder of yours")
    return Check("home", _fit(free >= MINIMUM_FREE_HOME), told, "set SAHAJFLOW_HOME to a larger disk")


def _writable(store: Store) -> Check:
    fine = os.access(_existing(store.root), os.W_OK)
    told = f"{store.root} can {'' if fine else 'not '}be written"
    return Check("store", _fit(fine), told, "use --store, or mend the permissions")


def _lock(store: Store) -> Check:
    """Whether the file system keeps a lock between two processes; some network ones silently do not.

    Another process asks, not only another descriptor: NFS gives a process a lock that it has already."""
    if not (store.root / "format.json").exists():
        return Check("locks", "ok", "not tried, the store does not exist yet")
    path = store.root / "locks" / "doctor.lock"
    ask = "import sys, pathlib, tasks.locks; print(tasks.locks.holder_of(pathlib.Path(sys.argv[1])) is not None)"
    command = [sys.executable, "-P", "-c", ask, str(path)]
    remedy = "put the store on a local disk or on NFS 4 with locking"
    try:
        with locks.held(path, must_tell=False):
            during = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        after = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except OSError as error:
        return Check("locks", "fail", f"fail on {store.root}: {error.strerror}", remedy)
    except subprocess.CalledProcessError as error:
        return Check("locks", "fail", f"fail on {store.root}: {error.stderr.strip().rpartition(chr(10))[2]}", remedy)
    works = (during, after) == ("True", "False")
    told = "locks work in the store, between two processes" if works else "locks do not hold in the store"
    return Check("locks", _fit(works), told, remedy)


def _clock(store: Store) -> Check:
    """Whether it is later than all that the store has: what goes by time, such as `clean`, goes wrong else."""
    times = [path.stat().st_mtime for path in (store.root / "artifacts").glob("*/*/record.json")]
    ahead = max(times, default=0.0) - time.time()
    if ahead <= CLOCK_SECONDS:
        return Check("clock", "ok", "later than all results in the store")
    told = f"the store has a result from {ahead / 60:,.0f} minutes ahead"
    return Check("clock", "warn", told, "timedatectl set-ntp true, here and on the machine that made it")
