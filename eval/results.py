"""The result file of an evaluation: the one schema that `evaluate` writes and the report reads.

All scores are fractions from 0 to 1; the renderer turns them into per cent. Where the intervals and the p come from is
said in :mod:`eval.uncertainty`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Interval(_Row):
    """A 95 % interval, ``low`` to ``high``."""

    low: float
    high: float


class SeedScore(_Row):
    """One seed run: its test score, and the validation score that chose the epoch."""

    seed: int
    score: float
    validation_score: float
    best_epoch: int
    flags: tuple[str, ...] = ()
    """What a reader must know about this run, such as ``"one class only"``; flagged runs stay in the mean."""


class MissingSeed(_Row):
    """A seed run that was declared and failed."""

    seed: int
    reason: str
    """The failure in one line."""


class SeedSummary(_Row):
    """Mean and spread of some seed runs of one model on one task."""

    n: int
    mean: float
    std: float | None
    """Sample standard deviation (n - 1 in the denominator); None when n is 1."""
    interval: Interval | None
    """t interval of the mean: what other seeds could give. None when n is 1."""


class MeanScore(_Row):
    """A score over all seed runs of one model; ``std`` is the sample's, None when n is 1."""

    mean: float
    std: float | None


class LabelScore(_Row):
    """One entity type or class: its scores over the seed runs."""

    label: str
    support: int
    """Entities, or items, of the test split that have it."""
    precision: MeanScore
    recall: MeanScore
    f1: MeanScore


class Confusion(_Row):
    """What was taken for what: words by IOB2 tag, or texts by class, summed over the seed runs."""

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """``counts[gold][predicted]``, in the order of ``labels``."""


class ModelDetails(_Row):
    """What stands behind one model's headline score on one task."""

    other_scores: dict[str, MeanScore]
    """By name: "strict_f1", "precision", "recall" and "token_accuracy", or "macro_f1"."""
    labels: tuple[LabelScore, ...]
    confusion: Confusion


class ModelResult(SeedSummary):
    """All seed runs of one model on one task; degenerate ones count."""

    model: str
    title: str = ""
    """Of a model of others: which one it is. Empty for ours."""
    parameters: int | None = None
    """Of the fine-tuned model, head included; None in results that were written before they were counted."""
    seeds: tuple[SeedScore, ...]
    missing: tuple[MissingSeed, ...] = ()
    item_interval: Interval
    """Bootstrap over test items: what other test items could give for the mean, with these very seed runs."""
    without_degenerate: SeedSummary | None = None
    """The same without degenerate runs; None if there are none, or nothing else."""
    details: ModelDetails | None = None
    """None in files that were written before there were any."""

    @property
    def declared(self) -> int:
        """The number of seeds that were declared: n and the missing ones."""
        return self.n + len(self.missing)


class AbsentModel(_Row):
    """A model of others that was declared and has no seed run on a task."""

    model: str
    title: str
    reason: str
    """The failure in one line."""


class Comparison(_Row):
    """Two models on one task: could their difference be chance?"""

    model: str
    baseline: str
    difference: float
    """Mean score of ``model`` minus mean score of ``baseline``."""
    interval: Interval
    """Bootstrap over test items, the same ones for both models, of the difference of the means."""
    paired_seeds: int
    """Seeds that both models have: the randomisation test takes these."""
    p_items: float | None
    """Randomisation test over test items; None without a seed that both have."""
    p_seeds: float | None
    """Welch's test over seeds; None when a model has one run only."""
    p: float | None
    """The larger of the two: a difference counts only if neither chance explains it. None if one is missing."""
    p_corrected: float | None
    """``p`` after Holm's correction over all comparisons of the evaluation."""
    outcome: Literal["better", "worse", "same", "unknown"]
    """ "same": no difference was shown, which does not say that there is none. "unknown": too few runs."""
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
    headline: str = ""
    """How exactly that is computed."""
    data: str
    """One line that says which data set this is, such as ``"WikiANN bn (sample)"``."""
    items: dict[str, int]
    """Items by split: train, validation, test."""
    sha256: str
    """Digest of the content of all splits, as :meth:`eval.data.TaskData.facts` gives it."""
    labels: tuple[str, ...]
    """In the order of their ids."""
    fine_tuning: dict[str, JsonValue]
    """The settings of every model's fine-tuning: with other ones a difference in score is not the model's alone."""
    majority: float
    """Score of the majority baseline: the most frequent class; for NER every word O, so 0."""
    models: tuple[ModelResult, ...]
    absent: tuple[AbsentModel, ...] = ()
    comparisons: tuple[Comparison, ...]
    """Every pair of models."""
    published: tuple[PublishedScore, ...]
    published_differences: tuple[str, ...] = ()
    """What keeps the scores from being comparable with the published ones, in words; empty if nothing does."""
    warnings: tuple[str, ...] = ()
    """What a reader must know about the data, such as test texts that are in the training split too."""

    @property
    def comparison(self) -> Comparison | None:
        """That of the pretrained model with its randomly initialised twin: what pretraining brings."""
        twins = ("pretrained", "random")
        return next((one for one in self.comparisons if (one.model, one.baseline) == twins), None)


class Results(_Row):
    """The whole evaluation."""

    format: Literal[3] = 3
    tasks: tuple[TaskResult, ...]
