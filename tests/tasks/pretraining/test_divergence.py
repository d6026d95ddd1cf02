from __future__ import annotations

import numpy as np

from tasks.pretraining.divergence import WINDOW, SpikeWatch


def spikes(watch: SpikeWatch, losses) -> list[int]:
    return [number for number, loss in enumerate(losses) if watch.sees_spike(float(loss))]


def test_a_spike_is_steps_in_a_row_above_the_median():
    calm = [3.0] * WINDOW
    assert spikes(SpikeWatch(2.0, 3), [*calm, 5.1, 5.1, 5.1, 5.1]) == [102, 103]
    assert spikes(SpikeWatch(2.0, 3), [*calm, 5.1, 5.1, 4.9, 5.1, 5.1]) == []
    assert spikes(SpikeWatch(2.0, 3), [*calm, 4.9, 4.9, 4.9]) == []
    assert spikes(SpikeWatch(None, 1), [*calm, 99.0]) == []


def test_nothing_is_one_in_the_first_steps():
    assert spikes(SpikeWatch(2.0, 3), [3.0] * (WINDOW - 2) + [9.0] * 4) == []


def test_the_longest_spike_does_not_become_the_median():
    assert spikes(SpikeWatch(2.0, 50), [3.0] * WINDOW + [9.0] * 50) == [149]


def test_the_noise_of_tiny_batches_is_none():
    rng = np.random.default_rng(0)
    falling = 4 + 6 * np.exp(-np.arange(20_000) / 300)
    losses = falling + rng.normal(scale=2.5, size=falling.size) / np.sqrt(2)  # two masked tokens
    assert spikes(SpikeWatch(2.0, 10), losses) == []


def test_it_goes_on_from_a_checkpoint():
    first = SpikeWatch(2.0, 3)
    spikes(first, [3.0] * WINDOW + [6.0, 6.0])
    again = SpikeWatch(2.0, 3)
    again.restore(first.state())
    assert again.above == 2
    assert again.sees_spike(6.0)
