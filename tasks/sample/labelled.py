"""The labelled splits of the built-in sample: sentences with names (NER) and passages with a topic.

The training splits use the common half of the lexicon only. In the validation and test splits more than half of the
names, and all topic terms of more than half of the passages, come from the held-out half, and most NER sentences fit
names of every kind: who has not read the documents can only guess.

Splits never share an item: its checksum says to which split it belongs, whatever the seed and the counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final, Literal, TypeVar
from zlib import crc32

from tasks.sample.grammar import any_kind, sentence
from tasks.sample.lexicon import TOPICS as TOPICS
from tasks.sample.lexicon import lexicon, pick

Split = Literal["train", "validation", "test"]
Item = TypeVar("Item")

NER_LABELS: Final = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
"""By label id, as in WikiANN."""

_HELD_OUT: Final = 0.6
_TELLING: Final = 0.2


def ner_split(seed: int, split: Split, count: int) -> list[tuple[list[str], list[str]]]:
    """``count`` different sentences: words as white space separates them, and the IOB2 tag of each word."""
    rng = Random(f"sahajflow sample ner {split} {seed}")
    share = _held_out_share(split)
    terms = {topic: _terms(topic, held_out=False) for topic in TOPICS}
    if split != "train":
        terms = {topic: terms[topic] + _terms(topic, held_out=True) for topic in TOPICS}

    def drawn() -> Iterator[tuple[str, tuple[list[str], list[str]]]]:
        while True:
            words, tags = sentence(
                rng,
                telling=_TELLING,
                kind=any_kind,
                held_out=lambda rng: rng.random() < share,
                term=lambda rng: pick(rng, terms[TOPICS[int(rng.random() * len(TOPICS))]]),
            )
            yield " ".join(words), (words, tags)

    return _belonging(drawn(), split, count)


def topic_split(seed: int, split: Split, count: int) -> list[tuple[str, int]]:
    """``count`` different passages of 2 to 4 sentences, each with the id of its topic in :data:`TOPICS`.

    At most one of its topic terms belongs to another topic, and then at least two belong to its own.
    """
    rng = Random(f"sahajflow sample topics {split} {seed}")
    share = _held_out_share(split)

    def drawn() -> Iterator[tuple[str, tuple[str, int]]]:
        while True:
            label = int(rng.random() * len(TOPICS))
            text = _passage(rng, label, held_out=rng.random() < share)
            yield text, (text, label)

    return _belonging(drawn(), split, count)


def _passage(rng: Random, label: int, held_out: bool) -> str:
    stray_topic = TOPICS[(label + 1 + int(rng.random() * (len(TOPICS) - 1))) % len(TOPICS)]
    stray_at = 2 + int(rng.random() * 4)  # the third to the sixth term, if there are that many, is a stray one
    drawn = 0

    def term(rng: Random) -> str:
        nonlocal drawn
        topic = stray_topic if drawn == stray_at else TOPICS[label]
        drawn += 1
        return pick(rng, _terms(topic, held_out))

    sentences = [
        sentence(rng, telling=0.5, kind=any_kind, held_out=lambda _: held_out, term=term)
        for _ in range(2 + int(rng.random() * 3))
    ]
    return " ".join(" ".join(words) for words, _ in sentences)


def _terms(topic: str, held_out: bool) -> tuple[str, ...]:
    return lexicon()[topic].held_out if held_out else lexicon()[topic].common


def _held_out_share(split: Split) -> float:
    return 0.0 if split == "train" else _HELD_OUT


def _belonging(drawn: Iterator[tuple[str, Item]], split: Split, count: int) -> list[Item]:
    """The first ``count`` different items whose text belongs to ``split``: 3 of 5, 1 of 5 and 1 of 5 do."""
    found: dict[str, Item] = {}
    while len(found) < count:
        text, item = next(drawn)
        owner = ("train", "train", "train", "validation", "test")[crc32(text.encode()) % 5]
        if owner == split:
            found.setdefault(text, item)
    return list(found.values())
