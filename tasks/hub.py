"""Where the files of a data set lie on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path


def files_at(dataset: str, revision: str, pattern: str) -> str:
    """What ``load_dataset(..., data_files=)`` takes for a glob of files in a data set at a commit.

    A local folder with the hub's layout serves as well, in tests and where the hub is out of reach.
    """
    root = dataset if Path(dataset).is_dir() else f"hf://datasets/{dataset}@{revision}"
    return f"{root}/{pattern}"
