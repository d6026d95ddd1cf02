"""Runs that a real server starts and a real worker carries out: by hand, by a schedule, by an event; and their end.

One `up` for all of them, from a file that has one more schedule than ours, which fires every 20 s. The worker asks for
work every second instead of every ten.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import yaml
from prefect.client.orchestration import get_client

sys.path.insert(0, str(Path(__file__).parent))
from collaboration_runs import pack, wait_for
from tiny import COLLABORATIVE, SETTINGS

from flows import deployment, local_server
from flows.attempts import attempts
from flows.execution import Options, run_chain
from flows.housekeeping import status
from tasks.contract import no_progress
from tasks.store import Store

if TYPE_CHECKING:
    from tests.flows.conftest import Server

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
STAGES = ("corpus", "evaluate", "pack", "pretrain", "report", "tokenizer")
SEED_RUNS = ("seed-run/pretrained/ner/1", "seed-run/pretrained/topics/1")
ENDLESS = ("pretraining.steps=500", "pretraining.checkpoint_every=2")
GONE_SECONDS = 15.0
"""How long what a cancelled run owns may live on."""


@dataclass(frozen=True)
class Deployed:
    """The server with all deployed, and a store in which the tiny chain is finished."""

    server: "Server"
    parameters: dict[str, Any]

    def start(self, name: str, **parameters: Any) -> dict[str, Any]:
        deployed = self.server.ask(f"/deployments/name/{name}")
        body = {"parameters": self.parameters | parameters, "state": {"type": "SCHEDULED"}}
        run: dict[str, Any] = self.server.ask(f"/deployments/{deployed['id']}/create_flow_run", body)
        return run

    def read(self, run: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.server.ask(f"/flow_runs/{run['id']}")
        return found

    def end_of(self, run: dict[str, Any]) -> dict[str, Any]:
        wait_for(lambda: self.read(run)["state"]["type"] in FINAL)
        return self.read(run)

    def states_of(self, run: dict[str, Any], names: tuple[str, ...]) -> dict[str, str]:
        """The states of a run's tasks. The server hears of those by events, some of them after the run's own end."""
        ends = ("Cached", "Completed", "Failed", "Crashed")
        wait_for(lambda: all(self.server.task_states(run).get(name) in ends for name in names))
        return self.server.task_states(run)

    def runs_of(self, name: str) -> list[dict[str, Any]]:
        deployed = self.server.ask(f"/deployments/name/{name}")
        only = {"deployments": {"id": {"any_": [deployed["id"]]}}, "sort": "START_TIME_DESC", "limit": 200}
        runs: list[dict[str, Any]] = self.server.ask("/flow_runs/filter", only)
        return runs


@pytest.fixture(scope="module")
def deployed(_session_server: "Server", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    home = _session_server.home
    store = tmp_path_factory.mktemp("deployed") / "store"
    parameters = {"recipe": "demo", "set_": list(SETTINGS), "store": str(store), "workers": 1}
    often = {"slug": "often", "cron": "* * * * * */20", "parameters": parameters}
    content = yaml.safe_load(deployment.DEFINITIONS.read_text())
    evaluate = next(one for one in content["deployments"] if one["entrypoint"] == "flows.stages.evaluate")
    scheduled = {key: value for key, value in evaluate.items() if key != "triggers"}
    content["deployments"].append(scheduled | {"name": "often", "schedules": [often]})
    file = store.parent / "prefect.yaml"
    file.write_text(yaml.safe_dump(content))
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    os.environ |= {"SAHAJFLOW_HOME": str(home), "PREFECT_HOME": str(home / "client")}
    os.environ["PREFECT_WORKER_QUERY_SECONDS"] = "1"
    try:
        with deployment.worker().alone():
            deployment.worker().stop()  # another test's, which asks less often
        call = "from flows.command_line import main; main()"
        command = [sys.executable, "-P", "-c", call, "up", "--file", file]
        with subprocess.Popen(command, cwd=store.parent) as up:
            chain = Options("demo", set_=SETTINGS, store=str(store), workers=1)
            run_chain(chain, lambda node, work: work(no_progress))
            pack(store)
        assert up.returncode == 0
        yield Deployed(_session_server, parameters)
        local_server.use(_session_server.url)
        with get_client(sync_client=True) as client:
            client.delete_deployment(client.read_deployment_by_name("evaluate/often").id)
        with deployment.worker().alone():
            deployment.worker().stop()
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_with_everything_there_each_stage_of_a_deployed_chain_is_cached(deployed: Deployed) -> None:
    run = deployed.end_of(deployed.start("chain/local"))
    assert run["state"]["type"] == "COMPLETED", run["state"]
    nodes = (*STAGES, *SEED_RUNS)
    assert deployed.states_of(run, nodes) == dict.fromkeys(nodes, "Cached")
    assert deployed.server.artifacts(run)["demo-report"]["type"] == "markdown"


def test_a_pretraining_that_completes_is_evaluated(deployed: Deployed) -> None:
    before = {run["id"] for run in deployed.runs_of("evaluate/local")}
    pretrained = deployed.end_of(deployed.start("pretrain/local"))
    assert pretrained["state"]["type"] == "COMPLETED", pretrained["state"]

    def triggered() -> list[dict[str, Any]]:
        runs = [run for run in deployed.runs_of("evaluate/local") if run["id"] not in before]
        return [run for run in runs if not run["auto_scheduled"]]

    run = deployed.end_of(wait_for(triggered)[0])
    wanted = {key: deployed.parameters[key] for key in ("recipe", "set_", "store")}
    assert run["parameters"] == wanted
    assert run["state"]["type"] == "COMPLETED", run["state"]
    assert deployed.states_of(run, ("evaluate",))["evaluate"] == "Cached"


def test_a_scheduled_run_that_begins_too_late_is_missed(deployed: Deployed) -> None:
    """As when the host slept: the schedule's run lies there, and the worker comes hours later."""
    nightly = deployed.server.ask("/deployments/name/evaluate/local")
    now = datetime.now(UTC)
    due = {"start_time": str(now - timedelta(hours=26)), "end_time": str(now - timedelta(hours=2)), "max_runs": 1}
    deployed.server.ask(f"/deployments/{nightly['id']}/schedule", {**due, "min_runs": 1})

    def late() -> list[dict[str, Any]]:
        runs = [run for run in deployed.runs_of("evaluate/local") if run["auto_scheduled"]]
        return [run for run in runs if datetime.fromisoformat(run["expected_start_time"]) < now]

    (run,) = wait_for(late)
    run = deployed.end_of(run)
    assert (run["state"]["type"], run["state"]["name"]) == ("CANCELLED", "Missed")
    assert deployed.server.task_states(run) == {}


def test_cancelling_ends_every_child_and_leaves_what_the_next_run_goes_on_with(deployed: Deployed) -> None:
    """Two peers in a run that was cancelled as Prefect's page does it."""
    store = Path(deployed.parameters["store"])
    run = deployed.start("pretrain/local", set_=[*COLLABORATIVE, *ENDLESS], workers=2)
    wait_for(lambda: list(store.glob("work/pretrain/*/scratch/parts/step-*.json")))
    owned = processes_of_run(run["id"])
    for part in ("tasks.supervisor", "collaborative.coordinator", "collaborative.peer", "p2pd"):
        assert any(part in command for command in owned), (part, owned)
    deployed.server.ask(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING"}})
    wait_for(lambda: not processes_of_run(run["id"]), seconds=GONE_SECONDS)
    assert deployed.end_of(run)["state"]["name"] == "Cancelled"
    assert list(store.glob("work/pretrain/*/scratch/parts/step-*.json"))
    (attempt, *_) = attempts(Store(store), "pretrain")
    assert attempt.state == "interrupted", "the flow was asked to end, and did so in order"
    assert [line for line in status(str(store)) if line.startswith("resumable  pretrain-")]


def test_a_schedule_fires_and_its_run_shows_the_scores(deployed: Deployed) -> None:
    def completed() -> list[dict[str, Any]]:
        return [run for run in deployed.runs_of("evaluate/often") if run["state"]["type"] == "COMPLETED"]

    run = wait_for(completed)[0]
    assert run["auto_scheduled"]
    assert run["state"]["name"] == "Completed"
    nodes = (*SEED_RUNS, "evaluate")
    assert deployed.states_of(run, nodes) == dict.fromkeys(nodes, "Cached")
    artifact = deployed.server.artifacts(run)["demo-evaluate"]
    assert artifact["type"] == "table"
    assert "topics" in artifact["data"]


def processes_of_run(run_id: str) -> list[str]:
    """The command lines of the processes that inherited the environment of a flow run."""
    found = []
    for process in psutil.process_iter():
        try:
            if run_id in process.environ().values() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found
