"""From scores and counts to the figures of the result file, with one plain sentence on every two models."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from eval.results import Comparison, Interval, MissingSeed, ModelResult, SeedScore, SeedSummary
from eval.uncertainty import (
    Counts,
    bootstrap_intervals,
    holm,
    percentile_interval,
    randomisation_p,
    t_interval,
    welch_p,
)

CHANCE = 0.05
"""A difference counts when its corrected p is at most this: Fisher's usual bound."""

DEGENERATE = frozenset({"loss not a number", "one class only", "F1 near 0", "at or below majority"})
"""Flags of a run that has learnt nothing: such runs stay in the mean, and a second line leaves them out."""

_NAMES = {"pretrained": "our pretrained model", "random": "random initialisation"}


@dataclass(frozen=True)
class Measured:
    """One model on one task: its finished seed runs with their counts, and those that failed."""

    model: str
    seeds: tuple[SeedScore, ...]
    counts: tuple[Counts, ...]
    """A seed's counts, in the order of ``seeds``, each of shape (items, 3)."""
    missing: tuple[MissingSeed, ...] = ()
    title: str = ""
    parameters: int | None = None

    @property
    def scores(self) -> list[float]:
        """Of the seeds, in order."""
        return [seed.score for seed in self.seeds]

    def stacked(self, seeds: Sequence[int] | None = None) -> Counts:
        """Counts of all seeds, or of these, of shape (seeds, items, 3)."""
        import numpy

        found = dict(zip((one.seed for one in self.seeds), self.counts, strict=True))
        return numpy.stack([found[seed] for seed in (found if seeds is None else seeds)])


def summarise(scores: Sequence[float]) -> SeedSummary:
    """Mean, sample std (n - 1 in the denominator) and t interval, cut at 0 and 1, beyond which no score lies; one
    score has neither std nor interval."""
    return SeedSummary(
        n=len(scores),
        mean=statistics.fmean(scores),
        std=statistics.stdev(scores) if len(scores) > 1 else None,
        interval=_possible(t_interval(scores)),
    )


@dataclass(frozen=True)
class Pair:
    """Two models compared on one task, before it is known how many comparisons there are."""

    task: str
    metric: str
    ours: Measured
    theirs: Measured
    interval: Interval
    paired_seeds: int
    p_items: float | None
    p_seeds: float | None

    @property
    def p(self) -> float | None:
        """The larger of the two: one that rejects both kinds of chance. Berger, "Multiparameter hypothesis testing
        and acceptance sampling", Technometrics 24 (1982), shows that it needs no correction of its own."""
        return None if self.p_items is None or self.p_seeds is None else max(self.p_items, self.p_seeds)


def task_summary(
    task: str, metric: str, measured: Sequence[Measured]
) -> tuple[tuple[ModelResult, ...], tuple[Pair, ...]]:
    """The results of all models on one task, and every pair of them.

    Args:
        task: its name.
        metric: name of its score.
        measured: the models, each with at least one seed; all on the same items.
    """
    intervals, draws = bootstrap_intervals([one.stacked() for one in measured])
    results = tuple(_result(one, interval) for one, interval in zip(measured, intervals, strict=True))
    # The pretrained model first, in whatever order they were declared: what is asked is what pretraining brings.
    order = sorted(range(len(measured)), key=lambda number: (measured[number].model != "pretrained", number))
    pairs = []
    for first, second in combinations(order, 2):
        ours, theirs = measured[first], measured[second]
        both = [seed.seed for seed in ours.seeds if seed.seed in {other.seed for other in theirs.seeds}]
        low, high = percentile_interval(draws[:, first] - draws[:, second])
        p_items = randomisation_p(ours.stacked(both), theirs.stacked(both)) if both else None
        p_seeds = welch_p(ours.scores, theirs.scores)
        pairs.append(Pair(task, metric, ours, theirs, Interval(low=low, high=high), len(both), p_items, p_seeds))
    return results, tuple(pairs)


def conclude(pairs: Sequence[Pair]) -> list[Comparison]:
    """What follows from all comparisons of an evaluation, with Holm's correction over those that have a p."""
    tested = [number for number, pair in enumerate(pairs) if pair.p is not None]
    corrected = dict(zip(tested, holm([pair.p for pair in pairs if pair.p is not None]), strict=True))
    return [_conclude(pair, corrected.get(number)) for number, pair in enumerate(pairs)]


def _conclude(pair: Pair, p_corrected: float | None) -> Comparison:
    ours, theirs = pair.ours, pair.theirs
    difference = statistics.fmean(ours.scores) - statistics.fmean(theirs.scores)
    outcome: Literal["better", "worse", "same", "unknown"] = "same"
    if p_corrected is None:
        outcome = "unknown"
    elif p_corrected <= CHANCE and difference != 0:
        outcome = "better" if difference > 0 else "worse"
    return Comparison(
        model=ours.model,
        baseline=theirs.model,
        difference=difference,
        interval=pair.interval,
        paired_seeds=pair.paired_seeds,
        p_items=pair.p_items,
        p_seeds=pair.p_seeds,
        p=pair.p,
        p_corrected=p_corrected,
        outcome=outcome,
        sentence=_sentence(pair, difference, outcome),
    )


def _sentence(pair: Pair, difference: float, outcome: str) -> str:
    first, second = pair.ours.model, pair.theirs.model
    ours, theirs = _NAMES.get(first, first), _NAMES.get(second, second)
    points = f"{abs(100 * difference):.1f} points {'above' if difference > 0 else 'below'}"
    measured = f"On {pair.task}, {ours} is {points} {theirs} in mean {pair.metric}"
    if difference == 0:
        measured = f"On {pair.task}, {ours} has the same mean {pair.metric} as {theirs}"
    if outcome == "unknown":
        few = "no seed has a run of both" if pair.p_items is None else "one run shows no spread of seeds"
        return f"{measured}, but {few}, so nothing follows from it."
    if outcome == "same" and difference == 0:
        return f"{measured}: no difference shown."
    if outcome == "same":
        return f"{measured}, which the luck of seeds or of test items could explain: no difference shown."
    if (first, second) == ("pretrained", "random"):
        follows = "pretraining helps here" if outcome == "better" else "pretraining hurts here"
    else:
        follows = f"{ours if outcome == 'better' else theirs} is better here"
    return f"{measured}, more than the luck of seeds and of test items explains: {follows}."


def _result(measured: Measured, item_interval: tuple[float, float]) -> ModelResult:
    sound = [seed.score for seed in measured.seeds if not DEGENERATE & set(seed.flags)]
    return ModelResult(
        **summarise(measured.scores).model_dump(),
        model=measured.model,
        title=measured.title,
        parameters=measured.parameters,
        seeds=measured.seeds,
        missing=measured.missing,
        item_interval=Interval(low=item_interval[0], high=item_interval[1]),
        without_degenerate=summarise(sound) if 0 < len(sound) < len(measured.seeds) else None,
    )


def _possible(ends: tuple[float, float] | None) -> Interval | None:
    return None if ends is None else Interval(low=max(0.0, ends[0]), high=min(1.0, ends[1]))
