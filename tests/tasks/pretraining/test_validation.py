from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.models import build_model
from tasks.pretraining.precision import choose_hardware
from tasks.pretraining.settings import MaskingSettings
from tasks.pretraining.validation import perplexity, unigram_entropy, validate, validation_batches


def test_masking_is_fixed_and_spread_over_the_split(pack_folder, tokenizer):
    held_out = PackedSplit(pack_folder, "validation")
    collator = Collator(tokenizer, MaskingSettings(), sentence_order=False)
    batches, again = (validation_batches(held_out, collator, 20) for _ in range(2))
    assert [len(batch.input_ids) for batch in batches] == [16, 4]
    assert all(torch.equal(one.input_ids, two.input_ids) for one, two in zip(batches, again, strict=True))
    first = batches[0].input_ids.clone()
    first.reshape(-1)[batches[0].positions] = batches[0].targets
    assert np.array_equal(first[0].numpy(), held_out.rows(np.array([0]))[0][0])
    assert sum(len(batch.input_ids) for batch in validation_batches(held_out, collator, 512)) == 60


def test_unigram_entropy_by_hand(pack_folder, tokenizer):
    train, held_out = PackedSplit(pack_folder, "train"), PackedSplit(pack_folder, "validation")
    collator = Collator(tokenizer, MaskingSettings(), sentence_order=False)
    batches = validation_batches(held_out, collator, 512)
    words = [int(token) for token in np.concatenate(list(train.chunks())).reshape(-1) if token > 4]
    targets = [int(token) for batch in batches for token in batch.targets]
    expected = -np.mean([np.log((words.count(token) + 1) / (len(words) + 40)) for token in targets])
    assert unigram_entropy(train, batches, collator.is_special) == pytest.approx(expected, rel=1e-9)


def test_validation_is_the_mean_over_masked_tokens(settings, pairs_folder, tokenizer):
    model = build_model(settings("albert").model, tokenizer, "mlm+sop", seed=0).train()
    hardware = choose_hardware(settings("albert").pretraining)
    held_out = PackedSplit(pairs_folder, "validation")
    collator = Collator(tokenizer, MaskingSettings(), sentence_order=True)
    batches = validation_batches(held_out, collator, 40)
    whole = validate(model, batches, hardware)
    parts = validate(model, [part for batch in batches for part in batch.split(2)], hardware)
    assert model.training
    assert whole.loss == pytest.approx(parts.loss, rel=1e-6)
    assert whole.sop_accuracy == parts.sop_accuracy
    assert whole.masked_accuracy == parts.masked_accuracy
    right = total = 0
    for batch in batches:
        with torch.no_grad():
            logits = model.eval()(batch.input_ids, batch.attention_mask, batch.token_type_ids).prediction_logits
        predicted = logits.argmax(-1).reshape(-1)[batch.positions]
        right, total = right + int((predicted == batch.targets).sum()), total + len(batch.targets)
    assert 0 < whole.masked_accuracy == right / total
    assert whole.loss == pytest.approx(np.log(45), abs=0.2)  # a fresh model knows nothing about 45 entries


def test_perplexity():
    assert perplexity(np.log(45)) == pytest.approx(45)
    assert perplexity(1e4) == float("inf")
    assert np.isnan(perplexity(float("nan")))
