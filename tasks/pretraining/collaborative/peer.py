"""A peer of a swarm: computes gradients on its share of the data and takes every global step with the others.

``python -P -m tasks.pretraining.collaborative.peer FOLDER NAME`` with ``--data TOKENIZER PACK`` for a local member,
which finds the swarm by the files in FOLDER, or ``--join MULTIADDR... --store STORE``; ``--role`` makes another member
of it. It is one process of its own, since hivemind needs the main thread, forks, and leaves SIGINT ignored. Its
standard input is the lifeline to whoever owns it; SIGTERM makes it say goodbye and leave.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import time
from pathlib import Path
from typing import NoReturn

import torch
from transformers import PreTrainedModel

from tasks.contract import StageError
from tasks.pretraining.batches import Collator, PackedSplit, Split
from tasks.pretraining.collaborative import arrival, identities, meeting, network, proof, records
from tasks.pretraining.collaborative.gradients import Gradients, Sums
from tasks.pretraining.collaborative.helper import Helper
from tasks.pretraining.collaborative.meeting import Meeting
from tasks.pretraining.collaborative.member import Member, Place
from tasks.pretraining.collaborative.optimizer import PeerOptimizer
from tasks.pretraining.collaborative.process import Stop, run_member
from tasks.pretraining.collaborative.records import SwarmRecord
from tasks.pretraining.collaborative.roles import ROLES, TRAINING, Role
from tasks.pretraining.collaborative.sharding import Position, Sharding, Taken
from tasks.pretraining.collaborative.telling import Teller
from tasks.pretraining.collaborative.watch import ALONE_SECONDS
from tasks.pretraining.precision import choose_member_hardware

logger = logging.getLogger("tasks.pretraining.collaborative.peer")

MICRO_SECONDS = 1.0
"""A micro-batch of who joins takes at most so long, as hivemind's authors advise: 0.5 to 1 s."""

MICRO_SHARE = 8
"""And at most one of so many parts of a global step, in time and in sequences."""

UNUSABLE = 50
"""Batches in a row without a finite gradient after which a peer gives up. In fp16 each one halves the scale, so from
2**24 down to 1 it has been tried at every scale by then."""

DOWNLOADS = 3
"""Failed downloads of the swarm's state in a row after which a peer gives up."""


class Peer(Member):
    """One peer, or client, from its start to its goodbye.

    Args:
        place: where and as whom; the digest of its key decides which shards are its own.
        train: the training split.
    """

    def __init__(self, place: Place, train: Split):
        super().__init__(place)
        hardware = choose_member_hardware(self._settings)
        threads = torch.get_num_threads()
        where = f"{hardware.device.type}, {hardware.precision}, {threads} threads"
        logger.info("%s (%s): %s on %s", self._name, self._digest, place.role, where)
        self._model = self._build(hardware)
        self._model.train()
        torch.manual_seed(self._settings.seed + int(self._digest, 16) % 2**31)  # dropout of its own
        taken = Taken() if self._start is None else self._start[1]
        self._gradients = Gradients(
            train,
            Collator(self._reader, self._settings.masking, self._settings.objective == "mlm+sop"),
            Sharding(len(train), self._settings.seed, self._digest, taken),
            hardware,
            self._settings.micro_batch_size,
        )
        self._teller = Teller(place, self._board, self._watch, self._gradients)

    def _prepare(self, word: SwarmRecord) -> None:
        """Measure this peer's speed; one that begins the swarm also shows that it learns."""
        self._gradients.sharding.hear(self._watch.taken)
        self._go_on()
        self._gradients.rows = self._micro_batch()
        if word.step or word.go or self._place.role == "client":  # alone, a client takes no step
            shown = proof.measure(self._model, self._gradients)
        else:
            advice = f"lower pretraining.learning_rate ({self._settings.learning_rate:g})"
            shown = proof.prove(self._model, self._gradients, self._optimizer_of_proof, advice)
        self._teller.rate, self._teller.proof = shown.rate, shown.losses

    def _micro_batch(self) -> int:
        """Sequences of a micro-batch: as asked, else measured by who joins, else the recipe's."""
        if self._place.micro_batch is not None:
            return self._place.micro_batch
        if not self._place.joined:
            return self._settings.micro_batch_size
        rate = sum(peer.rate for peer in self._watch.peers.values() if peer.role in TRAINING)
        step = self._settings.batch_size / rate if rate else MICRO_SECONDS * MICRO_SHARE
        seconds = min(MICRO_SECONDS, step / MICRO_SHARE)
        return proof.choose_rows(
            self._model, self._gradients, seconds, max(1, self._settings.batch_size // MICRO_SHARE)
        )

    def _go_on(self) -> None:
        """Go on in the shard where this peer, known by its key, left the same run.

        One that its own run starts again goes on from a checkpoint, and from what was taken by then.
        """
        if not self._place.joined:
            return
        path = self._place.folder / f"{self._name}.shards.json"
        with contextlib.suppress(OSError, ValueError):
            saved = json.loads(path.read_text(encoding="utf-8"))
            if saved["run"] == self._run_id and saved["peer"] == self._digest:
                position = Position.model_validate(saved["position"])
                if self._gradients.sharding.resume(position):
                    logger.info("going on in shard %s, after %d sequences", position.shard, position.used)

    def _keep_place(self) -> None:
        position = self._gradients.sharding.position.model_dump(mode="json")
        saved = {"run": self._run_id, "peer": self._digest, "position": position}
        path = self._place.folder / f"{self._name}.shards.json"
        building = path.with_name(f".{path.name}")
        building.write_text(json.dumps(saved), encoding="utf-8")
        building.replace(path)

    def _optimizer_of_proof(self, model: PreTrainedModel) -> PeerOptimizer:
        """A swarm of this peer alone, at the rate after the warmup: with the first ones nothing would move."""
        settings = self._settings.model_copy(update={"warmup_steps": 0, "schedule_steps": 10**9})
        run_id = f"{self._run_id}-proof-{self._gradients.sharding.peer}"
        return PeerOptimizer(
            model, settings, dht=self._dht, run_id=run_id, key=self._place.key, target=self._gradients.rows
        )

    def _make_optimizer(self) -> PeerOptimizer:
        training = [peer for peer in self._watch.peers.values() if peer.role in TRAINING]
        return PeerOptimizer(
            self._model,
            self._settings,
            dht=self._dht,
            run_id=self._run_id,
            key=self._place.key,
            step_seconds=self._settings.batch_size / (self._teller.rate * max(1, len(training))),
            role=self._place.role,
            bandwidth=self._place.bandwidth,
            measure_bandwidth=self._place.joined,
        )

    def _work(self, optimizer: PeerOptimizer) -> None:
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
                self._teller.computed += computed.rows
                self._teller.rate += 0.1 * (computed.rows / seconds - self._teller.rate)
                optimizer.step(batch_size=computed.rows)
            optimizer.zero_grad()
            self._teller.note(
                [sums.entry(passed) for passed in optimizer.rounds],
                self._settings.batch_size - optimizer.tracker.global_progress.samples_accumulated,
            )
            optimizer.rounds.clear()
            self._teller.others = optimizer.others
            if optimizer.local_epoch != step:
                sums, step, failures = Sums(), optimizer.local_epoch, 0
                self._teller.tell("training", step)
                self._keep_place()
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


def _at_home(arguments: argparse.Namespace, stop: Stop) -> tuple[Place, PackedSplit | None]:
    """Where a member is that its coordinator's run has started."""
    role: Role = arguments.role or "peer"
    folder, name = arguments.folder, arguments.name
    key, identity = identities.key_and_identity(folder / "keys", name)
    at = meeting.read(folder, "meeting", Meeting, meeting.MEETING_SECONDS)
    manifest = meeting.read_manifest(folder)
    tokenizer, pack = arguments.data
    validators = records.validators(manifest.run_id, key)
    client = role == "client"
    dht = network.start_dht(at.listen, at.addresses, identity, client_mode=client, record_validators=validators)
    place = Place(dht, at, manifest, name, role, key, tokenizer, folder, stop, arguments.bandwidth)
    return place, PackedSplit(pack, "train") if role in TRAINING else None


def main() -> NoReturn:
    """Run one member; its error, if any, goes to ``FOLDER/NAME.error`` as one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--role", choices=ROLES, help="default: peer, or client where nobody can reach this machine")
    parser.add_argument("--data", type=Path, nargs=2, metavar=("TOKENIZER", "PACK"))
    parser.add_argument("--join", nargs="+", metavar="MULTIADDR")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--bandwidth", type=float, metavar="MBPS")
    parser.add_argument("--micro-batch", type=int, metavar="SEQUENCES")
    parser.add_argument("--pass", type=Path, dest="pass_file", metavar="FILE")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    def work(stop: Stop) -> None:
        if arguments.join:
            place, train = arrival.arrive(arguments, stop)
        else:
            place, train = _at_home(arguments, stop)
        if place.role in TRAINING:
            assert train is not None
            Peer(place, train).run()
        else:
            Helper(place).run()

    run_member(arguments.folder, arguments.name, work)


if __name__ == "__main__":
    main()
