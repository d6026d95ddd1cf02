"""Stage evaluate: what it makes of real seed runs."""

import csv
import json
import sys
from pathlib import Path

import pytest

from eval.gathering import STAGE as EVALUATE
from eval.gathering import GatheringSettings, gathering_settings
from eval.item_counts import gathered_path, read_gathered, read_predictions
from eval.results import Results
from tasks.contract import StageError, no_progress

sys.path.insert(0, str(Path(__file__).parent))


def test_gathering(runs, evaluation, tmp_path):
    settings = gathering_settings(evaluation)
    inputs = {key: folder for key, (folder, _) in runs.items()}
    metrics = EVALUATE.run(settings, inputs, tmp_path, no_progress)
    results = Results.model_validate_json((tmp_path / "results.json").read_text(encoding="utf-8"))
    ner, ncc = results.tasks
    assert (ner.task, ner.metric, ner.majority, ncc.metric) == ("ner", "entity F1", 0.0, "accuracy")
    assert ner.items == {"train": 120, "validation": 24, "test": 30}
    scores = [runs[f"random/ner/{seed}"][1]["score"] for seed in (1, 2)]
    assert [seed.score for seed in ner.models[1].seeds] == scores
    assert ner.models[1].mean == pytest.approx(sum(scores) / 2)
    assert metrics["tasks"]["ner"]["random"]["mean"] == ner.models[1].mean
    assert ner.comparison.difference == pytest.approx(ner.models[0].mean - ner.models[1].mean)
    counts = ner.models[1].item_interval
    assert 0 <= counts.low <= ner.models[1].mean <= counts.high <= 1
    data = json.loads((runs["random/ner/1"][0] / "scores.json").read_text(encoding="utf-8"))["data"]
    assert (ner.sha256, list(ner.labels)) == (data["sha256"], data["labels"])
    assert ner.fine_tuning == evaluation.tasks["ner"].fine_tuning.model_dump()
    gathered = read_gathered(gathered_path(tmp_path, "ner"))
    assert list(gathered) == [f"{model}/ner/{seed}" for model in ("pretrained", "random") for seed in (1, 2)]
    own = read_predictions(runs["random/ner/2"][0])
    assert (gathered["random/ner/2"].gold, gathered["random/ner/2"].predicted) == (own.gold, own.predicted)
    assert len(ner.published) == 4
    assert any("the data are own files" in difference for difference in ner.published_differences)
    assert ncc.published == ()
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    details = ncc.models[0].details
    assert details is not None
    assert [one.label for one in details.labels] == ["LOC", "PER"]
    assert [row["macro_f1"] != "" for row in rows] == [False] * 4 + [True] * 4
    with (tmp_path / "results.jsonl").open(encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    assert [one["score"] for one in found] == [float(row["score"]) for row in rows]
    assert found[0]["per_label"] == runs["pretrained/ner/1"][1]["per_label"]
    assert {(row["task"], row["model"], row["seed"]): float(row["score"]) for row in rows} == {
        (metrics["task"], metrics["model"], str(metrics["seed"])): metrics["score"] for _, metrics in runs.values()
    }


def test_gathering_refuses_a_missing_run_and_other_data(runs, evaluation, tmp_path):
    settings = gathering_settings(evaluation)
    inputs = {key: folder for key, (folder, _) in runs.items()}
    with pytest.raises(StageError, match="pretrained/ner/2 was declared but is missing"):
        EVALUATE.run(
            settings, {key: inputs[key] for key in inputs if key != "pretrained/ner/2"}, tmp_path, no_progress
        )
    other = json.loads((inputs["random/ner/2"] / "scores.json").read_text(encoding="utf-8"))
    other["data"]["sha256"] = "0"
    (tmp_path / "scores.json").write_text(json.dumps(other), encoding="utf-8")
    predictions = (inputs["random/ner/2"] / "predictions.jsonl").read_bytes()
    (tmp_path / "predictions.jsonl").write_bytes(predictions)
    with pytest.raises(StageError, match="not made on the same data"):
        EVALUATE.run(settings, inputs | {"random/ner/2": tmp_path}, tmp_path, no_progress)


def test_a_run_that_failed_is_missing_and_named(runs, evaluation, tmp_path):
    failed = {"random/ner/2": "OutOfMemoryError: 3 GiB"}
    settings = gathering_settings(evaluation).model_copy(update={"missing": failed})
    inputs = {key: folder for key, (folder, _) in runs.items() if key not in failed}
    metrics = EVALUATE.run(settings, inputs, tmp_path, no_progress)
    ner, ncc = Results.model_validate_json((tmp_path / "results.json").read_text(encoding="utf-8")).tasks
    random_twin = ner.models[1]
    assert (random_twin.n, random_twin.declared, random_twin.std) == (1, 2, None)
    assert [(one.seed, one.reason) for one in random_twin.missing] == [(2, "OutOfMemoryError: 3 GiB")]
    assert ner.comparison.outcome == "unknown"
    assert ncc.comparison.outcome == "same"
    assert (metrics["missing"], metrics["seed_runs"]) == (1, 7)
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        (row,) = (row for row in csv.DictReader(file) if row["flags"])
    assert (row["model"], row["task"], row["seed"], row["score"]) == ("random", "ner", "2", "")
    assert row["flags"] == "missing: OutOfMemoryError: 3 GiB"
    lines_of = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    missing = {"task": "ner", "model": "random", "seed": 2, "missing": "OutOfMemoryError: 3 GiB"}
    assert json.loads(lines_of[3]) == missing
    # of a model of others it is no reason to lack the rest
    absent = settings.model_copy(
        update={
            "compared": {"xlm-r": "some/model at 0123456"},
            "missing": {
                **failed,
                **{f"xlm-r/{task}/{seed}": "no network" for task in ("ner", "ncc") for seed in (1, 2)},
            },
        }
    )
    EVALUATE.run(absent, {key: folder for key, (folder, _) in runs.items()}, tmp_path, no_progress)
    found = Results.model_validate_json((tmp_path / "results.json").read_text(encoding="utf-8")).tasks[0]
    assert [(one.model, one.title, one.reason) for one in found.absent] == [
        ("xlm-r", "some/model at 0123456", "no network")
    ]
    assert [model.model for model in found.models] == ["pretrained", "random"]
    all_failed = settings.model_copy(update={"missing": {**failed, "random/ner/1": "crashed"}})
    del inputs["random/ner/1"]
    with pytest.raises(StageError, match="ner: all seed runs of random failed, seed 1 with: crashed"):
        EVALUATE.run(all_failed, inputs, tmp_path, no_progress)


def test_one_model_alone_has_no_comparison(runs, tmp_path):
    settings = GatheringSettings(models=("random",), seeds=(1,), tasks={"ncc": {"kind": "classification"}})
    EVALUATE.run(settings, {"random/ncc/1": runs["random/ncc/1"][0]}, tmp_path, no_progress)
    (task,) = Results.model_validate_json((tmp_path / "results.json").read_text(encoding="utf-8")).tasks
    assert task.comparisons == ()
    assert (task.models[0].std, task.models[0].interval) == (None, None)
