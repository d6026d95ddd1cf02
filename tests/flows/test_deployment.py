import importlib
import inspect
import json
import os
import subprocess
import sys
import threading
import time
import zoneinfo
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prefect.client.schemas.schedules import CronSchedule

from flows import automations, deployment, local_server, reconcile
from flows.graph import STAGES
from flows.reconcile import DEFINITIONS, name_of, read_definitions
from tasks.contract import UserError
from tasks.record import read_record

if TYPE_CHECKING:
    from tests.flows.conftest import Server

DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load(DEFINITIONS.read_text())["deployments"]
SCHEDULES = [schedule for deployed in DEPLOYMENTS for schedule in deployed.get("schedules", [])]
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def test_chain_and_every_stage_are_deployed() -> None:
    root_file = Path(__file__).parents[2] / "prefect.yaml"
    assert root_file.read_bytes() == DEFINITIONS.read_bytes()
    names = [name_of(deployed) for deployed in DEPLOYMENTS]
    assert [name for name in names if name.endswith("/local")] == [f"{name}/local" for name in ("chain", *STAGES)]
    assert {"pretrain/gpu", "pretrain/gaudi"} < set(names)


@pytest.mark.parametrize("deployed", DEPLOYMENTS, ids=name_of)
def test_deployment_is_a_module_with_fitting_parameters(deployed: dict[str, Any]) -> None:
    module, _, name = deployed["entrypoint"].rpartition(".")
    flow = getattr(importlib.import_module(module), name)
    assert flow.name == name
    flow.validate_parameters(inspect.signature(flow.fn).bind(**deployed["parameters"]).arguments)
    pool = {"gpu": "gpu", "gaudi": "gaudi"}.get(deployed["name"], deployment.POOL)
    assert deployed["work_pool"]["name"] == pool
    for schedule in deployed.get("schedules", []):
        given = {**deployed["parameters"], **schedule.get("parameters", {})}
        flow.validate_parameters(inspect.signature(flow.fn).bind(**given).arguments)
    assert deployed["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}


def test_schedules_have_slug_and_time_zone() -> None:
    slugs = [schedule["slug"] for schedule in SCHEDULES]
    assert slugs == ["weekly-chain", "monthly-tokenizer-check", "nightly-evaluation"]
    assert [schedule["slug"] for schedule in SCHEDULES if schedule.get("active", True)] == ["nightly-evaluation"]
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
    url, gone = deployment.up()
    assert (url, gone) == (server.url, [])
    schedules = server.ask("/deployments/name/evaluate/local")["schedules"]
    assert [(schedule["slug"], schedule["active"]) for schedule in schedules] == [("nightly-evaluation", True)]
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


def test_what_the_file_has_no_more_is_removed_and_what_the_operator_switched_off_stays_off(
    server: "Server", tmp_path: Path
) -> None:
    from prefect.client.orchestration import get_client

    deployment.up()
    assert deployment.up_differences() == []
    with get_client(sync_client=True) as client:
        standing = client.read_deployment_by_name("evaluate/local")
        (nightly,) = standing.schedules
        client.update_deployment_schedule(standing.id, nightly.id, active=False)
        client.create_deployment_schedules(standing.id, [(CronSchedule(cron="0 5 * * *"), True)])
    content = yaml.safe_load(DEFINITIONS.read_text())
    kept = [one for one in content["deployments"] if name_of(one) not in ("pretrain/gpu", "chain/local")]
    chain = next(one for one in content["deployments"] if name_of(one) == "chain/local")
    chain["schedules"] = []
    chain["parameters"] = {"recipe": "my-language"}
    file = tmp_path / "prefect.yaml"
    file.write_text(yaml.safe_dump({**content, "deployments": [chain, *kept]}))
    expected = {
        "- deployment pretrain/gpu",
        "- schedule weekly-chain of chain/local",
        "~ parameters of chain/local: {'recipe': 'demo'} -> {'recipe': 'my-language'}",
    }
    assert {str(difference) for difference in deployment.up_differences(file) or []} == expected
    _, gone = deployment.up(file)
    assert {str(difference) for difference in gone} == {one for one in expected if one.startswith("-")}
    assert deployment.up_differences(file) == []
    schedules = server.ask("/deployments/name/evaluate/local")["schedules"]
    assert {(one["slug"], one["schedule"]["cron"], one["active"]) for one in schedules} == {
        ("nightly-evaluation", "0 2 * * *", False),
        (None, "0 5 * * *", True),
    }
    assert server.ask("/deployments/name/chain/local")["schedules"] == []
    names = {automation["name"] for automation in server.ask("/automations/filter", {})}
    assert automations.CRASH in names


def test_a_webhook_is_told_how_runs_ended(server: "Server") -> None:
    from prefect.client.orchestration import get_client

    told: list[dict[str, Any]] = []

    class Webhook(BaseHTTPRequestHandler):
        def log_message(self, *said: object) -> None:
            pass

        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Webhook) as webhook:
        threading.Thread(target=webhook.serve_forever, daemon=True).start()
        local_server.use(server.url)
        with get_client(sync_client=True) as client:
            automations.notify(client, f"http://127.0.0.1:{webhook.server_port}/", "end")
        deployment.up()
        run = run_deployed(server, "pack", {"recipe": "no-such-recipe", "store": str(server.home / "told")})
        assert wait_for(server, run, FINAL)["state"]["type"] == "FAILED"
        deadline = time.monotonic() + 60
        while not told and time.monotonic() < deadline:
            time.sleep(0.3)
        with get_client(sync_client=True) as client:
            automations.notify(client, "", "none")
        webhook.shutdown()
    assert told
    assert told[0]["text"].startswith("sahajflow: pack Failed: ")
    assert "no-such-recipe" in told[0]["text"]
    blocks = server.ask("/block_documents/filter", {})
    assert automations.BLOCK not in {block["name"] for block in blocks}, "the address is gone from the server"
    assert automations.NOTIFY not in {one["name"] for one in server.ask("/automations/filter", {})}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"deployments": []}, "has no deployments; start from a copy of /"),
        ({"deployments": [{"name": "local"}]}, r"deployments\.0: should have a name and an entrypoint"),
        ({"deployments": [{"name": "local", "entrypoint": "flows.chain.chain"}]}, "should have the tag sahajflow"),
        (
            {
                "deployments": [
                    {
                        "name": "local",
                        "entrypoint": "flows.chain.chain",
                        "tags": ["sahajflow"],
                        "schedules": [{"cron": "0 2 * * *"}],
                    }
                ]
            },
            "each schedule should have a slug of its own",
        ),
        *(
            (
                {
                    "deployments": [
                        {"name": "local", "entrypoint": "flows.chain.chain", "tags": ["sahajflow"], **wrong}
                    ]
                },
                told,
            )
            for wrong, told in (
                ({"entrypoint": "flows/chain.py:chain"}, r"entrypoint flows/chain\.py:chain should be a flow by its"),
                ({"entrypoint": "flows.mine.my_flow"}, "should be a flow by its module"),
                ({"schedules": ["daily"]}, "schedules should be a list of mappings"),
                ({"work_pool": "gpu"}, "work_pool should be a mapping"),
            )
        ),
    ],
)
def test_files_that_up_could_not_answer_for_are_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    file = tmp_path / "prefect.yaml"
    file.write_text(yaml.safe_dump(change))
    with pytest.raises(UserError, match=problem):
        read_definitions(file)


@pytest.mark.parametrize("limit", [3, {"limit": 3}])
def test_a_limit_may_be_a_number_or_a_mapping(limit: Any) -> None:
    standing = SimpleNamespace(
        global_concurrency_limit=SimpleNamespace(limit=2),
        entrypoint="flows.chain.chain",
        parameters={},
        work_pool_name=None,
        schedules=[],
    )
    wanted = {"name": "local", "entrypoint": "flows.chain.chain", "concurrency_limit": limit}
    (difference,) = reconcile._changed("chain/local", wanted, standing)  # type: ignore[arg-type]
    assert str(difference) == "~ limit of chain/local: 2 -> 3"


@pytest.mark.parametrize("folder", [Path(__file__).parents[2], Path("/")])
def test_tokenizers_is_the_library_where_a_worker_starts(folder: Path) -> None:
    """As Prefect starts a flow run: a module of Prefect's by name, the folder possibly first on the path."""
    check = "import sys; sys.path.insert(0, '.'); import flows.stages, tokenizers; print(tokenizers.Tokenizer)"
    told = subprocess.run([sys.executable, "-c", check], cwd=folder, env=os.environ, capture_output=True, text=True)
    assert "tokenizers.Tokenizer" in told.stdout, told.stderr
