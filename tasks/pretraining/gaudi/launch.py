"""Starts the processes of a training on Gaudi by optimum-habana's own runner.

``python -P -m tasks.pretraining.gaudi.launch PLACE TOKENIZER PACK FOLDER``, run by the second environment's
interpreter as a process that the stage owns. Its standard input is the lifeline to its owner. PLACE holds what
``engine.py`` says.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from tasks import durable, lifeline
from tasks.contract import SCRATCH, UserError
from tasks.pretraining.gaudi.rank import ENVIRONMENT
from tasks.pretraining.settings import PretrainSettings
from tasks.record import Damaged, verified_record

logger = logging.getLogger("tasks.pretraining.gaudi.launch")

SETTINGS, DIGESTS = "settings.json", "digests.json"
"""Files in PLACE: what is asked, and which digests the inputs have to have."""

RANK = Path(__file__).with_name("rank.py")


def run(place: Path, tokenizer: Path, pack: Path, folder: Path) -> int:
    """Checks what has arrived, starts the processes and waits for them; returns the exit status."""
    settings = PretrainSettings.model_validate_json((place / SETTINGS).read_text(encoding="utf-8"))
    try:
        check_arrival(place, {"tokenizer": tokenizer, "pack": pack})
    except UserError as problem:
        durable.write_json(place / "launch.error", {"kind": "UserError", "text": str(problem)})
        return 1
    durable.write_json(place / ENVIRONMENT, environment(settings, place))
    durable.remove(folder / SCRATCH / "building")
    # where optimum-habana's runner leaves the port to torch: the launcher's own default is one port for all
    os.environ.update({"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:0"})
    status: int | None = runner(settings, (place, tokenizer, pack, folder)).run()
    return status or 0


def check_arrival(place: Path, inputs: dict[str, Path]) -> None:
    """Compares the inputs' bytes with the digests that the stage has sent along.

    Raises:
        UserError: other bytes, or something is missing.
    """
    digests = json.loads((place / DIGESTS).read_text(encoding="utf-8"))
    for name, folder in inputs.items():
        try:
            digest = verified_record(folder, hashes=True).digest
        except Damaged as damage:
            raise UserError(f"{folder}: the {name} is damaged here ({damage}); copy the folder again") from None
        if digest != digests[name]:
            raise UserError(f"{folder}: another {name} than the run's ({digest[:12]}, not {digests[name][:12]})")


def environment(settings: PretrainSettings, place: Path) -> dict[str, str]:
    """Variables that Habana's bridge reads when it is loaded, so before every process imports torch.

    The op lists (which operations autocast computes in bf16, and which never) are optimum-habana's own for BERT. It
    would write them to two files in ``/tmp``, the same ones for everybody on the host.
    """
    from optimum.habana.transformers.gaudi_configuration import DEFAULT_BF16_OPS, DEFAULT_FP32_OPS

    names = {
        "PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST": "bf16_ops.txt",
        "PT_HPU_AUTOCAST_FP32_OPS_LIST": "fp32_ops.txt",
    }
    for name, operations in zip(names.values(), (DEFAULT_BF16_OPS, DEFAULT_FP32_OPS), strict=True):
        (place / name).write_text("".join(f"{operation}\n" for operation in operations), encoding="utf-8")
    return {
        "PT_HPU_LAZY_MODE": "1" if settings.pretraining.gaudi.mode == "lazy" else "0",
        **{variable: str(place / name) for variable, name in names.items()},
    }


def runner(settings: PretrainSettings, arguments: tuple[Path, ...]) -> Any:
    """optimum-habana's runner of this training: on one host by torch's launcher, on several by DeepSpeed's."""
    from optimum.habana.distributed import DistributedRunner

    asked = settings.pretraining.gaudi
    return DistributedRunner(
        command_list=[shlex.join([str(RANK), *map(str, arguments)])],
        world_size=asked.devices,
        hostfile=asked.hostfile,
        use_deepspeed=asked.hostfile is not None,
    )


def main() -> int:
    """Runs the launcher."""
    parser = argparse.ArgumentParser()
    for name in ("place", "tokenizer", "pack", "folder"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    lifeline.watch(lambda: None, grace_seconds=0.0)
    return run(**vars(arguments))


if __name__ == "__main__":
    sys.exit(main())
