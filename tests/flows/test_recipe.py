import os
from pathlib import Path

import pytest
import yaml

from flows.graph import nodes_of
from flows.recipe import builtin_recipes, find_recipe, load_recipe
from tasks.contract import UserError
from tasks.tokenizer_definition import definitions_folder


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
    assert set(builtin_recipes()) == {"demo", "sahajbert", "sahajbert-xl", "bert-gaudi", "my-language"}
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


def test_sahajbert_xl_is_the_larger_model_on_the_same_data() -> None:
    recipe, first = load_recipe("sahajbert-xl"), load_recipe("sahajbert")
    assert (recipe.corpus, recipe.tokenizer, recipe.packing) == (first.corpus, first.tokenizer, first.packing)
    wider = {"hidden_size": 2048, "intermediate_size": 8192}
    assert recipe.model == first.model.model_copy(update=wider)
    training = recipe.pretraining
    assert (training.engine, training.objective, training.optimizer) == ("collaborative", "mlm+sop", "lamb")
    assert (training.steps, training.schedule_length, training.warmup_steps) == (15_625, 15_625, 3125)
    assert (training.batch_size, training.micro_batch_size, training.learning_rate) == (16_384, 4, 0.005)
    tasks = recipe.evaluation.tasks
    assert (tasks["ner"].fine_tuning.learning_rate, tasks["ner"].fine_tuning.max_length) == (3e-5, 256)
    assert (tasks["topics"].fine_tuning.learning_rate, tasks["topics"].fine_tuning.max_length) == (1e-5, 128)


def test_bert_gaudi_carries_the_published_settings() -> None:
    recipe = load_recipe("bert-gaudi")
    training = recipe.pretraining
    assert (training.engine, training.steps, training.batch_size) == ("gaudi", 100_000, 256)
    assert (training.learning_rate, training.seed, training.gaudi.devices) == (5e-5, 34, 8)
    assert (training.micro_batch_size // training.gaudi.devices, training.gaudi.throughput_warmup_steps) == (32, 2)
    assert (training.gaudi.mode, training.gaudi.use_fused_adam, training.gaudi.use_fused_clip_norm) == (
        *("lazy", True, True),
    )
    assert (recipe.model.architecture, recipe.model.hidden_size, recipe.model.layers) == ("bert", 768, 12)
    assert recipe.packing.sequence_length == 512


@pytest.mark.parametrize("name", ["sahajbert", "sahajbert-xl", "bert-gaudi"])
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
        ("kind: sample", "kind: sampel", r"corpus\.sources\.0\.kind: 'sampel': did you mean sample\?"),
        ("\n  steps:", "\n  stpes:", r"pretraining\.stpes: unknown key; did you mean steps\?"),
        ("engine: coll", "engine: koll", r"pretraining\.engine: 'kollaborative': should be 'local'"),
        ("seeds: 3", "seeds: many", r"evaluation\.seeds"),
        ("name: demo", "name: My Recipe", r"name: 'My Recipe': should be lower-case letters .*, digits and dashes"),
        ("name: demo", "name: 2024-99-99", r"mine\.yaml:3: .*2024-99-99 is read as a date; quote it"),
        ("name: demo", "? [a, b]\n: 1\nname: demo", r"mine\.yaml:3: .*a seq: keys are strings"),
        ("name: demo", "? {a: b}\n: 1\nname: demo", r"mine\.yaml:3: .*a map: keys are strings"),
        ("name: demo", "True: 1\nname: demo", r"mine\.yaml:3: .*True is read as bool: keys are strings; quote it"),
        ("name: demo", "1: 1\nname: demo", r"1 is read as int: keys are strings; quote it"),
        ("name: demo", "~: 1\nname: demo", r"~ is read as null: keys are strings; quote it"),
        ("name: demo", "name: !!int x", r"mine\.yaml:3: .*x is no valid int"),
        ("name: demo", "name: !!int ''", r"no valid int"),
        ("name: demo", "name: !!float x", r"mine\.yaml:3: .*x is no valid float"),
        ("name: demo", "name: !!bool x", r"x is no valid bool"),
        ("name: demo", "name: !!timestamp x", r"x is read as a date"),
        ("name: demo", "name: !!set {a, b}", r"the tag .*set is not known"),
        ("name: demo", "name: !mine x", r"the tag !mine is not known"),
        ("name: demo", "name: " + "9" * 5000, r"99\.\.\. is no valid int"),
        ("name: demo", "name: 0x" + "9" * 5000, r"a number of more than 100 digits"),
        ("name: demo", "name: " + "[" * 100 + "]" * 100, r"nested deeper than 50 levels"),
        ("name: demo", "name: " + "[" * 100_000, r"mine\.yaml:\d+: is not valid YAML"),
        ("name: demo", "name: &self [*self]", r"an alias lies inside its own anchor"),
        (
            "name: demo",
            "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + "".join(
                f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcde", "bcdef", strict=True)
            )
            + "name: demo",
            r"more than 100,000 values",
        ),
        ("learning_rate: 4.0e-3", "learning_rate: 1e400", r"pretraining\.learning_rate: '1e400': should be a finite"),
        (
            "learning_rate: 4.0e-3",
            "learning_rate: .nan",
            r"pretraining\.learning_rate: NaN: should be a finite number",
        ),
        ("rate: 0.3", "rate: .inf", r"masking\.rate: Infinity: should be"),
        ("    ner:", "    NER:", r"evaluation\.tasks\.NER: 'NER': a task's name should be lower-case letters"),
        ("kind: sample\n", "seed: 3\n", r"corpus\.sources\.0\.kind: is missing"),
        ("packing:", "packing:\n  mode: [", r"mine\.yaml:\d+: is not valid YAML"),
        ("name: demo", "name: demo\nname: twice", r"mine\.yaml:\d+: is not valid YAML: the key name stands twice"),
    ],
)
def test_mistakes_are_one_line_with_file_place_and_choice(demo: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as error:
        load_recipe(edited(demo, old, new))
    assert "mine.yaml" in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_a_tab_and_a_pipe_are_told_as_what_they_are(demo: Path) -> None:
    with pytest.raises(
        UserError, match=r"mine\.yaml:\d+: is not valid YAML: a tab in front of text; indent by spaces"
    ):
        load_recipe(edited(demo, "  sources", "\tsources"))
    os.mkfifo(demo.with_name("pipe.yaml"))
    with pytest.raises(UserError, match=r"pipe\.yaml: is not a regular file"):
        load_recipe(str(demo.with_name("pipe.yaml")))


def test_a_kind_that_does_not_exist_names_the_nearest(demo: Path) -> None:
    with pytest.raises(UserError, match=r"corpus\.sources\.0\.kind: 'file': did you mean files\?"):
        load_recipe(str(demo), ["corpus.sources.0.kind=file"])
    with pytest.raises(UserError, match=r"corpus\.sources\.0: null: should be a mapping"):
        load_recipe(str(demo), ["corpus.sources.0=null"])


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


@pytest.mark.parametrize("name", ["~nobody-at-all/x.yaml", "x" * 5000, "x" * 300 + ".yaml", "a\0b", ""])
def test_names_that_can_be_no_file_are_errors_of_one_line(name: str) -> None:
    with pytest.raises(UserError) as error:
        load_recipe(name)
    assert "\n" not in str(error.value)


def test_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder; name a recipe file in it"):
        load_recipe(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("evaluation.sseds=4", r"evaluation\.sseds: unknown key; did you mean seeds\?"),
        ("corpus.sources.7.documents=4", r"7 is no index of a list of 1"),
        ("name.first=x", r"first lies below 'demo'"),
        ("seeds", r"--set seeds: is not key=value"),
        ("packing.sequence_length=4096", r"packing\.sequence_length 4096 is longer than model\.max_positions"),
        ("pretraining.objective=mlm+sop", r"mlm\+sop"),
        ("corpus.sources.²=1", r"² is no index of a list of 1"),
        ("corpus.sources." + "9" * 5000 + "=1", r"is no index"),
        ("pretraining.betas=[0.9]", r"--set pretraining\.betas=\[0\.9\] on demo: pretraining\.betas\.1: is missing$"),
        ("pretraining.betas=[0.9, 0.9, 0.9]", r"pretraining\.betas: \[0\.9, 0\.9, 0\.9\]: should have at most 2"),
        ("pretraining.betas=[0.9, x]", r"pretraining\.betas\.1: 'x': should be a valid number"),
        ("pretraining.learning_rate=1e400", r"should be a finite number"),
        ("pretraining.betas=[0.9, .nan]", r"pretraining\.betas\.1: NaN: should be a finite number"),
        ("evaluation.seeds=99999999999999999999", r"evaluation\.seeds: 9+: should be less than or equal to 1000"),
        ("evaluation.seeds=many", r"on demo: evaluation\.seeds: 'many': should be a valid integer.* or a valid list$"),
        ("evaluation.seeds=[1, x]", r"evaluation\.seeds\.1: 'x': should be a valid integer"),
        ("evaluation.seeds=[1, 1]", r"evaluation: seeds: 1 stands twice"),
        (
            "evaluation.tasks.ner.fine_tuning.max_length=129",
            r"ner\.fine_tuning\.max_length 129 is longer than model\.ma",
        ),
        (
            "pretraining={steps: 1, probe: {task: nerr, every: 5}}",
            r"pretraining\.probe\.task nerr is no task of evaluation\.tasks; did you mean ner\?$",
        ),
        (
            "pretraining={steps: 1, probe: {task: x, every: 5}}",
            r"pretraining\.probe\.task x is no task of evaluation\.tasks; choose from ner, topics$",
        ),
        (
            "pretraining={steps: 1, probe: {task: ner, evry: 5}}",
            r"pretraining\.probe\.evry: unknown key; did you mean every\?",
        ),
        ("pretraining.probe={task: ner, every: 5}", r"probe is for engine local, not collaborative$"),
        ("model.hidden_size=100000", r"model\.hidden_size: 100000: should be less than or equal to 65536"),
        ("pretraining.steps=10000000000", r"should be less than or equal to 1000000000"),
        (
            "pretraining.warmup_steps=600",
            r"^demo with --set: pretraining: warmup_steps 600 leaves nothing of 600 steps$",
        ),
        ("pretraining=3", r"on demo: pretraining: 3: should be a mapping"),
        (
            "pretraining={steps: 0}",
            r"^--set pretraining=\{steps: 0\} on demo: pretraining\.steps: 0: should be greater",
        ),
        ("name=2024-99-99", r"2024-99-99 is read as a date; quote it"),
        ("name={? [a, b] : 1}", r"keys are strings"),
        ("name=!!int x", r"x is no valid int"),
        ("name=!mine x", r"the tag !mine is not known"),
        ("name={a: 1, a: 2}", r"the key a stands twice"),
        ("name=a: b: c", r"is not valid YAML: mapping values are not allowed.*quote the value"),
        ("name=" + "[" * 5000, r"is not valid YAML"),
        ("name=\udcff", r"bytes that are not UTF-8"),
    ],
)
def test_changes_on_the_command_line_are_checked_alike(change: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as error:
        load_recipe("demo", [change])
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_only_the_faulty_change_is_told() -> None:
    with pytest.raises(UserError) as error:
        load_recipe("demo", ["description=harmless", "pretraining.steps=many", "evaluation.seeds=5"])
    assert str(error.value) == (
        "--set pretraining.steps=many on demo: pretraining.steps: 'many': should be a valid integer, "
        "unable to parse string as an integer"
    )


def test_sentence_order_with_bert_is_an_error_of_the_recipe() -> None:
    with pytest.raises(UserError, match=r"mlm\+sop needs model\.architecture albert, not bert"):
        load_recipe("demo", ["pretraining.objective=mlm+sop", "packing.mode=sentence-pairs"])


@pytest.mark.parametrize(
    ("mine", "told"),
    [
        (
            "scripts: [bengali]",
            "corpus.script.names Latin leaves no text in the scripts that tokenizer.definition {} is",
        ),
        ("scripts: [klingon]", "{}: scripts: 'klingon' is no script"),
        ("scripts: [latin]", None),
        ("# any", None),
    ],
)
def test_the_scripts_of_corpus_and_tokenizer_go_together(demo: Path, mine: str, told: str | None) -> None:
    definition = demo.with_name("definition.yaml")
    template = definitions_folder() / "template.yaml"
    definition.write_text(template.read_text(encoding="utf-8") + mine + "\n", encoding="utf-8")
    changes = ["corpus.script.names=[Latin]", "tokenizer.definition=definition.yaml"]
    if told is None:
        assert load_recipe(str(demo), changes).tokenizer.definition == str(definition)
        return
    with pytest.raises(UserError) as failure:
        load_recipe(str(demo), changes)
    assert told.format(definition) in str(failure.value)
    assert "\n" not in str(failure.value)


def test_values_behind_aliases_change_one_by_one() -> None:
    tasks = load_recipe("sahajbert", ["evaluation.tasks.ner.fine_tuning.epochs=3"]).evaluation.tasks
    assert (tasks["ner"].fine_tuning.epochs, tasks["topics"].fine_tuning.epochs) == (3, 20)


def test_merged_keys_may_be_overridden_at_any_depth(demo: Path) -> None:
    text = demo.read_text(encoding="utf-8").replace("fine_tuning: {", "fine_tuning: &own {", 1)
    text = text.replace("      fine_tuning: {learning_rate: 1.0e-3,", "      fine_tuning: {<<: *own,", 1)
    demo.write_text(text, encoding="utf-8")
    tuning = load_recipe(str(demo)).evaluation.tasks["topics"].fine_tuning
    assert (tuning.learning_rate, tuning.max_length) == (5e-4, 128)


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


def test_relative_paths_of_a_built_in_recipe_start_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe("my-language").corpus.sources[0].paths == [str(tmp_path / "texts/*.txt")]
    changed = load_recipe("my-language", ["corpus.sources.0.paths=[other.txt]"])
    assert changed.corpus.sources[0].paths == [str(tmp_path / "other.txt")]


def test_relative_paths_of_changes_start_at_the_recipe_file(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    changed = load_recipe("../mine.yaml", ["corpus.sources.0={kind: files, paths: [other.txt]}"])
    assert Path(changed.corpus.sources[0].paths[0]).resolve() == tmp_path / "other.txt"
