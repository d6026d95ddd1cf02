"""One fine-tuned model on the data of one task: what a seed run and a probe have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer

from eval.classifiers import build_classifier, choose
from eval.data import TaskData
from eval.encoding import EncodedSplit, encode
from eval.fine_tuning import Epoch, History, Predictions, fine_tune, predict
from eval.labels import OUTSIDE
from eval.scoring import entity_f1, score_classification, score_ner
from eval.settings import TaskSettings
from tasks.contract import Progress
from tasks.pretraining.precision import Hardware
from tasks.pretraining.settings import ModelSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Tuned:
    """A model with the weights of its best epoch, and what it was trained on."""

    task: TaskSettings
    data: TaskData
    encoded: dict[str, EncodedSplit]
    """The data's splits as token ids."""
    hardware: Hardware
    pad_id: int
    model: PreTrainedModel
    history: History

    @property
    def best(self) -> Epoch:
        """The epoch that was kept; if the loss was no number from the start, the last one."""
        return self.history.best or self.history.epochs[-1]

    def predicted(self, split: str) -> list[Any]:
        """Label names for every item of a split: a list a sentence, with one name a word (NER), or one name a text."""
        batch_size = self.task.fine_tuning.batch_size
        _, predictions = predict(
            self.model, self.encoded[split], batch_size, hardware=self.hardware, pad_id=self.pad_id
        )
        return _names(self.task, self.data, predictions)

    def scores(self, split: str, predicted: list[Any]) -> dict[str, Any]:
        """All scores of the predictions for a split, see :mod:`eval.scoring`."""
        return _scores(self.task, self.data, split, predicted)


def tune(
    task: TaskSettings,
    data: TaskData,
    *,
    seed: int,
    checkpoint: Path | None = None,
    shape: ModelSettings | None = None,
    tokenizer: Path,
    progress: Progress,
) -> Tuned:
    """Fine-tune a model on the training split; the validation split chooses the epoch.

    Args:
        task: the task's settings.
        data: its data, with the splits train and validation at least.
        seed: of head, order of the items and dropout; of a random body too.
        checkpoint: folder of the pretrained checkpoint, or
        shape: settings of the randomly initialised twin.
        tokenizer: folder of the tokenizer.
        progress: told the optimiser steps.

    Raises:
        UserError: the maximal length exceeds the model's positions.
        StageError: the checkpoint cannot be loaded.
    """
    kind, tuning = task.kind, task.fine_tuning
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    encoded = {name: encode(split, data.labels, loaded, tuning.max_length) for name, split in data.splits.items()}
    hardware = choose(tuning)
    model = build_classifier(
        kind, data.labels, tuning, hardware, seed, checkpoint=checkpoint, shape=shape, tokenizer=loaded
    )

    def validation_score(predictions: Predictions) -> float:
        predicted = _names(task, data, predictions)
        if kind == "ner":  # the headline alone: all scores take longer
            return entity_f1(data.splits["validation"].labels, predicted)
        return float(_scores(task, data, "validation", predicted)["score"])

    history = fine_tune(
        model,
        encoded["train"],
        encoded["validation"],
        tuning,
        seed=seed,
        hardware=hardware,
        pad_id=loaded.pad_token_id,
        score=validation_score,
        progress=progress,
    )
    return Tuned(task, data, encoded, hardware, loaded.pad_token_id, model, history)


def _names(task: TaskSettings, data: TaskData, predictions: Predictions) -> list[Any]:
    if task.kind == "ner":
        return [[data.labels[tag] if tag >= 0 else OUTSIDE for tag in tags] for tags in predictions]
    return [data.labels[label] for label in predictions]


def _scores(task: TaskSettings, data: TaskData, split: str, predicted: list[Any]) -> dict[str, Any]:
    gold = data.splits[split].labels
    return score_ner(gold, predicted) if task.kind == "ner" else score_classification(gold, predicted, data.labels)
