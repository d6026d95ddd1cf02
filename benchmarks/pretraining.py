"""The engine local against transformers' Trainer as its example run_mlm sets it up: tokens a second, and losses.

    python benchmarks/pretraining.py [--shape small|albert-large] [--steps N] [--no-compile] [--recipe RECIPE] ...

Both sides train the same initial weights on the same packed sequences, with the same batch, learning rate, linear
schedule and number of steps; every other argument of the Trainer is its default. Validation losses are computed by
one function, in fp32. Compiling is not part of the speed and is printed apart. Each side has a process of its own.

Without a recipe the data are drawn: 32,000 tokens by a law like Zipf's, half of them following from the one before.
With one, they are what its stages tokenizer and pack make, or have made. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from flows.execution import Options, run_chain
from tasks.contract import no_progress
from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.local import pretrain
from tasks.pretraining.models import build_model
from tasks.pretraining.precision import Hardware, choose_hardware
from tasks.pretraining.settings import MaskingSettings, PretrainSettings
from tasks.pretraining.validation import validate, validation_batches

T = TypeVar("T")

LENGTH = 512
VOCABULARY = 32_000
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VALIDATION_BLOCKS = 64

SHAPES: dict[str, tuple[dict[str, Any], int]] = {
    "small": ({"hidden_size": 256, "layers": 4, "heads": 4, "intermediate_size": 1024}, 8),
    "albert-large": ({"hidden_size": 1024, "layers": 24, "heads": 16, "intermediate_size": 4096}, 2),
}
"""ALBERT's shape, and the sequences in a batch."""

QUIET = 1_936
"""Tokens a second of the Trainer with the small shape on two quiet cores with AVX512-BF16."""

QUIET_ENOUGH = 0.85


def drawn_data(folder: Path, sequences: int) -> tuple[Path, Path]:
    """Folders of a tokenizer and of drawn sequences, as the stages leave them."""
    generator = np.random.default_rng(0)
    ordinary = VOCABULARY - len(SPECIAL)
    frequency = 1 / (np.arange(ordinary) + 10.0)
    follower = generator.permutation(ordinary)
    for split, rows in (("train", sequences), ("validation", VALIDATION_BLOCKS)):
        words = generator.choice(ordinary, size=(rows, LENGTH - 2), p=frequency / frequency.sum())
        for place in range(1, words.shape[1]):
            follows = generator.random(rows) < 0.5
            words[follows, place] = follower[words[follows, place - 1]]
        ids = np.hstack([np.full((rows, 1), 2), words + len(SPECIAL), np.full((rows, 1), 3)]).astype(np.uint16)
        table = pa.table({"input_ids": pa.FixedSizeListArray.from_arrays(pa.array(ids.reshape(-1)), LENGTH)})
        path = folder / "pack" / "data" / f"{split}-00000-of-00001.arrow"
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    from tokenizers import Tokenizer, models

    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *(f"w{n}" for n in range(ordinary))))}
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")), **names
    )
    tokenizer.save_pretrained(folder / "tokenizer")
    return folder / "tokenizer", folder / "pack"


def made_data(recipe: str, store: str | None, changes: list[str]) -> tuple[Path, Path]:
    """Folders of the recipe's stages tokenizer and pack, with sequences of the benchmark's length."""
    blocks = [f"packing.sequence_length={LENGTH}", f"tokenizer.vocabulary_size={VOCABULARY}"]
    options = Options(recipe, until="pack", set_=(*blocks, *changes), store=store)
    paths = {found.record.stage: found.path for found in run_chain(options, lambda node, work: work(no_progress))}
    return paths["tokenizer"], paths["pack"]


class Clock(TrainerCallback):
    """Seconds between the first step's beginning and the last one's end."""

    started = ended = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.started = time.perf_counter()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.ended = time.perf_counter()


def run_stock(settings: PretrainSettings, tokenizer: Any, train: PackedSplit, folder: Path) -> tuple[Any, float]:
    """The Trainer's model after its training, and its tokens a second."""
    asked = settings.pretraining
    ids, _, _ = train.rows(np.arange(len(train)))
    special = np.isin(ids, tokenizer.all_special_ids).astype(np.int8)
    columns = {
        "input_ids": list(ids),
        "attention_mask": list(np.ones_like(special)),
        "special_tokens_mask": list(special),
    }
    model = build_model(settings.model, tokenizer, "mlm", asked.seed)
    clock = Clock()
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=asked.batch_size,
        max_steps=asked.steps,
        learning_rate=asked.learning_rate,
        use_cpu=asked.device == "cpu",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        data_collator=DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=0.15),
        callbacks=[clock],
    )
    trainer.train()
    return model, asked.steps * asked.batch_size * train.sequence_length / (clock.ended - clock.started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=5e-5, help="by default the Trainer's")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--recipe")
    parser.add_argument("--store")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    shape, batch_size = SHAPES[arguments.shape]
    asked = {
        "steps": arguments.steps,
        "batch_size": batch_size,
        "learning_rate": arguments.learning_rate,
        "epsilon": 1e-8,  # these two as in TrainingArguments
        "weight_decay": 0.0,
        "device": arguments.device,
        "compile": not arguments.no_compile,
        "validate_every": arguments.steps,
        "validation_blocks": VALIDATION_BLOCKS,
        "checkpoint_every": arguments.steps,
    }
    settings = PretrainSettings.model_validate({"model": {"architecture": "albert", **shape}, "pretraining": asked})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if arguments.recipe:
            tokenizer_folder, pack_folder = made_data(arguments.recipe, arguments.store, arguments.set)
        else:
            tokenizer_folder, pack_folder = drawn_data(folder, min(arguments.steps * batch_size, 5_000))
        compare(settings, arguments.shape, tokenizer_folder, pack_folder, folder)


def product_rates(hidden: int, intermediate: int, tokens: int) -> str:
    """GFLOP/s, in fp32 and bf16, of the products that a layer of this shape is mostly made of."""
    rates = []
    for kind in (torch.float32, torch.bfloat16):
        states, layer = torch.randn(tokens, hidden, dtype=kind), torch.nn.Linear(hidden, intermediate, dtype=kind)
        seconds = []
        with torch.no_grad():
            for _ in range(30):
                started = time.perf_counter()
                layer(states)
                seconds.append(time.perf_counter() - started)
        rates.append(2 * tokens * hidden * intermediate / min(seconds) / 1e9)
    return (
        f"products of this shape: fp32 {rates[0]:.0f}, bf16 {rates[1]:.0f} GFLOP/s ({rates[1] / rates[0]:.1f} times)"
    )


def alone(function: Callable[..., T], *arguments: Any) -> T:
    """What the function returns in a process of its own, with the memory and the threads of a fresh one."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def validation_loss(model: PreTrainedModel, settings: PretrainSettings, tokenizer: Any, pack_folder: Path) -> float:
    """In nats a masked token, in fp32."""
    device = choose_hardware(settings.pretraining).device
    collator = Collator(tokenizer, MaskingSettings(), sentence_order=False)
    batches = validation_batches(PackedSplit(pack_folder, "validation"), collator, VALIDATION_BLOCKS)
    return validate(model.to(device), batches, Hardware(device, "fp32", "for both sides")).loss


def stock_side(
    settings: PretrainSettings, tokenizer_folder: Path, pack_folder: Path, folder: Path
) -> tuple[float, float]:
    """The Trainer's tokens a second and validation loss."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    model, speed = run_stock(settings, tokenizer, PackedSplit(pack_folder, "train"), folder / "stock")
    return speed, validation_loss(model, settings, tokenizer, pack_folder)


def our_side(
    settings: PretrainSettings, tokenizer_folder: Path, pack_folder: Path, folder: Path
) -> tuple[dict[str, Any], float]:
    """The engine's metrics and validation loss."""
    metrics = pretrain(settings, tokenizer_folder, pack_folder, folder / "ours", no_progress)
    model = AutoModelForMaskedLM.from_pretrained(folder / "ours" / "checkpoint")
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    return metrics, validation_loss(model, settings, tokenizer, pack_folder)


def compare(settings: PretrainSettings, shape: str, tokenizer_folder: Path, pack_folder: Path, folder: Path) -> None:
    """Trains with both and prints what came out."""
    device = choose_hardware(settings.pretraining).device
    print(
        f"{shape}: {settings.pretraining.steps} steps of {settings.pretraining.batch_size} x "
        f"{PackedSplit(pack_folder, 'train').sequence_length} tokens, "
        f"{len(AutoTokenizer.from_pretrained(tokenizer_folder)):,} entries, {device.type}, "
        f"{torch.get_num_threads()} of {os.cpu_count()} CPUs"
    )
    if device.type == "cpu":
        shape_asked, batch_size = SHAPES[shape]
        sizes = (shape_asked["hidden_size"], shape_asked["intermediate_size"], batch_size * LENGTH)
        print(alone(product_rates, *sizes), flush=True)
    stock, stock_loss = alone(stock_side, settings, tokenizer_folder, pack_folder, folder)
    print(f"Trainer:   {stock:9,.0f} tokens/s, validation loss {stock_loss:.4f}", flush=True)
    metrics, our_loss = alone(our_side, settings, tokenizer_folder, pack_folder, folder)
    ours, resolved = metrics["tokens_per_second"], metrics["resolved"]
    print(f"sahajflow: {ours:9,.0f} tokens/s, validation loss {our_loss:.4f}")
    print(f"           {resolved['precision']} ({resolved['precision_reason']}), attention {resolved['attention']}")
    print(f"           compiled {resolved['compile']} ({resolved['compile_reason']})")
    print(f"speed: {ours / stock:.2f} times; validation loss: {our_loss / stock_loss - 1:+.2%}")
    if shape == "small" and device.type == "cpu" and stock < QUIET_ENOUGH * QUIET:
        print(f"void: the Trainer reached {stock / QUIET:.0%} of its {QUIET:,} tokens/s; the machine is not quiet")


if __name__ == "__main__":
    main()
