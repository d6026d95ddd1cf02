"""The sentences of the built-in sample: templates with slots, and how slots become words.

A slot is written ``{KIND}`` or ``{KIND:case}``. Kinds: ``P`` person, ``L`` place, ``O`` organisation, ``OL``
organisation with its legal form, ``E`` a name of any kind, ``T`` a topic term, ``Y`` a year, ``N`` a number,
``W`` a word in Latin script. Cases: ``gen``, ``obj``, ``loc``; the ending goes to the last word of a name.

*Telling* templates say by a neighbouring word of what kind the name is ("মন্ত্রী {P}", "{L} শহরে"). *Neutral* ones fit
every kind of name. Between two names there is always another word, and every template has a topic term.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple
from unicodedata import normalize

from tasks.sample.lexicon import (
    GIVEN_NAMES,
    ORGANISATIONS,
    PLACES,
    SURNAMES,
    genitive,
    lexicon,
    locative,
    objective,
    pick,
)

_NEUTRAL: Final = """
গতকাল {E} সম্পর্কে একটি নতুন {T} প্রকাশিত হয়েছে।
{E:gen} কথা {T} ও {T} প্রসঙ্গে বারবার উঠেছে।
এই {T} নিয়ে {E} এবং {E:gen} নাম শোনা যাচ্ছে।
{E:obj} ঘিরে {T} এবং {T} নিয়ে আলোচনা চলছে।
{Y} সালে {E:gen} {T} সকলের নজর কেড়েছিল।
অনেকে মনে করেন {E} এবার {T:gen} জন্য পরিচিত হবে।
{T} থেকে {T} পর্যন্ত সব কিছুতেই {E} আছে।
{W} মাধ্যমে {E:gen} {T} নিয়ে খবর ছড়িয়েছে।
{E} এবং {E} আবার {T} ও {T} নিয়ে শিরোনামে এসেছে।
খবরে {E:gen} পাশাপাশি {T} আর {E:gen} উল্লেখ ছিল।
{T:gen} সঙ্গে {E:gen} যোগ অনেক দিনের।
আজ {T} বা {E} নিয়ে বিশেষ কিছু জানা যায়নি।
"""

_TELLING: Final = """
মন্ত্রী {P} জানান {T} নিয়ে কাজ শুরু হবে।
শিক্ষক {P:gen} বাড়িতে {T} দেখা গেল।
{P} বাবু {T} এবং {T} সম্পর্কে বক্তব্য রাখেন।
চিকিৎসক {P:obj} {T} দিয়ে সম্মান জানানো হয়।
লেখিকা {P} তাঁর {T} আর {T} নিয়ে লিখেছেন।
{N} বছর বয়সে শ্রী {P} {T} শিখতে শুরু করেন।
{L} শহরে {T} ও {T} নিয়ে সভা বসেছে।
{L} জেলার মানুষ {T} দেখতে ভিড় করেন।
{L:loc} আজ ভারী বৃষ্টির মধ্যে {T} হয়েছে।
{L} থেকে {N} কিলোমিটার দূরে {T} পাওয়া গেছে।
{L} গ্রামের রাস্তায় {T} বন্ধ ছিল।
নদীর ধারে {L} এলাকায় {T} এবং {T} তৈরি হবে।
{OL} শেয়ার বাজারে {T:gen} পরে {N} শতাংশ বেড়েছে।
{O} সংস্থায় {T} বিভাগে কর্মী নিয়োগ হবে।
{OL} এবার {T:gen} জন্য {N} কোটি টাকা দেবে।
{O} কোম্পানি {T} ও {T} বিক্রি করে।
বেসরকারি প্রতিষ্ঠান {O} নতুন {T} এনেছে।
{O:gen} পরিচালকেরা {T} নিয়ে {W} বৈঠকে বসেন।
মন্ত্রী {P} বলেন {L} শহরে {T} হবে।
{L} জেলায় {OL} নতুন {T} চালু করেছে।
লেখিকা {P:obj} {O} সংস্থা {T} উপহার দিয়েছে।
"""

_LEGAL_FORMS: Final = ("লিমিটেড", "ট্রাস্ট", "ব্যাংক", "সমিতি")
_LATIN: Final = ("online", "Facebook", "email", "digital", "TV", "mobile", "YouTube", "FM")
_BENGALI_DIGITS: Final = str.maketrans("0123456789", "০১২৩৪৫৬৭৮৯")
_KINDS: Final = {"P": "PER", "L": "LOC", "O": "ORG", "OL": "ORG"}


class Slot(NamedTuple):
    """A place in a template where words are put in."""

    kind: str
    case: str


Template = tuple["str | Slot", ...]


def _parse(templates: str) -> tuple[Template, ...]:
    return tuple(
        tuple(
            Slot(*word[1:-1].partition(":")[::2]) if word.startswith("{") else word
            for word in normalize("NFC", line).split()
        )
        for line in templates.strip().splitlines()
    )


NEUTRAL: Final = _parse(_NEUTRAL)
TELLING: Final = _parse(_TELLING)


def _telling(kind: str) -> tuple[Template, ...]:
    return tuple(
        template for template in TELLING if any(isinstance(part, Slot) and part.kind[0] == kind for part in template)
    )


_TELLING_OF: Final = {kind: _telling(kind) for kind in "PLO"}


class Sentence(NamedTuple):
    """Words as white space separates them, and the IOB2 tag of each."""

    words: list[str]
    tags: list[str]


def sentence(
    rng: Random,
    *,
    telling: float,
    kind: Callable[[Random], str],
    held_out: Callable[[Random], bool],
    term: Callable[[Random], str],
) -> Sentence:
    """Draw a sentence.

    ``telling`` is the share of telling templates; ``kind(rng)`` draws a kind of name ("P", "L" or "O"),
    ``held_out(rng)`` says whether the next name comes from the held-out half, and ``term(rng)`` draws a topic term.
    """
    templates = _TELLING_OF[kind(rng)] if rng.random() < telling else NEUTRAL
    words: list[str] = []
    tags: list[str] = []
    for part in templates[int(rng.random() * len(templates))]:
        if isinstance(part, str):
            words.append(part)
            tags.append("O")
        elif part.kind in ("P", "L", "O", "OL", "E"):
            name_kind = part.kind if part.kind != "E" else kind(rng)
            name = _name(rng, name_kind, held_out(rng))
            name[-1] = _inflect(name[-1], part.case)
            words += name
            tags += [f"B-{_KINDS[name_kind]}", *[f"I-{_KINDS[name_kind]}"] * (len(name) - 1)]
        else:
            words.append(_inflect(_other(rng, part.kind, term), part.case))
            tags.append("O")
    return Sentence(words, tags)


def any_kind(rng: Random) -> str:
    """A kind of name, all equally likely."""
    return pick(rng, "PLO")


def _name(rng: Random, kind: str, held_out: bool) -> list[str]:
    def draw(group: str) -> str:
        return pick(rng, lexicon()[group].held_out if held_out else lexicon()[group].common)

    first, second = {"P": (GIVEN_NAMES, SURNAMES), "L": (PLACES, PLACES)}.get(kind, (ORGANISATIONS, ORGANISATIONS))
    name = [draw(first)]
    if rng.random() < 0.4:
        name.append(draw(second))
        while name[1] == name[0]:
            name[1] = draw(second)
    return [*name, pick(rng, _LEGAL_FORMS)] if kind == "OL" else name


def _other(rng: Random, kind: str, term: Callable[[Random], str]) -> str:
    if kind == "T":
        return term(rng)
    if kind == "W":
        return pick(rng, _LATIN)
    number = 1950 + int(rng.random() * 75) if kind == "Y" else 2 + int(rng.random() * 97)
    return str(number).translate(_BENGALI_DIGITS)


def _inflect(word: str, case: str) -> str:
    if case == "gen":
        return genitive(word)
    if case == "obj":
        return objective(word)
    return locative(word) if case == "loc" else word
