"""Whether this machine can train on Gaudi: asked by ``plan`` and ``run`` before anything runs, and by ``doctor``.

Nothing heavy is imported. The second environment is asked what it has in a process of its own interpreter.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tasks.checks import Check
from tasks.contract import UserError
from tasks.pretraining.gaudi import installed
from tasks.pretraining.gaudi.hostfile import slots
from tasks.pretraining.model_size import checkpoints_bytes, weights
from tasks.pretraining.settings import PretrainSettings

DEVICE_FILES = (("/dev/accel", r"accel\d+"), ("/dev", r"hl\d+"))
"""Where the driver leaves a file for each HPU: since version 1.15 the first, before that the second."""

EXTRA = "pip install -c constraints-gaudi.txt '.[gaudi]'"
DRIVER_GUIDE = "https://docs.habana.ai/en/latest/Installation_Guide/index.html"

GIBIBYTE = 2**30

RANK_BYTES = GIBIBYTE
"""Memory of a process beside its weights, generously: one that trained a model of 20,000 weights on a CPU took
0.53 GiB (``peak_memory_bytes`` of its record)."""


def interpreter(settings: PretrainSettings) -> Path:
    """The second environment's interpreter, absolute. Links are kept: they are what makes an environment."""
    return Path(settings.pretraining.gaudi.python).absolute()


def problem(settings: PretrainSettings, store: Path | None = None) -> str | None:
    """Why the engine cannot run here, in one line with what to do; None if it can."""
    try:
        failed = [check for check in checks(settings, store) if check.state == "fail"]
    except UserError as error:
        return str(error)
    if not failed:
        return None
    told = "; ".join(check.finding for check in failed)
    return f"pretraining.engine: gaudi cannot run here: {told}. {failed[0].remedy}"


def checks(settings: PretrainSettings, store: Path | None = None) -> list[Check]:
    """All that is looked at.

    Args:
        settings: of the training.
        store: where its checkpoints will be; without it the disk is not looked at.

    Raises:
        UserError: the hostfile is wrong.
    """
    asked = settings.pretraining
    hosts = {} if asked.gaudi.hostfile is None else slots(Path(asked.gaudi.hostfile))
    if hosts and sum(hosts.values()) != asked.gaudi.devices:
        raise UserError(
            f"pretraining.gaudi.hostfile: {asked.gaudi.hostfile} has {sum(hosts.values())} slots, and "
            f"pretraining.gaudi.devices is {asked.gaudi.devices}; make them equal"
        )
    if hosts and asked.device == "cpu":
        raise UserError("pretraining.gaudi.hostfile: several hosts need HPUs; leave out pretraining.device=cpu")
    here = max(hosts.values(), default=asked.gaudi.devices)
    has, asking = ask(interpreter(settings))
    done = [asking] if has is None else [asking, *_libraries(has), _bridge(has)]
    if asked.device != "cpu":
        done = [_hpus(here), _driver(None if has is None else has["validated"]), *done]
    if hosts and has is not None:
        done.append(_launcher(settings, has))
    done.append(_memory(settings, here))
    if store is not None:
        done.append(_disk(settings, store))
    return done


def ask(python: Path) -> tuple[dict[str, Any] | None, Check]:
    """What an interpreter says of itself (``installed.py``), None if it cannot be asked; and the finding."""
    remedy = (
        f"{sys.executable} -m venv {python.parent.parent} && {python.parent / EXTRA}, or name another with "
        "--set pretraining.gaudi.python=PATH"
    )
    if not python.is_file() or not os.access(python, os.X_OK):
        return None, Check("interpreter", "fail", f"no interpreter at {python}", remedy)
    script = Path(installed.__file__)
    try:
        done = subprocess.run(
            [str(python), "-P", str(script)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        has: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        return None, Check("interpreter", "fail", f"{python} does not answer ({said[-1] if said else error})", remedy)
    return has, Check("interpreter", "ok", f"{python}, Python {has['python']}")


def _libraries(has: dict[str, Any]) -> list[Check]:
    versions, found = has["libraries"], []
    for name, wanted in (("optimum-habana", "1."), ("transformers", "4.55.")):
        version = versions[name]
        fits = version is not None and version.startswith(wanted)
        told = f"{name} {version or 'is not installed'}{'' if fits or version is None else f', not {wanted}*'}"
        found.append(Check(name, "ok" if fits else "fail", told, f"there: {EXTRA}"))
    same = has["code"] == installed.code_digest()
    told = "sahajflow is that of this environment" if same else "the second environment has another sahajflow"
    if has["code"] is None:
        told = "sahajflow is not installed in the second environment"
    return [*found, Check("sahajflow", "ok" if same else "fail", told, f"there, from the same checkout: {EXTRA}")]


def _bridge(has: dict[str, Any]) -> Check:
    version, validated = has["libraries"]["habana-torch-plugin"], has["validated"]
    wanted = "SynapseAI" if validated is None else f"SynapseAI {validated}"
    remedy = f"install {wanted} with its PyTorch into the second environment: {DRIVER_GUIDE}"
    if version is None or not has["bridge"]:
        return Check("SynapseAI", "fail", "Habana's PyTorch bridge (habana-torch-plugin) is not installed", remedy)
    return _against("SynapseAI", f"habana-torch-plugin {version}", version, validated, remedy)


def _against(name: str, told: str, version: str, validated: str | None, remedy: str) -> Check:
    """A version against the validated one: another minor version may work, and optimum-habana only warns of it."""
    if validated is None or version.split(".")[:2] == validated.split(".")[:2]:
        return Check(name, "ok", told if validated is None else f"{told}, validated with {validated}")
    return Check(name, "warn", f"{told}, and optimum-habana is validated with {validated}", remedy)


def count_hpus() -> int:
    """HPUs whose device files are here."""
    for folder, pattern in DEVICE_FILES:
        names = os.listdir(folder) if os.path.isdir(folder) else []
        if found := [name for name in names if re.fullmatch(pattern, name)]:
            return len(found)
    return 0


def _hpus(wanted: int) -> Check:
    found = count_hpus()
    if not found:
        return Check(
            "HPUs",
            "fail",
            "no HPU found (no device in /dev/accel)",
            "On a Gaudi host with this store: sahajflow run RECIPE --only pretrain, or a worker of the pool gaudi "
            "(sahajflow up --pool gaudi; docs/gaudi.md); --set pretraining.engine=local trains on this machine",
        )
    if found < wanted:
        return Check("HPUs", "fail", f"{found} HPUs, {wanted} wanted", f"--set pretraining.gaudi.devices={found}")
    return Check("HPUs", "ok", f"{found} HPUs, {wanted} wanted")


def _driver(validated: str | None) -> Check:
    version = driver_version()
    wanted = "SynapseAI" if validated is None else f"SynapseAI {validated}"
    remedy = f"install the driver of {wanted}: {DRIVER_GUIDE}"
    if version is None:
        return Check("driver", "fail", "hl-smi is not there or tells no driver", remedy)
    return _against("driver", f"driver {version}", version, validated, remedy)


def driver_version() -> str | None:
    """The driver's version, as ``hl-smi`` prints it; None without one."""
    try:
        done = subprocess.run(
            ["hl-smi"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "ENABLE_CONSOLE": "true"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"Driver Version:\s*(\d+\.\d+\.\d+)", done.stdout)
    return found.group(1) if found else None


def _launcher(settings: PretrainSettings, has: dict[str, Any]) -> Check:
    path = interpreter(settings).parent / "deepspeed"
    if has["libraries"]["deepspeed"] and path.is_file():
        return Check("launcher", "ok", f"deepspeed {has['libraries']['deepspeed']}")
    remedy = "install Habana's DeepSpeed into the second environment of every host: " + DRIVER_GUIDE
    return Check("launcher", "fail", f"several hosts are started by DeepSpeed, and {path} is not there", remedy)


def _memory(settings: PretrainSettings, processes: int) -> Check:
    # weights, those of the checkpoint that is read, and the optimiser's two moments, 4 bytes each
    needed = processes * (RANK_BYTES + 16 * weights(settings.model))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told = f"{total / GIBIBYTE:.1f} GiB of host memory, about {needed / GIBIBYTE:.1f} for {processes} processes"
    return Check("memory", "ok" if total >= needed else "fail", told, "use a host with more, or fewer devices")


def _disk(settings: PretrainSettings, store: Path) -> Check:
    needed = checkpoints_bytes(settings.model)
    place = store
    while not os.path.exists(place):
        place = place.parent
    free = shutil.disk_usage(place).free
    told = f"{free / GIBIBYTE:.1f} GiB free for {store}, about {needed / GIBIBYTE:.1f} for the checkpoints"
    return Check("disk", "ok" if free >= needed else "fail", told, "give --store a larger disk, or: sahajflow clean")
