"""The files of the corpus: held-out documents, shards, row groups."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from corpus_runs import (
    all_texts,
    files,
    run,
    settings,
    texts,
    write_jsonl,
)


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
