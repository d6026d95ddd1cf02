import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from flows import local_server
from flows.background import start_time
from flows.lost_runs import PROCESS, mark_lost_runs, note_process

if TYPE_CHECKING:
    from tests.flows.conftest import Server


@pytest.fixture
def client(server: "Server") -> Any:
    local_server.use(server.url)
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        yield client


def running(client: Any, process: str | None) -> Any:
    """A run that the server takes for running, carried out by that process."""
    from prefect import flow
    from prefect.states import Running

    run = client.create_flow_run(flow(lambda: None, name="lost"), state=Running())
    if process is not None:
        client.update_flow_run_labels(run.id, {PROCESS: process})
    return run.id


def state(client: Any, run: Any) -> tuple[str, str]:
    found = client.read_flow_run(run).state
    return found.type.value, found.message


def test_runs_whose_process_is_gone_are_crashed_and_no_others(client: Any) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started, pid, host = start_time(process.pid), process.pid, socket.gethostname()
    assert started is not None
    mine = running(client, None)
    note_process(client, mine)
    others = [
        running(client, None),
        running(client, f"another-{host} {pid} {started}"),
        running(client, "of another kind"),
    ]
    gone = running(client, f"{host} {pid} {started}")
    again = running(client, f"{host} {os.getpid()} {started}")  # the id is another process's by now
    assert mark_lost_runs(client) == 2
    assert [state(client, run) for run in (gone, again)] == [("CRASHED", "its process is gone")] * 2
    assert {state(client, run)[0] for run in (mine, *others)} == {"RUNNING"}
    assert mark_lost_runs(client) == 0
