"""What one coordinator leaves for the next."""

from __future__ import annotations

from pathlib import Path

import pytest
from hivemind.dht.crypto import RSASignatureValidator

from tasks.pretraining.collaborative import records, returning
from tasks.pretraining.collaborative.returning import Left


def test_what_is_left_is_read_and_forgotten(tmp_path: Path):
    assert returning.read(tmp_path) == Left()
    left = Left(elsewhere=True, port=4242, final_step=70)
    returning.write(tmp_path, left)
    assert returning.read(tmp_path) == left
    returning.forget(tmp_path)
    returning.forget(tmp_path)
    assert returning.read(tmp_path) == Left()


ANY, FIXED = "/ip4/127.0.0.1/tcp/0", "/ip4/0.0.0.0/tcp/31337"


@pytest.mark.parametrize(
    ("asked", "left", "again"),
    [
        ((ANY,), Left(elsewhere=True, port=4242), ("/ip4/127.0.0.1/tcp/4242",)),
        ((ANY,), Left(elsewhere=False, port=4242), (ANY,)),  # nobody knows it
        ((ANY,), Left(elsewhere=True), (ANY,)),
        ((FIXED, "/ip6/::1/tcp/0"), Left(elsewhere=True, port=4242), (FIXED, "/ip6/::1/tcp/4242")),
    ],
)
def test_a_coordinator_listens_where_peers_call(asked, left, again):
    assert returning.listen_again(asked, left) == again


def test_only_a_port_that_was_not_asked_for_is_kept():
    got = ("/ip4/127.0.0.1/tcp/4242/p2p/Qm",)
    assert returning.port_of((ANY,), got) == 4242
    assert returning.port_of((FIXED,), got) is None


def test_local_members_are_known_by_their_keys(tmp_path: Path):
    names = ("peer-0", "keeper-0", "coordinator")
    keys = {name: records.load_key(tmp_path / "keys" / f"{name}.rsa") for name in names}
    digests = {name: records.key_digest(RSASignatureValidator(key).local_public_key) for name, key in keys.items()}
    assert returning.local_keys(tmp_path) == {digests["peer-0"], digests["keeper-0"]}
