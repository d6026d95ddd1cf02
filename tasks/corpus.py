"""The corpus stage: documents from all sources, cleaned, mixed, shuffled and written as Parquet shards.

What happens to a document, in this order:

1. **read** from its source and stripped of white space at its ends; an empty one is dropped and counted;
2. **mixed**: without weights the sources follow one another. With weights, each document comes from a source drawn
   by weight, until one source has no more: only so are the proportions kept without reading anything twice;
3. **exact duplicates** of an earlier document, of any source, are dropped and counted;
4. **shuffled** through a buffer: each document waits there until one drawn by the seed takes its place;
5. **held out** for validation by a digest of the seed and its text, so that neither order nor number of the other
   documents matters; at least one is held out.

Memory: the shuffle buffer, one row group, and 16 bytes (as a Python object about 100) a document for duplicates.
A stage that was killed starts over: reading again costs less than checking what was read.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pydantic import Field, model_validator

from tasks.contract import SCRATCH, Progress, Settings, Stage, UserError
from tasks.corpus_sources import FilesSource, HubSource, SampleSource, Source, check_source, read_source
from tasks.executor import Scheduler
from tasks.user_files import shown

if TYPE_CHECKING:
    import pyarrow.parquet

ROW_GROUP_CHARACTERS = 4_000_000
"""Text that is gathered before it is written: about 12 MB of Bengali in UTF-8."""


class CorpusSettings(Settings):
    """Which documents make up the corpus."""

    sources: list[Source] = Field(min_length=1, description="Where the documents come from.")
    seed: int = Field(default=0, description="Decides mixing, order and which documents are held out.")
    shuffle_buffer: int = Field(
        default=10_000,
        ge=1,
        description="Documents among which the next one is drawn; 1 keeps the order. sahajBERT's is 10,000.",
    )
    drop_duplicates: bool = Field(default=True, description="Drop documents whose text occurred before.")
    limit_documents: int | None = Field(default=None, ge=2, description="Stop after so many documents.")
    validation_fraction: float = Field(default=0.01, gt=0, lt=1, description="Share of documents held out.")
    shard_documents: int = Field(default=20_000, ge=1, description="Most documents in one file.")
    scheduler: Scheduler = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"two sources have the same name, of {', '.join(names)}; give each its own")
        weights = [source.weight for source in self.sources if source.weight is not None]
        if weights and len(weights) < len(self.sources):
            raise ValueError("either every source has a weight or none has")
        if weights and abs(sum(weights) - 1) > 1e-6:
            raise ValueError(f"the weights add up to {sum(weights):g}, not to 1")
        return self


@dataclass
class _Count:
    documents: int = 0
    characters: int = 0
    empty_dropped: int = 0
    duplicates_dropped: int = 0


class _Document(NamedTuple):
    id: str
    source: str
    text: str


def check(settings: CorpusSettings) -> None:
    """Raise :class:`UserError` for a file that is not there or whose format is unknown. Reads no file."""
    for index, source in enumerate(settings.sources):
        check_source(source, _place(index))


def _place(index: int) -> str:
    return f"corpus.sources[{index}]"


def run(settings: CorpusSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    """Write ``data/train-*.parquet`` and ``data/validation-*.parquet``; columns id, source, text.

    An id is the source's name and the number of the document in it, counted from 0 before anything is dropped.
    """
    assert not inputs, "the corpus is the first stage"
    check(settings)
    scratch, data = folder / SCRATCH, folder / "data"
    for old in (scratch, data):  # a killed run may have left them
        shutil.rmtree(old, ignore_errors=True)
    scratch.mkdir(parents=True)

    counts = {source.name: _Count() for source in settings.sources}
    kept = _kept(_mixed(settings, counts, progress), settings, counts)
    train = _Shards(scratch, "train", settings.shard_documents)
    validation = _Shards(scratch, "validation", shard_documents=None)
    last: _Document | None = None
    for document in _shuffled(kept, settings.shuffle_buffer, Random(f"corpus order {settings.seed}")):
        # Always one behind, so that the very last one can be held out if no other was.
        if last:
            (validation if _is_held_out(last.text, settings) else train).add(last)
        last = document
    documents = sum(count.documents for count in counts.values())
    if last is None or documents < 2:
        empty = sum(count.empty_dropped for count in counts.values())
        raise UserError(
            f"corpus.sources: {documents} documents with text, {empty} empty ones, in {_named(settings)}; "
            "the corpus needs at least 2"
        )
    held_out = train.documents > 0 and (validation.documents == 0 or _is_held_out(last.text, settings))
    (validation if held_out else train).add(last)
    data.mkdir()
    train.close(data)
    validation.close(data)
    return {
        "documents": documents,
        "characters": sum(count.characters for count in counts.values()),
        "bytes": train.bytes + validation.bytes,
        "validation_documents": validation.documents,
        "sources": {name: vars(count) for name, count in counts.items()},
    }


def _named(settings: CorpusSettings) -> str:
    """What the documents come from, for a message."""
    names: list[str] = []
    for source in settings.sources:
        names += map(shown, source.paths) if isinstance(source, FilesSource) else [source.name]
    return ", ".join(names)


def _mixed(settings: CorpusSettings, counts: dict[str, _Count], progress: Progress) -> Iterator[_Document]:
    """Steps 1 and 2."""
    read = [0.0] * len(settings.sources)

    def stripped(index: int, source: SampleSource | FilesSource | HubSource) -> Iterator[_Document]:
        for number, (text, share) in enumerate(read_source(source, _place(index))):
            read[index] = share
            text = text.strip()
            if text:
                yield _Document(f"{source.name}-{number}", source.name, text)
            else:
                counts[source.name].empty_dropped += 1
            if number % 1_000 == 0:
                progress(sum(read), len(read), unit="sources", note=f"{source.name}: {number:,} documents")
        read[index] = 1.0
        progress(sum(read), len(read), unit="sources", note=f"{source.name}: all read")

    streams = [stripped(index, source) for index, source in enumerate(settings.sources)]
    weights = [source.weight for source in settings.sources if source.weight is not None]
    if not weights:
        for stream in streams:
            yield from stream
        return
    rng = Random(f"corpus mixing {settings.seed}")
    while True:
        point = rng.random() * sum(weights)
        drawn = 0
        while drawn < len(weights) - 1 and point >= weights[drawn]:
            point -= weights[drawn]
            drawn += 1
        document = next(streams[drawn], None)
        if document is None:
            return
        yield document


def _kept(documents: Iterator[_Document], settings: CorpusSettings, counts: dict[str, _Count]) -> Iterator[_Document]:
    """Step 3, and the limit."""
    seen: set[bytes] = set()
    total = 0
    for document in documents:
        count = counts[document.source]
        if settings.drop_duplicates:
            digest = hashlib.blake2b(document.text.encode(), digest_size=16).digest()
            if digest in seen:
                count.duplicates_dropped += 1
                continue
            seen.add(digest)
        count.documents += 1
        count.characters += len(document.text)
        total += 1
        yield document
        if total == settings.limit_documents:
            return


def _shuffled(documents: Iterator[_Document], size: int, rng: Random) -> Iterator[_Document]:
    """Step 4."""
    buffer: list[_Document] = []
    for document in documents:
        if len(buffer) < size:
            buffer.append(document)
            continue
        drawn = int(rng.random() * size)
        yield buffer[drawn]
        buffer[drawn] = document
    while buffer:
        drawn = int(rng.random() * len(buffer))
        buffer[drawn], buffer[-1] = buffer[-1], buffer[drawn]
        yield buffer.pop()


def _is_held_out(text: str, settings: CorpusSettings) -> bool:
    """Step 5: a digest, read as a number from 0 to 1, is below the fraction."""
    digest = hashlib.blake2b(f"{settings.seed}\n{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < settings.validation_fraction


class _Shards:
    """The files of one split. They get their names at the end, when it is known how many there are."""

    def __init__(self, scratch: Path, split: str, shard_documents: int | None) -> None:
        self.documents = 0
        self.bytes = 0
        self._scratch = scratch
        self._split = split
        self._limit = shard_documents
        self._paths: list[Path] = []
        self._writer: pyarrow.parquet.ParquetWriter | None = None
        self._in_shard = 0
        self._rows: list[_Document] = []
        self._characters = 0

    def add(self, document: _Document) -> None:
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


def _columns(rows: list[_Document]) -> dict[str, list[str]]:
    return {name: [getattr(row, name) for row in rows] for name in _Document._fields}


STAGE = Stage("corpus", version=1, settings=CorpusSettings, run=run)
