"""The report stage: gathers what the other stages left into ``report.json``, and renders that as Markdown and HTML.

Everything that is shown is in ``report.json``; :func:`render` needs nothing else, so a report can be rendered again
after its templates have improved, long after the artifacts are gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from eval.cost import cost_of, run_of
from eval.prices import load_prices
from eval.report_facts import (
    environments_of,
    facts_of,
    first_problem,
    other_inputs,
    pretraining_of,
    read_ledger,
    record_of,
    records_at,
    results_of,
)
from eval.report_peers import peer_cautions
from eval.report_schema import CorpusFacts, PackingFacts, Report, StageFacts, TokenizerFacts
from eval.report_wording import cautions, verdict
from tasks.contract import Progress, Settings, Stage, StageError, UserPath

if TYPE_CHECKING:
    from eval.history import HistoryEntry

INPUTS = ("corpus", "tokenizer", "pack", "pretrain", "evaluate")
"""The artifacts that a report reads, in the order of the chain."""


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
        raise StageError(f"report.json: {first_problem(error)}; run the report stage again with --force") from None


def collect(settings: ReportSettings, inputs: Mapping[str, Path]) -> Report:
    """Everything that the report shows, from the records and files of the artifacts.

    Raises:
        StageError: a figure is missing or has the wrong type; artifact and key are named.
    """
    records = {name: record_of(inputs[name]) for name in INPUTS}
    corpus = facts_of(CorpusFacts, "corpus", records["corpus"].metrics)
    tokenizer = facts_of(TokenizerFacts, "tokenizer", records["tokenizer"].metrics)
    packing = facts_of(PackingFacts, "pack", records["pack"].metrics)
    pretraining = pretraining_of(inputs["pretrain"], records["pretrain"])
    collaboration = read_ledger(inputs["pretrain"])
    results = results_of(inputs["evaluate"] / "results.json")
    store = inputs["evaluate"].parents[2]  # An artifact lies at artifacts/<stage>/<fingerprint> of the store.
    seed_runs, complete = records_at(store, [source.path for source in records["evaluate"].inputs.values()])
    others, others_complete = records_at(store, other_inputs([records["corpus"], *seed_runs], INPUTS))
    environments = environments_of(
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
