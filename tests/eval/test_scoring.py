import pytest
import seqeval.metrics
import sklearn.metrics
from seqeval.scheme import IOB2

from eval.published import published_tables
from eval.scoring import entity_f1, find_flags, majority_score, score_classification, score_ner


def test_ner_scores_of_a_hand_computed_case():
    gold = [["B-PER", "I-PER", "O"], ["B-LOC", "O", "B-PER"]]
    predicted = [["B-PER", "I-PER", "O"], ["B-PER", "O", "O"]]
    scores = score_ner(gold, predicted)
    assert scores["precision"] == pytest.approx(1 / 2)  # 1 right of 2 said
    assert scores["recall"] == pytest.approx(1 / 3)  # 1 right of 3 there
    assert scores["score"] == pytest.approx(2 / 5)
    assert scores["score"] == entity_f1(gold, predicted)
    assert scores["token_accuracy"] == pytest.approx(4 / 6)
    assert scores["per_label"]["LOC"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1}
    assert scores["per_label"]["PER"]["f1"] == pytest.approx(1 / 2)


def test_an_orphan_i_starts_an_entity_by_default_and_not_in_strict_mode():
    gold, predicted = [["B-PER", "I-PER"]], [["I-PER", "I-PER"]]
    scores = score_ner(gold, predicted)
    assert (scores["score"], scores["strict_f1"]) == (1.0, 0.0)
    assert scores["score"] == seqeval.metrics.f1_score(gold, predicted)
    assert scores["strict_f1"] == seqeval.metrics.f1_score(
        gold, predicted, mode="strict", scheme=IOB2, zero_division=0
    )


def test_confusion_of_words_and_of_labels_is_scikit_learns():
    gold, predicted = [["B-PER", "I-PER", "O"], ["B-LOC", "O"]], [["B-PER", "O", "O"], ["B-PER", "O"]]
    confusion = score_ner(gold, predicted)["confusion"]
    assert confusion["labels"] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert confusion["matrix"] == [[2, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0] * 5, [0, 0, 0, 1, 0], [1, 0, 0, 0, 0]]
    gold, predicted = list("aabbcc"), list("aabacc")
    confusion = score_classification(gold, predicted, ("d", "c", "b", "a"))["confusion"]
    assert confusion["labels"] == ["d", "c", "b", "a"]
    matrix = sklearn.metrics.confusion_matrix(gold, predicted, labels=["d", "c", "b", "a"])
    assert confusion["matrix"] == matrix.tolist()


def test_no_entity_at_all_scores_zero():
    assert score_ner([["O", "O"]], [["O", "O"]])["score"] == 0.0


def test_classification_scores_are_scikit_learns():
    gold, predicted = list("aabbcc"), list("aabacc")
    scores = score_classification(gold, predicted, ("a", "b", "c", "d"))
    assert scores["score"] == pytest.approx(5 / 6)
    assert scores["macro_f1"] == pytest.approx(
        sklearn.metrics.f1_score(gold, predicted, average="macro", labels=list("abcd"), zero_division=0)
    )
    assert scores["per_label"]["b"] == pytest.approx({"precision": 1.0, "recall": 0.5, "f1": 2 / 3, "support": 2})
    assert scores["per_label"]["d"]["support"] == 0


def test_majority_is_that_of_the_training_split():
    assert majority_score("classification", list("aab"), list("abbb")) == 0.25
    assert majority_score("ner", [["B-X"]], [["B-X"]]) == 0.0


def test_flags():
    assert find_flags("classification", list("ab"), 0.9, 0.5, False) == []
    assert find_flags("classification", list("aa"), 0.5, 0.5, False) == ["one class only", "at or below majority"]
    assert find_flags("ner", [["O", "O"]], 0.0, 0.0, True) == ["loss not a number", "one class only", "F1 near 0"]
    assert find_flags("ner", [["O", "B-X"]], 0.005, 0.0, False) == ["F1 near 0"]


def test_published_figures():
    tables = published_tables()
    assert [row.mean for row in tables["wikiann-bn"].rows] == [0.9545, 0.9648, 0.9252, 0.8232]
    assert [row.std for row in tables["wikiann-bn"].rows] == [0.0053, 0.0022, 0.0045, 0.0067]
    assert [row.mean for row in tables["soham-ncc"].rows] == [0.9197, 0.9005, 0.7446, 0.8094]
    assert [row.std for row in tables["soham-ncc"].rows] == [0.0047, 0.0038, 0.0191, 0.0045]
    assert all(score.runs == 3 and score.source for table in tables.values() for score in table.scores())


def test_published_figures_are_comparable_on_the_same_data_only():
    table = published_tables()["wikiann-bn"]
    hub = {"kind": "hub", "dataset": "unimelb-nlp/wikiann", "config": "bn", "revision": "0" * 40}
    data = {"source": hub, "items": dict(table.data.items), "labels": list(table.data.labels)}
    assert not table.differences(data, "entity F1")
    assert table.differences(data, "accuracy")
    assert table.differences({**data, "source": {"kind": "files"}}, "entity F1")
    assert table.differences({**data, "source": {**hub, "config": "en"}}, "entity F1")
    assert table.differences({**data, "items": {**data["items"], "test": 999}}, "entity F1")
    assert table.differences({**data, "labels": data["labels"][1:]}, "entity F1")


def test_what_keeps_scores_from_being_comparable_is_said():
    table = published_tables()["wikiann-bn"]
    hub = {"kind": "hub", "dataset": "unimelb-nlp/wikiann", "config": "bn", "revision": "0" * 40}
    data = {"source": hub, "items": dict(table.data.items), "labels": list(table.data.labels)}
    assert table.differences(data, "entity F1") == []
    others = {
        "source": {**hub, "config": "en"},
        "items": {**data["items"], "test": 999},
        "labels": sorted(data["labels"]),
    }
    assert table.differences({**data, **others}, "accuracy") == [
        "the score is accuracy, the published one entity F1",
        "the data set is unimelb-nlp/wikiann en, the published one unimelb-nlp/wikiann bn",
        "test has 999 items, the published 1,000",
        "the labels are in another order: B-LOC, B-ORG, B-PER, I-LOC, I-ORG, I-PER, O; "
        "published O, B-PER, I-PER, B-ORG, I-ORG, B-LOC, I-LOC",
    ]
    (copy,) = table.differences({**data, "source": {**hub, "local": True}}, "entity F1")
    assert copy == "the data are a local copy, and no digest is known to compare their content by"
    known = table.model_copy(update={"data": table.data.model_copy(update={"sha256": "1" * 64})})
    assert not known.differences({**data, "source": {"kind": "files"}, "sha256": "1" * 64}, "entity F1")
    (digest,) = known.differences({**data, "sha256": "2" * 64}, "entity F1")
    assert digest == "the content's digest is 2222222222222222, the published data's 1111111111111111"
