"""What stands behind a headline score: other scores, each label's own, and what was taken for what."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from eval.labels import derived_labels
from eval.results import Confusion, LabelScore, MeanScore, ModelDetails
from eval.settings import TaskKind


def details_of(kind: TaskKind, runs: Sequence[Mapping[str, Any]]) -> ModelDetails:
    """The details of one model on one task.

    Args:
        kind: of the task.
        runs: the ``scores.json`` of its seed runs, at least one, all on the same test items.
    """
    scores = [run["scores"] for run in runs]
    names = [name for name, value in scores[0].items() if name != "score" and isinstance(value, float)]
    # A type that is in no gold label appears only in the runs that predicted it: elsewhere it has no score.
    labels = sorted({label for one in scores for label in one["per_label"]}, key=_order(kind, scores[0]))
    return ModelDetails(
        other_scores={name: _mean([one[name] for one in scores]) for name in names},
        labels=tuple(_label(label, [one["per_label"].get(label) for one in scores]) for label in labels),
        confusion=_confusion(kind, [one["confusion"] for one in scores]),
    )


def _order(kind: TaskKind, scores: Mapping[str, Any]) -> Any:
    """Classes in the order of their ids, as every run has them; entity types by name."""
    if kind == "ner":
        return lambda label: label
    return list(scores["per_label"]).index


def _mean(values: Sequence[float]) -> MeanScore:
    return MeanScore(mean=statistics.fmean(values), std=statistics.stdev(values) if len(values) > 1 else None)


def _label(label: str, rows: Sequence[Mapping[str, float] | None]) -> LabelScore:
    """Means over the runs; where a type is neither gold nor predicted it counts as 0, as F1 is for one predicted."""
    found = {key: _mean([row[key] if row else 0.0 for row in rows]) for key in ("precision", "recall", "f1")}
    return LabelScore(label=label, support=int(next(row for row in rows if row)["support"]), **found)


def _confusion(kind: TaskKind, found: Sequence[Mapping[str, Any]]) -> Confusion:
    """The sum over the runs, which for NER may know different tags: a tag counts where a run has it."""
    labels = (
        derived_labels("ner", {label for one in found for label in one["labels"]})
        if kind == "ner"
        else tuple(found[0]["labels"])
    )
    place = {label: number for number, label in enumerate(labels)}
    counts = [[0] * len(labels) for _ in labels]
    for one in found:
        for right, row in zip(one["labels"], one["matrix"], strict=True):
            for said, count in zip(one["labels"], row, strict=True):
                counts[place[right]][place[said]] += count
    return Confusion(labels=labels, counts=tuple(tuple(row) for row in counts))
