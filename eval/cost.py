"""What a pretraining costs: measured speed and published hours, times the prices of machines.

Nothing is claimed of a machine that nobody measured. A throughput is priced on machines of the kind that it was
measured on (the same accelerator and as many of them; for a processor a row of the user's with as many cores), and
what others published of their machines stands apart, with its source. The report and ``sahajflow cost`` show the same
:class:`eval.cost_schema.Cost`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from eval.cost_schema import Amount, Comparison, Cost, CostFacts, Machine, Measured, Priced, Published, Schedule
from eval.prices import CPU, Price, Prices
from tasks.record import Record

HPU = "Gaudi"
"""What an HPU is taken for if its record does not name it: the first generation, which dl1.24xlarge has."""


class Run(CostFacts):
    """A pretraining's record, read for its cost."""

    engine: str
    exact: bool
    machine: Machine
    steps: int
    tokens: int
    tokens_per_second: float
    seconds: float
    chain_seconds: float | None = None


class _PublishedRun(CostFacts):
    """One entry of ``published_runs.yaml``."""

    name: str
    engine: str
    instance: str
    instances: int
    hours: float
    steps: int | None = None
    full_steps: int | None = None
    batch_size: int | None = None
    sequence_length: int | None = None
    model: Mapping[str, Any] | None = None
    usd: float
    usd_per_hour: float | None = None
    date: str
    source: str
    note: str


def schedule_of(recipe: Mapping[str, Any]) -> Schedule:
    """The full pretraining of a recipe, given as the mapping that its file holds."""
    asked, length = recipe["pretraining"], recipe["packing"]["sequence_length"]
    return Schedule(
        engine=asked["engine"],
        steps=asked["steps"],
        batch_size=asked["batch_size"],
        sequence_length=length,
        tokens=asked["steps"] * asked["batch_size"] * length,
    )


def run_of(
    record: Record,
    *,
    engine: str,
    peers: Sequence[str] = (),
    exact: bool = True,
    chain_seconds: float | None = None,
) -> Run | None:
    """What a pretraining's record says of speed and machine; None if it has no speed.

    Args:
        record: of a finished ``pretrain``.
        engine: that trained.
        peers: names of the peers that gave samples, for the engine ``collaborative``.
        exact: whether it is the pretraining of the very recipe that is asked for.
        chain_seconds: working time of all stages.
    """
    metrics = record.metrics
    speed, seconds = metrics.get("tokens_per_second"), metrics.get("seconds_training")
    if not speed or not seconds:
        return None
    return Run(
        engine=engine,
        exact=exact,
        machine=_machine(record, peers),
        steps=metrics["steps"],
        tokens=metrics["tokens"],
        tokens_per_second=speed,
        seconds=seconds,
        chain_seconds=chain_seconds,
    )


def _machine(record: Record, peers: Sequence[str]) -> Machine:
    """A run's own peers are called peer-0, peer-1 ...; one that joins has its host's name or a chosen one."""
    host = str(record.environment.get("host", ""))
    elsewhere = sum(not name.removeprefix("peer-").isdecimal() for name in peers)
    device = record.resolved.get("device")
    if device == "cpu":
        return Machine(accelerator=CPU, count=record.environment.get("cores"), host=host, elsewhere=elsewhere)
    name = record.resolved.get("accelerator") or (HPU if device == "hpu" else None)
    return Machine(accelerator=name, count=record.resolved.get("devices"), host=host, elsewhere=elsewhere)


def cost_of(recipe: Mapping[str, Any], runs: Iterable[Run], prices: Prices) -> Cost:
    """The cost of a recipe's pretraining.

    Args:
        recipe: as the mapping that its file holds.
        runs: what was measured; nothing if nothing was.
        prices: of machines.
    """
    schedule = schedule_of(recipe)
    published = tuple(_published(run, recipe, schedule, prices) for run in published_runs())
    return Cost(
        recipe=recipe["name"],
        schedule=schedule,
        measured=tuple(_measured(run, schedule, prices) for run in runs),
        published=published,
        comparisons=_comparisons(published[0], published[-1]),
        own_prices=tuple(row for row in prices.rows if row.instance in prices.own),
        replaced_prices=prices.replaced,
    )


def published_runs() -> tuple[_PublishedRun, ...]:
    """What ``published_runs.yaml`` holds."""
    import yaml

    text = Path(__file__).with_name("published_runs.yaml").read_text(encoding="utf-8")
    return tuple(_PublishedRun.model_validate(run) for run in yaml.safe_load(text))


def _measured(run: Run, schedule: Schedule, prices: Prices) -> Measured:
    run_hours = run.seconds / 3600
    chain_hours = None if run.chain_seconds is None else run.chain_seconds / 3600
    # by the tokens that a step really had: peers give a few more than batch_size
    full_hours = schedule.steps * run.tokens / run.steps / run.tokens_per_second / 3600
    return Measured(
        engine=run.engine,
        machine=run.machine,
        exact=run.exact,
        steps=run.steps,
        tokens=run.tokens,
        tokens_per_second=run.tokens_per_second,
        run_hours=run_hours,
        chain_hours=chain_hours,
        full_hours=full_hours,
        prices=tuple(
            Priced(
                instance=row.instance,
                usd_per_hour=row.hourly,
                own=row.instance in prices.own,
                run=_amount(run_hours, row),
                chain=None if chain_hours is None else _amount(chain_hours, row),
                full=_amount(full_hours, row),
            )
            for row in prices.rows
            if _same_kind(row, run.machine)
        ),
    )


def _same_kind(row: Price, machine: Machine) -> bool:
    if machine.accelerator is None or machine.count is None or machine.elsewhere:
        return False
    return row.is_of(machine.accelerator, machine.count)


def _amount(hours: float, row: Price, instances: int = 1) -> Amount:
    hourly = row.hourly
    return Amount(
        hours=hours,
        usd=None if hourly is None else hours * instances * hourly,
        kwh=None if row.watts is None else hours * instances * row.watts / 1000,
    )


def _published(run: _PublishedRun, recipe: Mapping[str, Any], schedule: Schedule, prices: Prices) -> Published:
    hours, basis, speed, same_work = run.hours, f"{run.hours:g} h as published", None, False
    if run.steps and run.full_steps and run.batch_size and run.sequence_length:
        hours = run.hours * run.full_steps / run.steps
        basis = f"{run.hours:g} h for {run.steps:,} steps, {run.full_steps:,} in full"
        speed = run.steps * run.batch_size * run.sequence_length / run.hours / 3600
        same_model = all(recipe["model"].get(key) == value for key, value in (run.model or {}).items())
        same_work = same_model and schedule.sequence_length == run.sequence_length
    row = prices.row(run.instance)
    schedule_hours = schedule.tokens / speed / 3600 if speed and same_work else None
    return Published(
        name=run.name,
        engine=run.engine,
        instance=run.instance,
        instances=run.instances,
        hours=hours,
        basis=basis,
        tokens_per_second=speed,
        stated_usd=run.usd,
        stated_usd_per_hour=run.usd_per_hour,
        usd_at_stated_price=None if run.usd_per_hour is None else hours * run.instances * run.usd_per_hour,
        price=row,
        usd=None if row is None else _amount(hours, row, run.instances).usd,
        schedule=None if schedule_hours is None or row is None else _amount(schedule_hours, row, run.instances),
        date=run.date,
        source=run.source,
        note=run.note,
    )


def _comparisons(first: Published, last: Published) -> tuple[Comparison, ...]:
    pairs: dict[Literal["stated", "prices"], tuple[float | None, float | None]] = {
        "stated": (first.stated_usd, last.stated_usd),
        "prices": (first.usd, last.usd),
    }
    return tuple(
        Comparison(first=first.name, second=last.name, basis=basis, less=100 * (1 - a / b), more=100 * (b / a - 1))
        for basis, (a, b) in pairs.items()
        if a and b
    )
