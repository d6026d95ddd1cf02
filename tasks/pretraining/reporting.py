"""The log of a training for those who watch it elsewhere: through transformers' own integrations.

What transformers' Trainer can report to (TensorBoard, Weights & Biases, trackio, ...), the engine ``local`` can: it
calls the same callbacks with the same names of figures. How an integration finds its server, project and key is told
to it in the way that its own documentation says, by environment variables or a login.

Those parts of transformers take seconds to import, so they are imported only if something is to be reported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tasks.contract import UserError
from tasks.foreign_text import first_line
from tasks.pretraining.settings import PretrainSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, TrainerCallback, TrainingArguments

logger = logging.getLogger(__name__)

NAMES = {
    "validation_loss": "eval_loss",
    "perplexity": "eval_perplexity",
    "masked_accuracy": "eval_masked_accuracy",
    "validation_sop_accuracy": "eval_sop_accuracy",
    "probe_score": "eval_probe_score",
}
"""What the integrations call a validation's figures; they sort by the prefix."""


class Reporter:
    """Passes lines of the log on. A context manager, within which the training is going on.

    An integration that fails before the training is the user's error. One that fails later is left out from then on
    with a warning: a server that is gone is no reason to end a training.

    Args:
        settings: ``pretraining.report_to`` names the integrations; all of them are shown as the run's settings.
        model: that is trained; integrations show its configuration.
        folder: the stage's work folder, whose name becomes part of the run's.
        logs: where integrations that write files put them; TensorBoard's are in ``runs/`` there.

    Raises:
        UserError: a name is unknown, or an integration cannot start.
    """

    def __init__(self, settings: PretrainSettings, model: PreTrainedModel, folder: Path, logs: Path):
        self._callbacks = _callbacks(settings.pretraining.report_to)
        if not self._callbacks:
            return
        from transformers import TrainerControl, TrainerState

        self._state = TrainerState(max_steps=settings.pretraining.steps)
        self._common = {
            "args": _arguments(settings, f"pretrain-{folder.name[:16]}", logs),
            "state": self._state,
            "control": TrainerControl(),
            "model": model,
        }

    def __enter__(self) -> Reporter:
        for name, callback in list(self._callbacks.items()):
            try:
                callback.on_init_end(**self._common)
                callback.on_train_begin(**self._common)
            except Exception as error:  # each integration has errors of its own
                del self._callbacks[name]
                self._end()
                raise UserError(_explained(name, error)) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Tell the integrations a line of the log."""
        if not self._callbacks:
            return
        self._state.global_step = line["step"]
        logs = {NAMES.get(key, key): value for key, value in line.items() if key != "step" and value is not None}
        # a copy for each, since it may change what it gets
        self._tell(lambda callback: callback.on_log(**self._common, logs=dict(logs)))

    def _end(self) -> None:
        self._tell(lambda callback: callback.on_train_end(**self._common))

    def _tell(self, call: Callable[[TrainerCallback], object]) -> None:
        for name, callback in list(self._callbacks.items()):
            try:
                call(callback)
            except Exception as error:
                logger.warning("%s gets no more of the log: %s", name, first_line(error).rstrip("."))
                del self._callbacks[name]


def reporting_problem(names: tuple[str, ...]) -> str | None:
    """Why these integrations cannot be used here, in one line; None if they can."""
    try:
        _callbacks(names)
    except UserError as error:
        return str(error)
    return None


def _callbacks(names: tuple[str, ...]) -> dict[str, TrainerCallback]:
    callbacks: dict[str, TrainerCallback] = {}
    if not names:
        return callbacks
    from transformers.integrations import get_reporting_integration_callbacks

    for name in names:
        try:
            (integration,) = get_reporting_integration_callbacks([name])
            callbacks[name] = integration()
        except Exception as error:  # a ValueError for a name, RuntimeError or ImportError for a library, and others
            raise UserError(_explained(name, error)) from error
    return callbacks


def _explained(name: str, error: Exception) -> str:
    said = first_line(error).rstrip(".")
    return f"pretraining.report_to: {name}: {said}; mend that, or leave {name} out of pretraining.report_to"


def _arguments(settings: PretrainSettings, run_name: str, logs: Path) -> TrainingArguments:
    """What the integrations take their folder, the run's name and its settings from."""
    from accelerate import PartialState
    from transformers import TrainingArguments

    class Arguments(TrainingArguments):
        """Shows the settings of this training instead of the Trainer's defaults."""

        def to_dict(self) -> dict[str, Any]:
            # the call of a probe is no setting of the user's, and names the paths of local files
            return settings.model_dump(mode="json", exclude={"probe_call"})

    PartialState()  # unless there is one: TrainingArguments would throw away that of a distributed training
    return Arguments(
        output_dir=str(logs), run_name=run_name, report_to=[], accelerator_config={"use_configured_state": True}
    )
