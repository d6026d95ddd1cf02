"""Runs a chain up to pretrain in a process of its own: python collaboration_driver.py STORE [KEY=VALUE...]"""

import logging
import sys

from flows.execution import Options, run_chain
from tasks.contract import no_progress

if __name__ == "__main__":
    store, *changes = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options = Options("demo", until="pretrain", set_=tuple(changes), store=store, workers=2)
    run_chain(options, lambda node, work: work(no_progress))
