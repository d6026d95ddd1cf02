"""What `sahajflow status` tells of the Prefect server: whether it answers, workers here, runs, what is due next."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from flows import local_server
from flows.deployment import worker
from flows.reconcile import OURS
from tasks.contract import UserError
from tasks.foreign_text import first_line, printable
from tasks.store import home

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

AT_MOST = 20
"""Runs that are listed."""


def server_lines() -> list[str]:
    """Lines on server, workers of this machine, and runs; starts nothing."""
    try:
        configured = local_server.configured_url()
    except UserError as error:
        return [f"server     {error}"]
    url = configured[0] if configured else local_server.server().state().get("url")
    lines = []
    for folder in sorted((home() / "workers").glob("*")):
        background = worker(folder.name)
        if background.running():
            lines.append(f"worker     pool {folder.name}  process {background.state()['pid']}")
    if url is None or not local_server.answers(url):
        silent = configured or local_server.server().running()
        return [f"server     {f'{url} does not answer' if silent else 'none runs'}", *lines]
    local_server.use(url)
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            return [f"server     {url.removesuffix('/api')}", *lines, *_runs(client)]
    except Exception as error:  # whatever the server or the way to it says
        return [f"server     {url}: {printable(first_line(error))}", *lines]


def _runs(client: SyncPrefectClient) -> list[str]:
    """Runs that have begun or wait, with their ages; and for each schedule when it is due."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    flows = {flow.id: flow.name for flow in client.read_flows(limit=200)}

    def found(states: list[StateType], sort: FlowRunSort, limit: int) -> list[FlowRun]:
        which = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states)))
        return client.read_flow_runs(flow_run_filter=which, sort=sort, limit=limit)

    begun = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
    lines = []
    for run in found(begun, FlowRunSort.START_TIME_DESC, AT_MOST):
        since = run.start_time or run.expected_start_time
        lines.append(f"run        {flows.get(run.flow_id, '?')}  {run.name}  {run.state_name} since {_local(since)}")
    due: dict[str, str] = {}
    for run in found([StateType.SCHEDULED], FlowRunSort.EXPECTED_START_TIME_ASC, 200):
        state = "" if run.state_name == "Scheduled" else f"  {run.state_name}"
        due.setdefault(flows.get(run.flow_id, "?"), f"{_local(run.expected_start_time)}{state}")
    lines += [f"due        {flow}  {when}" for flow, when in list(due.items())[:AT_MOST]]
    if not due and not any(OURS in deployment.tags for deployment in client.read_deployments(limit=200)):
        lines.append("due        nothing is deployed; `sahajflow up` does it")
    return lines


def _local(moment: datetime | None) -> str:
    return "?" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M}"
