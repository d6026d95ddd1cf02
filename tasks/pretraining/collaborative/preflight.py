"""Whether a swarm's settings can work at the speed that its founders measured, before any of them trains."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.pretraining.settings import PretrainingSettings

STEPS_OF_MATCHMAKING = 2
"""A global step takes at least so many times the matchmaking time: looking for a group begins within the step, and a
second peer that is late by one matchmaking would else never be in the first one's group (hivemind issue 515)."""


def problem_with(settings: PretrainingSettings, rates: Sequence[float]) -> str | None:
    """Why these settings cannot work with peers of these speeds, in one line with the numbers; None if they can.

    Args:
        settings: of the run.
        rates: sequences a second of each founding peer.
    """
    asked, rate = settings.collaborative, sum(rates)
    step_seconds = settings.batch_size / rate
    peers = f"{len(rates)} peer{'s' * (len(rates) != 1)}"
    speed = f"{settings.batch_size:,} sequences at {rate:,.1f} sequences/s of {peers} take {step_seconds:,.2f} s"
    if asked.deadline_minutes is not None and step_seconds > 60 * asked.deadline_minutes:
        reachable = int(60 * asked.deadline_minutes * rate)
        return (
            f"pretraining.batch_size: {speed}, longer than the whole run may "
            f"(pretraining.collaborative.deadline_minutes {asked.deadline_minutes:g}); lower batch_size below "
            f"{reachable:,} or raise the deadline"
        )
    if step_seconds < STEPS_OF_MATCHMAKING * asked.matchmaking_seconds:
        needed = int(STEPS_OF_MATCHMAKING * asked.matchmaking_seconds * rate) + 1
        return (
            f"pretraining.batch_size: {speed}, less than {STEPS_OF_MATCHMAKING} times "
            f"pretraining.collaborative.matchmaking_seconds {asked.matchmaking_seconds:g}: peers could not find each "
            f"other; raise batch_size to {needed:,} or lower matchmaking_seconds to "
            f"{_rounded_down(step_seconds / STEPS_OF_MATCHMAKING):g}"
        )
    return None


def _rounded_down(value: float) -> float:
    """To two digits: advice that is rounded up would be refused again."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.floor(value / unit) * unit
