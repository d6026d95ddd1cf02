"""The corpus on its way to disk: the buffer that shuffles it, and the Parquet files of a split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    import pyarrow.parquet

ROW_GROUP_CHARACTERS = 4_000_000
"""Text that is gathered before it is written: about 12 MB of Bengali in UTF-8."""

BUFFER_CHARACTERS = 100_000_000
"""Text in the shuffle buffer that is held in memory, which takes 1 to 4 bytes a character; more goes to disk."""


class Document(NamedTuple):
    """One row of the corpus."""

    id: str
    source: str
    text: str


def shuffled(documents: Iterator[Document], size: int, rng: Random, spill: Path) -> Iterator[Document]:
    """Each document waits in a buffer until one drawn by ``rng`` takes its place; the rest comes in drawn order.

    Args:
        documents: in a fixed order.
        size: documents in the buffer; 1 keeps the order.
        rng: alone decides the order.
        spill: a file for long documents, so that memory is bounded whatever their length.
    """
    with spill.open("w+b") as file:
        buffer = _Buffer(file)
        for document in documents:
            if len(buffer.slots) < size:
                buffer.slots.append(buffer.put(document))
                continue
            drawn = int(rng.random() * size)
            chosen = buffer.take(buffer.slots[drawn])
            buffer.slots[drawn] = buffer.put(document)
            yield chosen
        while buffer.slots:
            drawn = int(rng.random() * len(buffer.slots))
            buffer.slots[drawn], buffer.slots[-1] = buffer.slots[-1], buffer.slots[drawn]
            yield buffer.take(buffer.slots.pop())
    spill.unlink()


class _Buffer:
    """Documents in memory, or without their text and with its place in the file."""

    def __init__(self, file: BinaryIO) -> None:
        self.slots: list[tuple[Document, tuple[int, int] | None]] = []
        self._file = file
        self._end = 0
        self._characters = 0

    def put(self, document: Document) -> tuple[Document, tuple[int, int] | None]:
        if self._characters + len(document.text) <= BUFFER_CHARACTERS:
            self._characters += len(document.text)
            return document, None
        data = document.text.encode()
        self._file.seek(self._end)
        self._file.write(data)
        place = (self._end, len(data))
        self._end += len(data)
        return document._replace(text=""), place

    def take(self, slot: tuple[Document, tuple[int, int] | None]) -> Document:
        document, place = slot
        if place is None:
            self._characters -= len(document.text)
            return document
        self._file.seek(place[0])
        return document._replace(text=self._file.read(place[1]).decode())


class Shards:
    """The files of one split. They get their names at the end, when it is known how many there are.

    Args:
        scratch: where they are built.
        split: the split's name.
        shard_documents: most documents in a file; None: all.
    """

    def __init__(self, scratch: Path, split: str, shard_documents: int | None) -> None:
        self.documents = 0
        self.bytes = 0
        self._scratch = scratch
        self._split = split
        self._limit = shard_documents
        self._paths: list[Path] = []
        self._writer: pyarrow.parquet.ParquetWriter | None = None
        self._in_shard = 0
        self._rows: list[Document] = []
        self._characters = 0

    def add(self, document: Document) -> None:
        """Append a document."""
        self._rows.append(document)
        self._characters += len(document.text)
        self.documents += 1
        self.bytes += len(document.text.encode())
        self._in_shard += 1
        if self._in_shard == self._limit:
            self._end_shard()
        elif self._characters >= ROW_GROUP_CHARACTERS:
            self._write_rows()

    def close(self, target: Path) -> None:
        """Write what is left, and move the files to ``target`` under their names."""
        self._end_shard()
        for number, path in enumerate(self._paths):
            path.rename(target / f"{self._split}-{number:05d}-of-{len(self._paths):05d}.parquet")

    def _write_rows(self) -> None:
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table(
            {name: pyarrow.array(values, pyarrow.string()) for name, values in _columns(self._rows).items()}
        )
        if self._writer is None:
            path = self._scratch / f"{self._split}-{len(self._paths):05d}.parquet"
            self._paths.append(path)
            self._writer = pyarrow.parquet.ParquetWriter(path, table.schema, compression="zstd")
        self._writer.write_table(table)
        self._rows.clear()
        self._characters = 0

    def _end_shard(self) -> None:
        if self._rows:
            self._write_rows()
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._in_shard = 0


def _columns(rows: list[Document]) -> dict[str, list[str]]:
    return {name: [getattr(row, name) for row in rows] for name in Document._fields}
