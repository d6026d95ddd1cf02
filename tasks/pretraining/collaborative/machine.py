"""Whether this machine can take part in a collaboration, before anything heavy is started: findings with remedies."""

from __future__ import annotations

import json
import resource
import shutil
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import psutil

from tasks import durable
from tasks.checks import Check

OPEN_FILES = 4096
"""Each shared tensor and each connection is an open file; sahajBERT's volunteers were told to allow so many."""

SHARED_MEMORY = Path("/dev/shm")

SHARED_BYTES = 256 * 2**20
"""Averagers share gradients and weights with their own processes there: two copies of a model of 32 million values.
Docker's default of 64 MiB is too small."""

FREE_BYTES = 2 * 2**30
"""torch, transformers and hivemind in three processes take most of this, before any model."""

PER_WEIGHT = 28
"""Bytes a weight: the weight, its gradient, two of the optimiser, the sum of gradients, and what both averagers
exchange; all fp32."""

DIAL_SECONDS = 8.0
"""An address that does not take a connection within this time counts as failed."""


def check_machine() -> list[Check]:
    """Open files, shared memory and free memory of this machine."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = [_check("open files", most >= OPEN_FILES, f"{most} allowed", f"ulimit -n {OPEN_FILES}")]
    if SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(SHARED_MEMORY).free
        remedy = "stop what uses it; in Docker: --shm-size=1g"
        told = f"{free / 2**20:,.0f} MiB free in {SHARED_MEMORY}"
        found.append(_check("shared memory", free >= SHARED_BYTES, told, remedy))
    return [*found, check_memory(FREE_BYTES)]


def check_memory(needed: float, name: str = "memory") -> Check:
    """Whether so many bytes of memory are free."""
    free = psutil.virtual_memory().available
    told = f"{free / 2**30:.1f} GiB free of {needed / 2**30:.1f} GiB that are needed"
    return _check(name, free >= needed, told, "close other programs, or use a larger machine")


def _check(name: str, fine: bool, finding: str, remedy: str) -> Check:
    """A want of room may come to nothing, so it only warns."""
    return Check(name, "ok" if fine else "warn", finding, remedy)


def tell_checks(folder: Path, name: str, checks: Sequence[Check]) -> None:
    """Add what was found to ``<name>.checks.json``, for whoever started this member."""
    path = folder / f"{name}.checks.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    found = [asdict(check) for check in checks]
    durable.write_json(path, [*known, *(one for one in found if one not in known)])


def dial(addresses: Sequence[str]) -> dict[str, str | None]:
    """Why each of the multiaddresses takes no connection; None of one that does, or that cannot be tried by TCP."""
    with ThreadPoolExecutor(max_workers=min(16, len(addresses))) as pool:
        return dict(zip(addresses, pool.map(_problem_with, addresses), strict=True))


def _problem_with(address: str) -> str | None:
    _, kind, host, protocol, port, *_ = address.split("/")
    if kind not in ("ip4", "ip6", "dns", "dns4", "dns6") or protocol != "tcp" or not port.isdigit():
        return None
    try:
        socket.create_connection((host, int(port)), DIAL_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return None
