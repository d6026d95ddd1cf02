from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.contract import UserError, no_progress
from tasks.pretraining import compilation
from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.compilation import TIMED_STEPS, Compilation, CompiledLosses, room_for_masked
from tasks.pretraining.models import build_model
from tasks.pretraining.objective import losses
from tasks.pretraining.precision import Hardware
from tasks.pretraining.settings import MaskingSettings
from tasks.pretraining.stage import run

CPU = Hardware(torch.device("cpu"), "fp32", "for the test")
ROWS = 16


@pytest.fixture(autouse=True)
def own_home(monkeypatch, tmp_path):
    monkeypatch.setenv("SAHAJFLOW_HOME", str(tmp_path / "home"))
    # set first, so that what inductor and the code under test make of it is undone
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")


@pytest.fixture
def traced(monkeypatch):
    """Everything but the C++ compiler, which takes a minute: dynamo traces, torch's own operators compute.

    Gives the list of the CompiledLosses that were made.
    """
    made = []

    class Traced(CompiledLosses):
        def __init__(self, rate, has_padding):
            super().__init__(rate, has_padding, backend="aot_eager")
            made.append(self)

    monkeypatch.setattr(compilation, "CompiledLosses", Traced)
    return made


def batches(folder: Path, tokenizer, *, sentence_order: bool, count: int = 3):
    rows = PackedSplit(folder, "train")
    collator = Collator(tokenizer, MaskingSettings(), sentence_order)
    for seed in range(count):
        yield collator(rows, np.arange(ROWS), np.random.default_rng(seed))


def gradients(model, found, batch) -> dict[str, torch.Tensor]:
    model.zero_grad()
    total = found.mlm / len(batch.targets)
    (total if found.order is None else total + found.order / ROWS).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize(
    ("architecture", "objective", "data"),
    [("bert", "mlm", "blocks"), ("albert", "mlm", "pairs"), ("albert", "mlm+sop", "pairs")],
)
def test_padded_to_one_shape_equals_the_full_computation(
    settings, tokenizer, pack_folder, pairs_folder, architecture, objective, data
):
    folder = pack_folder if data == "blocks" else pairs_folder
    model = build_model(settings(architecture).model, tokenizer, objective, seed=0)
    model.train()
    fixed = CompiledLosses(0.15, has_padding=data == "pairs", backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    masked = set()
    for batch in batches(folder, tokenizer, sentence_order=objective == "mlm+sop"):
        masked.add(len(batch.targets))
        torch.manual_seed(1)  # the same dropout
        expected = losses(model, batch)
        expected_gradients = gradients(model, expected, batch)
        torch.manual_seed(1)
        found = fixed(model, batch)
        torch.testing.assert_close(found.mlm, expected.mlm, rtol=1e-6, atol=0)
        if objective == "mlm+sop":
            torch.testing.assert_close(found.order, expected.order, rtol=1e-6, atol=0)
            assert found.order_correct == expected.order_correct
        for name, gradient in gradients(model, found, batch).items():
            torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-4, atol=1e-6)
    assert len(masked) > 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # one function, compiled once
    assert not torch._dynamo.utils.counters["graph_break"]


def test_too_many_masked_tokens_are_computed_without_compiling(settings, tokenizer, pack_folder):
    model = build_model(settings().model, tokenizer, "mlm", seed=0).eval()
    fixed = CompiledLosses(0.01, has_padding=False, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    batch = next(batches(pack_folder, tokenizer, sentence_order=False))
    missing = torch.zeros(64, dtype=torch.long)
    many = batch.__class__(
        batch.input_ids, None, None, torch.cat([missing, batch.positions]), torch.cat([missing, batch.targets]), None
    )
    assert len(many.positions) > room_for_masked(256, 0.01) == 64
    assert torch.equal(fixed(model, many).mlm, losses(model, many).mlm)
    assert not torch._dynamo.utils.counters["stats"]
    assert fixed.warm_up(model, many, CPU) > 0
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_batch_hardly_ever_has_more_masked_tokens_than_there_is_room_for():
    generator = np.random.default_rng(0)
    for tokens, rate in ((4096, 0.15), (1024, 0.15), (16_384, 0.2), (128, 0.15)):
        room = room_for_masked(tokens, rate)
        assert room % 64 == 0
        assert generator.binomial(tokens, rate, size=1_000_000).max() <= room
        assert room < 1.5 * tokens * rate + 64
    assert room_for_masked(40, 0.9) == 40


def test_warming_up_changes_nothing_of_the_training(settings, tokenizer, pairs_folder):
    model = build_model(settings("albert").model, tokenizer, "mlm+sop", seed=0).train()
    before = torch.get_rng_state()
    batch = next(batches(pairs_folder, tokenizer, sentence_order=True))
    CompiledLosses(0.15, has_padding=True, backend="aot_eager").warm_up(model, batch, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(weight.grad is None for weight in model.parameters())


def test_the_cache_is_kept_beside_the_store(monkeypatch, tmp_path):
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    CompiledLosses(0.15, has_padding=False)
    assert cache_dir() == str(tmp_path / "home" / "compiled")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kept"))
    CompiledLosses(0.15, has_padding=False)
    assert cache_dir() == str(tmp_path / "kept")


def decide(model, asked, micro_batch, steps: int, plain: float, compiled: float) -> tuple[Compilation, list[bool]]:
    """A training of so many steps whose steps take so many seconds; with it, which of them were compiled."""
    chosen = Compilation(model, asked.pretraining, CPU, has_padding=False)
    used = []
    for step in range(steps):
        chosen.prepare(micro_batch, steps - step)
        used.append(chosen.resolved()["compile"])
        chosen.observe(compiled if used[-1] else plain)
    return chosen, used


def test_a_short_training_is_not_compiled(settings, tokenizer, caplog):
    model = build_model(settings().model, tokenizer, "mlm", seed=0)
    with caplog.at_level(logging.INFO):
        chosen, used = decide(model, settings(), lambda: pytest.fail("compiles"), 300, 0.02, 0.01)
    assert not any(used)
    reason = "294 steps of 0.02 s to go do not pay a warm-up of about 46 s"
    assert chosen.resolved() == {"compile": False, "compile_reason": reason, "compile_seconds": 0.0}
    assert [record.message for record in caplog.records] == [f"not compiled: {reason}"]
    chosen, used = decide(model, settings(), lambda: pytest.fail("compiles"), 3, 900.0, 1.0)
    assert chosen.resolved()["compile_reason"] == "the training ended before a decision"


@pytest.mark.parametrize(("seconds", "kept"), [(0.5, True), (0.99, False), (2.0, False)])
def test_a_long_training_keeps_what_is_faster(settings, tokenizer, pack_folder, traced, caplog, seconds, kept):
    model = build_model(settings().model, tokenizer, "mlm", seed=0)
    batch = next(batches(pack_folder, tokenizer, sentence_order=False))
    with caplog.at_level(logging.INFO):
        chosen, used = decide(model, settings(), lambda: batch, 2000, 1.0, seconds)
    assert len(traced) == 1
    start = 1 + TIMED_STEPS
    assert used[:start] == [False] * start
    assert used[start : start + 2 * TIMED_STEPS] == [True, False] * TIMED_STEPS
    assert set(used[start + 2 * TIMED_STEPS :]) == {kept}
    assert chosen.resolved()["compile"] is kept
    assert chosen.resolved()["compile_seconds"] > 0
    said = [record.message for record in caplog.records]
    assert said[0] == "compiling, which may take about 46 s: 1,994 steps of 1 s to go"
    assert len(said) == 2
    if kept:
        assert said[1].startswith("compiled: 0.5 s a step instead of 1 s; warm-up ")
    else:
        assert said[1].startswith(f"not compiled: {seconds:.3g} s a step, and 1 s without; warm-up ")


def test_without_a_compiler(settings, tokenizer, pack_folder, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nand much more")

    monkeypatch.setattr(CompiledLosses, "warm_up", fail)
    model = build_model(settings().model, tokenizer, "mlm", seed=0)
    batch = next(batches(pack_folder, tokenizer, sentence_order=False))
    chosen, used = decide(model, settings(), lambda: batch, 2000, 1.0, 0.5)
    assert not any(used)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    reason = "torch cannot compile here: InvalidCxxCompiler: No working C++ compiler found"
    assert warnings == [f"not compiled: {reason}"]
    assert chosen.resolved()["compile_reason"] == reason
    with pytest.raises(UserError, match=r"compile: true, but .* found\); install a C\+\+ compiler") as error:
        decide(model, settings(compile=True), lambda: batch, 2, 1.0, 0.5)
    assert "\n" not in str(error.value)


def test_a_training_that_asks_for_it(settings, tokenizer_folder, pairs_folder, tmp_path, traced):
    inputs = {"tokenizer": tokenizer_folder, "pack": pairs_folder}
    results = {}
    for asked in (True, False):
        asked_for = settings("albert", objective="mlm+sop", steps=4, accumulation=2, log_every=1, compile=asked)
        results[asked] = run(asked_for, inputs, tmp_path / str(asked), no_progress)
        assert results[asked]["resolved"]["compile"] is asked
        assert results[asked]["resolved"]["compile_reason"].startswith("as the recipe says")
    assert len(traced) == 1
    for name in ("train_loss", "validation_loss"):
        assert results[True][name] == pytest.approx(results[False][name], rel=1e-5)
