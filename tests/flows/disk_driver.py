"""Runs the tiny chain in a store on a small file system, which is full from a named point on (``crash_points.py``),
again and again until each point was passed, each time after room was made; then to its end.

    python disk_driver.py STORE POINT...

Prints what each run ended with, as JSON: the point, the kind of the error, and its text. STORE is a folder of the
small file system; a process of its own, because the points stay watched.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from crash_points import watched
from tiny import SETTINGS

from flows.execution import Options, run_chain
from tasks.contract import no_progress


def main(store: str, *points: str) -> None:
    filler, ended, wanted = Path(store).with_name("filler"), [], ""

    def visit(point: str) -> None:
        if point == wanted:
            fill(filler)

    watched(Path(store), visit)
    options = Options("demo", set_=SETTINGS, store=store, workers=1)
    for wanted in points:
        try:
            run_chain(options, lambda node, work: work(no_progress))
        except Exception as error:
            ended.append([wanted, type(error).__name__, str(error)])
        else:
            ended.append([wanted, "", ""])
        assert filler.exists(), f"{wanted} was not passed: {ended[-1]}"
        filler.unlink()
    wanted = ""
    run_chain(options, lambda node, work: work(no_progress))
    print(json.dumps(ended))


def fill(filler: Path) -> None:
    """Write until there is no room for another byte."""
    with filler.open("wb", buffering=0) as file:
        for size in (2**16, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


if __name__ == "__main__":
    main(*sys.argv[1:])
