from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tasks import word_cache
from tasks.word_cache import CACHED_LENGTH, IdLists, WordCache

DTYPE = np.dtype(np.uint16)


def lists_of(*lists: list[int]) -> IdLists:
    return IdLists.of([np.array(ids, dtype=DTYPE) for ids in lists], DTYPE)


def content(lists: IdLists) -> list[list[int]]:
    return [lists.ids[lists.bounds[number] : lists.bounds[number + 1]].tolist() for number in range(len(lists))]


def looked_up(cache: WordCache, *words: str) -> list[list[int] | None]:
    known, places = cache.look_up(pa.array(words, pa.string()))
    lists = content(known)
    return [None if place < 0 else lists[place] for place in places.tolist()]


def test_lists_are_joined_and_taken_in_any_order() -> None:
    lists = lists_of([1, 2], [], [3]).followed_by(lists_of()).followed_by(lists_of([4, 5, 6]))
    assert content(lists) == [[1, 2], [], [3], [4, 5, 6]]
    assert content(lists.take(np.array([3, 0, 1, 3]))) == [[4, 5, 6], [1, 2], [], [4, 5, 6]]
    assert content(lists.take(np.array([], dtype=np.int64))) == []
    assert lists.take(np.array([0])).ids.dtype == DTYPE


def test_a_word_without_ids_is_known() -> None:
    cache = WordCache(DTYPE)
    assert looked_up(cache, "ক") == [None]
    cache.keep(pa.array(["ক", "", "খ"]), lists_of([7], [8, 9], []))
    assert looked_up(cache, "খ", "গ", "ক", "") == [[], None, [7], [8, 9]]


def test_long_words_are_not_kept() -> None:
    cache = WordCache(DTYPE)
    longest = "ক" * CACHED_LENGTH  # characters, not bytes
    cache.keep(pa.array([longest, longest + "ক", "খ"]), lists_of([1], [2, 2], [3]))
    assert looked_up(cache, longest, longest + "ক", "খ") == [[1], None, [3]]


def test_a_full_cache_keeps_what_was_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "CACHED_WORDS", 10)
    cache = WordCache(DTYPE)
    cache.keep(pa.array(["once", "again"]), lists_of([1], [2, 3]))
    sizes = []
    for number in range(100):
        cache.keep(pa.array([f"word {number}"]), lists_of([number]))
        assert looked_up(cache, "new", "again", f"word {number}") == [None, [2, 3], [number]]
        sizes.append(len(cache.words))
    assert max(sizes) == 10
    assert looked_up(cache, "once", "word 0", "word 99") == [None, None, [99]]
    assert cache.words.to_pylist().count("again") == 1


def test_what_is_asked_for_no_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "CACHED_WORDS", 10)
    cache = WordCache(DTYPE)
    for number in range(100):  # each is asked for again, once
        cache.keep(pa.array([f"word {number}"]), lists_of([number]))
        assert looked_up(cache, f"word {number}") == [[number]]
        assert len(cache.words) <= 11
    assert looked_up(cache, "word 0", "word 99") == [None, [99]]
