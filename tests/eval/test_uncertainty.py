import math
import statistics

import numpy
import pytest
import scipy.stats

from eval import uncertainty
from eval.uncertainty import (
    bootstrap_intervals,
    holm,
    percentile_interval,
    randomisation_p,
    score_of,
    t_interval,
    welch_interval,
    welch_p,
)

SCORES = [0.7452, 0.7391, 0.7518, 0.7449, 0.7480]
OTHERS = [0.7401, 0.7310, 0.7442, 0.7390]


def accuracy(*seeds: str) -> numpy.ndarray:
    """Counts of one answer an item: "1101" is a seed with three of four right."""
    return numpy.array([[(int(right), 1, 1) for right in seed] for seed in seeds])


def random_entities(seed: int, seeds: int, items: int, skill: float) -> numpy.ndarray:
    rng = numpy.random.default_rng(seed)
    gold = numpy.random.default_rng(99).integers(0, 4, size=(1, items)).repeat(seeds, axis=0)
    predicted = rng.integers(0, 4, size=(seeds, items))
    correct = rng.binomial(numpy.minimum(gold, predicted), skill)
    return numpy.stack([correct, predicted, gold], axis=2)


def test_t_interval_is_scipys_and_the_tables() -> None:
    low, high = t_interval(SCORES)
    expected = scipy.stats.ttest_1samp(SCORES, 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    for n, factor in ((3, 2.484), (5, 1.242), (10, 0.7154)):  # t(0.975; n - 1) of printed tables, over sqrt(n)
        scores = [0.5 + number / 100 for number in range(n)]
        low, high = t_interval(scores)
        assert (high - low) / 2 == pytest.approx(factor * statistics.stdev(scores), rel=5e-4)
        assert (high + low) / 2 == pytest.approx(statistics.fmean(scores))
    assert t_interval([0.5]) is None


def test_welch_is_scipys_and_by_hand() -> None:
    expected = scipy.stats.ttest_ind(SCORES, OTHERS, equal_var=False).pvalue
    assert welch_p(SCORES, OTHERS) == pytest.approx(expected)
    # Means 2 and 5, each with variance 2 and n = 2: t = 3 / sqrt(2), 2 degrees of freedom, where the two-sided p is
    # 1 - t / sqrt(t^2 + 2).
    t = 3 / math.sqrt(2)
    assert welch_p([1, 3], [4, 6]) == pytest.approx(1 - t / math.sqrt(t * t + 2))
    assert welch_p([0.5], SCORES) is None
    assert welch_p([0.5, 0.5], [0.5, 0.5]) == 1
    assert welch_p([0.5, 0.5], [0.6, 0.6]) == 0


def test_the_interval_of_a_difference_belongs_to_welchs_test() -> None:
    low, high = welch_interval(SCORES, OTHERS)
    difference = statistics.fmean(SCORES) - statistics.fmean(OTHERS)
    assert (low + high) / 2 == pytest.approx(difference)
    expected = scipy.stats.ttest_ind(SCORES, OTHERS, equal_var=False).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))
    # A difference moved to the end of the interval has a p of 0.05.
    assert welch_p([score - low for score in SCORES], OTHERS) == pytest.approx(0.05)
    assert welch_interval([0.5], SCORES) is None
    assert welch_interval([0.5, 0.5], [0.75, 0.75]) == (-0.25, -0.25)
    # One without spread: variance 2, n = 2, so a standard error of 1 with 1 degree of freedom, t(0.975; 1) 12.706.
    assert welch_interval([1, 3], [2, 2]) == pytest.approx((-12.706, 12.706), abs=1e-3)


def test_a_score_is_micro_f1_or_accuracy() -> None:
    # (2 + 0) right of (3 + 1) said, (4 + 1) there
    assert score_of(numpy.array([[2, 3, 4], [0, 1, 1]]).sum(axis=0)) == pytest.approx(4 / 9)
    assert score_of(accuracy("1101").sum(axis=1)) == pytest.approx([0.75])
    assert score_of(numpy.zeros((1, 3), dtype=int)) == 0


def test_bootstrap_of_an_accuracy_is_scipys() -> None:
    counts = accuracy("1" * 130 + "0" * 70)
    ((low, high),), _ = bootstrap_intervals([counts])
    theirs = scipy.stats.bootstrap(
        (counts[0, :, 0],), numpy.mean, n_resamples=20_000, method="percentile", rng=numpy.random.default_rng(5)
    ).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.006)
    # The normal approximation by hand: 0.65 ± 1.96 sqrt(0.65 * 0.35 / 200)
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(0.65 * 0.35 / 200), rel=0.05)


def test_bootstrap_of_an_f1_over_seeds_is_scipys() -> None:
    counts = random_entities(1, seeds=3, items=120, skill=0.8)

    def mean_f1(index: numpy.ndarray, axis: int) -> numpy.ndarray:
        picked = counts[:, index.astype(int), :]  # scipy draws the numbers of items
        return score_of(picked.sum(axis=-2)).mean(axis=0)

    theirs = scipy.stats.bootstrap(
        (numpy.arange(120),), mean_f1, n_resamples=10_000, method="percentile", vectorized=True,
        rng=numpy.random.default_rng(5),
    ).confidence_interval  # fmt: skip
    ((low, high),), _ = bootstrap_intervals([counts])
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.004)
    mean = score_of(counts.sum(axis=1)).mean()
    assert low < mean < high
    assert high - low > 0.04


def test_the_models_of_a_bootstrap_share_their_items() -> None:
    counts = random_entities(1, seeds=2, items=80, skill=0.8)
    (first, second), draws = bootstrap_intervals([counts, counts.copy()])
    assert first == second
    assert numpy.array_equal(draws[:, 0], draws[:, 1])
    assert percentile_interval(draws[:, 0] - draws[:, 1]) == (0.0, 0.0)


def test_randomisation_by_hand() -> None:
    # Four items that only the first model has right: the difference is as far from 0 in 2 of 2^4 ways to swap.
    ours, theirs = accuracy("1111" + "1" * 9), accuracy("0000" + "1" * 9)
    assert randomisation_p(ours, theirs) == pytest.approx(2 / 16, abs=0.01)
    assert randomisation_p(theirs, ours) == pytest.approx(2 / 16, abs=0.01)
    assert randomisation_p(ours, ours) == 1
    # A seed's copy is no further evidence.
    assert randomisation_p(ours.repeat(5, axis=0), theirs.repeat(5, axis=0)) == pytest.approx(2 / 16, abs=0.01)
    far = randomisation_p(accuracy("1" * 60), accuracy("0" * 60))
    assert far == 1 / (1 + uncertainty.RESAMPLES)  # never 0


@pytest.mark.parametrize(("skill", "about"), [(0.75, (0.1, 1)), (0.55, (0.0, 0.1))])
def test_randomisation_of_an_f1_is_scipys(skill: float, about: tuple[float, float]) -> None:
    ours, theirs = random_entities(1, 2, 60, 0.8), random_entities(2, 2, 60, skill)
    both = numpy.concatenate([ours, theirs], axis=1)  # items 0 to 59 are ours, 60 to 119 theirs

    def difference(first: numpy.ndarray, second: numpy.ndarray, axis: int) -> numpy.ndarray:
        scores = [score_of(both[:, index.astype(int), :].sum(axis=-2)).mean(axis=0) for index in (first, second)]
        return scores[0] - scores[1]

    expected = scipy.stats.permutation_test(
        (numpy.arange(60), numpy.arange(60, 120)), difference, permutation_type="samples", n_resamples=10_000,
        vectorized=True, rng=numpy.random.default_rng(5),
    ).pvalue  # fmt: skip
    found = randomisation_p(ours, theirs)
    assert found == pytest.approx(expected, abs=0.015)
    assert about[0] <= found <= about[1]


def test_the_draws_are_the_same_every_time_and_in_small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = random_entities(1, 2, 40, 0.8), random_entities(2, 2, 40, 0.7)
    assert bootstrap_intervals([ours])[0] == bootstrap_intervals([ours])[0]
    assert randomisation_p(ours, theirs) == randomisation_p(ours, theirs)
    (whole,), _ = bootstrap_intervals([ours])
    monkeypatch.setattr(uncertainty, "_CELLS", 40 * 999)
    (parts,), draws = bootstrap_intervals([ours])
    assert len(draws) == uncertainty.RESAMPLES
    assert parts == pytest.approx(whole, abs=1e-9)


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1 are 0.04, 0.06, 0.06, 0.04, the last lifted to 0.06.
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.04]) == [0.04]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
