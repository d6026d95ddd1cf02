"""Short summaries of weights, by which members tell whether theirs agree without sending them.

A count sketch (Charikar, Chen and Farach-Colton 2002): every value is added with a random sign to one of ``WIDTH``
sums, the same ones for all members. The distance of two sketches estimates the distance of the weights, with a
standard deviation of ``sqrt(1 / (2 * WIDTH))`` of it, 9 %. It finds weights that went astray; who sets out to forge
weights with the sketch of others can do so, since the signs are known.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTH = 64
"""Sums of a sketch: 256 bytes."""

BLOCK = 2**16
"""Values that are added at a time."""

LENGTH = len(base64.b64encode(bytes(4 * WIDTH)))
"""Characters of a sketch."""


@functools.cache
def _signs() -> NDArray[np.float32]:
    return np.random.default_rng(0).choice(np.array([-1.0, 1.0], dtype=np.float32), 2 * BLOCK)


def sketch(weights: Sequence[torch.Tensor]) -> str:
    """The sketch of weights in this order."""
    sums, number = np.zeros(WIDTH), 0
    for weight in weights:
        values = weight.detach().to("cpu", torch.float32).reshape(-1).numpy()
        for first in range(0, len(values), BLOCK):
            block = values[first : first + BLOCK]
            shift = number * 4099 % BLOCK  # else differences that repeat from block to block would all count at once
            signed = np.zeros(-(-len(block) // WIDTH) * WIDTH, dtype=np.float32)
            signed[: len(block)] = block * _signs()[shift : shift + len(block)]
            sums += signed.reshape(-1, WIDTH).sum(axis=0, dtype=np.float64)
            number += 1
    return base64.b64encode(sums.astype("<f4").tobytes()).decode()


def distance(one: str, other: str) -> float:
    """About the relative L2 distance of the weights of two sketches; NaN if one cannot be read or is not finite."""
    try:
        first, second = (_sums(text) for text in (one, other))
    except ValueError:
        return float("nan")
    norm = float(np.linalg.norm(first))
    difference = float(np.linalg.norm(first - second))
    return difference / norm if norm else float(difference > 0)


def _sums(text: str) -> NDArray[Any]:
    raw = base64.b64decode(text, validate=True)
    if len(raw) != 4 * WIDTH:
        raise ValueError(f"{len(raw)} bytes are no sketch")
    return np.frombuffer(raw, dtype="<f4").astype(np.float64)
