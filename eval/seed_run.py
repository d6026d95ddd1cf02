"""Stage ``seed-run``: one model, one task, one seed; fine-tuned, and scored once on the test split.

It leaves ``predictions.jsonl``, one line a test item with gold and predicted labels, and ``scores.json``: all scores,
all epochs, and what they were measured on.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from eval.settings import MAX_SEED, METRICS, EvaluationSettings, ModelName, Source, TaskName, TaskSettings
from tasks.contract import SCRATCH, Progress, Run, Settings, Stage
from tasks.pretraining.settings import ModelSettings

if TYPE_CHECKING:
    from eval.prepared import PreparedTask
    from eval.tuning import Job, Tuned

logger = logging.getLogger(__name__)


class SeedRunSettings(Settings):
    """Settings of the stage ``seed-run``."""

    model: ModelName = Field(description="the pretrained checkpoint, its randomly initialised twin, or another model")
    model_settings: ModelSettings | None = Field(None, description="shape of the random twin; null for others")
    task_name: TaskName = Field(description="name of the task in the recipe")
    task: TaskSettings = Field(description="the task, without what only the report needs (title, published)")
    seed: int = Field(ge=0, le=MAX_SEED, description="of head, order of the items and dropout; of a random body too")

    @model_validator(mode="after")
    def _consistent(self) -> SeedRunSettings:
        if (self.model == "random") != (self.model_settings is not None):
            raise ValueError("model_settings is for model random, and for it alone")
        return self


def seed_run_settings(evaluation: EvaluationSettings, model_settings: ModelSettings) -> dict[str, SeedRunSettings]:
    """Settings of every seed run by its key ``model/task/seed``, such as ``pretrained/ner/1``.

    A seed run's settings hold nothing of the other ones, so that another seed, task or model leaves it reused.
    """
    return {
        f"{model}/{name}/{seed}": SeedRunSettings(
            model=model,
            model_settings=model_settings if model == "random" else None,
            task_name=name,
            task=task.model_copy(update={"title": None, "published": None}),
            seed=seed,
        )
        for model in evaluation.model_names
        for name, task in evaluation.tasks.items()
        for seed in evaluation.seed_list
    }


Do = Callable[["Job", Path, Path, Progress], "Tuned"]
"""Has a fine-tuning done, wherever: the job, the folder of the checkpoint or tokenizer, one for what is needed
meanwhile, and whom to tell the steps."""


def run(settings: SeedRunSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    """Fine-tune here and score.

    Args:
        settings: the run's settings.
        inputs: ``checkpoint``, the artifact with the model's folder ``checkpoint``, of the pretrain stage or of a
            compared model; for the random twin ``tokenizer``, the tokenizer stage's.
        folder: gets ``predictions.jsonl`` and ``scores.json``.
        progress: told the optimiser steps.

    Raises:
        UserError: the data is wrong.
        StageError: a data set or the checkpoint cannot be loaded, or the maximal length exceeds the model's positions.
    """
    return run_by(tune_here(None))(settings, inputs, folder, progress)


def tune_here(threads: int | None) -> Do:
    """In this process, with so many threads; None leaves them as they are."""

    def do(job: Job, source: Path, scratch: Path, progress: Progress) -> Tuned:
        from eval.tuning import tune

        return tune(replace(job, threads=threads), source, progress)

    return do


def run_by(do: Do) -> Run:
    """The stage's function, whose fine-tuning is done by ``do``; all else is done here."""

    def run_there(
        settings: SeedRunSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress
    ) -> dict[str, Any]:
        from eval.prepared import prepared
        from eval.tuning import Job

        started = time.perf_counter()
        checkpoint = inputs["checkpoint"] / "checkpoint" if settings.model_settings is None else None
        source = checkpoint or inputs["tokenizer"]
        ready = prepared(settings.task, source)
        gold = ready.data.splits["validation"].labels
        job = Job(
            settings.task,
            ready.data.labels,
            ready.encoded,
            gold,
            ready.pad_id,
            settings.seed,
            shape=settings.model_settings,
        )
        tuned = do(job, source, folder / SCRATCH, progress)
        metrics = _leave(settings, ready, tuned, folder)
        seconds = round(time.perf_counter() - started, 3)
        return {**metrics, "seconds_training": seconds, "resolved": tuned.resolved}

    return run_there


def _leave(settings: SeedRunSettings, ready: PreparedTask, tuned: Tuned, folder: Path) -> dict[str, Any]:
    """Score, write both files, and return the metrics."""
    from eval.data import warnings_of
    from eval.scoring import HEADLINES, find_flags, majority_score
    from eval.tuning import scores as scores_of

    task, kind = settings.task, settings.task.kind
    facts = {"source": _source_facts(task.source), **ready.facts}
    for warning in (warnings := warnings_of(task, facts)):
        logger.warning("%s: %s", settings.task_name, warning)
    gold, predicted = ready.data.splits["test"].labels, tuned.predicted["test"]
    scores = scores_of(task, ready.data, "test", predicted)
    majority = majority_score(kind, ready.data.splits["train"].labels, gold)
    best, history, encoded = tuned.best, tuned.history, ready.encoded["test"]
    metrics = {
        "model": settings.model,
        "task": settings.task_name,
        "seed": settings.seed,
        "metric": METRICS[kind],
        "headline": HEADLINES[kind],
        "score": scores["score"],
        "validation_score": best.validation_score,
        "best_epoch": best.epoch,
        "epochs": len(history.epochs),
        "parameters": tuned.parameters,
        "flags": find_flags(kind, predicted, scores["score"], majority, history.diverged),
        "truncated_items": encoded.truncated_items,
        "truncated_words": encoded.truncated_words,
        "words_without_tokens": encoded.words_without_tokens,
        "test_items": len(gold),
        "other_scores": {
            name: value for name, value in scores.items() if name != "score" and isinstance(value, float)
        },
        "per_label": scores["per_label"],
        "tags_converted": ready.data.tags_converted,
        "overlap": facts["overlap"],
        "warnings": warnings,
    }
    everything = {**metrics, "kind": kind, "scores": scores, "majority": majority, "history": history.as_json()}
    _write(folder / "scores.json", json.dumps({**everything, "data": facts}, ensure_ascii=False, indent=1) + "\n")
    lines = (
        json.dumps({"index": index, "gold": right, "predicted": said}, ensure_ascii=False)
        for index, (right, said) in enumerate(zip(gold, predicted, strict=True))
    )
    _write(folder / "predictions.jsonl", "".join(line + "\n" for line in lines))
    return metrics


def _source_facts(source: Source) -> dict[str, Any]:
    """What the source is, without the names of the user's files: those are no part of the identity."""
    facts: dict[str, Any] = {"kind": source.kind}
    if source.kind == "hub":
        facts |= {"dataset": source.dataset, "config": source.config, "revision": source.revision}
        facts |= {"local": source.local is not None}
    elif source.kind == "sample":
        facts |= {"seed": source.seed}
    return facts


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


STAGE = Stage("seed-run", version=4, settings=SeedRunSettings, run=run)
