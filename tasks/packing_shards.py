"""The files of packed rows: Arrow IPC, uncompressed, rows of one length, so that any is at hand in a memory map.

Imported only by a running stage: the libraries are imported at the top.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks import durable
from tasks.contract import SCRATCH
from tasks.packing_rows import Account, Row
from tasks.parts import Parts

BATCH_BLOCKS = 8_192
"""Blocks in a record batch of a file, which is gathered in memory."""


class Shard:
    """The shard at work: blocks go to its file batch by batch.

    Args:
        parts: of the stage's work folder.
        blocks: a shard.
        sequence_length: tokens a block.
        dtype: of the ids.
        pairs: whether the file has the boundaries.
        padded: whether the file has the lengths.
    """

    def __init__(
        self,
        parts: Parts,
        blocks: int,
        sequence_length: int,
        *,
        dtype: type[np.unsignedinteger],
        pairs: bool,
        padded: bool,
    ):
        size = min(blocks, BATCH_BLOCKS)
        self._parts = parts
        self._building = parts.folder / SCRATCH / "shard.building"
        self._blocks = blocks
        self._columns = {"input_ids": np.empty((size, sequence_length), dtype=dtype)}
        if pairs:
            self._columns["boundary"] = np.empty(size, dtype=np.uint16)
        if padded:
            self._columns["length"] = np.empty(size, dtype=np.uint16)
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._used = 0
        self.written = 0
        """Blocks in the shard, those in memory included."""

    @property
    def full(self) -> bool:
        """Whether no block fits in any more."""
        return self.written == self._blocks

    def add(self, row: Row) -> None:
        """Copy a block in."""
        for name, value in (("input_ids", row.ids), ("boundary", row.boundary), ("length", row.length)):
            if name in self._columns:
                self._columns[name][self._used] = value
        self._used += 1
        self.written += 1
        if self._used == len(self._columns["input_ids"]):
            self._write()

    def finish(self, split: str, number: int, account: Account, offset: int, *, last: bool) -> None:
        """Make the shard a finished part, with all that is needed to go on after it, and start the next one."""
        if self._used:
            self._write()
        assert self._writer is not None, "a shard is finished once it has blocks"
        self._writer.close()
        self._writer, self.written = None, 0
        name = shard_name(split, number)
        target = self._parts.folder / SCRATCH / "shards" / f"{name}.arrow"
        self._parts.finish(name, self._building, target, account=asdict(account), offset=offset, last=last)

    def _write(self) -> None:
        arrays = {name: pa.array(column[: self._used].reshape(-1)) for name, column in self._columns.items()}
        length = self._columns["input_ids"].shape[1]
        arrays["input_ids"] = pa.FixedSizeListArray.from_arrays(arrays["input_ids"], length)
        batch = pa.RecordBatch.from_pydict(arrays)
        if self._writer is None:
            self._writer = pa.ipc.new_file(str(self._building), batch.schema)
        self._writer.write_batch(batch)
        self._used = 0


def shard_name(split: str, number: int) -> str:
    """The name of a split's shard as a part; in the order of the numbers."""
    return f"{split}-{number:05d}"


def publish(parts: Parts, folder: Path) -> None:
    """Give the shards their final names, now that their number is known: all of ``data`` at once, by one rename.

    The finished parts stay where they are (as hard links), so a kill here costs nothing.
    """
    building, data = folder / SCRATCH / "data", folder / "data"
    durable.remove(building)
    building.mkdir()
    names = sorted(parts.finished())
    for split in ("train", "validation"):
        shards = [name for name in names if name.startswith(f"{split}-")]
        for name in shards:
            source, target = parts.path(name), building / f"{name}-of-{len(shards):05d}.arrow"
            try:
                os.link(source, target)
            except OSError:  # a file system without hard links
                shutil.copyfile(source, target)
    durable.sync_tree(building)
    durable.remove(data)
    durable.move(building, data)
