"""Settings that one engine alone has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from tasks.contract import EXECUTION, Settings, absolute_path

MAX_BATCH = 1_000_000
"""Upper limit of sequences in one optimiser step."""

MAX_STEPS = 10**9
"""Upper limit of all that is counted in steps."""


def _absolute_or_none(path: str | None, info: ValidationInfo) -> str | None:
    return None if path is None else absolute_path(path, info)


class CollaborativeSettings(Settings):
    """Engine ``collaborative``: peers on the internet. Defaults are those of the sahajBERT run.

    The peers' common batch is ``pretraining.batch_size``; one peer computes ``batch_size / accumulation``
    sequences at a time. What decides only when and with whom peers meet is not part of the identity.
    """

    peers: Annotated[int, EXECUTION] = Field(
        2, ge=0, le=1000, description="peers that a run starts on this machine; 0: all of them join from elsewhere"
    )
    clients: Annotated[int, EXECUTION] = Field(
        0, ge=0, le=1000, description="the same, as clients: they compute and average nothing, as behind a firewall"
    )
    auxiliaries: Annotated[int, EXECUTION] = Field(
        0, ge=0, le=1000, description="the same, as auxiliaries: they average and compute nothing"
    )
    keepers: Annotated[int, EXECUTION] = Field(
        0, ge=0, le=100, description="the same, as keepers: they have the newest state when all who train have left"
    )
    matchmaking_seconds: Annotated[float, EXECUTION] = Field(
        5.0,
        gt=0,
        le=3600,
        description="time for finding a group before averaging; a global step has to take twice as long",
    )
    averaging_timeout_seconds: Annotated[float, EXECUTION] = Field(
        30.0, gt=0, le=36_000, description="an averaging round is given up after this time"
    )
    compression: Literal["none", "float16", "by-size"] = Field(
        "float16", description="of what peers exchange; by-size: 8 bit for tensors above 65,536 values, else float16"
    )
    outlier_norm: float = Field(
        20.0, gt=1, le=1e9, description="a gradient that many times as large as usual is refused, its sender named"
    )
    aggregation: Literal["mean", "clipped"] = Field(
        "mean", description="of the peers' gradients; clipped: what is above twice the usual size is scaled down to it"
    )
    average_state_every: int = Field(
        1, gt=0, le=MAX_STEPS, description="global steps between two averagings of the weights; one more at the end"
    )
    deadline_minutes: float | None = Field(
        None, gt=0, description="the run ends after this time with what it has; null: it waits for the last step"
    )
    bandwidth_mbps: Annotated[float, EXECUTION] = Field(
        100.0, gt=0, le=1e9, description="bandwidth of a peer, for sharing out the averaging"
    )
    target_group_size: int = Field(256, gt=1, le=MAX_BATCH, description="most peers in one averaging group")
    access: Annotated[Literal["open", "passes"], EXECUTION] = Field(
        "open", description="who may take part: whoever reaches the port, or those with a pass of `sahajflow pass`"
    )
    statistics_expiration_seconds: Annotated[float, EXECUTION] = Field(
        600.0, gt=0, le=1e6, description="a silent peer's figures count this long"
    )
    listen: Annotated[tuple[str, ...], EXECUTION] = Field(
        ("/ip4/127.0.0.1/tcp/0",), min_length=1, description="multiaddresses at which the coordinator listens"
    )
    announce: Annotated[tuple[str, ...], EXECUTION] = Field(
        (), description="multiaddresses under which it is reached from outside, if others than those of listen"
    )

    package: Annotated[str | None, EXECUTION] = Field(
        None,
        min_length=1,
        max_length=300,
        pattern=r"^[^\s\"'\\]+$",
        description="what pip installs so that volunteers have sahajflow: a name, a wheel's URL or git+https://...; "
        "goes into their notebook",
    )

    @model_validator(mode="after")
    def _consistent(self) -> CollaborativeSettings:
        if self.averaging_timeout_seconds <= self.matchmaking_seconds:
            raise ValueError(
                f"averaging_timeout_seconds {self.averaging_timeout_seconds:g} leaves no time for averaging after "
                f"matchmaking_seconds {self.matchmaking_seconds:g}; make it at least twice as long"
            )
        return self


class GaudiSettings(Settings):
    """Engine ``gaudi``: Habana Gaudi accelerators through optimum-habana. Defaults are those of the published run."""

    python: Annotated[str, AfterValidator(absolute_path), EXECUTION] = Field(
        ".venv-gaudi/bin/python", description="the interpreter that has optimum-habana; by default below this folder"
    )
    devices: Annotated[int, EXECUTION] = Field(
        8, gt=0, le=MAX_BATCH, description="accelerators on all hosts together; divides batch_size / accumulation"
    )
    hostfile: Annotated[str | None, AfterValidator(_absolute_or_none), EXECUTION] = Field(
        None, description="hosts, as DeepSpeed's launcher reads them, a line each: NAME slots=N; null: this one alone"
    )
    mode: Literal["lazy", "compile"] = Field(
        "lazy", description="collect operations and run them as graphs, or torch.compile with Habana's backend"
    )
    throughput_warmup_steps: Annotated[int, EXECUTION] = Field(
        2, ge=0, le=MAX_STEPS, description="first steps of each run that do not count for the throughput"
    )
    use_fused_adam: bool = Field(True, description="Habana's fused AdamW")
    use_fused_clip_norm: bool = Field(True, description="Habana's fused gradient clipping")
    ddp_find_unused_parameters: bool = Field(True, description="as torch's DistributedDataParallel has it")
