"""How who joins gets to its place: as a client where nobody can connect to it, with what its role needs."""

import argparse
import json
from types import SimpleNamespace

import pytest

from tasks.checks import Check
from tasks.contract import StageError, UserError
from tasks.pretraining.collaborative import arrival

CUT_OFF = Check("reachable", "fail", "nobody can connect to this machine", "open its port, or join with --role client")
OPEN = Check("reachable", "ok", "others can connect to this machine")
OLD = Check(
    "scipy", "fail", "1.0, the swarm's is 2.0: peers would cut the tensors differently", "pip install scipy==2.0"
)


class Node:
    """A DHT that only knows whether it runs as a client."""

    def __init__(self, client: bool):
        self.client, self.running = client, True

    def shutdown(self) -> None:
        self.running = False


@pytest.fixture
def swarm(monkeypatch, tmp_path):
    """What is found; ``join`` arrives with a role."""
    found = SimpleNamespace(reachable=OPEN, libraries=[], nodes=[], fetched=[], coordinator="QmC", local=None)

    def find(addresses, key, identity, *, client):
        found.nodes.append(Node(client))
        sources = {
            "tokenizer": SimpleNamespace(path="t", digest="0" * 64),
            "pack": SimpleNamespace(path="p", digest="1" * 64),
        }
        return found.nodes[-1], SimpleNamespace(coordinator="digest"), SimpleNamespace(**sources)

    def fetch(dht, peer, source, store):
        assert dht.running
        found.fetched.append(source.path)
        return store.root / source.path

    monkeypatch.setattr(arrival.joining, "find", find)
    monkeypatch.setattr(arrival.joining, "wait_for_word", lambda *_: SimpleNamespace(peer_id=found.coordinator))
    monkeypatch.setattr(arrival.joining, "check_libraries", lambda manifest: found.libraries)
    monkeypatch.setattr(arrival.joining, "check_place", lambda *_: [found.reachable])
    monkeypatch.setattr(arrival.joining, "locate", lambda source, root: found.local)
    monkeypatch.setattr(arrival.fetching, "fetch", fetch)
    monkeypatch.setattr(arrival, "PackedSplit", lambda folder, split: ("packed", folder.name, split))
    monkeypatch.setattr(arrival, "RemoteSplit", lambda dht, peer: ("remote", peer))

    def join(role=None, **options):
        asked = {"stream": False, "bandwidth": None, "micro_batch": None, "pass_file": None, **options}
        return arrival.arrive(
            argparse.Namespace(folder=tmp_path, name="one", join=["/a"], role=role, store=tmp_path / "store", **asked),
            SimpleNamespace(),
        )

    found.join, found.checks = join, lambda: json.loads((tmp_path / "one.checks.json").read_text())
    return found


def test_who_can_be_reached_is_a_peer_with_tokenizer_and_corpus(swarm):
    place, train = swarm.join()
    assert (place.role, place.joined, train) == ("peer", True, ("packed", "p", "train"))
    assert swarm.fetched == ["t", "p"]
    assert [node.client for node in swarm.nodes] == [False]
    assert swarm.checks() == [vars(OPEN)]


def test_who_cannot_be_reached_goes_on_as_a_client(swarm, caplog):
    swarm.reachable = CUT_OFF
    place, _ = swarm.join()
    assert place.role == "client"
    assert [(node.client, node.running) for node in swarm.nodes] == [(False, False), (True, True)]
    assert place.dht is swarm.nodes[-1]
    assert "joining as a client" in caplog.text
    assert swarm.checks() == [vars(CUT_OFF)]


@pytest.mark.parametrize("role", ["peer", "auxiliary", "keeper"])
def test_a_role_that_was_asked_for_is_not_changed(swarm, role):
    swarm.reachable = CUT_OFF
    with pytest.raises(UserError, match="reachable: nobody can connect to this machine; open its port, or join with"):
        swarm.join(role)


def test_a_client_is_not_dialled_back(swarm):
    swarm.reachable = CUT_OFF
    place, train = swarm.join("client", bandwidth=5.0, micro_batch=3)
    assert (place.role, place.bandwidth, place.micro_batch, train[0]) == ("client", 5.0, 3, "packed")
    assert [node.client for node in swarm.nodes] == [True]


@pytest.mark.parametrize("role", ["auxiliary", "keeper"])
def test_who_computes_nothing_needs_no_corpus(swarm, role):
    place, train = swarm.join(role)
    assert (place.role, train, swarm.fetched) == (role, None, ["t"])


def test_who_streams_gets_rows(swarm):
    _, train = swarm.join(stream=True)
    assert (train, swarm.fetched) == (("remote", "QmC"), ["t"])


def test_another_version_of_the_solver_is_refused_with_the_remedy(swarm):
    swarm.libraries = [OLD]
    with pytest.raises(UserError, match=r"scipy: 1.0, .*; pip install scipy==2.0"):
        swarm.join()
    assert swarm.checks() == [vars(OLD)]
    assert swarm.fetched == []


def test_what_is_in_the_store_is_not_fetched(swarm, tmp_path):
    swarm.local = tmp_path / "here"
    swarm.join()
    assert swarm.fetched == []


@pytest.mark.parametrize("options", [{}, {"stream": True}])
def test_without_a_word_of_the_coordinator_nothing_can_be_fetched(swarm, options):
    swarm.coordinator = None
    with pytest.raises(StageError, match="is it running"):
        swarm.join(**options)
