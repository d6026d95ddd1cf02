"""What is checked before a peer is started."""

import re

import pytest

from flows import swarm
from tasks.contract import UserError


@pytest.mark.parametrize("name", ["supervisor", "", "../up", "two words", ".hidden", "-x", "a/b", "x" * 41, "a\nb"])
def test_a_name_that_cannot_be_a_files_is_refused(name):
    with pytest.raises(UserError, match=f"^--name {re.escape(name)}: should be up to 40 letters"):
        swarm.checked_name(name)


@pytest.mark.parametrize("name", ["রহিম", "peer-1", "a.b_c", "x" * 40])
def test_a_name_is_kept(name):
    assert swarm.checked_name(name) == name


@pytest.mark.parametrize(
    ("host", "name"),
    [("laptop", "laptop"), ("my laptop.local", "my-laptop.local"), ("..", "peer"), ("h" * 60, "h" * 40)],
)
def test_a_peer_is_called_like_its_host(monkeypatch, host, name):
    monkeypatch.setattr(swarm.socket, "gethostname", lambda: host)
    assert swarm.checked_name(None) == name


def test_without_hivemind_a_peer_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(swarm.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs hivemind, which has wheels for Linux"):
        swarm.join(swarm.Joining(["/ip4/127.0.0.1/tcp/1/p2p/Qm"], "one"), tmp_path, 1, lambda *_, **__: None)
