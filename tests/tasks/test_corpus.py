"""The corpus stage as a whole: cleaning, order and progress."""

import sys
from pathlib import Path

import pytest

from tasks.contract import SCRATCH
from tasks.corpus import STAGE, NearDuplicateSettings
from tasks.corpus_cleaning import analyse

sys.path.insert(0, str(Path(__file__).parent))
from corpus_runs import (
    REAL,
    all_texts,
    counts,
    files,
    run,
    settings,
    texts,
    write_jsonl,
)


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
