"""Stage ``pretrain``: from a tokenizer and a packed corpus to a checkpoint, by the engine of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.contract import Progress, Stage, UserError
from tasks.pretraining.engines import check_engine
from tasks.pretraining.settings import PretrainSettings
from tasks.room import of_pretraining


def run(settings: PretrainSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    """Pretrains; continues what a killed run left in ``folder``.

    Args:
        settings: the model and how to train it.
        inputs: the folders of ``tokenizer`` and ``pack``.
        folder: gets ``checkpoint/`` (loads with ``transformers``) and ``logs/training.jsonl``.
        progress: called after every step.

    Returns:
        steps, samples, tokens, parameters, seconds_training, tokens_per_second, flop_utilisation (None if the
        hardware's peak is not known), train_loss, validation_loss, perplexity, masked_accuracy,
        validation_sop_accuracy, unigram_entropy (losses in nats), left_plateau, roll_backs, peak_memory_bytes,
        probe (see ``Standing.probe``); resolved.

    Raises:
        UserError: the engine cannot run here, settings and data do not fit, or an integration cannot start.
        StageError: the loss is not finite any more or spikes, and the training does not go back.
    """
    reason = check_engine(settings, folder)
    if reason is not None:
        raise UserError(reason)
    if settings.pretraining.engine == "collaborative":
        from tasks.pretraining.collaborative.engine import pretrain
    elif settings.pretraining.engine == "gaudi":
        from tasks.pretraining.gaudi.engine import pretrain
    else:
        from tasks.pretraining.local import pretrain

    return pretrain(settings, inputs["tokenizer"], inputs["pack"], folder, progress)


STAGE = Stage(name="pretrain", version=1, settings=PretrainSettings, run=run, room=of_pretraining)
