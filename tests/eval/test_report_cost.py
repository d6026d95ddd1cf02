"""The cost as the report and the command show it."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from report_artifacts import METRICS, Page, build_artifacts, markdown_tables, report_in, settings, write_record

from eval.cost import cost_of
from eval.prices import load_prices
from eval.public_report import private_facts, public_report
from eval.report import collect, render
from eval.report_cost import cost_view, quantity
from eval.report_schema import Report
from eval.report_tables import duration, timing_table
from tasks.record import Input, read_record

PRICES = """
- {instance: desk, accelerator: CPU, count: 2, watts: 100, usd_per_kwh: 0.3, date: "2026-11-30", source: my bill}
- {instance: dl1.24xlarge, accelerator: Gaudi, count: 8, usd_per_hour: 40, date: "2026-11-01", source: my contract}
"""


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    return report_in(tmp_path_factory.mktemp("usual"))


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    root = tmp_path_factory.mktemp("priced")
    (root / "mine.yaml").write_text(PRICES)
    report = collect(settings(prices=str(root / "mine.yaml")), build_artifacts(root / "store"))
    content = report.model_dump_json()
    return content, *render(content)


def section(html: str) -> str:
    return Page(html[html.index('<section aria-labelledby="cost">') :].partition("</section>")[0] + "</section>").text


def test_report_json_has_the_measured_speed_and_time(usual: tuple[str, str, str]) -> None:
    cost = json.loads(usual[0])["cost"]
    (run,) = cost["measured"]
    assert run["tokens_per_second"] == METRICS["pretrain"]["tokens_per_second"]
    assert run["run_hours"] == pytest.approx(1502.3 / 3600)
    assert run["chain_hours"] == pytest.approx((4.2 + 31.07 + 12.5 + 1523.9 + 1.25 + 20 * 21.5) / 3600)
    assert run["full_hours"] == pytest.approx(4800 * 32 * 128 / 13087.0 / 3600)
    assert run["machine"] == {"accelerator": "CPU", "count": 2, "host": "workshop", "elsewhere": 0}


def test_models_of_others_and_test_texts_are_stages_too(tmp_path: Path) -> None:
    store = tmp_path / "store"
    artifacts = build_artifacts(store)
    of_others = {"compared-model": ("seed-run", "checkpoint"), "test-texts": ("corpus", "test-texts")}
    for stage, (reader, name) in of_others.items():
        path = f"artifacts/{stage}/{'a' * 16}"
        write_record(store / path, stage, seconds=1000, dirty=False)
        folder = store / f"artifacts/{reader}/{0:016x}"
        record = read_record(folder)
        inputs = {name: Input(path=path, digest="0" * 64)}
        (folder / "record.json").write_text(record.model_copy(update={"inputs": inputs}).model_dump_json())
    report = collect(settings(), artifacts)
    stages = [*of_others, "corpus", "tokenizer", "pack", "pretrain", "evaluate"]
    assert [stage.stage for stage in report.stages] == stages
    assert [place.stages for place in report.environments] == [(*stages[2:], "seed-run", *of_others)]
    before = 4.2 + 31.07 + 12.5 + 1523.9 + 1.25 + 20 * 21.5
    assert report.cost is not None
    assert report.cost.measured[0].chain_hours == pytest.approx((before + 2000) / 3600)
    assert timing_table(report).totals[0][2] == duration(before + 2000)
    shutil.rmtree(store / "artifacts/test-texts")
    report = collect(settings(), artifacts)
    assert report.cost is not None
    assert report.cost.measured[0].chain_hours is None


def test_page_and_markdown_say_what_is_unknown_and_how_to_tell_it(usual: tuple[str, str, str]) -> None:
    _, markdown, html = usual
    for text in (section(html), markdown):
        assert "2 CPU cores of workshop" in text
        assert "13,087.0" in text
        assert re.search("25.min.02.s", text)
        assert "no price is known for 2 CPU cores of workshop, so USD and kWh are unknown" in text
        assert "accelerator: CPU and count: 2" in text
    assert not [table for table in markdown_tables(markdown) if table[0][0].strip() == "price of"]


def test_published_runs_stand_apart_with_what_they_assume(usual: tuple[str, str, str]) -> None:
    _, markdown, html = usual
    for text in (section(html), markdown):
        for told in (
            "Published by others, not measured here",
            "1,638.63 at 13.10904 (2026-08-26)",
            "2,076.13 at 31.22 USD/h",
            "20.5 % cheaper",
            "costs 25.8 % more; the source rounds to 25 %",
            "12.5 h for 100,000 steps",
            "BERT-large",
            "What a processor measures says nothing of an accelerator",
        ):
            assert told in text
        assert "this recipe's" not in text


def test_own_prices_are_told_as_such(priced: tuple[str, str, str]) -> None:
    _, markdown, html = priced
    table = next(table for table in markdown_tables(markdown) if table[0][0].strip() == "price of")
    assert [cell.strip() for cell in table[2][:4]] == ["desk", "local", "0.03 (yours)", "0.013 USD, 0.042 kWh"]
    for text in (section(html), markdown):
        assert "5,000.00 at 40 (2026-11-01, yours)" in text
        assert "Your row dl1.24xlarge replaces the built-in one (13.10904 USD/h, 2026-08-26)" in text
        assert "At the prices above, BERT-base on 8 Gaudi costs 140.9 % more than BERT on 16 V100" in text
        assert "Price of desk: 2026-11-30, my bill" in text
        assert "no price is known" not in text


def test_a_report_of_before_has_no_section(usual: tuple[str, str, str]) -> None:
    markdown, html = render(json.dumps({key: value for key, value in json.loads(usual[0]).items() if key != "cost"}))
    assert "## Cost" not in markdown
    assert 'id="cost"' not in html


def test_the_public_report_does_not_name_the_machine_nor_who_pays(priced: tuple[str, str, str]) -> None:
    report = Report.model_validate_json(priced[0])
    public = public_report(report, private_facts(report, []))
    assert report.cost is not None
    assert public.cost is not None
    text = public.cost.model_dump_json()
    for private in ("workshop", "desk", "my bill", "my contract"):
        assert private in report.cost.model_dump_json()
        assert private not in text
    view = cost_view(public.cost)
    assert view.prices is not None
    assert view.prices.rows[0][:3] == ("own machine 1", "local", "0.03 (yours)")
    assert "5,000.00 at 40 (2026-11-01, yours)" in view.published.rows[0][-1]
    assert public.cost.published[-1] == report.cost.published[-1]  # no part of its source was taken for a private path


def test_nothing_measured_is_said() -> None:
    recipe = {
        "name": "x",
        "packing": {"sequence_length": 128},
        "model": {},
        "pretraining": {"engine": "local", "steps": 1, "batch_size": 1},
    }
    view = cost_view(cost_of(recipe, [], load_prices(None)))
    assert (view.measured, view.prices) == (None, None)
    assert "Nothing was measured for this recipe" in view.remarks[0]
    assert not any("Measured is" in line for line in view.assumptions)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (1638.63, "1,638.63"), (0.1, "0.10"), (0.0213, "0.021"), (0.00003, "under 0.0001")],
)
def test_quantities(value: float, text: str) -> None:
    assert quantity(value) == text
