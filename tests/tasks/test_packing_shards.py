from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from tasks import packing
from tasks.packing import PackingSettings

sys.path.insert(0, str(Path(__file__).parent))
from packing_runs import (
    CLS,
    PAD,
    SEP,
    content,
    pack,
    read,
    text_of,
    write_corpus,
)


@pytest.mark.parametrize("mode", ["concatenate", "sentence-pairs", "published"])
def test_shards_load_without_our_code(corpus: Path, tokenizer: Path, tmp_path: Path, mode: str) -> None:
    import datasets

    metrics = pack(corpus, tokenizer, tmp_path / "pack", mode=mode, blocks_per_shard=100)
    loaded = datasets.load_dataset(str(tmp_path / "pack"), cache_dir=str(tmp_path / "cache"))
    names = sorted(content(tmp_path / "pack"))
    count = len(names) - 1
    assert names == [f"train-{i:05d}-of-{count:05d}.arrow" for i in range(count)] + ["validation-00000-of-00001.arrow"]
    for split in ("train", "validation"):
        account = metrics["splits"][split]
        assert len(loaded[split]) == account["blocks"] > 0
        assert account["tokens_in"] == sum(account[f"tokens_{k}"] for k in ("packed", "dropped", "remainder"))
        table = read(tmp_path / "pack", split)
        assert table.schema.field("input_ids").type == pa.list_(pa.uint16(), 32)
        assert loaded[split]["input_ids"][0] == table["input_ids"][0].as_py()
        ids = np.array(table["input_ids"].to_pylist())
        assert (ids[:, 0] == CLS).all() or mode == "published"
        if mode == "sentence-pairs":
            boundary, length = (table[name].to_numpy() for name in ("boundary", "length"))
            rows = np.arange(len(ids))
            assert (ids[rows, boundary - 1] == SEP).all()
            assert (ids[rows, length - 1] == SEP).all()
            assert (ids == PAD).sum() == account["padding"] == (32 - length).sum()
        else:
            assert table.column_names == ["input_ids"]
            assert (ids[:, -1] == SEP).all() or mode == "published"
    assert metrics["mode"] == mode
    assert metrics["splits"]["train"]["documents"] == 303


def test_files_are_uncompressed_and_mapped(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    pack(corpus, tokenizer, tmp_path)
    before = pa.total_allocated_bytes()
    with pa.memory_map(str(tmp_path / "data/train-00000-of-00001.arrow")) as file:
        ids = pa.ipc.open_file(file).read_all()["input_ids"].chunk(0).flatten().to_numpy(zero_copy_only=True)
        assert len(ids) % 32 == 0
        assert pa.total_allocated_bytes() - before < 1000


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"documents": "single"},
        {"mode": "published"},
        {"mode": "sentence-pairs"},
        {"mode": "sentence-pairs", "single_sentences": "drop"},
    ],
)
def test_a_killed_run_goes_on_with_the_same_bytes(
    corpus: Path, tokenizer: Path, tmp_path: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = values | {"blocks_per_shard": 100}
    metrics = pack(corpus, tokenizer, tmp_path / "whole", **values)
    shards = len(content(tmp_path / "whole"))
    assert shards > 3

    finish = packing.Parts.finish
    written: list[str] = []

    def killed(parts: Any, name: str, source: Path, target: Path, **facts: Any) -> None:
        if len(written) % 2 == 1 and written[-1] != "killed":
            written.append("killed")
            raise KeyboardInterrupt
        finish(parts, name, source, target, **facts)
        written.append(name)

    monkeypatch.setattr(packing.Parts, "finish", killed)
    kills = 0
    while True:
        try:
            again = pack(corpus, tokenizer, tmp_path / "killed", **values)
            break
        except KeyboardInterrupt:
            kills += 1
    assert kills >= 1
    names = [name for name in written if name != "killed"]
    assert len(names) == len(set(names)) == shards  # no shard was written twice
    assert again == metrics
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_a_killed_process_goes_on_after_its_finished_shards(tokenizer: Path, tmp_path: Path) -> None:
    texts = [text_of(i, 40) for i in range(400)]
    corpus = write_corpus(tmp_path / "c", texts, texts[:20])
    values = {"blocks_per_shard": 200}
    metrics = pack(corpus, tokenizer, tmp_path / "whole", **values)
    shards = sorted(path.stem for path in (tmp_path / "whole/scratch/parts").iterdir())
    assert len(shards) > 10

    killed = tmp_path / "killed"
    killed.mkdir()
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tasks import packing; from tasks.contract import no_progress\n"
        "finish = packing.Parts.finish\n"
        "def slow(*arguments, **facts): finish(*arguments, **facts); time.sleep(0.15)\n"
        "packing.Parts.finish = slow\n"
        "c, t, f = map(Path, sys.argv[1:])\n"
        "settings = packing.PackingSettings(sequence_length=32, blocks_per_shard=200)\n"
        "packing.run(settings, {'corpus': c, 'tokenizer': t}, f, no_progress)"
    )
    process = subprocess.Popen([sys.executable, "-P", "-c", code, str(corpus), str(tokenizer), str(killed)])
    records = killed / "scratch/parts"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (records / f"{shards[3]}.json").exists():
        time.sleep(0.01)
    process.kill()
    process.wait()
    done = {path.name: path.stat().st_mtime_ns for path in records.glob("*.json")}
    assert 4 <= len(done) < len(shards)
    assert not (killed / "data").exists()

    assert pack(corpus, tokenizer, killed, **values) == metrics
    assert content(killed) == content(tmp_path / "whole")
    assert {name: (records / name).stat().st_mtime_ns for name in done} == done  # none was packed again


def test_a_damaged_shard_is_packed_again(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    values = {"blocks_per_shard": 40}
    metrics = pack(corpus, tokenizer, tmp_path, **values)
    whole = content(tmp_path)
    (tmp_path / "scratch/shards/train-00002.arrow").write_bytes(b"")
    assert pack(corpus, tokenizer, tmp_path, **values) == metrics
    assert content(tmp_path) == whole


def test_shards_that_are_just_full(tokenizer: Path, corpus: Path, tmp_path: Path) -> None:
    blocks = pack(corpus, tokenizer, tmp_path / "a")["splits"]["validation"]["blocks"]
    first = pack(corpus, tokenizer, tmp_path / "b", blocks_per_shard=blocks)
    assert pack(corpus, tokenizer, tmp_path / "b", blocks_per_shard=blocks) == first
    assert read(tmp_path / "b", "train").equals(read(tmp_path / "a", "train").combine_chunks())


def test_batches_of_a_file_do_not_matter(
    corpus: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"mode": "sentence-pairs", "blocks_per_shard": 70}
    pack(corpus, tokenizer, tmp_path / "one", **values)
    monkeypatch.setattr("tasks.packing_shards.BATCH_BLOCKS", 16)
    pack(corpus, tokenizer, tmp_path / "many", **values)
    assert list(content(tmp_path / "many")) == list(content(tmp_path / "one"))
    for split in ("train", "validation"):
        many = read(tmp_path / "many", split)
        assert many.column("input_ids").num_chunks > 2
        assert many.combine_chunks().equals(read(tmp_path / "one", split).combine_chunks())


def test_a_shard_has_bounds() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 262144"):
        PackingSettings(blocks_per_shard=262_145)
    with pytest.raises(ValidationError, match="set blocks_per_shard to 131072 or less"):
        PackingSettings(blocks_per_shard=131_073, sequence_length=4096)
    PackingSettings(blocks_per_shard=131_072, sequence_length=4096)
