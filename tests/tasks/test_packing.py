from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer

from tasks import packing, packing_encoding, packing_published
from tasks.contract import StageError, UserError, no_progress
from tasks.packing import PackingSettings, run
from tasks.packing_published import PublishedPacker
from tasks.packing_rows import Account, ConcatenatePacker, PairPacker, Row, SpecialIds
from tasks.tokenizer_building import save_tokenizer
from tasks.tokenizer_definition import load_definition

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


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    train = [text_of(i, 1 + i % 9) for i in range(300)] + ["", "  ", "[SEP] <pad> [MASK]"]
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c", train, [text_of(900 + i, 5) for i in range(30)])


@pytest.fixture(scope="module")
def tokenizer(fitted: Callable[..., Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    definition = load_definition("bengali-unigram-32k")
    save_tokenizer(fitted(definition, [text_of(i, 5) for i in range(200)], 200), definition, folder)
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


# ---- the packers, over random documents ----

tokens = st.integers(min_value=10, max_value=60_000)
documents_of_tokens = st.lists(st.lists(tokens, max_size=40), max_size=12)
documents_of_sentences = st.lists(st.lists(st.lists(tokens, max_size=30), max_size=8), max_size=10)


def concatenate(account: Account, offset: int = 0, *, length: int = 16, crossing: bool = True) -> ConcatenatePacker:
    return ConcatenatePacker(length, SPECIAL, crossing=crossing, dtype=np.uint16, account=account, offset=offset)


def pairs(account: Account, offset: int = 0, *, length: int = 16, join: bool = True) -> PairPacker:
    return PairPacker(length, SPECIAL, join_single=join, seed=7, dtype=np.uint16, account=account, offset=offset)


def arrays(document: list[int]) -> np.ndarray:
    return np.array(document, dtype=np.uint16)


def copied(rows: Iterator[Row]) -> list[tuple[list[int], int, int]]:
    return [(row.ids.tolist(), row.boundary, row.length) for row in rows]


@settings(max_examples=80, deadline=None)
@given(documents_of_tokens, st.integers(8, 40), st.booleans())
def test_concatenate_accounts_for_every_token(documents: list[list[int]], length: int, crossing: bool) -> None:
    account = Account()
    packer = concatenate(account, length=length, crossing=crossing)
    rows = copied(packer.rows(map(arrays, documents)))
    packer.finish()
    account.check("train", length)

    everything = [token for document in documents for token in document]
    assert account.tokens_in == len(everything)
    assert account.documents == len(documents)
    packed = [token for ids, _, _ in rows for token in ids if token not in SPECIAL]
    assert packed == everything[: account.tokens_packed]
    assert account.tokens_dropped == 0
    assert account.tokens_remainder == len(everything) - len(packed) < length - 2
    for ids, boundary, used in rows:
        assert len(ids) == length
        assert ids[0] == CLS
        assert ids[1] != SEP  # no block begins with a separator
        assert ids[used - 1] == SEP
        assert ids[used:] == [PAD] * (length - used)
        assert boundary == 0
    if crossing:
        assert account.padding == 0
    else:
        # A block never holds two documents, and no text is left over.
        assert account.tokens_remainder == 0
        assert all(ids.count(SEP) == 1 for ids, _, _ in rows)
        assert len(rows) == sum(-(-len(document) // (length - 2)) for document in documents)


@settings(max_examples=80, deadline=None)
@given(documents_of_sentences, st.integers(16, 40), st.booleans())
def test_pairs_account_for_every_token(documents: list[list[list[int]]], length: int, join: bool) -> None:
    account = Account()
    packer = pairs(account, length=length, join=join)
    rows = copied(packer.rows([arrays(sentence) for sentence in document] for document in documents))
    packer.finish()
    account.check("train", length)

    everything = [token for document in documents for sentence in document for token in sentence]
    assert account.tokens_in == len(everything)
    packed = []
    for ids, boundary, used in rows:
        assert ids[0] == CLS
        assert ids[boundary - 1] == ids[used - 1] == SEP
        assert 2 < boundary < used - 1  # both segments have tokens
        assert ids[used:] == [PAD] * (length - used)
        packed += ids[1 : boundary - 1] + ids[boundary : used - 1]
    if join:
        assert account.tokens_dropped == 0
        assert packed == everything[: len(packed)]
        assert account.tokens_remainder <= (length - 3) // 2
    else:
        assert account.tokens_remainder == 0
        single = [document for document in documents if sum(map(bool, document)) == 1]
        assert account.tokens_dropped >= sum(
            sum(map(len, document)) for document in single if sum(map(len, document)) <= (length - 3) // 2
        )


@settings(max_examples=40, deadline=None)
@given(documents_of_tokens, documents_of_sentences, st.booleans())
def test_a_packer_goes_on_at_any_block(plain: list[list[int]], nested: list[list[list[int]]], flag: bool) -> None:
    for make, documents in (
        (lambda account, offset=0: concatenate(account, offset, crossing=flag), [arrays(d) for d in plain]),
        (lambda account, offset=0: pairs(account, offset, join=flag), [[arrays(s) for s in d] for d in nested]),
    ):
        account = Account()
        packer = make(account)
        rows, places = [], []
        for row in packer.rows(documents):
            rows += copied(iter([row]))
            places.append((asdict(account), packer.offset))
        packer.finish()
        for number, (before, offset) in enumerate(places):
            again = Account(**before)
            packer = make(again, offset)
            assert copied(packer.rows(documents[again.documents :])) == rows[number + 1 :]
            packer.finish()
            assert again == account


def test_sentences_stay_whole_and_long_ones_continue() -> None:
    account = Account()
    sentences = [arrays([10] * 6), arrays([20] * 5), arrays([30] * 4), arrays([40] * 20)]
    rows = copied(pairs(account).rows([sentences]))
    # 13 tokens fit: 6 + 5, then 4 + the first of four parts of 5, then 5 + 5, and the last part is left single.
    assert [[t for t in ids if t not in SPECIAL] for ids, _, _ in rows] == [
        [10] * 6 + [20] * 5,
        [30] * 4 + [40] * 5,
        [40] * 10,
    ]
    assert rows[0][1] == 8


def test_boundaries_vary_and_follow_the_seed() -> None:
    def boundaries(seed: int) -> list[int]:
        packer = PairPacker(64, SPECIAL, join_single=True, seed=seed, dtype=np.uint16, account=Account())
        return [row.boundary for row in packer.rows([[arrays([9] * 4)] * 200])]

    assert boundaries(1) == boundaries(1)
    assert boundaries(1) != boundaries(2)
    assert len(set(boundaries(1))) > 3


def test_a_wrong_account_is_found() -> None:
    with pytest.raises(StageError, match="5 tokens in, but 4 accounted for"):
        Account(tokens_in=5, tokens_packed=3, tokens_dropped=1).check("train", 16)
    with pytest.raises(StageError, match="2 blocks"):
        Account(tokens_in=5, tokens_packed=5, blocks=2).check("train", 16)


def published(account: Account, offset: int = 0, *, length: int = 16) -> PublishedPacker:
    return PublishedPacker(length, SPECIAL, dtype=np.uint16, account=account, offset=offset)


def published_rows(documents: list[list[int]], length: int, batch: int) -> list[list[int]]:
    """What the published code makes of documents: cut off, run together, the rest of each batch dropped."""
    rows = []
    for start in range(0, len(documents), batch):
        wrapped = [[CLS, *document[: length - 2], SEP] for document in documents[start : start + batch]]
        joined = [token for document in wrapped for token in document]
        rows += [joined[i : i + length] for i in range(0, len(joined) - length + 1, length)]
    return rows


@settings(max_examples=80, deadline=None)
@given(documents_of_tokens, st.integers(8, 40), st.integers(1, 5))
def test_published_packs_as_published_and_accounts_for_its_losses(
    documents: list[list[int]], length: int, batch: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing_published, "BATCH_DOCUMENTS", batch)
        account = Account()
        packer = published(account, length=length)
        rows, places = [], []
        for row in packer.rows(map(arrays, documents)):
            rows.append(row.ids.tolist())
            places.append((asdict(account), packer.offset))
        packer.finish()
        account.check("train", length)
        assert rows == published_rows(documents, length, batch)
        assert account.tokens_in == sum(map(len, documents))
        assert account.tokens_packed == sum(token not in SPECIAL for row in rows for token in row)
        assert account.tokens_cut_off == sum(max(0, len(document) - (length - 2)) for document in documents)
        assert account.tokens_remainder == account.padding == 0
        for number, (before, offset) in enumerate(places):
            again = Account(**before)
            packer = published(again, offset, length=length)
            rest = packer.rows(arrays(document) for document in documents[again.documents :])
            assert [ids for ids, _, _ in copied(rest)] == rows[number + 1 :]
            packer.finish()
            assert again == account


def test_documents_of_one_sentence_are_counted() -> None:
    for join in (True, False):
        account = Account()
        packer = pairs(account, join=join)
        one, two, none = [arrays([9] * 3)], [arrays([8] * 3)] * 2, [arrays([])]
        list(packer.rows([one, two, none, [], [*none, *one], one]))
        packer.finish()
        assert account.single_sentences == 3
        assert account.tokens_dropped == (0 if join else 9)
        account.check("train", 16)


# ---- the stage ----


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
    from tokenizers import Tokenizer, normalizers

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
    monkeypatch.setattr("tasks.packing_words._gathered", lambda pool, lengths, numbers, bounds: (pool[:0], bounds * 0))
    metrics = pack(corpus, tokenizer, tmp_path / "document")
    assert metrics["encoding"].startswith("by document, for a text that gives other ids by words: '")
    assert metrics["splits"] == whole
    assert content(tmp_path / "document") == content(tmp_path / "word")


def test_text_never_yields_special_tokens(tokenizer: Path, tmp_path: Path) -> None:
    texts = ["[SEP] <pad> [CLS][MASK] ক"] * 40
    pack(write_corpus(tmp_path / "c", texts, texts), tokenizer, tmp_path / "pack")
    ids = np.array(read(tmp_path / "pack", "train")["input_ids"].to_pylist())[:, 1:-1]
    assert not {PAD, CLS, 4} & set(ids.reshape(-1).tolist())


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


def test_a_long_document_continues(tokenizer: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

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
