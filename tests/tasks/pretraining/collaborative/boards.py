"""Records, and a DHT that only holds what it is given."""

from __future__ import annotations

import json
from typing import Any

from hivemind.utils import ValueWithExpiration, get_dht_time
from hivemind.utils.crypto import RSAPrivateKey

from tasks.pretraining.collaborative.gate import Gate
from tasks.pretraining.collaborative.records import Blackboard

RUN = "sahajflow-0123456789abcdef"


STEP = {
    "step": 1,
    "samples": 32,
    "mlm": 10.5,
    "masked": 4,
    "order": None,
    "outcome": "averaged",
    "group": 2,
    "aggregated": 0.5,
    "matching": 0.5,
    "reducing": 0.25,
    "computing": 2.0,
}


PEER: dict[str, Any] = {
    "name": "peer-0",
    "role": "client",
    "peer_id": "QmXYZ",
    "state": "training",
    "step": 3,
    "rate": 12.5,
    "computed": 64,
    "others": 1,
    "bandwidth": 20.0,
    "sketches": [{"step": 3, "sketch": "AAAA"}],
    "discarded": 0,
    "taken": {"passed": 1, "shards": "ff"},
    "steps": [STEP],
    "weights": "",
    "proof": [3.5, 2.5],
}


PROGRESS = {
    "peer_id": b"peer",
    "epoch": 3,
    "samples_accumulated": 16,
    "samples_per_second": 2.5,
    "time": 1e9,
    "client_mode": False,
}


class Future:
    def __init__(self, value: Any):
        self._value = value

    def result(self, timeout: float) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class HeldDHT:
    """Gives what it holds."""

    gate = Gate()

    def __init__(self, entries: Any):
        soon = get_dht_time() + 60
        if isinstance(entries, dict):
            inner = {subkey: ValueWithExpiration(value, soon) for subkey, value in entries.items()}
            self._found: Any = ValueWithExpiration(inner, soon)
        else:
            self._found = entries

    def get(self, key: str, *, latest: bool, return_future: bool) -> Future:
        assert latest
        assert return_future
        return Future(self._found)


def board(entries: Any, key: RSAPrivateKey) -> Blackboard:
    return Blackboard(HeldDHT(entries), RUN, key)


def peer(**changes: Any) -> str:
    return json.dumps(PEER | changes)


def step(**changes: Any) -> str:
    return peer(steps=[STEP | changes])
