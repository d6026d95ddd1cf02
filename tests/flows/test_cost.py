"""`sahajflow cost` on a store that a chain of stubs has filled."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.command_line import main
from flows.execution import carry_out
from flows.graph import Node, nodes_of
from flows.plan import Selection, make_plan
from flows.recipe import load_recipe
from tasks.store import Store

STEPS = 600
TOKENS = STEPS * 64 * 64
LOCAL = ("pretraining.engine=local", "pretraining.accumulation=1")


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAHAJFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tasks.durable.sync_path", lambda path: None)
    monkeypatch.setattr("tasks.store.environment", lambda: {"host": "workshop", "cores": 4})
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.chdir(tmp_path)


def stub(settings: Any, inputs: dict[str, Path], folder: Path, progress: Any) -> dict[str, Any]:
    (folder / "made").write_text(settings.model_dump_json())
    if not hasattr(settings, "pretraining"):
        return {}
    asked = settings.pretraining
    samples = asked.steps * asked.batch_size
    tokens = samples * json.loads((inputs["pack"] / "made").read_text())["sequence_length"]
    speed = {"local": 1000.0, "collaborative": 500.0}[asked.engine]
    figures = {"tokens_per_second": speed, "seconds_training": tokens / speed}
    metrics = {"steps": asked.steps, "samples": samples, "tokens": tokens}
    return metrics | figures | {"resolved": {"device": "cpu"}}


def trained(store: Path, *changes: str, until: str = "report") -> None:
    """The demo as stubs, with these changes."""

    def stubbed(node: Node) -> Node:
        return replace(node, stage=replace(node.stage, run=stub))

    nodes = [stubbed(node) for node in nodes_of(load_recipe("demo", changes))]
    steps, inputs = make_plan(nodes, Store(str(store)), Selection(until=until))
    carry_out(steps, inputs, Store(str(store)), lambda node, work: work(lambda *_, **__: None))


def told(capsys: pytest.CaptureFixture[str], *arguments: str, changes: tuple[str, ...] = ()) -> dict[str, Any]:
    options = [part for change in changes for part in ("--set", change)]
    assert main(["cost", "demo", "--json", *arguments, *options]) == 0
    cost: dict[str, Any] = json.loads(capsys.readouterr().out)
    return cost


def test_published_figures_come_out_of_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["cost", "bert-gaudi"]) == 0
    text = capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ")
    for figure in ("125 h 00 min", "about 1,650", "1,638.63", "33 h 15 min", "about 2,075", "2,076.13 at 31.22 USD/h"):
        assert figure in text
    assert "20.5 % cheaper" in text
    assert "costs 25.8 % more; the source rounds to 25 %" in text
    assert "Nothing was measured for this recipe" in text
    assert "this recipe's 100,000 steps at that speed  1 x dl1.24xlarge    12 h 30 min" in text
    assert not (tmp_path / "home").exists()


def test_an_empty_store_has_measured_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    cost = told(capsys)
    assert cost["measured"] == []
    assert cost["schedule"]["tokens"] == TOKENS
    assert [run["schedule"] for run in cost["published"]] == [None, None]


def test_the_recipes_own_run_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trained(tmp_path / "store", until="pretrain")
    (run,) = told(capsys, "--store", "store")["measured"]
    assert (run["engine"], run["exact"], run["tokens_per_second"]) == ("collaborative", True, 500.0)
    assert run["full_hours"] == run["run_hours"] == pytest.approx(TOKENS / 500 / 3600)
    assert run["machine"] == {"accelerator": "CPU", "count": 4, "host": "workshop", "elsewhere": 0}
    assert run["chain_hours"] is None
    trained(tmp_path / "store")
    (run,) = told(capsys, "--store", "store")["measured"]
    assert run["chain_hours"] is not None
    assert main(["cost", "demo", "--store", "store"]) == 0
    assert "no price is known for 4 CPU cores of workshop" in capsys.readouterr().out


def test_a_short_trial_of_the_same_work_tells_what_the_full_schedule_takes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trained(tmp_path / "store", "pretraining.steps=300", "pretraining.seed=7", until="pretrain")
    (run,) = told(capsys, "--store", "store")["measured"]
    assert (run["exact"], run["steps"]) == (False, 300)
    assert run["full_hours"] == pytest.approx(2 * run["run_hours"])
    assert main(["cost", "demo", "--store", "store"]) == 0
    assert "collaborative, another run of 300 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        "model.layers=3",
        "packing.sequence_length=32",
        "pretraining.batch_size=128",
        "pretraining.masking.rate=0.15",
        "pretraining.accumulation=4",
        "pretraining.precision=fp32",
        "tokenizer.vocabulary_size=500",
    ],
)
def test_a_trial_of_other_work_tells_nothing(change: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trained(tmp_path / "store", change, until="pretrain")
    assert told(capsys, "--store", "store")["measured"] == []


def test_every_engine_that_was_measured_is_told_the_newest_run_of_each(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for changes in ((), (*LOCAL, "pretraining.steps=300"), (*LOCAL, "pretraining.steps=400")):
        trained(tmp_path / "store", *changes, until="pretrain")
    measured = told(capsys, "--store", "store")["measured"]
    assert {run["engine"]: (run["exact"], run["steps"]) for run in measured} == {
        "collaborative": (True, 600),
        "local": (False, 400),
    }


def test_own_prices_from_the_command_line_and_from_the_recipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trained(tmp_path / "store", until="pretrain")
    row = {"instance": "desk", "accelerator": "CPU", "count": 4, "usd_per_hour": 0.5}
    (tmp_path / "mine.yaml").write_text(json.dumps([row | {"date": "2026-11-30", "source": "my bill"}]))
    first = told(capsys, "--store", "store", "--prices", "mine.yaml")
    assert first == told(capsys, "--store", "store", changes=("cost.prices=mine.yaml",))
    (price,) = first["measured"][0]["prices"]
    assert price["full"]["usd"] == pytest.approx(TOKENS / 500 / 3600 * 0.5)


def test_the_content_of_the_prices_decides_the_report(tmp_path: Path) -> None:
    store, prices = Store(str(tmp_path / "store")), tmp_path / "mine.yaml"
    row = '- {instance: desk, accelerator: CPU, count: 4, usd_per_hour: 1, date: "2026-11-30", source: me}\n'
    prices.write_text(row)
    change = f"cost.prices={prices}"
    trained(store.root, change)

    def actions() -> set[str]:
        nodes = [
            replace(node, stage=replace(node.stage, run=stub)) for node in nodes_of(load_recipe("demo", [change]))
        ]
        return {step.node.name for step in make_plan(nodes, store, Selection())[0] if step.action != "reuse"}

    assert actions() == set()
    prices.write_text(row.replace("usd_per_hour: 1", "usd_per_hour: 2"))
    assert actions() == {"report"}


@pytest.mark.parametrize("command", [["cost", "demo"], ["plan", "demo"]])
def test_wrong_prices_are_one_line_before_anything_runs(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("- {instance: desk, count: 4}")
    assert main([*command, "--set", "cost.prices=mine.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "mine.yaml: row 1 (desk): accelerator: is missing" in line
    assert not (tmp_path / "home").exists()


def test_prices_that_are_not_there_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--prices", "none.yaml"], ["--set", "cost.prices=none.yaml"], ["--prices", "~nobody-here/a"]):
        assert main(["cost", "demo", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "none.yaml: no such file" in line or "~nobody-here" in line
