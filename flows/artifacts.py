"""The tables and texts that Prefect's pages show for finished stages, made from what the stages left."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from eval.results import Interval


@dataclass(frozen=True)
class Shown:
    """One thing to show. ``data`` is a JSON list of rows for a table, Markdown text for a markdown."""

    stage: str
    kind: Literal["table", "markdown"]
    description: str
    data: str


def shown_for(stage: str, artifact: Path, metrics: Mapping[str, Any]) -> Shown | None:
    """What to show of a finished stage, or None for stages that have nothing to show.

    Args:
        stage: the stage's name.
        artifact: the folder it left.
        metrics: the metrics in its record.
    """
    if stage == "corpus" and "sources" in metrics:
        rows = [{"source": source} | counts for source, counts in metrics["sources"].items()]
        return _table(stage, "The documents of each source, and why others were left out", rows)
    if stage == "tokenizer":
        rows = [{"figure": name, "value": value} for name, value in metrics.items()]
        return _table(stage, "The tokenizer on the validation split", rows)
    if stage == "pack":
        rows = [{"split": split} | counts for split, counts in metrics["splits"].items()]
        return _table(stage, "Where the tokens went: in = packed + dropped + remainder", rows)
    if stage == "pretrain":
        peers = _peers(artifact)
        return _table(stage, "The peers that pretrained together; times are seconds", peers) if peers else None
    if stage == "evaluate":
        return _table(stage, "Scores on the test splits; std is the sample standard deviation", _scores(artifact))
    if stage == "report":
        return Shown(stage, "markdown", "The report", (artifact / "report.md").read_text(encoding="utf-8"))
    return None


def key_of(*words: str) -> str:
    """A key that Prefect accepts (lowercase letters, digits, dashes), equal for equal words: its history's name."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


def _scores(artifact: Path) -> list[dict[str, Any]]:
    from eval.results import Results

    results = Results.model_validate_json((artifact / "results.json").read_bytes())
    return [
        {
            "task": task.task,
            "model": model.model,
            "metric": task.metric,
            "mean": model.mean,
            "std": model.std,
            "n": model.n if not model.missing else f"{model.n}/{model.declared}",
        }
        | _ends("95 % for other seeds", model.interval)
        | _ends("95 % for other test items", model.item_interval)
        | {f"seed {seed.seed}": seed.score for seed in model.seeds}
        | {f"seed {failed.seed}": f"missing: {failed.reason}" for failed in model.missing}
        for task in results.tasks
        for model in task.models
    ]


def _ends(title: str, interval: Interval | None) -> dict[str, float | None]:
    return {f"{title}: {end}": getattr(interval, end, None) for end in ("low", "high")}


def _peers(artifact: Path) -> list[dict[str, Any]]:
    from eval.report_facts import read_ledger

    ledger = read_ledger(artifact)
    return [
        {"peer": peer.name, "samples": peer.samples, "share": peer.share, "global steps": peer.steps}
        | {outcome: peer.outcomes.get(outcome, 0) for outcome in ("averaged", "alone", "no group", "failed")}
        | {"computing": peer.computing, "matching": peer.matching, "reducing": peer.reducing}
        for peer in (ledger.peers if ledger else ())
    ]


def _table(stage: str, description: str, rows: list[dict[str, Any]]) -> Shown:
    return Shown(stage, "table", description, json.dumps(rows, ensure_ascii=False))
