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
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

SEPARATORS = " \t\n\v\f\r"
"""ASCII white space, at which texts are cut into words, as far as the tokenizer takes it for a space."""

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

_ITEM = r"(?:[^\[\]\\^&]|\\[tnrfv]|\\x[0-9A-Fa-f]{2}|\\x\{[0-9A-Fa-f]{1,6}\}|\\u[0-9A-Fa-f]{4})"
_SET = rf"\[{_ITEM}+\]"
_ONE_OF = re.compile(rf"({_SET}|[^\\.^$*+?{{}}\[\]|()])\+?")
"""One character of a set, or a run of such."""
_SPACES = re.compile(r" \{2,\}")
_AFTER = re.compile(rf"\(\?<=({_SET})\)[^\\.^$*+?{{}}\[\]|()\s]")
"""A character directly behind one of a set."""


def obstacle(tokenizer: Tokenizer) -> str | None:
    """What keeps this tokenizer from being used word by word; None if nothing does.

    Args:
        tokenizer: without padding and truncation, set up to take special tokens in a text for text.
    """
    parts = json.loads(tokenizer.to_str())
    for token in parts["added_tokens"]:
        if not token["special"]:
            return f"the added token {token['content']!r}"
    for step in _steps(parts["normalizer"], "normalizers"):
        if not _normalizer_is_local(step):
            return f"the normaliser step {_shown(step)}"
    first, *others = _steps(parts["pre_tokenizer"], "pretokenizers") or [{"type": "none"}]
    if first["type"] not in _SPLITTERS or not _metaspace_is_local(first):
        return f"the pre-tokenizer {_shown(first)}"
    for step in others:
        if step["type"] not in _WITHIN_WORDS:
            return f"the pre-tokenizer step {_shown(step)} behind {first['type']}"
    model = parts["model"]
    if model["type"] not in _MODELS or model.get("dropout"):
        return f"the model {model['type']}" + (" with dropout" if model.get("dropout") else "")
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


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """The steps of a normaliser or pre-tokenizer, sequences in sequences laid out flat."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [step for inner in part[name] for step in _steps(inner, name)]


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
        return len(pattern) == 1 and (not _leaves_a_gap(by) or pattern not in _composites())
    if match := _ONE_OF.fullmatch(pattern):
        return not _leaves_a_gap(by) or not _translated(match[1]).search(_composites())
    if _SPACES.fullmatch(pattern):
        return by == " "
    if match := _AFTER.fullmatch(pattern):
        # The set holds no white space, so what is looked back at belongs to the same word.
        blank = any(_is_blank(chr(code)) and _translated(match[1]).match(chr(code)) for code in range(0x10000))
        return not blank and len(by) == 1 and not _leaves_a_gap(by)
    return False


def _leaves_a_gap(by: str) -> bool:
    """Whether a replacement deletes, or ends in a space: then a word's last character may come to be another."""
    return not by or _is_blank(by[0]) or _is_blank(by[-1])


@cache
def _composites() -> str:
    """All characters that a normal form may make out of several: ``Edges``, which tries one by one, misses those."""
    return "".join(
        character
        for character in map(chr, range(sys.maxunicode + 1))
        if unicodedata.decomposition(character)[:1] not in ("", "<") or "가" <= character <= "힣"
    )


def _translated(pattern: str) -> re.Pattern[str]:
    """A set or a character of a pattern, from the library's syntax to Python's."""
    return re.compile(re.sub(r"\\x\{([0-9A-Fa-f]+)\}", lambda match: re.escape(chr(int(match[1], 16))), pattern))


def _is_blank(character: str) -> bool:
    return character.isspace() or character == METASPACE


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _encodes_alike(tokenizer: Tokenizer, white: tuple[str, ...]) -> bool:
    """Whether white space of these kinds and runs of it are to the tokenizer what one space is."""
    word = _ids(tokenizer, _PROBE)
    behind = _ids(tokenizer, f"{_PROBE} ")
    runs = ["".join(run) for length in (1, 2, 3) for run in itertools.product(white, repeat=length)]
    return all(
        _ids(tokenizer, _PROBE + run + _PROBE) == word + word
        and _ids(tokenizer, run + _PROBE) == word
        and _ids(tokenizer, _PROBE + run) == behind
        for run in runs
    )


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids
