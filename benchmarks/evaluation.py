"""All seed runs of two tasks, against transformers' Trainer as its examples for tokens and texts set it up.

    python benchmarks/evaluation.py [--data FOLDER] [--store FOLDER] [--shape small|medium|albert-base]
                                    [--seeds N] [--epochs N] [--train-items N] ...

Both sides fine-tune the same checkpoint, which the product has pretrained for a moment, on the same items with the
same seeds, epochs, batch size and learning rate, without dropout, warmup and weight decay; both look at the validation
split after every epoch, keep the epoch with the best score, and predict the test split with it.

The Trainer's side is as run_ner and run_glue have it: every item is padded to the maximal length, a process for each
seed reads and encodes the data anew, computes in fp32 and with all cores. Ours is the chain's stage evaluate, without
Prefect's pages. Seconds are those of the processes, from start to end. The checkpoint's own making does not count.
Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "small": {"architecture": "bert", "hidden_size": 192, "layers": 3, "heads": 4, "intermediate_size": 768},
    "medium": {"architecture": "bert", "hidden_size": 384, "layers": 6, "heads": 6, "intermediate_size": 1536},
    "albert-base": {"architecture": "albert", "hidden_size": 768, "layers": 12, "heads": 12}
    | {"intermediate_size": 3072},
}
LABELS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
KINDS = {"ner": "ner", "topics": "classification"}
LENGTH = 128
"""Longest item in tokens, as in run_glue."""

SPLITS = ("train", "validation", "test")


def write_items(data: Path, folder: Path, train_items: int) -> None:
    """The items that both sides read, as JSON lines; the training split cut to ``train_items``, spread evenly."""
    for split in SPLITS:
        sentences = list(_sentences(data / "ner" / "bn" / f"{split}.conll"))
        with (data / "classification" / "bn-poets" / f"{split}.csv").open(encoding="utf-8", newline="") as file:
            texts = list(csv.DictReader(file))
        for task, rows in (("ner", sentences), ("topics", texts)):
            count = min(train_items, len(rows)) if split == "train" else len(rows)
            chosen = [rows[number * len(rows) // count] for number in range(count)]
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in chosen)
            (folder / f"{task}-{split}.jsonl").write_text("".join(lines), encoding="utf-8")


def _sentences(path: Path) -> Iterator[dict[str, list[str]]]:
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        pairs = [line.split("\t") for line in block.split("\n")]
        yield {"tokens": [word for word, _ in pairs], "ner_tags": [tag for _, tag in pairs]}


def recipe_of(arguments: argparse.Namespace, items: Path) -> dict[str, Any]:
    """The recipe of our side, up to the checkpoint that both sides start from."""
    tuning = {
        "learning_rate": arguments.learning_rate,
        "epochs": arguments.epochs,
        "batch_size": arguments.batch_size,
        "max_length": LENGTH,
        "warmup_fraction": 0.0,
        "weight_decay": 0.0,
        "dropout": None,
    }

    def task(name: str) -> dict[str, Any]:
        source = {"kind": "files"} | {split: str(items / f"{name}-{split}.jsonl") for split in SPLITS}
        labels = {"labels": list(LABELS)} if name == "ner" else {}
        return {"kind": KINDS[name], "source": source, "fine_tuning": tuning} | labels

    texts = [str(arguments.data.resolve() / "corpus" / "bn" / f"{name}.jsonl.gz") for name in ("literature", "news")]
    return {
        "name": "evaluation-benchmark",
        "corpus": {"sources": [{"kind": "files", "name": "texts", "paths": texts}]},
        "tokenizer": {"definition": "bengali-unigram-32k", "vocabulary_size": 8000},
        "packing": {"sequence_length": 64},
        "model": SHAPES[arguments.shape] | {"max_positions": LENGTH},
        "pretraining": {
            "engine": "local",
            "steps": arguments.pretraining_steps,
            "batch_size": 64,
            "learning_rate": 2e-3,
            "warmup_steps": arguments.pretraining_steps // 5,
            "compile": False,
            "validate_every": arguments.pretraining_steps,
            "checkpoint_every": arguments.pretraining_steps,
        },
        "evaluation": {
            "seeds": arguments.seeds,
            "models": ["pretrained"],
            "tasks": {name: task(name) for name in arguments.tasks},
        },
    }


def our_side(recipe: str, store: str, until: str) -> None:
    """In a process of its own: the chain up to a stage, with what is in the store already reused."""
    from flows.execution import Options, run_chain
    from tasks.contract import no_progress

    run_chain(Options(recipe, until=until, store=store), lambda node, work: work(no_progress))


def stock_side(task: str, seed: int, spec: dict[str, Any]) -> None:
    """In a process of its own: one seed of one task, with the Trainer; writes the test score."""
    import numpy as np
    from datasets import load_dataset
    from seqeval.metrics import f1_score
    from transformers import (
        AutoConfig,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoTokenizer,
        DataCollatorForTokenClassification,
        Trainer,
        TrainingArguments,
        default_data_collator,
        set_seed,
    )

    set_seed(seed)
    words = task == "ner"
    files = {split: str(Path(spec["items"]) / f"{task}-{split}.jsonl") for split in SPLITS}
    scratch = Path(spec["scratch"]) / f"{task}-{seed}"
    data = load_dataset("json", data_files=files, cache_dir=str(scratch / "data"))
    labels = list(LABELS) if words else sorted(set(data["train"]["label"]))
    ids = {label: number for number, label in enumerate(labels)}
    config = AutoConfig.from_pretrained(spec["checkpoint"], num_labels=len(labels))
    tokenizer = AutoTokenizer.from_pretrained(spec["checkpoint"])
    family: Any = AutoModelForTokenClassification if words else AutoModelForSequenceClassification
    model = family.from_pretrained(spec["checkpoint"], config=config)

    def encoded_words(rows: dict[str, list[Any]]) -> Any:
        encoded = tokenizer(
            rows["tokens"], padding="max_length", truncation=True, max_length=LENGTH, is_split_into_words=True
        )
        encoded["labels"] = []
        for number, tags in enumerate(rows["ner_tags"]):
            row, previous = [], None
            for word in encoded.word_ids(number):
                row.append(-100 if word is None or word == previous else ids[tags[word]])
                previous = word
            encoded["labels"].append(row)
        return encoded

    def encoded_texts(rows: dict[str, list[Any]]) -> Any:
        encoded = tokenizer(rows["text"], padding="max_length", truncation=True, max_length=LENGTH)
        encoded["label"] = [ids[label] for label in rows["label"]]
        return encoded

    def score(output: Any) -> dict[str, float]:
        chosen = np.argmax(output.predictions, axis=-1)
        if not words:
            return {"score": float((chosen == output.label_ids).mean())}
        gold = [[labels[tag] for tag in row if tag != -100] for row in output.label_ids]
        said = [
            [labels[one] for one, tag in zip(row, tags, strict=True) if tag != -100]
            for row, tags in zip(chosen, output.label_ids, strict=True)
        ]
        return {"score": float(f1_score(gold, said))}

    data = data.map(encoded_words if words else encoded_texts, batched=True, remove_columns=data["train"].column_names)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(scratch),
            per_device_train_batch_size=spec["batch_size"],
            per_device_eval_batch_size=spec["batch_size"],
            num_train_epochs=spec["epochs"],
            learning_rate=spec["learning_rate"],
            seed=seed,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="score",
            greater_is_better=True,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=tokenizer,
        data_collator=DataCollatorForTokenClassification(tokenizer) if words else default_data_collator,
        compute_metrics=score,
    )
    trainer.train()
    tested = trainer.predict(data["test"])
    (scratch / "score.json").write_text(json.dumps(tested.metrics["test_score"]), encoding="utf-8")


def run_process(*arguments: str) -> tuple[float, float]:
    """Seconds that this script takes as one of the two sides, from start to end, and CPU seconds of its processes."""
    started, before = time.perf_counter(), os.times()
    ended = subprocess.run(
        [sys.executable, __file__, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
    )
    if ended.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {ended.stdout[-2000:]}")
    after = os.times()
    computed = sum(getattr(after, kind) - getattr(before, kind) for kind in ("children_user", "children_system"))
    return time.perf_counter() - started, computed


def spread_of(scores: list[float]) -> str:
    """``80.12 ± 0.34``, per cent."""
    more = f" ± {100 * statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{100 * statistics.mean(scores):.2f}{more}"


def compare(arguments: argparse.Namespace, folder: Path) -> None:
    """Both sides, task by task, and what came out."""
    from tasks.record import read_record

    items = folder / "items"
    items.mkdir(exist_ok=True)
    write_items(arguments.data, items, arguments.train_items)
    recipe, store = folder / "recipe.yaml", arguments.store or folder / "store"
    recipe.write_text(json.dumps(recipe_of(arguments, items), indent=1), encoding="utf-8")
    made, _ = run_process("--side", json.dumps(["ours", str(recipe), str(store), "pretrain"]))
    (checkpoint,) = _artifacts(store, "pretrain", arguments, recipe)
    shape = SHAPES[arguments.shape]
    print(
        f"{arguments.shape}: {shape['architecture']}, {shape['hidden_size']} x {shape['layers']}, "
        f"{len(os.sched_getaffinity(0))} CPUs; {arguments.seeds} seeds, {arguments.epochs} epochs, batches of "
        f"{arguments.batch_size}, at most {LENGTH} tokens; checkpoint made in {made:.0f} s",
        flush=True,
    )
    spec = {
        "checkpoint": str(checkpoint / "checkpoint"),
        "items": str(items),
        "scratch": str(folder / "stock"),
        **{name: getattr(arguments, name) for name in ("batch_size", "epochs", "learning_rate")},
    }
    both = {"Trainer": 0.0, "sahajflow": 0.0}
    for task in arguments.tasks:
        sides: dict[str, list[tuple[float, float]]] = {"Trainer": [], "sahajflow": []}
        scores: dict[str, list[float]] = {"Trainer": [], "sahajflow": []}
        for seed in range(1, arguments.seeds + 1):
            sides["Trainer"].append(run_process("--side", json.dumps(["stock", task, seed, spec])))
            written = folder / "stock" / f"{task}-{seed}" / "score.json"
            scores["Trainer"].append(json.loads(written.read_text(encoding="utf-8")))
        alone = argparse.Namespace(**{**vars(arguments), "tasks": [task]})
        recipe.write_text(json.dumps(recipe_of(alone, items), indent=1), encoding="utf-8")
        sides["sahajflow"].append(run_process("--side", json.dumps(["ours", str(recipe), str(store), "evaluate"])))
        found = [read_record(path) for path in _artifacts(store, "seed-run", alone, recipe)]
        scores["sahajflow"] = [record.metrics["score"] for record in found]
        seconds = {side: sum(wall for wall, _ in processes) for side, processes in sides.items()}
        for side, processes in sides.items():
            both[side] += seconds[side]
            print(
                f"{task:<8} {side:<10} {seconds[side]:8.1f} s ({sum(cpu for _, cpu in processes):.1f} s of CPU)   "
                f"score {spread_of(scores[side])}",
                flush=True,
            )
        apart = statistics.mean(scores["sahajflow"]) - statistics.mean(scores["Trainer"])
        spread = max(statistics.stdev(values) if len(values) > 1 else 0.0 for values in scores.values())
        within = "within" if abs(apart) <= spread else "beyond"
        resolved = found[0].resolved
        print(
            f"{task:<8} {seconds['Trainer'] / seconds['sahajflow']:.2f} times as fast; mean score {100 * apart:+.2f}, "
            f"{within} the seeds' spread; {resolved['precision']}, {resolved['threads']} threads a seed run",
            flush=True,
        )
    print(f"both tasks: {both['Trainer'] / both['sahajflow']:.2f} times as fast")


def _artifacts(store: Path, stage: str, arguments: argparse.Namespace, recipe: Path) -> list[Path]:
    """The artifacts of a stage that the recipe's plan reuses."""
    from flows.execution import Options, prepare

    steps = prepare(Options(str(recipe), store=str(store))).steps
    return [step.path for step in steps if step.node.stage.name == stage and step.path and step.action == "reuse"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--store", type=Path, help="keeps the checkpoint for the next time; by default nothing stays")
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--pretraining-steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--train-items", type=int, default=1500, help="most items of each task's training split")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--tasks", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side, *rest = json.loads(arguments.side)
        return our_side(*rest) if side == "ours" else stock_side(*rest)
    with tempfile.TemporaryDirectory() as temporary:
        compare(arguments, Path(temporary))
    return None


if __name__ == "__main__":
    main()
