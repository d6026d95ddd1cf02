"""Tests that need optimum-habana are collected where it is: in the second environment (``make test-gaudi``).

The SynapseAI runtime is stood in for by what ``synapse/`` holds, and by nothing else.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HAS_OPTIMUM_HABANA = importlib.util.find_spec("optimum") and importlib.util.find_spec("optimum.habana")

collect_ignore = [] if HAS_OPTIMUM_HABANA else ["test_training.py", "test_launch.py", "test_chain.py"]


@pytest.fixture(scope="session")
def gaudi_environment() -> dict[str, str]:
    """Variables for a process of the second environment: with the stand-in, and with its own ``pip`` in front."""
    paths = [str(HERE / "synapse"), str(HERE.parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PATH": os.pathsep.join(programs)}
