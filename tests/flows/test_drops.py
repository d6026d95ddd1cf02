"""What a finished evaluation does besides its result: its history's entry, bounds, drops, and what Prefect hears."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eval.gathering import STAGE as EVALUATE
from eval.gathering import GatheringSettings
from eval.history import read_history
from eval.scoring import score_classification
from eval.seed_run import STAGE as SEED_RUN
from flows import execution, local_server
from flows.command_line import main
from flows.execution import Options, run_chain
from flows.graph import Node
from tasks.contract import Settings, Stage, no_progress
from tasks.store import Store

sys.path.insert(0, str(Path(__file__).parent))
from tiny import SETTINGS

if TYPE_CHECKING:
    from tests.flows.conftest import Server

TASKS = ("ner", "topics")
SEEDS = (1, 2)


class StubSettings(Settings):
    task: str
    model: str
    seed: int
    right: int


class Evaluation:
    """The demo's two models on its two tasks, without any training: real store, execution and evaluation.

    ``right`` says how many of ten items are right; seed 2 has one more.
    """

    def __init__(self, root: Path):
        self.store = root / "store"
        self.right = {f"{task}/{model}": 5 for task in TASKS for model in ("pretrained", "random")}

    def nodes(self) -> list[Node]:
        stage = Stage(SEED_RUN.name, 1, StubSettings, self._run)
        runs = {}
        for key, right in self.right.items():
            task, model = key.split("/")
            for seed in SEEDS:
                settings = StubSettings(task=task, model=model, seed=seed, right=right + seed - 1)
                name = f"{model}/{task}/{seed}"
                runs[name] = Node(f"seed-run/{name}", stage, settings, {})
        gathering = GatheringSettings(
            models=("pretrained", "random"),
            seeds=SEEDS,
            tasks={task: {"kind": "classification"} for task in TASKS},
            recipe="demo",
        )
        return [*runs.values(), Node("evaluate", EVALUATE, gathering, {key: node.name for key, node in runs.items()})]

    def run(self, **right: int) -> Path:
        """Evaluate without Prefect; ``right`` is for the pretrained model by task."""
        self.right |= {f"{task}/pretrained": count for task, count in right.items()}
        options = Options("demo", store=str(self.store))
        return run_chain(options, lambda node, work: work(no_progress))[-1].path

    def means(self) -> list[float]:
        """The pretrained model's on ner, from the history."""
        return [entry.tasks["ner"].models["pretrained"].mean for entry in read_history(Store(self.store), "demo")]

    def _run(self, settings: StubSettings, inputs: object, folder: Path, progress: object) -> dict[str, Any]:
        rows = [{"gold": "a", "predicted": "a" if number < settings.right else "b"} for number in range(10)]
        (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = score_classification(*[[row[key] for row in rows] for key in ("gold", "predicted")], ("a", "b"))
        data = {"source": {"kind": "files"}, "items": {"test": 10}, "sha256": "0" * 64, "labels": ["a", "b"]}
        scores = {"seed": settings.seed, "score": settings.right / 10, "validation_score": 0.5, "best_epoch": 1}
        scores |= {"flags": [], "metric": "accuracy", "majority": 0.1, "warnings": [], "data": data}
        scores |= {"scores": found, "per_label": found["per_label"], "other_scores": {}, "headline": "accuracy"}
        scores |= {"model": settings.model, "task": settings.task}
        (folder / "scores.json").write_text(json.dumps(scores))
        return {}


@pytest.fixture
def evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluation:
    stub = Evaluation(tmp_path)
    monkeypatch.setattr(execution, "nodes_of", lambda recipe: stub.nodes())
    return stub


def test_every_run_leaves_its_entry_and_forced_ones_too(evaluation: Evaluation) -> None:
    artifact = evaluation.run(ner=8)
    evaluation.run(ner=8)
    assert len(list(evaluation.store.glob("history/demo/*.json"))) == 1
    evaluation.run(ner=3)
    assert evaluation.means() == pytest.approx([0.85, 0.35])
    shutil.rmtree(evaluation.store / "artifacts")
    assert evaluation.means() == pytest.approx([0.85, 0.35])
    evaluation.run(ner=8)
    assert artifact.exists()
    assert evaluation.means() == pytest.approx([0.85, 0.35]), "equal results are no other point"


def test_a_history_that_cannot_be_written_fails_nothing(
    evaluation: Evaluation, caplog: pytest.LogCaptureFixture
) -> None:
    evaluation.store.mkdir()
    Store(evaluation.store).create()
    (evaluation.store / "history").touch()
    assert evaluation.run(ner=8).exists()
    assert "is not written down yet" in caplog.text
    (evaluation.store / "history").unlink()
    assert evaluation.means() == pytest.approx([0.85])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ([], ""),
        (["--fail-below", "0.55"], ""),  # the mean itself is not below it, whatever rounding says
        (["--fail-below", "20%"], ""),
        (["--fail-below", "0.9", "--fail-below", "ner=0.8", "--fail-below", "topics=0.5"], ""),
        (["--fail-on-drop"], ""),
        (
            ["--fail-below", "60%"],
            "topics: the mean accuracy of pretrained is 55.00 %, below --fail-below 60.00 %",
        ),
        (
            ["--fail-below", "0.9", "--fail-below", "topics=0.2"],
            "ner: the mean accuracy of pretrained is 85.00 %, below --fail-below 90.00 %",
        ),
        (
            ["--fail-below", "0.9"],
            "ner: the mean accuracy of pretrained is 85.00 %, below --fail-below 90.00 %; "
            "topics: the mean accuracy of pretrained is 55.00 %, below --fail-below 90.00 %",
        ),
    ],
)
def test_fail_below_decides_the_exit_status(
    evaluation: Evaluation, asked: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation.run(ner=8)
    status = main(["run", "demo", "--store", str(evaluation.store), *asked])
    out, err = capsys.readouterr()
    assert (status, err) == ((1, f"sahajflow: {told}\n") if told else (0, ""))
    assert "Nothing to do" in out
    assert "Result: " in out, "where it is is said in any case"


def test_fail_on_drop_decides_the_exit_status(evaluation: Evaluation, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "demo", "--store", str(evaluation.store)]
    evaluation.run(ner=9)
    evaluation.run(ner=1)
    assert main(run) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: dropped: ner, pretrained: mean accuracy 15.00 after 95.00 (")
    assert main([*run, "--fail-on-drop"]) == 1
    assert capsys.readouterr().err.splitlines() == [warning.replace("warning:", "sahajflow:")]
    # The twin's drop is said and fails nothing.
    evaluation.right["topics/random"] = 0
    evaluation.run(ner=1)
    assert main([*run, "--fail-on-drop"]) == 0
    assert "warning: dropped: topics, random" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["run", "demo", "--fail-below", "72"], "--fail-below 72: should be a score such as 0.72 or 72%"),
        (["run", "demo", "--fail-below", "nan"], "should be a score"),
        (["run", "demo", "--fail-below", "nre=0.3"], "the recipe has no task 'nre'; it has ner, topics"),
        (["run", "demo", "--fail-below", "0.3", "--fail-below", "0.4"], "stands twice without a task"),
        (["run", "demo", "--fail-below", "ner=1", "--fail-below", "ner=1"], "stands twice for ner"),
        (["run", "demo", "--fail-below", "0.3", "--until", "pack"], "end before evaluate, so there is no score"),
        (["run", "demo", "--fail-on-drop", "--set", "evaluation.models=[random]"], "which evaluation.models lacks"),
        (["report", "demo", "demo", "--fail-below", "0.3"], "are for a single RECIPE, not for a comparison"),
        (["report", "demo", "--out", "x"], "--out is for the comparison of several runs"),
        (["report", "demo", "demo"], "demo: has no up-to-date evaluation; sahajflow run demo --store /"),
    ],
)
def test_bounds_that_mean_nothing_are_one_line_and_status_2(
    asked: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert main([*asked, "--store", str(store)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert not store.exists()


def test_history_command(evaluation: Evaluation, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["history", "demo", "--store", str(evaluation.store)]
    assert main(ask) == 0
    assert capsys.readouterr().out == f"no finished evaluation of demo in {evaluation.store}\n"
    assert main([*ask, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main([*ask, "--csv"]) == 0
    titles = capsys.readouterr().out
    assert titles.startswith("evaluated,recipe,task,model,")
    assert titles.count("\n") == 1
    evaluation.run(ner=9)
    evaluation.run(ner=1)
    assert main(ask) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * 4
    assert sum("\N{MINUS SIGN}80.00, dropped" in line for line in lines) == 1
    assert main([*ask, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["mean"] for row in rows if (row["task"], row["model"]) == ("ner", "pretrained")] == pytest.approx(
        [0.95, 0.15]
    )
    assert main([*ask, "--csv"]) == 0
    first, *lines = capsys.readouterr().out.splitlines(keepends=True)
    assert first == titles
    assert len(lines) == len(rows)


def wait_for(found: Callable[[], list[Any]], seconds: float = 30) -> list[Any]:
    deadline = time.monotonic() + seconds
    while not (result := found()) and time.monotonic() < deadline:
        time.sleep(0.3)
    return result


def test_a_drop_is_an_event_and_the_history_a_table(
    server: Server, evaluation: Evaluation, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation.run(ner=9)
    evaluation.right["ner/pretrained"] = 1
    status = main(["run", "demo", "--store", str(evaluation.store), "--fail-below", "ner=0.9"])
    assert status == 1
    assert "ner: the mean accuracy of pretrained is 15.00 %" in capsys.readouterr().err.splitlines()[-1]
    flow_run = server.last_run()
    assert flow_run["state"]["type"] == "COMPLETED", "the stages were done: the bound is the command's"
    query = {"filter": {"event": {"name": ["sahajflow.evaluation.dropped"]}}}
    (event,) = wait_for(lambda: server.ask("/events/filter", query)["events"])
    assert event["resource"] == {
        "prefect.resource.id": "sahajflow.recipe.demo",
        "prefect.resource.name": "demo",
    }
    related = {one["prefect.resource.role"]: one["prefect.resource.id"] for one in event["related"]}
    assert related["task"] == "sahajflow.task.demo.ner"
    assert related["model"] == "sahajflow.model.demo.pretrained"
    assert related["evaluation"] != related["previous-evaluation"]
    assert related["flow-run"] == f"prefect.flow-run.{flow_run['id']}"
    payload = event["payload"]
    assert (payload["mean"], payload["previous_mean"], payload["n"]) == (pytest.approx(0.15), 0.95, 2)
    assert payload["change_low"] <= payload["change"] <= payload["change_high"] < 0
    table = json.loads(server.artifacts(flow_run)["demo-history"]["data"])
    assert [row["mean"] for row in table if (row["task"], row["model"]) == ("ner", "pretrained")] == pytest.approx(
        [0.95, 0.15]
    )
    # A flow that reuses the evaluation makes no new one, so nothing has dropped anew.
    from flows.prefect_runner import run_with_prefect

    outcomes, warnings = run_with_prefect(
        Options("demo", store=str(evaluation.store)), lambda node, work: work(no_progress)
    )
    assert {outcome.action for outcome in outcomes} == {"reused"}
    assert warnings == []
    time.sleep(2)
    assert len(server.ask("/events/filter", query)["events"]) == 1


def test_a_drop_without_a_server_fails_nothing(
    no_prefect_configured: None,
    evaluation: Evaluation,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    os.environ["SAHAJFLOW_HOME"] = str(evaluation.store.parent / "home")
    monkeypatch.setattr(local_server, "ensure", lambda: "http://127.0.0.1:1/api")
    evaluation.run(ner=9)
    evaluation.right["ner/pretrained"] = 1
    assert main(["run", "demo", "--store", str(evaluation.store)]) == 0
    assert "dropped: ner, pretrained" in capsys.readouterr().err
    assert evaluation.means() == pytest.approx([0.95, 0.15])


def test_two_real_chains_compared_and_their_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, report = str(tmp_path / "store"), tmp_path / "store/rendered/demo"
    changes = [*(one for one in SETTINGS if not one.startswith("evaluation.seeds")), "evaluation.seeds=2"]

    def command(name: str, *arguments: str, steps: int = 0) -> int:
        settings = [*changes, *([f"pretraining.steps={steps}"] if steps else [])]
        return main([name, *arguments, "--store", store, *(part for one in settings for part in ("--set", one))])

    def run(*more: str) -> Path:
        options = Options("demo", set_=(*changes, *more), store=store, workers=1)
        outcomes = run_chain(options, lambda node, work: work(no_progress))
        return next(outcome.path for outcome in outcomes if outcome.name == "evaluate")

    first, second = run(), run("pretraining.steps=8", "pretraining.warmup_steps=2")
    assert command("report", "demo") == 0
    assert "History" in (report / "report.html").read_text(encoding="utf-8")
    assert "## History" in (report / "report.md").read_text(encoding="utf-8")
    assert command("report", "demo", "--fail-below", "1") == 1
    capsys.readouterr()
    sent = tmp_path / "sent"
    shutil.copytree(second, sent)
    assert command("report", "demo", str(sent), "--out", str(tmp_path / "out")) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"Comparison: {tmp_path}/out/comparison.html" in out
    made = json.loads((tmp_path / "out/comparison.json").read_text(encoding="utf-8"))
    assert [task["result"]["task"] for task in made["tasks"]] == ["ner", "topics"]
    for task in made["tasks"]:
        (one,) = task["result"]["comparisons"]
        assert one["sentence"] in out
        assert one["sentence"] in (tmp_path / "out/comparison.html").read_text(encoding="utf-8")
        own = [json.loads((folder / "results.json").read_text(encoding="utf-8")) for folder in (first, second)]
        means = [
            result["models"][0]["mean"]
            for results in own
            for result in results["tasks"]
            if result["task"] == task["result"]["task"]
        ]
        assert one["difference"] == pytest.approx(means[0] - means[1])
    assert command("report", "demo", "demo") == 0
    assert "No difference between the runs is shown" in next(
        (tmp_path / "store/rendered/compared").glob("demo-demo-*/comparison.md")
    ).read_text(encoding="utf-8")
