import random

import pytest
from seqeval.metrics.sequence_labeling import get_entities

from eval.labels import is_iob2, to_iob2


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("O I-A I-A B-A I-B", "O B-A I-A B-A B-B"),  # IOB1: B- only between neighbours of one type
        ("B-A I-A B-A O B-B", "B-A I-A B-A O B-B"),  # IOB2 stays
        ("S-A B-A I-A E-A O S-B S-B", "B-A B-A I-A I-A O B-B B-B"),  # BIOES
        ("B-A E-A I-A O E-A", "B-A I-A B-A O B-A"),
        ("", ""),
    ],
)
def test_schemes_become_iob2(tags, wanted):
    assert to_iob2(tags.split()) == wanted.split()


def test_any_tags_keep_the_entities_that_seqeval_reads_in_them():
    rng = random.Random(5)
    tags = ["O", *(f"{prefix}-{name}" for prefix in "BIES" for name in "AB")]
    for _ in range(3000):
        sentence = rng.choices(tags, k=rng.randint(1, 8))
        converted = to_iob2(sentence)
        assert all(map(is_iob2, converted))
        assert get_entities(converted) == get_entities(sentence), sentence
        assert to_iob2(converted) == converted
