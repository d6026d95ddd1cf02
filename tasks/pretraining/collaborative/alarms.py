"""What people should be called for: no step comes, the swarm has split in two, or half of its peers are gone.

The coordinator feeds in what it sees several times a second. Whatever is wrong goes to its log once when it begins and
once when it ends, and to its status as long as it lasts: the stage says it in the run's log, and so on Prefect.
"""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.pretraining.collaborative.records import PeerRecord
from tasks.pretraining.collaborative.tracker import GONE_SECONDS

logger = logging.getLogger(__name__)

STILL_TIMES = 3.0
"""No step for so many times its estimate is an alarm."""

STILL_SECONDS = 2 * GONE_SECONDS
"""... and for so long: after a departure the others wait until who has left counts as gone."""

RECENT_STEPS = 5
"""Global steps whose median time is the estimate of the next."""

PEAK_SECONDS = 600.0
"""The number of peers is compared with the most there were within so long."""

SPLIT_STEPS = 3
"""In so many global steps in a row there were two groups where one would have held all."""

SPLIT_SECONDS = 30.0
"""For so long a peer has seen fewer than half of the others."""


@dataclass
class Alarms:
    """Watches one swarm.

    Args:
        batch: sequences of a global step.
        largest_group: most peers in a group.
        now: seconds on any clock, when the training begins.
    """

    batch: int
    largest_group: int
    now: float
    active: dict[str, str] = field(default_factory=dict, init=False)
    """What is wrong at present, by kind: "no step", "split", "half"."""
    _step: int = field(default=0, init=False)
    _times: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS), init=False)
    _counts: deque[tuple[float, int]] = field(default_factory=deque, init=False)
    _apart_since: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._stepped = self.now

    def look(
        self,
        now: float,
        step: int,
        rate: float,
        present: Sequence[PeerRecord],
        lines: Sequence[Mapping[str, Any]],
    ) -> None:
        """Take in what is seen.

        Args:
            now: seconds on the clock of the beginning.
            step: global steps.
            rate: sequences a second of all peers.
            present: who takes part.
            lines: the newest of the log of global steps.
        """
        if step > self._step:
            self._times.append((now - self._stepped) / (step - self._step))
            self._step, self._stepped = step, now
        told = {
            "no step": self._no_step(now - self._stepped, rate),
            "half": self._half(now, len(present)),
            "split": self._split(now, present, lines),
        }
        for kind, text in told.items():
            if text and kind not in self.active:
                logger.warning("alarm: %s", text)
            if not text and kind in self.active:
                logger.warning("over: %s", self.active[kind])
        self.active = {kind: text for kind, text in told.items() if text}

    def _no_step(self, still: float, rate: float) -> str:
        estimates = [self.batch / rate] if rate > 1e-3 else []
        if self._times:
            estimates.append(statistics.median(self._times))
        estimate = max(estimates, default=0.0)
        if still <= max(STILL_SECONDS, STILL_TIMES * estimate):
            return ""
        return (
            f"no global step since step {self._step}, for {still:.0f} s; one should take {estimate:.0f} s: peers have "
            "left, or do not reach each other"
        )

    def _half(self, now: float, count: int) -> str:
        self._counts.append((now, count))
        while self._counts[0][0] < now - PEAK_SECONDS:
            self._counts.popleft()
        while len(self._counts) > 2 and self._counts[-2][1] == self._counts[-3][1] == count:
            del self._counts[-2]  # looks that saw the same: the first and the last are enough
        most = max(number for _, number in self._counts)
        if most < 2 or 2 * count > most:
            return ""
        return f"{count} of {most} peers are left within {PEAK_SECONDS / 60:.0f} minutes: ask for others to join"

    def _split(self, now: float, present: Sequence[PeerRecord], lines: Sequence[Mapping[str, Any]]) -> str:
        groups = [_groups(line) for line in lines[-SPLIT_STEPS:]]
        if len(groups) == SPLIT_STEPS and all(
            largest < averaged <= self.largest_group for averaged, largest in groups
        ):
            averaged, largest = groups[-1]
            return (
                f"the {averaged} peers average in more than one group, of {largest} at most: two parts of the swarm "
                "do not reach each other"
            )
        apart = {peer.peer_id for peer in present if 2 * peer.others < len(present) - 1 and peer.state == "training"}
        self._apart_since = {peer: self._apart_since.get(peer, now) for peer in apart}
        if any(now - since > SPLIT_SECONDS for since in self._apart_since.values()):
            return (
                f"{len(apart)} of {len(present)} peers see fewer than half of the others: two parts of the swarm do "
                "not reach each other"
            )
        return ""


def _groups(line: Mapping[str, Any]) -> tuple[int, int]:
    """How many peers averaged at a global step, and the size of the largest group."""
    sizes = [part["group"] for part in line["contributions"] if part["outcome"] == "averaged"]
    return len(sizes), max(sizes, default=0)
