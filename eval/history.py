"""The history of a recipe: one entry for every finished evaluation, and what has dropped since the one before.

    <store>/history/<recipe>/<fingerprint, 16 digits>-<digest, 16 digits>.json

An entry is derived from an evaluation's artifact and nothing else, and named by it. So it does not matter when, how
often or by whom it is written: a run that is killed before it did so loses nothing, two runs at once write the same
bytes, and reading takes entries and artifacts together. It is written down at all since artifacts can go: a forced
run replaces one, and ``clean`` removes the replaced one, whose entry it writes first.

A log that every run appends to was rejected: it can miss an evaluation or hold one twice. So was the report's
artifact: its fingerprint is that of its inputs, and a history changes with every evaluation.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from eval.results import Interval, ModelResult, Results
from tasks import durable
from tasks.identity import canonical
from tasks.record import Damaged, Record, read_record
from tasks.store import Store

logger = logging.getLogger(__name__)


class _Row(BaseModel):
    # Not "forbid": an entry that a later version wrote must not be lost to this one.
    model_config = ConfigDict(extra="ignore", frozen=True)


class HistoryScore(_Row):
    """The seed runs of one model on one task."""

    mean: float
    std: float | None
    n: int
    declared: int
    """The number of seeds that were declared; n lacks those that failed."""
    interval: Interval | None
    """t interval of the mean, for other seeds."""
    item_interval: Interval
    scores: dict[int, float]
    """By seed."""


class HistoryTask(_Row):
    """One task of an evaluation. Scores can be compared with those of another one if metric, data and fine-tuning are
    the same."""

    metric: str
    sha256: str
    """Digest of the data."""
    fine_tuning: dict[str, JsonValue]
    models: dict[str, HistoryScore]


class HistoryEntry(_Row):
    """One finished evaluation."""

    format: Literal[1] = 1
    recipe: str
    fingerprint: str
    digest: str
    finished: datetime
    commit: str | None
    """Of the code, if it ran from a checkout."""
    tasks: dict[str, HistoryTask]

    @property
    def file_name(self) -> str:
        """Equal results of equal inputs are one entry, however often they were made."""
        return f"{self.fingerprint[:16]}-{self.digest[:16]}.json"


@dataclass(frozen=True)
class Point:
    """One model on one task in one evaluation, beside the newest earlier one that it can be compared with."""

    entry: HistoryEntry
    task: str
    model: str
    previous: HistoryEntry | None

    @property
    def on(self) -> HistoryTask:
        """The task as this evaluation had it."""
        return self.entry.tasks[self.task]

    @property
    def score(self) -> HistoryScore:
        """What was measured."""
        return self.on.models[self.model]

    @property
    def before(self) -> HistoryScore | None:
        """What the previous evaluation measured."""
        return self.previous.tasks[self.task].models[self.model] if self.previous else None

    @property
    def change(self) -> float | None:
        """The mean minus the previous one."""
        return self.score.mean - self.before.mean if self.before else None

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """Of the change, for other seeds; None without a previous point, or if one of the two is a single run."""
        from eval.uncertainty import welch_interval

        if self.before is None:
            return None
        return welch_interval(list(self.score.scores.values()), list(self.before.scores.values()))

    @property
    def dropped(self) -> bool:
        """Whether the mean fell beyond the interval: other seeds do not explain the fall."""
        return self.change is not None and self.change < 0 and self.interval is not None and self.interval[1] < 0


def entry_of(artifact: Path, recipe: str | None = None) -> HistoryEntry | None:
    """The entry of an evaluation's artifact; None if it is damaged, or of a version that kept too little.

    Args:
        artifact: the folder, in the store or in its trash.
        recipe: name of the recipe that asks for it; by default the one that the record names.
    """
    try:
        record = read_record(artifact)
        content = (artifact / "results.json").read_bytes()
        if hashlib.sha256(content).hexdigest() != record.outputs["results.json"].sha256:
            return None
        results = Results.model_validate_json(content)
    except (Damaged, OSError, KeyError, ValidationError):
        return None
    name = recipe or record.metrics.get("recipe")
    if not isinstance(name, str) or not re.fullmatch("[a-z0-9][a-z0-9-]*", name):
        return None
    return _entry(record, results, name)


def _entry(record: Record, results: Results, recipe: str) -> HistoryEntry:
    git = record.environment.get("git") or {}
    tasks = {
        task.task: HistoryTask(
            metric=task.metric,
            sha256=task.sha256,
            fine_tuning=task.fine_tuning,
            models={model.model: _score(model) for model in task.models},
        )
        for task in results.tasks
    }
    return HistoryEntry(
        recipe=recipe,
        fingerprint=record.fingerprint,
        digest=record.digest,
        finished=record.finished,
        commit=git.get("commit"),
        tasks=tasks,
    )


def _score(model: ModelResult) -> HistoryScore:
    return HistoryScore(
        mean=model.mean,
        std=model.std,
        n=model.n,
        declared=model.declared,
        interval=model.interval,
        item_interval=model.item_interval,
        scores={seed.seed: seed.score for seed in model.seeds},
    )


def keep(store: Store, artifact: Path, recipe: str | None = None) -> None:
    """Write down the entry of an evaluation, unless it is there. Raises OSError if that is not possible."""
    entry = entry_of(artifact, recipe)
    if entry is None:
        return
    path = _folder(store, entry.recipe) / entry.file_name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write_json(path, entry.model_dump(mode="json"))


def keep_all(store: Store) -> None:
    """Write down what is not yet of all evaluations in the store and in its trash. Raises OSError."""
    for artifact in _artifacts(store):
        keep(store, artifact)


def read_history(store: Store, recipe: str) -> list[HistoryEntry]:
    """All entries of a recipe, the oldest first: those written down, and those of artifacts that are not yet. Writes
    nothing; a file that cannot be read is named in the log and left out."""
    found: dict[str, HistoryEntry] = {}
    for artifact in _artifacts(store):
        entry = entry_of(artifact)
        if entry is not None and entry.recipe == recipe:
            found[entry.file_name] = entry
    for path in sorted(_folder(store, recipe).glob("[!.]*.json")):
        try:
            entry = HistoryEntry.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            if path.name not in found:
                logger.warning("%s: cannot be read, and the history lacks it", path)
            continue
        found[entry.file_name] = entry
    return sorted(found.values(), key=lambda entry: (entry.finished, entry.file_name))


def points_of(entries: Sequence[HistoryEntry]) -> Iterator[Point]:
    """Every model on every task of the entries, which are ordered by time."""
    newest: dict[bytes, HistoryEntry] = {}
    for entry in entries:
        for name, task in entry.tasks.items():
            for model in task.models:
                basis = _basis(name, model, task)
                yield Point(entry, name, model, newest.get(basis))
                newest[basis] = entry


def _basis(name: str, model: str, task: HistoryTask) -> bytes:
    """Equal for scores that can be compared."""
    return canonical([name, model, task.metric, task.sha256, task.fine_tuning])


def _artifacts(store: Store) -> list[Path]:
    return [*sorted(store.root.glob("artifacts/evaluate/*")), *sorted(store.root.glob("trash/evaluate-*"))]


def _folder(store: Store, recipe: str) -> Path:
    return store.root / "history" / recipe
