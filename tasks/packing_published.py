"""Packs as the Gaudi recipe was published (huggingface/blog, pretraining-bert): cut off, run together, drop the rest.

Every document is cut off at one block, ``[CLS]`` and ``[SEP]`` included. A thousand such at a time are run together
and cut into blocks, which therefore begin and end anywhere; what does not fill a block at the end of a thousand is
dropped. The published code drops it at the end of each of its processes' batches, so its data depended on their
number; here the thousands are counted from a split's beginning. It keeps a last batch of less than one block as a
short block; here that is dropped too.

Imported only by a running stage: NumPy is imported at the top.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tasks.packing_rows import Account, Ids, Row, SpecialIds

BATCH_DOCUMENTS = 1_000
"""Documents run together: the batch size of ``datasets.map``, which the published code leaves as it is."""


class PublishedPacker:
    """Blocks of documents that were cut off; has the packers' interface (``tasks.packing_rows``).

    Args:
        sequence_length: tokens a block, and of a document with its ``[CLS]`` and ``[SEP]``.
        special: ids of the special tokens.
        dtype: of the rows.
        account: what was packed before, and is continued.
        offset: tokens of document ``account.documents``, special ones included, that were packed before.
    """

    def __init__(
        self,
        sequence_length: int,
        special: SpecialIds,
        *,
        dtype: type[np.unsignedinteger],
        account: Account,
        offset: int = 0,
    ):
        self.account = account
        self.offset = offset
        self._row = np.empty(sequence_length, dtype=dtype)
        self._document = np.empty(sequence_length, dtype=dtype)
        self._document[0] = special.cls
        self._sep = special.sep
        self._used = 0
        self._text = 0

    def rows(self, documents: Iterable[Ids]) -> Iterator[Row]:
        """Yield the blocks; each document is one array of ids."""
        for ids in documents:
            kept = min(len(ids), len(self._row) - 2)
            document = self._document[: kept + 2]
            document[1:-1] = ids[:kept]
            document[-1] = self._sep
            while self.offset < len(document):
                taken = min(len(self._row) - self._used, len(document) - self.offset)
                end = self.offset + taken
                self._row[self._used : self._used + taken] = document[self.offset : end]
                self._text += min(end, kept + 1) - max(self.offset, 1)  # without [CLS] at 0 and [SEP] at kept + 1
                self._used += taken
                self.offset = end
                if self._used == len(self._row):
                    yield self._emit()
            self.account.documents += 1
            self.account.tokens_in += len(ids)
            self.account.tokens_dropped += len(ids) - kept
            self.account.tokens_cut_off += len(ids) - kept
            self.offset = 0
            if self.account.documents % BATCH_DOCUMENTS == 0:
                self.finish()

    def finish(self) -> None:
        """Drop what does not fill a block."""
        self.account.tokens_dropped += self._text
        self._used = self._text = 0

    def _emit(self) -> Row:
        self.account.tokens_packed += self._text
        self.account.special_tokens += len(self._row) - self._text
        self.account.blocks += 1
        self._used = self._text = 0
        return Row(self._row, 0, len(self._row))
