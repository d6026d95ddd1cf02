"""hivemind's progress tracker, without its traps.

Those of hivemind 1.1.12 that are closed here: a global step also ends when its end was once *estimated* to be, however
few samples have come; a peer that has no samples yet is not known; and every look at the progress asks other members,
however often it is looked at.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from typing import Any

import hivemind
from hivemind.optim.progress_tracker import LocalTrainingProgress, ProgressTracker
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time

from tasks.pretraining.collaborative.records import LARGEST

logger = logging.getLogger(__name__)

GONE_SECONDS = 10.0
"""A peer that has not told its progress for so long counts as gone. hivemind's default is a minute, in which the
others wait for it at every step."""

HOLD_SECONDS = 1.0
"""Word of samples takes at most so long to get around. Who waits for it longer than this, and longer than a
micro-batch of its own takes, computes on."""


SEARCH_SECONDS = 1.0
"""How often progress is searched for in the whole DHT where every member has a copy of its own."""

REPLICAS = 5
"""Members that keep a copy of a record: hivemind's default."""


ANNOUNCE_SECONDS = 2.0
"""A peer makes itself known after a step once in so long. hivemind's tracker tells of a peer when it finds samples of
it, and where a step is one micro-batch they are gone whenever it looks: nobody would ever know that peer."""


class _Nearby:
    """A DHT in which progress is read from this member's own copy, as long as the swarm is so small that it has one.

    A search asks other members each time, and a tracker looks many times in a global step: with short steps the
    answers took more of the processor than the training.
    """

    def __init__(self, dht: hivemind.DHT):
        self._dht, self._searched = dht, -float("inf")
        self.members = REPLICAS + 1
        """Of the swarm, roughly."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dht, name)

    def get(self, key: str, latest: bool = False, **options: Any) -> Any:
        """As hivemind's; a search is made for the newest record once in ``SEARCH_SECONDS`` at least."""
        now = time.monotonic()
        search = latest and (self.members > REPLICAS or now - self._searched > SEARCH_SECONDS)
        if search:
            self._searched = now
        return self._dht.get(key, latest=search, **options)


class PeerTracker(ProgressTracker):
    """Progress of the swarm towards the next global step."""

    def __init__(self, dht: hivemind.DHT, **options: Any):
        self._doubted: set[bytes] = set()
        self._claims: dict[bytes, int] = {}
        super().__init__(_Nearby(dht), **options)

    _announced = 0.0
    """When this peer was last made known without samples."""
    _begun = 0.0
    """When this peer began the present step."""
    _computing: tuple[tuple[float, float], ...] | list[tuple[float, float]] = ()
    """Of each other peer: since when its samples are not known, and its samples a second."""
    reached: int | None = None
    """Most global steps of another member that can be reached, a client cannot; None if there is none."""
    present: frozenset[str] = frozenset()
    """libp2p's identities of the members that have told their progress lately, this one included."""

    def announce(self) -> None:
        """Tell others of this peer before it has any samples.

        hivemind's tracker keeps silent until then, and the first global step would find no group.
        """
        self.dht.store(
            self.training_progress_key,
            subkey=self._local_public_key,
            value=self.local_progress.dict(),
            expiration_time=get_dht_time() + self.metadata_expiration,
            return_future=True,
        )

    def doubt(self, reached: int) -> None:
        """Believe no longer those few peers that claim to be further than what anybody could send the state of.

        One that lies about its step would else keep all others looking for that state. If half of the others or more
        say so, it is this peer that is behind.

        Args:
            reached: the step of the newest state that was found, or the own one.
        """
        others = {one: epoch for one, epoch in self._claims.items() if one != self._local_public_key}
        ahead = [one for one, epoch in others.items() if epoch > reached + 1]
        if ahead and 2 * len(ahead) < len(others) + 1:
            logger.warning("%d peers claim steps after %d, and nobody has them: not believed", len(ahead), reached + 1)
            self._doubted.update(ahead)

    def _believed(self, metadata: Any) -> Any:
        """What is told by those who are admitted and not doubted, with numbers that can be."""
        if not isinstance(metadata, dict):
            return metadata
        believed, claims = {}, {}
        for subkey, entry in metadata.items():
            with contextlib.suppress(ValueError, TypeError):
                if entry.value is None or subkey in self._doubted:
                    continue
                told = LocalTrainingProgress.parse_obj(entry.value)
                if max(told.samples_per_second, told.samples_accumulated, told.epoch) > LARGEST:
                    continue
                if math.isfinite(told.time) and self.dht.gate.admits(PeerID(told.peer_id).to_base58()):
                    believed[subkey], claims[subkey] = entry, told.epoch
        self._claims = claims
        return believed

    def _parse_swarm_progress_data(self, metadata: Any) -> Any:
        """As hivemind does for those who are believed, and notes what they were computing when they told it."""
        metadata = self._believed(metadata)
        progress = super()._parse_swarm_progress_data(metadata)
        self.dht.members = progress.num_peers + 1  # and the coordinator
        entries = metadata.values() if isinstance(metadata, dict) else ()
        told = [LocalTrainingProgress.parse_obj(entry.value) for entry in entries if entry.value is not None]
        me = self.dht.peer_id.to_bytes()
        self.present = frozenset(PeerID(one.peer_id).to_base58() for one in told)
        self.reached = max((one.epoch for one in told if one.peer_id != me and not one.client_mode), default=None)
        self._computing = [
            # one that has not told yet that it has begun this step has begun it with this peer
            (one.time if one.epoch == progress.epoch else self._begun, one.samples_per_second)
            for one in told
            if one.peer_id != me and one.epoch in (progress.epoch, progress.epoch - 1)
        ]
        return progress

    @property
    def ready_to_update_epoch(self) -> bool:
        """Whether all samples of the step have been computed, by what the peers have told.

        Where others have gone on already there is nobody left to average with: that peer takes over their state.
        """
        together = self.global_epoch == self.local_progress.epoch
        return bool(together and self.global_progress.samples_accumulated >= self.target_batch_size)

    def rest_is_coming(self, seconds: float) -> bool:
        """Whether others will have computed what is missing in so many seconds, by their speed since they last told.

        Whatever this peer computes meanwhile would not end the step sooner, and give it more samples than it needs.

        Args:
            seconds: in which this peer could compute its next micro-batch.
        """
        if self.global_epoch != self.local_progress.epoch:
            return False
        now = get_dht_time()
        since = [min(max(0.0, now - told), HOLD_SECONDS + seconds) + seconds for told, _ in self._computing]
        coming = sum(rate * time for time, (_, rate) in zip(since, self._computing, strict=True))
        return bool(self.global_progress.samples_accumulated + coming >= self.target_batch_size)

    def update_epoch(self, new_epoch: int | None = None) -> int:
        """Begin to count for the next step."""
        self._begun = get_dht_time()
        self._computing = [(self._begun, rate) for _, rate in self._computing]
        epoch = int(super().update_epoch(new_epoch))
        if self._begun - self._announced > ANNOUNCE_SECONDS:
            self._announced = self._begun
            self.announce()
        return epoch
