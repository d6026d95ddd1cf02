"""The processes of one machine that train one model together, and how they add up what each has computed.

Plain ``torch.distributed``: ``accelerate`` and ``DistributedDataParallel`` give every process a loader of its own and
average the gradients of the processes, each divided by its own number of masked tokens. Here all processes draw the
same batch of a step, each computes its rows, and sums are divided by the whole batch's counts. So the number of
processes changes the rounding and nothing else, but for dropout, whose draws are others.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed

DROPOUT = 2
"""Keeps dropout's random stream apart from those of ``tasks.pretraining.batches``."""

BUFFER_VALUES = 2**26
"""Values that are exchanged at once: few calls for many small tensors, and 256 MiB of memory at most in fp32."""

PATIENCE = datetime.timedelta(days=1)
"""How long a process waits for the others. Torch's own 10 or 30 minutes may be less than a validation, for which the
others wait; that a process has died is noticed by the stage that owns it."""


class PartnerLost(Exception):
    """Another process of the group does not answer any more."""


@dataclass(frozen=True)
class Group:
    """This process among those that train together."""

    rank: int = 0
    """Which one this is; number 0 alone validates, and writes log and checkpoints."""
    size: int = 1

    def add_up(self, tensors: list[torch.Tensor]) -> None:
        """Turns each tensor into its sum over all processes, in place; the bits are the same in all of them.

        Args:
            tensors: of one device and type, with the same shapes in every process.

        Raises:
            PartnerLost: another process is gone.
        """
        if self.size == 1:
            return
        for some in buffers(tensors, BUFFER_VALUES):
            flat = torch.cat([tensor.reshape(-1) for tensor in some])
            try:
                torch.distributed.all_reduce(flat)
            except RuntimeError as error:
                raise PartnerLost(str(error).splitlines()[0]) from error
            for tensor, summed in zip(some, flat.split([tensor.numel() for tensor in some]), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def total(self, number: int, device: torch.device) -> int:
        """The sum of a whole number over all processes, which is below 2**53; also waits for them."""
        total = torch.tensor([number], dtype=torch.float64, device=device)
        self.add_up([total])
        return int(total)

    def seed_dropout(self, seed: int, step: int) -> None:
        """Gives this process a dropout of its own at this step.

        As a function of the step it needs no place in the checkpoint. A process alone draws on from where it is.
        """
        if self.size > 1:
            words = np.random.SeedSequence([seed, DROPOUT, self.rank, step]).generate_state(1, np.uint64)
            torch.manual_seed(int(words[0]))


ALONE = Group()
"""One process, one device."""


def buffers(tensors: list[torch.Tensor], limit: int) -> Iterator[list[torch.Tensor]]:
    """The tensors in order, in runs of at most ``limit`` values; a larger tensor is a run of its own."""
    some: list[torch.Tensor] = []
    values = 0
    for tensor in tensors:
        if some and values + tensor.numel() > limit:
            yield some
            some, values = [], 0
        some.append(tensor)
        values += tensor.numel()
    if some:
        yield some


def form(rank: int, size: int, meeting: Path, *, on_gpu: bool) -> Group:
    """Meets the other processes; call it before anything touches a GPU.

    Args:
        rank: this process's number, 0 to ``size - 1``; also that of its GPU.
        size: how many there are.
        meeting: a file that nobody has written before, the same for all of them.
        on_gpu: NCCL then connects the processes, else gloo.
    """
    if on_gpu:
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=torch.distributed.FileStore(str(meeting), size),
        rank=rank,
        world_size=size,
        timeout=PATIENCE,
    )
    return Group(rank, size)
