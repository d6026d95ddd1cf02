"""What is hard to keep in each script: words for the tokenizer's check, and all combining marks that there are.

A script is named as in the names of its characters: BENGALI of BENGALI LETTER KA.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache

JOINERS = "\u200c\u200d"
"""Zero width non-joiner and joiner: they choose between the forms of a conjunct."""

HARD_WORDS: dict[str, list[str]] = {
    # Joiner before and after the hasanta, hasanta, anusvara, candrabindu, visarga, vocalic r, three-part conjunct, au,
    # and the letters with nukta, composed and decomposed.
    "BENGALI": [
        *("র‍্যাব", "র‌্যাব", "কিন্তু", "বাংলা", "চাঁদ", "দুঃখ", "ক্ষমতা", "ঋতু", "রাষ্ট্র", "সৌন্দর্য", "উৎসব"),
        *("বা\u09dcি", "বা\u09a1\u09bcি", "আষা\u09dd", "আষা\u09a2\u09bc", "সম\u09df", "সম\u09af\u09bc"),
    ],
    "DEVANAGARI": [
        *("हिन्दी", "क्ष", "क्\u200dष", "क्\u200cष", "संस्कृत", "पाँच", "दुःख", "राष्ट्र", "ऋषि", "दुस\u0931्या"),
        *("\u095bरा", "\u091c\u093cरा", "बड़ा", "पढ़ना"),
    ],
    "TAMIL": ["தமிழ்", "க்ஷ", "ஸ்ரீ", "கொக்கு", "சௌக்கியம்", "பெண்", "அஃது", "கோயில்"],
    "ARABIC": ["كِتَابٌ", "مُدَرِّسَة", "القُرْآن", "می\u200cخواهم", "هٰذَا", "مؤمن", "نشء", "آب", "ا\u0653ب"],
    "THAI": ["ที่นี่", "น้ำ", "เป็น", "ผู้ใหญ่", "กตัญญู", "สัตว์", "ก็", "เพื่อ"],
    "GUJARATI": ["ગુજરાતી", "ક્ષમા", "દુઃખ"],
    "GURMUKHI": ["ਪੰਜਾਬੀ", "ਸ਼ੇਰ", "ਮੂੰਹ"],
    "TELUGU": ["తెలుగు", "లక్ష్మి", "దుఃఖం"],
    "KANNADA": ["ಕನ್ನಡ", "ರ\u200d್ಯಾಂಕ್", "ಲಕ್ಷ್ಮಿ"],
    "MALAYALAM": ["മലയാളം", "ന്\u200dറെ", "ദുഃഖം"],
    "ORIYA": ["ଓଡ଼ିଆ", "ଦୁଃଖ", "କ୍ଷମା"],
    "SINHALA": ["ශ්\u200dරී", "ලංකාව", "දුඃඛ"],
    "MYANMAR": ["မြန်မာ", "ကျွန်ုပ်"],
    "KHMER": ["ខ្មែរ", "កម្ពុជា"],
    "HEBREW": ["שָׁלוֹם", "בְּרֵאשִׁית"],
    "LATIN": ["naïve", "nai\u0308ve", "tiếng", "Łódź", "Ångström"],
    "CYRILLIC": ["йод", "и\u0306од", "ёж"],
    "GREEK": ["Ελληνική", "ϊδιος", "ά\u0390"],
    "HANGUL": ["한국어", "\u1112\u1161\u11ab"],
}
"""Words in which something is easily lost: joiners, conjuncts, rare marks, letters with two spellings."""


_TRIED = (
    *range(0x3500),
    *range(0xA000, 0xAD00),
    *range(0xF900, 0x17100),
    *range(0x18B00, 0x18C00),
    *range(0x1AFF0, 0x20000),
)
"""Code points with letters of every script: of the large blocks of ideographs and syllables the beginnings."""


@cache
def script_of(character: str) -> str | None:
    """The script of a letter or mark; None for all other characters."""
    if unicodedata.category(character)[0] not in "LM":
        return None
    return unicodedata.name(character, "").partition(" ")[0] or None


def shares_of_scripts(texts: Iterable[str]) -> dict[str, float]:
    """Share of the letters and marks of a text that each script has, largest first."""
    counts: Counter[str] = Counter()
    for text in texts:
        for character, number in Counter(text).items():
            script = script_of(character)
            if script is not None:
                counts[script] += number
    total = sum(counts.values())
    return {script: number / total for script, number in counts.most_common()}


@cache
def marks_of(script: str) -> str:
    """All combining marks whose names begin with a script's."""
    planes = (chr(code) for code in range(0x300, 0x20000))
    return "".join(c for c in planes if unicodedata.category(c)[0] == "M" and script_of(c) == script)


@cache
def known_scripts() -> frozenset[str]:
    """The names that :func:`script_of` gives, but for those of a few letters, such as KELVIN of the kelvin sign."""
    counts = Counter(script for code in _TRIED if (script := script_of(chr(code))))
    return frozenset(script for script, letters in counts.items() if letters >= 10)


def script_name_problem(name: str) -> str | None:
    """Why no character has a name that begins so, with the nearest one that some have; None if there are some."""
    if name.upper() in HARD_WORDS or name.upper() in known_scripts():
        return None
    near = get_close_matches(name.upper(), sorted(known_scripts()), n=1)
    hint = f"did you mean {near[0].lower()}?" if near else "take the first word of its characters' names"
    return f"{name!r} is no script whose characters have names, such as bengali, latin, cjk; {hint}"


def scripts_contradict(kept: Sequence[str], meant: Sequence[str]) -> bool:
    """Whether no letter of the Unicode scripts ``kept`` is in a script that :func:`script_of` names so."""
    import regex

    wanted = {script.upper() for script in meant}
    if wanted & {script.upper() for script in kept}:
        return False
    pattern = regex.compile("[" + "".join(rf"\p{{Script={script}}}" for script in kept) + "]")
    return not any(script_of(chr(code)) in wanted and pattern.match(chr(code)) for code in _TRIED)


def named(characters: Iterable[str]) -> str:
    """Characters as messages name them: "U+09CD BENGALI SIGN VIRAMA", and five at most."""
    distinct = sorted(set(characters))
    names = [f"U+{ord(c):04X} {unicodedata.name(c, 'without a name')}" for c in distinct[:5]]
    return ", ".join(names) + (f" and {len(distinct) - 5} more" if len(distinct) > 5 else "")
