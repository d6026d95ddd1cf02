"""The pieces that a Unigram's training starts from: the substrings of the words that occur most.

The Unigram language model (Kudo 2018, https://arxiv.org/abs/1804.10959) starts from far more pieces than it keeps and
drops those that the likelihood misses least. Which ones come into question is found in a suffix array: a substring
counts if it can be continued in more than one way, since one that is always followed by the same character says
nothing that the longer one does not. sentencepiece finds its own in the text with every word as often as it occurs;
here each distinct word stands once and carries its number, which is the same count in a fraction of time and memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

LONGEST_PIECE = 16
"""Characters of the longest piece; sentencepiece and ``tokenizers`` have the same default."""


def seed_pieces(words: list[str], counts: list[int], limit: int) -> list[tuple[str, int]]:
    """All single characters, and the ``limit`` best longer substrings by occurrences times length.

    Args:
        words: distinct, none of them empty or with a NUL in it.
        counts: how often each occurs.
        limit: how many longer ones at most.

    Returns:
        Pieces with occurrences times length, the characters first, each group by falling score; equal scores in the
        order of first occurrence.
    """
    import numpy as np

    text, starts, lengths, totals = _substrings(words, counts)
    scores = totals * lengths
    order = np.lexsort((starts, -scores))
    single = order[lengths[order] == 1]
    longer = order[lengths[order] > 1][:limit]
    chosen = np.concatenate([single, longer])
    return [
        (text[start : start + length], score)
        for start, length, score in zip(
            starts[chosen].tolist(), lengths[chosen].tolist(), scores[chosen].tolist(), strict=True
        )
    ]


def _substrings(words: list[str], counts: list[int]) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    """The words' text, and of every substring that comes into question start, length and number of occurrences."""
    import numpy as np

    text = "\0".join([*words, ""])
    alphabet, codes = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_inverse=True)
    codes = codes.astype(np.uint8 if len(alphabet) <= 256 else np.uint16)  # the words' end, NUL, stays 0
    ends = np.flatnonzero(codes == 0)
    sizes = np.diff(ends, prepend=-1)
    left = np.repeat(ends, sizes) - np.arange(len(codes))
    weights = np.repeat(np.asarray(counts, np.int64), sizes)

    # Every suffix of every word, cut at the longest piece and padded with 0: one row of codes each, in sorted order.
    starts = np.flatnonzero(codes)
    padded = np.concatenate([codes, np.zeros(LONGEST_PIECE, codes.dtype)])
    rows = np.lib.stride_tricks.sliding_window_view(padded, LONGEST_PIECE)[starts]
    rows[np.arange(LONGEST_PIECE) >= left[starts, None]] = 0
    order = _sorted_order(rows)
    rows, starts, left, weights = rows[order], starts[order], left[starts][order], weights[starts][order]
    reached = np.concatenate([[0], np.cumsum(weights)])
    # The first column in which a row differs from the one before it.
    differs = rows[1:] != rows[:-1]
    common = np.where(differs.any(axis=1), differs.argmax(axis=1), LONGEST_PIECE)

    found: list[tuple[Any, Any, Any]] = []
    for length in range(1, LONGEST_PIECE + 1):
        # Rows with equal first characters follow one another: a substring is such a group.
        first = np.flatnonzero(np.concatenate([[True], common < length]))
        last = np.append(first[1:], len(rows)) - 1
        total = reached[last + 1] - reached[first]
        keep = left[first] >= length
        if length > 1:
            keep &= total >= 2
            if length < LONGEST_PIECE:
                # Sorted, so the group goes on in one way only if its first and its last row do; 0 is the word's end.
                keep &= (rows[first, length] != rows[last, length]) | (rows[first, length] == 0)
        found.append((starts[first[keep]], np.full(int(keep.sum()), length, np.int64), total[keep]))
    parts = zip(*found, strict=True)
    return text, *(np.concatenate(part) for part in parts)  # type: ignore[return-value]


def _sorted_order(rows: np.ndarray) -> np.ndarray:
    """The order that sorts rows of codes by their first column, then the second, and so on."""
    import numpy as np

    # Several codes as one big-endian number compare as the codes one by one do.
    numbers = rows.astype(rows.dtype.newbyteorder(">")).view(">u8").astype(np.uint64)
    return np.lexsort(numbers.T[::-1])
