"""Text that strangers wrote, such as the name of a peer that joined from elsewhere, before anything shows it.

It may hold anything: control sequences that move a terminal's cursor, marks that turn the reading direction of all
that follows, halves of characters that no file can take, or a novel.
"""

from __future__ import annotations

LONGEST = 40
"""Characters that are shown at most."""

_JOINERS = {"\N{ZERO WIDTH JOINER}", "\N{ZERO WIDTH NON-JOINER}"}
"""Invisible, and yet spelling in Bengali and other scripts."""


def printable(text: str) -> str:
    """One line of at most :data:`LONGEST` characters, all of which can be printed; empty if nothing is left.

    What it may mean as Markdown, HTML or a terminal's markup is not touched: each of them has its own escaping.
    Applied a second time it changes nothing.
    """
    kept = (character for character in " ".join(text.split()) if character.isprintable() or character in _JOINERS)
    line = " ".join("".join(kept).split())
    if not line.strip("".join(_JOINERS)):
        return ""
    return line if len(line) <= LONGEST else line[: LONGEST - 1].rstrip() + "…"


def escaped(text: str) -> str:
    """The whole text on one line, with escapes such as ``\\x1b`` for what cannot be printed. A second time it changes
    nothing."""
    return "".join(
        character if character.isprintable() or character in _JOINERS else ascii(character)[1:-1] for character in text
    )


def first_line(error: Exception) -> str:
    """The first line of what a library said that is not blank, or the kind of the error if it said nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
