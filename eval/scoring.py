"""Scores of one model on one split, by seqeval and scikit-learn, as fractions from 0 to 1.

The headline of NER is seqeval's default micro F1 over entities: as in conlleval, an I- without its B- starts an
entity, which is how the published figures were made. The strict IOB2 reading is stored beside it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import seqeval.metrics
import sklearn.metrics
from seqeval.scheme import IOB2

from eval.labels import derived_labels
from eval.settings import TaskKind

HEADLINES: dict[TaskKind, str] = {
    "ner": "micro F1 over entities, seqeval's default mode, which reads tags as conlleval does",
    "classification": "accuracy",
}
"""What the number ``score`` is."""

NEAR_ZERO = 0.01
"""An entity F1 below this is as good as none."""


def score_ner(gold: list[list[str]], predicted: list[list[str]]) -> dict[str, Any]:
    """Entity scores of tag sequences (one list a sentence, as long as the sentence has words).

    Returns:
        ``score`` (micro F1), ``precision``, ``recall``, ``strict_f1``, ``token_accuracy``, ``per_label``: entity
        type to precision, recall, f1 and support, and ``confusion`` of the words' tags. Without any entity all
        scores of entities are 0.
    """
    report = seqeval.metrics.classification_report(gold, predicted, output_dict=True, zero_division=0)
    micro = report.pop("micro avg")
    per_label = {name: _row(row) for name, row in report.items() if not name.endswith(" avg")}
    flat_gold, flat_predicted = _flat(gold), _flat(predicted)
    strict = seqeval.metrics.f1_score(gold, predicted, mode="strict", scheme=IOB2, zero_division=0)
    return {
        "score": float(micro["f1-score"]),
        "precision": float(micro["precision"]),
        "recall": float(micro["recall"]),
        "strict_f1": float(strict),
        "token_accuracy": float(seqeval.metrics.accuracy_score(gold, predicted)),
        "per_label": per_label,
        "confusion": _confusion(flat_gold, flat_predicted, derived_labels("ner", {*flat_gold, *flat_predicted})),
    }


def entity_f1(gold: list[list[str]], predicted: list[list[str]]) -> float:
    """The headline alone, for choosing an epoch."""
    return float(seqeval.metrics.f1_score(gold, predicted, zero_division=0))


def score_classification(gold: list[str], predicted: list[str], labels: tuple[str, ...]) -> dict[str, Any]:
    """Scores of single labels.

    Returns:
        ``score`` (accuracy), ``macro_f1`` over all of ``labels``, ``per_label``: label to precision, recall, f1 and
        support, and ``confusion``. A label that is neither gold nor predicted has F1 0.
    """
    report = sklearn.metrics.classification_report(
        gold, predicted, labels=list(labels), output_dict=True, zero_division=0
    )
    return {
        "score": float(sklearn.metrics.accuracy_score(gold, predicted)),
        "macro_f1": float(report["macro avg"]["f1-score"]),
        "per_label": {label: _row(report[label]) for label in labels},
        "confusion": _confusion(gold, predicted, labels),
    }


def majority_score(kind: TaskKind, training: list[Any], gold: list[Any]) -> float:
    """Score of always saying the training split's most frequent label; for NER that is O everywhere, F1 0."""
    if kind == "ner":
        return 0.0
    counts = Counter(training)
    majority = min(counts, key=lambda label: (-counts[label], label))
    return float(sklearn.metrics.accuracy_score(gold, [majority] * len(gold)))


def find_flags(kind: TaskKind, predicted: list[Any], score: float, majority: float, diverged: bool) -> list[str]:
    """What a reader must know about a run; a flagged run stays in the mean."""
    found = []
    if diverged:
        found.append("loss not a number")
    classes = {tag for tags in predicted for tag in tags} if kind == "ner" else set(predicted)
    if len(classes) <= 1:
        found.append("one class only")
    if kind == "ner" and score < NEAR_ZERO:
        found.append("F1 near 0")
    if kind == "classification" and score <= majority:
        found.append("at or below majority")
    return found


def _confusion(gold: list[str], predicted: list[str], labels: tuple[str, ...]) -> dict[str, Any]:
    """Counts ``matrix[gold][predicted]``, rows and columns in the order of ``labels``."""
    counts = Counter(zip(gold, predicted, strict=True))
    return {"labels": list(labels), "matrix": [[counts[right, said] for said in labels] for right in labels]}


def _flat(sentences: list[list[str]]) -> list[str]:
    return [tag for tags in sentences for tag in tags]


def _row(row: dict[str, Any]) -> dict[str, float]:
    return {
        "precision": float(row["precision"]),
        "recall": float(row["recall"]),
        "f1": float(row["f1-score"]),
        "support": int(row["support"]),
    }
