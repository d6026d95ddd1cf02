"""Checks a saved tokenizer before anything is built on it.

A broken tokenizer is the cheapest mistake and the dearest to find: nothing fails, and the model just learns less.

Imported only by a running stage: the libraries are imported at the top.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from tasks.contract import StageError, UserError
from tasks.tokenizer_definition import TokenizerDefinition

JOINERS = "\u200c\u200d"
"""Zero width non-joiner and joiner: they choose between the forms of a conjunct."""

_LETTERS_NOBODY_USES = range(0x10000, 0x1005E)
"""Linear B syllables: letters to every normaliser and in no corpus, at most by accident a few of them."""


def check_tokenizer(folder: Path, definition: TokenizerDefinition, vocabulary_size: int, texts: Sequence[str]) -> None:
    """Load the tokenizer as its users will, and check it against its definition.

    Args:
        folder: holds ``tokenizer.json`` and ``tokenizer_config.json``.
        definition: what was asked for.
        vocabulary_size: the number of entries asked for.
        texts: held-out texts on which the promises are checked, beside the definition's hard words.

    Raises:
        UserError: the vocabulary does not fit the corpus, or the definition loses what it promises to keep.
        StageError: something else does not hold; one line that says what.
    """
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    _check_size(plain, definition, vocabulary_size)
    if len(loaded) != vocabulary_size:
        raise StageError(f"tokenizer check: AutoTokenizer has {len(loaded)} entries, the file {vocabulary_size}")

    special = definition.special_tokens
    for name in ("pad", "unk", "cls", "sep", "mask"):
        wanted = getattr(special, name)
        found = (getattr(loaded, f"{name}_token"), getattr(loaded, f"{name}_token_id"))
        if found != (wanted.token, wanted.id):
            raise StageError(f"tokenizer check: {name} is {found} after loading, not {(wanted.token, wanted.id)}")
    for token in special.by_id():
        if plain.encode(token.token * 2, add_special_tokens=False).ids != [token.id] * 2:
            raise StageError(f"tokenizer check: {token.token} in a text is not one token with id {token.id}")

    pair = loaded("a", "b")
    if set(pair.get("token_type_ids", [])) != set(plain.encode("a", "b").type_ids):
        raise StageError("tokenizer check: AutoTokenizer does not return the pair template's token_type_ids")

    unseen = next(chr(code) for code in _LETTERS_NOBODY_USES if plain.token_to_id(chr(code)) is None)
    if special.unk.id not in plain.encode(unseen, add_special_tokens=False).ids:
        raise StageError(f"tokenizer check: an unseen character does not give {special.unk.token}")

    for text in definition.hard_words:
        _check_promises(plain, definition, text)
        if len(plain.normalizer.normalize_str(text).split()) > 1:
            raise UserError(f"tokenizer check: the normaliser splits the word {text!r}")
        _check_round_trip(plain, special.unk.id, text)
    for text in texts:
        _check_promises(plain, definition, text)
        _check_round_trip(plain, special.unk.id, text)
        if loaded(text, truncation=False)["input_ids"] != plain.encode(text).ids:
            raise StageError(f"tokenizer check: AutoTokenizer and tokenizer.json give other ids for {text[:40]!r}")


def _check_size(tokenizer: Tokenizer, definition: TokenizerDefinition, vocabulary_size: int) -> None:
    entries = tokenizer.get_vocab_size()
    if entries < vocabulary_size:
        raise UserError(
            f"the corpus yields only {entries} pieces, not {vocabulary_size}: set tokenizer.vocabulary_size to "
            f"{entries} or less, or take more text"
        )
    if entries > vocabulary_size:
        raise UserError(
            f"the corpus has more characters than tokenizer.vocabulary_size: {vocabulary_size} has room for "
            f"({entries} entries were needed): raise it, or remove rare characters from the corpus"
        )


def _check_promises(tokenizer: Tokenizer, definition: TokenizerDefinition, text: str) -> None:
    """Every mark and joiner that the definition keeps is still there after normalisation."""
    lost = _kept(text, definition) - _kept(tokenizer.normalizer.normalize_str(text), definition)
    if lost:
        names = ", ".join(f"U+{ord(c):04X} {unicodedata.name(c, '?')} ({n} x)" for c, n in sorted(lost.items()))
        raise UserError(f"tokenizer check: the normaliser loses {names} in {text[:40]!r}")


def _kept(text: str, definition: TokenizerDefinition) -> Counter[str]:
    """The characters that must survive, counted in fully decomposed form, so that composing counts as keeping."""
    marks = "marks" in definition.keeps
    joiners = "joiners" in definition.keeps
    return Counter(
        character
        for character in unicodedata.normalize("NFKD", text)
        if (marks and unicodedata.category(character).startswith("M")) or (joiners and character in JOINERS)
    )


def _check_round_trip(tokenizer: Tokenizer, unk_id: int, text: str) -> None:
    """Decoding gives the normalised text back, but for white space and around what the vocabulary does not hold."""
    normalized = tokenizer.normalizer.normalize_str(text)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if unk_id in encoding.ids or any(token in text for token in _added(tokenizer)):
        return
    decoded, expected = "".join(tokenizer.decode(encoding.ids).split()), "".join(normalized.split())
    if decoded != expected:
        same = next((i for i, (a, b) in enumerate(zip(decoded, expected, strict=False)) if a != b), len(decoded))
        raise StageError(
            f"tokenizer check: decoding does not give {expected[same : same + 20]!r} of {text[:40]!r} back"
        )


def _added(tokenizer: Tokenizer) -> list[str]:
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]
