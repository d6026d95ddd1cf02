"""The optimiser of a peer: hivemind's, with one synchronous way through a global step.

A global step: all peers together compute the gradients of ``batch_size`` sequences, average them weighted by samples,
clip the average, and each takes the same optimiser step with the learning rate of that global step.

Traps of hivemind 1.1.12 that are closed here: a peer that knows no other steps with the gradient of its last
micro-batch only; one whose averaging failed steps with zeros, since its accumulated gradients were reset before; the
first update is made at step 2 of the bias correction; and a state is looked for without end.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import hivemind
import torch
from hivemind.averaging.control import AveragingStage
from hivemind.utils import get_dht_time

from tasks.pretraining.collaborative import state as states
from tasks.pretraining.collaborative.averaging import (
    PeerGradientAverager,
    PeerStateAverager,
    Round,
    averager_options,
    gradient_compression,
    is_over,
    result_of,
    state_compression,
)
from tasks.pretraining.collaborative.records import Outcome, progress_of
from tasks.pretraining.collaborative.roles import TRAINING, Role
from tasks.pretraining.collaborative.screening import Screen
from tasks.pretraining.collaborative.taking_over import TakesOver
from tasks.pretraining.collaborative.tracker import HOLD_SECONDS, PeerTracker
from tasks.pretraining.optimizers import build_optimizer, fill_state, learning_rate_at
from tasks.pretraining.settings import PretrainingSettings

if TYPE_CHECKING:
    from hivemind.utils.crypto import RSAPrivateKey

logger = logging.getLogger(__name__)

LEAD_SECONDS = 0.25
"""Peers look for a group at least so long before the expected end of a step, however short the matchmaking is."""


class PeerOptimizer(TakesOver):
    """One peer's part in the run ``run_id``.

    Args:
        model: on its device; its weights are those of the run.
        settings: how to train.
        dht: this peer's, running.
        run_id: names the run.
        key: signs this peer's progress; None for one of its own.
        step_seconds: how long a global step takes, roughly.
        target: sequences of a global step, if others than the settings'.
        role: what this member does; a client's ``dht`` has to be one too.
        bandwidth: of this member in Mb/s; the settings' if not given.
        measure_bandwidth: whether one that is not given is that at which the first state came.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        settings: PretrainingSettings,
        *,
        dht: hivemind.DHT,
        run_id: str,
        key: RSAPrivateKey | None = None,
        step_seconds: float = 10.0,
        target: int | None = None,
        role: Role = "peer",
        bandwidth: float | None = None,
        measure_bandwidth: bool = False,
    ):
        assert dht.client_mode == (role == "client")
        asked = settings.collaborative
        self.role = role
        self.rounds: list[Round] = []
        """Rounds since the caller last emptied the list."""
        self.sketches = {}
        self._measure = measure_bandwidth and bandwidth is None
        self._settings = settings
        self._whole_steps = threading.RLock()
        self._passing = []
        # How long a group waits for peers that are alive but late. One that has died costs it until it counts as gone.
        self._patience = max(asked.matchmaking_seconds, asked.averaging_timeout_seconds / 5)
        self._averager_options, tracker = averager_options(asked, step_seconds, bandwidth)
        size = target or settings.batch_size
        screen = Screen(asked.outlier_norm, most_weight=2.0 * size, clipped=asked.aggregation == "clipped")
        super().__init__(
            dht=dht,
            run_id=run_id,
            target_batch_size=size,
            optimizer=self._torch_optimizer(model),
            matchmaking_time=asked.matchmaking_seconds,
            averaging_timeout=asked.averaging_timeout_seconds,
            average_state_every=asked.average_state_every,
            delay_state_averaging=False,
            auxiliary=role == "auxiliary",
            client_mode=dht.client_mode,  # left out, it is None and the peer fails after its first global step
            grad_compression=gradient_compression(asked.compression),
            grad_averager_factory=partial(
                PeerGradientAverager, screen=screen, allow_state_sharing=False, **self._averager_options
            ),
            state_averaging_compression=state_compression(asked.compression),
            tracker_opts={**tracker, "private_key": key},
        )
        self._note_weights()
        self.grad_averager.trains = self.state_averager.trains = role in TRAINING

    def _torch_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The recipe's optimiser with its state in place, which hivemind would otherwise make by a step of its own."""
        optimizer = build_optimizer(model, self._settings)
        fill_state(optimizer)
        optimizer.register_step_pre_hook(self._before_update)
        return optimizer

    def _before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """The averaged gradient is there: clip it, and set the rate. The epoch was counted up just before."""
        limit = math.inf if self._settings.clip_norm is None else self._settings.clip_norm
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        torch.nn.utils.clip_grad_norm_(weights, limit)
        for group in optimizer.param_groups:
            group["lr"] = self.rate_of(self.local_epoch)

    def rate_of(self, step: int) -> float:
        """Learning rate of a global step; 1 for the first."""
        return learning_rate_at(step - 1, self._settings)

    def _make_state_averager(self, **kwargs: Any) -> PeerStateAverager:
        averager = PeerStateAverager(
            dht=self.dht,
            prefix=states.state_prefix(self.run_id),
            min_matchmaking_time=self.matchmaking_time,
            allreduce_timeout=self.allreduce_timeout,
            shutdown_timeout=self.shutdown_timeout,
            status_loglevel=self.status_loglevel,
            next_chunk_timeout=self.next_chunk_timeout,
            client_mode=self.client_mode,
            auxiliary=self.auxiliary,
            screen=Screen.of_weights(has_weights=not self.auxiliary),
            start=True,
            **self._averager_options,
            **kwargs,
        )
        averager.unchanging = self._whole_steps
        return averager

    def _make_progress_tracker(self, target_batch_size: int, **kwargs: Any) -> PeerTracker:
        return PeerTracker(
            dht=self.dht,
            prefix=self.run_id,
            target_batch_size=target_batch_size,
            client_mode=self.client_mode,
            status_loglevel=self.status_loglevel,
            start=True,
            **kwargs,
        )

    def step(self, closure: Any = None, batch_size: int | None = None, grad_scaler: Any = None) -> Any:
        """Hand over the gradients of so many sequences; takes the global step when all of its samples are there.

        If the rest of them is on its way from others, this peer waits for word of it instead of computing more.
        """
        epoch = self.local_epoch
        result = super().step(closure, batch_size, grad_scaler)
        next_batch = (batch_size or 0) / max(1e-9, self.tracker.local_progress.samples_per_second)
        deadline = time.monotonic() + HOLD_SECONDS + next_batch
        while self.local_epoch == epoch and self.tracker.rest_is_coming(next_batch) and time.monotonic() < deadline:
            if self.tracker.ready_to_update_epoch:
                self._update_global_epoch(grad_scaler)
                break
            time.sleep(0.005)
        return result

    @property
    def others(self) -> int:
        """Other peers that are alive."""
        return int(max(0, self.tracker.global_progress.num_peers - 1))

    def _look_for_group(self, averager: Any, step: int, kind: Literal["step", "last"] = "step") -> Any:
        """Begin to look for those who average at the same step."""
        for (
            passing
        ) in self._passing:  # one that has broken off looks for a group again, and this one would wait for it
            if not passing.done() and passing.stage == AveragingStage.LOOKING_FOR_GROUP:
                passing.cancel()
        size = max(2, min(1 + self.others, self._settings.collaborative.target_group_size))
        return averager.begin(size, f"{step:b}{int(kind == 'last')}", self._patience, self.averaging_timeout)

    def _is_near(self, moment: float) -> bool:
        return moment - get_dht_time() <= max(self.matchmaking_time, LEAD_SECONDS)

    def _maybe_schedule_gradient_averaging(self) -> None:
        """Look for a group while the last samples of the step are still being computed."""
        if self.others and self._is_near(self.tracker.estimated_next_update_time) and is_over(self.scheduled_grads):
            self.scheduled_grads = self._look_for_group(self.grad_averager, self.local_epoch + 1)

    def _maybe_schedule_state_averaging(self) -> None:
        """The same for the weights, where they are averaged after the coming step."""
        due = self.others and (self.local_epoch + 1) % self.average_state_every == 0
        if due and self._is_near(self.tracker.estimated_next_update_time) and is_over(self.scheduled_state):
            self.scheduled_state = self._look_for_group(self.state_averager, self.local_epoch + 1)

    def _update_global_epoch(self, grad_scaler: Any) -> None:
        """One global step, from the accumulated gradients to the new weights."""
        with self._whole_steps, self.tracker.pause_updates():
            passed = self._average_gradients()
            if self.role != "peer" and passed.outcome != "averaged":
                return  # a step that others take is taken over from them; a client goes on to add gradients meanwhile
            if passed.outcome == "no group" and self._have_others_gone_on():
                self.grad_averager.reset_accumulated_grads_()
                self.tracker.report_local_progress(self.local_epoch, samples_accumulated=0)
                return  # the tracker sees it next, and this peer takes over their state
            self.rounds.append(passed)
            self.state_averager.step(increment_epoch=True, optimizer_step=not self.auxiliary)
            control, self.scheduled_state = self.scheduled_state, None
            if self.others and self.local_epoch % self.average_state_every == 0:
                if is_over(control):
                    control = self._look_for_group(self.state_averager, self.local_epoch)
                try:
                    self.state_averager.average_now(control, self.averaging_timeout)
                except Exception as error:
                    logger.warning("step %d: the weights were not averaged: %r", self.local_epoch, error)
            elif not is_over(control):
                control.cancel()
            self._note_weights()
            self.tracker.update_epoch(new_epoch=self.local_epoch)
            self.grad_averager.reset_accumulated_grads_()
            if not self.client_mode:
                self.state_averager.state_sharing_priority = self.local_epoch

    def _average_gradients(self) -> Round:
        """Average the accumulated gradients with the other peers, or go on with the own ones; fills ``.grad``."""
        started = time.monotonic()
        control, self.scheduled_grads = self.scheduled_grads, None
        samples = self.grad_averager.local_samples_accumulated
        outcome: Outcome = "alone"
        facts: dict[str, Any] = {"training": 1, "aggregated": 0.0, "reducing": 0.0, "complete": None}
        if self.others:
            try:
                if is_over(control):
                    control = self._look_for_group(self.grad_averager, self.local_epoch + 1)
                # accumulators are kept until the step is over: they are what is left if the averaging fails
                control = self.grad_averager.step(control=control, reset_accumulators=False, wait=False)
                facts = result_of(control, self._patience, self.averaging_timeout)
                outcome = "averaged" if facts["complete"] else "failed"
                if not self._is_average_finite():  # none of the group had gradients, or one had infinite ones
                    raise ArithmeticError("the averaged gradients are not finite")
            except Exception as error:
                facts["complete"] = None
                outcome = "failed" if control is not None and control.began_allreduce else "no group"
                logger.warning("step %d: %s: %r", self.local_epoch + 1, outcome, error)
        if facts["complete"] is not None:  # what a peer did not send is then this one's own
            self._load_averaged_gradients_into_optimizer_()
        else:
            if control is not None and not control.done():
                control.cancel()
            self._load_local_gradients_into_optimizer()
        waited = time.monotonic() - started
        reducing = min(waited, facts["reducing"])
        group = max(1, facts["training"]) if facts["complete"] else 1
        aggregated = facts["aggregated"]
        return Round(self.local_epoch + 1, samples, outcome, group, waited - reducing, reducing, aggregated)

    def _is_average_finite(self) -> bool:
        with self.grad_averager.get_tensors() as tensors:
            return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)

    def _have_others_gone_on(self) -> bool:
        """Whether another peer has already taken the step that this one found no group for."""
        return any(entry.epoch > self.local_epoch for entry in progress_of(self.dht, self.run_id))

    def average_weights(self) -> list[str]:
        """Average the weights once more with all peers that are there; returns the group's libp2p identities."""
        with self._whole_steps, self.tracker.pause_updates():
            control = self._look_for_group(self.state_averager, self.local_epoch, "last")
            facts = self.state_averager.average_now(control, self.averaging_timeout)
        return sorted(facts["group"])

    def bandwidth(self) -> float | None:
        """Of this member in Mb/s: by it and the others' hivemind shares out the averaging."""
        bandwidth: float | None = self.grad_averager.bandwidth
        return bandwidth
