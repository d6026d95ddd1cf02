"""A downloaded state is compared with what others tell of their weights at its step."""

import time

import pytest
import torch

from tasks.pretraining.collaborative.agreement import agreement
from tasks.pretraining.collaborative.sketch import sketch
from tasks.pretraining.collaborative.state import State

STATE = State(7, [torch.arange(1.0, 50.0)], [], [], "donor")
SAME = sketch([STATE.weights[0] * (1 + 1e-3)])
OTHER = sketch([STATE.weights[0] * 1.2])
THIRD = sketch([STATE.weights[0] * 1.4])


@pytest.mark.parametrize(
    ("told", "vote", "problem"),
    [
        ({}, "agreed", None),
        ({"donor": {7: SAME}}, "agreed", None),
        ({"donor": {7: OTHER}}, "outvoted", "it sent other weights of step 7 than it tells of"),
        ({"donor": {7: "nonsense"}}, "outvoted", "it sent other weights of step 7 than it tells of"),
        ({"donor": {7: SAME}, "a": {7: SAME}}, "agreed", None),
        ({"a": {7: OTHER}}, "open", "1 of 1 others have other weights at step 7"),
        ({"a": {7: OTHER}, "b": {7: SAME}}, "agreed", None),
        ({"a": {7: OTHER}, "b": {7: OTHER}}, "outvoted", "2 of 2 others have other weights at step 7"),
        ({"a": {7: OTHER}, "b": {7: THIRD}}, "open", "2 of 2 others have other weights at step 7"),
        (
            {"a": {7: OTHER}, "b": {7: "nonsense"}, "c": {7: SAME}},
            "open",
            "2 of 3 others have other weights at step 7",
        ),
        ({"a": {7: OTHER}, "b": {7: OTHER}, "c": {7: SAME}}, "open", "2 of 3 others have other weights at step 7"),
    ],
)
def test_what_most_tell_decides(told, vote, problem):
    assert agreement(STATE, lambda: told, 5.0) == (vote, problem)


def test_others_may_come_to_that_step_a_little_later():
    begun = time.monotonic()

    def told():
        late = time.monotonic() - begun > 0.3
        return {"a": {7: OTHER} if late else {6: SAME}}

    assert agreement(STATE, told, 5.0) == ("open", "1 of 1 others have other weights at step 7")


def test_if_nobody_comes_to_that_step_the_state_is_taken():
    begun = time.monotonic()
    assert agreement(STATE, lambda: {"a": {6: OTHER}}, 0.3) == ("agreed", None)
    assert 0.3 <= time.monotonic() - begun < 3
