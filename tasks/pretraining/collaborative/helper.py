"""A member that computes no gradients: a keeper, which has the newest state, or an auxiliary, which averages."""

from __future__ import annotations

import logging

import torch

from tasks.pretraining.collaborative.following import Follower
from tasks.pretraining.collaborative.member import Member, Place
from tasks.pretraining.collaborative.optimizer import PeerOptimizer
from tasks.pretraining.collaborative.records import SwarmRecord
from tasks.pretraining.collaborative.telling import Teller
from tasks.pretraining.precision import Hardware

logger = logging.getLogger("tasks.pretraining.collaborative.helper")

FOLLOW_SECONDS = 0.05
"""How often a helper looks whether something is due: a group is looked for a quarter of a second before at least."""


class Helper(Member):
    """One helper from its start to its goodbye. It needs the tokenizer, for the model's shape, and no other data."""

    _go_seconds = float("inf")  # it is there for those who come, whenever that is

    def __init__(self, place: Place):
        super().__init__(place)
        logger.info("%s (%s): %s, %d threads", self._name, self._digest, place.role, torch.get_num_threads())
        # what it averages is fp32 in every member's memory, whatever the members compute in
        self._model = self._build(Hardware(torch.device("cpu"), "fp32", "nothing is computed"))
        self._teller = Teller(place, self._board, self._watch)

    def _make_optimizer(self) -> PeerOptimizer:
        rate = sum(peer.rate for peer in self._watch.peers.values())
        return Follower(
            self._model,
            self._settings,
            dht=self._dht,
            run_id=self._run_id,
            key=self._place.key,
            step_seconds=self._settings.batch_size / rate if rate else 10.0,
            role=self._place.role,
            bandwidth=self._place.bandwidth,
            measure_bandwidth=self._place.joined,
        )

    def _take_state(self, optimizer: PeerOptimizer, word: SwarmRecord) -> None:
        """As every member; an auxiliary has no use for it."""
        if self._place.role == "keeper":
            super()._take_state(optimizer, word)

    def _work(self, optimizer: PeerOptimizer) -> None:
        """Follow until the last global step; not even a long silence of the coordinator ends it."""
        assert isinstance(optimizer, Follower)
        step = optimizer.local_epoch
        while optimizer.local_epoch < self._final_step:
            self._check_stop(FOLLOW_SECONDS)
            optimizer.follow()
            self._teller.others = optimizer.others
            optimizer.rounds.clear()  # it put nothing into them
            self._teller.note([], self._settings.batch_size - optimizer.tracker.global_progress.samples_accumulated)
            if optimizer.local_epoch != step:
                step = optimizer.local_epoch
                self._teller.tell("training", step)
            self._teller.tell_in_time("training", step)
