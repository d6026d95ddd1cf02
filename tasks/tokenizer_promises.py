"""Checks, before anything is trained, that a definition keeps the script: its normaliser and its pre-tokenizer.

What would be lost here is lost for the model, and nothing fails: the model just learns less. So every combining mark
of the scripts that the corpus is written in, words that are known to be hard, and a sample of the corpus itself go
through the steps, and the first step that breaks a promise is named with what it did.

Imported only by a running stage: the library is imported at the top.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence

from tokenizers import normalizers, pre_tokenizers

from tasks.contract import UserError
from tasks.tokenizer_building import build_step, build_tokenizer, pre_tokenizer_steps
from tasks.tokenizer_definition import TokenizerDefinition
from tasks.tokenizer_scripts import HARD_WORDS, JOINERS, marks_of, named, script_of, shares_of_scripts

SMALLEST_SHARE = 0.001
"""Of the sample's letters: a script with less is not checked mark by mark."""

FOREIGN_SHARE = 0.05
"""Of the sample's letters: what a definition that is meant for some scripts bears in others, names and quotations."""


def check_promises(definition: TokenizerDefinition, texts: Sequence[str]) -> None:
    """Check the promises on all that :func:`probes` gives, and that composed and decomposed letters become equal.

    Raises:
        UserError: one does not hold; one line with the characters and the step.
    """
    _check_scripts(definition, texts)
    steps = [(f"normalizer.{number} ({step.step})", build_step(step)) for number, step in definition.steps()]
    cuts = pre_tokenizer_steps(definition)
    whole = build_tokenizer(definition).normalizer
    words = words_to_check(definition, texts)
    for text in [*words, *marks_to_check(definition, texts), *texts]:
        _check_kept(steps, whole, definition, text)
        _check_forms(whole, text)
    for word in words:
        _check_undivided(steps, cuts, word)


def words_to_check(definition: TokenizerDefinition, texts: Sequence[str]) -> list[str]:
    """The definition's hard words, and the built-in ones of the text's scripts as far as they fall under a promise."""
    words = list(definition.hard_words)
    if "marks" in definition.keeps:
        for script in _scripts(texts):
            words += [word for word in HARD_WORDS.get(script, []) if _promised(word, definition)]
    return words


def marks_to_check(definition: TokenizerDefinition, texts: Sequence[str]) -> list[str]:
    """Every mark of the text's scripts and both joiners, each between two letters, as far as they are promised."""
    probes = []
    for script in _scripts(texts):
        letter = _first_letter(script, texts)
        kept = (marks_of(script) if "marks" in definition.keeps else "") + (
            JOINERS if "joiners" in definition.keeps else ""
        )
        probes += [letter + mark + letter for mark in kept]
    return probes


def _promised(word: str, definition: TokenizerDefinition) -> bool:
    return "joiners" in definition.keeps or not any(joiner in word for joiner in JOINERS)


def _scripts(texts: Sequence[str]) -> list[str]:
    return [script for script, share in shares_of_scripts(texts).items() if share >= SMALLEST_SHARE]


def _first_letter(script: str, texts: Sequence[str]) -> str:
    found = (c for text in texts for c in text if script_of(c) == script and unicodedata.category(c)[0] == "L")
    return next(found, "a")


def _check_scripts(definition: TokenizerDefinition, texts: Sequence[str]) -> None:
    """A definition that is meant for some scripts gets no corpus in another one."""
    if definition.scripts is None:
        return
    meant = {script.upper() for script in definition.scripts}
    for script, share in shares_of_scripts(texts).items():
        if script not in meant and share > FOREIGN_SHARE:
            raise UserError(
                f"tokenizer check: the definition is meant for {', '.join(definition.scripts)}, and "
                f"{100 * share:.0f} % of the corpus' letters are {script.lower()}: take another definition"
            )


def _check_kept(
    steps: Sequence[tuple[str, normalizers.Normalizer]],
    whole: normalizers.Normalizer,
    definition: TokenizerDefinition,
    text: str,
) -> None:
    """Every mark and joiner that the definition keeps is still there after normalisation."""
    promised = _kept(text, definition)
    lost = promised - _kept(whole.normalize_str(text), definition)
    if not lost:
        return
    after = text
    for place, step in steps:
        before, after = after, step.normalize_str(after)
        gone = _kept(before, definition) - _kept(after, definition)
        if gone & lost:
            raise UserError(
                f"tokenizer check: {place} loses {named(gone & lost)}: it makes {_around(after, before)} of "
                f"{_around(before, after)}; take the step out, or take what it loses out of the definition's keeps"
            )
    raise AssertionError("the steps one by one lose what they lose together")


def _kept(text: str, definition: TokenizerDefinition) -> Counter[str]:
    """The characters that must survive, counted in fully decomposed form, so that composing counts as keeping."""
    marks = "marks" in definition.keeps
    joiners = "joiners" in definition.keeps
    return Counter(
        character
        for character in unicodedata.normalize("NFKD", text)
        if (marks and unicodedata.category(character)[0] == "M") or (joiners and character in JOINERS)
    )


def _check_forms(whole: normalizers.Normalizer, text: str) -> None:
    """Composed and decomposed spellings, which look the same and are typed alike, become the same text."""
    composed = whole.normalize_str(unicodedata.normalize("NFC", text))
    decomposed = whole.normalize_str(unicodedata.normalize("NFD", text))
    typed = whole.normalize_str(text)
    for other in (composed, decomposed):
        if other != typed:
            raise UserError(
                f"tokenizer check: {_around(typed, other)} stays another text than {_around(other, typed)}, which is "
                f"the same letters: {named(set(typed) ^ set(other))}; no step of normalizer brings both to one form: "
                "put nfc or nfkc before the others"
            )


def _check_undivided(
    steps: Sequence[tuple[str, normalizers.Normalizer]],
    cuts: Sequence[tuple[str, pre_tokenizers.PreTokenizer]],
    word: str,
) -> None:
    """A word is one word, and pieces are made within it."""
    after = word
    for place, step in steps:
        before, after = after, step.normalize_str(after)
        if len(after.split()) > 1:
            space = [old for old, new in zip(before, after, strict=False) if new.isspace()]
            at = f" at {named(space[:1])}" if len(before) == len(after) else ""
            raise UserError(f"tokenizer check: {place} splits the word {word!r}{at}; take the step out")
    for number, (place, _) in enumerate(cuts):
        cut = pre_tokenizers.Sequence([step for _, step in cuts[: number + 1]]).pre_tokenize_str(after)
        if len(cut) > 1:
            parts = " | ".join(piece for piece, _ in cut)
            raise UserError(f"tokenizer check: {place} cuts the word {word!r} into {parts}; take the step out")


def _around(text: str, other: str) -> str:
    """Where a text begins to differ from another, with what surrounds it."""
    at = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), 0)
    return repr(text[max(0, at - 10) : at + 10])
