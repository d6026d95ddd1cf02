"""Statistics over seeds: mean, sample standard deviation, and one plain sentence on two models."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from eval.results import Comparison, ModelResult, SeedScore

STD_FACTOR = 2
"""A difference counts when it is more than this many times the larger sample standard deviation."""

_NAMES = {"pretrained": "the pretrained model", "random": "random initialisation"}


def summarise(model: str, seeds: Sequence[SeedScore]) -> ModelResult:
    """Mean and sample std (n - 1 in the denominator; None for one seed) over all seeds, flagged ones included."""
    scores = [seed.score for seed in seeds]
    std = statistics.stdev(scores) if len(scores) > 1 else None
    return ModelResult(model=model, seeds=tuple(seeds), n=len(scores), mean=statistics.fmean(scores), std=std)


def compare(task: str, metric: str, model: ModelResult, baseline: ModelResult) -> Comparison:
    """Whether ``model`` beats ``baseline`` by more than the seeds' spread: a rule of thumb, not a test."""
    difference = model.mean - baseline.mean
    stds = [model.std, baseline.std]
    larger = None if None in stds else max(std for std in stds if std is not None)
    ours, theirs = _NAMES.get(model.model, model.model), _NAMES.get(baseline.model, baseline.model)
    points = f"{abs(100 * difference):.1f} points"
    direction = "above" if difference >= 0 else "below"
    measured = f"On {task}, {ours} is {points} {direction} {theirs} in mean {metric}"
    if larger is None:
        return Comparison(
            model=model.model,
            baseline=baseline.model,
            difference=difference,
            larger_std=None,
            helps=None,
            sentence=f"{measured}, but one seed shows no spread, so nothing follows from it.",
        )
    bound = STD_FACTOR * larger
    spread = f"twice the larger sample std ({100 * bound:.1f} points)"
    if difference > bound:
        sentence = f"{measured}, more than {spread}: pretraining helps here."
    elif difference < -bound:
        sentence = f"{measured}, more than {spread}: pretraining hurts here."
    else:
        sentence = f"{measured}, not more than {spread}: no difference shown."
    return Comparison(
        model=model.model,
        baseline=baseline.model,
        difference=difference,
        larger_std=larger,
        helps=difference > bound,
        sentence=sentence,
    )
