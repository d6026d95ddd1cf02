"""A member's node of the DHT, started so that it survives its own helpers.

Traps of hivemind 1.1.12 that are closed here: the DHT's process gets its orders through a pipe, and with each the
means to answer, which it fetches from the process that asked. If that one has ended meanwhile (an averager that was
just shut down) the DHT sleeps for seconds, or dies without a word and everything waits for it for ever. And orders
that several threads or processes write at the same time get mixed up, with the same end. To fetch them costs more of
the processor than most answers do: the process that has started the DHT gets its answers through a pipe instead.
Whoever calls the node has to pass its gate.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import hivemind
import hivemind.dht.node
from hivemind.dht.node import DHTNode
from hivemind.p2p import PeerID
from hivemind.utils.multiaddr import Multiaddr

from tasks.contract import StageError
from tasks.pretraining.collaborative.dht_rules import GuardedProtocol
from tasks.pretraining.collaborative.gate import Gate

START_SECONDS = 60.0
"""libp2p's daemon may take so long to start; hivemind's default of 15 s is too short on a busy machine."""


class _Orders:
    """The reading end of a DHT's pipe, from which orders of processes that have ended come as nothing to do."""

    def __init__(self, pipe: Connection):
        self._pipe = pipe

    def fileno(self) -> int:
        return self._pipe.fileno()

    def poll(self) -> bool:
        return self._pipe.poll()

    def close(self) -> None:
        self._pipe.close()

    def recv(self) -> tuple[str, list[Any], dict[str, Any]]:
        try:
            order = self._pipe.recv_bytes()
        except EOFError:
            return "_shutdown", [], {}  # nobody can give orders any more
        try:
            loaded: tuple[str, list[Any], dict[str, Any]] = ForkingPickler.loads(order)
        except (EOFError, OSError):
            return "_do_nothing", [], {}
        return loaded


class _OneAtATime:
    """The writing end of a DHT's pipe, which all threads and averagers of a member share.

    Two that write at a time would mix their orders, since only up to 4,096 bytes are written at once.
    """

    def __init__(self, pipe: Connection):
        self._pipe, self._lock = pipe, multiprocessing.Lock()

    def close(self) -> None:
        self._pipe.close()

    def send(self, order: Any) -> None:
        with self._lock:
            self._pipe.send(order)


class _Awaited(Future[Any]):
    """An answer that is waited for; in the DHT's process it is the way back."""

    def __init__(self, number: int):
        super().__init__()
        self._number = number

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()

    def __reduce__(self) -> tuple[type[_WayBack], tuple[int]]:
        return _WayBack, (self._number,)


class _WayBack:
    """Sends an answer to the process that waits for it."""

    pipe: Connection
    """The writing end; set in the DHT's process."""

    def __init__(self, number: int):
        self._number = number

    def done(self) -> bool:
        return False

    def set_result(self, result: Any) -> None:
        self.pipe.send((self._number, result, None))

    def set_exception(self, error: BaseException) -> None:
        self.pipe.send((self._number, None, f"{type(error).__name__}: {error}"))


class Node(hivemind.DHT):
    """hivemind's DHT with the pipes' ends above."""

    _outer_pipe: Any

    _inner_pipe: Any

    _has_ended = False

    gate: Gate
    """Of all processes of this member."""

    def run_in_background(self, await_ready: bool = True, timeout: float | None = None) -> None:
        """Starts the process; called by the constructor."""
        self.gate = Gate()
        pipe: Any = self._inner_pipe
        self._inner_pipe = _Orders(pipe)
        self._outer_pipe = _OneAtATime(self._outer_pipe)
        self._answers, self._way_back = multiprocessing.Pipe(duplex=False)
        self._asker, self._numbers = os.getpid(), itertools.count()
        self._awaited: dict[int, _Awaited] = {}
        super().run_in_background(await_ready=False)
        self._way_back.close()
        threading.Thread(target=self._hear, name="answers", daemon=True).start()
        if await_ready:
            self.wait_until_ready(timeout)

    def run(self) -> None:
        """What the process does."""
        GuardedProtocol.gate = self.gate
        hivemind.dht.node.DHTProtocol = GuardedProtocol
        _WayBack.pipe = self._way_back
        super().run()

    def _hear(self) -> None:
        """Hand out answers until the DHT's process has ended."""
        while True:
            try:
                number, result, problem = self._answers.recv()
            except (EOFError, OSError):
                break
            awaited = self._awaited.pop(number, None)
            if awaited is None or not awaited.set_running_or_notify_cancel():
                continue
            if problem is None:
                awaited.set_result(result)
            else:
                awaited.set_exception(RuntimeError(problem))
        self._has_ended = True
        for number in list(self._awaited):
            awaited = self._awaited.pop(number)
            if awaited.set_running_or_notify_cancel():
                awaited.set_exception(ConnectionError("the DHT has ended"))

    def _ask(self, method: str, wait: bool, **values: Any) -> Any:
        awaited = _Awaited(next(self._numbers))
        self._awaited[awaited._number] = awaited
        if self._has_ended:
            raise ConnectionError("the DHT has ended")
        self._outer_pipe.send((method, [], {**values, "future": awaited}))
        return awaited.result() if wait else awaited

    def get(self, key: Any, latest: bool = False, return_future: bool = False, **options: Any) -> Any:
        """As hivemind's."""
        if os.getpid() != self._asker:
            return super().get(key, latest, return_future, **options)
        return self._ask("_get", not return_future, key=key, latest=latest, **options)

    def store(
        self,
        key: Any,
        value: Any,
        expiration_time: float,
        subkey: Any = None,
        return_future: bool = False,
        **options: Any,
    ) -> Any:
        """As hivemind's."""
        if os.getpid() != self._asker:
            return super().store(key, value, expiration_time, subkey, return_future, **options)
        values = {"key": key, "value": value, "expiration_time": expiration_time, "subkey": subkey}
        return self._ask("_store", not return_future, **values, **options)

    async def _do_nothing(self) -> None:
        """What an order comes to that cannot be answered."""


def start_dht(
    listen: Sequence[str],
    initial_peers: Sequence[str] = (),
    identity: Path | None = None,
    announce: Sequence[str] = (),
    **options: Any,
) -> Node:
    """A running DHT node.

    Args:
        listen: multiaddresses to listen at.
        initial_peers: members to ask first; none for the first member.
        identity: file with libp2p's key, made if there is none: the address stays over restarts.
        announce: multiaddresses to tell others instead of those of ``listen``.
        options: further keyword arguments of ``hivemind.DHT``.

    Raises:
        StageError: it did not start; the first line of the reason is told.
    """
    # On loopback there is no router to talk to and nobody to be found by.
    helpers = {} if outside(listen) else {"nat_port_map": False, "auto_nat": False, "use_relay": False}
    try:
        return Node(
            initial_peers=list(initial_peers),
            start=True,
            host_maddrs=list(listen),
            announce_maddrs=list(announce) or None,
            identity_path=None if identity is None else str(identity),
            check_if_identity_free=False,  # nobody else has the key, and to ask takes seconds
            startup_timeout=START_SECONDS,
            **helpers,
            **options,
        )
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line), type(error).__name__)
        where = f"joining {', '.join(initial_peers)}" if initial_peers else f"listening at {', '.join(listen)}"
        raise StageError(f"collaborative: {where}: {reason}") from error


def dial(dht: hivemind.DHT, addresses: Sequence[str], seconds: float) -> bool:
    """Connect to members at these addresses again; returns whether one of them answered in time.

    hivemind does so at its start only. A member that was restarted knows nobody, the others have struck it off, and
    each side goes on in a DHT of its own.
    """
    call = partial(_dial, addresses=tuple(addresses), seconds=seconds)
    try:
        return bool(dht.run_coroutine(call, return_future=True).result(2 * seconds))
    except Exception:
        return False  # the DHT is busy, or has ended; who asked tries again


async def _dial(dht: hivemind.DHT, node: DHTNode, addresses: Sequence[str], seconds: float) -> bool:
    """Runs in the DHT's process."""
    answers = await asyncio.gather(*(_call(node, Multiaddr(address), seconds) for address in addresses))
    return any(answers)


async def _call(node: DHTNode, address: Multiaddr, seconds: float) -> bool:
    peer = PeerID.from_base58(address["p2p"])
    where = address.decapsulate(Multiaddr(f"/p2p/{address['p2p']}"))
    try:
        await asyncio.wait_for(node.p2p._client.connect(peer, [where]), seconds)
        answered = await asyncio.wait_for(node.protocol.call_ping(peer), seconds)
    except Exception:
        return False
    if answered is None:
        return False
    node.blacklist.register_success(peer)  # else searches leave it out, for twice as long after every failure
    return True


def outside(addresses: Sequence[str]) -> bool:
    """Whether any of the multiaddresses is not of this machine alone."""
    return any(not address.startswith(("/ip4/127.", "/ip6/::1/")) for address in addresses)


def listen_like(addresses: Sequence[str]) -> tuple[str, ...]:
    """Where a peer listens that joins at these addresses: at loopback if they are all of this machine."""
    return ("/ip4/0.0.0.0/tcp/0",) if outside(addresses) else ("/ip4/127.0.0.1/tcp/0",)
