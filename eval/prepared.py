"""A task's data, read and encoded once, whichever of its seed runs asks for them.

The seed runs of one task come one after another or at once, in this process's threads, and each needs the same items
as the same token ids. The last few are kept here. What tells them apart is the task's settings and the files that were
read, by size, modification time and inode: a file that is edited meanwhile is read anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.data import TaskData, load_task
from eval.encoding import EncodedSplit
from eval.settings import SPLITS, FilesSource, HubSource, TaskSettings, filled
from tasks.user_files import user_files

KEPT = 2
"""Tasks that are kept: the one whose seed runs are at work, and the one before or after it."""


@dataclass(frozen=True)
class PreparedTask:
    """What all seed runs of a task and tokenizer share, and none may change.

    Attributes:
        data: the items and labels.
        facts: :meth:`eval.data.TaskData.facts`.
        encoded: each split as token ids.
        pad_id: token id of the padding.
    """

    data: TaskData
    facts: dict[str, Any]
    encoded: dict[str, EncodedSplit]
    pad_id: int


_kept: OrderedDict[tuple[Any, ...], PreparedTask] = OrderedDict()
_alone = threading.Lock()


def prepared(task: TaskSettings, tokenizer: Path) -> PreparedTask:
    """The task's data as the tokenizer of this folder encodes them; for several threads that ask, they are made once.

    Raises:
        UserError: the data is wrong, or the tokenizer not a fast one.
        StageError: a data set of the hub cannot be loaded.
    """
    with _alone:
        key = (
            task.model_dump_json(exclude={"fine_tuning", "title", "published", "max_overlap"}),
            task.fine_tuning.max_length,
            _stand_of(_files_of(task)),
            str(tokenizer),
            _stand_of(sorted(path for path in tokenizer.iterdir() if path.is_file())),
        )
        if key not in _kept:
            data = load_task(task)
            encoded, pad_id = encode_task(task, data, tokenizer)
            _kept[key] = PreparedTask(data, data.facts(), encoded, pad_id)
        _kept.move_to_end(key)
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
        return _kept[key]


def encode_task(task: TaskSettings, data: TaskData, tokenizer: Path) -> tuple[dict[str, EncodedSplit], int]:
    """The splits as token ids, and the id of the padding.

    Raises:
        UserError: the tokenizer is not a fast one.
    """
    from transformers import AutoTokenizer

    from eval.encoding import encode

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    length = task.fine_tuning.max_length
    encoded = {name: encode(split, data.labels, loaded, length) for name, split in data.splits.items()}
    return encoded, loaded.pad_token_id


def _files_of(task: TaskSettings) -> list[Path]:
    source = task.source
    if isinstance(source, FilesSource):
        return [path for split in SPLITS for path in user_files(getattr(source, split), f"source.{split}")]
    if isinstance(source, HubSource) and source.local is not None:
        patterns = [filled(source.local, split, source.config) for split in SPLITS]
        return [path for pattern in patterns for path in user_files(pattern, "source.local")]
    return []  # a revision of the hub and the sample never change


def _stand_of(files: list[Path]) -> tuple[Any, ...]:
    stats = [(path, path.stat()) for path in files]
    return tuple((str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in stats)
