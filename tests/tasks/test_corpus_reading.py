"""Bad input is refused with one line that names file and place."""

import gzip
import sys
from pathlib import Path

import pytest

from tasks.contract import UserError
from tasks.corpus import check

sys.path.insert(0, str(Path(__file__).parent))
from corpus_runs import (
    HUB_REVISION,
    all_texts,
    fails,
    files,
    run,
    settings,
    texts,
    write_jsonl,
)


class TestBadInput:
    def test_missing_file_names_the_nearest(self, tmp_path):
        write_jsonl(tmp_path / "literature.jsonl", texts(2))
        for missing in (tmp_path / "literatur.jsonl", tmp_path / "litrature.jsonl" / "*.jsonl"):
            with pytest.raises(UserError, match=r"corpus\.sources\[1\]\.paths") as failure:
                check(settings({"kind": "sample"}, files(missing)))
            assert str(missing) in str(failure.value)
            assert f"did you mean {tmp_path / 'literature.jsonl'}?" in str(failure.value)

    def test_glob_without_a_match_folder_and_unknown_ending(self, tmp_path):
        (tmp_path / "notes.md").write_text("ক")
        with pytest.raises(UserError, match="no file matches"):
            check(settings(files(tmp_path / "*.qqq")))
        with pytest.raises(UserError, match="is a folder"):
            check(settings(files(tmp_path)))
        (tmp_path / "texts").mkdir()
        with pytest.raises(UserError, match=r"matches folders, but no file; name their files, such as .*texts/\*"):
            check(settings(files(tmp_path / "te*s")))
        with pytest.raises(UserError, match=r"notes\.md does not end in \.txt, \.jsonl, \.csv, \.parquet"):
            check(settings(files(tmp_path / "notes.md")))

    def test_check_imports_nothing_heavy(self, tmp_path):
        import subprocess

        code = (
            "import sys; from tasks.corpus import CorpusSettings, check; "
            "check(CorpusSettings.model_validate({'sources': [{'kind': 'sample'}]})); "
            "print([name for name in ('datasets', 'pyarrow', 'numpy', 'torch') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    @pytest.mark.parametrize("content", [[], ["", "  "], ["একটি"]])
    def test_corpus_of_less_than_two_documents(self, tmp_path, content):
        path = write_jsonl(tmp_path / "a.jsonl", content)
        fails(settings(files(path)), tmp_path / "out", says=["corpus.sources", "at least 2", path])

    def test_a_local_folder_does_not_stand_for_a_pinned_data_set(self, tmp_path, monkeypatch):
        (tmp_path / "owner/name").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        source = {"kind": "hub", "dataset": "owner/name", "revision": HUB_REVISION, "name": "x"}
        for way in ({}, {"parquet_files": "*.parquet"}):
            with pytest.raises(UserError, match="would be read in place of the hub's data set"):
                check(settings(source | way))
            fails(settings(source | way), tmp_path / "out", says=["owner/name", tmp_path, "rename it"])

    def test_a_name_of_two_lines_makes_a_message_of_one(self, tmp_path):
        path = tmp_path / "a\nb.jsonl"
        path.write_text("{\n")
        fails(settings(files(path)), tmp_path / "out", says=[r"a\nb.jsonl':1: not JSON"])
        fails(settings(files(path.rename(tmp_path / "a\nb.md"))), tmp_path / "out", says=[r"a\nb.md' does not end"])

    @pytest.mark.parametrize("ending", [".txt", ".jsonl", ".txt.gz"])
    def test_not_utf8_names_line_and_byte(self, tmp_path, ending):
        path = tmp_path / f"latin{ending}"
        content = b'{"text": "one"}\n{"text": "caf\xe9"}\n'
        path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
        fails(settings(files(path)), tmp_path / "out", says=[f"{path}:2", "0xe9", "offset 29", "UTF-8"])

    def test_broken_json_missing_field_and_wrong_type_name_the_line(self, tmp_path):
        path = tmp_path / "a.jsonl"
        for line, says in (
            ('{"text": "ক"', ["not JSON"]),
            ('["ক"]', ["not a JSON object"]),
            ('{"body": "ক", "id": 1}', ["'text'", "body, id", "text_field"]),
            ('{"text": 5}', ["not text but int"]),
            ('{"text": null}', ["empty (null)"]),
            (r'{"text": "ক\ud800"}', ["lone surrogate", r"\ud800"]),
            ("[" * 200_000, ["nested too deeply"]),
            ('{"text": "ক", "id": ' + "1" * 5_000 + "}", ["more than 4300 digits"]),
        ):
            path.write_text('{"text": "ভালো"}\n' + line + "\n")
            fails(settings(files(path)), tmp_path / "out", says=[f"{path}:2", *says])

    def test_missing_columns_of_csv_and_parquet(self, tmp_path):
        import pyarrow
        import pyarrow.parquet

        (tmp_path / "a.csv").write_text("label,body\n1,ক\n")
        fails(settings(files(tmp_path / "a.csv")), tmp_path / "out", says=["a.csv:1", "label, body"])
        pyarrow.parquet.write_table(pyarrow.table({"body": ["ক"]}), tmp_path / "a.parquet")
        fails(settings(files(tmp_path / "a.parquet")), tmp_path / "out", says=["a.parquet", "'text'", "body"])
        (tmp_path / "b.parquet").write_text("no")
        fails(settings(files(tmp_path / "b.parquet")), tmp_path / "out", says=["b.parquet", "not a Parquet file"])

    def test_half_characters_where_nothing_is_read_do_no_harm(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text(r'{"text": "\ud83d\ude00", "by": "\ud800"}' + '\n{"text": "ক"}\n')
        _, rows = run(settings(files(path)), tmp_path / "out")
        assert sorted(all_texts(rows)) == ["ক", "😀"]

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("text,id\nক,1\nখ, গ,2\n", [":3", "3 columns instead of 2", "quote the text"]),
            ("text,id,text\nক,1,খ\n", [":1", "2 columns are called 'text'"]),
            ("\ntext\nক\n", [":1", "the first line is blank"]),
            ('text\n"ক\n', [":2", "not CSV", "check the quotes"]),
        ],
    )
    def test_bad_csv(self, tmp_path, content, says):
        path = tmp_path / "a.csv"
        path.write_text(content)
        fails(settings(files(path)), tmp_path / "out", says=[path, *says])

    def test_damaged_parquet(self, tmp_path):
        import pyarrow
        import pyarrow.parquet

        path, chosen = tmp_path / "a.parquet", settings(files(tmp_path / "a.parquet"))
        table = pyarrow.table({"text": texts(3_000)})
        pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False)
        whole = path.read_bytes()
        for start in (8, len(whole) - 300):  # in a page, in the footer
            path.write_bytes(whole[:start] + b"\xff" * 40 + whole[start + 40 :])
            fails(chosen, tmp_path / "out", says=[path, "damaged"])
        broken = pyarrow.array([b"ok", b"\xff\xfe"], pyarrow.binary()).buffers()
        column = pyarrow.Array.from_buffers(pyarrow.string(), 2, broken)
        pyarrow.parquet.write_table(pyarrow.table({"text": column}), path)
        fails(chosen, tmp_path / "out", says=[path, "not UTF-8"])
        pyarrow.parquet.write_table(pyarrow.table([["ক"], ["খ"]], names=["text", "text"]), path)
        fails(chosen, tmp_path / "out", says=[path, "2 columns are called 'text'"])

    def test_cut_off_gzip(self, tmp_path):
        path = tmp_path / "a.jsonl.gz"
        path.write_bytes(gzip.compress(write_jsonl(tmp_path / "a", texts(1_000)).read_bytes())[:-100])
        fails(settings(files(path)), tmp_path / "out", says=[path, "damaged or cut off"])
        path.write_text("not packed at all")
        fails(settings(files(path)), tmp_path / "out", says=[path, "damaged or cut off"])
