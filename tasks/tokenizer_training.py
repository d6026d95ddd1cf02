"""Stage ``tokenizer``: trains a tokenizer from a definition on the corpus, checks it and measures it.

The result loads with ``AutoTokenizer.from_pretrained(folder)``. The library's trainers are not deterministic (their
hash maps are seeded per process), so equal settings can give other vocabularies; the artifact's digest tells.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationInfo, field_validator

from tasks.contract import SCRATCH, Progress, Settings, Stage, StageError, UserError, absolute_path
from tasks.corpus_text import count_characters, count_documents, read_texts
from tasks.parts import Parts
from tasks.tokenizer_definition import MAX_ENTRIES, check_definition_name, is_definition_path, load_definition

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LINE_CHARACTERS = 4096
"""Longest piece of text a trainer sees; very long ones overflow the Unigram likelihood (tokenizers#1198)."""

CHECKED_TEXTS = 200
"""Held-out documents, or rather their beginnings, that the check after training looks at."""

CHECKED_CHARACTERS = 1000
"""Characters of each of them."""


class TokenizerSettings(Settings):
    """Which tokenizer to train, and on how much of the corpus."""

    definition: str = Field(
        "bengali-unigram-32k", description="name of a built-in definition (tokenizers/), or path of a .yaml file"
    )
    vocabulary_size: int | None = Field(
        None, ge=16, le=MAX_ENTRIES, description="entries, special tokens included; null takes the definition's"
    )
    sample_characters: int | None = Field(
        200_000_000,
        ge=10_000,
        description="train on about this many characters, drawn line by line from the whole corpus; null takes all",
    )
    seed: int = Field(0, ge=0, description="decides which lines are drawn")

    @field_validator("definition")
    @classmethod
    def _known(cls, definition: str, info: ValidationInfo) -> str:
        """A relative path starts at the recipe's folder, which the recipe's loader passes as context."""
        check_definition_name(definition)
        return absolute_path(definition, info) if is_definition_path(definition) else definition

    def identity_inputs(self) -> dict[str, Any]:
        """The definition by its content, so that editing it reruns the stage, and moving a user's file does not."""
        name = "file" if is_definition_path(self.definition) else self.definition
        return {"definition": name, "definition_content": load_definition(self.definition).content()}


def run(settings: TokenizerSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    """Train, check and measure the tokenizer.

    Args:
        settings: the definition and its vocabulary's size.
        inputs: ``corpus``.
        folder: receives ``tokenizer.json`` and ``tokenizer_config.json``.
        progress: counts documents.

    Returns:
        Figures on the validation split: ``tokens_per_word`` (words: between white space), ``tokens_per_byte``,
        ``unknown_rate`` (of the tokens) and ``vocabulary_in_use`` (share of the entries that occur there); with
        ``entries``, ``algorithm``, ``held_out_words``, ``training_characters`` and ``seconds_training``.

    Raises:
        UserError: a split is empty, the definition is wrong or loses what it promises to keep, or the vocabulary does
            not fit the corpus.
        StageError: the trained tokenizer fails another check.
    """
    from tasks.tokenizer_building import save_tokenizer
    from tasks.tokenizer_check import check_tokenizer

    corpus = inputs["corpus"]
    definition = load_definition(settings.definition)
    vocabulary_size = settings.vocabulary_size or definition.vocabulary_size
    for split in ("train", "validation"):
        if count_documents(corpus, split) == 0:
            raise UserError(f"tokenizer: the corpus' {split} split holds no document")

    parts = Parts(folder)
    trained = folder / SCRATCH / "trained"
    facts = parts.finished().get("tokenizer")
    if facts is None:
        tokenizer, facts = _train(settings, definition, vocabulary_size, corpus, progress)
        built = folder / SCRATCH / "building"
        save_tokenizer(tokenizer, definition, built)
        held_out = [text[:CHECKED_CHARACTERS] for text in _first(CHECKED_TEXTS, read_texts(corpus, "validation"))]
        check_tokenizer(built, definition, vocabulary_size, held_out)
        parts.finish("tokenizer", built, trained, **facts)
    figures = _measure(trained / "tokenizer.json", definition.special_tokens.unk.id, corpus, progress)
    for path in sorted(trained.iterdir()):
        shutil.copyfile(path, folder / path.name)
    return {"algorithm": definition.algorithm, **figures, **facts}


def training_lines(texts: Iterable[str]) -> Iterator[str]:
    """Cut texts into lines, and lines over ``LINE_CHARACTERS`` at white space, else anywhere; no empty ones."""
    for text in texts:
        for line in text.splitlines():
            while len(line) > LINE_CHARACTERS:
                at = line.rfind(" ", 1, LINE_CHARACTERS)
                at = LINE_CHARACTERS if at < 0 else at
                yield line[:at]
                line = line[at:]
            if line and not line.isspace():
                yield line


def sample_lines(lines: Iterable[str], share: float, limit: int, seed: int) -> Iterator[str]:
    """Draw about ``share`` of the lines, and stop before ``limit`` characters are passed; equal for equal seeds."""
    draw = random.Random(seed).random
    for line in lines:
        if draw() < share:
            limit -= len(line)
            if limit < 0:
                return
            yield line


def _train(
    settings: TokenizerSettings, definition: Any, vocabulary_size: int, corpus: Path, progress: Progress
) -> tuple[Tokenizer, dict[str, Any]]:
    """The trained tokenizer, with ``training_characters`` and ``seconds_training``."""
    from tasks.tokenizer_building import build_tokenizer, build_trainer

    documents = count_documents(corpus, "train")
    share, limit = 1.0, None
    if settings.sample_characters is not None:
        total = count_characters(corpus, "train")
        if total > settings.sample_characters:
            share, limit = settings.sample_characters / total, settings.sample_characters

    seen = {"documents": 0, "characters": 0}

    def read() -> Iterator[str]:
        for batch in read_texts(corpus, "train"):
            yield from batch
            seen["documents"] += len(batch)

    def batches() -> Iterator[list[str]]:
        lines = training_lines(read())
        if limit is not None:
            lines = sample_lines(lines, share, limit, settings.seed)
        batch: list[str] = []
        for line in lines:
            batch.append(line)
            seen["characters"] += len(line)
            if len(batch) == 1000:
                yield batch
                batch = []
        yield batch
        seen["documents"] = documents

    try:
        tokenizer = build_tokenizer(definition)
    except UserError as error:
        raise UserError(f"tokenizer.definition: {settings.definition}: {error}") from None
    trainer = build_trainer(definition, vocabulary_size)
    begin = time.monotonic()
    # In a thread of its own: the library does not return for minutes, and Ctrl-C and the progress should not wait.
    failure: list[BaseException] = []

    def train() -> None:
        try:
            tokenizer.train_from_iterator(batches(), trainer)
        except BaseException as error:  # the library's panics are no Exception
            failure.append(error)

    thread = threading.Thread(target=train, name="tokenizer training", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.5)
        reading = seen["documents"] < documents
        note = "reading" if reading else f"fitting {vocabulary_size} entries, {time.monotonic() - begin:.0f} s"
        progress(seen["documents"], documents, unit="documents", note=note)
    if failure:
        reason = " ".join(str(failure[0]).split())
        kind = UserError if "vocabulary is not large enough" in reason else StageError
        raise kind(f"training with tokenizer.vocabulary_size: {vocabulary_size} failed: {reason}") from failure[0]
    if seen["characters"] == 0:
        raise UserError("tokenizer: the corpus' train split holds only white space")
    seconds = time.monotonic() - begin
    return tokenizer, {"training_characters": seen["characters"], "seconds_training": round(seconds, 2)}


def _measure(file: Path, unk_id: int, corpus: Path, progress: Progress) -> dict[str, Any]:
    """The figures on the validation split."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    entries = tokenizer.get_vocab_size()
    counts = np.zeros(entries, dtype=np.int64)
    words = size = done = 0
    documents = count_documents(corpus, "validation")
    for texts in read_texts(corpus, "validation"):
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            counts += np.bincount(encoding.ids, minlength=entries)
        words += sum(len(text.split()) for text in texts)
        size += sum(len(text.encode()) for text in texts)
        done += len(texts)
        progress(done, documents, unit="documents", note="measuring on held-out text")
    tokens = int(counts.sum())
    if not words or not tokens:
        raise UserError("tokenizer: the corpus' validation split holds no words to measure on")
    return {
        "entries": entries,
        "tokens_per_word": tokens / words,
        "tokens_per_byte": tokens / size,
        "unknown_rate": int(counts[unk_id]) / tokens,
        "vocabulary_in_use": int((counts > 0).sum()) / entries,
        "held_out_words": words,
    }


def _first(number: int, batches: Iterable[list[str]]) -> list[str]:
    """The first texts of a stream of batches."""
    texts: list[str] = []
    for batch in batches:
        texts += batch
        if len(texts) >= number:
            break
    return texts[:number]


STAGE = Stage("tokenizer", version=1, settings=TokenizerSettings, run=run)
