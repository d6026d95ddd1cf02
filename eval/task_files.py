"""Task files: a task in a small YAML file of its own, named in a recipe by path, or by name if it is a built-in one.

A task file holds what ``evaluation.tasks.NAME`` of a recipe holds, see :class:`eval.settings.TaskSettings`; its
relative paths start at its own folder. In a recipe the name or path alone stands for the task, or, with ``definition``
as one key among others, these others change it::

    tasks:
      ner: wikiann-bn
      topics: {definition: my-topics.yaml, fine_tuning: {epochs: 5}}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.definitions import builtin, named, read_definition
from eval.presets import resolved
from eval.settings import TaskSettings


def builtin_tasks() -> dict[str, Path]:
    """The task files that come with sahajflow, by name."""
    return builtin("task_definitions")


def expanded(tasks: Any, folder: Path, place: str = "evaluation.tasks") -> Any:
    """A recipe's tasks with the content of their task files in place of ``definition``.

    A key that stands in the recipe replaces the file's; of ``fine_tuning``, and of ``source`` unless it is of another
    kind, only the keys that are given. What is no task with a definition stays as it is, for the recipe's own check.

    Args:
        tasks: the mapping ``evaluation.tasks`` as the recipe has it.
        folder: where relative paths of task files start.
        place: where the tasks stand, for messages.

    Raises:
        UserError: there is no such file, or it is wrong.
    """
    tasks = named(tasks)
    if not isinstance(tasks, dict):
        return tasks
    return {
        name: _expanded(task, folder, f"{place}.{name}.definition")
        if isinstance(task, dict) and "definition" in task
        else task
        for name, task in tasks.items()
    }


def _expanded(task: dict[str, Any], folder: Path, place: str) -> dict[str, Any]:
    given = {key: value for key, value in task.items() if key != "definition"}
    whole = read_definition(task["definition"], "task", TaskSettings, builtin_tasks(), folder, place)
    for key, value in given.items():
        old = whole.get(key)
        if key == "fine_tuning":  # the values of a preset are given ones too, beside the file's
            value = resolved(value)
        if key in ("fine_tuning", "source") and isinstance(value, dict) and isinstance(old, dict):
            other = key == "source" and value.get("kind", old["kind"]) != old["kind"]
            whole[key] = value if other else {**old, **value}
        else:
            whole[key] = value
    return whole
