from __future__ import annotations

import json
import math

import pytest
import transformers

from tasks.contract import UserError, no_progress
from tasks.pretraining.stage import STAGE, run


@pytest.mark.parametrize(
    ("architecture", "objective", "family"),
    [
        ("bert", "mlm", transformers.AutoModelForMaskedLM),
        ("albert", "mlm", transformers.AutoModelForMaskedLM),
        ("albert", "mlm+sop", transformers.AutoModelForPreTraining),
        ("albert", "mlm+sop", transformers.AutoModelForMaskedLM),
    ],
)
def test_checkpoint_loads_with_stock_classes(
    settings, tokenizer_folder, pairs_folder, tmp_path, architecture, objective, family
):
    asked = settings(architecture, objective=objective, steps=2, precision="bf16")
    notes = []
    metrics = run(
        asked,
        {"tokenizer": tokenizer_folder, "pack": pairs_folder},
        tmp_path,
        lambda done, total, *, unit="", note="": notes.append((done, total, unit, note)),
    )
    model, report = family.from_pretrained(tmp_path / "checkpoint", output_loading_info=True)
    assert not report["missing_keys"]
    sentence_order = ("sop_classifier", "albert.pooler")
    unexpected = [key for key in report["unexpected_keys"] if not key.startswith(sentence_order)]
    assert unexpected == []
    assert model.config.vocab_size == 45
    names = {path.name for path in (tmp_path / "checkpoint").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert not names & {"record.json", "generation_config.json"}
    copied = transformers.AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    assert (
        copied("w1 w2")["input_ids"] == transformers.AutoTokenizer.from_pretrained(tokenizer_folder)("w1 w2").input_ids
    )

    assert (metrics["steps"], metrics["samples"], metrics["tokens"]) == (2, 16, 256)
    assert metrics["parameters"] == sum(weight.numel() for weight in model.parameters()) + (
        0 if family is transformers.AutoModelForPreTraining or objective == "mlm" else 32 * 32 + 32 + 2 * 32 + 2
    )
    assert metrics["peak_memory_bytes"] > 50_000_000
    assert metrics["left_plateau"] is False
    assert metrics["resolved"]["precision"] == "bf16"
    json.dumps(metrics, allow_nan=False)
    assert notes[-1][:3] == (2, 2, "steps")
    assert notes[-1][3].startswith("loss ")
    assert notes[-1][3].endswith("tokens/s")


def test_a_model_that_learns_context_leaves_the_plateau(settings, tokenizer_folder, pack_folder, tmp_path):
    asked = settings(steps=250, batch_size=32, learning_rate=1e-2, warmup_steps=20, validate_every=125)
    asked = asked.model_copy(update={"model": asked.model.model_copy(update={"hidden_dropout": 0.0})})
    metrics = run(asked, {"tokenizer": tokenizer_folder, "pack": pack_folder}, tmp_path, no_progress)
    assert metrics["unigram_entropy"] == pytest.approx(math.log(40), abs=0.1)
    assert metrics["validation_loss"] < 3.0
    assert metrics["left_plateau"] is True
    lines = [json.loads(line) for line in (tmp_path / "logs/training.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "validation_loss" in line] == [125, 250]
    assert lines[-1]["tokens"] == metrics["tokens"] == 250 * 32 * 16


def test_validation_does_not_depend_on_the_training_masking(settings, tokenizer_folder, pack_folder, tmp_path):
    inputs = {"tokenizer": tokenizer_folder, "pack": pack_folder}
    # at step 1 of a warmup the learning rate is 0, so both validate the same weights
    asked = {"steps": 1, "warmup_steps": 1, "schedule_steps": 2, "log_every": 1}
    plain = run(settings(**asked), inputs, tmp_path / "plain", no_progress)
    other = run(
        settings(**asked, masking={"rate": 0.4, "mask": 1.0, "random": 0.0}), inputs, tmp_path / "o", no_progress
    )
    assert other["validation_loss"] == plain["validation_loss"]
    assert other["unigram_entropy"] == plain["unigram_entropy"]
    assert other["train_loss"] != plain["train_loss"]


def test_settings_that_the_data_cannot_serve(settings, tokenizer_folder, pack_folder, tmp_path):
    inputs = {"tokenizer": tokenizer_folder, "pack": pack_folder}
    with pytest.raises(UserError, match=r"needs pairs of sentences; set packing.mode to sentence-pairs"):
        run(settings("albert", objective="mlm+sop"), inputs, tmp_path, no_progress)
    asked = settings()
    short = asked.model_copy(update={"model": asked.model.model_copy(update={"max_positions": 15})})
    with pytest.raises(UserError, match=r"max_positions: 15 is less than packing.sequence_length 16"):
        run(short, inputs, tmp_path, no_progress)
    nowhere = {"python": str(tmp_path / "none/bin/python")}
    with pytest.raises(UserError, match="gaudi cannot run here: no HPU found"):
        run(settings(engine="gaudi", device="auto", gaudi=nowhere), inputs, tmp_path, no_progress)
    assert not (tmp_path / "checkpoint").exists()


def test_the_stage_is_declared():
    assert (STAGE.name, STAGE.version, STAGE.run) == ("pretrain", 1, run)
