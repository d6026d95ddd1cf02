"""Two processes have the losses of one, and both have the same weights."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.pretraining.batches import MASKING, Collator, PackedSplit, ShuffledOrder
from tasks.pretraining.group import ALONE, Group, buffers

DRIVER = Path(__file__).with_name("group_driver.py")

CASES: dict[str, dict[str, Any]] = {
    "bert": {"masking": {"rate": 0.4}, "clip_norm": 0.5},
    "albert": {"objective": "mlm+sop", "optimizer": "lamb", "accumulation": 2, "clip_norm": 0.5},
    "ruined": {"learning_rate": 1e30, "clip_norm": None, "checkpoint_every": 1},
}


LEFT_OUT = {"seconds", "tokens_per_second", "peak_memory_bytes", "perplexity", "masked_accuracy"}
"""What is measured; and what follows from the losses and magnifies their rounding."""


def log_of(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "logs/training.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in LEFT_OUT and value is not None} for line in lines]


@pytest.fixture(scope="module")
def trained(tokenizer_folder, pairs_folder, tmp_path_factory):
    """Runs all cases in one process and in two; gives the folder of each by (case, number of processes)."""
    place = tmp_path_factory.mktemp("a group")

    def train(settings) -> dict[tuple[str, int], Path]:
        folders = {(name, size): place / f"{name}-{size}" for name in CASES for size in (1, 2)}
        if any(folder.exists() for folder in folders.values()):
            return folders
        cases: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
        for (name, size), folder in folders.items():
            folder.mkdir()
            architecture = "albert" if name == "albert" else "bert"
            asked = settings(architecture, **{"log_every": 1, "validate_every": 5} | CASES[name])
            paths = {"tokenizer": str(tokenizer_folder), "pack": str(pairs_folder), "folder": str(folder)}
            cases[size].append({"settings": asked.model_dump(mode="json"), **paths})
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        (place / "cases.json").write_text(json.dumps(cases[2]))
        arguments = [sys.executable, "-P", str(DRIVER), str(place / "cases.json"), str(place / "meeting")]
        started = [subprocess.Popen([*arguments, str(rank), "2"], env=environment) for rank in range(2)]
        try:
            train_here = runpy.run_path(str(DRIVER))["train"]  # this process has loaded the libraries already
            for case in cases[1]:
                train_here(case, ALONE)
            assert [process.wait(120) for process in started] == [0, 0]
        finally:
            for process in started:
                process.kill()
                process.wait()
        return folders

    return train


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_two_processes_have_the_losses_of_one(settings, trained, tokenizer, pairs_folder, name):
    folders = trained(settings)
    alone, together = log_of(folders[name, 1]), log_of(folders[name, 2])
    assert [line["step"] for line in together] == list(range(1, 13))
    assert ("sop_loss" in together[0]) == (name == "albert")
    assert [line["step"] for line in together if "validation_loss" in line] == [5, 10, 12]
    for one, two in zip(alone, together, strict=True):
        assert two == pytest.approx(one, rel=1e-5)

    one = torch.load(folders[name, 1] / "rank-0.pt")["weights"]
    two = [torch.load(folders[name, 2] / f"rank-{rank}.pt")["weights"] for rank in range(2)]
    assert all(torch.equal(two[0][key], two[1][key]) for key in one)
    distance = sum(float((one[key] - two[0][key]).square().sum()) for key in one)
    # another order of additions, and no more
    assert 0 < distance < 1e-10 * sum(float(weight.square().sum()) for weight in one.values())

    # the test is about unequal shares, so that there are some is part of it
    asked = settings("albert" if name == "albert" else "bert", **CASES[name]).pretraining
    split, unequal = PackedSplit(pairs_folder, "train"), 0
    collator, order = Collator(tokenizer, asked.masking, name == "albert"), ShuffledOrder(len(split), asked.seed)
    for step in range(12):
        batch = collator(split, order.at(8 * step, 8), np.random.default_rng([asked.seed, MASKING, step]))
        parts = batch.split(2 * asked.accumulation)
        shares = [sum(len(part.targets) for part in parts[rank::2]) for rank in range(2)]
        unequal += shares[0] != shares[1]
    assert unequal > 6


def test_all_processes_stop_at_a_loss_that_is_not_finite(settings, trained):
    folders = trained(settings)
    alone = torch.load(folders["ruined", 1] / "rank-0.pt")["error"]
    assert alone.startswith("StageError: pretraining: ")
    assert torch.load(folders["ruined", 2] / "rank-0.pt")["error"] == alone
    other = torch.load(folders["ruined", 2] / "rank-1.pt")["error"]
    assert other == f"Diverged: {alone.removeprefix('StageError: pretraining: ').partition(' at step')[0]}"


def test_each_process_has_a_dropout_of_its_own(settings, trained):
    folders = trained(settings)
    assert torch.load(folders["bert", 1] / "rank-0.pt")["seed"] == settings().pretraining.seed
    seeds = {torch.load(folders["bert", 2] / f"rank-{rank}.pt")["seed"] for rank in range(2)}
    assert len(seeds - {settings().pretraining.seed}) == 2


def test_the_first_process_alone_writes(settings, trained):
    folders = trained(settings)
    alone, together = ({path.name for path in folders["bert", size].rglob("*")} for size in (1, 2))
    assert together == alone | {"rank-1.pt"}
    assert len(log_of(folders["bert", 2])) == 12


@pytest.mark.parametrize(
    ("sizes", "runs"), [([], []), ([9], [[9]]), ([3, 3, 4, 2, 9, 1, 11, 2], [[3, 3, 4], [2], [9, 1], [11], [2]])]
)
def test_buffers_hold_all_tensors_in_order(sizes, runs):
    tensors = [torch.full((size,), float(place)) for place, size in enumerate(sizes)]
    found = list(buffers(tensors, 10))
    assert [[tensor.numel() for tensor in some] for some in found] == runs
    assert [id(tensor) for some in found for tensor in some] == [id(tensor) for tensor in tensors]


def test_dropout_is_of_seed_process_and_step():
    def drawn(rank: int, seed: int, step: int, size: int = 2) -> float:
        Group(rank, size).seed_dropout(seed, step)
        return float(torch.rand(()))

    before = torch.get_rng_state()
    try:
        draws = [drawn(rank, seed, step) for rank in range(2) for seed in (1, 2) for step in (0, 1)]
        assert len(set(draws)) == 8
        assert [drawn(rank, seed, step) for rank in range(2) for seed in (1, 2) for step in (0, 1)] == draws
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        assert [drawn(0, 1, step, size=1) for step in range(3)] == expected.tolist()
    finally:
        torch.set_rng_state(before)
