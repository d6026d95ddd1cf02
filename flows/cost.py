"""`sahajflow cost`: what of a recipe was measured in the store, and its cost as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.cost import Run, cost_of, run_of
from eval.cost_schema import Cost
from eval.prices import load_prices
from eval.report_cost import CostView, cost_view
from eval.report_facts import read_ledger
from eval.report_tables import Table
from flows.columns import columns
from flows.execution import Options, Prepared, prepare
from flows.housekeeping import usable_store
from flows.plan import Step
from tasks.contract import UserError
from tasks.record import Damaged, Record, read_record
from tasks.store import Store

EQUAL_WORK = ("objective", "batch_size", "optimizer", "masking", "precision", "device")
"""Settings of pretraining that decide how much work a step is; with the same engine ``accumulation`` does too."""


def recipe_cost(name: str, changes: tuple[str, ...], store: str | None, own_prices: str | None) -> Cost:
    """The cost of a recipe: by its own pretraining if that is in the store; and for every other engine, or where its
    own is not there, by the newest pretraining in the store whose steps are the same work.

    Args:
        name: a built-in recipe, or the path of one.
        changes: ``"key=value"``, as of ``--set``.
        store: where results are; None for the default place.
        own_prices: the user's file of prices, which goes before the recipe's; relative to the current folder.

    Raises:
        UserError: the recipe, the store or the file of prices is wrong.
    """
    if own_prices is not None:
        try:
            path = Path(own_prices).expanduser().absolute()
        except RuntimeError:
            raise UserError(f"--prices {own_prices}: there is no such user; write the path out") from None
        changes = (*changes, f"cost.prices={json.dumps(str(path))}")
    usable_store(store)
    prepared = prepare(Options(recipe=name, set_=changes, store=store))
    recipe = prepared.recipe
    return cost_of(recipe.model_dump(mode="json"), _runs(prepared), load_prices(recipe.cost.prices))


def _runs(prepared: Prepared) -> list[Run]:
    steps = {step.node.name: step for step in prepared.steps}
    step = steps["pretrain"]
    found: dict[str, Run] = {}
    for record in sorted(prepared.store.records("pretrain"), key=lambda record: record.finished):
        exact = step.record is not None and record.fingerprint == step.record.fingerprint
        engine = record.identity["pretraining"]["engine"]
        if not exact and not _same_work(record, steps, prepared):
            continue
        ledger = read_ledger(prepared.store.artifact("pretrain", record.fingerprint))
        run = run_of(
            record,
            engine=engine,
            peers=[peer.name for peer in ledger.peers] if ledger else (),
            exact=exact,
            chain_seconds=_chain_seconds(prepared) if exact else None,
        )
        if run is not None and (exact or engine not in found or not found[engine].exact):
            found[engine] = run
    return list(found.values())


def _chain_seconds(prepared: Prepared) -> float | None:
    """Working time of all stages before the report; None unless all of them are there."""
    records = [step.record for step in prepared.steps if step.node.name != "report"]
    return sum(record.seconds for record in records if record) if all(records) else None


def _same_work(record: Record, steps: Mapping[str, Step], prepared: Prepared) -> bool:
    """Whether a step of that pretraining is as much work as one of the recipe's."""
    wanted, identity = steps["pretrain"].identity, record.identity
    asked, had = wanted["pretraining"], identity["pretraining"]
    keys = [*EQUAL_WORK, *(["accumulation"] if had["engine"] == asked["engine"] else [])]
    length = record.metrics.get("tokens", 0) / max(1, record.metrics.get("samples", 0))
    return (
        identity["model"] == wanted["model"]
        and all(had.get(key) == asked[key] for key in keys)
        and length == prepared.recipe.packing.sequence_length
        and _tokenizer_of(record, prepared.store) == steps["tokenizer"].identity
    )


def _tokenizer_of(record: Record, store: Store) -> dict[str, Any] | None:
    try:
        return read_record(store.root / record.inputs["tokenizer"].path).identity
    except (Damaged, KeyError):
        return None


def cost_text(cost: Cost) -> str:
    """The same as the report's section, for a terminal."""
    view: CostView = cost_view(cost)
    blocks = [
        f"{cost.recipe}: {view.schedule}",
        *(_table(table) for table in (view.measured, view.prices) if table),
        *view.remarks,
        _table(view.published),
        *view.comparison,
        "\n".join(["Assumptions", *(f"- {line}" for line in view.assumptions)]),
    ]
    return "\n\n".join(blocks)


def _table(table: Table) -> str:
    """The table in columns, its caption above it."""
    lines = columns([table.titles, *table.rows, *table.totals], table.alignment)
    return "\n".join([table.caption, *(f"  {line}" for line in lines)])
