from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tasks.contract import StageError, no_progress
from tasks.parts import Parts
from tasks.pretraining.stage import run

TRAIN_UNTIL_KILLED = """
import json, os, signal, sys
from pathlib import Path
import torch
from tasks.pretraining.settings import PretrainSettings
from tasks.pretraining.stage import run

torch.set_num_threads(1)
settings, tokenizer, pack, folder, last = sys.argv[1:]

def progress(done, total, *, unit="", note=""):
    if done == int(last):
        os.kill(os.getpid(), signal.SIGKILL)

inputs = {"tokenizer": Path(tokenizer), "pack": Path(pack)}
run(PretrainSettings.model_validate_json(settings), inputs, Path(folder), progress)
"""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def log_of(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "logs/training.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_killed_and_continued_is_bit_equal(settings, tokenizer_folder, pairs_folder, tmp_path):
    asked = settings(
        "albert",
        objective="mlm+sop",
        optimizer="lamb",
        log_every=2,
        validate_every=6,
        checkpoint_every=5,
        warmup_steps=2,
    )
    inputs = {"tokenizer": tokenizer_folder, "pack": pairs_folder}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    metrics = run(asked, inputs, whole, no_progress)

    arguments = [asked.model_dump_json(), str(tokenizer_folder), str(pairs_folder), str(killed), "9"]
    process = subprocess.run([sys.executable, "-P", "-c", TRAIN_UNTIL_KILLED, *arguments], check=False)
    assert process.returncode == -signal.SIGKILL
    assert list(Parts(killed).finished()) == ["step-000005"]
    assert log_of(killed)[-1]["step"] == 8
    seen = []
    again = run(asked, inputs, killed, lambda done, total, **_: seen.append(done))
    assert seen == [5, 6, 7, 8, 9, 10, 11, 12]
    for name in ("model.safetensors", "config.json"):
        assert (killed / "checkpoint" / name).read_bytes() == (whole / "checkpoint" / name).read_bytes()
    assert log_of(killed) == log_of(whole)
    assert [line["step"] for line in log_of(whole)] == [2, 4, 6, 8, 10, 12]
    for name in ("validation_loss", "validation_sop_accuracy", "unigram_entropy", "train_loss", "tokens"):
        assert again[name] == metrics[name]

    # once more after the end: nothing is left to do, and the last two checkpoints are there
    seen.clear()
    assert (
        run(asked, inputs, killed, lambda done, total, **_: seen.append(done))["train_loss"] == metrics["train_loss"]
    )
    assert seen == [12]
    assert list(Parts(killed).finished()) == ["step-000010", "step-000012"]

    # a newest checkpoint that its size does not betray as damaged: the one before it serves
    damaged = Parts(killed).path("step-000012") / "state.pt"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    seen.clear()
    run(asked, inputs, killed, lambda done, total, **_: seen.append(done))
    assert seen == [10, 11, 12]
    for name in Parts(killed).finished():
        damaged = Parts(killed).path(name) / "state.pt"
        damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(StageError, match=r"none of the checkpoints .* can be read"):
        run(asked, inputs, killed, no_progress)
    assert len(Parts(killed).finished()) == 2
    for name in ("model.safetensors", "config.json"):
        assert (killed / "checkpoint" / name).read_bytes() == (whole / "checkpoint" / name).read_bytes()


def test_accumulation_changes_only_the_rounding(settings, tokenizer_folder, pack_folder, tmp_path):
    inputs = {"tokenizer": tokenizer_folder, "pack": pack_folder}
    results = []
    for parts in (1, 4):
        asked = settings(accumulation=parts, log_every=1)
        asked = asked.model_copy(update={"model": asked.model.model_copy(update={"hidden_dropout": 0.0})})
        run(asked, inputs, tmp_path / str(parts), no_progress)
        results.append([line["loss"] for line in log_of(tmp_path / str(parts))])
    assert results[0] == pytest.approx(results[1], rel=1e-4)
    assert results[0] != results[1]


def test_a_loss_that_is_not_finite_stops_the_training(settings, tokenizer_folder, pack_folder, tmp_path):
    inputs = {"tokenizer": tokenizer_folder, "pack": pack_folder}
    # the first step of the warmup has learning rate 0; the second ruins the weights, which the third notices
    asked = settings(learning_rate=1e30, warmup_steps=5, checkpoint_every=1, clip_norm=None)
    with pytest.raises(
        StageError, match=r"is (nan|inf) at step 3; the last good checkpoint is step-000001; "
    ) as error:
        run(asked, inputs, tmp_path / "warm", no_progress)
    with pytest.raises(StageError, match=r"is (nan|inf) at step 2; there is no good checkpoint yet; "):
        run(settings(learning_rate=1e30, checkpoint_every=1), inputs, tmp_path / "cold", no_progress)
    assert "\n" not in str(error.value)
    assert "lower pretraining.learning_rate (1e+30)" in str(error.value)


def test_half_written_log_line_is_dropped(settings, tokenizer_folder, pack_folder, tmp_path):
    inputs = {"tokenizer": tokenizer_folder, "pack": pack_folder}
    asked = settings(steps=2, log_every=1)
    run(asked, inputs, tmp_path, no_progress)
    before = log_of(tmp_path)
    with (tmp_path / "logs/training.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    run(asked, inputs, tmp_path, no_progress)
    assert log_of(tmp_path) == before
