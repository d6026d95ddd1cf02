"""Short forms of what `make churn` runs: a swarm that peers leave and join, and whose coordinator comes back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def churn(benchmark_script: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_script("churn")


@pytest.fixture(scope="module")
def packed(churn: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return churn.pack(tmp_path_factory.mktemp("packed") / "store")


@pytest.fixture
def store(packed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(packed, tmp_path / "store")


def test_two_of_four_peers_are_killed_and_replaced_and_nothing_is_missing(
    churn: ModuleType, store: Path, tmp_path: Path
) -> None:
    figures = churn.kills(tmp_path, store, steps=24, seed=1)
    assert figures["steps"] == 24
    assert {"chitra", "dipa", "esha"} < set(figures["peers"])
    assert figures["peers"]["dipa"] >= 10  # the client's gradients count


def test_peers_come_and_go(churn: ModuleType, store: Path, tmp_path: Path) -> None:
    figures = churn.turnover(tmp_path, store, peers=3, rounds=3, every=8, seed=1, least=4)
    assert figures["left"] == 2
    assert 0 <= figures["share of lost samples"] < 0.5


def test_peers_survive_coordinator_and_flow_which_go_on_from_where_the_swarm_is(
    churn: ModuleType, store: Path, tmp_path: Path
) -> None:
    figures = churn.returning(tmp_path, store, steps=60)
    assert figures["steps"] == 60
    (before, after), _ = figures["away from step to step"]
    assert after - before >= 3
