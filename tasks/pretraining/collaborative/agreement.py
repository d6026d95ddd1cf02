"""Whether a downloaded state is what others have: they tell sketches of their weights, and the majority counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from tasks.pretraining.collaborative.sketch import distance, sketch

if TYPE_CHECKING:
    from tasks.pretraining.collaborative.state import State

VOTE_SECONDS = 3.0
"""Others come to a step, and tell of their weights, within so long: who joins waits for their word."""

AGREED = 1e-2
"""Largest relative distance of weights that count as the same ones. Averaging in float16 leaves 4e-4; peers that took
a step with different gradients are further apart, by the learning rate or more, until the weights are averaged."""

Vote = Literal["agreed", "open", "outvoted"]


def agreement(
    state: State, told: Callable[[], Mapping[str, Mapping[int, str]]], seconds: float
) -> tuple[Vote, str | None]:
    """What those who tell of a state's step say of its weights.

    Args:
        state: whose weights are looked at.
        told: gives the sketches that peers tell, by libp2p's identity and global step.
        seconds: others may come to this step, and tell it, within so long; not waited for if nobody tells anything.

    Returns:
        "agreed" if more than half have these weights, the state counted, or nobody else tells of this step;
        "outvoted" if more than half have others, all the same ones, or if it is not what its donor tells; "open" if
        there is no majority. And why it is not agreed, in a few words.
    """
    deadline, own = time.monotonic() + seconds, sketch(state.weights)
    while True:
        everyone = told()
        voters = {peer: sketches[state.step] for peer, sketches in everyone.items() if state.step in sketches}
        promised = voters.pop(state.donor, own)
        if voters or not set(everyone) - {state.donor} or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    if not distance(own, promised) <= AGREED:
        return "outvoted", f"it sent other weights of step {state.step} than it tells of"
    parties = [own, *voters.values()]
    far = sum(not distance(own, other) <= AGREED for other in voters.values())
    if 2 * (len(parties) - far) > len(parties):
        return "agreed", None
    largest = max(sum(distance(one, other) <= AGREED for other in parties) for one in voters.values())
    problem = f"{far} of {len(voters)} others have other weights at step {state.step}"
    return ("outvoted" if 2 * largest > len(parties) else "open"), problem
