import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from eval.data import check, load_task
from eval.settings import EvaluationSettings, TaskSettings
from tasks.contract import UserError

sys.path.insert(0, str(Path(__file__).parent))
from labelled_files import COMMIT, SHARED, WIKIANN, files_task, write

shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not here")


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
