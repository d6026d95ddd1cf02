"""The test texts of the tasks, and what makes a corpus without them new."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from eval.settings import EvaluationSettings
from eval.task_texts import STAGE, texts_settings
from flows.execution import carry_out
from flows.graph import nodes_of
from flows.plan import Selection, make_plan
from flows.recipe import load_recipe
from tasks.contract import no_progress
from tasks.store import Store

CLEAN = [
    "corpus.decontamination={words: 4}",
    "corpus.sources.0.documents=200",
    "evaluation.tasks.ner.source={kind: sample, train: 20, validation: 10, test: 15}",
]


def evaluation(folder: Path) -> EvaluationSettings:
    for split in ("train", "validation", "test"):
        (folder / f"{split}.conll").write_text(f"{split}\tO\nশব্দ\tB-PER\n\nআর\tO\n\n")
        (folder / f"{split}.csv").write_text(f'text,label\n"{split},\none",x\ntwo,y\n')
    tasks = {
        name: {"kind": kind, "source": {"kind": "files"}}
        for name, kind in (("topics", "classification"), ("ner", "ner"))
    }
    for name, ending in (("topics", "csv"), ("ner", "conll")):
        tasks[name]["source"] |= {
            split: str(folder / f"{split}.{ending}") for split in ("train", "validation", "test")
        }
    return EvaluationSettings.model_validate({"tasks": tasks})


def test_the_texts_of_the_test_splits_alone(tmp_path: Path) -> None:
    settings = texts_settings(evaluation(tmp_path))
    (tmp_path / "out").mkdir()
    metrics = STAGE.run(settings, {}, tmp_path / "out", no_progress)
    lines = (tmp_path / "out" / "test.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"task": "ner", "text": "test শব্দ"},
        {"task": "ner", "text": "আর"},
        {"task": "topics", "text": "test,\none"},
        {"task": "topics", "text": "two"},
    ]
    assert metrics == {"items": {"ner": 2, "topics": 2}}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the corpus of a changed demo; returns what was planned and what happened, by node."""
    store = Store(tmp_path / "store")

    def run_corpus(*changes: str):
        recipe = load_recipe("demo", [*CLEAN, *changes])
        steps, inputs = make_plan(nodes_of(recipe), store, Selection(until="corpus"))
        outcomes = carry_out(steps, inputs, store, lambda node, work: work(no_progress))
        return {step.node.name: step.action for step in steps}, {one.name: one for one in outcomes}

    return run_corpus


def test_a_corpus_without_test_texts_follows_their_content(run, tmp_path: Path) -> None:
    planned, first = run()
    assert planned == {"test-texts": "run", "corpus": "wait"}
    overlaps = first["corpus"].record.metrics["sources"]["sample"]["overlap_dropped"]
    assert 0 < overlaps < 200
    tested = first["corpus"].record.metrics["test_texts"]
    assert sum(tested.values()) == sum(first["test-texts"].record.metrics["items"].values())

    planned, _ = run("evaluation.tasks.ner.fine_tuning.learning_rate=0.1", "evaluation.seeds=2")
    assert planned == {"test-texts": "reuse", "corpus": "reuse"}

    more_training = "evaluation.tasks.ner.source={kind: sample, train: 21, validation: 10, test: 15}"
    planned, second = run(more_training)
    assert planned == {"test-texts": "run", "corpus": "wait"}
    assert second["corpus"].action == "reused", "the test texts are the same"

    more_tests = "evaluation.tasks.ner.source={kind: sample, train: 20, validation: 10, test: 30}"
    _, third = run(more_tests)
    assert third["corpus"].action == "ran"
    assert third["corpus"].record.fingerprint != first["corpus"].record.fingerprint


def test_without_it_no_test_text_is_read() -> None:
    assert "test-texts" not in {node.name for node in nodes_of(load_recipe("demo"))}
    (corpus,) = (node for node in nodes_of(load_recipe("demo", CLEAN)) if node.name == "corpus")
    assert corpus.inputs == {"test-texts": "test-texts"}
    assert replace(corpus, inputs={}).group == "corpus"
