"""What machines cost by the hour: the rows of ``prices.yaml``, which are built in, and the user's own beside them.

The user's file has the same form, a YAML list of rows, each a :class:`Price`. A row of the user's replaces the
built-in one of the same name, and that is told wherever costs are.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date as calendar_date
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tasks.contract import Settings, UserError, UserPath
from tasks.strict_yaml import cut, nearest, read_yaml
from tasks.user_files import file_problem, shown

CPU = "CPU"
"""What ``accelerator`` says of a machine that trains on its processor; ``count`` is then the number of its cores."""


class CostSettings(Settings):
    """What the costs in the report are computed with."""

    prices: UserPath | None = Field(
        None, description="a YAML file of own rows, which may replace built-in ones; null: those of sahajflow alone"
    )


class Price(BaseModel):
    """What one machine costs, by whom and when.

    A rented one has ``usd_per_hour``. One's own has ``watts`` and, for their cost, ``usd_per_kwh``; with
    ``usd_per_hour`` for its wear too, if that is to count.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    instance: str = Field(min_length=1, max_length=60)
    """The name of the machine, or of the kind that a provider rents out."""
    accelerator: str = Field(min_length=1, max_length=60)
    """Words of the name that the driver gives the accelerator, such as "A100 80GB"; or :data:`CPU`."""
    count: int = Field(ge=1, le=100_000)
    """Accelerators, or the processor's cores."""
    usd_per_hour: float | None = Field(None, ge=0, le=1e6)
    watts: float | None = Field(None, gt=0, le=1e6)
    """What the whole machine draws while it trains."""
    usd_per_kwh: float | None = Field(None, ge=0, le=1e3)
    date: str
    """Of the price, as 2026-11-30."""
    source: str = Field(min_length=1, max_length=200)
    """Who says so."""

    @field_validator("instance", "accelerator", "source")
    @classmethod
    def _one_line(cls, text: str) -> str:
        if not text.isprintable() or not text.strip():
            raise ValueError("should be words on one line")
        return text.strip()

    @field_validator("date")
    @classmethod
    def _is_date(cls, text: str) -> str:
        try:
            if calendar_date.fromisoformat(text).isoformat() == text:
                return text
        except ValueError:
            pass
        raise ValueError('should be a date in quotes, such as "2026-11-30"')

    @model_validator(mode="after")
    def _says_something(self) -> Price:
        if self.usd_per_hour is None and self.watts is None:
            raise ValueError("has neither usd_per_hour nor watts; give one of them")
        if self.usd_per_kwh is not None and self.watts is None:
            raise ValueError("usd_per_kwh needs watts beside it")
        return self

    @property
    def hourly(self) -> float | None:
        """USD an hour, the electricity included; None if only the watts are known."""
        power = None if self.watts is None or self.usd_per_kwh is None else self.watts / 1000 * self.usd_per_kwh
        return power if self.usd_per_hour is None else self.usd_per_hour + (power or 0.0)

    def is_of(self, accelerator: str, count: int) -> bool:
        """Whether a machine with so many accelerators of this name, or cores of a :data:`CPU`, is of this kind."""
        words, wanted = (set(name.upper().replace("-", " ").split()) for name in (accelerator, self.accelerator))
        return self.count == count and "MIG" not in words and wanted <= words


@dataclass(frozen=True)
class Prices:
    """All rows that count."""

    rows: tuple[Price, ...]
    own: frozenset[str] = frozenset()
    """Names of the rows that are the user's."""
    replaced: tuple[Price, ...] = ()
    """Built-in rows in whose place the user's stand."""

    def row(self, instance: str) -> Price | None:
        """The row of this name."""
        return next((row for row in self.rows if row.instance == instance), None)


def load_prices(path: str | None) -> Prices:
    """The built-in rows with the user's in place of them and behind them.

    Args:
        path: the user's file; None for the built-in rows alone.

    Raises:
        UserError: the file cannot be read or a row is wrong; one line with file, row, key and remedy.
    """
    built_in = read_prices(Path(__file__).with_name("prices.yaml"))
    if path is None:
        return Prices(built_in)
    if Path(path).is_dir():
        raise UserError(f"cost.prices: {shown(path)}: is a folder; name one file of prices")
    if problem := file_problem(Path(path)):
        raise UserError(f"cost.prices: {shown(path)}: {problem}")
    own = {row.instance: row for row in read_prices(Path(path))}
    standing = {row.instance: row for row in built_in}
    return Prices(
        rows=tuple({**standing, **own}.values()),
        own=frozenset(own),
        replaced=tuple(row for row in built_in if row.instance in own),
    )


def read_prices(path: Path) -> tuple[Price, ...]:
    """The rows of a file.

    Raises:
        UserError: one line with file, row, key and remedy.
    """
    rows = read_yaml(path)
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{shown(path)}: should be a list of rows with the keys {', '.join(Price.model_fields)}")
    found: dict[str, Price] = {}
    for number, values in enumerate(rows, start=1):
        place = f"{shown(path)}: row {number}"
        name = values.get("instance") if isinstance(values, dict) else None
        if isinstance(name, str) and name.isprintable():
            place += f" ({cut(name, 60)})"
        price = _row(values, place)
        if price.instance in found:
            raise UserError(f"{place}: stands twice; leave one out")
        found[price.instance] = price
    return tuple(found.values())


def _row(values: Any, place: str) -> Price:
    if not isinstance(values, dict):
        raise UserError(f"{place}: should be a mapping of {', '.join(Price.model_fields)}")
    try:
        return Price.model_validate(values)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        # a misspelt key makes another one missing; the spelling is what is to be mended
        first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
        raise UserError(f"{place}: {_told(first)}".replace("\n", " ")) from None


def _told(problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{cut(key)}: unknown key; {nearest(key, tuple(Price.model_fields))}"
    if problem["type"] == "missing":
        return f"{key}: is missing"
    text = problem["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    return f"{key}: {cut(repr(problem['input']))}: {text}" if key else text
