"""What a hostile peer does; loaded by a member of ``member_driver.py``, whose object is ``self``."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
from hivemind.dht import DHT
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2P, PeerID, ServicerBase
from hivemind.proto import averaging_pb2, dht_pb2, runtime_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time

from tasks.pretraining.collaborative import gate, screening
from tasks.pretraining.collaborative.averaging import PeerGradientAverager, PeerStateAverager

ROWS = 64


class Code:
    """What unpickling would run."""

    def __init__(self, marker: str):
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.system, (f"touch {self.marker}",)


def learn_from_a_teacher(driver: Any, pause: float = 0.0) -> None:
    """Micro-batches of a task that can be learned, so that a validation loss says something."""
    teacher = driver.build(seed=100)

    def put_gradient(model: Any, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        inputs = torch.randn(ROWS, 6, generator=generator)
        model.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), teacher(inputs).detach()).backward()

    driver.put_gradient = put_gradient


def validation_loss(driver: Any, weights: list[torch.Tensor], settings: Any) -> float:
    """On inputs that nobody trains on."""
    model, teacher = driver.build(), driver.build(seed=100)
    groups = driver.build_optimizer(model, settings).param_groups
    with torch.no_grad():
        for weight, value in zip((one for group in groups for one in group["params"]), weights, strict=True):
            weight.copy_(value)
        inputs = torch.randn(4096, 6, generator=torch.Generator().manual_seed(10**6))
        return float(torch.nn.functional.mse_loss(model(inputs), teacher(inputs)))


def believe_everything() -> None:
    """A hostile peer has no screen and mutes nobody."""
    screening.Screen.weigh = lambda self, part, own, reference, share: 1.0
    screening.check_tensor = lambda *arguments: None
    gate.Gate.report = lambda self, peer, what, **options: None


def send_no_gradients() -> None:
    """Have the averagers that this process will make send values that are not finite in the first round with others,
    in the second what is 1,000,000 times too large, and wrong shapes from then on."""
    believe_everything()
    load = PeerGradientAverager.load_accumulators_into_averager_
    generate = screening.ScreenedRunner._generate_input_for_peer
    aggregate = PeerGradientAverager._aggregate_with_group
    step = multiprocessing.Value("i", 0)  # of those in which there was a group

    async def count(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return await aggregate(self, *arguments, **options)
        finally:
            step.value += 1

    def spoil(self: Any) -> None:
        load(self)
        with self.get_tensors() as tensors:
            for tensor in tensors:
                tensor.normal_(std=1e6 if step.value == 1 else 0.01)
                if not step.value:
                    tensor.fill_(float("nan"))

    async def longer(self: Any, index: int) -> Any:
        async for message in generate(self, index):
            if step.value >= 2:
                message.tensor_part.size[0] += 1
                message.tensor_part.buffer += b"\0" * 2
            yield message

    PeerGradientAverager._aggregate_with_group = count
    PeerGradientAverager.load_accumulators_into_averager_ = spoil
    screening.ScreenedRunner._generate_input_for_peer = longer


def _in_swarm(self: Any, work: Any, **options: Any) -> Any:
    """Run a coroutine with this member's libp2p."""
    daemon = self.dht.run_coroutine(DHT._get_p2p_daemon_listen_maddr, return_future=True).result(10)

    async def run() -> Any:
        p2p = await P2P.replicate(daemon)
        try:
            return await work(p2p)
        finally:
            await p2p.shutdown()

    return asyncio.run(run())


def _key(name: str, run_id: str) -> bytes:
    return bytes(DHTID.generate(source=f"{run_id}_{name}").to_bytes())


def store(self: Any, victim: str, run_id: str, marker: str) -> dict[str, list[bool]]:
    """Records that are unsigned, forged, out of date, too large, endless, pickled; what the victim took of each."""
    subkey = MSGPackSerializer.dumps(RSASignatureValidator(self.key).local_public_key)
    soon, now = get_dht_time() + 60, get_dht_time()
    code = pickle.dumps(Code(marker))

    def request(value: bytes, key: bytes = _key("contributions", run_id), name: bytes = subkey, ends: float = soon):
        return dht_pb2.StoreRequest(
            keys=[key], subkeys=[name], values=[value], expiration_time=[ends], in_cache=[False]
        )

    def signed(value: bytes, key: bytes, ends: float) -> bytes:
        return bytes(RSASignatureValidator(self.key).sign_value(DHTRecord(key, subkey, value, ends)))

    text, contributions = MSGPackSerializer.dumps("text"), _key("contributions", run_id)
    unknown = bytes(DHTID.generate(source="anything").to_bytes())
    requests = {
        "unsigned": request(text),
        "no owner": request(text, name=MSGPackSerializer.dumps(b"nobody")),
        "forged": request(text + b"[signature:AAAA]"),
        "no key": request(text, name=MSGPackSerializer.dumps(b"[owner:ssh-rsa AAAA]")),
        "replayed": request(signed(text, contributions, now - 100), ends=now - 100),
        "pickled": request(signed(code, contributions, soon)),
        "pickled, no schema": request(code, key=unknown, name=MSGPackSerializer.dumps(None)),
        "large": request(b"\0" * 2**20, key=unknown, name=MSGPackSerializer.dumps(None)),
        "endless": request(text, key=unknown, name=MSGPackSerializer.dumps(None), ends=1e300),
        "true": request(signed(text, contributions, soon)),
    }

    async def work(p2p: P2P) -> dict[str, list[bool]]:
        stub = ServicerBase.get_stub.__func__(DHTProtocol, p2p, PeerID.from_base58(victim))
        taken = {}
        for name, one in requests.items():
            try:
                taken[name] = list((await stub.rpc_store(one, timeout=20)).store_ok)
            except Exception as error:
                taken[name] = [repr(error)]
        return taken

    return _in_swarm(self, work)


def replay(self: Any, victim: str, run_id: str) -> dict[str, Any]:
    """An honest peer's newest record, kept and sent again after a newer one was there."""

    async def work(p2p: P2P) -> dict[str, Any]:
        stub = ServicerBase.get_stub.__func__(DHTProtocol, p2p, PeerID.from_base58(victim))

        async def held() -> Any:
            question = dht_pb2.FindRequest(keys=[_key("progress", run_id)])
            question.peer.node_id = DHTID.generate(source="mine").to_bytes()
            (found,) = (await stub.rpc_find(question, timeout=20)).results
            return MSGPackSerializer.loads(found.value) if found.value else None

        def entries(found: Any) -> dict[bytes, Any]:
            with found.freeze():
                return dict(found.items())

        deadline = time.monotonic() + 40
        others: list[bytes] = []
        while not others:
            assert time.monotonic() < deadline, "no other peer told its progress"
            await asyncio.sleep(0.2)
            old = entries(found) if (found := await held()) else {}
            others = [name for name, item in old.items() if victim.encode() not in item.value]
        name = others[0]
        while time.monotonic() < deadline:
            new = entries(await held())
            if name in new and new[name].expiration_time > old[name].expiration_time:
                break
            await asyncio.sleep(0.2)
        request = dht_pb2.StoreRequest(
            keys=[_key("progress", run_id)],
            subkeys=[MSGPackSerializer.dumps(name)],
            values=[old[name].value],
            expiration_time=[old[name].expiration_time],
            in_cache=[False],
        )
        stored = list((await stub.rpc_store(request, timeout=20)).store_ok)
        after = entries(await held())
        return {"stored": stored, "newer": after[name].expiration_time > old[name].expiration_time}

    return _in_swarm(self, work)


def announce(self: Any, victim: str, run_id: str) -> list[int]:
    """A gigabyte announced to each kind of handler, and up to 64 MB of it sent; bytes that were sent."""
    length = 2**30
    chunk = os.urandom(2**20)

    async def one(p2p: P2P, name: str, header: bytes) -> int:
        _, _reader, writer = await p2p.call_binary_stream_handler(PeerID.from_base58(victim), name)
        writer.write(header)
        sent = 0
        try:
            for _ in range(64):
                writer.write(chunk)
                await asyncio.wait_for(writer.drain(), 5)
                sent += len(chunk)
        except (OSError, TimeoutError):
            pass
        finally:
            writer.close()
        return sent

    async def work(p2p: P2P) -> list[int]:
        message = P2P.MESSAGE_MARKER + length.to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER)
        names = [
            PeerGradientAverager._get_handle_name(f"{run_id}_grad_averager", "rpc_aggregate_part"),
            PeerStateAverager._get_handle_name(f"{run_id}_state_averager", "rpc_download_state"),
        ]
        sent = [await one(p2p, name, message) for name in names]
        varint = bytes([0x80, 0x80, 0x80, 0x80, 0x04])
        return [*sent, await one(p2p, "DHTProtocol.rpc_store", varint)]

    return _in_swarm(self, work)


def garble(self: Any, victim: str, run_id: str, address: str, marker: str) -> int:
    """Bytes that mean nothing, to every handler and to the port itself; how many connections the port took."""
    code = pickle.dumps(Code(marker))
    rubbish = [code, os.urandom(4096), b"", b"\xff" * 4096]

    async def work(p2p: P2P) -> None:
        peer = PeerID.from_base58(victim)
        for method in ("rpc_aggregate_part", "rpc_join_group", "rpc_download_state"):
            for cls, name in ((PeerGradientAverager, "grad_averager"), (PeerStateAverager, "state_averager")):
                for data in rubbish:
                    handler = cls._get_handle_name(f"{run_id}_{name}", method)
                    _, _, writer = await p2p.call_binary_stream_handler(peer, handler)
                    length = len(data).to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER)
                    writer.write(P2P.MESSAGE_MARKER + length + data)
                    writer.close()
        for method in ("rpc_store", "rpc_find", "rpc_ping"):
            for data in rubbish:
                with contextlib.suppress(Exception):
                    await p2p._client.call_unary_handler(peer, f"DHTProtocol.{method}", data)
        tensor = runtime_pb2.Tensor(dtype="U1000000", size=[1000], buffer=code * 40)
        stub = PeerGradientAverager.get_stub(p2p, peer, namespace=f"{run_id}_grad_averager")

        async def parts() -> Any:
            yield averaging_pb2.AveragingData(
                code=averaging_pb2.PART_FOR_AVERAGING, group_id=b"mine", tensor_part=tensor, weight=1e30
            )

        with contextlib.suppress(Exception):
            async for _ in await stub.rpc_aggregate_part(parts()):
                pass

    _in_swarm(self, work)
    taken = 0
    _, _, host, _, port, *_ = address.split("/")
    for data in (*rubbish, b"GET / HTTP/1.0\r\n\r\n", os.urandom(2**20)):
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            taken += 1
            with contextlib.suppress(OSError):  # libp2p closes at the first bytes that mean nothing
                connection.sendall(data)
    return taken


def driver() -> Any:
    """The module that runs this member."""
    return sys.modules["__main__"]


def marker_exists(path: str) -> bool:
    """Whether what was pickled was run."""
    return Path(path).exists()
