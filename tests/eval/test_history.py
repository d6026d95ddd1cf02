"""The history of a recipe: what is kept, when scores can be compared, what is called a drop, and how it is shown."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from eval.history import HistoryEntry, Point, keep, keep_all, points_of, read_history
from eval.history_view import drop_sentence, history_rows, history_views, terminal_rows
from eval.report import render
from flows.retention import clean
from tasks.store import Store

sys.path.insert(0, str(Path(__file__).parent))
from made_evaluations import answers, make_evaluation
from report_artifacts import CHROMIUM, NO_CHROMIUM, START, Page, markdown_tables, report_in, shown_by_a_browser


def evaluated(root: Path, day: int, *right: int, **more: Any) -> Path:
    """An evaluation of day ``day`` whose seed runs have so many of ten right."""
    runs = {"ncc": {"pretrained": [answers(count) for count in right]}}
    return make_evaluation(root, runs, **{"number": day, "finished": START + timedelta(days=day), **more})


def points(root: Path, recipe: str = "demo") -> list[Point]:
    return list(points_of(read_history(Store(root), recipe)))


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_every_evaluation_is_a_point_in_order_of_time(tmp_path: Path) -> None:
    evaluated(tmp_path, 2, 8, 6)
    evaluated(tmp_path, 1, 9, 7)
    evaluated(tmp_path, 3, 5, 5, recipe="other")
    before = files(tmp_path)
    first, second = points(tmp_path)
    assert files(tmp_path) == before, "reading writes nothing"
    assert (first.entry.finished, second.entry.finished) == (START + timedelta(days=1), START + timedelta(days=2))
    score = first.score
    assert (score.mean, score.n, score.declared, score.scores) == (pytest.approx(0.8), 2, 2, {1: 0.9, 2: 0.7})
    assert score.std == pytest.approx(0.02**0.5)
    assert (first.previous, first.change, first.interval, first.dropped) == (None, None, None, False)
    assert second.previous == first.entry
    assert second.change == pytest.approx(-0.1)
    assert (first.entry.recipe, first.entry.fingerprint) == ("demo", "0000000000000001" + "0" * 48)
    assert first.on.sha256 == "5" * 64
    assert [point.score.mean for point in points(tmp_path, "other")] == [0.5]


@pytest.mark.parametrize(
    ("before", "now", "interval"),
    [
        # Variance 0.01 / 3 in both, n = 4: standard error sqrt(0.01 / 6), 6 degrees of freedom, t(0.975; 6) 2.447.
        ((10, 9, 10, 9), (7, 6, 7, 6), (-0.3 - 0.0999, -0.3 + 0.0999)),
        # Variance 0.02, n = 2: standard error sqrt(0.02), 2 degrees of freedom, t(0.975; 2) 4.303.
        ((6, 4), (3, 1), (-0.3 - 0.6085, -0.3 + 0.6085)),
        ((8, 8), (7, 7), (-0.1, -0.1)),
        ((7, 7), (8, 8), (0.1, 0.1)),
        ((8, 8), (8, 8), (0, 0)),
        ((8,), (2,), None),
    ],
)
def test_a_drop_is_a_fall_beyond_the_interval(
    tmp_path: Path, before: tuple[int, ...], now: tuple[int, ...], interval: tuple[float, float] | None
) -> None:
    evaluated(tmp_path, 1, *before)
    evaluated(tmp_path, 2, *now)
    point = points(tmp_path)[1]
    assert point.interval == (None if interval is None else pytest.approx(interval, abs=1e-4))
    assert point.dropped == (interval is not None and interval[1] < 0)


def test_the_sentence_on_a_drop(tmp_path: Path) -> None:
    evaluated(tmp_path, 1, 10, 9, 10, 9)
    evaluated(tmp_path, 2, 7, 6, 7, 6)
    assert drop_sentence(points(tmp_path)[1]) == (
        "ncc, pretrained: mean accuracy 65.00 after 95.00 (2026-03-05 05:06 UTC), a drop of 30.00 points "
        "(95 % for other seeds: 20.01 to 39.99)"
    )


@pytest.mark.parametrize("other", [{"data": {"sha256": "6" * 64}}, {"fine_tuning": {"epochs": 7}}])
def test_other_data_or_fine_tuning_are_no_drop_and_no_break(tmp_path: Path, other: dict[str, Any]) -> None:
    evaluated(tmp_path, 1, 9, 9)
    evaluated(tmp_path, 2, 2, 2, **other)
    evaluated(tmp_path, 3, 8, 8)
    first, changed, back = points(tmp_path)
    assert (changed.previous, changed.dropped) == (None, False)
    assert back.previous == first.entry, "the newest that it can be compared with"
    assert back.dropped


def test_entries_are_written_once_and_say_what_the_artifact_says(tmp_path: Path) -> None:
    artifact = evaluated(tmp_path, 1, 9, 7)
    derived = read_history(Store(tmp_path), "demo")
    keep(Store(tmp_path), artifact)
    (path,) = tmp_path.glob("history/demo/*.json")
    assert path.name == derived[0].file_name
    assert HistoryEntry.model_validate_json(path.read_bytes()) == derived[0]
    written = path.stat()
    keep_all(Store(tmp_path))
    assert path.stat().st_mtime_ns == written.st_mtime_ns
    assert read_history(Store(tmp_path), "demo") == derived


def test_a_recipe_that_reuses_anothers_evaluation_has_it_too(tmp_path: Path) -> None:
    artifact = evaluated(tmp_path, 1, 9, 7)
    keep(Store(tmp_path), artifact, "second")
    assert [point.entry.recipe for point in points(tmp_path, "second")] == ["second"]
    assert [point.entry.recipe for point in points(tmp_path)] == ["demo"]


def test_history_survives_clean_and_the_loss_of_artifacts(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.create()
    replaced = evaluated(store.root, 1, 9, 9)
    store.discard(replaced)  # as a forced run does with what it replaces
    evaluated(store.root, 1, 5, 5, finished=START + timedelta(days=4))
    expected = [0.9, 0.5]
    assert [point.score.mean for point in points(store.root)] == expected
    clean(store, work=True, dry_run=True)
    assert not (store.root / "history").exists()
    assert "removed trash/evaluate-" in clean(store, work=True, dry_run=False)[0]
    assert [point.score.mean for point in points(store.root)] == expected
    os.utime(store.root / "artifacts/evaluate" / f"{1:016x}" / "record.json", (0, 0))
    os.utime(store.root / "artifacts/evaluate" / f"{1:016x}", (0, 0))
    clean(store, work=False, unused_days=1, dry_run=False)
    assert not list(store.root.glob("artifacts/evaluate/*"))
    assert [point.score.mean for point in points(store.root)] == expected


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    artifact = evaluated(tmp_path, 1, 9, 9)
    evaluated(tmp_path, 2, 8, 8)
    keep_all(Store(tmp_path))
    first, second = sorted((tmp_path / "history/demo").iterdir())
    shutil.rmtree(artifact)
    first.write_text("{")
    second.write_text("{")
    with caplog.at_level(logging.WARNING, "eval.history"):
        assert [point.score.mean for point in points(tmp_path)] == [0.8], "an artifact stands in for its entry"
    assert [record.getMessage() for record in caplog.records] == [f"{first}: cannot be read, and the history lacks it"]


@pytest.mark.parametrize("change", ["results", "record", "recipe"])
def test_damaged_artifacts_are_no_points(tmp_path: Path, change: str) -> None:
    artifact = evaluated(tmp_path, 1, 9, 9)
    path = artifact / ("results.json" if change == "results" else "record.json")
    if change == "recipe":
        path.write_text(path.read_text().replace('"recipe":"demo"', '"recipe":"../demo"'))
    else:
        path.write_text(path.read_text().replace("0.9", "0.8") if change == "results" else "{")
    assert points(tmp_path) == []
    keep_all(Store(tmp_path))
    assert not (tmp_path / "history").exists()
    assert not (tmp_path / "demo").exists()


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[HistoryEntry]:
    root = tmp_path_factory.mktemp("history")
    for day, (right, more) in enumerate(
        [((9, 10, 9), {}), ((10, 10, 9), {}), ((4, 5, 4), {}), ((3, 4), {"data": {"sha256": "6" * 64}})], start=1
    ):
        runs = {"ncc": {name: [answers(count) for count in right] for name in ("pretrained", "random")}}
        make_evaluation(root, runs, number=day, finished=START + timedelta(days=day), **more)
    found = []
    for entry in read_history(Store(root), "demo"):
        task = entry.tasks["ncc"]
        models = task.models | {"org/<x>": task.models["random"]}
        found.append(entry.model_copy(update={"tasks": {"ncc": task.model_copy(update={"models": models})}}))
    return found


def test_rows_and_tables(entries: list[HistoryEntry]) -> None:
    rows = history_rows(entries)
    assert len(rows) == 12
    assert json.loads(json.dumps(rows)) == rows
    drop = rows[6]
    assert (drop["evaluated"], drop["model"], drop["dropped"]) == ("2026-03-07T05:06:07+00:00", "pretrained", True)
    assert drop["change"] == pytest.approx(13 / 30 - 29 / 30)
    assert [row["change"] for row in rows[9:]] == [None] * 3
    (view,) = history_views(entries)
    assert [row[5] for row in view.table.rows if row[1] == "pretrained"] == [
        "first", "+3.33", "\N{MINUS SIGN}53.33, dropped", "first"
    ]  # fmt: skip
    assert len(view.drops) == 3
    titles, *lines = terminal_rows(entries)
    assert (titles[0], titles[-1], len(lines)) == ("task", "data", 12)
    assert terminal_rows([]) == []


def test_the_drawing_joins_only_what_can_be_compared(entries: list[HistoryEntry]) -> None:
    (view,) = history_views(entries)
    drawing = str(view.chart)
    assert drawing.count('class="trend"') == 3 * 2
    assert drawing.count('class="drop"') == 3
    assert drawing.count('class="range"') == 12
    assert "pretrained: from 93.33 on 2026-03-05 to 35.00 on 2026-03-08, drops beyond the interval: 1." in drawing
    assert str(history_views(entries[:1])[0].chart) == "", "one evaluation is no trend"


def test_the_report_shows_it_when_it_is_rendered_again(tmp_path: Path, entries: list[HistoryEntry]) -> None:
    content, markdown, html = report_in(tmp_path)
    assert "history" not in html.lower()
    assert render(content) == (markdown, html)
    with_history = render(content, entries)
    page = Page(with_history[1])
    assert page.text.index("\nScores\n") < page.text.index("\nHistory\n") < page.text.index("The model learns by")
    assert "53.33, dropped" in page.text
    assert "<x>" in page.text
    assert "<x>" not in with_history[1]
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert any(len(table) == 2 + 12 and "dropped" in table[8][5] for table in markdown_tables(with_history[0]))


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_page_opens_in_a_browser_without_complaint(tmp_path: Path, entries: list[HistoryEntry]) -> None:
    assert "53.33, dropped" in shown_by_a_browser(render(report_in(tmp_path)[0], entries)[1], tmp_path)
