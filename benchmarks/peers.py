"""Two peers on one core each against one peer alone on one core: samples a second, and bytes on the network.

    python benchmarks/peers.py [--repeats 3] [--steps 2] [--seconds 34]

Both sides are real swarms on loopback with the same model, micro-batch and target batch, which is chosen so that two
peers need at least ``--seconds`` for a global step. Each side is measured over its global steps after the first; the
two take turns. Once, two peers that do not know each other run at a time: what the machine gives with both cores busy.
Bytes are those that the loopback device counts while global steps go on, DHT included, by compression; they do not
depend on the batch, so they come from short runs. About 14 minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from flows.execution import Options, run_chain
from flows.recipe import load_recipe
from tasks.contract import SCRATCH, no_progress
from tasks.pretraining.collaborative import meeting
from tasks.pretraining.collaborative.engine import command
from tasks.pretraining.collaborative.log import steps_of
from tasks.pretraining.collaborative.manifest import make_manifest
from tasks.pretraining.settings import PretrainSettings
from tasks.supervision import Command, Owned

MICRO_BATCH = 16
MODEL = (  # 15 million parameters, most of them in the layers
    "tokenizer.vocabulary_size=2000",
    "model.hidden_size=512",
    "model.layers=4",
    "model.heads=8",
    "model.intermediate_size=2048",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=2, help="global steps of a run, the first of which does not count"
    )
    parser.add_argument("--seconds", type=float, default=34, help="of a global step of two peers")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        store = Path(place) / "store"
        run_chain(
            Options("demo", until="pack", set_=MODEL, store=str(store), workers=2),
            lambda node, work: work(no_progress),
        )
        short = Swarm(Path(place), store, peers=2, batch=MICRO_BATCH * 40, steps=2)
        rate = short.run("float16")["rate"]
        batch = 2 * MICRO_BATCH * (1 + int(rate * arguments.seconds / (2 * MICRO_BATCH)))
        print(f"two peers: {rate:.1f} samples/s at first; target batch {batch:,}, micro-batch {MICRO_BATCH}")
        rates: dict[str, list[float]] = {"one": [], "two": []}
        for repeat in range(arguments.repeats):
            one = Swarm(Path(place), store, peers=1, batch=batch, steps=arguments.steps).run("float16")
            two = Swarm(Path(place), store, peers=2, batch=batch, steps=arguments.steps).run("float16")
            rates["one"].append(one["rate"])
            rates["two"].append(two["rate"])
            print(
                f"run {repeat + 1}: one {one['rate']:.2f}, two {two['rate']:.2f} samples/s "
                f"({two['step_seconds']:.1f} s a global step)"
            )
        apart = sum(apart_rates(Path(place), store, batch // 2, arguments.steps))
        ratios = [two / (2 * one) for one, two in zip(rates["one"], rates["two"], strict=True)]
        told = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"two peers / twice one peer: {statistics.median(ratios):.3f} (median of {told})")
        bound = apart / (2 * statistics.median(rates["one"]))
        print(f"two peers that do not know each other / twice one peer: {bound:.3f}")
        for compression in ("none", "float16", "by-size"):
            facts = Swarm(Path(place), store, peers=2, batch=MICRO_BATCH * 8, steps=8).run(compression)
            print(
                f"compression {compression}: {facts['bytes'] / 1e6:.2f} MB per peer and global step for "
                f"{facts['parameters'] / 1e6:.2f} M parameters ({facts['bytes'] / facts['parameters']:.2f} bytes each)"
            )


class Swarm:
    """One swarm whose peers are bound to a core each."""

    def __init__(self, place: Path, store: Path, *, peers: int, batch: int, steps: int, first_core: int = 0):
        self.peers, self.batch, self.steps, self.first_core = peers, batch, steps, first_core
        self.work = Path(tempfile.mkdtemp(dir=place))
        (self.pack,) = store.glob("artifacts/pack/*")
        (self.tokenizer,) = store.glob("artifacts/tokenizer/*")

    def run(self, compression: str) -> dict[str, Any]:
        with self.started(compression) as owned:
            counters: dict[int, int] = {}
            while not owned.ended():
                step = self.status().get("step", 0)
                counters.setdefault(step, psutil.net_io_counters(pernic=True)["lo"].bytes_sent)
                time.sleep(0.05)
        return self.facts(counters)

    @contextlib.contextmanager
    def started(self, compression: str) -> Iterator[Owned]:
        changes = (
            *MODEL,
            "pretraining.engine=collaborative",
            f"pretraining.batch_size={self.batch}",
            f"pretraining.accumulation={self.batch // MICRO_BATCH}",
            f"pretraining.steps={self.steps}",
            "pretraining.warmup_steps=0",
            "pretraining.learning_rate=1.0e-4",
            f"pretraining.collaborative.peers={self.peers}",
            "pretraining.collaborative.matchmaking_seconds=0.2",
            "pretraining.collaborative.averaging_timeout_seconds=30",
            "pretraining.collaborative.average_state_every=1000000",
            f"pretraining.collaborative.compression={compression}",
            "pretraining.validation_blocks=16",
        )
        recipe = load_recipe("demo", changes)
        settings = PretrainSettings(model=recipe.model, pretraining=recipe.pretraining)
        self.swarm = self.work / SCRATCH / "swarm"
        self.swarm.mkdir(parents=True)
        (self.work / "logs").mkdir()
        meeting.write(self.swarm, "manifest", make_manifest(settings, self.tokenizer, self.pack))
        data = (str(self.tokenizer), str(self.pack))
        logs = self.work / "logs" / "peers"
        commands = [command("coordinator", (str(self.swarm), str(self.work), *data), 1, logs)]
        for number in range(self.peers):
            name = f"peer-{number}"
            peer = command("peer", (str(self.swarm), name, "--data", *data), 1, logs, name)
            commands.append(bound(peer, self.first_core + number))
        with Owned(commands, leader="coordinator", folder=self.swarm) as owned:
            yield owned

    def status(self) -> dict[str, Any]:
        path = self.swarm / "coordinator.status.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def facts(self, counters: dict[int, int]) -> dict[str, Any]:
        result = self.swarm / "result.json"
        if not result.exists():
            errors = [path.read_text(encoding="utf-8") for path in self.swarm.glob("*.error")]
            sys.exit(f"the swarm failed: {' '.join(errors)}; see {self.work}")
        lines = steps_of(self.work / "logs" / "training.jsonl")
        first, *others = lines
        seconds = others[-1]["seconds"] - first["seconds"]
        between = counters[max(counters)] - counters[1] if 1 in counters else 0
        return {
            "rate": sum(line["samples"] for line in others) / seconds,
            "step_seconds": seconds / len(others),
            "bytes": between / (self.peers * max(1, max(counters) - 1)),
            "parameters": json.loads(result.read_text(encoding="utf-8"))["parameters"],
        }


def apart_rates(place: Path, store: Path, batch: int, steps: int) -> list[float]:
    """Samples a second of two swarms of one peer each, at the same time."""
    swarms = [Swarm(place, store, peers=1, batch=batch, steps=steps, first_core=core) for core in (0, 1)]
    with contextlib.ExitStack() as stack:
        for owned in [stack.enter_context(swarm.started("float16")) for swarm in swarms]:
            while not owned.ended():
                time.sleep(0.2)
    return [swarm.facts({0: 0})["rate"] for swarm in swarms]


def bound(peer: Command, core: int) -> Command:
    """The same command on one core only."""
    return replace(peer, argv=("taskset", "--cpu-list", str(core), *peer.argv))


if __name__ == "__main__":
    if (os.cpu_count() or 1) < 2:
        sys.exit("this benchmark needs two cores")
    subprocess.run(["taskset", "--version"], check=True, stdout=subprocess.DEVNULL)
    main()
