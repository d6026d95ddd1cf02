"""Settings, texts and runs of the stage that several tests of the corpus share."""

import gzip
import json
import lzma
from pathlib import Path

import pyarrow
import pytest

from tasks.contract import UserError, no_progress
from tasks.corpus import STAGE, CorpusSettings
from tasks.corpus_account import COUNTED
from tasks.corpus_files import Unreadable, format_of, read_file

HUB_REVISION = "0123456789abcdef0123456789abcdef01234567"
REAL = Path(__file__).parents[2].parent / "shared/data/corpus/bn"

LONGEST = 10_000

PACKED = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}
COMPRESSED = [ending for ending in PACKED if ending]


def read(path, *, documents="line", text_field="text", longest=LONGEST):
    """Texts, and what is unreadable by its problem after the file's name."""
    items = []
    for item, share in read_file(path, format_of(path, "auto", "here"), text_field, documents, longest):
        assert 0 <= share <= 1
        items.append(f"! {item.problem.removeprefix(str(path))}" if isinstance(item, Unreadable) else item.strip())
    return items


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
