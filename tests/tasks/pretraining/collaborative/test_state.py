"""A downloaded state is the donor's to the bit, fits, and comes in time or not at all."""

from __future__ import annotations

import copy
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from member_driver import ROWS, build, train_plainly, weights_of

from tasks.pretraining.collaborative.state import State, problem_with, relative_distance, state_of
from tasks.pretraining.optimizers import build_optimizer, fill_state
from tasks.pretraining.settings import PretrainingSettings

ADAMW = PretrainingSettings(steps=10, learning_rate=0.05)
LAMB = PretrainingSettings(steps=10, learning_rate=0.05, optimizer="lamb")
LATE = 3.0
"""How much later than its limit a download may end, on a busy machine."""


def state(settings: PretrainingSettings = LAMB, width: int = 16) -> State:
    optimizer = build_optimizer(build(0, width), settings)
    fill_state(optimizer)
    return state_of(optimizer, 0)


@pytest.fixture(params=[ADAMW, LAMB], ids=["adamw", "lamb"])
def own(request) -> State:
    return state(request.param)


def changed(tensors: list[torch.Tensor], number: int, tensor: torch.Tensor) -> list[torch.Tensor]:
    return [*tensors[:number], tensor, *tensors[number + 1 :]]


def test_a_state_is_a_copy_with_everything():
    model = build()
    optimizer = build_optimizer(model, LAMB)
    fill_state(optimizer)
    found = state_of(optimizer, 7)
    assert (found.step, found.donor, len(found.weights), len(found.optimizer)) == (7, "", 6, 12)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 1
        for values in optimizer.state.values():
            values["exp_avg"] += 1
    assert relative_distance(found.weights, weights_of(build(), LAMB)) == 0
    assert all(not tensor.any() for tensor in found.optimizer)


def test_a_fitting_state_has_no_problem(own):
    other = copy.deepcopy(own)
    for tensor in (*other.weights, *other.optimizer):
        tensor += 1
    assert problem_with(other, own) is None
    # the rates differ from step to step, and travel as any number
    rates = [
        {**entry, "value": 0} if entry.get("value") == 0.05 and isinstance(entry["value"], float) else entry
        for entry in other.metadata
    ]
    assert rates != other.metadata
    assert problem_with(replace(other, metadata=rates, step=5, donor="Qm"), own) is None


def test_each_misfit_of_the_tensors_is_named(own):
    weight, moment = own.weights[0], own.optimizer[0]
    problems = {
        "5 weights instead of 6": replace(own, weights=own.weights[:-1]),
        "0 weights instead of 6": replace(own, weights=[], optimizer=[]),
        f"{len(own.optimizer) + 1} optimiser tensors instead of {len(own.optimizer)}": replace(
            own, optimizer=[*own.optimizer, moment]
        ),
        "weights 0 is torch.float32[6, 16], not torch.float32[16, 6]": replace(
            own, weights=changed(own.weights, 0, weight.T)
        ),
        "weights 0 is torch.float32[1, 16, 6], not torch.float32[16, 6]": replace(
            own, weights=changed(own.weights, 0, weight[None])
        ),
        "weights 1 is torch.float16[3, 16], not torch.float32[3, 16]": replace(
            own, weights=changed(own.weights, 1, own.weights[1].half())
        ),
        "weights 5 is not finite": replace(own, weights=changed(own.weights, 5, own.weights[5] * torch.nan)),
        "weights 3 is not finite": replace(own, weights=changed(own.weights, 3, own.weights[3] - torch.inf)),
        "optimiser tensors 1 is not finite": replace(
            own, optimizer=changed(own.optimizer, 1, own.optimizer[1] / torch.zeros(()))
        ),
    }
    assert {said: problem_with(other, own) for said, other in problems.items()} == {said: said for said in problems}


def test_another_model_does_not_fit(own):
    assert "[17, 6], not torch.float32[16, 6]" in problem_with(state(width=17), replace(state(), metadata=[]))


def test_another_optimizers_state_does_not_fit():
    adamw, lamb = state(ADAMW), state(LAMB)
    assert "18 optimiser tensors instead of 12" in problem_with(adamw, lamb)
    assert problem_with(replace(lamb, metadata=adamw.metadata), lamb) == "another optimiser's state"


HOSTILE: dict[str, Any] = {
    "no entry": 5,
    "nothing": None,
    "a list": [],
    "no type": {},
    "another type": {"type": "pickle", "value": 1},
    "a tensor's place": {"type": "tensor", "index": 0},
    "no value": {"type": "value"},
    "a text": {"type": "value", "value": "0.1"},
    "many values": {"type": "value", "value": [0.1] * 10},
    "a truth": {"type": "value", "value": True},
    "not a number": {"type": "value", "value": float("nan")},
    "infinity": {"type": "value", "value": float("inf")},
}


@pytest.mark.parametrize("entry", HOSTILE.values(), ids=HOSTILE)
def test_hostile_values_in_the_metadata_are_refused(own, entry):
    number = next(number for number, one in enumerate(own.metadata) if one.get("value") == 1e-6)  # epsilon
    metadata = [*own.metadata[:number], entry, *own.metadata[number + 1 :]]
    assert problem_with(replace(own, metadata=metadata), own) == "another optimiser's state"


def test_hostile_places_of_tensors_are_refused(own):
    number = next(number for number, one in enumerate(own.metadata) if one["type"] == "tensor")
    for place in (1, -1, 10**6, 0.0, None, "0", [0]):
        entry = {"type": "tensor", "index": place}
        metadata = [*own.metadata[:number], entry, *own.metadata[number + 1 :]]
        assert problem_with(replace(own, metadata=metadata), own) == "another optimiser's state", place


def test_metadata_of_another_length_is_refused(own):
    for metadata in (own.metadata[:-1], [*own.metadata, own.metadata[-1]], []):
        assert problem_with(replace(own, metadata=metadata), own) == "another optimiser's state"


def test_relative_distance():
    one, other = [torch.tensor([3.0, 4.0]), torch.zeros(2, 2)], [torch.tensor([3.0, 4.0]), torch.full((2, 2), 0.25)]
    assert relative_distance(one, one) == 0
    assert relative_distance(one, other) == pytest.approx(0.5 / 5)
    assert relative_distance(other, one) == pytest.approx(0.5 / 25.25**0.5)
    assert relative_distance([torch.zeros(2)], [torch.ones(2)]) == 1
    assert relative_distance([torch.zeros(2)], [torch.zeros(2)]) == 0
    # not lost in fp32's rounding, and not hidden if it is none
    large = torch.full((10_000,), 1e4)
    assert relative_distance([large], [large + 1e-2]) == pytest.approx(1e-6, rel=0.1)
    assert not relative_distance([large], [large * torch.nan]) <= 1e-3
    with pytest.raises(ValueError, match="zip"):
        relative_distance(one, one[:1])


@pytest.fixture(scope="module")
def processes(member):
    return member("donor"), member("newcomer")  # at once, since importing takes longest


@pytest.fixture(scope="module")
def donor(processes):
    one, _ = processes
    one.addresses = one.ask("start")
    one.peer = one.ask("make", settings=LAMB.model_dump_json(), target=2 * ROWS)
    one.rounds = one.ask("train", until=3, first=0)
    return one


@pytest.fixture(scope="module")
def newcomer(processes, donor):
    _, one = processes
    one.ask("start", addresses=donor.addresses)
    one.ask("make", settings=LAMB.model_dump_json(), target=2 * ROWS, run_id="elsewhere", seed=1)
    return one


def assert_none_in_time(result: dict[str, Any], seconds: float) -> None:
    assert result["found"] is None
    assert result["seconds"] < seconds + LATE


def test_a_download_is_the_donors_state_to_the_bit(donor, newcomer):
    result = newcomer.ask("download", seconds=20.0, at_least=3)
    found, sent = result["found"], donor.ask("state")
    assert result["seconds"] < 10
    assert (found["step"], found["donor"]) == (3, donor.peer)
    assert [len(found[name]) for name in ("weights", "optimizer")] == [6, 12]
    for name in ("weights", "optimizer"):
        assert all(one.equal(other) for one, other in zip(found[name], sent[name], strict=True))
    assert found["metadata"] == sent["metadata"]
    steps = [one["batches"] for one in donor.rounds]
    torch.testing.assert_close(found["weights"], train_plainly(LAMB, steps), rtol=1e-5, atol=1e-6)
    assert newcomer.ask("download", seconds=20.0, only=[donor.peer])["found"]["step"] == 3


def test_who_takes_a_state_over_goes_on_as_the_donor_would(donor, newcomer):
    answer = newcomer.ask(
        "run",
        code="""
self.optimizer.take_over(state.download(self.dht, "run", self.optimizer.own_state(), seconds=20.0))
answer = self.optimizer.local_epoch, self.optimizer.tracker.local_progress.epoch
""",
    )
    assert answer == (3, 3)
    rounds = newcomer.ask("train", until=5, first=100)
    assert [(one["step"], one["outcome"]) for one in rounds] == [(4, "alone"), (5, "alone")]
    steps = [one["batches"] for one in (*donor.rounds, *rounds)]
    torch.testing.assert_close(newcomer.ask("weights"), train_plainly(LAMB, steps), rtol=1e-5, atol=1e-6)


def test_a_donor_does_not_change_how_the_optimizer_works(newcomer):
    """Its recipe does that: a state with another decay or epsilon is refused, or these are not taken over."""
    answer = newcomer.ask(
        "run",
        code="""
import dataclasses
own, optimizer = self.optimizer.own_state(), self.optimizer.state_averager.optimizer
def groups():
    return [{name: group[name] for name in group if name not in ("params", "lr")} for group in optimizer.param_groups]
before, answer = groups(), {}
for number, entry in enumerate(own.metadata):
    if isinstance(entry.get("value"), float) and entry["value"] != self.settings.learning_rate:
        metadata = [*own.metadata[:number], {"type": "value", "value": 0.5}, *own.metadata[number + 1 :]]
        changed = dataclasses.replace(own, metadata=metadata)
        if state.problem_with(changed, own) is None:
            self.optimizer.take_over(changed)
        answer[str(number)] = groups() == before
        self.optimizer.take_over(own)
""",
    )
    assert len(answer) >= 8
    assert answer == dict.fromkeys(answer, True)


def test_nobody_offers_a_state(newcomer):
    assert_none_in_time(newcomer.ask("download", run_id="nobody", seconds=1.0), 1.0)


def test_a_donor_that_is_behind_is_refused(donor, newcomer):
    assert_none_in_time(newcomer.ask("download", seconds=1.0, at_least=4), 1.0)


def test_a_donor_with_another_model_is_refused(donor, newcomer):
    code = """
optimizer = build_optimizer(build(width=17), self.settings)
fill_state(optimizer)
started = time.monotonic()
found = state.download(self.dht, "run", state.state_of(optimizer, 0), seconds=1.0)
answer = {"found": found, "seconds": time.monotonic() - started}
"""
    assert_none_in_time(newcomer.ask("run", code=code), 1.0)


STRANGE_OFFERS = """
from hivemind.utils import get_dht_time
for subkey, value in SUBKEYS:
    self.dht.store("run_state_averager.all_averagers", subkey=subkey, value=value, expiration_time=get_dht_time() + 30)
"""


def test_strange_offers_do_not_hide_the_true_ones(donor, newcomer):
    offers = "[(b'not a peer', 1e9), (b'', 5), ('a text', 7.0), (b'of no kind', 'x'), (b'inf', float('inf'))]"
    newcomer.ask("run", code=STRANGE_OFFERS.replace("SUBKEYS", offers))
    result = newcomer.ask("download", seconds=20.0)
    assert result["found"]["donor"] == donor.peer
    assert result["seconds"] < 20


def test_offers_under_a_name_that_is_no_bytes_do_not_hide_the_true_ones(donor, newcomer):
    newcomer.ask("run", code=STRANGE_OFFERS.replace("SUBKEYS", "[(5, 1.0)]"))
    result = newcomer.ask("download", seconds=10.0)
    assert result["found"] is not None
    assert result["found"]["donor"] == donor.peer


def test_a_donor_that_hangs_and_one_that_is_killed_are_given_up(donor, newcomer):
    donor.signal(signal.SIGSTOP)
    assert_none_in_time(newcomer.ask("download", seconds=1.5, only=[donor.peer]), 1.5)
    donor.kill()
    assert_none_in_time(newcomer.ask("download", seconds=1.5, only=[donor.peer]), 1.5)
    assert_none_in_time(newcomer.ask("download", seconds=1.5), 1.5)


def test_a_download_ends_in_time_when_the_own_network_is_gone(newcomer):
    newcomer.ask("run", code="import signal\nos.kill(self.dht.pid, signal.SIGSTOP)")
    assert_none_in_time(newcomer.ask("download", seconds=1.0), 1.0)


def test_a_download_of_a_named_peer_ends_in_time_when_the_own_network_is_gone(donor, newcomer):
    newcomer.ask("run", code="import signal\nos.kill(self.dht.pid, signal.SIGSTOP)")
    assert_none_in_time(newcomer.tell("download", seconds=1.0, only=[donor.peer])(10.0), 1.0)
