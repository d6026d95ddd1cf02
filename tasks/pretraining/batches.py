"""Batches from packed shards: which sequences, in which order, with which tokens masked.

Everything is a function of (seed, step), so nothing about the data's position has to be saved: a training
that continues at step n sees what it would have seen. Order and masking are drawn for the whole batch of a
step before it is cut into parts, so ``accumulation`` changes neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import torch

from tasks.contract import UserError
from tasks.pretraining.settings import MaskingSettings
from tasks.pretraining.words import Words

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

ORDER, MASKING = 0, 1
"""Keep the random streams of one seed apart."""


class Split(Protocol):
    """Sequences that can be read by their numbers."""

    sequence_length: int
    has_pairs: bool
    has_padding: bool

    def __len__(self) -> int:
        """Number of sequences."""

    def expect(self, indices: NDArray[np.int64]) -> None:
        """These rows come next."""

    def rows(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """As :meth:`PackedSplit.rows`."""


class PackedSplit:
    """One split of a packed corpus, memory-mapped: rows are read from the file only when they are asked for.

    Args:
        folder: the artifact of stage ``pack``; its ``data`` holds ``<split>-*.arrow``, Arrow IPC files with the
            column ``input_ids`` (fixed-size lists), for sentence pairs ``boundary``, and where blocks are padded
            ``length``.
        split: "train" or "validation".

    Raises:
        UserError: there are no such files, or no sequences in them.
    """

    def __init__(self, folder: Path, split: str):
        self._ids: list[NDArray[Any]] = []
        self._boundaries: list[NDArray[Any]] = []
        self._lengths: list[NDArray[Any]] = []
        for path in sorted((folder / "data").glob(f"{split}-*.arrow")):
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            for batch in (reader.get_batch(number) for number in range(reader.num_record_batches)):
                if not batch.num_rows:
                    continue
                column = batch.column("input_ids")
                self._ids.append(column.flatten().to_numpy(zero_copy_only=True).reshape(batch.num_rows, -1))
                for name, columns in (("boundary", self._boundaries), ("length", self._lengths)):
                    if name in batch.schema.names:
                        columns.append(batch.column(name).to_numpy())
        if not self._ids:
            raise UserError(f"{folder / 'data'}: no sequences in split {split}; give the corpus more text")
        self._starts = np.cumsum([0, *(len(ids) for ids in self._ids)])
        self.has_pairs = bool(self._boundaries)
        self.has_padding = bool(self._lengths)
        self.sequence_length: int = self._ids[0].shape[1]

    def __len__(self) -> int:
        """Number of sequences."""
        return int(self._starts[-1])

    def chunks(self) -> Iterator[NDArray[Any]]:
        """The token ids [rows, sequence_length] in the order of the file, without a copy."""
        yield from self._ids

    def expect(self, indices: NDArray[np.int64]) -> None:
        """These rows come next: nothing to do, the system reads files ahead."""

    def rows(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The sequences with these numbers.

        Returns:
            ids [rows, sequence_length]; and [rows] each: the position of the second sentence's first token,
            and the number of tokens before the padding. Without pairs the first is sequence_length.
        """
        ids = np.empty((len(indices), self.sequence_length), dtype=np.int64)
        boundary = np.full(len(indices), self.sequence_length, dtype=np.int64)
        length = boundary.copy()
        chunk_of = np.searchsorted(self._starts, indices, side="right") - 1
        for row, (chunk, index) in enumerate(zip(chunk_of, indices, strict=True)):
            inside = index - self._starts[chunk]
            ids[row] = self._ids[chunk][inside]
            if self.has_pairs:
                boundary[row] = self._boundaries[chunk][inside]
            if self._lengths:
                length[row] = self._lengths[chunk][inside]
        return ids, boundary, length


class ShuffledOrder:
    """Which sequences belong to a step: every epoch is a permutation of its own, drawn from (seed, epoch)."""

    def __init__(self, size: int, seed: int):
        self._size = size
        self._seed = seed
        self._epoch = -1
        self._permutation: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def at(self, first: int, count: int) -> NDArray[np.int64]:
        """Sequence numbers of the samples ``first`` to ``first + count - 1`` of the whole training."""
        epochs, places = np.divmod(np.arange(first, first + count), self._size)
        chosen = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            if epoch != self._epoch:
                generator = np.random.default_rng([self._seed, ORDER, int(epoch)])
                self._epoch, self._permutation = int(epoch), generator.permutation(self._size)
            chosen[epochs == epoch] = self._permutation[places[epochs == epoch]]
        return chosen


@dataclass(frozen=True)
class Batch:
    """What the model sees of some sequences. Token tensors are int64 [rows, sequence_length]."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    """1 before the padding; None where nothing is padded."""
    token_type_ids: torch.Tensor | None
    """1 in the second sentence; None where there are no pairs."""
    positions: torch.Tensor
    """[masked] rising, in the flattened tokens: what is to be predicted."""
    targets: torch.Tensor
    """[masked] the tokens that stood there."""
    order: torch.Tensor | None
    """[rows] 1 where the sentences were swapped; None without SOP."""

    def split(self, parts: int) -> list[Batch]:
        """Cuts the rows into equal parts."""
        if parts == 1:
            return [self]
        rows, width = self.input_ids.shape
        size = rows // parts
        owner = self.positions // (size * width)
        cut = []
        for part in range(parts):
            mine, those = slice(part * size, (part + 1) * size), owner == part
            cut.append(
                Batch(
                    input_ids=self.input_ids[mine],
                    attention_mask=None if self.attention_mask is None else self.attention_mask[mine],
                    token_type_ids=None if self.token_type_ids is None else self.token_type_ids[mine],
                    positions=self.positions[those] - part * size * width,
                    targets=self.targets[those],
                    order=None if self.order is None else self.order[mine],
                )
            )
        return cut

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        moved = {name: value.to(device, non_blocking=True) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)


class Collator:
    """Makes batches of stored sequences: swaps sentences, masks tokens.

    Args:
        tokenizer: its special tokens (the unknown token is one) and padding are never masked.
        masking: rates; each ordinary token, or with whole_words each word, is chosen on its own, so the number of
            targets varies. What becomes of a chosen token (mask, random, kept) is drawn token by token even where
            words are chosen whole, as BERT's create_pretraining_data.py and transformers' collator do.
        sentence_order: whether to swap the sentences of half of the pairs.

    Raises:
        UserError: whole_words with a tokenizer whose words cannot be told from its tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, masking: MaskingSettings, sentence_order: bool):
        self._masking = masking
        self._sentence_order = sentence_order
        self._mask_id = tokenizer.mask_token_id
        self.is_special = np.zeros(len(tokenizer), dtype=bool)
        self.is_special[tokenizer.all_special_ids] = True
        self._ordinary = np.flatnonzero(~self.is_special)
        self._words = Words(tokenizer) if masking.whole_words else None

    def __call__(self, split: Split, indices: NDArray[np.int64], generator: np.random.Generator) -> Batch:
        """The batch of these sequences; ``generator`` decides swaps and masking."""
        ids, boundary, length = split.rows(indices)
        order = None
        if self._sentence_order:
            order = generator.random(len(ids)) < 0.5
            ids, boundary = _swap_sentences(ids, boundary, length, order)
        masked, positions, targets = self._mask(ids, generator)
        places = np.arange(ids.shape[1])
        padded = bool((length < ids.shape[1]).any())
        types = (places >= boundary[:, None]) & (places < length[:, None])
        return Batch(
            input_ids=torch.from_numpy(masked),
            attention_mask=torch.from_numpy((places < length[:, None]).astype(np.int64)) if padded else None,
            token_type_ids=torch.from_numpy(types.astype(np.int64)) if split.has_pairs else None,
            positions=torch.from_numpy(positions),
            targets=torch.from_numpy(targets),
            order=None if order is None else torch.from_numpy(order.astype(np.int64)),
        )

    def _mask(
        self, ids: NDArray[np.int64], generator: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        draws = generator.random(ids.shape, dtype=np.float32)
        if self._words is not None:
            draws = self._words.shared(draws, ids)
        chosen = (draws < self._masking.rate) & ~self.is_special[ids]
        positions = np.flatnonzero(chosen)
        targets = ids.reshape(-1)[positions]
        action = generator.random(len(positions), dtype=np.float32)
        others = self._ordinary[generator.integers(len(self._ordinary), size=len(positions))]
        changed = np.where(action < self._masking.mask + self._masking.random, others, targets)
        changed[action < self._masking.mask] = self._mask_id
        masked = ids.copy()
        masked.reshape(-1)[positions] = changed
        return masked, positions, targets


def _swap_sentences(
    ids: NDArray[np.int64], boundary: NDArray[np.int64], length: NDArray[np.int64], swap: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Turns ``[CLS] A [SEP] B [SEP] padding`` into ``[CLS] B [SEP] A [SEP] padding`` where ``swap`` says so.

    Returns:
        The ids, and where the second sentence now starts.
    """
    places = np.arange(ids.shape[1])
    boundary, length = boundary[:, None], length[:, None]
    swapped_boundary = length + 1 - boundary  # [CLS], B, [SEP]; B has length - 1 - boundary tokens
    source = np.where(places < swapped_boundary - 1, places + boundary - 1, places - swapped_boundary + 1)
    source = np.where(places == swapped_boundary - 1, boundary - 1, source)
    source = np.where((places == 0) | (places >= length - 1), places, source)
    source = np.where(swap[:, None], source, places)
    return np.take_along_axis(ids, source, axis=1), np.where(swap, swapped_boundary[:, 0], boundary[:, 0])
