"""What the corpus has seen so far: digests, signatures and their bands, on disk.

SQLite holds them in a file with a cache of fixed size, so memory does not grow with the number of documents: as Python
objects 10 million digests take 1 GB and their bands ten times as much.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from tasks.corpus_cleaning import similarity

CACHE_KIB = 64 * 1024
"""Memory that SQLite may take; beyond it, what was read last is in the operating system's cache of files."""

_SCHEMA = """
CREATE TABLE digests (digest BLOB PRIMARY KEY, id TEXT) WITHOUT ROWID;
CREATE TABLE bands (band INTEGER PRIMARY KEY, document INTEGER);
CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT, signature BLOB);
"""


def _database(path: Path, schema: str, *, survives: bool) -> sqlite3.Connection:
    """A database that survives a killed process if it should, and never a failing machine."""
    database = sqlite3.connect(path)
    try:
        journal = "PERSIST" if survives else "OFF"
        database.executescript(
            f"PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = {journal}; PRAGMA synchronous = OFF;"
            f"PRAGMA cache_size = -{CACHE_KIB if not survives else CACHE_KIB // 16};"
        )
        if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            database.executescript(schema)
    except sqlite3.DatabaseError:
        database.close()
        raise
    return database


class Duplicates:
    """Finds documents that occurred before, in the order in which they are asked for.

    Args:
        path: a new file.
        near_similarity: from which similarity on signatures are near duplicates.
    """

    def __init__(self, path: Path, near_similarity: float = 1.0) -> None:
        path.unlink(missing_ok=True)
        self._path = path
        self._database = _database(path, _SCHEMA, survives=False)
        self._database.execute("BEGIN")  # and never ended: it is of no use to another process
        self._similarity = near_similarity

    def exact(self, digest: bytes, id: str) -> str | None:
        """The id of the first document with this digest if there was one; else remember this one."""
        new = self._database.execute("INSERT OR IGNORE INTO digests VALUES (?, ?)", (digest, id)).rowcount
        return None if new else self._value("SELECT id FROM digests WHERE digest = ?", digest)

    def near(self, signature: bytes, bands: tuple[int, ...], id: str) -> tuple[str, float] | None:
        """The id and similarity of the most similar earlier document, if similar enough; else remember this one.

        Of the documents that share a band, the first one stands for all: so a comparison costs the same however
        many there are.
        """
        marks = ",".join("?" * len(bands))
        found = self._database.execute(
            f"SELECT DISTINCT d.number, d.id, d.signature FROM bands JOIN documents d ON d.number = document "
            f"WHERE band IN ({marks}) ORDER BY d.number",
            bands,
        ).fetchall()
        compared = [(similarity(signature, other), -number, name) for number, name, other in found]
        if compared:
            closest, _, name = max(compared)
            if closest >= self._similarity:
                return name, closest
        number = self._database.execute(
            "INSERT INTO documents (id, signature) VALUES (?, ?)", (id, signature)
        ).lastrowid
        self._database.executemany("INSERT OR IGNORE INTO bands VALUES (?, ?)", [(band, number) for band in bands])
        return None

    def close(self) -> None:
        """Forget everything."""
        self._database.close()
        self._path.unlink(missing_ok=True)

    def _value(self, query: str, *values: Any) -> Any:
        return self._database.execute(query, values).fetchone()[0]


class Findings:
    """Findings of a run that was killed, by what they were found in: cleaning costs more than reading again.

    Args:
        path: a file, which may hold findings already; made anew if it is damaged.
    """

    def __init__(self, path: Path) -> None:
        schema = "CREATE TABLE found (piece BLOB PRIMARY KEY, findings BLOB) WITHOUT ROWID;"
        try:
            self._database = _database(path, schema, survives=True)
        except sqlite3.DatabaseError:
            path.unlink()
            self._database = _database(path, schema, survives=True)

    def get(self, piece: bytes) -> bytes | None:
        """What was kept for a piece."""
        row = self._database.execute("SELECT findings FROM found WHERE piece = ?", (piece,)).fetchone()
        return row[0] if row else None

    def keep(self, piece: bytes, findings: bytes) -> None:
        """Keep what was found; it is there for the next run whatever happens to this process."""
        with self._database:
            self._database.execute("INSERT OR IGNORE INTO found VALUES (?, ?)", (piece, findings))

    def close(self) -> None:
        """Close the file."""
        self._database.close()
