"""Which weights count where not all members ended with the same."""

from __future__ import annotations

import pytest

from tasks.pretraining.collaborative.ending import leading_weights, name_of_weights
from tasks.pretraining.collaborative.records import PeerRecord
from tasks.pretraining.collaborative.sharding import Taken


def ended(weights: str, step: int = 7, role: str = "peer") -> PeerRecord:
    return PeerRecord(
        name="p", role=role, peer_id="Qm", state="final", step=step, rate=1.0, weights=weights, taken=Taken()
    )


@pytest.mark.parametrize(
    ("members", "leading"),
    [
        ([], ""),
        ([ended("a")], "a"),
        ([ended("b"), ended("a"), ended("b")], "b"),
        ([ended("b"), ended("a")], "a"),  # as many of each: all choose the same
        ([ended("b", step=8), ended("a"), ended("a")], "b"),  # it is further
        ([ended("b", role="client"), ended("b", role="client"), ended("a")], "a"),  # who can hand them on
        ([ended("b", role="auxiliary"), ended("b", role="client")], ""),
        ([ended("b", role="keeper"), ended("b"), ended("a")], "b"),
    ],
)
def test_the_weights_of_most_who_can_hand_them_on(members, leading):
    assert leading_weights(members) == leading
    assert leading_weights(reversed(members)) == leading


def test_weights_are_called_by_who_averaged_them_and_when():
    assert name_of_weights(7, ["Qm1", "Qm2"]) == name_of_weights(7, ["Qm2", "Qm1"])
    names = {name_of_weights(*one) for one in ((7, ["Qm1", "Qm2"]), (8, ["Qm1", "Qm2"]), (7, ["Qm1"]), (7, ["Qm2"]))}
    assert len(names) == 4
