"""Stage ``evaluate``: gathers all seed runs into ``results.json``, ``results.csv``, ``results.jsonl`` and predictions.

What is needed to compare this evaluation with another one lies in its folder, so that the folder can be sent to
somebody who has nothing of the store.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from eval.item_counts import Predictions, checked_counts, gathered_path, read_predictions, write_gathered
from eval.label_scores import details_of
from eval.published import published_tables
from eval.results import AbsentModel, MissingSeed, Results, SeedScore, TaskResult
from eval.settings import EvaluationSettings, FineTuningSettings, ModelName, TaskKind, TaskName
from eval.summary import Measured, Pair, conclude, task_summary
from tasks.contract import EXECUTION, Progress, Settings, Stage, StageError
from tasks.identity import identity_of
from tasks.room import of_inputs

_COLUMNS = (
    "task",
    "model",
    "seed",
    "metric",
    "score",
    "strict_f1",
    "precision",
    "recall",
    "token_accuracy",
    "macro_f1",
    "validation_score",
    "best_epoch",
    "epochs",
    "test_items",
    "truncated_items",
    "truncated_words",
    "words_without_tokens",
    "flags",
)


class DeclaredTask(Settings):
    """What gathering needs to know of a task beside its seed runs."""

    kind: TaskKind
    title: str | None = None
    published: str | None = None
    fine_tuning: FineTuningSettings = Field(default_factory=FineTuningSettings)


class GatheringSettings(Settings):
    """Settings of the stage ``evaluate``: which seed runs there must be."""

    models: tuple[ModelName, ...] = Field(min_length=1)
    """Our own."""
    compared: dict[ModelName, str] = Field(default_factory=dict)
    """Those of others by name, each with its title."""
    seeds: tuple[int, ...] = Field(min_length=1)
    tasks: dict[TaskName, DeclaredTask] = Field(min_length=1)
    missing: dict[str, str] = Field(default_factory=dict)
    """Seed runs that failed, by key ``model/task/seed``, each with its failure in one line. They are part of the
    identity, as the inputs are: an evaluation that lacks a seed run is never taken for a complete one."""
    recipe: Annotated[str, EXECUTION] = ""
    """Name of the recipe that asks for it, which the record keeps for the history."""


def gathering_settings(evaluation: EvaluationSettings, recipe_name: str = "") -> GatheringSettings:
    """The settings of ``evaluate`` that follow from a recipe's."""
    tasks = {
        name: DeclaredTask(kind=task.kind, title=task.title, published=task.published, fine_tuning=task.fine_tuning)
        for name, task in evaluation.tasks.items()
    }
    compared = {name: model.title or model.origin for name, model in evaluation.compare_with.items()}
    return GatheringSettings(
        models=evaluation.models, compared=compared, seeds=evaluation.seed_list, tasks=tasks, recipe=recipe_name
    )


def run(settings: GatheringSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    """Gather.

    Args:
        settings: the declared models, seeds and tasks.
        inputs: every finished seed run's artifact by its key ``model/task/seed``.
        folder: gets ``results.json`` (:class:`eval.results.Results`), a row for each seed run in ``results.csv`` and
            ``results.jsonl``, of which the latter has the scores of each label too, and ``predictions/<task>.jsonl``
            with a line for each test item.
        progress: told the seed runs.

    Raises:
        StageError: a declared seed run is missing and not said to have failed, all of one of our models on a task
            have, runs of one task were not made on the same data, or predictions cannot be read or do not have the
            stored score. A compared model without any run is absent.
    """
    runs: dict[str, dict[str, Any]] = {}
    names = (*settings.models, *settings.compared)
    declared = [f"{model}/{task}/{seed}" for task in settings.tasks for model in names for seed in settings.seeds]
    for done, key in enumerate(declared, start=1):
        if key not in settings.missing:
            if key not in inputs:
                raise StageError(f"seed run {key} was declared but is missing")
            runs[key] = json.loads((inputs[key] / "scores.json").read_text(encoding="utf-8"))
        progress(done, len(declared), unit="seed runs")
    tasks: list[TaskResult] = []
    pairs: list[Pair] = []
    for name, task in settings.tasks.items():
        predictions = {key: read_predictions(inputs[key]) for key in runs if key.rsplit("/", 2)[1] == name}
        result, of_task = _task_result(settings, name, task, runs, predictions)
        write_gathered(gathered_path(folder, name), predictions)
        tasks.append(result)
        pairs += of_task
    comparisons = list(zip(pairs, conclude(pairs), strict=True))
    results = Results(
        tasks=tuple(
            task.model_copy(
                update={"comparisons": tuple(made for pair, made in comparisons if pair.task == task.task)}
            )
            for task in tasks
        )
    )
    (folder / "results.json").write_text(results.model_dump_json(indent=1) + "\n", encoding="utf-8")
    with (folder / "results.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, _COLUMNS, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(_csv_row(key, runs, settings.missing) for key in declared)
    lines = (json.dumps(_json_row(key, runs, settings.missing), ensure_ascii=False) for key in declared)
    (folder / "results.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return {
        "recipe": settings.recipe,
        "seed_runs": len(runs),
        "missing": len(settings.missing),
        "flagged": sum(bool(one["flags"]) for one in runs.values()),
        "tasks": {
            task.task: {model.model: {"mean": model.mean, "std": model.std, "n": model.n} for model in task.models}
            for task in results.tasks
        },
    }


def _task_result(
    settings: GatheringSettings,
    name: str,
    task: DeclaredTask,
    runs: dict[str, dict[str, Any]],
    predictions: Mapping[str, Predictions],
) -> tuple[TaskResult, tuple[Pair, ...]]:
    """One task, its comparisons still to be added, and the pairs that they are made of."""
    names = (*settings.models, *settings.compared)
    tried = [_measured(settings, model, name, task, runs, predictions) for model in names]
    measured = [one for one in tried if isinstance(one, Measured)]
    ours = [runs[key] for key in predictions]
    first = ours[0]
    if any(one["data"] != first["data"] for one in ours):
        raise StageError(f"the seed runs of {name} were not made on the same data; run them again")
    models, pairs = task_summary(name, first["metric"], measured)
    models = tuple(
        model.model_copy(
            update={"details": details_of(task.kind, [one for one in ours if one["model"] == model.model])}
        )
        for model in models
    )
    table = published_tables()[task.published] if task.published else None
    result = TaskResult(
        task=name,
        kind=task.kind,
        metric=first["metric"],
        headline=first["headline"],
        data=task.title or _describe(first["data"]["source"]),
        items=first["data"]["items"],
        sha256=first["data"]["sha256"],
        labels=tuple(first["data"]["labels"]),
        fine_tuning=identity_of(task.fine_tuning, _no_file),
        majority=first["majority"],
        models=models,
        absent=tuple(one for one in tried if isinstance(one, AbsentModel)),
        comparisons=(),
        published=table.scores() if table else (),
        published_differences=tuple(table.differences(first["data"], first["metric"])) if table else (),
        warnings=tuple(first["warnings"]),
    )
    return result, pairs


def _measured(
    settings: GatheringSettings,
    model: str,
    name: str,
    task: DeclaredTask,
    runs: dict[str, dict[str, Any]],
    predictions: Mapping[str, Predictions],
) -> Measured | AbsentModel:
    seeds, counts, missing = [], [], []
    for seed in settings.seeds:
        key = f"{model}/{name}/{seed}"
        if key in settings.missing:
            missing.append(MissingSeed(seed=seed, reason=settings.missing[key]))
        else:
            seeds.append(_seed_score(runs[key]))
            counts.append(checked_counts(task.kind, predictions[key], runs[key]["score"]))
    if not seeds and model in settings.compared:
        return AbsentModel(model=model, title=settings.compared[model], reason=missing[0].reason)
    if not seeds:
        raise StageError(f"{name}: all seed runs of {model} failed, seed {missing[0].seed} with: {missing[0].reason}")
    parameters = runs[f"{model}/{name}/{seeds[0].seed}"].get("parameters")
    return Measured(
        model, tuple(seeds), tuple(counts), tuple(missing), settings.compared.get(model, ""), parameters=parameters
    )


def _no_file(path: Path) -> str:
    raise AssertionError(f"fine-tuning reads no file of the user's, so {path} cannot be one")


def _csv_row(key: str, runs: dict[str, dict[str, Any]], missing: Mapping[str, str]) -> dict[str, Any]:
    if key in missing:
        model, task, seed = key.rsplit("/", 2)
        return {"task": task, "model": model, "seed": seed, "flags": f"missing: {missing[key]}"}
    return {**runs[key], **runs[key]["other_scores"], "flags": "; ".join(runs[key]["flags"])}


def _json_row(key: str, runs: dict[str, dict[str, Any]], missing: Mapping[str, str]) -> dict[str, Any]:
    """One seed run with all its scores; one that failed has ``missing``, its failure in one line."""
    if key in missing:
        model, task, seed = key.rsplit("/", 2)
        return {"task": task, "model": model, "seed": int(seed), "missing": missing[key]}
    run = runs[key]
    columns = {name: run[name] for name in _COLUMNS if name in run}
    return {**columns, **run["other_scores"], "per_label": run["per_label"], "data_sha256": run["data"]["sha256"]}


def _seed_score(run: dict[str, Any]) -> SeedScore:
    return SeedScore(
        seed=run["seed"],
        score=run["score"],
        validation_score=run["validation_score"],
        best_epoch=run["best_epoch"],
        flags=tuple(run["flags"]),
    )


def _describe(source: dict[str, Any]) -> str:
    if source["kind"] == "sample":
        return f"built-in sample, seed {source['seed']}"
    if source["kind"] == "hub":
        config = f" {source['config']}" if source["config"] else ""
        return f"{source['dataset']}{config}, revision {source['revision'][:7]}"
    return "own files"


STAGE = Stage("evaluate", version=5, settings=GatheringSettings, run=run, room=of_inputs)
