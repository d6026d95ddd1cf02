"""When a loss that rises is a training that has gone wrong."""

from __future__ import annotations

import statistics
from typing import Any

WINDOW = 100
"""Steps with whose median a step's loss is compared. The median stays one of the losses before the spike as long as
fewer than half of the steps are in it, hence the limit of ``spike_steps``."""

MAX_ROLL_BACKS = 3
"""In one training. What diverges more often does not for the sake of a few batches."""


class Diverged(Exception):
    """The loss is not finite any more, or spikes.

    Args:
        what: in a few words.
        first_step: steps that had been taken before the first bad one.
    """

    def __init__(self, what: str, first_step: int):
        super().__init__(what)
        self.first_step = first_step


class SpikeWatch:
    """Looks at the loss of every step.

    A spike is ``steps`` losses in a row of which each is by more than ``nats`` above the median of the :data:`WINDOW`
    losses before it. There is none in the first :data:`WINDOW` steps, in which the loss may do what it likes, and one
    hard batch is none.

    Args:
        nats: the margin; None: there are no spikes.
        steps: how many in a row.
    """

    def __init__(self, nats: float | None, steps: int):
        self._nats, self._steps = nats, steps
        self.recent: list[float] = []
        """The last losses, oldest first."""
        self.above = 0
        """How many of the last losses in a row are above the margin."""

    def sees_spike(self, loss: float) -> bool:
        """Whether this loss, of the next step, makes a spike complete."""
        if self._nats is None:
            return False
        full = len(self.recent) == WINDOW
        high = full and loss > statistics.median(self.recent) + self._nats
        self.above = self.above + 1 if high else 0
        self.recent = [*self.recent[-(WINDOW - 1) :], loss]
        return self.above >= self._steps

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold of it."""
        return {"recent": self.recent, "above": self.above}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.recent, self.above = state["recent"], state["above"]
