"""Encodes texts word by word: each distinct word once, by the tokenizer itself, and then gathers ids with NumPy.

Text repeats its words: 37.7 MB of Bengali have 2.2 million, 0.18 million of them distinct. So texts are cut at white
space, the words numbered by Arrow's dictionary encoding, and only those that are not in the cache go to the tokenizer.
Where two words touch (see ``tasks.word_locality``) they go to it together, with the white space between them.

Imported only by a running stage: the libraries are imported at the top.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.word_cache import CACHED_LENGTH, IdLists, WordCache
from tasks.word_locality import Edges, beginnings, endings, keeps_spaces, separators

CACHED_ENDINGS = 10_000
"""Runs of punctuation that are kept, the first that come."""

JOINED_WORDS = 64
"""New words that go to the tokenizer as one text, with a space between: 6 µs a word instead of 10 (two threads)."""


class Units(NamedTuple):
    """Texts cut into what is encoded in one piece: words, and stretches of text in which words touch."""

    numbers: NDArray[np.int64]
    """``[units]`` which of the distinct ones each is."""

    bounds: NDArray[np.int64]
    """``[texts + 1]`` where each text's units begin and end."""

    distinct: pa.StringArray

    words: NDArray[np.bool_]
    """``[distinct]`` whether it is a word that touches no neighbour wherever it stands."""


class WordEncoder:
    """Encodes many texts at once, with the ids that the tokenizer gives to each text as a whole.

    One thread may cut the next texts while another encodes the last: ``cut`` and ``encode`` share only the table of
    characters, where each would write the same.

    Args:
        tokenizer: one for which ``word_locality.obstacle`` finds nothing.
        dtype: of the ids.
    """

    def __init__(self, tokenizer: Tokenizer, dtype: type[np.unsignedinteger]):
        self._tokenizer = tokenizer
        self._dtype = np.dtype(dtype)
        self._edges = Edges(tokenizer)
        self._keeps_spaces = keeps_spaces(tokenizer)
        found = separators(tokenizer)
        self._is_white = np.zeros(256, dtype=bool)
        self._is_white[[ord(separator) for separator in found if separator.isascii()]] = True
        self._other_white = [tuple(separator.encode()) for separator in found if not separator.isascii()]
        self._begins = beginnings(tokenizer)
        self._endings = endings(tokenizer)
        self._ending_ids: dict[str, NDArray[Any]] = {}
        self._cache = WordCache(self._dtype)

    def encode(self, units: Units) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all texts, and ``[texts + 1]`` where each begins and ends among them."""
        stems, tails = self._split(units)
        known = self._stem_ids(stems, units.words)
        lists = known.followed_by(self._tail_ids(tails))
        # The ids of a unit are those of its stem and of its tail, which mostly is empty.
        parts = np.stack([_numbers(stems), len(known) + _numbers(tails)], axis=1)
        both = lists.take(parts.reshape(-1))
        found = IdLists(both.ids, both.bounds[::2]).take(units.numbers)
        return found.ids, found.bounds[units.bounds]

    def _split(self, units: Units) -> tuple[pa.DictionaryArray, pa.DictionaryArray]:
        """The distinct units without the punctuation at words' ends, and that punctuation.

        Only the former are kept, and there are far fewer of them.
        """
        stems = pc.utf8_rtrim(units.distinct, characters=self._endings) if self._endings else units.distinct
        last = _outer_characters(pc.if_else(pc.equal(stems, ""), " ", stems))[1]
        cut = units.words & (self._edges.of(last) & Edges.ENDS != 0)
        stems = pc.if_else(pa.array(cut), stems, units.distinct)
        data, bounds = _bytes_of(units.distinct)
        where = IdLists(data, np.stack([bounds[:-1] + pc.binary_length(stems).to_numpy(), bounds[1:]]).T.reshape(-1))
        tails = where.take(np.arange(0, 2 * len(stems), 2))
        return stems.dictionary_encode(), _strings(tails.ids, tails.bounds).dictionary_encode()

    def _stem_ids(self, stems: pa.DictionaryArray, words: NDArray[np.bool_]) -> IdLists:
        """The ids of the distinct stems, from the cache or else by the tokenizer; ``words`` is of the units."""
        is_word = np.zeros(len(stems.dictionary), dtype=bool)
        is_word[_numbers(stems)] = words
        known, places = self._cache.look_up(stems.dictionary)
        missing = np.flatnonzero(places < 0)
        # In order, words take the ways through the model's tables that those before them took: a fifth faster.
        missing = missing[pc.sort_indices(stems.dictionary.take(pa.array(missing))).to_numpy()]
        texts = stems.dictionary.take(pa.array(missing))
        new = self._new(texts, is_word[missing])
        self._cache.keep(texts, new)
        places[missing] = len(known) + np.arange(len(missing))
        return known.followed_by(new).take(places)

    def _tail_ids(self, tails: pa.DictionaryArray) -> IdLists:
        """The ids of the distinct tails."""
        return IdLists.of([self._ending(run) for run in tails.dictionary.to_pylist()], self._dtype)

    def _ending(self, run: str) -> NDArray[Any]:
        """The ids of punctuation behind a word."""
        ids = self._ending_ids.get(run)
        if ids is None:
            found = self._tokenized(["x", f"x{run}"])
            ids = found.ids[2 * found.bounds[1] :].copy()
            if len(run) <= CACHED_LENGTH and len(self._ending_ids) < CACHED_ENDINGS:
                self._ending_ids[run] = ids
        return ids

    def _new(self, texts: pa.StringArray, words: NDArray[np.bool_]) -> IdLists:
        """The ids of each of these texts, by the tokenizer."""
        if self._begins is None:
            return self._tokenized(texts.to_pylist())
        joined = np.flatnonzero(words)
        bounds = np.append(np.arange(0, len(joined), JOINED_WORDS), len(joined))
        groups = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), texts.take(pa.array(joined)))
        found = self._tokenized(pc.binary_join(groups, " ").to_pylist())
        begun = np.diff(np.searchsorted(np.flatnonzero(self._begins[found.ids]), found.bounds))
        apart = begun == np.diff(bounds)  # else a word became two, as with a no-break space in it
        found = found.take(np.flatnonzero(apart))
        found = IdLists(found.ids, np.append(np.flatnonzero(self._begins[found.ids]), len(found.ids)))
        told = np.repeat(apart, np.diff(bounds))
        alone = np.append(np.flatnonzero(~words), joined[~told])
        lists = found.followed_by(self._tokenized(texts.take(pa.array(alone)).to_pylist()))
        return lists.take(np.argsort(np.append(joined[told], alone)))

    def _tokenized(self, texts: list[str]) -> IdLists:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return IdLists.of([np.array(encoding.ids, dtype=self._dtype) for encoding in encodings], self._dtype)

    def cut(self, texts: pa.StringArray) -> Units:
        """Cut texts, an array without nulls, into units."""
        data, bounds = _bytes_of(texts)
        starts, ends, distinct = _words(data, bounds, self._white(data))
        firsts = np.searchsorted(starts, bounds)  # [texts + 1] each text's first word
        flags = self._edges.of(_outer_characters(distinct.dictionary))
        begins, behind = flags[0] & Edges.BEGINS != 0, flags[1] & Edges.ENDS != 0
        numbers = _numbers(distinct)
        added: list[str] = []  # units that are not words

        # A unit begins with each word but where it touches the one before it in the same text.
        alone = np.ones(len(numbers), dtype=bool)
        alone[1:] = behind[numbers[:-1]] & begins[numbers[1:]]
        filled = np.flatnonzero(firsts[1:] > firsts[:-1])
        alone[firsts[filled]] = True
        first_words = np.flatnonzero(alone)
        last_words = np.append(first_words, len(numbers))[1:] - 1
        unit_starts, unit_ends = starts[first_words], ends[last_words]
        touched = first_words != last_words
        unit_bounds = np.searchsorted(first_words, firsts)

        # White space at a text's front counts where the word behind it may not begin a unit; at its end, always.
        if self._keeps_spaces:
            fronts, backs = unit_bounds[:-1][filled], unit_bounds[1:][filled] - 1
            leading = (unit_starts[fronts] > bounds[:-1][filled]) & ~begins[numbers[firsts[filled]]]
            unit_starts[fronts[leading]] = bounds[:-1][filled][leading]
            trailing = unit_ends[backs] < bounds[1:][filled]
            unit_ends[backs[trailing]] = bounds[1:][filled][trailing]
            touched[fronts[leading]] = touched[backs[trailing]] = True
        numbers = numbers[first_words]
        if touched.any():
            numbers[touched] = _numbered(data, unit_starts[touched], unit_ends[touched], len(begins), added)
        blank = np.flatnonzero((firsts[1:] == firsts[:-1]) & (bounds[1:] > bounds[:-1]))
        if self._keeps_spaces and len(blank):
            found = _numbered(data, bounds[:-1][blank], bounds[1:][blank], len(begins), added)
            numbers = np.insert(numbers, unit_bounds[blank], found)
            unit_bounds[1:] += np.cumsum(np.bincount(blank, minlength=len(unit_bounds) - 1))
        words = np.append(begins & behind, np.zeros(len(added), dtype=bool))
        units = pa.concat_arrays([distinct.dictionary, pa.array(added, pa.string())])
        return Units(numbers, unit_bounds, units, words)

    def _white(self, data: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """``[bytes]`` what is white space."""
        white: NDArray[np.bool_] = self._is_white.take(data)
        for one, two in self._other_white:
            places = np.flatnonzero((data[:-1] == one) & (data[1:] == two))
            white[places] = white[places + 1] = True
        return white


def _bytes_of(texts: pa.StringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The UTF-8 bytes of all texts, and ``[texts + 1]`` where each begins and ends among them."""
    if len(texts) == 0:
        return np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    content = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return content[bounds[0] : bounds[-1]], bounds - bounds[0]


def _words(
    data: NDArray[np.uint8], bounds: NDArray[np.int64], white: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], pa.DictionaryArray]:
    """Cut texts at their white space.

    Returns:
        ``[words]`` where each word begins and ends in the texts' bytes; and the words as numbers into their distinct
        ones. No word reaches from one text into the next.
    """
    inside = ~white
    cut = bounds[(bounds > 0) & (bounds < len(data))]
    begin = inside.copy()
    begin[1:] &= ~inside[:-1]
    begin[cut] = inside[cut]
    end = inside.copy()
    end[:-1] &= ~inside[1:]
    end[cut - 1] = inside[cut - 1]
    starts, ends = np.flatnonzero(begin), np.flatnonzero(end) + 1
    words = _strings(data[inside], np.concatenate([[0], np.cumsum(ends - starts)]))
    return starts, ends, words.dictionary_encode()


def _strings(data: NDArray[np.uint8], bounds: NDArray[np.int64]) -> pa.StringArray:
    """The texts between bounds in UTF-8 bytes; the first is 0."""
    return pa.StringArray.from_buffers(
        len(bounds) - 1, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))
    )


def _numbers(texts: pa.DictionaryArray) -> NDArray[np.int64]:
    """``[texts]`` which of the distinct ones each is."""
    found: NDArray[np.int64] = texts.indices.to_numpy().astype(np.int64)
    return found


def _outer_characters(words: pa.StringArray) -> NDArray[np.uint32]:
    """``[2, words]`` the first and the last code point of each word."""
    data, bounds = _bytes_of(words)
    starts, lasts = bounds[:-1], bounds[1:] - 1
    for _ in range(3):
        lasts = lasts - (data[lasts] & 0xC0 == 0x80)
    places = np.stack([starts, lasts])
    padded = np.append(data, np.zeros(3, dtype=np.uint8)).astype(np.uint32)
    one, two, three, four = (padded[places + shift] for shift in range(4))
    two, three, four = (byte & 0x3F for byte in (two, three, four))
    return np.select(
        [one < 0x80, one < 0xE0, one < 0xF0],
        [one, (one & 0x1F) << 6 | two, (one & 0x0F) << 12 | two << 6 | three],
        (one & 0x07) << 18 | two << 12 | three << 6 | four,
    )


def _numbered(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], first: int, added: list[str]
) -> list[int]:
    """Numbers of stretches of text, from ``first`` on; they are added to those that were there."""
    numbers: dict[str, int] = {}
    found = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        text = data[start:end].tobytes().decode()
        number = numbers.setdefault(text, first + len(added))
        if number == first + len(added):
            added.append(text)
        found.append(number)
    return found
