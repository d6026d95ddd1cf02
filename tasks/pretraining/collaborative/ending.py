"""How a peer ends: it averages the weights with all who came to the last step, and keeps them until they are taken."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import hivemind

from tasks.pretraining.collaborative import records
from tasks.pretraining.collaborative.optimizer import PeerOptimizer
from tasks.pretraining.collaborative.telling import Teller
from tasks.pretraining.collaborative.watch import SILENT_SECONDS, Watch
from tasks.pretraining.settings import PretrainingSettings

logger = logging.getLogger(__name__)

RELEASE_SECONDS = 600.0
"""At the end a peer keeps its weights ready so long for the coordinator to take them."""

LAST_AVERAGINGS = 3
"""How often peers try at the end to average their weights with all who are there."""


@dataclass(frozen=True)
class Ending:
    """The end of one peer.

    Args:
        dht: running.
        run_id: names the run.
        settings: how it was trained.
        watch: what is heard of the others.
        teller: tells of this peer.
        check_stop: waits so many seconds, and raises if the peer is asked to leave.
    """

    dht: hivemind.DHT
    run_id: str
    settings: PretrainingSettings
    watch: Watch
    teller: Teller
    check_stop: Callable[[float], None]

    def run(self, optimizer: PeerOptimizer) -> None:
        """Average the weights with all who came to the end, and keep them ready until they have been taken."""
        step = optimizer.local_epoch
        self.teller.tell("training", step)
        self._gather(optimizer)
        for _ in range(LAST_AVERAGINGS):
            others = optimizer.others
            if not others:
                break
            try:
                found = optimizer.average_weights() - 1
            except Exception as error:
                logger.warning("the last averaging of the weights failed: %r", error)
            else:
                logger.info("averaged the weights with %d of %d others", found, others)
                if found >= others:
                    break
        self.teller.tell("final", step)
        deadline = time.monotonic() + RELEASE_SECONDS
        while (swarm := self.watch.swarm) is None or not swarm.released:
            self.check_stop(0.2)
            self.teller.tell_in_time("final", step, optimizer)
            if time.monotonic() > deadline or self.watch.silence > SILENT_SECONDS:
                logger.warning("the coordinator has not taken the weights: leaving with step %d done", step)
                return

    def _gather(self, optimizer: PeerOptimizer) -> None:
        """Wait until all who are alive have come to the last step, for as long as an averaging may take."""
        deadline = time.monotonic() + self.settings.collaborative.averaging_timeout_seconds
        while time.monotonic() < deadline:
            progress = records.progress_of(self.dht, self.run_id)
            if all(entry.epoch >= optimizer.local_epoch for entry in progress) and len(progress) > optimizer.others:
                return
            self.check_stop(0.1)
            self.teller.tell_in_time("training", optimizer.local_epoch, optimizer)
