from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.sentences import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("আমি ভাত খাই। তুমি কী খাও? বাহ! চলো।", ["আমি ভাত খাই।", "তুমি কী খাও?", "বাহ!", "চলো।"]),
        ("সে গেল।তারপর এল।", ["সে গেল।", "তারপর এল।"]),
        ("শ্লোক শেষ॥ নতুন", ["শ্লোক শেষ॥", "নতুন"]),
        ("“কী?” সে বলল।", ["“কী?”", "সে বলল।"]),
        ("সত্যি?! না।।", ["সত্যি?!", "না।।"]),
        ("ড. ইউনূস ও মো. আলী ৩.১৪ লিখলেন। পাই 3.14 হয়।", ["ড. ইউনূস ও মো. আলী ৩.১৪ লিখলেন।", "পাই 3.14 হয়।"]),
        ("He left. She stayed.", ["He left.", "She stayed."]),
        ("A. P. J. Abdul Kalam met Dr. Roy in the U.S. Army.", ["A. P. J. Abdul Kalam met Dr. Roy in the U.S. Army."]),
        ("It was 1999. Then 3.14 came. See No. 5 there.", ["It was 1999.", "Then 3.14 came.", "See No. 5 there."]),
        ("1. First thing", ["1. First thing"]),
        ("He said “stop.” Then he ran.", ["He said “stop.”", "Then he ran."]),
        ("see http://a.org/x?b=c!d now", ["see http://a.org/x?b=c!d now"]),
        ("end of file. no capital", ["end of file. no capital"]),
        ("এক\nদুই\n\n  \nতিন", ["এক", "দুই", "তিন"]),
        ("वह गया। यह आया।", ["वह गया।", "यह आया।"]),
        ("کیا حال ہے؟ ٹھیک۔", ["کیا حال ہے؟", "ٹھیک۔"]),
        ("", []),
        (" \n\t ", []),
        ("।", ["।"]),
    ],
)
def test_sentences_end_where_they_should(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='অক া।?!.…”") \n1aAD:\u200d', max_size=60))
def test_no_character_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


def test_a_long_line_of_full_stops_takes_linear_time() -> None:
    text = "Dr. A. " * 50_000 + "x" * 500_000
    assert split_sentences(text) == [text]
