"""Estimates of disk against what the stages then take, and what is said where that is not there."""

import gzip
import json
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from tasks import room
from tasks.corpus import CorpusSettings
from tasks.packing import PackingSettings
from tasks.pretraining.model_size import checkpoints_bytes, weights
from tasks.pretraining.settings import ModelSettings

MODEL = {"architecture": "bert", "hidden_size": 768, "layers": 12, "heads": 12, "intermediate_size": 3072}


def recorded(folder: Path, metrics: dict[str, Any], **outputs: int) -> Path:
    folder.mkdir()
    record = {
        "stage": "corpus",
        "version": 1,
        "fingerprint": "a" * 64,
        "identity": {},
        "resolved": {},
        "inputs": {},
        "outputs": {name: {"bytes": size, "sha256": ""} for name, size in outputs.items()},
        "digest": "",
        "metrics": metrics,
        "started": "2026-01-01T00:00:00Z",
        "finished": "2026-01-01T00:00:00Z",
        "seconds": 0.0,
        "environment": {},
    }
    (folder / "record.json").write_text(json.dumps(record))
    return folder


def corpus_of(tmp_path: Path, **settings: Any) -> CorpusSettings:
    return CorpusSettings.model_validate({"sources": [{"kind": "files", "paths": [str(tmp_path / "*")]}], **settings})


def test_a_corpus_is_estimated_by_its_files(tmp_path: Path) -> None:
    text = b"x" * 10_000
    (tmp_path / "a.txt").write_bytes(text)
    assert room.of_corpus(corpus_of(tmp_path), {}) == pytest.approx(10_000 * room.KEPT, abs=1)
    with gzip.open(tmp_path / "b.jsonl.gz", "wb") as file:
        file.write(text)
    packed = (tmp_path / "b.jsonl.gz").stat().st_size
    assert room.of_corpus(corpus_of(tmp_path), {}) == pytest.approx((10_000 + 6 * packed) * room.KEPT, abs=1)
    near = corpus_of(tmp_path, near_duplicates={})
    assert room.of_corpus(near, {}) > 1.5 * room.of_corpus(corpus_of(tmp_path), {})


def test_a_limit_of_documents_limits_the_estimate_and_hub_and_missing_files_count_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 1_000_000)
    limited = corpus_of(tmp_path, limit_documents=2)
    assert room.of_corpus(limited, {}) == pytest.approx(2 * room.LONG_DOCUMENT * room.KEPT, abs=1)
    hub = {"kind": "hub", "dataset": "wikimedia/wikipedia", "revision": "a" * 40, "name": "wiki"}
    missing = {"kind": "files", "paths": [str(tmp_path / "nothing.txt")]}
    settings = CorpusSettings.model_validate({"sources": [hub, missing]})
    assert room.of_corpus(settings, {}) == 0


def test_packing_is_estimated_by_the_tokens_of_the_corpus(tmp_path: Path) -> None:
    settings = PackingSettings(sequence_length=100)
    corpus = recorded(tmp_path / "corpus", {"bytes": 1_000_000, "documents": 500})
    inputs = {"corpus": corpus}
    assert room.of_packing(settings, inputs) is None
    inputs["tokenizer"] = recorded(tmp_path / "small", {"tokens_per_byte": 0.1, "entries": 2**16})
    assert room.of_packing(settings, inputs) == 200_000
    inputs["tokenizer"] = recorded(tmp_path / "large", {"tokens_per_byte": 0.1, "entries": 2**16 + 1})
    assert room.of_packing(settings, inputs) == 400_000
    single = PackingSettings(sequence_length=100, documents="single")
    assert room.of_packing(single, inputs) == 500_000


def test_pretraining_keeps_three_checkpoints_of_weights_and_moments_and_the_result() -> None:
    bert_base = ModelSettings.model_validate(MODEL)
    assert weights(bert_base) == pytest.approx(110e6, rel=0.02)
    assert checkpoints_bytes(bert_base) == 40 * weights(bert_base)


def test_who_gathers_takes_as_much_as_what_is_gathered(tmp_path: Path) -> None:
    inputs = {"a": recorded(tmp_path / "a", {}, one=5, two=7), "b": tmp_path / "not there yet"}
    assert room.of_inputs(None, inputs) == 12


def test_what_lacks_is_said_in_one_line_with_place_need_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(room.shutil, "disk_usage", lambda place: usage(3_000_000))
    assert room.shortage({"corpus": 1_000_000, "pack": 2_000_000}, tmp_path) is None
    place = tmp_path / "store"
    needs = {"corpus": 1_000_000, "pack": 2_000_001, "report": 0, "pretrain": 4_400_000_000}
    assert room.shortage(needs, place) == (
        f"{place}: about 4.40 GB of disk will be needed (pretrain 4.40 GB, pack 2.0 MB, corpus 1.0 MB), and 3.0 MB "
        "are free; free some (sahajflow clean), or name a larger disk with --store"
    )


def test_the_size_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"123")
    (tmp_path / "link").symlink_to(tmp_path)
    assert room.size_of(tmp_path) == 8
    assert room.size_of(tmp_path / "nowhere") == 0
