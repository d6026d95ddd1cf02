"""The typed content of a cost, as ``report.json`` and ``sahajflow cost --json`` hold it.

Times are hours, money is USD, energy is kWh.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from eval.prices import Price


class CostFacts(BaseModel):
    """Base of all that is told of a cost."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Schedule(CostFacts):
    """The full pretraining that a recipe asks for."""

    engine: str
    steps: int
    batch_size: int
    """Sequences in a step."""
    sequence_length: int
    """Tokens in a sequence."""
    tokens: int


class Machine(CostFacts):
    """What trained. ``accelerator`` is :data:`eval.prices.CPU` where there was none."""

    accelerator: str | None
    count: int | None
    """Accelerators, or the cores of the processor; None if that is not recorded."""
    host: str
    elsewhere: int = 0
    """Peers on machines that are not recorded."""


class Amount(CostFacts):
    """Hours on a machine, with what they cost and draw as far as the price says so."""

    hours: float
    usd: float | None
    kwh: float | None


class Priced(CostFacts):
    """A measured throughput on one row of the prices."""

    instance: str
    usd_per_hour: float | None
    """The electricity included, where the row has it."""
    own: bool
    """Whether the row is the user's."""
    run: Amount
    chain: Amount | None
    full: Amount


class Measured(CostFacts):
    """The speed of a finished pretraining, and what that costs."""

    engine: str
    machine: Machine
    exact: bool
    """Whether this recipe's own pretraining was measured; else another one whose steps are the same work."""
    steps: int
    tokens: int
    tokens_per_second: float
    run_hours: float
    """Of all steps, over interruptions."""
    chain_hours: float | None
    """Working time of all stages; None if some of it is not there."""
    full_hours: float
    """Of the recipe's full schedule at this speed."""
    prices: tuple[Priced, ...] = ()


class Published(CostFacts):
    """A training that others published, and what it costs at the price of the table."""

    name: str
    engine: str
    instance: str
    instances: int
    hours: float
    """Of the full training; :attr:`basis` says what was timed."""
    basis: str
    tokens_per_second: float | None
    """All instances together; None if the source does not say how many tokens that were."""
    stated_usd: float
    stated_usd_per_hour: float | None
    """Of one instance; None if the source states none."""
    usd_at_stated_price: float | None
    price: Price | None
    """The row of the table that stands for the instance; None if there is none."""
    usd: float | None
    """Of the full training at that price."""
    schedule: Amount | None
    """Of the recipe's full schedule at this speed; None if its model or sequence length is another."""
    date: str
    source: str
    note: str


class Comparison(CostFacts):
    """One published training against another, in per cent."""

    first: str
    second: str
    basis: Literal["stated", "prices"]
    """The amounts that the source states, or those at the prices of the table."""
    less: float
    """By how much the first costs less than the second, of the second."""
    more: float
    """By how much the second costs more than the first, of the first."""


class Cost(CostFacts):
    """All that is shown of a recipe's cost, so that it can be shown again from it."""

    recipe: str
    schedule: Schedule
    measured: tuple[Measured, ...]
    published: tuple[Published, ...]
    comparisons: tuple[Comparison, ...]
    own_prices: tuple[Price, ...]
    replaced_prices: tuple[Price, ...]
