from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tasks.contract import UserError
from tasks.packing import PackingSettings, run

sys.path.insert(0, str(Path(__file__).parent))
from packing_runs import (
    REAL,
    pack,
    read,
    text_of,
    write_corpus,
)


def test_a_long_document_continues(tokenizer: Path, tmp_path: Path) -> None:

    long = text_of(1, 300)
    corpus = write_corpus(tmp_path / "c", [long], [long])
    metrics = pack(corpus, tokenizer, tmp_path / "pack")
    whole = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode(long, add_special_tokens=False).ids
    ids = np.array(read(tmp_path / "pack", "train")["input_ids"].to_pylist())
    assert ids[:, 1:-1].reshape(-1).tolist() == whole[: ids.shape[0] * 30]
    assert metrics["splits"]["train"]["tokens_remainder"] == len(whole) - ids.shape[0] * 30


def test_progress_counts_documents(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    calls: list[tuple[float, float, str]] = []
    run(
        PackingSettings(sequence_length=32),
        {"corpus": corpus, "tokenizer": tokenizer},
        tmp_path,
        lambda done, total, *, unit="", note="": calls.append((done, total, unit)),
    )
    assert calls[-1] == (333, 333, "documents")
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)


@pytest.mark.parametrize(
    ("train", "validation", "split"), [(["ক।"] * 50, ["ক"], "validation"), ([], ["ক খ।"] * 50, "train")]
)
def test_too_little_text(tokenizer: Path, tmp_path: Path, train: list[str], validation: list[str], split: str) -> None:
    with pytest.raises(
        UserError, match=f"the {split} split has .* too few for one block of packing.sequence_length: 32"
    ):
        pack(write_corpus(tmp_path / "c", train, validation), tokenizer, tmp_path / "pack")
    assert not (tmp_path / "pack/data").exists()


def test_a_setting_without_effect_is_said(
    corpus: Path, tokenizer: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        pack(corpus, tokenizer, tmp_path, single_sentences="drop")
    assert "packing.single_sentences has no effect in mode concatenate" in caplog.text


@pytest.mark.skipif(not REAL.exists(), reason="the real data are not here")
def test_real_text(tmp_path: Path) -> None:
    import gzip

    folder = tmp_path / "tokenizer"
    folder.mkdir()
    shutil.copy(REAL / "tokenizers/sahajbert_tokenizer.json", folder / "tokenizer.json")
    names = {"pad_token": "<pad>", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    with gzip.open(REAL / "corpus/bn/poems.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = [json.loads(next(file))["text"] for _ in range(300)]
    corpus = write_corpus(tmp_path / "c", texts[50:], texts[:50])
    for mode in ("concatenate", "sentence-pairs"):
        account = pack(corpus, folder, tmp_path / mode, mode=mode, sequence_length=128)["splits"]["train"]
        assert account["blocks"] > 100
        assert account["tokens_dropped"] == 0
        assert account["tokens_packed"] / account["tokens_in"] > 0.99
