import pytest

from eval.compared_settings import ComparedModel
from eval.model_files import builtin_models
from flows.graph import nodes_of
from flows.recipe import load_recipe
from tasks.contract import UserError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def with_models(text: str, *changes: str):
    return load_recipe("demo", [f"evaluation.compare_with={text}", *changes]).evaluation


def test_the_published_recipe_compares_with_the_models_of_its_table():
    recipe = load_recipe("sahajbert")
    assert list(recipe.evaluation.compare_with) == ["xlm-r-large", "indicbert", "bnroberta"]
    (node,) = [node for node in nodes_of(recipe) if node.name == "compared-model/xlm-r-large"]
    assert node.fetches == "FacebookAI/xlm-roberta-large at c23d21b"
    assert (node.group, node.dispensable) == ("evaluate", True)
    runs = [node for node in nodes_of(recipe) if node.name.startswith("seed-run/xlm-r-large/")]
    assert len(runs) == 10
    assert {node.inputs["checkpoint"] for node in runs} == {"compared-model/xlm-r-large"}


def test_every_built_in_model_is_used_by_its_name(tmp_path):
    assert list(builtin_models()) == ["bnroberta", "indicbert", "xlm-r-large"]
    for name in builtin_models():
        models = with_models(f"{{{name}: {name}}}", f"evaluation.compare_with.{name}.revision={COMMIT}").compare_with
        assert models[name].revision == COMMIT
    for name in ("bnroberta", "indicbert"):
        newest = with_models(f"{{{name}: {name}}}").compare_with[name]
        assert newest.fetches == f"{newest.hub} at main"
        local = with_models(f"{{{name}: {{definition: {name}, local: {tmp_path}}}}}").compare_with[name]
        assert (local.fetches, local.local) == (None, str(tmp_path))


def test_a_model_by_path_and_keys_beside_the_definition(tmp_path):
    (tmp_path / "mine.yaml").write_text("path: weights/mine\nkeep_accents: true\n", encoding="utf-8")
    change = (
        f"{{mine: {tmp_path / 'mine.yaml'}, other: {{definition: {tmp_path / 'mine.yaml'}, keep_accents: false}}}}"
    )
    models = with_models(change).compare_with
    assert models["mine"].path == models["other"].path == str(tmp_path / "weights/mine")
    assert (models["mine"].keep_accents, models["other"].keep_accents) == (True, False)


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ("{a: xlm-r-larg}", "a.definition: no built-in model 'xlm-r-larg'; did you mean xlm-r-large"),
        ("{a: {hub: some/model}}", "compare_with.a: no revision is pinned"),
        ("{a: {hub: some/model, revision: v2}}", "a.revision: 'v2': pin it"),
        ("{a: {hub: model, revision: main}}", "a.hub: 'model': should be owner/name"),
        ("{a: {}}", "either hub: owner/name, or path: FOLDER"),
        ("{a: {path: x, hub: some/model}}", "give one of the two"),
        ("{a: {path: x, local: y}}", "revision and local are for a model of the hub"),
        ("{a: {path: x, keep_accents: true, strip_accents: false}}", "are of different tokenizers"),
        ("{a: {path: x, use_fast: false}}", "a.use_fast: unknown key"),
        ("{a: {path: x, trust_remote_code: true}}", "a.trust_remote_code: unknown key"),
        ("{random: {path: x}}", "compare_with.random: this name has a meaning of its own"),
        ("{XLM: {path: x}}", "a model's name should be lower-case"),
        ("[xlm-r-large]", "compare_with"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(models, said):
    with pytest.raises(UserError) as error:
        with_models(models)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_the_title_is_what_the_report_says_and_no_part_of_the_model():
    plain = ComparedModel(hub="some/model", revision=COMMIT)
    assert plain.origin == "some/model at 0123456"
    assert ComparedModel(path="x").origin == "own folder"
    recipe = load_recipe("demo", [f"evaluation.compare_with={{a: {{hub: some/model, revision: {COMMIT}, title: A}}}}"])
    nodes = {node.name: node for node in nodes_of(recipe)}
    assert nodes["compared-model/a"].settings == plain
    assert nodes["evaluate"].settings.compared == {"a": "A"}
