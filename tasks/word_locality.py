"""Whether a tokenizer encodes each word for itself, so that a text may be encoded word by word.

The chain normaliser, pre-tokenizer, model runs over a whole text, and a step may look past a word's ends: strip the
text, put something in front of it, match a token that holds a space. ``obstacle`` knows the steps that do not, and
names the first that it does not know; a tokenizer with an obstacle encodes whole documents only.

Even a word-local chain meets text where words touch: a combining mark behind a space, or a no-break space that the
normaliser turns into one. ``Edges`` says of each character whether a word may be cut off in front of it or behind it;
where it may not, two words are encoded together.

Imported only by a running stage: the library is imported at the top.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

SEPARATORS = " \t\n\v\f\r\u00a0"
"""White space at which texts are cut into words, as far as the tokenizer takes it for a space."""

ENDINGS = "।॥,.?!;'\"’”)]}-–—…"
"""Punctuation that often ends a word, and which many tokenizers cut off."""

METASPACE = "▁"
"""U+2581, which stands for a space in pieces."""

_PROBE = "x"
"""An ordinary letter, beside which characters are tried."""

_PLAIN_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "BertNormalizer"}
"""Change characters one by one; the normal forms join a combining mark with what stands before it, never a space."""

_SPLITTERS = {"Metaspace", "WhitespaceSplit", "Whitespace", "BertPreTokenizer"}
"""Cut a text at its spaces; what follows sees a word at most."""

_WITHIN_WORDS = {"Digits", "Punctuation", "WhitespaceSplit", "Whitespace", "BertPreTokenizer"}
_MODELS = {"Unigram", "WordPiece", "BPE", "WordLevel"}

_ITEM = re.compile(r"[^\[\]\\^&]|\\[tnrfv]|\\x[0-9A-Fa-f]{2}|\\x\{[0-9A-Fa-f]{1,6}\}|\\u[0-9A-Fa-f]{4}")
_SET = re.compile(rf"\[(?:{_ITEM.pattern})+\]")
_LITERAL = r"[^\\.^$*+?{}\[\]|()\s]"
_ONE_OF = re.compile(rf"({_SET.pattern}|{_LITERAL}| )\+?")
"""One character of a set, or a run of such."""
_SPACES = re.compile(r" \{2,\}")
_AFTER = re.compile(rf"\(\?<=({_SET.pattern})\){_LITERAL}")
"""A character directly behind one of a set."""
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}


def obstacle(tokenizer: Tokenizer) -> str | None:
    """What keeps this tokenizer from being used word by word; None if nothing does.

    Args:
        tokenizer: without padding and truncation, set up to take special tokens in a text for text.
    """
    for token in tokenizer.get_added_tokens_decoder().values():
        if not token.special:
            return f"the added token {token.content!r}"
    for step in _steps(tokenizer.normalizer):
        if not _normalizer_is_local(step):
            return f"the normaliser step {_shown(step)}"
    first, *others = _steps(tokenizer.pre_tokenizer) or [{"type": "none"}]
    if first["type"] not in _SPLITTERS or not _metaspace_is_local(first):
        return f"the pre-tokenizer {_shown(first)}"
    for step in others:
        if step["type"] not in _WITHIN_WORDS:
            return f"the pre-tokenizer step {_shown(step)} behind {first['type']}"
    model = type(tokenizer.model).__name__
    if model not in _MODELS:
        return f"the model {model}"
    if any(getattr(tokenizer.model, name, None) for name in ("dropout", "alpha")):
        return f"the model {model} that draws at random"
    if tokenizer.normalizer is not None and tokenizer.normalizer.normalize_str(_PROBE) != _PROBE:
        return f"the normaliser, which changes the letter {_PROBE!r}"
    if not _encodes_alike(tokenizer, (" ",)):
        return "how it treats runs of spaces"
    return None


def separators(tokenizer: Tokenizer) -> str:
    """The white space that a tokenizer without an obstacle takes for a space, alone and in runs."""
    found = " "
    for separator in SEPARATORS[1:]:
        if _encodes_alike(tokenizer, (*found, separator)):
            found += separator
    return found


def keeps_spaces(tokenizer: Tokenizer) -> bool:
    """Whether a space leaves a trace where no word follows it, as ``▁`` does."""
    return _ids(tokenizer, f"{_PROBE} ") != _ids(tokenizer, _PROBE)


def beginnings(tokenizer: Tokenizer) -> NDArray[np.bool_] | None:
    """``[vocabulary]`` which pieces begin a word, if a text's words can be told apart by them; else None.

    Metaspace puts ``▁`` in front of each word and cuts there, so no later piece has one; and as ``▁`` is a piece too,
    Unigram never takes it for unknown. A text of as many words as such pieces therefore has one a word.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    first = _steps(tokenizer.pre_tokenizer)[0]
    if first["type"] != "Metaspace" or type(tokenizer.model).__name__ != "Unigram" or METASPACE not in vocabulary:
        return None
    begins = np.zeros(max(vocabulary.values()) + 1, dtype=bool)
    begins[[number for piece, number in vocabulary.items() if piece.startswith(METASPACE)]] = True
    return begins


def endings(tokenizer: Tokenizer) -> str:
    """The punctuation that is always a piece of its own, whatever word it ends: such a word need not be known itself.

    It has to pass the normaliser as it is, in runs too, and may not be what a pattern seeks behind other characters.
    """
    patterns = [step["pattern"].get("Regex", "") for step in _steps(tokenizer.normalizer) if "pattern" in step]
    sought = [pattern[-1] for pattern in patterns if _AFTER.fullmatch(pattern)]
    steps = _steps(tokenizer.pre_tokenizer)
    cuts = any(step["type"] == "BertPreTokenizer" or step.get("behavior") == "Isolated" for step in steps)
    found = ""
    for ending in ENDINGS if cuts else "":
        run = _PROBE + 2 * ending
        kept = tokenizer.normalizer is None or tokenizer.normalizer.normalize_str(run) == run
        pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(run)]
        if kept and pieces[1:] == [ending, ending] and ending not in sought:
            found += ending
    return found


class Edges:
    """Which characters may begin or end a word that is encoded for itself.

    Args:
        tokenizer: one without an obstacle.
    """

    BEGINS, ENDS = 1, 2

    def __init__(self, tokenizer: Tokenizer):
        self._normalizer = tokenizer.normalizer
        self._keeps_spaces = keeps_spaces(tokenizer)
        self._known = np.full(sys.maxunicode + 1, 255, dtype=np.uint8)

    def of(self, characters: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """The flags ``BEGINS`` and ``ENDS`` of code points, same shape."""
        flags = self._known[characters]
        if (flags == 255).any():
            for number in np.unique(characters[flags == 255]):
                self._known[number] = self._look_at(chr(number))
            flags = self._known[characters]
        return flags

    def _look_at(self, character: str) -> int:
        mark = unicodedata.category(character).startswith("M")
        if not self._keeps_spaces:
            # White space only separates: whether a normaliser makes more of it or deletes a word is all the same.
            return self.ENDS if mark else self.BEGINS | self.ENDS
        before, after = (self._normalized(text) for text in (character + _PROBE, _PROBE + character))
        begins = not mark and before != _PROBE and not _is_blank(before[0]) and not _is_mark(before[0])
        ends = after != _PROBE and not _is_blank(after[-1])
        return self.BEGINS * begins | self.ENDS * ends

    def _normalized(self, text: str) -> str:
        normalized: str = text if self._normalizer is None else self._normalizer.normalize_str(text)
        return normalized


def _steps(component: Any) -> list[dict[str, Any]]:
    """The steps of a normaliser or pre-tokenizer as in ``tokenizer.json``, sequences in sequences laid out flat."""
    return [] if component is None else list(_flat(json.loads(component.__getstate__())))


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] == "Sequence":
        for inner in step["normalizers"] if "normalizers" in step else step["pretokenizers"]:
            yield from _flat(inner)
    else:
        yield step


def _shown(step: dict[str, Any]) -> str:
    if step["type"] == "Replace":
        return f"Replace {next(iter(step['pattern'].values()))!r}"
    return step["type"] + (f" with prepend {step['prepend_scheme']}" if "prepend_scheme" in step else "")


def _metaspace_is_local(step: dict[str, Any]) -> bool:
    """Scheme "first" differs from "always" only behind an added token, and "never" in each text's first word."""
    if step["type"] != "Metaspace":
        return True
    return step["replacement"] == METASPACE and step["split"] and step["prepend_scheme"] in ("always", "first")


def _normalizer_is_local(step: dict[str, Any]) -> bool:
    """Whether a step turns a word into the same whatever stands around it, and never joins it with its neighbour."""
    if step["type"] != "Replace":
        return step["type"] in _PLAIN_NORMALIZERS
    by: str = step["content"]
    kind, pattern = next(iter(step["pattern"].items()))
    if kind == "String":
        return len(pattern) == 1 and (not _leaves_a_gap(by) or not _is_composite(pattern))
    if match := _ONE_OF.fullmatch(pattern):
        return not _leaves_a_gap(by) or not any(map(_is_composite, _characters(match[1])))
    if _SPACES.fullmatch(pattern):
        return by == " "
    if match := _AFTER.fullmatch(pattern):
        # The set holds no white space, so what is looked back at belongs to the same word.
        return len(by) == 1 and not _leaves_a_gap(by) and not any(map(_is_blank, _characters(match[1])))
    return False


def _leaves_a_gap(by: str) -> bool:
    """Whether a replacement deletes, or ends in a space: then a word's last character may come to be another."""
    return not by or _is_blank(by[0]) or _is_blank(by[-1])


def _is_composite(character: str) -> bool:
    """Whether a normal form may make it out of several: ``Edges``, which tries one by one, misses those."""
    return unicodedata.normalize("NFD", character) != character


def _characters(pattern: str) -> Iterator[str]:
    """The characters of a set, or the one that a pattern is."""
    if not _SET.fullmatch(pattern):
        yield pattern
        return
    items = [_character(item) for item in _ITEM.findall(pattern[1:-1])]
    while items:
        first, items = items[0], items[1:]
        last = first
        if len(items) > 1 and items[0] == "-":
            last, items = items[1], items[2:]
        yield from map(chr, range(ord(first), ord(last) + 1))


def _character(item: str) -> str:
    """What an item of a set stands for."""
    if not item.startswith("\\"):
        return item
    return _ESCAPES.get(item[1]) or chr(int(item[2:].strip("{}"), 16))


def _is_blank(character: str) -> bool:
    return character.isspace() or character == METASPACE


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _encodes_alike(tokenizer: Tokenizer, white: tuple[str, ...]) -> bool:
    """Whether white space of these kinds and runs of it are to the tokenizer what one space is."""
    word = _ids(tokenizer, _PROBE)
    behind = _ids(tokenizer, f"{_PROBE} ")
    runs = ["".join(run) for length in (1, 2) for run in itertools.product(white, repeat=length)]
    return all(
        _ids(tokenizer, _PROBE + run + _PROBE) == word + word
        and _ids(tokenizer, run + _PROBE) == word
        and _ids(tokenizer, _PROBE + run) == behind
        for run in runs
    )


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids
