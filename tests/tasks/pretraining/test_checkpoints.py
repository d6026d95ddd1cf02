"""What checkpoints do on a full disk; how a training goes on from them is tested with the stage."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from tasks.contract import SCRATCH
from tasks.pretraining.checkpoints import Checkpoints


@pytest.mark.parametrize("numbers", [10, 100_000])
def test_a_full_disk_is_told_as_the_system_tells_it(tmp_path: Path, numbers: int) -> None:
    checkpoints = Checkpoints(tmp_path)
    building = tmp_path / SCRATCH / "checkpoints" / "building-step-000005"
    building.mkdir(parents=True)
    (building / "state.pt").symlink_to("/dev/full")
    with pytest.raises((OSError, RuntimeError)) as raised:
        checkpoints.save(5, {"weights": torch.zeros(numbers)})
    link: BaseException | None = raised.value
    while link is not None and not isinstance(link, OSError):
        link = link.__context__
    assert isinstance(link, OSError)
    assert link.errno == errno.ENOSPC
    assert checkpoints.names() == []
