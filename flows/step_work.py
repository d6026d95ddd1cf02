"""What a step does: reuse what stands, or run the stage under its lock and publish what it leaves. No Prefect here."""

from __future__ import annotations

import errno
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows.attempts import logged
from flows.graph import Node
from flows.plan import Step, counted
from flows.retention import note_use
from tasks import locks
from tasks.contract import MachineError, Progress, Run, StageError, UserError
from tasks.identity import fingerprint_of, identity_of
from tasks.record import Damaged, Input, Record, read_record, verified_record
from tasks.room import shortage, size_of
from tasks.store import Building, FileDigests, Store
from tasks.user_files import shown

logger = logging.getLogger("sahajflow")


@dataclass(frozen=True)
class StageOutcome:
    """How one node ended."""

    name: str
    action: Literal["ran", "reused"]
    path: Path
    record: Record
    seconds: float


Work = Callable[[Progress], StageOutcome]


def work_of(
    step: Step, outcomes: Mapping[str, StageOutcome], store: Store, *, verify: bool, run: Run | None = None
) -> Work:
    """All that has to be done for a step, as a function that is told whom to report progress to.

    Args:
        step: what was planned.
        outcomes: of the nodes that it reads.
        store: where it was planned for.
        verify: compare the hashes of all files before a result is reused.
        run: the stage's function as it is to be called here, if not as the stage has it.
    """

    def work(progress: Progress) -> StageOutcome:
        with _full_disk_told(step.node.name, store):
            return done(progress)

    def done(progress: Progress) -> StageOutcome:
        started = time.monotonic()
        node = step.node
        inputs = {name: outcomes[source] for name, source in node.inputs.items()}
        building = Building(
            node.stage,
            fingerprint_of(
                node.stage, step.identity, {name: counted(node.stage, one.record) for name, one in inputs.items()}
            ),
            step.identity,
            {
                name: Input(path=outcome.path.relative_to(store.root).as_posix(), digest=outcome.record.digest)
                for name, outcome in inputs.items()
            },
        )
        path = store.artifact(node.stage.name, building.fingerprint)
        record = None if step.forced else _standing(store, building, verify=verify, repair=False)
        action: Literal["ran", "reused"] = "reused"
        if record is None:
            facts = {"inputs": [source.path for source in building.inputs.values()], "title": node.name}
            with locks.held(store.lock(node.stage.name, building.fingerprint), _say_who(node.name), facts):
                record = None if step.forced else _standing(store, building, verify=verify, repair=True)
                if record is None:
                    record = _build(step, building, store, run or node.stage.run, progress)
                    action = "ran"
        note_use(store, path)
        return StageOutcome(node.name, action, path, record, round(time.monotonic() - started, 3))

    return work


def _standing(store: Store, building: Building, *, verify: bool, repair: bool) -> Record | None:
    """The finished result, if there is one; with ``repair`` (under the lock) a damaged one goes to the trash."""
    try:
        return store.look(building.stage.name, building.fingerprint, hashes=verify)
    except Damaged as damage:
        if repair:
            place = store.discard(store.artifact(building.stage.name, building.fingerprint))
            logger.warning("%s was damaged (%s): moved to %s, built again", building.stage.name, damage, place)
        return None


def _build(step: Step, building: Building, store: Store, run: Run, progress: Progress) -> Record:
    """Run the stage in its work folder and publish what it leaves; under the lock."""
    started = time.monotonic()
    stage, fingerprint = building.stage, building.fingerprint
    if store.finished_work(building) and (not step.forced or store.artifact(stage.name, fingerprint).exists()):
        return store.publish(building, replace=step.forced)
    with logged(store, stage.name, fingerprint, step.node.name), _full_disk_told(step.node.name, store):
        return _attempt(step, building, store, run, progress, started)


def _attempt(step: Step, building: Building, store: Store, run: Run, progress: Progress, started: float) -> Record:
    stage, fingerprint = building.stage, building.fingerprint
    fresh = not store.work(stage.name, fingerprint).exists()
    _check_sources(step, building, store)
    work = store.open_work(building, again=step.forced)
    inputs = {name: store.root / source.path for name, source in building.inputs.items()}
    if lacking := shortage({step.node.name: still_needed(step.node, inputs, work)}, store.root):
        raise MachineError(f"{step.node.name}: {lacking}")
    try:
        metrics = run(step.node.settings, inputs, work, progress)
    except UserError:
        # Nothing that came of wrong input is worth going on from; but what an earlier run left is.
        if fresh:
            shutil.rmtree(work, ignore_errors=True)
        raise
    except StageError:
        raise
    except Exception as error:
        if _full_disk(error) is None:
            _blame_damaged_input(inputs, error)
        raise
    _check_sources(step, building, store)
    return store.finish(building, metrics, time.monotonic() - started, replace=step.forced)


def still_needed(node: Node, inputs: Mapping[str, Path], work: Path | None) -> int:
    """Bytes of disk that a node's stage will take; 0 where nothing can be told.

    Args:
        node: its settings count.
        inputs: those of its inputs that are there already.
        work: its work folder, if that is known: what an unfinished attempt has written there is not needed again.
    """
    needed = node.stage.room(node.settings, inputs) if node.stage.room else None
    return max(0, needed - size_of(work)) if needed and work else needed or 0


@contextmanager
def _full_disk_told(name: str, store: Store) -> Iterator[None]:
    """Say in one line what any of the steps around a stage means when there is no room to write: its lock's note, its
    work, its record, the libraries' files."""
    try:
        yield
    except (UserError, StageError):
        raise
    except Exception as error:
        if (reason := _full_disk(error)) is None:
            raise
        raise MachineError(
            f"{name}: a disk is full ({reason}); free space for {shown(store.root)}, or for temporary files, and run "
            "again to go on"
        ) from error


def _full_disk(error: Exception) -> str | None:
    """What a library that had no room to write said, as an error of the system, or of SQLite's or Rust's own."""
    link: BaseException | None = error
    while link is not None:
        said = " ".join(str(link).splitlines()[:1])
        if isinstance(link, OSError) and link.errno in (errno.ENOSPC, errno.EDQUOT):
            return said
        if any(words in str(link) for words in ("No space left on device", "database or disk is full")):
            return said
        link = link.__context__  # torch complains once more, in words of its own, when it closes its file
    return None


def _check_sources(step: Step, building: Building, store: Store) -> None:
    """Whether what was planned with is still there: hours may lie between, and another run may force an input.

    Raises:
        StageError: a file of the user's or an input has another content by now. Without this check the result would
            stand under the fingerprint of the old one.
    """
    files = FileDigests(store)
    identity = identity_of(step.node.settings, files)
    files.save()
    if identity != step.identity:
        raise StageError(f"{step.node.name}: a file that it reads was changed during the run; run again")
    for name, source in building.inputs.items():
        try:
            digest = read_record(store.root / source.path).digest
        except Damaged as damage:
            raise StageError(f"{step.node.name}: its input {name} is gone or damaged ({damage}); run again") from None
        if digest != source.digest:
            raise StageError(f"{step.node.name}: its input {name} was replaced during the run; run again")


def _blame_damaged_input(inputs: dict[str, Path], error: Exception) -> None:
    """If a stage failed since an input is damaged in a way that its size does not show, say so."""
    for name, path in inputs.items():
        try:
            verified_record(path, hashes=True)
        except Damaged as damage:
            raise StageError(
                f"the result of {name} is damaged: {damage} in {path}; run again with --verify"
            ) from error


def _say_who(name: str) -> Callable[[dict[str, Any]], None]:
    def say(holder: dict[str, Any]) -> None:
        minutes = max(0.0, time.time() - holder["started"]) / 60
        logger.info(
            "%s: waiting for process %s on %s, which has been at it for %.0f min",
            name,
            holder["pid"],
            holder["host"],
            minutes,
        )

    return say
