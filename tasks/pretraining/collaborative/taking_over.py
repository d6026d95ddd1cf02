"""The part of a peer's optimiser that takes over the state of others, where the swarm has gone on without it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import hivemind
from hivemind.averaging.control import AveragingStage

from tasks.pretraining.collaborative import state as states
from tasks.pretraining.collaborative.agreement import VOTE_SECONDS
from tasks.pretraining.collaborative.records import SKETCHES_TOLD
from tasks.pretraining.collaborative.sketch import sketch

if TYPE_CHECKING:
    import threading

    from tasks.pretraining.collaborative.tracker import PeerTracker

logger = logging.getLogger(__name__)


class TakesOver(hivemind.Optimizer):
    """What a peer's optimiser needs to catch up; the rest is in :mod:`tasks.pretraining.collaborative.optimizer`."""

    scheduled_grads: Any
    scheduled_state: Any
    tracker: PeerTracker

    sketches: dict[int, str]
    """Of the weights after the newest global steps."""
    told: Callable[[], Mapping[str, Mapping[int, str]]] = dict
    """Gives the sketches that others tell, by libp2p's identity and global step."""

    _whole_steps: threading.RLock
    _patience: float
    """Seconds that a group waits for peers that are alive but late."""
    _passing: list[Any]
    """Rounds of steps that have passed, which others may still be in."""
    _astray: float | None = None
    """Since when a client has been further than all whom it can reach."""
    _has_taken_over = False
    _measure: bool
    """Whether the next state that comes tells the bandwidth."""

    def _should_load_state_from_peers(self) -> bool:
        """Whether others have gone on: they do not wait, and a step of one's own would lead away from them."""
        return bool(self.local_epoch < self.tracker.global_epoch or self._is_astray())

    def _is_astray(self) -> bool:
        """Whether a client has been further than all whom it can reach for longer than an averaging may take.

        It took a step that they did not, since word of its end reached this peer only; nobody can follow it there.
        """
        reached = self.tracker.reached
        if not self.client_mode or reached is None or reached >= self.local_epoch:
            self._astray = None
            return False
        self._astray = self._astray or time.monotonic()
        return time.monotonic() - self._astray > self._patience + self.averaging_timeout

    def load_state_from_peers(self, **kwargs: Any) -> bool:
        """Take over the newest state of the swarm, if a peer sends one that fits; returns whether one did."""
        for control in (self.scheduled_grads, self.scheduled_state):
            if control is not None and not control.done():
                # A round that has others in it is not left; one that only looks for some is of a step that has passed.
                if control.stage == AveragingStage.LOOKING_FOR_GROUP:
                    control.cancel()
                else:
                    self._let_pass(control)
        self.scheduled_grads = self.scheduled_state = None
        own = self.own_state()
        least = self.local_epoch + int(self.local_epoch < self.tracker.global_epoch)
        if self._is_astray():
            least = self.tracker.reached or 0
        with self.tracker.pause_updates():
            state = states.download(
                self.dht,
                self.run_id,
                own,
                at_least=least,
                present=lambda: self.tracker.present,
                seconds=self.load_state_timeout,
                told=self.told,
                vote_seconds=0.0 if self._has_taken_over else VOTE_SECONDS,
            )
        if state is not None:
            self._has_taken_over = True
            if self._measure and state.mbps is not None:
                self.grad_averager.bandwidth = self.state_averager.bandwidth = state.mbps
                self._measure = False
            self.take_over(state)
            logger.info("took over step %d from %s", state.step, state.donor)
        self.tracker.doubt(self.local_epoch)
        return state is not None

    def _let_pass(self, control: Any) -> None:
        """Leave a round of a step that has passed to those who are in it, as one who has no samples."""
        if not control.triggered:
            control.weight = 0
            control.allow_allreduce()
        self._passing = [one for one in [*self._passing, control] if not one.done()]

    def _tag_along_with_zero_weight(self, control: Any) -> None:
        """The same at the end, where the averagers go next: hivemind waits for as long as an averaging may take."""
        self._let_pass(control)
        try:
            control.result(self._patience)
        except BaseException as error:  # also that it was cancelled
            logger.debug("step %d: left a round: %r", self.local_epoch, error)

    def _note_weights(self) -> None:
        """Summarise the weights for those who take a state over; an auxiliary has none."""
        if not self.auxiliary:
            groups = self.state_averager.optimizer.param_groups
            self.sketches[self.local_epoch] = sketch([weight for group in groups for weight in group["params"]])
            for step in sorted(self.sketches)[:-SKETCHES_TOLD]:
                self.sketches.pop(step)

    def own_state(self) -> states.State:
        """A copy of this peer's weights and optimiser state."""
        return states.state_of(self.state_averager.optimizer, self.local_epoch)

    def take_over(self, state: states.State) -> None:
        """Go on from a state that fits this model and optimiser."""
        assert states.problem_with(state, self.own_state()) is None
        averager = self.state_averager
        with self._whole_steps, self.tracker.pause_updates():
            states.load_into(averager.optimizer, state)
            averager._load_local_tensors_into_averager_()
            averager.local_epoch = state.step
            self.tracker.report_local_progress(state.step, samples_accumulated=0)
            newest = self.tracker.global_progress.epoch if self._astray is None else state.step
            self.tracker.global_progress.epoch = max(state.step, newest)
            self._astray = None
            self.grad_averager.reset_accumulated_grads_()
            self.sketches.clear()
            self._note_weights()
            if not self.client_mode:
                averager.state_sharing_priority = state.step
