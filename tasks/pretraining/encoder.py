"""The encoder, whose last layer computes only what is asked of it: the states of a few positions.

Keys and values are needed of every position; queries, and all that follows the attention, only where something is
predicted: at the masked tokens, and for the order of the sentences at the first token of each sequence. Each sequence
has its own number of them, so the queries are padded to one number, and what was padded is left out afterwards.

In a training with dropout the last layer computes everything: what is dropped would else depend on the padding, and
compiled code pads otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention, softmax

from tasks.pretraining.batches import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Wanted:
    """Which states are wanted: with SOP each sequence's first token's, then the masked tokens' in their order."""

    queries: torch.Tensor
    """[rows, columns] positions in the sequence: with SOP 0, those of the masked tokens, and 0 as padding."""
    places: torch.Tensor
    """[wanted] where each of the wanted states is among the flattened queries."""
    positions: torch.Tensor
    """[wanted] where it is among the flattened tokens."""

    def widened(self, columns: int, wanted: int) -> Wanted:
        """The same with so many columns and wanted states; those that are added are of the first token."""
        before = self.queries.shape[1]
        missing = (0, wanted - len(self.places))
        return Wanted(
            queries=pad(self.queries, (0, columns - before)),
            places=pad(self.places // before * columns + self.places % before, missing),
            positions=pad(self.positions, missing),
        )


def wanted_of(batch: Batch) -> Wanted:
    """What is wanted of a batch, whose ``positions`` rise, with as few columns as it needs."""
    rows, width = batch.input_ids.shape
    positions = batch.positions
    if batch.order is not None:
        firsts = torch.arange(0, rows * width, width, device=positions.device)
        positions = torch.cat([firsts, positions])
    row = positions // width
    # rank of each one in its row, where the first token comes before the masked ones
    order = torch.argsort(row, stable=True)
    count = torch.bincount(row, minlength=rows)
    rank = torch.empty_like(row)
    rank[order] = torch.arange(len(row), device=row.device) - (torch.cumsum(count, 0) - count)[row[order]]
    columns = max(1, int(count.max()))
    places = row * columns + rank
    queries = torch.zeros(rows * columns, dtype=torch.long, device=row.device)
    queries[places] = positions - row * width
    return Wanted(queries.reshape(rows, columns), places, positions)


def states_of(model: PreTrainedModel, batch: Batch, wanted: Wanted) -> torch.Tensor:
    """The wanted ones of the last layer's hidden states, [wanted, hidden_size]."""
    body, config = model.base_model, model.config
    hidden = body.embeddings(input_ids=batch.input_ids, token_type_ids=batch.token_type_ids)
    if hasattr(body.encoder, "embedding_hidden_mapping_in"):
        hidden = body.encoder.embedding_hidden_mapping_in(hidden)
    mask = None
    if batch.attention_mask is not None:  # what is added to the scores: [rows, 1, 1, sequence_length]
        absent = batch.attention_mask[:, None, None, :] == 0
        mask = torch.zeros(absent.shape, dtype=hidden.dtype, device=hidden.device)
        mask = mask.masked_fill(absent, torch.finfo(hidden.dtype).min)
    *before, last = _layers(model)
    for layer in before:
        hidden = _computed(layer, hidden, mask)
    width = hidden.shape[-1]
    if model.training and (config.hidden_dropout_prob or config.attention_probs_dropout_prob):
        return _computed(last, hidden, mask).reshape(-1, width)[wanted.positions]
    parts = _attention_of(last)
    asking = torch.take_along_dim(hidden, wanted.queries[..., None], dim=1)
    attended = _attend(config, parts.query(asking), parts.key(hidden), parts.value(hidden), mask)
    chosen = parts.output(attended.reshape(-1, width)[wanted.places])
    return _feed_forward(last, parts.norm(chosen + hidden.reshape(-1, width)[wanted.positions]))


def _layers(model: PreTrainedModel) -> list[Any]:
    """The encoder's layers in the order in which they are computed; ALBERT's come several times."""
    encoder = model.base_model.encoder
    if not hasattr(encoder, "albert_layer_groups"):
        return list(encoder.layer)
    layers, groups = model.config.num_hidden_layers, encoder.albert_layer_groups
    return [layer for number in range(layers) for layer in groups[int(number / (layers / len(groups)))].albert_layers]


def _computed(layer: Any, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """What a whole layer makes of hidden states."""
    output = layer(hidden, attention_mask=mask)
    states: torch.Tensor = output[0] if isinstance(output, tuple) else output  # a tuple in transformers 4
    return states


@dataclass(frozen=True)
class _AttentionParts:
    query: Any
    key: Any
    value: Any
    output: Any
    norm: Any


def _attention_of(layer: Any) -> _AttentionParts:
    """The parts of this layer's attention, by the names that its architecture has for them."""
    attention = layer.attention
    inner, after = getattr(attention, "self", attention), getattr(attention, "output", attention)
    return _AttentionParts(inner.query, inner.key, inner.value, after.dense, after.LayerNorm)


def _attend(
    config: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """[rows, columns, hidden_size], in the way in which the model's other layers compute it."""
    query, key, value = (
        states.unflatten(-1, (config.num_attention_heads, -1)).transpose(1, 2) for states in (query, key, value)
    )
    if config._attn_implementation == "eager":
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        attended = softmax(scores if mask is None else scores + mask, dim=-1) @ value
    else:
        attended = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return attended.transpose(1, 2).flatten(2)


def _feed_forward(layer: Any, attended: torch.Tensor) -> torch.Tensor:
    """What a layer makes of its attention's output [..., hidden_size], position by position."""
    if hasattr(layer, "ff_chunk"):
        result: torch.Tensor = layer.full_layer_layer_norm(layer.ff_chunk(attended) + attended)
    else:
        result = layer.feed_forward_chunk(attended)
    return result
