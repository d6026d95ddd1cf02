"""The data of a training from its coordinator: whole artifacts into the store, or rows as they are needed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from hivemind import DHT
from hivemind.p2p import P2P, PeerID
from hivemind.proto.runtime_pb2 import ExpertInfo, ExpertUID
from hivemind.utils import MSGPackSerializer
from hivemind.utils.asyncio import aiter_with_timeout
from pydantic import ValidationError

from tasks import durable
from tasks.contract import StageError, UserError
from tasks.pretraining.collaborative.manifest import Source
from tasks.pretraining.collaborative.serving import CHUNK, FILE, MOST_ROWS, ROWS
from tasks.record import RECORD, Record, digest_of
from tasks.store import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

SILENCE_SECONDS = 30.0
"""A coordinator that sends nothing for so long is asked again."""

ROW_SECONDS = 600.0
"""Rows are asked for so long: a coordinator that is started again has the same identity and address."""

ATTEMPTS = 5
"""How often one thing is asked for before it is given up."""

LARGEST_RECORD = 2**26
"""Bytes of a record that are read at most."""

SPARE = 2**30
"""Bytes of the disk that a download leaves free."""

AHEAD = 2 * MOST_ROWS
"""Rows that are kept ready, from the sequences that come next."""

_Answer = TypeVar("_Answer")


def ask(dht: DHT, what: Callable[[P2P], Coroutine[Any, Any, _Answer]]) -> _Answer:
    """What a question to another member gives; for threads that may wait."""

    async def asked() -> _Answer:
        daemon = dht.run_coroutine(DHT._get_p2p_daemon_listen_maddr, return_future=True).result(SILENCE_SECONDS)
        p2p = await P2P.replicate(daemon)
        try:
            return await what(p2p)
        finally:
            await p2p.shutdown()

    return asyncio.run(asked())


def tell(dht: DHT, peer: str, name: str, text: str, seconds: float = SILENCE_SECONDS) -> bytes:
    """What a member answers to a question of one text and one answer.

    Raises:
        Exception: it does not.
    """

    async def asked(p2p: P2P) -> bytes:
        answer = p2p.call_protobuf_handler(PeerID.from_base58(peer), name, ExpertUID(uid=text), ExpertInfo)
        return bytes((await asyncio.wait_for(answer, seconds)).serialized_info)

    return ask(dht, asked)


async def pieces_of(p2p: P2P, peer: str, name: str) -> AsyncIterator[bytes]:
    """A file as its coordinator sends it."""
    stream = await asyncio.wait_for(
        p2p.iterate_protobuf_handler(PeerID.from_base58(peer), FILE, ExpertUID(uid=name), ExpertInfo), SILENCE_SECONDS
    )
    async for piece in aiter_with_timeout(stream, SILENCE_SECONDS):
        yield piece.serialized_info


def fetch(dht: DHT, peer: str, source: Source, store: Store) -> Path:
    """Bring an artifact into this machine's store; goes on with what an earlier attempt has brought.

    Args:
        dht: running.
        peer: libp2p's identity of the coordinator.
        source: which artifact, and its digest.
        store: gets it; one member of this machine brings it at a time.

    Raises:
        UserError: there is no room for it.
        StageError: it does not come, or is another one.
    """
    record, text = ask(dht, lambda p2p: _record(p2p, peer, source))
    target, building = store.root / source.path, store.root / "work" / "fetched" / source.digest[:16]
    building.mkdir(parents=True, exist_ok=True)
    missing = {name: out for name, out in record.outputs.items() if not _is(building / name, out.bytes, out.sha256)}
    size, free = sum(output.bytes for output in missing.values()), shutil.disk_usage(building).free
    if size + SPARE > free:
        raise UserError(
            f"{store.root}: {source.path} needs {size / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; give "
            "--store a larger disk, or read the corpus as it is needed: --stream"
        )
    logger.info("fetching %s: %d files, %.1f MiB", source.path, len(missing), size / 2**20)
    for name, output in missing.items():
        ask(dht, partial(_bring, peer=peer, name=f"{source.path}/{name}", target=building / name, output=output))
    (building / RECORD).write_bytes(text)
    durable.sync_tree(building)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():  # and is not what it should be, else it would not be fetched
        logger.warning("%s does not match its record: it is in %s now", target, store.discard(target))
    durable.move(building, target)
    return target


async def _record(p2p: P2P, peer: str, source: Source) -> tuple[Record, bytes]:
    """The artifact's record, which has to say what the manifest says."""
    problem = "nothing came"
    for attempt in range(ATTEMPTS):
        await asyncio.sleep(attempt)
        text = b""
        try:
            async for piece in pieces_of(p2p, peer, f"{source.path}/{RECORD}"):
                text += piece
                if len(text) > LARGEST_RECORD:
                    raise ValueError("its record does not end")
            record = Record.model_validate_json(text)
        except (ValidationError, ValueError) as error:
            problem = str(error).splitlines()[0]
            continue
        except Exception as error:
            problem = repr(error)
            continue
        names = [PurePosixPath(name) for name in record.outputs]
        if any(name.is_absolute() or ".." in name.parts for name in names):
            raise StageError(f"{source.path}: its record names files outside of it; do not trust this coordinator")
        if not digest_of(record.outputs) == record.digest == source.digest:
            raise StageError(f"{source.path}: the coordinator has another one than its manifest says; join again")
        return record, text
    raise StageError(f"{source.path}: the coordinator does not send it: {problem}; copy the folder into the store")


async def _bring(p2p: P2P, peer: str, name: str, target: Path, output: Any) -> None:
    """One file, of the right size and content."""
    target.parent.mkdir(parents=True, exist_ok=True)
    building, problem = target.with_name(f".{target.name}.part"), ""
    for attempt in range(ATTEMPTS):
        await asyncio.sleep(attempt)
        digest, size = hashlib.sha256(), 0
        try:
            with building.open("wb") as file, contextlib.suppress(StopAsyncIteration):
                async for piece in pieces_of(p2p, peer, name):
                    size += len(piece)
                    if size > output.bytes or len(piece) > CHUNK:
                        break
                    digest.update(piece)
                    file.write(piece)
        except Exception as error:
            problem = repr(error)
            continue
        if size == output.bytes and digest.hexdigest() == output.sha256:
            building.replace(target)
            return
        problem = f"{size} bytes of {output.bytes}, or another content"
        logger.warning("%s: %s; once more", name, problem)
    building.unlink(missing_ok=True)
    raise StageError(f"{name}: it does not come whole: {problem}; check the connection and join again")


def _is(path: Path, size: int, sha256: str) -> bool:
    return path.is_file() and path.stat().st_size == size and durable.sha256_of(path) == sha256


class RemoteSplit:
    """A training split that is read from the coordinator row by row; for peers without room for the corpus.

    Has what of :class:`~tasks.pretraining.batches.PackedSplit` a peer uses. Rows that come next are fetched meanwhile.

    Args:
        dht: running.
        peer: libp2p's identity of the coordinator.

    Raises:
        StageError: it does not answer.
    """

    def __init__(self, dht: DHT, peer: str):
        self._dht, self._peer = dht, peer
        told = self._ask([])
        self._size, self.sequence_length = int(told["size"]), int(told["length"])
        self.has_pairs, self.has_padding = bool(told["pairs"]), bool(told["padding"])
        self._ready: dict[int, tuple[NDArray[np.int64], int, int]] = {}
        self._lock = threading.Lock()
        self._fetcher: threading.Thread | None = None

    def __len__(self) -> int:
        """Number of sequences."""
        return self._size

    def rows(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """As :meth:`~tasks.pretraining.batches.PackedSplit.rows`; what is not there yet is waited for."""
        if self._fetcher is not None:
            self._fetcher.join()
        with self._lock:
            self._bring([int(index) for index in indices])
            found = [self._ready[int(index)] for index in indices]
            for index in indices:
                self._ready.pop(int(index), None)
        ids, boundary, length = zip(*found, strict=True)
        return np.stack(ids), np.array(boundary, dtype=np.int64), np.array(length, dtype=np.int64)

    def expect(self, indices: NDArray[np.int64]) -> None:
        """Fetch these rows, which come next, while others are computed on."""
        wanted = [int(index) for index in indices[:AHEAD]]
        if all(index in self._ready for index in wanted) or (self._fetcher is not None and self._fetcher.is_alive()):
            return

        def bring() -> None:
            try:
                with self._lock:
                    self._ready = {index: row for index, row in self._ready.items() if index in set(wanted)}
                    self._bring(wanted)
            except Exception as error:  # they are asked for again when they are needed
                logger.warning("rows were not fetched ahead: %r", error)

        self._fetcher = threading.Thread(target=bring, name="rows", daemon=True)
        self._fetcher.start()

    def _bring(self, indices: list[int]) -> None:
        missing = list(dict.fromkeys(index for index in indices if index not in self._ready))
        for first in range(0, len(missing), MOST_ROWS):
            part = missing[first : first + MOST_ROWS]
            told = self._ask(part)
            arrays = [np.frombuffer(told[name], dtype="<i4") for name in ("ids", "boundary", "lengths")]
            ids = arrays[0].reshape(len(part), self.sequence_length).astype(np.int64)
            for number, index in enumerate(part):
                self._ready[index] = (ids[number], int(arrays[1][number]), int(arrays[2][number]))

    def _ask(self, numbers: list[int]) -> dict[str, Any]:
        deadline, attempt, problem = time.monotonic() + ROW_SECONDS, 0, ""
        while time.monotonic() < deadline:
            try:
                told: dict[str, Any] = MSGPackSerializer.loads(tell(self._dht, self._peer, ROWS, json.dumps(numbers)))
            except Exception as error:
                problem, attempt = repr(error), attempt + 1
                logger.warning("the coordinator did not send rows, and is asked again: %s", problem)
                time.sleep(min(attempt, 10))
                continue
            if "problem" in told:
                raise StageError(f"the coordinator does not send rows: {told['problem']}; join again")
            return told
        raise StageError(f"the coordinator does not send rows: {problem}; is it running? Join again")
