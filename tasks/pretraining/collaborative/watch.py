"""What a peer hears of the others, read in a thread so that training never waits for it."""

from __future__ import annotations

import logging
import threading
import time

from tasks.pretraining.collaborative.records import Blackboard, PeerRecord, SwarmRecord
from tasks.pretraining.collaborative.sharding import Taken

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often the records are read."""


SILENT_SECONDS = 60.0
"""After so long without the coordinator's word it counts as gone."""


class Watch(threading.Thread):
    """Reads the coordinator's word and the other peers' records.

    Args:
        board: where records are.
        coordinator: key digest of the coordinator.
        asks_for_passes: whether the coordinator says who may take part.
    """

    def __init__(self, board: Blackboard, coordinator: str, asks_for_passes: bool = False):
        super().__init__(name="watch", daemon=True)
        self._asks_for_passes = asks_for_passes
        self._board, self._coordinator = board, coordinator
        self._heard = time.monotonic()
        self.swarm: SwarmRecord | None = None
        """The coordinator's newest record; None as long as none was read."""
        self.peers: dict[str, PeerRecord] = {}
        """The newest records of all peers by key digest."""
        self.start()

    def run(self) -> None:
        """Read until the process ends."""
        while True:
            try:
                self.peers = self._board.contributions()  # first: who knows the word knows what is taken
                swarm = self._board.swarm(self._coordinator)
                if self._asks_for_passes and (passes := self._board.passes(self._coordinator)) is not None:
                    self._board.dht.gate.admit(passes)
                if swarm is not None:
                    self.swarm, self._heard = swarm, time.monotonic()
            except Exception:
                logger.exception("the records could not be read")
            time.sleep(LOOK_SECONDS)

    @property
    def silence(self) -> float:
        """Seconds since the coordinator's word was last read."""
        return time.monotonic() - self._heard

    @property
    def taken(self) -> dict[str, Taken]:
        """What others have taken of the data."""
        taken = {key: peer.taken for key, peer in self.peers.items()}
        return taken if self.swarm is None else {**taken, "": self.swarm.taken}
