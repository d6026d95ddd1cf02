"""Engine ``gaudi`` as a stage: starts the second environment's interpreter as an owned process, shows how it gets on.

optimum-habana holds transformers at 4.55, so what trains lives in an environment of its own:

    stage ── supervisor ── launch.py ── optimum-habana's runner ── torch's or DeepSpeed's launcher ── rank.py × devices
    (core)     (core)     └────────────────────── the second environment ──────────────────────────────────────────┘

They meet in a folder below ``scratch``: settings, digests of the inputs, the checkpoint to go on from; status, result
or errors of the processes.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tasks import durable
from tasks.contract import LOGS, SCRATCH, Progress, StageError, UserError
from tasks.parts import Parts
from tasks.pretraining.checkpoints import PREFIX, step_of
from tasks.pretraining.devices import RESULT, SETTINGS, STATUS
from tasks.pretraining.gaudi.launch import DIGESTS
from tasks.pretraining.gaudi.preflight import interpreter
from tasks.pretraining.settings import PretrainSettings
from tasks.record import read_record
from tasks.status_file import LOOK_SECONDS, tell_status
from tasks.supervision import Command, Owned, wait_for_older_swarm

logger = logging.getLogger(__name__)

RESUME = "resume.json"
"""File in the processes' folder: the checkpoint to go on from, or null."""


def pretrain(
    settings: PretrainSettings, tokenizer_folder: Path, pack_folder: Path, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Trains with optimum-habana; arguments, result and errors as ``tasks.pretraining.stage.run``.

    ``tokens_per_second`` leaves out the first ``throughput_warmup_steps`` of each run. ``resolved`` has besides: mode,
    and the versions in the second environment.
    """
    place, logs = folder / SCRATCH / "gaudi", folder / LOGS / "gaudi"
    place.mkdir(parents=True, exist_ok=True)
    wait_for_older_swarm(place)
    for left in (place / STATUS, place / RESULT, *place.glob("*.error")):
        durable.remove(left)
    inputs = {"tokenizer": tokenizer_folder, "pack": pack_folder}
    durable.write_json(place / SETTINGS, settings.model_dump(mode="json"))
    durable.write_json(place / DIGESTS, {name: read_record(path).digest for name, path in inputs.items()})
    checkpoint = newest_checkpoint(folder)
    durable.write_json(place / RESUME, None if checkpoint is None else str(checkpoint.resolve()))
    if checkpoint is not None:
        logger.info("continuing after step %d", step_of(checkpoint.name))
    python = interpreter(settings)
    arguments = [str(path.resolve()) for path in (place, tokenizer_folder, pack_folder, folder)]
    command = Command(
        "launch",
        (str(python), "-P", "-m", "tasks.pretraining.gaudi.launch", *arguments),
        _environment(settings, python),
        logs / "launch.log",
    )
    logger.info("%s trains with %d processes; their output is in %s", python, settings.pretraining.gaudi.devices, logs)
    shown: dict[str, Any] = {}
    with Owned([command], leader="launch", folder=place, grace_seconds=1.0) as owned:
        while not owned.ended():
            shown = tell_status(place / STATUS, shown, progress)
            time.sleep(LOOK_SECONDS)
        ended = owned.exit_status()
    tell_status(place / STATUS, shown, progress)
    if ended == 0 and (place / RESULT).exists():
        metrics: dict[str, Any] = json.loads((place / RESULT).read_text(encoding="utf-8"))
        return metrics
    raise failure(place, ended, logs / "launch.log")


def newest_checkpoint(folder: Path) -> Path | None:
    """The last finished checkpoint of a stage's work folder that can be read; None without one.

    Raises:
        StageError: there are some and none can be read. They are kept: a lack of memory looks the same.
    """
    names = sorted((name for name in Parts(folder).finished() if name.startswith(PREFIX)), key=step_of)
    for name in reversed(names):
        checkpoint = folder / SCRATCH / "checkpoints" / name
        try:
            torch.load(checkpoint / "optimizer.pt", map_location="cpu", weights_only=True)
            load_file(checkpoint / "model.safetensors")
        except (RuntimeError, OSError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
            logger.warning("checkpoint %s cannot be read (%s)", name, str(error).splitlines()[0])
        else:
            return checkpoint
    if names:
        raise StageError(
            f"none of the checkpoints in {folder / SCRATCH / 'checkpoints'} can be read; free memory and try again, "
            "or begin anew with --force pretrain"
        )
    return None


def failure(place: Path, ended: int | None, log: Path) -> UserError | StageError:
    """The first error that a process has told in our words, else in a library's, in one line; an echo is the last."""
    errors = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(place.glob("*.error"), key=_age)]
    errors.sort(key=lambda error: {"": 1, "lost": 2}.get(error["kind"], 0))
    if not errors:
        return StageError(
            f"the training on Gaudi ended unexpectedly (status {ended}); run again to go on from the last checkpoint, "
            f"and see {log}"
        )
    if errors[0]["kind"] == "lost":
        return StageError(
            f"a training process on Gaudi was lost, as it is when memory runs out; run again to go on from the last "
            f"checkpoint, and see {log}"
        )
    if errors[0]["kind"] == "UserError":
        return UserError(errors[0]["text"])
    if errors[0]["kind"] == "StageError":
        return StageError(errors[0]["text"])
    return StageError(f"{errors[0]['text']}; run again to go on from the last checkpoint, and see {log}")


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns


def _environment(settings: PretrainSettings, python: Path) -> dict[str, str]:
    asked = settings.pretraining
    threads = max(1, torch.get_num_threads() // asked.gaudi.devices)
    alone = asked.gaudi.hostfile is None and sys.platform == "linux"
    return {
        **{name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")},
        **({"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")} if alone else {}),
        # optimum-habana asks the first `pip` of the path for SynapseAI's version, and DeepSpeed's launcher lies there
        "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONSAFEPATH": "1",  # rank.py is started by its path, and its folder would come first
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
