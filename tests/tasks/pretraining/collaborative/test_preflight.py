"""Settings that cannot work are refused before any peer trains, with numbers that help."""

from __future__ import annotations

import re

import pytest

from tasks.pretraining.collaborative.preflight import STEPS_OF_MATCHMAKING, problem_with
from tasks.pretraining.engine_settings import CollaborativeSettings
from tasks.pretraining.settings import PretrainingSettings


def settings(batch_size: int, **collaborative: float) -> PretrainingSettings:
    asked = {"matchmaking_seconds": 5.0, "averaging_timeout_seconds": 30.0} | collaborative
    return PretrainingSettings(steps=100, batch_size=batch_size, collaborative=CollaborativeSettings(**asked))


def test_fitting_settings_are_no_problem():
    assert problem_with(settings(1000), [40.0, 60.0]) is None  # exactly twice the matchmaking
    assert problem_with(settings(6000, deadline_minutes=1.0), [40.0, 60.0]) is None  # exactly the whole time


def test_steps_shorter_than_twice_the_matchmaking():
    problem = problem_with(settings(500), [40.0, 60.0])
    assert problem == (
        "pretraining.batch_size: 500 sequences at 100.0 sequences/s of 2 peers take 5.00 s, less than 2 times "
        "pretraining.collaborative.matchmaking_seconds 5: peers could not find each other; raise batch_size to 1,001 "
        "or lower matchmaking_seconds to 2.5"
    )


def test_a_step_longer_than_the_deadline():
    problem = problem_with(settings(6001, deadline_minutes=1.0), [100.0])
    assert problem == (
        "pretraining.batch_size: 6,001 sequences at 100.0 sequences/s of 1 peer take 60.01 s, longer than the whole "
        "run may (pretraining.collaborative.deadline_minutes 1); lower batch_size below 6,000 or raise the deadline"
    )


def test_the_speeds_of_all_peers_count():
    assert problem_with(settings(1000), [100.0]) is None
    assert problem_with(settings(1000), [100.0, 1.0]) is not None
    assert problem_with(settings(6100, deadline_minutes=1.0), [100.0]) is not None
    assert problem_with(settings(6100, deadline_minutes=1.0), [100.0, 2.0]) is None


@pytest.mark.parametrize("batch_size", [8, 37, 61, 100, 117, 333])
@pytest.mark.parametrize("rates", [[13.3, 17.9], [77.7], [1234.5, 0.3]])
def test_the_advice_works(batch_size, rates):
    problem = problem_with(settings(batch_size), rates)
    if problem is None:
        assert batch_size / sum(rates) >= STEPS_OF_MATCHMAKING * 5.0
        return
    assert "\n" not in problem
    larger = int(re.search(r"raise batch_size to ([\d,]+)", problem)[1].replace(",", ""))
    shorter = float(re.search(r"lower matchmaking_seconds to (\S+)$", problem)[1])
    assert problem_with(settings(larger), rates) is None
    assert problem_with(settings(batch_size, matchmaking_seconds=shorter), rates) is None


def test_the_advice_for_the_deadline_works():
    problem = problem_with(settings(5000, deadline_minutes=0.5), [90.5])
    below = int(re.search(r"lower batch_size below ([\d,]+)", problem)[1].replace(",", ""))
    assert problem_with(settings(below - 1, deadline_minutes=0.5), [90.5]) is None
