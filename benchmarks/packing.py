"""How fast stage `pack` is beside the route of transformers' example run_mlm, with the same tokenizer and text.

    python benchmarks/packing.py [--corpus ../shared/data/corpus/bn] [--sizes 37.7 84] [--tokenizer tokenizer.json]
    python benchmarks/packing.py --memory

For each size in MB both sides run, each in a fresh process: `datasets.map` that tokenises and another that groups,
with the example's arguments and two processes; and the stage, from the corpus's Parquet files to finished shards.
Prints MB/s of text, the ratio, peak memory, and whether both have the same ids. A corpus larger than the files is
made of repetitions in which every twentieth word is made unique. The ratio is void where the example's route does not
reach 85 % of the speed that it had on a quiet machine with two cores (FIGURES).

Without --tokenizer, one is trained on the corpus from the definition bengali-unigram-32k. --mode packs in another mode
(the example has none like it). --memory packs the corpus once and ten times over, and prints both peaks.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

FIGURES = {37.7: 1.7, 84.0: 2.5}
"""MB/s of the example's route by MB of text, measured on a quiet machine with two cores."""
ENOUGH = 0.85
SEQUENCE_LENGTH = 512
PROCESSES = 2
UNIQUE_EVERY = 20
LETTERS = "কখগঘচছজঝটঠডঢতথদধনপফবভমযরলশষসহ"
GROUP_CHARACTERS = 4_000_000
"""Text in a Parquet row group, as in stage `corpus`."""


# ---- the text ----


def texts_of(folder: Path) -> list[str]:
    texts = []
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts += [json.loads(line)["text"] for line in file]
    return texts


def repeated(texts: list[str], size: float) -> Iterator[str]:
    """Texts of so many MB: all of them again and again, from the second time on with unique words among them."""
    made, words = 0, 0

    def unique(match: re.Match[str]) -> str:
        nonlocal words
        words += 1
        if words % UNIQUE_EVERY:
            return match[0]
        number, spelled = words // UNIQUE_EVERY, ""
        while number:
            number, letter = divmod(number, len(LETTERS))
            spelled += LETTERS[letter]
        return match[0] + spelled

    round_ = 0
    while made < size * 1e6:
        for text in texts:
            if made >= size * 1e6:
                return
            new = re.sub(r"\S+", unique, text) if round_ else text
            made += len(new.encode())
            yield new
        round_ += 1


def write_corpus(texts: Iterable[str], folder: Path) -> None:
    """As stage `corpus` leaves it; each hundredth document goes to the validation split."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "data").mkdir(parents=True)
    schema = pa.schema([("id", pa.string()), ("source", pa.string()), ("text", pa.string())])
    held: dict[str, list[str]] = {"train": [], "validation": []}
    characters = dict.fromkeys(held, 0)
    paths = {split: folder / f"data/{split}-00000-of-00001.parquet" for split in held}
    writers = {split: pq.ParquetWriter(path, schema, compression="zstd") for split, path in paths.items()}

    def write(split: str) -> None:
        names = [str(number) for number in range(len(held[split]))]
        writers[split].write_table(pa.table([names, ["benchmark"] * len(names), held[split]], schema=schema))
        held[split], characters[split] = [], 0

    for number, text in enumerate(texts):
        split = "validation" if number % 100 == 99 else "train"
        held[split].append(text)
        characters[split] += len(text)
        if characters[split] >= GROUP_CHARACTERS:
            write(split)
    for split, writer in writers.items():
        write(split)
        writer.close()


def make_tokenizer(corpus: Path, given: Path | None, folder: Path) -> None:
    if given is not None:
        folder.mkdir()
        source = given / "tokenizer.json" if given.is_dir() else given
        shutil.copy(source, folder / "tokenizer.json")
        tokens = {token["content"] for token in json.loads(source.read_text(encoding="utf-8"))["added_tokens"]}
        names = {"pad": ("<pad>", "[PAD]"), "unk": ("<unk>", "[UNK]"), "cls": ("[CLS]",), "sep": ("[SEP]",)}
        names["mask"] = ("[MASK]",)
        config = {f"{name}_token": next(one for one in of if one in tokens) for name, of in names.items()}
        (folder / "tokenizer_config.json").write_text(
            json.dumps(config | {"tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8"
        )
        return
    from tasks.corpus_text import batches_of
    from tasks.tokenizer_building import build_tokenizer, save_tokenizer, set_vocabulary
    from tasks.tokenizer_definition import load_definition
    from tasks.tokenizer_fitting import fit_vocabulary
    from tasks.tokenizer_training import BATCH_CHARACTERS
    from tasks.tokenizer_words import count_words

    definition = load_definition("bengali-unigram-32k")
    tokenizer = build_tokenizer(definition)
    lines = (line for text in texts_of(corpus) for line in text.splitlines())
    words = count_words(batches_of(lines, BATCH_CHARACTERS), tokenizer)
    folder.mkdir(exist_ok=True)
    model, _ = fit_vocabulary(words, definition, definition.vocabulary_size, folder)
    set_vocabulary(tokenizer, model, definition)
    save_tokenizer(tokenizer, definition, folder)


# ---- the two sides, each in a process of its own ----


def example(corpus: Path, tokenizer_folder: Path, out: Path) -> float:
    """The example's route without `line_by_line`; returns the seconds of its two maps."""
    from itertools import chain

    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_folder))
    files = {split: sorted(map(str, (corpus / "data").glob(f"{split}-*"))) for split in ("train", "validation")}
    raw = datasets.load_dataset("parquet", data_files=files, cache_dir=str(out / "cache"))

    def tokenize(examples: dict[str, list[Any]]) -> Any:
        return tokenizer(examples["text"], return_special_tokens_mask=True)

    def group(examples: dict[str, list[Any]]) -> dict[str, list[Any]]:
        joined = {name: list(chain(*column)) for name, column in examples.items()}
        whole = len(joined["input_ids"]) // SEQUENCE_LENGTH * SEQUENCE_LENGTH
        starts = range(0, whole, SEQUENCE_LENGTH)
        return {name: [column[start : start + SEQUENCE_LENGTH] for start in starts] for name, column in joined.items()}

    started = time.perf_counter()
    tokenized = raw.map(tokenize, batched=True, num_proc=PROCESSES, remove_columns=raw["train"].column_names)
    grouped = tokenized.map(group, batched=True, num_proc=PROCESSES)
    seconds = time.perf_counter() - started
    assert len(grouped["train"]) > 0
    save_stream(out, tokenizer, ((split, tokenized[split].data) for split in files))
    return seconds


def stage(corpus: Path, tokenizer_folder: Path, out: Path, mode: str) -> float:
    import tasks.packing_encoding  # noqa: F401  the libraries are loaded before the clock starts, as on the other side
    from tasks.contract import no_progress
    from tasks.packing import PackingSettings, run

    settings = PackingSettings(sequence_length=SEQUENCE_LENGTH, mode=mode)
    started = time.perf_counter()
    metrics = run(settings, {"corpus": corpus, "tokenizer": tokenizer_folder}, out, no_progress)
    seconds = time.perf_counter() - started
    print(f"  encoded {metrics['encoding']}", file=sys.stderr)
    (out / "metrics.json").write_text(json.dumps(metrics))
    return seconds


def save_stream(out: Path, tokenizer: Any, tables: Iterable[tuple[str, Any]]) -> None:
    """Each split's text as ids without special tokens, for the comparison."""
    import numpy as np

    for split, table in tables:
        flat = [np.asarray(chunk.flatten()) for chunk in table.column("input_ids").chunks]
        ids = np.concatenate(flat)
        np.save(out / f"{split}.npy", ids[(ids != tokenizer.cls_token_id) & (ids != tokenizer.sep_token_id)])


def same_ids(theirs: Path, ours: Path, tokenizer_folder: Path) -> str:
    """Compares the texts' ids; the stage's shards hold them up to the remainder of each split."""
    import numpy as np
    import pyarrow as pa
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_folder))
    metrics = json.loads((ours / "metrics.json").read_text())
    tokens = 0
    for split, account in metrics["splits"].items():
        files = sorted((ours / "data").glob(f"{split}-*.arrow"))
        tables = [(split, pa.concat_tables(pa.ipc.open_file(pa.memory_map(str(file))).read_all() for file in files))]
        save_stream(ours, tokenizer, tables)
        one, other = np.load(theirs / f"{split}.npy"), np.load(ours / f"{split}.npy")
        if len(one) != account["tokens_in"] or not np.array_equal(one[: len(other)], other):
            return f"DIFFERENT in split {split}"
        tokens += len(one)
    return f"equal, {tokens:,} tokens"


def measure(side: str, mode: str, corpus: Path, tokenizer_folder: Path, out: Path) -> dict[str, float]:
    """Run one side in a fresh process."""
    out.mkdir()
    command = [sys.executable, __file__, "--mode", mode, "--side", side, *map(str, (corpus, tokenizer_folder, out))]
    # The stage's threads and the example's processes: both use both cores.
    environment = os.environ | {"RAYON_NUM_THREADS": str(PROCESSES), "HF_HUB_OFFLINE": "1"}
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        environment.pop(name, None)
    os.sync()  # what was written before is not waited for in the measured time
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def peak() -> float:
    """Most memory of this process or one of its children, in MB; the own one not by ``getrusage``, which takes over
    that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("../shared/data/corpus/bn"), help="folder of .jsonl.gz")
    parser.add_argument("--sizes", type=float, nargs="+", default=list(FIGURES), metavar="MB")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json, or a folder with one")
    parser.add_argument("--mode", default="concatenate", choices=["concatenate", "sentence-pairs", "published"])
    parser.add_argument("--memory", action="store_true", help="peak memory of the stage, once and ten times over")
    parser.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        name, *paths = arguments.side
        corpus, tokenizer, out = map(Path, paths)
        sides = {"stage": partial(stage, mode=arguments.mode), "example": example}
        seconds = sides[name](corpus, tokenizer, out)
        print(json.dumps({"seconds": seconds, "peak": peak()}))
        return
    texts = texts_of(arguments.corpus)
    if not texts:
        sys.exit(f"{arguments.corpus}: holds no .jsonl.gz")
    once = sum(len(text.encode()) for text in texts) / 1e6
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        make_tokenizer(arguments.corpus, arguments.tokenizer, work / "tokenizer")
        sizes = [once, 10 * once] if arguments.memory else arguments.sizes
        peaks = []
        for size in sizes:
            corpus = work / f"corpus-{size}"
            write_corpus(repeated(texts, size), corpus)
            ours = measure("stage", arguments.mode, corpus, work / "tokenizer", work / f"stage-{size}")
            peaks.append(ours["peak"])
            speed = size / ours["seconds"]
            print(f"{size:.1f} MB: stage pack {speed:.1f} MB/s, {ours['seconds']:.1f} s, peak {ours['peak']:.0f} MB")
            if arguments.memory or arguments.mode != "concatenate":
                continue
            theirs = measure("example", arguments.mode, corpus, work / "tokenizer", work / f"example-{size}")
            base = size / theirs["seconds"]
            print(
                f"  run_mlm's route {base:.2f} MB/s, {theirs['seconds']:.1f} s, peak {theirs['peak']:.0f} MB a process"
            )
            figure = next((FIGURES[one] for one in FIGURES if abs(one - size) < 0.05 * one), None)
            known = "" if figure is None else f" (quiet machine: {figure})"
            if figure is not None and base < ENOUGH * figure:
                print(f"  the ratio is void: the route reaches {base / figure:.0%} of what it had{known}")
            same = same_ids(work / f"example-{size}", work / f"stage-{size}", work / "tokenizer")
            print(f"  ratio {speed / base:.1f}; ids {same}")
        if arguments.memory:
            print(f"peak of ten times over / once: {peaks[1] / peaks[0]:.3f}")


if __name__ == "__main__":
    main()
