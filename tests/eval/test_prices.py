import json
from pathlib import Path
from typing import Any

import pytest

from eval.prices import Price, load_prices
from tasks.contract import UserError

ROW: dict[str, Any] = {
    "instance": "desk",
    "accelerator": "CPU",
    "count": 2,
    "usd_per_hour": 0.5,
    "date": "2026-11-30",
    "source": "my bill",
}


def write(folder: Path, rows: Any) -> str:
    path = folder / "mine.yaml"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return str(path)


def test_built_in_rows_have_price_date_and_source() -> None:
    prices = load_prices(None)
    assert {"dl1.24xlarge", "p3dn.24xlarge"} < {row.instance for row in prices.rows}
    assert all(row.hourly and row.source and row.date >= "2020-01-01" for row in prices.rows)
    assert prices.own == frozenset()
    assert prices.replaced == ()


def test_own_rows_stand_beside_the_built_in_ones_and_replace_those_of_their_name(tmp_path: Path) -> None:
    built_in = load_prices(None)
    prices = load_prices(write(tmp_path, [ROW, ROW | {"instance": "dl1.24xlarge", "usd_per_hour": 12}]))
    assert len(prices.rows) == len(built_in.rows) + 1
    assert prices.own == {"desk", "dl1.24xlarge"}
    assert [(row.instance, row.hourly) for row in prices.replaced] == [("dl1.24xlarge", 13.10904)]
    dl1 = prices.row("dl1.24xlarge")
    assert dl1 is not None
    assert dl1.hourly == 12


@pytest.mark.parametrize(
    ("changes", "hourly"),
    [
        ({}, 0.5),
        ({"usd_per_hour": None, "watts": 200}, None),
        ({"usd_per_hour": None, "watts": 200, "usd_per_kwh": 0.25}, 0.05),
        ({"watts": 200, "usd_per_kwh": 0.25}, 0.55),
        ({"watts": 200}, 0.5),
    ],
)
def test_an_hour_costs_rent_and_electricity(changes: dict[str, Any], hourly: float | None) -> None:
    assert Price.model_validate(ROW | changes).hourly == (None if hourly is None else pytest.approx(hourly))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (ROW | {"count": 0}, "row 2 (desk): count: 0: should be greater than or equal to 1"),
        (ROW | {"count": "2"}, "row 2 (desk): count: '2': should be a valid integer"),
        (ROW | {"usd_per_hour": -1}, "row 2 (desk): usd_per_hour: -1: should be greater than or equal to 0"),
        (ROW | {"usd_per_hour": True}, "row 2 (desk): usd_per_hour: True: should be a valid number"),
        (ROW | {"usd_per_hour": "1e999"}, "row 2 (desk): usd_per_hour: '1e999'"),
        (ROW | {"usd_per_hour": None}, "row 2 (desk): has neither usd_per_hour nor watts; give one of them"),
        (ROW | {"usd_per_kwh": 0.3}, "row 2 (desk): usd_per_kwh needs watts beside it"),
        (ROW | {"date": "30.11.2026"}, "row 2 (desk): date: '30.11.2026': should be a date in quotes, such as"),
        (ROW | {"date": "20261130"}, "row 2 (desk): date: '20261130': should be a date in quotes"),
        (ROW | {"usd_per_houre": 1}, "row 2 (desk): usd_per_houre: unknown key; did you mean usd_per_hour?"),
        (ROW | {"source": " "}, "row 2 (desk): source: ' ': should be words on one line"),
        (ROW | {"source": "a\nb"}, "should be words on one line"),
        ({key: value for key, value in ROW.items() if key != "source"}, "row 2 (desk): source: is missing"),
        (ROW | {"instance": "a\u202eb"}, r"row 2: instance: 'a\u202eb': should be words on one line"),
        (ROW | {"instance": "first"}, "row 2 (first): stands twice; leave one out"),
        ("desk", "row 2: should be a mapping of instance, accelerator"),
    ],
)
def test_a_wrong_row_is_one_line(row: Any, told: str, tmp_path: Path) -> None:
    path = write(tmp_path, [ROW | {"instance": "first"}, row])
    with pytest.raises(UserError) as error:
        load_prices(path)
    assert "\n" not in str(error.value)
    assert f"{path}: " in str(error.value)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "should be a list of rows with the keys instance, accelerator"),
        ("desk: 1", "should be a list of rows"),
        (
            "- {instance: a, date: 2026-11-30}",
            "mine.yaml:1: is not valid YAML: 2026-11-30 is read as a date; quote it",
        ),
        ("- {", "is not valid YAML"),
    ],
)
def test_a_file_that_is_none_of_prices_is_one_line(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=r"^[^\n]+$") as error:
        load_prices(str(tmp_path / "mine.yaml"))
    assert told in str(error.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^cost\.prices: .*none\.yaml: no such file"):
        load_prices(str(tmp_path / "none.yaml"))
    with pytest.raises(UserError, match="is a folder; name one file of prices"):
        load_prices(str(tmp_path))


@pytest.mark.parametrize(
    ("instance", "accelerator", "count", "same"),
    [
        ("p4d.24xlarge", "NVIDIA A100-SXM4-40GB", 8, True),
        ("p4d.24xlarge", "NVIDIA A100-SXM4-40GB", 1, False),
        ("p4d.24xlarge", "NVIDIA A100-SXM4-80GB", 8, False),
        ("p4de.24xlarge", "NVIDIA A100-SXM4-80GB", 8, True),
        ("p4de.24xlarge", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", 8, False),
        ("p3dn.24xlarge", "Tesla V100-SXM2-32GB", 8, True),
        ("p5.48xlarge", "NVIDIA H100 80GB HBM3", 8, True),
        ("g4dn.xlarge", "Tesla T4", 1, True),
        ("dl1.24xlarge", "GAUDI", 8, True),
        ("dl1.24xlarge", "GAUDI2", 8, False),
        ("dl1.24xlarge", "CPU", 8, False),
    ],
)
def test_a_row_is_for_machines_of_its_kind(instance: str, accelerator: str, count: int, same: bool) -> None:
    row = load_prices(None).row(instance)
    assert row is not None
    assert row.is_of(accelerator, count) == same
