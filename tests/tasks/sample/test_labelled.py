"""The sample's tasks can be solved by who knows the words, and not by looking words up in the training split."""

from collections import Counter, defaultdict
from functools import cache
from hashlib import sha256
from unicodedata import is_normalized, normalize

import pytest

from tasks.sample.labelled import NER_LABELS, TOPICS, ner_split, topic_split
from tasks.sample.lexicon import GIVEN_NAMES, ORGANISATIONS, PLACES, SURNAMES, forms, lexicon
from tasks.sample.text import documents

DEMO_DOCUMENTS = 5_000
TRAIN, TEST = 1_000, 500
ENDINGS = ("ের", "কে", "তে", "য়", "র", "ে")
STEMS = {
    form: (word, group)
    for group, words in lexicon().items()
    for word in words.common + words.held_out
    for form in forms(word)
}
KINDS = {GIVEN_NAMES: "PER", SURNAMES: "PER", PLACES: "LOC", ORGANISATIONS: "ORG"}
LEGAL_FORMS = {"লিমিটেড", "ট্রাস্ট", "ব্যাংক", "সমিতি"}


@cache
def corpus_words():
    """The words of the lexicon that occur in the demo's corpus."""
    return {STEMS[word][0] for text in documents(0, DEMO_DOCUMENTS) for word in text.split() if word in STEMS}


@cache
def ner(split, count):
    return ner_split(0, split, count)


@cache
def topics(split, count):
    return topic_split(0, split, count)


def stripped(word):
    """The word without the first ending that fits, as one would guess who knows the language but not the word."""
    return next((word.removesuffix(ending) for ending in ENDINGS if word.endswith(ending)), word)


def entity_f1(tag):
    """seqeval's entity F1 on the test split, where ``tag(words)`` gives the tags."""
    from seqeval.metrics import f1_score

    test = ner("test", TEST)
    return f1_score([tags for _, tags in test], [tag(words) for words, _ in test])


def lookup(key):
    """A tagger that gives each word the tag it most often has in the training split, by ``key(word)``."""
    seen = defaultdict(Counter)
    for words, tags in ner("train", TRAIN):
        for word, tag in zip(words, tags, strict=True):
            seen[key(word)][tag] += 1
    names = Counter(tag for _, tags in ner("train", TRAIN) for tag in tags if tag != "O")
    usual = names.most_common(1)[0][0]
    known = {word: tags.most_common(1)[0][0] for word, tags in seen.items()}
    return lambda words: [known.get(key(word), usual) for word in words]


class TestNer:
    def test_form(self):
        for split in ("train", "validation", "test"):
            sentences = ner(split, TEST)
            assert len(sentences) == TEST
            for words, tags in sentences:
                assert len(words) == len(tags)
                assert " ".join(words).split() == words
                assert is_normalized("NFC", " ".join(words))
                previous = "O"
                for tag in tags:
                    assert tag in NER_LABELS
                    assert tag[0] != "I" or previous[2:] == tag[2:]  # IOB2
                    previous = tag
        assert NER_LABELS == ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")

    def test_all_labels_occur_and_kinds_are_even(self):
        counts = Counter(tag for _, tags in ner("test", TEST) for tag in tags)
        assert set(counts) == set(NER_LABELS)
        kinds = [counts[f"B-{kind}"] for kind in ("PER", "ORG", "LOC")]
        assert max(kinds) < 1.5 * min(kinds)

    def test_endings_are_attached_to_names(self):
        of_names = [
            word for words, tags in ner("test", TEST) for word, tag in zip(words, tags, strict=True) if tag != "O"
        ]
        assert all(word in STEMS or word in LEGAL_FORMS for word in of_names)
        inflected = [word for word in of_names if word in STEMS and STEMS[word][0] != word]
        assert len(inflected) > 0.2 * len(of_names)

    @pytest.mark.parametrize("key", [str, stripped])
    def test_lookup_does_not_solve_it(self, key):
        assert entity_f1(lookup(key)) < 0.6

    def test_who_knows_the_words_solves_it(self):
        def tag(words):
            tags = []
            for word in words:
                kind = "ORG" if word in LEGAL_FORMS else KINDS.get(STEMS[word][1]) if word in STEMS else None
                tags.append("O" if not kind else f"I-{kind}" if tags and tags[-1][2:] == kind else f"B-{kind}")
            return tags

        assert entity_f1(tag) == 1.0

    def test_half_of_the_test_names_are_new_and_occur_in_the_corpus(self):
        def names(split, count):
            return [
                STEMS[word][0]
                for words, tags in ner(split, count)
                for word, tag in zip(words, tags, strict=True)
                if tag != "O" and word in STEMS
            ]

        trained = set(names("train", TRAIN))
        new = [name for name in names("test", TEST) if name not in trained]
        assert len(new) >= 0.4 * len(names("test", TEST))
        assert sum(name in corpus_words() for name in new) >= 0.95 * len(new)


class TestTopics:
    def terms(self, text):
        return [STEMS[word] for word in text.split() if word in STEMS and STEMS[word][1] in TOPICS]

    def test_form(self):
        assert TOPICS == ("kolkata", "state", "national", "sports", "entertainment", "international")
        for split in ("train", "validation", "test"):
            passages = topics(split, TEST)
            assert len(passages) == TEST
            assert all(2 <= text.count("।") <= 4 for text, _ in passages)
            counts = Counter(label for _, label in passages)
            assert set(counts) == set(range(6))
            assert max(counts.values()) < 0.25 * TEST  # what a majority vote would reach

    def test_naive_bayes_over_the_training_words_does_not_solve_it(self):
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.naive_bayes import MultinomialNB

        for key in (str, stripped):
            bag = CountVectorizer(analyzer=lambda text, key=key: [key(word) for word in text.split()])
            train, test = topics("train", TRAIN), topics("test", TEST)
            model = MultinomialNB().fit(bag.fit_transform([text for text, _ in train]), [label for _, label in train])
            accuracy = model.score(bag.transform([text for text, _ in test]), [label for _, label in test])
            assert 0.35 < accuracy < 0.7

    def test_who_knows_the_words_solves_it(self):
        test = topics("test", TEST)
        most = [Counter(group for _, group in self.terms(text)).most_common(1)[0][0] for text, _ in test]
        assert [TOPICS[label] for _, label in test] == most
        assert any(len({group for _, group in self.terms(text)}) > 1 for text, _ in test)  # some have a stray term

    def test_the_adjectives_of_the_topics_stand_in_documents_only(self):
        adjectives = {normalize("NFC", word) for word in ("কলকাতার", "রাজ্যের", "জাতীয়", "ক্রীড়া", "বিনোদন", "আন্তর্জাতিক")}
        assert adjectives <= {word for text in documents(0, 100) for word in text.split()}
        for split in ("train", "validation", "test"):
            assert adjectives.isdisjoint(word for text, _ in topics(split, TEST) for word in text.split())

    def test_half_of_the_test_terms_are_new_and_occur_in_the_corpus(self):
        trained = {term for text, _ in topics("train", TRAIN) for term, _ in self.terms(text)}
        tested = [term for text, _ in topics("test", TEST) for term, _ in self.terms(text)]
        new = [term for term in tested if term not in trained]
        assert len(new) >= 0.4 * len(tested)
        assert sum(term in corpus_words() for term in new) >= 0.95 * len(new)


@pytest.mark.parametrize("split_of", [ner_split, topic_split])
def test_splits_repeat_exactly_and_share_nothing(split_of):
    def items(seed, split, count):
        return [str(item[0]) for item in split_of(seed, split, count)]

    assert split_of(3, "train", 200) == split_of(3, "train", 200)
    assert split_of(3, "train", 200)[:50] == split_of(3, "train", 50)
    assert split_of(3, "train", 200) != split_of(4, "train", 200)
    splits = [set(items(seed, split, 400)) for split in ("train", "validation", "test") for seed in (0, 1)]
    train, validation, test = (splits[at] | splits[at + 1] for at in (0, 2, 4))
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert all(len(split) == 400 for split in splits)


def test_no_document_is_a_labelled_item():
    labelled = {" ".join(words) for split in ("train", "test") for words, _ in ner(split, TEST)}
    labelled |= {text for split in ("train", "test") for text, _ in topics(split, TEST)}
    assert labelled.isdisjoint(documents(0, DEMO_DOCUMENTS))


def test_the_items_are_those_of_every_other_machine():
    items = repr([split_of(0, split, 50) for split_of in (ner_split, topic_split) for split in ("train", "test")])
    assert sha256(items.encode()).hexdigest() == "addd21607131ba7a32509aa0025dfff7bdcc520286132a4c61a337d6b211f72c"
