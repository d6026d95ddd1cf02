"""What became of every document that was read: counts for the record, and a file that names all that were left out."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Literal

LEFT_OUT = "left-out.jsonl.gz"
"""In the artifact's folder ``logs``, which does not count towards its digest: it may hold the names of files."""

LISTED = 20
"""Unreadable documents that the record itself lists."""

BEGINNING = 200
"""Characters of a document that was left out that are shown."""

Fault = Literal["unreadable", "empty", "script", "overlap", "duplicates", "near_duplicates"]

COUNTED: dict[Fault, str] = {
    "unreadable": "unreadable_skipped",
    "empty": "empty_dropped",
    "script": "script_dropped",
    "overlap": "overlap_dropped",
    "duplicates": "duplicates_dropped",
    "near_duplicates": "near_duplicates_dropped",
}
"""What each is called in the record, in the order of the steps."""


class Account:
    """Counts by source, and the file of what was left out.

    Args:
        sources: names of the sources.
        logs: folder for the file; made if it is not there.
    """

    def __init__(self, sources: Iterable[str], logs: Path) -> None:
        self._counts = {
            name: {"documents": 0, "characters": 0} | dict.fromkeys(COUNTED.values(), 0) for name in sources
        }
        self.unreadable: list[str] = []
        logs.mkdir(parents=True, exist_ok=True)
        # Without a time, so that equal runs leave equal files.
        packed = gzip.GzipFile(logs / LEFT_OUT, "wb", compresslevel=6, mtime=0)
        self._file: IO[str] = io.TextIOWrapper(packed, encoding="utf-8")

    def keep(self, source: str, text: str) -> None:
        """Count a document that belongs to the corpus."""
        self._counts[source]["documents"] += 1
        self._counts[source]["characters"] += len(text)

    def leave_out(self, source: str, fault: Fault, id: str, text: str = "", **details: Any) -> None:
        """Count a document that does not, and write why: ``details`` are JSON values."""
        self._counts[source][COUNTED[fault]] += 1
        if fault == "unreadable" and len(self.unreadable) < LISTED:
            self.unreadable.append(details["problem"])
        line = {"id": id, "fault": fault, **details} | ({"begins": text[:BEGINNING]} if text else {})
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def total(self, count: str) -> int:
        """The sum of one count over all sources."""
        return sum(counts[count] for counts in self._counts.values())

    def as_json(self) -> dict[str, dict[str, int]]:
        """The counts by source."""
        return {name: dict(counts) for name, counts in self._counts.items()}

    def close(self) -> None:
        """End the file."""
        self._file.close()
