"""The typed content of ``comparison.json``: several evaluations side by side, in the units of :mod:`eval.results`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from eval.report_schema import GitState
from eval.results import TaskResult


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunFacts(_Row):
    """One of the evaluations. Where it lay is left out, so that equal evaluations give equal files."""

    letter: str
    """"A" for the first, and so on: what it is called in all that follows."""
    name: str
    """Of the recipe."""
    fingerprint: str
    digest: str
    finished: datetime
    git: GitState | None
    packages: dict[str, str]


class Difference(_Row):
    """A fine-tuning setting that is not the same in all runs of a task."""

    setting: str
    values: dict[str, JsonValue]
    """By the runs' letters; None where a run does not have it."""


class ComparedTask(_Row):
    """One task of two runs or more, measured on the same data by the same metric.

    Models are called ``"pretrained (A)"``: the run's letter behind the model's name. ``result.fine_tuning`` is that of
    the first run.
    """

    letters: tuple[str, ...]
    result: TaskResult
    fine_tuning_differences: tuple[Difference, ...]
    """If there are any, a difference between the runs is not the models' alone."""
    cautions: tuple[str, ...]


class Refused(_Row):
    """A task of a run that is not compared with the others."""

    task: str
    letter: str
    reason: str


class RunComparison(_Row):
    """The whole comparison."""

    format: Literal[1] = 1
    verdict: str
    runs: tuple[RunFacts, ...]
    tasks: tuple[ComparedTask, ...]
    refused: tuple[Refused, ...]
