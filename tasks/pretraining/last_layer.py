"""The encoder, whose last layer computes only what is asked of it: the states of a few positions.

Keys and values are needed of every position; queries, and all that follows the attention, only where something is
predicted: at the masked tokens, and for the order of the sentences at the first token of each sequence. Each sequence
has its own number of them, so the queries are padded to one number, and what was padded is left out afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention, softmax

from tasks.pretraining.batches import Batch
from tasks.pretraining.models import feed_forward, layers_of, projections

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

    def to(self, device: torch.device) -> Wanted:
        """The same on a device."""
        return Wanted(**{name: value.to(device, non_blocking=True) for name, value in vars(self).items()})


def most_in_a_row(batch: Batch) -> int:
    """Masked tokens of the sequence that has most of them."""
    rows, width = batch.input_ids.shape
    return int(torch.bincount(batch.positions // width, minlength=rows).max())


def wanted_of(batch: Batch, columns: int | None = None, room: int | None = None) -> Wanted:
    """What is wanted of a batch.

    Args:
        batch: whose ``positions`` rise.
        columns: width of the queries; as few as are needed if not given.
        room: for how many masked tokens there are places and positions; by default for those that there are. What is
            beyond them points to the first token.
    """
    rows, width = batch.input_ids.shape
    row = batch.positions // width
    count = torch.bincount(row, minlength=rows)
    firsts = torch.arange(0 if batch.order is None else rows, device=row.device)
    ahead = int(batch.order is not None)
    columns = max(1, ahead + int(count.max())) if columns is None else columns
    before = torch.cumsum(count, 0) - count
    places = row * columns + ahead + torch.arange(len(row), device=row.device) - before[row]
    queries = torch.zeros(rows * columns, dtype=torch.long, device=row.device)
    queries[places] = batch.positions - row * width
    padding = (0, 0 if room is None else room - len(row))
    return Wanted(
        queries=queries.reshape(rows, columns),
        places=torch.cat([firsts * columns, pad(places, padding)]),
        positions=torch.cat([firsts * width, pad(batch.positions, padding)]),
    )


def states_of(model: PreTrainedModel, batch: Batch, wanted: Wanted) -> torch.Tensor:
    """The wanted ones of the last layer's hidden states, [wanted, hidden_size]."""
    body = model.base_model
    hidden = body.embeddings(input_ids=batch.input_ids, token_type_ids=batch.token_type_ids)
    if hasattr(body.encoder, "embedding_hidden_mapping_in"):
        hidden = body.encoder.embedding_hidden_mapping_in(hidden)
    mask = None
    if batch.attention_mask is not None:  # what is added to the scores: [rows, 1, 1, sequence_length]
        absent = batch.attention_mask[:, None, None, :] == 0
        mask = torch.zeros(absent.shape, dtype=hidden.dtype, device=hidden.device)
        mask = mask.masked_fill(absent, torch.finfo(hidden.dtype).min)
    *before, last = layers_of(model)
    for layer in before:
        output = layer(hidden, attention_mask=mask)
        hidden = output[0] if isinstance(output, tuple) else output  # a tuple in transformers 4
    parts = projections(last)
    asking = torch.take_along_dim(hidden, wanted.queries[..., None], dim=1)
    attended = _attention(model, parts.query(asking), parts.key(hidden), parts.value(hidden), mask)
    width = hidden.shape[-1]
    chosen = attended.reshape(-1, width)[wanted.places]
    residual = hidden.reshape(-1, width)[wanted.positions]
    return feed_forward(last, parts.norm(parts.dropout(parts.output(chosen)) + residual))


def _attention(
    model: PreTrainedModel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """[rows, queries, hidden_size], in the way in which the model's other layers compute it."""
    config: Any = model.config
    query, key, value = (
        states.unflatten(-1, (config.num_attention_heads, -1)).transpose(1, 2) for states in (query, key, value)
    )
    dropout = config.attention_probs_dropout_prob if model.training else 0.0
    if config._attn_implementation == "eager":
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        weights = softmax(scores if mask is None else scores + mask, dim=-1)
        attended = torch.dropout(weights, dropout, model.training) @ value
    else:
        attended = scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    return attended.transpose(1, 2).flatten(2)
