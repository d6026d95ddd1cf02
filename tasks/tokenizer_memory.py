"""How much memory training will take, checked before it begins: a process that runs out of memory is just killed.

The figures per unit lie above what was measured; ``benchmarks/tokenizer_training.py`` prints estimate and use.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from tasks.contract import StageError

BYTES_A_COUNTED_WORD = 250
"""A distinct word while words are counted: its text, its number and its place in the mapping."""

BYTES_A_CHARACTER = 180
"""A character of the distinct pieces while seeds are looked for: two windows of it, sort keys and their order.
Measured: 175 with 1.1 million characters, 146 with 5.5 million."""

BYTES_A_SEED = 1_000
"""A seed piece in the Unigram trainer: its text, its place in the trie, and its sums in every thread."""

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""The container's limit and use of memory, and what ``memory.stat`` beside them calls files that it may give up again,
in the two versions of Linux control groups."""


def available_memory() -> int:
    """Bytes that this process may still take: what the machine has left, or less where a container's limit is near."""
    import psutil

    left = [int(psutil.virtual_memory().available)]
    for limit, use, files in _CGROUPS:
        try:
            held = int(Path(use).read_text())
            for line in Path(use).with_name("memory.stat").read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == files:
                    held -= int(value)
            left.append(int(Path(limit).read_text()) - held)
        except (OSError, ValueError):  # there is no such control group, or "max": no limit
            continue
    return max(0, min(left))


def total_memory() -> int:
    """Bytes that the machine has, or its container may take: the same whatever runs there now."""
    import psutil

    most = [int(psutil.virtual_memory().total)]
    for limit, _, _ in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # there is no such control group, or "max": no limit
            most.append(int(Path(limit).read_text()))
    return min(most)


def training_bytes(characters: int, seeds: int) -> int:
    """Memory that training a Unigram takes beyond what is in use already.

    Args:
        characters: of the distinct pieces, each piece once.
        seeds: pieces that the trainer starts from, at most.
    """
    return characters * BYTES_A_CHARACTER + min(seeds, characters) * BYTES_A_SEED


def check_memory(needed: int, purpose: str, training_characters: int) -> None:
    """Check that there is room for ``needed`` bytes.

    Args:
        needed: bytes still to be taken.
        purpose: what for, as the message says it.
        training_characters: how much text is being trained on; the remedy is less of it.

    Raises:
        StageError: there is not; one line with the remedy.
    """
    available = available_memory()
    if needed > available:
        # Distinct words grow more slowly than text, so half in proportion is on the safe side.
        less = max(10_000, int(training_characters * available / needed) // 2)
        raise StageError(
            f"tokenizer: {purpose} takes about {needed / 1e9:.2f} GB of memory and {available / 1e9:.2f} GB are "
            f"available: set tokenizer.sample_characters to {less} or less, or use a machine with more memory"
        )
