"""What the trainer tells on the way: log, progress and checkpoints as those of the other engines."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tasks.contract import SCRATCH, Progress, StageError
from tasks.parts import Parts
from tasks.pretraining.checkpoints import KEPT, PREFIX, name_of, step_of
from tasks.pretraining.settings import PretrainingSettings
from tasks.pretraining.standing import Standing
from tasks.pretraining.training_log import TrainingLog

STANDING, RANDOM = "standing.json", "random-{rank}.pt"
"""In a checkpoint, beside the trainer's own files: how far the training is, in our words; and torch's random state of
each process on the CPU. The trainer restores that too, but then makes its data loader, which draws from it."""


class Telling(TrainerCallback):
    """Decides when to log, validate and save, and writes what comes of it; in every process, the first one's files.

    A checkpoint always comes with a line of the log, so that nothing that is not logged yet has to be in it.

    Args:
        settings: of the training.
        folder: the stage's work folder.
        building: the trainer's output folder, below ``scratch``.
        log: the training log; None in all processes but the first.
        tokens_per_step: of all devices.
        progress: told after every step.
    """

    def __init__(
        self,
        settings: PretrainingSettings,
        folder: Path,
        building: Path,
        log: TrainingLog | None,
        tokens_per_step: int,
        progress: Progress,
    ):
        self._settings, self._folder, self._building = settings, folder, building
        self._log, self._progress = log, progress
        self._tokens_per_step = tokens_per_step
        self.standing = Standing()
        self.warm = [0, 0.0]
        """Steps after those that warm up, over all runs, and their seconds."""
        self._mark = 0.0
        self._first_step = 0
        self._rate = 0.0
        self._random: Path | None = None

    def restore(self, checkpoint: Path) -> None:
        """Go on from a checkpoint."""
        state = json.loads((checkpoint / STANDING).read_text(encoding="utf-8"))
        self.standing = Standing(**state[0])
        self.warm = state[1]
        self._random = checkpoint

    def tokens_per_second(self) -> float:
        """Over the steps that are not for warming up; over all, if there are no others."""
        steps, seconds = self.warm if self.warm[0] else (self.standing.step, self.standing.seconds)
        return float(steps * self._tokens_per_step / seconds)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Before the first step of a run: drop what a killed run logged beyond its checkpoint."""
        if self._log is not None:
            self._log.truncate(self.standing.step)
        self._first_step = state.global_step
        self._progress(self.standing.step, self._settings.steps, unit="steps")
        self._mark = time.perf_counter()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Before the forward pass of every step: the first one of a run that goes on has the dropout it would have."""
        if self._random is not None:
            path = self._random / RANDOM.format(rank=args.process_index)
            if path.exists():  # not if there are more processes now
                torch.set_rng_state(torch.load(path, weights_only=True))
            self._random = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """After every optimiser step."""
        asked, step = self._settings, state.global_step
        self._count(steps=1)
        self.standing.step = step
        last = step == asked.steps
        control.should_evaluate = last or step % asked.validate_every == 0
        control.should_save = last or step % asked.checkpoint_every == 0
        control.should_log = control.should_evaluate or control.should_save or step % asked.log_every == 0
        loss = self.standing.train_loss
        note = "" if math.isnan(loss) else f"loss {loss:.2f}, "
        self._progress(step, asked.steps, unit="steps", note=f"{note}{self.tokens_per_second():,.0f} tokens/s")
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """With the mean loss since the last time, or with a validation's figures, which come later once more.

        Raises:
            StageError: the loss is not finite any more.
        """
        if logs is None or "loss" not in logs:
            return
        self._count(steps=0)  # the loss has been waited for: on an HPU the steps end here
        loss, rate = logs["loss"], logs["learning_rate"]
        if not math.isfinite(loss):
            raise StageError(
                f"pretraining: loss is {loss} at step {state.global_step}; lower pretraining.learning_rate "
                f"({self._settings.learning_rate:g}) or warm up for more than {self._settings.warmup_steps} steps"
            )
        self.standing.unlogged_mlm = loss * self.standing.unlogged_steps
        self._rate = rate
        if not control.should_evaluate:
            self._write(validated=False)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **_: Any,
    ) -> None:
        """After a validation."""
        self.standing.validation_loss = metrics["eval_loss_a_token"]
        self.standing.masked_accuracy = metrics["eval_masked_accuracy"]
        self._write(validated=True)
        self._mark = time.perf_counter()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """After the trainer has written a checkpoint: it counts from here on, whole or not at all."""
        built = self._building / f"checkpoint-{state.global_step}"
        torch.save(torch.get_rng_state(), built / RANDOM.format(rank=args.process_index))
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # every process has written what is its own
        if self._log is not None:
            told = [dataclasses.asdict(self.standing), self.warm]  # NaN, of what was not validated yet, reads back
            (built / STANDING).write_text(json.dumps(told), encoding="utf-8")
            parts, name = Parts(self._folder), name_of(state.global_step)
            parts.finish(name, built, self._folder / SCRATCH / "checkpoints" / name, step=state.global_step)
            finished = sorted((one for one in parts.finished() if one.startswith(PREFIX)), key=step_of)
            for old in finished[:-KEPT]:
                parts.remove(old)
        self._mark = time.perf_counter()

    def _count(self, steps: int) -> None:
        """Count the time since the last mark as the training's."""
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        self.standing.seconds += seconds
        self.standing.unlogged_steps += steps
        self.standing.unlogged_seconds += seconds
        taken = self.standing.step + steps - self._first_step
        if taken > self._settings.gaudi.throughput_warmup_steps:
            self.warm = [self.warm[0] + steps, self.warm[1] + seconds]

    def _write(self, *, validated: bool) -> None:
        if self._log is not None:
            self._log.write(self.standing, self._rate, has_order=False, validated=validated)
        else:
            self.standing.unlogged_steps, self.standing.unlogged_seconds = 0, 0.0
