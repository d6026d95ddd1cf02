"""Members of each role in one swarm of real processes, and what stays when all who train have left."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from member_driver import ROWS, build, train_plainly, weights_of

from tasks.pretraining.collaborative.roles import HOLDING, ROLES, TRAINING
from tasks.pretraining.collaborative.state import relative_distance
from tasks.pretraining.settings import PretrainingSettings

STEPS = 3
"""Global steps before all who train leave."""

SETTINGS = PretrainingSettings(
    steps=10,
    batch_size=8 * ROWS,
    optimizer="adamw",
    learning_rate=0.05,
    warmup_steps=2,
    clip_norm=0.5,
    collaborative={
        "matchmaking_seconds": 2.0,
        "averaging_timeout_seconds": 10.0,
        "compression": "none",
        "average_state_every": 2,
    },
)

TAKE = """
took = self.optimizer.load_state_from_peers()
answer = {"took": took, "step": self.optimizer.local_epoch}
"""

LEAVE = """
optimizer = self.optimizer
control = optimizer._look_for_group(optimizer.grad_averager, 99)
control.weight = 0.0  # as one that leaves does, and as a keeper always
control.allow_allreduce()
try:
    complete = control.result(20)["complete"]
except Exception:
    complete = False
answer = {"complete": complete, "began": control.began_allreduce, "refused": dict(optimizer.dht.gate.refused)}
"""

ROUNDS = "answer = [vars(one) for one in self.optimizer.rounds]"


@pytest.fixture(scope="module")
def swarm(member):
    """A peer, a client, an auxiliary and a keeper; then all but the keeper go, and another peer comes."""
    names = {"peer": "one", "client": "behind", "auxiliary": "aux", "keeper": "keeper"}
    members = {role: member(name) for role, name in names.items()}
    addresses = members["keeper"].ask("start")
    starts = [
        members[role].tell("start", addresses=addresses, client=role == "client")
        for role in ("peer", "client", "auxiliary")
    ]
    for done in starts:
        done()
    asked = SETTINGS.model_dump_json()
    results = SimpleNamespace()
    # on a machine that is busy for seconds one member misses the answer of another, so there are further tries
    for run_id in ("first", "second", "third"):
        makes = [
            one.tell("make", settings=asked, target=8 * ROWS, run_id=run_id, role=role, bandwidth=50.0 + 50 * number)
            for number, (role, one) in enumerate(members.items())
        ]
        for done in makes:
            done()
        following = [members[role].tell("follow", until=STEPS) for role in ("auxiliary", "keeper")]
        training = {
            role: members[role].tell("train", until=STEPS, first=first, pause=0.15, others=3)
            for role, first in (("peer", 1000), ("client", 2000))
        }
        results.rounds = {role: done() for role, done in training.items()}
        results.followed = [done() for done in following]
        if all(_took_all_together(rounds) for rounds in results.rounds.values()):
            break
    results.helped = {role: members[role].ask("run", code=ROUNDS) for role in ("auxiliary", "keeper")}
    results.weights = {role: members[role].ask("weights") for role in ("peer", "client", "keeper")}
    for role in ("peer", "client", "auxiliary"):
        members[role].kill()
    late = member("late")
    late.ask("start", addresses=addresses)
    late.ask("make", settings=asked, target=2 * ROWS, run_id=run_id, seed=7)
    results.before = late.ask("weights")
    results.taken, results.late = late.ask("run", code=TAKE), late.ask("weights")
    members["keeper"].ask("run", code=f"self.optimizer.tracker.target_batch_size = {2 * ROWS}")
    follows = members["keeper"].tell("follow", until=STEPS + 1)
    results.next = late.ask("train", until=STEPS + 1, first=3000, pause=0.15, others=1)
    results.next_followed = follows()
    results.next_weights = [late.ask("weights"), members["keeper"].ask("weights")]
    leaves = late.tell("run", code=LEAVE)
    results.left = [members["keeper"].ask("run", code=LEAVE), leaves()]
    return results


def _took_all_together(rounds):
    return [(one["outcome"], one["group"]) for one in rounds] == [("averaged", 2)] * STEPS


def test_every_role_is_one_of_four():
    assert ROLES == ("peer", "client", "auxiliary", "keeper")
    assert set(TRAINING) == {"peer", "client"}
    assert set(HOLDING) == {"peer", "keeper"}


def test_peer_and_client_take_every_step_together(swarm):
    for rounds in swarm.rounds.values():
        assert [(one["step"], one["outcome"], one["group"]) for one in rounds] == [
            (step, "averaged", 2) for step in range(1, STEPS + 1)
        ]
        assert all(one["samples"] > 0 for one in rounds)


def test_a_clients_gradients_count_like_any_others(swarm):
    peer, client = swarm.rounds["peer"], swarm.rounds["client"]
    union = [one["batches"] + other["batches"] for one, other in zip(peer, client, strict=True)]
    expected = train_plainly(SETTINGS, union)
    for weights in swarm.weights.values():
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)
    without = train_plainly(SETTINGS, [one["batches"] for one in peer])
    assert relative_distance(expected, without) > 1e-3


def test_a_client_averages_nothing_and_an_auxiliary_does(swarm):
    assert [one["aggregated"] for one in swarm.rounds["client"]] == [0.0] * STEPS
    helped = swarm.helped["auxiliary"]
    assert max(one["aggregated"] for one in helped) > 0
    assert all(one["samples"] == 0 for role in ("auxiliary", "keeper") for one in swarm.helped[role])
    by_step = [swarm.rounds["peer"], helped, swarm.helped["keeper"]]
    shares = [sum(one["aggregated"] for one in step) for step in zip(*by_step, strict=True)]
    assert shares == pytest.approx([1.0] * STEPS)


def test_the_keeper_has_the_newest_step_and_weights(swarm):
    assert swarm.followed == [STEPS, STEPS]
    assert relative_distance(swarm.weights["peer"], swarm.weights["keeper"]) <= 1e-3
    assert relative_distance(swarm.weights["keeper"], weights_of(build(), SETTINGS)) > 0.01


def test_who_comes_after_all_have_left_gets_the_same_step_and_weights_from_the_keeper(swarm):
    assert swarm.taken == {"took": True, "step": STEPS}
    assert relative_distance(swarm.weights["peer"], swarm.before) > 0.1
    assert relative_distance(swarm.weights["peer"], swarm.late) <= 1e-3


def test_training_goes_on_with_the_keeper(swarm):
    (passed,) = swarm.next
    assert (passed["step"], passed["outcome"], passed["group"]) == (STEPS + 1, "averaged", 1)
    assert swarm.next_followed == STEPS + 1
    assert relative_distance(*swarm.next_weights) <= 1e-3
    assert relative_distance(swarm.late, swarm.next_weights[0]) > 1e-3


def test_a_round_in_which_nobody_has_gradients_is_no_step_and_nobodys_fault(swarm):
    assert all(one["began"] for one in swarm.left)
    assert [one["complete"] for one in swarm.left] == [False, False]
    assert [one["refused"] for one in swarm.left] == [{}, {}]
