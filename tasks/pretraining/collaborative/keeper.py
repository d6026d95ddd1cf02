"""What the coordinator keeps of the training: checkpoints, validations, and at the end the published weights."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel

from tasks.contract import LOGS
from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.checkpoints import Checkpoints
from tasks.pretraining.collaborative import state
from tasks.pretraining.collaborative.log import StepLog
from tasks.pretraining.collaborative.manifest import Manifest
from tasks.pretraining.collaborative.sharding import Taken
from tasks.pretraining.local import save_checkpoint
from tasks.pretraining.models import build_model, count_parameters
from tasks.pretraining.optimizers import build_optimizer, fill_state
from tasks.pretraining.precision import choose_member_hardware
from tasks.pretraining.settings import MaskingSettings
from tasks.pretraining.validation import (
    PLATEAU_MARGIN,
    Validation,
    perplexity,
    unigram_entropy,
    validate,
    validation_batches,
)

logger = logging.getLogger(__name__)


class Keeper:
    """Holds a model of the run's shape, and the run's files in the stage's work folder.

    Args:
        manifest: what is trained.
        work: the stage's work folder.
        tokenizer: the tokenizer's artifact.
        pack: the packed corpus' artifact.
    """

    def __init__(self, manifest: Manifest, work: Path, tokenizer: Path, pack: Path):
        self._settings, self._work, self._tokenizer = manifest.settings.pretraining, work, tokenizer
        reader = AutoTokenizer.from_pretrained(tokenizer)
        train, held_out = PackedSplit(pack, "train"), PackedSplit(pack, "validation")
        self._hardware = choose_member_hardware(self._settings)
        self._shape, self._reader = manifest.settings.model, reader
        self._model = self.new_model().to(self._hardware.device)
        optimizer = build_optimizer(self._model, self._settings)
        fill_state(optimizer)
        self._weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        self.own = state.state_of(optimizer, 0)
        """A state of the run's shape, to check others against."""
        collator = Collator(reader, MaskingSettings(), self._settings.objective == "mlm+sop")
        self._batches = validation_batches(held_out, collator, self._settings.validation_blocks)
        self._train, self._is_special, self._length = train, collator.is_special, train.sequence_length

        self._checkpoints = Checkpoints(work)
        saved = self._checkpoints.newest()
        self.step: int = 0 if saved is None else saved["state"]["step"]
        """Of the newest checkpoint; 0 if there is none."""
        self.taken = Taken() if saved is None else Taken(**saved["taken"])
        """What had been taken of the data by then."""
        self.seconds: float = 0.0 if saved is None else saved["seconds"]
        """Of training until then."""
        self.unwritten = [] if saved is None else [one for one in saved["log"] if one["entry"]["step"] <= self.step]
        """What was known then of steps that had no line in the log yet."""
        self.counts: dict[str, tuple[int, int]] = {} if saved is None else dict(saved.get("counts", {}))
        """Of the sequences that the peers had computed by then, as the log has them."""
        self.log = StepLog(work / LOGS / "training.jsonl", self._settings, self._length)
        """The log of global steps; to be gone on with before anything is written."""
        self.result = Validation(float("nan"), float("nan"), None)
        """Of the last validation."""
        self.saved: state.State | None = None if saved is None else state.State(**saved["state"])
        """The newest checkpoint's state, if there is one."""

    def new_model(self) -> PreTrainedModel:
        """A model of the run's shape with fresh weights, on the CPU."""
        asked = self._settings
        return build_model(self._shape, self._reader, asked.objective, asked.seed, self._hardware.attention)

    @property
    def checkpoint(self) -> Path | None:
        """The file of the newest checkpoint, if there is one."""
        return self._checkpoints.file(self.step) if self.step else None

    def validate(self, found: state.State) -> None:
        """Put a state's weights into the model, validate them, and write the log's line."""
        with torch.no_grad():
            for weight, value in zip(self._weights, found.weights, strict=True):
                weight.copy_(value)
        self.result = validate(self._model, self._batches, self._hardware)
        self.log.tell_validation(found.step, self.result)
        logger.info("step %d: validation %.3f", found.step, self.result.loss)

    def save(self, found: state.State, taken: Taken, seconds: float) -> None:
        """Write a checkpoint."""
        saved = {"state": vars(found), "taken": taken.model_dump(), "seconds": seconds}
        saved |= {"log": self.log.unwritten, "counts": self.log.counts}
        self._checkpoints.save(found.step, saved)
        self.step, self.taken, self.seconds, self.saved = found.step, taken, seconds, found

    def publish(self, book: dict[str, Any]) -> dict[str, Any]:
        """Write ``checkpoint/`` with the last validated weights; the stage's metrics, for a run with this ledger."""
        save_checkpoint(self._model, self._tokenizer, self._work / "checkpoint")
        entropy = unigram_entropy(self._train, self._batches, self._is_special)  # reads all data: not at the start
        together = sum(number for size, number in book["groups"].items() if int(size) > 1)
        tokens = book["samples"] * self._length
        return {
            "steps": book["step"],
            "samples": book["samples"],
            "tokens": tokens,
            "parameters": count_parameters(self._model),
            "seconds_training": round(book["seconds"], 3),
            "tokens_per_second": round(tokens / max(1e-9, book["seconds"]), 1),
            "train_loss": self.log.loss,
            "validation_loss": self.result.loss,
            "perplexity": perplexity(self.result.loss),
            "masked_accuracy": self.result.masked_accuracy,
            "validation_sop_accuracy": self.result.sop_accuracy,
            "unigram_entropy": entropy,
            "left_plateau": self.result.loss < entropy - PLATEAU_MARGIN,
            "peers": len(book["peers"]),
            "group_steps_share": round(together / max(1, sum(book["groups"].values())), 4),
            "final_distance": book["final"]["distance"],
            "end": book["end"],
            "resolved": {
                "precision": self._hardware.precision,
                "precision_reason": self._hardware.reason,
                "device": self._hardware.device.type,
                **self._hardware.accelerator(),
                "attention": self._hardware.attention,
            },
        }
