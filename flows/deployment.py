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
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from flows import local_server
from flows.background import Background
from tasks.contract import StageError
from tasks.store import home

logger = logging.getLogger(__name__)

DEFINITIONS = Path(__file__).with_name("prefect.yaml")
"""The deployments. In the repository a link to the file at the root; in an installed package the file itself."""

POOL, GAUDI_POOL = "local", "gaudi"
"""The work pools that the deployments use; nobody here works for the second one."""

WORKER_SECONDS = 90.0
"""How long the worker may take until the server has heard of it."""


def worker() -> Background:
    """The background process that carries out scheduled and deployed runs on this machine."""
    return Background("worker", home() / "worker")


def up() -> str:
    """Make server, worker and deployments stand; returns the server's address (``…/api``).

    Raises:
        UserError: a server is configured for Prefect but does not answer.
        StageError: one of the parts does not start; the message names its log.
    """
    url = local_server.ensure()
    local_server.use(url)
    _start_worker(url)
    _make_gaudi_pool()
    _deploy()
    return url


def down() -> tuple[bool, bool]:
    """Stop the local worker and the local server; says for each whether it was running."""
    background = worker()
    with background.alone():
        worker_was_running = background.stop()
    return worker_was_running, local_server.stop()


def _start_worker(url: str) -> None:
    background = worker()
    with background.alone():
        if background.running() and background.state().get("url") == url:
            return
        background.stop()  # one that talks to another server is of no use
        logger.info("starting the worker; its log: %s", background.log)
        name = f"{socket.gethostname()}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        command = ["worker", "start", "--name", name, "--pool", POOL, "--type", "process"]  # makes a missing pool
        # Runs start in folders of their own; the safe path keeps what lies there from standing in for a library.
        background.start(
            [sys.executable, "-P", "-m", "prefect", *command], os.environ | {"PYTHONSAFEPATH": "1"}, url=url
        )
        deadline = time.monotonic() + WORKER_SECONDS
        while not _is_online(name):
            if not background.running():
                raise StageError(f"the worker ended while it started: see {background.log}")
            if time.monotonic() > deadline:
                raise StageError(f"the server {url} does not hear of the worker: see {background.log}")
            time.sleep(0.5)


def _is_online(worker_name: str) -> bool:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    with get_client(sync_client=True) as client:
        try:
            workers = client.read_workers_for_work_pool(POOL)
        except PrefectHTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            return False  # the worker has not made the pool yet
    return any(worker.name == worker_name for worker in workers)


def _make_gaudi_pool() -> None:
    """A deployment's pool has to be there; the worker makes only its own."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=GAUDI_POOL, type="process"))


def _deploy() -> None:
    log = worker().folder / "deploy.log"
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", DEFINITIONS],
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        raise StageError(f"the deployments of {DEFINITIONS} were not taken: see {log}")
