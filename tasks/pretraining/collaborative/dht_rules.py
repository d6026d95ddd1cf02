"""What a member's node of the DHT takes from others: bounded, signed by its owner, of its kind, and not out of date.

hivemind checks a record's signature and schema. Who stores too much, too long or under keys without a schema is not
checked (1.1.12), nobody is named, and an old record that is sent again makes it forget the newer one early. What is
refused here is told to the gate with the caller's identity.
"""

from __future__ import annotations

import contextvars
import math
import time
from collections import Counter
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2P, P2PContext
from hivemind.proto import dht_pb2
from hivemind.utils import TimedStorage, get_dht_time

from tasks.pretraining.collaborative import wire
from tasks.pretraining.collaborative.event_loop import keep_tasks
from tasks.pretraining.collaborative.gate import Gate

KEY_BYTES = 20
LARGEST_SUBKEY = 1024
"""Bytes; a public key of 2,048 bits takes about 400."""
LARGEST_VALUE = 2**18 + 2**12
"""Bytes: the largest record of ``records.py`` in UTF-8, and its signature."""
LONGEST_SECONDS = 1e6 + 60.0
"""A record counts at most so long: the largest ``statistics_expiration_seconds``, and clocks that differ."""
OUT_OF_DATE_SECONDS = 30.0
"""A record that ended longer ago was not on its way: somebody sends it again."""
MOST_KEYS, MOST_SUBKEYS, MOST_BYTES = 20_000, 4_096, 2**28
"""What a node holds at a time."""
MOST_FOUND = 256
"""Keys in one question."""
RECORDS_A_MINUTE, BYTES_A_MINUTE = 6_000, 2**25
"""What one caller may store; a peer stores a few records of a few thousand bytes a second."""

_store = TimedStorage.store


def _store_if_newer(self: TimedStorage[Any, Any], key: Any, value: Any, expiration_time: float) -> bool:
    """As hivemind's, which on an older record keeps the newer one, but only until the older one would have ended."""
    held = self.data.get(key)
    return (held is None or held.expiration_time < expiration_time) and bool(_store(self, key, value, expiration_time))


TimedStorage.store = _store_if_newer

_NO_PASS = "a record of somebody without a pass"

_caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="")


class GuardedProtocol(DHTProtocol):
    """hivemind's protocol, with the rules above. ``gate`` is set before a node is made."""

    gate: Gate

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._minute = 0.0
        self._records: Counter[str] = Counter()
        self._stored: Counter[str] = Counter()
        self._held, self._counted = 0, -math.inf

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        """Under the name of hivemind's own class: it is the same protocol."""
        return str(DHTProtocol._get_handle_name(namespace, method_name))

    async def add_p2p_handlers(self, p2p: P2P, wrapper: Any = None, **options: Any) -> None:
        """As hivemind's, behind the gate."""
        keep_tasks()
        wire.guard(p2p, self.gate)
        await super().add_p2p_handlers(p2p, wrapper, **options)

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        """As hivemind's; a request with anything that breaks the rules is refused as a whole."""
        caller = context.remote_id.to_base58()
        problem = self._problem_with(request, caller)
        if problem is not None:
            self.gate.report(caller, problem)
            return dht_pb2.StoreResponse(store_ok=[False] * len(request.keys), peer=self.node_info)
        token = _caller.set(caller)
        try:
            return await super().rpc_store(request, context)
        finally:
            _caller.reset(token)

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        """As hivemind's, for a bounded number of keys."""
        if len(request.keys) > MOST_FOUND or any(len(key) != KEY_BYTES for key in request.keys):
            self.gate.report(context.remote_id.to_base58(), f"a question for {len(request.keys)} keys")
            return dht_pb2.FindResponse(results=[], peer=self.node_info)
        return await super().rpc_find(request, context)

    def _problem_with(self, request: dht_pb2.StoreRequest, caller: str) -> str | None:
        fields = (request.subkeys, request.values, request.expiration_time, request.in_cache)
        if any(len(field) != len(request.keys) for field in fields):
            return "a request to store whose parts have different lengths"
        if any(len(key) != KEY_BYTES for key in request.keys):
            return "a record under no key"
        now = get_dht_time()
        for key, subkey, value, ends in zip(
            request.keys, request.subkeys, request.values, request.expiration_time, strict=True
        ):
            entries = [(subkey, value, ends)]
            if subkey == self.IS_DICTIONARY:
                try:
                    found = self.serializer.loads(value)
                except Exception:
                    return "a dictionary that cannot be read"
                if not isinstance(found, DictionaryDHTValue) or len(found) > MOST_SUBKEYS:
                    return "a dictionary that is none, or too large"
                with found.freeze():
                    entries = [(self.serializer.dumps(name), *item) for name, item in found.items()]
            for name, content, end in entries:
                if problem := _problem_with_entry(name, content, end, now):
                    return problem
            if not self._has_room(key, len(value)):
                return "a record for which there is no room"
        self._held += request.ByteSize()
        return self._too_much(caller, len(request.keys), request.ByteSize())

    def _has_room(self, key: bytes, size: int) -> bool:
        """Whether one more value can be held; what is held is counted once a second."""
        if time.monotonic() - self._counted > 1.0:
            self._held, self._counted = sum(map(_size_of, (self.storage, self.cache))), time.monotonic()
        known = any(len(storage) < MOST_KEYS for storage in (self.storage,))
        return self._held + size <= MOST_BYTES and known

    def _too_much(self, caller: str, records: int, size: int) -> str | None:
        if time.monotonic() - self._minute > 60.0:
            self._minute = time.monotonic()
            self._records.clear()
            self._stored.clear()
        self._records[caller] += records
        self._stored[caller] += size
        if self._records[caller] > RECORDS_A_MINUTE or self._stored[caller] > BYTES_A_MINUTE:
            return f"{self._records[caller]:,} records with {self._stored[caller]:,} bytes within a minute"
        return None

    def _validate_record(self, key: bytes, subkey: bytes, value: bytes, expiration_time: float) -> bool:
        """As hivemind's; what a caller wanted to store is named, and an owner without a pass counts for nobody."""
        record = DHTRecord(key, subkey, value, expiration_time)
        try:
            valid = self.gate.admits_owner(subkey) and super()._validate_record(key, subkey, value, expiration_time)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            valid = False
        if not valid and (caller := _caller.get()):
            why = self._why_not(record)
            self.gate.report(caller, why, counts=why != _NO_PASS)  # who passes it on may know of a newer pass
        return bool(valid)

    def _why_not(self, record: DHTRecord) -> str:
        if not self.gate.admits_owner(record.subkey):
            return _NO_PASS
        for check in self.record_validator._validators if self.record_validator else ():
            if isinstance(check, RSASignatureValidator):
                try:
                    if not check.validate(record):
                        return "a record that its owner has not signed"
                except (ValueError, UnsupportedAlgorithm):
                    return "a record under a key that is none"
        return "a record that is unsigned or does not fit its schema"


def _problem_with_entry(subkey: bytes, value: Any, ends: Any, now: float) -> str | None:
    if not isinstance(value, bytes) or not isinstance(ends, int | float):
        return "a record that is none"
    if len(subkey) > LARGEST_SUBKEY or len(value) > LARGEST_VALUE:
        return f"a record of {len(subkey) + len(value):,} bytes"
    if not math.isfinite(ends) or ends > now + LONGEST_SECONDS:
        return "a record that never ends"
    if ends < now - OUT_OF_DATE_SECONDS:
        return f"a record that ended {now - ends:.0f} s ago, sent again"
    return None


def _size_of(storage: Any) -> int:
    """Bytes that a storage of the DHT holds, roughly."""
    total = 0
    with storage.freeze():
        for _, (value, _) in storage.items():
            values = [item.value for item in value.data.values()] if isinstance(value, DictionaryDHTValue) else [value]
            total += sum(len(one) + 512 for one in values)
    return total
