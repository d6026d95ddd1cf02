"""Encodes texts word by word: each distinct word once, by the tokenizer itself, and then gathers ids with NumPy.

Text repeats its words: 37.7 MB of Bengali have 2.2 million, 0.18 million of them distinct. So texts are cut at white
space, the words numbered by Arrow's dictionary encoding, and only those that are not in the cache go to the tokenizer.
Where two words touch (see ``tasks.word_locality``) they go to it together, with the white space between them.

Imported only by a running stage: the libraries are imported at the top.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.word_locality import Edges, beginnings, endings, keeps_spaces, separators

CACHED_WORDS = 75_000
"""Words from which on a generation of the cache is full; there are two generations, of about 230 bytes a word."""

CACHED_LENGTH = 64
"""Characters of the longest word that is kept: longer ones hardly come again, and would make the cache unbounded."""

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

    distinct: list[str]

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
        self._ending_ids: dict[str, bytes] = {}
        self._cache = _Cache()

    def encode(self, units: Units) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all texts, and ``[texts + 1]`` where each begins and ends among them."""
        known = self._cache.look_up(units.distinct)
        missing = [index for index, ids in enumerate(known) if ids is None]
        new = [units.distinct[index] for index in missing]
        rest = iter(self._without_endings(new, units.words[missing]))
        encoded = [next(rest) if ids is None else ids for ids in known]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)) // self._dtype.itemsize
        pool = np.frombuffer(b"".join(encoded), dtype=self._dtype)
        return _gathered(pool, lengths, units.numbers, units.bounds)

    def _without_endings(self, texts: list[str], words: NDArray[np.bool_]) -> list[bytes]:
        """The ids of each of these texts; of a word that ends in punctuation, the word's and the punctuation's.

        Only the former are kept: there are far fewer of them.
        """
        stems = [
            text.rstrip(self._endings) if word else text for text, word in zip(texts, words.tolist(), strict=True)
        ]
        last = np.array([ord(stem[-1]) if stem else 0x20 for stem in stems], dtype=np.uint32)
        split = words & (self._edges.of(last) & Edges.ENDS != 0)
        stems = [stem if cut else text for text, stem, cut in zip(texts, stems, split.tolist(), strict=True)]
        known = self._cache.look_up(stems)
        new = {stem: word for stem, word, ids in zip(stems, words.tolist(), known, strict=True) if ids is None}
        found = dict(zip(new, self._new(list(new), np.array(list(new.values()), dtype=bool)), strict=True))
        self._cache.keep(found, found.values())
        return [
            (found[stem] if ids is None else ids)
            + (b"" if len(stem) == len(text) else self._ending(text[len(stem) :]))
            for text, stem, ids in zip(texts, stems, known, strict=True)
        ]

    def _ending(self, run: str) -> bytes:
        """The ids of punctuation behind a word."""
        ids = self._ending_ids.get(run)
        if ids is None:
            word, both = self._tokenized(["x", f"x{run}"])
            ids = both[len(word) :].tobytes()
            if len(run) <= CACHED_LENGTH and len(self._ending_ids) < CACHED_ENDINGS:
                self._ending_ids[run] = ids
        return ids

    def _new(self, texts: list[str], words: NDArray[np.bool_]) -> list[bytes]:
        """The ids of each of these texts, by the tokenizer."""
        found: list[bytes] = [b""] * len(texts)
        if self._begins is None:
            words = np.zeros_like(words)
        joined, alone = np.flatnonzero(words).tolist(), np.flatnonzero(~words).tolist()
        groups = [joined[start : start + JOINED_WORDS] for start in range(0, len(joined), JOINED_WORDS)]
        together = self._tokenized([" ".join([texts[index] for index in group]) for group in groups])
        for group, ids in zip(groups, together, strict=True):
            assert self._begins is not None
            starts = np.flatnonzero(self._begins[ids])
            if len(starts) == len(group):
                bounds = [*(starts * self._dtype.itemsize).tolist(), None]
                data = ids.tobytes()
                for index, start, end in zip(group, bounds, bounds[1:], strict=False):
                    found[index] = data[start:end]
            else:  # a word became two, as with a no-break space in it
                alone += group
        for index, ids in zip(alone, self._tokenized([texts[index] for index in alone]), strict=True):
            found[index] = ids.tobytes()
        return found

    def _tokenized(self, texts: list[str]) -> Iterator[NDArray[Any]]:
        for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            yield np.array(encoding.ids, dtype=self._dtype)

    def cut(self, texts: pa.StringArray) -> Units:
        """Cut texts, an array without nulls, into units."""
        data, bounds = _bytes_of(texts)
        starts, ends, distinct = _words(data, bounds, self._white(data))
        firsts = np.searchsorted(starts, bounds)  # [texts + 1] each text's first word
        flags = self._edges.of(_outer_characters(distinct.dictionary))
        begins, behind = flags[0] & Edges.BEGINS != 0, flags[1] & Edges.ENDS != 0
        numbers = distinct.indices.to_numpy().astype(np.int64)
        units: list[str] = distinct.dictionary.to_pylist()

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
            numbers[touched] = _numbered(data, unit_starts[touched], unit_ends[touched], units)
        blank = np.flatnonzero((firsts[1:] == firsts[:-1]) & (bounds[1:] > bounds[:-1]))
        if self._keeps_spaces and len(blank):
            found = _numbered(data, bounds[:-1][blank], bounds[1:][blank], units)
            numbers = np.insert(numbers, unit_bounds[blank], found)
            unit_bounds[1:] += np.cumsum(np.bincount(blank, minlength=len(unit_bounds) - 1))
        words = np.zeros(len(units), dtype=bool)
        words[: len(begins)] = begins & behind
        return Units(numbers, unit_bounds, units, words)

    def _white(self, data: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """``[bytes]`` what is white space."""
        white: NDArray[np.bool_] = self._is_white[data]
        for one, two in self._other_white:
            places = np.flatnonzero((data[:-1] == one) & (data[1:] == two))
            white[places] = white[places + 1] = True
        return white


class _Cache:
    """Ids of words, in two generations: a full one becomes the old one, of which only what is asked for lives on."""

    def __init__(self) -> None:
        self._young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}

    def look_up(self, words: list[str]) -> list[bytes | None]:
        """The ids of each word, None where they are not known."""
        found = list(map(self._young.get, words))
        if self._old:
            lost = [index for index, ids in enumerate(found) if ids is None]
            older = [(index, ids) for index in lost if (ids := self._old.get(words[index])) is not None]
            for index, ids in older:
                found[index] = ids
            self.keep([words[index] for index, _ in older], [ids for _, ids in older])
        return found

    def keep(self, words: Iterable[str], ids: Iterable[bytes]) -> None:
        """Remember words that are not too long."""
        self._young.update(pair for pair in zip(words, ids, strict=True) if len(pair[0]) <= CACHED_LENGTH)
        if len(self._young) >= CACHED_WORDS:
            self._old, self._young = self._young, {}


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
    offsets = np.zeros(len(starts) + 1, dtype=np.int32)
    np.cumsum(ends - starts, out=offsets[1:])
    words = pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(data[inside]))
    return starts, ends, words.dictionary_encode()


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
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], units: list[str]
) -> list[int]:
    """Numbers of stretches of text, which are added to ``units`` where they are new."""
    numbers: dict[str, int] = {}
    found = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        text = data[start:end].tobytes().decode()
        number = numbers.setdefault(text, len(units))
        if number == len(units):
            units.append(text)
        found.append(number)
    return found


def _gathered(
    pool: NDArray[Any], lengths: NDArray[np.int64], numbers: NDArray[np.int64], bounds: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The ids of all units one after the other, and where those of each text begin and end."""
    starts = np.cumsum(lengths) - lengths
    counts = lengths[numbers]
    ends = np.concatenate([[0], np.cumsum(counts)])
    places = np.repeat(starts[numbers] - ends[:-1], counts) + np.arange(ends[-1])
    return pool[places], ends[bounds]
