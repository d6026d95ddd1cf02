"""What optimum-habana's trainer reads: the batches of the engine ``local``, in shapes that never change.

The trainer's own sampler and collator would draw order and masks from random states that depend on the number of
processes and have to be replayed after a kill. Here both are functions of (seed, step) as in the other engines, so
a training that goes on starts at the next step's first sequence, with nothing to skip.

An HPU compiles a graph for each shape. So labels and masks have the whole block's length (``-100``: nothing is
predicted), and there is an attention mask either in every batch or in none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset

from tasks.pretraining.batches import MASKING, Batch, Collator, PackedSplit, ShuffledOrder
from tasks.pretraining.settings import PretrainingSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

IGNORED = -100
"""Label of the tokens that are not predicted, in torch and transformers."""

Row = dict[str, torch.Tensor]
"""One sequence: ``input_ids``, ``labels``, ``token_type_ids`` where there are pairs, ``attention_mask`` where blocks
are padded; int64 [sequence_length] each."""


class TrainingRows(IterableDataset):
    """The sequences of the training in order, from a step on, without end.

    Every process reads all of them and keeps its share, as accelerate's shards of an iterable data set do.
    """

    def __init__(self, settings: PretrainingSettings, split: PackedSplit, collator: Collator, first_step: int):
        self._settings, self._split, self._collator = settings, split, collator
        self._first_step = first_step

    def __iter__(self) -> Iterator[Row]:
        """Rows of the steps ``first_step``, ``first_step + 1``, ..., ``batch_size`` each."""
        asked, step = self._settings, self._first_step
        order = ShuffledOrder(len(self._split), asked.seed)
        while True:
            chosen = order.at(step * asked.batch_size, asked.batch_size)
            batch = self._collator(self._split, chosen, np.random.default_rng([asked.seed, MASKING, step]))
            yield from rows_of(batch, self._split.has_padding)
            step += 1


def rows_of(batch: Batch, padded: bool) -> list[Row]:
    """The batch's sequences, with an attention mask in each if ``padded``, whether this batch needs it or not."""
    labels = torch.full_like(batch.input_ids, IGNORED)
    labels.view(-1)[batch.positions] = batch.targets
    columns = {"input_ids": batch.input_ids, "labels": labels}
    if batch.token_type_ids is not None:
        columns["token_type_ids"] = batch.token_type_ids
    if padded:
        mask = torch.ones_like(labels) if batch.attention_mask is None else batch.attention_mask
        columns["attention_mask"] = mask
    return [{name: column[row] for name, column in columns.items()} for row in range(len(labels))]


def stack(rows: list[Row]) -> dict[str, torch.Tensor]:
    """Rows as one batch: the trainer's collator."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def loss_over_whole_batch(
    outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | None = None
) -> torch.Tensor:
    """The trainer's loss: a sum, divided by the predicted tokens of all devices and parts of the batch.

    Without it every part is divided by its own tokens, and GaudiTrainer 1.21 divides by the number of parts only
    where ``pipelining_fwd_bwd`` is on, so that with accumulation the gradient would be as many times too large.

    Args:
        outputs: the model's, with ``logits`` [rows, sequence_length, vocabulary].
        labels: [rows, sequence_length].
        num_items_in_batch: how many are predicted in the whole batch; None in a validation: its own.
    """
    logits = outputs.logits.float().view(-1, outputs.logits.shape[-1])
    total = cross_entropy(logits, labels.view(-1), ignore_index=IGNORED, reduction="sum")
    count = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    return total / count.clamp(min=1)


def figures(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What a validation keeps of a batch's logits, which are too large to be gathered.

    Args:
        logits: [rows, sequence_length, vocabulary].
        labels: [rows, sequence_length].

    Returns:
        float [rows, 3]: sum of the losses in nats, tokens predicted rightly, tokens to be predicted.
    """
    wanted = labels != IGNORED
    losses = cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    right = (logits.argmax(-1) == labels) & wanted
    return torch.stack([losses.sum(-1), right.sum(-1).float(), wanted.sum(-1).float()], dim=-1)


def summed(prediction: Any) -> dict[str, float]:
    """``loss_a_token`` in nats and ``masked_accuracy`` from the gathered :func:`figures`."""
    table: NDArray[np.float64] = np.asarray(prediction.predictions, dtype=np.float64)
    loss, right, wanted = table.sum(axis=0)
    return {"loss_a_token": loss / max(1.0, wanted), "masked_accuracy": right / max(1.0, wanted)}
