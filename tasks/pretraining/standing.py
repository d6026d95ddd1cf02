"""How far a training is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass
class Standing:
    """How far a training is; part of every checkpoint."""

    step: int = 0
    skipped: int = 0
    """Batches that were left out by going back to a checkpoint; the next one is number step + skipped."""
    roll_backs: int = 0
    """How often that was."""
    returned_to: int | None = None
    """The checkpoint of the last time."""
    seconds: float = 0.0
    """Spent in steps, over all runs of this training; validation and checkpoints do not count."""
    unlogged_steps: int = 0
    """Steps since the last line of the log; the next line gives the means over them."""
    unlogged_mlm: float = 0.0
    unlogged_order: float = 0.0
    unlogged_seconds: float = 0.0
    train_loss: float = math.nan
    """The last logged loss."""
    validation_loss: float = math.nan
    masked_accuracy: float = math.nan
    validation_sop_accuracy: float | None = None
    probe: dict[str, Any] | None = None
    """What is probed (task, metric, train_items, epochs; digest, of all that the scores depend on), and how it went:
    score (of the last probe that did not fail), best_score, best_step, failures. None without a probe."""
