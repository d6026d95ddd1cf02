"""The published figures from their inputs, and what is priced of a measurement."""

from datetime import UTC, datetime
from typing import Any

import pytest

from eval.cost import HPU, cost_of, run_of
from eval.cost_schema import Cost, Published
from eval.prices import Price, Prices, load_prices
from tasks.record import Record

GAUDI: dict[str, Any] = {
    "name": "bert-gaudi",
    "packing": {"sequence_length": 512},
    "model": {"architecture": "bert", "hidden_size": 768, "layers": 12, "heads": 12, "intermediate_size": 3072},
    "pretraining": {"engine": "gaudi", "steps": 100_000, "batch_size": 256},
}


def record(device: str = "cpu", **resolved: Any) -> Record:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    return Record(
        stage="pretrain",
        version=1,
        fingerprint="f" * 64,
        identity={},
        resolved={"device": device, **resolved},
        inputs={},
        outputs={},
        digest="0" * 64,
        metrics={"steps": 10, "tokens": 36_000, "tokens_per_second": 100.0, "seconds_training": 360.0},
        started=now,
        finished=now,
        seconds=400.0,
        environment={"host": "workshop", "cores": 4},
    )


def cost(recorded: Record | None = None, own: tuple[Price, ...] = (), **more: Any) -> Cost:
    built_in = load_prices(None)
    prices = Prices((*built_in.rows, *own), frozenset(row.instance for row in own))
    run = None if recorded is None else run_of(recorded, engine="local", **more)
    return cost_of(GAUDI, [run] if run else [], prices)


def own(**values: Any) -> Price:
    row = {"instance": "desk", "accelerator": "CPU", "count": 4, "date": "2026-11-30", "source": "me"} | values
    return Price.model_validate(row)


def published() -> tuple[Published, Published]:
    gaudi, gpus = cost().published
    return gaudi, gpus


def test_published_hours_and_cost_on_gaudi() -> None:
    gaudi, _ = published()
    assert (gaudi.instance, gaudi.instances) == ("dl1.24xlarge", 1)
    assert gaudi.hours == pytest.approx(125)  # ten times 12.5 h for 100,000 steps
    assert gaudi.tokens_per_second == pytest.approx(100_000 * 256 * 512 / 45_000)
    assert gaudi.usd == pytest.approx(125 * 13.10904)
    assert gaudi.usd == pytest.approx(1650, rel=0.01)  # "around ~$1,650"
    assert gaudi.stated_usd == 1650


def test_published_cost_on_gpus() -> None:
    _, gpus = published()
    assert (gpus.instance, gpus.instances, gpus.hours) == ("p3dn.24xlarge", 2, 33.25)
    assert gpus.usd_at_stated_price == pytest.approx(2 * 31.22 * 33.25)
    assert gpus.usd_at_stated_price == pytest.approx(2075, abs=2)  # "around ~$2,075"
    assert gpus.usd == pytest.approx(2 * 31.212 * 33.25)
    assert gpus.schedule is None  # another model


def test_what_the_source_rounds_to_25_per_cent() -> None:
    stated, prices = cost().comparisons
    assert (stated.basis, round(stated.less, 1), round(stated.more, 1)) == ("stated", 20.5, 25.8)
    assert (prices.basis, round(prices.less, 1), round(prices.more, 1)) == ("prices", 21.1, 26.7)


def test_a_recipe_of_the_published_model_has_its_schedule_at_the_published_speed() -> None:
    gaudi, _ = published()
    assert gaudi.schedule is not None
    assert gaudi.schedule.hours == pytest.approx(12.5)
    assert gaudi.schedule.usd == pytest.approx(12.5 * 13.10904)


@pytest.mark.parametrize(
    "other",
    [{"model": GAUDI["model"] | {"layers": 6}}, {"packing": {"sequence_length": 128}}],
    ids=["model", "length"],
)
def test_no_other_recipe_has(other: dict[str, Any]) -> None:
    told = cost_of(GAUDI | other, [], load_prices(None))
    assert [run.schedule for run in told.published] == [None, None]


def test_without_prices_the_published_runs_have_only_what_was_stated() -> None:
    told = cost_of(GAUDI, [], Prices(()))
    assert [run.usd for run in told.published] == [None, None]
    assert [comparison.basis for comparison in told.comparisons] == ["stated"]


def test_a_measured_run_is_told_in_hours_where_no_price_is_known() -> None:
    (run,) = cost(record(), chain_seconds=7200.0).measured
    assert (run.run_hours, run.chain_hours) == (0.1, 2.0)
    assert run.full_hours == pytest.approx(0.1 * 100_000 / 10)  # as long a step as was measured
    assert run.prices == ()
    assert (run.machine.accelerator, run.machine.count, run.machine.host) == ("CPU", 4, "workshop")


def test_what_a_processor_measured_is_priced_on_rows_of_the_users_with_as_many_cores_only() -> None:
    rows = (own(watts=500.0, usd_per_kwh=0.2), own(instance="large", count=8, usd_per_hour=1.0))
    (run,) = cost(record(), rows, chain_seconds=7200.0).measured
    (price,) = run.prices
    assert (price.instance, price.own) == ("desk", True)
    assert (price.run.usd, price.run.kwh) == (pytest.approx(0.01), pytest.approx(0.05))
    assert price.chain is not None
    assert (price.chain.usd, price.chain.kwh) == (pytest.approx(0.2), pytest.approx(1.0))
    assert price.full.usd == pytest.approx(run.full_hours * 0.1)


def test_watts_alone_tell_the_energy_and_no_money() -> None:
    (run,) = cost(record(), (own(watts=500.0),)).measured
    assert [(price.run.usd, price.run.kwh) for price in run.prices] == [(None, pytest.approx(0.05))]


def test_what_gpus_measured_is_priced_on_the_same_gpus() -> None:
    (run,) = cost(record("cuda", accelerator="NVIDIA A100-SXM4-40GB", devices=8)).measured
    assert [price.instance for price in run.prices] == ["p4d.24xlarge"]
    (run,) = cost(record("cuda", accelerator="NVIDIA A100-SXM4-40GB", devices=2)).measured
    assert run.prices == ()
    (run,) = cost(record("cuda", devices=8)).measured
    assert (run.machine.accelerator, run.prices) == (None, ())


def test_an_hpu_without_a_name_is_the_first_gaudi() -> None:
    (run,) = cost(record("hpu", devices=8)).measured
    assert run.machine.accelerator == HPU
    assert [price.instance for price in run.prices] == ["dl1.24xlarge"]


def test_peers_from_elsewhere_make_the_machines_unknown() -> None:
    rows = (own(usd_per_hour=1.0),)
    (run,) = cost(record(), rows, peers=("peer-0", "peer-1")).measured
    assert (run.machine.elsewhere, len(run.prices)) == (0, 1)
    (run,) = cost(record(), rows, peers=("peer-0", "workshop", "peer-x")).measured
    assert (run.machine.elsewhere, run.prices) == (2, ())


def test_a_record_without_a_speed_measures_nothing() -> None:
    empty = record().model_copy(update={"metrics": {"steps": 1, "tokens_per_second": None, "seconds_training": 0.0}})
    assert run_of(empty, engine="gaudi") is None


def test_a_cost_can_be_read_again() -> None:
    told = cost(record(), (own(usd_per_hour=1),))
    assert Cost.model_validate_json(told.model_dump_json()) == told
