"""Engine ``collaborative`` as a stage: starts coordinator and local peers as owned processes, shows how they get on.

All that trains is in other processes: hivemind needs their main threads, and a stage may run in any thread.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tasks import durable
from tasks.contract import LOGS, SCRATCH, Progress, StageError, UserError
from tasks.pretraining.batches import PackedSplit
from tasks.pretraining.collaborative import meeting, status
from tasks.pretraining.collaborative.manifest import make_manifest
from tasks.pretraining.collaborative.roles import TRAINING, Role
from tasks.pretraining.engine_settings import CollaborativeSettings
from tasks.pretraining.local import check_data
from tasks.pretraining.settings import PretrainSettings
from tasks.supervision import Command, Owned, wait_for_older_swarm

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""How often the coordinator's status is read."""


def pretrain(
    settings: PretrainSettings, tokenizer_folder: Path, pack_folder: Path, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Trains together with others; arguments, result and errors as ``tasks.pretraining.stage.run``.

    The metrics have besides: peers, group_steps_share (share of the global steps that a group took), end
    ("target" or "deadline"), final_distance (relative L2, between the peers' final weights).
    """
    check_data(settings, PackedSplit(pack_folder, "train"))
    swarm = folder / SCRATCH / "swarm"
    swarm.mkdir(parents=True, exist_ok=True)
    wait_for_older_swarm(swarm)
    for left in (swarm / "meeting.json", swarm / "result.json", *swarm.glob("*.error"), *swarm.glob("*.status.json")):
        durable.remove(left)
    meeting.write(swarm, "manifest", make_manifest(settings, tokenizer_folder, pack_folder))
    members = local_members(settings.pretraining.collaborative)
    training = sum(role in TRAINING for role in members.values())
    threads = max(1, torch.get_num_threads() // max(1, training))
    data = (str(tokenizer_folder.resolve()), str(pack_folder.resolve()))
    commands = [
        command("coordinator", (str(swarm.resolve()), str(folder.resolve()), *data), 1, folder / LOGS / "peers"),
        *(
            command(
                "peer",
                (str(swarm.resolve()), name, "--role", role, "--data", *data),
                threads if role in TRAINING else 1,
                folder / LOGS / "peers",
                name,
            )
            for name, role in members.items()
        ),
    ]
    named = ", ".join(members) or "nobody else yet"
    logger.info("a coordinator and %s; %d threads for each that trains", named, threads)
    told_addresses = False
    alarms: dict[str, str] = {}
    with Owned(commands, leader="coordinator", folder=swarm) as owned:
        while not owned.ended():
            status.show(swarm, "coordinator", progress)
            alarms = _told(alarms, status.read(swarm, "coordinator").get("alarms", {}))
            if not told_addresses and (swarm / "meeting.json").exists():
                told_addresses = True
                addresses = meeting.read(swarm, "meeting", meeting.Meeting).addresses
                logger.info("others join with: sahajflow join %s", " ".join(addresses))
                notebook = folder / LOGS / "join.ipynb"
                if notebook.exists():
                    logger.info("for Colab and Kaggle: %s", notebook)
            time.sleep(LOOK_SECONDS)
        ended = owned.exit_status()
    return _result(swarm, folder, ended) | {"threads_per_peer": threads}


def _told(before: dict[str, str], alarms: dict[str, str]) -> dict[str, str]:
    """Say in the log of the run, which Prefect shows, which alarms have begun and which are over; returns the present.

    Args:
        before: alarms that were told, by kind.
        alarms: those of the coordinator's status.
    """
    for kind in alarms.keys() - before.keys():
        logger.warning("alarm: %s", alarms[kind])
    for kind in before.keys() - alarms.keys():
        logger.warning("over: %s", before[kind])
    return alarms


def local_members(asked: CollaborativeSettings) -> dict[str, Role]:
    """Names and roles of the members that a run starts on its own machine."""
    counts: dict[Role, int] = {
        "peer": asked.peers,
        "client": asked.clients,
        "auxiliary": asked.auxiliaries,
        "keeper": asked.keepers,
    }
    return {f"{role}-{number}": role for role, count in counts.items() for number in range(count)}


def command(module: str, arguments: tuple[str, ...], threads: int, logs: Path, name: str | None = None) -> Command:
    """The command line of a member of the swarm."""
    name = name or module
    counts = {variable: str(threads) for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")}
    environment = {
        **counts,
        "TOKENIZERS_PARALLELISM": "false",  # the library warns when a process forks after using its threads
        "PYTHONUNBUFFERED": "1",
        "HIVEMIND_COLORS": "False",
        # by descriptors: its default leaves named files in /dev/shm when a process is killed
        "HIVEMIND_MEMORY_SHARING_STRATEGY": "file_descriptor",
        "HIVEMIND_LOGLEVEL": os.environ.get("HIVEMIND_LOGLEVEL", "INFO"),
    }
    argv = (sys.executable, "-P", "-m", f"tasks.pretraining.collaborative.{module}", *arguments)
    return Command(name, argv, environment, logs / f"{name}.log")


def _result(swarm: Path, folder: Path, ended: int | None) -> dict[str, Any]:
    """The coordinator's metrics, or its error as this stage's."""
    result = swarm / "result.json"
    if ended == 0 and result.exists():
        metrics: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return metrics
    error = swarm / "coordinator.error"
    if error.exists():
        text = error.read_text(encoding="utf-8")
        raise UserError(text) if ended == 2 else StageError(text)
    raise StageError(
        f"the coordinator ended unexpectedly (status {ended}); run again to go on from the last checkpoint, and see "
        f"{folder / LOGS / 'peers' / 'coordinator.log'}"
    )
