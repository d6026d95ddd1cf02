"""Which kills a crash run makes, in which order: all 50, or some of them drawn by a seed.

Each point is on the way of the same chain, so the order is the chain's. Seed runs are many and alike: each takes one
kill of a run, and processes are killed from outside while they are made.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

RECORD_CALLS = (
    "record: fsync output",
    "record: fsync work",
    "record: open new record",
    "record: fsync new record",
    "record: rename new record to record",
    "record: fsync work 2",
)
PUBLISH_CALLS = (
    "publish: mkdir artifacts of the stage",
    "publish: rename work to artifact",
    "publish: fsync artifacts of the stage",
    "publish: fsync work of the stage",
)
SCRATCH_CALLS = {
    "corpus": ("publish: mkdir trash", "publish: rename scratch to old scratch", "publish: fsync trash"),
    "tokenizer": ("publish: fsync work",),
    "pack": ("publish: unlink old scratch",),
    "pretrain": ("publish: rmdir old scratch",),
}
"""Only the first stages have scratch to put away. The three of the corpus are passed one after another by runs that go
on with the publishing of a finished stage."""
PART_CALLS = (
    "part: fsync part",
    "part: unlink record",
    "part: unlink part",
    "part: mkdir part",
    "part: rename part to part",
    "part: open new record",
    "part: fsync new record",
    "part: rename new record to record",
    "part: fsync parts",
)
ALL_CALLS = {*RECORD_CALLS, *PUBLISH_CALLS, *PART_CALLS, *(call for calls in SCRATCH_CALLS.values() for call in calls)}
"""Each system call that publishes; the test compares this with what an undisturbed run makes."""

PARTS_OF_PACK = 4
"""Of the kills at parts; the others are of pretrain's."""


@dataclass(frozen=True)
class Plan:
    """The kills in order. Points are those at which runs of the command line kill themselves."""

    early: list[str]
    """Points up to pretrain."""
    seed_runs: list[tuple[str, bool]]
    """Points without the node, each at a seed run of its own, and whether the server is killed on the way there."""
    deployed: list[tuple[str, ...]]
    """What is killed one after another around each of the runs that a worker carries out."""
    late: list[str]
    """Points behind the seed runs."""
    together: list[str]
    """Members of a swarm."""

    @property
    def seeds(self) -> int:
        """Of each of the two tasks, enough that no kill waits for a seed run that is there already."""
        needed = 2 + len(self.seed_runs) + 2 * sum(server for _, server in self.seed_runs) + 4 * len(self.deployed)
        return -(-needed // 2)

    def kills(self) -> Counter[str]:
        """How many of which target."""
        found = Counter({"run": len(self.early) + len(self.seed_runs) + len(self.late)})
        found["server"] = sum(server for _, server in self.seed_runs)
        found.update(target for round in self.deployed for target in round)
        found.update(self.together)
        return +found


def full(draw: random.Random) -> Plan:
    """All 50."""
    parts = draw.sample(PART_CALLS, len(PART_CALLS))
    of_pack, of_pretrain = parts[:PARTS_OF_PACK], parts[PARTS_OF_PACK:]
    early = {
        "corpus": ["start", "middle", *SCRATCH_CALLS["corpus"]],
        "tokenizer": ["start", "middle", *SCRATCH_CALLS["tokenizer"]],
        # a small text's shards are all there when the packing first tells how far it is
        "pack": ["start", *of_pack, "middle", *SCRATCH_CALLS["pack"]],
        "pretrain": ["start", "middle", *of_pretrain, *SCRATCH_CALLS["pretrain"]],
    }
    calls = draw.sample((*RECORD_CALLS, *PUBLISH_CALLS), len(RECORD_CALLS) + len(PUBLISH_CALLS))
    # where the run is killed at the beginning of publishing anyway there is time to kill the server before
    served = set(draw.sample(calls, 2))
    return Plan(
        [f"{node} {point}" for node, points in early.items() for point in points],
        [("start", False), ("middle", False), *((call, call in served) for call in calls)],
        [("server", "deployed run"), ("worker", "deployed run"), ("worker", "deployed run")],
        [f"{node} {point}" for node in ("evaluate", "report") for point in ("start", "middle")],
        ["peer", "coordinator", "peer"],
    )


def drawn(kills: int, draw: random.Random) -> Plan:
    """As many kills, of each target at least one: worker and the run that it leaves, server, peer, and runs."""
    whole = full(draw)
    if kills == sum(whole.kills().values()):
        return whole
    if not 8 <= kills < 40:
        raise SystemExit(f"--kills {kills}: from 8 to 39, or 50")
    points = [*whole.early, *whole.late]
    kept = set(draw.sample(points, min(len(points), kills - 5)))
    return Plan(
        [point for point in whole.early if point in kept],
        [draw.choice([(call, True) for call, _ in whole.seed_runs if call not in ("start", "middle")])],
        [("worker", "deployed run")],
        [point for point in whole.late if point in kept],
        ["peer"],
    )
