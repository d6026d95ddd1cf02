"""Which sequences a peer trains on, so that no two peers train on the same ones within a pass over the data.

Every pass is a permutation of all sequences, drawn from (seed, pass) and cut into shards. A shard belongs to the peer
whose key digest scores highest for it (rendezvous hashing, Thaler and Ravishankar 1998): all peers find the same
owner without asking anybody, and when a peer comes or goes only its own shards change hands. Each peer tells which
shards of the pass it has taken; so one that is faster goes on with what the others have not taken yet, and one that
joins late leaves out what was taken before. Two peers can meet in a shard only if both take it within the time
that a record needs to get around.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from tasks.pretraining.batches import ORDER

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARDS = 256
"""Shards of a pass: few enough for a short record, enough for an even split among dozens of peers."""


class Taken(BaseModel):
    """The shards of a pass that somebody has taken; what stands in a peer's record."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    passed: int = Field(0, ge=0, le=2**53)
    """Complete passes over the data before this one."""
    shards: str = Field("", max_length=SHARDS // 4, pattern="^[0-9a-f]*$")
    """The taken shards as the bits of a hexadecimal number; shard 0 is the lowest bit."""

    @property
    def numbers(self) -> frozenset[int]:
        """The taken shards."""
        bits = int(self.shards or "0", 16)
        return frozenset(number for number in range(SHARDS) if bits >> number & 1)

    @classmethod
    def of(cls, passed: int, numbers: set[int]) -> Taken:
        """The inverse of :attr:`numbers`."""
        return cls(passed=passed, shards=f"{sum(1 << number for number in numbers):x}" if numbers else "")

    def __or__(self, other: Taken) -> Taken:
        """What either has taken of the later one's pass."""
        if self.passed != other.passed:
            return max(self, other, key=lambda taken: taken.passed)
        return Taken.of(self.passed, {*self.numbers, *other.numbers})


class Position(BaseModel):
    """How far a peer has come in its data: what it goes on with when it comes back."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    taken: Taken
    """Shards of its present pass that it has taken, the begun one included."""
    shard: int | None = Field(None, ge=0, lt=SHARDS)
    """The one that it has begun."""
    used: int = Field(0, ge=0)
    """Sequences of it that it has trained on."""


@dataclass
class Sharding:
    """The sequences of one peer, in the order in which it trains on them.

    Args:
        size: sequences in the training split.
        seed: of the run.
        peer: the peer's key digest.
        start: what was taken before, if the run goes on from a checkpoint.
    """

    size: int
    seed: int
    peer: str
    start: Taken = field(default_factory=Taken)

    def __post_init__(self) -> None:
        self._passed = self.start.passed
        self._mine: set[int] = set()
        self._others: dict[str, Taken] = {"": self.start}
        self._left: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._count = min(SHARDS, self.size)
        self._shard: int | None = None
        self._permutation: tuple[int, NDArray[np.int64]] = (-1, self._left)

    @property
    def taken(self) -> Taken:
        """What this peer has taken of its present pass, begun shards included."""
        return Taken.of(self._passed, self._mine)

    @property
    def position(self) -> Position:
        """Where this peer is."""
        if self._shard is None:
            return Position(taken=self.taken)
        return Position(taken=self.taken, shard=self._shard, used=len(self._sequences(self._shard)) - len(self._left))

    def resume(self, position: Position) -> bool:
        """Go on from an earlier position, before the first sequences were asked for; False if its pass is over."""
        furthest = max(taken.passed for taken in self._others.values())
        if position.taken.passed < furthest:
            return False
        self._passed, self._mine, self._shard = position.taken.passed, set(position.taken.numbers), position.shard
        if position.shard is not None:
            self._left = self._sequences(position.shard)[position.used :]
        return True

    def coming(self, count: int) -> NDArray[np.int64]:
        """Up to ``count`` sequence numbers of the present shard that come next; takes none."""
        return self._left[:count]

    def hear(self, others: Mapping[str, Taken]) -> None:
        """Take note of what other peers have taken, by key digest; the empty name stands for those that have left."""
        self._others = {name: taken for name, taken in others.items() if name != self.peer}
        self._others[""] = self._others.get("", Taken()) | self.start

    def next(self, count: int) -> NDArray[np.int64]:
        """The next ``count`` sequence numbers."""
        chosen: list[NDArray[np.int64]] = []
        missing = count
        while missing:
            if not len(self._left):
                self._shard = self._take()
                self._left = self._sequences(self._shard)
            part, self._left = self._left[:missing], self._left[missing:]
            chosen.append(part)
            missing -= len(part)
        return np.concatenate(chosen)

    def _take(self) -> int:
        """The next shard: one of its own, else one that its owner would come to last, else one of the next pass."""
        while True:
            furthest = max(taken.passed for taken in self._others.values())
            if furthest > self._passed:  # whoever went on found nothing left of this pass
                self._passed, self._mine = furthest, set()
            gone = {*self._mine}
            for taken in self._others.values():
                if taken.passed == self._passed:
                    gone |= taken.numbers
            free = [shard for shard in range(self._count) if shard not in gone]
            if free:
                shard = max(free, key=self._wish)
                self._mine.add(shard)
                return shard
            self._passed, self._mine = self._passed + 1, set()

    def _wish(self, shard: int) -> tuple[bool, int]:
        """Own shards first, those with the highest score first; of the others', those with their lowest score."""
        scores = {name: self._score(name, shard) for name in [*self._others, self.peer] if name}
        owner = max(scores, key=lambda name: scores[name])
        return owner == self.peer, scores[owner] if owner == self.peer else -scores[owner]

    def _score(self, peer: str, shard: int) -> int:
        text = f"{self.seed}/{self._passed}/{shard}/{peer}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())

    def _sequences(self, shard: int) -> NDArray[np.int64]:
        if self._permutation[0] != self._passed:
            generator = np.random.default_rng([self.seed, ORDER, self._passed])
            self._permutation = self._passed, generator.permutation(self.size)
        first, last = shard * self.size // self._count, (shard + 1) * self.size // self._count
        return self._permutation[1][first:last]
