"""Where the files of a data set lie on the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path

from tasks.contract import UserError


def check_dataset(dataset: str) -> None:
    """Check that a data set's name stands for the hub's, or for a local copy by its absolute path.

    ``load_dataset`` prefers a folder of that name in the current folder, whatever commit is asked for.

    Raises:
        UserError: there is such a folder.
    """
    if not Path(dataset).is_absolute() and os.path.lexists(dataset):
        raise UserError(
            f"{dataset}: {Path(dataset).absolute()} would be read in place of the hub's data set; "
            "rename it, or start in another folder"
        )


def files_at(dataset: str, revision: str, pattern: str) -> str:
    """What ``load_dataset(..., data_files=)`` takes for a glob of files in a data set at a commit.

    The absolute path of a local folder with the hub's layout serves as well, in tests and where the hub is out of
    reach.

    Raises:
        UserError: the current folder has one of the data set's name.
    """
    check_dataset(dataset)
    root = dataset if Path(dataset).is_absolute() else f"hf://datasets/{dataset}@{revision}"
    return f"{root}/{pattern}"
