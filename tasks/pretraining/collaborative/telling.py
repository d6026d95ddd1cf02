"""What a peer tells of itself: its record to the swarm, and its status to whoever started it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from tasks.pretraining.collaborative import status
from tasks.pretraining.collaborative.gradients import Gradients
from tasks.pretraining.collaborative.records import (
    SKETCHES_TOLD,
    STEPS_TOLD,
    Blackboard,
    PeerRecord,
    Sketched,
    StepEntry,
    key_digest,
)
from tasks.pretraining.collaborative.sharding import Taken
from tasks.pretraining.collaborative.watch import Watch

if TYPE_CHECKING:
    from tasks.pretraining.collaborative.member import Place
    from tasks.pretraining.collaborative.optimizer import PeerOptimizer

logger = logging.getLogger(__name__)

GOODBYE_SECONDS = 5.0
"""So long a member that leaves waits until its last record is written: it may hold steps that nobody else tells."""

TELL_SECONDS = 2.0
"""A peer tells its figures at every global step, and at least this often."""


class Teller:
    """Tells what one member does.

    Args:
        place: where and as whom.
        board: where records are written.
        watch: what is heard of the others.
        gradients: the member's computing, if it computes any.
    """

    def __init__(self, place: Place, board: Blackboard, watch: Watch, gradients: Gradients | None = None):
        self._place, self._board, self._watch, self._gradients = place, board, watch, gradients
        self._settings = place.manifest.settings.pretraining
        self.rate = 0.0
        """Sequences a second."""
        self.computed = 0
        """Sequences whose gradients were computed."""
        self.others = 0
        """Other peers that are alive."""
        self.proof: tuple[float, float] | None = None
        """Losses before and after the steps alone, of a peer that began the swarm."""
        self.weights = ""
        """Which weights this peer has at the end."""
        self.sketches: Mapping[int, str] = {}
        """Of the member's weights by global step."""
        self.bandwidth: Callable[[], float | None] = lambda: None
        """In Mb/s, if it is known."""
        self._entries: list[StepEntry] = []
        self._last: StepEntry | None = None
        self._given, self._missing = 0, 0
        self._told = 0.0

    def note(self, entries: Sequence[StepEntry], missing: int) -> None:
        """Take note of global steps that have passed, and of the sequences that the present one still needs."""
        self._entries = [*self._entries, *entries][-STEPS_TOLD:]
        if entries:
            self._last = entries[-1]
        self._given += sum(entry.samples for entry in entries)
        self._missing = missing

    def tell_in_time(
        self, state: Literal["starting", "training", "final"], step: int, waiting: PeerOptimizer | None = None
    ) -> None:
        """Tell the figures if it is time to; while ``waiting``, no samples tell the others that this peer is alive."""
        if time.monotonic() - self._told > TELL_SECONDS:
            self.tell(state, step)
            if waiting is not None:
                waiting.tracker.announce()

    def record(self, state: Literal["starting", "training", "final", "leaving"], step: int) -> PeerRecord:
        """What this member would tell now."""
        return PeerRecord(
            name=self._place.name,
            role=self._place.role,
            peer_id=self._board.dht.peer_id.to_base58(),
            state=state,
            step=step,
            rate=round(self.rate, 3),
            computed=self.computed,
            others=self.others,
            bandwidth=round(self.bandwidth() or 0.0, 3),
            sketches=tuple(
                Sketched(step=step, sketch=sketch) for step, sketch in sorted(self.sketches.items())[-SKETCHES_TOLD:]
            ),
            discarded=0 if self._gradients is None else self._gradients.discarded,
            taken=Taken() if self._gradients is None else self._gradients.sharding.taken,
            steps=tuple(self._entries),
            weights=self.weights,
            proof=self.proof,
        )

    def tell(self, state: Literal["starting", "training", "final", "leaving"], step: int) -> None:
        """Tell the figures now."""
        self._told = time.monotonic()
        swarm = self._watch.swarm
        logged = 0 if swarm is None else swarm.logged
        self._entries = [entry for entry in self._entries if entry.step > logged]
        record = self.record(state, step)
        told = self._board.tell_contribution(record, self._settings.collaborative.statistics_expiration_seconds)
        if state == "leaving":  # the DHT ends next, and would take the record with it
            try:
                told.result(GOODBYE_SECONDS)
            except Exception as error:
                logger.warning("the goodbye may not have arrived: %r", error)
        peers = {**self._watch.peers, key_digest(self._board.subkey): record}.values()
        here = {record.peer_id, *self._watch.alive}
        shown = [peer for peer in peers if peer.state != "leaving" and peer.peer_id in here]
        others = sum(peer.rate for peer in shown if peer.peer_id != record.peer_id)
        last = self._last
        status.write(
            self._place.folder,
            self._place.name,
            step=step,
            target=self._settings.steps if swarm is None else swarm.final_step,
            loss=None if last is None else last.mlm / max(1, last.masked),
            rate=sum(peer.rate for peer in shown),
            missing=self._missing,
            message="",
            peers=shown,
            given=self._given,
            share=record.rate / ((record.rate + others) or 1.0),
        )
