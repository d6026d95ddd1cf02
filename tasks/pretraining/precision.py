"""What ``auto`` becomes on this machine: device and precision, with the reason."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.contract import UserError
from tasks.pretraining.settings import PretrainingSettings

BF16_FLAGS = ("amx_bf16", "avx512_bf16")
"""Processors with one of these multiply bf16 matrices in hardware. On one core with avx512_bf16 alone, bf16
autocast trained a BERT of 256 x 4 on blocks of 128 tokens 1.6 to 2 times as fast as fp32."""

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Hardware:
    """Where and how precisely to compute."""

    device: torch.device
    precision: str
    """"fp32", "bf16" or "fp16"; weights and optimiser are fp32 in each."""
    reason: str
    """Why this precision, in a few words."""

    @property
    def attention(self) -> str:
        """Which of transformers' attention functions is fastest in training.

        Torch's fused one, but for bf16 on CPUs: its backward pass is slow there, and the plain one trained the
        same BERT 1.2 times as fast on blocks of 128 tokens, 1.3 times on 512 (in fp32 0.94 and 0.83 times).
        """
        return "eager" if self.device.type == "cpu" and self.precision == "bf16" else "sdpa"

    def accelerator(self) -> dict[str, str]:
        """The GPU's name as its driver gives it, for the record; nothing elsewhere."""
        return {"accelerator": torch.cuda.get_device_name(self.device)} if self.device.type == "cuda" else {}

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """The context in which the model computes."""
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.precision])


def choose_hardware(settings: PretrainingSettings, cpu_flags: frozenset[str] | None = None) -> Hardware:
    """Resolves ``device`` and ``precision``.

    Args:
        settings: what is asked.
        cpu_flags: the processor's features; read from the operating system if not given.

    Raises:
        UserError: what is asked is not there.
    """
    has_gpu = torch.cuda.is_available()
    if settings.device == "cuda" and not has_gpu:
        raise UserError("pretraining.device: cuda, but torch finds no GPU; --set pretraining.device=auto")
    device = torch.device("cuda" if has_gpu and settings.device != "cpu" else "cpu")
    if settings.precision == "fp16" and device.type == "cpu":
        raise UserError("pretraining.precision: fp16 needs a GPU; --set pretraining.precision=auto")
    if settings.precision != "auto":
        return Hardware(device, settings.precision, "as the recipe says")
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Hardware(device, "bf16", "the GPU computes bf16")
        return Hardware(device, "fp32", "the GPU does not compute bf16")
    flags = _cpu_flags() if cpu_flags is None else cpu_flags
    found = [flag for flag in BF16_FLAGS if flag in flags]
    if found:
        return Hardware(device, "bf16", f"the processor has {found[0]}")
    return Hardware(device, "fp32", f"the processor has neither {BF16_FLAGS[0]} nor {BF16_FLAGS[1]}")


def choose_member_hardware(settings: PretrainingSettings) -> Hardware:
    """The same for a member of a swarm, whose devices differ: where fp16 cannot be had, what ``auto`` gives.

    Gradients leave a peer in fp32's scale, so peers of different precisions train together.
    """
    if settings.precision == "fp16" and not torch.cuda.is_available():
        hardware = choose_hardware(settings.model_copy(update={"precision": "auto"}))
        return Hardware(hardware.device, hardware.precision, f"fp16 needs a GPU; {hardware.reason}")
    return choose_hardware(settings)


def _cpu_flags() -> frozenset[str]:
    """The first processor's features on Linux/x86; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))
