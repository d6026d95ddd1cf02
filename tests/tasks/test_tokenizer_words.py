from __future__ import annotations

from collections import Counter

import pytest

from tasks.contract import StageError
from tasks.tokenizer_building import build_tokenizer
from tasks.tokenizer_definition import load_definition
from tasks.tokenizer_words import WORDS_AT_ONCE, Words, count_words

TEXT = "কিন্তু  আষাঢ়\u200bমাসে\tর‍্যাব ২০২১ সালে, আষাঢ় মাসে! ABC abc\n"


@pytest.mark.parametrize("name", ["bengali-unigram-32k", "bengali-wordpiece-32k", "bert-wordpiece-32k"])
def test_the_same_pieces_as_of_the_whole_text(name: str) -> None:
    tokenizer = build_tokenizer(load_definition(name))
    text = TEXT * 3 + " ".join(f"শব্দ{number}ক" for number in range(WORDS_AT_ONCE * 3))
    normalized = tokenizer.normalizer.normalize_str(text)
    expected = Counter(piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized) if piece != "▁")
    words = count_words([[text]], tokenizer)
    found = dict(zip(words.texts, words.counts, strict=True))
    found.pop("▁", None)  # a space alone, such as the one at the end of a line
    assert found == expected
    assert words.texts == sorted(words.texts)
    assert words.characters == len(text)
    parts = count_words([[TEXT], [TEXT, TEXT], [text[len(TEXT) * 3 :]]], tokenizer)
    assert (parts.texts, parts.counts) == (words.texts, words.counts)


def test_words_with_reserved_characters_are_left_out_and_counted() -> None:
    words = Words(["a", "b\tc", "d"], [5, 2, 1], 20)
    assert words.without("\t\n") == (Words(["a", "d"], [5, 1], 20), 2)


def test_too_many_distinct_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.tokenizer_memory.available_memory", lambda: 10)
    with pytest.raises(StageError, match=r"counting words takes about .* set tokenizer.sample_characters to 10000 or"):
        count_words([[TEXT]], build_tokenizer(load_definition("template")))
