"""How many weights a model of given settings has, and what its checkpoints take on the disk, without building it."""

from __future__ import annotations

from tasks.pretraining.settings import ALBERT_EMBEDDING_SIZE, ModelSettings

VOCABULARY = 32_000
"""Taken for the size of the embeddings where the tokenizer is not known yet."""


def weights(model: ModelSettings, vocabulary: int = VOCABULARY) -> int:
    """Number of the model's weights but for biases and norms; ALBERT's layers of a group share theirs."""
    layers = model.layer_groups if model.architecture == "albert" else model.layers
    hidden, embedding = model.hidden_size, model.hidden_size
    if model.architecture == "albert":
        embedding = model.embedding_size or ALBERT_EMBEDDING_SIZE
    return layers * (4 * hidden**2 + 2 * hidden * model.intermediate_size) + embedding * (
        vocabulary + model.max_positions + (hidden if embedding != hidden else 0)
    )


def checkpoints_bytes(model: ModelSettings, vocabulary: int = VOCABULARY) -> int:
    """Bytes of what a training keeps: two checkpoints and the one that is being written, each of weights and two
    moments, and the result; all with 4 bytes a number."""
    return (3 * 3 + 1) * 4 * weights(model, vocabulary)
