"""Hostile peers in a real swarm on loopback: each named and refused, while the others train as if they were not there.

One sends what are no gradients, another attacks records, handlers and the port. Two honest peers train meanwhile; two
without them are the measure.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import attacks
import member_driver

from tasks.pretraining.settings import PretrainingSettings

HERE = Path(__file__).parent
STEPS = 10
TARGET = 8 * attacks.ROWS
SETTINGS = PretrainingSettings(
    steps=STEPS,
    batch_size=TARGET,
    learning_rate=0.005,
    warmup_steps=1,
    collaborative={
        "matchmaking_seconds": 2.0,
        "averaging_timeout_seconds": 12.0,
        "compression": "float16",
        "average_state_every": 5,
    },
)
LOAD = f"import sys; sys.path.insert(0, {str(HERE)!r}); import attacks; driver = sys.modules['__main__']\n"
MEMORY = 200 * 2**20
"""Bytes by which all processes of a member may grow meanwhile: a gigabyte was announced to it, three times."""


def memory_of(one: Any) -> int:
    process = psutil.Process(one.process.pid)
    return sum(psutil.Process(child.pid).memory_info().rss for child in (process, *process.children(recursive=True)))


def begin(member: Any, name: str, addresses: list[str], run_id: str, code: str) -> Any:
    one = member(name)
    one.addresses = one.ask("start", addresses=addresses, run_id=run_id)
    # teacher, patches: before the averagers' processes are made
    one.ask("run", code=f"{LOAD}driver.ROWS = attacks.ROWS; attacks.learn_from_a_teacher(driver)\n{code}")
    one.identity = one.tell("make", settings=SETTINGS.model_dump_json(), target=TARGET, run_id=run_id)
    return one


@pytest.fixture(scope="module")
def clean(member) -> list[float]:
    """Validation losses of two peers that nobody attacks."""
    one = begin(member, "clean-one", [], "clean", "")
    two = begin(member, "clean-two", one.addresses, "clean", "")
    one.identity(), two.identity()
    training = [
        peer.tell("train", until=STEPS, first=first, others=1, pause=0.1) for peer, first in ((one, 0), (two, 500))
    ]
    assert all(entry["outcome"] == "averaged" for done in training for entry in done(120.0))
    losses = [attacks.validation_loss(member_driver, peer.ask("weights"), SETTINGS) for peer in (one, two)]
    for peer in (one, two):
        peer.kill()
    return losses


@pytest.fixture(scope="module")
def attacked(member, tmp_path_factory) -> SimpleNamespace:
    marker = str(tmp_path_factory.mktemp("code") / "ran")
    one = begin(member, "one", [], "run", "")
    honest = [one, begin(member, "two", one.addresses, "run", "")]
    hostile = begin(member, "hostile", one.addresses, "run", "attacks.send_no_gradients()")
    intruder = begin(member, "intruder", one.addresses, "run", "attacks.believe_everything()")
    for peer in honest:
        peer.identity = peer.identity()
    names = {"hostile": hostile.identity(), "intruder": intruder.identity()}
    before = [memory_of(peer) for peer in honest]
    training = [peer.tell("train", until=STEPS, first=1000 * number, others=1, pause=0.1)
                for number, peer in enumerate(honest)]  # fmt: skip
    hostile.tell("train", until=STEPS, first=10_000, pause=0.1)
    what = f"victim={honest[0].identity!r}, run_id='run'"

    def attack(call: str) -> Any:
        return intruder.tell("run", code=f"{LOAD}answer = attacks.{call}")(120.0)

    found = SimpleNamespace(names=names, marker=marker)
    found.replayed = attack(f"replay(self, {what})")
    found.announced = attack(f"announce(self, {what})")
    found.garbled = attack(f"garble(self, {what}, address={one.addresses[0]!r}, marker={marker!r})")
    found.rounds = [done(240.0) for done in training]
    found.memory = [memory_of(peer) - size for peer, size in zip(honest, before, strict=True)]
    found.losses = [attacks.validation_loss(member_driver, peer.ask("weights"), SETTINGS) for peer in honest]
    found.told = [
        peer.ask("run", code="answer = [dict(self.dht.gate.refused), self.dht.gate.reasons, self.dht.gate.muted]")
        for peer in honest
    ]
    found.logs = [(peer._folder / f"{peer._name}.log").read_text(errors="replace") for peer in honest]
    for peer in (*honest, hostile, intruder):
        peer.kill()
    return found


def test_training_goes_on(attacked):
    for rounds in attacked.rounds:
        assert rounds[-1]["step"] == STEPS
        # once the hostile are muted, all is as usual; a busy machine may still keep the two apart for a step
        later = [(one["outcome"], one["group"]) for one in rounds if one["step"] > STEPS // 2]
        assert later.count(("averaged", 2)) >= 2, rounds


def test_the_validation_loss_is_that_of_the_run_without_them(attacked, clean):
    untrained = attacks.validation_loss(
        member_driver, member_driver.weights_of(member_driver.build(), SETTINGS), SETTINGS
    )
    expected = sum(clean) / 2
    assert expected < 0.8 * untrained  # something was learned
    assert attacked.losses == pytest.approx([expected] * 2, rel=0.03)


@pytest.mark.parametrize("what", ["values that are not finite", "a gradient of", "a tensor of shape"])
def test_who_sends_what_is_no_gradient_is_named(attacked, what):
    said = [f"refused, from {attacked.names['hostile']}: {what}" in log for log in attacked.logs]
    assert any(said), attacked.told


def test_who_does_so_repeatedly_is_muted(attacked):
    for refused, _, muted in attacked.told:
        assert refused[attacked.names["hostile"]] >= 3
        assert attacked.names["hostile"] in muted


def test_the_honest_name_nobody_else(attacked):
    for refused, _, muted in attacked.told:
        assert set(refused) <= set(attacked.names.values())
        assert set(muted) <= set(attacked.names.values())


def test_a_replayed_record_does_not_replace_a_newer_one(attacked):
    assert attacked.replayed == {"stored": [False], "newer": True}


def test_a_gigabyte_that_is_announced_takes_no_memory(attacked):
    assert len(attacked.announced) == 3
    assert "a message of 1,073,741,824 bytes was announced" in attacked.logs[0]
    assert max(attacked.memory) < MEMORY, attacked.memory


def test_rubbish_is_refused_and_its_sender_named(attacked):
    assert attacked.garbled == 6  # the port goes on taking connections after each piece
    log = attacked.logs[0]
    assert f"refused, from {attacked.names['intruder']}: bytes that are no message" in log


def test_nothing_that_was_sent_is_run(attacked):
    time.sleep(0.1)
    assert not Path(attacked.marker).exists()
