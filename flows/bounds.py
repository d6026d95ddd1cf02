"""What makes a run fail although every stage was done: a score below a bound, or a drop. For CI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flows.execution import Prepared
from flows.recipe import Recipe
from tasks.contract import StageError, UserError
from tasks.strict_yaml import cut

if TYPE_CHECKING:
    from eval.history import Point

MODEL = "pretrained"
"""What fails a run is the recipe's own model: its random twin is there to be worse, and its drops are only said."""


@dataclass(frozen=True)
class Bounds:
    """Lowest mean scores of :data:`MODEL`, as fractions, and whether a drop of it fails the run."""

    by_task: dict[str, float] = field(default_factory=dict)
    on_drop: bool = False

    def __bool__(self) -> bool:
        return bool(self.by_task) or self.on_drop


def read_bounds(texts: Sequence[str], on_drop: bool, prepared: Prepared) -> Bounds:
    """The bounds as given on the command line: ``VALUE`` for all tasks, ``task=VALUE`` for one.

    A value is a fraction such as 0.72, or per cent such as 72%. One for a task counts in place of that for all.

    Raises:
        UserError: no score, a task that is not the recipe's, two values for the same, or nothing to judge: the stages
            asked for do not reach an evaluation, or the recipe does not measure its model.
    """
    tasks = prepared.recipe.evaluation.tasks
    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if equals and name not in tasks:
            raise UserError(
                f"--fail-below {cut(text)}: the recipe has no task {cut(name)!r}; it has {', '.join(tasks)}"
            )
        if name in found:
            raise UserError(f"--fail-below {cut(text)}: stands twice {f'for {name}' if name else 'without a task'}")
        found[name] = _score(value, text)
    for_all = found.pop("", None)
    bounds = Bounds({} if for_all is None else dict.fromkeys(tasks, for_all), on_drop)
    bounds.by_task.update(found)
    if bounds:
        _check(bounds, prepared.recipe, {step.node.name for step in (*prepared.steps, *prepared.inputs)})
    return bounds


def _score(value: str, text: str) -> float:
    try:
        score = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        score = -1.0
    if not 0 <= score <= 1:
        raise UserError(f"--fail-below {cut(text)}: should be a score such as 0.72 or 72%, or task=0.72")
    return score


def _check(bounds: Bounds, recipe: Recipe, nodes: set[str]) -> None:
    asked = "--fail-below" if bounds.by_task else "--fail-on-drop"
    if "evaluate" not in nodes:
        raise UserError(f"{asked}: the stages asked for end before evaluate, so there is no score; leave it out")
    if MODEL not in recipe.evaluation.models:
        raise UserError(f"{asked}: is about the model {MODEL}, which evaluation.models lacks")


def judge(bounds: Bounds, evaluation: Path, prepared: Prepared) -> list[str]:
    """Compare the means with the bounds and with the evaluation before.

    Args:
        bounds: what was asked for.
        evaluation: the artifact of evaluate that the run made or reused.
        prepared: the run's recipe and store.

    Returns:
        A line for everything that dropped.

    Raises:
        StageError: a mean is below its bound, or with ``on_drop`` something dropped; one line names all of it.
    """
    from eval.history import entry_of, points_of, read_history
    from eval.report_wording import per_cent

    entry = entry_of(evaluation, prepared.recipe.name)
    if entry is None:
        if bounds:
            raise StageError(f"{evaluation}: cannot be read; run again with --force evaluate")
        return []
    points = points_of(read_history(prepared.store, prepared.recipe.name))
    dropped = [point for point in points if point.entry.file_name == entry.file_name and point.dropped]
    failures = []
    for task, bound in bounds.by_task.items():
        mean, metric = entry.tasks[task].models[MODEL].mean, entry.tasks[task].metric
        if mean < bound - 1e-9:  # rounding must not fail a mean that is the bound
            failures.append(
                f"{task}: the mean {metric} of {MODEL} is {per_cent(mean)} %, below --fail-below {per_cent(bound)} %"
            )
    if bounds.on_drop:
        failures += [_dropped(point) for point in dropped if point.model == MODEL]
    if failures:
        raise StageError("; ".join(failures))
    return [_dropped(point) for point in dropped]


def _dropped(point: Point) -> str:
    from eval.history_view import drop_sentence

    return f"dropped: {drop_sentence(point)}"
