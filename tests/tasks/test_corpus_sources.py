"""Every kind of source, and settings of sources that are refused."""

import gzip
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

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
