"""Optimisers and the learning rate: AdamW, LAMB as published, linear warmup and decay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tasks.pretraining.settings import PretrainingSettings


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020) as the sahajBERT run used it: torch_optimizer 0.3.0 with ``debias``.

    With the running means m of gradients and v of their squares, ``update = m / (sqrt(v) + eps) + weight_decay * w``
    and ``w -= rate * clamp(|w|, 0, clamp) / |update| * update``, norms taken per weight tensor; the ratio is 1 where
    either norm is 0. The bias correction is on the rate, ``rate = lr * sqrt(1 - beta2**t) / (1 - beta1**t)``, as in
    that library. The paper corrects m and v instead, where the ratio of norms cancels it: the first steps are then
    up to 6.5 times as long as those of the published run (betas 0.9 and 0.999).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        clamp: float,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "clamp": clamp})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of all weights that have a gradient; ``closure`` is called first, if given."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._update(group, weights)
        return result

    def _update(self, group: dict[str, Any], weights: list[torch.Tensor]) -> None:
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["step"] = 0
                self.state[weight]["exp_avg"] = torch.zeros_like(weight)
                self.state[weight]["exp_avg_sq"] = torch.zeros_like(weight)
            self.state[weight]["step"] += 1
        step = self.state[weights[0]]["step"]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        means = [self.state[weight]["exp_avg"] for weight in weights]
        squares = [self.state[weight]["exp_avg_sq"] for weight in weights]
        beta1, beta2 = group["betas"]
        # torch's _foreach functions do one operation for all tensors: many small calls would cost more than they do
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, roots)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        weight_norms = torch.stack(torch._foreach_norm(weights)).clamp(max=group["clamp"])
        update_norms = torch.stack(torch._foreach_norm(updates))
        usable = (weight_norms > 0) & (update_norms > 0)
        ratios = torch.where(usable, weight_norms / update_norms, 1.0)
        torch._foreach_mul_(updates, list(ratios.unbind()))
        rate = group["lr"] * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
        torch._foreach_add_(weights, updates, alpha=-rate)


def decay_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups with and without weight decay.

    No decay for names with ``bias`` or ``LayerNorm.weight``, as in the sahajBERT and transformers' scripts. It
    misses ALBERT's ``full_layer_layer_norm.weight``, which is decayed there and so also here.
    """
    named = list(model.named_parameters())
    exempt = {name for name, _ in named if "bias" in name or "LayerNorm.weight" in name}
    return [
        {"params": [weight for name, weight in named if name not in exempt], "weight_decay": weight_decay},
        {"params": [weight for name, weight in named if name in exempt], "weight_decay": 0.0},
    ]


def build_optimizer(model: torch.nn.Module, settings: PretrainingSettings) -> torch.optim.Optimizer:
    """The optimiser the settings ask for."""
    groups = decay_groups(model, settings.weight_decay)
    if settings.optimizer == "lamb":
        return Lamb(
            groups,
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            clamp=settings.lamb_clamp,
        )
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon, fused=True)


def fill_state(optimizer: torch.optim.Optimizer) -> None:
    """Give an unused optimiser the state that its first step would create, as it is before that step.

    Weights stay as they are, and the first step is still step 1 of the bias correction.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for weight in group["params"]:
            weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for values in optimizer.state.values():
        values["step"] = torch.zeros_like(values["step"]) if torch.is_tensor(values["step"]) else 0


def learning_rate_at(step: int, settings: PretrainingSettings) -> float:
    """Learning rate of the step after ``step`` finished ones.

    Linear from 0 to ``learning_rate`` over ``warmup_steps``, then linear to 0 at ``schedule_steps``: the rule of
    transformers' ``get_linear_schedule_with_warmup``, by which the first step of a warmup has rate 0.
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * step / settings.warmup_steps
    left = max(0, settings.schedule_length - step)
    return settings.learning_rate * left / (settings.schedule_length - settings.warmup_steps)
