from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from tasks.pretraining import objective
from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.models import build_model, vocabulary_head
from tasks.pretraining.objective import losses
from tasks.pretraining.settings import MaskingSettings


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("architecture", "objective", "shape"),
    [
        ("bert", "mlm", {}),
        ("albert", "mlm", {}),
        ("albert", "mlm+sop", {}),
        ("albert", "mlm+sop", {"layers": 5, "layer_groups": 3}),
        ("bert", "mlm", {"layers": 1}),
    ],
)
def test_equals_the_full_computation(settings, tokenizer, pairs_folder, architecture, objective, shape, attention):
    shape = settings(architecture).model.model_copy(update=shape)
    model = build_model(shape, tokenizer, objective, seed=0, attention=attention).eval()
    rows = PackedSplit(pairs_folder, "train")
    collator = Collator(tokenizer, MaskingSettings(), sentence_order=objective == "mlm+sop")
    batch = collator(rows, np.arange(16), np.random.default_rng(0))
    labels = torch.full((16 * 16,), -100)
    labels[batch.positions] = batch.targets
    stock = {"labels": labels.reshape(16, 16)}
    if batch.order is not None:
        stock["sentence_order_label"] = batch.order
    full = model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids, **stock
    ).loss
    full.backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()

    result = losses(model, batch)
    ours = result.mlm / len(batch.targets)
    if batch.order is not None:
        assert 0 <= int(result.order_correct) <= 16
        ours = ours + result.order / 16
    ours.backward()
    assert ours.item() == pytest.approx(full.item(), rel=1e-6)
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(weight.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_the_segments_reach_the_model_whatever_the_tokenizer_returns(settings, tokenizer, pairs_folder):
    """transformers 5 leaves token_type_ids out of what a tokenizer returns, unless the tokenizer's file names them."""
    silent = copy.copy(tokenizer)
    silent.model_input_names = ["input_ids", "attention_mask"]
    assert "token_type_ids" not in silent("w1", "w2")
    model = build_model(settings("albert").model, silent, "mlm+sop", seed=0).eval()
    collator = Collator(silent, MaskingSettings(), sentence_order=True)
    batch = collator(PackedSplit(pairs_folder, "train"), np.arange(16), np.random.default_rng(0))
    assert batch.token_type_ids.unique().tolist() == [0, 1]
    with torch.no_grad():
        given, left_out = losses(model, batch), losses(model, replace(batch, token_type_ids=None))
    assert abs(float(given.order - left_out.order)) > 1e-4
    assert abs(float(given.mlm - left_out.mlm)) > 1e-3


@pytest.mark.parametrize("training", [True, False])
def test_logits_computed_in_parts_give_the_same_sums(settings, tokenizer, pairs_folder, training, monkeypatch):
    model = build_model(settings("albert").model, tokenizer, "mlm+sop", seed=0).eval()
    collator = Collator(tokenizer, MaskingSettings(), sentence_order=True)
    batch = collator(PackedSplit(pairs_folder, "train"), np.arange(16), np.random.default_rng(0))
    head = vocabulary_head(model)
    parts = []
    head.register_forward_hook(lambda module, inputs, output: parts.append(len(output)))
    with torch.set_grad_enabled(training):
        whole = losses(model, batch)
        monkeypatch.setattr(objective, "LOGITS_BYTES", 4 * model.config.vocab_size * 5)
        divided = losses(model, batch)
    assert parts[0] == len(batch.targets) > 10
    assert sum(parts[1:]) == parts[0]
    assert max(parts[1:]) == 5
    assert divided.mlm.item() == pytest.approx(whole.mlm.item(), rel=1e-6)
    assert (whole.correct is None and divided.correct is None) if training else divided.correct == whole.correct
