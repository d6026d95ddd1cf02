"""One of the processes that train together.

``python -P -m tasks.pretraining.rank PLACE TOKENIZER PACK FOLDER RANK SIZE``, started by
``tasks/pretraining/devices.py``, which says what the files in PLACE are. Its standard input is the lifeline to its
owner. Rank 0 exits when all is done; the others stay until they are ended, so that none of them is missed.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tasks import durable, lifeline
from tasks.contract import StageError, UserError, no_progress
from tasks.pretraining.devices import (
    LOST_PARTNER,
    MEETING,
    RESULT,
    SETTINGS,
    STATUS,
    WRONG_INPUT,
    count_gpus,
)
from tasks.pretraining.divergence import Diverged
from tasks.pretraining.group import PartnerLost, form
from tasks.pretraining.local import train_model
from tasks.pretraining.settings import PretrainSettings
from tasks.status_file import status_writer

logger = logging.getLogger("tasks.pretraining.rank")


def run(place: Path, tokenizer: Path, pack: Path, folder: Path, rank: int, size: int) -> int:
    """Trains as one of ``size`` processes.

    Returns:
        The exit status. If it is not 0, ``PLACE/rank-N.error`` says why in one line.
    """
    error = place / f"rank-{rank}.error"
    try:
        settings = PretrainSettings.model_validate_json((place / SETTINGS).read_text(encoding="utf-8"))
        group = form(rank, size, place / MEETING, on_gpu=count_gpus(settings.pretraining) > 0)
        if rank:
            with suppress(Diverged):  # the first process has met it too, and says what a person should know
                train_model(settings, tokenizer, pack, folder, no_progress, group)
            logger.info("done")
            signal.pause()  # until the owner ends it: an exit would look like a loss
        metrics = train_model(settings, tokenizer, pack, folder, status_writer(place / STATUS), group)
        durable.write_json(place / RESULT, metrics)
        return 0
    except UserError as problem:
        error.write_text(str(problem), encoding="utf-8")
        return WRONG_INPUT
    except StageError as problem:
        error.write_text(str(problem), encoding="utf-8")
    except PartnerLost as problem:
        logger.exception("another process is lost")
        error.write_text(f"the training process rank-{rank} lost the others: {problem}", encoding="utf-8")
        return LOST_PARTNER
    except Exception as problem:
        logger.exception("rank-%d failed", rank)
        error.write_text(f"{type(problem).__name__}: {' '.join(str(problem).split())}", encoding="utf-8")
    return 1


def main() -> NoReturn:
    """Runs one process; does not return but exits, whatever threads the libraries have left."""
    parser = argparse.ArgumentParser()
    for name in ("place", "tokenizer", "pack", "folder"):
        parser.add_argument(name, type=Path)
    parser.add_argument("rank", type=int)
    parser.add_argument("size", type=int)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    lifeline.watch(lambda: None, grace_seconds=0.0)
    status = run(**vars(arguments))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
