"""The whole way: the core environment packs and evaluates, the second one trains with two processes, and is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.contract import no_progress
from tasks.pretraining.local import pretrain
from tasks.pretraining.settings import PretrainSettings
from tasks.record import verified_record

DRIVER = Path(__file__).with_name("chain_driver.py")

CORE = os.environ.get("SAHAJFLOW_CORE_PYTHON", sys.executable)
"""``make test-gaudi`` names the core environment's interpreter; without it this one does both."""


def drive(store: Path, told: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    with told.with_suffix(".log").open("a") as log:
        return subprocess.Popen(
            [CORE, "-P", str(DRIVER), str(store), sys.executable, str(told)],
            env=environment,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def training_processes(store: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(store) in part for part in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def history(gaudi_environment, tmp_path_factory) -> dict[str, Any]:
    """A chain that is killed after the second checkpoint, and run again to its end."""
    folder = tmp_path_factory.mktemp("chain")
    store, told = folder / "store", folder / "told.jsonl"
    environment = gaudi_environment | {"SAHAJFLOW_HOME": str(folder)}
    first = drive(store, told, environment)
    try:
        deadline = time.monotonic() + 240
        while not list((store / "work").glob("pretrain/*/scratch/parts/step-000040.json")):
            assert first.poll() is None, told.with_suffix(".log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        running = {" ".join(process.cmdline()) for process in training_processes(store)}
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    deadline = time.monotonic() + 15
    while (left := training_processes(store)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    (log,) = (store / "work").glob("pretrain/*/logs/training.jsonl")
    before = log.read_text()
    second = drive(store, told, environment)
    assert second.wait(timeout=300) == 0, told.with_suffix(".log").read_text()[-3000:]
    (artifact,) = (store / "artifacts/pretrain").iterdir()
    notes = [json.loads(line) for line in told.read_text().splitlines()]
    return {"store": store, "artifact": artifact, "notes": notes, "running": running, "before": before}


def test_two_processes_were_started_by_torchs_launcher(history):
    launchers = {line for line in history["running"] if "torch.distributed.run --nproc_per_node=2" in line}
    ranks = {line for line in history["running"] if "gaudi/rank.py" in line} - launchers
    assert launchers
    assert ranks
    assert verified_record(history["artifact"]).resolved["devices"] == 2


def test_it_went_on_from_a_checkpoint_and_nothing_was_done_twice(history):
    starts = [number for number, note in enumerate(history["notes"]) if "transformers" in note]
    second = [note["step"] for note in history["notes"][starts[1] :] if "step" in note]
    assert 40 <= second[0] < 200
    assert second[-1] == 200
    lines = [json.loads(line) for line in (history["artifact"] / "logs/training.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(10, 201, 10))
    kept = [json.loads(line) for line in history["before"].splitlines()]
    resumed_at = second[0] // 20 * 20
    assert lines[: resumed_at // 10] == [line for line in kept if line["step"] <= resumed_at]
    actions = [(note["stage"], note["action"]) for note in history["notes"] if "stage" in note]
    assert [stage for stage, action in actions if action == "ran"].count("pack") == 1


def test_the_loss_falls_and_the_record_tells(history):
    record = verified_record(history["artifact"], hashes=True)
    lines = [json.loads(line) for line in (history["artifact"] / "logs/training.jsonl").read_text().splitlines()]
    assert lines[-1]["validation_loss"] < lines[0]["loss"] - 0.5
    assert record.metrics["validation_loss"] == lines[-1]["validation_loss"]
    assert record.metrics["steps"] == 200
    assert record.metrics["tokens_per_second"] > 0
    assert record.resolved["transformers"].startswith("4.55.")
    assert record.resolved["optimum-habana"]


def test_two_processes_and_a_kill_give_what_the_engine_local_gives(history, tmp_path):
    """Processes that each trained a model of their own would have other losses."""
    identity = verified_record(history["artifact"]).identity
    del identity["pretraining"]["gaudi"]
    asked = {**identity["pretraining"], "engine": "local", "log_every": 10, "devices": 1}
    settings = PretrainSettings.model_validate({"model": identity["model"], "pretraining": asked})
    (tokenizer,) = (history["store"] / "artifacts/tokenizer").iterdir()
    (pack,) = (history["store"] / "artifacts/pack").iterdir()
    pretrain(settings, tokenizer, pack, tmp_path, no_progress)
    logs = [
        [json.loads(line) for line in (place / "logs/training.jsonl").read_text().splitlines()]
        for place in (history["artifact"], tmp_path)
    ]
    its, ours = ([line["loss"] for line in log] for log in logs)
    assert its == pytest.approx(ours, rel=2e-3)
    its, ours = ([line["validation_loss"] for line in log if "validation_loss" in line] for log in logs)
    assert its == pytest.approx(ours, rel=2e-3)


def test_the_core_environment_evaluates_the_checkpoint(history):
    if sys.executable != CORE:
        assert not history["notes"][0]["transformers"].startswith("4.55.")
    assert history["notes"][-1] == {"stage": "evaluate", "action": "ran"}
    (results,) = (history["store"] / "artifacts/evaluate").glob("*/results.csv")
    assert "topics" in results.read_text()
    code = (
        "import sys, transformers;"
        "model, told = transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1], output_loading_info=True);"
        "print(sorted(told['missing_keys']), sorted(told['unexpected_keys']), model.config.architectures)"
    )
    done = subprocess.run(
        [CORE, "-P", "-c", code, str(history["artifact"] / "checkpoint")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] [] ['BertForMaskedLM']"


def test_other_data_than_the_runs_is_refused_on_arrival(history, gaudi_environment, tmp_path):
    """As on a host to which the wrong folder was copied."""
    from tasks.pretraining.gaudi import launch

    (pack,) = (history["store"] / "artifacts/pack").iterdir()
    (tokenizer,) = (history["store"] / "artifacts/tokenizer").iterdir()
    settings = json.loads((history["artifact"] / "record.json").read_text())["identity"]
    (tmp_path / launch.SETTINGS).write_text(json.dumps(settings))
    digests = {"tokenizer": verified_record(tokenizer).digest, "pack": "0" * 64}
    (tmp_path / launch.DIGESTS).write_text(json.dumps(digests))
    assert launch.run(tmp_path, tokenizer, pack, tmp_path / "folder") == 1
    told = json.loads((tmp_path / "launch.error").read_text())
    assert told["kind"] == "UserError"
    assert f"{pack}: another pack than the run's" in told["text"]
