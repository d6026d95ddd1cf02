"""The end of a run as its coordinator sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tasks.contract import StageError
from tasks.pretraining.collaborative.publication import DISTANCE_BOUND, Publication
from tasks.pretraining.collaborative.state import State

NAMES = {"Qm0": "peer-0", "Qm1": "peer-1", "Qm2": "peer-2"}


@pytest.fixture
def publication(tmp_path: Path) -> Publication:
    """Without a swarm: it only compares."""
    parts = dict.fromkeys(("dht", "run_id", "settings", "view", "keeper", "check_peers", "pause"))
    return Publication(**parts, folder=tmp_path, work=tmp_path)


def weights_of(distance: float) -> State:
    """A state whose weights are so far from those of ``weights_of(0)``, relative to their norm."""
    weights = [torch.ones(4), torch.tensor([1.0, 1.0 + distance * 6**0.5])]
    return State(step=7, weights=weights, optimizer=[], metadata=[], donor="Qm")


def test_the_largest_distance_of_two_peers_counts(publication):
    found = {peer: weights_of(distance) for peer, distance in zip(NAMES, (0.0, 1e-4, 5e-4), strict=True)}
    assert publication.compare(found, NAMES) == pytest.approx(5e-4, rel=1e-2)
    assert publication.compare({"Qm0": weights_of(0.0)}, NAMES) is None


@pytest.mark.parametrize("distance", [1.1 * DISTANCE_BOUND, 1.0, float("nan"), float("inf")])
def test_weights_that_are_too_far_apart_fail_the_stage(publication, distance):
    found = {"Qm0": weights_of(0.0), "Qm1": weights_of(1e-4), "Qm2": weights_of(distance)}
    with pytest.raises(StageError, match=r"relative L2 distance of .* more than 0\.001: .* run again to go on"):
        publication.compare(found, NAMES)
