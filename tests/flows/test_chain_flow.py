import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from flows import execution, local_server, reporting
from flows.artifacts import key_of, shown_for
from flows.execution import Options
from flows.graph import Node
from flows.lost_runs import PROCESS
from flows.step_work import StageOutcome, Work
from tasks.contract import Progress, Settings, Stage, StageError, no_progress

if TYPE_CHECKING:
    from tests.flows.conftest import Server

Body = Callable[[Progress], None]


class Stub(Settings):
    size: int = 1


def nothing(progress: Progress) -> None:
    pass


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[StageOutcome], list[str]]]:
    """Runs corpus -> tokenizer with Prefect; the stages do what they are given and write a file."""

    def run_stubs(corpus: Body = nothing, tokenizer: Body = nothing) -> tuple[list[StageOutcome], list[str]]:
        def stage(name: str, body: Body) -> Stage:
            def run(settings: Any, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
                body(progress)
                (folder / "out.txt").write_text(name)
                return {"entries": 7}

            return Stage(name, 1, Stub, run)

        nodes = [
            Node("corpus", stage("corpus", corpus), Stub(), {}),
            Node("tokenizer", stage("tokenizer", tokenizer), Stub(), {"corpus": "corpus"}),
        ]
        monkeypatch.setattr(execution, "nodes_of", lambda recipe: nodes)
        from flows.prefect_runner import run_with_prefect

        return run_with_prefect(Options("demo", store=str(tmp_path / "store"), until="tokenizer"), show)

    return run_stubs


def show(node: Node, work: Work) -> StageOutcome:
    return work(no_progress)


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def test_stages_are_tasks_with_log_and_table(server: "Server", run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted0123")

    def log(progress: Progress) -> None:
        logging.getLogger("tasks.stub").info("হ্যালো from the stage with hf_planted0123")

    outcomes, warnings = run(tokenizer=log)
    assert [(outcome.name, outcome.action) for outcome in outcomes] == [("corpus", "ran"), ("tokenizer", "ran")]
    assert warnings == []
    flow_run = server.last_run()
    assert flow_run["state"]["type"] == "COMPLETED"
    assert flow_run["parameters"]["recipe"] == "demo"
    assert flow_run["labels"][PROCESS].split(" ")[1] == str(os.getpid())
    expected = {"corpus": "Completed", "tokenizer": "Completed"}
    assert wait_for(lambda: server.task_states(flow_run) == expected), server.task_states(flow_run)
    assert wait_for(lambda: "হ্যালো from the stage with [HF_TOKEN]" in server.logs(flow_run)), server.logs(flow_run)
    table = server.artifacts(flow_run)["demo-tokenizer"]
    assert table["type"] == "table"
    assert '"entries"' in table["data"]

    outcomes, warnings = run()
    assert [outcome.action for outcome in outcomes] == ["reused", "reused"]
    assert warnings == []
    flow_run = server.last_run()
    expected = {"corpus": "Cached", "tokenizer": "Cached"}
    assert wait_for(lambda: server.task_states(flow_run) == expected), server.task_states(flow_run)


def test_progress_is_an_artifact_updated_now_and_then(
    server: "Server", run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "PROGRESS_SECONDS", 0.2)
    seen: list[float] = []

    def steps(progress: Progress) -> None:
        flow_run = server.last_run()
        for step in range(1, 11):
            progress(step, 10, unit="steps", note="loss 5.31")
            time.sleep(0.4)
            if artifact := server.artifacts(flow_run).get("demo-corpus-progress"):
                seen.append(artifact["data"])

    _, warnings = run(corpus=steps)
    assert warnings == []
    artifact = server.artifacts(server.last_run())["demo-corpus-progress"]
    assert artifact["type"] == "progress"
    assert artifact["data"] == 100
    assert artifact["description"] == "corpus: 10 of 10 steps, loss 5.31"
    assert artifact["task_run_id"] is not None
    assert any(0 < value < 100 for value in seen), seen


def test_a_stages_table_is_one_artifact_with_the_newest_rows(
    server: "Server", run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "PROGRESS_SECONDS", 0.2)
    seen: dict[str, list[dict[str, str]]] = {}

    def steps(progress: Progress) -> None:
        flow_run = server.last_run()
        for step in range(1, 11):
            rows = [{"peer": name, "samples": f"{step}"} for name in ("peer-0", "\x1b[2Jpeer-1")]
            # Now and then a stage has no table to show: the last one stays.
            progress(step, 10, unit="steps", rows=rows if step % 2 == 0 else ())
            time.sleep(0.1)
            if artifact := server.artifacts(flow_run).get("demo-corpus-live"):
                seen[artifact["id"]] = [*seen.get(artifact["id"], []), *json.loads(artifact["data"])[:1]]

    _, warnings = run(corpus=steps, tokenizer=lambda progress: progress(1, 1))
    assert warnings == []
    artifacts = server.artifacts(server.last_run())
    live = artifacts["demo-corpus-live"]
    assert live["type"] == "table"
    assert json.loads(live["data"]) == [
        {"peer": "peer-0", "samples": "10"},
        {"peer": "[2Jpeer-1", "samples": "10"},
    ]
    assert live["description"] == "corpus: 10 of 10 steps"
    assert live["task_run_id"] == artifacts["demo-corpus-progress"]["task_run_id"]
    assert list(seen) == [live["id"]], "it is one artifact all the time"
    assert len({row["samples"] for row in seen[live["id"]]}) > 1, "it changes while the stage works"
    assert "demo-tokenizer-live" not in artifacts


def test_errors_of_stages_come_out_as_they_are(server: "Server", run: Any) -> None:
    error = StageError("no more disk")

    def fail(progress: Progress) -> None:
        raise error

    with pytest.raises(StageError) as caught:
        run(tokenizer=fail)
    assert caught.value is error
    flow_run = server.last_run()
    assert flow_run["state"]["type"] == "FAILED"
    assert "no more disk" in flow_run["state"]["message"]
    assert wait_for(lambda: server.task_states(flow_run) == {"corpus": "Completed", "tokenizer": "Failed"})


def test_sigterm_interrupts_at_once_as_the_command_line_asks(server: "Server", run: Any) -> None:
    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    def terminated(progress: Progress) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            run(corpus=terminated)
        assert time.monotonic() - began < 15
        assert signal.getsignal(signal.SIGTERM) is interrupt
    finally:
        signal.signal(signal.SIGTERM, before)
    assert server.last_run()["state"]["type"] == "CRASHED"


def test_server_that_is_gone_before_the_flow_starts(
    no_prefect_configured: None, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "ensure", lambda: "http://127.0.0.1:1/api")
    began = time.monotonic()
    outcomes, warnings = run()
    assert time.monotonic() - began < 15
    assert [outcome.action for outcome in outcomes] == ["ran", "ran"]
    assert len(warnings) == 1
    assert "\n" not in warnings[0]


def test_server_killed_in_the_middle_of_a_stage(server: "Server", run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "PROGRESS_SECONDS", 0.2)
    calls = []

    def kill(progress: Progress) -> None:
        calls.append("corpus")
        time.sleep(2.0)  # what is told of the run as a whole has arrived by then
        os.kill(local_server.server().state()["pid"], signal.SIGKILL)
        for step in range(20):
            progress(step, 20, unit="steps")
            time.sleep(0.1)

    began = time.monotonic()
    outcomes, warnings = run(corpus=kill, tokenizer=lambda progress: calls.append("tokenizer"))
    assert time.monotonic() - began < 40
    assert calls == ["corpus", "tokenizer"], "each stage runs once"
    assert [outcome.action for outcome in outcomes] == ["ran", "ran"]
    assert all((outcome.path / "record.json").is_file() for outcome in outcomes)
    assert 1 <= len(warnings) <= 2
    assert "corpus" in warnings[0] or "progress" in warnings[0]


def test_error_of_a_stage_comes_out_though_the_server_is_lost(
    server: "Server", run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = StageError("no more disk")

    def refuse(*_: Any) -> Any:
        raise httpx.ConnectError("connection refused")

    def lose_and_fail(progress: Progress) -> None:
        monkeypatch.setattr(httpx.HTTPTransport, "handle_request", refuse)
        raise error

    began = time.monotonic()
    with pytest.raises(StageError) as caught:
        run(corpus=lose_and_fail)
    assert caught.value is error
    assert time.monotonic() - began < 20
    assert server.last_run()["state"]["type"] == "RUNNING", "Prefect was not lost"


def test_pretrain_shows_its_peers_where_there_is_a_ledger(tmp_path: Path) -> None:
    assert shown_for("pretrain", tmp_path, {}) is None
    peer = {
        "name": "peer\x07-0",
        "peer": "ab12cd34ef56ab78",
        "samples": 640,
        "share": 1.0,
        "steps": 5,
        "matching": 1.5,
        "reducing": 0.5,
        "computing": 20.25,
        "outcomes": {"averaged": 4, "failed": 1},
    }
    ledger = {
        "target_step": 5,
        "step": 5,
        "end": "target",
        "target_batch": 128,
        "samples": 640,
        "peers": [peer],
        "groups": {"1": 5},
        "outcomes": {"alone": 5},
        "per_step": {"matching": 0.3, "reducing": 0.1, "computing": 4.05, "seconds": 4.5},
        "final": {"peers": ["peer-0"], "distance": None, "bound": 0.001},
    }
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/ledger.json").write_text(json.dumps(ledger))
    shown = shown_for("pretrain", tmp_path, {})
    assert shown is not None
    assert shown.kind == "table"
    assert json.loads(shown.data) == [
        {
            "peer": "peer-0",
            "samples": 640,
            "share": 1.0,
            "global steps": 5,
            "averaged": 4,
            "alone": 0,
            "no group": 0,
            "failed": 1,
            "computing": 20.25,
            "matching": 1.5,
            "reducing": 0.5,
        }
    ]


def test_keys_have_only_what_prefect_takes() -> None:
    assert key_of("demo", "report") == "demo-report"
    assert key_of("My_Language.v2", "seed-run/pretrained/ner/0") == "my-language-v2-seed-run-pretrained-ner-0"
