"""One fine-tuned model on the data of one task: what a seed run and a probe have in common.

A :class:`Job` holds all that a fine-tuning needs besides the model's files, and a :class:`Tuned` all that it gives, so
that another process can do it: one of this machine, or a worker of a cluster that sees no file of it.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from eval.classifiers import build_classifier, choose
from eval.data import TaskData
from eval.encoding import EncodedSplit
from eval.fine_tuning import Epoch, History, Predictions, fine_tune, predict
from eval.labels import OUTSIDE
from eval.scoring import entity_f1, score_classification, score_ner
from eval.settings import TaskSettings
from tasks.contract import Progress, Rows
from tasks.executor import check_wanted
from tasks.pretraining.settings import ModelSettings
from tasks.status_file import status_writer

Files = Mapping[str, bytes]
"""The files of a folder by name, for who cannot see it."""

_alone = threading.Lock()
"""Held while a model is tuned: torch's generator and its number of threads belong to the whole process."""


@dataclass(frozen=True)
class Job:
    """One fine-tuning.

    Attributes:
        task: the task's settings.
        labels: label names by id.
        encoded: the splits train and validation as token ids, and those to be predicted in the end.
        gold: labels of the validation split, by which the epoch is chosen.
        pad_id: token id of the padding.
        seed: of head, order of the items and dropout; of a random body too.
        shape: settings of the randomly initialised twin; None for a pretrained checkpoint.
        threads: for the computation; None leaves torch's number as it is.
    """

    task: TaskSettings
    labels: tuple[str, ...]
    encoded: dict[str, EncodedSplit]
    gold: list[Any]
    pad_id: int
    seed: int
    shape: ModelSettings | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Tuned:
    """What came of a fine-tuning.

    Attributes:
        history: all epochs.
        predicted: by split, label names for every item: a list a sentence, with one name a word (NER), or one name
            a text; with the weights of the best epoch.
        parameters: number of the model's weights.
        resolved: ``precision``, ``device`` and ``threads`` that it was computed with.
    """

    history: History
    predicted: dict[str, list[Any]]
    parameters: int
    resolved: dict[str, Any]

    @property
    def best(self) -> Epoch:
        """The epoch that was kept; if the loss was no number from the start, the last one."""
        return self.history.best or self.history.epochs[-1]


def tune(job: Job, source: Path | Files, progress: Progress) -> Tuned:
    """Fine-tune a model on the training split, choose the epoch by the validation split, and predict the others.

    One at a time in a process: who comes second waits.

    Args:
        job: what to do.
        source: folder of the pretrained checkpoint, or of the tokenizer for the random twin; or its files.
        progress: told the optimiser steps.

    Raises:
        StageError: the checkpoint cannot be loaded, or the maximal length exceeds the model's positions.
    """
    tuning = job.task.fine_tuning
    with _alone, _folder_of(source) as folder, _threads(job.threads):
        hardware = choose(tuning)
        model = build_classifier(
            job.task.kind,
            job.labels,
            tuning,
            hardware,
            job.seed,
            checkpoint=folder if job.shape is None else None,
            shape=job.shape,
            tokenizer=AutoTokenizer.from_pretrained(folder),
        )

        def validation_score(predictions: Predictions) -> float:
            predicted = _names(job, predictions)
            if job.task.kind == "ner":  # the headline alone: all scores take longer
                return entity_f1(job.gold, predicted)
            return float(score_classification(job.gold, predicted, job.labels)["score"])

        history = fine_tune(
            model,
            job.encoded["train"],
            job.encoded["validation"],
            tuning,
            seed=job.seed,
            hardware=hardware,
            pad_id=job.pad_id,
            score=validation_score,
            progress=progress,
        )
        predicted = {}
        for name in job.encoded.keys() - {"train", "validation"}:
            _, predictions = predict(model, job.encoded[name], tuning.batch_size, hardware=hardware, pad_id=job.pad_id)
            predicted[name] = _names(job, predictions)
        resolved = {
            "precision": hardware.precision,
            "device": hardware.device.type,
            "threads": torch.get_num_threads(),
        }
    return Tuned(history, predicted, sum(weight.numel() for weight in model.parameters()), resolved)


def tune_there(job: Job, source: Path | Files, status: Path | None) -> Tuned:
    """The same in another process of this machine, which tells its steps in a file (``tasks/status_file.py``); or,
    without such a file, in a worker of a cluster, which ends when nobody waits for it any more."""
    return tune(job, source, _as_long_as_wanted if status is None else status_writer(status))


def _as_long_as_wanted(done: float, total: float, *, unit: str = "", note: str = "", rows: Rows = ()) -> None:
    check_wanted()


def scores(task: TaskSettings, data: TaskData, split: str, predicted: list[Any]) -> dict[str, Any]:
    """All scores of the predictions for a split, see :mod:`eval.scoring`."""
    gold = data.splits[split].labels
    return score_ner(gold, predicted) if task.kind == "ner" else score_classification(gold, predicted, data.labels)


def _names(job: Job, predictions: Predictions) -> list[Any]:
    if job.task.kind == "ner":
        return [[job.labels[tag] if tag >= 0 else OUTSIDE for tag in tags] for tags in predictions]
    return [job.labels[label] for label in predictions]


@contextlib.contextmanager
def _folder_of(source: Path | Files) -> Iterator[Path]:
    if isinstance(source, Path):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="sahajflow-") as temporary:
        for name, content in source.items():
            (Path(temporary) / name).write_bytes(content)
        yield Path(temporary)


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
