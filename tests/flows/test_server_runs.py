"""What `sahajflow status` tells of the server."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import flow

from flows import deployment, local_server
from flows.server_runs import server_lines

if TYPE_CHECKING:
    from tests.flows.conftest import Server


def test_without_a_server_nothing_is_started(tmp_path: Path, no_prefect_configured: None) -> None:
    os.environ["SAHAJFLOW_HOME"] = str(tmp_path / "home")
    assert server_lines() == ["server     none runs"]
    assert not (tmp_path / "home").exists()
    os.environ["PREFECT_API_URL"] = "http://127.0.0.1:1/api"
    assert server_lines() == ["server     http://127.0.0.1:1/api does not answer"]


def test_workers_runs_and_what_is_due_are_listed(server: "Server") -> None:
    deployment.up()
    local_server.use(server.url)
    told: list[str] = []

    @flow(name="looks")
    def looks() -> None:
        told.extend(server_lines())

    deadline = time.monotonic() + 120
    while not any(line.startswith("due        evaluate  20") for line in told):  # Prefect plans runs now and then
        assert time.monotonic() < deadline, told
        told.clear()
        looks()
    page, worker, *runs = told
    assert page == f"server     {server.url.removesuffix('/api')}"
    assert worker == f"worker     pool cpu  process {deployment.worker().state()['pid']}"
    assert any(line.startswith("run        looks  ") and "Running since 20" in line for line in runs)
