"""Task files: a task in a small YAML file of its own, named in a recipe by path, or by name if it is a built-in one.

A task file holds what ``evaluation.tasks.NAME`` of a recipe holds, see :class:`eval.settings.TaskSettings`; its
relative paths start at its own folder. In a recipe the name or path alone stands for the task, or, with ``definition``
as one key among others, these others change it::

    tasks:
      ner: wikiann-bn
      topics: {definition: my-topics.yaml, fine_tuning: {epochs: 5}}
"""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eval.presets import resolved
from eval.settings import TaskSettings
from tasks.contract import UserError
from tasks.strict_yaml import read_yaml
from tasks.user_files import file_problem, shown

_ENDINGS = (".yaml", ".yml")


def builtin_tasks() -> dict[str, Path]:
    """The task files that come with sahajflow, by name."""
    folder = resources.files("eval") / "task_definitions"
    return {Path(item.name).stem: Path(str(item)) for item in sorted(folder.iterdir(), key=lambda item: item.name)}


def named(tasks: Any) -> Any:
    """A recipe's tasks with each name or path alone as a mapping, so that single keys can be set beside it."""
    if not isinstance(tasks, dict):
        return tasks
    return {name: {"definition": task} if isinstance(task, str) else task for name, task in tasks.items()}


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
    whole = _read(task["definition"], folder, place)
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


def _read(definition: Any, folder: Path, place: str) -> dict[str, Any]:
    """The keys that stand in a task file, which is a valid task by itself, with absolute paths."""
    builtin = builtin_tasks()
    if not isinstance(definition, str):
        raise UserError(f"{place}: {definition!r} should be the name of a built-in task or the path of a task file")
    if definition in builtin:
        path = builtin[definition]
    elif Path(definition).suffix not in _ENDINGS:
        near = difflib.get_close_matches(definition, builtin, n=1)
        hint = f"did you mean {near[0]}" if near else f"known are {', '.join(builtin)}"
        raise UserError(f"{place}: no built-in task {definition[:60]!r}; {hint}; else give the path of a .yaml file")
    else:
        try:
            path = folder / Path(definition).expanduser()
        except RuntimeError:
            raise UserError(f"{place}: {definition[:60]!r} names an unknown user; write the path out") from None
        if problem := file_problem(path):
            raise UserError(f"{place}: {shown(path)}: {problem}")
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{shown(path)}: a task is a mapping of {', '.join(TaskSettings.model_fields)}")
    try:
        task = TaskSettings.model_validate(values, context={"folder": path.parent})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        told = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            told = (
                f"unknown key; known are {', '.join(TaskSettings.model_fields)}" if "." not in where else "unknown key"
            )
        raise UserError(f"{shown(path)}: {f'{where}: ' if where else ''}{told}".replace("\n", " ")) from None
    return task.model_dump(mode="json", exclude_unset=True)
