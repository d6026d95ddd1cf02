"""Runs the tiny chain up to ``evaluate`` in the environment of its own interpreter, and trains in the second one.

    python chain_driver.py STORE GAUDI_PYTHON PROGRESS

Appends to PROGRESS the step at which every report of the training stands, and the transformers of this process.
"""

import json
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "flows"))
from tiny import SETTINGS

from flows.execution import Options, run_chain

GAUDI = (
    "pretraining.engine=gaudi",
    "pretraining.device=cpu",
    "pretraining.gaudi.devices=2",
    "pretraining.steps=200",
    "pretraining.checkpoint_every=20",
    "pretraining.validate_every=100",
    "pretraining.log_every=10",
    "pretraining.learning_rate=4.0e-3",
    "evaluation.tasks={topics: {kind: classification, source: {kind: sample, train: 60, validation: 20, test: 20}}}",
)


def main(store: str, python: str, told: str) -> None:
    def note(**facts) -> None:
        with open(told, "a") as file:
            file.write(json.dumps(facts) + "\n")

    def run_node(node, work):
        def progress(done, total, **_) -> None:
            if node.name == "pretrain":
                note(step=done)

        outcome = work(progress)
        note(stage=node.name, action=outcome.action)
        return outcome

    note(transformers=metadata.version("transformers"))
    kept = tuple(setting for setting in SETTINGS if not setting.startswith(("pretraining.engine", "evaluation.tasks")))
    settings = (*kept, *GAUDI, f"pretraining.gaudi.python={python}")
    run_chain(Options("demo", until="evaluate", set_=settings, store=store, workers=2), run_node)


if __name__ == "__main__":
    main(*sys.argv[1:])
