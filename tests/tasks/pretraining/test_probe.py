"""The probe and the training around it; what the evaluation's function does is in tests/eval/test_probe.py."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from tasks.contract import SCRATCH, no_progress
from tasks.pretraining.probe import ProbeCall
from tasks.pretraining.stage import run
from tasks.pretraining.updates import NotFinite, Update

MEASURED = {"seconds", "tokens_per_second", "peak_memory_bytes"}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def inputs(tokenizer_folder, pack_folder):
    return {"tokenizer": tokenizer_folder, "pack": pack_folder}


@pytest.fixture
def calls(monkeypatch) -> list[Path]:
    """The calls of the function that a probe calls. They score 0.1, 0.2, ..."""
    made: list[Path] = []

    def score(checkpoint: Path, *, items: int) -> float:
        made.append(checkpoint)
        return len(made) / 10

    module = ModuleType("some_evaluation")
    module.score = score  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


def on_call(monkeypatch: pytest.MonkeyPatch, do: Callable[[int, Path], None]) -> None:
    """Does something in every call, which it gets the number of (from 1)."""
    module = sys.modules["some_evaluation"]
    score, number = module.score, iter(range(1, 100))

    def doing(checkpoint: Path, **arguments: Any) -> float:
        do(next(number), checkpoint)
        return score(checkpoint, **arguments)

    monkeypatch.setattr(module, "score", doing)


@pytest.fixture
def probed(settings):
    """Builds PretrainSettings with a probe."""

    def build(every: int = 5, items: int = 1000, **changes: Any):
        asked = settings(probe={"task": "ner", "every": every, "train_items": items}, log_every=4, **changes)
        call = ProbeCall(function="some_evaluation:score", arguments={"items": items}, metric="entity F1")
        return asked.model_copy(update={"probe_call": call})

    return build


def log_of(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "logs/training.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in MEASURED} for line in lines]


def scores_of(folder: Path) -> dict[int, float]:
    return {line["step"]: line["probe_score"] for line in log_of(folder) if "probe_score" in line}


def weights_of(folder: Path) -> bytes:
    return (folder / "checkpoint/model.safetensors").read_bytes()


def test_the_weights_are_the_same_bits_as_without(settings, probed, calls, inputs, tmp_path, monkeypatch):
    before = random.getstate(), np.random.get_state()[1].tolist()
    seen: list[dict[str, torch.Tensor]] = []

    def disturb(number: int, checkpoint: Path) -> None:
        assert checkpoint == tmp_path / "probed" / SCRATCH / "probe"
        assert len(AutoTokenizer.from_pretrained(checkpoint)) == 45
        AutoModelForMaskedLM.from_pretrained(checkpoint).eval()
        seen.append(load_file(checkpoint / "model.safetensors"))
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)

    on_call(monkeypatch, disturb)
    notes: list[str] = []
    plain = run(settings(log_every=4, validate_every=12), inputs, tmp_path / "plain", no_progress)
    metrics = run(probed(validate_every=12), inputs, tmp_path / "probed", lambda *_, note="", **__: notes.append(note))
    assert weights_of(tmp_path / "probed") == weights_of(tmp_path / "plain")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert scores_of(tmp_path / "probed") == {5: 0.1, 10: 0.2, 12: 0.3}
    lines = log_of(tmp_path / "probed")
    assert [line["step"] for line in lines] == [4, 5, 8, 10, 12]
    assert [line["step"] for line in lines if "masked_accuracy" in line] == [5, 10, 12]
    assert lines[-1]["validation_loss"] == log_of(tmp_path / "plain")[-1]["validation_loss"]
    assert metrics["probe"] == {
        "task": "ner",
        "train_items": 1000,
        "epochs": 3,
        "metric": "entity F1",
        "score": 0.3,
        "best_score": 0.3,
        "best_step": 12,
        "failures": 0,
    }
    assert plain["probe"] is None
    assert notes[5] == "probe on ner"
    assert ", probe 10.0 %, " in notes[6]
    assert not (tmp_path / "probed" / SCRATCH / "probe").exists()
    # each time the weights of that step
    assert not torch.equal(seen[0]["bert.embeddings.word_embeddings.weight"], next(iter(seen[1].values())))
    last = load_file(tmp_path / "probed/checkpoint/model.safetensors")
    assert all(torch.equal(last[name], value) for name, value in seen[2].items())


def test_killed_in_a_probe_and_continued_loses_and_doubles_nothing(probed, calls, inputs, tmp_path, monkeypatch):
    whole = run(probed(checkpoint_every=8), inputs, tmp_path / "whole", no_progress)
    calls.clear()

    def interrupt(number: int, checkpoint: Path) -> None:
        if number == 2:
            calls.clear()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        on_call(patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(probed(checkpoint_every=8), inputs, tmp_path / "killed", no_progress)
    assert scores_of(tmp_path / "killed") == {5: 0.1}
    calls.append(tmp_path)  # as many as before the interruption
    again = run(probed(checkpoint_every=8), inputs, tmp_path / "killed", no_progress)
    assert log_of(tmp_path / "killed") == log_of(tmp_path / "whole")
    assert again["probe"] == whole["probe"]
    assert weights_of(tmp_path / "killed") == weights_of(tmp_path / "whole")
    # once more after the end: the account is in the checkpoint
    assert run(probed(checkpoint_every=8), inputs, tmp_path / "killed", no_progress)["probe"] == whole["probe"]
    assert len(calls) == 3


def test_going_back_probes_again(probed, calls, inputs, tmp_path, monkeypatch):
    take, number = Update.__call__, iter(range(100))

    def ruined(update, *arguments):
        if next(number) == 8:
            raise NotFinite("loss is nan")
        return take(update, *arguments)

    monkeypatch.setattr(Update, "__call__", ruined)
    asked = probed(every=3, on_divergence="roll-back", checkpoint_every=4)
    metrics = run(asked, inputs, tmp_path, no_progress)
    assert metrics["roll_backs"] == 1
    assert scores_of(tmp_path) == {3: 0.1, 6: 0.3, 9: 0.4, 12: 0.5}


def test_one_that_fails_is_a_warning_and_counted(probed, calls, inputs, tmp_path, monkeypatch, caplog):
    def fail(number: int, checkpoint: Path) -> None:
        if number < 3:
            raise MemoryError("too little\nof it")

    on_call(monkeypatch, fail)
    metrics = run(probed(), inputs, tmp_path, no_progress)
    assert metrics["steps"] == 12
    assert scores_of(tmp_path) == {12: 0.1}
    assert [line["step"] for line in log_of(tmp_path) if "validation_loss" in line] == [5, 10, 12]
    account = metrics["probe"]
    assert (account["failures"], account["score"], account["best_step"]) == (2, 0.1, 12)
    warnings = [text for _, level, text in caplog.record_tuples if level > 20]
    assert warnings == [
        f"step {step}: the probe on ner failed, the training goes on: MemoryError: too little" for step in (5, 10)
    ]
    assert not (tmp_path / SCRATCH / "probe").exists()


def test_scores_of_another_probe_are_dropped_and_those_of_a_former_one_stay(
    probed, settings, calls, inputs, tmp_path, caplog
):
    def interrupt(done: float, *_: Any, **__: Any) -> None:
        if done == 9:
            raise KeyboardInterrupt

    for folder in ("another", "none"):
        with pytest.raises(KeyboardInterrupt):
            run(probed(checkpoint_every=8), inputs, tmp_path / folder, interrupt)
    calls.clear()
    metrics = run(probed(items=7, checkpoint_every=8), inputs, tmp_path / "another", no_progress)
    assert scores_of(tmp_path / "another") == {10: 0.1, 12: 0.2}
    assert [line["step"] for line in log_of(tmp_path / "another")] == [4, 5, 8, 10, 12]
    assert (metrics["probe"]["train_items"], metrics["probe"]["best_score"]) == (7, 0.2)
    assert "the settings of the probe have changed: scores up to step 8 are dropped" in caplog.text

    metrics = run(settings(log_every=4), inputs, tmp_path / "none", no_progress)
    assert list(scores_of(tmp_path / "none")) == [5]
    assert (metrics["probe"]["train_items"], metrics["probe"]["best_step"]) == (1000, 5)
    assert weights_of(tmp_path / "none") == weights_of(tmp_path / "another")
