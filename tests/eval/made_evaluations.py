"""Evaluations made of given predictions by the real stage ``evaluate``, as artifacts with their records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from report_artifacts import START, write_record

from eval.gathering import STAGE, DeclaredTask, GatheringSettings
from eval.item_counts import counts_of
from eval.scoring import HEADLINES, score_classification, score_ner
from eval.settings import METRICS, TaskKind
from eval.uncertainty import score_of
from tasks.contract import no_progress

GOLD = ["a"] * 10


def answers(right: int, items: int = 10) -> list[str]:
    """The first so many right, the others wrong."""
    return ["a"] * right + ["b"] * (items - right)


def _all_scores(kind: TaskKind, gold: list[Any], predicted: list[Any], labels: list[str]) -> dict[str, Any]:
    found = score_ner(gold, predicted) if kind == "ner" else score_classification(gold, predicted, tuple(labels))
    others = {name: value for name, value in found.items() if name != "score" and isinstance(value, float)}
    return {
        "headline": HEADLINES[kind], "scores": found, "per_label": found["per_label"], "other_scores": others
    }  # fmt: skip


def make_evaluation(
    root: Path,
    runs: Mapping[str, Mapping[str, Sequence[Any]]],
    *,
    recipe: str = "demo",
    number: int = 1,
    finished: datetime = START,
    kind: TaskKind = "classification",
    gold: Mapping[str, list[Any]] | list[Any] = GOLD,
    data: Mapping[str, Any] | None = None,
    fine_tuning: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    missing: Mapping[str, str] | None = None,
    compared: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
) -> Path:
    """An artifact of ``evaluate`` in the store ``root``.

    Args:
        root: of the store.
        runs: by task and model the predictions of each seed, whose numbers are ``seeds``, by default 1, 2 and so on.
        recipe: its name.
        number: what the fingerprint is made of.
        finished: when it ended.
        kind: of all tasks.
        gold: labels of the items, by task if they are not the same for all.
        data: changes to what the seed runs say of the data.
        fine_tuning: settings that are not the default.
        seeds: their numbers.
        missing: seed runs that failed, by key, with the reason.
        compared: models of others by name, each with its title; those of ``runs`` that are not among them are ours.
        warnings: on the data, of every task.
    """
    folder = root / "artifacts" / "evaluate" / f"{number:016x}"
    folder.mkdir(parents=True)
    inputs = {}
    count = max(len(of_seed) for models in runs.values() for of_seed in models.values())
    numbers = list(seeds or range(1, count + 1))
    for task, models in runs.items():
        right = gold[task] if isinstance(gold, Mapping) else gold
        facts = {"source": {"kind": "files"}, "items": {"test": len(right)}, "sha256": "5" * 64, "labels": ["a", "b"]}
        for model, of_seed in models.items():
            for seed, predicted in zip(numbers, of_seed, strict=False):
                key = f"{model}/{task}/{seed}"
                place = inputs[key] = root / "seed-runs" / f"{number}" / key
                place.mkdir(parents=True, exist_ok=True)
                score = float(score_of(counts_of(kind, right, predicted).sum(axis=0)))
                scores = {"model": model, "task": task, "seed": seed, "metric": METRICS[kind], "score": score}
                scores |= _all_scores(kind, right, list(predicted), {**facts, **(data or {})}["labels"])
                scores |= {
                    "validation_score": score,
                    "best_epoch": 1,
                    "flags": [],
                    "majority": 0.1,
                    "warnings": list(warnings),
                }
                (place / "scores.json").write_text(json.dumps({**scores, "data": {**facts, **(data or {})}}))
                rows = [{"gold": one, "predicted": said} for one, said in zip(right, predicted, strict=True)]
                (place / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    declared = DeclaredTask.model_validate({"kind": kind, "fine_tuning": fine_tuning or {}})
    settings = GatheringSettings(
        models=tuple(
            dict.fromkeys(model for models in runs.values() for model in models if model not in (compared or {}))
        ),
        compared=dict(compared or {}),
        seeds=tuple(numbers),
        tasks=dict.fromkeys(runs, declared),
        missing=dict(missing or {}),
        recipe=recipe,
    )
    metrics = STAGE.run(settings, inputs, folder, no_progress)
    write_record(
        folder,
        "evaluate",
        seconds=0,
        dirty=False,
        fingerprint=f"{number:016x}" + "0" * 48,
        started=finished,
        metrics=metrics,
    )
    return folder
