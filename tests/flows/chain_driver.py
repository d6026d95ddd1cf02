"""Runs the tiny chain with its real stages, and kills itself with SIGKILL at a named point.

    python chain_driver.py STORE LOG [STAGE start|middle]

Appends a JSON line to LOG for each stage that begins, with the progress at which it begins, and one for the kill.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from tiny import SETTINGS

from flows.execution import Options, run_chain
from flows.graph import Node
from flows.step_work import StageOutcome, Work


def main(store: str, log: str, stage: str = "", where: str = "") -> None:
    def note(**facts: Any) -> None:
        with open(log, "a") as file:
            file.write(json.dumps(facts) + "\n")

    def kill() -> None:
        note(killed=f"{stage} {where}")
        os.kill(os.getpid(), signal.SIGKILL)

    def run_node(node: Node, work: Work) -> StageOutcome:
        begun = False

        def progress(done: float, total: float, *, unit: str = "", note_: str = "", **_: Any) -> None:
            nonlocal begun
            here = node.stage.name == stage
            if not begun:
                begun = True
                note(stage=node.name, begins_at=done)
                if here and where == "start":
                    kill()
            if here and where == "middle" and done >= total / 2:
                kill()

        outcome = work(progress)
        note(stage=node.name, action=outcome.action)
        return outcome

    run_chain(Options("demo", set_=SETTINGS, store=store, workers=1), run_node)


if __name__ == "__main__":
    main(*sys.argv[1:])
