"""Encodes documents for packing: without special tokens, many at once, on all the library's threads.

Imported only by a running stage: the libraries are imported at the top.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tasks.contract import StageError
from tasks.packing_rows import Ids, SpecialIds

BATCH_CHARACTERS = 2_000_000
"""Text encoded at once: enough for the threads to share it evenly, little enough for memory."""

STRETCH_CHARACTERS = 100_000
"""A longer document is encoded in stretches, so that threads share it and memory stays bounded."""

_STRETCH_END = re.compile(r"(?<=\S)(?=\s)")
"""Between a word and the white space after it: a stretch that begins with white space is tokenised as in its place."""


class Encoder:
    """A trained tokenizer, set up so that text never yields a special token but the unknown one.

    Args:
        folder: the tokenizer's artifact.
    """

    def __init__(self, folder: Path):
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # A document that says "[SEP]" is text about [SEP].
        self._tokenizer.encode_special_tokens = True
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        self.special = SpecialIds(*(self._special_id(config, name) for name in SpecialIds._fields))
        self.dtype: type[np.unsignedinteger] = np.uint16 if self._tokenizer.get_vocab_size() <= 2**16 else np.uint32

    def encode(self, batches: Iterable[list[str]], cut: Callable[[str], list[str]]) -> Iterator[list[list[Ids]]]:
        """Encode documents; the next batch is encoded while the caller works on the last one.

        Args:
            batches: documents, in batches of any size.
            cut: cuts a document into the pieces that are encoded one by one.

        Yields:
            Batches of documents in their order, each a list with the ids of its pieces.
        """
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="encoding") as worker:
            ahead = None
            for documents in _regroup(batches):
                job = worker.submit(self._encode, documents, cut)
                if ahead is not None:
                    yield ahead.result()
                ahead = job
            if ahead is not None:
                yield ahead.result()

    def _encode(self, documents: list[str], cut: Callable[[str], list[str]]) -> list[list[Ids]]:
        pieces = [cut(document) for document in documents]
        encodings = iter(
            self._tokenizer.encode_batch_fast(list(chain.from_iterable(pieces)), add_special_tokens=False)
        )
        return [[np.array(next(encodings).ids, dtype=self.dtype) for _ in document] for document in pieces]

    def _special_id(self, config: dict[str, str], name: str) -> int:
        token = config.get(f"{name}_token")
        found = None if token is None else self._tokenizer.token_to_id(token)
        if found is None:
            raise StageError(f"packing: the tokenizer has no {name} token")
        return found


def stretches(document: str) -> list[str]:
    """The document, or if it is long its stretches, each cut off in front of white space where there is any."""
    cuts = [0]
    while len(document) - cuts[-1] > STRETCH_CHARACTERS:
        match = _STRETCH_END.search(document, cuts[-1] + STRETCH_CHARACTERS)
        if match is None:
            break
        cuts.append(match.start())
    return [document[start:end] for start, end in zip(cuts, [*cuts[1:], None], strict=True)]


def joined(document: list[Ids]) -> Ids:
    """The pieces of a document as one array."""
    return document[0] if len(document) == 1 else np.concatenate(document)


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
