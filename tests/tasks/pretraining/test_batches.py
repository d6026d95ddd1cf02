from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.contract import UserError
from tasks.pretraining.batches import Collator, PackedSplit, ShuffledOrder
from tasks.pretraining.settings import MaskingSettings


def stored(folder, split):
    rows = PackedSplit(folder, split)
    return rows, rows.rows(np.arange(len(rows)))[0]


def test_rows_come_from_all_shards(pack_folder):
    rows, everything = stored(pack_folder, "train")
    assert (len(rows), rows.sequence_length, rows.has_pairs) == (300, 16, False)
    assert np.array_equal(np.concatenate(list(rows.chunks())), everything)
    some = np.array([299, 0, 129, 130, 0])
    assert np.array_equal(rows.rows(some)[0], everything[some])
    assert not next(rows.chunks()).flags.owndata  # a view into the file, not a copy


def test_no_sequences(tmp_path):
    with pytest.raises(UserError, match="no sequences in split validation"):
        PackedSplit(tmp_path, "validation")


def test_every_epoch_shows_every_sequence_once():
    order = ShuffledOrder(10, seed=3)
    samples = order.at(0, 30).reshape(3, 10)
    assert all(sorted(epoch) == list(range(10)) for epoch in samples)
    assert not np.array_equal(samples[0], samples[1])
    assert np.array_equal(ShuffledOrder(10, seed=3).at(17, 9), samples.reshape(-1)[17:26])
    assert not np.array_equal(ShuffledOrder(10, seed=4).at(0, 30), samples.reshape(-1))


def test_masking_rates(pack_folder, tokenizer):
    rows, everything = stored(pack_folder, "train")
    collator = Collator(tokenizer, MaskingSettings(), sentence_order=False)
    draws = 20
    chosen = masked = kept = ordinary = 0
    for seed in range(draws):
        batch = collator(rows, np.arange(300), np.random.default_rng(seed))
        assert batch.attention_mask is None
        assert batch.token_type_ids is None
        before, after = everything.reshape(-1), batch.input_ids.numpy().reshape(-1)
        positions = batch.positions.numpy()
        assert np.array_equal(before[positions], batch.targets.numpy())
        assert (before[positions] > 4).all()
        untouched = np.setdiff1d(np.arange(before.size), positions)
        assert np.array_equal(before[untouched], after[untouched])
        assert not np.isin(after[positions], [0, 1, 2, 3]).any()
        chosen += len(positions)
        masked += int((after[positions] == 4).sum())
        kept += int((after[positions] == before[positions]).sum())
        ordinary += int((before > 4).sum())
    assert chosen / ordinary == pytest.approx(0.15, abs=0.005)
    assert masked / chosen == pytest.approx(0.8, abs=0.015)
    assert kept / chosen == pytest.approx(0.1 + 0.1 / 40, abs=0.01)  # one in 40 random tokens is the right one


def test_masking_follows_the_generator(pack_folder, tokenizer):
    rows, _ = stored(pack_folder, "train")
    collator = Collator(tokenizer, MaskingSettings(), sentence_order=False)
    one, same, other = (collator(rows, np.arange(8), np.random.default_rng([0, step])) for step in (1, 1, 2))
    assert torch.equal(one.input_ids, same.input_ids)
    assert not torch.equal(one.input_ids, other.input_ids)


def test_sentences_are_swapped(pairs_folder, tokenizer):
    rows = PackedSplit(pairs_folder, "train")
    everything, boundaries, lengths = rows.rows(np.arange(200))
    unmasked = MaskingSettings(rate=0.15, mask=0.0, random=0.0)
    batch = Collator(tokenizer, unmasked, sentence_order=True)(rows, np.arange(200), np.random.default_rng(0))
    assert 60 < int(batch.order.sum()) < 140
    for row in range(200):
        ids, middle, end = everything[row].tolist(), boundaries[row], lengths[row]
        first, second = ids[1 : middle - 1], ids[middle : end - 1]
        if batch.order[row]:
            first, second = second, first
        padding = [0] * (16 - end)
        assert batch.input_ids[row].tolist() == [2, *first, 3, *second, 3, *padding]
        types = [0] * (len(first) + 2) + [1] * (len(second) + 1) + padding
        assert batch.token_type_ids[row].tolist() == types
        assert batch.attention_mask[row].tolist() == [1] * end + padding


def test_parts_of_a_batch_are_the_batch(pairs_folder, tokenizer):
    rows = PackedSplit(pairs_folder, "train")
    batch = Collator(tokenizer, MaskingSettings(), sentence_order=True)(rows, np.arange(8), np.random.default_rng(0))
    parts = batch.split(4)
    for name in ("input_ids", "attention_mask", "token_type_ids", "targets", "order"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))
    for part in parts:
        assert part.input_ids.shape == (2, 16)
        assert (part.positions < 32).all()
    found = torch.cat([part.input_ids.reshape(-1)[part.positions] for part in parts])
    assert torch.equal(found, batch.input_ids.reshape(-1)[batch.positions])


def test_padding_of_single_documents_is_not_attended_to(tmp_path, tokenizer, shard_writer):
    ids = np.full((2, 16), tokenizer.pad_token_id, dtype=np.uint16)
    ids[:, 0], ids[0, 1:15], ids[0, 15], ids[1, 1:5], ids[1, 5] = 2, 7, 3, 8, 3
    shard_writer(tmp_path / "data" / "train-00000-of-00001.arrow", ids, length=np.array([16, 6], dtype=np.uint16))
    batch = Collator(tokenizer, MaskingSettings(), sentence_order=False)(
        PackedSplit(tmp_path, "train"), np.arange(2), np.random.default_rng(0)
    )
    assert batch.attention_mask is not None
    assert batch.attention_mask.sum(1).tolist() == [16, 6]
    assert batch.token_type_ids is None
