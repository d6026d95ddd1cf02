"""Which engine can run here. Asked by ``plan`` already, so nothing heavy is imported unless the settings need it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tasks.pretraining.settings import PretrainSettings

GPU_DEVICE_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))
"""What drivers leave on Linux: NVIDIA's, NVIDIA's under Windows' subsystem for Linux, AMD's."""


def check_engine(settings: PretrainSettings, store: Path | None = None) -> str | None:
    """Why the engine that the settings ask for cannot run on this machine, in one line; None if it can.

    Args:
        settings: of the training.
        store: where it will be; for an engine that looks at the disk.
    """
    asked = settings.pretraining
    if asked.engine == "gaudi":
        from tasks.pretraining.gaudi.preflight import problem

        return problem(settings, store)
    if asked.engine == "collaborative" and importlib.util.find_spec("hivemind") is None:
        return (
            "pretraining.engine: collaborative needs hivemind, which has wheels for Linux x86-64 only and is not "
            "installed here; --set pretraining.engine=local trains without it"
        )
    if not any(path.exists() for path in GPU_DEVICE_FILES):
        if asked.device == "cuda":
            return "pretraining.device: cuda, but this machine has no GPU; --set pretraining.device=auto"
        if asked.precision == "fp16" and asked.engine == "local":
            return "pretraining.precision: fp16 needs a GPU, and there is none; --set pretraining.precision=auto"
    if asked.report_to:
        # heavy, but who asks for it should hear before the corpus is read that a library is missing
        from tasks.pretraining.reporting import reporting_problem

        return reporting_problem(asked.report_to)
    return None
