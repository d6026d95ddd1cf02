from __future__ import annotations

import math

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from tasks.pretraining.models import build_model
from tasks.pretraining.optimizers import Lamb, build_optimizer, decay_groups, learning_rate_at


def lamb(weight: torch.Tensor, clamp: float = 10_000.0) -> Lamb:
    return Lamb([weight], lr=0.1, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.5, clamp=clamp)


def rate(step: int) -> float:
    """The bias correction of torch_optimizer 0.3.0, on the rate."""
    return 0.1 * math.sqrt(1 - 0.99**step) / (1 - 0.9**step)


def test_lamb_by_hand():
    weight = torch.tensor([3.0, 4.0], requires_grad=True)
    optimizer = lamb(weight)
    weight.grad = torch.tensor([0.2, -0.1])
    optimizer.step()
    # mean / root of the squares is 0.1 g / (0.1 |g|), the gradient's sign: (1, -1); with decay: (1 + 1.5, -1 + 2)
    ratio = 5 / math.hypot(2.5, 1.0)
    first = [3 - rate(1) * ratio * 2.5, 4 - rate(1) * ratio * 1.0]
    assert weight.tolist() == pytest.approx(first, rel=1e-5)

    weight.grad = torch.tensor([0.1, 0.3])
    optimizer.step()
    update = []
    for value, (old, new) in zip(first, [(0.2, 0.1), (-0.1, 0.3)], strict=True):
        mean = 0.9 * 0.1 * old + 0.1 * new
        square = 0.99 * 0.01 * old**2 + 0.01 * new**2
        update.append(mean / (math.sqrt(square) + 1e-6) + 0.5 * value)
    ratio = math.hypot(*first) / math.hypot(*update)
    expected = [value - rate(2) * ratio * change for value, change in zip(first, update, strict=True)]
    assert weight.tolist() == pytest.approx(expected, rel=1e-5)


def test_lamb_starts_as_slowly_as_the_published_run():
    # Reference figures at betas (0.9, 0.999) and rate 1e-3, from torch_optimizer 0.3.0: relative length of the update.
    weight = torch.ones(64, requires_grad=True)
    optimizer = Lamb([weight], lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, clamp=10_000.0)
    lengths = {}
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 101):
        before = weight.detach().clone()
        weight.grad = torch.randn(64, generator=generator)
        optimizer.step()
        lengths[step] = float((weight.detach() - before).norm() / before.norm())
    assert [lengths[step] for step in (1, 10, 100)] == pytest.approx([0.00032, 0.00015, 0.00031], abs=5e-6)


def test_lamb_without_a_norm_takes_the_plain_step():
    weight = torch.zeros(2, requires_grad=True)
    weight.grad = torch.tensor([0.2, -0.1])
    lamb(weight).step()
    assert weight.tolist() == pytest.approx([-rate(1), rate(1)], rel=1e-4)
    still = torch.tensor([1.0], requires_grad=True)
    still.grad = torch.zeros(1)
    Lamb([still], lr=0.1, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.0, clamp=10.0).step()
    assert still.tolist() == [1.0]


def test_lamb_clamps_the_weights_norm():
    weight = torch.tensor([3.0, 4.0], requires_grad=True)
    weight.grad = torch.tensor([0.2, -0.1])
    lamb(weight, clamp=2.0).step()
    ratio = rate(1) * 2 / math.hypot(2.5, 1.0)
    assert weight.tolist() == pytest.approx([3 - ratio * 2.5, 4 - ratio], rel=1e-5)


@pytest.mark.parametrize("architecture", ["bert", "albert"])
def test_decay_groups(settings, tokenizer, architecture):
    model = build_model(settings(architecture).model, tokenizer, "mlm", seed=0)
    decayed, exempt = decay_groups(model, 0.01)
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.01, 0.0)
    total = list(model.parameters())
    assert len(decayed["params"]) + len(exempt["params"]) == len(total)
    names = {id(weight): name for name, weight in model.named_parameters()}
    without = {names[id(weight)] for weight in exempt["params"]}
    assert all("bias" in name or "LayerNorm" in name for name in without)
    assert sum("LayerNorm.weight" in name for name in without) > 0
    # the published rule misses this one, and so the published model decayed it
    full = [name for name in names.values() if "full_layer_layer_norm.weight" in name]
    assert bool(full) == (architecture == "albert")
    assert not without & set(full)


def test_the_settings_optimizer(settings, tokenizer):
    asked = settings(optimizer="adamw", learning_rate=0.5, betas=[0.8, 0.9]).pretraining
    model = build_model(settings().model, tokenizer, "mlm", seed=0)
    optimizer = build_optimizer(model, asked)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    asked = settings(optimizer="lamb", lamb_clamp=10.0).pretraining
    optimizer = build_optimizer(model, asked)
    assert isinstance(optimizer, Lamb)
    assert optimizer.param_groups[1]["clamp"] == 10.0
    assert optimizer.param_groups[1]["weight_decay"] == 0.0


@pytest.mark.parametrize(("warmup", "length"), [(0, 20), (5, 20), (5, 40)])
def test_schedule_is_the_stock_one(settings, warmup, length):
    asked = settings(steps=20, warmup_steps=warmup, schedule_steps=length, learning_rate=0.3).pretraining
    weight = torch.zeros(1, requires_grad=True)
    stock = torch.optim.SGD([weight], lr=0.3)
    schedule = get_linear_schedule_with_warmup(stock, warmup, length)
    for step in range(20):
        assert learning_rate_at(step, asked) == pytest.approx(stock.param_groups[0]["lr"], abs=1e-12)
        stock.step()
        schedule.step()
