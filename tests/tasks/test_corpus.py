"""The corpus stage: every kind of source, cleaning, mixing, order, held-out documents, and bad input."""

import gzip
import json
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from tasks.contract import SCRATCH, UserError, no_progress
from tasks.corpus import STAGE, CorpusSettings, NearDuplicateSettings, check
from tasks.corpus_account import COUNTED
from tasks.corpus_cleaning import analyse

HUB_REVISION = "0123456789abcdef0123456789abcdef01234567"
REAL = Path(__file__).parents[2].parent / "shared/data/corpus/bn"


def settings(*sources, **others):
    return CorpusSettings.model_validate({"sources": list(sources), **others})


def files(*paths, **others):
    return {"kind": "files", "paths": [str(path) for path in paths], **others}


def texts(count, word="পাঠ"):
    return [f"{word} {number} দিয়ে লেখা।" for number in range(count)]


def write_jsonl(path, documents):
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in documents))
    return path


def run(chosen, folder):
    """Returns the metrics and the rows of both splits."""
    import pyarrow.parquet

    metrics = STAGE.run(chosen, {}, folder, no_progress)
    rows = {
        split: [
            row
            for path in sorted((folder / "data").glob(f"{split}-*.parquet"))
            for row in pyarrow.parquet.read_table(path).to_pylist()
        ]
        for split in ("train", "validation")
    }
    return metrics, rows


def lines_of(folder):
    with gzip.open(folder / "logs/left-out.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def counts(**others):
    return {"documents": 0, "characters": 0} | dict.fromkeys(COUNTED.values(), 0) | others


def all_texts(rows):
    return [row["text"] for split in rows.values() for row in split]


def fails(chosen, folder, *, says):
    """The run fails with one line that says all of these, and leaves no data."""
    with pytest.raises(UserError) as failure:
        STAGE.run(chosen, {}, folder, no_progress)
    message = str(failure.value)
    assert "\n" not in message
    for part in says:
        assert str(part) in message
    assert not (folder / "data").exists()


class TestFormats:
    def test_jsonl_and_its_gzip_are_told_by_their_names(self, tmp_path):
        plain = write_jsonl(tmp_path / "a.jsonl", texts(5, "এক"))
        packed = tmp_path / "b.jsonl.gz"
        packed.write_bytes(gzip.compress(write_jsonl(tmp_path / "c", texts(5, "দুই")).read_bytes()))
        _, rows = run(settings(files(plain, packed)), tmp_path / "out")
        assert sorted(all_texts(rows)) == sorted(texts(5, "এক") + texts(5, "দুই"))

    @pytest.mark.parametrize(
        ("documents", "expected"),
        [
            ("file", ["ক\nখ\n\n\nগ"]),
            ("line", ["ক", "খ", "গ"]),
            ("blank-line", ["ক\nখ", "গ"]),
        ],
    )
    def test_what_a_document_of_a_text_file_is(self, tmp_path, documents, expected):
        (tmp_path / "a.txt").write_text("\ufeffক\nখ\n\n\nগ\n")
        (tmp_path / "b.txt").write_text("শেষ")
        _, rows = run(settings(files(tmp_path / "*.txt", documents=documents)), tmp_path / "out")
        assert sorted(all_texts(rows)) == sorted([*expected, "শেষ"])

    def test_csv_with_quotes_newlines_and_a_long_field(self, tmp_path):
        (tmp_path / "a.csv").write_text('label,body\n1,"ক, খ\nগ"\n2,' + "ঘ" * 200_000 + "\n")
        _, rows = run(settings(files(tmp_path / "a.csv", text_field="body")), tmp_path / "out")
        assert sorted(all_texts(rows)) == ["ক, খ\nগ", "ঘ" * 200_000]

    def test_parquet(self, tmp_path):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(
            pyarrow.table({"content": texts(2_500), "n": range(2_500)}), tmp_path / "a.parquet"
        )
        metrics, rows = run(settings(files(tmp_path / "a.parquet", text_field="content")), tmp_path / "out")
        assert sorted(all_texts(rows)) == sorted(texts(2_500))
        assert metrics["documents"] == 2_500

    def test_the_format_can_be_set(self, tmp_path):
        write_jsonl(tmp_path / "dump.2024", texts(3))
        _, rows = run(settings(files(tmp_path / "dump.2024", format="jsonl")), tmp_path / "out")
        assert len(all_texts(rows)) == 3

    def test_hub_layout_is_streamed_or_downloaded_first(self, tmp_path, monkeypatch):
        import pyarrow
        import pyarrow.parquet

        hub = tmp_path / "hub"
        for config, word in (("20231101.bn", "বাংলা"), ("20231101.en", "English")):
            (hub / config).mkdir(parents=True)
            table = pyarrow.table({"title": ["t"] * 4, "text": texts(4, word)})
            pyarrow.parquet.write_table(table, hub / config / "train-00000-of-00001.parquet")
        (hub / "README.md").write_text(
            "---\nconfigs:\n"
            + "".join(
                f"- config_name: {config}\n  data_files:\n  - split: train\n    path: {config}/train-*\n"
                for config in ("20231101.bn", "20231101.en")
            )
            + "---\n"
        )
        source = {"kind": "hub", "dataset": str(hub), "revision": HUB_REVISION, "name": "wiki"}
        _, rows = run(settings(source | {"config": "20231101.bn"}), tmp_path / "out")
        assert sorted(all_texts(rows)) == texts(4, "বাংলা")
        assert {row["source"] for row in rows["train"]} == {"wiki"}
        monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
        _, downloaded = run(settings(source | {"config": "20231101.bn", "streaming": False}), tmp_path / "plain")
        assert downloaded == rows
        _, rows = run(settings(source | {"parquet_files": "20231101.en/*.parquet"}), tmp_path / "glob")
        assert sorted(all_texts(rows)) == texts(4, "English")
        field = source | {"config": "20231101.bn", "text_field": "body"}
        fails(settings(field), tmp_path / "field", says=["row 1", "'body'", "title, text", "corpus.sources[0]"])
        fails(settings(source | {"config": "20231101.fr"}), tmp_path / "config", says=["20231101.fr", str(hub)])
        glob = source | {"parquet_files": "20231101.fr/*.parquet"}
        fails(settings(glob), tmp_path / "none", says=["20231101.fr", str(hub)])
        split = source | {"config": "20231101.bn", "split": "test"}
        fails(settings(split), tmp_path / "split", says=["test", str(hub)])


class TestCleaning:
    def test_empty_and_repeated_documents_are_dropped_and_counted(self, tmp_path):
        first = write_jsonl(tmp_path / "a.jsonl", ["  ক ", "", " \n ", "খ", "ক"])
        second = write_jsonl(tmp_path / "b.jsonl", ["গ", "খ"])
        chosen = settings(files(first, name="a"), files(second, name="b"))
        metrics, rows = run(chosen, tmp_path / "out")
        assert sorted(all_texts(rows)) == ["ক", "খ", "গ"]
        assert metrics["sources"] == {
            "a": counts(documents=2, characters=2, empty_dropped=2, duplicates_dropped=1),
            "b": counts(documents=1, characters=1, duplicates_dropped=1),
        }
        assert (metrics["documents"], metrics["characters"], metrics["bytes"]) == (3, 3, 9)
        assert {row["id"]: row["text"] for split in rows.values() for row in split} == {
            "a-0": "ক",
            "a-3": "খ",
            "b-0": "গ",
        }

    def test_duplicates_can_be_kept(self, tmp_path):
        path = write_jsonl(tmp_path / "a.jsonl", ["ক", "ক", "খ"])
        _, rows = run(settings(files(path), drop_duplicates=False), tmp_path / "out")
        assert sorted(all_texts(rows)) == ["ক", "ক", "খ"]

    def test_limit(self, tmp_path):
        path = write_jsonl(tmp_path / "a.jsonl", texts(50))
        metrics, rows = run(settings(files(path), limit_documents=20), tmp_path / "out")
        assert metrics["documents"] == len(all_texts(rows)) == 20


class TestLeftOut:
    """Every kind of document that is left out, in the record and in the file beside it."""

    def test_each_is_counted_and_named(self, tmp_path):
        long = " ".join(f"শব্দ{number}" for number in range(40))
        path = tmp_path / "a.jsonl"
        write_jsonl(
            path,
            [
                long,
                "",
                "only Latin letters here",
                f"{long} শেষ",
                long,
                "এক দুই তিন চার পাঁচ ছয় সাত আট নয়",
                "অন্য কথা",
            ],
        )
        path.write_text(path.read_text() + '{"text": \n')
        (tmp_path / "tests").mkdir()
        write_jsonl(tmp_path / "tests/test.jsonl", ["শূন্য এক দুই তিন চার পাঁচ ছয় সাত আট", "ছোট"])
        chosen = settings(
            files(path, name="a"),
            on_error="skip",
            script={"names": ["Bengali"]},
            decontamination={"words": 8},
            near_duplicates={},
        )
        folder = tmp_path / "out"
        metrics = STAGE.run(chosen, {"test-texts": tmp_path / "tests"}, folder, no_progress)
        problem = f"{path}:8: not JSON (Expecting value at column 1)"
        assert metrics["sources"] == {
            "a": counts(
                documents=2,
                characters=len(long) + len("অন্য কথা"),
                unreadable_skipped=1,
                empty_dropped=1,
                script_dropped=1,
                overlap_dropped=1,
                duplicates_dropped=1,
                near_duplicates_dropped=1,
            )
        }
        assert [line.partition(";")[0] for line in metrics["unreadable"]] == [problem]
        assert metrics["test_texts"] == {"compared": 1, "too_short": 1}
        left_out = lines_of(folder)
        (near,) = (line for line in left_out if line["fault"] == "near_duplicates")
        assert near.pop("similarity") >= 0.8
        assert left_out == [
            {"id": "a-1", "fault": "empty"},
            {"id": "a-2", "fault": "script", "share": 0.0, "begins": "only Latin letters here"},
            {"id": "a-3", "fault": "near_duplicates", "of": "a-0", "begins": f"{long} শেষ"[:200]},
            {"id": "a-4", "fault": "duplicates", "of": "a-0", "begins": long[:200]},
            {
                "id": "a-5",
                "fault": "overlap",
                "run": "এক দুই তিন চার পাঁচ ছয় সাত আট".replace("\u09df", "\u09af\u09bc"),
                "begins": "এক দুই তিন চার পাঁচ ছয় সাত আট নয়",
            },
            {"id": "a-7", "fault": "unreadable", "problem": metrics["unreadable"][0]},
        ]
        assert left_out == sorted(left_out, key=lambda line: line["id"])

    def test_nothing_else_is_left_out(self, tmp_path):
        # Real sentences that only look alike: a changed number is another document, and so is a short prefix.
        path = write_jsonl(tmp_path / "a.jsonl", [f"{text} {number}" for number, text in enumerate(texts(200, "বাক্য"))])
        metrics, rows = run(settings(files(path), near_duplicates={}), tmp_path / "out")
        assert metrics["documents"] == len(all_texts(rows)) == 200

    def test_the_record_lists_the_first_unreadable_ones_and_the_file_all(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "ক"}\n{"text": "খ"}\n' + "{\n" * 50)
        metrics, _ = run(settings(files(path, name="a"), on_error="skip"), tmp_path / "out")
        assert metrics["sources"]["a"]["unreadable_skipped"] == 50
        assert [line.partition(": ")[0] for line in metrics["unreadable"]] == [f"{path}:{3 + n}" for n in range(20)]
        assert [line["id"] for line in lines_of(tmp_path / "out")] == [f"a-{2 + n}" for n in range(50)]

    def test_raise_names_the_first_one_even_if_a_later_piece_was_read(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tasks.corpus_reading.PIECE_DOCUMENTS", 2)
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "ক"}\n' * 7 + "{\n" * 3)
        fails(settings(files(path)), tmp_path / "out", says=[f"{path}:8: not JSON"])

    def test_what_is_behind_the_limit_is_not_missed(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "ক"}\n{"text": "খ"}\n' + "{\n")
        metrics, _ = run(settings(files(path), limit_documents=2), tmp_path / "out")
        assert metrics["documents"] == 2

    def test_too_few_are_left(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "a"}\n{"text": "a"}\n{"body": "b"}\n')
        chosen = settings(files(path), on_error="skip")
        says = ["1 documents with text, 1 left out (unreadable_skipped), 1 left out (duplicates_dropped)", "'text'"]
        fails(chosen, tmp_path / "out", says=says)

    def test_the_limit_of_a_document(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_bytes(b"x" * 1_500_000 + b"\n\nshort\n\nother\n")
        chosen = settings(files(path, documents="blank-line"), max_document_mb=1)
        fails(chosen, tmp_path / "out", says=[f"{path}:1: 1.5 MB", "corpus.max_document_mb"])
        _, rows = run(chosen.model_copy(update={"on_error": "skip"}), tmp_path / "skip")
        assert sorted(all_texts(rows)) == ["other", "short"]
        _, rows = run(chosen.model_copy(update={"max_document_mb": 2}), tmp_path / "raised")
        assert sorted(map(len, all_texts(rows))) == [5, 5, 1_500_000]


class TestSplitsAndShards:
    def test_share_held_out_and_shard_names(self, tmp_path):
        path = write_jsonl(tmp_path / "a.jsonl", texts(3_000))
        chosen = settings(files(path), validation_fraction=0.1, shard_documents=1_000)
        metrics, rows = run(chosen, tmp_path / "out")
        assert 240 < metrics["validation_documents"] < 360
        assert len(rows["validation"]) == metrics["validation_documents"]
        assert sorted(all_texts(rows)) == sorted(texts(3_000))
        assert sorted(path.name for path in (tmp_path / "out/data").iterdir()) == [
            "train-00000-of-00003.parquet",
            "train-00001-of-00003.parquet",
            "train-00002-of-00003.parquet",
            "validation-00000-of-00001.parquet",
        ]

    @pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
    def test_neither_split_is_ever_empty(self, tmp_path, fraction):
        path = write_jsonl(tmp_path / "a.jsonl", texts(2))
        _, rows = run(settings(files(path), validation_fraction=fraction), tmp_path / "out")
        assert len(rows["train"]) == len(rows["validation"]) == 1

    def test_long_documents_make_several_row_groups_and_lose_nothing(self, tmp_path, monkeypatch):
        import pyarrow.parquet

        monkeypatch.setattr("tasks.corpus_shards.ROW_GROUP_CHARACTERS", 1_000)
        path = write_jsonl(tmp_path / "a.jsonl", texts(500))
        _, rows = run(settings(files(path)), tmp_path / "out")
        assert sorted(all_texts(rows)) == sorted(texts(500))
        file = pyarrow.parquet.ParquetFile(tmp_path / "out/data/train-00000-of-00001.parquet")
        assert file.num_row_groups > 5

    def test_datasets_loads_it_beside_a_record(self, tmp_path, monkeypatch):
        from datasets import load_dataset

        metrics, rows = run(settings({"kind": "sample", "documents": 300}), tmp_path / "out")
        (tmp_path / "out/record.json").write_text('{"stage": "corpus"}')
        loaded = load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
        assert {name: len(split) for name, split in loaded.items()} == {
            "train": 300 - metrics["validation_documents"],
            "validation": metrics["validation_documents"],
        }
        assert loaded["train"].column_names == ["id", "source", "text"]
        assert loaded["train"][0] == rows["train"][0]


class TestOrder:
    def contents(self, folder):
        data = {path.name: path.read_bytes() for path in sorted((folder / "data").iterdir())}
        return data | {"left out": (folder / "logs/left-out.jsonl.gz").read_bytes()}

    def cleaned(self, tmp_path, monkeypatch):
        """Settings with every costly step, over many small pieces."""
        monkeypatch.setattr("tasks.corpus_reading.PIECE_DOCUMENTS", 20)
        documents = [*texts(150), *(f"{text} আর" for text in texts(150, "দীর্ঘ " * 9)), *texts(20, "english word")]
        path = write_jsonl(tmp_path / "a.jsonl", [*documents, *(f"{text}!" for text in documents[:160])])
        sources = [files(path, name="a", weight=0.6), {"kind": "sample", "documents": 300, "weight": 0.4}]
        return settings(*sources, script={"names": ["Bengali"]}, near_duplicates={"words": 3}, on_error="skip")

    def test_one_process_two_and_a_cluster_give_equal_bytes(self, tmp_path, monkeypatch, dask_address):
        chosen = self.cleaned(tmp_path, monkeypatch)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        one, _ = run(chosen, tmp_path / "one")
        assert one["sources"]["a"]["near_duplicates_dropped"] > 10
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        two, _ = run(chosen, tmp_path / "two")
        cluster, _ = run(chosen.model_copy(update={"scheduler": dask_address}), tmp_path / "cluster")
        assert one == two == cluster
        assert (
            self.contents(tmp_path / "one") == self.contents(tmp_path / "two") == self.contents(tmp_path / "cluster")
        )

    def test_a_killed_run_does_not_look_at_documents_again(self, tmp_path, monkeypatch):
        chosen = self.cleaned(tmp_path, monkeypatch)
        whole, _ = run(chosen, tmp_path / "whole")

        class Killed(BaseException):
            pass

        def kill(done, total, **_):
            if done > 1.2:
                raise Killed

        with pytest.raises(Killed):
            STAGE.run(chosen, {}, tmp_path / "killed", kill)
        looked_at = []

        def look(analysis, piece):
            looked_at.append(piece)
            return analyse(analysis, piece)

        monkeypatch.setattr("tasks.corpus_reading.analyse", look)
        again, _ = run(chosen, tmp_path / "killed")
        assert again == whole
        assert self.contents(tmp_path / "killed") == self.contents(tmp_path / "whole")
        assert 0 < len(looked_at) < 30
        looked_at.clear()
        run(chosen.model_copy(update={"near_duplicates": NearDuplicateSettings(words=4)}), tmp_path / "killed")
        assert len(looked_at) > 30, "what was found for other settings is of no use"

    def test_a_buffer_on_disk_gives_the_same_order(self, tmp_path, monkeypatch):
        path = write_jsonl(tmp_path / "a.jsonl", texts(300))
        run(settings(files(path), shuffle_buffer=100), tmp_path / "memory")
        monkeypatch.setattr("tasks.corpus_shards.BUFFER_CHARACTERS", 500)
        run(settings(files(path), shuffle_buffer=100), tmp_path / "disk")
        assert self.contents(tmp_path / "memory") == self.contents(tmp_path / "disk")

    def test_equal_settings_give_equal_bytes_also_over_what_a_killed_run_left(self, tmp_path):
        path = write_jsonl(tmp_path / "a.jsonl", texts(200))
        run(settings(files(path)), tmp_path / "one")
        (tmp_path / "two" / SCRATCH).mkdir(parents=True)
        (tmp_path / "two" / SCRATCH / "train-00000.parquet").write_text("half a file")
        (tmp_path / "two/data").mkdir()
        (tmp_path / "two/data/train-00000-of-00009.parquet").write_text("half a file")
        run(settings(files(path)), tmp_path / "two")
        assert self.contents(tmp_path / "one") == self.contents(tmp_path / "two")
        run(settings(files(path), seed=1), tmp_path / "three")
        assert self.contents(tmp_path / "one") != self.contents(tmp_path / "three")

    def test_buffer_shuffles_and_1_keeps_the_order(self, tmp_path):
        path = write_jsonl(tmp_path / "a.jsonl", texts(200))
        _, kept = run(settings(files(path), shuffle_buffer=1, validation_fraction=1e-9), tmp_path / "kept")
        assert all_texts(kept) == texts(200)
        _, shuffled = run(settings(files(path), validation_fraction=1e-9), tmp_path / "shuffled")
        assert all_texts(shuffled) != texts(200)
        assert sorted(all_texts(shuffled)) == sorted(texts(200))

    def test_held_out_documents_do_not_depend_on_the_others(self, tmp_path):
        few = write_jsonl(tmp_path / "few.jsonl", texts(500))
        many = write_jsonl(tmp_path / "many.jsonl", texts(1_000))
        _, of_few = run(settings(files(few), validation_fraction=0.1), tmp_path / "1")
        _, of_many = run(settings(files(many), validation_fraction=0.1), tmp_path / "2")
        held_out = {row["text"] for row in of_few["validation"]}
        assert len(held_out) > 20
        assert held_out == {row["text"] for row in of_many["validation"]} & set(texts(500))


class TestMixing:
    def test_weights_give_the_proportions_until_a_source_ends(self, tmp_path):
        wiki = write_jsonl(tmp_path / "wiki.jsonl", texts(10_000, "উইকি"))
        oscar = write_jsonl(tmp_path / "oscar.jsonl", texts(3_000, "অস্কার"))
        chosen = settings(files(wiki, name="wiki", weight=0.23), files(oscar, name="oscar", weight=0.77))
        metrics, _ = run(chosen, tmp_path / "out")
        drawn = {name: source["documents"] for name, source in metrics["sources"].items()}
        assert drawn["oscar"] == 3_000
        assert drawn["wiki"] / sum(drawn.values()) == pytest.approx(0.23, abs=0.02)

    @pytest.mark.parametrize(
        ("weights", "says"),
        [((0.5, None), "every source has a weight"), ((0.5, 0.6), "add up to 1.1"), ((0.5, 1.5), "less than 1")],
    )
    def test_wrong_weights(self, weights, says):
        with pytest.raises(ValidationError, match=says):
            settings(*(files("a.txt", name=str(number), weight=weight) for number, weight in enumerate(weights)))


class TestBadSettings:
    def test_unknown_script(self):
        with pytest.raises(ValidationError, match="Bangla is no script that Unicode knows"):
            settings(files("a.txt"), script={"names": ["Bangla"]})

    def test_near_duplicates_without_exact_ones(self):
        with pytest.raises(ValidationError, match="leave drop_duplicates true"):
            settings(files("a.txt"), near_duplicates={}, drop_duplicates=False)

    def test_two_sources_of_one_name(self):
        with pytest.raises(ValidationError, match="same name"):
            settings(files("a.txt"), files("b.txt"))

    @pytest.mark.parametrize("revision", ["main", HUB_REVISION[:7], HUB_REVISION.upper()])
    def test_a_revision_that_is_no_full_commit(self, revision):
        with pytest.raises(ValidationError, match="pin it"):
            settings({"kind": "hub", "dataset": "a/b", "revision": revision, "name": "x"})

    def test_unknown_kind(self):
        with pytest.raises(ValidationError, match=r"sample.*files.*hub"):
            settings({"kind": "web"})


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


def test_progress_goes_up_to_the_number_of_sources(tmp_path):
    seen = []
    chosen = settings({"kind": "sample", "documents": 3_000}, files(write_jsonl(tmp_path / "a.jsonl", texts(3_000))))
    STAGE.run(chosen, {}, tmp_path / "out", lambda done, total, unit="", note="": seen.append((done, total, unit)))
    shares = [done for done, _, _ in seen]
    assert shares == sorted(shares)
    assert len(set(shares)) > 4
    assert seen[-1] == (2.0, 2, "sources")


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data are not here")
def test_the_real_corpus(tmp_path):
    chosen = settings(files(REAL / "wiki.jsonl.gz", name="wiki"), files(REAL / "poems.jsonl.gz", name="poems"))
    metrics, rows = run(chosen, tmp_path / "out")
    read = {name: count["documents"] + count["duplicates_dropped"] for name, count in metrics["sources"].items()}
    assert read == {"wiki": 2_822, "poems": 3_754}
    assert len(all_texts(rows)) == metrics["documents"] == len(set(all_texts(rows)))
