"""The store: the folder that holds finished artifacts, work in progress, locks, and what was found damaged.

    artifacts/<stage>/<fingerprint, 16 digits>/   complete and immutable, with record.json
    work/<stage>/<fingerprint>/                   progress of one unfinished stage; survives kills
    locks/<stage>-<fingerprint>.lock
    trash/                                        what was damaged or replaced, until cleaned

A marker file that says "done" can lie, since it may reach the disk before the data, or stay behind when they are
edited. Here a result is built in ``work/``, synced, described by a record that is written last, and renamed once.
A kill between any two of these steps leaves a state from which the next run goes on.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks import durable
from tasks.contract import LOGS, SCRATCH, Stage, UserError
from tasks.record import (
    RECORD,
    Damaged,
    Input,
    Record,
    digest_of,
    environment,
    outputs_of,
    read_record,
    verified_record,
)

FORMAT_FILE = "format.json"

FORMAT = 1
"""Version of the layout above; a store of another version is refused."""


def home() -> Path:
    """The folder for everything that sahajflow keeps: ``$SAHAJFLOW_HOME``, by default ``~/.sahajflow``."""
    return Path(os.environ.get("SAHAJFLOW_HOME") or "~/.sahajflow").expanduser().absolute()


@dataclass(frozen=True)
class Building:
    """All that is known of a result before its files are: the first half of its record."""

    stage: Stage
    fingerprint: str
    identity: Mapping[str, Any]
    inputs: Mapping[str, Input]


class Store:
    """One store on a local or POSIX-shared folder.

    Args:
        root: the store's folder; by default ``store`` in :func:`home`. It is created at the first write.
    """

    def __init__(self, root: Path | str | None = None):
        self.root = Path(root).expanduser().absolute() if root else home() / "store"

    def create(self) -> None:
        """Make the folders if needed.

        Raises:
            UserError: the place cannot be written, or holds something else than a store of this version.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not (self.root / FORMAT_FILE).exists():
                if self.holds_something_else():
                    raise UserError(f"{self.root}: is not empty and no store; give --store an empty or new folder")
                durable.write_json(self.root / FORMAT_FILE, {"format": FORMAT})
            for name in ("artifacts", "work", "locks", "trash", "cache"):
                (self.root / name).mkdir(exist_ok=True)
            if not os.access(self.root, os.W_OK):
                raise PermissionError(errno.EACCES, "it may only be read")
        except OSError as error:
            raise UserError(f"{self.root}: the store cannot be written ({error.strerror}); use --store") from error

    def holds_something_else(self) -> bool:
        """Whether the folder has content and is no store. A format file that another process is writing, or was when
        it died, is no content. Raises OSError if the folder cannot be read."""
        if (self.root / FORMAT_FILE).exists():
            return False
        return any(not path.name.startswith(f".{FORMAT_FILE}.") for path in self.root.iterdir())

    def check_format(self) -> None:
        """Refuse a store that another version of sahajflow laid out.

        Raises:
            UserError: the format is not this version's, or unreadable.
        """
        path = self.root / FORMAT_FILE
        if not path.exists():
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8")).get("format")
        except (OSError, ValueError, AttributeError, RecursionError):
            raise UserError(f"{path}: does not parse; restore it as {{'format': {FORMAT}}}") from None
        if found != FORMAT:
            newer = isinstance(found, int) and found > FORMAT
            remedy = "upgrade sahajflow" if newer else "take the sahajflow that made it"
            raise UserError(
                f"{path}: store format {found}, this version reads {FORMAT}; {remedy}, or use another --store"
            )

    def artifact(self, stage: str, fingerprint: str) -> Path:
        """Where the finished result lies, or will."""
        return self.root / "artifacts" / stage / fingerprint[:16]

    def work(self, stage: str, fingerprint: str) -> Path:
        """Where the unfinished result grows."""
        return self.root / "work" / stage / fingerprint[:16]

    def lock(self, stage: str, fingerprint: str) -> Path:
        """The lock file of one fingerprint."""
        return self.root / "locks" / f"{stage}-{fingerprint[:16]}.lock"

    def look(self, stage: str, fingerprint: str, *, hashes: bool = False) -> Record | None:
        """The verified record of a finished result, or None if there is none. Changes nothing on the disk but a note
        that this host has checked the hashes, which happens at first use of an artifact made on another one.

        Raises:
            Damaged: something lies there that does not match its record.
        """
        artifact = self.artifact(stage, fingerprint)
        if not os.path.lexists(artifact):
            return None
        record = verified_record(artifact, hashes=hashes)
        if record.fingerprint != fingerprint or record.stage != stage:
            raise Damaged(f"{RECORD} belongs to {record.stage} {record.fingerprint[:16]}")
        if not hashes and record.environment.get("host") != socket.gethostname():
            self._verify_here_once(artifact, record)
        return record

    def records(self, stage: str) -> Iterator[Record]:
        """All readable records of a stage's artifacts; damaged ones are passed over."""
        folder = self.root / "artifacts" / stage
        for artifact in sorted(folder.iterdir()) if folder.is_dir() else []:
            try:
                yield read_record(artifact)
            except Damaged:
                continue

    def discard(self, path: Path) -> Path:
        """Move an artifact or a work folder to ``trash/``; returns where it lies now."""
        target = self._free_place(f"{path.parent.name}-{path.name}")
        durable.move(path, target)
        return target

    def open_work(self, building: Building, *, again: bool = False) -> Path:
        """The work folder, ready for the stage to begin or to go on in it.

        What a stage goes on from lies in ``scratch/`` and ``logs/``; everything else there is removed, be it a record
        that a killed run was writing or something foreign, so that only what the stage leaves is published.

        Args:
            building: what is made in it.
            again: begin anew (``--force``), but go on if it was such a forced run that had begun here.
        """
        work = self.work(building.stage.name, building.fingerprint)
        forced = work / SCRATCH / "forced"
        if work.is_symlink() or not work.is_dir() or (again and not forced.exists()):
            durable.remove(work)
        work.mkdir(parents=True, exist_ok=True)
        for path in work.iterdir():
            if path.name not in {SCRATCH, LOGS} or path.is_symlink() or not path.is_dir():
                durable.remove(path)
        if again:
            forced.parent.mkdir(exist_ok=True)
            forced.touch()
        return work

    def finish(self, building: Building, metrics: dict[str, Any], seconds: float, *, replace: bool = False) -> Record:
        """Publish what a stage left in its work folder.

        Args:
            building: what it is.
            metrics: as the stage returned them; ``resolved`` is moved to its own place.
            seconds: how long it took, by a clock that is never set back.
            replace: a verified artifact with other bytes that stands there goes to ``trash/`` (``--force``).
                Else ours is dropped in its favour.
        """
        work = self.work(building.stage.name, building.fingerprint)
        durable.sync_tree(work, without=(SCRATCH,))
        outputs = outputs_of(work)
        finished = time.time()
        record = Record(
            stage=building.stage.name,
            version=building.stage.version,
            fingerprint=building.fingerprint,
            identity=dict(building.identity),
            resolved=metrics.get("resolved", {}),
            inputs=dict(building.inputs),
            outputs=outputs,
            digest=digest_of(outputs),
            metrics={name: value for name, value in metrics.items() if name != "resolved"},
            started=datetime.fromtimestamp(finished - seconds, UTC),
            finished=datetime.fromtimestamp(finished, UTC),
            seconds=round(seconds, 3),
            environment=environment(),
        )
        durable.write_json(work / RECORD, record.model_dump(mode="json"))
        return self.publish(building, replace=replace)

    def publish(self, building: Building, *, replace: bool = False) -> Record:
        """Move a work folder whose record is written into ``artifacts/``: the second half of :meth:`finish`, where a
        run that was killed in between goes on."""
        stage, fingerprint = building.stage.name, building.fingerprint
        work, artifact = self.work(stage, fingerprint), self.artifact(stage, fingerprint)
        record = read_record(work)
        scratch = None
        if (work / SCRATCH).exists():
            # Moved, not deleted: a kill in the middle of a deletion would leave a work folder without its parts.
            scratch = self._free_place(f"scratch-{stage}-{fingerprint[:16]}")
            durable.move(work / SCRATCH, scratch)
        artifact.parent.mkdir(parents=True, exist_ok=True)
        try:
            standing = self.look(stage, fingerprint, hashes=True)
        except Damaged:
            self.discard(artifact)
            standing = None
        if standing is not None and (standing.digest == record.digest or not replace):
            record = standing
            durable.remove(work)
        else:
            if standing is not None:
                self.discard(artifact)
            durable.move(work, artifact)
        if scratch is not None:
            durable.remove(scratch)
        return record

    def finished_work(self, building: Building) -> bool:
        """Whether the work folder only waits to be renamed: its record is written and all files match it."""
        work = self.work(building.stage.name, building.fingerprint)
        try:
            record = read_record(work)
            return record.fingerprint == building.fingerprint and record.outputs == outputs_of(work)
        except Damaged:
            return False

    def _free_place(self, name: str) -> Path:
        trash = self.root / "trash"
        trash.mkdir(parents=True, exist_ok=True)
        free = (trash / f"{name}-{number:x}" for number in itertools.count(time.time_ns()))
        return next(target for target in free if not target.exists())  # the clock may have been set back

    def _verify_here_once(self, artifact: Path, record: Record) -> None:
        note = self.root / "cache" / f"verified-{socket.gethostname()}" / f"{record.digest[:32]}"
        if note.exists():
            return
        verified_record(artifact, hashes=True)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


class FileDigests:
    """SHA-256 of the user's files, remembered by path, size, modification time and inode.

    Args:
        store: the store that keeps the memory, once :meth:`save` is called.
    """

    def __init__(self, store: Store):
        self._path = store.root / "cache" / "file-digests.json"
        self._known: dict[str, list[Any]] = {}
        self._changed = False
        if self._path.exists():
            try:
                self._known = dict(json.loads(self._path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError, RecursionError):
                self._changed = True  # only a cache: what cannot be read is learnt again

    def __call__(self, file: Path) -> str:
        """The file's SHA-256; raises UserError if it cannot be read."""
        try:
            stat = file.stat()
            key = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
            known = self._known.get(str(file))
            if not isinstance(known, list) or len(known) != 4 or known[:3] != key:
                known = [*key, durable.sha256_of(file)]
                self._known[str(file)] = known
                self._changed = True
        except OSError as error:
            raise UserError(f"{file}: cannot be read ({error.strerror})") from error
        return str(known[3])

    def save(self) -> None:
        """Keep what was learnt for the next run, if the store exists already and can be written."""
        if self._changed and os.access(self._path.parent, os.W_OK):
            durable.write_json(self._path, self._known)
