"""Three ways to train a Unigram of 32,000 entries on the same text: time, peak memory, tokens per word.

    python benchmarks/tokenizer_training.py [--data DIR] [--megabytes N] [--runs N] [--published FILE]

The sides are the trainer of `tokenizers` with the definition bengali-unigram-32k, sentencepiece on the text itself
with its own defaults, and sahajflow's stage. Each runs in a process of its own, in turn, as often as --runs says; a
time is from the first line read to the saved file, without imports; the peak is that of the whole process. Tokens per
word are measured on every 20th document, which none of them sees, as it is and without digits and punctuation, which
sentencepiece's defaults do not split off. --megabytes takes more text than there is: copies in which one word in
twenty has another ending, so that the number of distinct words grows as well. --published is a tokenizer.json to
compare with on the same text, normalised by its own chain beforehand for both.
(Not called tokenizers.py: the script's folder comes first on the path, and it would hide the library.)
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SIDES = ("tokenizers", "sentencepiece", "sahajflow")
ENTRIES = 32_000
ENDINGS = ("র", "কে", "তে", "ের", "টি", "গুলো", "রা", "ও", "ই", "দের")


def documents(data: Path) -> Iterator[str]:
    for file in sorted(data.glob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            yield from (json.loads(line)["text"] for line in lines)


def varied(text: str, draw: random.Random) -> str:
    return " ".join(word + draw.choice(ENDINGS) if draw.random() < 0.05 else word for word in text.split(" "))


def write_text(data: Path, megabytes: float | None, folder: Path) -> int:
    """Write train.txt and held_out.txt; returns the bytes of the former."""
    train, held_out = [], []
    for number, text in enumerate(documents(data)):
        (held_out if number % 20 == 7 else train).append(text)
    size = sum(len(text.encode()) + 1 for text in train)
    wanted = size if megabytes is None else int(megabytes * 1e6)
    draw = random.Random(0)
    written = 0
    with (folder / "train.txt").open("w", encoding="utf-8") as file:
        for text in train:
            written += file.write(text + "\n") and len(text.encode()) + 1
        while written < wanted:
            for text in train:
                other = varied(text, draw)
                written += file.write(other + "\n") and len(other.encode()) + 1
                if written >= wanted:
                    break
    (folder / "held_out.txt").write_text("\n".join(held_out), encoding="utf-8")
    return written


def lines_of(path: Path) -> Iterator[str]:
    from tasks.tokenizer_training import training_lines

    with path.open(encoding="utf-8") as file:
        yield from training_lines(file)


def train_tokenizers(folder: Path) -> None:
    from tokenizers import AddedToken, trainers

    from tasks.corpus_text import batches_of
    from tasks.tokenizer_building import build_tokenizer
    from tasks.tokenizer_definition import load_definition

    definition = load_definition("bengali-unigram-32k")
    tokenizer = build_tokenizer(definition)
    special = [AddedToken(token.token, special=True) for token in definition.special_tokens.by_id()]
    trainer = trainers.UnigramTrainer(
        vocab_size=ENTRIES, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(batches_of(lines_of(folder / "train.txt"), 1_000_000), trainer)
    tokenizer.save(str(folder / "tokenizers.json"))


def train_sentencepiece(folder: Path) -> None:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "train.txt"),
        model_writer=model,
        vocab_size=ENTRIES,
        character_coverage=1.0,
        max_sentence_length=100_000,  # the usual 4,192 bytes leave out long paragraphs
        num_threads=os.cpu_count() or 1,
        minloglevel=2,
    )
    (folder / "sentencepiece.model").write_bytes(model.getvalue())


def train_sahajflow(folder: Path) -> None:
    from tasks.corpus_text import batches_of
    from tasks.tokenizer_building import build_tokenizer, save_tokenizer, set_vocabulary
    from tasks.tokenizer_definition import load_definition
    from tasks.tokenizer_fitting import fit_vocabulary
    from tasks.tokenizer_training import BATCH_CHARACTERS
    from tasks.tokenizer_words import count_words

    definition = load_definition("bengali-unigram-32k")
    tokenizer = build_tokenizer(definition)
    words = count_words(batches_of(lines_of(folder / "train.txt"), BATCH_CHARACTERS), tokenizer)
    before = resident()
    model, _ = fit_vocabulary(words, definition, ENTRIES, folder)
    set_vocabulary(tokenizer, model, definition)
    save_tokenizer(tokenizer, definition, folder / "sahajflow")
    from tasks.tokenizer_fitting import SEEDS_AN_ENTRY
    from tasks.tokenizer_memory import training_bytes

    characters = sum(map(len, words.texts))
    print(
        json.dumps(
            {
                "distinct": len(words.texts),
                "characters": characters,
                "estimate": training_bytes(characters, SEEDS_AN_ENTRY * ENTRIES),
                "taken": peak() - before,
            }
        )
    )


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one_side(side: str, folder: Path) -> None:
    import numpy  # noqa: F401
    import pyarrow.compute  # noqa: F401
    import sentencepiece  # noqa: F401
    import tokenizers  # noqa: F401

    from tasks import tokenizer_fitting  # noqa: F401

    began = time.perf_counter()
    {"tokenizers": train_tokenizers, "sentencepiece": train_sentencepiece, "sahajflow": train_sahajflow}[side](folder)
    print(json.dumps({"seconds": time.perf_counter() - began, "peak": peak()}))


def tokens_per_word(side: str, folder: Path, texts: list[str]) -> float:
    words = sum(len(text.split()) for text in texts)
    if side == "sentencepiece":
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
        return sum(len(ids) for ids in processor.encode(texts)) / words
    file = folder / ("sahajflow/tokenizer.json" if side == "sahajflow" else f"{side}.json")
    return tokens_of(file, texts) / words


def tokens_of(file: Path, texts: list[str]) -> int:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    return sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data/corpus/bn"), help="folder of .jsonl.gz files"
    )
    parser.add_argument("--megabytes", type=float, help="text to train on (default: all there is, as it is)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--published", type=Path, help="a tokenizer.json to compare with")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        one_side(options.side, options.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_text(options.data, options.megabytes, folder)
        print(f"{size / 1e6:.1f} MB of text, {os.cpu_count()} cores, {options.runs} runs each in turn", flush=True)
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        memory = None
        for _ in range(options.runs):
            for side in SIDES:
                command = [sys.executable, __file__, "--side", side, "--folder", name]
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
                found[side].append(json.loads(output[-1]))
                if side == "sahajflow":
                    memory = json.loads(output[-2])
        texts = (folder / "held_out.txt").read_text(encoding="utf-8").split("\n")
        letters = [re.sub(r"[^\w\u0980-\u09ff\u200c\u200d\s]|\d|[।॥_]", "", text) for text in texts]
        for side, runs in found.items():
            times = [run["seconds"] for run in runs]
            per_word = [tokens_per_word(side, folder, some) for some in (texts, letters)]
            print(
                f"{side:<14} median {statistics.median(times):6.2f} s ({min(times):.2f} to {max(times):.2f})   "
                f"peak {max(run['peak'] for run in runs) / 1e9:.2f} GB   "
                f"tokens per word {per_word[0]:.4f}, letters only {per_word[1]:.4f}"
            )
        assert memory is not None
        print(
            f"sahajflow: {memory['distinct']:,} distinct words with {memory['characters']:,} characters; memory "
            f"estimated for training {memory['estimate'] / 1e9:.2f} GB, taken {memory['taken'] / 1e9:.2f} GB"
        )
        if options.published:
            from tokenizers import Tokenizer

            chain = Tokenizer.from_file(str(options.published)).normalizer
            texts = [chain.normalize_str(text) for text in texts]
            words = sum(len(text.split()) for text in texts)
            ours, theirs = (
                tokens_of(f, texts) / words for f in (folder / "sahajflow/tokenizer.json", options.published)
            )
            print(
                f"on text in the published normalisation: sahajflow {ours:.4f}, published {theirs:.4f}: "
                f"{ours / theirs:.3f} times"
            )


if __name__ == "__main__":
    main()
