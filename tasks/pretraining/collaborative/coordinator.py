"""The coordinator of a swarm: welcomes peers, watches their progress, keeps checkpoints, and takes the final weights.

``python -P -m tasks.pretraining.collaborative.coordinator FOLDER WORK TOKENIZER PACK``: FOLDER is the swarm's with
``manifest.json``, WORK the stage's. It trains nothing itself. What it finds goes to ``FOLDER/coordinator.status.json``
(the present state, for whoever shows it) and at the end to ``FOLDER/result.json`` (the stage's metrics).
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path
from typing import NoReturn

from tasks import durable
from tasks.contract import LOGS, StageError, UserError
from tasks.pretraining.collaborative import meeting, network, preflight, records, state
from tasks.pretraining.collaborative.donor import Donor
from tasks.pretraining.collaborative.keeper import Keeper
from tasks.pretraining.collaborative.log import ledger, steps_of
from tasks.pretraining.collaborative.passes import Doorkeeper, Register
from tasks.pretraining.collaborative.process import Stop, run_member
from tasks.pretraining.collaborative.records import Blackboard, SwarmRecord
from tasks.pretraining.collaborative.view import View, advice
from tasks.store import home
from tasks.supervision import processes

logger = logging.getLogger("tasks.pretraining.collaborative.coordinator")

DISTANCE_BOUND = 1e-3
"""Largest relative L2 distance between two peers' final weights. Averaging in float16 leaves at most 4e-4 if both
round independently: sqrt(2) times the root mean square of its rounding, 2**-11 / sqrt(3) relative to a value."""

COMPARED = 8
"""Most peers whose final weights are downloaded and compared."""

DOWNLOAD_SECONDS = 300.0
"""How long one peer may take to send its final weights."""

FOUNDING_SECONDS = 600.0
"""How long the founders may take to start."""

SILENCE_SECONDS = 120.0
"""A run without any peer for so long fails; its checkpoint stays."""

ENDING_SECONDS = 60.0
"""How long peers may take to come to the last step and average their weights, beyond four averaging timeouts."""

RELEASE_SECONDS = 2.5
"""Until all peers know that they may leave: the coordinator tells it within a second, they look once a second."""


class Coordinator:
    """One run of the coordinator.

    Args:
        folder: the swarm's.
        work: the stage's work folder: gets checkpoints, ``checkpoint/`` and ``logs/``.
        tokenizer: the tokenizer's artifact.
        pack: the packed corpus' artifact.
        stop: set when the run is to end at once.
    """

    def __init__(self, folder: Path, work: Path, tokenizer: Path, pack: Path, stop: Stop):
        self._folder, self._work, self._stop = folder, work, stop
        manifest = meeting.read_manifest(folder)
        self._run_id, self._settings = manifest.run_id, manifest.settings.pretraining
        self._asked = self._settings.collaborative
        self._keeper = Keeper(manifest, work, tokenizer, pack)
        key = records.load_key(folder / "keys" / "coordinator.rsa")
        self._dht = network.start_dht(
            self._asked.listen,
            identity=folder / "keys" / "coordinator.identity",
            announce=self._asked.announce,
            record_validators=records.validators(self._run_id, key),
        )
        board = Blackboard(self._dht, self._run_id, key)
        if self._asked.access == "passes":
            for number in range(self._asked.peers):  # local peers need no pass, but a key before they come
                records.load_key(folder / "keys" / f"peer-{number}.rsa")
            Doorkeeper(board, self._dht.gate, Register(home() / "passes"), folder / "keys")
        addresses = tuple(str(address) for address in self._dht.get_visible_maddrs(latest=True))
        logger.info("run %s, after step %d, at %s", self._run_id, self._keeper.step, " ".join(addresses))
        self._donor = Donor(self._dht, self._run_id, self._keeper.new_model(), self._settings)
        if self._keeper.saved is not None:
            self._donor.hold(self._keeper.saved)
        first = SwarmRecord(
            final_step=self._settings.steps,
            step=self._keeper.step,
            go=False,
            released=False,
            taken=self._keeper.taken,
        )
        self._view = View(board, self._keeper.log, self._keeper.seconds, manifest, first, folder)
        checkpoint = self._keeper.checkpoint
        place = meeting.Meeting(
            addresses=addresses,
            coordinator=records.key_digest(board.subkey),
            listen=network.listen_like(self._asked.listen),
            checkpoint=None if checkpoint is None else str(checkpoint),
        )
        meeting.write(folder, "meeting", place)

    def run(self) -> None:
        """Coordinate until the end.

        Raises:
            UserError: the settings cannot work with these peers.
            StageError: no peers are left, or the peers' final weights differ too much.
        """
        try:
            self._found()
            self._watch()
            self._end()
        finally:
            self._donor.close()
            self._dht.shutdown()

    def _found(self) -> None:
        """Wait for the founders, check that their speed fits the settings, and let them begin."""
        deadline, wanted = time.monotonic() + FOUNDING_SECONDS, self._asked.peers
        while True:
            rates = [peer.rate for peer in self._view.peers.values() if peer.rate > 0]
            self._view.message = f"{len(rates)} of {wanted} peers are ready" if wanted else "waiting for peers to join"
            if len(rates) >= max(1, wanted):
                break
            self._check_local_peers(all_needed=True)
            if wanted and time.monotonic() > deadline:
                raise StageError(
                    f"{len(rates)} of {wanted} peers came up within {FOUNDING_SECONDS:.0f} s; see {self._logs}, or "
                    "start fewer (pretraining.collaborative.peers)"
                )
            self._pause(0.2)
        problem = preflight.problem_with(self._settings, rates)
        if problem is not None:
            raise UserError(problem)
        self._view.message = ""
        self._view.begin()

    def _watch(self) -> None:
        """Keep checkpoints and validate until the peers have come to the last step."""
        view = self._view
        last_sign = progressed = time.monotonic()
        step = self._keeper.step
        while step < view.swarm.final_step:
            now = time.monotonic()
            if view.present:
                last_sign = now
            if view.step > step:
                step, progressed = view.step, now
            self._check_local_peers(all_needed=False)
            if now - last_sign > SILENCE_SECONDS:
                raise StageError(
                    f"no peer was heard of for {SILENCE_SECONDS:.0f} s, after step {step}; run again to go on from "
                    f"step {self._keeper.step}, and see {self._logs}"
                )
            self._check_progress(now - progressed, step)
            self._note_deadline(step)
            view.message = advice(view, self._settings, now - progressed)
            if step < view.swarm.final_step and self._due(step):
                self._take_state()
            self._pause(0.25)

    def _due(self, step: int) -> bool:
        every = (self._settings.checkpoint_every, self._settings.validate_every)
        return any(step // period > self._keeper.step // period for period in every)

    def _take_state(self) -> None:
        """Download the present state for a checkpoint, and validate it if that is due."""
        before = self._keeper.step
        found = state.download(self._dht, self._run_id, self._keeper.own, at_least=before + 1, seconds=120.0)
        if found is None:
            logger.warning("no peer sent its state after step %d; it is tried again", before)
            return
        if found.step // self._settings.validate_every > before // self._settings.validate_every:
            self._keeper.validate(found)
        self._view.look()  # the log has to know all steps until the checkpoint's
        self._keeper.save(found, self._view.swarm.taken, self._view.seconds)
        self._donor.hold(found)
        self._view.tell(step=found.step)

    def _check_progress(self, still: float, step: int) -> None:
        """Fail when peers are there and no step comes of it: a step that never ends is not waited for for ever."""
        rate = self._view.rate
        usual = self._settings.batch_size / rate if rate > 1e-3 else 0.0
        longest = max(600.0, 20 * usual + 10 * self._asked.averaging_timeout_seconds)
        if self._view.present and still > longest:
            raise StageError(
                f"no global step was made for {still / 60:.0f} minutes after step {step}, though peers are there; see "
                f"{self._logs}, and run again to go on from step {self._keeper.step}"
            )

    def _note_deadline(self, step: int) -> None:
        """When the time is up, name a step soon to come as the last one, so that all peers end at the same."""
        minutes, view = self._asked.deadline_minutes, self._view
        if minutes is None or view.seconds < 60 * minutes or view.swarm.final_step < self._settings.steps:
            return
        if view.rate < 1e-3:
            return  # nothing was read this time
        # far enough that the word reaches everyone first
        last = min(self._settings.steps, step + 2 + int(4 * view.rate / self._settings.batch_size))
        logger.warning("the deadline of %g minutes has passed: step %d is the last", minutes, last)
        view.tell(final_step=last)

    def _end(self) -> None:
        """Compare the peers' final weights, publish them, and let the peers go."""
        view, final = self._view, self._view.swarm.final_step
        deadline = time.monotonic() + ENDING_SECONDS + 4 * self._asked.averaging_timeout_seconds
        while True:
            # one that heard of an earlier end too late is a little further
            arrived = [peer for peer in view.present if peer.state == "final" and peer.step >= final]
            late = [peer for peer in view.present if peer.state == "training"]
            view.message = "the peers average their weights"
            if arrived and (not late or time.monotonic() > deadline):
                break
            if time.monotonic() > deadline:
                raise StageError(
                    f"no peer came to the end of step {final} with its weights averaged; run again to go on from the "
                    f"last checkpoint, and see {self._logs}"
                )
            self._check_local_peers(all_needed=False)
            self._pause(0.2)
        last = max(peer.step for peer in arrived)
        names = {peer.peer_id: peer.name for peer in arrived if peer.step == last}
        found: dict[str, state.State] = {}
        for peer_id in sorted(names, key=lambda one: names[one])[:COMPARED]:
            one = state.download(
                self._dht, self._run_id, self._keeper.own, at_least=last, only=[peer_id], seconds=DOWNLOAD_SECONDS
            )
            if one is not None:
                found[peer_id] = one
        if len(found) < min(2, len(names)):
            raise StageError(
                f"{len(found)} of {len(names)} peers sent their final weights; run again to go on from step "
                f"{self._keeper.step}, and see {self._logs}"
            )
        distance = self._compare(found, names)
        view.look(last=True)
        self._keeper.validate(next(iter(found.values())))
        end = "target" if last == self._settings.steps else "deadline"
        facts = {"peers": [names[peer_id] for peer_id in found], "distance": distance, "bound": DISTANCE_BOUND}
        book = ledger(steps_of(self._work / LOGS / "training.jsonl"), self._settings, end, facts)
        durable.write_json(self._work / LOGS / "ledger.json", book)
        durable.write_json(self._folder / "result.json", self._keeper.publish(book))
        view.tell(released=True)
        view.message = "done"
        self._pause(RELEASE_SECONDS)

    def _compare(self, found: dict[str, state.State], names: dict[str, str]) -> float | None:
        """The largest distance between two peers' weights; None if there is only one.

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
    def _logs(self) -> Path:
        return self._work / LOGS / "peers"

    def _check_local_peers(self, *, all_needed: bool) -> None:
        """Fail with a local peer's own words if it has ended and was needed."""
        local = [one for name, one in processes(self._folder).items() if name.startswith("peer-")]
        gone = [one for one in local if one.exit_status is not None]
        if not gone or (not all_needed and (self._view.present or len(gone) < len(local))):
            return
        for one in gone:
            told = self._folder / f"{one.name}.error"
            if told.exists():
                kind = UserError if one.exit_status == 2 else StageError
                raise kind(told.read_text(encoding="utf-8"))
        how = ", ".join(f"{one.name}: status {one.exit_status}" for one in gone)
        raise StageError(f"peers have ended ({how}); run again to go on from the last checkpoint; see {self._logs}")

    def _pause(self, seconds: float) -> None:
        if self._stop.asked.wait(seconds):
            raise StageError("the run was ended; run again to go on from the last checkpoint")


def main() -> NoReturn:
    """Run the coordinator; its error, if any, goes to ``FOLDER/coordinator.error`` as one line."""
    parser = argparse.ArgumentParser()
    for place in ("folder", "work", "tokenizer", "pack"):
        parser.add_argument(place, type=Path)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    run_member(arguments.folder, "coordinator", lambda stop: Coordinator(**vars(arguments), stop=stop).run())


if __name__ == "__main__":
    main()
