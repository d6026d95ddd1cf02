"""Stage ``test-texts``: the texts of the tasks' test splits, for a corpus that is to hold none of them.

It is a stage of its own so that what counts is their content: another learning rate, or a training split that was
mended, leaves the corpus as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.data import load_task
from eval.settings import EvaluationSettings, Source, TaskKind, TaskSettings
from tasks.contract import Progress, Settings, Stage


class TextsSource(Settings):
    """Where a task's data come from."""

    kind: TaskKind
    source: Source
    labels: tuple[str, ...] | None


class TextsSettings(Settings):
    """The tasks by name."""

    tasks: dict[str, TextsSource]


def texts_settings(evaluation: EvaluationSettings) -> TextsSettings:
    """What of the evaluation's settings decides the test texts."""
    return TextsSettings(
        tasks={
            name: TextsSource(kind=task.kind, source=task.source, labels=task.labels)
            for name, task in evaluation.tasks.items()
        }
    )


def run(settings: TextsSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    """Write ``test.jsonl``: objects with ``task`` and ``text``; the words of an NER item are joined by spaces.

    Returns:
        ``items``: how many by task.

    Raises:
        UserError: a task's data are wrong.
        StageError: a data set of the hub cannot be loaded.
    """
    items = {}
    with (folder / "test.jsonl").open("w", encoding="utf-8") as file:
        for done, (name, task) in enumerate(sorted(settings.tasks.items()), start=1):
            data = load_task(TaskSettings(kind=task.kind, source=task.source, labels=task.labels))
            texts = [one if isinstance(one, str) else " ".join(one) for one in data.splits["test"].inputs]
            file.writelines(json.dumps({"task": name, "text": text}, ensure_ascii=False) + "\n" for text in texts)
            items[name] = len(texts)
            progress(done, len(settings.tasks), unit="tasks")
    return {"items": items}


STAGE = Stage("test-texts", version=1, settings=TextsSettings, run=run)
