"""The probe that a pretraining calls: one short fine-tuning of a checkpoint, scored on the validation split.

The best epoch's score counts, as for a seed run's ``validation_score``, so it is a little higher than one on unseen
text would be. The test split stays unseen until the evaluation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.settings import METRICS, EvaluationSettings, TaskSettings
from tasks.contract import no_progress
from tasks.pretraining.probe import ProbeCall, ProbeSettings

SEED = 1
"""Of every probe, so that the checkpoints of one training differ in nothing else."""


def probe_call(probe: ProbeSettings | None, evaluation: EvaluationSettings) -> ProbeCall | None:
    """How a training that knows nothing of the evaluation has its probe carried out."""
    if probe is None:
        return None
    task = evaluation.tasks[probe.task]
    tuning = task.fine_tuning.model_copy(update={"epochs": probe.epochs})
    # what only the report needs would make it another probe
    reporting = {"title": None, "published": None, "max_overlap": TaskSettings.model_fields["max_overlap"].default}
    asked = task.model_copy(update={**reporting, "fine_tuning": tuning})
    arguments = {"task": asked.model_dump(mode="json"), "train_items": probe.train_items, "seed": SEED}
    return ProbeCall(function="eval.probe:score", arguments=arguments, metric=METRICS[task.kind])


def score(checkpoint: Path, task: dict[str, Any], train_items: int, seed: int) -> float:
    """Fine-tune a copy of the checkpoint.

    Args:
        checkpoint: a folder with model and tokenizer.
        task: ``TaskSettings`` as JSON values.
        train_items: most items of the training split; they are spread evenly over it.
        seed: of head, order of the items and dropout.

    Returns:
        Entity F1 or accuracy on the validation split, from 0 to 1.

    Raises:
        UserError: the data is wrong.
        StageError: a data set or the checkpoint cannot be loaded.
    """
    from eval.data import Split, TaskData, load_task
    from eval.prepared import encode_task
    from eval.tuning import Job, tune

    asked = TaskSettings.model_validate(task)
    data = load_task(asked)
    train = data.splits["train"]
    count = min(train_items, len(train))
    chosen = [number * len(train) // count for number in range(count)]
    fewer = Split([train.inputs[item] for item in chosen], [train.labels[item] for item in chosen])
    few = TaskData(data.labels, {"train": fewer, "validation": data.splits["validation"]})
    encoded, pad_id = encode_task(asked, few, checkpoint)
    job = Job(asked, few.labels, encoded, few.splits["validation"].labels, pad_id, seed)
    return tune(job, checkpoint, no_progress).best.validation_score
