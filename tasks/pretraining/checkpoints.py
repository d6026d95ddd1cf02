"""Checkpoints of an unfinished training, for going on after a kill as if nothing had happened."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import torch

from tasks.contract import SCRATCH, StageError
from tasks.parts import Parts

logger = logging.getLogger(__name__)

KEPT = 2
"""Checkpoints that are kept: the newest, and one more in case its disk block is damaged."""

PREFIX = "step-"


def step_of(name: str) -> int:
    """The step after which a checkpoint was taken, by its name."""
    return int(name.removeprefix(PREFIX))


def name_of(step: int) -> str:
    """The name of the checkpoint after ``step``."""
    return f"{PREFIX}{step:06d}"


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
        name = name_of(step)
        building = self._folder / f"building-{name}"
        building.mkdir(exist_ok=True)
        with open(building / "state.pt", "wb") as file:  # by its path torch would hide why a write failed
            torch.save(state, file)
        self._parts.finish(name, building, self._folder / name, step=step)
        for old in self.names()[:-KEPT]:
            self._parts.remove(old)

    def remove_after(self, step: int) -> None:
        """Deletes the checkpoints after ``step``."""
        for name in reversed(self.names()):
            if step_of(name) > step:
                self._parts.remove(name)

    def file(self, step: int) -> Path:
        """The file of the checkpoint after ``step``."""
        return self._folder / name_of(step) / "state.pt"

    def newest(self) -> dict[str, Any] | None:
        """State of the newest checkpoint that can be read, on the CPU; None if there is none.

        Raises:
            StageError: there are some and none can be read. They are kept: a lack of memory looks the same.
        """
        names = self.names()
        for name in reversed(names):
            try:
                state: dict[str, Any] = torch.load(
                    self._folder / name / "state.pt", map_location="cpu", weights_only=True
                )
            except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
                logger.warning("checkpoint %s cannot be read (%s)", name, str(error).splitlines()[0])
            else:
                return state
        if names:
            raise StageError(
                f"none of the checkpoints in {self._folder} can be read; free memory and try again, or begin anew "
                "with --force pretrain"
            )
        return None
