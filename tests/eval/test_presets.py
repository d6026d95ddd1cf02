import pytest
from pydantic import ValidationError

from eval.presets import PRESETS, resolved
from eval.settings import FineTuningSettings
from flows.recipe import load_recipe
from tasks.contract import UserError
from tasks.durable import sha256_of
from tasks.identity import identity_of

PAPER = {
    "learning_rate": 1e-5,
    "epochs": 20,
    "batch_size": 128,
    "max_length": 128,
    "warmup_fraction": 0.0,
    "weight_decay": 0.0,
    "dropout": None,
    "patience": 3,
    "threshold": 0.01,
}


def identity(values: dict) -> dict:
    return identity_of(FineTuningSettings.model_validate(values), sha256_of)


def test_a_preset_and_its_values_written_out_are_the_same_settings():
    assert identity({"preset": "paper"}) == identity(PAPER)
    assert identity({"preset": "paper", "epochs": 5}) == identity({**PAPER, "epochs": 5})
    assert identity({"preset": "default"}) == identity({})
    assert identity({"preset": "paper"}) != identity({})
    assert "preset" not in FineTuningSettings(preset="paper").model_dump(mode="json")


def test_every_preset_sets_what_its_name_says_and_nothing_unknown():
    for name, values in PRESETS.items():
        settings = FineTuningSettings(preset=name)
        assert {key: getattr(settings, key) for key in values} == values
    assert resolved("no mapping") == "no mapping"
    assert resolved({"preset": ["paper"]}) == {"preset": ["paper"]}


def test_an_unknown_preset_and_a_half_replaced_one_are_told():
    with pytest.raises(UserError, match=r"fine_tuning\.preset: 'papre': should be 'default' or 'paper'"):
        load_recipe("demo", ["evaluation.tasks.ner.fine_tuning.preset=papre"])
    with pytest.raises(ValidationError, match=r"threshold 0\.01 has no effect without patience; set both"):
        FineTuningSettings(preset="paper", patience=None)
    assert FineTuningSettings(preset="paper", patience=None, threshold=0).epochs == 20


def test_the_published_recipe_takes_the_papers(tmp_path):
    recipe = load_recipe("sahajbert")
    for task in recipe.evaluation.tasks.values():
        assert {key: getattr(task.fine_tuning, key) for key in PAPER} == PAPER
    written_out = load_recipe(
        "sahajbert",
        [f"evaluation.tasks.{name}.fine_tuning={PAPER}".replace("None", "null") for name in ("ner", "topics")],
    )
    assert written_out.model_dump(mode="json") == recipe.model_dump(mode="json")


def test_a_recipes_preset_stands_above_the_values_of_a_task_file(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "kind: ner\nsource: {kind: sample}\nfine_tuning: {epochs: 7, batch_size: 4}\n", encoding="utf-8"
    )
    change = (
        f"evaluation.tasks.ner={{definition: {tmp_path / 'mine.yaml'}, fine_tuning: {{preset: paper, epochs: 2}}}}"
    )
    tuning = load_recipe("demo", [change]).evaluation.tasks["ner"].fine_tuning
    assert (tuning.epochs, tuning.batch_size, tuning.learning_rate) == (2, 128, 1e-5)
