"""Texts, random documents and runs of the stage that several tests of packing share."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from tasks.contract import no_progress
from tasks.packing import PackingSettings, run
from tasks.packing_rows import Row, SpecialIds

PAD, CLS, SEP = 0, 2, 3
SPECIAL = SpecialIds(PAD, CLS, SEP)
REAL = Path(__file__).parents[2].parent / "shared/data"


def text_of(seed: int, sentences: int) -> str:
    draw = random.Random(seed)
    word = lambda: "".join(draw.choices("কখগমরলসন", k=draw.randint(1, 3))) + draw.choice(["", "া", "ি", "ে", "কে"])  # noqa: E731
    return " ".join(" ".join(word() for _ in range(draw.randint(2, 12))) + "।" for _ in range(sentences))


def write_corpus(folder: Path, train: list[str], validation: list[str]) -> Path:
    (folder / "data").mkdir(parents=True)
    for split, texts in (("train", train), ("validation", validation)):
        numbers = [str(i) for i in range(len(texts))]
        table = pa.table({"id": numbers, "source": ["test"] * len(texts), "text": pa.array(texts, pa.string())})
        pq.write_table(table, folder / f"data/{split}-00000-of-00001.parquet", row_group_size=50)
    return folder


def pack(corpus: Path, tokenizer: Path, folder: Path, **values: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    inputs = {"corpus": corpus, "tokenizer": tokenizer}
    return run(PackingSettings(**({"sequence_length": 32} | values)), inputs, folder, no_progress)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "data").iterdir())}


def read(folder: Path, split: str) -> pa.Table:
    files = sorted((folder / "data").glob(f"{split}-*.arrow"))
    return pa.concat_tables(pa.ipc.open_file(pa.memory_map(str(file))).read_all() for file in files)


tokens = st.integers(min_value=10, max_value=60_000)
documents_of_tokens = st.lists(st.lists(tokens, max_size=40), max_size=12)
documents_of_sentences = st.lists(st.lists(st.lists(tokens, max_size=30), max_size=8), max_size=10)


def arrays(document: list[int]) -> np.ndarray:
    return np.array(document, dtype=np.uint16)


def copied(rows: Iterator[Row]) -> list[tuple[list[int], int, int]]:
    return [(row.ids.tolist(), row.boundary, row.length) for row in rows]
