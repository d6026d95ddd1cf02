"""Progress from one process to another on this machine, through a small file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from tasks.contract import Progress, Rows

LOOK_SECONDS = 0.25
"""How often the file is written, and should be read."""


def status_writer(path: Path) -> Progress:
    """A progress callback that keeps the file, at most as often as it is read; the last step always."""
    written = 0.0

    def write(done: float, total: float, *, unit: str = "", note: str = "", rows: Rows = ()) -> None:
        nonlocal written
        if done < total and time.monotonic() < written + LOOK_SECONDS:
            return
        written = time.monotonic()
        status = {"done": done, "total": total, "unit": unit, "note": note, "rows": list(rows)}
        building = path.with_name(f".{path.name}")
        building.write_text(json.dumps(status), encoding="utf-8")
        os.replace(building, path)

    return write


def tell_status(path: Path, told: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Tells the callback of the newest status in the file, if it is another than ``told``; returns it."""
    try:
        status: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return told
    if status != told:
        progress(**status)
    return status
