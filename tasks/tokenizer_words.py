"""Counts the distinct words of a text, as a definition's normaliser and pre-tokenizer make them.

A trainer needs each distinct word once, with its number, and a corpus has few of them: 35 MB of Bengali have 100,000.
So words between white space are counted first, by Arrow, and only the distinct ones are normalised and cut. A
normaliser step whose pattern looks at a word's neighbours sees other neighbours here; in use it sees the true ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.tokenizer_memory import BYTES_A_COUNTED_WORD, check_memory

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORDS_AT_ONCE = 500
"""Distinct words that are normalised by one call: fewer cost time for the calls, more cost memory."""


@dataclass(frozen=True)
class Words:
    """Distinct pieces that the pre-tokenizer made, in the order of their characters."""

    texts: list[str]
    counts: list[int]
    characters: int
    """Characters of the text that was counted."""

    def without(self, marks: str) -> tuple[Words, int]:
        """The words that hold none of these characters, and how many words of the text are left out so."""
        kept = [not any(mark in text for mark in marks) for text in self.texts]
        texts = [text for text, keep in zip(self.texts, kept, strict=True) if keep]
        counts = [count for count, keep in zip(self.counts, kept, strict=True) if keep]
        return Words(texts, counts, self.characters), sum(self.counts) - sum(counts)


def count_words(batches: Iterable[list[str]], tokenizer: Tokenizer) -> Words:
    """Count the pieces of a text.

    Args:
        batches: the text in pieces that may be cut at white space.
        tokenizer: has the normaliser and the pre-tokenizer; its vocabulary is not looked at.

    Raises:
        StageError: the distinct words do not fit into memory.
    """
    raw: Counter[str] = Counter()
    characters = 0
    for texts in batches:
        characters += sum(map(len, texts))
        for word, number in _count_between_spaces(texts):
            raw[word] += number
        # So much again is still to come: the pieces that the words are cut into.
        check_memory(len(raw) * BYTES_A_COUNTED_WORD, "counting words", characters)
    # Words of one number are normalised together: what comes out of them has that number too.
    by_number: dict[int, list[str]] = {}
    for word, number in raw.items():
        by_number.setdefault(number, []).append(word)
    raw.clear()
    pieces: Counter[str] = Counter()
    for number, words in by_number.items():
        for start in range(0, len(words), WORDS_AT_ONCE):
            normalized = tokenizer.normalizer.normalize_str(" ".join(words[start : start + WORDS_AT_ONCE]))
            for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized):
                pieces[piece] += number
    texts = sorted(pieces)
    return Words(texts, [pieces[text] for text in texts], characters)


def _count_between_spaces(texts: list[str]) -> Iterable[tuple[str, int]]:
    """Distinct words between white space with their numbers, in the order in which they occur first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = pc.list_flatten(pc.utf8_split_whitespace(pa.array(texts, pa.large_string())))
    counted = pc.value_counts(words)
    values, numbers = counted.field("values").to_pylist(), counted.field("counts").to_pylist()
    return ((word, number) for word, number in zip(values, numbers, strict=True) if word)
