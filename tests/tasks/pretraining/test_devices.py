"""The stage on several devices: its result, and that nothing outlives a failure or a kill."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tasks.contract import SCRATCH, StageError, UserError, no_progress
from tasks.pretraining import devices
from tasks.pretraining.devices import count_devices, failure
from tasks.pretraining.probe import ProbeCall
from tasks.pretraining.stage import run
from tasks.supervision import processes

TRAIN = """
import sys
from pathlib import Path
from tasks.contract import no_progress
from tasks.pretraining.settings import PretrainSettings
from tasks.pretraining.stage import run

settings, tokenizer, pack, folder = sys.argv[1:]
inputs = {"tokenizer": Path(tokenizer), "pack": Path(pack)}
run(PretrainSettings.model_validate_json(settings), inputs, Path(folder), no_progress)
"""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


MEASURED = ("seconds", "tokens_per_second", "peak_memory_bytes")
"""What no two runs have alike."""


def log_of(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "logs/training.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in MEASURED} for line in lines]


def owned_by(folder: Path) -> dict[str, Any]:
    return processes(folder / SCRATCH / "devices")


def living(owned: dict[str, Any]) -> set[str]:
    found = set()
    for name, process in owned.items():
        try:
            if psutil.Process(process.pid).create_time() == process.create_time:
                found.add(name)
        except psutil.NoSuchProcess:
            pass
    return found


def after_checkpoint(folder: Path, do: Callable[[], None]) -> threading.Thread:
    """Does something as soon as there is a checkpoint."""

    def wait() -> None:
        deadline = time.monotonic() + 60
        while not list((folder / SCRATCH / "parts").glob("step-*.json")) and time.monotonic() < deadline:
            time.sleep(0.01)
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.fixture
def long(settings):
    """A training with dropout that lasts seconds after its first checkpoint."""
    probe = {"task": "ner", "every": 100}
    asked = settings(steps=200, devices=2, log_every=25, validate_every=200, checkpoint_every=25, probe=probe)
    # any function that the processes find; this one fails where there is no folder
    call = ProbeCall(function="os.path:getsize", arguments={}, metric="bytes of the folder")
    return asked.model_copy(update={"probe_call": call})


def test_a_lost_process_and_a_killed_stage_leave_nothing_and_go_on(long, tokenizer_folder, pack_folder, tmp_path):
    inputs = {"tokenizer": tokenizer_folder, "pack": pack_folder}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    shown = []
    metrics = run(long, inputs, whole, lambda done, total, **more: shown.append((done, total, more)))
    assert metrics["resolved"]["devices"] == 2
    assert metrics["validation_loss"] == log_of(whole)[-1]["validation_loss"]
    assert (metrics["steps"], metrics["tokens"]) == (200, 200 * 8 * 16)
    scores = {line["step"]: line["probe_score"] for line in log_of(whole) if "probe_score" in line}
    assert list(scores) == [100, 200]
    assert metrics["probe"]["score"] == scores[200] > 0
    assert shown[0][:2] == (0, 200)
    assert shown[-1][:2] == (200, 200)
    assert shown[-1][2]["unit"] == "steps"
    assert shown[-1][2]["note"].endswith("tokens/s")
    assert {path.name for path in (whole / "logs/devices").iterdir()} == {"rank-0.log", "rank-1.log"}
    assert living(owned_by(whole)) == set()

    thread = after_checkpoint(killed, lambda: os.kill(owned_by(killed)["rank-1"].pid, signal.SIGKILL))
    with pytest.raises(
        StageError, match=r"process rank-1 was ended by signal 9, .* from the last checkpoint"
    ) as error:
        run(long, inputs, killed, no_progress)
    thread.join()
    assert "\n" not in str(error.value)
    assert set(owned_by(killed)) == {"supervisor", "rank-0", "rank-1"}
    assert living(owned_by(killed)) == set()

    before = owned_by(killed)["rank-0"].pid
    arguments = [long.model_dump_json(), str(tokenizer_folder), str(pack_folder), str(killed)]
    stage = subprocess.Popen([sys.executable, "-P", "-c", TRAIN, *arguments])
    deadline = time.monotonic() + 60
    status = killed / SCRATCH / "devices" / devices.STATUS
    while owned_by(killed).get("rank-0", owned_by(killed)) == before or not status.exists():
        assert stage.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stage.kill()
    stage.wait()
    owned = owned_by(killed)
    while living(owned):
        assert time.monotonic() < deadline
        time.sleep(0.05)

    seen = []
    run(long, inputs, killed, lambda done, total, **_: seen.append(done))
    assert seen[0] >= 25
    assert log_of(killed) == log_of(whole)
    name = "checkpoint/model.safetensors"
    assert (killed / name).read_bytes() == (whole / name).read_bytes()


def test_auto_takes_the_gpus_that_divide_the_batch(settings, monkeypatch):
    def counted(gpus: int, **changes: Any) -> int:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        return count_devices(settings(**{"device": "auto", "batch_size": 24} | changes).pretraining)

    assert [counted(gpus) for gpus in (0, 1, 2, 4, 5, 8, 100)] == [1, 1, 2, 4, 4, 8, 24]
    assert counted(8, accumulation=4) == 6
    assert counted(8, device="cpu") == 1
    assert counted(0, devices=3) == counted(8, devices=3) == counted(2, devices=3, device="cpu") == 3
    with pytest.raises(UserError, match=r"^pretraining\.devices: 3, but torch finds 2 GPUs; --set .*=auto takes"):
        counted(2, devices=3)


@pytest.mark.parametrize(
    ("ended", "errors", "kind", "message"),
    [
        ({"rank-0": 2, "rank-1": 2}, {"rank-0": "wrong", "rank-1": "wrong"}, UserError, r"^wrong$"),
        ({"rank-0": 1, "rank-1": -15}, {"rank-0": "not finite"}, StageError, r"^not finite$"),
        ({"rank-0": 3, "rank-1": 1}, {"rank-0": "lost", "rank-1": "no memory"}, StageError, r"^no memory$"),
        ({"rank-0": 3, "rank-1": -9}, {"rank-0": "lost"}, StageError, r"rank-1 was ended by signal 9, as .* memory"),
        ({"rank-0": -15, "rank-1": -11}, {}, StageError, r"rank-1 was ended by signal 11; run again .*rank-1\.log$"),
        ({"rank-0": 3, "rank-1": -15}, {"rank-0": "lost"}, StageError, r"^lost$"),
        ({"rank-1": 7}, {}, StageError, r"rank-1 ended unexpectedly \(status 7\)"),
        ({}, {}, StageError, r"without a word; run again"),
    ],
)
def test_the_error_is_that_of_the_process_that_failed_first(tmp_path, ended, errors, kind, message):
    for name, text in errors.items():
        (tmp_path / f"{name}.error").write_text(text)
    error = failure(tmp_path, ended, tmp_path / "logs")
    assert type(error) is kind
    assert re.search(message, str(error))
    assert "\n" not in str(error)
