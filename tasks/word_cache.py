"""Remembers the ids of words, in a bounded number of bytes.

Words and ids lie in Arrow and NumPy arrays: about 50 bytes a word, where a dictionary of strings takes 230, and no
small objects that come and go and leave holes in Python's memory.

Imported only by a running stage: the libraries are imported at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

CACHED_WORDS = 300_000
"""Words from which on the cache is full."""

CACHED_LENGTH = 64
"""Characters of the longest word that is kept: longer ones hardly come again, and would make the cache unbounded."""


@dataclass(frozen=True)
class IdLists:
    """Lists of ids, one after the other."""

    ids: NDArray[Any]

    bounds: NDArray[np.int64]
    """``[lists + 1]`` where each begins and ends."""

    @classmethod
    def of(cls, lists: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> Self:
        """From each list's ids."""
        bounds = np.array([0, *accumulate(map(len, lists))])
        return cls(np.concatenate([np.empty(0, dtype=dtype), *lists]), bounds)

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
    """Ids of words. Once it is full it forgets those that were not asked for again since it was full the last time.

    Args:
        dtype: of the ids.
    """

    def __init__(self, dtype: np.dtype[Any]):
        self.words = pa.chunked_array([], pa.string())
        """All words that are remembered; in chunks, since to join them would take their memory twice."""
        self._lists = IdLists.of([], dtype)
        self._wanted = np.empty(0, dtype=bool)

    def look_up(self, words: pa.StringArray) -> tuple[IdLists, NDArray[np.int64]]:
        """The ids of those that are known, and ``[words]`` which of these lists is each word's, -1 where none is.

        Args:
            words: distinct ones.
        """
        # Those that are remembered are sought among those asked for, since a table of fewer words is made faster:
        # 260,000 and 28,000 words take 8 ms this way round, 53 the other.
        asked = pc.index_in(self.words, value_set=words).fill_null(-1).to_numpy()
        known = np.flatnonzero(asked >= 0)
        self._wanted[known] = True
        places = np.full(len(words), -1)
        places[asked[known]] = np.arange(len(known))
        return self._lists.take(known), places

    def keep(self, words: pa.StringArray, ids: IdLists) -> None:
        """Remember words that are not known, unless they are too long."""
        if len(self.words) >= CACHED_WORDS:
            wanted = np.flatnonzero(self._wanted)
            self.words = pa.chunked_array([self.words.take(pa.array(wanted)).combine_chunks()])
            self._lists = self._lists.take(wanted)
            self._wanted = np.zeros(len(wanted), dtype=bool)
        short = np.flatnonzero(pc.less_equal(pc.utf8_length(words), CACHED_LENGTH).to_numpy(zero_copy_only=False))
        self.words = pa.chunked_array([*self.words.chunks, words.take(pa.array(short))])
        self._lists = self._lists.followed_by(ids.take(short))
        self._wanted = np.append(self._wanted, np.zeros(len(short), dtype=bool))
