"""Reads the corpus artifact: documents in their stored order, in batches, from any document on.

The artifact holds ``data/<split>-*.parquet`` with the string columns ``id``, ``source`` and ``text``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

DOCUMENTS_A_BATCH = 32
"""Documents read at once: few, since a document can be a whole book."""


def split_files(corpus: Path, split: str) -> list[Path]:
    """The Parquet files of a split, in order; none if the artifact has no such split."""
    return sorted((corpus / "data").glob(f"{split}-*.parquet"))


def count_documents(corpus: Path, split: str) -> int:
    """How many documents a split has, from the files' footers."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in split_files(corpus, split))


def count_characters(corpus: Path, split: str) -> int:
    """How many characters (code points) the texts of a split have; reads it once."""
    import pyarrow.compute as pc

    return sum(pc.sum(pc.utf8_length(column)).as_py() or 0 for column in _columns(corpus, split, 0))


def read_texts(corpus: Path, split: str, *, first: int = 0) -> Iterator[list[str]]:
    """The texts of a split in batches of at most ``DOCUMENTS_A_BATCH``, from document number ``first`` on."""
    for column in _columns(corpus, split, first):
        yield column.to_pylist()


def batches_of(texts: Iterable[str], limit: int) -> Iterator[list[str]]:
    """The same texts in lists of about ``limit`` characters each."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= limit:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _columns(corpus: Path, split: str, first: int) -> Iterator[Any]:
    """The text column in Arrow arrays. Row groups before ``first`` are not read at all."""
    import pyarrow.parquet as pq

    for path in split_files(corpus, split):
        # Buffered ahead, what was read would be held until the file is closed.
        with pq.ParquetFile(path, pre_buffer=False) as file:
            groups: list[int] = []
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if not groups and first >= rows:
                    first -= rows
                else:
                    groups.append(group)
            batches = file.iter_batches(DOCUMENTS_A_BATCH, row_groups=groups, columns=["text"], use_threads=False)
            for batch in batches:
                column = batch.column(0)
                skipped = min(first, len(column))
                first -= skipped
                if skipped < len(column):
                    yield column.slice(skipped)
