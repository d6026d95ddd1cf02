"""The corpus stage: documents from all sources, cleaned, mixed, shuffled and written as Parquet shards.

What happens to a document, in this order:

1. **read** from its source and stripped of white space at its ends; what cannot be read fails the stage or is skipped;
2. **looked at** by itself (``corpus_cleaning``): it is dropped if nothing of it shows, if it has too few letters of
   the expected scripts, or a run of words that a test text has too;
3. **mixed**: without weights the sources follow one another. With weights, each document comes from a source drawn
   by weight, until one source has no more: only so are the proportions kept without reading anything twice;
4. **compared** with all earlier ones, of any source (``corpus_duplicates``): exact and near duplicates are dropped;
5. **shuffled** through a buffer: each document waits there until one drawn by the seed takes its place;
6. **held out** for validation by a digest of the seed and its text, so that neither order nor number of the other
   documents matters; at least one is held out.

Everything that was left out is counted in the record and named in ``logs/left-out.jsonl.gz``.

Memory does not grow with the corpus: there are the shuffle buffer, whose text beyond 100 million characters is on
disk, the pieces under way, one row group, and a database's cache. Step 2 alone is spread over processes. A stage that
was killed reads again from the start, and takes over what was found in step 2.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from difflib import get_close_matches
from pathlib import Path
from random import Random
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.contract import LOGS, SCRATCH, Progress, Settings, Stage, UserError
from tasks.corpus_account import COUNTED, Account
from tasks.corpus_cleaning import Analysis, Finding, is_script, numbers_of, runs_of, words_of
from tasks.corpus_duplicates import Duplicates, Findings
from tasks.corpus_lines import MEGABYTE
from tasks.corpus_reading import Reading, place_of
from tasks.corpus_shards import Document, Shards, shuffled
from tasks.corpus_sources import FilesSource, Source, check_source
from tasks.executor import Scheduler, open_executor, worker_count
from tasks.room import of_corpus
from tasks.tokenizer_scripts import known_scripts
from tasks.user_files import shown

TEST_TEXTS = "test-texts"
"""The input with the evaluation's test texts, in ``test.jsonl``: objects with the field ``text``."""


class ScriptSettings(Settings):
    """Which script the text should be in."""

    names: list[str] = Field(min_length=1, description="Unicode scripts, such as Bengali; several for Japanese.")
    share: float = Field(default=0.5, gt=0, le=1, description="Least share of the letters and marks in them.")

    @field_validator("names")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            if not is_script(name):
                near = get_close_matches(name.title(), [known.title() for known in known_scripts()], n=1)
                known = f"did you mean {near[0]}?" if near else "they are called Bengali, Latin, Cyrillic ..."
                raise ValueError(f"{name} is no script that Unicode knows; {known}")
        return names


class NearDuplicateSettings(Settings):
    """When two documents are nearly the same (MinHash)."""

    similarity: float = Field(
        default=0.8, ge=0.3, le=1, description="Share of their runs of words that two documents have in common."
    )
    words: int = Field(default=5, ge=1, le=50, description="Words in such a run.")


class DecontaminationSettings(Settings):
    """When a document holds a part of a test text."""

    words: int = Field(
        default=8, ge=2, le=50, description="Words in a row that both have; shorter test texts are not compared."
    )


class CorpusSettings(Settings):
    """Which documents make up the corpus."""

    sources: list[Source] = Field(min_length=1, description="Where the documents come from.")
    seed: int = Field(default=0, description="Decides mixing, order and which documents are held out.")
    shuffle_buffer: int = Field(
        default=10_000,
        ge=1,
        description="Documents among which the next one is drawn; 1 keeps the order. sahajBERT's is 10,000.",
    )
    on_error: Literal["raise", "skip"] = Field(
        default="raise", description="What cannot be read ends the stage, or is skipped and listed in the record."
    )
    max_document_mb: float = Field(
        default=32, gt=0, le=1_000, description="A longer document, in megabytes of UTF-8, counts as unreadable."
    )
    script: ScriptSettings | None = Field(default=None, description="Drop documents in other scripts; null: none.")
    decontamination: DecontaminationSettings | None = Field(
        default=None, description="Drop documents that overlap with the evaluation's test texts; null: none."
    )
    drop_duplicates: bool = Field(default=True, description="Drop documents whose text occurred before.")
    near_duplicates: NearDuplicateSettings | None = Field(
        default=None, description="Drop documents that are nearly the same as an earlier one; null: none."
    )
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
        if self.near_duplicates and not self.drop_duplicates:
            raise ValueError("near_duplicates drops exact ones too; leave drop_duplicates true")
        return self


def check(settings: CorpusSettings) -> None:
    """Raise :class:`UserError` for a file that is not there or whose format is unknown. Reads no file."""
    for index, source in enumerate(settings.sources):
        check_source(source, place_of(index))


def run(settings: CorpusSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    """Write ``data/train-*.parquet`` and ``data/validation-*.parquet``; columns id, source, text.

    An id is the source's name and the number of the document in it, counted from 0 before anything is left out.

    Args:
        settings: sources, cleaning, order and splits.
        inputs: with ``decontamination`` the test texts.
        folder: receives the data, and in ``logs`` the list of what was left out.
        progress: counts sources.

    Raises:
        UserError: with ``on_error: raise``, what cannot be read; fewer than two documents are left.
        StageError: the hub, a worker process or the Dask cluster fails.
    """
    assert set(inputs) == ({TEST_TEXTS} if settings.decontamination else set())
    check(settings)
    building, data = folder / SCRATCH / "building", folder / "data"
    for old in (building, data):  # a killed run may have left them
        shutil.rmtree(old, ignore_errors=True)
    building.mkdir(parents=True)
    analysis, tested = _analysis(settings, inputs)
    account = Account([source.name for source in settings.sources], folder / LOGS)
    train = Shards(building, "train", settings.shard_documents)
    validation = Shards(building, "validation", shard_documents=None)
    last: Document | None = None
    with ExitStack() as opened:
        opened.enter_context(closing(account))
        executor = opened.enter_context(open_executor(worker_count() if analysis.costly else 1, settings.scheduler))
        findings = None
        if analysis.costly:
            findings = opened.enter_context(closing(Findings(folder / SCRATCH / "findings.sqlite")))
        reading = Reading(
            analysis,
            account,
            executor,
            progress,
            sources=len(settings.sources),
            longest=int(settings.max_document_mb * MEGABYTE),
            skip=settings.on_error == "skip",
            findings=findings,
        )
        similarity = settings.near_duplicates.similarity if settings.near_duplicates else 1.0
        duplicates = opened.enter_context(closing(Duplicates(building / "duplicates.sqlite", similarity)))
        kept = _kept(_mixed(settings, reading), settings, duplicates, account)
        rng = Random(f"corpus order {settings.seed}")
        for document in shuffled(kept, settings.shuffle_buffer, rng, building / "buffer"):
            # Always one behind, so that the very last one can be held out if no other was.
            if last:
                (validation if _is_held_out(last.text, settings) else train).add(last)
            last = document
    if last is None or account.total("documents") < 2:
        raise _too_few(settings, account)
    held_out = train.documents > 0 and (validation.documents == 0 or _is_held_out(last.text, settings))
    (validation if held_out else train).add(last)
    data.mkdir()
    train.close(data)
    validation.close(data)
    return {
        "documents": account.total("documents"),
        "characters": account.total("characters"),
        "bytes": train.bytes + validation.bytes,
        "validation_documents": validation.documents,
        "sources": account.as_json(),
        "unreadable": account.unreadable,
        **tested,
    }


def _analysis(settings: CorpusSettings, inputs: Mapping[str, Path]) -> tuple[Analysis, dict[str, Any]]:
    """What to look for in documents; and what the record says of the test texts."""
    script, near, overlap = settings.script, settings.near_duplicates, settings.decontamination
    runs, tested = b"", {}
    if overlap:
        import numpy as np

        texts = [json.loads(line)["text"] for line in (inputs[TEST_TEXTS] / "test.jsonl").open(encoding="utf-8")]
        found = [runs_of(numbers_of(words_of(text)), overlap.words) for text in texts]
        too_short = sum(not len(one) for one in found)
        tested = {"test_texts": {"compared": len(texts) - too_short, "too_short": too_short}}
        runs = np.unique(np.concatenate(found)).tobytes()
    analysis = Analysis(
        scripts=tuple(script.names) if script else None,
        script_share=script.share if script else 0.0,
        overlap_words=overlap.words if overlap else None,
        test_runs=runs,
        near_words=near.words if near else None,
        near_similarity=near.similarity if near else 0.0,
    )
    return analysis, tested


def _mixed(settings: CorpusSettings, reading: Reading) -> Iterator[tuple[Document, Finding]]:
    """Step 3."""
    streams = [reading.documents(index, source) for index, source in enumerate(settings.sources)]
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


def _kept(
    documents: Iterator[tuple[Document, Finding]], settings: CorpusSettings, duplicates: Duplicates, account: Account
) -> Iterator[Document]:
    """Step 4, and the limit."""
    total = 0
    for document, finding in documents:
        id, source, text = document
        if settings.drop_duplicates and (first := duplicates.exact(finding.digest, id)) is not None:
            account.leave_out(source, "duplicates", id, text, of=first)
            continue
        if finding.bands and (near := duplicates.near(finding.signature, finding.bands, id)):
            account.leave_out(source, "near_duplicates", id, text, of=near[0], similarity=round(near[1], 3))
            continue
        account.keep(source, text)
        yield document
        total += 1
        if total == settings.limit_documents:
            return


def _is_held_out(text: str, settings: CorpusSettings) -> bool:
    """Step 6: a digest, read as a number from 0 to 1, is below the fraction."""
    digest = hashlib.blake2b(f"{settings.seed}\n{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < settings.validation_fraction


def _too_few(settings: CorpusSettings, account: Account) -> UserError:
    names: list[str] = []
    for source in settings.sources:
        names += map(shown, source.paths) if isinstance(source, FilesSource) else [source.name]
    counts = [f"{account.total('documents')} documents with text"]
    for count in COUNTED.values():
        if number := account.total(count):
            counts.append(f"{number:,} left out ({count})")
    first = f" (the first one: {account.unreadable[0]})" if account.unreadable else ""
    return UserError(f"corpus.sources: {', '.join(counts)}{first}, in {', '.join(names)}; the corpus needs at least 2")


STAGE = Stage("corpus", version=3, settings=CorpusSettings, run=run, room=of_corpus)
