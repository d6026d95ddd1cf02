from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tasks.tokenizer_seeds import LONGEST_PIECE, seed_pieces


def by_hand(words: list[str], counts: list[int]) -> dict[str, int]:
    """Occurrences of each substring that counts, by going through all of them."""
    occurrences: Counter[str] = Counter()
    followed: dict[str, Counter[str]] = {}
    for word, count in zip(words, counts, strict=True):
        for start in range(len(word)):
            for end in range(start + 1, min(len(word), start + LONGEST_PIECE) + 1):
                piece = word[start:end]
                occurrences[piece] += count
                followed.setdefault(piece, Counter())[word[end : end + 1]] += count
    return {
        piece: number
        for piece, number in occurrences.items()
        if len(piece) == 1
        or (number >= 2 and (len(piece) == LONGEST_PIECE or len(followed[piece]) > 1 or "" in followed[piece]))
    }


@given(st.dictionaries(st.text("abcক\u09cd", min_size=1, max_size=20), st.integers(1, 9), min_size=1, max_size=12))
def test_it_finds_what_counting_by_hand_finds(words: dict[str, int]) -> None:
    texts = sorted(words)
    expected = by_hand(texts, [words[text] for text in texts])
    found = seed_pieces(texts, [words[text] for text in texts], 10_000)
    assert {piece: score // len(piece) for piece, score in found} == expected
    singles = [score for piece, score in found if len(piece) == 1]
    longer = [score for piece, score in found if len(piece) > 1]
    assert found == sorted(found, key=lambda row: len(row[0]) > 1)
    assert singles == sorted(singles, reverse=True)
    assert longer == sorted(longer, reverse=True)
    assert seed_pieces(texts, [words[text] for text in texts], 3) == found[: len(singles) + 3]


def test_an_alphabet_of_more_than_a_byte() -> None:
    words = [chr(0x4E00 + i) + chr(0x4E00 + (i + 1) % 600) for i in range(600)]
    found = dict(seed_pieces(words, [2] * 600, 10_000))
    assert found == dict.fromkeys(words, 4) | {chr(0x4E00 + i): 4 for i in range(600)}
