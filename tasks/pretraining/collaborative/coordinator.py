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

from tasks.contract import LOGS, StageError, UserError
from tasks.pretraining.collaborative import meeting, network, notebook, preflight, records, returning, serving, state
from tasks.pretraining.collaborative.donor import Donor
from tasks.pretraining.collaborative.engine import local_members
from tasks.pretraining.collaborative.keeper import Keeper
from tasks.pretraining.collaborative.passes import Doorkeeper, Register
from tasks.pretraining.collaborative.process import Stop, run_member
from tasks.pretraining.collaborative.publication import Publication
from tasks.pretraining.collaborative.records import Blackboard, PeerRecord, SwarmRecord
from tasks.pretraining.collaborative.roles import TRAINING
from tasks.pretraining.collaborative.view import View, advice
from tasks.store import home
from tasks.supervision import processes

logger = logging.getLogger("tasks.pretraining.collaborative.coordinator")

NOTEBOOK = "join.ipynb"
"""In the logs: for volunteers on Colab or Kaggle."""

FOUNDING_SECONDS = 600.0
"""How long the founders may take to start."""

SILENCE_SECONDS = 120.0
"""A run without any peer for so long fails; its checkpoint stays."""


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
        self._left = returning.read(folder)
        self._keeper = Keeper(manifest, work, tokenizer, pack)
        key = records.load_key(folder / "keys" / "coordinator.rsa")
        self._dht = network.start_dht(
            returning.listen_again(self._asked.listen, self._left),
            identity=folder / "keys" / "coordinator.identity",
            announce=self._asked.announce,
            record_validators=records.validators(self._run_id, key),
        )
        board = Blackboard(self._dht, self._run_id, key)
        if self._asked.access == "passes":
            for name in local_members(self._asked):  # they need no pass, but a key before they come
                records.load_key(folder / "keys" / f"{name}.rsa")
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
            peer_id=self._dht.peer_id.to_base58(),
        )
        artifacts = {manifest.tokenizer.path: tokenizer, manifest.pack.path: pack}
        serving.serve(self._dht, {place: folder.resolve() for place, folder in artifacts.items()}, pack.resolve())
        self._view = View(board, self._keeper.log, manifest, first, folder)
        self._port = returning.port_of(self._asked.listen, addresses)
        self._publication = Publication(
            self._dht,
            self._run_id,
            self._settings,
            self._view,
            self._keeper,
            folder,
            work,
            check_peers=lambda: self._check_local_peers(all_needed=False),
            pause=self._pause,
        )
        checkpoint = self._keeper.checkpoint
        place = meeting.Meeting(
            addresses=addresses,
            coordinator=records.key_digest(board.subkey),
            listen=network.listen_like(self._asked.listen),
            checkpoint=None if checkpoint is None else str(checkpoint),
        )
        if network.outside(addresses):
            notebook.write(work / LOGS / NOTEBOOK, addresses, self._asked.package, manifest.libraries)
        meeting.write(folder, "meeting", place)

    def run(self) -> None:
        """Coordinate until the end.

        Raises:
            UserError: the settings cannot work with these peers.
            StageError: no peers are left, or the peers' final weights differ too much.
        """
        try:
            if self._publication.is_taken:
                self._publication.run_without_peers(returning.RETURN_SECONDS if self._left.elsewhere else 0.0)
                return
            self._found()
            self._watch()
            self._publication.run()
        finally:
            self._donor.close()
            self._dht.shutdown()

    def _found(self) -> None:
        """Wait for the founders, check that their speed fits the settings, and let them begin."""
        began, wanted = time.monotonic(), self._asked.peers + self._asked.clients
        while True:
            training = [peer for peer in self._view.peers.values() if peer.role in TRAINING]
            rates = [peer.rate for peer in training if peer.rate > 0]
            self._view.message = f"{len(rates)} of {wanted} peers are ready" if wanted else "waiting for peers to join"
            waited = time.monotonic() - began
            if self._furthest or (len(rates) >= max(1, wanted) and waited > self._patience):
                break
            self._check_local_peers(all_needed=True)
            if wanted and waited > FOUNDING_SECONDS:
                raise StageError(
                    f"{len(rates)} of {wanted} peers came up within {FOUNDING_SECONDS:.0f} s; see {self._logs}, or "
                    "start fewer (pretraining.collaborative.peers)"
                )
            self._pause(0.2)
        problem = None if self._furthest else preflight.problem_with(self._settings, rates)
        if problem is not None:
            raise UserError(problem)
        self._view.message = ""
        self._view.begin(self._go_on())

    @property
    def _patience(self) -> float:
        """Seconds in which peers may call that have gone on without a coordinator."""
        return returning.RETURN_SECONDS if self._left.elsewhere else 0.0

    @property
    def _furthest(self) -> int:
        """The most global steps of the peers that have gone on without a coordinator; 0 if there are none."""
        if not self._left.elsewhere:
            return 0
        steps = [peer.step for peer in self._view.present if peer.state in ("training", "final")]
        return max((step for step in steps if step > self._keeper.step), default=0)

    def _go_on(self) -> float:
        """Continue the log from where the swarm is; the seconds of training until now."""
        log, keeper, reached = self._keeper.log, self._keeper, self._furthest
        if not reached:
            returning.forget(self._folder)
            self._left = returning.Left()
            log.go_on_from(keeper.step, keeper.unwritten, keeper.counts)
            return keeper.seconds
        logger.info("the peers went on without a coordinator, to step %d: so does the run", reached)
        if self._left.final_step is not None:
            self._view.tell(final_step=self._left.final_step)
        told = log.path.stat().st_mtime if log.path.exists() else time.time()
        return log.go_on_from(reached, keeper.unwritten, keeper.counts) + max(0.0, time.time() - told)

    def _note_elsewhere(self) -> None:
        """Note that peers from elsewhere take part, for a coordinator that may have to come back to them."""
        left = self._left.model_copy(update={"port": self._port or self._left.port, "elsewhere": True})
        if left != self._left and not self._view.peers.keys() <= returning.local_keys(self._folder):
            self._left = left
            returning.write(self._folder, left)

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
            self._note_elsewhere()
            self._note_deadline(step)
            view.message = advice(view)
            if view.present and not self._training:
                view.message = f"nobody trains at present: step {step} is kept for those who join"
            if step < view.swarm.final_step and self._due(step):
                self._take_state()
            self._pause(0.25)

    def _due(self, step: int) -> bool:
        every = (self._settings.checkpoint_every, self._settings.validate_every)
        return any(step // period > self._keeper.step // period for period in every)

    def _take_state(self) -> None:
        """Download the present state for a checkpoint, and validate it if that is due."""
        before = self._keeper.step
        found = state.download(
            self._dht,
            self._run_id,
            self._keeper.own,
            at_least=before + 1,
            seconds=120.0,
            told=lambda: records.sketches_of(self._view.peers.values()),
        )
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
        if self._training and still > longest:
            raise StageError(
                f"no global step was made for {still / 60:.0f} minutes after step {step}, though peers are there; see "
                f"{self._logs}, and run again to go on from step {self._keeper.step}"
            )

    def _note_deadline(self, step: int) -> None:
        """When the time is up, name a step soon to come as the last one, so that all peers end at the same."""
        minutes, view = self._asked.deadline_minutes, self._view
        if minutes is None or view.seconds < 60 * minutes or view.swarm.final_step < self._settings.steps:
            return
        if not self._training and step and any(peer.role == "keeper" and peer.step == step for peer in view.present):
            view.tell(final_step=step)  # nobody is there to make another one
            return
        if view.rate < 1e-3:
            return  # nothing was read this time
        # far enough that the word reaches everyone first
        last = min(self._settings.steps, step + 2 + int(4 * view.rate / self._settings.batch_size))
        logger.warning("the deadline of %g minutes has passed: step %d is the last", minutes, last)
        view.tell(final_step=last)
        self._left = self._left.model_copy(update={"final_step": last})
        returning.write(self._folder, self._left)

    @property
    def _training(self) -> list[PeerRecord]:
        """Peers and clients that take part at present."""
        return [peer for peer in self._view.present if peer.role in TRAINING]

    @property
    def _logs(self) -> Path:
        return self._work / LOGS / "peers"

    def _check_local_peers(self, *, all_needed: bool) -> None:
        """Fail with a local peer's own words if it has ended and was needed."""
        trainers = tuple(f"{role}-" for role in TRAINING)
        local = [one for name, one in processes(self._folder).items() if name.startswith(trainers)]
        gone = [one for one in local if one.exit_status is not None]
        if not gone or (not all_needed and (self._training or len(gone) < len(local))):
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
