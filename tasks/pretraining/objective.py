"""The loss: what is computed only where something is predicted, and the order of the sentences.

At 15 % masking the stock ``forward(labels=...)`` spends most of a small model's time on logits that are then
ignored. Here the model's own head sees the states at the masked positions only, and the encoder's last layer computes
no others. The result equals the full computation up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from tasks.pretraining.batches import Batch
from tasks.pretraining.encoder import Wanted, states_of, wanted_of
from tasks.pretraining.models import vocabulary_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOGITS_BYTES = 32 * 2**20 - 4096
"""A part's logits in fp32 take at most so much: tensors of 32 MiB and more are new memory from the system each time
(see ``tasks.freed_memory``), which costs more than computing with them."""


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
    return losses_at(model, batch, wanted_of(batch))


def losses_at(model: PreTrainedModel, batch: Batch, wanted: Wanted) -> Losses:
    """The same with what is wanted of the batch given; it may be widened, with a target of -100 for what was added."""
    states = states_of(model, batch, wanted)
    firsts = 0 if batch.order is None else len(batch.order)
    mlm, correct = _predictions(model, states[firsts:], batch.targets)
    if batch.order is None:
        return Losses(mlm, None, None, correct)
    body = model.base_model
    logits = model.sop_classifier(body.pooler_activation(body.pooler(states[:firsts]))).float()
    order = cross_entropy(logits, batch.order, reduction="sum")
    return Losses(mlm, order, (logits.argmax(-1) == batch.order).sum(), correct)


def _predictions(
    model: PreTrainedModel, states: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sum of the tokens' losses, and outside training how many are predicted rightly; on the CPU part by part."""
    head = vocabulary_head(model)
    rows = LOGITS_BYTES // (4 * model.config.vocab_size) if states.device.type == "cpu" else len(states)
    rows = max(1, rows)
    mlm, correct = torch.zeros((), device=states.device), torch.zeros((), dtype=torch.long, device=states.device)
    for part, aims in zip(states.split(rows), targets.split(rows), strict=True):
        predicted = head(part).float()
        mlm = mlm + cross_entropy(predicted, aims, reduction="sum")
        if not torch.is_grad_enabled():
            correct += (predicted.argmax(-1) == aims).sum()
    return mlm, None if torch.is_grad_enabled() else correct
