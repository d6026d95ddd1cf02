"""Packs encoded documents into rows of one length, and keeps account of every token.

The packers share one interface: ``rows(documents)`` takes documents in order and yields a ``Row`` for each block,
``finish()`` settles what is left. Whenever a row is yielded nothing is carried over, so the packer can be set up again
at that very place from ``account`` and ``offset``: the documents are fed again from number ``account.documents`` on.

Imported only by a running stage: NumPy is imported at the top.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.contract import StageError

Ids = NDArray[Any]
"""Token ids of a stretch of text, uint16 or uint32, shape ``[tokens]``."""


class SpecialIds(NamedTuple):
    """Ids of the special tokens that packing needs."""

    pad: int
    cls: int
    sep: int


class Row(NamedTuple):
    """One block. ``ids`` is reused for the next row: copy it before going on."""

    ids: Ids
    """Shape ``[sequence_length]``."""

    boundary: int
    """Index of the first token of the second segment; 0 where there is only one."""

    length: int
    """Tokens before the padding, special ones included."""


@dataclass
class Account:
    """Where the tokens of a split went. A document counts once all of it is in rows, pending or dropped."""

    documents: int = 0
    tokens_in: int = 0
    """Tokens of the documents, without special ones."""
    tokens_packed: int = 0
    tokens_dropped: int = 0
    tokens_cut_off: int = 0
    """Of the dropped: behind the first block of a document (mode published)."""
    tokens_remainder: int = 0
    """Tokens at the very end that do not fill a block."""
    special_tokens: int = 0
    padding: int = 0
    blocks: int = 0
    single_sentences: int = 0
    """Documents of one sentence (mode sentence-pairs)."""

    def check(self, split: str, sequence_length: int) -> None:
        """Check that no token is unaccounted for.

        Raises:
            StageError: the sums do not agree.
        """
        gone = self.tokens_packed + self.tokens_dropped + self.tokens_remainder
        if self.tokens_in != gone:
            raise StageError(f"packing account of split {split}: {self.tokens_in} tokens in, but {gone} accounted for")
        held = self.tokens_packed + self.special_tokens + self.padding
        if held != self.blocks * sequence_length:
            raise StageError(
                f"packing account of split {split}: {held} tokens in {self.blocks} blocks of {sequence_length}"
            )


class ConcatenatePacker:
    """Blocks ``[CLS] text [SEP]`` of running text; long documents continue in the next block.

    Args:
        sequence_length: tokens a block.
        special: ids of the special tokens.
        crossing: whether a block takes the next document after ``[SEP]``; else it is padded at a document's end.
        dtype: of the rows.
        account: what was packed before, and is continued.
        offset: tokens of document ``account.documents`` that were packed before.
    """

    def __init__(
        self,
        sequence_length: int,
        special: SpecialIds,
        *,
        crossing: bool,
        dtype: type[np.unsignedinteger],
        account: Account,
        offset: int = 0,
    ):
        self.account = account
        self.offset = offset
        self._crossing = crossing
        self._special = special
        self._row = np.full(sequence_length, special.pad, dtype=dtype)
        self._capacity = sequence_length - 2
        self._used = 0
        self._separators = 0

    def rows(self, documents: Iterable[Ids]) -> Iterator[Row]:
        """Yield the blocks that the documents fill; each document is one array of ids."""
        content = self._row[1:-1]
        for ids in documents:
            if self._used and len(ids):
                # Only within a block: no block begins with a separator.
                content[self._used] = self._special.sep
                self._used += 1
                self._separators += 1
                if self._used == self._capacity:
                    yield self._emit()
            while self.offset < len(ids):
                taken = min(self._capacity - self._used, len(ids) - self.offset)
                content[self._used : self._used + taken] = ids[self.offset : self.offset + taken]
                self._used += taken
                self.offset += taken
                if self._used == self._capacity:
                    yield self._emit()
            if self._used and not self._crossing:
                yield self._emit()
            self.account.documents += 1
            self.account.tokens_in += len(ids)
            self.offset = 0

    def finish(self) -> None:
        """Book the pending text, which does not fill a block, as remainder."""
        self.account.tokens_remainder = self._used - self._separators

    def _emit(self) -> Row:
        length = self._used + 2
        self._row[0] = self._special.cls
        self._row[length - 1] = self._special.sep
        self._row[length:] = self._special.pad
        self.account.tokens_packed += self._used - self._separators
        self.account.special_tokens += 2 + self._separators
        self.account.padding += len(self._row) - length
        self.account.blocks += 1
        self._used = self._separators = 0
        return Row(self._row, 0, length)


class PairPacker:
    """Blocks ``[CLS] A [SEP] B [SEP]`` of consecutive sentences of a document, padded, for sentence order prediction.

    Sentences stay whole. Were blocks filled to the brim, the first segment would end within a sentence just when the
    segments are swapped, and the model could tell the order from that alone. A sentence that is longer than half a
    block continues as several pieces of equal length, so any two consecutive pieces fit into a block.

    Args:
        sequence_length: tokens a block.
        special: ids of the special tokens.
        join_single: a single sentence left at a document's end goes with the next document; else it is dropped.
        seed: with the block's number it decides between which sentences A ends and B begins.
        dtype: of the rows.
        account: what was packed before, and is continued.
        offset: sentences (pieces) of document ``account.documents`` that were packed before.
    """

    def __init__(
        self,
        sequence_length: int,
        special: SpecialIds,
        *,
        join_single: bool,
        seed: int,
        dtype: type[np.unsignedinteger],
        account: Account,
        offset: int = 0,
    ):
        self.account = account
        self.offset = offset
        self._join_single = join_single
        self._seed = seed
        self._special = special
        self._row = np.full(sequence_length, special.pad, dtype=dtype)
        self._capacity = sequence_length - 3
        self._pending: list[Ids] = []
        self._used = 0

    def rows(self, documents: Iterable[list[Ids]]) -> Iterator[Row]:
        """Yield the blocks; each document is a list of sentences, each sentence an array of ids."""
        for sentences in documents:
            pieces = [piece for sentence in sentences for piece in self._pieces(sentence)]
            for index in range(self.offset, len(pieces)):
                if self._used + len(pieces[index]) > self._capacity:
                    self.offset = index
                    yield self._emit()
                self._pending.append(pieces[index])
                self._used += len(pieces[index])
            if len(self._pending) > 1:
                self.offset = len(pieces)
                yield self._emit()
            elif not self._join_single:
                self.account.tokens_dropped += self._used
                self._pending, self._used = [], 0
            self.account.documents += 1
            self.account.single_sentences += sum(len(sentence) > 0 for sentence in sentences) == 1
            self.account.tokens_in += sum(len(sentence) for sentence in sentences)
            self.offset = 0

    def finish(self) -> None:
        """Book a single sentence that found no partner as remainder."""
        self.account.tokens_remainder = self._used

    def _pieces(self, sentence: Ids) -> list[Ids]:
        """The sentence, or equal parts of at most half a block; none if it has no tokens."""
        if len(sentence) == 0:
            return []
        half = self._capacity // 2
        return [sentence] if len(sentence) <= half else np.array_split(sentence, -(-len(sentence) // half))

    def _emit(self) -> Row:
        cut = 1 + _draw(self._seed, self.account.blocks, len(self._pending) - 1)
        first = sum(len(piece) for piece in self._pending[:cut])
        length = self._used + 3
        row = self._row
        row[0] = self._special.cls
        row[1 : first + 1] = np.concatenate(self._pending[:cut])
        row[first + 1] = self._special.sep
        row[first + 2 : length - 1] = np.concatenate(self._pending[cut:])
        row[length - 1] = self._special.sep
        row[length:] = self._special.pad
        self.account.tokens_packed += self._used
        self.account.special_tokens += 3
        self.account.padding += len(row) - length
        self.account.blocks += 1
        self._pending, self._used = [], 0
        return Row(row, first + 2, length)


def _draw(seed: int, number: int, choices: int) -> int:
    """One of ``range(choices)``, by a hash of seed and number: the same on every machine and with every library."""
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % choices
