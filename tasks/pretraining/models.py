"""Models by their settings: stock ``transformers`` classes, so that checkpoints load anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers.activations import NewGELUActivation

from tasks.pretraining.settings import ALBERT_EMBEDDING_SIZE, ModelSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def model_config(settings: ModelSettings, tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """The ``transformers`` configuration; vocabulary size and special ids come from the tokenizer."""
    common: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": settings.hidden_size,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "intermediate_size": settings.intermediate_size,
        "hidden_dropout_prob": settings.hidden_dropout,
        "attention_probs_dropout_prob": settings.attention_dropout,
        "max_position_embeddings": settings.max_positions,
        "type_vocab_size": 2,
        "initializer_range": settings.initializer_range,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    if settings.architecture == "albert":
        return transformers.AlbertConfig(
            **common,
            embedding_size=settings.embedding_size or ALBERT_EMBEDDING_SIZE,
            num_hidden_groups=settings.layer_groups,
        )
    return transformers.BertConfig(**common)


def build_model(
    settings: ModelSettings, tokenizer: PreTrainedTokenizerBase, objective: str, seed: int, attention: str = "sdpa"
) -> PreTrainedModel:
    """A model with fresh fp32 weights on the CPU; equal arguments give equal weights.

    ``objective`` "mlm+sop" gives ``AlbertForPreTraining``, "mlm" the architecture's ``...ForMaskedLM``.
    ``attention`` is a name of transformers' attention functions; it is not saved.
    Torch's random state is left as it was.
    """
    config = model_config(settings, tokenizer)
    family: Any = transformers.AutoModelForPreTraining if objective == "mlm+sop" else transformers.AutoModelForMaskedLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = family.from_config(config, attn_implementation=attention)
    for module in model.modules():
        # ALBERT's function; transformers writes it out, in eight passes over the widest states
        if isinstance(getattr(module, "activation", None), NewGELUActivation):
            module.activation = torch.nn.GELU(approximate="tanh")
    return model


def vocabulary_head(model: PreTrainedModel) -> torch.nn.Module:
    """The part of the model that turns hidden states [..., hidden_size] into logits [..., vocabulary]."""
    head = model.predictions if hasattr(model, "predictions") else model.cls
    assert isinstance(head, torch.nn.Module)
    return head


def count_parameters(model: torch.nn.Module) -> int:
    """Number of weights; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())
