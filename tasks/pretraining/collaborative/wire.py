"""What comes from a stranger's hand: bounded before memory is taken for it, and never unpickled.

Traps of hivemind 1.1.12 that are closed here: a message may announce any length, and is gathered until it is there; a
tensor is made of the type that its sender names (``U1000000`` takes 4 MB a value), by any of the registered ways of
compressing; and a caller may keep any number of streams open.
"""

from __future__ import annotations

import contextvars
import math
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from hivemind.compression import deserialize_torch_tensor
from hivemind.compression.quantization import Quantization
from hivemind.p2p import P2P
from hivemind.proto import runtime_pb2
from hivemind.utils.streaming import combine_from_streaming

from tasks.pretraining.collaborative.gate import Gate

LARGEST_MESSAGE = 4 * 2**20
"""Bytes of one message, as libp2p's daemon has it for the DHT. Parts of an averaging have up to 2^19 bytes."""

MOST_STREAMS = 16
"""Streams of one caller at a time; a peer opens one to join a group, one to send its parts, one for the state."""

LARGEST_METADATA = 2**20
"""Bytes of a state's metadata, which has about 50 for each of an optimiser's tensors."""

_TYPES = {torch.float32: "float32", torch.float64: "float64", torch.int64: "int64", torch.int32: "int32"}
_COLOURS = 256
"""Values of 8-bit compression."""


def _read_8_bit(compression: Quantization, sent: Any) -> torch.Tensor:
    """A tensor that was sent in 8 bit: the number of its 256 values, the values, and which of them each place has.

    hivemind's own reads the number in a way that NumPy 2.4 refuses, and every such averaging would break off.
    """
    count = int.from_bytes(sent.buffer[:8], sys.byteorder)
    start = 8 + count * np.dtype(compression.codebook_dtype).itemsize
    values = np.frombuffer(sent.buffer[8:start], dtype=compression.codebook_dtype)
    places = np.frombuffer(sent.buffer[start:], dtype=compression.indices_dtype)
    tensor = torch.from_numpy(values[places]).reshape(tuple(sent.size))
    return tensor.to(getattr(torch, sent.dtype)).requires_grad_(sent.requires_grad)


Quantization.extract = _read_8_bit


class Refused(Exception):
    """What somebody sent cannot be used; the text says why."""


_caller: contextvars.ContextVar[tuple[Gate, str] | None] = contextvars.ContextVar("caller", default=None)
"""Whose stream is being read, where somebody called."""


def check_tensor(sent: runtime_pb2.Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Whether a tensor has this shape and type and the bytes for it, before anything is made of it.

    Raises:
        Refused: it has not.
    """
    wanted = _TYPES.get(dtype, "")
    if sent.dtype != wanted:
        raise Refused(f"a tensor of type {sent.dtype[:20]!r}, not {wanted}")
    if list(sent.size) != list(shape):
        raise Refused(f"a tensor of shape {list(sent.size)[:8]}, not {list(shape)}")
    count, found = math.prod(shape), len(sent.buffer)
    if sent.compression == runtime_pb2.CompressionType.NONE:
        fits = found == count * torch.empty((), dtype=dtype).element_size()
    elif sent.compression == runtime_pb2.CompressionType.FLOAT16:
        fits = found == 2 * count
    elif sent.compression == runtime_pb2.CompressionType.UNIFORM_8BIT:
        colours = int.from_bytes(sent.buffer[:8], "little", signed=True)
        fits = 0 < colours <= _COLOURS and found == 8 + 4 * colours + count
    else:
        raise Refused(f"a compression that no peer uses: {sent.compression}")
    if not fits:
        raise Refused(f"{found} bytes for {count} values")


def read_tensor(parts: Sequence[runtime_pb2.Tensor], like: torch.Tensor) -> torch.Tensor:
    """A tensor that came in parts, with the shape and type of ``like``.

    Raises:
        Refused: it is another.
    """
    sent = combine_from_streaming(parts)
    check_tensor(sent, like.shape, like.dtype)
    return deserialize_torch_tensor(sent)


async def _receive_raw_data(reader: Any) -> bytes:
    """As hivemind's, with a bound on what the other side announces."""
    length = int.from_bytes(await reader.readexactly(P2P.HEADER_LEN), P2P.BYTEORDER)
    if length > LARGEST_MESSAGE:
        caller = _caller.get()
        if caller is not None:
            caller[0].report(caller[1], f"a message of {length:,} bytes was announced")
        raise Refused(f"a message of {length:,} bytes was announced; the most is {LARGEST_MESSAGE:,}")
    data: bytes = await reader.readexactly(length)
    return data


_parse = P2P.receive_protobuf


async def _receive_protobuf(kind: Any, reader: Any) -> Any:
    """As hivemind's; who sends what cannot be parsed is named."""
    try:
        return await _parse(kind, reader)
    except (DecodeError, TypeError) as error:
        caller = _caller.get()
        if caller is not None:
            caller[0].report(caller[1], "bytes that are no message")
        raise Refused("bytes that are no message") from error


P2P.receive_raw_data = staticmethod(_receive_raw_data)
P2P.receive_protobuf = staticmethod(_receive_protobuf)


def guard(p2p: P2P, gate: Gate) -> None:
    """Have every call that comes in through ``p2p`` asked for at the gate, before its handler is told of it."""
    add_stream, add_unary = p2p.add_binary_stream_handler, p2p._client.add_unary_handler
    streams: Counter[str] = Counter()

    async def add_guarded_stream(name: str, handler: Any, balanced: bool = False) -> None:
        async def guarded(info: Any, reader: Any, writer: Any) -> None:
            peer = info.peer_id.to_base58()
            if not gate.admits(peer) or streams[peer] >= MOST_STREAMS:
                if not gate.is_muted(peer):
                    many = streams[peer] >= MOST_STREAMS
                    gate.report(peer, "too many streams at a time" if many else "it has no pass", counts=many)
                writer.close()
                return
            streams[peer] += 1
            token = _caller.set((gate, peer))
            try:
                await handler(info, reader, writer)
            finally:
                _caller.reset(token)
                streams[peer] -= 1
                if not streams[peer]:
                    del streams[peer]

        await add_stream(name, guarded, balanced=balanced)

    async def add_guarded_unary(name: str, handler: Any, balanced: bool = False) -> None:
        async def guarded(request: bytes, remote: Any) -> bytes:
            peer = remote.to_base58()
            if not gate.admits(peer):
                if not gate.is_muted(peer):
                    gate.report(peer, "it has no pass", counts=False)
                raise Refused("not admitted")
            try:
                answer: bytes = await handler(request, remote)
            except (DecodeError, TypeError) as error:
                gate.report(peer, "bytes that are no message")
                raise Refused("bytes that are no message") from error
            return answer

        await add_unary(name, guarded, balanced=balanced)

    p2p.add_binary_stream_handler = add_guarded_stream
    p2p._client.add_unary_handler = add_guarded_unary
