"""The log of a training, ``logs/training.jsonl``: a line of JSON every few steps, and for every validation."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tasks.contract import LOGS
from tasks.pretraining.precision import Hardware
from tasks.pretraining.standing import Standing
from tasks.pretraining.utilisation import peak_memory
from tasks.pretraining.validation import perplexity

logger = logging.getLogger(__name__)


class TrainingLog:
    """Writes the log, and passes its lines on.

    Args:
        folder: the stage's work folder.
        tokens_per_step: of all devices.
        full_speed: tokens a second with all of the hardware's peak in the model; None if that is not known.
        hardware: whose memory is told.
        report: gets every line.
    """

    def __init__(
        self,
        folder: Path,
        tokens_per_step: int,
        full_speed: float | None,
        hardware: Hardware,
        report: Callable[[Mapping[str, Any]], None],
    ):
        self._path = folder / LOGS / "training.jsonl"
        self._tokens_per_step, self._full_speed = tokens_per_step, full_speed
        self._hardware, self._report = hardware, report

    def truncate(self, step: int) -> None:
        """Drop the lines after ``step``: a checkpoint is gone on from."""
        truncate_log(self._path, step)

    def forget(self, key: str) -> None:
        """Drop this key from all lines."""
        lines = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
        building = self._path.with_suffix(".building")
        kept = ({name: value for name, value in line.items() if name != key} for line in lines)
        building.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.replace(building, self._path)

    def write(
        self, standing: Standing, rate: float, has_order: bool, validated: bool, probe_score: float | None = None
    ) -> None:
        """Write the line of this step.

        Args:
            standing: of the training; what it holds of the steps without a line is used up.
            rate: the step's learning rate.
            has_order: there is SOP.
            validated: the model was validated after this step.
            probe_score: of a probe after this step.
        """
        mlm = standing.unlogged_mlm / standing.unlogged_steps
        order = standing.unlogged_order / standing.unlogged_steps if has_order else None
        speed = standing.unlogged_steps * self._tokens_per_step / standing.unlogged_seconds
        standing.train_loss = mlm + (order or 0.0)
        standing.unlogged_steps, standing.unlogged_seconds = 0, 0.0
        standing.unlogged_mlm, standing.unlogged_order = 0.0, 0.0
        line: dict[str, Any] = {
            "step": standing.step,
            "loss": standing.train_loss,
            "mlm_loss": mlm,
            "sop_loss": order,
            "learning_rate": rate,
            "tokens": standing.step * self._tokens_per_step,
            "seconds": round(standing.seconds, 3),
            "tokens_per_second": round(speed, 1),
            "flop_utilisation": None if self._full_speed is None else round(speed / self._full_speed, 4),
            "peak_memory_bytes": peak_memory(self._hardware),
        }
        if validated:
            line["validation_loss"] = standing.validation_loss
            line["perplexity"] = perplexity(standing.validation_loss)
            line["masked_accuracy"] = standing.masked_accuracy
            line["validation_sop_accuracy"] = standing.validation_sop_accuracy
            logger.info("step %d: loss %.3f, validation %.3f", standing.step, mlm, standing.validation_loss)
        if probe_score is not None:
            line["probe_score"] = probe_score
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._report(line)


def truncate_log(log: Path, step: int) -> None:
    """Drops the lines after ``step``, which a killed run wrote beyond its checkpoint, and a half-written one."""
    log.parent.mkdir(parents=True, exist_ok=True)
    kept = []
    # not splitlines: a text in a line may hold one of the separators that only Unicode knows
    for line in log.read_text(encoding="utf-8").split("\n") if log.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    building = log.with_suffix(".building")
    building.write_text("".join(kept), encoding="utf-8")
    os.replace(building, log)
