from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tasks import packing_encoding
from tasks.packing_words import WordEncoder

sys.path.insert(0, str(Path(__file__).parent))
from packing_runs import (
    CLS,
    PAD,
    content,
    pack,
    read,
    write_corpus,
)


@pytest.mark.parametrize("mode", ["concatenate", "sentence-pairs"])
def test_a_cluster_gives_the_same_bytes(
    corpus: Path, tokenizer: Path, tmp_path: Path, dask_address: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing_encoding, "BATCH_CHARACTERS", 2_000)  # several batches for each worker
    metrics = pack(corpus, tokenizer, tmp_path / "here", mode=mode)
    assert pack(corpus, tokenizer, tmp_path / "there", mode=mode, scheduler=dask_address) == metrics
    assert content(tmp_path / "there") == content(tmp_path / "here")


def test_a_tokenizer_that_looks_past_words_encodes_documents(
    corpus: Path, tokenizer: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tokenizers import normalizers

    assert pack(corpus, tokenizer, tmp_path / "word")["encoding"] == "by word"
    other = tmp_path / "tokenizer"
    shutil.copytree(tokenizer, other)
    changed = Tokenizer.from_file(str(other / "tokenizer.json"))
    changed.normalizer = normalizers.Sequence([changed.normalizer, normalizers.Strip()])
    changed.save(str(other / "tokenizer.json"))
    with caplog.at_level(logging.INFO):
        metrics = pack(corpus, other, tmp_path / "document")
    assert metrics["encoding"] == "by document, for the normaliser step Strip"
    assert metrics["encoding"] in caplog.text
    assert metrics["splits"]["train"]["tokens_in"] > 1000


def test_a_text_that_differs_by_words_is_enough(
    corpus: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pack(corpus, tokenizer, tmp_path / "word")["splits"]
    encode = WordEncoder.encode
    monkeypatch.setattr(WordEncoder, "encode", lambda self, units: (encode(self, units)[0][:0], units.bounds * 0))
    metrics = pack(corpus, tokenizer, tmp_path / "document")
    assert metrics["encoding"].startswith("by document, for a text that gives other ids by words: '")
    assert metrics["splits"] == whole
    assert content(tmp_path / "document") == content(tmp_path / "word")


def test_text_never_yields_special_tokens(tokenizer: Path, tmp_path: Path) -> None:
    texts = ["[SEP] <pad> [CLS][MASK] ক"] * 40
    pack(write_corpus(tmp_path / "c", texts, texts), tokenizer, tmp_path / "pack")
    ids = np.array(read(tmp_path / "pack", "train")["input_ids"].to_pylist())[:, 1:-1]
    assert not {PAD, CLS, 4} & set(ids.reshape(-1).tolist())


@pytest.mark.parametrize("mode", ["concatenate", "sentence-pairs"])
def test_threads_do_not_matter(corpus: Path, tokenizer: Path, tmp_path: Path, mode: str) -> None:
    pack(corpus, tokenizer, tmp_path / "here", mode=mode)
    code = (
        "import sys, pathlib; from tasks.packing import *; from tasks.contract import no_progress\n"
        "c, t, f, m = sys.argv[1:]; p = pathlib.Path\n"
        "run(PackingSettings(sequence_length=32, mode=m), {'corpus': p(c), 'tokenizer': p(t)}, p(f), no_progress)"
    )
    other = tmp_path / "other"
    other.mkdir()
    environment = os.environ | {"RAYON_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "true"}
    subprocess.run(
        [sys.executable, "-P", "-c", code, str(corpus), str(tokenizer), str(other), mode], env=environment, check=True
    )
    assert content(other) == content(tmp_path / "here")
