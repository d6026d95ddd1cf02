"""A peer's micro-batches are its own, and what reaches the optimiser is finite and at fp32's scale."""

from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest
import torch

from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.collaborative.averaging import Round
from tasks.pretraining.collaborative.gradients import FIRST_SCALE, LARGEST_SCALE, Computed, Gradients, Sums
from tasks.pretraining.collaborative.sharding import Sharding
from tasks.pretraining.models import build_model
from tasks.pretraining.objective import losses
from tasks.pretraining.precision import Hardware
from tasks.pretraining.settings import MaskingSettings

ROWS = 8
MASKING = MaskingSettings(rate=0.3)


class Exact(Hardware):
    """Says it is one precision and computes in fp32, so that only the scaling is left of fp16."""

    def autocast(self):
        return contextlib.nullcontext()


def hardware(precision: str) -> Hardware:
    return Exact(torch.device("cpu"), precision, "for the test")


@pytest.fixture
def make(tokenizer, pack_folder):
    train = PackedSplit(pack_folder, "train")

    def gradients(precision: str = "fp32", peer: str = "a" * 16, seed: int = 1) -> Gradients:
        collator = Collator(tokenizer, MASKING, sentence_order=False)
        return Gradients(train, collator, Sharding(len(train), seed, peer), hardware(precision), ROWS)

    return gradients


@pytest.fixture
def model(settings, tokenizer):
    return build_model(settings().model, tokenizer, "mlm", 0).eval()  # without dropout


def gradients_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return [weight.grad for weight in model.parameters() if weight.grad is not None]


def test_gradients_are_those_of_the_mean_loss(make, model):
    gradients = make()
    batch = gradients.next_batch()
    other = copy.deepcopy(model)
    (losses(other, batch).mlm / len(batch.targets)).backward()
    computed = gradients.compute(model, batch)
    torch.testing.assert_close(gradients_of(model), gradients_of(other), rtol=1e-5, atol=1e-8)
    assert computed.finite
    assert (computed.rows, computed.masked, computed.order) == (ROWS, len(batch.targets), None)
    assert computed.loss == pytest.approx(computed.mlm / computed.masked)
    assert 3.0 < computed.loss < 4.5  # about the logarithm of 45 tokens
    assert gradients.discarded == 0


def test_gradients_with_sentence_order(settings, tokenizer, pairs_folder):
    train = PackedSplit(pairs_folder, "train")
    collator = Collator(tokenizer, MASKING, sentence_order=True)
    gradients = Gradients(train, collator, Sharding(len(train), 1, "a" * 16), hardware("fp32"), ROWS)
    model = build_model(settings("albert", objective="mlm+sop").model, tokenizer, "mlm+sop", 0).eval()
    batch, other = gradients.next_batch(), copy.deepcopy(model)
    sums = losses(other, batch)
    mlm, order = sums.mlm.item(), sums.order.item()
    (sums.mlm / len(batch.targets) + sums.order / ROWS).backward()
    computed = gradients.compute(model, batch)
    torch.testing.assert_close(gradients_of(model), gradients_of(other), rtol=1e-5, atol=1e-8)
    assert computed.order == pytest.approx(order)
    assert computed.loss == pytest.approx(mlm / len(batch.targets) + order / ROWS)


def test_gradients_of_a_batch_without_targets_are_finite(make, model, tokenizer):
    gradients = make()
    gradients.collator = Collator(tokenizer, MaskingSettings(rate=1e-9), sentence_order=False)
    batch = gradients.next_batch()
    assert len(batch.targets) == 0
    computed = gradients.compute(model, batch)
    assert computed.finite
    assert computed.loss == 0.0


def test_scaled_gradients_come_out_unscaled(make, model):
    plain, scaled = make("fp32"), make("fp16")
    batch, other = plain.next_batch(), copy.deepcopy(model)
    plain.compute(other, batch)
    before = scaled._scale
    assert before == FIRST_SCALE > 1
    for _ in range(3):
        model.zero_grad()
        assert scaled.compute(model, batch).finite
        torch.testing.assert_close(gradients_of(model), gradients_of(other), rtol=1e-4, atol=1e-7)
    assert before < scaled._scale < 1.01 * before
    assert plain._scale == 1.0


def test_the_scale_reaches_the_backward_pass_and_not_the_told_loss(make, model):
    plain, scaled = make("fp32"), make("fp16")
    batch, seen = plain.next_batch(), []
    next(model.parameters()).register_hook(lambda gradient: seen.append(gradient.norm().item()))
    told = [gradients.compute(model, batch).mlm for gradients in (plain, scaled)]
    assert seen[1] == pytest.approx(FIRST_SCALE * seen[0], rel=1e-3)
    assert told[0] == told[1]


def test_an_overflow_is_discarded_counted_and_halves_the_scale(make, model, caplog):
    gradients = make("fp16")
    batch = gradients.next_batch()
    limit = {"value": 1.0}  # gradients above it overflow, as in fp16 above 65,504
    weight = next(model.parameters())
    weight.register_hook(lambda one: torch.where(one.abs() > limit["value"], torch.inf, one))
    assert not gradients.compute(model, batch).finite
    assert (gradients._scale, gradients.discarded) == (FIRST_SCALE / 2, ROWS)
    assert not gradients.compute(model, batch).finite
    assert (gradients._scale, gradients.discarded) == (FIRST_SCALE / 4, 2 * ROWS)
    assert caplog.text.count(f"{ROWS} sequences are left out") == 2
    limit["value"] = 1e30
    other = copy.deepcopy(model)
    model.zero_grad()
    assert gradients.compute(model, batch).finite
    other.zero_grad()
    make("fp32").compute(other, batch)
    torch.testing.assert_close(gradients_of(model), gradients_of(other), rtol=1e-4, atol=1e-7)
    assert gradients.discarded == 2 * ROWS


def test_the_scale_stays_within_its_limits(make, model):
    gradients = make("fp16")
    batch = gradients.next_batch()
    hook = next(model.parameters()).register_hook(lambda gradient: gradient * torch.nan)
    for _ in range(20):
        assert not gradients.compute(model, batch).finite
    assert gradients._scale == 1.0
    hook.remove()
    model.zero_grad()
    gradients._scale = LARGEST_SCALE
    assert gradients.compute(model, batch).finite
    assert gradients._scale == LARGEST_SCALE


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_is_discarded(make, model, precision, bad):
    gradients = make(precision)
    batch = gradients.next_batch()

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        spoilt = gradient.clone()
        spoilt.view(-1)[-1] = bad
        return spoilt

    hook = list(model.parameters())[-1].register_hook(spoil)
    computed = gradients.compute(model, batch)
    assert (computed.finite, gradients.discarded, gradients._scale) == (False, ROWS, 1.0)
    hook.remove()
    model.zero_grad()
    assert gradients.compute(model, batch).finite
    assert gradients.discarded == ROWS


def test_peers_of_unlike_precision_give_the_same_gradients_up_to_rounding(make, model):
    """What is averaged is fp32 and of the same size, whether a peer computes in fp32, bf16, or fp16 with its scale."""
    found = {}
    for precision in ("fp32", "bf16", "fp16"):
        gradients = make(precision)
        if precision == "bf16":
            gradients.hardware = Hardware(torch.device("cpu"), "bf16", "really")
        model.zero_grad()
        assert gradients.compute(model, gradients.trial_batch(ROWS)).finite
        assert {gradient.dtype for gradient in gradients_of(model)} == {torch.float32}
        found[precision] = torch.cat([gradient.reshape(-1).clone() for gradient in gradients_of(model)])
    for precision, bound in (("bf16", 0.05), ("fp16", 1e-5)):
        difference = (found[precision] - found["fp32"]).norm() / found["fp32"].norm()
        assert difference < bound, precision
    assert not found["bf16"].equal(found["fp32"])  # it was computed otherwise


def test_a_batch_to_measure_with_takes_nothing(make):
    measured, other = make(), make()
    assert measured.trial_batch(3).input_ids.shape[0] == 3
    assert measured.next_batch().input_ids.equal(other.next_batch().input_ids)


def test_batches_are_the_peers_own_and_the_same_again(make):
    first, again, other, seed = make(), make(), make(peer="b" * 16), make(seed=2)
    for _ in range(3):
        batch, same = first.next_batch(), again.next_batch()
        assert batch.input_ids.equal(same.input_ids)
        assert batch.targets.equal(same.targets)
        for different in (other.next_batch(), seed.next_batch()):
            assert not batch.input_ids.equal(different.input_ids)
    assert batch.input_ids.shape[0] == ROWS


def test_masks_are_new_for_every_batch_and_differ_between_peers(make):
    def mask_positions(gradients: Gradients) -> list[int]:
        gradients.sharding.next = lambda count: np.arange(count)  # the same sequences for everybody
        return [*gradients.next_batch().positions.tolist(), -1, *gradients.next_batch().positions.tolist()]

    one, other = mask_positions(make()), mask_positions(make(peer="b" * 16))
    assert one != other
    assert one[: one.index(-1)] != one[one.index(-1) + 1 :]


def test_sums_become_what_is_told_of_a_step():
    sums = Sums()
    sums.add(Computed(4, 10.5, 7, None, True), 0.5)
    sums.add(Computed(4, 1.00004, 3, None, True), 0.25)
    entry = sums.entry(Round(step=3, samples=8, outcome="no group", group=1, matching=6.123456, reducing=0.0))
    assert entry.model_dump() == {
        "step": 3,
        "samples": 8,
        "mlm": 11.5,
        "masked": 10,
        "order": None,
        "outcome": "no group",
        "group": 1,
        "aggregated": 0.0,
        "matching": 6.1235,
        "reducing": 0.0,
        "computing": 0.75,
    }
    sums = Sums()
    sums.add(Computed(4, 1.0, 7, 2.5, True), 0.5)
    sums.add(Computed(4, 1.0, 7, 0.25, True), 0.5)
    assert sums.entry(Round(1, 8, "averaged", 2, 0.0, 0.1)).order == 2.75
