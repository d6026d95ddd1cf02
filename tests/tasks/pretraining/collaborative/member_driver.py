"""A member of a swarm that does what a test tells it, as a process of its own: hivemind needs main threads and forks.

``member_driver.py FOLDER NAME`` reads lines ``{"do": METHOD, ...arguments}`` and leaves each result in FOLDER. The
model, its micro-batches and the plain training loop that a swarm has to equal are here too, for the tests.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tasks.pretraining.collaborative import network, records, state
from tasks.pretraining.collaborative.following import Follower
from tasks.pretraining.collaborative.optimizer import PeerOptimizer
from tasks.pretraining.optimizers import build_optimizer, fill_state, learning_rate_at
from tasks.pretraining.settings import PretrainingSettings

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
ROWS = 4
"""Samples of a micro-batch."""


class Net(torch.nn.Module):
    """Small, with weights that decay and weights that do not."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.inner, self.LayerNorm, self.outer = (
            torch.nn.Linear(6, width),
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 3),
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.LayerNorm(self.inner(inputs))))


def build(seed: int = 0, width: int = 16) -> Net:
    torch.manual_seed(seed)
    return Net(width)


def put_gradient(model: Net, number: int) -> None:
    """The gradients of micro-batch ``number``; their norms are very different."""
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(ROWS, 6, generator=generator)
    targets = torch.randn(ROWS, 3, generator=generator) * 4.0 ** (number % 3)
    model.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()


def weights_of(model: torch.nn.Module, settings: PretrainingSettings) -> list[torch.Tensor]:
    """In the optimiser's order."""
    groups = build_optimizer(model, settings).param_groups
    return [weight.detach().clone() for group in groups for weight in group["params"]]


def train_plainly(
    settings: PretrainingSettings,
    steps: Sequence[Sequence[int]],
    model: Net | None = None,
    *,
    last_only: bool = False,
    clip_each: bool = False,
) -> list[torch.Tensor]:
    """The weights after these steps over these micro-batches, by accumulation, clipping, rate and optimiser.

    ``last_only`` and ``clip_each`` are wrong ways: the last micro-batch alone, and clipping before the mean is taken.
    """
    model = build() if model is None else model
    optimizer, limit = build_optimizer(model, settings), settings.clip_norm or math.inf
    for step, numbers in enumerate(steps):
        means = [torch.zeros_like(weight) for weight in model.parameters()]
        used = numbers[-1:] if last_only else numbers
        for number in used:
            put_gradient(model, number)
            if clip_each:
                torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            for mean, weight in zip(means, model.parameters(), strict=True):
                mean += weight.grad / len(used)
        for mean, weight in zip(means, model.parameters(), strict=True):
            weight.grad = mean
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, settings)
        optimizer.step()
    return weights_of(model, settings)


class Member:
    """What a test can have done."""

    def __init__(self) -> None:
        self.optimizers: list[PeerOptimizer] = []

    def start(self, addresses: Sequence[str] = (), run_id: str = "run", client: bool = False) -> list[str]:
        """A DHT, and its addresses."""
        self.key = records.RSAPrivateKey()
        validators = records.validators(run_id, self.key)
        self.dht = network.start_dht(LOOPBACK, addresses, client_mode=client, record_validators=validators)
        return [str(address) for address in self.dht.get_visible_maddrs()]

    def make(
        self, settings: str, target: int, run_id: str = "run", seed: int = 0, width: int = 16, **options: Any
    ) -> str:
        """An optimiser with a model; returns the identity of this peer."""
        self.settings = PretrainingSettings.model_validate_json(settings)
        self.model = build(seed, width)
        kind = Follower if options.get("role") in ("keeper", "auxiliary") else PeerOptimizer
        common = {"dht": self.dht, "run_id": run_id, "key": self.key, "step_seconds": 1.0, "target": target}
        self.optimizer = kind(self.model, self.settings, **common, **options)
        self.optimizers.append(self.optimizer)  # else it would be shut down, which takes a second
        return self.dht.peer_id.to_base58()

    def train(self, until: int, first: int, pause: float = 0.0, others: int = 0) -> list[dict[str, Any]]:
        """Micro-batches ``first``, ``first + 1``, ... until a global step; the rounds, with their micro-batches.

        ``others`` peers have to be there before the second micro-batch.
        """
        numbers, rounds = [], []
        while self.optimizer.local_epoch < until:
            put_gradient(self.model, first)
            self.optimizer.step(batch_size=ROWS)
            self.optimizer.zero_grad()
            numbers.append(first)
            first += 1
            if self.optimizer.rounds:
                rounds.append(vars(self.optimizer.rounds.pop()) | {"batches": numbers})
            if not self.optimizer.grad_averager.local_samples_accumulated:  # after a step, or discarded
                numbers = []
            while self.optimizer.tracker.global_progress.num_peers <= others:
                time.sleep(0.02)
            time.sleep(pause)
        return rounds

    def follow(self, until: int, seconds: float = 60.0) -> int:
        """Follow a helper's global steps; returns how many it has."""
        deadline = time.monotonic() + seconds
        while self.optimizer.local_epoch < until and time.monotonic() < deadline:
            self.optimizer.follow()
            time.sleep(0.02)
        return self.optimizer.local_epoch

    def weights(self) -> list[torch.Tensor]:
        return weights_of(self.model, self.settings)

    def state(self) -> dict[str, Any]:
        return vars(self.optimizer.own_state())

    def average(self) -> int:
        return len(self.optimizer.average_weights())

    def run(self, code: str) -> Any:
        """Statements with ``self`` and this module's names; ``answer`` is what they give."""
        names = {**globals(), "self": self, "answer": None}
        exec(code, names)
        return names["answer"]

    def download(self, run_id: str = "run", seed: int = 1, only: Sequence[str] = (), **limits: Any) -> dict[str, Any]:
        """What ``state.download`` gave, and the seconds that it took."""
        settings = getattr(self, "settings", PretrainingSettings(steps=1))
        optimizer = build_optimizer(build(seed), settings)
        fill_state(optimizer)
        started = time.monotonic()
        found = state.download(self.dht, run_id, state.state_of(optimizer, 0), only=only, **limits)
        return {"seconds": time.monotonic() - started, "found": None if found is None else vars(found)}


def main() -> None:
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    folder, name = Path(sys.argv[1]), sys.argv[2]
    member = Member()
    for number, line in enumerate(sys.stdin):
        arguments = json.loads(line)
        result = getattr(member, arguments.pop("do"))(**arguments)
        building = folder / f"{name}.building"
        torch.save(result, building)
        os.replace(building, folder / f"{name}-{number}.pt")


if __name__ == "__main__":
    main()
