"""What the coordinator shows of its swarm."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tasks.pretraining.collaborative import status
from tasks.pretraining.collaborative.records import SwarmRecord
from tasks.pretraining.collaborative.view import View


def test_the_end_is_shown_when_no_peer_is_left_to_tell_of_it(tmp_path: Path) -> None:
    view: Any = View.__new__(View)  # without its thread and its DHT
    view._folder, view._final_step, view._log = tmp_path, 600, SimpleNamespace(loss=None, recent=())
    view._manifest = SimpleNamespace(settings=SimpleNamespace(pretraining=SimpleNamespace(batch_size=8)))
    view.message, view.peers, view.alive, view.accumulated, view.rate = "done", {}, frozenset(), 0, 0.0
    # the checkpoint before the end, which is all that is known of steps without the peers
    view.swarm = SwarmRecord.model_construct(final_step=600, step=501)
    view.reached, view._alarms = 600, None
    view.write_status()
    shown: list[tuple[float, float, str]] = []
    status.show(tmp_path, "coordinator", lambda done, total, *, note="", **_: shown.append((done, total, note)))
    assert shown == [(600, 600, "0 peers, done")]
