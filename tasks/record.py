"""The record beside every artifact: what it is, what it was made of, and in which environment."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks import durable
from tasks.contract import LOGS, SCRATCH
from tasks.identity import canonical

RECORD = "record.json"

_PACKAGES = (
    "sahajflow",
    "accelerate",
    "datasets",
    "hivemind",
    "numpy",
    "prefect",
    "pyarrow",
    "scikit-learn",
    "sentencepiece",
    "seqeval",
    "tokenizers",
    "torch",
    "transformers",
)


class Output(BaseModel):
    """One file of an artifact."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    bytes: int
    sha256: str


class Input(BaseModel):
    """One artifact that was read; ``path`` is relative to the store, so that the store can be moved."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    path: str
    digest: str


class Record(BaseModel):
    """What ``record.json`` holds. Times are ISO 8601 in UTC."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    stage: str
    version: int
    fingerprint: str
    identity: dict[str, Any]
    resolved: dict[str, Any]
    inputs: dict[str, Input]
    outputs: dict[str, Output]
    digest: str
    metrics: dict[str, Any]
    started: datetime
    finished: datetime
    seconds: float
    environment: dict[str, Any]


class Damaged(Exception):
    """An artifact does not match its record; the message says in what."""


def read_record(artifact: Path) -> Record:
    """The record of a finished artifact.

    Raises:
        Damaged: there is none, or it does not parse.
    """
    try:
        return Record.model_validate_json((artifact / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Damaged(f"{RECORD} is missing") from None
    except OSError as error:
        raise Damaged(f"{RECORD} cannot be read ({error.strerror})") from None
    except (ValidationError, UnicodeDecodeError):
        raise Damaged(f"{RECORD} does not parse") from None


def verified_record(artifact: Path, *, hashes: bool = False) -> Record:
    """The record, after comparing the artifact's file list and sizes, and with ``hashes`` every file's SHA-256.

    Raises:
        Damaged: something differs; the first difference is named.
    """
    record = read_record(artifact)
    present = {file.relative_to(artifact).as_posix(): file for file in durable.files_in(artifact, without=(RECORD,))}
    for name in sorted(set(record.outputs) | set(present)):
        if name not in present:
            raise Damaged(f"{name} is missing")
        if name not in record.outputs:
            raise Damaged(f"{name} is not in the record")
        size = present[name].stat().st_size
        if size != record.outputs[name].bytes:
            raise Damaged(f"{name} has {size} bytes instead of {record.outputs[name].bytes}")
        if hashes and durable.sha256_of(present[name]) != record.outputs[name].sha256:
            raise Damaged(f"{name} has another content than when it was published")
    return record


def outputs_of(folder: Path) -> dict[str, Output]:
    """Size and hash of every file that a finished stage left in its work folder, without ``scratch``."""
    return {
        file.relative_to(folder).as_posix(): Output(bytes=file.stat().st_size, sha256=durable.sha256_of(file))
        for file in durable.files_in(folder, without=(RECORD, SCRATCH))
    }


def digest_of(outputs: dict[str, Output]) -> str:
    """SHA-256 of the list of output files with their hashes; ``logs/`` holds times and does not count."""
    counted = {name: output.sha256 for name, output in outputs.items() if not name.startswith(f"{LOGS}/")}
    return hashlib.sha256(canonical(counted)).hexdigest()


def environment() -> dict[str, Any]:
    """Where a stage ran: code version, packages, host and cores."""
    return {
        "git": _git_state(),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "host": socket.gethostname(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "argv": sys.argv,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_state() -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout that the code runs from; None for an installed wheel."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        commit, status = (
            subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=True
            ).stdout
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.strip(), "dirty": bool(status.strip())}
