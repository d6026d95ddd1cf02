"""Counts of right answers for every test item, from the predictions that a seed run stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.settings import TaskKind
from eval.uncertainty import Counts, score_of
from tasks.contract import StageError


def counts_of(kind: TaskKind, gold: Sequence[Any], predicted: Sequence[Any]) -> Counts:
    """Numbers of (correct, predicted, gold) answers of every item, of shape (items, 3).

    For NER they are entities as seqeval reads them by default, the reading of the headline score: an entity is right
    if type, start and end are. For classification an item has one answer.
    """
    import numpy

    if kind == "classification":
        return numpy.array([(right == said, 1, 1) for right, said in zip(gold, predicted, strict=True)], dtype=int)
    from seqeval.metrics.sequence_labeling import get_entities

    rows = []
    for right, said in zip(gold, predicted, strict=True):
        there, found = set(get_entities(right)), set(get_entities(said))
        rows.append((len(there & found), len(found), len(there)))
    return numpy.array(rows, dtype=int)


def read_counts(kind: TaskKind, folder: Path, score: float) -> Counts:
    """Counts of one seed run, of shape (items, 3).

    Args:
        kind: of the task.
        folder: the seed run's artifact, with ``predictions.jsonl``.
        score: what the seed run says its score is.

    Raises:
        StageError: the predictions cannot be read, or do not have that score.
    """
    path = folder / "predictions.jsonl"
    try:
        # Not splitlines: it would also cut at separators of lines inside a label.
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        counts = counts_of(kind, [row["gold"] for row in rows], [row["predicted"] for row in rows])
    except (OSError, ValueError, KeyError, TypeError):
        raise StageError(f"{path}: cannot be read; run the seed run again with --force evaluate") from None
    found = float(score_of(counts.sum(axis=0)))
    if abs(found - score) > 1e-9:
        raise StageError(
            f"{path}: the predictions score {found:.6f} and not {score:.6f}; run again with --force evaluate"
        )
    return counts
