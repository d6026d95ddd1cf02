"""Whatever comes in through a member's ports: it is refused or fits, and nothing else happens.

The handlers are called directly here; bytes to the ports of real processes: ``test_hostile.py``.
"""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from google.protobuf.message import DecodeError
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID, RoutingTable
from hivemind.dht.storage import DHTLocalStorage
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2, runtime_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.pretraining.collaborative import dht_rules, records
from tasks.pretraining.collaborative.dht_rules import GuardedProtocol
from tasks.pretraining.collaborative.door import problem_with_word
from tasks.pretraining.collaborative.gate import Gate
from tasks.pretraining.collaborative.wire import Refused, check_tensor, read_tensor

RUN = "sahajflow-0123456789abcdef"
CALLER = SimpleNamespace(remote_id=PeerID.from_base58("QmVNx5YuxwN7oETEp6SYqAJY1GSuNxqHVYwgBfnQW9T2iY"))
KEYS = [DHTID.generate(source=f"{RUN}_{name}").to_bytes() for name in ("contributions", "swarm", "passes", "progress")]


def protocol(key: Any) -> GuardedProtocol:
    """A node's protocol without a network."""
    made = GuardedProtocol(_initialized_with_create=True)
    made.node_id = DHTID.generate(source="node")
    made.storage, made.cache = DHTLocalStorage(), DHTLocalStorage(maxsize=100)
    made.routing_table = RoutingTable(made.node_id, 20, 5)
    made.record_validator = CompositeValidator(records.validators(RUN, key))
    made.node_info, made.bucket_size, made.gate = dht_pb2.NodeInfo(), 20, Gate()
    return made


@pytest.fixture(scope="module")
def node(key) -> GuardedProtocol:
    return protocol(key)


def stored(node: GuardedProtocol, request: dht_pb2.StoreRequest) -> list[bool]:
    return list(asyncio.run(node.rpc_store(request, CALLER)).store_ok)


packed = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=20) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
).map(MSGPackSerializer.dumps)
owned = st.sampled_from([b"[owner:ssh-rsa AAAA]", b"[owner:]", b"[owner:a][owner:b]", b"nobody", None, 5]).map(
    MSGPackSerializer.dumps
)
ends = st.floats(-1e6, 1e6).map(lambda seconds: get_dht_time() + seconds) | st.floats()
requests = st.builds(
    lambda keys, subkeys, values, ends, cached: dht_pb2.StoreRequest(
        keys=keys, subkeys=subkeys, values=values, expiration_time=ends, in_cache=cached
    ),
    st.lists(st.sampled_from(KEYS) | st.binary(min_size=20, max_size=20) | st.binary(max_size=30), max_size=3),
    st.lists(owned | st.binary(max_size=40) | st.just(DHTProtocol.IS_DICTIONARY), max_size=3),
    st.lists(packed | st.binary(max_size=60), max_size=3),
    st.lists(ends, max_size=3),
    st.lists(st.booleans(), max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(request=requests)
def test_what_is_stored_has_been_checked(node, request):
    """Under the run's own keys nothing is stored that its owner has not signed, and nobody here can sign."""
    try:
        stored(node, request)
    except (TypeError, ValueError, AssertionError):
        return  # what hivemind's handler raises is answered with an error; nothing is stored
    for key in KEYS:
        assert DHTID.from_bytes(key) not in node.storage
        assert DHTID.from_bytes(key) not in node.cache
    for _, (value, until) in node.storage.items():
        assert math.isfinite(until)
        assert until < get_dht_time() + dht_rules.LONGEST_SECONDS
        assert len(value) <= dht_rules.LARGEST_VALUE


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200))
def test_bytes_that_are_no_request(node, data):
    for kind in (dht_pb2.StoreRequest, dht_pb2.FindRequest):
        try:
            request = kind.FromString(data)
        except DecodeError:
            continue
        request.ClearField("peer")
        try:
            asyncio.run((node.rpc_store if kind is dht_pb2.StoreRequest else node.rpc_find)(request, CALLER))
        except (TypeError, ValueError, AssertionError):
            continue


def entry(key: bytes = b"k" * 20, value: bytes = b"v", seconds: float = 60.0) -> dht_pb2.StoreRequest:
    return dht_pb2.StoreRequest(
        keys=[key],
        subkeys=[MSGPackSerializer.dumps(None)],
        values=[value],
        expiration_time=[get_dht_time() + seconds],
        in_cache=[False],
    )


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (entry(value=b"v" * (dht_rules.LARGEST_VALUE + 1)), "a record of"),
        (entry(seconds=2 * dht_rules.LONGEST_SECONDS), "never ends"),
        (entry(seconds=math.inf), "never ends"),
        (entry(seconds=math.nan), "never ends"),
        (entry(seconds=-100), "sent again"),
        (entry(key=b"short"), "no key"),
        (dht_pb2.StoreRequest(keys=[b"k" * 20]), "different lengths"),
    ],
)
def test_records_that_no_member_writes(key, request_, why):
    fresh = protocol(key)
    assert stored(fresh, request_) == [False]
    assert not fresh.storage
    reasons = fresh.gate.reasons
    for _ in range(500):
        if reasons := fresh.gate.reasons:
            break
        asyncio.run(asyncio.sleep(0.01))
    assert why in reasons[CALLER.remote_id.to_base58()]


def test_one_caller_does_not_fill_the_storage(key, monkeypatch):
    fresh = protocol(key)
    monkeypatch.setattr(dht_rules, "RECORDS_A_MINUTE", 50)
    taken = [stored(fresh, entry(key=number.to_bytes(20, "big"))) for number in range(60)]
    assert taken == [[True]] * 50 + [[False]] * 10


def test_all_callers_together_do_not_fill_it(key, monkeypatch):
    fresh = protocol(key)
    monkeypatch.setattr(dht_rules, "MOST_BYTES", 100_000)
    taken = [stored(fresh, entry(key=number.to_bytes(20, "big"), value=b"v" * 10_000)) for number in range(20)]
    assert sum(map(sum, taken)) < 10
    monkeypatch.setattr(dht_rules, "MOST_KEYS", 0)
    assert stored(protocol(key), entry()) == [False]


def test_an_old_record_that_comes_again_does_not_shorten_the_newer_ones_life(key):
    fresh, name = protocol(key), b"k" * 20
    assert stored(fresh, entry(name, b"new", 60.0)) == [True]
    assert stored(fresh, entry(name, b"old", 0.2)) == [False]
    asyncio.run(asyncio.sleep(0.3))
    assert fresh.storage.get(DHTID.from_bytes(name)).value == b"new"


def test_a_true_record_is_stored(key):
    fresh = protocol(key)
    board = records.Blackboard(SimpleNamespace(gate=fresh.gate), RUN, key)
    subkey, value = MSGPackSerializer.dumps(board.subkey), MSGPackSerializer.dumps("text")
    soon = get_dht_time() + 60
    signed = fresh.record_validator.sign_value(DHTRecord(KEYS[0], subkey, value, soon))
    request = dht_pb2.StoreRequest(
        keys=[KEYS[0]], subkeys=[subkey], values=[signed], expiration_time=[soon], in_cache=[False]
    )
    assert stored(fresh, request) == [True]
    fresh.gate.ask_for_passes("0" * 16, [])  # of which this key has none
    assert stored(fresh, request) == [False]


types = st.sampled_from(["float32", "float64", "int64", "float16", "bfloat16", "object", "U1000000", "load"])
tensors = st.builds(
    lambda dtype, size, buffer, compression, grad: runtime_pb2.Tensor(
        dtype=dtype, size=size, buffer=buffer, compression=compression, requires_grad=grad
    ),
    types | st.text(max_size=10),
    st.sampled_from([[3], [3, 1], [2**32 - 1], []]) | st.lists(st.integers(0, 2**32 - 1), max_size=3),
    st.sampled_from([b"\0" * 12, b"\xff" * 12, b"\0" * 6, b"\x01" + b"\0" * 14]) | st.binary(max_size=40),
    st.sampled_from(runtime_pb2.CompressionType.values()),
    st.booleans(),
)


@settings(max_examples=500, deadline=None)
@given(sent=tensors)
def test_a_tensor_is_what_was_asked_for_or_is_refused(sent):
    like = torch.zeros(3)
    try:
        check_tensor(sent, like.shape, like.dtype)
    except Refused:
        return
    try:
        found = read_tensor([sent], like)
    except (IndexError, ValueError):
        return  # 8-bit places beyond the values that came along
    assert found.shape == like.shape
    assert found.dtype == like.dtype


@settings(max_examples=500, deadline=None)
@given(word=packed | st.binary(max_size=300))
def test_words_about_oneself_can_be_used_or_are_refused(word):
    if problem_with_word(word) is None:
        bandwidth, mode, _ = MSGPackSerializer.loads(word)
        assert mode in (0, 1, 2)
        assert bandwidth is None or 0 <= bandwidth <= 1e9


@settings(max_examples=300, deadline=None)
@given(
    found=st.dictionaries(
        st.binary(max_size=20), st.text(max_size=200) | st.binary() | st.none() | st.integers(), max_size=3
    )
)
def test_records_are_read_or_left_out(found):
    for model in (records.PeerRecord, records.SwarmRecord, records.PassesRecord):
        assert records._parsed(found, model) == {}
