"""Model FLOP utilisation: the share of the hardware's peak that goes into the model's own matrix products.

As defined by Chowdhery et al. 2022 (PaLM, section 4.1 and appendix B): the operations that the model needs, over
those that the hardware could do in the same time. Work that is only repeated or thrown away does not count, so the
figure compares implementations. And the memory that they take.
"""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING

import torch

from tasks.pretraining.settings import ALBERT_EMBEDDING_SIZE, ModelSettings

if TYPE_CHECKING:
    from tasks.pretraining.precision import Hardware

PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    ("H200 NVL", {"bf16": 835.5, "fp16": 835.5, "fp32": 60.0}),
    ("H200", {"bf16": 989.5, "fp16": 989.5, "fp32": 67.0}),
    ("H100 NVL", {"bf16": 835.5, "fp16": 835.5, "fp32": 60.0}),
    ("H100 PCIe", {"bf16": 756.5, "fp16": 756.5, "fp32": 51.0}),
    ("H100", {"bf16": 989.5, "fp16": 989.5, "fp32": 67.0}),
    ("A100", {"bf16": 312.0, "fp16": 312.0, "fp32": 19.5}),
    ("L4", {"bf16": 121.0, "fp16": 121.0, "fp32": 30.3}),
    ("V100 PCIE", {"fp16": 112.0, "fp32": 14.0}),
    ("V100", {"fp16": 125.0, "fp32": 15.7}),
    ("T4", {"fp16": 65.0, "fp32": 8.1}),
)
"""Words of a GPU's name, and its dense peak in TFLOP/s at a precision, from NVIDIA's data sheet of that product (where
one gives the figure with sparsity only, half of it). fp32 is without TF32, which torch leaves switched off. The first
entry all of whose words are in the name counts; the plain names stand for the SXM modules."""


def flops_per_token(model: ModelSettings, vocabulary: int, length: int, masked: float) -> float:
    """Floating-point operations that training takes for one token of a sequence, forward and backward.

    Six for each weight of a matrix product and token: a multiplication and an addition forward, twice as many
    backward (Kaplan et al. 2020, section 2.1). ALBERT's layers share their weights, and each of them is computed.
    Attention adds ``12 * hidden_size * length`` a layer for the products of queries with keys and of weights with
    values (PaLM, appendix B). The vocabulary head runs at the masked positions only, and so does the last layer but
    for its keys and values. Not counted: what the sentence order takes, for one token a sequence, the padding of the
    last layer's queries, and all that is no matrix product.

    Args:
        model: its shape.
        vocabulary: entries.
        length: tokens of a sequence.
        masked: share of the tokens that is predicted.
    """
    hidden = model.hidden_size
    embedding = (model.embedding_size or ALBERT_EMBEDDING_SIZE) if model.architecture == "albert" else hidden
    keys_and_values, rest = 2 * hidden**2, 2 * hidden**2 + 2 * hidden * model.intermediate_size
    full = model.layers - 1 + masked
    encoder = model.layers * keys_and_values + full * rest
    projection = embedding * hidden if model.architecture == "albert" else 0
    head = hidden * embedding + embedding * vocabulary
    return 6 * (projection + encoder + masked * head) + 12 * full * hidden * length


def peak_flops(hardware: Hardware, given: float | None) -> float | None:
    """Operations a second that the hardware could do at its precision; None if that is not known.

    Args:
        hardware: where and how precisely.
        given: ``pretraining.peak_tflops``, which goes before the table.
    """
    if given is not None:
        return given * 1e12
    if hardware.device.type != "cuda":
        return None
    tera = published_peak(torch.cuda.get_device_name(hardware.device), hardware.precision)
    return None if tera is None else tera * 1e12


def published_peak(gpu: str, precision: str) -> float | None:
    """TFLOP/s in the table for a GPU's name, as the driver gives it; None if it is not there, or is a MIG slice."""
    words = set(gpu.replace("-", " ").split())
    if "MIG" in words:
        return None
    return next((peaks.get(precision) for name, peaks in PEAKS if words.issuperset(name.split())), None)


def peak_memory(hardware: Hardware) -> int:
    """Most memory in bytes that this process, or torch on the GPU or HPU, has held."""
    if hardware.device.type == "cuda":
        return torch.cuda.max_memory_allocated(hardware.device)
    if hardware.device.type == "hpu":
        from habana_frameworks.torch.hpu import memory_stats

        return int(memory_stats(hardware.device)["MaxInUse"])
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
