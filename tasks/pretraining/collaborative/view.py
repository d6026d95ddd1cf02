"""What the coordinator sees of its swarm, and what it tells it: a thread that nothing else holds up."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from tasks.pretraining.collaborative import records, status
from tasks.pretraining.collaborative.alarms import Alarms
from tasks.pretraining.collaborative.log import StepLog, summary
from tasks.pretraining.collaborative.manifest import Manifest
from tasks.pretraining.collaborative.records import Blackboard, PeerRecord, SwarmRecord

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""How often the records are read."""

TELL_SECONDS = 1.0
"""How often the coordinator's word is repeated."""

SWARM_SECONDS = 60.0
"""The coordinator's word counts so long."""


class View(threading.Thread):
    """Reads the peers' records, writes their steps to the log, and repeats the coordinator's word.

    Args:
        board: where records are.
        log: of global steps.
        manifest: told to those who join.
        swarm: the coordinator's first word.
        folder: where the coordinator's status is written, for whoever shows it.
    """

    def __init__(self, board: Blackboard, log: StepLog, manifest: Manifest, swarm: SwarmRecord, folder: Path):
        super().__init__(name="view", daemon=True)
        self._board, self._log, self._before, self._manifest = board, log, 0.0, manifest
        self._folder = folder
        self.message = ""
        """What people should know."""
        self._final_step = swarm.final_step
        self._changing = threading.Lock()
        self.swarm = swarm
        """What the peers are told."""
        self.peers: dict[str, PeerRecord] = {}
        """All records that count, by key digest."""
        self.alive: frozenset[str] = frozenset()
        """libp2p identities of the peers that told their progress within the last seconds."""
        self.accumulated, self.rate = 0, 0.0
        """Sequences of the present global step; sequences a second of all peers."""
        self.reached = 0
        """The step of the published weights. Peers that have left tell theirs no more."""
        self._began: float | None = None
        self._alarms: Alarms | None = None
        self.start()

    @property
    def seconds(self) -> float:
        """Of training, over all processes."""
        return self._before + (0.0 if self._began is None else time.monotonic() - self._began)

    def begin(self, before: float) -> None:
        """Let the founders train, after so many seconds of training so far; from now on the log is written."""
        settings = self._manifest.settings.pretraining
        self._alarms = Alarms(settings.batch_size, settings.collaborative.target_group_size, time.monotonic())
        self._before, self._began = before, time.monotonic()
        self.tell(go=True)

    def tell(self, **changes: Any) -> None:
        """Change the coordinator's word, if anything is to change; it is told at once."""
        now = round(time.time(), 3)
        with self._changing:
            self.swarm = self.swarm.model_copy(update={**changes, "logged": self._log.written, "told": now})
            self._board.tell_swarm(self.swarm, SWARM_SECONDS)

    def run(self) -> None:
        """Read and tell until the process ends."""
        told = manifest_told = -float("inf")
        while True:
            now = time.monotonic()
            try:
                self.look()
                self.write_status()
                if now - told > TELL_SECONDS:
                    self.tell()
                    told = now
                if now - manifest_told > records.MANIFEST_SECONDS / 4:
                    self._board.tell_manifest(self._manifest)
                    manifest_told = now
            except Exception:
                logger.exception("the peers' records could not be read")
            time.sleep(LOOK_SECONDS)

    def look(self, *, last: bool = False) -> None:
        """Read all records once; ``last``: nothing more will come, so write the lines of all steps."""
        progress = records.progress_of(self._board.dht, self._board.run_id)
        self.peers = self._board.contributions()
        self.alive = frozenset(records.base58(entry.peer_id) for entry in progress)
        newest = max((entry.epoch for entry in progress), default=0)
        self.accumulated = sum(entry.samples_accumulated for entry in progress if entry.epoch == newest)
        self.rate = sum(entry.samples_per_second for entry in progress)
        with self._changing:
            taken = self.swarm.taken
            for peer in self.peers.values():
                taken = taken | peer.taken
            self.swarm = self.swarm.model_copy(update={"taken": taken})
        if self._began is not None:
            self._log.hear(self.peers, self.seconds, last=last)
        if self._alarms is not None and self.step < self.swarm.final_step:
            lines = tuple(self._log.recent)
            self._alarms.look(time.monotonic(), self.step, self.rate, self.present, lines)

    def write_status(self) -> None:
        """Write the present state for whoever shows it."""
        recent = summary(tuple(self._log.recent))
        by_peer = recent.pop("peers")
        shown = [*self.present, *(peer for peer in self.peers.values() if peer.state == "starting")]
        status.write(
            self._folder,
            "coordinator",
            step=max(self.step, self.swarm.step, self.reached),
            target=self.swarm.final_step,
            loss=self._log.loss,
            rate=self.rate,
            missing=self._manifest.settings.pretraining.batch_size - self.accumulated,
            message=self.message,
            peers={peer.peer_id: peer for peer in shown}.values(),
            alarms={} if self._alarms is None else self._alarms.active,
            outcomes={self.peers[key].peer_id: counts for key, counts in by_peer.items() if key in self.peers},
            recent=recent,
        )

    @property
    def step(self) -> int:
        """The most global steps that a peer has."""
        steps = (peer.step for peer in self.peers.values())
        return max((step for step in steps if step <= self._final_step), default=0)

    @property
    def present(self) -> list[PeerRecord]:
        """Peers that take part at present."""
        return [peer for peer in self.peers.values() if peer.peer_id in self.alive and peer.state != "leaving"]


def advice(view: View) -> str:
    """What to change if the swarm's averaging does not get on."""
    recent = [peer.steps[-1].outcome for peer in view.present if peer.steps]
    if "no group" in recent:
        return (
            "a peer could not find a group in time and went on with its own gradients: if it stays so, raise "
            "collaborative.matchmaking_seconds or batch_size"
        )
    if "failed" in recent:
        return "an averaging broke off: if it stays so, raise collaborative.averaging_timeout_seconds"
    return ""
