"""`sahajflow swarm` on files that members left."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from flows.swarm_view import swarms

STATUS: dict[str, Any] = {
    "step": 1200,
    "target": 5000,
    "loss": 4.321,
    "rate": 123.45,
    "next_averaging": 12.3,
    "message": "",
    "alarms": {},
    "recent": {
        "steps": 20,
        "outcomes": {"averaged": 37, "no group": 3},
        "seconds": {"computing": 10.5, "matching": 0.25, "reducing": 1.5},
    },
    "peers": [
        {
            "name": "asha",
            "role": "peer",
            "state": "training",
            "step": 1200,
            "rate": 100.0,
            "share": 0.81,
            "others": 1,
            "outcomes": {"averaged": 20},
        },
        {
            "name": "\x1b[31mred",
            "role": "client",
            "state": "training",
            "step": 1199,
            "rate": 23.45,
            "share": 0.19,
            "others": 1,
            "outcomes": {"averaged": 17, "no group": 3},
        },
    ],
}


def put(file: Path, **changes: Any) -> Path:
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(STATUS | changes), encoding="utf-8")
    return file


def test_without_a_collaboration_it_says_so(tmp_path: Path):
    assert swarms(tmp_path, tmp_path) == ["this machine coordinates no collaboration and takes part in none"]


def test_a_coordinator_shows_peers_rounds_and_phases(tmp_path: Path):
    put(tmp_path / "work/pretrain/0123456789abcdef/scratch/swarm/coordinator.status.json")
    assert swarms(tmp_path, tmp_path / "home") == [
        "pretrain-0123456789abcdef: step 1,200 of 5,000, loss 4.32, 2 peers, 123.5 samples/s, "
        "next averaging in 12.3 s",
        "  of the last 20 global steps, a peer's: computing 10.50 s, matching 0.25 s, reducing 1.50 s",
        "  the peers' rounds in them: 37 averaged, 3 no group",
        "  peer     role    state      step  samples/s  share  sees  its last rounds",
        "  asha     peer    training  1,200      100.0    81%     1  20 averaged",
        "  [31mred  client  training  1,199       23.4    19%     1  17 averaged, 3 no group",
    ]


def test_alarms_come_first_and_an_old_view_is_called_old(tmp_path: Path):
    place = tmp_path / "work/pretrain/0123456789abcdef/scratch/swarm/coordinator.status.json"
    file = put(place, alarms={"half": "2 of 4 peers are left"}, message="an averaging broke off", peers=[], recent={})
    then = time.time() - 600
    os.utime(file, (then, then))
    assert swarms(tmp_path, tmp_path / "home") == [
        "pretrain-0123456789abcdef, as it was 10 min ago: step 1,200 of 5,000, loss 4.32, 0 peers, 123.5 samples/s, "
        "next averaging in 12.3 s",
        "  ALARM: 2 of 4 peers are left",
        "  an averaging broke off",
    ]


def test_peers_of_this_machine_are_shown_too(tmp_path: Path):
    put(tmp_path / "home/swarms/abc-asha/asha.status.json", recent=None, loss=None, next_averaging=None)
    lines = swarms(tmp_path, tmp_path / "home")
    assert lines[0] == "as the peer asha: step 1,200 of 5,000, 2 peers, 123.5 samples/s"
    assert len(lines) == 4
