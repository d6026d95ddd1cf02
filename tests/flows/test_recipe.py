from pathlib import Path

import pytest
import yaml

from flows.graph import nodes_of
from flows.recipe import builtin_recipes, find_recipe, load_recipe
from tasks.contract import UserError


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(find_recipe("demo").read_text(encoding="utf-8"), encoding="utf-8")
    return path


def edited(path: Path, old: str, new: str) -> str:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return str(path)


def test_builtin_recipes_load_and_make_a_chain() -> None:
    assert set(builtin_recipes()) == {"demo", "sahajbert", "bert-gaudi", "my-language"}
    for name in builtin_recipes():
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe.description
        assert [node.name for node in nodes_of(recipe)][-1] == "report"


def test_sahajbert_carries_the_published_settings() -> None:
    recipe = load_recipe("sahajbert")
    assert [source.weight for source in recipe.corpus.sources] == [0.23, 0.77]
    assert recipe.corpus.shuffle_buffer == 10_000
    assert (recipe.packing.sequence_length, recipe.packing.mode) == (512, "sentence-pairs")
    model = recipe.model
    assert (model.architecture, model.hidden_size, model.layers, model.heads) == ("albert", 1024, 24, 16)
    assert (model.intermediate_size, model.embedding_size, model.layer_groups) == (4096, 128, 1)
    training = recipe.pretraining
    assert (training.engine, training.objective, training.optimizer) == ("collaborative", "mlm+sop", "lamb")
    assert (training.batch_size, training.learning_rate, training.warmup_steps) == (4096, 0.00176, 5000)
    assert (training.schedule_steps, training.weight_decay, training.epsilon) == (1_000_000, 0.01, 1e-6)
    assert recipe.evaluation.tasks["ner"].fine_tuning.learning_rate == 1e-5


def test_bert_gaudi_carries_the_published_settings() -> None:
    recipe = load_recipe("bert-gaudi")
    training = recipe.pretraining
    assert (training.engine, training.steps, training.batch_size) == ("gaudi", 100_000, 256)
    assert (training.learning_rate, training.seed, training.gaudi.devices) == (5e-5, 34, 8)
    assert (recipe.model.architecture, recipe.model.hidden_size, recipe.model.layers) == ("bert", 768, 12)
    assert recipe.packing.sequence_length == 512


@pytest.mark.parametrize("name", ["sahajbert", "bert-gaudi"])
def test_hub_revisions_are_commits(name: str) -> None:
    recipe = load_recipe(name)
    sources = [*recipe.corpus.sources, *(task.source for task in recipe.evaluation.tasks.values())]
    hub = [source for source in sources if source.kind == "hub"]
    assert len(hub) >= 3
    assert all(len(source.revision) == 40 for source in hub)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "sequence_length:",
            "sequence_lenght:",
            r"packing\.sequence_lenght: unknown key; did you mean sequence_length\?",
        ),
        ("kind: sample", "kind: sampel", r"corpus\.sources\.0: .*sampel.*"),
        ("steps:", "stpes:", r"pretraining\.stpes: unknown key; did you mean steps\?"),
        ("engine: local", "engine: lokal", r"pretraining\.engine: 'lokal': should be 'local'"),
        ("seeds: 3", "seeds: many", r"evaluation\.seeds"),
        ("name: demo", "name: My Recipe", r"name: 'My Recipe'"),
        ("packing:", "packing:\n  mode: [", r"mine\.yaml:\d+: is not valid YAML"),
        ("name: demo", "name: demo\nname: twice", r"mine\.yaml:\d+: is not valid YAML: the key name stands twice"),
    ],
)
def test_mistakes_are_one_line_with_file_place_and_choice(demo: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as error:
        load_recipe(edited(demo, old, new))
    assert "mine.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_part_is_named(demo: Path) -> None:
    data = yaml.safe_load(demo.read_text(encoding="utf-8"))
    del data["model"]
    demo.write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.yaml: model: is missing"):
        load_recipe(str(demo))


def test_file_that_is_not_utf8_is_named_with_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: caf\xe9\n")
    with pytest.raises(UserError, match=r"latin\.yaml: byte 9 is not UTF-8"):
        load_recipe(str(path))


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"dmeo: no such recipe; did you mean demo\?"):
        load_recipe("dmeo")
    with pytest.raises(UserError, match=r"nowhere\.yaml: no such file"):
        load_recipe("nowhere.yaml")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("evaluation.sseds=4", r"evaluation\.sseds: unknown key; did you mean seeds\?"),
        ("corpus.sources.7.documents=4", r"7 is no index of a list of 1"),
        ("name.first=x", r"first lies below 'demo'"),
        ("seeds", r"--set seeds: is not key=value"),
        ("packing.sequence_length=4096", r"packing\.sequence_length 4096 is longer than model\.max_positions"),
        ("pretraining.objective=mlm+sop", r"mlm\+sop"),
    ],
)
def test_changes_on_the_command_line_are_checked_alike(change: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        load_recipe("demo", [change])


def test_changes_apply_to_nested_keys_and_lists() -> None:
    recipe = load_recipe("demo", ["corpus.sources.0.documents=77", "evaluation.seeds=[5, 7]", "description=new"])
    assert recipe.corpus.sources[0].documents == 77
    assert recipe.evaluation.seed_list == (5, 7)
    assert recipe.description == "new"


def test_relative_paths_start_at_the_recipe(demo: Path) -> None:
    path = edited(demo, "kind: sample", "kind: files\n      paths: [texts/*.txt]")
    data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    data["corpus"]["sources"] = [{"kind": "files", "paths": ["texts/*.txt"]}]
    demo.write_text(yaml.safe_dump(data), encoding="utf-8")
    assert load_recipe(str(demo)).corpus.sources[0].paths == [str(demo.parent / "texts/*.txt")]
