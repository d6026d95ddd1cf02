"""Order of the items, schedule, choice of the epoch, early stopping."""

import argparse
import math
import random
import sys
from pathlib import Path

import pytest
import transformers

from eval.classifiers import build_classifier, choose
from eval.data import Split
from eval.encoding import encode
from eval.fine_tuning import _training_batches, fine_tune, predict, schedule
from eval.settings import FineTuningSettings
from tasks.contract import no_progress

sys.path.insert(0, str(Path(__file__).parent))
from tiny_runs import BERT, WORDS


def test_every_item_once_an_epoch_in_batches_of_like_length(tokenizer):
    rng = random.Random(3)
    sentences = [["আজ"] * rng.randint(1, 12) for _ in range(101)]
    split = encode(Split(sentences, [["O"] * len(words) for words in sentences]), ("O", "B-X"), tokenizer, 16)
    batches = list(_training_batches(split, 8, "1/1"))
    assert sorted(item for batch in batches for item in batch) == list(range(101))
    assert batches == list(_training_batches(split, 8, "1/1"))
    assert batches != list(_training_batches(split, 8, "1/2"))
    padded = sum(max(len(split.input_ids[item]) for item in batch) * len(batch) for batch in batches)
    assert padded < 1.1 * sum(map(len, split.input_ids))


def test_schedule_rises_and_falls_linearly():
    factors = [schedule(step, 10, 0.2) for step in range(10)]
    assert factors == pytest.approx([0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])
    assert [schedule(step, 2, 0.0) for step in range(2)] == [1.0, 0.5]


def tuned(tokenizer, settings: FineTuningSettings, scores: list[float]):
    sentences = [[WORDS["PER"][number % 3], "আজ"] for number in range(16)]
    split = encode(Split(sentences, [["B-PER", "O"]] * 16), ("O", "B-PER", "I-PER"), tokenizer, 16)
    hardware = choose(settings)
    model = build_classifier("ner", ("O", "B-PER", "I-PER"), settings, hardware, 1, shape=BERT, tokenizer=tokenizer)
    seen = iter(scores)
    common = {"hardware": hardware, "pad_id": 0}
    history = fine_tune(
        model, split, split, settings, seed=1, score=lambda _: next(seen), progress=no_progress, **common
    )
    return history, predict(model, split, settings.batch_size, **common)[0]


def test_the_epoch_of_the_best_score_is_kept(tokenizer):
    settings = FineTuningSettings(epochs=4, batch_size=4, max_length=16, precision="fp32")
    history, loss = tuned(tokenizer, settings, [0.1, 0.9, 0.3, 0.2])
    assert history.best is history.epochs[1]
    assert loss == pytest.approx(history.epochs[1].validation_loss, abs=1e-6)
    assert loss != pytest.approx(history.epochs[3].validation_loss, abs=1e-6)


def test_early_stopping_looks_at_the_loss_and_the_threshold(tokenizer):
    settings = FineTuningSettings(
        epochs=9, batch_size=4, max_length=16, patience=2, threshold=10.0, learning_rate=1e-4, precision="fp32"
    )
    history, loss = tuned(tokenizer, settings, [0.0] * 9)
    assert len(history.epochs) == 3  # the first counts as a fall from infinity, the next two fall too little
    assert history.best is min(history.epochs, key=lambda epoch: epoch.validation_loss)
    assert loss == pytest.approx(history.best.validation_loss, abs=1e-6)


@pytest.mark.parametrize(
    "losses", [(1.0, 0.95, 0.9, 0.85, 0.8, 0.75), (1.0, 1.2, 0.5, 0.6, 0.55, 0.4), (1.0, 0.96, 0.8, 0.79, 0.78, 0.1)]
)
def test_early_stopping_ends_where_that_of_transformers_does(tokenizer, monkeypatch, losses):
    settings = FineTuningSettings(epochs=6, batch_size=16, max_length=16, patience=2, threshold=0.08)
    validation = iter(losses)
    monkeypatch.setattr("eval.fine_tuning.predict", lambda *_, **__: (next(validation), []))
    sentences = Split([["আজ"]] * 4, [["O"]] * 4)
    split = encode(sentences, ("O", "B-PER"), tokenizer, 16)
    hardware = choose(settings)
    model = build_classifier("ner", ("O", "B-PER"), settings, hardware, 1, shape=BERT, tokenizer=tokenizer)
    common = {"seed": 1, "hardware": hardware, "pad_id": 0, "score": lambda _: 0.0, "progress": no_progress}
    history = fine_tune(model, split, split, settings, **common)

    stopping = transformers.EarlyStoppingCallback(settings.patience, settings.threshold)
    # as DeDLOC's scripts have it, in which `greater_is_better` stays unset
    arguments = argparse.Namespace(metric_for_best_model="loss", greater_is_better=None)
    state, control, ended = transformers.TrainerState(), transformers.TrainerControl(), 0
    for loss in losses:
        ended += 1
        stopping.check_metric_value(arguments, state, control, loss)
        if stopping.early_stopping_patience_counter >= settings.patience:
            break
        state.best_metric = loss if state.best_metric is None else min(loss, state.best_metric)
    assert len(history.epochs) == ended < 6


def test_a_loss_that_is_not_a_number_ends_training_and_is_marked(tokenizer, monkeypatch):
    monkeypatch.setattr("eval.fine_tuning.cross_entropy", lambda logits, labels, **_: logits.sum() * math.nan)
    history, _ = tuned(tokenizer, FineTuningSettings(epochs=3, max_length=16), [0.0] * 3)
    assert history.diverged
    assert len(history.epochs) == 1
    assert history.best is None
    assert history.as_json()[0]["training_loss"] is None
