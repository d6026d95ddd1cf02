"""Parts: pieces of an unfinished stage that a restart does not do again (a shard, a checkpoint).

A part is a file or a folder somewhere below the stage's work folder. It counts as finished only when its own
small record stands in ``scratch/parts/``; the record is written last, after the part was synced and renamed
into its place. So a kill at any moment leaves a part that is finished, or one that the next start removes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks import durable
from tasks.contract import SCRATCH


class Parts:
    """The finished parts of one stage's work folder.

    Args:
        folder: the stage's work folder.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._records = folder / SCRATCH / "parts"
        if not self._records.is_dir():
            durable.remove(self._records)
        self._records.mkdir(parents=True, exist_ok=True)

    def finished(self) -> dict[str, dict[str, Any]]:
        """Names and facts of the parts that verify by file names and sizes; those that do not are removed."""
        parts: dict[str, dict[str, Any]] = {}
        for path in sorted(self._records.iterdir()):
            record = _read(path)
            if record is None:
                durable.remove(path)  # it was being written when the process died, or is not ours
            elif _sizes(self.folder / record["target"]) == record["files"]:
                parts[path.stem] = record["facts"]
            else:
                self.remove(path.stem)
        return parts

    def finish(self, name: str, source: Path, target: Path, **facts: Any) -> None:
        """Sync ``source``, rename it to ``target`` and write the part's record.

        Args:
            name: the part's name, used as a file name.
            source: the file or folder as built, on the same file system (below ``scratch``).
            target: where it belongs, below the work folder; what stands there is replaced.
            facts: JSON values that the stage needs to go on after this part.
        """
        durable.sync_tree(source)
        (self._records / f"{name}.json").unlink(missing_ok=True)
        durable.remove(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        durable.move(source, target)
        relative = target.relative_to(self.folder).as_posix()
        durable.write_json(
            self._records / f"{name}.json", {"target": relative, "files": _sizes(target), "facts": facts}
        )

    def path(self, name: str) -> Path:
        """Where a finished part lies."""
        record = json.loads((self._records / f"{name}.json").read_text(encoding="utf-8"))
        return self.folder / record["target"]

    def remove(self, name: str) -> None:
        """Forget a part and delete its files; the record goes first."""
        target = self.path(name)
        (self._records / f"{name}.json").unlink()
        durable.remove(target)


def _read(path: Path) -> dict[str, Any] | None:
    """A part's record; None for anything that is none."""
    if path.suffix != ".json" or path.name.startswith("."):
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    complete = isinstance(record, dict) and set(record) == {"target", "files", "facts"}
    return record if complete else None


def _sizes(path: Path) -> dict[str, int]:
    """Sizes in bytes of a file (under the name ``""``) or of all files of a folder."""
    if path.is_file():
        return {"": path.stat().st_size}
    return {file.relative_to(path).as_posix(): file.stat().st_size for file in durable.files_in(path)}
