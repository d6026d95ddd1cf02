"""The invented words of the built-in sample: names of three kinds and terms of six topics.

Every word is composed from one inventory of Bengali syllables, so that its form says neither whether it is a name
nor of what kind. Half of each group is *common*: it may occur in the labelled training splits. The other half is
*held out*: it occurs in the unlabelled documents and in the validation and test splits only, so that its kind can be
known from the documents alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final
from unicodedata import normalize

TOPICS: Final = ("kolkata", "state", "national", "sports", "entertainment", "international")
"""The topics of the Soham news articles (IndicGLUE ``sna.bn``), by label id."""

GIVEN_NAMES: Final = "given name"
SURNAMES: Final = "surname"
PLACES: Final = "place"
ORGANISATIONS: Final = "organisation"

_SIZES: Final = {GIVEN_NAMES: 70, SURNAMES: 40, PLACES: 90, ORGANISATIONS: 90} | dict.fromkeys(TOPICS, 40)
_ONSETS: Final = "কখগঘচছজঝটডতদধনপফবভমরলশসহ"
_VOWEL_SIGNS: Final = ("", "া", "ি", "ী", "ু", "ে", "ো")
_FINAL_SIGNS: Final = ("", "", "", "া", "া", "ি", "ী", "ু")


@dataclass(frozen=True)
class Group:
    """The words of one kind, in two halves."""

    common: tuple[str, ...]
    held_out: tuple[str, ...]


def genitive(word: str) -> str:
    """The word with the ending -র, after a consonant -এর."""
    return word + ("র" if word[-1] in _VOWEL_SIGNS else "ের")


def objective(word: str) -> str:
    """The word with the ending -কে."""
    return word + "কে"


def locative(word: str) -> str:
    """The word with the ending -য় after আ-কার, -তে after any other vowel, and -এ after a consonant."""
    if word[-1] == "া":
        return word + normalize("NFC", "য়")
    return word + ("তে" if word[-1] in _VOWEL_SIGNS else "ে")


def forms(word: str) -> tuple[str, ...]:
    """All forms of a word that the grammar uses."""
    return word, genitive(word), objective(word), locative(word)


@cache
def lexicon() -> dict[str, Group]:
    """All groups by name. The lexicon is always the same: only the text made with it depends on a seed."""
    # Only Random.random() is promised to give equal numbers in every Python version, so nothing else is called.
    rng = Random("sahajflow sample lexicon")
    taken: set[str] = set()
    groups = {}
    for name, size in _SIZES.items():
        words: list[str] = []
        while len(words) < size:
            word = _invent(rng)
            if taken.isdisjoint(forms(word)):  # no form of a word is a form of another one
                taken.update(forms(word))
                words.append(word)
        groups[name] = Group(common=tuple(words[: size // 2]), held_out=tuple(words[size // 2 :]))
    return groups


def _invent(rng: Random) -> str:
    syllables = 2 + int(rng.random() * 2)
    signs = [pick(rng, _VOWEL_SIGNS) for _ in range(syllables - 1)] + [pick(rng, _FINAL_SIGNS)]
    return "".join(pick(rng, _ONSETS) + sign for sign in signs)


def pick(rng: Random, choices: tuple[str, ...] | str) -> str:
    """One of the choices, all equally likely."""
    return choices[int(rng.random() * len(choices))]
