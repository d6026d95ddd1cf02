"""What is said of a machine against its swarm: clock, versions, and whether others can connect to it."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.contract import StageError, UserError
from tasks.pretraining.collaborative import joining
from tasks.pretraining.collaborative.manifest import libraries

ADDRESS = "/ip4/203.0.113.7/tcp/31337/p2p/QmA"


def test_a_clock_that_hivemind_refuses_is_named_with_the_remedy(monkeypatch):
    def refuse(*_, **__):
        raise StageError("collaborative: joining X: local time must be within 3 seconds  of others(local: 1, peer: 9)")

    monkeypatch.setattr(joining.network, "start_dht", refuse)
    with pytest.raises(UserError, match=r"clock: it is more than 3 s off the swarm's; .*timedatectl set-ntp true"):
        joining.find([ADDRESS], None, Path("unused"), client=False)


def test_another_reason_stays_what_it_is(monkeypatch):
    def refuse(*_, **__):
        raise StageError("collaborative: joining X: no route")

    monkeypatch.setattr(joining.network, "start_dht", refuse)
    with pytest.raises(StageError, match="no route"):
        joining.find([ADDRESS], None, Path("unused"), client=True)


def test_versions_that_differ_are_named_and_those_of_the_protocol_refused():
    here = libraries()
    swarm = SimpleNamespace(libraries={**here, "scipy": "0.1", "torch": "0.2", "unheard-of": "1"})
    found = {check.name: check for check in joining.check_libraries(swarm)}
    assert {name for name, check in found.items() if check.state == "ok"} == set(here) - {"scipy", "torch"}
    assert (found["scipy"].state, found["scipy"].remedy) == ("fail", "pip install scipy==0.1")
    assert (found["torch"].state, found["torch"].remedy) == ("warn", "pip install torch==0.2")
    with pytest.raises(UserError, match=rf"^scipy: {here['scipy']}, the swarm's is 0.1: .*; pip install scipy==0.1$"):
        joining.refuse(list(found.values()))
    joining.refuse([found["torch"]])


class Answer:
    def __init__(self, value):
        self._value = value

    def result(self, seconds):
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class Node:
    """A DHT whose members' clocks are so far before this one's."""

    def __init__(self, *offsets):
        self._offsets = list(offsets)

    def run_coroutine(self, asked, return_future):
        return Answer(self._offsets.pop(0))

    def get_visible_maddrs(self, latest):
        return ["/ip4/192.168.0.2/tcp/4001/p2p/QmMe", "/ip4/192.168.0.2/udp/4002/quic/p2p/QmMe", "/nonsense"]


@pytest.fixture
def dialled(monkeypatch):
    """What the coordinator answers, and which ports it was asked to try."""
    found = SimpleNamespace(answer={"reachable": True}, ports=None)

    def tell(dht, peer, name, text, seconds):
        found.ports = json.loads(text)
        if found.answer is None:
            raise TimeoutError
        return json.dumps(found.answer).encode()

    monkeypatch.setattr(joining.fetching, "tell", tell)
    return found


def states(checks):
    return {check.name: (check.state, check.finding) for check in checks}


def test_a_clock_in_time_and_an_open_port(dialled):
    found = states(joining.check_place(Node(TimeoutError(), 0.2), [ADDRESS, ADDRESS], "QmC"))
    assert found == {
        "clock": ("ok", "0.2 s behind the swarm's"),
        "reachable": ("ok", "others can connect to this machine"),
    }
    assert dialled.ports == [4001]


def test_a_clock_that_is_nearly_too_far_off_is_worth_a_warning(dialled):
    dialled.answer = {"reachable": False}
    checks = joining.check_place(Node(-2.0), [ADDRESS], "QmC")
    assert states(checks)["clock"] == ("warn", "2.0 s before the swarm's")
    with pytest.raises(
        UserError, match="nobody can connect to this machine; open its port, or join with --role client"
    ):
        joining.refuse(checks)


@pytest.mark.parametrize("coordinator", [None, "QmC"])
def test_if_nobody_says_it_is_not_known(dialled, coordinator):
    dialled.answer = None
    (found,) = joining.check_place(Node(TimeoutError()), [ADDRESS], coordinator)
    assert (found.name, found.state, found.finding) == ("reachable", "warn", "the coordinator did not try it")


def wrong_clock_code(seconds: float) -> str:
    return f"""
import hivemind.dht.protocol as protocol
true = protocol.get_dht_time
protocol.get_dht_time = lambda: true() + {seconds}
from tasks.pretraining.collaborative import identities, joining
key, identity = identities.key_and_identity(Path(FOLDER), "wrong", None)
try:
    joining.find(ADDRESSES, key, identity, client=False)
except Exception as error:
    answer = f"{{type(error).__name__}}: {{error}}"
"""


def test_a_real_swarm_refuses_a_wrong_clock(member, tmp_path):
    sys.path.insert(0, str(Path(__file__).parent))
    addresses = member("right").ask("start")
    said = member("wrong").ask(
        "run", code=f"ADDRESSES = {addresses!r}; FOLDER = {str(tmp_path)!r}\n{wrong_clock_code(-10.0)}"
    )
    assert said.startswith("UserError: clock: it is more than 3 s off the swarm's")
