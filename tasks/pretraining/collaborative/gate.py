"""Who may call a member: who was refused too often is muted, and where passes are asked for, all others are strangers.

A member is several processes: its own, the DHT's, and one for each averager. Each of them answers calls, so each asks
the gate, which lies in memory that they share; what one refuses, it tells the member's own process, which counts.
libp2p has checked the caller's identity by then: it is the hash of the key that its connection is encrypted with.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import logging
import math
import multiprocessing
import re
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from hivemind.utils import get_dht_time

from tasks.pretraining.collaborative.identities import peer_id_of

logger = logging.getLogger(__name__)

REPEATS = 3
"""So many refusals within ``WITHIN_SECONDS`` mute a peer. One alone may be a training's own accident."""

WITHIN_SECONDS = 600.0

MUTED_SECONDS = 600.0
"""A muted peer is heard again after so long: it may have been repaired."""

MOST_MUTED = 1000
"""Peers that are muted at a time; those muted first are heard again where there are more."""

LOGGED = 5
"""Refusals of a peer that are logged one by one, and then each hundredth: a flood must not fill the disk."""

_OWNER = re.compile(rb"\[owner:(.+?)\]")

_SIZE = 2**18
_HEADER = 8


class Gate:
    """Shared by the processes of a member; made before they are started. It is open until :meth:`ask_for_passes`."""

    def __init__(self) -> None:
        self._bytes = memoryview(multiprocessing.RawArray(ctypes.c_ubyte, _SIZE)).cast("B")
        self._read: tuple[bytes, dict[str, Any]] = (b"", {})
        self._hearing, self._telling = multiprocessing.Pipe(duplex=False)
        self._passes: dict[str, float] | None = None
        self._coordinator, self._always = "", dict[str, float]()
        self._muted: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = {}
        self._logged: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.refused: Counter[str] = Counter()
        """Refusals by the peer's identity; in the member's own process."""
        self.reasons: dict[str, str] = {}
        """Why a peer was last refused."""
        self._publish()
        self._found()
        threading.Thread(target=self._hear, name="gate", daemon=True).start()

    def ask_for_passes(self, coordinator: str, peers: Iterable[str]) -> None:
        """From now on admit only these peers, and those that :meth:`admit` is told of.

        Args:
            coordinator: digest of the key of the coordinator's records.
            peers: identities that need no pass: the coordinator's.
        """
        with self._lock:
            self._coordinator, self._always = coordinator, dict.fromkeys(peers, math.inf)
            self._passes = self._passes or {}
            self._publish()

    def admit(self, passes: Mapping[str, float]) -> None:
        """Admit these identities alone, each until a moment of the DHT's time."""
        with self._lock:
            if self._passes != dict(passes):
                self._passes = dict(passes)
                self._publish()

    def admits(self, peer: str) -> bool:
        """Whether this peer may call, and be called; in any process."""
        found = self._found()
        muted, passes = found["muted"], found["passes"]
        now = get_dht_time()
        return muted.get(peer, 0.0) <= now and (passes is None or passes.get(peer, 0.0) > now)

    def admits_owner(self, subkey: bytes) -> bool:
        """Whether the owner of a record may write: the coordinator, or an admitted key. Records without one are free.

        Args:
            subkey: of the record; names its owner's key, if it has one.
        """
        found = self._found()
        passes, owners = found["passes"], _OWNER.findall(subkey)
        if passes is None or not owners:
            return True
        key = owners[0]
        if hashlib.sha256(b"[owner:" + key + b"]").hexdigest()[:16] == found["coordinator"]:
            return True
        try:
            return float(passes.get(peer_id_of(key), 0.0)) > get_dht_time()
        except (ValueError, UnsupportedAlgorithm):
            return False

    def is_muted(self, peer: str) -> bool:
        """Whether this peer was refused too often; in any process."""
        return self._found()["muted"].get(peer, 0.0) > get_dht_time()

    def report(self, peer: str, what: str, *, counts: bool = True) -> None:
        """Take note that something of a peer was refused; in any process, and never waits.

        Args:
            peer: libp2p's identity.
            what: was refused, or why.
            counts: towards muting it. Who has no pass may have one that this member has not heard of yet.
        """
        self._logged[peer] += 1
        count = self._logged[peer]
        if len(self._logged) > MOST_MUTED:
            self._logged.clear()
        if count <= LOGGED or count % 100 == 0:
            logger.warning("refused, from %s: %s", peer, what)
        text = json.dumps([peer[:100], what[:300], counts]).encode()  # below 4,096 bytes, so that writers do not mix
        if select.select([], [self._telling], [], 0)[1]:
            self._telling.send_bytes(text)

    @property
    def muted(self) -> list[str]:
        """Peers that are muted now, in the member's own process."""
        return [peer for peer, until in list(self._muted.items()) if until > get_dht_time()]

    def _hear(self) -> None:
        while True:
            try:
                peer, what, counts = json.loads(self._hearing.recv_bytes(4096))
            except (EOFError, OSError):
                return
            self._count(peer, what, counts)

    def _count(self, peer: str, what: str, counts: bool) -> None:
        now = time.monotonic()
        with self._lock:
            if len(self.refused) > MOST_MUTED and peer not in self.refused:
                self.refused, self.reasons = Counter(), {}
            self.refused[peer] += 1
            self.reasons[peer] = what
            if not counts:
                return
            recent = self._recent.setdefault(peer, deque(maxlen=REPEATS))
            recent.append(now)
            for other in [one for one, times in self._recent.items() if now - times[-1] > WITHIN_SECONDS]:
                del self._recent[other]
            if len(recent) == REPEATS and now - recent[0] <= WITHIN_SECONDS and not self._is_muted_here(peer):
                while len(self._muted) >= MOST_MUTED:
                    del self._muted[next(iter(self._muted))]
                self._muted[peer] = get_dht_time() + MUTED_SECONDS
                logger.warning("muted for %.0f s after %d refusals: %s (%s)", MUTED_SECONDS, REPEATS, peer, what)
                self._publish()

    def _is_muted_here(self, peer: str) -> bool:
        return self._muted.get(peer, 0.0) > get_dht_time()

    def _publish(self) -> None:
        passes = None if self._passes is None else self._passes | self._always
        shown = {"muted": self._muted, "passes": passes, "coordinator": self._coordinator}
        text = json.dumps(shown).encode()
        if len(text) + _HEADER > _SIZE:
            raise ValueError(f"{len(self._passes or ())} passes are too many for one swarm")
        # a reader that meets a half-written text cannot parse it, and keeps to what it read before
        self._bytes[:_HEADER] = (0).to_bytes(_HEADER, "little")
        self._bytes[_HEADER : _HEADER + len(text)] = text
        self._bytes[:_HEADER] = len(text).to_bytes(_HEADER, "little")

    def _found(self) -> dict[str, Any]:
        size = int.from_bytes(self._bytes[:_HEADER], "little")
        text = bytes(self._bytes[_HEADER : _HEADER + size])
        if size and text != self._read[0]:
            with contextlib.suppress(ValueError):
                self._read = (text, json.loads(text))
        return self._read[1]
