"""The end of a run as its coordinator sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tasks.contract import StageError
from tasks.pretraining.collaborative.coordinator import DISTANCE_BOUND, Coordinator
from tasks.pretraining.collaborative.state import State

NAMES = {"Qm0": "peer-0", "Qm1": "peer-1", "Qm2": "peer-2"}


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    """Without its DHT: it only compares."""
    one = Coordinator.__new__(Coordinator)
    one._work = tmp_path
    return one


def weights_of(distance: float) -> State:
    """A state whose weights are so far from those of ``weights_of(0)``, relative to their norm."""
    weights = [torch.ones(4), torch.tensor([1.0, 1.0 + distance * 6**0.5])]
    return State(step=7, weights=weights, optimizer=[], metadata=[], donor="Qm")


def test_the_largest_distance_of_two_peers_counts(coordinator):
    found = {peer: weights_of(distance) for peer, distance in zip(NAMES, (0.0, 1e-4, 5e-4), strict=True)}
    assert coordinator._compare(found, NAMES) == pytest.approx(5e-4, rel=1e-2)
    assert coordinator._compare({"Qm0": weights_of(0.0)}, NAMES) is None


@pytest.mark.parametrize("distance", [1.1 * DISTANCE_BOUND, 1.0, float("nan"), float("inf")])
def test_weights_that_are_too_far_apart_fail_the_stage(coordinator, distance):
    found = {"Qm0": weights_of(0.0), "Qm1": weights_of(1e-4), "Qm2": weights_of(distance)}
    with pytest.raises(StageError, match=r"relative L2 distance of .* more than 0\.001: .* run again to go on"):
        coordinator._compare(found, NAMES)
