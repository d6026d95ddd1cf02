"""The loss: vocabulary logits at the masked positions only, and the order of the sentences.

At 15 % masking the stock ``forward(labels=...)`` spends most of a small model's time on logits that are then
ignored. Here the encoder runs, the hidden states at the masked positions are gathered, and the model's own
head sees only those. The result equals the full computation up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from tasks.pretraining.batches import Batch
from tasks.pretraining.models import vocabulary_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Losses:
    """Sums over a batch, so that parts of a batch can be added up before dividing."""

    mlm: torch.Tensor
    """Sum of the negative log-likelihoods at the masked positions, in nats."""
    order: torch.Tensor | None
    """Sum of the negative log-likelihoods of the sentences' order, in nats; None without SOP."""
    order_correct: torch.Tensor | None
    """How many orders were recognised; None without SOP."""
    correct: torch.Tensor | None = None
    """At how many of the masked positions the likeliest token is right; None in training, which would pay for it."""


def losses(model: PreTrainedModel, batch: Batch) -> Losses:
    """Runs the model on a batch. Logits are turned to fp32 before the logarithm, whatever autocast does."""
    hidden = model.base_model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids
    )
    states = hidden[0]
    masked = states.reshape(-1, states.shape[-1])[batch.positions]
    predicted = vocabulary_head(model)(masked).float()
    mlm = cross_entropy(predicted, batch.targets, reduction="sum")
    correct = None if torch.is_grad_enabled() else (predicted.argmax(-1) == batch.targets).sum()
    if batch.order is None:
        return Losses(mlm, None, None, correct)
    logits = model.sop_classifier(hidden[1]).float()
    order = cross_entropy(logits, batch.order, reduction="sum")
    return Losses(mlm, order, (logits.argmax(-1) == batch.order).sum(), correct)
