"""Server and worker as services of systemd: the unit files, and what these start.

A unit starts a process of sahajflow, which notes itself where ``up``, ``run`` and ``down`` look for server and
worker, and then becomes Prefect's: so they are the same ones, whoever started them, and never two on one database.
systemd starts them with the machine and again after a crash. The end of either pauses no schedule: schedules belong to
the deployments on the server, not to a process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from flows import deployment, local_server
from tasks.contract import StageError, UserError
from tasks.store import home

SERVER = "sahajflow-server.service"
WORKER = "sahajflow-worker@.service"
"""A template: the name of the work pool stands between the at sign and the dot."""

ENVIRONMENT = "environment"
"""File in ``$SAHAJFLOW_HOME`` whose lines, such as ``HF_TOKEN=...``, become variables of both services."""

_UNIT = """\
[Unit]
Description={description}
{order}
[Service]
Environment={environment}
EnvironmentFile=-{file}
ExecStart={python} -P -m flows.services {arguments}
Restart=on-failure
RestartSec=10
TimeoutStopSec=30

[Install]
WantedBy=default.target
"""


def units() -> dict[str, str]:
    """The unit files by name, for this interpreter and ``$SAHAJFLOW_HOME``.

    Where a server is configured for Prefect, there is no unit of one, and the worker's holds its address.
    """
    configured = local_server.configured_url()
    variables = {"SAHAJFLOW_HOME": str(home())} | ({"PREFECT_API_URL": configured[0]} if configured else {})
    common = {
        "environment": " ".join(_quoted(f"{name}={value}") for name, value in variables.items()),
        "file": _escaped(str(home() / ENVIRONMENT)),
        "python": _quoted(sys.executable),
    }
    # Wanted, not required: a server that is started anew must not end the worker's runs.
    order = "" if configured else f"Wants={SERVER}\nAfter={SERVER}\n"
    worker = {"description": "sahajflow: worker of the pool %i", "order": order, "arguments": "worker %i"}
    server = {"description": "sahajflow: Prefect server of this user", "order": "", "arguments": "server"}
    found = {} if configured else {SERVER: _UNIT.format_map(server | common)}
    return found | {WORKER: _UNIT.format_map(worker | common)}


def write_units(folder: Path) -> list[Path]:
    """Write the unit files into a folder, which is made if need be; returns their paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, text in units().items():
            (folder / name).write_text(text, encoding="utf-8")
            paths.append(folder / name)
    except OSError as error:
        raise UserError(f"--systemd {folder}: cannot be written ({error.strerror}); give a folder of yours") from None
    return paths


def _escaped(text: str) -> str:
    """systemd.unit(5): a percent sign begins a specifier."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """One word of a line (systemd.syntax(7)), whatever is in it."""
    escaped = _escaped(text.replace("\\", r"\\").replace('"', r"\""))
    return f'"{escaped}"'


def become_server() -> None:
    """Make this process the local server. Raises UserError if there is one already."""
    background = local_server.server()
    with background.alone():
        if background.running():
            raise UserError("the local server runs already; stop it with: sahajflow down")
        command, environment, url = local_server.to_start(background)
        background.note(os.getpid(), url=url)
    _become(command, environment, background.folder)


def become_worker(pool: str) -> None:
    """Make this process the worker of a pool, as soon as the server answers.

    Raises:
        UserError: the pool has a worker on this machine already.
        StageError: no server answers within :data:`flows.local_server.START_SECONDS`.
    """
    background = deployment.worker(pool)
    url = _answering()
    with background.alone():
        if background.running():
            raise UserError(f"the pool {pool} has a worker here already; stop it with: sahajflow down")
        command, environment, _ = deployment.worker_to_start(url, pool)
        background.note(os.getpid(), url=url)
    _become(command, environment, background.folder)


def _answering() -> str:
    """The address of the configured server, else of the local one, once it answers."""
    deadline = time.monotonic() + local_server.START_SECONDS
    while True:
        configured = local_server.configured_url()
        url = configured[0] if configured else local_server.server().state().get("url")
        if url is not None and local_server.answers(url):
            return str(url)
        if time.monotonic() > deadline:
            raise StageError(f"no Prefect server answers{f' at {url}' if url else ''}; see: sahajflow doctor")
        time.sleep(0.5)


def _become(command: Sequence[str], environment: dict[str, str], folder: Path) -> None:
    """The process id and the time of its start, by which it was noted, stay what they are."""
    os.chdir(folder)
    os.execve(command[0], list(command), environment)


def main(arguments: Sequence[str]) -> int:
    """``server``, or ``worker POOL``; returns the exit status if it comes to nothing."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # as systemd does it: the group by which `down` stops it
    try:
        if arguments[0] == "server":
            become_server()
        else:
            become_worker(arguments[1])
    except (UserError, StageError) as error:
        print(f"sahajflow: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
