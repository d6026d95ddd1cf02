"""Items as token ids, each split encoded once a run.

NER: the first token of a word carries its tag, the others and the special tokens -100 (ignored by the loss), and a
word is predicted from its first token. A word without tokens (it normalises to nothing) or cut off by the maximal
length is predicted O and scored against its gold tag; both are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eval.data import Split
from tasks.contract import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""Label that torch's cross-entropy leaves out."""

NO_TOKEN = -1
"""Position of a word that has no token."""


@dataclass(frozen=True)
class EncodedSplit:
    """Token ids and label ids of the items of one split.

    For NER ``labels`` holds for each item one id per token, IGNORED where there is none, and ``first_tokens`` the
    position of each word's first token or NO_TOKEN. For classification ``labels`` holds one id per item and
    ``first_tokens`` is empty.
    """

    input_ids: list[list[int]]
    labels: list[Any]
    first_tokens: list[list[int]]
    truncated_items: int
    truncated_words: int
    words_without_tokens: int

    def __len__(self) -> int:
        return len(self.input_ids)


def encode(
    split: Split, label_names: tuple[str, ...], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> EncodedSplit:
    """Encode one split at the tokenizer's batch speed.

    Args:
        split: lists of words with their tags, or texts with their label.
        label_names: label names by id.
        tokenizer: a fast tokenizer; only those know which word a token comes from.
        max_length: longest item in tokens, special tokens included.

    Raises:
        UserError: the tokenizer is not a fast one.
    """
    if not tokenizer.is_fast:
        raise UserError("the checkpoint's tokenizer is not a fast one; save it with its tokenizer.json")
    ids = {name: number for number, name in enumerate(label_names)}
    words = isinstance(split.inputs[0], list)
    encoded = tokenizer(
        split.inputs,
        is_split_into_words=words,
        truncation=True,
        max_length=max_length,
        return_attention_mask=False,
        return_token_type_ids=False,
    )
    truncated = [bool(encoding.overflowing) for encoding in encoded.encodings]
    if not words:
        return EncodedSplit(encoded["input_ids"], [ids[label] for label in split.labels], [], sum(truncated), 0, 0)

    labels: list[list[int]] = []
    first_tokens: list[list[int]] = []
    cut_off = empty = 0
    for encoding, tags, cut in zip(encoded.encodings, split.labels, truncated, strict=True):
        first = [NO_TOKEN] * len(tags)
        row = [IGNORED] * len(encoding.ids)
        last = -1
        for position, word in enumerate(encoding.word_ids):
            if word is not None and first[word] == NO_TOKEN:
                first[word] = position
                row[position] = ids[tags[word]]
                last = word
        beyond = len(tags) - 1 - last if cut else 0
        cut_off += beyond
        empty += first.count(NO_TOKEN) - beyond
        labels.append(row)
        first_tokens.append(first)
    return EncodedSplit(encoded["input_ids"], labels, first_tokens, sum(truncated), cut_off, empty)
