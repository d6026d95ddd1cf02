"""What a flow tells Prefect of a recipe's history: the table of all evaluations, and an event for each drop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.artifacts import Shown
from flows.execution import Options
from flows.recipe import load_recipe
from flows.step_work import StageOutcome

if TYPE_CHECKING:
    from eval.history import Point
    from flows.reporting import Reporter

EVENT = "sahajflow.evaluation.dropped"
"""For automations: a model's mean score fell beyond the interval of the difference."""


def tell_history(outcomes: Sequence[StageOutcome], options: Options, reporter: Reporter) -> None:
    """Show the history of the recipe whose evaluation is among the outcomes, and raise :data:`EVENT` for each model
    and task that dropped in an evaluation made by this run. Best effort, as all that is told to Prefect."""
    done = next((outcome for outcome in outcomes if outcome.record.stage == "evaluate"), None)
    if done is None:
        return
    try:
        from eval.history import entry_of, points_of, read_history
        from eval.history_view import history_rows
        from tasks.store import Store

        recipe = load_recipe(options.recipe, options.set_).name
        entry, entries = entry_of(done.path, recipe), read_history(Store(options.store), recipe)
        rows = json.dumps(history_rows(entries), ensure_ascii=False)
        reporter.show(Shown("history", "table", f"Every finished evaluation of {recipe}", rows))
        if done.action == "ran" and entry is not None:
            dropped = [point for point in points_of(entries) if point.dropped and point.entry == entry]
            if dropped and reporter.reachable():
                for point in dropped:
                    _emit(point)
    except Exception as problem:  # whatever it is, the stages are done and published
        reporter.trouble("history", problem)


def _emit(point: Point) -> None:
    from prefect.events import emit_event

    assert point.previous is not None
    assert point.before is not None
    assert point.interval is not None
    recipe, task, model = point.entry.recipe, point.task, point.model
    related = {
        "task": (f"sahajflow.task.{recipe}.{task}", task),
        "model": (f"sahajflow.model.{recipe}.{model}", model),
        "evaluation": (f"sahajflow.evaluation.{point.entry.fingerprint[:16]}", point.entry.fingerprint[:16]),
        "previous-evaluation": (
            f"sahajflow.evaluation.{point.previous.fingerprint[:16]}",
            point.previous.fingerprint[:16],
        ),
    }
    emit_event(
        event=EVENT,
        resource={"prefect.resource.id": f"sahajflow.recipe.{recipe}", "prefect.resource.name": recipe},
        related=[
            {"prefect.resource.id": identifier, "prefect.resource.role": role, "prefect.resource.name": name}
            for role, (identifier, name) in related.items()
        ],
        payload={
            "recipe": recipe,
            "task": task,
            "model": model,
            "metric": point.on.metric,
            "mean": point.score.mean,
            "std": point.score.std,
            "n": point.score.n,
            "previous_mean": point.before.mean,
            "previous_finished": point.previous.finished.isoformat(),
            "change": point.change,
            "change_low": point.interval[0],
            "change_high": point.interval[1],
        },
    )
