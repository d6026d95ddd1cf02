"""Keys, and that nobody writes under another's name."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.utils import MSGPackSerializer
from hivemind.utils.crypto import RSAPrivateKey

sys.path.insert(0, str(Path(__file__).parent))
from boards import PROGRESS, RUN, HeldDHT, peer

from tasks.pretraining.collaborative.records import (
    Blackboard,
    key_digest,
    load_key,
    validators,
)


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
