"""Settings of the model and of pretraining, for every engine.

Defaults are those of a small model on one machine; the published recipes spell out what they need, each
value with its source. A setting that another one would silently switch off is an error here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.contract import EXECUTION, Settings
from tasks.pretraining.engine_settings import MAX_BATCH, MAX_STEPS, CollaborativeSettings, GaudiSettings
from tasks.pretraining.probe import ProbeCall, ProbeSettings

MAX_WIDTH = 65_536
"""Upper limit of the model's widths and lengths: far above every published model, far below what overflows."""

ALBERT_EMBEDDING_SIZE = 128
"""Width of the token embeddings of every published ALBERT (Lan et al. 2020, table 1)."""

LAMB_CLAMP = 10_000.0
"""Upper limit of a weight's norm in LAMB's trust ratio, as in torch_optimizer 0.3.0 and sahajBERT."""

SPIKE_STEPS = 10
"""Default of ``spike_steps``."""

LOCAL_ONLY = ("on_divergence", "spike_nats", "spike_steps", "report_to", "peak_tflops", "devices", "compile", "probe")
"""Settings of pretraining that the other engines do not know."""

GAUDI_HAS_NOT = {"objective": "mlm+sop", "optimizer": "lamb", "precision": "fp16", "device": "cuda"}
"""Values that optimum-habana's trainer, or the accelerator, does not know."""


class ModelSettings(Settings):
    """Shape of the model. What is not here (activation, norms) follows the architecture's published form."""

    architecture: Literal["albert", "bert"] = Field(description="family of models in transformers")
    hidden_size: int = Field(gt=0, le=MAX_WIDTH, description="width of the layers")
    layers: int = Field(gt=0, le=1000, description="number of layers")
    heads: int = Field(gt=0, le=MAX_WIDTH, description="attention heads of a layer; divides hidden_size")
    intermediate_size: int = Field(gt=0, le=MAX_WIDTH, description="width inside the feed-forward blocks")
    embedding_size: int | None = Field(
        None, gt=0, le=MAX_WIDTH, description="ALBERT only: width of the token embeddings; 128 if not given"
    )
    layer_groups: int = Field(1, gt=0, description="ALBERT only: groups of layers with weights of their own")
    hidden_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the hidden states")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the attention weights")
    max_positions: int = Field(
        512, gt=0, le=MAX_WIDTH, description="longest sequence in tokens; at least packing.sequence_length"
    )
    initializer_range: float = Field(0.02, gt=0, description="standard deviation of the initial weights")

    @model_validator(mode="after")
    def _consistent(self) -> ModelSettings:
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}")
        if self.architecture == "bert":
            if self.embedding_size is not None:
                raise ValueError("embedding_size is for architecture albert: BERT's embeddings have hidden_size")
            if self.layer_groups != 1:
                raise ValueError("layer_groups is for architecture albert: BERT's layers share no weights")
        if self.layer_groups > self.layers:
            raise ValueError(f"layer_groups {self.layer_groups} is more than layers {self.layers}")
        return self


class MaskingSettings(Settings):
    """Masking of masked language modelling, drawn anew at every step (Devlin et al. 2019: 15 %, 80/10/10)."""

    rate: float = Field(0.15, gt=0, lt=1, description="share of the ordinary tokens that are to be predicted")
    mask: float = Field(0.8, ge=0, le=1, description="share of those that is replaced by the mask token")
    random: float = Field(0.1, ge=0, le=1, description="share of those that is replaced by a random token")
    whole_words: bool = Field(False, description="choose whole words, by the tokenizer's word ids, not single tokens")

    @model_validator(mode="after")
    def _consistent(self) -> MaskingSettings:
        if self.mask + self.random > 1 + 1e-9:
            raise ValueError(f"mask {self.mask} and random {self.random} are together more than 1")
        return self


class PretrainingSettings(Settings):
    """How the model is pretrained."""

    engine: Literal["local", "collaborative", "gaudi"] = Field("local", description="what does the training")
    objective: Literal["mlm", "mlm+sop"] = Field(
        "mlm",
        description="masked language modelling; sop adds ALBERT's sentence order, for packing.mode sentence-pairs",
    )
    steps: int = Field(gt=0, le=MAX_STEPS, description="optimiser steps")
    schedule_steps: int | None = Field(
        None,
        gt=0,
        le=MAX_STEPS,
        description="step at which the learning rate reaches 0; at least steps, which it is if not given",
    )
    batch_size: int = Field(
        32, gt=0, le=MAX_BATCH, description="sequences in an optimiser step, over all devices and peers"
    )
    accumulation: int = Field(
        1, gt=0, le=MAX_BATCH, description="parts the batch is computed in, to save memory; divides batch_size"
    )
    optimizer: Literal["adamw", "lamb"] = Field("adamw", description="LAMB is for batches of thousands")
    learning_rate: float = Field(1e-3, gt=0, description="highest learning rate, reached after the warmup")
    betas: tuple[float, float] = Field((0.9, 0.999), description="decay of the optimiser's two moments")
    epsilon: float = Field(1e-6, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.01, ge=0, description="decoupled weight decay, not of biases and norms")
    lamb_clamp: float = Field(LAMB_CLAMP, gt=0, description="LAMB only: upper limit of a weight's norm in the ratio")
    warmup_steps: int = Field(
        0, ge=0, le=MAX_STEPS, description="steps in which the learning rate rises linearly from 0"
    )
    clip_norm: float | None = Field(
        1.0, gt=0, description="highest norm of the whole batch's gradient; null: no limit"
    )
    masking: MaskingSettings = Field(default_factory=MaskingSettings, description="what is to be predicted")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="of the matrix products; weights stay fp32; auto takes bf16 where the hardware has it"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto takes the GPU if there is one, with engine gaudi the HPUs; cpu is for trying it out"
    )
    on_divergence: Literal["stop", "roll-back"] = Field(
        "stop",
        description="when the loss is not finite or spikes; roll-back goes on from the last good checkpoint without "
        "the batches since then, up to three times in a training",
    )
    spike_nats: float | None = Field(
        2.0,
        gt=0,
        description="a spike: the loss of spike_steps successive steps is each by more than this above the median of "
        "the 100 steps before that step; null: only a loss that is not finite is a divergence",
    )
    spike_steps: int = Field(SPIKE_STEPS, gt=0, le=50, description="steps in a row that are a spike")
    devices: Annotated[Literal["auto"] | Annotated[int, Field(gt=0, le=1024)], EXECUTION] = Field(
        "auto",
        description="engine local: processes that train together, each with a GPU or a share of the cores; divides "
        "batch_size / accumulation; auto takes all GPUs, without one a single process",
    )
    compile: Annotated[Literal["auto", True, False], EXECUTION] = Field(
        "auto",
        description="engine local: torch.compile, which changes the rounding only; auto tries it on a long training, "
        "and keeps it if steps take less time",
    )
    seed: int = Field(42, ge=0, lt=2**32, description="of initial weights, order, masking and dropout")
    validate_every: int = Field(
        500, gt=0, le=MAX_STEPS, description="steps between two validations; one more at the end"
    )
    validation_blocks: int = Field(
        512, gt=0, le=MAX_STEPS, description="sequences of the validation split that are used"
    )
    log_every: Annotated[int, EXECUTION] = Field(
        50, gt=0, le=MAX_STEPS, description="steps between two lines of the log"
    )
    checkpoint_every: Annotated[int, EXECUTION] = Field(
        500, gt=0, le=MAX_STEPS, description="steps between two checkpoints"
    )
    probe: Annotated[ProbeSettings | None, EXECUTION] = Field(
        None,
        description="engine local: short fine-tunings on the way, whose scores go into log and report; null: none",
    )
    report_to: Annotated[tuple[str, ...], EXECUTION] = Field(
        (), description="transformers' integrations that get the log too: tensorboard, wandb, trackio, mlflow, ..."
    )
    peak_tflops: Annotated[float | None, EXECUTION] = Field(
        None,
        gt=0,
        le=1e9,
        description="the device's peak at its precision, for the FLOP utilisation; null: known for some GPUs only",
    )
    collaborative: CollaborativeSettings = Field(
        default_factory=CollaborativeSettings, description="used by engine collaborative"
    )
    gaudi: GaudiSettings = Field(default_factory=GaudiSettings, description="used by engine gaudi")

    @model_validator(mode="after")
    def _consistent(self) -> PretrainingSettings:
        if self.schedule_steps is not None and self.schedule_steps < self.steps:
            raise ValueError(f"schedule_steps {self.schedule_steps} is less than steps {self.steps}")
        if self.warmup_steps >= self.schedule_length:
            raise ValueError(f"warmup_steps {self.warmup_steps} leaves nothing of {self.schedule_length} steps")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas {list(self.betas)} are not both in [0, 1)")
        if self.batch_size % self.accumulation:
            raise ValueError(f"batch_size {self.batch_size} is not a multiple of accumulation {self.accumulation}")
        if self.optimizer != "lamb" and self.lamb_clamp != LAMB_CLAMP:
            raise ValueError(f"lamb_clamp is for optimizer lamb, not {self.optimizer}")
        if self.engine == "gaudi":
            self._check_gaudi()
        if self.spike_nats is None and self.spike_steps != SPIKE_STEPS:
            raise ValueError(f"spike_steps {self.spike_steps} has no effect with spike_nats null")
        if len(set(self.report_to)) < len(self.report_to):
            raise ValueError(f"report_to {list(self.report_to)} names an integration twice")
        if self.engine != "local":
            for name in LOCAL_ONLY:
                if getattr(self, name) != PretrainingSettings.model_fields[name].default:
                    raise ValueError(f"{name} is for engine local, not {self.engine}")
        if self.devices != "auto" and self.micro_batch_size % self.devices:
            raise ValueError(
                f"batch_size / accumulation = {self.micro_batch_size} is not a multiple of devices {self.devices}"
            )
        if self.engine == "local" and self.precision == "fp16" and self.device == "cpu":
            raise ValueError("precision fp16 needs a GPU: use auto, bf16 or fp32 with device cpu")
        return self

    def _check_gaudi(self) -> None:
        if self.micro_batch_size % self.gaudi.devices:
            raise ValueError(
                f"batch_size / accumulation = {self.micro_batch_size} is not a multiple of "
                f"gaudi.devices {self.gaudi.devices}"
            )
        for name, value in GAUDI_HAS_NOT.items():
            if getattr(self, name) == value:
                raise ValueError(f"{name} {value} is not for engine gaudi")

    def identity_unused(self) -> set[str]:
        """The settings of the engines that are not asked: they change nothing."""
        return {"collaborative", "gaudi"} - {self.engine}

    @property
    def schedule_length(self) -> int:
        """Step at which the learning rate reaches 0."""
        return self.steps if self.schedule_steps is None else self.schedule_steps

    @property
    def micro_batch_size(self) -> int:
        """Sequences that are computed at once."""
        return self.batch_size // self.accumulation


class PretrainSettings(Settings):
    """Settings of the stage ``pretrain``."""

    model: ModelSettings
    pretraining: PretrainingSettings
    probe_call: Annotated[ProbeCall | None, EXECUTION] = None
    """Carries out the probe of ``pretraining``; a recipe does not name it."""

    @model_validator(mode="after")
    def _consistent(self) -> PretrainSettings:
        if problem := sentence_order_problem(self.model, self.pretraining):
            raise ValueError(problem)
        return self


def sentence_order_problem(model: ModelSettings, pretraining: PretrainingSettings) -> str | None:
    """Why this model cannot be trained on sentence order, in one line; None if it can, or need not."""
    if pretraining.objective == "mlm+sop" and model.architecture != "albert":
        return f"pretraining.objective mlm+sop needs model.architecture albert, not {model.architecture}"
    return None
