"""What a member does when it hears nothing of the coordinator."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from tasks.pretraining.collaborative import network, watch
from tasks.pretraining.collaborative.records import SwarmRecord
from tasks.pretraining.collaborative.sharding import Taken


class Board:
    """Gives the word that it holds."""

    dht, run_id = None, "run"

    def __init__(self) -> None:
        self.word = SwarmRecord(final_step=7, step=0, go=True, released=False, taken=Taken(), told=1.0)

    def contributions(self):
        return {}

    def swarm(self, coordinator: str) -> SwarmRecord:
        return self.word


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch):
    """A watch whose seconds are hundredths, its board, and the addresses that it called."""
    called: list[tuple[str, ...]] = []
    addresses = ("/ip4/127.0.0.1/tcp/31337/p2p/Qm",)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watch, "DIAL_SECONDS", 0.1)
    monkeypatch.setattr(watch, "progress_of", lambda dht, run_id: [])
    monkeypatch.setattr(network, "dial", lambda dht, asked, seconds: called.append(asked))
    board = Board()
    running = watch.Watch(board, "coordinator", addresses)
    yield SimpleNamespace(watch=running, board=board, called=called)
    running.end()


def until(what) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_word_that_stays_the_same_is_no_sign_of_life(watched):
    """The DHT keeps the coordinator's last word for a minute after its end."""
    until(lambda: watched.watch.silence > 0.2)
    until(lambda: len(watched.called) >= 2)  # again and again
    watched.board.word = watched.board.word.model_copy(update={"told": 2.0})
    until(lambda: watched.watch.swarm.told == 2.0)
    assert watched.watch.silence < 30


def test_a_coordinator_that_is_heard_is_not_called(watched, monkeypatch):
    monkeypatch.setattr(watch, "DIAL_SECONDS", 3.0)  # longer than a busy machine holds up a thread
    until(lambda: watched.watch._dialled < time.monotonic() - 0.05)
    watched.called.clear()
    end, told = time.monotonic() + 4.0, 2.0
    while time.monotonic() < end:
        told += 1
        watched.board.word = watched.board.word.model_copy(update={"told": told})
        time.sleep(0.01)
    assert watched.called == []
