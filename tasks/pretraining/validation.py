"""The validation loss on a fixed masking, and what a model knows that has learnt only how frequent tokens are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tasks.pretraining.batches import Batch, Collator, PackedSplit
from tasks.pretraining.objective import losses
from tasks.pretraining.precision import Hardware

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

VALIDATION_SEED = 20_210_501
"""Fixed, so that masking and swaps are the same at every validation and for every training seed."""

PLATEAU_MARGIN = 0.1
"""Nats by which the validation loss must be below the unigram entropy for a model to have left the plateau.
An ALBERT of 256 x 4 that had learnt no context sat at 6.89 against 6.94 nats after 1,167 steps, so 0.05 is not
enough; and a loss over 10,000 tokens whose surprisals spread by about 2.5 nats has a sampling error of 0.025.
A model that uses context soon falls by whole nats."""


@dataclass(frozen=True)
class Validation:
    """Result of a validation."""

    loss: float
    """MLM loss in nats a masked token."""
    masked_accuracy: float
    """Share of the masked tokens that the model's likeliest token is."""
    sop_accuracy: float | None
    """Share of sentence orders that were recognised; None without SOP."""


ROWS = 16
"""Sequences in a batch of the validation. Fixed, since masks are drawn batch by batch: with the training's batch size
here, recipes that differ in it would be validated on different masks."""


def validation_batches(split: PackedSplit, collator: Collator, blocks: int) -> list[Batch]:
    """Up to ``blocks`` sequences, spread evenly over the split; always the same ones with the same masks."""
    generator = np.random.default_rng(VALIDATION_SEED)
    chosen = np.linspace(0, len(split) - 1, min(blocks, len(split))).round().astype(np.int64)
    return [collator(split, chosen[start : start + ROWS], generator) for start in range(0, len(chosen), ROWS)]


@torch.no_grad()
def validate(model: PreTrainedModel, batches: list[Batch], hardware: Hardware) -> Validation:
    """The model's losses on the batches, without dropout. Leaves the model in training mode."""
    model.eval()
    mlm, recognised, ordered, masked, rows = 0.0, 0, 0, 0, 0
    for batch in batches:
        with hardware.autocast():
            result = losses(model, batch.to(hardware.device))
        mlm += float(result.mlm)
        assert result.correct is not None
        recognised += int(result.correct)
        masked += len(batch.targets)
        if result.order_correct is not None:
            ordered += int(result.order_correct)
            rows += len(batch.input_ids)
    model.train()
    return Validation(mlm / max(1, masked), recognised / max(1, masked), ordered / rows if rows else None)


def perplexity(loss: float) -> float:
    """Of a loss in nats a masked token: among how many equally likely tokens the model would be as unsure."""
    return math.inf if loss > 700 else math.exp(loss)  # above, the exponential has no double


def unigram_entropy(train: PackedSplit, batches: list[Batch], is_special: NDArray[np.bool_]) -> float:
    """Loss of the model that predicts every masked token by its frequency in the training split.

    Args:
        train: where frequencies are counted, with one added to each. All of it is read once.
        batches: whose targets are predicted: those of the validation, so that the two losses compare.
        is_special: [vocabulary] tokens that are never targets and do not count.

    Returns:
        Cross-entropy in nats a masked token.
    """
    counts = np.zeros(len(is_special), dtype=np.int64)
    for chunk in train.chunks():
        for start in range(0, len(chunk), 8_192):  # bincount widens what it gets to 64 bits
            counts += np.bincount(chunk[start : start + 8_192].reshape(-1), minlength=len(is_special))
    smoothed: NDArray[Any] = np.where(is_special, 0, counts + 1)
    targets = np.concatenate([batch.targets.numpy() for batch in batches])
    return float(np.log(smoothed.sum()) - np.log(smoothed[targets]).mean()) if len(targets) else 0.0
