"""Encodes documents for packing: without special tokens, in batches, here or on a cluster's workers.

Where the tokenizer allows it (``tasks.word_locality``) each distinct word is encoded once (``tasks.packing_words``);
else whole texts are. Either way the ids are those that the tokenizer gives to the whole text.

Imported only by a running stage: the libraries are imported at the top.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import lru_cache, partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.contract import StageError
from tasks.executor import in_order
from tasks.packing_rows import Ids, SpecialIds
from tasks.packing_words import WordEncoder
from tasks.sentences import split_sentences
from tasks.word_locality import obstacle

BATCH_CHARACTERS = 2_000_000
"""Text encoded at once: enough for words to recur and threads to share it evenly, little enough for memory."""

PROBE_CHARACTERS = 2_000
"""Of each text that both routes are tried on; characters."""


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


class _Plan(NamedTuple):
    """How texts are encoded, in plain values that go to any worker."""

    tokenizer: str
    """The content of ``tokenizer.json``."""
    by_word: bool


class Encoder:
    """A trained tokenizer, set up so that text never yields a special token but the unknown one.

    Args:
        folder: the tokenizer's artifact.
        probe: some texts of the corpus, on which the way by words has to give the same ids as the way by documents.
    """

    def __init__(self, folder: Path, probe: Sequence[str] = ()):
        content = (folder / "tokenizer.json").read_text(encoding="utf-8")
        tokenizer = _load(content)
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        self.special = SpecialIds(*(_special_id(tokenizer, config, name) for name in SpecialIds._fields))
        self.dtype = _dtype(tokenizer)
        self.obstacle = obstacle(tokenizer) or _difference(tokenizer, [text[:PROBE_CHARACTERS] for text in probe])
        """Why whole documents are encoded, not distinct words; None if it is words."""
        self._plan = _Plan(content, self.obstacle is None)

    def encode(
        self, batches: Iterable[list[str]], executor: Executor, *, ahead: int, sentences: bool = False
    ) -> Iterator[EncodedBatch]:
        """Encode documents; later batches are encoded while the caller works on the last one.

        Args:
            batches: documents, in batches of any size.
            executor: does the work.
            ahead: batches of text in memory at once.
            sentences: cut each document into its sentences, which are encoded one by one.

        Yields:
            The documents in their order.
        """
        try:
            yield from in_order(executor, partial(encode_batch, self._plan, sentences), _regroup(batches), ahead=ahead)
        finally:
            _encoder.cache_clear()  # its cache of words


def encode_batch(plan: _Plan, sentences: bool, documents: list[str]) -> EncodedBatch:
    """Encode documents whole, or sentence by sentence. What a worker does."""
    if sentences:
        pieces = [split_sentences(document) for document in documents]
        bounds = np.array([0, *accumulate(map(len, pieces))])
        texts = list(chain.from_iterable(pieces))
    else:
        bounds, texts = np.arange(len(documents) + 1), documents
    return EncodedBatch(*_encoder(plan)(texts), bounds)


@lru_cache(maxsize=1)
def _encoder(plan: _Plan) -> Callable[[list[str]], tuple[Ids, NDArray[np.int64]]]:
    tokenizer = _load(plan.tokenizer)
    if not plan.by_word:
        return partial(_encode_whole, tokenizer)
    encoder = WordEncoder(tokenizer, _dtype(tokenizer))
    return lambda texts: encoder.encode(pa.array(texts, pa.string()))


def _encode_whole(tokenizer: Tokenizer, texts: list[str]) -> tuple[Ids, NDArray[np.int64]]:
    """The ids of all texts, and ``[texts + 1]`` where each begins and ends among them."""
    ids = [
        np.array(encoding.ids, dtype=_dtype(tokenizer))
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    ]
    bounds = np.array([0, *accumulate(map(len, ids))])
    return np.concatenate([np.empty(0, dtype=_dtype(tokenizer)), *ids]), bounds


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


def _difference(tokenizer: Tokenizer, texts: list[str]) -> str | None:
    """Where encoding by words differs from encoding whole texts; None if nowhere."""
    by_word = WordEncoder(tokenizer, _dtype(tokenizer)).encode(pa.array(texts, pa.string()))
    whole = _encode_whole(tokenizer, texts)
    for number, text in enumerate(texts):
        one, other = (ids[bounds[number] : bounds[number + 1]] for ids, bounds in (by_word, whole))
        if not np.array_equal(one, other):
            return f"a text that gives other ids by words: {text[:40]!r}"
    return None


def _regroup(batches: Iterable[list[str]]) -> Iterator[list[str]]:
    """The same documents in batches of about ``BATCH_CHARACTERS``."""
    group: list[str] = []
    characters = 0
    for batch in batches:
        for document in batch:
            group.append(document)
            characters += len(document)
            if characters >= BATCH_CHARACTERS:
                yield group
                group, characters = [], 0
    if group:
        yield group
