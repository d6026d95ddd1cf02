"""A peer's own computing: micro-batches of its shards, and their gradients, finite and at fp32's scale."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from tasks.pretraining.batches import MASKING, Batch, Collator, Split
from tasks.pretraining.collaborative.records import StepEntry
from tasks.pretraining.collaborative.sharding import Sharding
from tasks.pretraining.objective import losses
from tasks.pretraining.precision import Hardware

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tasks.pretraining.collaborative.averaging import Round

logger = logging.getLogger(__name__)

AHEAD = 1024
"""Sequences that are told to come next, so that they can be fetched meanwhile."""

FIRST_SCALE, LARGEST_SCALE, SCALE_GROWTH = 2.0**16, 2.0**24, 1.001
"""Of the loss in fp16, whose gradients would else fall below its smallest number. It is halved when a gradient
overflows and grows by this factor otherwise, so that it doubles in about 700 micro-batches."""


@dataclass(frozen=True)
class Computed:
    """What a micro-batch gave."""

    rows: int
    mlm: float
    """Sum of the MLM losses in nats."""
    masked: int
    order: float | None
    """Sum of the SOP losses in nats; None without SOP."""
    finite: bool
    """Whether the gradients can be used."""

    @property
    def loss(self) -> float:
        """Mean loss in nats: MLM a masked token, SOP a sequence."""
        return self.mlm / max(1, self.masked) + (self.order or 0.0) / self.rows


@dataclass
class Gradients:
    """Computes gradients of micro-batches.

    Args:
        train: the training split.
        collator: makes its batches.
        sharding: says which sequences come next.
        hardware: where, and how precisely.
        rows: sequences of a micro-batch.
    """

    train: Split
    collator: Collator
    sharding: Sharding
    hardware: Hardware
    rows: int
    discarded: int = 0
    """Sequences whose gradients were not finite."""
    _batches: int = 0
    _scale: float = field(init=False)

    def __post_init__(self) -> None:
        self._scale = FIRST_SCALE if self.hardware.precision == "fp16" else 1.0

    def next_batch(self) -> Batch:
        """The next micro-batch, with masks of this peer's own."""
        chosen = self.sharding.next(self.rows)
        self._batches += 1
        peer = int(hashlib.sha256(self.sharding.peer.encode()).hexdigest()[:16], 16)
        generator = np.random.default_rng([self.sharding.seed, MASKING, peer, self._batches])
        batch = self.collator(self.train, chosen, generator)
        self.train.expect(self.sharding.coming(AHEAD))
        return batch

    def trial_batch(self, rows: int) -> Batch:
        """So many sequences to measure with; they are not taken."""
        return self.collator(self.train, np.arange(rows) % len(self.train), np.random.default_rng(0))

    def compute(self, model: PreTrainedModel, batch: Batch) -> Computed:
        """Puts the gradients of the batch's mean loss into the weights' ``.grad``."""
        with self.hardware.autocast():
            result = losses(model, batch.to(self.hardware.device))
        rows, masked = len(batch.input_ids), len(batch.targets)
        loss = result.mlm / max(1, masked)
        if result.order is not None:
            loss = loss + result.order / rows
        torch.autograd.backward(loss * self._scale)
        finite = self._unscale(model)
        if not finite:
            self.discarded += rows
            logger.warning("a gradient is not finite: %d sequences are left out", rows)
        order = None if result.order is None else float(result.order.detach())
        return Computed(rows, float(result.mlm.detach()), masked, order, finite)

    def _unscale(self, model: PreTrainedModel) -> bool:
        """Brings gradients to fp32's scale; whether they are finite."""
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        finite = bool(torch.isfinite(torch.stack(torch._foreach_norm(gradients))).all())
        if self.hardware.precision == "fp16":
            torch._foreach_div_(gradients, self._scale)
            self._scale = min(LARGEST_SCALE, self._scale * SCALE_GROWTH) if finite else max(1.0, self._scale / 2)
        return finite


@dataclass
class Sums:
    """What a peer has computed towards the present global step."""

    mlm: float = 0.0
    masked: int = 0
    order: float | None = None
    computing: float = 0.0

    def add(self, computed: Computed, seconds: float) -> None:
        """One more micro-batch, which took so long."""
        self.mlm += computed.mlm
        self.masked += computed.masked
        self.computing += seconds
        if computed.order is not None:
            self.order = (self.order or 0.0) + computed.order

    def entry(self, passed: Round) -> StepEntry:
        """What is told of the global step that ended with these sums."""
        return StepEntry(
            step=passed.step,
            samples=passed.samples,
            mlm=round(self.mlm, 4),
            masked=self.masked,
            order=None if self.order is None else round(self.order, 4),
            outcome=passed.outcome,
            group=passed.group,
            aggregated=round(passed.aggregated, 4),
            matching=round(passed.matching, 4),
            reducing=round(passed.reducing, 4),
            computing=round(self.computing, 4),
        )
