"""Runs that the Prefect server takes for running although nobody carries them out any more.

What ends a run without notice, a power cut for one, may end its worker and the server too, and nobody is left to say
so; the run goes on holding its deployment's only place. So each run notes its process on the server, and whoever comes
next on that machine, a run or `up`, marks the runs whose process is gone as crashed. For a machine that does not come
back there is the automation of ``flows/automations.py``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flows.background import start_time

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient

PROCESS = "sahajflow.process"
"""Label of a flow run: host, process id and the process's start time, which together name one process."""

_AT_ONCE = 200
"""Runs that are looked at; the server takes no larger request, and so many do not run on one machine."""


def note_process(client: SyncPrefectClient, run: UUID) -> None:
    """Say on the server that this process carries out the run."""
    pid = os.getpid()
    client.update_flow_run_labels(run, {PROCESS: f"{socket.gethostname()} {pid} {start_time(pid)}"})


def mark_lost_runs(client: SyncPrefectClient) -> int:
    """Mark the runs as crashed that processes of this machine carried out which are gone; returns how many."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    going_on = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.CANCELLING])
    only = FlowRunFilter(state=FlowRunFilterState(type=going_on))
    lost = [run for run in client.read_flow_runs(flow_run_filter=only, limit=_AT_ONCE) if _is_lost(run.labels)]
    for run in lost:
        client.set_flow_run_state(run.id, Crashed(message="its process is gone"))
    return len(lost)


def _is_lost(labels: Mapping[str, object]) -> bool:
    match str(labels.get(PROCESS, "")).split(" ", 2):
        case [host, pid, started] if host == socket.gethostname() and pid.isdecimal():
            return start_time(int(pid)) != started
    return False
