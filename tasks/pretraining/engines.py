"""Which engine can run here. Asked by ``plan`` already, so nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path

from tasks.pretraining.settings import PretrainSettings

GPU_DEVICE_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))
"""What drivers leave on Linux: NVIDIA's, NVIDIA's under Windows' subsystem for Linux, AMD's."""


def check_engine(settings: PretrainSettings) -> str | None:
    """Why the engine that the settings ask for cannot run on this machine, in one line; None if it can."""
    asked = settings.pretraining
    if asked.engine != "local":
        return (
            f"pretraining.engine: {asked.engine} is not part of this version; "
            "--set pretraining.engine=local trains on this machine"
        )
    if not any(path.exists() for path in GPU_DEVICE_FILES):
        if asked.device == "cuda":
            return "pretraining.device: cuda, but this machine has no GPU; --set pretraining.device=auto"
        if asked.precision == "fp16":
            return "pretraining.precision: fp16 needs a GPU, and there is none; --set pretraining.precision=auto"
    return None
