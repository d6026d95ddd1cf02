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
from eval.settings import EvaluationSettings, FineTuningSettings, TaskSettings
from eval.tables import Fields, csv_rows, hub_splits, labelled_texts, labelled_words
from eval.task_files import expanded
from tasks.contract import UserError
from tasks.durable import sha256_of
from tasks.identity import identity_of

SHARED = Path(__file__).parents[2].parent / "shared/data"
NEWS = ("kolkata", "state", "national", "sports", "entertainment", "international")
COMMIT = "0" * 40
WIKIANN = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not here")


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def files_task(kind: str, train: Path, other: Path | None = None, labels=None, **source) -> TaskSettings:
    other = other or train
    paths = {"train": str(train), "validation": str(other), "test": str(other)}
    return TaskSettings(kind=kind, source={"kind": "files", **paths, **source}, labels=labels)


def test_conll_dialects_of_one_file_read_alike(tmp_path):
    wanted = ([["ঢাকা", "শহর"], ["#", "রবি"]], [["B-LOC", "O"], ["O", "B-PER"]])
    plain = "ঢাকা\tB-LOC\nশহর\tO\n\n#\tO\nরবি\tB-PER\n"
    dialects = {
        "plain": plain,
        "spaces": plain.replace("\t", " "),
        "windows": "\ufeff" + plain.replace("\n", "\r\n"),
        "no final newline": plain.rstrip("\n"),
        "blank lines": "\n\n" + plain.replace("\n\n", "\n \n\n"),
        "comments": "# id = 1\n#newdoc\n" + plain.replace("\n\n", "\n\n# text = রবি B-PER\n"),
        "docstart": "-DOCSTART- -X- O O\n\n" + plain,
        "language prefix": plain.replace("ঢাকা", "bn:ঢাকা")
        .replace("শহর", "bn:শহর")
        .replace("#", "bn:#")
        .replace("রবি", "bn:রবি"),
    }
    for name, text in dialects.items():
        assert read_conll(write(tmp_path / "a.conll", text)) == wanted, name
    for more in range(1, 4):  # 3 to 5 columns, the word first and the tag last
        wide = plain.replace("\t", "\t_" * more + "\t")
        assert read_conll(write(tmp_path / "a.conll", wide)) == wanted
        assert read_conll(write(tmp_path / "a.conll", wide.replace("\t", " "))) == wanted
    columns = "1\tঢাকা\tB-LOC\t-\n2\tশহর\tO\t-\n\n1\t#\tO\t-\n2\tরবি\tB-PER\t-\n"
    assert read_conll(write(tmp_path / "b.conll", columns), token_column=1, tag_column=2) == wanted


def test_a_prefix_that_some_words_lack_is_kept(tmp_path):
    words, _ = read_conll(write(tmp_path / "a.conll", "bn:ক O\nhttp://x O\n"))
    assert words == [["bn:ক", "http://x"]]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("ক\tO\nখ\n", 2, "has no tag"),
        ("ক\tO\n\nখ\tPER\n", 3, "tag 'PER' is not IOB2, IOB1 or BIOES"),
        ("ক\tO\nখ\tB-GPE\n", 2, "unknown label 'B-GPE'"),
        ("ক\tO\n\tO\n", 2, "word is empty"),
        (b"\xe0\xa6\x95\tO\n\xff\tO\n", 2, "not UTF-8"),
        ("ক\tO\n#tag\n", 2, "has no tag"),
        ("ক NNP B-NP B-PER\nখ NN I-NP\n", 2, "3 columns where the file's first word has 4"),
        ("ক\tO\nখ\tO\t\n", 2, "3 columns where the file's first word has 2"),
        ("ক\tO\nখ\tS-GPE\n", 2, "unknown label 'B-GPE'"),
        ("ক\tO\nখ\tE-PERS\n", 2, "unknown label 'I-PERS'; did you mean 'I-PER'?"),
    ],
)
def test_bad_conll_names_file_and_line(tmp_path, text, line, says):
    path = write(tmp_path / "bad.conll", text)
    with pytest.raises(UserError) as error:
        read_conll(path, labels=WIKIANN)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_too_few_columns(tmp_path):
    path = write(tmp_path / "a.conll", "ক\tO\n")
    with pytest.raises(UserError, match=r"a\.conll:1: 2 columns are too few"):
        read_conll(path, token_column=1, tag_column=2)


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


def test_csv_with_header_and_official_form_without(tmp_path):
    header = write(tmp_path / "a.csv", 'topic,id,body\nb,1,"ক, ""খ""\nগ"\na,2,ঘ\n')
    data = load_task(files_task("classification", header, text_field="body", label_field="topic"))
    assert data.labels == ("a", "b")
    assert data.splits["test"].inputs == ['ক, "খ"\nগ', "ঘ"]
    assert data.splits["test"].labels == ["b", "a"]
    bare = write(tmp_path / "b.csv", 'b,"ক\nখ"\na,গ\n')
    data = load_task(files_task("classification", bare, labels=("b", "a")))
    assert data.labels == ("b", "a")
    assert data.splits["train"].inputs == ["ক\nখ", "গ"]
    tsv = write(tmp_path / "c.tsv", "text\tlabel\nক, খ\ta\nগ\tb\n")
    assert load_task(files_task("classification", tsv)).splits["train"].inputs == ["ক, খ", "গ"]


@pytest.mark.parametrize(
    ("text", "labels", "place", "says"),
    [
        ("topic,text\na,ক\n", None, ":1: ", "no columns 'text' and 'label'"),
        ("a,ক\nb,খ\n", None, ":1: ", "give labels"),
        ("label,text\na,ক\nbb,খ\n", ("a", "b"), ":3: ", "unknown label 'bb'; did you mean 'b'?"),
        ('label,text\na,"ক\nখ"\nb\n', None, ":4: ", "1 columns instead of 2"),
        ('label,text\na,"ক\n', None, ":2: ", "not a valid table"),
        ("label,text\na,ক,খ\n", None, ":2: ", "3 columns instead of 2"),
        ("label,text\na,ক\n ,খ\n", None, ":3: ", "the label in 'label' is empty"),
        ("label,text,label\na,ক,b\n", None, ":1: ", "2 columns are called 'label'"),
        (b"label,text\na,\xff\n", None, ":2: ", "not UTF-8"),
    ],
)
def test_bad_csv_names_file_and_line(tmp_path, text, labels, place, says):
    path = write(tmp_path / "bad.csv", text)
    with pytest.raises(UserError) as error:
        load_task(files_task("classification", path, labels=labels))
    assert f"{path}{place}" in str(error.value)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('{"tokens": ["a"], "ner_tags": [0, 1]}', ":2: 1 words but 2 tags"),
        ('{"tokens": ["a"], "ner_tags": [7]}', ":2: label 7 is not a number from 0 to 6"),
        ('{"tokens": ["a"]}', ":2: no value 'ner_tags'"),
        ('{"tokens": [], "ner_tags": []}', ":2: 'tokens' is an empty list"),
        ('{"tokens": "a", "ner_tags": [0]}', ":2: 'tokens' is a str, not a list"),
        ('{"tokens": ["a"], "ner_tags": [0]', ":2: not JSON"),
        ("[1]", ":2: a list, not a JSON object"),
        ('{"tokens": ["a"], "ner_tags": [true]}', ":2: label True is neither"),
        (r'{"tokens": ["\udc00"], "ner_tags": [0]}', r":2: \udc00 is half a character"),
        ('{"tokens": ' + "[" * 200_000, ":2: JSON that is nested too deeply"),
        ('{"tokens": ["a"], "ner_tags": [' + "1" * 5_000 + "]}", ":2: a whole number with more than 4300 digits"),
    ],
)
def test_bad_json_lines_name_file_and_line(tmp_path, row, says):
    path = write(tmp_path / "bad.jsonl", f'{{"tokens": ["a", "b"], "ner_tags": [1, "O"]}}\n{row}\n')
    with pytest.raises(UserError) as error:
        load_task(files_task("ner", path, labels=WIKIANN))
    assert f"{path}{says}" in str(error.value)


def test_numbers_without_names_need_labels(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a", "label": 1}\n')
    with pytest.raises(UserError, match="give the task's labels in the order of their ids"):
        load_task(files_task("classification", path))
    assert load_task(files_task("classification", path, labels=("x", "y"))).splits["test"].labels == ["y"]


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


def test_label_names_in_bioes_become_iob2(tmp_path):
    import datasets

    names = ["O", "B-PER", "I-PER", "E-PER", "S-PER"]
    features = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "ner_tags": datasets.List(datasets.ClassLabel(names=names)),
        }
    )
    rows = {"tokens": [["a", "b", "c", "d"]], "ner_tags": [[1, 3, 4, 0]]}
    for split in ("train", "validation", "test"):
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / f"{split}.parquet")
    source = {"kind": "hub", "dataset": "a/b", "revision": COMMIT, "local": f"{tmp_path}/{{split}}.parquet"}
    data = load_task(TaskSettings(kind="ner", source=source))
    assert data.labels == ("O", "B-PER", "I-PER")
    assert data.splits["test"].labels == [["B-PER", "I-PER", "B-PER", "O"]]
    assert data.tags_converted == 6


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


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_tables_with_byte_order_mark_windows_lines_and_no_final_newline(tmp_path, ending):
    plain = {
        "csv": "label,text\na,ক\nb,খ\n",
        "tsv": "label\ttext\na\tক\nb\tখ\n",
        "jsonl": '{"label": "a", "text": "ক"}\n{"label": "b", "text": "খ"}\n',
    }[ending]
    for text in (plain, "\ufeff" + plain.replace("\n", "\r\n"), plain.rstrip("\n")):
        data = load_task(files_task("classification", write(tmp_path / f"a.{ending}", text)))
        assert (data.splits["test"].inputs, data.splits["test"].labels) == (["ক", "খ"], ["a", "b"])


def test_bad_parquet(tmp_path):
    path = write(tmp_path / "a.parquet", "no parquet")
    with pytest.raises(UserError, match=r"a\.parquet: not a Parquet file"):
        load_task(files_task("classification", path))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), path)
    with pytest.raises(UserError, match="no column 'label'"):
        load_task(files_task("classification", path))


def test_damaged_parquet(tmp_path):
    path = tmp_path / "a.parquet"

    def fails(says):
        with pytest.raises(UserError) as error:
            load_task(files_task("classification", path, labels=("a", "b")))
        assert str(error.value).startswith(f"{path}: ")
        assert says in str(error.value)
        assert "\n" not in str(error.value)

    table = pyarrow.table({"text": [f"ক {n}" for n in range(3_000)], "label": ["a", "b"] * 1_500})
    pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False)
    whole = path.read_bytes()
    for start in (8, len(whole) - 300):  # in a page, in the footer
        path.write_bytes(whole[:start] + b"\xff" * 40 + whole[start + 40 :])
        fails("damaged")
    column = pyarrow.Array.from_buffers(pyarrow.string(), 1, pyarrow.array([b"\xff"], pyarrow.binary()).buffers())
    pyarrow.parquet.write_table(pyarrow.table({"text": column, "label": ["a"]}), path)
    fails("not UTF-8")
    pyarrow.parquet.write_table(pyarrow.table([["a"], ["b"], ["c"]], names=["text", "label", "text"]), path)
    fails("2 columns are called 'text'")
    for entry in ("{", '{"info": 3}', '{"info": {"features": {"text": {"_type": "Nope"}}}}', b"\xff"):
        pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": entry}), path)
        fails("'huggingface' entry is broken")


def test_a_local_folder_does_not_stand_for_a_pinned_data_set(tmp_path, monkeypatch):
    (tmp_path / "owner/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for pattern in (None, "{split}.parquet"):
        with pytest.raises(UserError, match="would be read in place of the hub's data set"):
            hub_splits("owner/name", None, COMMIT, Fields("text", "label"), pattern)
    source = {"kind": "hub", "dataset": "owner/name", "revision": COMMIT}
    with pytest.raises(UserError, match="would be read in place of the hub's data set"):
        check(EvaluationSettings(tasks={"t": TaskSettings(kind="ner", source=source)}))


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("a.CSV.gz", "classification", "unpack it to one that ends in .csv, .tsv, .jsonl, .json, .parquet"),
        ("a.conll.xz", "ner", "labelled files are not read compressed"),
        ("a.txt", "classification", "does not end in .csv, .tsv, .jsonl, .json, .parquet; rename it"),
        ("a\nb.conll", "ner", r"a\nb.conll':1: 'ক' has no tag"),
    ],
)
def test_a_file_that_cannot_be_read_by_its_name(tmp_path, name, kind, says):
    with pytest.raises(UserError) as error:
        check(EvaluationSettings(tasks={"t": files_task(kind, write(tmp_path / name, "ক\n"))}))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"labels": ["O", "PER"]}, "'PER' is not an IOB2 tag"),
        ({"labels": ["B-PER", "I-PER"]}, "the tag O is missing"),
        ({"labels": ["O", "I-PER"]}, "but not 'B-PER'"),
        ({"labels": ["O", "B-X", "O"]}, "not distinct"),
        ({"source": {"kind": "hub", "dataset": "a/b", "revision": "main"}}, "pin it"),
        ({"source": {"kind": "sample"}, "labels": ["O", "B-X"]}, "labels of its own"),
        ({"source": {"kind": "web"}}, "does not match any of the expected tags"),
    ],
)
def test_settings_that_cannot_be(change, says):
    source = {"kind": "files", "train": "a", "validation": "b", "test": "c"}
    with pytest.raises(ValueError, match=says):
        TaskSettings.model_validate({"kind": "ner", "source": source, **change})


def test_seeds():
    task = {"t": {"kind": "ner", "source": {"kind": "sample"}}}
    assert EvaluationSettings(seeds=3, tasks=task).seed_list == (1, 2, 3)
    assert EvaluationSettings(seeds=[7, 5], tasks=task).seed_list == (7, 5)
    for bad in (0, [1, 1], [], [-1], "x"):
        with pytest.raises(ValueError, match="seeds"):
            EvaluationSettings(seeds=bad, tasks=task)
    with pytest.raises(ValueError, match="no effect without patience"):
        FineTuningSettings(threshold=0.01)


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
