"""Counts of right answers for every test item, from the predictions that a seed run stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.settings import TaskKind
from eval.uncertainty import Counts, score_of
from tasks.contract import StageError


@dataclass(frozen=True)
class Predictions:
    """One seed run's answers to the test items, in the items' order: for NER a list of tags an item, else a label."""

    path: Path
    """Where they were read."""
    gold: list[Any]
    predicted: list[Any]


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


def read_predictions(folder: Path) -> Predictions:
    """The predictions of one seed run's artifact.

    Raises:
        StageError: they cannot be read.
    """
    path = folder / "predictions.jsonl"
    try:
        rows = _rows(path)
        return Predictions(path, [row["gold"] for row in rows], [row["predicted"] for row in rows])
    except (OSError, ValueError, KeyError, TypeError):
        raise StageError(f"{path}: cannot be read; run the seed run again with --force evaluate") from None


def checked_counts(kind: TaskKind, predictions: Predictions, score: float) -> Counts:
    """Counts of one seed run, of shape (items, 3).

    Args:
        kind: of the task.
        predictions: of the seed run.
        score: what the seed run says its score is.

    Raises:
        StageError: the predictions do not have that score.
    """
    try:
        counts = counts_of(kind, predictions.gold, predictions.predicted)
        found = float(score_of(counts.sum(axis=0)))
    except (ValueError, TypeError, AttributeError, IndexError):
        raise StageError(
            f"{predictions.path}: holds no predictions of kind {kind}; run again with --force evaluate"
        ) from None
    if abs(found - score) > 1e-9:
        raise StageError(
            f"{predictions.path}: the predictions score {found:.6f} and not {score:.6f}; "
            "run again with --force evaluate"
        )
    return counts


def gathered_path(folder: Path, task: str) -> Path:
    """Where an evaluation's artifact has the predictions of a task."""
    return folder / "predictions" / f"{task}.jsonl"


def write_gathered(path: Path, runs: Mapping[str, Predictions]) -> None:
    """Write the predictions of all seed runs of a task: a line for each test item, with ``index``, ``gold``, and
    ``predicted`` by seed run (``model/task/seed``).

    Raises:
        StageError: the seed runs were not scored against the same labels.
    """
    first = next(iter(runs.values()))
    for one in runs.values():
        if one.gold != first.gold:
            raise StageError(f"{one.path}: was scored against other labels than {first.path}; run both again")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for index, gold in enumerate(first.gold):
            predicted = {key: one.predicted[index] for key, one in runs.items()}
            row = {"index": index, "gold": gold, "predicted": predicted}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_gathered(path: Path) -> dict[str, Predictions]:
    """The predictions that :func:`write_gathered` wrote, by seed run.

    Raises:
        StageError: they cannot be read.
    """
    try:
        rows = _rows(path)
        gold = [row["gold"] for row in rows]
        return {key: Predictions(path, gold, [row["predicted"][key] for row in rows]) for key in rows[0]["predicted"]}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise StageError(f"{path}: cannot be read; copy the evaluation's folder again, or run it again") from None


def _rows(path: Path) -> list[Any]:
    # Not splitlines: it would also cut at separators of lines inside a label.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
