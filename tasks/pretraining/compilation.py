"""``torch.compile`` over fixed shapes, where it pays.

Code is compiled for one shape. Sequences have one length already; what differs from batch to batch is the number of
masked positions, so they are padded to a number that a batch hardly ever exceeds. Encoder, head and loss become one
function, which computes what ``tasks.pretraining.objective.losses`` does, up to rounding: dropout too draws the same
values.

Compiling takes a minute or more, and what it gains differs: a model of three million parameters on blocks of 64
tokens gained nothing. So ``auto`` first asks whether the training is long enough to risk that minute, then measures.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from tasks.contract import UserError
from tasks.pretraining.batches import Batch
from tasks.pretraining.encoder import Wanted, wanted_of
from tasks.pretraining.objective import Losses, losses, losses_at
from tasks.pretraining.precision import Hardware
from tasks.pretraining.settings import PretrainingSettings
from tasks.store import home

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

IGNORED = -100
"""The target that torch's ``cross_entropy`` leaves out by default."""

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"

DEVIATIONS = 6
"""Standard deviations of the number of masked tokens for which there is room, were each masked on its own: fewer than
one batch in a hundred million has more. Where whole words are masked the number spreads about 1.5 times as wide."""

MULTIPLE = 64
"""The room is a multiple of this: matrix kernels work in tiles, and masks of almost equal rates share cached code."""

TIMED_STEPS = 5
"""Steps of either kind whose median ``auto`` compares."""

GAIN = 0.97
"""Compiled steps have to take at most this part of the time of the others."""

PAYS_FROM_WARM_UPS = 10
"""``auto`` tries only when the time to go is so many warm-ups: if nothing is gained, a tenth more is lost at most."""


def warm_up_estimate(layers: int) -> float:
    """About how many seconds compiling takes where nothing is cached: code is made for every layer anew.

    An ALBERT of 256 x 4 on 8 x 512 tokens took 41 to 103 s on two busy cores, and 4 to 16 s with its code cached.
    """
    return 30.0 + 8.0 * layers


def room_for_masked(tokens: int, rate: float) -> int:
    """So many masked positions are computed for ``tokens`` of which each is masked with probability ``rate``."""
    wanted = tokens * rate + DEVIATIONS * math.sqrt(tokens * rate * (1 - rate))
    return min(tokens, math.ceil(wanted / MULTIPLE) * MULTIPLE)


def _keep_compiled_code() -> None:
    """Lets inductor keep what it compiles beside the store, for later processes, unless the user has said where.

    Torch sets the variable itself when its compiler is imported, which building a model does: to a folder under the
    temporary ones, which is not kept over a restart of the machine.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if os.environ.get(CACHE_VARIABLE, default_cache_dir()) == default_cache_dir():
        os.environ[CACHE_VARIABLE] = str(home() / "compiled")


class CompiledLosses:
    """As ``tasks.pretraining.objective.losses``, compiled for micro-batches of one shape.

    A micro-batch with more masked tokens than there is room for is computed by the function that is not compiled.

    Args:
        rate: the share of masked tokens.
        has_padding: whether sequences may be padded. Then a mask is always passed, so that there is one shape.
        backend: of torch.compile.
    """

    def __init__(self, rate: float, has_padding: bool, backend: str = "inductor"):
        _keep_compiled_code()
        torch.compiler.reset()  # else earlier models of this process count towards dynamo's limit of recompilations
        # dropout by torch's own generator: compiled or not, the same values are dropped
        options: dict[str, Any] | None = {"fallback_random": True} if backend == "inductor" else None
        self._compiled = torch.compile(losses_at, dynamic=False, backend=backend, options=options)
        self._rate, self._has_padding = rate, has_padding

    def __call__(self, model: PreTrainedModel, batch: Batch) -> Losses:
        """The sums of a micro-batch."""
        wanted = wanted_of(batch)
        if len(batch.positions) > self._room(batch) or wanted.queries.shape[1] > self._columns(batch):
            return losses_at(model, batch, wanted)
        return self._compiled(model, *self._padded(batch, wanted))

    def warm_up(self, model: PreTrainedModel, batch: Batch, hardware: Hardware) -> float:
        """Compiles for micro-batches like this one, forward and backward; model and random states stay as they are.

        Returns:
            How many seconds it took.

        Raises:
            RuntimeError, OSError: torch cannot compile here.
        """
        started = time.perf_counter()
        width = batch.input_ids.shape[1]
        # so many of the first tokens of each sequence that there is room for all of them
        few = batch.positions % width < min(self._columns(batch) - 1, self._room(batch) // len(batch.input_ids))
        fitting = replace(batch, positions=batch.positions[few], targets=batch.targets[few]).to(hardware.device)
        with torch.random.fork_rng([hardware.device] if hardware.device.type == "cuda" else []):
            with hardware.autocast():
                found = self._compiled(model, *self._padded(fitting, wanted_of(fitting)))
            total = found.mlm if found.order is None else found.mlm + found.order
            weights = [weight for weight in model.parameters() if weight.requires_grad]
            torch.autograd.grad(total, weights, allow_unused=True)
        if hardware.device.type == "cuda":
            torch.cuda.synchronize(hardware.device)
        return time.perf_counter() - started

    def _room(self, batch: Batch) -> int:
        return room_for_masked(batch.input_ids.numel(), self._rate)

    def _columns(self, batch: Batch) -> int:
        """Queries of a sequence in the last layer; with SOP one of them is its first token's."""
        return room_for_masked(batch.input_ids.shape[1], self._rate)

    def _padded(self, batch: Batch, wanted: Wanted) -> tuple[Batch, Wanted]:
        """The batch and what is wanted of it, in tensors that are equally large for all batches of its shape."""
        missing = self._room(batch) - len(batch.positions)
        mask = batch.attention_mask
        fixed = replace(
            batch,
            attention_mask=torch.ones_like(batch.input_ids) if mask is None and self._has_padding else mask,
            positions=pad(batch.positions, (0, missing)),
            targets=pad(batch.targets, (0, missing), value=IGNORED),
        )
        return fixed, wanted.widened(self._columns(batch), len(wanted.places) + missing)


class Compilation:
    """Decides how the losses of a training are computed: by compiled code or not.

    ``prepare`` is called before every step, ``observe`` after it. A killed training that goes on decides anew, by the
    time that is then to go.

    Args:
        model: on its device already.
        settings: what is asked, and the masking rate.
        hardware: where the model computes.
        has_padding: whether sequences may be padded.
    """

    def __init__(self, model: PreTrainedModel, settings: PretrainingSettings, hardware: Hardware, has_padding: bool):
        self._model, self._settings, self._hardware, self._has_padding = model, settings, hardware, has_padding
        self._compiled: CompiledLosses | None = None
        self._in_use = False
        self._seconds: dict[bool, list[float]] = {False: [], True: []}
        self._warm_up = 0.0
        self._reason: str | None = "as the recipe says" if settings.compile is False else None

    def losses(self, model: PreTrainedModel, batch: Batch) -> Losses:
        """The sums of a micro-batch, as ``tasks.pretraining.objective.losses``."""
        if self._in_use and self._compiled is not None:
            return self._compiled(model, batch)
        return losses(model, batch)

    def prepare(self, micro_batch: Callable[[], Batch], steps_to_go: int) -> None:
        """Decides what can be decided by now, and how the next step is computed; compiles when it is time.

        Args:
            micro_batch: makes a micro-batch of the training, for compiling with it.
            steps_to_go: of this training, the next one included.

        Raises:
            UserError: compiling is asked for and not possible.
        """
        if self._reason is not None:
            return
        plain, compiled = self._seconds[False], self._seconds[True]
        if self._settings.compile is True:
            self._compile(micro_batch())
            self._decide(True, f"as the recipe says; warm-up {self._warm_up:.0f} s")
        elif self._compiled is not None:
            self._compare(plain[-TIMED_STEPS:], compiled)
        elif len(plain) > TIMED_STEPS:  # the first one pays for the first use of everything
            self._try(micro_batch, statistics.median(plain[1:]), steps_to_go)

    def observe(self, seconds: float) -> None:
        """Takes note of how long a step took."""
        if self._reason is None:
            self._seconds[self._in_use].append(seconds)

    def resolved(self) -> dict[str, Any]:
        """What was decided, for the record: compile, compile_reason, compile_seconds (the warm-up)."""
        return {
            "compile": self._in_use,
            "compile_reason": self._reason or "the training ended before a decision",
            "compile_seconds": round(self._warm_up, 1),
        }

    def _try(self, micro_batch: Callable[[], Batch], step: float, steps_to_go: int) -> None:
        """Compiles if the steps to go, of ``step`` seconds each, are worth it."""
        about = warm_up_estimate(self._model.config.num_hidden_layers)
        if step * steps_to_go < PAYS_FROM_WARM_UPS * about:
            self._decide(
                False, f"{steps_to_go:,} steps of {step:.2g} s to go do not pay a warm-up of about {about:.0f} s"
            )
            return
        logger.info(
            "compiling, which may take about %.0f s: %s steps of %.2g s to go", about, f"{steps_to_go:,}", step
        )
        try:
            self._compile(micro_batch())
        except UserError as error:
            self._reason = f"torch cannot compile here: {error.__cause__}".splitlines()[0]
            logger.warning("not compiled: %s", self._reason)
        else:
            self._in_use = True

    def _compare(self, plain: list[float], compiled: list[float]) -> None:
        """Lets the steps take turns, so that whatever else the machine does hits both; then keeps what is faster."""
        if len(compiled) < TIMED_STEPS or self._in_use:
            self._in_use = not self._in_use
            return
        before, now = statistics.median(plain), statistics.median(compiled)
        faster = now <= GAIN * before
        why = (
            f"{now:.3g} s a step instead of {before:.3g} s"
            if faster
            else f"{now:.3g} s a step, and {before:.3g} s without"
        )
        self._decide(faster, f"{why}; warm-up {self._warm_up:.0f} s")

    def _compile(self, batch: Batch) -> None:
        self._compiled = CompiledLosses(self._settings.masking.rate, self._has_padding)
        try:
            self._warm_up = self._compiled.warm_up(self._model, batch, self._hardware)
        except (RuntimeError, OSError) as error:
            self._compiled = None
            raise UserError(
                f"pretraining.compile: true, but torch cannot compile here ({str(error).splitlines()[0]}); install a "
                "C++ compiler such as g++, or --set pretraining.compile=auto"
            ) from error

    def _decide(self, compiled: bool, reason: str) -> None:
        self._in_use, self._reason = compiled, reason
        logger.info("%s: %s", "compiled" if compiled else "not compiled", reason)
