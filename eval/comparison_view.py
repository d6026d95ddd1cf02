"""A comparison of runs as shown: what the templates and the terminal place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.comparing import letter_of
from eval.comparison_schema import ComparedTask, RunComparison, RunFacts
from eval.report_scores import TaskView, p_text, task_view
from eval.report_tables import Table, make_table
from eval.report_wording import READING, mean_and_std, per_cent

_ROLES = {"A": "pretrained", "B": "baseline"}
"""Colour and shape of the first two runs' points, those that a report gives to the two models it is about."""


@dataclass(frozen=True)
class ComparedView:
    """One task: its scores, what to be careful about, and what follows."""

    scores: TaskView
    cautions: tuple[str, ...]
    sentences: tuple[str, ...]


def comparison_view(comparison: RunComparison) -> dict[str, Any]:
    """What both templates place."""
    names = {run.letter: run.name for run in comparison.runs}
    return {
        "title": title_of(comparison),
        "verdict": comparison.verdict,
        "runs": _runs_table(comparison.runs),
        "tasks": [_task(task, number, names) for number, task in enumerate(comparison.tasks, start=1)],
        "refused": [f"{one.task} of {one.letter}: {one.reason}." for one in comparison.refused],
        "reading": READING,
    }


def title_of(comparison: RunComparison) -> str:
    """ "A (demo) and B (my-language)"."""
    called = [f"{run.letter} ({run.name})" for run in comparison.runs]
    return f"{', '.join(called[:-1])} and {called[-1]}"


def _task(task: ComparedTask, number: int, names: dict[str, str]) -> ComparedView:
    parts = {}
    for model in task.result.models:
        letter = letter_of(model.model)
        parts[model.model] = (_ROLES.get(letter, "other"), f"of {names[letter]}")
    view = task_view(task.result, number, parts)
    return ComparedView(view, task.cautions, tuple(one.sentence for one in task.result.comparisons))


def _runs_table(runs: Sequence[RunFacts]) -> Table:
    rows = []
    for run in runs:
        state = " with uncommitted changes" if run.git and run.git.dirty else ""
        code = f"{run.git.commit[:12]}{state}" if run.git else run.packages.get("sahajflow", "not recorded")
        evaluated = f"{run.finished:%Y-%m-%d %H:%M} UTC"
        rows.append((run.letter, run.name, evaluated, run.fingerprint[:16], run.digest[:16], code))
    titles = ["run", "recipe", "evaluated", "fingerprint", "digest", "code"]
    return make_table("runs", "What is compared: evaluations", titles, "llllll", rows)


def terminal_rows(comparison: RunComparison) -> list[tuple[str, ...]]:
    """The comparisons with their figures, titles first."""
    rows: list[tuple[str, ...]] = [("task", "model", "score, %", "against", "score, %", "difference", "p", "shown")]
    words = {"better": "better", "worse": "worse", "same": "no difference", "unknown": "too few runs"}
    for task in comparison.tasks:
        scores = {one.model: mean_and_std(one.mean, one.std) for one in task.result.models}
        for one in task.result.comparisons:
            figures = (per_cent(one.difference), p_text(one.p_corrected), words[one.outcome])
            pair = (one.model, scores[one.model], one.baseline, scores[one.baseline])
            rows.append((task.result.task, *pair, *figures))
    return rows
