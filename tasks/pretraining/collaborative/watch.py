"""What a peer hears of the others, read in a thread so that training never waits for it."""

from __future__ import annotations

import threading
import time

from tasks.pretraining.collaborative.records import Blackboard, PeerRecord, SwarmRecord
from tasks.pretraining.collaborative.sharding import Taken

LOOK_SECONDS = 1.0
"""How often the records are read."""


class Watch(threading.Thread):
    """Reads the coordinator's word and the other peers' records.

    Args:
        board: where records are.
        coordinator: key digest of the coordinator.
    """

    def __init__(self, board: Blackboard, coordinator: str):
        super().__init__(name="watch", daemon=True)
        self._board, self._coordinator = board, coordinator
        self.swarm: SwarmRecord | None = None
        """The coordinator's newest record; None as long as none was read."""
        self.silent = False
        """Whether the coordinator's word has run out: it has not been there for a minute."""
        self.peers: dict[str, PeerRecord] = {}
        """The newest records of all peers by key digest."""
        self.start()

    def run(self) -> None:
        """Read until the process ends."""
        while True:
            heard = self._board.swarm(self._coordinator)
            self.swarm, self.silent = heard or self.swarm, heard is None
            self.peers = self._board.contributions()
            time.sleep(LOOK_SECONDS)

    @property
    def taken(self) -> dict[str, Taken]:
        """What others have taken of the data."""
        taken = {key: peer.taken for key, peer in self.peers.items()}
        return taken if self.swarm is None else {**taken, "": self.swarm.taken}
