"""The result file of an evaluation: the one schema that `evaluate` writes and the report reads.

All scores are fractions from 0 to 1; the renderer turns them into per cent.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SeedScore(_Row):
    """One seed run: its test score, and the validation score that chose the epoch."""

    seed: int
    score: float
    validation_score: float
    best_epoch: int
    flags: tuple[str, ...] = ()
    """What a reader must know about this run, such as ``"one class only"``; flagged runs stay in the mean."""


class ModelResult(_Row):
    """All seed runs of one model on one task."""

    model: str
    seeds: tuple[SeedScore, ...]
    n: int
    mean: float
    std: float | None
    """Sample standard deviation (n - 1 in the denominator); None when n is 1."""


class Comparison(_Row):
    """The pretrained model against its randomly initialised twin on one task."""

    model: str
    baseline: str
    difference: float
    """Mean score of ``model`` minus mean score of ``baseline``."""
    larger_std: float | None
    helps: bool | None
    """Whether the difference exceeds twice the larger sample std; None when a std is missing."""
    sentence: str


class PublishedScore(_Row):
    """A figure that somebody else published: shown beside ours, marked as not measured here."""

    model: str
    mean: float
    std: float | None
    runs: int | None
    source: str
    note: str = ""


class TaskResult(_Row):
    """One task: what was measured, and on what."""

    task: str
    kind: Literal["ner", "classification"]
    metric: str
    """"entity F1" or "accuracy"."""
    data: str
    """One line that says which data set this is, such as ``"WikiANN bn (sample)"``."""
    items: dict[str, int]
    """Items by split: train, validation, test."""
    majority: float
    """Score of the majority baseline: the most frequent class; for NER every word O, so 0."""
    models: tuple[ModelResult, ...]
    comparison: Comparison | None
    published: tuple[PublishedScore, ...]
    published_comparable: bool
    """Whether data and splits are those of the published figures."""


class Results(_Row):
    """The whole evaluation."""

    format: Literal[1] = 1
    tasks: tuple[TaskResult, ...]
