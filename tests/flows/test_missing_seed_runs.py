"""A seed run that crashes is missing; the evaluation goes on, and the next run tries it again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eval.compared_model import STAGE as COMPARED_MODEL
from eval.gathering import STAGE as EVALUATE
from eval.gathering import GatheringSettings
from eval.scoring import score_classification
from eval.seed_run import STAGE as SEED_RUN
from flows.execution import carry_out, one_line
from flows.graph import Node
from flows.plan import Selection, make_plan
from tasks.contract import Settings, Stage, StageError, UserError
from tasks.store import Store

SEEDS = (1, 2, 3)


class StubSettings(Settings):
    model: str
    seed: int


class Evaluation:
    """Two models on one task with three seeds, without any training: real store, execution and evaluation."""

    def __init__(self, root: Path):
        self.store = Store(root / "store")
        self.failing: dict[str, BaseException] = {}
        self.ran: list[str] = []
        self.compared = False

    def nodes(self) -> list[Node]:
        stage = Stage(SEED_RUN.name, 1, StubSettings, self._run)
        runs = {
            f"{model}/ncc/{seed}": Node(
                f"seed-run/{model}/ncc/{seed}", stage, StubSettings(model=model, seed=seed), {}
            )
            for model in ("pretrained", "random")
            for seed in SEEDS
        }
        gathering = GatheringSettings(
            models=("pretrained", "random"),
            compared={"other": "some/model"} if self.compared else {},
            seeds=SEEDS,
            tasks={"ncc": {"kind": "classification"}},
        )
        fetched = []
        if self.compared:
            name = "compared-model/other"
            settings = StubSettings(model=name, seed=0)
            fetched = [Node(name, Stage(COMPARED_MODEL.name, 1, StubSettings, self._fetch), settings, {})]
            for seed in SEEDS:
                key = f"other/ncc/{seed}"
                settings = StubSettings(model="other", seed=seed)
                runs[key] = Node(f"seed-run/{key}", stage, settings, {"checkpoint": name})
        return [
            *fetched,
            *runs.values(),
            Node("evaluate", EVALUATE, gathering, {key: node.name for key, node in runs.items()}),
        ]

    def run(self, run_node: Callable[..., Any] = lambda node, work: work(lambda *_, **__: None)) -> dict[str, Any]:
        self.ran.clear()
        steps, inputs = make_plan(self.nodes(), self.store, Selection(only="evaluate"))
        return {outcome.name: outcome for outcome in carry_out(steps, inputs, self.store, run_node)}

    def actions(self) -> dict[str, str]:
        steps, _ = make_plan(self.nodes(), self.store, Selection(only="evaluate"))
        return {step.node.name.removeprefix("seed-run/"): step.action for step in steps if step.action != "reuse"}

    def _fetch(self, settings: StubSettings, inputs: object, folder: Path, progress: object) -> dict[str, Any]:
        self.ran.append(settings.model)
        if settings.model in self.failing:
            raise self.failing[settings.model]
        (folder / "weights").write_text("weights")
        return {}

    def _run(self, settings: StubSettings, inputs: object, folder: Path, progress: object) -> dict[str, Any]:
        key = f"{settings.model}/ncc/{settings.seed}"
        self.ran.append(key)
        if key in self.failing:
            (folder / "half").write_text("half")
            raise self.failing[key]
        right = 8 - settings.seed if settings.model == "pretrained" else 4
        rows = [{"gold": "a", "predicted": "a" if number < right else "b"} for number in range(10)]
        (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = score_classification(*[[row[key] for row in rows] for key in ("gold", "predicted")], ("a", "b"))
        scores = {"seed": settings.seed, "score": right / 10, "validation_score": 0.5, "best_epoch": 1, "flags": []}
        scores |= {"scores": found, "per_label": found["per_label"], "other_scores": {"macro_f1": found["macro_f1"]}}
        data = {"source": {"kind": "files"}, "items": {"test": 10}, "sha256": "0" * 64, "labels": ["a", "b"]}
        more = {"metric": "accuracy", "headline": "accuracy", "majority": 0.5, "data": data, "warnings": []}
        more |= {"model": settings.model, "task": "ncc"}
        (folder / "scores.json").write_text(json.dumps(scores | more))
        return {}


def model_of(outcomes: dict[str, Any], number: int) -> dict[str, Any]:
    results = json.loads((outcomes["evaluate"].path / "results.json").read_text(encoding="utf-8"))
    return results["tasks"][0]["models"][number]


def test_the_evaluation_goes_on_without_it_and_names_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    evaluation = Evaluation(tmp_path)
    evaluation.failing = {"random/ncc/2": RuntimeError("CUDA out of memory\nlong story")}
    with caplog.at_level(logging.WARNING, "sahajflow"):
        outcomes = evaluation.run()
    assert evaluation.ran[-1] == "random/ncc/3"
    assert "seed-run/random/ncc/2" not in outcomes
    assert "seed-run/random/ncc/2 failed and is missing: RuntimeError: CUDA out of memory" in caplog.text
    assert "Traceback" in caplog.text
    random_twin = model_of(outcomes, 1)
    assert (random_twin["n"], [seed["seed"] for seed in random_twin["seeds"]]) == (2, [1, 3])
    assert random_twin["missing"] == [{"seed": 2, "reason": "RuntimeError: CUDA out of memory"}]
    assert set(outcomes["evaluate"].record.inputs) == {
        "pretrained/ncc/1", "pretrained/ncc/2", "pretrained/ncc/3", "random/ncc/1", "random/ncc/3"
    }  # fmt: skip


def test_it_is_tried_again_and_the_evaluation_is_never_taken_for_complete(tmp_path: Path) -> None:
    evaluation = Evaluation(tmp_path)
    evaluation.failing = {"random/ncc/2": StageError("loss is no number")}
    lacking = evaluation.run()["evaluate"]
    assert evaluation.actions() == {"random/ncc/2": "run", "evaluate": "wait"}
    # It fails again in the same way: the evaluation without it is what it was.
    again = evaluation.run()["evaluate"]
    assert evaluation.ran == ["random/ncc/2"]
    assert (again.action, again.path) == ("reused", lacking.path)
    # For another reason: the result names that one.
    evaluation.failing = {"random/ncc/2": StageError("no space for it")}
    assert model_of(evaluation.run(), 1)["missing"][0]["reason"] == "no space for it"
    evaluation.failing = {}
    whole = evaluation.run()
    assert evaluation.ran == ["random/ncc/2"]
    assert whole["evaluate"].path != lacking.path
    assert (model_of(whole, 1)["n"], model_of(whole, 1)["missing"]) == (3, [])
    assert evaluation.actions() == {}


def test_seed_runs_of_a_model_that_cannot_be_had_are_not_tried(tmp_path: Path, caplog) -> None:
    evaluation = Evaluation(tmp_path)
    evaluation.compared = True
    evaluation.failing = {"compared-model/other": StageError("some/model: the hub does not answer")}
    with caplog.at_level(logging.WARNING, "sahajflow"):
        lacking = evaluation.run()["evaluate"]
    assert [key for key in evaluation.ran if "other" in key] == ["compared-model/other"]
    assert caplog.text.count("the hub does not answer") == 1
    task = json.loads((lacking.path / "results.json").read_text(encoding="utf-8"))["tasks"][0]
    assert [model["model"] for model in task["models"]] == ["pretrained", "random"]
    assert task["absent"] == [
        {"model": "other", "title": "some/model", "reason": "some/model: the hub does not answer"}
    ]
    # the next run tries again, and has the others already
    evaluation.failing = {}
    whole = evaluation.run()
    assert evaluation.ran == ["compared-model/other", *(f"other/ncc/{seed}" for seed in SEEDS)]
    assert [model_of(whole, number)["model"] for number in range(3)] == ["pretrained", "random", "other"]
    assert evaluation.actions() == {}


def test_if_all_of_a_model_fail_the_evaluation_does(tmp_path: Path) -> None:
    evaluation = Evaluation(tmp_path)
    evaluation.failing = {f"random/ncc/{seed}": StageError(f"weights are missing in {seed}") for seed in SEEDS}
    with pytest.raises(StageError, match=r"^ncc: all seed runs of random failed, seed 1 with: weights are missing"):
        evaluation.run()


@pytest.mark.parametrize("error", [UserError("train.csv:3: no label"), OSError("disk full"), KeyboardInterrupt()])
def test_wrong_input_a_full_disk_and_an_interruption_end_the_run(tmp_path: Path, error: BaseException) -> None:
    evaluation = Evaluation(tmp_path)
    evaluation.failing = {"pretrained/ncc/2": error}
    with pytest.raises(type(error)):
        evaluation.run()
    assert evaluation.ran == ["pretrained/ncc/1", "pretrained/ncc/2"]


def test_a_failure_in_one_line() -> None:
    assert one_line(StageError("the loss is no number")) == "the loss is no number"
    assert one_line(RuntimeError("\n  first\nsecond")) == "RuntimeError: first"
    assert one_line(MemoryError()) == "MemoryError"
    assert len(one_line(ValueError("x" * 500))) == 200
