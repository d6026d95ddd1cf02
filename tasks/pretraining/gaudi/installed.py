"""What an interpreter has installed, for another one to ask: run by its path, it prints JSON.

The core and the Gaudi environment are two interpreters. What is asked here imports nothing but the standard library,
so that ``plan`` can ask at once; the version of SynapseAI that optimum-habana was validated with is read in its
source, since importing it takes seconds.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
from pathlib import Path
from typing import Any

LIBRARIES = ("sahajflow", "optimum-habana", "transformers", "torch", "accelerate", "habana-torch-plugin", "deepspeed")
"""Whose versions are told; null for what is not installed."""


def installed() -> dict[str, Any]:
    """``python``, ``libraries`` by name, ``validated`` (SynapseAI's version), ``code`` (see :func:`code_digest`),
    ``bridge`` (whether Habana's is there)."""
    return {
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "validated": validated_synapse(),
        "code": code_digest(),
        "bridge": importlib.util.find_spec("habana_frameworks") is not None,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def code_digest() -> str | None:
    """SHA-256 of the package ``tasks`` as this interpreter would import it; None if it would not.

    Two environments of one version may still hold two states of the code.
    """
    found = importlib.util.find_spec("tasks")
    if found is None or not found.submodule_search_locations:
        return None
    root = Path(next(iter(found.submodule_search_locations)))
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def validated_synapse() -> str | None:
    """The version of SynapseAI that the optimum-habana here was validated with; None if that is not found."""
    try:
        root = importlib.util.find_spec("optimum.habana")
    except ModuleNotFoundError:
        return None
    if root is None or root.origin is None:
        return None
    source = Path(root.origin).parent / "utils" / "misc.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body if source.is_file() else []:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CURRENTLY_VALIDATED_SYNAPSE_VERSION":
            return next((part.value for part in ast.walk(node) if isinstance(part, ast.Constant)), None)  # type: ignore[return-value]
    return None


if __name__ == "__main__":
    print(json.dumps(installed()))
