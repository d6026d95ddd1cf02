"""The unlabelled documents of the built-in sample.

A document keeps to one topic, and mostly to one kind of name, as a biography, a description of places or business
news does. Its topic terms, the held-out ones included, so occur beside each other and often behind the adjective of
the topic, which no labelled passage has; its names occur beside words that tell of what kind they are. That is what
pretraining can learn from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final
from unicodedata import normalize

from tasks.sample.grammar import any_kind, sentence
from tasks.sample.lexicon import TOPICS, lexicon, pick

_TELLING: Final = 0.75
_OTHER_KIND: Final = 0.05
_OTHER_TOPIC: Final = 0.05
_ADJECTIVE: Final = 0.4
_ADJECTIVES: Final = tuple(normalize("NFC", word) for word in ("কলকাতার", "রাজ্যের", "জাতীয়", "ক্রীড়া", "বিনোদন", "আন্তর্জাতিক"))
"""What the documents call things of a topic, in the order of the topics."""

_SENTENCES: Final = (6, 12)
"""Fewest and most sentences. More than any labelled passage has, so that no document can be one."""


def documents(seed: int, count: int) -> Iterator[str]:
    """``count`` documents of 6 to 12 sentences on one line each, equal on every machine for equal ``seed``."""
    rng = Random(f"sahajflow sample documents {seed}")
    terms = [lexicon()[topic].common + lexicon()[topic].held_out for topic in TOPICS]
    fewest, most = _SENTENCES
    for _ in range(count):
        topic = int(rng.random() * len(TOPICS))
        kind = any_kind(rng)

        def draw_kind(rng: Random, kind: str = kind) -> str:
            return any_kind(rng) if rng.random() < _OTHER_KIND else kind

        def draw_term(rng: Random, topic: int = topic) -> str:
            other = int(rng.random() * len(TOPICS)) if rng.random() < _OTHER_TOPIC else topic
            word = pick(rng, terms[other])
            return f"{_ADJECTIVES[other]} {word}" if rng.random() < _ADJECTIVE else word

        yield " ".join(
            " ".join(sentence(rng, telling=_TELLING, kind=draw_kind, held_out=_either, term=draw_term).words)
            for _ in range(fewest + int(rng.random() * (most - fewest + 1)))
        )


def _either(rng: Random) -> bool:
    return rng.random() < 0.5
