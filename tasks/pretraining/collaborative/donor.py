"""The coordinator as a donor: it hands its newest checkpoint to peers that join when nobody else has a later state."""

from __future__ import annotations

import threading

import hivemind
from transformers import PreTrainedModel

from tasks.pretraining.collaborative.averaging import PeerStateAverager, averager_options
from tasks.pretraining.collaborative.state import State, load_into, state_prefix
from tasks.pretraining.optimizers import build_optimizer, fill_state
from tasks.pretraining.settings import PretrainingSettings


class Donor:
    """Offers a state to those who download one; takes part in no averaging.

    Args:
        dht: the coordinator's.
        run_id: names the run.
        model: of the run's shape, used by nobody else.
        settings: of the run.
    """

    def __init__(self, dht: hivemind.DHT, run_id: str, model: PreTrainedModel, settings: PretrainingSettings):
        self._lock = threading.RLock()
        self._optimizer = build_optimizer(model, settings)
        fill_state(self._optimizer)
        options, _ = averager_options(settings.collaborative, step_seconds=10.0)
        self._averager = PeerStateAverager(
            dht=dht,
            optimizer=self._optimizer,
            prefix=state_prefix(run_id),
            min_matchmaking_time=settings.collaborative.matchmaking_seconds,
            client_mode=False,
            allow_state_sharing=False,
            start=True,
            **options,
        )
        self._averager.unchanging = self._lock

    def hold(self, state: State) -> None:
        """Offer this state from now on; peers that have a later one are asked first."""
        with self._lock:
            load_into(self._optimizer, state)
            self._averager.local_epoch = state.step
        self._averager.allow_state_sharing = True
        self._averager.state_sharing_priority = state.step

    def close(self) -> None:
        """Offer nothing any more."""
        self._averager.shutdown()
