"""A tiny tokenizer, and a tiny packed corpus in a language where the next word follows from the one before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = 40
LENGTH = 16


def write_shard(path: Path, ids: np.ndarray, **columns: np.ndarray) -> None:
    flat = pa.array(ids.astype(np.uint16).reshape(-1))
    table = pa.table(
        {
            "input_ids": pa.FixedSizeListArray.from_arrays(flat, ids.shape[1]),
            **{name: pa.array(values.astype(np.uint16)) for name, values in columns.items()},
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=50)


def sentences(rows: int, seed: int) -> np.ndarray:
    """[CLS] words [SEP]; a word is the one before plus 7, but for one in ten."""
    rng = np.random.default_rng(seed)
    words = np.empty((rows, LENGTH - 2), dtype=np.int64)
    words[:, 0] = rng.integers(WORDS, size=rows)
    for place in range(1, words.shape[1]):
        noise = rng.random(rows) < 0.1
        words[:, place] = np.where(noise, rng.integers(WORDS, size=rows), (words[:, place - 1] + 7) % WORDS)
    edges = np.ones((rows, 1), dtype=np.int64)
    return np.hstack([2 * edges, words + len(SPECIAL), 3 * edges])


def pairs(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[CLS] A [SEP] B [SEP] padding, with the position of B's first token and the length."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((rows, LENGTH), dtype=np.int64)
    length = rng.integers(8, LENGTH + 1, size=rows)
    boundary = np.array([rng.integers(3, end - 1) for end in length])
    for row, (middle, end) in enumerate(zip(boundary, length, strict=True)):
        ids[row, :end] = len(SPECIAL) + (rng.integers(WORDS) + 7 * np.arange(end)) % WORDS
        ids[row, 0], ids[row, middle - 1], ids[row, end - 1] = 2, 3, 3
    return ids, boundary, length


@pytest.fixture
def shard_writer():
    return write_shard


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    words = (" ".join(f"w{number}" for number in range(WORDS)) for _ in range(2))
    tokenizer.train_from_iterator(words, trainers.WordLevelTrainer(special_tokens=SPECIAL))
    folder = tmp_path_factory.mktemp("tokenizer")
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    (folder / "record.json").write_text("{}")
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture(scope="session")
def pack_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blocks: 300 for training in two shards, 60 for validation."""
    folder = tmp_path_factory.mktemp("pack")
    rows = sentences(300, seed=0)
    write_shard(folder / "data/train-00000-of-00002.arrow", rows[:130])
    write_shard(folder / "data/train-00001-of-00002.arrow", rows[130:])
    write_shard(folder / "data/validation-00000-of-00001.arrow", sentences(60, seed=1))
    return folder


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentence pairs: 200 for training, 40 for validation."""
    folder = tmp_path_factory.mktemp("pairs")
    for split, rows, seed in (("train", 200, 0), ("validation", 40, 1)):
        ids, boundary, length = pairs(rows, seed)
        write_shard(folder / f"data/{split}-00000-of-00001.arrow", ids, boundary=boundary, length=length)
    return folder


@pytest.fixture
def settings():
    """Builds PretrainSettings of a tiny fp32 model on the CPU; keywords change pretraining's fields."""
    from tasks.pretraining.settings import PretrainSettings

    def build(architecture: str = "bert", **changes):
        model = {
            "architecture": architecture,
            "hidden_size": 32,
            "layers": 2,
            "heads": 2,
            "intermediate_size": 64,
            "hidden_dropout": 0.1,
            "max_positions": LENGTH,
        }
        if architecture == "albert":
            model["embedding_size"] = 16
        pretraining = {"steps": 12, "batch_size": 8, "precision": "fp32", "device": "cpu"} | changes
        return PretrainSettings.model_validate({"model": model, "pretraining": pretraining})

    return build
