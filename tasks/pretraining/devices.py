"""Engine ``local`` on several devices: one owned process each, of which number 0 does what one process does alone.

All that trains is in the child processes, so that a GPU's memory, a lost process and Ctrl-C end in one way only:
``tasks/supervision.py`` has them gone whatever ends this stage, and this stage ends when one of them is lost. A group
that waits for a lost member would wait long: NCCL does not notice.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tasks import durable
from tasks.contract import LOGS, SCRATCH, Progress, StageError, UserError
from tasks.pretraining.settings import PretrainingSettings, PretrainSettings
from tasks.status_file import LOOK_SECONDS, tell_status
from tasks.supervision import Command, Owned, OwnedProcess, processes, wait_for_older_swarm

logger = logging.getLogger(__name__)

SETTINGS, MEETING, STATUS, RESULT = "settings.json", "meeting", "status.json", "result.json"
"""Files in the processes' folder: what is asked, where they meet, how far they are, the first one's metrics."""

WRONG_INPUT, LOST_PARTNER = 2, 3
"""Exit statuses of a process: what the user asked for cannot be; another process is gone. 1 is any other error."""

TERMINATED = -15
"""How the others end when the supervisor has seen the first one's end."""


def count_gpus(settings: PretrainingSettings) -> int:
    """How many GPUs there are for this training: none if it is to be on the CPU."""
    return torch.cuda.device_count() if settings.device != "cpu" and torch.cuda.is_available() else 0


def count_devices(settings: PretrainingSettings) -> int:
    """How many processes train.

    ``auto`` takes all GPUs, or the largest number of them by which ``batch_size / accumulation`` can be divided.

    Raises:
        UserError: more GPUs are asked for than there are.
    """
    gpus = count_gpus(settings)
    if settings.devices != "auto":
        if 0 < gpus < settings.devices:
            raise UserError(
                f"pretraining.devices: {settings.devices}, but torch finds {gpus} GPU{'s' * (gpus != 1)}; "
                "--set pretraining.devices=auto takes what is there"
            )
        return settings.devices
    count = next(number for number in range(max(1, gpus), 0, -1) if settings.micro_batch_size % number == 0)
    if count < gpus:
        logger.info("%d of %d GPUs: batch_size / accumulation = %d", count, gpus, settings.micro_batch_size)
    return count


def train_together(
    count: int,
    settings: PretrainSettings,
    tokenizer_folder: Path,
    pack_folder: Path,
    folder: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Trains in so many processes; other arguments, result and errors as ``tasks.pretraining.stage.run``.

    Threads and peak memory in the result are those of the first process.
    """
    place = folder / SCRATCH / "devices"
    place.mkdir(parents=True, exist_ok=True)
    wait_for_older_swarm(place)
    for left in (place / MEETING, place / STATUS, place / RESULT, *place.glob("*.error")):
        durable.remove(left)
    durable.write_json(place / SETTINGS, settings.model_dump(mode="json"))
    threads = max(1, torch.get_num_threads() // count)
    logs = folder / LOGS / "devices"
    arguments = [str(path.resolve()) for path in (place, tokenizer_folder, pack_folder, folder)]
    commands = [
        Command(
            f"rank-{rank}",
            (sys.executable, "-P", "-m", "tasks.pretraining.rank", *arguments, str(rank), str(count)),
            _environment(threads),
            logs / f"rank-{rank}.log",
        )
        for rank in range(count)
    ]
    logger.info("%d processes with %d threads each; their output is in %s", count, threads, logs)
    shown: dict[str, Any] = {}
    # nothing to say goodbye for: a checkpoint is there whole or not at all
    with Owned(commands, leader="rank-0", folder=place, grace_seconds=1.0) as owned:
        while not owned.ended() and not _exited(place):
            shown = tell_status(place / STATUS, shown, progress)
            time.sleep(LOOK_SECONDS)
        ended = _exited(place)
    tell_status(place / STATUS, shown, progress)
    if ended.get("rank-0") == 0:
        metrics: dict[str, Any] = json.loads((place / RESULT).read_text(encoding="utf-8"))
        resolved = metrics["resolved"]
        logger.info("device %(device)s, precision %(precision)s: %(precision_reason)s", resolved)
        return metrics
    raise failure(place, ended, logs)


def failure(place: Path, ended: Mapping[str, int], logs: Path) -> UserError | StageError:
    """The error of the process that made the others fail, in one line.

    Args:
        place: the processes' folder.
        ended: exit statuses of those that had exited when the end was noticed, by name.
        logs: where their output is.
    """

    def distance_from_cause(name: str) -> int:
        # a process that lost its partner, and one that was then ended for it, are no cause if there is another
        return {TERMINATED: 2, LOST_PARTNER: 1}.get(ended[name], 0)

    if not ended:
        return StageError(
            f"the training processes ended without a word; run again to go on from the last checkpoint, and see {logs}"
        )
    name = min(sorted(ended), key=distance_from_cause)
    status, error = ended[name], place / f"{name}.error"
    if error.exists():
        text = error.read_text(encoding="utf-8")
        return UserError(text) if status == WRONG_INPUT else StageError(text)
    how = f"was ended by signal {-status}" if status < 0 else f"ended unexpectedly (status {status})"
    memory = ", as it is when memory runs out" if status == -9 else ""
    return StageError(
        f"the training process {name} {how}{memory}; run again to go on from the last checkpoint, and see "
        f"{logs / name}.log"
    )


def _environment(threads: int) -> dict[str, str]:
    # they are all on this machine: nobody else has to reach them, whatever its name resolves to
    loopback = "lo" if sys.platform == "linux" else "lo0"
    return {
        **{name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")},
        **{name: os.environ.get(name, loopback) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")},
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def _exited(place: Path) -> dict[str, int]:
    """Exit statuses of the processes that have exited. The first one's end is the end; the others wait for it."""
    found: dict[str, OwnedProcess] = processes(place)
    return {name: process.exit_status for name, process in found.items() if process.exit_status is not None}
