"""What the stage makes of what it finds: checkpoints to go on from, and the errors of its processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tasks.contract import StageError, UserError
from tasks.parts import Parts
from tasks.pretraining.gaudi.engine import failure, newest_checkpoint


def checkpoint(folder: Path, step: int) -> Path:
    building, name = folder / f"scratch/building-{step}", f"step-{step:06d}"
    building.mkdir(parents=True)
    torch.save({"state": {0: torch.ones(9)}}, building / "optimizer.pt")
    save_file({"weight": torch.ones(9)}, building / "model.safetensors")
    Parts(folder).finish(name, building, folder / "scratch/checkpoints" / name, step=step)
    return folder / "scratch/checkpoints" / name


@pytest.mark.parametrize("damaged", ["optimizer.pt", "model.safetensors"])
def test_it_goes_on_from_the_newest_checkpoint_that_can_be_read(tmp_path, damaged):
    assert newest_checkpoint(tmp_path) is None
    older, newer = checkpoint(tmp_path, 90), checkpoint(tmp_path, 100)
    assert newest_checkpoint(tmp_path) == newer
    for place, left in ((newer, older), (older, None)):
        size = (place / damaged).stat().st_size
        (place / damaged).write_bytes(b"\0" * size)  # as after a power cut: the size is right
        if left is not None:
            assert newest_checkpoint(tmp_path) == left
    with pytest.raises(StageError, match=r"none of the checkpoints in .* can be read"):
        newest_checkpoint(tmp_path)


def test_the_cause_is_told_and_not_its_echo(tmp_path):
    def error(name: str, kind: str, text: str, age: int) -> None:
        path = tmp_path / f"{name}.error"
        path.write_text(json.dumps({"kind": kind, "text": text}))
        os.utime(path, (1000 - age, 1000 - age))

    log = tmp_path / "launch.log"
    assert "ended unexpectedly (status -9); run again to go on" in str(failure(tmp_path, -9, log))
    error("rank-0", "lost", "RuntimeError: connection closed by peer", 30)
    told = failure(tmp_path, 1, log)
    assert isinstance(told, StageError)
    assert str(told).startswith("a training process on Gaudi was lost, as it is when memory runs out; run again")
    error("rank-2", "", "ValueError: what a library says", 10)
    assert str(failure(tmp_path, 1, log)).startswith("ValueError: what a library says; run again to go on")
    error("rank-1", "StageError", "pretraining: loss is nan at step 3", 5)
    assert str(failure(tmp_path, 1, log)) == "pretraining: loss is nan at step 3"
    error("launch", "UserError", "another pack", 20)
    told_user = failure(tmp_path, 1, log)
    assert isinstance(told_user, UserError)
    assert str(told_user) == "another pack"
