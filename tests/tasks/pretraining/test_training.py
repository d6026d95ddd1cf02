from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tasks.contract import StageError, no_progress
from tasks.parts import Parts
from tasks.pretraining.batches import ShuffledOrder
from tasks.pretraining.stage import run
from tasks.pretraining.updates import Update

MEASURED = {"seconds", "tokens_per_second", "peak_memory_bytes", "flop_utilisation"}
"""What differs from run to run."""

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
    return [{key: value for key, value in line.items() if key not in MEASURED} for line in lines]


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
    assert [line["step"] for line in log_of(whole) if "masked_accuracy" in line] == [6, 12]
    for name in (
        "validation_loss",
        "masked_accuracy",
        "validation_sop_accuracy",
        "unigram_entropy",
        "train_loss",
        "tokens",
    ):
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


def ruin_batches(monkeypatch: pytest.MonkeyPatch, bad: Collection[int], more: float) -> list[int]:
    """Adds ``more`` to the loss in nats of the batches with these numbers; NaN comes from the weights, which keep it.

    Returns:
        The numbers of the batches that were trained on.
    """
    seen: list[int] = []
    at, take = ShuffledOrder.at, Update.__call__

    def recorded(order, first, count):
        seen.append(first // count)
        return at(order, first, count)

    def ruined(update, *arguments):
        if seen[-1] not in bad:
            return take(update, *arguments)
        if math.isnan(more):
            torch.nn.init.constant_(next(update._model.parameters()), more)
        found = take(update, *arguments)
        return replace(found, mlm=found.mlm + more)

    monkeypatch.setattr(ShuffledOrder, "at", recorded)
    monkeypatch.setattr(Update, "__call__", ruined)
    return seen


class Interrupted(Exception):
    """Ends a training from its progress callback."""


def weights_of(folder: Path) -> bytes:
    return (folder / "checkpoint/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("bad", "trained_on"),
    [
        ({9}, [*range(10), *range(10, 14)]),  # back to step 8
        ({8}, [*range(9), *range(9, 17)]),  # no step from 8 was fine, so back to 4
        ({9, 10}, [*range(10), 10, *range(11, 15)]),  # twice to 8, since a step from it had been fine
    ],
)
def test_going_back_leaves_out_the_batches_since_the_last_good_checkpoint(
    bad, trained_on, settings, tokenizer_folder, pack_folder, tmp_path, monkeypatch
):
    inputs = {"tokenizer": tokenizer_folder, "pack": pack_folder}
    asked = settings(on_divergence="roll-back", checkpoint_every=4, log_every=1)
    seen = ruin_batches(monkeypatch, bad, math.nan)
    metrics = run(asked, inputs, tmp_path / "whole", no_progress)
    assert seen == trained_on
    assert metrics["roll_backs"] == len(bad)
    assert [line["step"] for line in log_of(tmp_path / "whole")] == list(range(1, 13))
    assert all(math.isfinite(line["loss"]) for line in log_of(tmp_path / "whole"))

    # interrupted after going back, and continued: the same bits
    def interrupt(done, total, **_):
        if len(seen) == len(trained_on) - 1:
            raise Interrupted

    seen.clear()
    with pytest.raises(Interrupted):
        run(asked, inputs, tmp_path / "again", interrupt)
    seen.clear()
    again = run(asked, inputs, tmp_path / "again", no_progress)
    assert seen == trained_on[-len(seen) :]
    assert len(seen) == 4
    assert again["roll_backs"] == metrics["roll_backs"]
    assert weights_of(tmp_path / "again") == weights_of(tmp_path / "whole")
    assert log_of(tmp_path / "again") == log_of(tmp_path / "whole")


def test_what_diverges_again_and_again_ends(settings, tokenizer_folder, pack_folder, tmp_path, monkeypatch):
    inputs = {"tokenizer": tokenizer_folder, "pack": pack_folder}
    seen = ruin_batches(monkeypatch, range(9, 99), math.nan)
    with pytest.raises(
        StageError, match=r"nan at step 9; the last good checkpoint is step-000008, and .* 3 times already; lower"
    ):
        run(settings(on_divergence="roll-back", checkpoint_every=4), inputs, tmp_path, no_progress)
    assert seen == list(range(13))


def test_a_spike_is_a_divergence(settings, tokenizer_folder, pack_folder, tmp_path, monkeypatch):
    inputs = {"tokenizer": tokenizer_folder, "pack": pack_folder}
    common = {"steps": 120, "checkpoint_every": 2, "spike_steps": 3}
    seen = ruin_batches(monkeypatch, {110, 111, 112}, 2.5)

    def interrupt(done, total, **_):
        if done == 105:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(settings(**common), inputs, tmp_path / "stop", interrupt)
    # what was before the interruption counts, and no checkpoint is from the middle of the spike
    with pytest.raises(
        StageError, match=r"loss is .*, a spike that began at step 111, at step 113; .* is step-000108; lower"
    ):
        run(settings(**common), inputs, tmp_path / "stop", no_progress)
    seen.clear()
    assert (
        run(settings(on_divergence="roll-back", **common), inputs, tmp_path / "back", no_progress)["roll_backs"] == 1
    )
    assert seen == [*range(113), *range(113, 113 + 120 - 108)]
    for harmless in ({"spike_nats": None, "steps": 120}, {**common, "spike_steps": 4}, {**common, "spike_nats": 3.0}):
        assert run(settings(**harmless), inputs, tmp_path / str(harmless), no_progress)["roll_backs"] == 0


def test_the_state_in_words_and_figures(settings, tokenizer_folder, pairs_folder, pack_folder, tmp_path):
    notes: list[str] = []
    inputs = {"tokenizer": tokenizer_folder, "pack": pairs_folder}
    asked = settings(
        "albert", objective="mlm+sop", steps=3, validate_every=2, log_every=1, validation_blocks=8, peak_tflops=0.01
    )
    metrics = run(asked, inputs, tmp_path / "pairs", lambda *_, note="", **__: notes.append(note))
    assert [re.sub(r"\d+([.,]\d+)*", "#", note) for note in notes[1:]] == [
        "loss # (MLM #, SOP #), # tokens/s",
        "loss # (MLM #, SOP #), validation #, # tokens/s",
        "loss # (MLM #, SOP #), validation #, # tokens/s",
    ]
    lines = [json.loads(line) for line in (tmp_path / "pairs/logs/training.jsonl").read_text().splitlines()]
    assert ["perplexity" in line for line in lines] == [False, True, True]
    assert lines[-1]["perplexity"] == metrics["perplexity"] == math.exp(metrics["validation_loss"])
    for line in [*lines, metrics]:
        assert line["peak_memory_bytes"] > 50e6
        full_speed = line["tokens_per_second"] / line["flop_utilisation"]
        # 6 for each weight of a product: the projection, keys and values of two layers, the rest of the first, and at
        # 15 % of the positions that of the second and the head; and attention
        layers = 2 * 2 * 32**2 + 1.15 * (2 * 32**2 + 2 * 32 * 64)
        per_token = 6 * (16 * 32 + layers + 0.15 * (32 * 16 + 16 * 45)) + 12 * 1.15 * 32 * 16
        assert full_speed * per_token == pytest.approx(1e10, rel=0.01)
    notes.clear()
    inputs["pack"] = pack_folder
    metrics = run(settings(steps=1), inputs, tmp_path / "blocks", lambda *_, note="", **__: notes.append(note))
    assert re.fullmatch(r"loss [\d.]+, validation [\d.]+, [\d,]+ tokens/s", notes[-1])
    assert metrics["flop_utilisation"] is None


def test_half_written_log_line_is_dropped(settings, tokenizer_folder, pack_folder, tmp_path):
    inputs = {"tokenizer": tokenizer_folder, "pack": pack_folder}
    asked = settings(steps=2, log_every=1)
    run(asked, inputs, tmp_path, no_progress)
    before = log_of(tmp_path)
    with (tmp_path / "logs/training.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    run(asked, inputs, tmp_path, no_progress)
    assert log_of(tmp_path) == before
