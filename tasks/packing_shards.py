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


class Shard:
    """The blocks of the shard at work: ids ``[blocks, sequence_length]``, boundaries and lengths.

    Args:
        blocks: that fit in.
        sequence_length: tokens a block.
        dtype: of the ids.
        pairs: whether the file has the boundaries.
        padded: whether the file has the lengths.
    """

    def __init__(
        self, blocks: int, sequence_length: int, *, dtype: type[np.unsignedinteger], pairs: bool, padded: bool
    ):
        self.pairs = pairs
        self.padded = padded
        self.ids = np.empty((blocks, sequence_length), dtype=dtype)
        self.boundaries = np.empty(blocks, dtype=np.uint16)
        self.lengths = np.empty(blocks, dtype=np.uint16)
        self.used = 0

    @property
    def full(self) -> bool:
        """Whether no block fits in any more."""
        return self.used == len(self.ids)

    def add(self, row: Row) -> None:
        """Copy a block in."""
        self.ids[self.used] = row.ids
        self.boundaries[self.used] = row.boundary
        self.lengths[self.used] = row.length
        self.used += 1

    def finish(self, parts: Parts, split: str, number: int, account: Account, offset: int, *, last: bool) -> None:
        """Write the shard as a finished part, with all that is needed to go on after it, and start the next one."""
        ids = pa.FixedSizeListArray.from_arrays(pa.array(self.ids[: self.used].reshape(-1)), self.ids.shape[1])
        columns = {"input_ids": ids}
        if self.pairs:
            columns["boundary"] = pa.array(self.boundaries[: self.used])
        if self.padded:
            columns["length"] = pa.array(self.lengths[: self.used])
        table = pa.table(columns)
        building = parts.folder / SCRATCH / "shard.building"
        with pa.OSFile(str(building), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        name = shard_name(split, number)
        target = parts.folder / SCRATCH / "shards" / f"{name}.arrow"
        parts.finish(name, building, target, account=asdict(account), offset=offset, last=last)
        self.used = 0


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
