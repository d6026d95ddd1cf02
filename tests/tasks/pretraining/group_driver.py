"""One of the processes of test_group.py: runs the trainings of CASES as one of a group, without a stage around it.

``group_driver.py CASES MEETING RANK SIZE``; CASES is a JSON file: a list of {"settings", "tokenizer", "pack",
"folder"}. Leaves ``rank-N.pt`` in each folder: the final weights, the error if there was one,
and the seed that dropout had at the last step.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from transformers import AutoTokenizer

from tasks.contract import no_progress
from tasks.pretraining import group
from tasks.pretraining.batches import Collator, PackedSplit
from tasks.pretraining.group import Group, form
from tasks.pretraining.models import build_model
from tasks.pretraining.precision import choose_hardware
from tasks.pretraining.settings import PretrainSettings
from tasks.pretraining.training import Training
from tasks.pretraining.validation import validation_batches


def train(case: dict[str, Any], group: Group) -> None:
    settings = PretrainSettings.model_validate(case["settings"])
    asked, folder = settings.pretraining, Path(case["folder"])
    tokenizer = AutoTokenizer.from_pretrained(case["tokenizer"])
    model = build_model(settings.model, tokenizer, asked.objective, asked.seed)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):  # transformers' head for the sentences' order always has one
            module.p = 0.0
    split, held_out = (PackedSplit(Path(case["pack"]), name) for name in ("train", "validation"))
    collator = Collator(tokenizer, asked.masking, asked.objective == "mlm+sop")
    validation = [] if group.rank else validation_batches(held_out, collator, 32)
    error = ""
    try:
        Training(model, asked, choose_hardware(asked), split, collator, validation, folder, group=group).run(
            no_progress
        )
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    found = {"weights": model.state_dict(), "error": error, "seed": torch.initial_seed()}
    torch.save(found, folder / f"rank-{group.rank}.pt")


if __name__ == "__main__":
    group.BUFFER_VALUES = 15_000  # so that the small models' gradients, too, are exchanged in several buffers
    torch.set_num_threads(1)
    member = form(int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[2]), on_gpu=False)
    for case in json.loads(Path(sys.argv[1]).read_text()):
        train(case, member)
    torch.distributed.destroy_process_group()
    os._exit(0)  # as rank.py does: gloo's threads may abort a process that ends in the ordinary way
