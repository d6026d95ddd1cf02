"""What a peer hears of the others, read in a thread so that training never waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from tasks.pretraining.collaborative import network
from tasks.pretraining.collaborative.records import (
    Blackboard,
    PeerRecord,
    SwarmRecord,
    base58,
    progress_of,
    sketches_of,
)
from tasks.pretraining.collaborative.sharding import Taken

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often the records are read."""


ALONE_SECONDS = 1800.0
"""A peer goes on so long without a word of the coordinator, and at the end keeps its weights for so long: the
coordinator may come back. Then it leaves, since nobody keeps or takes what it does."""

DIAL_SECONDS = 5.0
"""After so long without the coordinator's word, and then as often, the addresses by which this peer came are called
again: behind one of them may be a coordinator that was restarted and knows nobody."""


class Watch(threading.Thread):
    """Reads the coordinator's word and the other peers' records.

    Args:
        board: where records are.
        coordinator: key digest of the coordinator.
        addresses: by which this peer came to the swarm.
        asks_for_passes: whether the coordinator says who may take part.
    """

    def __init__(self, board: Blackboard, coordinator: str, addresses: Sequence[str], asks_for_passes: bool = False):
        super().__init__(name="watch", daemon=True)
        self._board, self._coordinator, self._addresses = board, coordinator, addresses
        self._asks_for_passes = asks_for_passes
        self._heard = self._dialled = time.monotonic()
        self.swarm: SwarmRecord | None = None
        """The coordinator's newest record; None as long as none was read."""
        self.peers: dict[str, PeerRecord] = {}
        """The newest records of all peers by key digest."""
        self.alive: frozenset[str] = frozenset()
        """libp2p's identities of the members that told their progress within the last seconds."""
        self._ended = threading.Event()
        self.start()

    def end(self) -> None:
        """Read no more; without it that is so when the process ends."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Read until the end."""
        while not self._ended.is_set():
            try:
                self.peers = self._board.contributions()  # first: who knows the word knows what is taken
                progress = progress_of(self._board.dht, self._board.run_id)
                self.alive = frozenset(base58(entry.peer_id) for entry in progress)
                swarm = self._board.swarm(self._coordinator)
                if self._asks_for_passes and (passes := self._board.passes(self._coordinator)) is not None:
                    self._board.dht.gate.admit(passes)
                if swarm is not None:
                    self._hear(swarm)
                self._dial()
            except Exception:
                logger.exception("the records could not be read")
            self._ended.wait(LOOK_SECONDS)

    def _hear(self, swarm: SwarmRecord) -> None:
        """The coordinator's word counts once: a copy of it may still be about when the coordinator is gone."""
        if self.swarm is None or swarm.told != self.swarm.told:
            self.swarm, self._heard = swarm, time.monotonic()

    def _dial(self) -> None:
        now = time.monotonic()
        if min(self.silence, now - self._dialled) > DIAL_SECONDS:
            self._dialled = now
            if network.dial(self._board.dht, self._addresses, DIAL_SECONDS):
                logger.info("called the addresses of the swarm again, and was answered")

    @property
    def silence(self) -> float:
        """Seconds since the coordinator's word was last read."""
        return time.monotonic() - self._heard

    def sketches(self) -> dict[str, dict[int, str]]:
        """What the others tell of their weights: by libp2p's identity and global step."""
        return sketches_of(self.peers.values())

    @property
    def taken(self) -> dict[str, Taken]:
        """What others have taken of the data."""
        taken = {key: peer.taken for key, peer in self.peers.items()}
        return taken if self.swarm is None else {**taken, "": self.swarm.taken}
