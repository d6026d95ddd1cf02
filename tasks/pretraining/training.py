"""The training loop: steps, log, validation, checkpoints; a killed training goes on where it was.

On a CPU in fp32, at a fixed number of threads, a training that was killed and continued ends with the same
bits as one that was not: weights, optimiser and random state come from the checkpoint, data and masking are
functions of the step and of how many batches were skipped, which is in the checkpoint too.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tasks.contract import Progress, StageError
from tasks.pretraining.batches import MASKING, Batch, Collator, PackedSplit, ShuffledOrder
from tasks.pretraining.checkpoints import Checkpoints, name_of, step_of
from tasks.pretraining.compilation import Compilation
from tasks.pretraining.divergence import MAX_ROLL_BACKS, Diverged, SpikeWatch
from tasks.pretraining.group import ALONE, Group
from tasks.pretraining.optimizers import learning_rate_at
from tasks.pretraining.precision import Hardware
from tasks.pretraining.probe import Probe
from tasks.pretraining.settings import PretrainingSettings
from tasks.pretraining.standing import Standing
from tasks.pretraining.training_log import TrainingLog
from tasks.pretraining.updates import NotFinite, StepLosses, Update
from tasks.pretraining.validation import validate

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


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
        full_speed: tokens a second with all of the hardware's peak in the model; None if that is not known.
        report: gets every line of the log.
        group: the processes that train together. The first one validates, probes, and writes log and checkpoints.
        probe: is asked every so many steps, and at the end.
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
        full_speed: float | None = None,
        report: Callable[[Mapping[str, Any]], None] = lambda line: None,
        group: Group = ALONE,
        probe: Probe | None = None,
    ):
        self._model = model
        self._settings = settings
        self._hardware = hardware
        self._train = train
        self._collator = collator
        self._validation = validation
        self._order = ShuffledOrder(len(train), settings.seed)
        self._group = group
        self._probe = probe
        self.compilation = Compilation(model, settings, hardware, train.has_padding)
        self._update = Update(model, settings, hardware, self.compilation.losses, group)
        self._checkpoints = Checkpoints(folder)
        self._spikes = SpikeWatch(settings.spike_nats, settings.spike_steps)
        self._log = TrainingLog(folder, self._tokens_per_step, full_speed, hardware, report)
        self._standing = Standing()

    def run(self, progress: Progress) -> Standing:
        """Trains to the last step of the settings, from the newest checkpoint if there is one.

        Raises:
            StageError: the loss is not finite any more or spikes, and there is no going back.
            Diverged: the same in another process than the first one.
            PartnerLost: another process is gone.
        """
        settings, standing, first = self._settings, self._standing, self._group.rank == 0
        torch.manual_seed(settings.seed)
        self._restore_together()
        if first:
            self._begin_log()
        self._model.train()
        begun_at, seconds_before = standing.step, standing.seconds
        progress(standing.step, settings.steps, unit="steps")
        while standing.step < settings.steps:
            # outside of the timed step: the warm-up is none's
            self.compilation.prepare(self._micro_batch, settings.steps - standing.step)
            started = time.perf_counter()
            rate = learning_rate_at(standing.step, settings)
            try:
                found = self._step(rate)
            except Diverged as error:
                self._roll_back(error)
                begun_at, seconds_before = standing.step, standing.seconds
                continue
            standing.step += 1
            seconds = time.perf_counter() - started
            standing.seconds += seconds
            self.compilation.observe(seconds)
            standing.unlogged_steps += 1
            standing.unlogged_mlm += found.mlm
            standing.unlogged_order += found.order or 0.0
            standing.unlogged_seconds += seconds
            if not first:
                continue
            last = standing.step == settings.steps
            probing = self._probe is not None and (last or standing.step % self._probe.settings.every == 0)
            # a probe comes with a validation, so that the two can be compared
            validating = probing or last or standing.step % settings.validate_every == 0
            if validating:
                result = validate(self._model, self._validation, self._hardware)
                standing.validation_loss, standing.masked_accuracy = result.loss, result.masked_accuracy
                standing.validation_sop_accuracy = result.sop_accuracy
            probe_score = self._probed(progress) if probing else None
            if validating or standing.step % settings.log_every == 0:
                self._log.write(standing, rate, found.order is not None, validating, probe_score)
            # none while a spike may be coming: of the two that are kept, one is to be from before it
            if last or (standing.step % settings.checkpoint_every == 0 and not self._spikes.above):
                self._save()
            speed = (standing.step - begun_at) * self._tokens_per_step / (standing.seconds - seconds_before)
            progress(standing.step, settings.steps, unit="steps", note=self._note(found, speed))
        return standing

    @property
    def _tokens_per_step(self) -> int:
        return self._settings.batch_size * self._train.sequence_length

    @property
    def _next_batch(self) -> int:
        return self._standing.step + self._standing.skipped

    def _batch(self) -> Batch:
        """All sequences of the next step."""
        settings, number = self._settings, self._next_batch
        chosen = self._order.at(number * settings.batch_size, settings.batch_size)
        return self._collator(self._train, chosen, np.random.default_rng([settings.seed, MASKING, number]))

    def _micro_batch(self) -> Batch:
        """The first part of them."""
        return self._batch().split(self._settings.accumulation * self._group.size)[0]

    def _step(self, rate: float) -> StepLosses:
        """One optimiser step on the next batch; raises Diverged."""
        settings, standing = self._settings, self._standing
        self._group.seed_dropout(settings.seed, self._next_batch)
        try:
            found = self._update(self._batch(), rate)
        except NotFinite as error:
            raise Diverged(str(error), standing.step) from error
        if self._spikes.sees_spike(found.loss):
            first = standing.step - settings.spike_steps + 1
            raise Diverged(f"loss is {found.loss:.2f}, a spike that began at step {first + 1},", first)
        return found

    def _roll_back(self, error: Diverged) -> None:
        """Goes back to the last good checkpoint, and on from there with the batches that were not seen yet.

        Raises:
            StageError: the settings do not allow it, there is none, or it was done too often.
        """
        standing, first = self._standing, self._group.rank == 0
        diverged_at, roll_backs, unseen = standing.step, standing.roll_backs + 1, self._next_batch + 1
        if first:
            self._leave_only_good(error)
        elif self._settings.on_divergence == "stop" or roll_backs > MAX_ROLL_BACKS:
            raise error  # the first process has met it too, and explains it
        self._restore_together()
        standing.skipped, standing.roll_backs = unseen - standing.step, roll_backs
        standing.returned_to = standing.step
        if first:
            self._begin_log()
            self._save()
        logger.warning(
            "%s at step %d: back to step %d, without the batches since then (roll-back %d of at most %d)",
            *(error, diverged_at + 1, standing.step, roll_backs, MAX_ROLL_BACKS),
        )

    def _begin_log(self) -> None:
        """Leaves in the log what belongs to the training up to here."""
        self._log.truncate(self._standing.step)
        if self._probe is not None and self._probe.begin(self._standing):
            logger.warning(
                "the settings of the probe have changed: scores up to step %d are dropped", self._standing.step
            )
            self._log.forget("probe_score")

    def _probed(self, progress: Progress) -> float | None:
        """The probe's score after this step; None if it failed."""
        assert self._probe is not None
        note = f"probe on {self._probe.settings.task}"
        progress(self._standing.step, self._settings.steps, unit="steps", note=note)
        return self._probe(self._standing)

    def _leave_only_good(self, error: Diverged) -> None:
        """Deletes the checkpoints that may hold what ruined the training; raises StageError as :meth:`_roll_back`."""
        standing = self._standing
        # a checkpoint is known to be good once a step from it was fine, so the newest may not be
        saved = [step_of(name) for name in self._checkpoints.names()]
        good = [step for step in saved if step < error.first_step or step == standing.returned_to]
        often = standing.roll_backs == MAX_ROLL_BACKS
        if self._settings.on_divergence == "stop" or not good or often:
            raise StageError(self._explained(error, good, often)) from error
        self._checkpoints.remove_after(good[-1])

    def _explained(self, error: Diverged, good: list[int], often: bool) -> str:
        """What a person should know of it."""
        advice = f"the last good checkpoint is {name_of(good[-1])}" if good else "there is no good checkpoint yet"
        if often:
            advice += f", and the training has gone back {MAX_ROLL_BACKS} times already"
        return (
            f"pretraining: {error} at step {self._standing.step + 1}; {advice}; lower "
            f"pretraining.learning_rate ({self._settings.learning_rate:g}) or warm up for more than "
            f"{self._settings.warmup_steps} steps"
        )

    def _note(self, found: StepLosses, speed: float) -> str:
        """The state in a few words, beside the steps and the time left, which the terminal shows anyway."""
        parts = "" if found.order is None else f" (MLM {found.mlm:.2f}, SOP {found.order:.2f})"
        validation = self._standing.validation_loss
        validated = "" if math.isnan(validation) else f", validation {validation:.2f}"
        score = (self._standing.probe or {}).get("score")
        probed = "" if score is None else f", probe {100 * score:.1f} %"
        return f"loss {found.loss:.2f}{parts}{validated}{probed}, {speed:,.0f} tokens/s"

    def _save(self) -> None:
        state = {
            "standing": asdict(self._standing),
            "model": self._model.state_dict(),
            **self._update.state(),
            "spikes": self._spikes.state(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state() if self._hardware.device.type == "cuda" else None,
        }
        self._checkpoints.save(self._standing.step, state)

    def _restore_together(self) -> None:
        """All processes go on from the newest checkpoint, that of the first one; without any, from the beginning.

        One after another: reading the checkpoints also removes what a kill has left half-written.
        """
        first, device = self._group.rank == 0, self._hardware.device
        if first:
            self._restore()
        step = self._group.total(self._standing.step if first else 0, device)
        if not first:
            self._restore()
        if self._standing.step != step:
            raise StageError(
                f"pretraining: the checkpoint of step {step} can be read in one process and not in another; free "
                "memory and run again"
            )
        self._group.total(0, device)  # nobody writes a checkpoint before all have read theirs

    def _restore(self) -> None:
        state = self._checkpoints.newest()
        if state is None:
            return
        for name, value in state["standing"].items():
            setattr(self._standing, name, value)
        self._model.load_state_dict(state["model"])
        self._update.restore(state)
        self._spikes.restore(state["spikes"])
        torch.set_rng_state(state["random"])
        if state["random_cuda"] is not None and self._hardware.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"])
        logger.info("continuing after step %d", self._standing.step)
