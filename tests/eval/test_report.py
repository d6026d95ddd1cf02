"""The report stage on fake but realistic artifacts, in the records' real format."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from eval.charts import nice_ticks
from eval.rendering import in_markdown, linked
from eval.report import STAGE, ReportSettings, collect, render, run
from eval.report_schema import Report
from eval.report_wording import verdict
from eval.results import Comparison, ModelResult, PublishedScore, Results, SeedScore, TaskResult
from tasks.contract import StageError, no_progress
from tasks.record import Input, Record, digest_of, outputs_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NO_CHROMIUM = "chromium not installed"

START = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
NER_SCORES = {
    "pretrained": [0.7452, 0.7391, 0.7518, 0.7449, 0.7480],
    "random": [0.6120, 0.6255, 0.6043, 0.6180, 0.6011],
}
NCC_SCORES = {
    "pretrained": [0.8810, 0.8791, 0.8822, 0.8802, 0.8815],
    "random": [0.7904, 0.7990, 0.7811, 0.1667, 0.7925],
}


def task_result(task: str, kind: str, scores: dict[str, list[float]], **more: Any) -> TaskResult:
    models = []
    for model, values in scores.items():
        seeds = tuple(
            SeedScore(
                seed=seed,
                score=score,
                validation_score=score,
                best_epoch=3,
                flags=("one class only",) if score < 0.2 else (),
            )
            for seed, score in enumerate(values)
        )
        std = statistics.stdev(values) if len(values) > 1 else None
        models.append(ModelResult(model=model, seeds=seeds, n=len(values), mean=statistics.mean(values), std=std))
    comparison = None
    if len(models) > 1:
        difference = models[0].mean - models[1].mean
        stds = [model.std for model in models if model.std is not None]
        larger = max(stds) if stds else None
        comparison = Comparison(
            model=models[0].model,
            baseline=models[1].model,
            difference=difference,
            larger_std=larger,
            helps=None if larger is None else difference > 2 * larger,
            sentence=f"The difference on {task} is {100 * difference:.2f} points.",
        )
    facts: dict[str, Any] = {
        "metric": "entity F1" if kind == "ner" else "accuracy",
        "data": f"{task} (sample)",
        "items": {"train": 10000, "validation": 1000, "test": 1000},
        "majority": 0.0 if kind == "ner" else 0.1721,
        "published": (
            PublishedScore(
                model="sahajBERT (18 M parameters)",
                mean=0.9197,
                std=0.0047,
                runs=3,
                source="https://huggingface.co/blog/collaborative-training",
            ),
            PublishedScore(model="XLM-R-large", mean=0.9005, std=None, runs=None, source="model card", note="2021"),
        ),
        "published_comparable": False,
    }
    return TaskResult(task=task, kind=kind, models=tuple(models), comparison=comparison, **{**facts, **more})


def both_tasks() -> Results:
    return Results(
        tasks=(
            task_result("wikiann-bn", "ner", NER_SCORES),
            task_result("soham-ncc", "classification", NCC_SCORES, data="Soham NCC, বাংলা সংবাদ (sample)"),
        )
    )


METRICS: dict[str, dict[str, Any]] = {
    "corpus": {
        "documents": 51234,
        "characters": 30123456,
        "bytes": 80234567,
        "validation_documents": 512,
        "sources": {
            "উইকিপিডিয়া (Wikipedia bn)": {"documents": 11234, "characters": 7123456, "empty_dropped": 12},
            "OSCAR bn": {"documents": 40000, "characters": 23000000, "empty_dropped": 0},
        },
    },
    "tokenizer": {
        "entries": 8000,
        "algorithm": "Unigram",
        "tokens_per_word": 1.712,
        "tokens_per_byte": 0.1043,
        "unknown_rate": 0.0004,
        "vocabulary_in_use": 0.913,
        "held_out_words": 48211,
        "seconds_training": 21.4,
        "another figure": 1,
    },
    "pack": {
        "mode": "sentence-pairs",
        "sequence_length": 128,
        "splits": {
            "train": {
                "documents": 50722,
                "tokens_in": 4812345,
                "tokens_packed": 4800000,
                "tokens_dropped": 12000,
                "tokens_remainder": 345,
                "special_tokens": 112500,
                "padding": 9120,
                "blocks": 37500,
            },
            "validation": {
                "documents": 512,
                "tokens_in": 48000,
                "tokens_packed": 47900,
                "tokens_dropped": 0,
                "tokens_remainder": 100,
                "special_tokens": 1122,
                "padding": 0,
                "blocks": 374,
            },
        },
    },
    "pretrain": {
        "steps": 4800,
        "samples": 153600,
        "tokens": 19660800,
        "parameters": 4812000,
        "seconds_training": 1502.3,
        "tokens_per_second": 13087.0,
        "train_loss": 4.21,
        "validation_loss": 4.302,
        "unigram_entropy": 6.94,
        "left_plateau": True,
        "peak_memory_bytes": 812345678,
    },
    "evaluate": {"tasks": 2},
}


def training_log(steps: int, *, plateau: bool) -> list[dict[str, Any]]:
    lines = []
    for step in range(10, steps + 1, 10):
        fall = 6.9 if plateau else 4.2 + 2.6 * math.exp(-step / 900) + 0.5 * math.exp(-step / 4000)
        loss = fall + 2.0 * math.exp(-step / 60) + 0.12 * math.sin(step * 1.7) * math.sin(step * 0.31)
        line = {"step": step, "loss": loss + 0.6, "mlm_loss": loss, "sop_loss": 0.6, "learning_rate": 1e-3}
        if step % 400 == 0 or step == steps:
            line |= {"validation_loss": fall + 0.05, "validation_sop_accuracy": 0.5 + step / (2.6 * steps)}
        lines.append(line)
    return lines


def write_record(folder: Path, stage: str, *, seconds: float, dirty: bool, **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    outputs = outputs_of(folder)
    facts: dict[str, Any] = {"fingerprint": "f" * 64, "metrics": {}, "resolved": {}, "inputs": {}, "started": START}
    facts |= more
    record = Record(
        stage=stage,
        version=1,
        identity={},
        outputs=outputs,
        digest=digest_of(outputs),
        finished=facts["started"] + timedelta(seconds=seconds),
        seconds=seconds,
        environment={
            "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": dirty},
            "python": "3.11.7",
            "packages": {"sahajflow": "0.1.0", "torch": "2.9.0", "transformers": "5.0.1"},
            "host": "workshop",
            "machine": "x86_64",
            "cores": 2,
            "argv": ["sahajflow", "run", stage],
        },
        **facts,
    )
    (folder / "record.json").write_text(record.model_dump_json())


def build_artifacts(
    root: Path,
    *,
    results: Results | None = None,
    metrics: dict[str, dict[str, Any]] | None = None,
    log: list[dict[str, Any]] | None = None,
    dirty: bool = False,
) -> dict[str, Path]:
    """The five artifact folders that the report reads, and the seed runs, in the store ``root``.

    ``metrics`` are laid over :data:`METRICS`.
    """
    results = results or both_tasks()
    inputs = {}
    seed_runs = {}
    for task in results.tasks:
        for model in task.models:
            for seed in model.seeds:
                path = f"artifacts/seed-run/{len(seed_runs):016x}"
                seed_runs[f"{model.model}/{task.task}/{seed.seed}"] = Input(path=path, digest="0" * 64)
                write_record(root / path, "seed-run", seconds=21.5, dirty=dirty)
    started = START
    for number, (stage, figures) in enumerate(METRICS.items()):
        folder = inputs[stage] = root / f"artifacts/{stage}/{number:016x}"
        folder.mkdir(parents=True)
        if stage == "pretrain":
            (folder / "logs").mkdir()
            lines = training_log(4800, plateau=False) if log is None else log
            (folder / "logs/training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if stage == "evaluate":
            (folder / "results.json").write_text(results.model_dump_json())
        seconds = [4.2, 31.07, 12.5, 1523.9, 1.25][number]
        write_record(
            folder,
            stage,
            seconds=seconds,
            dirty=dirty,
            fingerprint=f"{number + 10:x}" * 64,
            started=started,
            metrics={**figures, **(metrics or {}).get(stage, {})},
            resolved={"precision": "bf16", "device": "cpu", "threads": 2} if stage == "pretrain" else {},
            inputs=seed_runs if stage == "evaluate" else {},
        )
        started += timedelta(seconds=seconds + 3)
    return inputs


def settings(name: str = "my-language", **more: Any) -> ReportSettings:
    recipe = {
        "name": name,
        "description": "a ``` fence and ক্ষ",
        "packing": {"sequence_length": 128},
        "evaluation": {"seeds": 5, "tasks": ["ner", "ncc"]},
    }
    description = "A small ALBERT for বাংলা, pretrained on Wikipedia and OSCAR."
    return ReportSettings(**{"recipe_name": name, "description": description, "recipe": recipe, **more})


def report_in(root: Path, *, name: str = "my-language", **more: Any) -> tuple[str, str, str]:
    """Runs the stage on built artifacts; the texts of report.json, report.md and report.html."""
    folder = root / "report"
    folder.mkdir()
    run(settings(name), build_artifacts(root / "store", **more), folder, no_progress)
    return tuple((folder / f"report.{kind}").read_text(encoding="utf-8") for kind in ("json", "md", "html"))


class Page(HTMLParser):
    """Checks that tags are balanced, and keeps the text and the attributes."""

    VOID = frozenset({"meta", "br", "rect", "line", "circle", "path"})

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self.feed(html)
        self.close()
        self.text = self.text.replace("\N{NO-BREAK SPACE}", " ")
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def markdown_tables(text: str) -> list[list[list[str]]]:
    """Cells of every pipe table outside code blocks."""
    text = re.sub(r"(?ms)^(`{3,}).*?^\1$", "", text)
    blocks = re.findall(r"(?m)(?:^\|.*\|\n)+", text + "\n")
    return [[re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()] for block in blocks]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    return report_in(tmp_path_factory.mktemp("usual"))


def test_page_holds_everything_in_order(usual: tuple[str, str, str]) -> None:
    page = Page(usual[2])
    order = [
        "my-language",
        "Pretraining clearly helps on some tasks but not on all",
        "74.58 ± 0.47",
        "seed 0: 74.52",
        "published, not measured here",
        "unigram entropy 6.94",
        "tokens per word",
        "sentence-pairs",
        "উইকিপিডিয়া (Wikipedia bn)",
        "25 min 24 s",
        "20 seed runs (fine-tuning)",
        "0123456789abcdef0123456789abcdef01234567",
        "sequence_length: 128",
        "What to be careful about",
        "soham-ncc, random, seed 3: one class only",
    ]
    places = [page.text.index(order[0])]
    for text in order[1:]:
        places.append(page.text.index(text, places[-1]))
    for text in ["sample std, n - 1", "17.21", "4,812,345", "99.74 %", "91.97 ± 0.47", "2026-03-04 05:06 UTC", "bf16"]:
        assert text in page.text
    assert "not left the plateau" not in page.text


def test_page_is_accessible(usual: tuple[str, str, str]) -> None:
    html = usual[2]
    page = Page(html)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for _, name, value in page.attributes:
        if name == "aria-labelledby":
            assert set((value or "").split()) <= set(ids)
        if name == "href" and (value or "").startswith("#"):
            assert value[1:] in ids  # type: ignore[index]
    assert html.count("<table") == html.count("<caption")
    assert all(re.match(r'<th scope="(col|row)"', tag) for tag in re.findall(r"<th\b[^>]*>", html))
    for drawing in re.findall(r"(?s)<svg.*?</svg>", html):
        hidden = "aria-hidden" in drawing
        assert hidden or "<title" in drawing or 'class="bar"' in html[: html.index(drawing)][-60:]
    levels = [int(level) for level in re.findall(r"<h(\d)", html)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_page_loads_nothing(usual: tuple[str, str, str]) -> None:
    html = usual[2]
    for tag, name, value in Page(html).attributes:
        assert name != "src"
        assert not name.startswith("on")
        if name in {"href", "action"} and not (value or "").startswith("#"):
            assert tag == "a"
            assert (value or "").startswith("https://huggingface.co/")
    assert "<script" not in html
    assert "<link" not in html
    assert not re.search(r"@import|url\(", html)


def test_one_run_has_no_plus_minus(tmp_path: Path) -> None:
    scores = {"pretrained": [0.75], "random": [0.61]}
    task = task_result("wikiann-bn", "ner", scores, published=())
    report, markdown, html = report_in(tmp_path, results=Results(tasks=(task,)))
    for text in (Page(html).text, markdown):
        table = text[text.index("measured here") : text.index("majority baseline")]
        assert "75.00" in table
        assert "±" not in table
        assert "sample std" not in table
        assert "sample standard deviation" not in text
    assert "too few to say" in json.loads(report)["verdict"]
    assert [caution["kind"] for caution in json.loads(report)["cautions"]].count("one seed") == 1


def test_what_users_wrote_is_escaped(tmp_path: Path) -> None:
    name = '<script>alert("x")</script> | *a* `b` & ক্ষ'
    _, markdown, html = report_in(tmp_path, name=name)
    assert "<script" not in html
    assert name in Page(html).text
    assert "<script" not in markdown.split("```")[0]
    assert r"&lt;script&gt;" in markdown.splitlines()[0]
    assert r"\| \*a\* \`b\` &amp; ক্ষ" in markdown.splitlines()[0]
    # The recipe contains a fence of three backticks, so the block around it needs four.
    assert markdown.count("\n````") == 2


def test_markdown_tables_are_well_formed(tmp_path: Path) -> None:
    metrics = {"corpus": {"sources": {"a|b\nc": {"documents": 1, "characters": 2, "empty_dropped": 0}}}}
    markdown = report_in(tmp_path, metrics=metrics)[1]
    tables = markdown_tables(markdown)
    assert len(tables) == 11
    for table in tables:
        assert len({len(row) for row in table}) == 1
        assert all(re.fullmatch(r" (:---|---:) ", cell) for cell in table[1])
    assert "| a\\|b c |" in markdown


def test_rendering_the_stored_report_gives_the_stored_bytes(usual: tuple[str, str, str]) -> None:
    report, markdown, html = usual
    assert render(report) == (markdown, html)
    assert "NaN" not in report


def test_plateau_is_said_at_the_top_and_at_the_curve(tmp_path: Path) -> None:
    metrics = {"pretrain": {"left_plateau": False, "validation_loss": 6.89}}
    report, markdown, html = report_in(tmp_path, metrics=metrics, log=training_log(1170, plateau=True))
    text = Page(html).text
    assert "has not left the plateau" in text[: text.index("Scores")]
    assert "has not left the plateau" in text[text.index("Validation during") - 3000 : text.index("Validation during")]
    assert "has not left the plateau" in markdown[: markdown.index("## Scores")]
    assert json.loads(report)["cautions"][0]["kind"] == "plateau"


def test_cautions_follow_from_the_figures(tmp_path: Path) -> None:
    few = task_result("poets", "classification", {"pretrained": [0.6, 0.62, 0.64]}, items={"train": 900, "test": 200})
    metrics = {"tokenizer": {"unknown_rate": 0.0123}, "pretrain": {"validation_loss": float("nan")}}
    report = json.loads(report_in(tmp_path, results=Results(tasks=(few,)), metrics=metrics, dirty=True)[0])
    kinds = [caution["kind"] for caution in report["cautions"]]
    assert kinds == [
        "loss not a number",
        "few seeds",
        "no comparison",
        "published on other data",
        "small test split",
        "dropped documents",
        "dropped tokens",
        "unknown tokens",
        "dirty git tree",
    ]
    texts = " ".join(caution["text"] for caution in report["cautions"])
    for text in ["with 3 runs", "± 2.48 times", "12,000 tokens of the train split (0.25 %)", "1.23 %", "200 items"]:
        assert text in texts


@pytest.mark.parametrize(
    ("ner", "ncc", "opening"),
    [
        ({"a": [0.8, 0.81], "b": [0.5, 0.51]}, {"a": [0.9, 0.91], "b": [0.7, 0.71]}, "Pretraining helps:"),
        (
            {"a": [0.8, 0.81], "b": [0.5, 0.51]},
            {"a": [0.7, 0.8], "b": [0.7, 0.71]},
            "Pretraining clearly helps on some tasks",
        ),
        (
            {"a": [0.8, 0.81], "b": [0.5, 0.51]},
            {"a": [0.5, 0.51], "b": [0.7, 0.71]},
            "Pretraining helps on some tasks and makes others worse",
        ),
        ({"a": [0.5, 0.51], "b": [0.5, 0.52]}, {"a": [0.7, 0.8], "b": [0.7, 0.71]}, "No clear benefit"),
        ({"a": [0.5, 0.51], "b": [0.8, 0.81]}, {"a": [0.7, 0.8], "b": [0.7, 0.71]}, "Pretraining does not help, and"),
        ({"a": [0.8], "b": [0.5]}, {"a": [0.9], "b": [0.7]}, "One run per model is too few"),
        ({"a": [0.8, 0.81]}, {"a": [0.9, 0.91]}, "No model without pretraining was measured"),
    ],
)
def test_verdict(ner: dict[str, list[float]], ncc: dict[str, list[float]], opening: str) -> None:
    tasks = (task_result("n", "ner", ner), task_result("c", "classification", ncc))
    sentence = verdict(Results(tasks=tasks))
    assert sentence.startswith(opening)
    assert sentence.endswith(".")
    if opening == "Pretraining helps:":
        assert (
            "(n) the model scores 80.50 out of 100 with pretraining and 50.50 without (30.00 points more)" in sentence
        )


def test_curve_is_thinned_and_the_later_line_of_a_step_counts(tmp_path: Path) -> None:
    log = [{"step": step, "mlm_loss": 9.0, "validation_loss": 9.0} for step in range(1, 1000)]
    log += [{"step": step, "mlm_loss": 2.0} for step in range(500, 1001)]
    log[3]["mlm_loss"] = float("nan")
    curve = collect(settings(), build_artifacts(tmp_path, log=log)).pretraining
    assert len(curve.training_curve) == 250
    assert curve.training_curve[-1].step == 1000
    assert curve.training_curve[-1].mlm_loss == 2.0
    assert curve.training_curve[0].mlm_loss == 9.0
    assert curve.validation_curve[-1].step == 499


def test_a_report_without_a_log_or_a_seed_run_still_stands(tmp_path: Path) -> None:
    inputs = build_artifacts(tmp_path)
    assert collect(settings(), inputs).seed_run_seconds == 430.0
    (inputs["pretrain"] / "logs/training.jsonl").unlink()
    shutil.rmtree(tmp_path / "artifacts/seed-run/0000000000000003")
    report = collect(settings(), inputs)
    assert report.seed_run_seconds is None
    assert report.environments[0].stages == ("corpus", "tokenizer", "pack", "pretrain", "evaluate", "seed-run")
    markdown, html = render(report.model_dump_json())
    assert "<figure" not in html
    assert "seed runs (fine-tuning)" not in markdown


def test_missing_figures_are_named(tmp_path: Path) -> None:
    inputs = build_artifacts(tmp_path, metrics={"tokenizer": {"entries": "many"}})
    with pytest.raises(StageError, match=r"record.json of tokenizer: metrics.entries: Input should be"):
        collect(settings(), inputs)
    (inputs["corpus"] / "record.json").unlink()
    with pytest.raises(StageError, match=r"record.json is missing"):
        collect(settings(), inputs)
    with pytest.raises(StageError, match=r"report.json: "):
        render("{}")


def test_progress_and_metrics(tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []
    figures = STAGE.run(
        settings(), build_artifacts(tmp_path / "in"), tmp_path, lambda done, total, **_: seen.append((done, total))
    )
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert figures["tasks"] == 2
    assert figures["bytes"] == (tmp_path / "report.html").stat().st_size
    assert Report.model_validate_json((tmp_path / "report.json").read_text()).verdict == figures["verdict"]


def test_small_pieces() -> None:
    assert linked("see https://a.org/b?c=1&d=2.") == (
        'see <a href="https://a.org/b?c=1&amp;d=2">https://a.org/b?c=1&amp;d=2</a>.'
    )
    assert "<a" not in linked("javascript:alert(1)")
    assert in_markdown("# a_b") == r"\# a\_b"
    assert in_markdown("1. a") == r"1\. a"
    assert in_markdown("- a") == r"\- a"
    assert in_markdown("2026-03-04") == "2026-03-04"
    assert nice_ticks(0, 4800, 4) == [0, 1000, 2000, 3000, 4000]
    assert nice_ticks(0.31, 0.74, 4) == [0.4, 0.5, 0.6, 0.7]


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_contrast_is_aa_in_light_and_dark(usual: tuple[str, str, str]) -> None:
    """WCAG 2.2: at least 4.5 to 1 for text, 3 to 1 for drawings."""
    screen = usual[2].split("@media print")[0]
    palettes = [
        dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", screen, re.S)
    ]
    assert len(palettes) == 2
    for palette in palettes:
        for page in ("page", "raised"):
            for ink, least in [
                ("ink", 4.5),
                ("quiet", 4.5),
                ("link", 4.5),
                ("baseline", 4.5),
                ("pretrained", 3.0),
                ("other", 3.0),
                ("entropy", 4.5),
            ]:
                light, dark = sorted((_luminance(palette[ink]), _luminance(palette[page])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= least, (ink, page)
        light, dark = sorted((_luminance(palette["ink"]), _luminance(palette["warning-page"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_a_browser_shows_it_without_complaint(usual: tuple[str, str, str], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(usual[2], encoding="utf-8")
    command = [
        str(CHROMIUM),
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *("--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()),
    ]
    # A session of its own, so that none of the browser's helpers outlives the test.
    browser = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        shown, messages = browser.communicate(timeout=15)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
    assert "What to be careful about" in shown
    assert "CONSOLE" not in messages
