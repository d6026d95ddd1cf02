"""`sahajflow swarm`: how the collaborations get on that this machine coordinates or takes part in.

Every member keeps a small file with what it sees (``tasks/pretraining/collaborative/status.py``); this command shows
the files, so it needs neither the network nor the member's attention, and can be called as often as one likes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.columns import columns

OLD_SECONDS = 30.0
"""A status that was not written for so long is that of a member which has ended, or hangs."""

_SUFFIX = ".status.json"


def swarms(store: Path, home: Path) -> list[str]:
    """Lines on every collaboration that left a status on this machine.

    Args:
        store: whose collaborations are coordinated here.
        home: where the peers of this machine keep theirs.
    """
    coordinated = sorted(store.glob(f"work/pretrain/*/scratch/swarm/coordinator{_SUFFIX}"))
    joined = sorted(home.glob(f"swarms/*/*{_SUFFIX}"))
    lines: list[str] = []
    for file in [*coordinated, *joined]:
        lines += [*([""] if lines else []), *_lines(file)]
    return lines or ["this machine coordinates no collaboration and takes part in none"]


def _lines(file: Path) -> list[str]:
    from tasks.foreign_text import printable
    from tasks.pretraining.collaborative import status

    member = file.name.removesuffix(_SUFFIX)
    seen = status.read(file.parent, member)
    age = time.time() - file.stat().st_mtime
    what = f"pretrain-{file.parents[2].name}" if member == "coordinator" else f"as the peer {printable(member)}"
    old = f", as it was {age / 60:,.0f} min ago" if age > OLD_SECONDS else ""
    facts = [
        f"step {seen['step']:,} of {seen['target']:,}",
        "" if seen["loss"] is None else f"loss {seen['loss']:.2f}",
        f"{len(seen['peers'])} peer{'s' * (len(seen['peers']) != 1)}",
        f"{seen['rate']:,.1f} samples/s",
        "" if seen["next_averaging"] is None else f"next averaging in {seen['next_averaging']:.1f} s",
    ]
    lines = [f"{what}{old}: {', '.join(fact for fact in facts if fact)}"]
    lines += [f"  ALARM: {printable(alarm)}" for alarm in seen.get("alarms", {}).values()]
    if seen["message"]:
        lines.append(f"  {printable(seen['message'])}")
    recent = seen.get("recent")
    if recent and recent["steps"]:
        phases = ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in recent["seconds"].items())
        lines.append(f"  of the last {recent['steps']} global steps, a peer's: {phases}")
        lines.append(f"  the peers' rounds in them: {_counts(recent['outcomes'])}")
    if seen["peers"]:
        rows = [_row(peer, printable(peer["name"])) for peer in seen["peers"]]
        titles = ("peer", "role", "state", "step", "samples/s", "share", "sees", "its last rounds")
        lines += [f"  {line}" for line in columns([titles, *rows], "lllrrrrl")]
    return lines


def _row(peer: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return (
        name,
        peer.get("role", "peer"),
        peer["state"],
        f"{peer['step']:,}",
        f"{peer['rate']:,.1f}",
        f"{peer['share']:.0%}",
        f"{peer['others']:,}",
        _counts(peer["outcomes"]) if peer["outcomes"] else "",
    )


def _counts(outcomes: Mapping[str, int]) -> str:
    """ "18 averaged, 2 no group"."""
    return ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items(), key=lambda one: -one[1]))
