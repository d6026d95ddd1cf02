"""The sample's documents and its lexicon."""

import time
from collections import Counter
from hashlib import sha256
from statistics import mean
from unicodedata import is_normalized

from tasks.sample.lexicon import (
    GIVEN_NAMES,
    ORGANISATIONS,
    PLACES,
    SURNAMES,
    TOPICS,
    forms,
    genitive,
    lexicon,
    locative,
)
from tasks.sample.text import documents

TOPIC_OF = {
    form: topic
    for topic in TOPICS
    for word in lexicon()[topic].common + lexicon()[topic].held_out
    for form in forms(word)
}


def test_documents_repeat_exactly():
    first = list(documents(0, 200))
    assert first == list(documents(0, 200))
    assert first[:50] == list(documents(0, 50))
    assert set(first).isdisjoint(documents(1, 200))
    assert len(set(first)) == 200


def test_a_megabyte_takes_less_than_two_seconds():
    start = time.process_time()
    size = sum(len(text.encode()) for text in documents(0, 1_000))
    assert (time.process_time() - start) * 1e6 / size < 2


def test_documents_are_bengali_text():
    texts = list(documents(0, 500))
    assert all(is_normalized("NFC", text) and text.endswith("।") for text in texts)
    together = "".join(texts)
    bengali = sum("\u0980" <= letter <= "\u09ff" for letter in together)
    assert bengali > 0.9 * len(together.replace(" ", "").replace("।", ""))
    assert any(letter in "০১২৩৪৫৬৭৮৯" for letter in together)
    assert any(letter.isascii() and letter.isalpha() for letter in together)


def test_a_document_keeps_to_one_topic():
    shares = []
    for text in documents(0, 300):
        topics = Counter(TOPIC_OF[word] for word in text.split() if word in TOPIC_OF)
        shares.append(max(topics.values()) / topics.total())
    assert mean(shares) > 0.9
    assert min(shares) < 1  # but not strictly


def test_lexicon_has_hundreds_of_words_and_no_two_forms_alike():
    words = [word for group in lexicon().values() for word in group.common + group.held_out]
    assert len(words) > 500
    every = [form for word in words for form in set(forms(word))]
    assert len(every) == len(set(every))
    for group in lexicon().values():
        assert abs(len(group.common) - len(group.held_out)) <= 1


def test_form_does_not_give_the_kind_away():
    """Lengths and last letters of names are spread alike over the kinds."""
    groups = [lexicon()[name] for name in (GIVEN_NAMES, SURNAMES, PLACES, ORGANISATIONS, *TOPICS)]
    lengths = [mean(len(word) for word in group.common + group.held_out) for group in groups]
    assert max(lengths) - min(lengths) < 1
    for group in groups:
        assert len({word[-1] for word in group.common + group.held_out}) > 10


def test_endings():
    assert [genitive(word) for word in ("রমেশ", "ঢাকা", "দিল্লি")] == ["রমেশের", "ঢাকার", "দিল্লির"]
    assert [locative(word) for word in ("শহর", "ঢাকা", "দিল্লি")] == ["শহরে", "ঢাকা\u09af\u09bc", "দিল্লিতে"]


def test_the_first_documents_are_those_of_every_other_machine():
    digest = sha256("\n".join(documents(0, 100)).encode()).hexdigest()
    assert digest == "6fadd87392301cf359c89f71328c2a17ed8729eec38256a25aa2ae7c6ed08a5d"
