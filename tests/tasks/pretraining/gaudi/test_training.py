"""optimum-habana's own trainer on the CPU: what it computes is what the engine ``local`` computes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tasks.contract import no_progress
from tasks.pretraining.local import pretrain
from tasks.pretraining.settings import PretrainSettings

DRIVER = Path(__file__).with_name("training_driver.py")
COMMON: dict[str, Any] = {
    "steps": 12,
    "batch_size": 8,
    "precision": "fp32",
    "device": "cpu",
    "learning_rate": 5e-2,
    "epsilon": 0.02,  # so large that the size of a gradient counts, which Adam would divide away
    "warmup_steps": 2,
    "schedule_steps": 20,
    "clip_norm": None,
    "log_every": 1,
    "validate_every": 5,
    "checkpoint_every": 4,
}
GAUDI = {"engine": "gaudi", "gaudi": {"devices": 1}}
CASES: dict[str, dict[str, Any]] = {
    "whole": {},
    "clipped": {"clip_norm": 0.1},
    "in-parts": {"accumulation": 2},
    "in-two-runs": {},
    "ruined": {"learning_rate": 1e30},
    "bf16": {"precision": "bf16"},
}


def settings_of(dropout: float, **changes: Any) -> PretrainSettings:
    shape = {"hidden_size": 32, "layers": 2, "heads": 2, "intermediate_size": 64, "max_positions": 16}
    model = {"architecture": "bert", "hidden_dropout": dropout, **shape}
    return PretrainSettings.model_validate({"model": model, "pretraining": COMMON | changes})


@pytest.fixture(scope="module")
def trained(tokenizer_folder, pack_folder, gaudi_environment, tmp_path_factory) -> Path:
    """The folder of a driver that has trained all cases; ``local`` is the same by the engine of that name."""
    folder = tmp_path_factory.mktemp("gaudi")
    shutil.copytree(tokenizer_folder, folder / "tokenizer")
    shutil.copytree(pack_folder, folder / "pack")
    for name, changes in CASES.items():
        for dropout, suffix in ((0.0, ""), (0.1, "-dropout")):
            if suffix and name != "whole":
                continue
            (folder / f"{name}{suffix}").mkdir()
            asked = settings_of(0.1 if name == "in-two-runs" else dropout, **GAUDI, **changes)
            (folder / f"{name}{suffix}/settings.json").write_text(asked.model_dump_json())
    done = subprocess.run(
        [sys.executable, "-P", str(DRIVER), str(folder)], env=gaudi_environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, case in (("local", "whole"), ("local-clipped", "clipped")):
        (folder / name).mkdir()
        asked = settings_of(0.0, **CASES[case])
        metrics = pretrain(asked, folder / "tokenizer", folder / "pack", folder / name, no_progress)
        (folder / name / "result.json").write_text(json.dumps(metrics))
    return folder


def log_of(work: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (work / "logs/training.jsonl").read_text().splitlines()]


def test_the_trainers_class_is_optimum_habanas_own(trained):
    told = json.loads((trained / "class.json").read_text())
    assert told["is"]
    assert told["module"] == "optimum.habana.transformers.trainer"
    assert told["files"] == [told["habana"]]
    assert told["functions"] > 20


@pytest.mark.parametrize(("local", "case"), [("local", "whole"), ("local-clipped", "clipped")])
def test_its_losses_are_those_of_the_engine_local(trained, local, case):
    ours, its = log_of(trained / local), log_of(trained / case / "work")
    assert [line["step"] for line in its] == list(range(1, 13))
    for key in ("loss", "validation_loss", "perplexity", "masked_accuracy"):
        assert [line[key] for line in its if key in line] == pytest.approx(
            [line[key] for line in ours if key in line], rel=2e-4
        ), key
    assert [line["learning_rate"] for line in its] == pytest.approx([line["learning_rate"] for line in ours])
    assert [set(line) for line in its] == [set(line) for line in ours]


def test_its_metrics_are_those_of_the_engine_local(trained):
    ours, its = (json.loads((trained / name / "result.json").read_text()) for name in ("local", "whole"))
    assert set(its) == set(ours)
    measured = {"resolved", "seconds_training", "tokens_per_second", "peak_memory_bytes"}
    for key in set(ours) - measured:
        expected = pytest.approx(ours[key], rel=2e-4) if isinstance(ours[key], float) else ours[key]
        assert its[key] == expected, key
    assert its["resolved"]["transformers"].startswith("4.55.")
    assert its["tokens_per_second"] > 0


def test_clipping_and_the_size_of_gradients_show(trained):
    """Else the comparisons above and below would not see them."""
    whole, clipped = (log_of(trained / name / "work") for name in ("whole", "clipped"))
    assert abs(whole[-1]["loss"] - clipped[-1]["loss"]) > 0.01


def test_a_batch_in_parts_gives_the_same_training(trained):
    whole, parts = (log_of(trained / name / "work") for name in ("whole", "in-parts"))
    assert [line["loss"] for line in parts] == pytest.approx([line["loss"] for line in whole], abs=2e-4)


def test_a_training_that_was_broken_off_ends_with_the_same_bits(trained):
    whole, resumed = (trained / name / "work" for name in ("whole-dropout", "in-two-runs"))
    weights, others = (load_file(work / "checkpoint/model.safetensors") for work in (whole, resumed))
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    kept = ("step", "loss", "validation_loss", "learning_rate")
    logs = [[{key: line.get(key) for key in kept} for line in log_of(work)] for work in (whole, resumed)]
    assert logs[0] == logs[1]


def test_a_loss_that_is_not_finite_ends_it_in_one_line(trained):
    told = (trained / "ruined/error").read_text()
    assert "pretraining: loss is nan at step" in told
    assert "lower pretraining.learning_rate (1e+30)" in told


def test_bf16_is_autocast(trained):
    whole, half = (log_of(trained / name / "work") for name in ("whole", "bf16"))
    assert [line["loss"] for line in half] == pytest.approx([line["loss"] for line in whole], abs=0.1)
    assert [line["loss"] for line in half] != [line["loss"] for line in whole]
