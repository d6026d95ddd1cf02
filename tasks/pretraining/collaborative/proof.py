"""Before a swarm starts: how fast is this peer, and does training work on it at all?

A swarm whose gradients are zeros, or whose updates reach no weight, looks like one that waits for its batch to fill,
for days (hivemind issue 447). So a founder first trains alone, on a copy of the model and with the very optimiser
of the run, and shows a lower loss and changed weights.
"""

from __future__ import annotations

import copy
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tasks.contract import StageError
from tasks.pretraining.collaborative.gradients import Gradients

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tasks.pretraining.batches import Batch
    from tasks.pretraining.collaborative.optimizer import PeerOptimizer

logger = logging.getLogger(__name__)

STEPS = 8
"""Steps on one batch in which the loss has to fall."""

WORTH = 1.03
"""A larger micro-batch has to be so much faster: it needs more memory, and others wait longer for its end."""

MEASURED = 3
"""Micro-batches that a peer computes for its speed alone, after one that warms up; others use the machine too, and the
fastest says what it can do."""


@dataclass(frozen=True)
class Proof:
    """What was found."""

    rate: float
    """Sequences a second."""
    losses: tuple[float, float] | None
    """Loss on one batch before and after, in nats; None if only the speed was measured."""


def measure(model: PreTrainedModel, gradients: Gradients) -> Proof:
    """The speed of this peer. Leaves the weights as they are."""
    batch, seconds = gradients.next_batch(), []
    for _ in range(1 + MEASURED):
        started = time.perf_counter()
        gradients.compute(model, batch)
        seconds.append(time.perf_counter() - started)
    model.zero_grad(set_to_none=True)
    return Proof(gradients.rows / statistics.median(seconds[1:]), None)


def choose_rows(model: PreTrainedModel, gradients: Gradients, seconds: float, most: int) -> int:
    """Sequences of a micro-batch with which this machine is fastest.

    Tries 1, 2, 4, ... as long as that makes it faster, the memory is enough, and a micro-batch does not take too long:
    others wait for the last one of a global step. Leaves the weights as they are.

    Args:
        model: on its device.
        gradients: computes them.
        seconds: that a micro-batch may take.
        most: sequences of a micro-batch at most.
    """
    best, fastest, rows = 1, 0.0, 1
    while rows <= most:
        try:
            batch = gradients.trial_batch(rows)
            gradients.compute(model, batch)  # the first one of a shape takes longer
            took = min(_seconds(model, gradients, batch) for _ in range(MEASURED))
        except (torch.OutOfMemoryError, MemoryError):
            logger.info("no memory for micro-batches of %d sequences", rows)
            break
        finally:
            model.zero_grad(set_to_none=True)
        if took > seconds and rows > 1:
            break
        if rows / took > WORTH * fastest:
            best, fastest = rows, rows / took
        elif rows > 4 * best:
            break
        rows *= 2
    gradients.discarded = 0  # what was only measured was not left out
    logger.info("micro-batches of %d sequences: %.1f sequences/s", best, fastest)
    return best


def _seconds(model: PreTrainedModel, gradients: Gradients, batch: Batch) -> float:
    started = time.perf_counter()
    gradients.compute(model, batch)
    return time.perf_counter() - started


def prove(
    model: PreTrainedModel,
    gradients: Gradients,
    make_optimizer: Callable[[PreTrainedModel], PeerOptimizer],
    advice: str,
) -> Proof:
    """The speed of this peer, and that it learns.

    Args:
        model: is copied; its weights stay as they are.
        gradients: computes them.
        make_optimizer: the run's optimiser, for a swarm of this peer alone, with steps of one micro-batch.
        advice: what the user should change if it does not learn.

    Raises:
        StageError: the loss did not fall, or no weight changed.
    """
    trial = copy.deepcopy(model)
    batch = gradients.next_batch()
    before = [weight.detach().clone() for weight in trial.parameters()]
    optimizer = make_optimizer(trial)
    losses, seconds = [], []
    try:
        for _ in range(STEPS + 1):
            started = time.perf_counter()
            computed = gradients.compute(trial, batch)
            seconds.append(time.perf_counter() - started)
            losses.append(computed.loss)
            if computed.finite:
                optimizer.step(batch_size=computed.rows)
            optimizer.zero_grad()
    finally:
        optimizer.shutdown()
    changed = any(not was.equal(weight) for was, weight in zip(before, trial.parameters(), strict=True))
    logger.info("alone, the loss on one batch went from %.3f to %.3f in %d steps", losses[0], losses[-1], STEPS)
    if not changed or not losses[-1] < losses[0]:
        weights = "" if changed else " and no weight changed"
        raise StageError(
            f"this peer does not learn: alone on one batch its loss went from {losses[0]:.3f} to {losses[-1]:.3f} in "
            f"{STEPS} steps{weights}; {advice}"
        )
    return Proof(gradients.rows / statistics.median(seconds[1:]), (losses[0], losses[-1]))
