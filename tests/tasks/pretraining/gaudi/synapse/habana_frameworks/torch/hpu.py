"""Stands in for the SynapseAI runtime's memory statistics, which GaudiTrainer asks for at every line of its log."""

import os
from typing import Any

OPS_AT_IMPORT = os.environ.get("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST")
"""The real bridge reads this when it is loaded."""


def memory_stats(device: Any = None) -> dict[str, int]:
    return {"InUse": 0, "MaxInUse": 0, "Limit": 0}
