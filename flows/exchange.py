"""`sahajflow push`, `pull` and `verify`: finished results to another place and back, compared by their hashes.

The other place is any that fsspec knows (a folder, ``s3://``, ``gs://``, ``sftp://``, ...), laid out as the store's
``artifacts/`` are. A result's ``record.json`` is written last, so that one without it is not there yet, for whoever
pulls and for a push that goes on after a kill. What is pulled counts as a result once its files have the hashes of its
record; these guard against accidents, not against whoever can write to the place.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tasks import durable, locks
from tasks.contract import StageError, UserError
from tasks.record import RECORD, Damaged, Record, digest_of, verified_record
from tasks.store import Store

if TYPE_CHECKING:
    from flows.plan import Step

_STAGE, _NAME = "[a-z][a-z-]*", "[0-9a-f]{16}"
"""What stages and the folders of their results are called: others could lead out of the store."""

_CREDENTIALS = re.compile(r"://[^/?#]*@")
"""As in sftp://name:password@host."""

MAX_RECORD_BYTES = 64 * 2**20
"""A record names each file of its result; a larger one is none of ours."""


@dataclass(frozen=True)
class Place:
    """A folder somewhere else.

    Args:
        url: as the user wrote it, without the credentials that may stand in it, since messages name it.
        files: fsspec's file system.
        root: the folder's path in it.
    """

    url: str
    files: Any
    root: str

    @classmethod
    def at(cls, url: str) -> Place:
        """Raises UserError: no file system of that name, or its package is not installed."""
        from fsspec.core import url_to_fs

        asked, url = url, _CREDENTIALS.sub("://", url)
        try:
            files, root = url_to_fs(asked)
        except ImportError as error:
            raise UserError(f"{url}: {error}; install it beside sahajflow") from None
        except Exception as error:
            raise UserError(
                f"{url}: {_told(error)}; give a folder, or an address such as s3://bucket/folder"
            ) from None
        return cls(url, files, root.rstrip("/"))

    def path(self, *parts: str) -> str:
        """Where something lies in it."""
        return "/".join([self.root, "artifacts", *parts])

    def record(self, stage: str, name: str) -> Record | None:
        """The record of a result, or None if it has none yet.

        Raises:
            Damaged: it does not parse, belongs to another result, or names files outside of it.
        """
        if not re.fullmatch(_STAGE, stage) or not re.fullmatch(_NAME, name):
            raise Damaged("no result is called so")
        path = self.path(stage, name, RECORD)
        try:
            if self.files.size(path) > MAX_RECORD_BYTES:
                raise Damaged(f"{RECORD} is too large")
            text = self.files.cat_file(path)
        except FileNotFoundError:
            return None
        try:
            record = Record.model_validate_json(text)
        except ValidationError:
            raise Damaged(f"{RECORD} does not parse") from None
        if record.stage != stage or record.fingerprint[:16] != name or record.digest != digest_of(record.outputs):
            raise Damaged(f"{RECORD} belongs to {record.stage} {record.fingerprint[:16]}")
        for file in record.outputs:
            pure = PurePosixPath(file)
            outside = pure.is_absolute() or not pure.name or ".." in pure.parts
            if outside or pure.as_posix() != file or "\\" in file:
                raise Damaged(f"{RECORD} names a file outside of the result: {file[:60]!r}")
        return record

    def results(self) -> list[tuple[str, str]]:
        """Stage and name of every result that has a record, sorted."""
        found = self.files.glob(self.path("*", "*", RECORD))
        return sorted(tuple(str(path).split("/")[-3:-1]) for path in found)  # type: ignore[misc]


def push(store: Store, artifacts: Iterable[Path], place: Place) -> Iterator[str]:
    """Copy results of the store to a place; yields a line for each.

    Raises:
        StageError: a result is damaged here, or the place cannot be written.
    """
    for artifact in artifacts:
        name = artifact.relative_to(store.root / "artifacts").as_posix()
        stage, fingerprint = name.split("/")
        try:
            record = verified_record(artifact, hashes=True)
        except Damaged as damage:
            raise StageError(f"{name}: is damaged here ({damage}); run its stage again with --verify") from None
        with _said(place):
            try:
                there = place.record(stage, fingerprint)
            except Damaged:
                there = None  # overwritten: ours is sound
            if there is not None and there.outputs == record.outputs:
                yield f"there already  {name}"
                continue
            if there is not None:
                place.files.rm_file(place.path(name, RECORD))
            for file in sorted(record.outputs):
                target = place.path(name, file)
                place.files.makedirs(target.rpartition("/")[0], exist_ok=True)
                place.files.put_file(str(artifact / file), target)
            place.files.makedirs(place.path(name), exist_ok=True)
            place.files.put_file(str(artifact / RECORD), place.path(name, RECORD))
        yield f"pushed  {name}  {_megabytes(record)}"


def pull_planned(plan: Callable[[], list[Step]], store: Store, place: Place) -> Iterator[str]:
    """Copy what a recipe's chain needs and the place has; yields a line for each result.

    Each result that arrives makes the fingerprints known of those that read it, so it is planned again until nothing
    more is found.

    Raises:
        UserError: the place has none of them.
    """
    tried: set[Path] = set()
    found = False
    while news := [step.path for step in plan() if step.action == "run" and step.path and step.path not in tried]:
        tried.update(news)
        for path in news:
            line = _pull(store, path.parent.name, path.name, place)
            found = found or line is not None
            yield line or f"not there  {path.parent.name}/{path.name}"
    if tried and not found:
        raise UserError(
            f"{place.url}: has none of the results that are missing here; run the recipe, or push them there"
        )


def pull_all(store: Store, place: Place) -> Iterator[str]:
    """Copy every result that the place has; yields a line for each."""
    with _said(place):
        results = place.results()
    if not results:
        raise UserError(f"{place.url}: holds no results; give the address that was pushed to")
    for stage, name in results:
        line = _pull(store, stage, name, place)
        if line is not None:
            yield line


def _pull(store: Store, stage: str, name: str, place: Place) -> str | None:
    """Fetch one result under its lock; None if the place does not have it."""
    artifact = store.root / "artifacts" / stage / name
    with _said(place):
        try:
            record = place.record(stage, name)
        except Damaged as damage:
            raise StageError(
                f"{place.url}: {stage}/{name} is damaged there ({damage}); remove it there and push again"
            ) from None
    if record is None:
        return None
    with locks.held(store.lock(stage, record.fingerprint)):
        try:
            if store.look(stage, record.fingerprint) is not None:
                return f"here already  {stage}/{name}"
        except Damaged:
            store.discard(artifact)
        arriving = store.root / "arriving" / stage / name
        durable.remove(arriving)
        for file, output in record.outputs.items():
            target = arriving / file
            target.parent.mkdir(parents=True, exist_ok=True)
            with _said(place):
                there = place.path(stage, name, file)
                if place.files.size(there) != output.bytes:
                    raise StageError(
                        f"{place.url}: {name}/{file} has another size there; remove {name} there and push again"
                    )
                place.files.get_file(there, str(target))
        arriving.mkdir(parents=True, exist_ok=True)
        durable.write_json(arriving / RECORD, json.loads(record.model_dump_json()))
        try:
            verified_record(arriving, hashes=True)
        except Damaged as damage:
            durable.remove(arriving)
            raise StageError(
                f"{place.url}: {stage}/{name} is damaged there ({damage}); remove it there and push again"
            ) from None
        durable.sync_tree(arriving)
        artifact.parent.mkdir(parents=True, exist_ok=True)
        durable.move(arriving, artifact)
    return f"pulled  {stage}/{name}  {_megabytes(record)}"


def verify(store: Store, artifacts: Iterable[Path]) -> Iterator[tuple[bool, str]]:
    """Compare the hashes of all files of results; yields for each whether it is sound, and a line."""
    for artifact in artifacts:
        name = artifact.relative_to(store.root / "artifacts").as_posix()
        try:
            record = verified_record(artifact, hashes=True)
        except Damaged as damage:
            yield False, f"damaged  {name}  {damage}"
        else:
            yield True, f"sound  {name}  {_megabytes(record)}"


@contextmanager
def _said(place: Place) -> Iterator[None]:
    """Turns what a file system raises into one line that names the place."""
    try:
        yield
    except (StageError, UserError, Damaged):
        raise
    except Exception as error:
        raise StageError(f"{place.url}: {_told(error)}") from error


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).split())[:200] or type(error).__name__


def _megabytes(record: Record) -> str:
    return f"{sum(output.bytes for output in record.outputs.values()) / 1e6:.1f} MB"
