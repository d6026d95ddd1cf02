"""What is looked at before work begins: one finding, whether it will do, and what to do if it will not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    """In a word or two: "driver"."""
    state: Literal["ok", "warn", "fail"]
    """``warn``: it may work all the same."""
    finding: str
    """What is there."""
    remedy: str = ""
    """What to do, exactly; of no use where the state is ``ok``."""
