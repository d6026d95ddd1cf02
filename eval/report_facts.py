"""What a report reads of the artifacts: figures of records, the log of a training, the ledger of the peers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from eval.report_schema import CollaborationFacts, EnvironmentFacts, LossPoint, PretrainingFacts, ValidationPoint
from eval.results import Results
from tasks.contract import LOGS, StageError
from tasks.record import Damaged, Record, read_record

CURVE_POINTS = 300
"""The training loss is averaged down to at most so many points: more cannot be seen at a page's width."""

_Facts = TypeVar("_Facts", bound=BaseModel)


def read_ledger(pretrain: Path) -> CollaborationFacts | None:
    """The ledger of the peers in an artifact of ``pretrain``; None if an engine without peers made it.

    Raises:
        StageError: the ledger lacks a figure that is shown.
    """
    path = pretrain / LOGS / "ledger.json"
    try:
        return CollaborationFacts.model_validate(_without_nan(json.loads(path.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        return None
    except json.JSONDecodeError:
        raise StageError(f"{path}: does not parse; run pretrain again with --force") from None
    except ValidationError as error:
        raise StageError(f"{path}: {first_problem(error)}; run pretrain again with --force") from None


def record_of(artifact: Path) -> Record:
    """The record of an artifact. Raises StageError if it has none, or one that does not parse."""
    try:
        return read_record(artifact)
    except Damaged as error:
        raise StageError(f"{artifact}: {error}; run its stage again") from None


def facts_of(model: type[_Facts], stage: str, values: Mapping[str, Any]) -> _Facts:
    """Metrics of a stage as the report has them. Raises StageError that names the figure which is missing or wrong."""
    try:
        return model.model_validate(_without_nan(dict(values)))
    except ValidationError as error:
        raise StageError(f"record.json of {stage}: metrics.{first_problem(error)}; run the stage again") from None


def first_problem(error: ValidationError) -> str:
    """Where and what the first problem is."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'content'}: {first['msg']}"


def _without_nan(value: Any) -> Any:
    """JSON has no NaN or infinity; a loss that became one is shown as missing."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def results_of(path: Path) -> Results:
    """The results of an evaluation. Raises StageError if they are missing or of another format."""
    try:
        return Results.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StageError(f"{path}: is missing; run evaluate again") from None
    except ValidationError as error:
        raise StageError(f"{path}: {first_problem(error)}; run evaluate again") from None


def pretraining_of(artifact: Path, record: Record) -> PretrainingFacts:
    """Figures and curves of a pretraining. Raises StageError if its log or a figure is wrong."""
    log = artifact / LOGS / "training.jsonl"
    lines: dict[int, dict[str, Any]] = {}
    try:
        # Not splitlines: it would also cut at separators of lines inside a peer's name.
        for text in filter(None, log.read_text(encoding="utf-8").split("\n")):
            line = _without_nan(json.loads(text))
            # Training and validation of a step may stand in lines of their own. A run that was killed and continued
            # logs the steps since its last checkpoint twice: what the later line says counts.
            lines.setdefault(line["step"], {}).update(line)
    except FileNotFoundError:
        pass  # An engine without a log still has its figures.
    except (json.JSONDecodeError, KeyError, TypeError):
        raise StageError(f"{log}: does not parse; run pretrain again with --force") from None
    ordered = [lines[step] for step in sorted(lines)]
    curves = {
        "training_curve": _thinned(line for line in ordered if "mlm_loss" in line),
        "validation_curve": [ValidationPoint(**line) for line in ordered if "validation_loss" in line],
        "resolved": record.resolved,
    }
    return facts_of(PretrainingFacts, "pretrain", {**record.metrics, **curves})


def _thinned(lines: Iterable[Mapping[str, Any]]) -> list[LossPoint]:
    """Means of equally many consecutive log lines each, at the step of the last of them."""
    rows = list(lines)
    size = max(1, math.ceil(len(rows) / CURVE_POINTS))
    points = []
    for start in range(0, len(rows), size):
        group = rows[start : start + size]
        losses = [row["mlm_loss"] for row in group if row["mlm_loss"] is not None]
        mean = round(sum(losses) / len(losses), 5) if losses else None
        points.append(LossPoint(step=group[-1]["step"], mlm_loss=mean))
    return points


def records_at(store: Path, paths: Sequence[str]) -> tuple[list[Record], bool]:
    """The records of artifacts as far as they are still there, and whether all are.

    They are no inputs of the report: what it shows of them are times, versions and digests.
    """
    found = []
    for path in paths:
        try:
            found.append(read_record(store / path))
        except Damaged:
            continue
    return found, len(found) == len(paths)


def other_inputs(records: Iterable[Record], known: Sequence[str]) -> list[str]:
    """What these read of stages that are not ``known``, such as models of others and the test texts."""
    paths = {source.path for record in records for source in record.inputs.values()}
    return sorted(path for path in paths if Path(path).parent.name not in known)


def environments_of(records: Iterable[tuple[str, Record]]) -> tuple[EnvironmentFacts, ...]:
    """The distinct environments, each with the stages that ran in it."""
    found: dict[str, EnvironmentFacts] = {}
    for name, record in records:
        place = facts_of(EnvironmentFacts, name, record.environment)
        standing = found.setdefault(place.model_dump_json(), place)
        if name not in standing.stages:
            found[place.model_dump_json()] = standing.model_copy(update={"stages": (*standing.stages, name)})
    return tuple(found.values())
