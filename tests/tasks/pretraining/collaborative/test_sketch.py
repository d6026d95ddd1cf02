"""Sketches tell about how far weights are apart."""

import math

import pytest
import torch

from tasks.pretraining.collaborative.sketch import LENGTH, distance, sketch
from tasks.pretraining.collaborative.state import relative_distance


def weights(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in ((300, 400), (17,), (5, 3), (1,))]


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0])
def test_the_distance_of_sketches_is_about_that_of_weights(size):
    one = weights()
    other = [weight + size * difference for weight, difference in zip(one, weights(1), strict=True)]
    assert len(sketch(one)) == LENGTH
    assert distance(sketch(one), sketch(other)) == pytest.approx(relative_distance(one, other), rel=0.4)


def test_a_difference_that_repeats_from_block_to_block_is_seen_as_it_is():
    one = [torch.randn(2**18, generator=torch.Generator().manual_seed(0))]
    difference = torch.randn(2**16, generator=torch.Generator().manual_seed(1))
    for signs in ([1, 1, 1, 1], [1, -1, 1, -1]):
        other = [one[0] + 0.01 * torch.cat([sign * difference for sign in signs])]
        assert distance(sketch(one), sketch(other)) == pytest.approx(relative_distance(one, other), rel=0.4)


def test_equal_weights_have_equal_sketches_whatever_their_type():
    assert distance(sketch(weights()), sketch(weights())) == 0
    assert sketch([weight.half() for weight in weights()]) == sketch([weight.half().float() for weight in weights()])


@pytest.mark.parametrize("text", ["", "no base64!", "AAAA", sketch([torch.tensor([float("nan")])])])
def test_what_cannot_be_read_is_at_no_distance(text):
    assert math.isnan(distance(sketch(weights()), text))
    assert math.isnan(distance(text, sketch(weights())))


def test_no_weights_at_all():
    nothing = sketch([torch.zeros(3)])
    assert distance(nothing, nothing) == 0
    assert distance(nothing, sketch(weights())) == 1
