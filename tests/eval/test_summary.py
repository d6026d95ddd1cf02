"""From scores and counts to the figures of the result file and the sentences on two models."""

from __future__ import annotations

import numpy
import pytest

from eval.item_counts import (
    Predictions,
    checked_counts,
    counts_of,
    gathered_path,
    read_gathered,
    read_predictions,
    write_gathered,
)
from eval.results import MissingSeed, SeedScore
from eval.scoring import entity_f1, find_flags
from eval.summary import DEGENERATE, Measured, conclude, summarise, task_summary
from tasks.contract import StageError

ITEMS = 400


def measured(model: str, *scores: float, first_seed: int = 1, flags: dict[int, tuple[str, ...]] | None = None):
    """A model with these accuracies; the right answers of each seed are drawn."""
    rng = numpy.random.default_rng(len(model))
    seeds, counts = [], []
    for seed, score in enumerate(scores, start=first_seed):
        right = rng.permutation(ITEMS) < round(score * ITEMS)
        counts.append(numpy.stack([right, numpy.ones(ITEMS), numpy.ones(ITEMS)], axis=1).astype(int))
        seeds.append(
            SeedScore(seed=seed, score=score, validation_score=score, best_epoch=1, flags=(flags or {}).get(seed, ()))
        )
    return Measured(model, tuple(seeds), tuple(counts))


def compared(*models: Measured, metric: str = "accuracy"):
    return conclude(task_summary("ncc", metric, models)[1])


def test_mean_and_sample_std() -> None:
    summary = summarise([0.2, 0.4, 0.9])
    assert summary.mean == pytest.approx(0.5)
    assert summary.std == pytest.approx(((0.09 + 0.01 + 0.16) / 2) ** 0.5)
    assert summary.n == 3
    assert summary.interval.model_dump() == {"low": 0, "high": 1}  # 2.484 times 0.36 around 0.5 leaves what can be
    near = summarise([0.4, 0.42, 0.44])
    assert near.interval.high - near.mean == pytest.approx(2.484 * near.std, rel=1e-3)
    assert near.mean - near.interval.low == pytest.approx(2.484 * near.std, rel=1e-3)
    alone = summarise([0.4])
    assert (alone.n, alone.std, alone.interval) == (1, None, None)


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome", "says"),
    [
        ((0.8, 0.85, 0.9), (0.5, 0.52, 0.51), "better", "is 34.0 points above random initialisation in mean accuracy"),
        ((0.8, 0.85, 0.9), (0.5, 0.52, 0.51), "better", "pretraining helps here."),
        ((0.5, 0.52, 0.51), (0.8, 0.85, 0.9), "worse", "34.0 points below random initialisation"),
        ((0.5, 0.52, 0.51), (0.8, 0.85, 0.9), "worse", "pretraining hurts here."),
        # The seeds differ more than the models.
        ((0.6, 0.9), (0.55, 0.6), "same", "no difference shown"),
        # The seeds are alike, but two items more of 400 are chance.
        ((0.605, 0.605, 0.6075), (0.6, 0.6, 0.6025), "same", "no difference shown"),
        ((0.5, 0.5), (0.5, 0.5), "same", "no difference shown"),
        ((0.9,), (0.5,), "unknown", "one run shows no spread of seeds, so nothing follows from it"),
    ],
)
def test_comparison(ours, theirs, outcome, says) -> None:
    (comparison,) = compared(measured("pretrained", *ours), measured("random", *theirs))
    assert comparison.outcome == outcome
    assert says in comparison.sentence
    assert comparison.difference == pytest.approx(sum(ours) / len(ours) - sum(theirs) / len(theirs))
    assert comparison.interval.low <= comparison.difference <= comparison.interval.high


def test_both_kinds_of_chance_must_be_ruled_out() -> None:
    (by_seeds,) = compared(measured("pretrained", 0.605, 0.605, 0.6075), measured("random", 0.6, 0.6, 0.6025))
    assert by_seeds.p_seeds < 0.05 < by_seeds.p_items == by_seeds.p
    (by_items,) = compared(measured("pretrained", 0.7, 0.9), measured("random", 0.6, 0.62))
    assert by_items.p_items < 0.05 < by_items.p_seeds == by_items.p
    (one_run,) = compared(measured("pretrained", 0.9), measured("random", 0.5))
    assert one_run.p_items < 0.05
    assert (one_run.p_seeds, one_run.p, one_run.p_corrected) == (None, None, None)


def test_only_seeds_that_both_models_have_are_paired() -> None:
    (some,) = compared(measured("pretrained", 0.8, 0.81, 0.82), measured("random", 0.5, 0.52, first_seed=2))
    assert (some.paired_seeds, some.outcome) == (2, "better")
    (none,) = compared(measured("pretrained", 0.8, 0.82), measured("random", 0.5, 0.52, first_seed=7))
    assert (none.paired_seeds, none.p_items, none.outcome) == (0, None, "unknown")
    assert "no seed has a run of both" in none.sentence


def test_every_pair_is_compared_and_corrected_over_all_tasks() -> None:
    models = [measured("random", 0.5, 0.52), measured("other-model", 0.7, 0.72), measured("pretrained", 0.8, 0.83)]
    _, one_task = task_summary("ncc", "accuracy", models)
    _, another = task_summary("news", "accuracy", models[:2])
    comparisons = conclude([*one_task, *another])
    assert [(one.model, one.baseline) for one in comparisons] == [
        ("pretrained", "random"),
        ("pretrained", "other-model"),
        ("random", "other-model"),
        ("random", "other-model"),
    ]
    least = min(comparisons, key=lambda one: one.p)
    assert least.p_corrected == pytest.approx(4 * least.p)
    assert all(one.p_corrected >= one.p for one in comparisons)
    sure = conclude(
        task_summary("ncc", "accuracy", [measured("a", 0.5, 0.51, 0.52), measured("b", 0.8, 0.81, 0.82)])[1]
    )
    assert "b is better here" in sure[0].sentence


def test_degenerate_runs_stay_in_the_mean_and_a_second_line_leaves_them_out() -> None:
    flagged = measured("random", 0.8, 0.2, 0.82, flags={2: ("one class only", "at or below majority"), 3: ("odd",)})
    (result,), _ = task_summary("ncc", "accuracy", [flagged])
    assert (result.n, result.mean) == (3, pytest.approx(0.6066667))
    assert (result.without_degenerate.n, result.without_degenerate.mean) == (2, pytest.approx(0.81))
    (sound,), _ = task_summary("ncc", "accuracy", [measured("random", 0.8, 0.82)])
    assert sound.without_degenerate is None
    nothing_else = measured("random", 0.2, 0.2, flags={1: ("one class only",), 2: ("one class only",)})
    assert task_summary("ncc", "accuracy", [nothing_else])[0][0].without_degenerate is None


def test_what_is_called_degenerate_are_the_flags_of_the_scores() -> None:
    flags = find_flags("classification", list("aa"), 0.5, 0.5, True) + find_flags("ner", [["O"]], 0.0, 0.0, False)
    assert set(flags) == DEGENERATE


def test_missing_seeds_are_counted() -> None:
    one = measured("random", 0.5, 0.6)
    failed = Measured(one.model, one.seeds, one.counts, (MissingSeed(seed=9, reason="out of memory"),))
    (result,), _ = task_summary("ncc", "accuracy", [failed])
    assert (result.n, result.declared) == (2, 3)


def test_counts_of_entities_are_those_of_seqeval() -> None:
    gold = [["B-PER", "I-PER", "O"], ["B-LOC", "O", "B-PER"], ["O"], ["I-LOC", "I-LOC"]]
    predicted = [["B-PER", "I-PER", "O"], ["B-PER", "O", "O"], ["B-LOC"], ["I-LOC", "B-LOC"]]
    counts = counts_of("ner", gold, predicted)
    assert counts.tolist() == [[1, 1, 1], [0, 1, 2], [0, 1, 0], [0, 2, 1]]
    correct, said, there = counts.sum(axis=0)
    assert 2 * correct / (said + there) == pytest.approx(entity_f1(gold, predicted))
    assert counts_of("classification", ["a", "b"], ["a", "a"]).tolist() == [[1, 1, 1], [0, 1, 1]]


def test_predictions_that_are_not_those_of_the_score_are_refused(tmp_path) -> None:
    (tmp_path / "predictions.jsonl").write_text(
        '{"gold": "a\u2028b", "predicted": "a\u2028b"}\n{"gold": "a", "predicted": "c"}\n', encoding="utf-8"
    )
    predictions = read_predictions(tmp_path)
    assert checked_counts("classification", predictions, 0.5).sum() == 5
    with pytest.raises(StageError, match=r"predictions.jsonl: the predictions score 0\.500000 and not 0\.600000"):
        checked_counts("classification", predictions, 0.6)
    with pytest.raises(StageError, match="cannot be read"):
        read_predictions(tmp_path / "nowhere")


def test_gathered_predictions_are_those_of_the_seed_runs(tmp_path) -> None:
    gold = ["a\u2028b", "c"]
    runs = {
        "org/model/ncc/1": Predictions(tmp_path / "1", gold, ["c", "c"]),
        "random/ncc/1": Predictions(tmp_path / "2", gold, ["a\u2028b", "d"]),
    }
    path = gathered_path(tmp_path, "ncc")
    write_gathered(path, runs)
    assert {key: (one.gold, one.predicted) for key, one in read_gathered(path).items()} == {
        key: (one.gold, one.predicted) for key, one in runs.items()
    }
    runs["random/ncc/1"] = Predictions(tmp_path / "2", ["c", "c"], ["c", "c"])
    with pytest.raises(StageError, match=r"2: was scored against other labels than .*1"):
        write_gathered(path, runs)
    path.write_text('{"index": 0}\n', encoding="utf-8")
    with pytest.raises(StageError, match=r"ncc\.jsonl: cannot be read"):
        read_gathered(path)


def test_with_five_models_every_pair_is_compared_and_ours_comes_first() -> None:
    others = [measured(name, 0.5, 0.51, 0.52) for name in ("random", "a", "b", "c")]
    results, pairs = task_summary("ncc", "accuracy", [*others, measured("pretrained", 0.8, 0.81, 0.82)])
    comparisons = conclude(pairs)
    assert [one.model for one in results] == ["random", "a", "b", "c", "pretrained"]
    assert [one.baseline for one in comparisons if one.model == "pretrained"] == ["random", "a", "b", "c"]
    assert len(comparisons) == 10
    least = min((one for one in comparisons), key=lambda one: one.p)
    assert least.p_corrected == pytest.approx(min(1.0, 10 * least.p))
    assert comparisons[1].sentence.startswith("On ncc, our pretrained model is 30.0 points above a in mean accuracy")
