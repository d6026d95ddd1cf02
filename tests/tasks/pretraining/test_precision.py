from __future__ import annotations

import pytest
import torch

from tasks.contract import UserError
from tasks.pretraining.precision import choose_hardware


@pytest.mark.parametrize(
    ("flags", "precision", "reason", "attention"),
    [
        ({"avx2", "avx512_bf16"}, "bf16", "the processor has avx512_bf16", "eager"),
        ({"amx_bf16", "avx512_bf16"}, "bf16", "the processor has amx_bf16", "eager"),
        ({"avx2"}, "fp32", "the processor has neither amx_bf16 nor avx512_bf16", "sdpa"),
    ],
)
def test_auto_on_a_cpu(settings, flags, precision, reason, attention):
    hardware = choose_hardware(settings(precision="auto").pretraining, frozenset(flags))
    assert (hardware.device.type, hardware.precision, hardware.reason) == ("cpu", precision, reason)
    assert hardware.attention == attention
    with hardware.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)


def test_what_is_asked_counts(settings):
    assert choose_hardware(settings(precision="bf16").pretraining, frozenset()).precision == "bf16"
    assert choose_hardware(settings(precision="fp32").pretraining, frozenset({"amx_bf16"})).precision == "fp32"


def test_what_is_not_there(settings, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="finds no GPU"):
        choose_hardware(settings(device="cuda").pretraining)
    with pytest.raises(UserError, match="fp16 needs a GPU"):
        choose_hardware(settings(device="auto", precision="fp16").pretraining)
