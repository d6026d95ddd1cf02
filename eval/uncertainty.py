"""How far a score could be off by chance: the formulas, on plain numbers and arrays.

Two things are left to chance. Fine-tuning draws from a seed, so scores differ from seed to seed: a t interval, and
Welch's test between two models. The test split is one sample of texts, so with other texts the same models would score
otherwise: a bootstrap interval, and a randomisation test between two models. Neither covers the other.

The scores of a model on the items of a test split are *counts*: an integer array of shape (seeds, items, 3), for each
item the numbers of (correct, predicted, gold) answers. For entities these are an item's entities; for one label a
text they are (1 or 0, 1, 1). Both headline scores are then ``2 * correct / (predicted + gold)`` over the sums of a
seed's items: micro F1 (van Rijsbergen 1979), and accuracy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

LEVEL = 0.95
"""Of all intervals."""

RESAMPLES = 10_000
"""Draws of a bootstrap or a randomisation test. The standard error is then below a hundredth of an interval's width at
either end (of a quantile, for a normal distribution), and 0.002 for a p of 0.05 (binomial)."""

_SEED = 1
"""Of the draws. Fixed, so that equal predictions give equal figures."""

_CELLS = 2**22
"""Numbers drawn at a time, which bounds the memory (32 MiB)."""

Counts = Any  # an integer numpy array; numpy is loaded where it is used


def t_interval(scores: Sequence[float]) -> tuple[float, float] | None:
    """Student's interval for the mean over seeds: mean ± t(0.975; n - 1) s / sqrt(n), with the sample std s.

    Student, "The probable error of a mean", Biometrika 6 (1908). It takes the seeds' scores for a sample of a normal
    distribution, and may reach beyond 0 or 1. None for fewer than two scores.
    """
    from scipy.stats import t

    n = len(scores)
    if n < 2:
        return None
    half = float(t.ppf((1 + LEVEL) / 2, n - 1)) * statistics.stdev(scores) / math.sqrt(n)
    return statistics.fmean(scores) - half, statistics.fmean(scores) + half


def welch_p(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Two-sided p of Welch's t test: would two models of equal mean differ so much by the choice of seeds alone?

    Welch, "The generalization of 'Student's' problem when several different population variances are involved",
    Biometrika 34 (1947). None if a model has fewer than two scores. Without any spread in both the statistic is not
    defined: 1 for equal means, else 0.
    """
    from scipy.stats import ttest_ind_from_stats

    if min(len(ours), len(theirs)) < 2:
        return None
    (mean, std, n), (other_mean, other_std, other_n) = (
        (statistics.fmean(scores), statistics.stdev(scores), len(scores)) for scores in (ours, theirs)
    )
    if std == other_std == 0:
        return float(mean == other_mean)
    return float(ttest_ind_from_stats(mean, std, n, other_mean, other_std, other_n, equal_var=False).pvalue)


def welch_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float] | None:
    """Interval for the difference of two models' means over seeds, ours minus theirs, that belongs to :func:`welch_p`:
    it leaves out 0 if that p is below 0.05. None if a model has fewer than two scores.

    The degrees of freedom are Satterthwaite's, "An approximate distribution of estimates of variance components",
    Biometrics Bulletin 2 (1946).
    """
    from scipy.stats import t

    if min(len(ours), len(theirs)) < 2:
        return None
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    shares = [(statistics.variance(scores) / len(scores), len(scores)) for scores in (ours, theirs)]
    squared_error = sum(share for share, _ in shares)
    if squared_error == 0:
        return difference, difference
    freedom = squared_error**2 / sum(share**2 / (n - 1) for share, n in shares)
    half = float(t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(squared_error)
    return difference - half, difference + half


def score_of(sums: Counts) -> numpy.ndarray[Any, Any]:
    """``2 * correct / (predicted + gold)`` over the last axis; 0 where nothing is predicted and nothing is gold."""
    import numpy

    below = sums[..., 1] + sums[..., 2]
    return numpy.divide(2 * sums[..., 0], below, out=numpy.zeros(below.shape), where=below > 0)


def bootstrap_intervals(models: Sequence[Counts]) -> tuple[list[tuple[float, float]], Any]:
    """Percentile bootstrap over test items, of the mean over seeds of each model.

    Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7 (1979); for scores of language
    processing Berg-Kirkpatrick et al., "An empirical investigation of statistical significance in NLP" (2012). Each
    draw takes as many items as there are, with replacement, the same ones for all seeds and models; each seed's score
    is computed on them anew, then the mean over seeds: the figure in the headline. The seeds stay as they are.

    Args:
        models: counts of the models, all on the same items.

    Returns:
        An interval (low, high) a model, and the means that they come of, of shape (draws, models).
    """
    import numpy

    items = models[0].shape[1]
    generator = numpy.random.default_rng(_SEED)
    means = []
    for draws in _portions(items):
        drawn = generator.integers(items, size=(draws, items))
        drawn += numpy.arange(draws)[:, None] * items
        times = numpy.bincount(drawn.ravel(), minlength=draws * items).reshape(draws, items).astype(float)
        means.append(numpy.stack([score_of(_sums(times, counts)).mean(axis=1) for counts in models], axis=1))
    scores = numpy.concatenate(means)
    return [percentile_interval(scores[:, number]) for number in range(len(models))], scores


def percentile_interval(draws: Any) -> tuple[float, float]:
    """The middle :data:`LEVEL` of the draws."""
    import numpy

    low, high = numpy.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def randomisation_p(ours: Counts, theirs: Counts) -> float:
    """Two-sided p of approximate randomisation over test items: would two equally good models differ so much by the
    choice of items alone?

    Noreen, "Computer-intensive methods for testing hypotheses" (1989); for F1 Yeh, "More accurate tests for the
    statistical significance of result differences" (2000). Each draw swaps the two models' answers to every item with
    probability 1/2, for all seeds of an item at once, since an item's seeds are no independent evidence. The statistic
    is the difference of the mean scores over seeds, p is (1 + draws at least as far from 0) / (1 + draws): Phipson and
    Smyth, "Permutation p-values should never be zero" (2010).

    Args:
        ours: counts of one model.
        theirs: of the other, on the same items and as many seeds.
    """
    import numpy

    assert ours.shape == theirs.shape
    change = theirs - ours
    change = change[:, change.any(axis=(0, 2))]  # where both say the same there is nothing to swap
    sums = ours.sum(axis=1), theirs.sum(axis=1)
    observed = abs(float((score_of(sums[0]) - score_of(sums[1])).mean()))
    generator = numpy.random.default_rng(_SEED)
    as_far = 0
    for draws in _portions(change.shape[1]):
        swapped = generator.integers(2, size=(draws, change.shape[1]), dtype=numpy.int8).astype(float)
        moved = _sums(swapped, change)
        differences = (score_of(sums[0] + moved) - score_of(sums[1] - moved)).mean(axis=1)
        as_far += int((numpy.abs(differences) >= observed - 1e-12).sum())  # rounding must not break a tie
    return (1 + as_far) / (1 + RESAMPLES)


def holm(found: Sequence[float]) -> list[float]:
    """Holm's correction for several comparisons: each p as it counts when all of them are looked at.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979). The
    smallest of m is multiplied by m, the next by m - 1 and so on; none is below one before it, or above 1.
    """
    corrected, least = [0.0] * len(found), 0.0
    for rank, number in enumerate(sorted(range(len(found)), key=lambda number: found[number])):
        least = max(least, min(1.0, (len(found) - rank) * found[number]))
        corrected[number] = least
    return corrected


def _portions(items: int) -> Iterator[int]:
    """Numbers of draws that together are :data:`RESAMPLES`, each small enough for the memory."""
    size = max(1, _CELLS // max(1, items))
    for start in range(0, RESAMPLES, size):
        yield min(size, RESAMPLES - start)


def _sums(weights: Any, counts: Counts) -> Any:
    """Weighted sums over the items: weights of shape (draws, items) give (draws, seeds, 3). All are whole numbers far
    below 2^53, so no order of adding changes them."""
    seeds, items, _ = counts.shape
    flat = weights @ counts.transpose(1, 0, 2).reshape(items, seeds * 3).astype(float)
    return flat.reshape(len(weights), seeds, 3)
