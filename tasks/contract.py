"""What every stage agrees on: its settings, its function, and how it reports.

A stage is a plain function ``run(settings, inputs, folder, progress) -> metrics``:

* ``settings``: a frozen model that holds everything that decides the result (its *identity*);
* ``inputs``: the finished artifacts it reads, by name, as folders;
* ``folder``: where it builds its result. The folder survives kills, so a stage that is called again
  finds what it left and continues. ``folder/scratch`` is never published; ``folder/logs`` is published but
  does not count towards the digest, since times differ from run to run;
* ``progress``: one callback for "so much of so much is done";
* the returned metrics are plain JSON values. The key ``resolved``, if present, says what ``auto`` settings
  became, and goes to its own place in the record.

A stage knows nothing of the store, of Prefect or of the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo

SCRATCH = "scratch"
"""Sub-folder of a stage's work folder that is deleted before publication."""

LOGS = "logs"
"""Sub-folder that is published but not part of the digest: it holds times, which differ between equal runs."""


class UserError(ValueError):
    """The user's input is wrong. The message is one line: place, value, remedy. Exit status 2."""


class StageError(RuntimeError):
    """A stage could not finish. The message is one line. Exit status 1."""


class MachineError(StageError):
    """The machine refuses what a stage needs, such as room on the disk: no other stage would fare better."""


Rows = Sequence[Mapping[str, str]]
"""A small table: one mapping a row, title to cell, with equal keys."""


class Progress(Protocol):
    """Called by a stage whenever some work is done; cheap enough to call at every step.

    ``done`` and ``total`` count ``unit``\\ s ("steps", "documents"); a resumed stage starts above 0.
    ``note`` is a few words on the state ("loss 5.31"). ``rows`` is a small table of the present state, for those
    who can show one; it is shown until the next one comes, so the caller does not change it afterwards. Its texts may
    be strangers': whoever shows them makes them printable.
    """

    def __call__(self, done: float, total: float, *, unit: str = "", note: str = "", rows: Rows = ()) -> None:
        """Tell how far the stage is."""


def no_progress(done: float, total: float, *, unit: str = "", note: str = "", rows: Rows = ()) -> None:
    """The progress callback for callers that do not want to see any."""


class Settings(BaseModel):
    """Base of every settings model: unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class _Mark:
    kind: str


EXECUTION = _Mark("execution")
"""Marks a settings field that changes how a stage runs but not its result: it is left out of the identity."""

USER_FILES = _Mark("user files")
"""Marks a field that names the user's files. They enter the identity by content and ending, never by name."""


def absolute_path(path: str, info: ValidationInfo) -> str:
    """A path of a recipe, made absolute against the recipe's folder. Raises ValueError for an unknown ``~user``."""
    folder = (info.context or {}).get("folder")
    try:
        expanded = Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"there is no user {Path(path).parts[0]!r}; write the path out") from None
    return str(expanded) if folder is None else str(Path(folder) / expanded)


UserPath = Annotated[str, AfterValidator(absolute_path), USER_FILES]
"""A path or glob. Relative ones are made absolute, against the recipe's folder, when the recipe is loaded
(``model_validate(..., context={"folder": ...})``)."""


Run = Callable[[Any, Mapping[str, Path], Path, Progress], dict[str, Any]]


@dataclass(frozen=True)
class Stage:
    """A stage's name, its settings model, its function, and a version that invalidates older results."""

    name: str
    version: int
    settings: type[Settings]
    run: Run
    room: Callable[[Any, Mapping[str, Path]], int | None] | None = None
    """Bytes of disk that it will take, from its settings and those of its inputs that are there already; None where
    that cannot be told yet. Stages without it take a few megabytes at most."""
    shows_records: bool = False
    """The result shows the inputs' records, not only their content: their fingerprints then count beside their
    digests, so that an input made anew from other settings with equal bytes is shown as it is."""
