"""What is set differently from hivemind's averagers. Their work with others: ``test_optimizer.py``."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch
from hivemind.averaging.partition import TensorPartContainer
from hivemind.compression import CompressionInfo, deserialize_torch_tensor
from hivemind.proto.runtime_pb2 import CompressionType
from hivemind.utils import get_dht_time

from tasks.pretraining.collaborative.averaging import (
    LARGE,
    PeerGradientAverager,
    averager_options,
    gradient_compression,
    state_compression,
)
from tasks.pretraining.collaborative.tracker import GONE_SECONDS
from tasks.pretraining.engine_settings import CollaborativeSettings


def kind_of(compression, tensor: torch.Tensor) -> int:
    return compression.compress(tensor, CompressionInfo.from_tensor(tensor)).compression


@pytest.mark.parametrize(
    ("kind", "small", "large"),
    [
        ("none", CompressionType.NONE, CompressionType.NONE),
        ("float16", CompressionType.FLOAT16, CompressionType.FLOAT16),
        ("by-size", CompressionType.FLOAT16, CompressionType.UNIFORM_8BIT),
    ],
)
def test_gradients_above_65536_values_go_in_8_bit_by_size(kind, small, large):
    assert LARGE == 65_536
    compression = gradient_compression(kind)
    assert kind_of(compression, torch.randn(1)) == small
    assert kind_of(compression, torch.randn(256, 256)) == small
    assert kind_of(compression, torch.randn(LARGE + 1)) == large
    assert kind_of(compression, torch.randn(1000, 1000)) == large


@pytest.mark.parametrize("kind", ["none", "float16", "by-size"])
def test_weights_are_never_averaged_below_16_bit(kind):
    wanted = CompressionType.NONE if kind == "none" else CompressionType.FLOAT16
    assert kind_of(state_compression(kind), torch.randn(1)) == wanted
    assert kind_of(state_compression(kind), torch.randn(LARGE + 1)) == wanted


def test_8_bit_is_read_again():
    """hivemind 1.1.12 turns an array of one number into an int, which NumPy refuses from 2.4 on."""
    gradient = torch.randn(LARGE + 1)
    sent = gradient_compression("by-size").compress(gradient, CompressionInfo.from_tensor(gradient))
    received = deserialize_torch_tensor(sent)
    # six standard deviations in 256 steps
    assert 1e-4 < float((received - gradient).abs().median()) < 6 / 256
    assert len(sent.buffer) < 1.05 * gradient.numel()


def test_the_size_of_the_whole_tensor_decides_and_not_that_of_its_parts():
    tensors = [torch.randn(LARGE), torch.randn(LARGE + 1)]

    async def parts() -> list:
        container = TensorPartContainer(
            tensors, (1.0,), compression=gradient_compression("by-size"), part_size_bytes=2**14
        )
        return [part async for part in container.iterate_input_parts_for(0)]

    sent = asyncio.run(parts())
    sizes: dict[int, int] = {}
    for part in sent:
        sizes[part.compression] = sizes.get(part.compression, 0) + part.size[0]
    assert sizes == {CompressionType.FLOAT16: LARGE, CompressionType.UNIFORM_8BIT: LARGE + 1}
    assert len(sent) > 8


@pytest.mark.parametrize("step_seconds", [1e-3, 0.1, 1.0, 30.0, 1e5])
@pytest.mark.parametrize("matchmaking", [2.0, 5.0, 60.0])
def test_options_fit_each_other(step_seconds, matchmaking):
    asked = CollaborativeSettings(
        matchmaking_seconds=matchmaking, averaging_timeout_seconds=6 * matchmaking, bandwidth_mbps=50.0
    )
    averagers, tracker = averager_options(asked, step_seconds)
    assert averagers["bandwidth"] == 50.0
    # below the matchmaking, but for one that is shorter than a busy machine's answer
    assert averagers["request_timeout"] < max(matchmaking, 1.001)
    # hivemind asks for this
    assert averagers["sender_timeout"] < averagers["reducer_timeout"] < asked.averaging_timeout_seconds
    refresh = [tracker[f"{name}_refresh_period"] for name in ("min", "default", "max")]
    assert 0.05 <= refresh[0] <= refresh[1] <= refresh[2] <= 10
    # a global step is looked at several times, unless it is shorter than all looking
    assert refresh[0] <= max(0.05, step_seconds / 8)
    assert tracker["metadata_expiration"] == GONE_SECONDS


@pytest.mark.parametrize(("client", "timeout", "seconds"), [(False, 60.0, 5.0), (True, 60.0, 10.0), (True, 8.0, 7.2)])
def test_a_client_is_still_looking_when_the_time_of_its_leaders_is_up(client, timeout, seconds):
    found = {}
    averager = SimpleNamespace(
        client_mode=client,
        trains=True,
        _outer_pipe=SimpleNamespace(send=lambda order: None),
        schedule_step=lambda **options: found.update(options),
    )
    PeerGradientAverager.begin(averager, 2, "01", 5.0, timeout)
    assert found["scheduled_time"] - get_dht_time() == pytest.approx(seconds, abs=0.5)
