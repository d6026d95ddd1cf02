"""Whom a state is asked of: busy ones again later, those with other weights never, the checkpoint at last."""

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer

from tasks.pretraining.collaborative import state as states
from tasks.pretraining.collaborative.averaging import UPLOADS, PeerStateAverager
from tasks.pretraining.collaborative.gate import Gate
from tasks.pretraining.collaborative.sketch import sketch
from tasks.pretraining.collaborative.state import State

OWN = State(0, [torch.arange(1.0, 50.0)], [], [], "")
FOREIGN = [OWN.weights[0].flip(0)]


@pytest.fixture
def swarm(monkeypatch):
    """Donors in the order in which they are asked, and what each sends; ``asked`` says who was."""
    found = SimpleNamespace(sends={}, asked=[])

    async def receive(daemon, run_id, peer, own):
        found.asked.append(peer)
        answer = found.sends[peer]
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        return replace(answer, donor=peer)

    class Node:
        gate = Gate()
        peer_id = SimpleNamespace(to_base58=lambda: "me")

        def run_coroutine(self, *_, **__):
            return SimpleNamespace(result=lambda timeout: "address")

    monkeypatch.setattr(states, "donors", lambda *_: list(found.sends))
    monkeypatch.setattr(states, "_receive", receive)
    monkeypatch.setattr(states.random, "uniform", lambda low, high: 0.01)
    found.download = lambda **options: states.download(Node(), "run", OWN, **options)
    return found


def test_a_donor_that_is_busy_is_asked_again_until_it_is_not(swarm):
    answers = [states._Busy()] * 5 + [replace(OWN, step=4)]
    swarm.sends = {"one": lambda: answers.pop(0)}
    assert swarm.download(seconds=30.0).step == 4
    assert swarm.asked == ["one"] * 6  # more often than a donor that fails is


def test_another_donor_is_asked_before_the_busy_one_is_waited_for(swarm):
    swarm.sends = {"one": states._Busy(), "two": replace(OWN, step=4)}
    assert swarm.download(seconds=30.0).donor == "two"
    assert swarm.asked == ["one", "two"]


def test_those_who_are_there_are_asked_before_those_who_may_have_left(swarm):
    swarm.sends = {"gone": ConnectionError("no answer"), "there": replace(OWN, step=4)}
    assert swarm.download(seconds=30.0, present=lambda: {"there"}).donor == "there"
    assert swarm.asked == ["there"]
    assert swarm.download(seconds=30.0).donor == "there"
    assert swarm.asked == ["there", "gone", "there"]


def test_waiting_for_busy_donors_ends_when_the_time_is_up(swarm):
    swarm.sends = {"one": states._Busy()}
    begun = time.monotonic()
    assert swarm.download(seconds=0.5) is None
    assert 0.5 <= time.monotonic() - begun < 5


def test_if_those_ahead_send_what_nobody_has_the_checkpoint_is_what_is_left(swarm, caplog):
    swarm.sends = {"forger": replace(OWN, step=9, weights=FOREIGN), "coordinator": replace(OWN, step=6)}
    told = {"forger": {9: sketch(FOREIGN)}, "a": {9: sketch(OWN.weights)}, "b": {9: sketch(OWN.weights)}}
    found = swarm.download(seconds=30.0, told=lambda: told)
    assert (found.step, found.donor) == (6, "coordinator")
    assert "forger is not used: 2 of 2 others have other weights at step 9" in caplog.text


def test_if_no_two_have_the_same_weights_one_of_them_is_taken_at_last(swarm, caplog):
    swarm.sends = {"one": replace(OWN, step=9), "two": replace(OWN, step=9, weights=FOREIGN)}
    told = {"one": {9: sketch(OWN.weights)}, "two": {9: sketch(FOREIGN)}}
    assert swarm.download(seconds=30.0, told=lambda: told).step == 9
    assert len(swarm.asked) == 2 * states.ROUNDS  # they may agree a little later
    assert "is used all the same" in caplog.text


def test_who_only_lags_waits_for_nobodys_word_and_does_not_ask_itself(swarm):
    swarm.sends = {"one": replace(OWN, step=9)}
    told = {"me": {8: sketch(FOREIGN)}, "a": {8: sketch(FOREIGN)}}
    begun = time.monotonic()
    assert swarm.download(seconds=30.0, told=lambda: told).step == 9
    assert time.monotonic() - begun < 0.5
    assert swarm.download(seconds=30.0, told=lambda: {"me": {9: sketch(FOREIGN)}}, vote_seconds=30.0).step == 9
    assert time.monotonic() - begun < 1


def test_what_is_older_than_ones_own_is_no_way_out(swarm):
    swarm.sends = {"coordinator": replace(OWN, step=6)}
    assert swarm.download(seconds=5.0, at_least=7) is None


def test_a_member_sends_its_state_to_a_few_at_a_time(monkeypatch):
    go = {}

    async def slow(self, request, context):
        yield averaging_pb2.DownloadData(metadata=b"first")
        await go["on"].wait()
        yield averaging_pb2.DownloadData(metadata=b"last")

    monkeypatch.setattr(TrainingStateAverager, "rpc_download_state", slow)
    averager = PeerStateAverager.__new__(PeerStateAverager)
    averager._parent_pid = 0  # nothing to shut down

    async def all_of(stream):
        return [part.metadata async for part in stream]

    async def run():
        go["on"] = asyncio.Event()
        begun = [asyncio.create_task(all_of(averager.rpc_download_state(None, None))) for _ in range(UPLOADS)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        refused = await all_of(averager.rpc_download_state(None, None))
        broken = averager.rpc_download_state
        go["on"].set()
        served = await asyncio.gather(*begun)
        half = broken(None, None)
        await anext(half)
        await half.aclose()  # who goes away half-way leaves its place
        return refused, served, [await all_of(averager.rpc_download_state(None, None)) for _ in range(UPLOADS)]

    refused, served, later = asyncio.run(run())
    assert [MSGPackSerializer.loads(one) for one in refused] == [{"busy": True}]
    assert served == later == [[b"first", b"last"]] * UPLOADS
