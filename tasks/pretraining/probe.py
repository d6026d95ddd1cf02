"""The probe during pretraining: now and then a copy of the model is fine-tuned for a short while and scored.

A falling loss says little about what the model is good for; a probe does, long before the evaluation. It reads the
weights and changes nothing: the training goes on with the bits that it would have had without. What the score is of
decides ``eval/probe.py``; this module knows only a function's name, so that processes that get their settings from a
file can find it too.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import pkgutil
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, JsonValue

from tasks.contract import Settings
from tasks.identity import canonical

if TYPE_CHECKING:
    from tasks.pretraining.standing import Standing

logger = logging.getLogger(__name__)


class ProbeSettings(Settings):
    """A short fine-tuning of a copy of the model, scored on the task's validation split, never on its test split."""

    task: str = Field(description="name of a task of the evaluation, whose data and fine-tuning settings are used")
    every: int = Field(gt=0, le=10**9, description="steps between two probes; one more at the end")
    train_items: int = Field(
        1000, gt=0, le=10_000_000, description="most training items, spread evenly over the task's training split"
    )
    epochs: int = Field(3, gt=0, le=100_000, description="passes over them, instead of the task's own number")


class ProbeCall(Settings):
    """What carries a probe out. Made by the evaluation, which this package knows nothing of."""

    function: str = Field(description="``package.module:name`` of ``(checkpoint folder, **arguments) -> score``")
    arguments: dict[str, JsonValue] = Field(
        description="more arguments of the function, all that the score depends on"
    )
    metric: str = Field(description="what the score, from 0 to 1, is called")


class Probe:
    """The probe of one training.

    Args:
        settings: which task and how often.
        call: what carries it out.
        save: writes the model as it is, loadable with ``transformers``, to a folder that is not there.
        place: that folder; gone after each probe.
    """

    def __init__(self, settings: ProbeSettings, call: ProbeCall, save: Callable[[Path], None], place: Path):
        self.settings = settings
        self._call, self._save, self._place = call, save, place
        self._facts = {**settings.model_dump(exclude={"every"}), "metric": call.metric}
        # the task's settings may change between a kill and the next run, which goes on with the same weights
        self._digest = hashlib.sha256(canonical(call.model_dump(mode="json"))).hexdigest()

    def begin(self, standing: Standing) -> bool:
        """Prepares ``standing.probe``; whether it held scores of another probe, which do not compare with its own."""
        before = standing.probe
        if before is not None and before["digest"] == self._digest:
            return False
        nothing = {"score": None, "best_score": None, "best_step": None, "failures": 0}
        standing.probe = {**self._facts, **nothing, "digest": self._digest}
        return before is not None and before["score"] is not None

    def __call__(self, standing: Standing) -> float | None:
        """The score of the model now, which also goes into ``standing.probe``.

        Returns:
            None if the probe failed, of which a warning says why: that is no reason to end a training.
        """
        account = standing.probe
        assert account is not None
        try:
            with same_random_state():
                self._save(self._place)
                score = float(pkgutil.resolve_name(self._call.function)(self._place, **self._call.arguments))
        except Exception as error:  # wrong data, no memory, no connection: none of it harms the training
            account["failures"] += 1
            told = (str(error).strip().splitlines() or [""])[0]
            logger.warning(
                *("step %d: the probe on %s failed, the training goes on: %s: %s", standing.step),
                *(self.settings.task, type(error).__name__, told),
            )
            return None
        finally:
            shutil.rmtree(self._place, ignore_errors=True)
        account["score"] = score
        if account["best_score"] is None or score > account["best_score"]:
            account["best_score"], account["best_step"] = score, standing.step
        logger.info(
            "step %d: probe on %s: %s %.1f %%", standing.step, self.settings.task, self._call.metric, 100 * score
        )
        return score


def told(standing: Standing) -> dict[str, Any] | None:
    """The account of the probes for the record; None without any."""
    return None if standing.probe is None else {key: value for key, value in standing.probe.items() if key != "digest"}


@contextlib.contextmanager
def same_random_state() -> Iterator[None]:
    """Afterwards the random generators of Python, numpy and torch (CPU, current GPU) are where they were before."""
    import numpy
    import torch

    python, legacy = random.getstate(), numpy.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(legacy)
