"""What stands behind a headline score, against seqeval and scikit-learn on the same labels."""

from __future__ import annotations

import pytest
import sklearn.metrics

from eval.label_scores import details_of
from eval.scoring import score_classification, score_ner

GOLD = [["B-PER", "I-PER", "O"], ["B-LOC", "O", "O"]]
HALF = [["B-PER", "O", "O"], ["B-LOC", "O", "B-ORG"]]


def test_scores_of_types_are_means_over_seeds() -> None:
    details = details_of("ner", [{"scores": score_ner(GOLD, said)} for said in (GOLD, HALF)])
    assert [(one.label, one.support) for one in details.labels] == [("LOC", 1), ("ORG", 0), ("PER", 1)]
    loc, org, per = details.labels
    assert (loc.f1.mean, loc.f1.std) == (1.0, 0.0)
    assert (org.f1.mean, org.precision.mean) == (0.0, 0.0)
    assert (per.precision.mean, per.f1.std) == (0.5, pytest.approx(0.5**0.5))
    # 2 of 2, then 1 of 3 found and 1 of 2 there: F1 is 1 and 0.4
    assert details.other_scores["precision"].mean == pytest.approx((1 + 1 / 3) / 2)
    assert details.other_scores["strict_f1"].mean == pytest.approx((1 + 0.4) / 2)


def test_confusion_sums_seeds_that_know_other_tags() -> None:
    confusion = details_of("ner", [{"scores": score_ner(GOLD, said)} for said in (GOLD, HALF)]).confusion
    assert confusion.labels == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    assert sum(map(sum, confusion.counts)) == 2 * 6
    row = dict(zip(confusion.labels, confusion.counts[0], strict=True))
    assert row == {"O": 5, "B-LOC": 0, "I-LOC": 0, "B-ORG": 1, "I-ORG": 0, "B-PER": 0, "I-PER": 0}
    assert confusion.counts[confusion.labels.index("I-PER")][0] == 1


def test_classes_keep_the_order_of_their_ids() -> None:
    labels = ("state", "kolkata", "national")
    gold, said = ["state", "kolkata", "state"], ["state", "state", "state"]
    details = details_of("classification", [{"scores": score_classification(gold, said, labels)}])
    assert [one.label for one in details.labels] == list(labels)
    expected = sklearn.metrics.f1_score(gold, said, labels=list(labels), average=None, zero_division=0)
    assert [one.f1.mean for one in details.labels] == pytest.approx(list(expected))
    assert {one.f1.std for one in details.labels} == {None}
    assert details.confusion.counts == ((2, 0, 0), (1, 0, 0), (0, 0, 0))
    assert details.other_scores.keys() == {"macro_f1"}
