"""Stage ``tokenizer``: trains a tokenizer from a definition on the corpus, checks it and measures it.

The result loads with ``AutoTokenizer.from_pretrained(folder)``. Equal corpora and settings give equal bytes.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tasks.contract import SCRATCH, Progress, Stage, StageError, UserError
from tasks.corpus_text import batches_of, count_characters, count_documents, read_texts
from tasks.parts import Parts
from tasks.tokenizer_settings import TokenizerSettings

if TYPE_CHECKING:
    from tasks.tokenizer_definition import TokenizerDefinition

LINE_CHARACTERS = 4096
"""Longest line that is drawn or left out as a whole. Also the longest word: trainers add up its likelihood, and sums
over much longer ones overflow (tokenizers#1198)."""

BATCH_CHARACTERS = 4_000_000
"""Text that is counted at once."""

CHECKED_TEXTS = 200
"""Held-out documents, or rather their beginnings, that the checks look at; evenly spread, so from every source."""

CHECKED_CHARACTERS = 1000
"""Characters of each of them."""

_Result = TypeVar("_Result")


def run(settings: TokenizerSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    """Check the definition, train, check the result and measure it.

    Args:
        settings: the definition and its vocabulary's size.
        inputs: ``corpus``.
        folder: receives ``tokenizer.json`` and ``tokenizer_config.json``.
        progress: counts documents.

    Returns:
        The figures of :func:`tasks.tokenizer_measuring.measure` on the validation split, under ``references`` those of
        each reference tokenizer, and ``algorithm``, ``corpus_characters``, ``training_characters`` (fewer if a sample
        was drawn), ``training_words`` (distinct ones), ``words_left_out`` (words of the text that hold a character
        which the trainer keeps for itself) and ``seconds_training``.

    Raises:
        UserError: a split is empty, the definition is wrong or loses what it promises to keep, a reference is wrong,
            or the vocabulary does not fit the corpus.
        StageError: the trained tokenizer fails another check, or there is too little memory.
    """
    from tokenizers import Tokenizer

    from tasks.tokenizer_check import check_tokenizer
    from tasks.tokenizer_measuring import load_references, measure

    corpus = inputs["corpus"]
    definition = settings.loaded()
    vocabulary_size = settings.vocabulary_size or definition.vocabulary_size
    for split in ("train", "validation"):
        if count_documents(corpus, split) == 0:
            raise UserError(f"tokenizer: the corpus' {split} split holds no document")
    references = load_references(settings.references)

    parts = Parts(folder)
    trained = folder / SCRATCH / "trained"
    facts = parts.finished().get("tokenizer")
    if facts is None:
        built = folder / SCRATCH / "building"
        shutil.rmtree(built, ignore_errors=True)
        sample = held_out_sample(corpus)
        facts = _train(settings, definition, vocabulary_size, corpus, sample, built, progress)
        check_tokenizer(built, definition, vocabulary_size, sample, settings.max_unknown_rate)
        parts.finish("tokenizer", built, trained, **facts)
    figures = measure(
        Tokenizer.from_file(str(trained / "tokenizer.json")), corpus, progress, "measuring on held-out text"
    )
    compared = {}
    for name, reference in references.items():
        try:
            compared[name] = measure(reference, corpus, progress, f"measuring {name}")
        except UserError as error:
            raise UserError(f"tokenizer.references: {name}: {error}") from None
    for path in sorted(trained.iterdir()):
        shutil.copyfile(path, folder / path.name)
    return {"algorithm": definition.algorithm, **figures, "references": compared, **facts}


def held_out_sample(corpus: Path) -> list[str]:
    """The beginnings of ``CHECKED_TEXTS`` documents of the validation split, or of all if it has fewer."""
    step = max(1, count_documents(corpus, "validation") // CHECKED_TEXTS)
    texts = (text for batch in read_texts(corpus, "validation") for text in batch)
    return [text[:CHECKED_CHARACTERS] for number, text in enumerate(texts) if number % step == 0][:CHECKED_TEXTS]


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
    settings: TokenizerSettings,
    definition: TokenizerDefinition,
    vocabulary_size: int,
    corpus: Path,
    sample: list[str],
    built: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Train a tokenizer and save it in ``built``; returns what was trained on, and how long it took."""
    from tasks.tokenizer_building import build_tokenizer, save_tokenizer, set_vocabulary
    from tasks.tokenizer_fitting import fit_vocabulary
    from tasks.tokenizer_promises import check_promises
    from tasks.tokenizer_words import Words, count_words

    try:
        tokenizer = build_tokenizer(definition)
        check_promises(definition, sample)
    except UserError as error:
        raise UserError(f"tokenizer.definition: {settings.definition}: {error}") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the library's own, which is no Exception and has no other name
            raise
        raise UserError(
            f"tokenizer.definition: {settings.definition}: `tokenizers` cannot apply its steps to the corpus "
            f"({error}); look for a pattern that matches where there is no character"
        ) from None
    begin = time.monotonic()
    documents = count_documents(corpus, "train")
    total = count_characters(corpus, "train")
    limit = settings.sample_characters
    seen = 0

    def lines() -> Iterator[str]:
        nonlocal seen
        for batch in read_texts(corpus, "train"):
            yield from training_lines(batch)
            seen += len(batch)

    drawn = lines() if limit is None or total <= limit else sample_lines(lines(), limit / total, limit, settings.seed)
    words: Words = _followed(
        lambda: count_words(batches_of(drawn, BATCH_CHARACTERS), tokenizer),
        lambda: progress(seen, documents, unit="documents", note="counting words"),
    )
    if not words.texts:
        raise UserError("tokenizer: the corpus' train split holds only white space, or what the normaliser takes out")
    scratch = built.with_name("fitting")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    note = f"fitting {vocabulary_size} entries to {len(words.texts)} distinct words"
    model, left_out = _followed(
        lambda: fit_vocabulary(words, definition, vocabulary_size, scratch),
        lambda: progress(documents, documents, unit="documents", note=f"{note}, {time.monotonic() - begin:.0f} s"),
    )
    set_vocabulary(tokenizer, model, definition)
    save_tokenizer(tokenizer, definition, built)
    return {
        "corpus_characters": total,
        "training_characters": words.characters,
        "training_words": len(words.texts),
        "words_left_out": left_out,
        "seconds_training": round(time.monotonic() - begin, 2),
    }


def _followed(work: Callable[[], _Result], tell: Callable[[], None]) -> _Result:
    """Do some work in a thread of its own, and tell how far it is meanwhile.

    The trainers do not return for minutes, and Ctrl-C and the progress should not wait for them.
    """
    results: list[_Result] = []
    failures: list[BaseException] = []

    def do() -> None:
        try:
            results.append(work())
        except BaseException as error:  # the library's panics are no Exception
            failures.append(error)

    thread = threading.Thread(target=do, name="tokenizer training", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.5)
        tell()
    if not failures:
        return results[0]
    if isinstance(failures[0], UserError | StageError | OSError):  # that of a full disk is told by who runs the stage
        raise failures[0]
    reason = " ".join(str(failures[0]).split())
    raise StageError(f"tokenizer training failed: {reason or type(failures[0]).__name__}") from failures[0]


STAGE = Stage("tokenizer", version=2, settings=TokenizerSettings, run=run)
