"""The engines collaborative and local on the same packed data with the same number of sequences: validation loss.

    python benchmarks/engines.py RECIPE [--store DIR] [--set KEY=VALUE ...]

Trains the recipe with the engine collaborative, reads from the ledger how many sequences the global steps really had,
and trains with the engine local for as many: the same batch, with so many steps. What the store has of either is not
trained again. Prints both validation losses and their ratio, and what the ledger says of the peers.
"""

from __future__ import annotations

import argparse
import json
import time

from flows.execution import Options, run_chain
from flows.recipe import load_recipe
from flows.step_work import StageOutcome
from tasks.contract import no_progress


def pretrained(arguments: argparse.Namespace, *changes: str) -> StageOutcome:
    options = Options(arguments.recipe, until="pretrain", set_=(*arguments.set, *changes), store=arguments.store)
    return run_chain(options, lambda node, work: work(no_progress))[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--store")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    together = pretrained(arguments, "pretraining.engine=collaborative")
    ledger = json.loads((together.path / "logs" / "ledger.json").read_text(encoding="utf-8"))
    for peer in ledger["peers"]:
        print(f"{peer['name']}: {peer['samples']:,} sequences ({peer['share']:.1%}), outcomes {peer['outcomes']}")
    print(
        f"groups {ledger['groups']} in {ledger['step']:,} global steps of {ledger['samples'] / ledger['step']:.1f} "
        f"sequences ({ledger['target_batch']} asked for); final distance {ledger['final']['distance']:.2g}"
    )
    batch = load_recipe(arguments.recipe, arguments.set).pretraining.batch_size
    steps = round(ledger["samples"] / batch)
    alone = pretrained(arguments, "pretraining.engine=local", f"pretraining.steps={steps}")
    losses = {}
    for engine, outcome in (("collaborative", together), ("local", alone)):
        metrics = outcome.record.metrics
        sequences = metrics["samples"] if engine == "collaborative" else steps * batch
        losses[engine] = metrics["validation_loss"]
        print(
            f"{engine}: validation loss {metrics['validation_loss']:.3f} after {metrics['steps']:,} steps, "
            f"{sequences:,} sequences, {metrics['seconds_training'] / 60:.1f} minutes"
        )
    print(f"collaborative / local: {losses['collaborative'] / losses['local']:.3f}")


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"{(time.monotonic() - started) / 60:.1f} minutes")
