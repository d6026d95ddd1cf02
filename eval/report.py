"""The report stage: gathers what the other stages left into ``report.json``, and renders that as Markdown and HTML.

Everything that is shown is in ``report.json``; :func:`render` needs nothing else, so a report can be rendered again
after its templates have improved, long after the artifacts are gone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from eval.cost import cost_of, run_of
from eval.prices import load_prices
from eval.report_peers import peer_cautions
from eval.report_schema import (
    CollaborationFacts,
    CorpusFacts,
    EnvironmentFacts,
    LossPoint,
    PackingFacts,
    PretrainingFacts,
    Report,
    StageFacts,
    TokenizerFacts,
    ValidationPoint,
)
from eval.report_wording import cautions, verdict
from eval.results import Results
from tasks.contract import LOGS, Progress, Settings, Stage, StageError, UserPath
from tasks.record import Damaged, Record, read_record

if TYPE_CHECKING:
    from eval.history import HistoryEntry

INPUTS = ("corpus", "tokenizer", "pack", "pretrain", "evaluate")
"""The artifacts that a report reads, in the order of the chain."""

CURVE_POINTS = 300
"""The training loss is averaged down to at most so many points: more cannot be seen at a page's width."""

_Facts = TypeVar("_Facts", bound=BaseModel)


class ReportSettings(Settings):
    """What the report says about the experiment as a whole."""

    recipe_name: str
    """The title of the report."""
    description: str = ""
    """One or two sentences below the title."""
    recipe: dict[str, Any]
    """The whole recipe as composed, shown for provenance."""
    prices: UserPath | None = None
    """The user's prices of machines, see :mod:`eval.prices`."""


def run(settings: ReportSettings, inputs: Mapping[str, Path], folder: Path, progress: Progress) -> dict[str, Any]:
    """Write ``report.json``, ``report.md`` and ``report.html`` into ``folder``.

    Args:
        settings: title, description and recipe.
        inputs: the artifact folders named in :data:`INPUTS`, each with its ``record.json``.
        folder: where the report goes.
        progress: told of three steps: gathered, rendered, written.

    Returns:
        ``verdict`` (one sentence), ``cautions`` (their number), ``tasks`` and ``bytes`` of the page.

    Raises:
        StageError: an artifact lacks a figure that the report shows.
        UserError: the user's file of prices is wrong.
    """
    progress(0, 3, unit="steps", note="gathering")
    report = collect(settings, inputs)
    content = json.dumps(report.model_dump(mode="json"), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    progress(1, 3, unit="steps", note="rendering")
    markdown, html = render(content)
    progress(2, 3, unit="steps", note="writing")
    for name, text in (("report.json", content), ("report.md", markdown), ("report.html", html)):
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    progress(3, 3, unit="steps")
    return {
        "verdict": report.verdict,
        "cautions": len(report.cautions),
        "tasks": len(report.results.tasks),
        "bytes": len(html.encode()),
    }


STAGE = Stage("report", version=8, settings=ReportSettings, run=run, shows_records=True)


def render(report_json: str, history: Sequence[HistoryEntry] = ()) -> tuple[str, str]:
    """Markdown and HTML from the text of a ``report.json``; equal text gives equal bytes.

    Args:
        report_json: the text.
        history: of the recipe, shown in a section of its own. The stage shows none: it changes with every evaluation,
            and an artifact never does.

    Raises:
        StageError: the text is not a report of this version's format.
    """
    # Imported here, since this module is loaded for every plan and jinja2 is not needed for one.
    from eval.rendering import to_html, to_markdown

    report = read_report(report_json)
    return to_markdown(report, history), to_html(report, history)


def read_report(report_json: str) -> Report:
    """The report from the text of a ``report.json``.

    Raises:
        StageError: the text is not a report of this version's format.
    """
    try:
        return Report.model_validate_json(report_json)
    except ValidationError as error:
        raise StageError(f"report.json: {_first_problem(error)}; run the report stage again with --force") from None


def collect(settings: ReportSettings, inputs: Mapping[str, Path]) -> Report:
    """Everything that the report shows, from the records and files of the artifacts.

    Raises:
        StageError: a figure is missing or has the wrong type; artifact and key are named.
    """
    records = {name: _record(inputs[name]) for name in INPUTS}
    corpus = _facts(CorpusFacts, "corpus", records["corpus"].metrics)
    tokenizer = _facts(TokenizerFacts, "tokenizer", records["tokenizer"].metrics)
    packing = _facts(PackingFacts, "pack", records["pack"].metrics)
    pretraining = _pretraining(inputs["pretrain"], records["pretrain"])
    collaboration = read_ledger(inputs["pretrain"])
    results = _results(inputs["evaluate"] / "results.json")
    store = inputs["evaluate"].parents[2]  # An artifact lies at artifacts/<stage>/<fingerprint> of the store.
    seed_runs, complete = _read(store, [source.path for source in records["evaluate"].inputs.values()])
    others, others_complete = _read(store, _others([records["corpus"], *seed_runs]))
    environments = _environments(
        [*records.items(), *(("seed-run", record) for record in seed_runs), *((one.stage, one) for one in others)]
    )
    seed_run_seconds = round(sum(record.seconds for record in seed_runs), 3) if complete and seed_runs else None
    stage_seconds = sum(record.seconds for record in (*records.values(), *others)) if others_complete else None
    measured = run_of(
        records["pretrain"],
        engine=settings.recipe["pretraining"]["engine"],
        peers=[peer.name for peer in collaboration.peers] if collaboration else (),
        chain_seconds=(
            None if stage_seconds is None or seed_run_seconds is None else stage_seconds + seed_run_seconds
        ),
    )
    found = [
        *cautions(
            results=results,
            corpus=corpus,
            tokenizer=tokenizer,
            packing=packing,
            pretraining=pretraining,
            environments=environments,
        ),
        *peer_cautions(collaboration),
    ]
    return Report(
        name=settings.recipe_name,
        description=settings.description,
        verdict=verdict(results),
        cautions=tuple(sorted(found, key=lambda caution: not caution.important)),
        results=results,
        corpus=corpus,
        tokenizer=tokenizer,
        packing=packing,
        pretraining=pretraining,
        collaboration=collaboration,
        stages=tuple(
            StageFacts(**record.model_dump(include=set(StageFacts.model_fields)))
            for record in (*others, *records.values())
        ),
        seed_runs=len(records["evaluate"].inputs),
        seed_run_seconds=seed_run_seconds,
        cost=cost_of(settings.recipe, [measured] if measured else [], load_prices(settings.prices)),
        environments=environments,
        recipe=settings.recipe,
    )


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
        raise StageError(f"{path}: {_first_problem(error)}; run pretrain again with --force") from None


def _record(artifact: Path) -> Record:
    try:
        return read_record(artifact)
    except Damaged as error:
        raise StageError(f"{artifact}: {error}; run its stage again") from None


def _facts(model: type[_Facts], stage: str, values: Mapping[str, Any]) -> _Facts:
    try:
        return model.model_validate(_without_nan(dict(values)))
    except ValidationError as error:
        raise StageError(f"record.json of {stage}: metrics.{_first_problem(error)}; run the stage again") from None


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'content'}: {first['msg']}"


def _without_nan(value: Any) -> Any:
    """JSON has no NaN or infinity; a loss that became one is shown as missing."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _results(path: Path) -> Results:
    try:
        return Results.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StageError(f"{path}: is missing; run evaluate again") from None
    except ValidationError as error:
        raise StageError(f"{path}: {_first_problem(error)}; run evaluate again") from None


def _pretraining(artifact: Path, record: Record) -> PretrainingFacts:
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
    return _facts(PretrainingFacts, "pretrain", {**record.metrics, **curves})


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


def _read(store: Path, paths: Sequence[str]) -> tuple[list[Record], bool]:
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


def _others(records: Iterable[Record]) -> list[str]:
    """What these read of stages that the report does not: models of others, and the test texts."""
    paths = {source.path for record in records for source in record.inputs.values()}
    return sorted(path for path in paths if Path(path).parent.name not in INPUTS)


def _environments(records: Iterable[tuple[str, Record]]) -> tuple[EnvironmentFacts, ...]:
    """The distinct environments, each with the stages that ran in it."""
    found: dict[str, EnvironmentFacts] = {}
    for name, record in records:
        place = _facts(EnvironmentFacts, name, record.environment)
        standing = found.setdefault(place.model_dump_json(), place)
        if name not in standing.stages:
            found[place.model_dump_json()] = standing.model_copy(update={"stages": (*standing.stages, name)})
    return tuple(found.values())
