"""A peer of a swarm: computes gradients on its share of the data and takes every global step with the others.

``python -P -m tasks.pretraining.collaborative.peer FOLDER NAME`` with ``--data TOKENIZER PACK`` for a local peer,
which finds the swarm by the files in FOLDER, or ``--join MULTIADDR... --store STORE``: one process of its own, since
hivemind needs the main thread, forks, and leaves SIGINT ignored. Its standard input is the lifeline to whoever
owns it; SIGTERM makes it say goodbye and leave.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path
from typing import NoReturn

import hivemind
import torch
from hivemind.utils.crypto import RSAPrivateKey
from transformers import AutoTokenizer, PreTrainedModel

from tasks.contract import StageError
from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.collaborative import identities, joining, meeting, network, passes, proof, records
from tasks.pretraining.collaborative.ending import Ending
from tasks.pretraining.collaborative.gradients import Gradients, Sums
from tasks.pretraining.collaborative.manifest import Manifest
from tasks.pretraining.collaborative.meeting import Meeting
from tasks.pretraining.collaborative.optimizer import PeerOptimizer
from tasks.pretraining.collaborative.process import Stop, run_member
from tasks.pretraining.collaborative.records import Blackboard, SwarmRecord
from tasks.pretraining.collaborative.sharding import Sharding, Taken
from tasks.pretraining.collaborative.state import load_checkpoint
from tasks.pretraining.collaborative.telling import Teller
from tasks.pretraining.collaborative.watch import Watch
from tasks.pretraining.models import build_model
from tasks.pretraining.precision import choose_member_hardware

logger = logging.getLogger("tasks.pretraining.collaborative.peer")

GO_SECONDS = 600.0
"""A peer waits so long for the coordinator to let it begin."""

SEEN_SECONDS = 5.0
"""Peers that begin together wait so long until they see each other."""

ALONE_SECONDS = 1800.0
"""A peer trains on so long without a word of the coordinator: nobody keeps or takes what it does."""

UNUSABLE = 50
"""Batches in a row without a finite gradient after which a peer gives up. In fp16 each one halves the scale, so from
2**24 down to 1 it has been tried at every scale by then."""

DOWNLOADS = 3
"""Failed downloads of the swarm's state in a row after which a peer gives up."""


class Peer:
    """One peer from its start to its goodbye.

    Args:
        dht: running, with the run's validators.
        place: who coordinates, and from where to go on.
        manifest: what is trained.
        name: how the peer is called in the ledger.
        key: signs its records; its digest decides which shards are its own.
        tokenizer: the tokenizer's artifact.
        pack: the packed corpus' artifact.
        folder: where its status is written.
        stop: set when the peer should leave.
    """

    def __init__(
        self,
        dht: hivemind.DHT,
        place: Meeting,
        manifest: Manifest,
        name: str,
        key: RSAPrivateKey,
        tokenizer: Path,
        pack: Path,
        folder: Path,
        stop: Stop,
    ):
        self._name, self._key, self._dht, self._stop = name, key, dht, stop
        self._run_id, self._settings = manifest.run_id, manifest.settings.pretraining
        self._board = Blackboard(dht, self._run_id, key)
        asks_for_passes = self._settings.collaborative.access == "passes"
        if asks_for_passes:
            dht.gate.ask_for_passes(place.coordinator, [address.rpartition("/")[2] for address in place.addresses])
        self._watch = Watch(self._board, place.coordinator, asks_for_passes)
        hardware = choose_member_hardware(self._settings)
        digest = records.key_digest(self._board.subkey)
        threads = torch.get_num_threads()
        logger.info("%s (%s): %s, %s, %d threads", name, digest, hardware.device.type, hardware.precision, threads)

        reader = AutoTokenizer.from_pretrained(tokenizer)
        self._model: PreTrainedModel = build_model(
            manifest.settings.model, reader, self._settings.objective, self._settings.seed, hardware.attention
        ).to(hardware.device)
        self._model.train()
        torch.manual_seed(self._settings.seed + int(digest, 16) % 2**31)  # dropout of its own
        self._start = None if place.checkpoint is None else load_checkpoint(Path(place.checkpoint))
        train = PackedSplit(pack, "train")
        taken = Taken() if self._start is None else self._start[1]
        self._gradients = Gradients(
            train,
            Collator(reader, self._settings.masking, self._settings.objective == "mlm+sop"),
            Sharding(len(train), self._settings.seed, digest, taken),
            hardware,
            self._settings.micro_batch_size,
        )
        self._teller = Teller(name, self._board, self._watch, self._gradients, folder, self._settings)

    def run(self) -> None:
        """Take part until the last step, or until asked to leave.

        Raises:
            StageError: this peer does not learn, or gets no state of the swarm.
        """
        optimizer: PeerOptimizer | None = None
        try:
            word = self._wait_for_word()
            self._gradients.sharding.hear(self._watch.taken)
            if word.step or word.go:
                shown = proof.measure(self._model, self._gradients)
            else:
                advice = f"lower pretraining.learning_rate ({self._settings.learning_rate:g})"
                shown = proof.prove(self._model, self._gradients, self._optimizer_of_proof, advice)
            self._teller.rate, self._teller.proof = shown.rate, shown.losses
            optimizer = self._optimizer()
            self._take_state(optimizer, word)
            self._teller.tell("starting", optimizer.local_epoch)
            if not word.go:
                self._begin_together(optimizer)
            self._train_on(optimizer)
            Ending(self._dht, self._run_id, self._settings, self._watch, self._teller, self._check_stop).run(optimizer)
        except _Left:
            logger.info("leaving")
        finally:
            if optimizer is not None:
                self._teller.tell("leaving", optimizer.local_epoch)
                optimizer.shutdown()
            self._dht.shutdown()

    def _take_state(self, optimizer: PeerOptimizer, word: SwarmRecord) -> None:
        """Go on from the checkpoint on this machine's disk, or from what the swarm has."""
        if self._start is not None:
            optimizer.take_over(self._start[0])
        elif word.step or word.go:
            optimizer.load_state_from_peers()
        if optimizer.local_epoch < word.step:
            raise StageError(
                f"{self._name}: the swarm is at step {word.step} or later, and nobody sent its state; check the "
                "connection and join again"
            )

    def _wait_for_word(self) -> SwarmRecord:
        """What the coordinator says, once it says something."""
        deadline = time.monotonic() + GO_SECONDS
        while (swarm := self._watch.swarm) is None:
            self._check_stop(0.1)
            if time.monotonic() > deadline:
                raise StageError(f"{self._name} heard nothing of the coordinator; is it running?")
        return swarm

    def _begin_together(self, optimizer: PeerOptimizer) -> None:
        """Wait until the coordinator lets all begin, and then until the others are seen."""
        step, deadline = optimizer.local_epoch, time.monotonic() + GO_SECONDS
        while not self._wait_for_word().go:
            self._check_stop(0.1)
            self._teller.tell_in_time("starting", step, optimizer)
            if time.monotonic() > deadline:
                raise StageError(f"{self._name} waited {GO_SECONDS:.0f} s for the others; start them and join again")
        optimizer.tracker.announce()
        deadline = time.monotonic() + SEEN_SECONDS
        while optimizer.others < len(self._board.contributions()) - 1 and time.monotonic() < deadline:
            self._check_stop(0.1)

    def _check_stop(self, seconds: float = 0.0) -> None:
        """Wait so long, and leave at once if asked to."""
        if self._stop.asked.wait(seconds):
            raise _Left

    def _optimizer_of_proof(self, model: PreTrainedModel) -> PeerOptimizer:
        """A swarm of this peer alone, at the rate after the warmup: with the first ones nothing would move."""
        settings = self._settings.model_copy(update={"warmup_steps": 0, "schedule_steps": 10**9})
        run_id = f"{self._run_id}-proof-{self._gradients.sharding.peer}"
        return PeerOptimizer(model, settings, dht=self._dht, run_id=run_id, target=self._gradients.rows)

    def _optimizer(self) -> PeerOptimizer:
        step_seconds = self._settings.batch_size / (self._teller.rate * max(1, len(self._watch.peers)))
        return PeerOptimizer(
            self._model, self._settings, dht=self._dht, run_id=self._run_id, key=self._key, step_seconds=step_seconds
        )

    @property
    def _final_step(self) -> int:
        swarm = self._watch.swarm
        return self._settings.steps if swarm is None else min(self._settings.steps, swarm.final_step)

    def _train_on(self, optimizer: PeerOptimizer) -> None:
        """Micro-batch after micro-batch until the last global step."""
        sums, step, failures, unusable = Sums(), optimizer.local_epoch, 0, 0
        while optimizer.local_epoch < self._final_step:
            self._check_stop()
            self._check_coordinator()
            self._gradients.sharding.hear(self._watch.taken)
            started = time.perf_counter()
            computed = self._gradients.compute(self._model, self._gradients.next_batch())
            seconds = time.perf_counter() - started
            unusable = 0 if computed.finite else unusable + 1
            if unusable == UNUSABLE:
                raise StageError(
                    f"{self._name}: the gradients of {UNUSABLE} batches in a row are not finite after step {step}; "
                    f"lower pretraining.learning_rate ({self._settings.learning_rate:g}) or warm up for more than "
                    f"{self._settings.warmup_steps} steps"
                )
            if computed.finite:
                sums.add(computed, seconds)
                self._teller.rate += 0.1 * (computed.rows / seconds - self._teller.rate)
                optimizer.step(batch_size=computed.rows)
            optimizer.zero_grad()
            self._teller.note(
                [sums.entry(passed) for passed in optimizer.rounds],
                self._settings.batch_size - optimizer.tracker.global_progress.samples_accumulated,
            )
            optimizer.rounds.clear()
            if optimizer.local_epoch != step:
                sums, step, failures = Sums(), optimizer.local_epoch, 0
                self._teller.tell("training", step)
            elif optimizer.tracker.global_epoch > step + 1:
                failures += 1
                if failures == DOWNLOADS:
                    raise StageError(
                        f"{self._name}: the swarm is at step {optimizer.tracker.global_epoch}, this peer at {step}, "
                        "and no other peer sent its state; check the connection and join again"
                    )
            self._teller.tell_in_time("training", step)

    def _check_coordinator(self) -> None:
        """Leave when the coordinator has been gone for long."""
        if self._watch.silence > ALONE_SECONDS:
            raise StageError(
                f"{self._name}: nothing was heard of the coordinator for {ALONE_SECONDS / 60:.0f} minutes; join again "
                "when it is back"
            )


class _Left(Exception):
    """The peer was asked to leave."""


def main() -> NoReturn:
    """Run one peer; its error, if any, goes to ``FOLDER/NAME.error`` as one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--data", type=Path, nargs=2, metavar=("TOKENIZER", "PACK"))
    parser.add_argument("--join", nargs="+", metavar="MULTIADDR")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--pass", type=Path, dest="pass_file", metavar="FILE")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    def work(stop: Stop) -> None:
        keys = arguments.folder / "keys"
        if arguments.pass_file:
            key = passes.read_pass(arguments.pass_file).key
        else:
            key = records.load_key(keys / f"{arguments.name}.rsa")
        # one key for records and for libp2p, so that who has a pass for one has it for both
        identity = identities.write_identity(key, keys / f"{arguments.name}.identity")
        if arguments.join:
            dht, place, manifest = joining.find(arguments.join, key, identity)
            tokenizer, pack = (joining.locate(one, arguments.store) for one in (manifest.tokenizer, manifest.pack))
        else:
            place = meeting.read(arguments.folder, "meeting", Meeting, meeting.MEETING_SECONDS)
            manifest = meeting.read_manifest(arguments.folder)
            tokenizer, pack = arguments.data
            validators = records.validators(manifest.run_id, key)
            dht = network.start_dht(place.listen, place.addresses, identity, record_validators=validators)
        Peer(dht, place, manifest, arguments.name, key, tokenizer, pack, arguments.folder, stop).run()

    run_member(arguments.folder, arguments.name, work)


if __name__ == "__main__":
    main()
