"""What the report says of the probe during pretraining."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from eval.report import render

sys.path.insert(0, str(Path(__file__).parent))
from report_artifacts import (
    CHROMIUM,
    NO_CHROMIUM,
    Page,
    markdown_tables,
    report_in,
    shown_by_a_browser,
    training_log,
)

PROBE = {"task": "ner", "train_items": 1000, "epochs": 3, "metric": "entity F1", "failures": 0, "score": 0.61}
TITLE = "probe on ner: entity F1, per cent"


def probed_log(*steps: int) -> list[dict]:
    log = training_log(4800, plateau=False)
    for line in log:
        if line["step"] in steps:
            line["probe_score"] = 0.2 + line["step"] / 10_000
    return log


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    log = probed_log(1600, 3200, 4800)
    return report_in(tmp_path_factory.mktemp("probed"), log=log, metrics={"pretrain": {"probe": PROBE}})


def validations(markdown: str) -> list[list[str]]:
    tables = [table for table in markdown_tables(markdown) if table[0][0].strip() == "step"]
    assert len(tables) == 1
    return [[cell.strip() for cell in row] for row in tables[0]]


def test_its_scores_are_drawn_and_stand_in_the_table(probed: tuple[str, str, str]) -> None:
    report, markdown, html = probed
    drawing = next(svg for svg in re.findall(r"(?s)<svg.*?</svg>", html) if "probe-title" in svg)
    assert "Probe on ner over pretraining steps" in drawing
    assert "From 36.0 per cent at step 1,600 to 68.0 per cent at step 4,800." in drawing
    assert f">{TITLE}<" in drawing
    assert drawing.count('class="dot"') == 3
    assert "trained on up to 1,000 items of ner, 3 times over, and its entity F1" in Page(html).text
    assert "trained on up to 1,000 items of ner, 3 times over, and its entity F1" in markdown
    rows = validations(markdown)
    assert rows[0][-1] == TITLE
    cells = {row[0]: row[-1] for row in rows[2:]}
    assert (cells["1,600"], cells["2,000"], cells["4,800"]) == ("36.00", "no probe", "68.00")
    assert render(report) == (markdown, html)
    ids = [value for _, name, value in Page(html).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert "failed probes" not in {caution["kind"] for caution in json.loads(report)["cautions"]}


def test_without_one_nothing_is_said(tmp_path: Path) -> None:
    for text in report_in(tmp_path)[1:]:
        assert "probe" not in text.lower()


def test_a_long_table_is_thinned_but_keeps_the_steps_with_a_probe(tmp_path: Path) -> None:
    log = [{"step": step, "mlm_loss": 5.0, "validation_loss": 5.0, "masked_accuracy": 0.1} for step in range(1, 1001)]
    for step in (77, 555, 1000):
        log[step - 1]["probe_score"] = 0.5
    rows = validations(report_in(tmp_path, log=log, metrics={"pretrain": {"probe": PROBE}})[1])
    steps = [int(row[0].replace(",", "")) for row in rows[2:]]
    assert steps == sorted(set(steps))
    assert len(steps) == 12 + 2
    assert [int(row[0].replace(",", "")) for row in rows[2:] if row[-1] == "50.00"] == [77, 555, 1000]


def test_failures_are_a_caution_and_all_of_them_no_drawing(tmp_path: Path) -> None:
    probe = {**PROBE, "failures": 3, "score": None}
    report, markdown, html = report_in(tmp_path, metrics={"pretrain": {"probe": probe}})
    assert "probe-title" not in html
    assert TITLE not in markdown
    texts = [caution["text"] for caution in json.loads(report)["cautions"] if caution["kind"] == "failed probes"]
    assert texts == [
        "Probes during pretraining that failed and are missing in the curve: 3. The log of the run says why."
    ]


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_a_browser_shows_it_without_complaint(probed: tuple[str, str, str], tmp_path: Path) -> None:
    assert "Probe on ner over pretraining steps" in shown_by_a_browser(probed[2], tmp_path)
