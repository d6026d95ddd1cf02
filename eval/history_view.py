"""A recipe's history as shown: a table and a drawing for each task, and rows for scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from eval.history import HistoryEntry, Point, points_of
from eval.history_chart import history_chart, roles_of
from eval.report_scores import interval_text
from eval.report_tables import Table, make_table
from eval.report_wording import mean_and_std, per_cent

NEVER = "first"
"""Where there is no earlier point to compare with."""


@dataclass(frozen=True)
class HistoryView:
    """One task's history."""

    anchor: str
    heading: str
    models: tuple[tuple[str, str], ...]
    """Model and role, for the key of the chart."""
    chart: Markup
    table: Table
    drops: tuple[str, ...]
    """A sentence for each drop."""


def history_views(entries: Sequence[HistoryEntry]) -> tuple[HistoryView, ...]:
    """The tasks' histories, in the order in which they first appear."""
    by_task: dict[str, list[Point]] = {}
    for point in points_of(entries):
        by_task.setdefault(point.task, []).append(point)
    return tuple(_view(task, points, number) for number, (task, points) in enumerate(by_task.items(), start=1))


def _view(task: str, points: Sequence[Point], number: int) -> HistoryView:
    metric = points[-1].on.metric
    titles = ["evaluated", "model", "mean ± std, per cent", "n", "other seeds, 95 %", "change", "recipe", "evaluation"]
    rows = [
        (
            f"{point.entry.finished:%Y-%m-%d %H:%M} UTC",
            point.model,
            mean_and_std(point.score.mean, point.score.std),
            str(point.score.n) if point.score.n == point.score.declared else f"{point.score.n}/{point.score.declared}",
            interval_text(point.score.interval),
            change_text(point),
            point.entry.recipe,
            point.entry.fingerprint[:16],
            point.on.sha256[:12],
        )
        for point in points
    ]
    return HistoryView(
        anchor=f"history-{number}",
        heading=f"{task}: {metric}",
        models=tuple(roles_of(points).items()),
        chart=history_chart(task, points, f"history-chart-{number}"),
        table=make_table(f"history-table-{number}", f"{task}: every evaluation", [*titles, "data"], "llrrrrlll", rows),
        drops=tuple(drop_sentence(point) for point in points if point.dropped),
    )


def change_text(point: Point) -> str:
    """ "+1.20", "-5.35, dropped"; or that there is nothing to compare with."""
    if point.change is None:
        return NEVER
    sign = "+" if point.change > 0 else ""
    return f"{sign}{per_cent(point.change)}{', dropped' if point.dropped else ''}"


def drop_sentence(point: Point) -> str:
    """What dropped, by how much, and since when."""
    assert point.previous is not None
    assert point.before is not None
    assert point.interval is not None
    fall, since = point.before.mean - point.score.mean, f"{point.previous.finished:%Y-%m-%d %H:%M} UTC"
    low, high = (per_cent(-end) for end in reversed(point.interval))
    return (
        f"{point.task}, {point.model}: mean {point.on.metric} {per_cent(point.score.mean)} after "
        f"{per_cent(point.before.mean)} ({since}), a drop of {per_cent(fall)} points "
        f"(95 % for other seeds: {low} to {high})"
    )


COLUMNS: dict[str, Callable[[Point], Any]] = {
    "evaluated": lambda point: point.entry.finished.isoformat(timespec="seconds"),
    "recipe": lambda point: point.entry.recipe,
    "task": lambda point: point.task,
    "model": lambda point: point.model,
    "metric": lambda point: point.on.metric,
    "mean": lambda point: point.score.mean,
    "std": lambda point: point.score.std,
    "n": lambda point: point.score.n,
    "declared": lambda point: point.score.declared,
    "low": lambda point: point.score.interval.low if point.score.interval else None,
    "high": lambda point: point.score.interval.high if point.score.interval else None,
    "change": lambda point: point.change,
    "dropped": lambda point: point.dropped,
    "fingerprint": lambda point: point.entry.fingerprint,
    "digest": lambda point: point.entry.digest,
    "data": lambda point: point.on.sha256,
    "commit": lambda point: point.entry.commit,
}
"""What scripts get of one task and model in one evaluation; scores are fractions."""


def history_rows(entries: Sequence[HistoryEntry]) -> list[dict[str, Any]]:
    """One flat row of :data:`COLUMNS` for each evaluation, task and model, for JSON, CSV and Prefect's table."""
    return [{name: value(point) for name, value in COLUMNS.items()} for point in points_of(entries)]


def terminal_rows(entries: Sequence[HistoryEntry]) -> list[tuple[str, ...]]:
    """The tables of all tasks as one, titles first."""
    views = history_views(entries)
    if not views:
        return []
    return [("task", *views[0].table.titles), *((view.heading, *row) for view in views for row in view.table.rows)]
