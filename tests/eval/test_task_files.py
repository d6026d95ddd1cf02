from pathlib import Path

import pytest

from eval.published import published_tables
from eval.settings import TaskSettings
from eval.task_files import builtin_tasks, expanded
from flows.recipe import find_recipe, load_recipe
from tasks.contract import UserError

TASK = """
kind: classification
source: {kind: files, train: data/train.csv, validation: data/dev.csv, test: data/test.csv}
labels: [x, y]
fine_tuning: {epochs: 7, batch_size: 8}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/mine.yaml").write_text(TASK)
    demo = find_recipe("demo").read_text(encoding="utf-8")
    text = demo[: demo.index("  tasks:")] + "  tasks:\n    ner: wikiann-bn\n    mine: tasks/mine.yaml\n"
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    return tmp_path / "recipe.yaml"


def test_builtin_tasks_are_valid_and_are_what_the_published_figures_were_measured_on():
    tables = published_tables()
    assert set(builtin_tasks()) == {"wikiann-bn", "soham-ncc"} == set(tables)
    for name, entry in expanded({name: name for name in builtin_tasks()}, Path()).items():
        task = TaskSettings.model_validate(entry)
        assert task.published == name
        wanted = tables[name].data
        assert (task.source.dataset, task.source.config) == (wanted.datasets[0], wanted.config)
        assert task.labels == wanted.labels


def test_a_task_by_name_and_by_path_whose_paths_start_at_its_own_folder(recipe):
    tasks = load_recipe(str(recipe)).evaluation.tasks
    assert tasks["ner"].source.dataset == "unimelb-nlp/wikiann"
    assert tasks["mine"].source.train == str(recipe.parent / "tasks/data/train.csv")
    assert (tasks["mine"].fine_tuning.epochs, tasks["mine"].labels) == (7, ("x", "y"))


def test_keys_beside_the_definition_change_it(recipe):
    changes = [
        "evaluation.tasks.mine.fine_tuning.epochs=2",
        "evaluation.tasks.mine.source.test=other.csv",
        "evaluation.tasks.ner.source.config=hi",
        "evaluation.tasks.ner.published=null",
        "evaluation.tasks.third=soham-ncc",
        "evaluation.tasks.third.source.local=copies/{split}.parquet",
        "evaluation.tasks.again={definition: wikiann-bn, labels: null, source: {kind: sample, test: 5}}",
    ]
    tasks = load_recipe(str(recipe), changes).evaluation.tasks
    assert (tasks["mine"].fine_tuning.epochs, tasks["mine"].fine_tuning.batch_size) == (2, 8)
    assert tasks["mine"].source.test == str(recipe.parent / "other.csv")
    assert tasks["mine"].source.train == str(recipe.parent / "tasks/data/train.csv")
    assert (tasks["ner"].source.config, tasks["ner"].published) == ("hi", None)
    assert tasks["ner"].source.dataset == "unimelb-nlp/wikiann"
    assert tasks["third"].source.local == str(recipe.parent / "copies/{split}.parquet")
    assert (tasks["again"].source.kind, tasks["again"].source.test) == ("sample", 5)


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        (
            "wikian-bn",
            "ner.definition: no built-in task 'wikian-bn'; did you mean wikiann-bn; else give",
        ),
        ("zzz", "known are soham-ncc, wikiann-bn; else give the path of a .yaml file"),
        ("tasks/mine2.yaml", "no such file; did you mean"),
        ("3", "evaluation.tasks.ner.definition: 3 should be the name"),
        ("tasks/wrong.yaml", "tasks/wrong.yaml: lables: unknown key; known are kind, source, labels"),
        ("tasks/value.yaml", "tasks/value.yaml: kind: Input should be 'ner' or 'classification'"),
        ("tasks/list.yaml", "tasks/list.yaml: a task is a mapping of kind, source"),
        ("tasks/twice.yaml", "tasks/twice.yaml:"),
    ],
)
def test_a_wrong_task_file_is_one_line_that_names_it(recipe, definition, says):
    folder = recipe.parent / "tasks"
    (folder / "wrong.yaml").write_text(TASK.replace("labels", "lables"))
    (folder / "value.yaml").write_text(TASK.replace("classification", "topics"))
    (folder / "list.yaml").write_text("[1]")
    (folder / "twice.yaml").write_text(TASK + "kind: ner\n")
    with pytest.raises(UserError) as error:
        load_recipe(str(recipe), [f"evaluation.tasks.ner={{definition: {definition}}}"])
    assert says in str(error.value)
    assert "\n" not in str(error.value)
