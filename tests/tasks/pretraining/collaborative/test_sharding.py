"""No two peers get the same sequences within a pass, whoever is fast, late, or gone."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from pydantic import ValidationError

from tasks.pretraining.collaborative.sharding import SHARDS, Position, Sharding, Taken

SEED = 7
PEERS = ("a1b2c3d4e5f60718", "0f1e2d3c4b5a6978", "5566778899aabbcc")


class Swarm:
    """Peers that hear of each other before every batch, as if records took no time; with what each pass has seen."""

    def __init__(self, size: int, names: tuple[str, ...] = PEERS):
        self.size = size
        self.peers = {name: Sharding(size, SEED, name) for name in names}
        self.seen: dict[int, list[int]] = {}

    def join(self, name: str) -> None:
        self.peers[name] = Sharding(self.size, SEED, name)

    def batch(self, name: str, count: int) -> list[int]:
        peer = self.peers[name]
        peer.hear({other: one.taken for other, one in self.peers.items()})
        numbers = []
        for _ in range(count):
            numbers += peer.next(1).tolist()
            self.seen.setdefault(peer.taken.passed, []).append(numbers[-1])
        return numbers

    def passes(self, number: int) -> bool:
        """Whether all sequences have been seen in this pass; fails if one was seen twice."""
        seen = self.seen.get(number, [])
        assert len(seen) == len(set(seen)), f"twice in pass {number}"
        return len(seen) == self.size


@pytest.mark.parametrize("names", [PEERS[:2], PEERS])
@pytest.mark.parametrize("size", [2 * SHARDS, 100, 64])
def test_peers_cover_a_pass_without_overlap(names, size):
    swarm = Swarm(size, names)
    for _ in range(size):
        for name in names:
            swarm.batch(name, 1)
        if swarm.passes(0):
            break
    assert sorted(swarm.seen[0]) == list(range(size))
    assert len(swarm.seen.get(1, [])) <= 2 * len(names)


def test_peers_hear_late_and_still_do_not_meet_before_the_others_shards_are_left():
    alone = {name: Sharding(1024, SEED, name) for name in PEERS}
    for name, peer in alone.items():
        peer.hear({other: Taken() for other in PEERS if other != name})
    # nobody hears of anything taken: as long as each is among its own shards, which are about a third, they are apart
    seen = [number for peer in alone.values() for number in peer.next(200)]
    assert len(seen) == len(set(seen))


def test_equal_arguments_give_equal_order_in_another_process_too():
    code = (
        "from tasks.pretraining.collaborative.sharding import Sharding, Taken\n"
        f"peer = Sharding(999, {SEED}, {PEERS[0]!r})\n"
        f"peer.hear({{{PEERS[1]!r}: Taken(shards='f0f'), {PEERS[2]!r}: Taken()}})\n"
        "print(*peer.next(1500))"
    )
    there = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    here = Sharding(999, SEED, PEERS[0])
    here.hear({PEERS[2]: Taken(), PEERS[1]: Taken(shards="f0f")})
    assert there.stdout.split() == [str(number) for number in here.next(1500)]


def test_seed_peer_and_pass_change_the_order():
    def first(seed: int, peer: str, passed: int) -> list[int]:
        return Sharding(1024, seed, peer, Taken(passed=passed)).next(64).tolist()

    orders = [first(SEED, PEERS[0], 0), first(8, PEERS[0], 0), first(SEED, PEERS[1], 0), first(SEED, PEERS[0], 1)]
    assert all(one != other for number, one in enumerate(orders) for other in orders[:number])
    assert orders[0] == first(SEED, PEERS[0], 0)


def test_batches_may_be_of_any_size():
    whole, parts = Sharding(1000, SEED, PEERS[0]), Sharding(1000, SEED, PEERS[0])
    cut = np.concatenate([parts.next(count) for count in (1, 999, 3, 250, 747)])
    assert whole.next(2000).tolist() == cut.tolist()
    assert whole.next(5).dtype == np.int64


def test_a_faster_peer_takes_over_what_the_slower_one_has_not_taken():
    fast, slow = PEERS[:2]
    swarm = Swarm(128, (fast, slow))
    counts = {fast: 0, slow: 0}
    while not swarm.passes(0):
        for name in (fast, fast, fast, fast, slow):
            if not swarm.passes(0):
                swarm.batch(name, 1)
                counts[name] += 1
    assert sorted(swarm.seen[0]) == list(range(128))
    assert counts[fast] > 3 * counts[slow] > 0
    assert swarm.peers[fast].taken.passed == swarm.peers[slow].taken.passed == 0


def test_the_slow_peer_keeps_the_shards_it_would_come_to_first():
    fast, slow = PEERS[:2]
    swarm = Swarm(SHARDS, (fast, slow))
    undisturbed = Sharding(SHARDS, SEED, slow)
    undisturbed.hear({fast: Taken()})
    own = [shard for shard in range(SHARDS) if undisturbed._wish(shard)[0]]
    liked = undisturbed.next(10).tolist()
    # all of the fast one's, and all but ten of the slow one's
    gone = [swarm.batch(fast, 1)[0] for _ in range(SHARDS - 10)]
    assert 0 < len(own) < SHARDS
    assert set(gone).isdisjoint(liked)


def test_a_late_joiner_leaves_out_what_was_taken():
    first, late = PEERS[:2]
    swarm = Swarm(1024, (first,))
    before = swarm.batch(first, 600)
    swarm.join(late)
    after = [number for _ in range(30) for number in swarm.batch(late, 4)]
    assert set(before).isdisjoint(after)
    assert len(set(after)) == len(after)


def test_those_that_left_stand_under_the_empty_name():
    gone = Sharding(1024, SEED, PEERS[0])
    before = gone.next(600).tolist()
    peer = Sharding(1024, SEED, PEERS[1])
    peer.hear({"": gone.taken})
    assert set(before).isdisjoint(peer.next(400).tolist())


def test_a_run_that_goes_on_leaves_out_what_was_taken_before():
    before = Sharding(1024, SEED, PEERS[0])
    seen = before.next(512).tolist()
    again = Sharding(1024, SEED, PEERS[0], start=before.taken)
    rest = again.next(512).tolist()
    assert sorted(seen + rest) == list(range(1024))
    # hearing from others does not make it forget
    again = Sharding(1024, SEED, PEERS[0], start=before.taken)
    again.hear({PEERS[1]: Taken(), "": Taken()})
    assert sorted(seen + again.next(512).tolist()) == list(range(1024))


def test_a_run_that_goes_on_in_a_later_pass_begins_there():
    before = Sharding(100, SEED, PEERS[0])
    seen = before.next(350).tolist()
    assert before.taken.passed == 3
    again = Sharding(100, SEED, PEERS[0], start=before.taken)
    assert set(again.next(50).tolist()).isdisjoint(seen[300:])
    assert again.taken.passed == 3


def test_passes_advance_and_each_has_an_order_of_its_own():
    peer = Sharding(300, SEED, PEERS[0])
    passes = [peer.next(300).tolist() for _ in range(3)]
    assert all(sorted(one) == list(range(300)) for one in passes)
    assert passes[0] != passes[1] != passes[2]
    assert peer.taken.passed == 2
    peer.next(1)
    assert peer.taken == Taken(passed=3, shards=peer.taken.shards)
    assert len(peer.taken.numbers) == 1


@pytest.mark.parametrize("size", [1, 2, 37])
def test_fewer_sequences_than_shards(size):
    swarm = Swarm(size, PEERS[:2])
    while not swarm.passes(0):
        for name in PEERS[:2]:
            swarm.batch(name, 1)
    assert max(number for peer in swarm.peers.values() for number in peer.taken.numbers) < size
    # and on into the next passes
    assert len(swarm.peers[PEERS[0]].next(5 * size)) == 5 * size


def test_a_peer_does_not_repeat_the_part_of_those_who_have_gone_on_to_the_next_pass():
    """The fast one has begun the next pass, so all of this one was taken: the slow one ends its shard and follows."""
    fast, slow = PEERS[:2]
    swarm = Swarm(1024, (fast, slow))
    swarm.batch(slow, 2)  # half of a shard
    while swarm.peers[fast].taken.passed == 0:
        swarm.batch(fast, 4)
    swarm.batch(slow, 2)  # the other half
    assert swarm.passes(0)
    swarm.batch(slow, 100)
    assert swarm.passes(0)
    assert swarm.peers[slow].taken.passed == 1


def test_peers_of_equal_speed_share_every_pass():
    swarm = Swarm(128, PEERS)
    for _ in range(128):
        for name in PEERS:
            swarm.batch(name, 1)
    assert swarm.passes(0)
    assert swarm.passes(1)
    assert set(swarm.seen) <= {0, 1, 2, 3}


def test_a_late_joiner_begins_in_the_pass_of_the_others():
    first, late = PEERS[:2]
    swarm = Swarm(256, (first,))
    swarm.batch(first, 2 * 256 + 100)
    swarm.join(late)
    swarm.batch(late, 100)
    assert swarm.peers[late].taken.passed == 2
    assert len(swarm.seen[2]) == len(set(swarm.seen[2])) == 200


def test_only_the_shards_of_a_peer_that_left_change_hands():
    def owners(names: tuple[str, ...]) -> dict[int, str]:
        owned = {}
        for name in names:
            peer = Sharding(1024, SEED, name)
            peer.hear({other: Taken() for other in names})
            owned |= {shard: name for shard in range(SHARDS) if peer._wish(shard)[0]}
        return owned

    three, two = owners(PEERS), owners(PEERS[:2])
    assert set(three) == set(two) == set(range(SHARDS))
    assert {name: list(three.values()).count(name) > SHARDS // 5 for name in PEERS} == dict.fromkeys(PEERS, True)
    assert {shard for shard in three if three[shard] != two[shard]} == {
        shard for shard, name in three.items() if name == PEERS[2]
    }


@pytest.mark.parametrize("numbers", [set(), {0}, {255}, {0, 1, 2, 254, 255}, set(range(SHARDS))])
def test_taken_round_trips(numbers):
    taken = Taken.of(4, numbers)
    assert taken.numbers == numbers
    assert Taken.model_validate_json(taken.model_dump_json()) == taken
    assert len(taken.shards) <= SHARDS // 4


def test_taken_together():
    one, other, later = Taken.of(1, {0, 9}), Taken.of(1, {9, 200}), Taken.of(2, {3})
    assert one | other == Taken.of(1, {0, 9, 200})
    assert one | later == later | one == later
    assert one | Taken() == one
    assert one == Taken.of(1, {0, 9})  # neither was changed


@pytest.mark.parametrize(
    "value",
    [
        {"shards": "f" * (SHARDS // 4 + 1)},
        {"shards": "0xff"},
        {"shards": "-1"},
        {"shards": "1_0"},
        {"shards": " 1"},
        {"shards": "1\n"},
        {"shards": "FF"},
        {"shards": "٣"},
        {"shards": 15},
        {"shards": None},
        {"passed": -1},
        {"passed": 0.5},
        {"passed": float("inf")},
        {"more": 1},
    ],
)
def test_malformed_records_of_shards_are_refused(value):
    with pytest.raises(ValidationError):
        Taken.model_validate(value)


@pytest.mark.parametrize("before", [0, 1, 3, 150, 1024, 1500])
def test_a_peer_that_comes_back_goes_on_where_it_was(before):
    undisturbed = Sharding(1024, SEED, PEERS[0])
    expected = (
        [*undisturbed.next(before).tolist(), *undisturbed.next(300).tolist()] if before else undisturbed.next(300)
    )
    first = Sharding(1024, SEED, PEERS[0])
    begun = first.next(before).tolist() if before else []
    saved = Position.model_validate_json(first.position.model_dump_json())
    back = Sharding(1024, SEED, PEERS[0])
    assert back.resume(saved)
    assert [*begun, *back.next(300).tolist()] == list(expected)


def test_a_peer_that_comes_back_takes_no_shard_that_others_took_meanwhile():
    first = Sharding(512, SEED, PEERS[0])
    seen = first.next(3).tolist()  # shards of two sequences: the second one is begun
    back = Sharding(512, SEED, PEERS[0])
    others = Sharding(512, SEED, PEERS[1])
    others.hear({PEERS[0]: first.taken})
    theirs = others.next(300).tolist()
    back.hear({PEERS[1]: others.taken, "": first.taken | others.taken})
    assert back.resume(first.position)
    mine = back.next(512 - 300 - 3).tolist()
    assert sorted([*seen, *theirs, *mine]) == list(range(512))


def test_a_peer_that_comes_back_in_a_later_pass_begins_anew():
    first = Sharding(512, SEED, PEERS[0])
    first.next(3)
    back = Sharding(512, SEED, PEERS[0])
    back.hear({PEERS[1]: Taken(passed=1)})
    assert not back.resume(first.position)
    back.next(1)
    assert back.taken.passed == 1


def test_what_comes_next_is_told_and_not_taken():
    peer = Sharding(1024, SEED, PEERS[0])
    assert peer.coming(10).tolist() == []
    peer.next(1)
    coming = peer.coming(10).tolist()
    assert len(coming) == 3  # of a shard of four
    assert peer.next(3).tolist() == coming
