"""An averaging in which nobody's part is taken unseen: what cannot be a gradient, or weights, is refused and named.

Each part of a tensor is compared with this peer's own part and with the running size of that tensor's own gradients,
both of which nobody else has a hand in; one that computes nothing itself takes what was averaged before. What
is refused: values that are not finite, another shape or type, more samples than a global step has, and a root mean
square far above the own one. The same holds for the averages that other peers send back. With ``aggregation: clipped``
what is large but not refused is scaled down, in the manner of the centred clipping of Karimireddy et al. 2021
(https://arxiv.org/abs/2012.10333), with zero as the centre.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hivemind.averaging.allreduce import AllReduceRunner
from hivemind.averaging.partition import AllreduceException
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from tasks.pretraining.collaborative.gate import Gate
from tasks.pretraining.collaborative.wire import Refused, check_tensor

MEMORY = 0.9
"""Of the running mean square of a tensor's own gradients: a tenth comes from the present round."""

FLOOR = 0.01
"""A tensor counts as at least this large, relative to the root mean square of all: the gradient of a key's bias, for
one, is nothing but rounding, and differs between peers by any factor."""

CLIPPED_TO = 2.0
"""``aggregation: clipped`` scales a part down to this many times its reference."""

WEIGHTS_APART = 1.0
"""Weights that differ from the own ones by more than this, relative to their size or to that of all of the model's,
are not averaged with: strangers' weights of the same size differ by 1.4. Honest peers are apart by their steps since
the last averaging that reached both: of the demo's biases, which are small, by a third after three steps alone."""


class TooFarApart(Refused):
    """Weights that are not averaged with: no proof against their sender, since either may have gone astray."""


@dataclass
class Screen:
    """What an averager remembers and allows.

    Args:
        outlier: a part of more than so many times its reference is refused.
        most_weight: that a sender may claim: the sequences of a global step.
        clipped: whether gradients are scaled down.
        weights: whether weights are averaged, and not gradients; then differences from the own ones are looked at.
    """

    outlier: float
    most_weight: float
    clipped: bool = False
    weights: bool = False
    has_weights: bool = True
    """Whether this member's weights are those of the swarm; an auxiliary has only those that it was made with."""
    is_blind: bool = False
    """Whether this member has no gradient of its own in the present round, as one that only helps."""
    _running: list[float] = field(default_factory=list)

    @classmethod
    def of_weights(cls, *, has_weights: bool = True) -> Screen:
        """For averaging weights, in which every peer counts once."""
        return cls(WEIGHTS_APART, 1.0, weights=True, has_weights=has_weights)

    def references(self, tensors: Sequence[torch.Tensor]) -> list[float]:
        """For each tensor the root mean square that a part of it is compared with, besides the own part's."""
        squares = [float(norm) ** 2 for norm in torch._foreach_norm([tensor.detach().float() for tensor in tensors])]
        squares = [square if math.isfinite(square) else 0.0 for square in squares]
        sizes = [tensor.numel() for tensor in tensors]
        if len(self._running) != len(squares):
            self._running = [0.0] * len(squares)
        self.is_blind = not any(squares)
        if self.is_blind:
            return [math.sqrt(old) for old in self._running]
        floor = (1.0 if self.weights else FLOOR**2) * sum(squares) / max(1, sum(sizes))
        means = [square / max(1, size) for square, size in zip(squares, sizes, strict=True)]
        if not any(self._running):
            self._running = means
        self._running = [MEMORY * old + (1 - MEMORY) * new for old, new in zip(self._running, means, strict=True)]
        return [math.sqrt(max(old, new, floor)) for old, new in zip(self._running, means, strict=True)]

    def learn(self, index: int, averaged: torch.Tensor) -> None:
        """Take an averaged part of a tensor for what is usual: for a member that computes nothing itself."""
        square = float(averaged.float().norm()) ** 2 / max(1, averaged.numel())
        old = self._running[index]
        self._running[index] = MEMORY * old + (1 - MEMORY) * square if old else square

    def weigh(self, part: torch.Tensor, own: torch.Tensor, reference: float, share: float) -> float:
        """The factor to take a part by: 1, or less if it is clipped.

        Args:
            part: what another peer sent.
            own: this peer's part.
            reference: of the tensor that it is of.
            share: this peer's samples for each of the sender's; the fewer a gradient is of, the noisier it is.

        Raises:
            Refused: it is not finite or too large.
        """
        compared = part.float() - own.float() if self.weights else part.float()
        size = float(compared.norm()) / math.sqrt(max(1, part.numel()))
        if not math.isfinite(size):
            raise Refused("values that are not finite")
        if self.weights and not self.has_weights:
            return 1.0
        reference = max(reference, float(own.float().norm()) / math.sqrt(max(1, own.numel())))
        if not reference:
            return 1.0  # nothing is known
        reference *= 1.0 if self.weights else math.sqrt(max(1.0, share))
        if size > self.outlier * reference:
            what = "weights that differ from the own by" if self.weights else "a gradient of"
            kind = TooFarApart if self.weights else Refused
            raise kind(f"{what} {size / reference:.3g} times what is usual (the most is {self.outlier:g})")
        return min(1.0, CLIPPED_TO * reference / size) if self.clipped and size and not self.weights else 1.0

    def check_weight(self, weight: float) -> None:
        """Raises Refused if a sender claims samples that it cannot have."""
        if not (math.isfinite(weight) and 0 <= weight <= self.most_weight):
            raise Refused(f"a weight of {weight:g}; the most is {self.most_weight:g}")


class ScreenedRunner(AllReduceRunner):
    """hivemind's all-reduce of one round, with the screen between the network and what is added up.

    Args:
        screen: of this averager.
        gate: of this member; told whom something was refused, and asked whom not to listen to.
        options: as hivemind's.
    """

    def __init__(self, *, screen: Screen, gate: Gate, **options: Any):
        super().__init__(**options)
        self._screen, self._gate = screen, gate
        self.refused: set[PeerID] = set()
        """Whose part in this round is not used."""
        self._lost = dict[PeerID, int]()
        self._failing = False
        container, reducer = self.tensor_part_container, self.tensor_part_reducer
        references = screen.references(container.local_tensors)
        ordered = [one for parts in container._input_parts_by_peer for one in parts]
        by_part = [index for index, count in enumerate(container.num_parts_by_tensor) for _ in range(count)]
        counts = container.num_parts_by_peer
        starts = [sum(counts[:index]) for index in range(len(counts))]
        self._parts = [ordered[start : start + count] for start, count in zip(starts, counts, strict=True)]
        self._tensors = [by_part[start : start + count] for start, count in zip(starts, counts, strict=True)]
        self._references = [[references[index] for index in share] for share in self._tensors]
        self._me = self.ordered_peer_ids.index(self.peer_id)
        self._accumulate_unseen, reducer.accumulate_part = reducer.accumulate_part, self._accumulate
        self._register_unseen, container.register_processed_part = container.register_processed_part, self._register
        self._fail_unseen, container.register_failed_reducer = container.register_failed_reducer, self._fail
        for peer in self.ordered_peer_ids:
            if peer != self.peer_id and not gate.admits(peer.to_base58()):
                self.refused.add(peer)
                self.banned_senders.add(peer)
                if peer in self.sender_peer_ids and reducer.num_parts:
                    reducer.on_sender_failed(self.sender_peer_ids.index(peer))

    def _refuse(self, peer: PeerID, problem: Refused) -> None:
        if peer not in self.refused:
            self.refused.add(peer)
            self._gate.report(peer.to_base58(), str(problem), counts=not isinstance(problem, TooFarApart))

    async def _accumulate(
        self, sender_index: int, part_index: int, tensor_part: torch.Tensor, weight: float = 1.0
    ) -> torch.Tensor:
        """A sender's part, if it may be one."""
        sender = self.sender_peer_ids[sender_index]
        own, _ = self._parts[self._me][part_index]
        reference = self._references[self._me][part_index]
        factor = 1.0
        if sender != self.peer_id:
            try:
                factor = self._screen.weigh(tensor_part, own, reference, self.weight / max(weight, 1e-9))
            except Refused as problem:
                self._refuse(sender, problem)
                raise
        used = tensor_part if factor == 1.0 else tensor_part * factor
        averaged: torch.Tensor = await self._accumulate_unseen(sender_index, part_index, used, weight=weight)
        if not bool(torch.isfinite(averaged).all()):
            # nobody is refused for it: those who leave stay in their last round with the weight 0
            raise AllreduceException("the mean of nothing: all who sent this part have the weight 0")
        if self._screen.is_blind and sender_index == 0:
            self._screen.learn(self._tensors[self._me][part_index], averaged)
        return averaged

    async def _accumulate_parts_streaming(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender_index: int
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """As hivemind's; nothing is made of a message before its size, type and weight are known to fit."""
        checked = self._checked(stream, self.sender_peer_ids[sender_index], self._me, is_result=False)
        async for message in super()._accumulate_parts_streaming(checked, sender_index):
            yield message

    def _get_peer_stub(self, peer: PeerID) -> Any:
        return _CheckedStub(super()._get_peer_stub(peer), self, peer)

    async def _checked(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], peer: PeerID, reducer: int, *, is_result: bool
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """The messages of another peer for the parts that ``reducer`` averages, as long as they fit."""
        index, parts = 0, self._parts[reducer]
        async for message in stream:
            if not is_result or message.code == averaging_pb2.AVERAGED_PART:  # else it says that it has failed
                try:
                    if index >= len(parts):
                        raise Refused(f"more parts than the {len(parts)} that it was asked for")
                    check_tensor(message.tensor_part, parts[index][0].shape, parts[index][0].dtype)
                    if not is_result:
                        self._screen.check_weight(message.weight)
                except Refused as problem:
                    self._refuse(peer, problem)
                    raise
            index += 1
            yield message

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        if peer_id in self.refused:
            self.tensor_part_container.register_failed_reducer(self.ordered_peer_ids.index(peer_id))
            return
        try:
            await super()._communicate_with_peer(peer_id)
        except AllreduceException:
            if peer_id == self.peer_id:  # hivemind notes it of the others only, and would wait for the own part
                self.tensor_part_container.register_failed_reducer(self._me)
            raise

    def _register(self, peer_index: int, part_index: int, part: torch.Tensor) -> None:
        """An averaged part, as its difference from the own one."""
        peer = self.ordered_peer_ids[peer_index]
        if peer != self.peer_id and not self._failing:
            if peer in self.refused:
                raise Refused("an average by a peer whose own part was refused")
            own, _ = self._parts[peer_index][part_index]
            try:
                self._screen.weigh(own + part, own, self._references[peer_index][part_index], 1.0)
            except Refused as problem:
                self._refuse(peer, problem)
                raise
        self._register_unseen(peer_index, part_index, part)

    def _fail(self, peer_index: int) -> None:
        container = self.tensor_part_container
        before = container.failed_size
        self._failing = True  # what is registered now is this peer's own part
        self._fail_unseen(peer_index)
        self._failing = False
        self._lost[self.ordered_peer_ids[peer_index]] = container.failed_size - before

    @property
    def complete(self) -> bool:
        """Whether all parts came from all peers but the refused ones.

        What those averaged is then the own part; whoever has none has nothing in its place.
        """
        silent = [
            peer
            for peer, after in zip(self.sender_peer_ids, self.tensor_part_reducer.sender_failed_after, strict=True)
            if after != float("inf") and peer not in self.refused
        ]
        replaced = set() if self._screen.is_blind else self.refused
        return not silent and not any(lost for peer, lost in self._lost.items() if peer not in replaced)


class _CheckedStub:
    """Calls a reducer, and checks what it answers."""

    def __init__(self, stub: Any, runner: ScreenedRunner, peer: PeerID):
        self._stub, self._runner, self._peer = stub, runner, peer

    async def rpc_aggregate_part(self, inputs: Any) -> AsyncIterator[averaging_pb2.AveragingData]:
        stream = await self._stub.rpc_aggregate_part(inputs)
        index = self._runner.ordered_peer_ids.index(self._peer)
        return self._runner._checked(stream, self._peer, index, is_result=True)
