"""`sahajflow up` and `down`: a local Prefect server, a worker, and the deployments of ``prefect.yaml``.

``up`` can be repeated: what stands is kept, what is missing is added, deployments are brought up to date.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import local_server
from flows.automations import Level, mark_dead_runs, notify
from flows.background import Background
from flows.lost_runs import mark_lost_runs
from flows.reconcile import (
    DEFINITIONS,
    Difference,
    differences,
    operators_choices,
    pools_of,
    read_definitions,
    remove_gone,
    restore_choices,
)
from tasks.contract import StageError, UserError
from tasks.store import home

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

logger = logging.getLogger(__name__)

POOL = "cpu"
"""The work pool that a machine serves unless told otherwise."""

WORKER_SECONDS = 90.0
"""How long the worker may take until the server has heard of it."""


def worker(pool: str = POOL) -> Background:
    """The background process that carries out scheduled and deployed runs of a pool on this machine."""
    return Background("worker", home() / "workers" / pool)


def up(
    file: Path = DEFINITIONS, pools: Sequence[str] = (), webhook: str | None = None, level: Level | None = None
) -> tuple[str, list[Difference]]:
    """Make server, workers and deployments stand.

    Args:
        file: the deployments.
        pools: the work pools that this machine serves; none: :data:`POOL`.
        webhook: where the server tells how runs ended; None leaves that as it is.
        level: of which runs; None: "failure".

    Returns:
        The server's address (``.../api``), and what was removed since the file does not have it any more.

    Raises:
        UserError: a server is configured for Prefect but does not answer, or the file is wrong.
        StageError: one of the parts does not start; the message names its log.
    """
    definitions = read_definitions(file)
    serving = checked_pools(file, definitions, pools)
    url = local_server.ensure()
    local_server.use(url)
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        mark_lost_runs(client)  # before the worker asks for work: a run that is no more must not be in its way
        _make_pools(client, pools_of(definitions))
        choices = operators_choices(client)
    for pool in serving:
        _start_worker(url, pool)
    _deploy(file)
    with get_client(sync_client=True) as client:
        restore_choices(client, choices)
        gone = remove_gone(client, definitions)
        mark_dead_runs(client)
        if webhook is not None or level == "none":
            notify(client, webhook or "", level or "failure")
    return url, gone


def checked_pools(file: Path, definitions: list[dict[str, Any]], pools: Sequence[str]) -> list[str]:
    """The pools to serve. Raises UserError for one that no deployment uses."""
    known = pools_of(definitions)
    for pool in pools:
        if pool not in known:
            raise UserError(f"--pool {pool}: no deployment of {file} uses it; known are {', '.join(known)}")
    return list(dict.fromkeys(pools)) or [POOL if POOL in known else known[0]]


def up_differences(file: Path = DEFINITIONS) -> list[Difference] | None:
    """What :func:`up` would change on the server; None if no server runs. Changes and starts nothing."""
    definitions = read_definitions(file)
    configured = local_server.configured_url()
    url = configured[0] if configured else local_server.server().state().get("url")
    if url is None or not local_server.answers(url):
        return None
    local_server.use(url)
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return differences(client, definitions)


def down() -> tuple[bool, bool]:
    """Stop the local workers and the local server; says for each whether it was running."""
    worker_was_running = False
    for folder in sorted((home() / "workers").glob("*")):
        background = worker(folder.name)
        with background.alone():
            worker_was_running |= background.stop()
    return worker_was_running, local_server.stop()


def _make_pools(client: SyncPrefectClient, names: Sequence[str]) -> None:
    """Pools that nobody serves have to exist too, for Prefect to take the deployments that use them."""
    from prefect.client.schemas.actions import WorkPoolCreate

    standing = {pool.name for pool in client.read_work_pools(limit=200)}
    for name in names:
        if name not in standing:
            client.create_work_pool(WorkPoolCreate(name=name, type="process"))


def _start_worker(url: str, pool: str) -> None:
    background = worker(pool)
    with background.alone():
        if background.running() and background.state().get("url") == url:
            return
        background.stop()  # one that talks to another server is of no use
        logger.info("starting the worker of the pool %s; its log: %s", pool, background.log)
        command, environment, name = worker_to_start(url, pool)
        background.start(command, environment, url=url)
        deadline = time.monotonic() + WORKER_SECONDS
        while not _is_online(name, pool):
            if not background.running():
                raise StageError(f"the worker ended while it started: see {background.log}")
            if time.monotonic() > deadline:
                raise StageError(f"the server {url} does not hear of the worker: see {background.log}")
            time.sleep(0.5)


def worker_to_start(url: str, pool: str) -> tuple[list[str], dict[str, str], str]:
    """Command and environment of a worker of a pool, and the name that the server knows it by."""
    name = f"{socket.gethostname()}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    command = ["worker", "start", "--name", name, "--pool", pool, "--type", "process"]
    # Runs start in folders of their own; the safe path keeps what lies there from standing in for a library.
    environment = os.environ | local_server.client_environment(url) | {"PYTHONSAFEPATH": "1"}
    return [sys.executable, "-P", "-m", "prefect", *command], environment, name


def _is_online(worker_name: str, pool: str) -> bool:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        workers = client.read_workers_for_work_pool(pool)
    return any(worker.name == worker_name for worker in workers)


def _deploy(file: Path) -> None:
    log = home() / "deploy.log"
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file],
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        raise StageError(f"the deployments of {file} were not taken: see {log}")
