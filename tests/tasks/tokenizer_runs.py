"""Texts, corpora, definitions and runs of the stage that several tests of tokenizers share."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tasks.contract import no_progress
from tasks.tokenizer_definition import definitions_folder
from tasks.tokenizer_settings import TokenizerSettings
from tasks.tokenizer_training import run

WORDS = ["কিন্তু", "র‍্যাব", "চাঁদ", "দুঃখ", "ক্ষমতা", "বাড়ি", "সময়", "আষাঢ়", "ঋতু", "সৌন্দর্য", "Dhaka", "2021"]


ENDINGS = ["", "র", "কে", "তে", "ের", "গুলো", "টি"]


def stems() -> list[str]:
    draw = random.Random(0)
    syllables = [consonant + vowel for consonant in "কগচজটদনপবমরলস" for vowel in ["", "া", "ি", "ু", "ে", "ো"]]
    return WORDS + ["".join(draw.choices(syllables, k=draw.randint(2, 4))) for _ in range(300)]


STEMS = stems()


def text_of(seed: int, words: int = 60) -> str:
    draw = random.Random(seed)
    ends = ("।", "", "", "", "", "", "", "")
    return " ".join(draw.choice(STEMS) + draw.choice(ENDINGS) + draw.choice(ends) for _ in range(words))


def write_corpus(folder: Path, train: list[str], validation: list[str], *, row_group_size: int = 64) -> Path:
    (folder / "data").mkdir(parents=True)
    for split, texts in (("train", train), ("validation", validation)):
        table = pa.table(
            {
                "id": pa.array([str(i) for i in range(len(texts))], pa.string()),
                "source": pa.array(["test"] * len(texts), pa.string()),
                "text": pa.array(texts, pa.string()),
            }
        )
        pq.write_table(table, folder / f"data/{split}-00000-of-00001.parquet", row_group_size=row_group_size)
    return folder


def train(corpus: Path, folder: Path, **settings: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return run(TokenizerSettings(**settings), {"corpus": corpus}, folder, no_progress)


def changed(folder: Path, name: str = "bengali-unigram-32k", **change: Any) -> str:
    content = yaml.safe_load((definitions_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
    if "normalizer" in change:
        change["switches"] = {}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content | change), encoding="utf-8")
    return str(path)
