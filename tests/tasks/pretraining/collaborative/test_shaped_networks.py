"""An averaging among peers with unlike networks, one of which nobody can connect to; see the benchmark's own words."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def shaped(benchmark_script: Callable[[str], ModuleType]) -> ModuleType:
    module = benchmark_script("shaped_averaging")
    problem = module.why_not()
    if problem is not None:
        pytest.skip(problem)
    return module


@pytest.fixture(scope="module")
def found(shaped) -> dict[str, Any]:
    return shaped.measure(values=2_000_000, rounds=2)


def test_everybody_takes_part(found):
    assert found["groups"] == [4]


def test_shares_follow_bandwidth(found):
    adaptive, equal = found["adaptive"]["shares"], found["equal"]["shares"]
    assert adaptive["fast"] > adaptive["middle"] >= adaptive["slow"]
    assert adaptive["fast"] > 0.5
    assert [equal[name] for name in ("fast", "middle", "slow")] == pytest.approx([1 / 3] * 3, abs=0.01)


def test_the_firewalled_peer_aggregates_nothing(found):
    assert not found["reached"]
    assert found["adaptive"]["shares"]["firewalled"] == found["equal"]["shares"]["firewalled"] == 0


def test_shares_by_bandwidth_are_faster_than_equal_ones(found):
    assert found["ratio"] > 1.1, found


def test_nothing_is_left(found):
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    assert "sahajflow-" not in listed
