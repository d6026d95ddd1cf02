"""The present state of a swarm as one of its members sees it: a small file for whoever started that member."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.contract import Progress
from tasks.foreign_text import printable

if TYPE_CHECKING:
    from tasks.pretraining.collaborative.records import PeerRecord


SHOWN = {"name", "role", "state", "step", "rate", "others"}
"""What is shown of a peer's record."""


def write(
    folder: Path,
    member: str,
    *,
    step: int,
    target: int,
    loss: float | None,
    rate: float,
    missing: int,
    message: str,
    peers: Iterable[PeerRecord],
    outcomes: Mapping[str, Mapping[str, int]] | None = None,
    **more: Any,
) -> None:
    """Write ``<member>.status.json``: seen whole or not at all, but not synced, since it is only of this moment.

    Args:
        folder: the swarm's.
        member: who sees it.
        step: global steps so far.
        target: the last one.
        loss: training loss of the last step in nats.
        rate: sequences a second of all peers.
        missing: sequences until the next averaging.
        message: what people should know.
        peers: who takes part.
        outcomes: of the newest rounds of each peer, by its libp2p identity.
        more: further plain values.
    """
    shown = sorted(peers, key=lambda peer: peer.name)
    total = sum(peer.rate for peer in shown) or 1.0
    status = {
        "step": step,
        "target": target,
        "loss": loss,
        "rate": rate,
        "next_averaging": max(0, missing) / rate if rate > 1e-3 else None,
        "message": message,
        "peers": [
            {
                **peer.model_dump(include=SHOWN),
                "share": peer.rate / total,
                "outcomes": dict((outcomes or {}).get(peer.peer_id, {})),
            }
            for peer in shown
        ],
        **more,
    }
    building = folder / f".{member}.status"
    building.write_text(json.dumps(status, ensure_ascii=False), encoding="utf-8")
    os.replace(building, folder / f"{member}.status.json")


def read(folder: Path, member: str) -> dict[str, Any]:
    """A member's newest status; empty if there is none yet."""
    try:
        status: dict[str, Any] = json.loads((folder / f"{member}.status.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return status


def show(folder: Path, member: str, progress: Progress) -> None:
    """Tell the callback of a member's newest status, if there is one."""
    status = read(folder, member)
    if not status:
        return
    peers = status["peers"]
    alarms = status.get("alarms", {}).values()
    parts = [
        *(f"ALARM: {printable(alarm)}" for alarm in alarms),
        "" if status["loss"] is None else f"loss {status['loss']:.2f}",
        f"{len(peers)} peer{'s' * (len(peers) != 1)}",
        f"{status['rate']:,.1f} samples/s" if status["rate"] else "",
        f"your share {status['share']:.0%}" if status.get("share") else "",
        "" if status["next_averaging"] is None else f"next averaging in {status['next_averaging']:.1f} s",
        status["message"],
    ]
    rows = [
        {
            "peer": printable(peer["name"]),
            "role": peer["role"],
            "state": peer["state"],
            "step": f"{peer['step']:,}",
            "samples/s": f"{peer['rate']:,.1f}",
            "share": f"{peer['share']:.0%}",
        }
        for peer in peers
    ]
    done = min(status["step"], status["target"])
    progress(done, status["target"], unit="steps", note=", ".join(part for part in parts if part), rows=rows)
