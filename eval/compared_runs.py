"""Evaluations that are compared: found in a folder, checked by their hashes, with the predictions that they keep."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval.comparison_schema import RunFacts
from eval.item_counts import Predictions, checked_counts, gathered_path, read_gathered
from eval.report_schema import EnvironmentFacts
from eval.results import ModelResult, Results, TaskResult
from eval.uncertainty import Counts
from tasks.contract import UserError
from tasks.foreign_text import escaped, printable
from tasks.record import Damaged, Record, verified_record


@dataclass(frozen=True)
class Run:
    """One evaluation to compare."""

    facts: RunFacts
    results: Results
    folder: Path
    read: dict[str, dict[str, Predictions]] = field(default_factory=dict, repr=False, compare=False)
    """Predictions by task, as far as they were asked for."""

    def task(self, name: str) -> TaskResult | None:
        """Its result on a task."""
        return next((task for task in self.results.tasks if task.task == name), None)

    def counts(self, task: TaskResult, model: ModelResult) -> tuple[Counts, ...]:
        """Right answers of a model's seeds, from the kept predictions, which are read once for all models.

        Raises:
            UserError: a seed has none.
            StageError: they cannot be read, or do not have the stored scores.
        """
        path = gathered_path(self.folder, task.task)
        if task.task not in self.read:
            self.read[task.task] = read_gathered(path)
        found = []
        for seed in model.seeds:
            predictions = self.read[task.task].get(f"{model.model}/{task.task}/{seed.seed}")
            if predictions is None:
                raise UserError(
                    f"{path}: has no predictions of {model.model}, seed {seed.seed}; run the evaluation again"
                )
            found.append(checked_counts(task.kind, predictions, seed.score))
        return tuple(found)


def evaluation_in(folder: Path, store: Path) -> Path:
    """The evaluation that a folder is, or whose report it is.

    Args:
        folder: an artifact of ``evaluate`` or of ``report``, wherever it lies.
        store: where the evaluation of a report is looked for if it does not lie in the report's own store.

    Raises:
        UserError: it is neither, or the report's evaluation is not there.
    """
    record = _verified(folder)
    if record.stage == "evaluate":
        return folder
    if record.stage != "report":
        raise UserError(f"{folder}: is an artifact of {record.stage}; give one of evaluate or report")
    wanted = record.inputs["evaluate"]
    # An artifact lies at artifacts/<stage>/<fingerprint> of its store.
    for root in (*list(folder.absolute().parents)[2:3], store):
        place = root / wanted.path
        if place.is_dir() and _verified(place).digest == wanted.digest:
            return place
    raise UserError(
        f"{folder}: the predictions lie in the report's evaluation, which is not here; "
        f"copy that folder and give it instead: {wanted.path}"
    )


def load_run(folder: Path, letter: str, name: str | None = None) -> Run:
    """An artifact of ``evaluate``, its hashes checked.

    Args:
        folder: the artifact.
        letter: what the run is called.
        name: of its recipe; by default that of the recipe which made it first.

    Raises:
        UserError: it is damaged or made up, or another version of sahajflow wrote it.
    """
    record = _verified(folder)
    try:
        content = json.loads((folder / "results.json").read_bytes())
        results = Results.model_validate(_escaped(content))
    except (OSError, ValueError, RecursionError):
        raise UserError(
            f"{folder}: another version of sahajflow wrote this evaluation; run it again with this one"
        ) from None
    for task in results.tasks:
        if not re.fullmatch(r"[\w-]+", task.task):  # it names a file of the folder
            raise UserError(
                f"{folder}: its results name a task {task.task}, which is no task's name; ask for a sound copy"
            )
    place = EnvironmentFacts.model_validate(record.environment)
    facts = RunFacts(
        letter=letter,
        name=name or printable(str(record.metrics.get("recipe", ""))) or "unnamed",
        fingerprint=record.fingerprint,
        digest=record.digest,
        finished=record.finished,
        git=place.git,
        packages=place.packages,
    )
    return Run(facts, results, folder)


def _escaped(value: Any) -> Any:
    """JSON with all that a terminal could obey made visible in its texts: the folder may be a stranger's."""
    if isinstance(value, dict):
        return {_escaped(key): _escaped(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_escaped(part) for part in value]
    return escaped(value) if isinstance(value, str) else value


def _verified(folder: Path) -> Record:
    try:
        return verified_record(folder, hashes=True)
    except Damaged as error:
        raise UserError(f"{folder}: is no whole artifact ({error}); copy it again, or give another folder") from None
