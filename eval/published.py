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
    """What was measured on: names on the hub, configuration, items by split, labels by id, digest if known."""

    datasets: tuple[str, ...]
    config: str | None = None
    items: dict[str, int]
    labels: tuple[str, ...]
    sha256: str | None = None
    """Digest of the content as :meth:`eval.data.TaskData.facts` computes it."""


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

    def differences(self, data: dict[str, Any], metric: str) -> list[str]:
        """What keeps a score from being comparable with the published ones, in words; nothing if it is.

        Equal sizes and labels alone do not make files the same data. The content is the published one if its digest
        is, or, where the table states none, if it was read from the published data set on the hub itself.

        Args:
            data: the facts in a seed run's ``scores.json``, under ``data``.
            metric: its headline score, one of :data:`eval.settings.METRICS`.
        """
        source, wanted = data["source"], self.data
        found = []
        if metric != self.metric:
            found.append(f"the score is {metric}, the published one {self.metric}")
        if wanted.sha256 is not None:
            if data["sha256"] != wanted.sha256:
                found.append(
                    f"the content's digest is {data['sha256'][:16]}, the published data's {wanted.sha256[:16]}"
                )
        elif source["kind"] != "hub" or source.get("local"):
            kind = {"sample": "the built-in sample", "hub": "a local copy"}.get(source["kind"], "own files")
            found.append(f"the data are {kind}, and no digest is known to compare their content by")
        elif (source["dataset"], source["config"]) not in [(name, wanted.config) for name in wanted.datasets]:
            asked = " ".join(filter(None, (source["dataset"], source["config"])))
            found.append(
                f"the data set is {asked}, the published one {wanted.datasets[0]} {wanted.config or ''}".rstrip()
            )
        for split, count in wanted.items.items():
            if data["items"].get(split) != count:
                found.append(f"{split} has {data['items'].get(split, 0):,} items, the published {count:,}")
        if tuple(data["labels"]) != wanted.labels:
            order = "in another order" if sorted(data["labels"]) == sorted(wanted.labels) else "others"
            found.append(f"the labels are {order}: {', '.join(data['labels'])}; published {', '.join(wanted.labels)}")
        return found


def published_tables() -> dict[str, PublishedTable]:
    """The tables by key."""
    import yaml

    text = Path(__file__).with_name("published.yaml").read_text(encoding="utf-8")
    return {key: PublishedTable.model_validate(table) for key, table in yaml.safe_load(text).items()}
