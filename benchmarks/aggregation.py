"""What robust aggregation costs in loss, and what it saves: validation losses of the demo's model.

    python benchmarks/aggregation.py [--steps 300] [--seeds 3]

Four peers' gradients of 16 sequences each are averaged in one process, with the screen of the engine `collaborative`
between them and the average, for `aggregation: mean` and `clipped`. Once all four are honest; once one of them sends
its gradient with its sign turned and 15 times as large, which is just not refused; and once 1,000,000 times as large,
with the screen and without any.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from flows.execution import Options, run_chain
from flows.recipe import load_recipe
from tasks.contract import no_progress
from tasks.pretraining.batches import Collator, PackedSplit, ShuffledOrder
from tasks.pretraining.collaborative.screening import Screen
from tasks.pretraining.collaborative.wire import Refused
from tasks.pretraining.models import build_model
from tasks.pretraining.objective import losses
from tasks.pretraining.optimizers import build_optimizer, learning_rate_at
from tasks.pretraining.precision import choose_member_hardware
from tasks.pretraining.settings import PretrainingSettings
from tasks.pretraining.validation import validate, validation_batches

PEERS, ROWS = 4, 16
RUNS = (
    ("mean", 1.0),
    ("clipped", 1.0),
    ("mean", -15.0),
    ("clipped", -15.0),
    ("mean", -1e6),
    ("none", -1e6),
)
"""How gradients are averaged, and by what the last peer's are multiplied."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    recipe = load_recipe("demo")
    changes = {"steps": arguments.steps, "schedule_steps": arguments.steps, "warmup_steps": arguments.steps // 3}
    asked = recipe.pretraining.model_copy(update=changes)
    with tempfile.TemporaryDirectory() as place:
        options = Options("demo", until="pack", store=place, workers=1)
        made = {outcome.name: Path(outcome.path) for outcome in run_chain(options, lambda _, work: work(no_progress))}
        for kind, factor in RUNS:
            found = [
                train(recipe.model, asked, made["tokenizer"], made["pack"], kind, factor, seed)
                for seed in range(arguments.seeds)
            ]
            told = ", ".join(f"{one:.3f}" for one in found)
            print(f"{kind:8s} one peer's gradients times {factor:,.0f}: {statistics.mean(found):.3f} nats ({told})")


def train(
    shape: object, asked: PretrainingSettings, tokenizer: Path, pack: Path, kind: str, factor: float, seed: int
) -> float:
    """The validation loss at the end, in nats a masked token."""
    reader = AutoTokenizer.from_pretrained(tokenizer)
    collator = Collator(reader, asked.masking, sentence_order=False)
    split, hardware = PackedSplit(pack, "train"), choose_member_hardware(asked)
    model = build_model(shape, reader, asked.objective, seed).train()
    optimizer, order = build_optimizer(model, asked), ShuffledOrder(len(split), seed)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    screens = [Screen(20.0, 2.0 * PEERS * ROWS, clipped=kind == "clipped") for _ in range(PEERS)]
    for step in range(asked.steps):
        gradients = []
        for peer in range(PEERS):
            chosen = order.at((step * PEERS + peer) * ROWS, ROWS)
            batch = collator(split, chosen, np.random.default_rng([seed, step, peer]))
            model.zero_grad()
            result = losses(model, batch.to(hardware.device))
            torch.autograd.backward(result.mlm / max(1, len(batch.targets)))
            times = factor if peer == PEERS - 1 else 1.0
            gradients.append([times * weight.grad for weight in weights])
        references = [screen.references(own) for screen, own in zip(screens, gradients, strict=True)]
        for index, weight in enumerate(weights):
            reducer = index % (PEERS - 1)  # honest ones; each averages its share
            used = []
            for peer, sent in enumerate(gradients):
                try:
                    own = gradients[reducer][index]
                    taken = 1.0
                    if peer != reducer and kind != "none":
                        taken = screens[reducer].weigh(sent[index], own, references[reducer][index], 1.0)
                    used.append(taken * sent[index])
                except Refused:
                    continue
            weight.grad = torch.stack(used).mean(0)
        torch.nn.utils.clip_grad_norm_(weights, asked.clip_norm or float("inf"))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, asked)
        optimizer.step()
    return validate(model, validation_batches(PackedSplit(pack, "validation"), collator, 256), hardware).loss


if __name__ == "__main__":
    main()
