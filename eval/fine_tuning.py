"""Fine-tuning of one model on one task with one seed.

AdamW with linear warmup and decay; batches of items of about equal length, padded no further than needed; after
every epoch the validation split chooses. The test split is not seen here.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch.nn.functional import cross_entropy

from eval.encoding import IGNORED, NO_TOKEN, EncodedSplit
from eval.settings import FineTuningSettings
from tasks.contract import Progress
from tasks.pretraining.precision import Hardware

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Predictions = list[Any]
"""Label ids as the model gives them: one list a sentence, one id a word (NER), or one id a text."""

POOL_BATCHES = 50
"""Batches that are drawn at random together and then sorted by length: enough for tight batches, and still random."""

PADDING_MULTIPLE = 8
CLIP_NORM = 1.0
"""Highest norm of the gradient, as the usual fine-tuning scripts have it."""


@dataclass(frozen=True)
class Epoch:
    """One epoch: mean training loss, and validation loss (both nats a label) and score after it."""

    epoch: int
    training_loss: float
    validation_loss: float
    validation_score: float


@dataclass
class History:
    """All epochs that were trained, which of them was kept, and whether the loss stayed a number."""

    epochs: list[Epoch] = field(default_factory=list)
    best: Epoch | None = None
    diverged: bool = False

    def as_json(self) -> list[dict[str, float | None]]:
        """The epochs as JSON values; a loss that is not a number becomes None."""
        rows: list[dict[str, float]] = [asdict(epoch) for epoch in self.epochs]
        return [{key: value if math.isfinite(value) else None for key, value in row.items()} for row in rows]


@torch.random.fork_rng(devices=[])
def fine_tune(
    model: PreTrainedModel,
    training: EncodedSplit,
    validation: EncodedSplit,
    settings: FineTuningSettings,
    *,
    seed: int,
    hardware: Hardware,
    pad_id: int,
    score: Callable[[Predictions], float],
    progress: Progress,
) -> History:
    """Train ``model`` in place and leave the weights of the best epoch in it.

    Equal arguments give equal weights on one machine at a fixed number of threads (on the CPU), as long as no other
    thread of the process draws from torch's generator. Torch's random state on the CPU is left as it was.

    Args:
        model: from :func:`eval.classifiers.build_classifier`.
        training: the split that is learnt from.
        validation: the split that chooses the epoch.
        settings: fine-tuning settings.
        seed: of the order of the items and of the dropout.
        hardware: device and precision.
        pad_id: token id of the padding.
        score: score of validation predictions, from 0 to 1.
        progress: told after every step.
    """
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(_parameter_groups(model, settings.weight_decay), lr=0.0, fused=True)
    steps = settings.epochs * math.ceil(len(training) / settings.batch_size)
    history = History()
    best_weights: dict[str, torch.Tensor] = {}
    lowest_loss, waited, step = math.inf, 0, 0
    for number in range(1, settings.epochs + 1):
        model.train()
        total = labels_seen = 0.0
        for batch in _training_batches(training, settings.batch_size, f"{seed}/{number}"):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * schedule(step, steps, settings.warmup_fraction)
            logits, labels = _forward(model, training, batch, hardware, pad_id)
            count = max(int((labels != IGNORED).sum()), 1)
            loss = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum") / count
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item() * count
            labels_seen += count
            step += 1
            progress(step, steps, unit="steps", note=f"epoch {number}, loss {loss.item():.3f}")
        loss_value, predictions = predict(model, validation, settings.batch_size, hardware=hardware, pad_id=pad_id)
        epoch = Epoch(number, total / max(labels_seen, 1), loss_value, score(predictions))
        history.epochs.append(epoch)
        if not math.isfinite(epoch.training_loss) or not math.isfinite(epoch.validation_loss):
            history.diverged = True
            break
        if history.best is None or _better(epoch, history.best, by_loss=settings.patience is not None):
            history.best = epoch
            best_weights = copy.deepcopy(model.state_dict())
        if settings.patience is not None:
            # against the lowest loss of all, also where that fell by too little to count: as transformers'
            # EarlyStoppingCallback does, by which published runs were stopped
            waited = 0 if epoch.validation_loss < lowest_loss - settings.threshold else waited + 1
            lowest_loss = min(lowest_loss, epoch.validation_loss)
            if waited >= settings.patience:
                break
    if best_weights:
        model.load_state_dict(best_weights)
    return history


def schedule(step: int, steps: int, warmup_fraction: float) -> float:
    """Factor of the learning rate at a step (from 0): linear up to 1 in the warmup, then linearly down towards 0."""
    warmup = math.ceil(steps * warmup_fraction)
    return (step + 1) / warmup if step < warmup else (steps - step) / (steps - warmup)


def predict(
    model: PreTrainedModel, split: EncodedSplit, batch_size: int, *, hardware: Hardware, pad_id: int
) -> tuple[float, Predictions]:
    """Mean loss (nats a label) and label ids of every item, in the split's order.

    For NER one id a word; a word without a token has NO_TOKEN.
    """
    model.eval()
    total = count = 0.0
    predictions: Predictions = [None] * len(split)
    order = sorted(range(len(split)), key=lambda item: len(split.input_ids[item]))
    with torch.inference_mode():
        for start in range(0, len(order), 2 * batch_size):
            batch = order[start : start + 2 * batch_size]
            logits, labels = _forward(model, split, batch, hardware, pad_id)
            total += float(cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum"))
            count += int((labels != IGNORED).sum())
            chosen = logits.argmax(dim=-1).view(len(batch), -1).tolist()
            for item, row in zip(batch, chosen, strict=True):
                if not split.first_tokens:
                    predictions[item] = row[0]
                    continue
                first = split.first_tokens[item]
                predictions[item] = [NO_TOKEN if at == NO_TOKEN else row[at] for at in first]
    return total / max(count, 1), predictions


def _forward(
    model: PreTrainedModel, split: EncodedSplit, batch: list[int], hardware: Hardware, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 logits [n, number of labels] and label ids [n]; n counts tokens of the padded batch (NER) or texts."""
    length = max(len(split.input_ids[item]) for item in batch)
    length = min(-(-length // PADDING_MULTIPLE) * PADDING_MULTIPLE, model.config.max_position_embeddings)
    ids = numpy.full((len(batch), length), pad_id, dtype=numpy.int64)
    mask = numpy.zeros((len(batch), length), dtype=numpy.int64)
    tags = numpy.full((len(batch), length), IGNORED, dtype=numpy.int64)
    for row, item in enumerate(batch):
        tokens = split.input_ids[item]
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
        if split.first_tokens:
            tags[row, : len(tokens)] = split.labels[item]
    labels = tags.ravel() if split.first_tokens else numpy.array([split.labels[item] for item in batch])
    device = hardware.device
    with hardware.autocast():
        logits = model(
            input_ids=torch.from_numpy(ids).to(device), attention_mask=torch.from_numpy(mask).to(device)
        ).logits
    return logits.float().view(-1, logits.shape[-1]), torch.from_numpy(labels).to(device)


def _training_batches(split: EncodedSplit, batch_size: int, key: str) -> Iterator[list[int]]:
    """All items once, in batches of about equal length, in an order that only ``key`` decides."""
    generator = random.Random(key)
    order = list(range(len(split)))
    generator.shuffle(order)
    batches: list[list[int]] = []
    for start in range(0, len(order), POOL_BATCHES * batch_size):
        pool = sorted(
            order[start : start + POOL_BATCHES * batch_size], key=lambda item: (len(split.input_ids[item]), item)
        )
        batches += [pool[at : at + batch_size] for at in range(0, len(pool), batch_size)]
    generator.shuffle(batches)
    return iter(batches)


def _parameter_groups(model: PreTrainedModel, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices are decayed, biases and norms are not."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": weight_decay},
        {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
    ]


def _better(epoch: Epoch, best: Epoch, *, by_loss: bool) -> bool:
    if by_loss:
        return epoch.validation_loss < best.validation_loss
    return (epoch.validation_score, -epoch.validation_loss) > (best.validation_score, -best.validation_loss)
