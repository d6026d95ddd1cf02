"""Encodes documents for packing: without special tokens, in batches, here or on a cluster's workers.

Where the tokenizer allows it (``tasks.word_locality``) each distinct word is encoded once (``tasks.packing_words``);
else whole texts are. Either way the ids are those that the tokenizer gives to the whole text.

Imported only by a running stage: the libraries are imported at the top.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.contract import StageError
from tasks.corpus_text import batches_of
from tasks.executor import Result, in_order
from tasks.freed_memory import give_back
from tasks.packing_rows import Ids, SpecialIds
from tasks.packing_words import WordEncoder
from tasks.sentences import split_sentences
from tasks.word_cache import IdLists
from tasks.word_locality import obstacle

BATCH_CHARACTERS = 1_000_000
"""Text encoded at once: enough for words to recur and threads to share it evenly, little enough for memory."""

BATCHES_AHEAD, BATCHES_ON_CLUSTER = 2, 16
"""Batches of text that are at work at once in each step: on this machine, and on a cluster."""

BATCHES_A_TRIM = 2
"""Batches after which the C library gives back what is free. After each one it took a fifth of the time."""

PROBE_CHARACTERS = 2_000
"""Of each text that both routes are tried on; characters."""


@contextmanager
def arrow_by_malloc() -> Iterator[None]:
    """Arrow takes its memory from the C library, which can be told to give back what is free (see ``Encoder.encode``).

    Its own allocator keeps ever more of what the threads have freed: 60 to 120 MB where 5 to 30 were in use; and the C
    library by itself 172 MB after 377 MB of text.
    """
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(pool)


class EncodedBatch(NamedTuple):
    """Documents as ids. A document is one or several pieces that were encoded one by one."""

    ids: Ids
    """Of all documents, one after the other."""

    pieces: NDArray[np.int64]
    """``[pieces + 1]`` where each piece begins and ends among the ids."""

    documents: NDArray[np.int64]
    """``[documents + 1]`` where each document begins and ends among the pieces."""

    def whole(self) -> Iterator[Ids]:
        """The ids of each document."""
        bounds = self.pieces[self.documents].tolist()
        return (self.ids[start:end] for start, end in pairwise(bounds))

    def in_pieces(self) -> Iterator[list[Ids]]:
        """The ids of each document's pieces."""
        bounds, documents = self.pieces.tolist(), self.documents.tolist()
        for first, last in pairwise(documents):
            yield [self.ids[bounds[piece] : bounds[piece + 1]] for piece in range(first, last)]


class Encoder:
    """A trained tokenizer, set up so that text never yields a special token but the unknown one.

    Args:
        folder: the tokenizer's artifact.
        probe: some texts of the corpus, on which the way by words has to give the same ids as the way by documents.
    """

    def __init__(self, folder: Path, probe: Sequence[str] = ()):
        self._content = (folder / "tokenizer.json").read_text(encoding="utf-8")
        tokenizer = _load(self._content)
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        self.special = SpecialIds(*(_special_id(tokenizer, config, name) for name in SpecialIds._fields))
        self.dtype = _dtype(tokenizer)
        self.obstacle: str | None = obstacle(tokenizer)
        """Why whole documents are encoded, not distinct words; None if it is words."""
        self._encoder: WordEncoder | WholeEncoder = WholeEncoder(tokenizer, self.dtype)
        if self.obstacle is None:
            by_word = WordEncoder(tokenizer, self.dtype)
            self.obstacle = _difference([text[:PROBE_CHARACTERS] for text in probe], by_word, self._encoder)
        if self.obstacle is None:
            self._encoder = by_word

    def encode(
        self, batches: Iterable[list[str]], *, sentences: bool = False, cluster: Executor | None = None
    ) -> Iterator[EncodedBatch]:
        """Encode documents; later batches are encoded while the caller works on the last one.

        Args:
            batches: documents, in batches of any size.
            sentences: cut each document into its sentences, which are encoded one by one.
            cluster: does the work; by default threads of this process do.

        Yields:
            The documents in their order.
        """
        documents = batches_of(chain.from_iterable(batches), BATCH_CHARACTERS)
        if cluster is not None:
            work = partial(encode_batch, self._content, self.obstacle is None, sentences)
            yield from _results(in_order(cluster, work, documents, ahead=BATCHES_ON_CLUSTER))
            return
        # One batch is cut, another encoded (by the tokenizer's own threads), a third packed by the caller.
        with ThreadPoolExecutor(1, "cutting") as cutting, ThreadPoolExecutor(1, "encoding") as encoding:
            cuts = in_order(cutting, partial(_cut, self._encoder, sentences), documents, ahead=BATCHES_AHEAD)
            work = partial(_encoded, self._encoder)
            encoded = _results(in_order(encoding, work, _results(cuts), ahead=BATCHES_AHEAD))
            for number, batch in enumerate(encoded, start=1):
                yield batch
                if number % BATCHES_A_TRIM == 0:
                    give_back()


class WholeEncoder:
    """Encodes each text as a whole; has the interface of ``WordEncoder``."""

    def __init__(self, tokenizer: Tokenizer, dtype: type[np.unsignedinteger]):
        self._tokenizer = tokenizer
        self._dtype = np.dtype(dtype)

    def cut(self, texts: pa.StringArray) -> list[str]:
        """The texts, one by one."""
        found: list[str] = texts.to_pylist()
        return found

    def encode(self, texts: list[str]) -> tuple[Ids, NDArray[np.int64]]:
        """The ids of all texts, and ``[texts + 1]`` where each begins and ends among them."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        lists = IdLists.of([np.array(encoding.ids, dtype=self._dtype) for encoding in encodings], self._dtype)
        return lists.ids, lists.bounds


def encode_batch(tokenizer: str, by_word: bool, sentences: bool, documents: list[str]) -> EncodedBatch:
    """What a cluster's worker does: encode documents, whole or sentence by sentence, with this ``tokenizer.json``."""
    encoder = _worker_encoder(tokenizer, by_word)
    return _encoded(encoder, _cut(encoder, sentences, documents))


@lru_cache(maxsize=1)
def _worker_encoder(content: str, by_word: bool) -> WordEncoder | WholeEncoder:
    tokenizer = _load(content)
    return (WordEncoder if by_word else WholeEncoder)(tokenizer, _dtype(tokenizer))


def _cut(encoder: WordEncoder | WholeEncoder, sentences: bool, documents: list[str]) -> tuple[Any, NDArray[np.int64]]:
    """The documents' pieces as the encoder takes them, and ``[documents + 1]`` where each document begins and ends."""
    if sentences:
        pieces = [split_sentences(document) for document in documents]
        bounds = np.array([0, *accumulate(map(len, pieces))])
        texts = list(chain.from_iterable(pieces))
    else:
        bounds, texts = np.arange(len(documents) + 1), documents
    return encoder.cut(pa.array(texts, pa.string())), bounds


def _encoded(encoder: WordEncoder | WholeEncoder, cut: tuple[Any, NDArray[np.int64]]) -> EncodedBatch:
    units, documents = cut
    return EncodedBatch(*encoder.encode(units), documents)


def _results(found: Iterator[tuple[Any, Result]]) -> Iterator[Result]:
    return (result for _, result in found)


def _load(content: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(content)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # A document that says "[SEP]" is text about [SEP].
    tokenizer.encode_special_tokens = True
    return tokenizer


def _dtype(tokenizer: Tokenizer) -> type[np.unsignedinteger]:
    return np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32


def _special_id(tokenizer: Tokenizer, config: dict[str, Any], name: str) -> int:
    token = config.get(f"{name}_token")
    found: int | None = None if token is None else tokenizer.token_to_id(token)
    if found is None:
        raise StageError(f"packing: the tokenizer has no {name} token")
    return found


def _difference(texts: list[str], by_word: WordEncoder, whole: WholeEncoder) -> str | None:
    """Where encoding by words differs from encoding whole texts; None if nowhere."""
    array = pa.array(texts, pa.string())
    results = by_word.encode(by_word.cut(array)), whole.encode(texts)
    for number, text in enumerate(texts):
        one, other = (ids[bounds[number] : bounds[number + 1]] for ids, bounds in results)
        if not np.array_equal(one, other):
            return f"a text that gives other ids by words: {text[:40]!r}"
    return None
