"""How a peer learns of the swarm's progress, and when it waits for the rest of a global step."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.optim.progress_tracker import ProgressTracker
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time

from tasks.pretraining.collaborative.gate import REPEATS, Gate
from tasks.pretraining.collaborative.tracker import (
    ANNOUNCE_SECONDS,
    HOLD_SECONDS,
    REPLICAS,
    SEARCH_SECONDS,
    PeerTracker,
)


class SilentDHT:
    """Knows nobody."""

    client_mode = False
    peer_id = SimpleNamespace(to_bytes=lambda: b"peer")

    def __init__(self) -> None:
        self.searches: list[bool] = []
        self.gate = Gate()
        self.stored: list[dict[str, Any]] = []

    def add_validators(self, validators) -> None:
        pass

    def get(self, key, latest) -> None:
        self.searches.append(latest)

    def store(self, key, subkey, value, expiration_time, return_future) -> None:
        self.stored.append(value)


@pytest.fixture
def tracker() -> PeerTracker:
    return PeerTracker(dht=SilentDHT(), prefix="run", target_batch_size=100, start=False)


def told_by(*peers: dict[str, Any]) -> dict[bytes, Any]:
    """What the DHT holds of the progress of other peers."""
    entries = {}
    for number, peer in enumerate(peers):
        values = {"epoch": 0, "samples_accumulated": 0, "samples_per_second": 50.0, "client_mode": False}
        values |= {"time": get_dht_time(), **peer}
        name = b"other-%d" % number
        entries[name] = ValueWithExpiration({"peer_id": name, **values}, get_dht_time() + 10)
    return entries


def test_a_step_does_not_end_when_only_its_estimated_end_has_passed(tracker):
    tracker.global_progress.eta_next_epoch = get_dht_time() - 60
    tracker.global_progress.samples_accumulated = 99
    assert ProgressTracker.ready_to_update_epoch.fget(tracker)  # hivemind's would go on
    assert tracker.ready_to_update_epoch is False
    tracker.report_local_progress(0, 1)  # this peer's, which is told to itself at once
    assert tracker.ready_to_update_epoch is True


def test_a_step_that_others_have_ended_is_not_taken_alone(tracker):
    """Nobody is left to average with, so their state is taken over instead."""
    tracker.global_progress.samples_accumulated = 200
    assert tracker.ready_to_update_epoch is True
    tracker.global_progress.epoch = 1
    assert tracker.ready_to_update_epoch is False
    with tracker.pause_updates():
        tracker.update_epoch(1)
    assert tracker.ready_to_update_epoch is True


def hear(tracker: PeerTracker, *peers: dict[str, Any]) -> None:
    tracker.global_progress = tracker._parse_swarm_progress_data(told_by(*peers))


def test_a_peer_waits_for_what_others_end_before_it_could_itself(tracker):
    """100 sequences are needed; the other computes 50 a second, and told 60 of them just now."""
    hear(tracker, {"samples_accumulated": 60, "time": get_dht_time()})
    assert not tracker.rest_is_coming(0.7)
    assert tracker.rest_is_coming(0.9)


def test_what_the_other_has_computed_since_it_told_counts(tracker):
    hear(tracker, {"samples_accumulated": 60, "time": get_dht_time() - 0.5})
    assert not tracker.rest_is_coming(0.2)
    assert tracker.rest_is_coming(0.4)


def test_a_peer_that_has_been_silent_for_long_is_not_waited_for(tracker):
    hear(tracker, {"samples_accumulated": 0, "time": get_dht_time() - 8})
    assert HOLD_SECONDS == 1
    assert not tracker.rest_is_coming(0.3)


def test_one_that_has_not_told_of_this_step_has_begun_it_with_this_peer(tracker):
    with tracker.pause_updates():
        tracker.update_epoch(1)
    tracker._begun -= 0.5
    hear(tracker, {"samples_accumulated": 90, "epoch": 0, "time": get_dht_time() - 5, "samples_per_second": 100.0})
    assert tracker.global_progress.samples_accumulated == 0  # those 90 are of the step before
    assert not tracker.rest_is_coming(0.4)
    assert tracker.rest_is_coming(0.6)


def test_where_others_have_gone_on_nothing_is_waited_for(tracker):
    hear(tracker, {"samples_accumulated": 1000, "epoch": 1, "time": get_dht_time()})
    assert not tracker.rest_is_coming(1.0)


def test_a_small_swarm_is_searched_once_a_second_and_a_large_one_always(tracker):
    tracker.dht.members = REPLICAS
    tracker.dht._searched = time.monotonic()
    dht = tracker.dht._dht
    dht.searches.clear()
    tracker.dht.get("run_progress", latest=True)
    tracker.dht._searched -= SEARCH_SECONDS
    tracker.dht.get("run_progress", latest=True)
    tracker.dht.get("run_progress", latest=True)
    hear(tracker, *({"time": get_dht_time()} for _ in range(REPLICAS)))
    tracker.dht.get("run_progress", latest=True)
    assert dht.searches == [False, True, False, True]


def test_few_that_claim_a_step_that_nobody_has_are_not_believed(tracker):
    told = told_by({"epoch": 5}, {"epoch": 5}, {"epoch": 1000})
    assert tracker._parse_swarm_progress_data(told).epoch == 1000
    tracker.doubt(5)
    progress = tracker._parse_swarm_progress_data(told)
    assert (progress.epoch, progress.num_peers) == (5, 2)


def test_where_most_are_further_it_is_this_peer_that_is_behind(tracker):
    told = told_by({"epoch": 9}, {"epoch": 9}, {"epoch": 5})
    tracker._parse_swarm_progress_data(told)
    tracker.doubt(5)
    assert tracker._parse_swarm_progress_data(told).epoch == 9


@pytest.mark.parametrize(
    "claim",
    [{"epoch": 2**60}, {"samples_accumulated": 2**60}, {"samples_per_second": float("inf")}, {"time": float("nan")}],
)
def test_numbers_that_cannot_be_are_not_believed(tracker, claim):
    progress = tracker._parse_swarm_progress_data(told_by({"epoch": 5}, claim))
    assert (progress.epoch, progress.num_peers) == (5, 1)


def test_those_who_are_muted_do_not_count(tracker):
    told = told_by({"epoch": 5, "samples_accumulated": 60}, {"epoch": 5, "samples_accumulated": 50})
    assert tracker._parse_swarm_progress_data(told).samples_accumulated == 110
    name = PeerID(b"other-1").to_base58()
    for _ in range(REPEATS):
        tracker.dht.gate.report(name, "rubbish")
    deadline = time.monotonic() + 10
    while tracker.dht.gate.admits(name):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert tracker._parse_swarm_progress_data(told).samples_accumulated == 60


def test_a_peer_whose_steps_are_over_at_once_is_known_all_the_same(tracker):
    """hivemind's tracker would tell of it only if it found samples, and these are used up before it looks."""
    stored = tracker.dht._dht.stored
    with tracker.pause_updates():
        for step in range(1, 4):
            tracker.update_epoch(step)
    assert [value["epoch"] for value in stored] == [1]  # and not at each of a hundred steps a second
    tracker._announced -= ANNOUNCE_SECONDS + 1
    with tracker.pause_updates():
        tracker.update_epoch(4)
    assert [value["epoch"] for value in stored] == [1, 4]
