"""What a collaboration survives: peers that are killed, that come and go, and the end of its coordinator and its flow.

    python benchmarks/churn.py [kills] [turnover] [return] [--short] [--seed 1]

Real processes on loopback with a very small model. ``kills``: two of four peers are killed and replaced, and the
validation loss is compared with that of one process on the same number of samples. ``turnover``: 30 per cent of the
peers leave every minute for ten minutes, half of them without a goodbye, and as many join. ``return``: first the
coordinator is killed and then the whole flow, while peers from elsewhere train on. Each prints figures and fails if
it is not as promised. ``--short`` makes fewer steps and rounds.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from flows.execution import Options, run_chain
from flows.step_work import StageOutcome
from tasks import lifeline
from tasks.contract import no_progress
from tasks.pretraining.collaborative import status
from tasks.pretraining.collaborative.engine import command
from tasks.pretraining.collaborative.log import steps_of
from tasks.supervision import Owned, processes

AVERAGING_TIMEOUT = 10.0
LATE = 10.0
"""Seconds beyond the averaging timeout that a step may take after a departure: so long a dead peer counts as alive."""

LOSS_BOUND = 0.03
WAIT_SECONDS = 300.0
"""Whatever is waited for happens within seconds; a busy machine takes longer."""

SETTINGS = (
    "corpus.sources.0.documents=300",
    "corpus.validation_fraction=0.1",
    "tokenizer.vocabulary_size=500",
    "packing.sequence_length=64",
    "packing.blocks_per_shard=100",
    "model.hidden_size=32",
    "model.layers=1",
    "model.heads=2",
    "model.intermediate_size=64",
    "pretraining.warmup_steps=2",
    "pretraining.learning_rate=2.0e-3",
    "pretraining.precision=fp32",
    "pretraining.validate_every=1000",
    "pretraining.validation_blocks=64",
)
TOGETHER = (
    "pretraining.engine=collaborative",
    "pretraining.batch_size=1024",  # a global step takes a part of a second: the model is very small
    "pretraining.accumulation=16",
    "pretraining.checkpoint_every=4",
    "pretraining.collaborative.peers=0",
    "pretraining.collaborative.listen=[/ip4/127.0.0.1/tcp/0]",
    "pretraining.collaborative.matchmaking_seconds=0.05",
    f"pretraining.collaborative.averaging_timeout_seconds={AVERAGING_TIMEOUT:g}",
    "pretraining.collaborative.average_state_every=5",
)


def pack(store: Path) -> Path:
    """A store with everything that pretraining needs."""
    options = Options("demo", until="pack", set_=SETTINGS, store=str(store), workers=1)
    run_chain(options, lambda node, work: work(no_progress))
    return store


def pretrain(store: Path, changes: Sequence[str]) -> StageOutcome:
    """The stage alone, in this process."""
    options = Options("demo", only="pretrain", set_=(*SETTINGS, *changes), store=str(store), workers=1)
    (outcome,) = run_chain(options, lambda node, work: work(no_progress))
    return outcome


class Swarm:
    """A flow whose stage coordinates, and peers from elsewhere that join it, all of them real processes.

    Args:
        place: an empty folder for the peers.
        store: packed; the flow's.
        changes: of the recipe.
    """

    def __init__(self, place: Path, store: Path, changes: Sequence[str]):
        self.place, self.store, self.changes = place, store, (*SETTINGS, *TOGETHER, *changes)
        self.peers: dict[str, Owned] = {}
        self.departures: list[float] = []
        self.steps: list[tuple[float, int]] = []
        """When each global step was first seen."""
        self._flow: subprocess.Popen[str] | None = None
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self) -> Swarm:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for peer in self.peers.values():
            peer.stop()
        if self._flow is not None and self._flow.poll() is None:
            self._flow.kill()
            self._flow.wait()
        wait_for(lambda: not members_below(self.place, self.store), "nothing is left of the swarm", seconds=30)

    def start_flow(self) -> None:
        """Start the stage in a process of its own, and wait until peers can join."""
        argv = [sys.executable, "-P", __file__, "--stage", str(self.store), *self.changes]
        log = (self.place / "flow.log").open("a", encoding="utf-8")
        if (folder := self.folder) is not None:  # that of a flow which was killed
            (folder / "meeting.json").unlink(missing_ok=True)
        self._flow = subprocess.Popen(  # ends with this process, by the lifeline that its standard input is
            argv, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, start_new_session=True
        )
        wait_for(lambda: self.folder and (self.folder / "meeting.json").exists(), "the coordinator listens", self)

    def end_flow(self) -> int:
        """Wait for the stage's end and return its status."""
        assert self._flow is not None
        return self._flow.wait(WAIT_SECONDS)

    def kill_flow(self) -> None:
        """End the flow without a word."""
        assert self._flow is not None
        self._flow.kill()
        self._flow.wait()

    @property
    def running(self) -> bool:
        """Whether the flow still goes on."""
        return self._flow is not None and self._flow.poll() is None

    @property
    def said(self) -> str:
        """What the flows have printed."""
        return (self.place / "flow.log").read_text(encoding="utf-8")

    @property
    def folder(self) -> Path | None:
        """The swarm's folder in the work of the stage."""
        return next(iter(self.store.glob("work/pretrain/*/scratch/swarm")), None)

    @property
    def address(self) -> str:
        """Where peers join."""
        assert self.folder is not None
        addresses: list[str] = json.loads((self.folder / "meeting.json").read_text(encoding="utf-8"))["addresses"]
        return addresses[0]

    def join(self, name: str, *options: str) -> None:
        """Start a peer, as ``sahajflow join`` does."""
        folder = self.place / name
        folder.mkdir(parents=True, exist_ok=True)
        # a micro-batch that is not measured: what a busy machine measures makes all of the run slow
        arguments = (str(folder), name, "--micro-batch", "64", "--store", str(self.store), *options)
        arguments += ("--join", self.address)
        owned = Owned([command("peer", arguments, 1, folder, name)], leader=name, folder=folder)
        self.peers[name] = owned.__enter__()

    def kill(self, name: str) -> None:
        """A peer is gone without a word; its supervisor clears away its daemons."""
        self.departures.append(time.monotonic())
        os.kill(processes(self.place / name)[name].pid, signal.SIGKILL)
        self.peers.pop(name).stop()

    def leave(self, name: str) -> None:
        """A peer says goodbye and goes."""
        self.departures.append(time.monotonic())
        self.peers.pop(name).stop()

    def step_of(self, name: str) -> int:
        """Global steps that a peer has by its own word."""
        return int(status.read(self.place / name, name).get("step", 0))

    @property
    def step(self) -> int:
        """Global steps that the coordinator has seen."""
        return self.steps[-1][1] if self.steps else 0

    def published(self) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
        """Metrics, lines of the log and ledger of the published result."""
        (folder,) = self.store.glob("artifacts/pretrain/*")
        metrics = json.loads((folder / "record.json").read_text(encoding="utf-8"))["metrics"]
        book = json.loads((folder / "logs" / "ledger.json").read_text(encoding="utf-8"))
        return metrics, steps_of(folder / "logs" / "training.jsonl"), book

    def longest_gap(self) -> float:
        """The longest time from a departure to the end of the next global step, in seconds."""
        times = [moment for moment, _ in self.steps]
        gaps = [min(later) - left for left in self.departures if (later := [one for one in times if one > left])]
        return max(gaps, default=0.0)

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            folder = self.folder
            seen = 0 if folder is None else int(status.read(folder, "coordinator").get("step", 0))
            if seen > self.step:
                self.steps.append((time.monotonic(), seen))


def members_below(*places: Path) -> list[psutil.Process]:
    """All processes, daemons included, that belong to swarms below these folders."""
    found = []
    for process in psutil.process_iter():
        try:
            told = process.environ().get("SAHAJFLOW_OWNED_BY", "") + " ".join(process.cmdline())
            if any(str(place) in told for place in places) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return [one for one in found if one.pid != os.getpid()]


def wait_for(what: Callable[[], Any], told: str, swarm: Swarm | None = None, seconds: float = WAIT_SECONDS) -> Any:
    """Wait until this is true of a swarm whose flow goes on."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"it did not come to this within {seconds:.0f} s: {told}"
        assert swarm is None or swarm.running, f"the flow has ended: {swarm.said[-2000:]}"
        time.sleep(0.1)
    return found


def kills(place: Path, store: Path, *, steps: int, seed: int) -> dict[str, Any]:
    """Two of four peers are killed at random times and replaced; one of the four is behind a firewall, a client.

    Args:
        place: an empty folder.
        store: packed.
        steps: global steps of the run.
        seed: of the times.
    """
    chance = random.Random(seed)
    times = sorted(chance.sample(range(3, steps // 3), 2))  # early, so that those who come later take part
    with Swarm(place, store, (f"pretraining.steps={steps}",)) as swarm:
        swarm.start_flow()
        for name in ("asha", "bimal", "chitra"):
            swarm.join(name)
        swarm.join("dipa", "--role", "client")
        for number, moment in enumerate(times):
            wait_for(lambda moment=moment: swarm.step >= moment, f"step {moment}", swarm)
            time.sleep(chance.random())
            swarm.kill(("asha", "bimal")[number])
            swarm.join(("esha", "farid")[number])
        ended = swarm.end_flow()
        assert ended == 0, swarm.said[-2000:]
        metrics, lines, book = swarm.published()
    assert [line["step"] for line in lines] == list(range(1, steps + 1)), [line["step"] for line in lines]
    gap = swarm.longest_gap()
    quiet = shutil.copytree(store, place / "undisturbed")
    shutil.rmtree(quiet / "artifacts" / "pretrain")
    batch = round(book["samples"] / steps)
    alone = ("pretraining.engine=local", "pretraining.device=cpu", f"pretraining.steps={steps}")
    alone += (f"pretraining.batch_size={batch}", "pretraining.accumulation=1")
    reference = pretrain(quiet, alone).record.metrics["validation_loss"]
    difference = metrics["validation_loss"] / reference - 1
    figures = {
        "steps": book["step"],
        "samples": book["samples"],
        "killed after steps": times,
        "longest gap after a departure, s": round(gap, 1),
        "share of lost samples": lost_share(book),
        "outcomes": book["outcomes"],
        "peers": {peer["name"]: peer["steps"] for peer in book["peers"]},
        "validation loss": metrics["validation_loss"],
        "undisturbed": reference,
        "difference": round(difference, 4),
        "final distance": book["final"]["distance"],
    }
    assert gap <= AVERAGING_TIMEOUT + LATE, figures
    assert abs(difference) <= LOSS_BOUND, figures
    return figures


def lost_share(book: dict[str, Any]) -> float:
    """Samples whose gradients were computed and went into no global step, of all that were computed."""
    return round(book["lost"] / max(1, book["samples"] + book["lost"]), 4)


def turnover(
    place: Path, store: Path, *, peers: int, rounds: int, every: float, seed: int, least: int
) -> dict[str, Any]:
    """30 per cent of the peers leave at a time, half of them without a goodbye, and as many join.

    Args:
        place: an empty folder.
        store: packed.
        peers: how many there are.
        rounds: how often some leave.
        every: seconds between two times.
        seed: of who leaves.
        least: global steps that have to be made.
    """
    chance = random.Random(seed)
    leaving = -(-3 * peers // 10)
    names = (f"peer-{number}" for number in range(1000))
    minutes = rounds * every / 60
    changes = ("pretraining.steps=100000", f"pretraining.collaborative.deadline_minutes={minutes:g}")
    with Swarm(place, store, changes) as swarm:
        swarm.start_flow()
        for _ in range(peers):
            swarm.join(next(names))
        wait_for(lambda: swarm.step >= 1, "the first step", swarm)
        began = time.monotonic()
        for number in range(1, rounds):
            time.sleep(max(0.0, began + number * every - time.monotonic()))
            for place_in_round, name in enumerate(chance.sample(sorted(swarm.peers), leaving)):
                (swarm.kill if place_in_round % 2 else swarm.leave)(name)
            for _ in range(leaving):
                swarm.join(next(names))
        ended = swarm.end_flow()
        assert ended == 0, swarm.said[-2000:]
        metrics, lines, book = swarm.published()
    figures = {
        "seconds": round(rounds * every),
        "peers at a time": peers,
        "left": leaving * (rounds - 1),
        "steps": book["step"],
        "share of lost samples": lost_share(book),
        "longest gap after a departure, s": round(swarm.longest_gap(), 1),
        "outcomes": book["outcomes"],
        "groups": book["groups"],
        "peers in the ledger": len(book["peers"]),
        "validation loss": metrics["validation_loss"],
        "final distance": book["final"]["distance"],
    }
    assert [line["step"] for line in lines] == list(range(1, book["step"] + 1)), figures
    assert book["step"] >= least, figures
    return figures


def returning(place: Path, store: Path, *, steps: int) -> dict[str, Any]:
    """The coordinator is killed, then the whole flow; both times the peers train on, and a new one finds them.

    Args:
        place: an empty folder.
        store: packed.
        steps: global steps of the run.
    """
    with Swarm(place, store, (f"pretraining.steps={steps}",)) as swarm:
        swarm.start_flow()
        address = swarm.address
        for name in ("asha", "bimal"):
            swarm.join(name)
        away: list[tuple[int, int]] = []

        def go_on_alone() -> None:
            before = swarm.step
            goal = min(before + 3, steps)
            wait_for(lambda: min(map(swarm.step_of, swarm.peers)) >= goal, "the peers train on")
            away.append((before, min(map(swarm.step_of, swarm.peers))))
            swarm.start_flow()
            assert swarm.address == address, (swarm.address, address)
            wait_for(lambda: swarm.step >= away[-1][1], "the new coordinator sees the swarm", swarm)

        wait_for(lambda: swarm.step >= 5, "step 5", swarm)
        folder = swarm.folder
        assert folder is not None
        os.kill(processes(folder)["coordinator"].pid, signal.SIGKILL)
        assert swarm.end_flow() != 0
        go_on_alone()
        swarm.kill_flow()
        go_on_alone()
        ended = swarm.end_flow()
        assert ended == 0, swarm.said[-2000:]
        for name, peer in swarm.peers.items():
            wait_for(peer.ended, f"{name} is let go", seconds=60)
            assert peer.exit_status() == 0, name
        metrics, lines, book = swarm.published()
    figures = {
        "steps": book["step"],
        "away from step to step": away,
        "outcomes": book["outcomes"],
        "peers": {peer["name"]: [peer["first_step"], peer["last_step"]] for peer in book["peers"]},
        "share of lost samples": lost_share(book),
        "validation loss": metrics["validation_loss"],
        "final distance": book["final"]["distance"],
    }
    assert [line["step"] for line in lines] == list(range(1, steps + 1)), figures
    assert {peer["name"] for peer in book["peers"]} == {"asha", "bimal"}, figures
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", metavar="kills | turnover | return")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    short, seed = arguments.short, arguments.seed
    runs: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
        "kills": lambda place, store: kills(place, store, steps=60 if short else 200, seed=seed),
        "turnover": lambda place, store: turnover(
            place,
            store,
            peers=3 if short else 6,
            rounds=3 if short else 10,
            every=15 if short else 60,
            seed=seed,
            least=5 if short else 30,
        ),
        "return": lambda place, store: returning(place, store, steps=80 if short else 300),
    }
    wrong = set(arguments.which) - set(runs)
    if wrong:
        parser.error(f"{', '.join(sorted(wrong))}: should be of {', '.join(runs)}")
    with tempfile.TemporaryDirectory() as home:
        packed = pack(Path(home) / "store")
        for name in arguments.which or runs:
            place = Path(home) / name
            place.mkdir()
            started = time.monotonic()
            figures = runs[name](place, shutil.copytree(packed, place / "store"))
            print(f"{name}, {time.monotonic() - started:.0f} s")
            for what, value in figures.items():
                print(f"  {what}: {value}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stage"]:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        lifeline.watch(lambda: os._exit(1))
        pretrain(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
