"""Downloading a peer's weights and optimiser state: bounded in attempts and time, and checked before it is used.

hivemind's own ``load_state_from_peers`` tries for ever, takes "nobody has any" for a success, ignores the time it is
given and applies what it gets without counting it (1.1.12). Here a download either returns a state whose tensors
have the number, shapes and types that this member's own has, and whose weights others tell too, or None; what it is
used for is up to the caller.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from hivemind import DHT
from hivemind.optim.state_averager import dump_optimizer_state, load_optimizer_state
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer, ValueWithExpiration
from hivemind.utils.asyncio import aiter_with_timeout

from tasks.pretraining.collaborative.agreement import agreement
from tasks.pretraining.collaborative.averaging import PeerStateAverager, state_prefix
from tasks.pretraining.collaborative.sharding import Taken
from tasks.pretraining.collaborative.wire import LARGEST_METADATA, Refused, read_tensor

if TYPE_CHECKING:
    from hivemind.proto import runtime_pb2

logger = logging.getLogger(__name__)

CHUNK_SECONDS = 20.0
"""A donor that sends nothing for so long is given up: its next piece needs at most the time of its global step."""

DIAL_SECONDS = 5.0
"""A donor that takes no call for so long is given up. libp2p calls one that has gone for a quarter of a minute, while
the swarm goes on."""

MEASURABLE = 2**22
"""Bytes of a state that comes fast enough to say nothing of the connection if it is smaller."""

ROUNDS = 3
"""How often all donors are asked before a download is given up."""


@dataclass(frozen=True)
class State:
    """Weights and optimiser state after ``step`` global steps."""

    step: int
    weights: list[torch.Tensor]
    """In the order of the optimiser's parameter groups."""
    optimizer: list[torch.Tensor]
    metadata: list[dict[str, Any]]
    """hivemind's description of the optimiser's ``state_dict``: values, and places of the tensors."""
    donor: str
    """libp2p's identity of the peer that sent it, in base58."""
    mbps: float | None = None
    """Mb/s at which it came; None if it was not sent, or is too small to tell."""


def state_of(optimizer: torch.optim.Optimizer, step: int) -> State:
    """A copy of a torch optimiser's own weights and state."""
    with torch.no_grad():
        metadata, tensors = dump_optimizer_state(optimizer)
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        return State(
            step, [weight.detach().cpu().clone() for weight in weights], [one.clone() for one in tensors], metadata, ""
        )


def load_into(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Puts a state that fits into an optimiser and its weights; rates, betas and decay stay the optimiser's own."""
    with torch.no_grad():
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        for weight, value in zip(weights, state.weights, strict=True):
            weight.copy_(value)
    own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    load_optimizer_state(optimizer, state.metadata, state.optimizer)
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)


def problem_with(state: State, own: State) -> str | None:
    """Why a downloaded state does not fit the model and optimiser that ``own`` was taken of; None if it does."""
    for what, tensors, expected in (
        ("weights", state.weights, own.weights),
        ("optimiser tensors", state.optimizer, own.optimizer),
    ):
        if len(tensors) != len(expected):
            return f"{len(tensors)} {what} instead of {len(expected)}"
        for number, (tensor, wanted) in enumerate(zip(tensors, expected, strict=True)):
            if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
                return f"{what} {number} is {tensor.dtype}{list(tensor.shape)}, not {wanted.dtype}{list(wanted.shape)}"
            if not torch.isfinite(tensor).all():
                return f"{what} {number} is not finite"
    if [_kind(entry) for entry in state.metadata] != [_kind(entry) for entry in own.metadata]:
        return "another optimiser's state"
    return None


def _kind(entry: Any) -> tuple[Any, ...]:
    """What an entry of the metadata has to agree in: a tensor's place, a value's type."""
    if not isinstance(entry, dict):
        return ("unknown",)
    if entry.get("type") == "tensor":
        index = entry.get("index")
        return ("tensor", index) if type(index) is int else ("unknown",)
    value = entry.get("value")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (entry.get("type"), float) if math.isfinite(float(value)) else ("unknown",)
    return (entry.get("type"), type(value))


def load_checkpoint(path: Path) -> tuple[State, Taken]:
    """State and taken shards of the coordinator's checkpoint."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    return State(**saved["state"]), Taken(**saved["taken"])


def donors(dht: DHT, run_id: str, timeout: float = 10.0) -> list[str]:
    """Identities of the peers that offer their state, those with the most global steps first."""
    found = dht.get(f"{state_prefix(run_id)}.all_averagers", latest=True, return_future=True).result(timeout)
    entries = found.value if isinstance(found, ValueWithExpiration) and isinstance(found.value, dict) else {}
    offers = [
        (float(entry.value), random.random(), PeerID(peer).to_base58())  # equal ones in any order: joins spread out
        for peer, entry in entries.items()
        if isinstance(peer, bytes) and isinstance(entry.value, int | float)
    ]
    return [peer for *_, peer in sorted(offers, reverse=True)]


def download(
    dht: DHT,
    run_id: str,
    own: State,
    *,
    at_least: int = 0,
    only: Sequence[str] = (),
    present: Callable[[], Collection[str]] = frozenset,
    seconds: float = 600.0,
    told: Callable[[], Mapping[str, Mapping[int, str]]] = dict,
    vote_seconds: float = 0.0,
) -> State | None:
    """The state of a peer, checked against ``own``.

    Args:
        dht: this member's.
        run_id: names the run.
        own: a state of the same model and optimiser.
        at_least: older states are refused.
        only: ask these peers instead of all that offer theirs.
        present: gives the identities of those who are there; others may have left, and are asked last.
        seconds: given up after so long, over all attempts. One that is busy sending is asked again until then.
        told: gives the sketches of weights that peers tell, by libp2p's identity and global step.
        vote_seconds: others are waited for so long to tell of the state's step. A peer that only lags cannot: with
            short steps the others would have gone on by then, again and again.

    Returns:
        None if no peer sent a usable state; the log says why of each.
    """
    deadline = time.monotonic() + seconds

    def left() -> float:
        return max(0.0, deadline - time.monotonic())

    def others() -> dict[str, Mapping[int, str]]:
        return {peer: sketches for peer, sketches in told().items() if peer != me}

    me = dht.peer_id.to_base58()
    attempt, busy = 0, False
    doubtful: State | None = None
    while attempt < ROUNDS and left():
        if attempt or busy:
            time.sleep(min(attempt + random.uniform(0.2, 1.0), left()))  # those who wait do not come back together
        attempt, busy = attempt + 1, False
        try:
            asked = [peer for peer in only or donors(dht, run_id, min(10.0, left())) if peer != me]
            there = present()
            asked = sorted((peer for peer in asked if dht.gate.admits(peer)), key=lambda peer: peer not in there)
        except Exception as error:
            logger.warning("the DHT did not say who has a state: %r", error)
            asked = []
        for peer in asked:
            if not left():
                break
            try:
                daemon = dht.run_coroutine(DHT._get_p2p_daemon_listen_maddr, return_future=True).result(left())
                state = asyncio.run(asyncio.wait_for(_receive(daemon, run_id, peer, own), left()))
            except _Busy:
                busy = True
                continue
            except Refused as error:
                dht.gate.report(peer, f"its state: {error}")
                continue
            except Exception as error:
                logger.warning("%s did not send its state: %r", peer, error)
                continue
            problem = problem_with(state, own)
            if problem is not None:
                dht.gate.report(peer, f"its state: {problem}")
            if state.step < at_least:
                problem = f"it is of step {state.step}, before {at_least}"
            if problem is None:
                vote, problem = agreement(state, others, min(vote_seconds, left()))
                if vote == "agreed":
                    return state
                if vote == "open":
                    doubtful = state
            logger.warning("the state of %s is not used: %s", peer, problem)
        if busy:
            attempt -= 1
    if doubtful is not None:  # until their weights are averaged, peers that found no group are apart from each other
        logger.warning("the state of %s is used all the same: the others do not agree either", doubtful.donor)
    return doubtful


class _Busy(Exception):
    """A donor that sends its state to as many as it can."""


async def _receive(daemon: Any, run_id: str, peer: str, own: State) -> State:
    """One download: no more is received than ``own`` has, plus a tenth, and tensors of its shapes and types alone."""
    expected = [*own.weights, *own.optimizer]
    allowed = 1.1 * sum(tensor.nbytes for tensor in expected) + 2**20
    p2p, started = await P2P.replicate(daemon), time.monotonic()
    try:
        stub = PeerStateAverager.get_stub(p2p, PeerID.from_base58(peer), namespace=state_prefix(run_id))
        stream = await asyncio.wait_for(stub.rpc_download_state(averaging_pb2.DownloadRequest()), DIAL_SECONDS)
        metadata: Any = None
        tensors: list[torch.Tensor] = []
        parts: list[runtime_pb2.Tensor] = []
        received = 0
        async for message in aiter_with_timeout(stream, CHUNK_SECONDS):
            received += message.ByteSize()
            if received > allowed:
                raise ValueError(f"it sends more than {allowed:,.0f} bytes")
            if len(message.metadata) > LARGEST_METADATA:
                raise Refused(f"{len(message.metadata):,} bytes of metadata")
            if message.metadata:
                metadata = MSGPackSerializer.loads(message.metadata)
                if isinstance(metadata, dict) and metadata.get("busy"):
                    raise _Busy
            if message.tensor_part.dtype and parts:  # only the first part of a tensor has a type
                tensors.append(_next_tensor(parts, tensors, expected))
                parts = []
            parts.append(message.tensor_part)
        if parts:
            tensors.append(_next_tensor(parts, tensors, expected))
    finally:
        await p2p.shutdown()
    if not isinstance(metadata, dict) or not isinstance(metadata.get("epoch"), int):
        raise ValueError("it has none to give")
    count, took = len(own.weights), time.monotonic() - started
    mbps = received / took / 125_000 if received > MEASURABLE else None
    return State(metadata["epoch"], tensors[:count], tensors[count:], list(metadata["optimizer_metadata"]), peer, mbps)


def _next_tensor(
    parts: Sequence[runtime_pb2.Tensor], before: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The tensor that came in these parts, which has to be like the next one of ``expected``."""
    if len(before) == len(expected):
        raise Refused(f"more than {len(expected)} tensors")
    return read_tensor(parts, expected[len(before)])


def relative_distance(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """L2 norm of the difference of two lists of weights, relative to the first one's norm."""
    difference = sum(float(torch.sum((a.double() - b.double()) ** 2)) for a, b in zip(one, other, strict=True))
    norm = sum(float(torch.sum(a.double() ** 2)) for a in one)
    return float((difference / norm) ** 0.5) if norm else float(difference > 0)


def most_distant(states: Mapping[str, State]) -> tuple[str, str, float]:
    """Which two of at least two states have weights that differ most, and their distance; NaN counts as farthest."""
    distances = [
        (relative_distance(states[one].weights, states[other].weights), one, other)
        for one, other in itertools.combinations(states, 2)
    ]
    distance, one, other = max(distances, key=lambda found: (math.isnan(found[0]), found[0]))
    return one, other, distance
