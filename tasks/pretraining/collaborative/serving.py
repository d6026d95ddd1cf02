"""What a coordinator does for those who join: it sends the data that the training reads, and dials them back.

All of it goes through libp2p at the port that the swarm has anyway, encrypted and from an identity that is known. Only
the artifacts named in the manifest can be asked for, file by file or, for peers without a disk, row by row.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import hivemind
import numpy as np
from hivemind.p2p import P2P, P2PContext
from hivemind.proto.runtime_pb2 import ExpertInfo, ExpertUID
from hivemind.utils import MSGPackSerializer

from tasks.contract import UserError
from tasks.pretraining.batches import PackedSplit
from tasks.record import RECORD, read_record

FILE, ROWS, REACH = "sahajflow.file", "sahajflow.rows", "sahajflow.reach"
"""Names of what can be asked. hivemind has one message with a text and one with bytes, which carry it."""

CHUNK = 2**18
"""Bytes of a file that are sent at a time."""

MOST_ROWS = 512
"""Sequences that are sent at a time: 1 MiB of 512 tokens each."""

AT_ONCE = 8
"""Answers that are worked on at a time; who asks meanwhile waits."""

DIAL_SECONDS = 5.0
"""A peer that does not take a connection within this time counts as not reachable."""

MOST_PORTS = 4
"""Ports of one peer that are tried."""


def serve(dht: hivemind.DHT, artifacts: Mapping[str, Path], pack: Path | None) -> None:
    """Answer those who join, from the DHT's own process, until it ends.

    Args:
        dht: running.
        artifacts: folders by their place in a store, as a manifest names them.
        pack: the packed corpus, for rows of its training split.
    """
    dht.run_coroutine(partial(_install, artifacts=dict(artifacts), pack=pack))


async def _install(_: hivemind.DHT, node: Any, artifacts: dict[str, Path], pack: Path | None) -> None:
    server = Server(node.p2p, artifacts, pack)
    await node.p2p.add_protobuf_handler(FILE, server.file, ExpertUID, stream_output=True)
    await node.p2p.add_protobuf_handler(ROWS, server.rows, ExpertUID)
    await node.p2p.add_protobuf_handler(REACH, server.reach, ExpertUID)


class Server:
    """Answers of one coordinator; arguments as :func:`serve`."""

    def __init__(self, p2p: P2P, artifacts: Mapping[str, Path], pack: Path | None):
        self._p2p, self._pack = p2p, pack
        self._files = {
            f"{place}/{name}": folder / name
            for place, folder in artifacts.items()
            for name in (RECORD, *read_record(folder).outputs)
        }
        self._split: PackedSplit | None = None
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def file(self, request: ExpertUID, _: P2PContext) -> AsyncIterator[ExpertInfo]:
        """The bytes of a file, ``<artifact>/<name>``; nothing if it is none of the artifacts'."""
        path = self._files.get(request.uid)
        if path is None:
            return
        loop = asyncio.get_running_loop()
        async with self._turn:
            with path.open("rb") as file:
                while chunk := await loop.run_in_executor(None, file.read, CHUNK):
                    yield ExpertInfo(serialized_info=chunk)

    async def rows(self, request: ExpertUID, _: P2PContext) -> ExpertInfo:
        """Sequences of the training split by their numbers, a JSON list; an empty one asks what there is."""
        async with self._turn:
            answer = await asyncio.get_running_loop().run_in_executor(None, self._rows, request.uid)
        return ExpertInfo(serialized_info=MSGPackSerializer.dumps(answer))

    def _rows(self, asked: str) -> dict[str, Any]:
        try:
            if self._pack is None:
                raise ValueError("there are none here")
            if self._split is None:
                self._split = PackedSplit(self._pack, "train")
            split, numbers = self._split, json.loads(asked) if len(asked) < 64 * MOST_ROWS else None
            if not numbers and isinstance(numbers, list):
                return {
                    "size": len(split),
                    "length": split.sequence_length,
                    "pairs": split.has_pairs,
                    "padding": split.has_padding,
                }
            indices = np.array(numbers, dtype=np.int64)
            if indices.ndim != 1 or len(indices) > MOST_ROWS or indices.min() < 0 or indices.max() >= len(split):
                raise ValueError(f"up to {MOST_ROWS} numbers below {len(split)} can be asked for")
            parts = zip(("ids", "boundary", "lengths"), split.rows(indices), strict=True)
            return {name: part.astype("<i4").tobytes() for name, part in parts}
        except (ValueError, TypeError, OverflowError, UserError) as error:
            return {"problem": str(error)}

    async def reach(self, request: ExpertUID, context: P2PContext) -> ExpertInfo:
        """Whether a new connection to who asks can be made, at one of its ports, a JSON list.

        Only the address that the question comes from is dialled: nobody can have others dialled from here.
        """
        try:
            ports = [int(port) for port in json.loads(request.uid)][:MOST_PORTS]
        except (ValueError, TypeError):
            ports = []
        hosts = {
            host
            for peer in await self._p2p.list_peers()
            if peer.peer_id == context.remote_id
            for address in peer.addrs
            if (host := host_of(str(address)))
        }
        tried = [await _takes_connections(host, port) for host in sorted(hosts) for port in ports if 0 < port < 2**16]
        return ExpertInfo(serialized_info=json.dumps({"hosts": sorted(hosts), "reachable": any(tried)}).encode())


def host_of(multiaddress: str) -> str | None:
    """The IP address in a multiaddress; None if there is none, or if it is that of a relay in between."""
    parts = multiaddress.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6") or "p2p-circuit" in parts:
        return None
    try:
        return str(ipaddress.ip_address(parts[2]))
    except ValueError:
        return None


async def _takes_connections(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), DIAL_SECONDS)
    except (TimeoutError, OSError):
        return False
    writer.close()
    return True
