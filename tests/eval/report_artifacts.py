"""Fake but realistic artifacts in the records' real format, the report made of them, and how its texts are read."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from eval.label_scores import details_of
from eval.report import ReportSettings, run
from eval.results import (
    Comparison,
    Interval,
    MissingSeed,
    ModelDetails,
    ModelResult,
    PublishedScore,
    Results,
    SeedScore,
    TaskResult,
)
from eval.scoring import HEADLINES, score_classification, score_ner
from eval.summary import summarise
from eval.uncertainty import welch_p
from tasks.contract import no_progress
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


def task_result(
    task: str,
    kind: str,
    scores: dict[str, list[float]],
    *,
    missing: dict[str, list[MissingSeed]] | None = None,
    **more: Any,
) -> TaskResult:
    missing = missing or {}
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
        sound = [value for value in values if value >= 0.2]
        models.append(
            ModelResult(
                **summarise(values).model_dump(),
                model=model,
                seeds=seeds,
                missing=tuple(missing.get(model, ())),
                item_interval=Interval(low=min(values) - 0.02, high=max(values) + 0.02),
                without_degenerate=summarise(sound) if len(sound) < len(values) else None,
                details=some_details(kind),
            )
        )
    comparisons = ()
    if len(models) > 1:
        difference = models[0].mean - models[1].mean
        p_seeds = welch_p(*list(scores.values())[:2])
        outcome = (
            "unknown" if p_seeds is None else "same" if p_seeds > 0.05 else "better" if difference > 0 else "worse"
        )
        comparisons = (
            Comparison(
                model=models[0].model,
                baseline=models[1].model,
                difference=difference,
                interval=Interval(low=difference - 0.02, high=difference + 0.02),
                paired_seeds=min(model.n for model in models),
                p_items=0.00001,
                p_seeds=p_seeds,
                p=p_seeds,
                p_corrected=p_seeds,
                outcome=outcome,
                sentence=f"The difference on {task} is {100 * difference:.2f} points.",
            ),
        )
    facts: dict[str, Any] = {
        "metric": "entity F1" if kind == "ner" else "accuracy",
        "headline": HEADLINES[kind],
        "data": f"{task} (sample)",
        "items": {"train": 10000, "validation": 1000, "test": 1000},
        "sha256": "5" * 64,
        "labels": ("a", "b"),
        "fine_tuning": {"epochs": 3},
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
        "published_differences": ("the data are the built-in sample, and no digest is known",),
        "warnings": ("30 of 1,000 test items (3.0%) are in the training split too",),
    }
    return TaskResult(task=task, kind=kind, models=tuple(models), comparisons=comparisons, **{**facts, **more})


def some_details(kind: str) -> ModelDetails:
    """Details as two seed runs would give them, of a few items."""
    if kind == "ner":
        gold = [["B-PER", "I-PER", "O"], ["B-LOC", "O", "O"]]
        said = [gold, [["B-PER", "O", "O"], ["B-LOC", "O", "B-ORG"]]]
        return details_of("ner", [{"scores": score_ner(gold, one)} for one in said])
    labels = ("রাজ্য", "খেলা", "national")
    texts = ["রাজ্য", "রাজ্য", "খেলা", "national"]
    found = [texts, ["রাজ্য", "খেলা", "খেলা", "খেলা"]]
    return details_of("classification", [{"scores": score_classification(texts, one, labels)} for one in found])


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
            line |= {
                "validation_loss": fall + 0.05,
                "masked_accuracy": 1 / fall,
                "validation_sop_accuracy": 0.5 + step / (2.6 * steps),
            }
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
    ledger: dict[str, Any] | None = None,
    dirty: bool = False,
) -> dict[str, Path]:
    """The five artifact folders that the report reads, and the seed runs, in the store ``root``.

    ``metrics`` are laid over :data:`METRICS`; ``ledger`` is what the collaborative engine leaves besides.
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
            if ledger is not None:
                (folder / "logs/ledger.json").write_text(json.dumps(ledger))
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
        "model": {"architecture": "albert"},
        "pretraining": {"engine": "local", "steps": 4800, "batch_size": 32},
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


def shown_by_a_browser(html: str, folder: Path) -> str:
    """The document as a browser that ran it writes it; fails if the page made it complain. Needs :data:`CHROMIUM`."""
    page = folder / "report.html"
    page.write_text(html, encoding="utf-8")
    command = [
        str(CHROMIUM),
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *("--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--dump-dom", page.as_uri()),
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
    assert "CONSOLE" not in messages
    return shown
