"""The end of a run as its coordinator sees it: take the final weights, compare them, publish, let the peers go."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hivemind

from tasks import durable
from tasks.contract import LOGS, StageError
from tasks.pretraining.collaborative import state
from tasks.pretraining.collaborative.ending import leading_weights
from tasks.pretraining.collaborative.keeper import Keeper
from tasks.pretraining.collaborative.log import ledger, steps_of
from tasks.pretraining.collaborative.records import PeerRecord
from tasks.pretraining.collaborative.roles import HOLDING
from tasks.pretraining.collaborative.view import View
from tasks.pretraining.settings import PretrainingSettings

logger = logging.getLogger(__name__)

DISTANCE_BOUND = 1e-3
"""Largest relative L2 distance between two peers' final weights. Averaging in float16 leaves at most 4e-4 if both
round independently: sqrt(2) times the root mean square of its rounding, 2**-11 / sqrt(3) relative to a value."""

COMPARED = 8
"""Most peers whose final weights are downloaded and compared."""

DOWNLOAD_SECONDS = 300.0
"""How long one peer may take to send its final weights."""

ENDING_SECONDS = 60.0
"""How long peers may take to come to the last step and average their weights, beyond four averaging timeouts."""

RELEASE_SECONDS = 2.5
"""Until all peers know that they may leave: the coordinator tells it within a second, they look once a second."""


@dataclass(frozen=True)
class Publication:
    """The end of a run.

    Args:
        dht: the coordinator's.
        run_id: names the run.
        settings: how it was trained.
        view: what is seen of the swarm.
        keeper: writes the result.
        folder: the swarm's.
        work: the stage's work folder.
        check_peers: fails if the local peers have all ended.
        pause: waits so many seconds, and raises if the run is to end at once.
    """

    dht: hivemind.DHT
    run_id: str
    settings: PretrainingSettings
    view: View
    keeper: Keeper
    folder: Path
    work: Path
    check_peers: Callable[[], None]
    pause: Callable[[float], None]

    @property
    def is_taken(self) -> bool:
        """Whether an earlier coordinator had the final weights already, and was ended before it could publish them."""
        if self.keeper.saved is None or not self._book_file.exists():
            return False
        book = json.loads(self._book_file.read_text(encoding="utf-8"))
        return bool(self.keeper.step >= book["step"])

    def run(self) -> None:
        """Compare the peers' final weights, publish them, and let the peers go.

        Raises:
            StageError: no peer has come to the end, or the peers' weights differ too much.
        """
        view, final = self.view, self.view.swarm.final_step
        view.message = "the peers average their weights"
        arrived = self._wait_for_peers(final)
        last = max(peer.step for peer in arrived)
        names = {peer.peer_id: peer.name for peer in arrived if peer.step == last}
        found: dict[str, state.State] = {}
        for peer_id in sorted(names, key=lambda one: names[one])[:COMPARED]:
            one = state.download(
                self.dht, self.run_id, self.keeper.own, at_least=last, only=[peer_id], seconds=DOWNLOAD_SECONDS
            )
            if one is not None:
                found[peer_id] = one
        if len(found) < min(2, len(names)):
            raise StageError(
                f"{len(found)} of {len(names)} peers sent their final weights; run again to go on from step "
                f"{self.keeper.step}, and see {self._logs}"
            )
        distance = self.compare(found, names)
        view.look(last=True)
        published = next(iter(found.values()))
        self.keeper.validate(published)
        end = "target" if last == self.settings.steps else "deadline"
        facts = {"peers": [names[peer_id] for peer_id in found], "distance": distance, "bound": DISTANCE_BOUND}
        book = ledger(
            steps_of(self.work / LOGS / "training.jsonl"), self.settings, end, facts, self.keeper.log.computed
        )
        durable.write_json(self._book_file, book)
        if published.step > self.keeper.step:  # from now on the run can be published without any peer
            self.keeper.save(published, view.swarm.taken, view.seconds)
        self._publish(book, RELEASE_SECONDS)

    def run_without_peers(self, seconds: float) -> None:
        """Publish what an earlier coordinator has taken, and let the peers go that wait within so many seconds."""
        assert self.keeper.saved is not None
        logger.info("the final weights of step %d were taken before", self.keeper.step)
        self.keeper.validate(self.keeper.saved)
        self._publish(json.loads(self._book_file.read_text(encoding="utf-8")), max(seconds, RELEASE_SECONDS))

    def _publish(self, book: dict[str, Any], seconds: float) -> None:
        durable.write_json(self.folder / "result.json", self.keeper.publish(book))
        self.view.reached = self.keeper.step
        self.view.tell(released=True)
        self.view.message = "done"
        self.pause(seconds)

    def _wait_for_peers(self, final: int) -> list[PeerRecord]:
        """The peers that are at the end with the weights that most of them have, once there are no others."""
        deadline = time.monotonic() + ENDING_SECONDS + 4 * self.settings.collaborative.averaging_timeout_seconds
        while True:
            # one that heard of an earlier end too late is a little further
            ended = [
                peer
                for peer in self.view.present
                if peer.state == "final" and peer.step >= final and peer.role in HOLDING
            ]
            weights = leading_weights(ended)
            arrived = [peer for peer in ended if peer.weights == weights]
            late = len(ended) > len(arrived) or any(peer.state == "training" for peer in self.view.present)
            if arrived and (not late or time.monotonic() > deadline):
                return arrived
            if time.monotonic() > deadline:
                raise StageError(
                    f"no peer came to the end of step {final} with its weights averaged; run again to go on from the "
                    f"last checkpoint, and see {self._logs}"
                )
            self.check_peers()
            self.pause(0.2)

    def compare(self, found: dict[str, state.State], names: dict[str, str]) -> float | None:
        """The largest distance between two peers' weights; None if there is only one.

        Args:
            found: the peers' states by libp2p identity.
            names: what the peers are called.

        Raises:
            StageError: it is above the bound.
        """
        if len(found) < 2:
            return None
        one, other, distance = state.most_distant(found)
        logger.info("the final weights of %s and %s differ by %.3g", names[one], names[other], distance)
        if not distance <= DISTANCE_BOUND:
            raise StageError(
                f"the final weights of two peers differ by a relative L2 distance of {distance:.2g}, more "
                f"than {DISTANCE_BOUND:g}: their last averaging failed; run again to go on from the last checkpoint "
                f"with a longer pretraining.collaborative.averaging_timeout_seconds, and see {self._logs}"
            )
        return distance

    @property
    def _book_file(self) -> Path:
        return self.work / LOGS / "ledger.json"

    @property
    def _logs(self) -> Path:
        return self.work / LOGS / "peers"
