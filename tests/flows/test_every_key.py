"""For every key of every recipe: change it, and compare what the plan says with what then runs or is reused.

The stages are stubs that take no time but keep their meaning: each leaves bytes that follow from its identity and from
its inputs' digests, as a deterministic stage does.
"""

import hashlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).parent))
from other_values import changed, leaves

from flows.execution import carry_out
from flows.graph import Node, nodes_of
from flows.plan import Selection, make_plan
from flows.recipe import Recipe, load_recipe
from tasks.contract import EXECUTION
from tasks.durable import sha256_of
from tasks.identity import canonical, identity_of
from tasks.pretraining.settings import LOCAL_ONLY
from tasks.record import read_record
from tasks.store import Store

RECIPES = ("demo", "sahajbert", "bert-gaudi", "my-language")
"""Not sahajbert-xl, which has the keys of sahajbert."""

OWNERS = {
    "name": "report",
    "description": "report",
    "corpus": "corpus",
    "tokenizer": "tokenizer",
    "packing": "pack",
    "model": "pretrain",
    "pretraining": "pretrain",
    "evaluation": "evaluate",
    "cost": "report",
    "publishing": "report",
}
ORDER = ("corpus", "tokenizer", "pack", "pretrain", "evaluate", "report")


def stub(settings: BaseModel, inputs: dict[str, Path], folder: Path, progress: Any) -> dict[str, Any]:
    made = {
        "identity": identity_of(settings, sha256_of),
        "inputs": {name: read_record(path).digest for name, path in inputs.items()},
    }
    (folder / "made").write_text(hashlib.sha256(canonical(made)).hexdigest())
    return {}


def stubbed(recipe: Recipe) -> list[Node]:
    return [replace(node, stage=replace(node.stage, run=stub)) for node in nodes_of(recipe)]


def group_of(name: str) -> str:
    return (
        "evaluate" if name.startswith(("seed-run/", "compared-model/")) else "corpus" if name == "test-texts" else name
    )


def plan_and_run(recipe: Recipe, store: Store) -> tuple[dict[str, str], dict[str, str], list[Path]]:
    """What was planned for each node, what happened, and the folders of those that ran."""
    steps, inputs = make_plan(stubbed(recipe), store, Selection())
    outcomes = carry_out(steps, inputs, store, lambda node, work: work(lambda *_, **__: None))
    planned = {step.node.name: step.action for step in steps}
    happened = {outcome.name: outcome.action for outcome in outcomes}
    return planned, happened, [outcome.path for outcome in outcomes if outcome.action == "ran"]


@pytest.fixture
def user_files(tmp_path: Path) -> list[str]:
    """What `my-language` asks the user for."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "model").mkdir()
    for file in ("tokenizer.json", "config.json", "model.safetensors"):
        (tmp_path / "model" / file).write_text(file)
    (tmp_path / "other.txt").write_text("another text")
    (tmp_path / "other.csv").write_text("text,label\nx,y\n")
    for split in ("train", "validation", "test"):
        (tmp_path / f"other{split}").write_text(split)
    (tmp_path / "texts" / "a.txt").write_text("one text")
    return [str(tmp_path)]


@pytest.mark.parametrize("name", RECIPES)
def test_plan_is_what_happens_for_every_key(
    name: str, tmp_path: Path, user_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.durable.sync_path", lambda path: None)
    monkeypatch.setattr("tasks.store.environment", dict)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    base = own_files(name, tmp_path)
    store = Store(tmp_path / "store")
    recipe = load_recipe(name, base)
    plan_and_run(recipe, store)
    planned, happened, _ = plan_and_run(recipe, store)
    assert set(planned.values()) == {"reuse"}
    assert set(happened.values()) == {"reused"}

    # my-language has the engine that these are for
    other_engines = {f"pretraining.{key}" for key in LOCAL_ONLY} if recipe.pretraining.engine != "local" else set()
    # a preset is a name for the values of other keys: tests/eval/test_presets.py
    keys = [leaf for leaf in leaves(recipe) if leaf[0] not in other_engines and not leaf[0].endswith(".preset")]
    assert len(keys) > 60
    for key, value, marks, annotation in keys:
        changes = changed(name, base, key, value, annotation, tmp_path)
        planned, happened, made = plan_and_run(load_recipe(name, [*base, *changes]), store)
        for node, action in planned.items():
            assert (action, happened[node]) in {
                ("run", "ran"),
                ("reuse", "reused"),
                ("wait", "ran"),
                ("wait", "reused"),
            }, (changes, node)
        owners = {OWNERS[change.partition(".")[0].partition("=")[0]] for change in changes}
        first = min(owners, key=ORDER.index)
        before = {node: action for node, action in planned.items() if ORDER.index(group_of(node)) < ORDER.index(first)}
        assert set(before.values()) <= {"reuse"}, (changes, before)
        ran = {group_of(node) for node, action in happened.items() if action == "ran"}
        unused = {f"pretraining.{name}" for name in recipe.pretraining.identity_unused()}
        if key.startswith("publishing."):
            assert ran == set(), (changes, ran)  # only the model card shows them
        elif EXECUTION in marks or key.rpartition(".")[0] in unused:
            # How often to log does not change a result, nor do another engine's settings; only the report shows the
            # recipe as it is.
            assert ran == {"report"}, (changes, ran)
        else:
            assert first in ran, (changes, ran)
            assert "report" in ran, (changes, ran)
        for path in made:
            shutil.rmtree(path)  # so that the next key meets the base recipe's results alone


def own_files(name: str, folder: Path) -> list[str]:
    """Changes that point a recipe at files that exist, and give it what its engine alone knows."""
    if name != "my-language":
        return []
    rows = "text,label\none,A\ntwo,B\n"
    words = "শব্দ\tO\nনাম\tB-PER\n\n"
    for split in ("train", "validation", "test"):
        (folder / f"{split}.csv").write_text(f"{rows}{split},A\n")
        (folder / f"{split}.conll").write_text(f"{words}{split}\tO\n\n")
    changes = [f"corpus.sources.0.paths={json.dumps([str(folder / 'texts' / '*.txt')])}"]
    changes += ["pretraining.probe={task: ner, every: 100}"]
    for task, ending in (("ner", "conll"), ("topics", "csv")):
        changes += [
            f"evaluation.tasks.{task}.source.{split}={folder / f'{split}.{ending}'}"
            for split in ("train", "validation", "test")
        ]
    return changes


def test_another_seed_runs_only_its_own_seed_runs_and_what_follows(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    plan_and_run(load_recipe("demo"), store)
    planned, happened, _ = plan_and_run(load_recipe("demo", ["evaluation.seeds=4"]), store)
    added = {f"seed-run/{model}/{task}/4" for model in ("pretrained", "random") for task in ("ner", "topics")}
    assert {name for name, action in planned.items() if action == "run"} == added
    assert {name for name, action in happened.items() if action == "ran"} == {*added, "evaluate", "report"}


def test_other_weights_leave_the_random_twin_reused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    plan_and_run(load_recipe("demo"), store)
    _, happened, _ = plan_and_run(load_recipe("demo", ["pretraining.seed=7"]), store)
    ran = {name for name, action in happened.items() if action == "ran"}
    assert {name.split("/")[1] for name in ran if name.startswith("seed-run/")} == {"pretrained"}
