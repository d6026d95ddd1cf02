"""Stage ``pack``: turns the corpus into blocks of token ids of one length, ready for memory-mapped training.

Documents are encoded without special tokens, packed by one of three modes, and written as shards in the Arrow IPC file
format, which ``datasets.load_dataset`` reads. Masks are drawn at training time, so none are stored. Every token is
accounted for: packed, dropped (only where the recipe says so) or left as the remainder at the end of a split.

A shard holds whole blocks, and nothing is carried over from one to the next, so a killed run goes on after its last
finished shard. Bytes depend neither on threads, nor on where the encoding was done, nor on kills.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from tasks.contract import Progress, Settings, Stage, UserError
from tasks.corpus_text import count_documents, read_texts
from tasks.executor import Scheduler, open_executor
from tasks.parts import Parts
from tasks.room import of_packing

if TYPE_CHECKING:
    from tasks.packing_encoding import EncodedBatch, Encoder
    from tasks.packing_published import PublishedPacker
    from tasks.packing_rows import Account, ConcatenatePacker, PairPacker

    Encode = Callable[[Iterable[list[str]]], Iterator[EncodedBatch]]

log = logging.getLogger(__name__)

SHARD_TOKENS = 2**31 // 4
"""Most tokens in a shard: 2 GiB of 4 bytes each (2 for a vocabulary up to 65,536)."""

ONLY_IN = {"documents": "concatenate", "single_sentences": "sentence-pairs", "seed": "sentence-pairs"}
"""Settings that have an effect in one mode only."""

PROBE_DOCUMENTS = 64
"""Texts a split on which the two ways of encoding are compared before one is chosen."""


class PackingSettings(Settings):
    """How documents become blocks."""

    mode: Literal["concatenate", "sentence-pairs", "published"] = Field(
        "concatenate",
        description="running text (for MLM), two segments of whole sentences (for MLM with SOP), or running text as "
        "the Gaudi recipe was published: documents cut off at one block, the rest of each thousand dropped",
    )
    sequence_length: int = Field(512, ge=16, le=65_535, description="tokens a block, special ones included")
    documents: Literal["separated", "single"] = Field(
        "separated",
        description="mode concatenate: blocks run on into the next document after [SEP], or are padded at its end",
    )
    single_sentences: Literal["join", "drop"] = Field(
        "join",
        description="mode sentence-pairs: a single sentence left at a document's end goes with the next document, "
        "or is dropped and counted",
    )
    seed: int = Field(0, ge=0, description="mode sentence-pairs: decides where the first segment ends")
    blocks_per_shard: int = Field(
        65_536, ge=1, le=262_144, description="blocks a file; 65,536 of 512 tokens take 64 MiB"
    )
    scheduler: Scheduler = None

    @model_validator(mode="after")
    def _shard_fits_memory(self) -> Self:
        most = SHARD_TOKENS // self.sequence_length
        if self.blocks_per_shard > most:
            raise ValueError(
                f"blocks_per_shard {self.blocks_per_shard} of sequence_length {self.sequence_length} may take more "
                f"than 2 GiB; set blocks_per_shard to {most} or less"
            )
        return self


def run(settings: PackingSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    """Pack both splits.

    Args:
        settings: mode, length and shards.
        inputs: ``corpus`` and ``tokenizer``.
        folder: receives ``data/<split>-<number>-of-<shards>.arrow``; column ``input_ids``; in mode sentence-pairs
            also ``boundary``; and where blocks are padded ``length``, the tokens before the padding.
        progress: counts documents of both splits.

    Returns:
        ``mode``, ``sequence_length``, how texts were encoded, and for each split the account, in tokens.

    Raises:
        UserError: a split has too little text for one block.
        StageError: the account does not add up.
    """
    from tasks.packing_encoding import arrow_by_malloc

    for name, mode in ONLY_IN.items():
        if name in settings.model_fields_set and settings.mode != mode:
            log.warning("packing.%s has no effect in mode %s", name, settings.mode)

    with arrow_by_malloc():
        return _packed(settings, inputs, folder, progress)


def _packed(settings: PackingSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    from tasks.packing_encoding import Encoder
    from tasks.packing_shards import publish

    totals = {split: count_documents(inputs["corpus"], split) for split in ("validation", "train")}
    encoder = Encoder(inputs["tokenizer"], _probe(inputs["corpus"], totals))
    encoding = "by word" if encoder.obstacle is None else f"by document, for {encoder.obstacle}"
    log.info("encoding %s", encoding)
    parts = Parts(folder)
    accounts: dict[str, Account] = {}
    with nullcontext() if settings.scheduler is None else open_executor(1, settings.scheduler) as cluster:
        encode = partial(encoder.encode, cluster=cluster, sentences=settings.mode == "sentence-pairs")
        for split in totals:
            done = sum(account.documents for account in accounts.values())
            report = partial(_report, progress, done, sum(totals.values()))
            accounts[split] = _pack_split(settings, split, inputs["corpus"], encoder, encode, parts, report)
    publish(parts, folder)
    return {
        "mode": settings.mode,
        "sequence_length": settings.sequence_length,
        "encoding": encoding,
        "splits": {split: asdict(accounts[split]) for split in ("train", "validation")},
    }


def _report(progress: Progress, before: int, total: int, account: Account) -> None:
    """Progress over the documents of both splits; ``before`` belong to the splits that are done."""
    progress(before + account.documents, total, unit="documents", note=f"{account.blocks:,} blocks")


def _probe(corpus: Path, splits: Iterable[str]) -> list[str]:
    """The first texts of each split."""
    texts = (chain.from_iterable(read_texts(corpus, split)) for split in splits)
    return [text for of_split in texts for text in islice(of_split, PROBE_DOCUMENTS)]


def _pack_split(
    settings: PackingSettings,
    split: str,
    corpus: Path,
    encoder: Encoder,
    encode: Encode,
    parts: Parts,
    report: Callable[[Account], None],
) -> Account:
    """Pack one split into shards, going on after those that are finished; returns its checked account."""
    from tasks.packing_rows import Account
    from tasks.packing_shards import Shard, shard_name

    finished = parts.finished()
    shard = 0
    account, offset = Account(), 0
    while (facts := finished.get(shard_name(split, shard))) is not None:
        account, offset = Account(**facts["account"]), facts["offset"]
        shard += 1
        if facts["last"]:
            account.check(split, settings.sequence_length)
            report(account)
            return account
    for name in finished:  # behind a gap: they are packed again with the same bytes
        if name.startswith(split) and name >= shard_name(split, shard):
            parts.remove(name)

    packer = _packer(settings, encoder, account, offset)
    rows = packer.rows(_documents(settings, split, corpus, encode, account, report))
    pairs = settings.mode == "sentence-pairs"
    padded = pairs or (settings.mode == "concatenate" and settings.documents == "single")
    shape = settings.blocks_per_shard, settings.sequence_length
    buffer = Shard(parts, *shape, dtype=encoder.dtype, pairs=pairs, padded=padded)
    for row in rows:
        buffer.add(row)
        if buffer.full:
            buffer.finish(split, shard, account, packer.offset, last=False)
            shard += 1
    packer.finish()
    account.check(split, settings.sequence_length)
    if account.blocks == 0:
        raise UserError(
            f"packing: the {split} split has {account.documents} documents with {account.tokens_in} tokens, too few "
            f"for one block of packing.sequence_length: {settings.sequence_length}; give more text or shorter blocks"
        )
    if buffer.written:
        buffer.finish(split, shard, account, 0, last=True)
    report(account)
    return account


def _packer(
    settings: PackingSettings, encoder: Encoder, account: Account, offset: int
) -> ConcatenatePacker | PairPacker | PublishedPacker:
    from tasks.packing_published import PublishedPacker
    from tasks.packing_rows import ConcatenatePacker, PairPacker

    if settings.mode == "published":
        return PublishedPacker(
            settings.sequence_length, encoder.special, dtype=encoder.dtype, account=account, offset=offset
        )
    if settings.mode == "concatenate":
        return ConcatenatePacker(
            settings.sequence_length,
            encoder.special,
            crossing=settings.documents == "separated",
            dtype=encoder.dtype,
            account=account,
            offset=offset,
        )
    return PairPacker(
        settings.sequence_length,
        encoder.special,
        join_single=settings.single_sentences == "join",
        seed=settings.seed,
        dtype=encoder.dtype,
        account=account,
        offset=offset,
    )


def _documents(
    settings: PackingSettings,
    split: str,
    corpus: Path,
    encode: Encode,
    account: Account,
    report: Callable[[Account], None],
) -> Iterator[Any]:
    """The split's encoded documents from number ``account.documents`` on, as the mode's packer takes them."""
    pairs = settings.mode == "sentence-pairs"
    for batch in encode(read_texts(corpus, split, first=account.documents)):
        report(account)
        yield from batch.in_pieces() if pairs else batch.whole()


STAGE = Stage("pack", version=2, settings=PackingSettings, run=run, room=of_packing)
