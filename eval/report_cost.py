"""What a report and ``sahajflow cost`` say of the cost: sentences and tables from :class:`eval.cost.Cost`."""

from __future__ import annotations

from dataclasses import dataclass

from eval.cost import HPU
from eval.cost_schema import Amount, Comparison, Cost, Machine, Measured, Priced, Published
from eval.prices import CPU, Price
from eval.report_tables import Table, duration, make_table

UNKNOWN = "unknown"


@dataclass(frozen=True)
class CostView:
    """The section on the cost as shown: first what was measured here, then, apart, what others published."""

    schedule: str
    measured: Table | None
    """None if nothing was measured."""
    prices: Table | None
    """What was measured, at the prices of machines of that kind; None if no price is known for them."""
    remarks: tuple[str, ...]
    """What is not known, and how to make it known."""
    published: Table
    comparison: tuple[str, ...]
    assumptions: tuple[str, ...]


def cost_view(cost: Cost) -> CostView:
    """The section's sentences and tables."""
    return CostView(
        schedule=_schedule(cost),
        measured=_measured_table(cost.measured),
        prices=_price_table(cost.measured),
        remarks=tuple(_remarks(cost)),
        published=_published_table(cost),
        comparison=tuple(_compared(comparison) for comparison in cost.comparisons),
        assumptions=tuple(_assumptions(cost)),
    )


def _schedule(cost: Cost) -> str:
    asked = cost.schedule
    return (
        f"The full pretraining is {asked.steps:,} steps of {asked.batch_size:,} sequences of "
        f"{asked.sequence_length:,} tokens: {asked.tokens:,} tokens, by the engine {asked.engine}."
    )


def _measured_table(measured: tuple[Measured, ...]) -> Table | None:
    if not measured:
        return None
    rows = [
        (
            run.engine if run.exact else f"{run.engine}, another run of {run.steps:,} steps",
            machine_text(run.machine),
            f"{run.tokens_per_second:,.1f}",
            _hours(run.run_hours),
            UNKNOWN if run.chain_hours is None else _hours(run.chain_hours),
            _hours(run.full_hours),
        )
        for run in measured
    ]
    titles = ["engine", "machine", "tokens/s", "this pretraining", "all stages", "full schedule"]
    return make_table("cost-measured", "Measured: speed and time", titles, "llrrrr", rows)


def _price_table(measured: tuple[Measured, ...]) -> Table | None:
    rows = [
        (
            price.instance,
            run.engine,
            _hourly(price),
            _amount(price.run),
            UNKNOWN if price.chain is None else _amount(price.chain),
            _amount(price.full),
        )
        for run in measured
        for price in run.prices
    ]
    if not rows:
        return None
    titles = ["price of", "engine", "USD/h", "this pretraining", "all stages", "full schedule"]
    return make_table("cost-prices", "What that costs on machines of the same kind", titles, "llrrrr", rows)


def _remarks(cost: Cost) -> list[str]:
    if not cost.measured:
        return [
            "Nothing was measured for this recipe: no pretraining of it has finished in this store. What follows "
            "comes from published inputs alone."
        ]
    remarks = []
    for run in cost.measured:
        if run.prices:
            continue
        if run.machine.elsewhere:
            remarks.append(
                f"Engine {run.engine}: {run.machine.elsewhere:,} of the peers were on machines that are not recorded, "
                "so USD and kWh are unknown."
            )
        else:
            remarks.append(
                f"Engine {run.engine}: no price is known for {machine_text(run.machine)}, so USD and kWh are unknown. "
                f"A row of your own in cost.prices gives them, with {_wanted(run.machine)}."
            )
    return remarks


def _wanted(machine: Machine) -> str:
    if machine.accelerator is None or machine.count is None:
        return "the machine's accelerator and count, which this run's record lacks: run it again"
    return f"accelerator: {machine.accelerator} and count: {machine.count}"


def _published_table(cost: Cost) -> Table:
    rows = []
    for run in cost.published:
        machines = f"{run.instances:,} x {run.instance}"
        rows.append(
            (run.name, machines, _hours(run.hours), _as_published(run), _at_price(run, run.usd, cost.own_prices))
        )
        if run.schedule is not None:
            rows.append(
                (
                    f"this recipe's {cost.schedule.steps:,} steps at that speed",
                    machines,
                    _hours(run.schedule.hours),
                    "",
                    _at_price(run, run.schedule.usd, cost.own_prices),
                )
            )
    titles = ["training", "on", "time", "USD as published", "USD at a price per hour (its date)"]
    caption = "Published by others, not measured here"
    return make_table("cost-published", caption, titles, "llrrr", rows)


def _as_published(run: Published) -> str:
    stated = f"about {run.stated_usd:,.0f}"
    if run.usd_at_stated_price is None:
        return stated
    return f"{stated}; {quantity(run.usd_at_stated_price)} at {run.stated_usd_per_hour:g} USD/h"


def _at_price(run: Published, usd: float | None, own: tuple[Price, ...]) -> str:
    if run.price is None or run.price.hourly is None or usd is None:
        return UNKNOWN
    yours = ", yours" if run.price in own else ""
    return f"{quantity(usd)} at {run.price.hourly:.9g} ({run.price.date}{yours})"


def _compared(comparison: Comparison) -> str:
    first, second = comparison.first, comparison.second
    if comparison.basis == "stated":
        return (
            f"By the amounts that the source states, {first} is {comparison.less:.1f} % cheaper than {second}, and "
            f"{second} costs {comparison.more:.1f} % more; the source rounds to 25 %, and calls that once a surplus "
            "and once a reduction."
        )
    if comparison.less < 0:
        return f"At the prices above, {first} costs {-comparison.less:.1f} % more than {second}."
    return (
        f"At the prices above, {first} is {comparison.less:.1f} % cheaper, and {second} costs "
        f"{comparison.more:.1f} % more."
    )


def _assumptions(cost: Cost) -> list[str]:
    lines = []
    if cost.measured:
        lines += [
            "Measured is the speed of the training's steps, over interruptions. The full schedule is at that speed, "
            "with as many tokens a step as were measured; starting and validating come on top.",
            "All stages: the working time in their records, without the report's. Of a stage that was killed and went "
            "on, this is its last part alone.",
            "A measured speed is priced only on machines of the kind that it was measured on: the same accelerator "
            "and as many of them, or a row of yours for a processor with as many cores. What a processor measures "
            "says nothing of an accelerator, and one accelerator nothing of another.",
        ]
    if any(run.machine.accelerator == HPU for run in cost.measured):
        lines.append("The record does not say which Gaudi trained: it is priced as the first, which dl1.24xlarge has.")
    lines += [
        "USD is hours times the price per hour. Storage, traffic, idle time and failed attempts are not counted.",
        "Published hours are other people's, with other software; machines joined by a network are priced as if it "
        "cost no time.",
        *(f"{run.name}: {run.basis}; {run.note}. Source: {run.source} ({run.date})." for run in cost.published),
    ]
    sources: dict[str, list[str]] = {}
    for row in _used(cost):
        sources.setdefault(f"{row.date}, {row.source}", []).append(row.instance)
    lines += [f"Price of {', '.join(names)}: {source}." for source, names in sources.items()]
    lines += [
        f"Your row {row.instance} replaces the built-in one ({row.usd_per_hour:.9g} USD/h, {row.date})."
        for row in cost.replaced_prices
    ]
    return lines


def _used(cost: Cost) -> list[Price]:
    """The rows of the table that the published runs were priced with, then the user's own."""
    rows = [run.price for run in cost.published if run.price is not None]
    return [*rows, *(row for row in cost.own_prices if row not in rows)]


def machine_text(machine: Machine) -> str:
    """ "2 CPU cores of workshop", "8 x NVIDIA H100 80GB HBM3 of node-1"."""
    count = "an unknown number of" if machine.count is None else f"{machine.count:,}"
    if machine.accelerator == CPU:
        what = f"{count} CPU core{'s' * (machine.count != 1)}"
    else:
        what = f"{count} x {machine.accelerator or 'an accelerator that is not recorded'}"
    others = f" and {machine.elsewhere:,} peers elsewhere" if machine.elsewhere else ""
    return f"{what}{f' of {machine.host}' if machine.host else ''}{others}"


def quantity(value: float) -> str:
    """ "1,638.63"; of little the two first digits that are not 0: "0.0021"."""
    if value >= 0.1 or value == 0:
        return f"{value:,.2f}"
    return f"{value:.2g}" if value >= 0.0001 else "under 0.0001"


def _hourly(price: Priced) -> str:
    hourly = UNKNOWN if price.usd_per_hour is None else f"{price.usd_per_hour:.9g}"
    return f"{hourly} (yours)" if price.own else hourly


def _amount(amount: Amount) -> str:
    parts = [] if amount.usd is None else [f"{quantity(amount.usd)} USD"]
    parts += [] if amount.kwh is None else [f"{quantity(amount.kwh)} kWh"]
    return ", ".join(parts)


def _hours(hours: float) -> str:
    return duration(3600 * hours)
