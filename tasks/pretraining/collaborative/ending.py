"""How a peer ends: it averages the weights with all who came to the last step, and keeps them until they are taken.

An averaging may leave someone out: a peer that is late, that others no longer know of, or whose messages were lost. It
would end with other weights than the rest. So each tells which weights it has, and takes over those that most have.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import hivemind

from tasks.pretraining.collaborative import records, state
from tasks.pretraining.collaborative.optimizer import PeerOptimizer
from tasks.pretraining.collaborative.records import PeerRecord
from tasks.pretraining.collaborative.roles import HOLDING
from tasks.pretraining.collaborative.telling import Teller
from tasks.pretraining.collaborative.watch import ALONE_SECONDS, DIAL_SECONDS, Watch
from tasks.pretraining.settings import PretrainingSettings

logger = logging.getLogger(__name__)

RELEASE_SECONDS = 600.0
"""At the end a peer keeps its weights ready so long for a coordinator that is there to take them."""

LAST_AVERAGINGS = 3
"""How often peers try at the end to average their weights with all who are there."""

CATCH_UP_SECONDS = 2.0
"""How often a peer at the end looks whether others have agreed on other weights than its own."""


def leading_weights(peers: Iterable[PeerRecord]) -> str:
    """Which weights most of the members have that are furthest and can hand them on; of several the first by name.

    Empty if there are no such members.
    """
    ended = [peer for peer in peers if peer.role in HOLDING]
    furthest = max((peer.step for peer in ended), default=0)
    counts = Counter(peer.weights for peer in ended if peer.step == furthest)
    return min(counts, key=lambda weights: (-counts[weights], weights), default="")


def name_of_weights(step: int, group: Iterable[str]) -> str:
    """What weights are called that this group of libp2p identities averaged at this step."""
    return hashlib.sha256(" ".join([str(step), *sorted(group)]).encode()).hexdigest()[:16]


@dataclass
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
    _caught_up: float = field(default=0.0, init=False)

    def run(self, optimizer: PeerOptimizer) -> None:
        """Average the weights with all who came to the end, and keep them ready until they have been taken."""
        self.teller.tell("training", optimizer.local_epoch)
        self._gather(optimizer)
        self.teller.weights = name_of_weights(optimizer.local_epoch, self._average(optimizer))
        self.teller.tell("final", optimizer.local_epoch)
        deadline = time.monotonic() + RELEASE_SECONDS
        while (swarm := self.watch.swarm) is None or not swarm.released:
            self.check_stop(0.2)
            self._catch_up(optimizer)
            self.teller.tell_in_time("final", optimizer.local_epoch, optimizer)
            if self.watch.silence > DIAL_SECONDS:
                deadline = time.monotonic() + RELEASE_SECONDS  # the time is that of a coordinator that is there
            if time.monotonic() > deadline or self.watch.silence > ALONE_SECONDS:
                logger.warning(
                    "the coordinator has not taken the weights: leaving with step %d", optimizer.local_epoch
                )
                return

    def _average(self, optimizer: PeerOptimizer) -> list[str]:
        """Average the weights with all others; the libp2p identities of those that have the same weights now."""
        group = [self.dht.peer_id.to_base58()]
        for _ in range(LAST_AVERAGINGS):
            others = optimizer.others
            if not others:
                break
            try:
                group = optimizer.average_weights()
            except Exception as error:
                logger.warning("the last averaging of the weights failed: %r", error)
            else:
                logger.info("averaged the weights with %d of %d others", len(group) - 1, others)
                if len(group) > others:
                    break
        return group

    def _catch_up(self, optimizer: PeerOptimizer) -> None:
        """Take over the weights that most of the others ended with, if this peer has others."""
        if time.monotonic() - self._caught_up < CATCH_UP_SECONDS:
            return
        self._caught_up = time.monotonic()
        peer_id = self.dht.peer_id.to_base58()
        others = [one for one in self.watch.peers.values() if one.state == "final" and one.peer_id != peer_id]
        own = self.teller.record("final", optimizer.local_epoch)
        weights = leading_weights([own, *others])
        leading = [one for one in others if one.weights == weights and one.role in HOLDING]
        if weights == own.weights or not leading or own.role == "auxiliary":
            return
        donors, step = [one.peer_id for one in leading], max(one.step for one in leading)
        timeout = self.settings.collaborative.averaging_timeout_seconds
        found = state.download(
            self.dht, self.run_id, optimizer.own_state(), at_least=step, only=donors, seconds=4 * timeout
        )
        if found is None:
            logger.warning("%d others ended with other weights, and none has sent them", len(donors))
            return
        optimizer.take_over(found)
        self.teller.weights = weights
        self.teller.tell("final", optimizer.local_epoch)
        logger.info("took over the final weights of %s", found.donor)

    def _gather(self, optimizer: PeerOptimizer) -> None:
        """Wait until all who are alive have come to the last step, for as long as an averaging may take."""
        deadline = time.monotonic() + self.settings.collaborative.averaging_timeout_seconds
        while time.monotonic() < deadline:
            progress = records.progress_of(self.dht, self.run_id)
            if all(entry.epoch >= optimizer.local_epoch for entry in progress) and len(progress) > optimizer.others:
                return
            self.check_stop(0.1)
            self.teller.tell_in_time("training", optimizer.local_epoch, optimizer)
