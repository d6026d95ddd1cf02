"""When people are called for, and when not."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.pretraining.collaborative.alarms import PEAK_SECONDS, SPLIT_SECONDS, STILL_SECONDS, Alarms
from tasks.pretraining.collaborative.records import PeerRecord
from tasks.pretraining.collaborative.sharding import Taken


def peers(count: int, others: int | None = None) -> list[PeerRecord]:
    sees = count - 1 if others is None else others
    return [
        PeerRecord(
            name=f"p{number}", peer_id=f"Qm{number}", state="training", step=1, rate=1.0, others=sees, taken=Taken()
        )
        for number in range(count)
    ]


def line(*groups: int) -> dict[str, Any]:
    """A step in which each of these peers averaged in a group of that size."""
    return {"contributions": [{"outcome": "averaged", "group": size} for size in groups]}


@pytest.fixture
def alarms() -> Alarms:
    return Alarms(batch=100, largest_group=256, now=0.0)


def test_no_step_for_three_times_its_estimate(alarms, caplog):
    for step in range(1, 7):
        alarms.look(10.0 * step, step, 10.0, peers(2), [])
    assert alarms.active == {}
    alarms.look(60.0 + 29.0, 6, 10.0, peers(2), [])
    assert alarms.active == {}
    alarms.look(60.0 + 31.0, 6, 10.0, peers(2), [])
    assert alarms.active == {
        "no step": "no global step since step 6, for 31 s; one should take 10 s: peers have left, or do not reach "
        "each other"
    }
    alarms.look(60.0 + 33.0, 6, 10.0, peers(2), [])
    alarms.look(60.0 + 34.0, 7, 10.0, peers(2), [])
    assert alarms.active == {}
    told = [record.getMessage().split(":")[0] for record in caplog.records]
    assert told == ["alarm", "over"]  # once each, however often one looks


def test_a_step_that_slower_peers_take_longer_for_is_no_alarm(alarms):
    alarms.look(10.0, 1, 10.0, peers(2), [])
    alarms.look(10.0 + 90.0, 1, 1.0, peers(2), [])  # 100 sequences at 1 a second: an estimate of 100 s
    assert alarms.active == {}
    alarms.look(10.0 + 301.0, 1, 1.0, peers(2), [])
    assert set(alarms.active) == {"no step"}


def test_short_steps_may_wait_for_a_peer_that_has_left(alarms):
    for step in range(1, 20):
        alarms.look(0.1 * step, step, 1000.0, peers(2), [])
    alarms.look(1.9 + STILL_SECONDS - 0.5, 19, 1000.0, peers(2), [])
    assert alarms.active == {}
    alarms.look(1.9 + STILL_SECONDS + 0.5, 19, 1000.0, peers(2), [])
    assert set(alarms.active) == {"no step"}


def test_half_of_the_peers_are_gone(alarms):
    def look(now: float, count: int) -> set[str]:
        alarms.look(now, int(now), 100.0, peers(count), [])
        return set(alarms.active)

    assert look(1.0, 1) == look(2.0, 4) == look(3.0, 4) == look(4.0, 3) == set()
    assert look(5.0, 2) == {"half"}
    assert alarms.active["half"] == "2 of 4 peers are left within 10 minutes: ask for others to join"
    assert look(6.0, 3) == set()
    assert look(7.0, 2) == look(8.0, 2) == look(9.0, 2) == {"half"}
    assert look(PEAK_SECONDS + 10.0, 2) == set()  # that is how many there are by now


def test_peers_that_average_in_two_groups_are_split(alarms):
    together, apart = line(4, 4, 4, 4), line(2, 2, 2, 2)
    alarms.look(1.0, 1, 10.0, peers(4), [apart, apart, together])
    alarms.look(2.0, 2, 10.0, peers(4), [apart, together, apart, apart])
    assert alarms.active == {}
    alarms.look(3.0, 3, 10.0, peers(4), [together, apart, apart, apart])
    assert "average in more than one group, of 2 at most" in alarms.active["split"]
    alarms.look(4.0, 4, 10.0, peers(4), [apart, apart, apart, together])
    assert alarms.active == {}


def test_groups_that_the_settings_want_are_no_split():
    alarms = Alarms(batch=100, largest_group=2, now=0.0)
    alarms.look(1.0, 1, 10.0, peers(4), [line(2, 2, 2, 2)] * 5)
    assert alarms.active == {}


def test_peers_that_do_not_see_the_others_are_split(alarms):
    alarms.look(1.0, 1, 10.0, peers(4, others=1), [])
    alarms.look(1.0 + SPLIT_SECONDS - 1, 2, 10.0, peers(4, others=1), [])
    assert alarms.active == {}
    alarms.look(1.0 + SPLIT_SECONDS + 1, 3, 10.0, peers(4, others=1), [])
    assert alarms.active["split"].startswith("4 of 4 peers see fewer than half of the others")
    alarms.look(1.0 + SPLIT_SECONDS + 2, 4, 10.0, peers(4, others=3), [])
    assert alarms.active == {}
    alarms.look(1.0 + 3 * SPLIT_SECONDS, 5, 10.0, peers(4, others=1), [])
    assert alarms.active == {}  # it has only begun again
