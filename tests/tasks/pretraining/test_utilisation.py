from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.models import build_model
from tasks.pretraining.objective import losses
from tasks.pretraining.precision import Hardware
from tasks.pretraining.settings import MaskingSettings, ModelSettings
from tasks.pretraining.utilisation import flops_per_token, peak_flops, published_peak


@pytest.mark.parametrize("architecture", ["albert", "bert"])
def test_formula_equals_what_torch_counts(architecture, settings, tokenizer, pack_folder):
    shape = settings(architecture).model
    model = build_model(shape, tokenizer, "mlm", seed=0, attention="eager").eval()
    split = PackedSplit(pack_folder, "train")
    batch = Collator(tokenizer, MaskingSettings(), False)(split, np.arange(8), np.random.default_rng(0))
    positions = (torch.arange(8)[:, None] * split.sequence_length + torch.tensor([1, 3])).reshape(-1)
    batch = replace(batch, positions=positions, targets=batch.input_ids.reshape(-1)[positions])  # no padded queries
    with FlopCounterMode(display=False) as counter:
        losses(model, batch).mlm.backward()
    tokens = batch.input_ids.numel()
    expected = flops_per_token(shape, len(tokenizer), split.sequence_length, len(batch.targets) / tokens)
    assert counter.get_total_flops() == pytest.approx(tokens * expected, rel=1e-9)


def test_layers_that_share_their_weights_count_each():
    shape = {"hidden_size": 1024, "layers": 24, "heads": 16, "intermediate_size": 4096}
    albert = ModelSettings.model_validate({"architecture": "albert", **shape})
    per_token = flops_per_token(albert, 32_000, 512, 0.15)
    layers = 24 * 2 * 1024**2 + 23.15 * 10 * 1024**2
    by_hand = 6 * (128 * 1024 + layers + 0.15 * (1024 * 128 + 128 * 32_000)) + 12 * 23.15 * 1024 * 512
    assert per_token == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize(
    ("gpu", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA H100 80GB HBM3", "fp32", 67.0),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312.0),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla V100-PCIE-16GB", "fp16", 112.0),
        ("Tesla V100-SXM2-16GB", "bf16", None),  # which it does not compute in hardware
        ("Tesla T4", "fp16", 65.0),
        ("NVIDIA L40S", "bf16", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),
        ("AMD Instinct MI250X", "bf16", None),
    ],
)
def test_peaks_by_the_drivers_names(gpu, precision, peak):
    assert published_peak(gpu, precision) == peak


def test_a_processors_peak_is_known_only_if_given():
    processor = Hardware(torch.device("cpu"), "bf16", "")
    assert peak_flops(processor, None) is None
    assert peak_flops(processor, 0.8) == 0.8e12
