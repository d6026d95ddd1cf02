"""The optimiser of a member that computes no gradients: it goes through every global step with those that do."""

from __future__ import annotations

import threading
from typing import Any

from tasks.pretraining.collaborative.optimizer import PeerOptimizer
from tasks.pretraining.collaborative.tracker import GONE_SECONDS


class Follower(PeerOptimizer):
    """A keeper's or an auxiliary's part in a run; arguments as :class:`PeerOptimizer`.

    A keeper averages gradients with weight 0 and takes the optimiser step that all take; one that it misses it takes
    over from another member. So it has the newest weights, whoever leaves. An auxiliary has none: it only averages.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        assert self.role in ("keeper", "auxiliary")
        self._over = threading.Event()
        threading.Thread(target=self._be_seen, name="presence", daemon=True).start()

    def follow(self) -> None:
        """Do what is due now; returns at once if nothing is."""
        if self.local_epoch < self.tracker.global_epoch:
            if self.role == "keeper":
                self.load_state_from_peers()
            else:
                self._catch_up()
            return
        self._maybe_schedule_gradient_averaging()
        self._maybe_schedule_state_averaging()
        if self.tracker.ready_to_update_epoch:
            self._update_global_epoch(None)

    def _catch_up(self) -> None:
        """Help with the swarm's present step; there is no state to take over."""
        with self._whole_steps, self.tracker.pause_updates():
            self.state_averager.local_epoch = max(self.local_epoch, self.tracker.global_progress.epoch)
            self.tracker.update_epoch(self.local_epoch)

    def _be_seen(self) -> None:
        """Tell of this member again and again: hivemind's tracker only does so of members that have samples."""
        while not self._over.wait(GONE_SECONDS / 5):
            self.tracker.announce()

    def shutdown(self) -> None:
        """As hivemind's."""
        self._over.set()
        super().shutdown()
