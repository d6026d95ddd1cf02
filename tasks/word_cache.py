"""Remembers the ids of words, in a bounded number of bytes.

Words and ids lie in Arrow and NumPy arrays: about 50 bytes a word, where a dictionary of strings takes 230, and no
small objects that come and go and leave holes in Python's memory.

Imported only by a running stage: the libraries are imported at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

CACHED_WORDS = 75_000
"""Words from which on a generation of the cache is full; there are two generations."""

CACHED_LENGTH = 64
"""Characters of the longest word that is kept: longer ones hardly come again, and would make the cache unbounded."""


@dataclass(frozen=True)
class IdLists:
    """Lists of ids, one after the other."""

    ids: NDArray[Any]

    bounds: NDArray[np.int64]
    """``[lists + 1]`` where each begins and ends."""

    @classmethod
    def of(cls, lists: Sequence[bytes], dtype: np.dtype[Any]) -> Self:
        """From each list's bytes."""
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists)) // dtype.itemsize
        return cls(np.frombuffer(b"".join(lists), dtype=dtype), np.concatenate([[0], np.cumsum(lengths)]))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def followed_by(self, others: IdLists) -> IdLists:
        """These lists, then those."""
        bounds = np.concatenate([self.bounds, self.bounds[-1] + others.bounds[1:]])
        return IdLists(np.concatenate([self.ids, others.ids]), bounds)

    def take(self, numbers: NDArray[np.int64]) -> IdLists:
        """The lists of these numbers, in their order."""
        lengths = np.diff(self.bounds)[numbers]
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.bounds[numbers] - bounds[:-1], lengths)
        places += np.arange(bounds[-1])
        return IdLists(self.ids[places], bounds)


class WordCache:
    """Ids of words, in two generations: a full one becomes the old one, of which only what is asked for lives on.

    Args:
        dtype: of the ids.
    """

    def __init__(self, dtype: np.dtype[Any]):
        self._nothing = pa.array([], pa.string()), IdLists.of([], dtype)
        self._young = self._old = self._nothing

    def __len__(self) -> int:
        """The words of both generations."""
        return len(self.words)

    @property
    def words(self) -> pa.StringArray:
        """All words that are remembered; those of the old generation that were asked for are there twice."""
        return pa.concat_arrays([self._young[0], self._old[0]])

    def look_up(self, words: pa.StringArray) -> tuple[IdLists, NDArray[np.int64]]:
        """Lists of ids, and ``[words]`` which of them is each word's, -1 where it is not known.

        Args:
            words: distinct ones.
        """
        known = self._young[1].followed_by(self._old[1])
        found = pc.index_in(words, value_set=self.words).fill_null(-1).to_numpy().astype(np.int64)
        older = np.flatnonzero(found >= len(self._young[0]))
        self.keep(words.take(pa.array(older)), known.take(found[older]))
        return known, found

    def keep(self, words: pa.StringArray, ids: IdLists) -> None:
        """Remember words that are not in the young generation, unless they are too long."""
        short = pc.less_equal(pc.utf8_length(words), CACHED_LENGTH)
        kept = np.flatnonzero(short.to_numpy(zero_copy_only=False))
        if len(kept):
            young, lists = self._young
            self._young = pa.concat_arrays([young, words.filter(short)]), lists.followed_by(ids.take(kept))
        if len(self._young[0]) >= CACHED_WORDS:
            self._old, self._young = self._young, self._nothing
