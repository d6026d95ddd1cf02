"""What a peer tells of itself: its record to the swarm, and its status to whoever started it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tasks.pretraining.collaborative import status
from tasks.pretraining.collaborative.gradients import Gradients
from tasks.pretraining.collaborative.records import STEPS_TOLD, Blackboard, PeerRecord, StepEntry
from tasks.pretraining.collaborative.watch import Watch
from tasks.pretraining.settings import PretrainingSettings

if TYPE_CHECKING:
    from tasks.pretraining.collaborative.optimizer import PeerOptimizer

TELL_SECONDS = 2.0
"""A peer tells its figures at every global step, and at least this often."""


class Teller:
    """Tells what one peer does.

    Args:
        name: how the peer is called in the ledger.
        board: where records are written.
        watch: what is heard of the others.
        gradients: the peer's computing.
        folder: where its status is written.
        settings: of the run.
    """

    def __init__(
        self,
        name: str,
        board: Blackboard,
        watch: Watch,
        gradients: Gradients,
        folder: Path,
        settings: PretrainingSettings,
    ):
        self._name, self._board, self._watch, self._gradients = name, board, watch, gradients
        self._folder, self._settings = folder, settings
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
        """What this peer would tell now."""
        return PeerRecord(
            name=self._name,
            peer_id=self._board.dht.peer_id.to_base58(),
            state=state,
            step=step,
            rate=round(self.rate, 3),
            computed=self.computed,
            others=self.others,
            discarded=self._gradients.discarded,
            taken=self._gradients.sharding.taken,
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
        self._board.tell_contribution(record, self._settings.collaborative.statistics_expiration_seconds)
        peers = {**self._watch.peers, self._gradients.sharding.peer: record}.values()
        shown = [peer for peer in peers if peer.state != "leaving"]
        last = self._last
        status.write(
            self._folder,
            self._name,
            step=step,
            target=self._settings.steps if swarm is None else swarm.final_step,
            loss=None if last is None else last.mlm / max(1, last.masked),
            rate=sum(peer.rate for peer in shown),
            missing=self._missing,
            message="",
            peers=shown,
            given=self._given,
        )
