import json
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from eval.conll import read_conll
from eval.data import check, load_task, warnings_of
from eval.published import published_tables
from eval.settings import EvaluationSettings, TaskSettings
from eval.tables import Fields, csv_rows, hub_splits, labelled_texts, labelled_words
from eval.task_files import expanded
from tasks.contract import UserError
from tasks.durable import sha256_of
from tasks.identity import identity_of

sys.path.insert(0, str(Path(__file__).parent))
from labelled_files import COMMIT, NEWS, SHARED, WIKIANN, files_task, write

shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not here")


def test_labels_are_those_of_the_training_split_and_others_are_errors(tmp_path):
    train = write(tmp_path / "train.conll", "ক\tB-PER\nখ\tO\n\nগ\tB-LOC\n")
    other = write(tmp_path / "test.conll", "ক\tI-PER\n")
    assert load_task(files_task("ner", train, other)).labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    strange = write(tmp_path / "strange.conll", "ক\tO\n\nখ\tB-ORG\n")
    with pytest.raises(UserError, match=r"strange\.conll:3: unknown label 'B-ORG'"):
        load_task(files_task("ner", train, strange))


def test_an_empty_split(tmp_path):
    train, empty = write(tmp_path / "train.conll", "ক\tB-PER\n"), write(tmp_path / "empty.conll", "\n")
    with pytest.raises(UserError, match=r"empty\.conll: the validation split is empty"):
        load_task(files_task("ner", train, empty))


def test_a_single_class_is_an_error(tmp_path):
    path = write(tmp_path / "a.csv", "label,text\nx,ক\nx,খ\n")
    with pytest.raises(UserError, match="only one label, 'x'"):
        load_task(files_task("classification", path))


@pytest.fixture
def hub_copy(tmp_path):
    """A folder as the hub has it: README with the configuration, Parquet files with label names in the schema."""
    import datasets

    features = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "ner_tags": datasets.List(datasets.ClassLabel(names=list(WIKIANN))),
            "langs": datasets.List(datasets.Value("string")),
        }
    )
    rows = {"tokens": [["ঢাকা", "শহর"], ["রবি"]], "ner_tags": [[5, 0], [1]], "langs": [["bn", "bn"], ["bn"]]}
    lines = ["---", "configs:", "- config_name: bn", "  data_files:"]
    for split in ("train", "validation", "test"):
        path = tmp_path / f"hub/bn/{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(rows, features=features).to_parquet(path)
        lines += [f"  - split: {split}", f"    path: bn/{split}-*"]
    write(tmp_path / "hub/README.md", "\n".join([*lines, "---", ""]))
    return tmp_path / "hub"


def test_hub_layout_and_its_parquet_files(hub_copy, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    fields = Fields("tokens", "ner_tags")
    splits = hub_splits(str(hub_copy), "bn", COMMIT, fields)
    by_files = hub_splits(str(hub_copy), "bn", COMMIT, fields, "bn/{split}-*.parquet")
    for split, rows in splits.items():
        assert [row for _, row in by_files[split].rows] == [row for _, row in rows.rows] != []
        assert by_files[split].names == rows.names
    splits = hub_splits(str(hub_copy), "bn", COMMIT, fields)
    assert splits["train"].names == WIKIANN
    wanted = ([["ঢাকা", "শহর"], ["রবি"]], [["B-LOC", "O"], ["B-PER"]])
    assert labelled_words(splits["test"], fields, WIKIANN) == wanted
    with pytest.raises(UserError, match="are not those of the data set"):
        labelled_words(splits["test"], fields, sorted(WIKIANN))
    with pytest.raises(UserError, match="no column 'tags' among 'tokens', 'ner_tags'"):
        hub_splits(str(hub_copy), "bn", COMMIT, Fields("tokens", "tags"))
    file = hub_copy / "bn/train-00000-of-00001.parquet"
    data = load_task(files_task("ner", file, labels=WIKIANN))
    assert (data.splits["train"].inputs, data.splits["train"].labels) == wanted
    assert data.facts()["items"] == {"train": 2, "validation": 2, "test": 2}


def test_a_local_copy_is_read_in_place_of_the_hub_and_counts_by_its_content(hub_copy, tmp_path):
    source = {"kind": "hub", "dataset": "owner/name", "config": "bn", "revision": COMMIT}
    pattern = "{config}/{split}-*.parquet"

    def task(folder: Path, **changes) -> TaskSettings:
        copy = {**source, "local": f"{folder.name}/{pattern}"} | changes
        return TaskSettings.model_validate({"kind": "ner", "source": copy}, context={"folder": folder.parent})

    data = load_task(task(hub_copy))
    assert data.labels == WIKIANN
    assert data.splits["test"].labels == [["B-LOC", "O"], ["B-PER"]]
    before = identity_of(task(hub_copy), sha256_of)
    moved = hub_copy.rename(tmp_path / "moved")
    assert identity_of(task(moved), sha256_of) == before
    file = moved / "bn/test-00000-of-00001.parquet"
    table = pyarrow.parquet.read_table(file)
    pyarrow.parquet.write_table(table.slice(0, 1), file)
    assert identity_of(task(moved), sha256_of) != before
    names = table.schema.with_metadata({"huggingface": table.schema.metadata[b"huggingface"].replace(b"PER", b"PRS")})
    pyarrow.parquet.write_table(table.cast(names), file)
    with pytest.raises(UserError, match="declares the labels"):
        load_task(task(moved))
    file.unlink()
    with pytest.raises(
        UserError, match=r"evaluation\.tasks\.t\.source\.local: .*bn/test-\*\.parquet: no file matches"
    ):
        check(EvaluationSettings(tasks={"t": task(moved)}))
    with pytest.raises(ValueError, match=r"should have \{split\}"):
        task(moved, local="bn/*.parquet")


def builtin_from_files(definition: str, split_files: dict[str, str], folder: Path) -> TaskSettings:
    tasks = expanded({"t": {"definition": definition, "source": {"kind": "files", **split_files}}}, folder)
    return TaskSettings.model_validate(tasks["t"], context={"folder": folder})


def test_official_layouts_of_both_tasks(tmp_path):
    """The file names, columns and label order of the original archives; a few made-up rows."""
    for name, rows in {"train": ["bn:ঢাকা\tB-LOC", "bn:শহর\tO"], "dev": ["bn:রবি\tB-PER"], "test": ["bn:যায়\tO"]}.items():
        write(tmp_path / name, "\n".join(rows) + "\n\n")
    split_files = {"train": "train", "validation": "dev", "test": "test"}
    data = load_task(builtin_from_files("wikiann-bn", split_files, tmp_path))
    assert data.labels == WIKIANN
    assert data.splits["validation"].inputs == [["রবি"]]
    for name in ("train", "valid", "test"):
        write(tmp_path / f"bn-{name}.csv", f'sports,"{name} ক, খ"\nkolkata,গ\n')
    split_files = {"train": "bn-train.csv", "validation": "bn-valid.csv", "test": "bn-test.csv"}
    data = load_task(builtin_from_files("soham-ncc", split_files, tmp_path))
    assert data.labels == NEWS
    assert data.splits["validation"].inputs == ["valid ক, খ", "গ"]
    assert data.splits["test"].labels == ["sports", "kolkata"]


def test_overlap_with_training_is_counted_and_warned_of_above_the_bound(tmp_path):
    train = write(tmp_path / "train.csv", "label,text\n" + "".join(f"{'ab'[n % 2]},t {n}\n" for n in range(40)))
    rows = "".join(f"a,u {n}\n" for n in range(97))
    test = write(tmp_path / "test.csv", f"label,text\n{rows}a,t  3\nb,t 4 \na,t 5\n")
    task = files_task("classification", train, test)
    facts = load_task(task).facts()
    assert facts["overlap"] == {"validation": 3, "test": 3}
    assert [text.partition(" items")[0] for text in warnings_of(task, facts)] == [
        "3 of 100 validation",
        "3 of 100 test",
    ]
    assert "max_overlap 1.0%" in warnings_of(task, facts)[0]
    assert warnings_of(task.model_copy(update={"max_overlap": 0.03}), facts) == []
    ner = write(tmp_path / "a.conll", "ক\tB-PER\nখ\tO\n\nক\tB-PER\n")
    assert load_task(files_task("ner", ner)).overlap() == {"validation": 2, "test": 2}


def test_a_stated_digest_holds_for_any_format_and_refuses_other_content(tmp_path):
    conll = write(tmp_path / "a.conll", "ক\tI-PER\nখ\tO\n")
    rows = json.dumps({"tokens": ["ক", "খ"], "ner_tags": ["B-PER", "O"]}).encode()
    lines = write(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + rows + b"\r\n")
    digest = load_task(files_task("ner", conll)).facts()["sha256"]
    same = files_task("ner", lines).model_copy(update={"sha256": digest})
    assert load_task(same).facts()["sha256"] == digest
    other = write(tmp_path / "b.jsonl", rows.replace(b"B-PER", b"B-LOC"))
    with pytest.raises(UserError, match="not the task's sha256"):
        load_task(files_task("ner", other).model_copy(update={"sha256": digest}))
    with pytest.raises(ValueError, match="64 digits"):
        TaskSettings(kind="ner", source={"kind": "sample"}, sha256="abc")


def test_a_local_folder_does_not_stand_for_a_pinned_data_set(tmp_path, monkeypatch):
    (tmp_path / "owner/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for pattern in (None, "{split}.parquet"):
        with pytest.raises(UserError, match="would be read in place of the hub's data set"):
            hub_splits("owner/name", None, COMMIT, Fields("text", "label"), pattern)
    source = {"kind": "hub", "dataset": "owner/name", "revision": COMMIT}
    with pytest.raises(UserError, match="would be read in place of the hub's data set"):
        check(EvaluationSettings(tasks={"t": TaskSettings(kind="ner", source=source)}))


def test_check_reads_small_files_and_imports_nothing_heavy(tmp_path, monkeypatch):
    good = write(tmp_path / "a.conll", "ক\tB-PER\n")
    bad = write(tmp_path / "b.conll", "ক\tB-PER\nখ\tPER\n")
    settings = EvaluationSettings(tasks={"t": files_task("ner", good, bad)})
    with pytest.raises(UserError, match=r"b\.conll:2: tag 'PER' is not IOB2"):
        check(settings)
    monkeypatch.setattr("eval.data.CHECKED_BYTES", 10)
    check(settings)
    code = (
        "import json, sys; from eval.data import check; from eval.settings import EvaluationSettings; "
        "check(EvaluationSettings.model_validate(json.loads(sys.argv[1]))); "
        "print([name for name in ('datasets', 'pyarrow', 'numpy', 'torch') if name in sys.modules])"
    )
    asked = EvaluationSettings(tasks={"t": files_task("ner", good)}).model_dump_json()
    done = subprocess.run([sys.executable, "-c", code, asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_several_files_of_a_split(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.jsonl", json.dumps({"text": name, "label": name}) + "\n")
    data = load_task(files_task("classification", tmp_path / "*.jsonl"))
    assert data.splits["train"].inputs == ["a", "b"]


def test_check_finds_what_is_wrong_before_anything_runs(tmp_path):
    good = write(tmp_path / "a.conll", "ক\tB-PER\n")

    def checked(task: TaskSettings, **changes) -> None:
        check(EvaluationSettings(tasks={"t": task.model_copy(update=changes)}))

    checked(files_task("ner", good))
    with pytest.raises(UserError, match=r"evaluation\.tasks\.t\.source\.validation: .*nowhere"):
        checked(files_task("ner", good, tmp_path / "nowhere.conll"))
    with pytest.raises(UserError, match="no table 'wikiann'; known are wikiann-bn, soham-ncc"):
        checked(files_task("ner", good), published="wikiann")
    with pytest.raises(UserError, match="format conll is for NER"):
        checked(files_task("classification", good, format="conll"))
    with pytest.raises(UserError, match="must be a number in a CoNLL file"):
        checked(files_task("ner", good, tag_column="ner_tags"))
    with pytest.raises(UserError, match="csv holds no lists of words"):
        checked(files_task("ner", write(tmp_path / "a.csv", "x")))


@shared
def test_genuine_rows_of_the_official_layouts():
    for split in ("train", "dev", "test"):
        words, tags = read_conll(SHARED / f"formats/wikiann_bn/{split}", labels=WIKIANN)
        assert not any(word.startswith("bn:") for sentence in words for word in sentence)
        assert [len(sentence) for sentence in words] == [len(sentence) for sentence in tags]
    words, tags = read_conll(SHARED / "formats/wikiann_bn/test")
    assert (words[0], tags[0]) == (["উরুগুয়ে", "জাতীয়", "ফুটবল", "দল"], ["B-ORG", "I-ORG", "I-ORG", "I-ORG"])
    fields = Fields("text", "label")
    texts, labels = labelled_texts(
        csv_rows(SHARED / "formats/soham_sna_bn/bn-train.csv", fields, ",", NEWS), fields, NEWS
    )
    assert labels[0] == "entertainment"
    assert len(texts[0]) > 300
    assert set(labels) <= set(NEWS)
    formats = SHARED / "formats"
    split_files = {"train": "bn-train.csv", "validation": "bn-valid.csv", "test": "bn-test.csv"}
    facts = load_task(builtin_from_files("soham-ncc", split_files, formats / "soham_sna_bn")).facts()
    table = published_tables()["soham-ncc"]
    (*others, own) = table.differences({"source": {"kind": "files"}, **facts}, "accuracy")
    assert "own files" in others[0]
    assert own.startswith("test has ")
    assert own.endswith(" items, the published 1,411")
    words, tags = read_conll(SHARED / "ner/en/en_ewt-ud-dev.iob2", token_column=1, tag_column=2)
    assert len(words) == 2001
    ragged = SHARED / "formats/indicglue_wiki-ner_bn/bn-test.txt"
    with pytest.raises(UserError, match="give token_column and tag_column"):
        read_conll(ragged)
    words, _ = read_conll(ragged, 0, -1)
    assert words[0] == ["নিকলাইয়েভিচ", "তল্‌স্তোয়"]


@shared
def test_the_shared_data_has_its_documented_sizes():
    ner = {split: str(SHARED / f"ner/bn/{split}.conll") for split in ("train", "validation", "test")}
    data = load_task(TaskSettings(kind="ner", source={"kind": "files", **ner}, labels=WIKIANN))
    assert data.facts()["items"] == {"train": 10000, "validation": 1000, "test": 1000}
    poets = {name: str(SHARED / f"classification/bn-poets/{name}.csv") for name in ("train", "validation", "test")}
    data = load_task(TaskSettings(kind="classification", source={"kind": "files", **poets}))
    assert data.facts()["items"] == {"train": 2252, "validation": 277, "test": 264}
    assert len(data.labels) == 4


def test_the_sample_has_the_sizes_asked_for():
    for kind, labels in (("ner", WIKIANN), ("classification", 6)):
        source = {"kind": "sample", "train": 30, "validation": 10, "test": 20}
        data = load_task(TaskSettings(kind=kind, source=source))
        assert data.facts()["items"] == {"train": 30, "validation": 10, "test": 20}
        assert data.labels == labels or len(data.labels) == labels
