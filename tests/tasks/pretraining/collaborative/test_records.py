"""What strangers write under a run's names is left out, and nobody writes under another's."""

from __future__ import annotations

import json
import os
import stat
import time
from typing import Any

import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.utils import MSGPackSerializer, ValueWithExpiration, get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from pydantic import ValidationError

from tasks.pretraining.collaborative import records
from tasks.pretraining.collaborative.records import (
    MAX_RECORD,
    STEPS_TOLD,
    Blackboard,
    PeerRecord,
    StepEntry,
    SwarmRecord,
    key_digest,
    load_key,
    progress_of,
    validators,
)
from tasks.pretraining.collaborative.sharding import Taken

RUN = "sahajflow-0123456789abcdef"
STEP = {
    "step": 1,
    "samples": 32,
    "mlm": 10.5,
    "masked": 4,
    "order": None,
    "outcome": "averaged",
    "group": 2,
    "matching": 0.5,
    "reducing": 0.25,
    "computing": 2.0,
}
PEER: dict[str, Any] = {
    "name": "peer-0",
    "peer_id": "QmXYZ",
    "state": "training",
    "step": 3,
    "rate": 12.5,
    "discarded": 0,
    "taken": {"passed": 1, "shards": "ff"},
    "steps": [STEP],
    "proof": [3.5, 2.5],
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


@pytest.fixture(scope="module")
def key() -> RSAPrivateKey:
    return RSAPrivateKey()


@pytest.fixture(scope="module")
def other_key() -> RSAPrivateKey:
    return RSAPrivateKey()


def board(entries: Any, key: RSAPrivateKey) -> Blackboard:
    return Blackboard(HeldDHT(entries), RUN, key)


def peer(**changes: Any) -> str:
    return json.dumps(PEER | changes)


def step(**changes: Any) -> str:
    return peer(steps=[STEP | changes])


def test_records_round_trip():
    record = PeerRecord.model_validate_json(peer())
    assert record.model_dump(mode="json") == PEER
    assert PeerRecord.model_validate_json(record.model_dump_json()) == record
    assert record.taken.numbers == set(range(8))
    swarm = SwarmRecord(final_step=7, step=0, go=True, released=False, taken=Taken())
    assert SwarmRecord.model_validate_json(swarm.model_dump_json()) == swarm


def test_the_longest_record_of_a_peer_is_read(key):
    longest = StepEntry(**STEP | {"step": 10**9, "samples": 10**6, "mlm": 1234567.8901, "masked": 10**8, "order": 1e6})
    record = PeerRecord.model_validate(
        PEER | {"name": "n" * 40, "peer_id": "Q" * 100, "taken": {"shards": "f" * 64}, "steps": [longest] * STEPS_TOLD}
    )
    text = record.model_dump_json()
    assert len(text) < MAX_RECORD / 2
    assert list(board({b"one": text}, key).contributions().values()) == [record]


GARBAGE: dict[str, Any] = {
    "no JSON": "garbage",
    "empty": "",
    "nothing": "null",
    "a list": "[]",
    "no fields": "{}",
    "a number": "17",
    "cut off": peer()[:-5],
    "two of them": peer() + peer(),
    "bytes": peer().encode(),
    "not a text": 17,
    "None": None,
    "a mapping": PEER,
    "a field more": peer(more=1),
    "a field less": json.dumps({name: value for name, value in PEER.items() if name != "taken"}),
    "NaN": peer(rate=float("nan")),
    "infinity": peer(rate=float("inf")),
    "too large a float": peer().replace("12.5", "1e999"),
    "NaN in a step": step(mlm=float("nan")),
    "infinity in a step": step(order=float("-inf")),
    "NaN in the proof": peer(proof=[float("nan"), 1.0]),
    "a negative rate": peer(rate=-1.0),
    "a negative step": peer(step=-1),
    "half a step": peer(step=1.5),
    "a text for a number": peer(step="many"),
    "a list for a number": peer(rate=[1.0]),
    "an unknown state": peer(state="dancing"),
    "an unknown outcome": step(outcome="great"),
    "step 0": step(step=0),
    "no group at all": step(group=0),
    "negative time": step(matching=-0.1),
    "a field more in a step": step(more=1),
    "no name": peer(name=""),
    "a long name": peer(name="x" * 41),
    "a long identity": peer(peer_id="x" * 101),
    "more steps than are told": peer(steps=[STEP] * (STEPS_TOLD + 1)),
    "1e6 entries": '{"steps": [' + "1," * 999_999 + "1]}",
    "1e6 short entries": peer(steps=[0] * 20_000),
    "shards that are none": peer(taken={"passed": 0, "shards": "zz"}),
    "too many shards": peer(taken={"passed": 0, "shards": "f" * 65}),
    "deep": "[" * 30_000 + "]" * 30_000,
    "deep in a field": peer().replace("12.5", "[" * 30_000 + "]" * 30_000),
    "half a character": peer().replace("peer-0", "\\ud800"),
    "a number of many digits": peer().replace('"step": 3', '"step": ' + "9" * 5_000),
    "too long": peer() + " " * MAX_RECORD,
}


@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_left_out_and_the_rest_is_read(value, key):
    entries = {b"stranger": value, b"friend": peer()}
    assert board(entries, key).contributions() == {key_digest(b"friend"): PeerRecord.model_validate(PEER)}
    assert board(entries, key).swarm(key_digest(b"stranger")) is None
    assert records.manifests(HeldDHT(entries)) == {}


ABSURD: dict[str, Any] = {
    "samples": step(samples=10**400),
    "masked": step(masked=10**400),
    "step of an entry": step(step=10**400),
    "group": step(group=10**400),
    "step": peer(step=10**400),
    "discarded": peer(discarded=10**400),
    "pass": peer(taken={"passed": 10**400, "shards": ""}),
}


@pytest.mark.parametrize("value", ABSURD.values(), ids=ABSURD)
def test_numbers_that_no_float_can_hold_are_left_out(value, key):
    """They would break the log, whose means divide by them."""
    assert board({b"stranger": value}, key).contributions() == {}


@pytest.mark.parametrize(
    "found",
    [None, TimeoutError(), RuntimeError("gone"), ValueWithExpiration("text", 1.0), ValueWithExpiration([1], 1.0), 5],
    ids=repr,
)
def test_a_network_that_gives_nothing_of_use_is_an_empty_board(found, key):
    empty = board(found, key)
    assert (empty.contributions(), empty.swarm("0" * 16), progress_of(empty.dht, empty.run_id)) == ({}, None, [])
    assert records.manifests(HeldDHT(found)) == {}


def test_names_that_are_no_bytes_are_left_out(key):
    entries = {5: peer(), "text": peer(), None: peer(), b"friend": peer(name="friend")}
    assert [one.name for one in board(entries, key).contributions().values()] == ["friend"]


def test_many_strangers_are_read_in_time(key):
    entries = {str(number).encode(): "x" * 1000 for number in range(5_000)} | {b"friend": peer()}
    started = time.monotonic()
    assert len(board(entries, key).contributions()) == 1
    assert time.monotonic() - started < 2


def test_only_the_word_of_the_coordinator_counts(key):
    word = SwarmRecord(final_step=7, step=0, go=True, released=False, taken=Taken())
    false = word.model_copy(update={"released": True})
    told = board({b"coordinator": word.model_dump_json(), b"stranger": false.model_dump_json()}, key)
    assert told.swarm(key_digest(b"coordinator")) == word
    assert told.swarm("0" * 16) is None


PROGRESS = {
    "peer_id": b"peer",
    "epoch": 3,
    "samples_accumulated": 16,
    "samples_per_second": 2.5,
    "time": 1e9,
    "client_mode": False,
}


def test_progress_is_read_as_hiveminds_tracker_tells_it(key):
    entries = {b"one": PROGRESS, b"gone": None, b"stranger": "text", b"other": PROGRESS | {"epoch": 4}}
    assert [one.epoch for one in progress_of(board(entries, key).dht, RUN)] == [3, 4]


@pytest.mark.parametrize(
    "changes",
    [{"epoch": -1}, {"epoch": "x"}, {"time": None}, {"samples_per_second": float("inf")}],
    ids=repr,
)
def test_progress_that_does_not_fit_is_left_out(changes, key):
    entries = {b"stranger": PROGRESS | changes, b"one": PROGRESS}
    assert [one.epoch for one in progress_of(board(entries, key).dht, RUN)] == [3]


def test_key_digests_are_stable_and_differ():
    assert key_digest(b"[owner:ssh-rsa AAAA]") == "34c2b2933699d4e7"
    assert key_digest(b"[owner:ssh-rsa AAAB]") != key_digest(b"[owner:ssh-rsa AAAA]")


def test_a_key_is_made_once_for_its_owner_only_and_loaded_again(tmp_path):
    path = tmp_path / "keys" / "peer-0.rsa"
    before = os.umask(0)
    try:
        made = load_key(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["peer-0.rsa"]
    again = load_key(path)
    assert again.to_bytes() == made.to_bytes()
    assert Blackboard(HeldDHT({}), RUN, again).subkey == Blackboard(HeldDHT({}), RUN, made).subkey
    assert made.get_public_key().verify(b"data", again.sign(b"data"))
    assert load_key(tmp_path / "keys" / "peer-1.rsa").to_bytes() != made.to_bytes()


def test_a_key_that_was_left_half_written_is_made_anew(tmp_path):
    (tmp_path / ".peer-0.rsa").write_bytes(b"half")
    (tmp_path / ".peer-0.rsa").chmod(0o600)
    made = load_key(tmp_path / "peer-0.rsa")
    assert load_key(tmp_path / "peer-0.rsa").to_bytes() == made.to_bytes()
    assert stat.S_IMODE((tmp_path / "peer-0.rsa").stat().st_mode) == 0o600


def record_of(name: str, subkey: bytes, value: Any, expiration_time: float = 1e10) -> DHTRecord:
    """As hivemind's DHT hands it to the validators, unsigned."""
    return DHTRecord(
        DHTID.generate(source=f"{RUN}_{name}").to_bytes(),
        MSGPackSerializer.dumps(subkey),
        MSGPackSerializer.dumps(value),
        expiration_time,
    )


def signed(record: DHTRecord, key: RSAPrivateKey) -> DHTRecord:
    value = CompositeValidator(validators(RUN, key)).sign_value(record)
    return DHTRecord(record.key, record.subkey, value, record.expiration_time)


@pytest.mark.parametrize(("name", "value"), [("contributions", "text"), ("swarm", "text"), ("progress", PROGRESS)])
def test_nobody_writes_under_anothers_name(key, other_key, name, value):
    checks = CompositeValidator(validators(RUN, other_key))  # of any other member
    mine, others = (Blackboard(HeldDHT({}), RUN, one).subkey for one in (key, other_key))
    true = signed(record_of(name, mine, value), key)
    assert true.value != record_of(name, mine, value).value
    assert checks.validate(true)
    assert MSGPackSerializer.loads(checks.strip_value(true)) == value
    unsigned = record_of(name, others, value)
    assert not checks.validate(unsigned)
    assert not checks.validate(signed(unsigned, key))  # hivemind does not sign what is not one's own
    forged = key.sign(MSGPackSerializer.dumps((unsigned.key, unsigned.subkey, unsigned.value, 1e10)))
    forged = DHTRecord(unsigned.key, unsigned.subkey, unsigned.value + b"[signature:" + forged + b"]", 1e10)
    assert not checks.validate(forged)
    # a true signature counts for its content, name and time only
    moved = DHTRecord(true.key, MSGPackSerializer.dumps(others), true.value, true.expiration_time)
    prolonged = DHTRecord(true.key, true.subkey, true.value, true.expiration_time + 1)
    changed = DHTRecord(true.key, true.subkey, true.value.replace(b"e", b"f", 1), true.expiration_time)
    assert [checks.validate(one) for one in (moved, prolonged, changed)] == [False, False, False]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("contributions", 5),
        ("contributions", b"bytes"),
        ("contributions", None),
        ("swarm", 1.5),
        ("swarm", ["text"]),
        ("progress", "text"),
        ("progress", PROGRESS | {"epoch": -1}),
        ("progress", PROGRESS | {"samples_per_second": float("nan")}),
        ("progress", PROGRESS | {"more": 1}),
        ("progress", {"epoch": 1}),
    ],
)
def test_even_the_owner_writes_nothing_of_another_kind(key, name, value):
    checks = CompositeValidator(validators(RUN, key))
    assert not checks.validate(signed(record_of(name, Blackboard(HeldDHT({}), RUN, key).subkey, value), key))


def test_names_without_an_owner_are_refused(key):
    checks = CompositeValidator(validators(RUN, key))
    for name in ("contributions", "swarm", "progress"):
        value = PROGRESS if name == "progress" else "text"
        assert not checks.validate(signed(record_of(name, b"nobody", value), key))


@pytest.mark.parametrize("model", [PeerRecord, StepEntry, SwarmRecord])
def test_records_do_not_change(model):
    values = {PeerRecord: PEER, StepEntry: STEP}.get(
        model, {"final_step": 1, "step": 0, "go": True, "released": False, "taken": {}}
    )
    record = model.model_validate(values)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(record, next(iter(values)), 5)


def test_records_cross_the_network_and_strangers_do_not_get_through(member):
    """Two members of a run and a stranger without the run's validators, each with a network node of its own."""
    one = member("records")
    addresses = one.ask("start", run_id=RUN)
    told = one.ask(
        "run",
        code=f"""
from hivemind.utils import get_dht_time
from tasks.pretraining.collaborative.sharding import Taken
keys = [self.key, records.RSAPrivateKey()]
second = network.start_dht(LOOPBACK, {addresses!r}, record_validators=records.validators({RUN!r}, keys[1]))
stranger = network.start_dht(LOOPBACK, {addresses!r})
boards = [records.Blackboard(dht, {RUN!r}, key) for dht, key in zip((self.dht, second), keys)]
coordinator = records.key_digest(boards[0].subkey)
peer = records.PeerRecord.model_validate_json({peer()!r})
word = records.SwarmRecord(final_step=7, step=0, go=True, released=False, taken=Taken())
boards[0].tell_swarm(word, 30.0)
boards[1].tell_contribution(peer, 30.0)
false = word.model_copy(update=dict(released=True)).model_dump_json()
for key in ("swarm", "contributions"):
    for subkey in (boards[0].subkey, boards[1].subkey, b"nobody", 5):
        for value in (false, "garbage", 5):
            stored = stranger.store(
                f"{RUN}_{{key}}", subkey=subkey, value=value, expiration_time=get_dht_time() + 60, return_future=True
            )
            try:
                stored.result(10)
            except Exception:
                pass
deadline = time.monotonic() + 10
while time.monotonic() < deadline:
    seen = [(board.swarm(coordinator), board.contributions()) for board in boards]
    if all(swarm is not None and peers for swarm, peers in seen):
        break
    time.sleep(0.1)
answer = {{
    "swarm": [swarm.released for swarm, _ in seen],
    "peers": [[(key, found.name) for key, found in peers.items()] for _, peers in seen],
    "digest": records.key_digest(boards[1].subkey),
}}
for dht in (stranger, second):
    dht.shutdown()
""",
    )
    assert told["swarm"] == [False, False]
    assert told["peers"] == [[(told["digest"], "peer-0")]] * 2
