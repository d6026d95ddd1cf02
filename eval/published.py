"""Published figures: the tables of ``published.yaml``, and whether a task's data is what they were measured on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from eval.results import PublishedScore


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedRow(_Table):
    """One model's published mean and standard deviation, and over how many runs."""

    model: str
    mean: float
    std: float | None = None
    runs: int | None = None


class PublishedData(_Table):
    """What was measured on: names on the hub, configuration, items by split, labels."""

    datasets: tuple[str, ...]
    config: str | None = None
    items: dict[str, int]
    labels: tuple[str, ...]


class PublishedTable(_Table):
    """One source's figures for one task."""

    source: str
    note: str = ""
    metric: str
    data: PublishedData
    rows: tuple[PublishedRow, ...]

    def scores(self) -> tuple[PublishedScore, ...]:
        """The rows as the result file has them."""
        return tuple(
            PublishedScore(
                model=row.model, mean=row.mean, std=row.std, runs=row.runs, source=self.source, note=self.note
            )
            for row in self.rows
        )

    def comparable(self, data: dict[str, Any], metric: str) -> bool:
        """Whether ``data`` (the facts in a seed run's scores.json) is the published data set.

        Only a data set of the hub can be: equal sizes and labels alone do not make local files the same data.
        """
        source = data["source"]
        return (
            metric == self.metric
            and source["kind"] == "hub"
            and source["dataset"] in self.data.datasets
            and source["config"] == self.data.config
            and data["items"] == self.data.items
            and sorted(data["labels"]) == sorted(self.data.labels)
        )


def published_tables() -> dict[str, PublishedTable]:
    """The tables by key."""
    import yaml

    text = Path(__file__).with_name("published.yaml").read_text(encoding="utf-8")
    return {key: PublishedTable.model_validate(table) for key, table in yaml.safe_load(text).items()}
