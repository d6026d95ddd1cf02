"""Runs a chain in a process of its own and kills itself with SIGKILL at a named point (``crash_points.py``).

    python crash_driver.py LOG POINT ARGUMENT...        what `sahajflow ARGUMENT...` does
    python crash_driver.py LOG "" undisturbed RECIPE STORE WORKERS KEY=VALUE...        the chain alone, without Prefect

Appends a JSON line to LOG for the kill, and with an empty POINT for each point that is passed. If the point is not
passed the process ends as it would have.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from crash_points import watched


def main(log: str, wanted: str, *arguments: str) -> int:
    alone = arguments[0] == "undisturbed"
    root = Path(arguments[2] if alone else arguments[arguments.index("--store") + 1])

    def note(**facts: str) -> None:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, (json.dumps(facts) + "\n").encode())
        os.close(descriptor)

    def visit(point: str) -> None:
        if not wanted:
            note(passed=point)
        elif point == wanted:
            note(killed=point)
            os.kill(os.getpid(), signal.SIGKILL)

    watched(root, visit)
    if alone:
        from flows.execution import Options, run_chain
        from tasks.contract import no_progress

        _, recipe, store, workers, *changes = arguments
        options = Options(recipe, set_=tuple(changes), store=store, workers=int(workers))
        run_chain(options, lambda node, work: work(no_progress))
        return 0
    from flows.command_line import main as command_line

    return command_line(list(arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
