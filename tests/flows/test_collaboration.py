"""Real swarms on loopback: coordinator and peers are processes with libp2p daemons of their own."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from collaboration_runs import (
    GONE_SECONDS,
    assert_gone,
    join,
    lines_of,
    members_below,
    pack,
    pretrain,
    recorded,
    runs,
    start_driver,
    steps_of,
    swarm_folder,
    wait_for,
    work_folder,
)
from tiny import COLLABORATIVE

from flows.execution import Options, run_chain
from flows.step_work import StageOutcome
from tasks.contract import StageError, UserError, no_progress


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with everything that pretrain needs."""
    return pack(tmp_path_factory.mktemp("packed") / "store")


@pytest.fixture
def store(packed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(packed, tmp_path / "store")


@pytest.fixture
def driver(store: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started = []

    def start(*changes: str) -> subprocess.Popen[str]:
        started.append(start_driver(store, *changes))
        return started[-1]

    yield start
    for run in started:
        if run.poll() is None:
            run.kill()
            run.wait()
    assert_gone(store)


@pytest.fixture(scope="module")
def together(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[StageOutcome, list[dict[str, Any]]]:
    """A run of two peers, and what it showed while it went on."""
    store = shutil.copytree(packed, tmp_path_factory.mktemp("together") / "store")
    shown: list[dict[str, Any]] = []

    def progress(done: float, total: float, *, unit: str = "", note: str = "", rows: Any = ()) -> None:
        shown.append({"done": done, "total": total, "note": note, "rows": list(rows)})

    outcome = pretrain(store, progress=progress)
    assert members_below(store) == []
    return outcome, shown


def test_two_peers_share_the_work_and_end_with_the_same_weights(together: Any) -> None:
    outcome, _ = together
    ledger = json.loads((outcome.path / "logs" / "ledger.json").read_text(encoding="utf-8"))
    assert [peer["name"] for peer in ledger["peers"]] == ["peer-0", "peer-1"]
    assert min(peer["share"] for peer in ledger["peers"]) >= 0.2
    assert ledger["groups"]["2"] >= 0.8 * ledger["step"]
    assert ledger["final"]["peers"] == ["peer-0", "peer-1"]
    assert 0 <= ledger["final"]["distance"] <= 1e-3
    assert (ledger["end"], ledger["step"], ledger["target_step"]) == ("target", 24, 24)
    metrics = outcome.record.metrics
    assert (metrics["steps"], metrics["peers"], metrics["end"]) == (24, 2, "target")
    assert metrics["samples"] == ledger["samples"] == sum(line["samples"] for line in steps_of(outcome.path))
    assert outcome.record.resolved["precision"] == "fp32"


def test_the_demo_as_it_is_has_both_peers_in_most_of_its_steps(packed: Path, tmp_path: Path) -> None:
    """Its own settings of training and fewer steps, each shorter than in the demo since the model is smaller."""
    store = shutil.copytree(packed, tmp_path / "store")
    own = tuple(setting for setting in COLLABORATIVE if not setting.startswith("pretraining."))
    # three layers: with one, two quick cores take a global step of 64 sequences in less than peers need to meet
    fewer = ("pretraining.steps=100", "pretraining.warmup_steps=36", "model.layers=3")
    options = Options("demo", only="pretrain", set_=(*own, *fewer), store=str(store), workers=2)
    (outcome,) = run_chain(options, lambda node, work: work(no_progress))
    ledger = json.loads((outcome.path / "logs" / "ledger.json").read_text(encoding="utf-8"))
    assert [peer["name"] for peer in ledger["peers"]] == ["peer-0", "peer-1"]
    assert min(peer["share"] for peer in ledger["peers"]) >= 0.2
    assert ledger["groups"]["2"] >= 80
    assert ledger["final"]["distance"] <= 1e-3
    assert (ledger["end"], ledger["step"], ledger["target_batch"]) == ("target", 100, 64)


def test_every_global_step_has_its_line_and_its_whole_batch(together: Any) -> None:
    outcome, _ = together
    steps = steps_of(outcome.path)
    assert [line["step"] for line in steps] == list(range(1, 25))
    averaged = [line for line in steps if [part["outcome"] for part in line["contributions"]] == ["averaged"] * 2]
    assert len(averaged) >= 20
    assert min(line["samples"] for line in averaged) >= 1024
    for line in averaged:
        assert line["samples"] == sum(part["samples"] for part in line["contributions"])
        assert line["reducing"] > 0 < line["computing"]
    assert steps[1]["learning_rate"] == pytest.approx(1e-3)  # half-way through a warmup of 2 steps to 2e-3
    assert steps[-1]["mlm_loss"] < steps[0]["mlm_loss"] - 0.2
    validations = [line for line in lines_of(outcome.path) if "validation_loss" in line]
    assert validations[-1]["step"] == 24
    assert validations[-1]["validation_loss"] == outcome.record.metrics["validation_loss"] < math.log(500)
    assert 0 < validations[-1]["masked_accuracy"] == outcome.record.metrics["masked_accuracy"] < 1


def test_the_live_view_names_peers_and_speed(together: Any) -> None:
    _, shown = together
    training = [one for one in shown if one["done"] > 2]
    assert any({row["peer"] for row in one["rows"]} == {"peer-0", "peer-1"} for one in training)
    assert any("2 peers" in one["note"] and "samples/s" in one["note"] for one in training)
    assert any("next averaging in" in one["note"] for one in training)
    assert shown[-1]["total"] == 24


def test_the_checkpoint_loads_with_transformers(together: Any) -> None:
    from transformers import AutoModelForMaskedLM

    outcome, _ = together
    _, loading = AutoModelForMaskedLM.from_pretrained(outcome.path / "checkpoint", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]


def test_a_peer_that_is_killed_is_done_without(store: Path, driver: Any) -> None:
    run = driver("pretraining.steps=16")
    wait_for(lambda: recorded(store).get("peer-1") and len(steps_of(work_folder(store))) >= 4, run)
    os.kill(recorded(store)["peer-0"].pid, signal.SIGKILL)
    said, _ = run.communicate(timeout=120)
    assert run.returncode == 0, said
    (published,) = store.glob("artifacts/pretrain/*")
    steps = steps_of(published)
    assert [line["step"] for line in steps] == list(range(1, 17))
    assert {part["name"] for part in steps[-1]["contributions"]} == {"peer-1"}
    assert {part["name"] for part in steps[2]["contributions"]} == {"peer-0", "peer-1"}
    assert steps[-1]["outcome"] == "alone"


def test_a_killed_run_leaves_nothing_and_goes_on(store: Path, driver: Any) -> None:
    run = driver()
    wait_for(lambda: list(store.glob("work/pretrain/*/scratch/parts/step-*.json")), run)
    before = steps_of(work_folder(store))
    pids = {name: (one.pid, one.create_time) for name, one in recorded(store).items()}
    assert {"supervisor", "coordinator", "peer-0", "peer-1"} == set(pids)
    run.kill()
    run.wait()
    assert_gone(store)
    assert [name for name, (pid, created) in pids.items() if runs(pid, created)] == []
    assert list(Path("/dev/shm").glob(f"torch_{pids['peer-0'][0]}_*")) == []
    begun = []
    outcome = pretrain(store, progress=lambda done, total, **_: begun.append(done))
    steps = steps_of(outcome.path)
    assert [line["step"] for line in steps] == list(range(1, 25))
    assert steps[0] == before[0]
    assert outcome.record.metrics["final_distance"] <= 1e-3
    assert next(done for done in begun if done) >= 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(store: Path, driver: Any, number: signal.Signals) -> None:
    run = driver()
    wait_for(lambda: len(recorded(store)) == 4 and steps_of(work_folder(store)), run)
    run.send_signal(number)
    run.wait(timeout=GONE_SECONDS)
    assert run.returncode != 0
    assert_gone(store)


def test_who_joins_late_takes_the_state_and_contributes(store: Path, driver: Any, tmp_path: Path) -> None:
    # as long as a joining takes on a busy machine, whatever the speed of the steps
    run = driver("pretraining.steps=5000", "pretraining.collaborative.deadline_minutes=1.4")
    wait_for(lambda: recorded(store).get("peer-1") and len(steps_of(work_folder(store))) >= 3, run)
    folder = swarm_folder(store)
    assert folder is not None
    address = json.loads((folder / "meeting.json").read_text())["addresses"][0]
    late = join(address, "late", store, tmp_path / "home")
    said, _ = late.communicate(timeout=150)
    assert late.returncode == 0, said
    assert "samples were yours" in said
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 0, said
    (published,) = store.glob("artifacts/pretrain/*")
    ledger = json.loads((published / "logs" / "ledger.json").read_text(encoding="utf-8"))
    peers = {peer["name"]: peer for peer in ledger["peers"]}
    assert set(peers) == {"peer-0", "peer-1", "late"}
    assert peers["late"]["first_step"] > 3
    assert peers["late"]["outcomes"].get("averaged", 0) >= 3
    assert ledger["final"]["distance"] <= 1e-3
    (log,) = (tmp_path / "home" / "swarms").glob("*/late.log")
    assert "took over step" in log.read_text(encoding="utf-8")
    assert_gone(tmp_path)


def test_a_collaboration_is_started_by_hand_and_its_result_reused(server: Any, store: Path, tmp_path: Path) -> None:
    """Two volunteers, a coordinator that trains nothing; then the recipe's own run finds the result."""
    program = str(Path(sys.executable).with_name("sahajflow"))
    settings = [part for change in (*COLLABORATIVE, "pretraining.steps=8") for part in ("--set", change)]
    coordinate = subprocess.Popen(
        [program, "coordinate", "demo", "--listen", "/ip4/127.0.0.1/tcp/0", "--store", str(store), *settings],
        env={**os.environ, "SAHAJFLOW_HOME": str(server.home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(lambda: (folder := swarm_folder(store)) and (folder / "meeting.json").exists(), coordinate)
        folder = swarm_folder(store)
        assert folder is not None
        address = json.loads((folder / "meeting.json").read_text())["addresses"][0]
        volunteers = [join(address, name, store, tmp_path / name) for name in ("asha", "bimal")]
        for volunteer in volunteers:
            said, _ = volunteer.communicate(timeout=120)
            assert volunteer.returncode == 0, said
        said, _ = coordinate.communicate(timeout=60)
    finally:
        if coordinate.poll() is None:
            coordinate.kill()
            coordinate.wait()
    assert coordinate.returncode == 0, said
    assert f"sahajflow join {address}" in said
    (published,) = store.glob("artifacts/pretrain/*")
    ledger = json.loads((published / "logs" / "ledger.json").read_text(encoding="utf-8"))
    assert {peer["name"] for peer in ledger["peers"]} == {"asha", "bimal"}
    again = pretrain(store, "pretraining.steps=8")
    assert (again.action, again.path) == ("reused", published)
    assert_gone(tmp_path)


def test_the_deadline_ends_the_run_with_what_it_has(store: Path) -> None:
    outcome = pretrain(store, "pretraining.steps=5000", "pretraining.collaborative.deadline_minutes=0.08")
    metrics = outcome.record.metrics
    assert metrics["end"] == "deadline"
    assert 0 < metrics["steps"] < 5000
    assert metrics["final_distance"] <= 1e-3
    ledger = json.loads((outcome.path / "logs" / "ledger.json").read_text(encoding="utf-8"))
    assert (ledger["end"], ledger["target_step"], ledger["step"]) == ("deadline", 5000, metrics["steps"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("matchmaking_seconds=4", ("matchmaking_seconds 4", "raise batch_size to", "sequences/s of 2 peers")),
        ("deadline_minutes=0.0001", ("deadline_minutes 0.0001", "lower batch_size below")),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_numbers(
    store: Path, change: str, told: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as refusal:
        pretrain(store, f"pretraining.collaborative.{change}")
    assert "\n" not in str(refusal.value)
    assert all(part in str(refusal.value) for part in told), refusal.value
    assert members_below(store) == []


def test_a_peer_that_does_not_learn_starts_no_swarm(store: Path) -> None:
    with pytest.raises(StageError, match=r"does not learn: alone on one batch .* lower pretraining.learning_rate"):
        pretrain(store, "pretraining.learning_rate=300", "pretraining.warmup_steps=0")
    assert members_below(store) == []
    assert not steps_of(work_folder(store))


def test_the_end_of_all_peers_is_the_end_of_the_run(store: Path, driver: Any) -> None:
    run = driver()
    wait_for(lambda: len(recorded(store)) == 4 and steps_of(work_folder(store)), run)
    for name in ("peer-0", "peer-1"):
        os.kill(recorded(store)[name].pid, signal.SIGKILL)
    said, _ = run.communicate(timeout=60)
    assert run.returncode != 0
    assert "peers have ended (peer-0: status -9, peer-1: status -9)" in said
    assert_gone(store)
