"""How much disk a stage will take, estimated from its settings and inputs before it begins.

A disk that is full after hours of work costs those hours, or a night until somebody looks. Estimates are meant to be
near the truth and not safely above it: what is refused although it would fit is worse than what fails after all, since
a full disk loses no work either. They count what the stage leaves and what it needs meanwhile in its work folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.contract import UserError
from tasks.pretraining.model_size import checkpoints_bytes
from tasks.record import Damaged, Record, read_record
from tasks.user_files import COMPRESSIONS, shown, user_files

if TYPE_CHECKING:
    from tasks.corpus import CorpusSettings
    from tasks.packing import PackingSettings
    from tasks.pretraining.settings import PretrainSettings

UNPACKED = 6
"""Bytes of text in a byte of compressed files: 37.7 MB of Bengali documents came of 6.0 MB as ``.jsonl.gz``."""

SAMPLE_DOCUMENT = 1_250
"""Bytes of text in a document of the built-in sample: 6.2 MB in 5,000."""

LONG_DOCUMENT = 16_384
"""Bytes of text in a document where only the number of documents is known; 4,500 in the mean of those above."""

KEPT = 0.22
"""Bytes of the corpus for a byte of text: 8.0 MB of zstd-compressed Parquet for those 37.7 MB."""

NEAR_DUPLICATES = 0.2
"""Bytes more for a byte of text while near duplicates are looked for: 14.3 MB at most in place of 7.4."""


def of_corpus(settings: CorpusSettings, inputs: Mapping[str, Path]) -> int:
    """The documents as Parquet files, and what is known of them meanwhile. Hub data sets are not counted: how large
    one is, is not known before it was fetched."""
    text = 0.0
    for source in settings.sources:
        if source.kind == "sample":
            text += source.documents * SAMPLE_DOCUMENT
        elif source.kind == "files":
            text += sum(map(_text_bytes, _files(source.paths)))
    if settings.limit_documents is not None:
        text = min(text, settings.limit_documents * LONG_DOCUMENT)
    return round(text * (KEPT + (NEAR_DUPLICATES if settings.near_duplicates else 0)))


def _files(patterns: list[str]) -> set[Path]:
    try:
        return {file for pattern in patterns for file in user_files(pattern)}
    except UserError:
        return set()  # the stage says what is wrong with them


def _text_bytes(file: Path) -> int:
    try:
        size = file.stat().st_size
    except OSError:
        return 0
    return size * (UNPACKED if file.suffix in (*COMPRESSIONS, ".parquet") else 1)


def of_packing(settings: PackingSettings, inputs: Mapping[str, Path]) -> int | None:
    """Token ids, by the corpus's bytes and the tokens in a byte that the tokenizer gave on held-out text; and half a
    block more for each document where blocks end with documents."""
    corpus, tokenizer = _metrics(inputs, "corpus"), _metrics(inputs, "tokenizer")
    try:
        tokens = float(corpus["bytes"] * tokenizer["tokens_per_byte"])
        if settings.documents == "single":
            tokens += corpus["documents"] * settings.sequence_length / 2
        return round(tokens * (2 if tokenizer["entries"] <= 2**16 else 4))
    except KeyError:  # not there yet, or of a version that counted something else
        return None


def of_pretraining(settings: PretrainSettings, inputs: Mapping[str, Path]) -> int:
    """Two checkpoints, one that is being written, and the result; without the tokens' embeddings as long as there is
    no tokenizer."""
    return checkpoints_bytes(settings.model, _metrics(inputs, "tokenizer").get("entries", 0))


def of_inputs(settings: object, inputs: Mapping[str, Path]) -> int:
    """As much as the inputs that are there, for a stage that gathers them."""
    records = [_record(inputs, name) for name in inputs]
    return sum(file.bytes for record in records if record for file in record.outputs.values())


def _metrics(inputs: Mapping[str, Path], name: str) -> Mapping[str, Any]:
    record = _record(inputs, name)
    return record.metrics if record else {}


def _record(inputs: Mapping[str, Path], name: str) -> Record | None:
    try:
        return read_record(inputs[name])
    except (KeyError, Damaged):
        return None


def size_of(folder: Path) -> int:
    """Bytes of the files below a folder that may be at work, or not there at all."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, file)).st_size
    return total


def shortage(needs: Mapping[str, int], place: Path) -> str | None:
    """Why stages do not fit on the disk, in one line with what to do; None if they do.

    Args:
        needs: bytes that each of them will take, by name.
        place: a folder on that disk, or one that will be made there.
    """
    existing = place
    while not existing.exists():
        existing = existing.parent
    needed, free = sum(needs.values()), shutil.disk_usage(existing).free
    if needed <= free:
        return None
    largest = sorted(filter(needs.get, needs), key=lambda name: -needs[name])[:3]
    told = ", ".join(f"{name} {_size(needs[name])}" for name in largest)
    return (
        f"{shown(place)}: about {_size(needed)} of disk will be needed ({told}), and {_size(free)} are free; "
        "free some (sahajflow clean), or name a larger disk with --store"
    )


def _size(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
