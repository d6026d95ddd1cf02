"""Who may call a member, in all of its processes."""

from __future__ import annotations

import multiprocessing
import time

import pytest
from hivemind.utils import get_dht_time

from tasks.pretraining.collaborative import gate as module
from tasks.pretraining.collaborative.gate import REPEATS, Gate
from tasks.pretraining.collaborative.identities import identity_of, peer_id_of, peer_id_of_private, write_identity


def wait_for(what, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_all_may_call_until_they_are_refused_repeatedly():
    gate = Gate()
    for number in range(REPEATS - 1):
        gate.report("mallory", f"rubbish {number}")
    wait_for(lambda: gate.refused["mallory"] == REPEATS - 1)
    assert gate.admits("mallory")
    gate.report("mallory", "more rubbish")
    wait_for(lambda: not gate.admits("mallory"))
    assert gate.is_muted("mallory")
    assert gate.muted == ["mallory"]
    assert gate.reasons["mallory"] == "more rubbish"
    assert gate.admits("alice")


def test_who_only_lacks_a_pass_is_not_muted():
    gate = Gate()
    for _ in range(2 * REPEATS):
        gate.report("newcomer", "it has no pass", counts=False)
    wait_for(lambda: gate.refused["newcomer"] == 2 * REPEATS)
    assert gate.admits("newcomer")


def test_who_is_muted_is_heard_again_later(monkeypatch):
    monkeypatch.setattr(module, "MUTED_SECONDS", 0.2)
    gate = Gate()
    for _ in range(REPEATS):
        gate.report("mallory", "rubbish")
    wait_for(lambda: not gate.admits("mallory"))
    wait_for(lambda: gate.admits("mallory"))


def test_refusals_of_long_ago_do_not_count(monkeypatch):
    monkeypatch.setattr(module, "WITHIN_SECONDS", 0.1)
    gate = Gate()
    for number in range(REPEATS):
        gate.report("alice", "an accident")
        wait_for(lambda number=number: gate.refused["alice"] == number + 1)
        time.sleep(0.15)
    assert gate.admits("alice")


def test_what_one_process_refuses_all_processes_know():
    gate = Gate()
    context = multiprocessing.get_context("fork")

    def refuse() -> None:
        for _ in range(REPEATS):
            gate.report("mallory", "rubbish")

    def look(answer) -> None:
        while gate.admits("mallory"):
            time.sleep(0.01)
        answer.value = 1

    answer = context.Value("b", 0)
    processes = [context.Process(target=refuse), context.Process(target=look, args=(answer,))]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert answer.value == 1
    assert not gate.admits("mallory")


def test_with_passes_all_others_are_strangers():
    gate = Gate()
    gate.ask_for_passes("0" * 16, ["coordinator"])
    assert gate.admits("coordinator")
    assert not gate.admits("alice")
    gate.admit({"alice": get_dht_time() + 60, "bob": get_dht_time() - 1})
    assert gate.admits("alice")
    assert not gate.admits("bob")  # expired
    gate.admit({})
    assert not gate.admits("alice")
    assert gate.admits("coordinator")


def test_with_passes_a_record_counts_if_its_owner_has_one(key, other_key):
    gate = Gate()

    def owned(one) -> bytes:
        return b"[owner:" + one.get_public_key().to_bytes() + b"]"

    assert all(map(gate.admits_owner, (owned(key), owned(other_key), b"nobody")))
    gate.ask_for_passes("0" * 16, [])
    gate.admit({peer_id_of_private(key): get_dht_time() + 60})
    assert gate.admits_owner(owned(key))
    assert not gate.admits_owner(owned(other_key))
    assert not gate.admits_owner(b"[owner:ssh-rsa AAAA]")
    assert gate.admits_owner(b"nobody")  # a record that nobody owns


def test_the_coordinators_records_always_count(key):
    import hashlib

    gate = Gate()
    subkey = b"[owner:" + key.get_public_key().to_bytes() + b"]"
    gate.ask_for_passes(hashlib.sha256(subkey).hexdigest()[:16], [])
    assert gate.admits_owner(subkey)


def test_a_key_has_one_identity_in_both_forms(key, tmp_path):
    path = write_identity(key, tmp_path / "keys" / "one.identity")
    assert path.read_bytes() == identity_of(key)
    assert path.stat().st_mode & 0o077 == 0
    assert peer_id_of(key.get_public_key().to_bytes()) == peer_id_of_private(key)
    with pytest.raises(ValueError, match="Invalid data"):
        peer_id_of(b"ssh-rsa AAAA")


def test_more_passes_than_fit_are_refused_and_the_old_ones_stay():
    gate = Gate()
    gate.ask_for_passes("0" * 16, [])
    gate.admit({"alice": get_dht_time() + 60})
    with pytest.raises(ValueError, match="too many"):
        gate.admit({f"{number:0100}": 1e12 for number in range(3000)})
    assert gate.admits("alice")
