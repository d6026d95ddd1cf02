"""Trains the cases of ``test_training.py`` in one process, as rank.py would: ``python training_driver.py FOLDER``.

FOLDER holds a folder for each case with ``settings.json``, and gets ``result.json`` or ``error`` in it.
"""

import json
import sys
from pathlib import Path

from optimum.habana.transformers import trainer as habana

from tasks.contract import StageError
from tasks.parts import Parts
from tasks.pretraining.gaudi import training


def train(case: Path, work: Path, resume: Path | None = None) -> None:
    (case / "resume.json").write_text(json.dumps(None if resume is None else str(resume)))
    folder = case.parent
    metrics = training.train(case, folder / "tokenizer", folder / "pack", work)
    (case / "result.json").write_text(json.dumps(metrics))


class Killed(BaseException):
    pass


def train_in_two_runs(case: Path, work: Path) -> None:
    """The first run is broken off in step 7, between two checkpoints."""

    def writer(place: Path):
        def progress(done, total, **_):
            if done == 7:
                raise Killed

        return progress

    original, training.status_writer = training.status_writer, writer
    try:
        train(case, work)
    except Killed:
        training.status_writer = original
    assert sorted(Parts(work).finished()) == ["step-000004"]
    assert [json.loads(line)["step"] for line in log(work)][-1] == 6
    train(case, work, work / "scratch/checkpoints/step-000004")


def log(work: Path) -> list[str]:
    return (work / "logs/training.jsonl").read_text().splitlines()


def main(folder: Path) -> None:
    for case in sorted(path.parent for path in folder.glob("*/settings.json")):
        work = case / "work"
        (work / "scratch").mkdir(parents=True)
        try:
            (train_in_two_runs if case.name == "in-two-runs" else train)(case, work)
        except StageError as error:
            (case / "error").write_text(str(error))
    # after the trainings: whoever replaced a part of the class would be seen now
    files = {
        name: value.__code__.co_filename
        for name, value in vars(training.GaudiTrainer).items()
        if hasattr(value, "__code__") and not hasattr(value, "__wrapped__")
    }
    told = {
        "is": training.GaudiTrainer is habana.GaudiTrainer,
        "module": training.GaudiTrainer.__module__,
        "files": sorted(set(files.values())),
        "functions": len(files),
        "habana": habana.__file__,
    }
    (folder / "class.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
