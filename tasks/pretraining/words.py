"""Which tokens make up a word, told from token ids alone, as the tokenizer's own word ids have it.

Packed data hold ids and no text, so the tokenizer is asked once, about its vocabulary:

* WordPiece marks every piece that continues a word (``##``).
* Elsewhere (Unigram) the pre-tokenizer decides: it cuts text into words before the model sees it. Where it cuts
  depends on two neighbouring characters at every step that a definition can have (``▁`` opens a word, digits and
  punctuation stand alone, runs of digits stay together), so the last character of one token and the first of the
  next tell. Characters that the pre-tokenizer treats alike form a class, and it is asked about pairs of classes.

Two things cannot be seen from ids. Special tokens are words of their own, the unknown one too: where ``<unk>`` stands
for a part of a word only (Unigram; in WordPiece it is the whole word), what is before it and what is after it count
as two words. And of a word that packing has cut, each block's part is a word.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers.models import WordPiece

from tasks.contract import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

LETTER = "a"
"""A character that every pre-tokenizer keeps inside words."""

SPACE_MARK = "▁"
"""What the pre-tokenizer step metaspace puts in front of words."""

ALONE = 0
"""Class of tokens that are words of their own: special and added ones, and ids that stand for nothing."""

OPENING, CONTINUING = 1, 2
"""WordPiece's classes: pieces without and with its prefix."""


class Words:
    """Where words begin in rows of token ids.

    Args:
        tokenizer: of the fast kind; it is asked here and not kept.

    Raises:
        UserError: its words cannot be told from its tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise _problem("is of the slow kind, which has no word ids")
        alone = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
        tokens = enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
        entries = {token: number for number, token in tokens if token and number not in alone}
        # [vocabulary]: classes of a token's first and last character
        self._first = np.full(len(tokenizer), ALONE, dtype=np.uint8)
        self._last = self._first.copy()
        # [classes, classes]: whether a word begins between a token that ends so and one that begins so
        self._splits: NDArray[np.bool_]
        if isinstance(backend.model, WordPiece):
            prefix = backend.model.continuing_subword_prefix
            for token, number in entries.items():
                self._first[number] = self._last[number] = CONTINUING if token.startswith(prefix) else OPENING
            self._splits = np.ones((3, 3), dtype=bool)
            self._splits[OPENING:, CONTINUING] = False
            return
        if backend.pre_tokenizer is None:
            raise _problem("has no pre-tokenizer")
        class_of, self._splits = _character_classes(
            backend.pre_tokenizer, {character for token in entries for character in (token[0], token[-1])}
        )
        for token, number in entries.items():
            self._first[number], self._last[number] = class_of[token[0]], class_of[token[-1]]
        self._check(backend, [token.replace(SPACE_MARK, " ") for token in entries])

    def starts(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a word begins with this token, for ids [rows, length]; a row's first token always begins one."""
        starts = np.ones(ids.shape, dtype=bool)
        starts[:, 1:] = self._splits[self._last[ids[:, :-1]], self._first[ids[:, 1:]]]
        return starts

    def shared(self, values: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """``values`` [rows, length] with that of a word's first token at all of its tokens."""
        starts = self.starts(ids).reshape(-1)
        first = np.maximum.accumulate(np.where(starts, np.arange(starts.size), 0))
        return values.reshape(-1)[first].reshape(ids.shape)

    def _check(self, backend: Tokenizer, entries: list[str]) -> None:
        """Compares with the tokenizer's word ids on a text of all entries, joined by nothing and by spaces.

        Raises:
            UserError: the two differ, but beside unknown tokens.
        """
        # a letter in front: metaspace with `prepend: first` makes one word of its mark and punctuation at a text's
        # front, and two of them everywhere else
        text = f"{LETTER}{''.join(entries)} {' '.join(entries)}"
        encoding = backend.encode(text, add_special_tokens=False)
        ids, words = np.array(encoding.ids), np.array(encoding.word_ids)
        starts = self.starts(ids[None])[0, 1:]
        known = (self._last[ids[:-1]] != ALONE) & (self._first[ids[1:]] != ALONE)
        if (starts != (words[1:] != words[:-1]))[known].any():
            raise _problem("drops the spaces, or cuts by more than two neighbouring characters")


def _character_classes(pre_tokenizer: Any, characters: set[str]) -> tuple[dict[str, int], NDArray[np.bool_]]:
    """The class of each character, from 1 on, and ``Words._splits`` of these classes."""

    def pieces(text: str) -> list[str]:
        return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]

    def cut(before: str, after: str) -> bool:
        """Whether a word begins between the two; true if they never meet."""
        marked = [
            (character, place == 0)
            for piece in pieces(f"{LETTER}{before}{after}{LETTER}")
            for place, character in enumerate(piece)
        ]
        return {opens for (one, _), (two, opens) in pairwise(marked) if (one, two) == (before, after)} != {False}

    behaviour = {
        character: tuple(len(piece) for piece in pieces(f"{LETTER}{character * 2}{LETTER}"))
        for character in sorted(characters)
    }
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(behaviour.values()), start=1)}
    class_of = {character: numbers[kind] for character, kind in behaviour.items()}
    members = {number: character for character, number in class_of.items()}
    splits = np.ones((len(members) + 1, len(members) + 1), dtype=bool)
    for before, after in product(members, repeat=2):
        splits[before, after] = cut(members[before], members[after])
    return class_of, splits


def _problem(reason: str) -> UserError:
    return UserError(
        f"pretraining.masking.whole_words: the tokenizer's words cannot be told from its tokens, since it {reason}; "
        "use a WordPiece tokenizer or one with the pre-tokenizer step metaspace, or set whole_words to false"
    )
