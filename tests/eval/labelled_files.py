"""Files of labelled items, and tasks that read them, that several tests of the evaluation share."""

from pathlib import Path

from eval.settings import TaskSettings

SHARED = Path(__file__).parents[2].parent / "shared/data"


NEWS = ("kolkata", "state", "national", "sports", "entertainment", "international")


COMMIT = "0" * 40


WIKIANN = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def files_task(kind: str, train: Path, other: Path | None = None, labels=None, **source) -> TaskSettings:
    other = other or train
    paths = {"train": str(train), "validation": str(other), "test": str(other)}
    return TaskSettings(kind=kind, source={"kind": "files", **paths, **source}, labels=labels)
