"""Models with a classification head: from a checkpoint, ours or that of others, or our randomly initialised twin.

All come from the stock ``AutoModelForTokenClassification`` and ``AutoModelForSequenceClassification``. For one seed
models of one shape have the same initial head, so that they differ in nothing but the pretraining.
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

_HEADS: dict[TaskKind, Any] = {
    "ner": transformers.models.auto.modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "classification": transformers.models.auto.modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}
"""The architectures that have a head for a kind of task."""

_DROPOUTS = (
    *("hidden_dropout_prob", "classifier_dropout", "classifier_dropout_prob"),  # BERT, ALBERT, ELECTRA, RoBERTa
    *("dropout", "seq_classif_dropout"),  # DistilBERT
    *("pooler_dropout", "cls_dropout"),  # DeBERTa
    *("embedding_dropout", "mlp_dropout"),  # ModernBERT
)
"""What configurations call the dropout of hidden states and before the head."""

_DEVIATION = 0.02
"""Of a head's initial weights where the configuration states none: BERT's."""


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
        StageError: the model has fewer positions than ``settings.max_length``, or no head of this kind, or the
            checkpoint lacks weights of the body.
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
    if config.model_type not in _HEADS[kind]:
        raise StageError(f"transformers has no head for {kind} on the architecture {config.model_type}")
    _prepare(config, labels, settings)
    # what is not asked for is torch's fused attention where the architecture has it
    attention = {"attn_implementation": "eager"} if hardware.attention == "eager" else {}
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        missing: set[str] = set()
        if checkpoint is None:
            model = family.from_config(config, **attention)
        else:
            model, loaded = family.from_pretrained(checkpoint, config=config, output_loading_info=True, **attention)
            missing = set(loaded["missing_keys"])
    model = model.float()
    body = f"{model.base_model_prefix}."
    if lacking := [name for name in sorted(missing) if name.startswith(body) and ".pooler" not in name]:
        raise StageError(f"{checkpoint} lacks {len(lacking)} weights, such as {lacking[0]}")
    if settings.max_length > (positions := usable_positions(model)):
        raise StageError(
            f"fine_tuning.max_length {settings.max_length} is more than the {positions} positions that the "
            f"model ({config.model_type}) can use; lower it"
        )
    _initialise_head(model, missing, seed)
    if hardware.device.type == "cpu":
        replace_dropout(model, seed)
    result: PreTrainedModel = model.to(hardware.device)
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
    config.id2label = dict(enumerate(labels))
    config.label2id = {name: number for number, name in enumerate(labels)}
    if settings.dropout is not None:
        # attention weights keep the dropout of the checkpoint's own config.json
        for name in _DROPOUTS:
            if hasattr(config, name):
                setattr(config, name, settings.dropout)


def usable_positions(model: PreTrainedModel) -> int:
    """The longest input in tokens, special tokens included.

    RoBERTa and its kin count positions from behind the padding's id: of 514 rows they use 512.
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return int(model.config.max_position_embeddings)


def _initialise_head(model: PreTrainedModel, missing: set[str], seed: int) -> None:
    """The weights behind the body from the seed alone, whatever was drawn before (BERT's initialisation).

    They are matrices of a normal distribution, norms of ones, and biases of zeros, whatever the architecture calls
    them. A pooler that the checkpoint does not have belongs to them, and comes last: a loaded one changes no other.
    """
    generator = torch.Generator().manual_seed(seed)
    deviation = getattr(model.config, "initializer_range", _DEVIATION)
    body = f"{model.base_model_prefix}."
    head = [(name, weight) for name, weight in model.named_parameters() if not name.startswith(body)]
    new = [(name, weight) for name, weight in model.named_parameters() if name.startswith(body) and name in missing]
    with torch.no_grad():
        for name, weight in [*head, *new]:
            if weight.ndim > 1:
                weight.normal_(0.0, deviation, generator=generator)
            else:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
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
