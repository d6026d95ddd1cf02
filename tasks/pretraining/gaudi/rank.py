"""One process of a training on Gaudi: ``python RANK.PY PLACE TOKENIZER PACK FOLDER``, started by ``launch.py``.

Which one it is, and how many there are, its launcher says in the environment. It is started by its path, since torch's
and DeepSpeed's launchers differ in how they take a module.

Habana's bridge reads some variables when it is loaded, and torch may load it with itself. So what they are to be is
put into the environment first, from a file: DeepSpeed's launcher does not pass variables on to other hosts.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
from pathlib import Path

LOST = re.compile(r"(closed|reset) by peer|remote worker")
"""What gloo says in a process whose partner is gone: an echo, not the cause."""

ENVIRONMENT = "environment.json"
"""File in PLACE: variables that have to stand before torch is imported."""


def prepare(place: Path) -> None:
    """Put the variables into this process's environment.

    Raises:
        RuntimeError: torch or the bridge has been imported already, so that it would be too late.
    """
    early = {"torch", "habana_frameworks"} & set(sys.modules)
    if early:
        raise RuntimeError(f"{', '.join(sorted(early))} imported before its environment was set")
    os.environ.update(json.loads((place / ENVIRONMENT).read_text(encoding="utf-8")))


def run(place: Path, tokenizer: Path, pack: Path, folder: Path) -> int:
    """Trains as this process; returns the exit status. If it is not 0, ``PLACE/rank-N.error`` says why."""
    from tasks import durable
    from tasks.contract import StageError, UserError
    from tasks.pretraining.gaudi.training import RESULT, train

    rank = os.environ.get("RANK", "0")
    try:
        metrics = train(place, tokenizer, pack, folder)
        if metrics:
            durable.write_json(place / RESULT, metrics)
        return 0
    except (UserError, StageError) as problem:
        told = {"kind": type(problem).__name__, "text": str(problem)}
    except Exception as problem:
        logging.getLogger("tasks.pretraining.gaudi.rank").exception("rank %s failed", rank)
        text = f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"
        told = {"kind": "lost" if LOST.search(text) else "", "text": text}
    durable.write_json(place / f"rank-{rank}.error", told)
    return 1


def main() -> int:
    """Runs one process."""
    parser = argparse.ArgumentParser()
    for name in ("place", "tokenizer", "pack", "folder"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    prepare(arguments.place)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return run(**vars(arguments))


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # whatever threads the libraries have left
