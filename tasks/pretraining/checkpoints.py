"""Checkpoints of an unfinished training, for going on after a kill as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tasks.contract import SCRATCH
from tasks.parts import Parts

KEPT = 2
"""Checkpoints that are kept: the newest, and one more in case its disk block is damaged."""

PREFIX = "step-"


def step_of(name: str) -> int:
    """The step after which a checkpoint was taken, by its name."""
    return int(name.removeprefix(PREFIX))


class Checkpoints:
    """The checkpoints ``scratch/checkpoints/step-000123/state.pt`` of one training.

    Args:
        folder: the stage's work folder.
    """

    def __init__(self, folder: Path):
        self._folder = folder / SCRATCH / "checkpoints"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._parts = Parts(folder)

    def names(self) -> list[str]:
        """Names of the finished checkpoints, oldest first."""
        return sorted((name for name in self._parts.finished() if name.startswith(PREFIX)), key=step_of)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Writes a checkpoint, durably and at once or not at all; deletes those before the last two."""
        name = f"{PREFIX}{step:06d}"
        building = self._folder / f"building-{name}"
        building.mkdir(exist_ok=True)
        torch.save(state, building / "state.pt")
        self._parts.finish(name, building, self._folder / name, step=step)
        for old in self.names()[:-KEPT]:
            self._parts.remove(old)

    def newest(self) -> dict[str, Any] | None:
        """State of the newest checkpoint, on the CPU; None if there is none."""
        names = self.names()
        if not names:
            return None
        state: dict[str, Any] = torch.load(
            self._folder / names[-1] / "state.pt", map_location="cpu", weights_only=True
        )
        return state
