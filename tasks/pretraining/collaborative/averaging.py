"""hivemind's averagers, with what a run has to know of each round, and without their traps.

Traps of hivemind 1.1.12 that are closed here:

* A leader waits the whole matchmaking time even if everybody is there, unless a fixed group size is set, and no longer
  for one that is late: here the size follows the number of peers alive, and a group waits for those.
* Peers at different global steps meet in a group, and mix gradients of different weights: here they do not.
* Keyword arguments for "both averagers" reach only one of them, and the time that a peer may be silent within an
  averaging is the matchmaking time.
* A donor sends its state while it trains: weights of two steps may be mixed. Here it sends a copy.
* A client that begins to look for a group a moment before its leaders is turned away by all of them.
* What members say of their modes reaches nobody: an auxiliary sends zeros and gets the average sent back, and a peer
  whose share is nothing is taken for a client.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any, AsyncIterator  # noqa: UP035 - hivemind knows a stream by this very type

import torch
from hivemind.averaging.averager import AveragingMode
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.compression import (
    CompressionBase,
    Float16Compression,
    NoCompression,
    SizeAdaptiveCompression,
    Uniform8BitQuantization,
)
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import P2PContext
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import as_aiter, azip

from tasks.pretraining.collaborative.door import watch_the_door
from tasks.pretraining.collaborative.event_loop import keep_tasks
from tasks.pretraining.collaborative.records import Outcome
from tasks.pretraining.collaborative.screening import Screen, ScreenedRunner
from tasks.pretraining.collaborative.tracker import GONE_SECONDS
from tasks.pretraining.collaborative.wire import guard

LARGE = 2**16
"""Tensors with more values than this are exchanged in 8 bit by ``compression: by-size``, as in the second sahajBERT
run."""


UPLOADS = 2
"""Members to whom one sends its state at a time; others ask another donor, or again."""


def gradient_compression(kind: str) -> CompressionBase:
    """How gradients are exchanged: the setting ``collaborative.compression``."""
    half = Float16Compression()
    if kind == "by-size":
        return SizeAdaptiveCompression(threshold=LARGE + 1, less=half, greater_equal=Uniform8BitQuantization())
    return half if kind == "float16" else NoCompression()


def state_compression(kind: str) -> CompressionBase:
    """How weights are averaged: never below 16 bit, since their rounding stays in them."""
    return NoCompression() if kind == "none" else Float16Compression()


def state_prefix(run_id: str) -> str:
    """The name under which a run's peers offer their state, as hivemind's optimiser forms it."""
    return f"{run_id}_state_averager"


@dataclass(frozen=True)
class Round:
    """How this peer got through a global step."""

    step: int
    """The global step that ended, 1 for the first."""
    samples: int
    outcome: Outcome
    group: int
    matching: float
    reducing: float
    aggregated: float = 0.0
    """Share of all values that this peer averaged for the group, from 0 to 1."""


class _Rounds:
    """What both averagers add to hivemind's: whom a round is for, who may take part, and what it was like.

    Args:
        screen: of what others send; None for one that takes weights.
        options: hivemind's.
    """

    _has_door = False

    def __init__(self, *arguments: Any, screen: Screen | None = None, **options: Any):
        self._screen = screen or Screen.of_weights()
        super().__init__(*arguments, **options)

    async def add_p2p_handlers(self, p2p: Any, *arguments: Any, **options: Any) -> None:
        """As hivemind's, behind the gate; runs in the averager's process."""
        keep_tasks()
        guard(p2p, self.dht.gate)  # type: ignore[attr-defined]
        await super().add_p2p_handlers(p2p, *arguments, **options)  # type: ignore[misc]

    trains = True
    """Whether this member computes gradients; told to the group."""

    async def _prepare(self, size: int, bits: str) -> None:
        """Runs in the averager's process."""
        matchmaking = self._matchmaking  # type: ignore[attr-defined]
        if not self._has_door:
            self._has_door = True
            keep_tasks()  # a client has no handlers
            watch_the_door(matchmaking, self.dht.gate)  # type: ignore[attr-defined]
        async with matchmaking.lock_looking_for_group:  # a search that is being cancelled would go on in this group
            matchmaking.target_group_size = size
            keys = matchmaking.group_key_manager
            keys.group_bits = bits
            keys.update_key_on_group_assembled = _keep_key  # else a second try would look for the group elsewhere

    def begin(self, size: int, bits: str, patience: float, timeout: float) -> Any:
        """Look for a group.

        Args:
            size: a group of so many peers does not wait for more.
            bits: only peers with the same ones meet. hivemind lets peers meet that are at different global steps.
            patience: seconds in which a smaller group waits for the others.
            timeout: seconds after which the round is given up.

        Returns:
            The control to hand to ``step``, or to trigger.
        """
        self._outer_pipe.send(("_prepare", [size, bits], {}))  # type: ignore[attr-defined]
        # A client leads nobody, is led by those alone whose time is up before its own, and asks each of them once.
        moment = get_dht_time() + (min(2 * patience, 0.9 * timeout) if self.client_mode else patience)  # type: ignore[attr-defined]
        return self.schedule_step(scheduled_time=moment, timeout=timeout, gather=self.trains)  # type: ignore[attr-defined]

    async def _aggregate_with_group(self, group_info: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Runs in the averager's process. Returns the round's facts instead of what peers gathered."""
        started = time.monotonic()
        modes, trains = _members_of(group_info, self.serializer)  # type: ignore[attr-defined]
        if not any(trains):  # the mean of nothing is no number
            raise MatchmakingException("nobody in this group computes gradients")
        await super()._aggregate_with_group(group_info, *args, modes=modes, **kwargs)  # type: ignore[misc]
        runner = self._running_groups[group_info.group_id].result()  # type: ignore[attr-defined]
        parts, mine = runner.peer_fractions, group_info.peer_ids.index(self.peer_id)  # type: ignore[attr-defined]
        counted = zip(group_info.peer_ids, trains, strict=True)
        return {
            "group": [peer.to_base58() for peer in group_info.peer_ids if peer not in runner.refused],
            "training": sum(one for peer, one in counted if peer not in runner.refused),
            "aggregated": parts[mine] / max(1, sum(parts)),
            "reducing": time.monotonic() - started,
            "complete": runner.complete,
        }

    async def _run_allreduce_inplace_(
        self, tensors: Any, group_info: Any, group_id: bytes | None = None, **options: Any
    ) -> None:
        """As hivemind's, with what others send screened; runs in the averager's process."""
        runner = ScreenedRunner(
            screen=self._screen,
            gate=self.dht.gate,  # type: ignore[attr-defined]
            p2p=self._p2p,  # type: ignore[attr-defined]
            servicer_type=type(self),
            prefix=self.prefix,  # type: ignore[attr-defined]
            tensors=tensors,
            group_id=group_id or group_info.group_id,
            ordered_peer_ids=group_info.peer_ids,
            **options,
        )
        self._running_groups[group_info.group_id].set_result(runner)  # type: ignore[attr-defined]
        async for tensor, difference in azip(as_aiter(*tensors), runner):
            tensor.add_(difference)


def _members_of(group_info: Any, serializer: Any) -> tuple[tuple[AveragingMode, ...], list[bool]]:
    """How each member of a group takes part, and whether it computes gradients.

    Raises:
        MatchmakingException: somebody told what cannot be read.
    """
    try:
        told = [serializer.loads(one) for one in group_info.gathered]
        return tuple(AveragingMode(mode) for _, mode, _ in told), [
            serializer.loads(trains) is not False for *_, trains in told
        ]
    except Exception as error:
        raise MatchmakingException(f"what a member told of itself cannot be read: {error}") from error


async def _keep_key(group_info: Any) -> None:
    """Leaves the group's key as it is."""


class PeerGradientAverager(_Rounds, GradientAverager):
    """Averages gradients.

    A round's result is ``{"group": [peer ids], "training": members that compute gradients, "aggregated": this one's
    share of the averaging, "reducing": seconds, "complete": whether all tensors came from all}``, those aside whose
    part was refused; hivemind itself calls a round a success in which a peer broke off half-way.
    """


class PeerStateAverager(_Rounds, TrainingStateAverager):
    """Averages weights, and sends a copy of weights and optimiser state to those who ask.

    ``unchanging`` is a context in which the state is that of a whole number of global steps; the copy is made there.
    """

    unchanging: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    _sending = 0

    async def rpc_download_state(
        self, request: averaging_pb2.DownloadRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        """As hivemind's, to a few at a time: all who join at once would else wait for one slow upload."""
        if self._sending >= UPLOADS:
            yield averaging_pb2.DownloadData(metadata=self.serializer.dumps({"busy": True}))
            return
        self._sending += 1
        try:
            async for part in super().rpc_download_state(request, context):
                yield part
        finally:
            self._sending -= 1

    def get_current_state(self) -> tuple[Any, list[torch.Tensor], list[Any]]:
        """A consistent copy of the state; called in a thread of the peer's own process."""
        with self.unchanging:
            metadata, tensors, infos = super().get_current_state()
            return metadata, [tensor.clone() for tensor in tensors], infos

    def average_now(self, control: Any, timeout: float) -> dict[str, Any]:
        """Average the weights in a group that is being looked for, and wait for it; a round's facts as above.

        Raises:
            Exception: whatever went wrong; the weights are then as before.
        """
        self._load_local_tensors_into_averager_()
        control.allow_allreduce()
        try:
            facts: dict[str, Any] = control.result(timeout)
        except BaseException:
            if not control.done():
                control.cancel()
            raise
        if not facts["complete"]:
            raise RuntimeError("not all weights came from all peers")
        self._apply_averaging_results_()
        return facts


def result_of(control: Any, patience: float, timeout: float) -> dict[str, Any]:
    """A round's facts, once it is over.

    Args:
        control: of the round.
        patience: seconds; a group that is not found after twice of them is not waited for any longer.
        timeout: seconds that the averaging itself may take.

    Raises:
        Exception: the round failed, or takes too long.
    """
    deadline = time.monotonic() + 2 * patience
    while not control.began_allreduce and not control.done() and time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            return dict(control.result(0.02))
    if not control.began_allreduce and not control.done():
        raise TimeoutError("nobody was there")
    return dict(control.result(timeout))


def is_over(control: Any) -> bool:
    """Whether a round cannot be used any more, or there is none."""
    return control is None or control.triggered or control.done()


def averager_options(
    settings: Any, step_seconds: float, bandwidth: float | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments that hivemind leaves at values which do not fit: for the averagers, and for the tracker.

    Args:
        settings: the recipe's ``pretraining.collaborative``.
        step_seconds: how long a global step takes, roughly; decides how often progress is looked up.
        bandwidth: of this member in Mb/s; the settings' if not given.
    """
    # A silent sender is left out after a third of the time for the averaging, a silent reducer after two thirds.
    silence = settings.averaging_timeout_seconds / 3
    averagers = {
        "bandwidth": settings.bandwidth_mbps if bandwidth is None else bandwidth,
        "sender_timeout": silence,
        "reducer_timeout": 2 * silence,
        # Shorter than the matchmaking where that is long, since two peers that ask each other to lead wait for each
        # other so long; but a busy machine takes tenths of a second to answer, and who gives up breaks the round.
        "request_timeout": min(3.0, max(1.0, 0.6 * settings.matchmaking_seconds)),
    }
    refresh = min(0.5, max(0.05, step_seconds / 8))
    tracker = {
        "min_refresh_period": refresh,
        "max_refresh_period": max(refresh, min(10.0, step_seconds / 2)),
        "default_refresh_period": max(refresh, min(3.0, step_seconds / 2)),
        "metadata_expiration": GONE_SECONDS,
    }
    return averagers, tracker
