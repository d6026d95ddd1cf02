"""The trainer's rows are the batches of the engine ``local``, and its sums are the validation's."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tasks.pretraining.batches import MASKING, Collator, PackedSplit, ShuffledOrder
from tasks.pretraining.gaudi.data import IGNORED, TrainingRows, figures, loss_over_whole_batch, rows_of, stack, summed
from tasks.pretraining.models import build_model
from tasks.pretraining.precision import Hardware
from tasks.pretraining.settings import MaskingSettings
from tasks.pretraining.validation import validate, validation_batches


@pytest.mark.parametrize("first_step", [0, 45])
def test_rows_are_those_of_the_engine_local_from_any_step_on(settings, tokenizer, pack_folder, first_step):
    asked, split = settings(seed=5).pretraining, PackedSplit(pack_folder, "train")
    collator = Collator(tokenizer, asked.masking, False)
    rows = list(islice(TrainingRows(asked, split, collator, first_step), 2 * asked.batch_size))
    for number in (0, 1):
        step = first_step + number
        chosen = ShuffledOrder(len(split), asked.seed).at(step * asked.batch_size, asked.batch_size)
        batch = collator(split, chosen, np.random.default_rng([asked.seed, MASKING, step]))
        made = stack(rows[number * asked.batch_size : (number + 1) * asked.batch_size])
        assert torch.equal(made["input_ids"], batch.input_ids)
        flat = made["labels"].view(-1)
        assert torch.equal(torch.nonzero(flat != IGNORED).view(-1), batch.positions)
        assert torch.equal(flat[batch.positions], batch.targets)


def test_every_batch_has_the_same_shapes_and_keys(tokenizer, pairs_folder):
    """Padded blocks have a mask in every batch, also in one that no padding is in."""
    split = PackedSplit(pairs_folder, "train")
    collator = Collator(tokenizer, MaskingSettings(), False)
    full = np.flatnonzero(split.rows(np.arange(len(split)))[2] == split.sequence_length)[:4]
    padded = np.flatnonzero(split.rows(np.arange(len(split)))[2] < split.sequence_length)[:4]
    shapes = []
    for chosen in (full, padded):
        batch = collator(split, chosen, np.random.default_rng(0))
        shapes.append({name: value.shape for name, value in stack(rows_of(batch, split.has_padding)).items()})
    assert shapes[0] == shapes[1]
    assert set(shapes[0]) == {"input_ids", "labels", "token_type_ids", "attention_mask"}


def test_figures_add_up_to_the_validation(settings, tokenizer, pack_folder):
    asked = settings()
    model = build_model(asked.model, tokenizer, "mlm", 3)
    batches = validation_batches(
        PackedSplit(pack_folder, "validation"), Collator(tokenizer, MaskingSettings(), False), 60
    )
    expected = validate(model, batches, Hardware(torch.device("cpu"), "fp32", ""))
    model.eval()
    tables = []
    for batch in batches:
        made = stack(rows_of(batch, False))
        with torch.no_grad():
            tables.append(figures(model(input_ids=made["input_ids"]).logits, made["labels"]))
    told = summed(SimpleNamespace(predictions=torch.cat(tables).numpy()))
    assert told["loss_a_token"] == pytest.approx(expected.loss, rel=1e-5)
    assert told["masked_accuracy"] == pytest.approx(expected.masked_accuracy)


def test_parts_of_a_batch_are_divided_by_the_whole_batchs_tokens():
    logits, labels = torch.randn(4, 6, 9), torch.randint(9, (4, 6))
    labels[0], labels[1, 1:] = IGNORED, IGNORED
    whole = loss_over_whole_batch(SimpleNamespace(logits=logits), labels)
    count = (labels != IGNORED).sum()
    parts = [
        loss_over_whole_batch(SimpleNamespace(logits=logits[some]), labels[some], count)
        for some in (slice(0, 2), slice(2, 4))
    ]
    assert float(sum(parts)) == pytest.approx(float(whole))
    nothing = loss_over_whole_batch(SimpleNamespace(logits=logits[:1]), labels[:1])
    assert float(nothing) == 0.0
