"""Learns a vocabulary from counted words; equal words give equal vocabularies, which the library's trainers do not.

Imported only by a running stage: the libraries are imported at the top.

The trainers of ``tokenizers`` walk through hash maps that are seeded anew each time, so what they learn differs from
run to run. Here a Unigram is learned by sentencepiece, whose result depends on its number of threads alone, which is
fixed; a WordPiece by the library's trainer, to which all characters are given beforehand: the order in which it meets
them is all that differed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tasks.contract import StageError, UserError
from tasks.tokenizer_building import CONTINUATION
from tasks.tokenizer_definition import TokenizerDefinition
from tasks.tokenizer_memory import check_memory, training_bytes
from tasks.tokenizer_seeds import LONGEST_PIECE, seed_pieces
from tasks.tokenizer_words import Words

THREADS = 8
"""Of sentencepiece; a constant, since sums of other parts are rounded otherwise and can give other pieces."""

SEEDS_AN_ENTRY = 4
"""Seed pieces for each entry of the vocabulary. Measured with 32,000 entries on 35 MB of Bengali, tokens per word on
held-out text: 1.534 with 2.5 seeds an entry, 1.516 with 3, 1.508 with 4, 1.521 with 8 and 1.523 with all."""

SHRINKING_FACTOR = 0.5
"""Share of the pieces that a round keeps, the least that sentencepiece takes. 0.75, its default, takes more time for
the same tokens per word (1.508 both on the text above), and so do two sub-iterations a round instead of one."""

SUB_ITERATIONS = 1
"""Steps of expectation maximisation in a round."""

RESERVED = "\0\t\n\r\u2585"
"""Characters that sentencepiece keeps for itself or for its file of words."""

_LONGEST_WORD_BYTES = 1 << 20
"""Longer words would be left out; a line is cut before a word can have a hundredth of it."""

_UNKNOWN = "a\u2581"
"""sentencepiece's own name for unknown text, one that no piece can have: the marker stands at the front only."""

_REPEATED = 10_000
"""Occurrences of a word in one text for the WordPiece trainer."""


def fit_vocabulary(
    words: Words, definition: TokenizerDefinition, vocabulary_size: int, scratch: Path
) -> tuple[models.Model, int]:
    """Learn a vocabulary with the definition's special tokens first.

    Args:
        words: what to learn from.
        definition: says the algorithm and the special tokens.
        vocabulary_size: entries, special tokens included.
        scratch: an existing folder for temporary files.

    Returns:
        The model, and how many words of the text could not be trained on.

    Raises:
        UserError: the words yield fewer pieces, or have more characters than fit.
        StageError: there is too little memory, or the trainer failed.
    """
    unigram = definition.algorithm == "unigram"
    words, left_out = words.without(RESERVED if unigram else "\n")
    if not words.texts:
        raise UserError("tokenizer: every word of the corpus has a character that the trainer keeps for itself")
    if unigram:
        return _fit_unigram(words, definition, vocabulary_size, scratch), left_out
    return _fit_word_piece(words, definition, vocabulary_size), left_out


def _fit_unigram(words: Words, definition: TokenizerDefinition, vocabulary_size: int, scratch: Path) -> models.Unigram:
    five = definition.special_tokens.by_id()
    _check_room(len(set().union(*words.texts)), len(five), vocabulary_size)
    characters = sum(map(len, words.texts))
    limit = SEEDS_AN_ENTRY * vocabulary_size
    check_memory(training_bytes(characters, limit), "training", words.characters)
    special = {token.token for token in five}
    words_file = scratch / "words.tsv"
    _write_rows(words_file, zip(words.texts, words.counts, strict=True))
    while True:
        seeds = [row for row in seed_pieces(words.texts, words.counts, limit) if row[0] not in special]
        _write_rows(scratch / "seeds.tsv", seeds)
        try:
            pieces = _run_sentencepiece(words_file, scratch / "seeds.tsv", vocabulary_size - len(five) + 1)
            break
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            too_few = re.search(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)", reason)
            if too_few is None:
                raise StageError(f"training with vocabulary_size: {vocabulary_size} failed: {reason}") from error
            if len(seeds) < limit:  # all that there are
                _raise_too_few(int(too_few[1]) + len(five) - 1, vocabulary_size)
            # The likelihood dropped too many of the best seeds, so more of them are needed.
            limit *= 4
            check_memory(training_bytes(characters, limit), "training", words.characters)
    return models.Unigram([*((token.token, 0.0) for token in five), *pieces], definition.special_tokens.unk.id, False)


def _run_sentencepiece(words: Path, seeds: Path, pieces: int) -> list[tuple[str, float]]:
    """The pieces with their log probabilities, without that for unknown text, in the order of their ids."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        input=str(words),
        input_format="tsv",
        seed_sentencepieces_file=str(seeds),
        model_writer=model,
        model_type="unigram",
        vocab_size=pieces,
        num_threads=THREADS,
        shrinking_factor=SHRINKING_FACTOR,
        num_sub_iterations=SUB_ITERATIONS,
        max_sentencepiece_length=LONGEST_PIECE,
        max_sentence_length=_LONGEST_WORD_BYTES,
        # The words are normalised and cut already.
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_unicode_script=False,
        split_by_number=False,
        # Every character of the text is an entry.
        character_coverage=1.0,
        unk_piece=_UNKNOWN,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [
        (processor.id_to_piece(number), processor.get_score(number))
        for number in range(processor.get_piece_size())
        if number != processor.unk_id()
    ]


def _fit_word_piece(words: Words, definition: TokenizerDefinition, vocabulary_size: int) -> models.WordPiece:
    five = [token.token for token in definition.special_tokens.by_id()]
    continuing = [CONTINUATION + character for character in sorted({c for text in words.texts for c in text[1:]})]
    _check_room(len(set().union(*words.texts)) + len(continuing), len(five), vocabulary_size)
    trained = Tokenizer(models.WordPiece(unk_token=definition.special_tokens.unk.token))
    trained.pre_tokenizer = pre_tokenizers.Split("\n", "removed")
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        # Not really special, but this is how to give them a place before the trainer meets them.
        special_tokens=[*five, *continuing],
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    trained.train_from_iterator(_repeated(words), trainer)
    vocabulary = trained.get_vocab(with_added_tokens=False)
    if len(vocabulary) < vocabulary_size:
        _raise_too_few(len(vocabulary), vocabulary_size)
    return models.WordPiece(
        vocabulary, unk_token=definition.special_tokens.unk.token, continuing_subword_prefix=CONTINUATION
    )


def _repeated(words: Words) -> Iterator[str]:
    """Each word in lines, as often as it occurs: the library's trainers take no numbers."""
    for text, count in zip(words.texts, words.counts, strict=True):
        full, rest = divmod(count, _REPEATED)
        for number in [_REPEATED] * full + [rest] * bool(rest):
            yield "\n".join([text] * number)


def _write_rows(path: Path, rows: Iterator[tuple[str, int]] | list[tuple[str, int]] | zip[tuple[str, int]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{text}\t{number}\n" for text, number in rows)


def _check_room(characters: int, special: int, vocabulary_size: int) -> None:
    needed = characters + special
    if needed > vocabulary_size:
        raise UserError(
            f"the corpus has more characters than tokenizer.vocabulary_size: {vocabulary_size} has room for "
            f"({needed} entries are needed): raise it, or remove rare characters from the corpus"
        )


def _raise_too_few(entries: int, vocabulary_size: int) -> None:
    raise UserError(
        f"the corpus yields only {entries} pieces, not {vocabulary_size}: set tokenizer.vocabulary_size to {entries} "
        "or less, or take more text"
    )
