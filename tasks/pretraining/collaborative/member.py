"""What all members that take part in global steps have in common, from the start to the goodbye."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from hivemind.utils.crypto import RSAPrivateKey
from transformers import AutoTokenizer, PreTrainedModel

from tasks.contract import StageError
from tasks.pretraining.collaborative import machine, records
from tasks.pretraining.collaborative.ending import Ending
from tasks.pretraining.collaborative.manifest import Manifest
from tasks.pretraining.collaborative.meeting import Meeting
from tasks.pretraining.collaborative.network import Node
from tasks.pretraining.collaborative.optimizer import PeerOptimizer
from tasks.pretraining.collaborative.process import Stop
from tasks.pretraining.collaborative.records import Blackboard, SwarmRecord
from tasks.pretraining.collaborative.roles import Role
from tasks.pretraining.collaborative.state import load_checkpoint
from tasks.pretraining.collaborative.telling import Teller
from tasks.pretraining.collaborative.watch import Watch
from tasks.pretraining.models import build_model, count_parameters
from tasks.pretraining.precision import Hardware

logger = logging.getLogger(__name__)

GO_SECONDS = 600.0
"""A member waits so long for the coordinator to let it begin."""

SEEN_SECONDS = 5.0
"""Members that begin together wait so long until they see each other."""


@dataclass(frozen=True)
class Place:
    """Where a member is, and as whom.

    Args:
        dht: running, with the run's validators.
        meeting: who coordinates, and from where to go on.
        manifest: what is trained.
        name: how the member is called in the ledger.
        role: what it does.
        key: signs its records.
        tokenizer: the tokenizer's artifact.
        folder: where its status is written.
        stop: set when it should leave.
        bandwidth: in Mb/s; the recipe's if not given.
        micro_batch: sequences of a micro-batch; the recipe's, or what was measured, if not given.
        joined: whether it came by an address; else a run has started it.
    """

    dht: Node
    meeting: Meeting
    manifest: Manifest
    name: str
    role: Role
    key: RSAPrivateKey
    tokenizer: Path
    folder: Path
    stop: Stop
    bandwidth: float | None = None
    micro_batch: int | None = None
    joined: bool = False


class Left(Exception):
    """The member was asked to leave."""


class Member:
    """One member from its start to its goodbye: subclasses say what it does meanwhile."""

    _model: PreTrainedModel
    _teller: Teller

    _go_seconds = GO_SECONDS

    def __init__(self, place: Place):
        self._place, self._dht, self._name = place, place.dht, place.name
        self._run_id, self._settings = place.manifest.run_id, place.manifest.settings.pretraining
        self._board = Blackboard(place.dht, self._run_id, place.key)
        self._digest = records.key_digest(self._board.subkey)
        asks_for_passes = self._settings.collaborative.access == "passes"
        if asks_for_passes:
            known = [address.rpartition("/")[2] for address in place.meeting.addresses]
            place.dht.gate.ask_for_passes(place.meeting.coordinator, known)
        self._watch = Watch(self._board, place.meeting.coordinator, place.meeting.addresses, asks_for_passes)
        saved = place.meeting.checkpoint
        self._start = None if saved is None else load_checkpoint(Path(saved))
        self._reader = AutoTokenizer.from_pretrained(place.tokenizer)

    def _build(self, hardware: Hardware) -> PreTrainedModel:
        """The model with its first weights, which all members have alike."""
        asked, shape = self._settings, self._place.manifest.settings.model
        model: PreTrainedModel = build_model(shape, self._reader, asked.objective, asked.seed, hardware.attention)
        if self._place.joined and hardware.device.type == "cpu":
            needed = machine.PER_WEIGHT * count_parameters(model)
            machine.tell_checks(self._place.folder, self._name, [machine.check_memory(needed, "memory for the model")])
        return model.to(hardware.device)

    def run(self) -> None:
        """Take part until the last step, or until asked to leave.

        Raises:
            StageError: this member cannot go on, or gets no state of the swarm.
        """
        optimizer: PeerOptimizer | None = None
        try:
            word = self._wait_for_word()
            self._prepare(word)
            optimizer = self._make_optimizer()
            optimizer.told = self._watch.sketches
            self._teller.sketches, self._teller.bandwidth = optimizer.sketches, optimizer.bandwidth
            self._take_state(optimizer, word)
            self._teller.tell("starting", optimizer.local_epoch)
            if not word.go:
                self._begin_together(optimizer)
            self._work(optimizer)
            ending = Ending(self._dht, self._run_id, self._settings, self._watch, self._teller, self._check_stop)
            ending.run(optimizer)
        except Left:
            logger.info("leaving")
        finally:
            if optimizer is not None:
                self._teller.tell("leaving", optimizer.local_epoch)
                optimizer.shutdown()
            self._dht.shutdown()

    def _prepare(self, word: SwarmRecord) -> None:
        """What comes before the optimiser."""

    def _make_optimizer(self) -> PeerOptimizer:
        raise AssertionError("each kind of member has its own")

    def _work(self, optimizer: PeerOptimizer) -> None:
        """Go on until the last global step."""
        raise AssertionError("each kind of member has its own")

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
        step, deadline = optimizer.local_epoch, time.monotonic() + self._go_seconds
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
        if self._place.stop.asked.wait(seconds):
            raise Left

    @property
    def _final_step(self) -> int:
        swarm = self._watch.swarm
        return self._settings.steps if swarm is None else min(self._settings.steps, swarm.final_step)
