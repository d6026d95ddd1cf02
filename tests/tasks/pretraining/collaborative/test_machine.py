"""What is said of a machine that joins."""

import socket
from collections import namedtuple

import pytest

from tasks.pretraining.collaborative import machine

Usage = namedtuple("Usage", "total used free")
Memory = namedtuple("Memory", "available")


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A machine with little of everything."""
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (64, 128))
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: Usage(2**26, 0, 2**26))
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: Memory(2**29))


def test_each_finding_has_its_remedy(small, tmp_path):
    found = {check.name: check for check in machine.check_machine()}
    assert {name: check.state for name, check in found.items()} == {
        "open files": "warn",
        "shared memory": "warn",
        "memory": "warn",
    }
    assert (found["open files"].finding, found["open files"].remedy) == ("128 allowed", "ulimit -n 4096")
    assert found["shared memory"].finding == f"64 MiB free in {tmp_path}"
    assert "--shm-size=1g" in found["shared memory"].remedy
    assert found["memory"].finding == "0.5 GiB free of 2.0 GiB that are needed"


def test_a_large_machine_is_fine(small, monkeypatch):
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (1024, 2**20))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: Usage(2**34, 0, 2**33))
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: Memory(2**34))
    assert [check.state for check in machine.check_machine()] == ["ok"] * 3


def test_where_there_is_no_shared_memory_nothing_is_said_of_it(small, monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path / "none")
    assert [check.name for check in machine.check_machine()] == ["open files", "memory"]


def test_every_address_is_dialled_and_each_that_fails_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        good, other = f"/ip4/127.0.0.1/tcp/{port}/p2p/Qm", f"/ip4/127.0.0.1/udp/{port}/quic/p2p/Qm"
        with socket.create_server(("127.0.0.1", 0)) as closed:
            bad = f"/ip4/127.0.0.1/tcp/{closed.getsockname()[1]}/p2p/Qm"
        found = machine.dial([good, bad, other, "/dns4/no-such-host.invalid/tcp/1/p2p/Qm"])
    assert list(found.values())[:3] == [None, "Connection refused", None]  # what is not TCP cannot be tried so
    assert list(found.values())[3]
