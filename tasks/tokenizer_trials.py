"""What of a tokenizer definition can be tried before there is a text: its patterns and special tokens."""

from __future__ import annotations

import unicodedata

from tasks.contract import UserError
from tasks.strict_yaml import cut

PIECE_MARKS = "\u2581#"
"""What pieces of words begin with: Metaspace's sign for a space, WordPiece's for a word that goes on."""


def is_ordinary(token: str) -> bool:
    """Whether a special token is one that texts hold anyway: a word, a number, or nothing but punctuation. There it
    would be taken for the special token, and as a piece of the vocabulary it would have two ids."""
    kinds = {unicodedata.category(character)[0] for character in token.strip(PIECE_MARKS)}
    return kinds <= set("LMN") or kinds <= set("PSZ")


def check_pattern(pattern: str, place: str) -> None:
    """Try a pattern (Oniguruma syntax); the first one takes 0.1 s, since the library is imported.

    Args:
        pattern: of a normaliser step.
        place: where it stands, for the message.

    Raises:
        UserError: it is wrong, or matches where there is no character.
    """
    from tokenizers import Regex, normalizers

    try:
        tried = normalizers.Replace(Regex(pattern), "\ue000").normalize_str("q")
    except Exception as error:  # the library raises nothing more special for a wrong pattern
        raise UserError(f"{place}: the pattern {pattern!r} is wrong: {cut(error)}; correct it") from None
    # The library cannot align text that is put in front of all characters: the next step ends in a panic.
    if tried.startswith("\ue000q"):
        raise UserError(
            f"{place}: the pattern {pattern!r} also matches where there is no character; correct it, with + instead "
            "of * perhaps"
        )
