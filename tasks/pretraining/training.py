"""The training loop: steps, log, validation, checkpoints; a killed training goes on where it was.

On a CPU in fp32, at a fixed number of threads, a training that was killed and continued ends with the same
bits as one that was not: weights, optimiser and random state come from the checkpoint, data and masking are
functions of the step.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tasks.contract import LOGS, Progress, StageError
from tasks.pretraining.batches import MASKING, Batch, Collator, PackedSplit, ShuffledOrder
from tasks.pretraining.checkpoints import Checkpoints, step_of
from tasks.pretraining.compilation import Compilation
from tasks.pretraining.optimizers import learning_rate_at
from tasks.pretraining.precision import Hardware
from tasks.pretraining.settings import PretrainingSettings
from tasks.pretraining.updates import NotFinite, StepLosses, Update
from tasks.pretraining.validation import validate

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


@dataclass
class Standing:
    """How far a training is; part of every checkpoint."""

    step: int = 0
    seconds: float = 0.0
    """Spent in steps, over all runs of this training; compiling, validation and checkpoints do not count."""
    unlogged_steps: int = 0
    """Steps since the last line of the log; the next line gives the means over them."""
    unlogged_mlm: float = 0.0
    unlogged_order: float = 0.0
    train_loss: float = math.nan
    """The last logged loss."""
    validation_loss: float = math.nan
    validation_sop_accuracy: float | None = None


class Training:
    """One training of one model.

    Args:
        model: on its device already; is trained in place.
        settings: how.
        hardware: where, and how precisely.
        train: the training split.
        collator: makes its batches.
        validation: the batches of every validation.
        folder: the stage's work folder.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: PretrainingSettings,
        hardware: Hardware,
        train: PackedSplit,
        collator: Collator,
        validation: list[Batch],
        folder: Path,
    ):
        self._model = model
        self._settings = settings
        self._hardware = hardware
        self._train = train
        self._collator = collator
        self._validation = validation
        self._order = ShuffledOrder(len(train), settings.seed)
        self.compilation = Compilation(model, settings, hardware, train.has_padding)
        self._update = Update(model, settings, hardware, self.compilation.losses)
        self._checkpoints = Checkpoints(folder)
        self._log = folder / LOGS / "training.jsonl"
        self._standing = Standing()

    def run(self, progress: Progress) -> Standing:
        """Trains to the last step of the settings, from the newest checkpoint if there is one.

        Raises:
            StageError: loss or gradient are not finite any more.
        """
        settings, standing = self._settings, self._standing
        torch.manual_seed(settings.seed)
        self._restore()
        truncate_log(self._log, standing.step)
        self._model.train()
        begun_at, seconds_before = standing.step, standing.seconds
        progress(standing.step, settings.steps, unit="steps")
        while standing.step < settings.steps:
            self.compilation.prepare(
                self._micro_batch, settings.steps - standing.step
            )  # the warm-up is no step's time
            started = time.perf_counter()
            rate = learning_rate_at(standing.step, settings)
            found = self._step(rate)
            standing.step += 1
            seconds = time.perf_counter() - started
            standing.seconds += seconds
            self.compilation.observe(seconds)
            standing.unlogged_steps += 1
            standing.unlogged_mlm += found.mlm
            standing.unlogged_order += found.order or 0.0
            last = standing.step == settings.steps
            validating = last or standing.step % settings.validate_every == 0
            if validating:
                result = validate(self._model, self._validation, self._hardware)
                standing.validation_loss, standing.validation_sop_accuracy = result.loss, result.sop_accuracy
            if validating or standing.step % settings.log_every == 0:
                self._write_log(rate, found.order is not None, validating)
            if last or standing.step % settings.checkpoint_every == 0:
                self._save()
            speed = (standing.step - begun_at) * self._tokens_per_step / (standing.seconds - seconds_before)
            note = f"loss {found.loss:.2f}, {speed:,.0f} tokens/s"
            progress(standing.step, settings.steps, unit="steps", note=note)
        return standing

    @property
    def _tokens_per_step(self) -> int:
        return self._settings.batch_size * self._train.sequence_length

    def _step(self, rate: float) -> StepLosses:
        """One optimiser step on the batch of this step."""
        try:
            return self._update(self._batch(), rate)
        except NotFinite as error:
            raise StageError(self._explained(error)) from error

    def _batch(self) -> Batch:
        """All sequences of the next step."""
        settings, step = self._settings, self._standing.step
        chosen = self._order.at(step * settings.batch_size, settings.batch_size)
        return self._collator(self._train, chosen, np.random.default_rng([settings.seed, MASKING, step]))

    def _micro_batch(self) -> Batch:
        """The first part of them."""
        return self._batch().split(self._settings.accumulation)[0]

    def _explained(self, error: NotFinite) -> str:
        """What a person should know of it."""
        # a checkpoint is known to be good once a step from it was fine, so the newest may not be
        good = [name for name in self._checkpoints.names() if step_of(name) < self._standing.step]
        advice = f"the last good checkpoint is {good[-1]}" if good else "there is no good checkpoint yet"
        return (
            f"pretraining: {error} at step {self._standing.step + 1}; {advice}; lower "
            f"pretraining.learning_rate ({self._settings.learning_rate:g}) or warm up for more than "
            f"{self._settings.warmup_steps} steps"
        )

    def _write_log(self, rate: float, has_order: bool, validated: bool) -> None:
        standing = self._standing
        mlm = standing.unlogged_mlm / standing.unlogged_steps
        order = standing.unlogged_order / standing.unlogged_steps if has_order else None
        standing.train_loss = mlm + (order or 0.0)
        standing.unlogged_steps, standing.unlogged_mlm, standing.unlogged_order = 0, 0.0, 0.0
        line: dict[str, Any] = {
            "step": standing.step,
            "loss": standing.train_loss,
            "mlm_loss": mlm,
            "sop_loss": order,
            "learning_rate": rate,
            "tokens": standing.step * self._tokens_per_step,
            "seconds": round(standing.seconds, 3),
        }
        if validated:
            line["validation_loss"] = standing.validation_loss
            line["validation_sop_accuracy"] = standing.validation_sop_accuracy
            logger.info("step %d: loss %.3f, validation %.3f", standing.step, mlm, standing.validation_loss)
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _save(self) -> None:
        state = {
            "standing": asdict(self._standing),
            "model": self._model.state_dict(),
            **self._update.state(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state() if self._hardware.device.type == "cuda" else None,
        }
        self._checkpoints.save(self._standing.step, state)

    def _restore(self) -> None:
        state = self._checkpoints.newest()
        if state is None:
            return
        for name, value in state["standing"].items():
            setattr(self._standing, name, value)
        self._model.load_state_dict(state["model"])
        self._update.restore(state)
        torch.set_rng_state(state["random"])
        if state["random_cuda"] is not None and self._hardware.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"])
        logger.info("continuing after step %d", self._standing.step)


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
