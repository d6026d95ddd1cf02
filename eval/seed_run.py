"""Stage ``seed-run``: one model, one task, one seed; fine-tuned, and scored once on the test split.

It leaves ``predictions.jsonl``, one line a test item with gold and predicted labels, and ``scores.json``: all scores,
all epochs, and what they were measured on.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from eval.settings import MAX_SEED, METRICS, EvaluationSettings, ModelName, Source, TaskName, TaskSettings
from tasks.contract import Progress, Settings, Stage
from tasks.pretraining.settings import ModelSettings

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


def run(settings: SeedRunSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    """Fine-tune and score.

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
    import torch

    from eval.data import load_task, warnings_of
    from eval.scoring import HEADLINES, find_flags, majority_score
    from eval.tuning import tune

    started = time.perf_counter()
    task, kind = settings.task, settings.task.kind
    data = load_task(task)
    facts = {"source": _source_facts(task.source), **data.facts()}
    for warning in (warnings := warnings_of(task, facts)):
        logger.warning("%s: %s", settings.task_name, warning)
    checkpoint = inputs["checkpoint"] / "checkpoint" if settings.model_settings is None else None
    tuned = tune(
        task,
        data,
        seed=settings.seed,
        checkpoint=checkpoint,
        shape=settings.model_settings,
        tokenizer=checkpoint or inputs["tokenizer"],
        progress=progress,
    )
    gold, predicted = data.splits["test"].labels, tuned.predicted("test")
    scores = tuned.scores("test", predicted)
    majority = majority_score(kind, data.splits["train"].labels, gold)
    best, history, encoded, hardware = tuned.best, tuned.history, tuned.encoded["test"], tuned.hardware
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
        "parameters": sum(weight.numel() for weight in tuned.model.parameters()),
        "flags": find_flags(kind, predicted, scores["score"], majority, history.diverged),
        "truncated_items": encoded.truncated_items,
        "truncated_words": encoded.truncated_words,
        "words_without_tokens": encoded.words_without_tokens,
        "test_items": len(gold),
        "other_scores": {
            name: value for name, value in scores.items() if name != "score" and isinstance(value, float)
        },
        "per_label": scores["per_label"],
        "tags_converted": data.tags_converted,
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
    return {
        **metrics,
        "seconds_training": round(time.perf_counter() - started, 3),
        "resolved": {
            "precision": hardware.precision,
            "device": hardware.device.type,
            "threads": torch.get_num_threads(),
        },
    }


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


STAGE = Stage("seed-run", version=3, settings=SeedRunSettings, run=run)
