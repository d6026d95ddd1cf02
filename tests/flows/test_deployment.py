import importlib
import inspect
import os
import subprocess
import sys
import time
import zoneinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from flows import deployment
from flows.graph import STAGES
from tasks.record import read_record

if TYPE_CHECKING:
    from tests.flows.conftest import Server

DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load(deployment.DEFINITIONS.read_text())["deployments"]
SCHEDULES = [schedule for deployed in DEPLOYMENTS for schedule in deployed.get("schedules", [])]
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def test_chain_and_every_stage_are_deployed() -> None:
    root_file = Path(__file__).parents[2] / "prefect.yaml"
    assert root_file.read_bytes() == deployment.DEFINITIONS.read_bytes()
    names = [deployed["entrypoint"].rpartition(".")[2] for deployed in DEPLOYMENTS]
    assert names == ["chain", *STAGES, "pretrain"]
    assert [deployed["name"] for deployed in DEPLOYMENTS] == [*["local"] * 7, "gaudi"]


@pytest.mark.parametrize("deployed", DEPLOYMENTS, ids=lambda deployed: f"{deployed['entrypoint']}-{deployed['name']}")
def test_deployment_is_a_module_with_fitting_parameters(deployed: dict[str, Any]) -> None:
    module, _, name = deployed["entrypoint"].rpartition(".")
    flow = getattr(importlib.import_module(module), name)
    assert flow.name == name
    flow.validate_parameters(inspect.signature(flow.fn).bind(**deployed["parameters"]).arguments)
    pool = deployment.GAUDI_POOL if deployed["name"] == "gaudi" else deployment.POOL
    assert deployed["work_pool"]["name"] == pool
    assert deployed["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}


def test_schedules_have_slug_and_time_zone() -> None:
    from prefect.client.schemas.schedules import CronSchedule

    assert [schedule["slug"] for schedule in SCHEDULES] == ["nightly-evaluation"]
    for schedule in SCHEDULES:
        CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
        assert schedule["timezone"] in zoneinfo.available_timezones()


def run_deployed(server: "Server", flow: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    deployed = server.ask(f"/deployments/name/{flow}/local")
    run: dict[str, Any] = server.ask(
        f"/deployments/{deployed['id']}/create_flow_run",
        {"parameters": parameters, "state": {"type": "SCHEDULED"}, **more},
    )
    return run


def wait_for(server: "Server", run: dict[str, Any], states: tuple[str, ...]) -> dict[str, Any]:
    deadline = time.monotonic() + 90
    while True:
        run = server.ask(f"/flow_runs/{run['id']}")
        if run["state"]["type"] in states or time.monotonic() > deadline:
            return run
        time.sleep(0.3)


def test_worker_runs_a_deployed_stage_and_down_leaves_nothing(server: "Server") -> None:
    url = deployment.up()
    assert url == server.url
    schedules = server.ask("/deployments/name/evaluate/local")["schedules"]
    assert [(schedule["slug"], schedule["active"]) for schedule in schedules] == [("nightly-evaluation", True)]
    assert server.ask("/deployments/name/pretrain/gaudi")["work_pool_name"] == "gaudi"
    worker = deployment.worker().state()

    # The worst folder to start in: the repository's root, where `tokenizers/` holds data and no library.
    store = server.home / "deployed store"
    root = str(Path(__file__).parents[2])
    parameters = {"store": str(store), "set_": ["corpus.sources.0.documents=200"]}
    run = run_deployed(server, "corpus", parameters, job_variables={"working_dir": root})
    ended = wait_for(server, run, FINAL)
    assert ended["state"]["type"] == "COMPLETED", (ended["state"], deployment.worker().log.read_text())
    artifact = next((store / "artifacts" / "corpus").iterdir())
    assert read_record(artifact).metrics["documents"] > 0

    deployment.up()
    assert deployment.worker().state() == worker, "a second `up` keeps the worker"
    again = server.ask("/deployments/name/evaluate/local")["schedules"]
    assert [schedule["id"] for schedule in again] == [schedule["id"] for schedule in schedules]

    slow = run_deployed(server, "corpus", parameters | {"set_": ["corpus.sources.0.documents=2000000"]})
    assert wait_for(server, slow, ("RUNNING", *FINAL))["state"]["type"] == "RUNNING"
    assert deployment.worker().running()
    with deployment.worker().alone():
        assert deployment.worker().stop()
    left = [line for line in server.processes() if "prefect server" not in line]
    assert left == []


@pytest.mark.parametrize("folder", [Path(__file__).parents[2], Path("/")])
def test_tokenizers_is_the_library_where_a_worker_starts(folder: Path) -> None:
    """As Prefect starts a flow run: a module of Prefect's by name, the folder possibly first on the path."""
    check = "import sys; sys.path.insert(0, '.'); import flows.stages, tokenizers; print(tokenizers.Tokenizer)"
    told = subprocess.run([sys.executable, "-c", check], cwd=folder, env=os.environ, capture_output=True, text=True)
    assert "tokenizers.Tokenizer" in told.stdout, told.stderr
