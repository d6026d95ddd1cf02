"""Splits text into sentences, for the packing of sentence pairs.

A small set of rules, made for Bengali and the scripts it meets:

* a line break ends a sentence;
* the danda and its kin (``।``, ``॥``, Urdu ``۔``, ``؟``, Chinese ``。``) always end one, whatever follows;
* ``?``, ``!`` and ``…`` end one before white space or a letter outside ASCII, not within ``a?b=c``;
* a full stop ends one only in Latin text: after a Latin word or a digit, before white space and a capital, a digit or
  a quotation mark. Decimals (3.14), initials (A. P. J.), abbreviations (Dr.), list numbers (``1. Foo``) and Bengali
  abbreviations (ড. ইউনূস) are not broken.

Closing quotation marks and brackets stay with the sentence that they close.
"""

from __future__ import annotations

import re

_CLOSING = "\"'”’»)\\]"
_ALWAYS = "।॥۔؟。！？"
_END = re.compile(
    rf"[{_ALWAYS}][{_ALWAYS}?!…]*[{_CLOSING}]*"
    rf"|[?!…][?!….{_ALWAYS}]*[{_CLOSING}]*(?=\s|[^\x00-\x7F]|$)"
    rf"|(?<=[A-Za-z0-9{_CLOSING}])\.[{_CLOSING}]*(?=\s+[A-Z0-9\"'“‘(«]|\s*$)"
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'“‘.-])(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Rev|Hon|Gen|Col|Capt|Lt|Sgt|vs|etc|cf|Inc|Ltd|Co|Corp"
    r"|Bros|Mt)$"
)
_BEFORE_NUMBER = re.compile(r"(?:^|[\s(])(?:No|Nos|Vol|Fig|pp|approx)$", re.IGNORECASE)
_LIST_NUMBER = re.compile(r"^\s*\(?[0-9]{1,3}$")
_LOOK_BACK = 16
"""Characters before a full stop that are looked at; longer than any abbreviation."""


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences.

    Returns:
        The sentences in order, without white space at their ends and without empty ones; together they hold every
        character of the text that is not white space.
    """
    return [sentence for line in text.splitlines() for sentence in _split_line(line)]


def _split_line(line: str) -> list[str]:
    sentences = []
    start = 0
    for match in _END.finditer(line):
        if match.group().startswith("."):
            before = line[max(start, match.start() - _LOOK_BACK) : match.start()]
            if _is_no_end(before, line[match.end() : match.end() + _LOOK_BACK].lstrip()):
                continue
        sentence = line[start : match.end()].strip()
        start = match.end()
        if sentence:
            sentences.append(sentence)
    rest = line[start:].strip()
    if rest:
        sentences.append(rest)
    return sentences


def _is_no_end(before: str, after: str) -> bool:
    """Whether a full stop between these two belongs to an abbreviation, an initial or a list's number."""
    if not after:
        return False
    if after[0].isdigit() and _BEFORE_NUMBER.search(before):
        return True
    return bool(_ABBREVIATION.search(before) or _LIST_NUMBER.match(before))
