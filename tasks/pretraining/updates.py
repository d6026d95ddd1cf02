"""One optimiser step: gradients of a batch in parts, clipped as a whole, and the update of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tasks.pretraining.batches import Batch
from tasks.pretraining.group import ALONE, Group
from tasks.pretraining.objective import Losses, losses
from tasks.pretraining.optimizers import build_optimizer
from tasks.pretraining.precision import Hardware
from tasks.pretraining.settings import PretrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class NotFinite(Exception):
    """Loss or gradient are not finite; the weights were not changed."""


@dataclass(frozen=True)
class StepLosses:
    """Mean losses of a step's batch, in nats."""

    mlm: float
    """A masked token."""
    order: float | None
    """A sequence; None without SOP."""

    @property
    def loss(self) -> float:
        """What was minimised."""
        return self.mlm + (self.order or 0.0)


class Update:
    """Takes optimiser steps.

    Args:
        model: on its device already; is trained in place.
        settings: how.
        hardware: where, and how precisely.
        losses: computes a micro-batch.
        group: the processes that take every step together, each on its part of the batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: PretrainingSettings,
        hardware: Hardware,
        losses: Callable[[PreTrainedModel, Batch], Losses] = losses,
        group: Group = ALONE,
    ):
        self._model, self._settings, self._hardware = model, settings, hardware
        self._losses, self._group = losses, group
        self._optimizer = build_optimizer(model, settings)
        self._scaler = torch.amp.GradScaler(hardware.device.type, enabled=hardware.precision == "fp16")

    def __call__(self, batch: Batch, rate: float) -> StepLosses:
        """One step with this learning rate on the whole batch of all processes; the losses are the whole batch's.

        Raises:
            NotFinite: loss or gradient are not; the weights are as before.
            PartnerLost: another process is gone.
        """
        settings, device = self._settings, self._hardware.device
        masked = max(1, len(batch.targets))
        mlm, order = torch.zeros((), device=device), torch.zeros((), device=device)
        for part in batch.split(settings.accumulation * self._group.size)[self._group.rank :: self._group.size]:
            with self._hardware.autocast():
                result = self._losses(self._model, part.to(device))
            # every part is divided by the whole batch's counts: parts with few masked tokens weigh less
            loss = result.mlm / masked
            mlm += loss.detach()
            if result.order is not None:
                order_loss = result.order / settings.batch_size
                order += order_loss.detach()
                loss = loss + order_loss
            self._scaler.scale(loss).backward()
        # before unscaling: all processes then find the same infinities
        self._group.add_up([mlm, order, *self._gradients()])
        _check_finite("loss", float(mlm + order))
        self._scaler.unscale_(self._optimizer)
        limit = math.inf if settings.clip_norm is None else settings.clip_norm
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), limit)
        # an infinite gradient is how fp16 finds its scale, so there only the loss tells that something is wrong
        if not self._scaler.is_enabled():
            _check_finite("gradient norm", float(norm))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        return StepLosses(float(mlm), None if batch.order is None else float(order))

    def _gradients(self) -> list[torch.Tensor]:
        return [weight.grad for weight in self._model.parameters() if weight.grad is not None]

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold of it."""
        return {"optimizer": self._optimizer.state_dict(), "scaler": self._scaler.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, without the gradients of a step that was not finite."""
        self._optimizer.zero_grad(set_to_none=True)
        self._optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])


def _check_finite(what: str, value: float) -> None:
    if not math.isfinite(value):
        raise NotFinite(f"{what} is {value}")
