"""The micro-batch of who joins is the fastest that fits, by a clock that the test turns."""

import pytest
import torch

from tasks.pretraining.collaborative import proof


class Machine:
    """Computes a micro-batch of so many sequences in the seconds that it is given; refuses what is too large."""

    def __init__(self, monkeypatch, seconds_of, memory=10**9):
        self.now, self.tried, self.discarded = 0.0, [], 7
        self._seconds_of, self._memory = seconds_of, memory
        monkeypatch.setattr(proof.time, "perf_counter", lambda: self.now)

    def trial_batch(self, rows):
        return rows

    def compute(self, model, rows):
        if rows > self._memory:
            raise torch.OutOfMemoryError("no more")
        self.now += self._seconds_of(rows) * (10 if rows not in self.tried else 1)  # the first of a shape is slow
        self.tried.append(rows)


class Model:
    def zero_grad(self, set_to_none):
        assert set_to_none


@pytest.mark.parametrize(
    ("seconds_of", "seconds", "most", "memory", "rows"),
    [
        (lambda rows: 0.01 + 0.001 * rows, 1.0, 64, 10**9, 64),  # the larger the faster, up to the limit
        (lambda rows: 0.01 + 0.001 * rows, 0.03, 64, 10**9, 16),  # 32 take 42 ms
        (lambda rows: 0.01 + 0.001 * rows, 1.0, 64, 20, 16),  # 32 do not fit
        (lambda rows: 0.1 * rows, 1.0, 64, 10**9, 1),  # nothing is won
        (lambda rows: 5.0, 1.0, 64, 10**9, 1),  # one takes too long already, but there is no less
        (lambda rows: 0.01 + 0.001 * rows, 1.0, 1, 10**9, 1),
    ],
)
def test_the_fastest_that_fits_is_chosen(monkeypatch, seconds_of, seconds, most, memory, rows):
    machine = Machine(monkeypatch, seconds_of, memory)
    assert proof.choose_rows(Model(), machine, seconds, most) == rows
    assert max(machine.tried) <= max(most, 1)
    assert machine.discarded == 0  # what was only measured was not left out


def test_what_gains_nothing_any_more_is_not_tried_for_ever(monkeypatch):
    machine = Machine(monkeypatch, lambda rows: 0.001 * max(rows, 8))
    assert proof.choose_rows(Model(), machine, 1.0, 10**6) == 8
    assert max(machine.tried) < 100
