"""What is taken of what other peers send; the same among real peers: ``test_hostile.py``."""

from __future__ import annotations

import math

import pytest
import torch
from hivemind.compression import CompressionInfo, Float16Compression, NoCompression, Uniform8BitQuantization
from hivemind.proto import runtime_pb2

from tasks.pretraining.collaborative.door import problem_with_word
from tasks.pretraining.collaborative.screening import CLIPPED_TO, MEMORY, WEIGHTS_APART, Screen, TooFarApart
from tasks.pretraining.collaborative.wire import Refused, check_tensor, read_tensor


def gradient(size: float = 1.0, count: int = 10_000, seed: int = 0) -> torch.Tensor:
    return size * torch.randn(count, generator=torch.Generator().manual_seed(seed))


def screen(**options) -> Screen:
    return Screen(20.0, 64.0, **options)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_value_that_is_not_finite_is_enough(value):
    part = gradient(seed=1)
    part[5_000] = value
    for weights in (False, True):
        with pytest.raises(Refused, match="not finite"):
            screen(weights=weights).weigh(part, gradient(), 1.0, 1.0)


@pytest.mark.parametrize("factor", [0.0, 1e-6, 1.0, 5.0, 19.0])
def test_a_gradient_of_a_usual_size_is_taken_as_it_is(factor):
    assert screen().weigh(gradient(factor, seed=1), gradient(), 1.0, 1.0) == 1.0


@pytest.mark.parametrize("factor", [22.0, 1e6, 1e15])
def test_a_gradient_far_above_the_usual_size_is_refused(factor):
    with pytest.raises(Refused, match="a gradient of"):
        screen().weigh(gradient(factor, seed=1), gradient(), 1.0, 1.0)


def test_what_is_usual_is_the_larger_of_the_own_part_and_the_tensor_so_far():
    large = gradient(30.0, seed=1)
    assert screen().weigh(large, gradient(0.1), 2.0, 1.0) == 1.0
    assert screen().weigh(large, gradient(2.0), 0.1, 1.0) == 1.0
    with pytest.raises(Refused):
        screen().weigh(large, gradient(0.1), 0.1, 1.0)


def test_a_gradient_of_fewer_samples_may_be_noisier():
    noisy = gradient(30.0, seed=1)
    with pytest.raises(Refused):
        screen().weigh(noisy, gradient(), 1.0, 1.0)
    assert screen().weigh(noisy, gradient(), 1.0, 4.0) == 1.0


def test_a_peer_that_knows_nothing_yet_takes_what_is_finite():
    fresh = screen()
    nothing = [torch.zeros(4), torch.zeros(3)]
    assert fresh.references(nothing) == [0.0, 0.0]
    assert fresh.weigh(torch.ones(4), nothing[0], 0.0, 1.0) == 1.0
    assert fresh.references([torch.ones(4), torch.ones(3)]) == pytest.approx([1.0, 1.0])  # no memory of the zeros


def test_a_member_that_computes_nothing_learns_what_is_usual():
    helper, nothing = screen(), [torch.zeros(4), torch.zeros(3)]
    assert helper.references(nothing) == [0.0, 0.0]
    assert helper.is_blind
    helper.learn(0, torch.full((4,), 2.0))
    first, second = helper.references(nothing)
    assert (first, second) == pytest.approx((2.0, 0.0))
    with pytest.raises(Refused):
        helper.weigh(torch.full((4,), 2e6), nothing[0], first, 1.0)


def test_the_running_size_follows_the_own_gradients():
    one = screen()
    assert one.references([gradient(8.0)]) == pytest.approx([8.0], rel=0.05)
    after = one.references([gradient(1.0)])[0]
    assert after == pytest.approx(8 * math.sqrt(MEMORY), rel=0.1)
    for _ in range(100):
        after = one.references([gradient(1.0)])[0]
    assert after == pytest.approx(1.0, rel=0.05)


def test_a_tensor_of_mere_rounding_is_compared_with_the_whole_gradient():
    sizes = screen().references([gradient(1.0), gradient(1e-9, 10)])
    assert sizes[1] == pytest.approx(0.01, rel=0.05)


def test_clipped_gradients_come_down_to_twice_the_usual_size():
    clipped = screen(clipped=True)
    assert clipped.weigh(gradient(1.9, seed=1), gradient(), 1.0, 1.0) == 1.0
    factor = clipped.weigh(gradient(10.0, seed=1), gradient(), 1.0, 1.0)
    assert factor * 10 == pytest.approx(CLIPPED_TO, rel=0.05)


def test_weights_may_differ_a_little():
    own = gradient()
    weights = Screen.of_weights()
    assert weights.weigh(own + gradient(0.9 * WEIGHTS_APART, seed=1), own, 1.0, 1.0) == 1.0
    with pytest.raises(TooFarApart, match="weights that differ"):
        weights.weigh(own + gradient(1.1 * WEIGHTS_APART, seed=1), own, 1.0, 1.0)
    with pytest.raises(TooFarApart):
        weights.weigh(-own, own, 1.0, 1.0)
    with pytest.raises(TooFarApart):
        weights.weigh(gradient(seed=1), own, 1.0, 1.0)


def test_small_weights_may_differ_by_what_is_little_for_the_model():
    """A bias of the demo was a third of its size apart after three steps alone, and its peers refused each other."""
    bias, matrix = gradient(0.02, 100), gradient(0.1)
    weights = Screen.of_weights()
    references = weights.references([bias, matrix])
    assert weights.weigh(bias + gradient(0.04, 100, seed=1), bias, references[0], 1.0) == 1.0
    with pytest.raises(TooFarApart):
        weights.weigh(bias + gradient(0.2, 100, seed=1), bias, references[0], 1.0)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0, 65.0, 1e30])
def test_nobody_claims_more_samples_than_there_are(weight):
    with pytest.raises(Refused, match="a weight of"):
        screen().check_weight(weight)


def test_a_usual_number_of_samples_is_taken():
    for weight in (0.0, 1.0, 64.0):
        screen().check_weight(weight)


def sent(tensor: torch.Tensor, compression) -> runtime_pb2.Tensor:
    return compression.compress(tensor, CompressionInfo.from_tensor(tensor))


@pytest.mark.parametrize("compression", [NoCompression(), Float16Compression(), Uniform8BitQuantization()])
def test_what_peers_send_each_other_is_read(compression):
    tensor = gradient()
    read = read_tensor([sent(tensor, compression)], tensor)
    assert read.shape == tensor.shape
    assert read.dtype == tensor.dtype
    assert float((read - tensor).norm() / tensor.norm()) < 0.05


HUGE = 2**32 - 1


@pytest.mark.parametrize("compression", [NoCompression(), Float16Compression(), Uniform8BitQuantization()])
@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "U1000000"},
        {"dtype": "object"},
        {"dtype": "load"},
        {"dtype": ""},
        {"size": [HUGE]},
        {"size": [10_000, HUGE]},
        {"size": []},
        {"buffer": b""},
        {"buffer": b"\xff" * 20_000 + b"\xff" * 9},
        {"compression": runtime_pb2.CompressionType.QUANTILE_8BIT},
        {"compression": runtime_pb2.CompressionType.BLOCKWISE_8BIT},
        {"compression": runtime_pb2.CompressionType.MEANSTD_16BIT},
    ],
)
def test_a_tensor_that_is_not_what_was_asked_for_is_refused_before_it_is_made(compression, change):
    good = sent(gradient(), compression)
    fields = {"dtype": good.dtype, "size": list(good.size), "buffer": good.buffer, "compression": good.compression}
    with pytest.raises(Refused):
        check_tensor(runtime_pb2.Tensor(**{**fields, **change}), (10_000,), torch.float32)


def test_words_about_oneself_are_read_before_a_group_is_formed():
    from hivemind.utils import MSGPackSerializer

    nothing = MSGPackSerializer.dumps(None)
    for bandwidth, mode in ((100.0, 0), (None, 0), (0, 1), (5, 1)):
        assert problem_with_word(MSGPackSerializer.dumps([bandwidth, mode, nothing])) is None
    for word in (
        b"",
        b"\xff",
        b"\x80\x04N.",
        MSGPackSerializer.dumps([100.0, 3, nothing]),
        MSGPackSerializer.dumps([100.0, True, nothing]),
        MSGPackSerializer.dumps([float("nan"), 0, nothing]),
        MSGPackSerializer.dumps([-1.0, 0, nothing]),
        MSGPackSerializer.dumps([1e300, 0, nothing]),
        MSGPackSerializer.dumps([100.0, 0, b"\x80\x04N."]),
        MSGPackSerializer.dumps([100.0, 0]),
        MSGPackSerializer.dumps({"bandwidth": 5}),
        MSGPackSerializer.dumps([100.0, 0, nothing]) + b"\0" * 300,
    ):
        assert problem_with_word(word) is not None, word
