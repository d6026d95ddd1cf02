"""Models with a classification head: from a pretrained checkpoint, or the randomly initialised twin.

Both come from the stock ``AutoModelForTokenClassification`` and ``AutoModelForSequenceClassification``. For one
seed both have the same initial head, so that they differ in nothing but the pretraining.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from eval.dropout import replace_dropout
from eval.settings import FineTuningSettings, TaskKind
from tasks.contract import StageError, UserError
from tasks.pretraining.models import model_config
from tasks.pretraining.precision import Hardware, choose_hardware
from tasks.pretraining.settings import PretrainingSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from tasks.pretraining.settings import ModelSettings


def build_classifier(
    kind: TaskKind,
    labels: tuple[str, ...],
    settings: FineTuningSettings,
    hardware: Hardware,
    seed: int,
    *,
    checkpoint: Path | None = None,
    shape: ModelSettings | None = None,
    tokenizer: PreTrainedTokenizerBase,
) -> PreTrainedModel:
    """A model ready for fine-tuning, fp32, on the chosen device.

    Args:
        kind: "ner" gives a head on every token, "classification" one on the whole text.
        labels: label names by id.
        settings: dropout and maximal length.
        hardware: from :func:`choose`.
        seed: of the head, of a random body, and of the dropout on the CPU.
        checkpoint: folder of the pretrained checkpoint, or
        shape: settings of the randomly initialised twin.
        tokenizer: decides the twin's vocabulary size.

    Raises:
        UserError: the model has fewer positions than ``settings.max_length``.
        StageError: the checkpoint lacks weights of the body.
    """
    assert (checkpoint is None) != (shape is None)
    family: Any = (
        transformers.AutoModelForTokenClassification
        if kind == "ner"
        else transformers.AutoModelForSequenceClassification
    )
    if checkpoint is not None:
        config = transformers.AutoConfig.from_pretrained(checkpoint)
    else:
        assert shape is not None
        config = model_config(shape, tokenizer)
    _prepare(config, labels, settings)
    with torch.random.fork_rng(devices=[]), _quiet_transformers():
        torch.manual_seed(seed)
        if checkpoint is None:
            model = family.from_config(config, attn_implementation=hardware.attention)
        else:
            model, loaded = family.from_pretrained(
                checkpoint,
                config=config,
                attn_implementation=hardware.attention,
                output_loading_info=True,
            )
            lacking = [name for name in sorted(loaded["missing_keys"]) if not name.startswith("classifier.")]
            if lacking := [name for name in lacking if ".pooler" not in name]:
                raise StageError(f"{checkpoint} lacks {len(lacking)} weights, such as {lacking[0]}")
    _initialise_head(model.classifier, config.initializer_range, seed)
    if hardware.device.type == "cpu":
        replace_dropout(model, seed)
    result: PreTrainedModel = model.float().to(hardware.device)
    return result


def choose(settings: FineTuningSettings) -> Hardware:
    """Device and precision by pretraining's rule, which looks at the hardware and never at a stopwatch.

    A measurement at run time could choose otherwise on the next run, and equal runs would give other scores.

    Raises:
        UserError: there is no GPU and one is asked for.
    """
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError("fine_tuning.device: cuda, but torch finds no GPU; set it to auto or cpu")
    return choose_hardware(PretrainingSettings(steps=1, device=settings.device, precision=settings.precision))


def _prepare(config: PretrainedConfig, labels: tuple[str, ...], settings: FineTuningSettings) -> None:
    if settings.max_length > config.max_position_embeddings:
        raise UserError(
            f"fine_tuning.max_length {settings.max_length} is more than the model's "
            f"{config.max_position_embeddings} positions; lower it"
        )
    config.id2label = dict(enumerate(labels))
    config.label2id = {name: number for number, name in enumerate(labels)}
    if settings.dropout is not None:
        # attention weights keep the dropout of the checkpoint's own config.json
        for name in ("hidden_dropout_prob", "classifier_dropout", "classifier_dropout_prob"):
            if hasattr(config, name):
                setattr(config, name, settings.dropout)


def _initialise_head(head: torch.nn.Module, deviation: float, seed: int) -> None:
    """Normal weights and zero biases from the seed alone, whatever was drawn before (BERT's initialisation)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, deviation, generator=generator)
            else:
                weight.zero_()


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No loading bar, and no warning that the head is new: it is meant to be."""
    log = transformers.utils.logging
    verbosity, bar = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bar:
            log.enable_progress_bar()
