"""What a swarm trains: the recipe's settings, which data, and with which versions. A joining peer gets it first."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from tasks import durable
from tasks.identity import canonical, identity_of
from tasks.pretraining.settings import PretrainSettings
from tasks.record import read_record

LIBRARIES = ("sahajflow", "hivemind", "torch", "transformers", "scipy")
"""Libraries whose versions a manifest tells. Peers compute the shares of an averaging each for itself, with SciPy's
solver: with another version they would cut the tensors differently."""


class Source(BaseModel):
    """An artifact that the training reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(pattern="^artifacts/[a-z-]+/[0-9a-f]+$")
    """Below the store of the coordinator, and of everyone who copies it."""
    digest: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """What a swarm trains."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: str = Field(pattern="^sahajflow-[0-9a-f]{16}$")
    settings: PretrainSettings
    tokenizer: Source
    pack: Source
    libraries: dict[str, str]


def make_manifest(settings: PretrainSettings, tokenizer: Path, pack: Path) -> Manifest:
    """The manifest of a training over these artifact folders.

    Runs with equal settings and data have equal names, so a coordinator that was restarted is the same swarm's.
    """
    sources = {name: _source(folder) for name, folder in (("tokenizer", tokenizer), ("pack", pack))}
    named = [identity_of(settings, durable.sha256_of), sources["tokenizer"].digest, sources["pack"].digest]
    digest = hashlib.sha256(canonical(named)).hexdigest()[:16]
    return Manifest(run_id=f"sahajflow-{digest}", settings=settings, libraries=libraries(), **sources)


def libraries() -> dict[str, str]:
    """The versions installed here."""
    return {name: importlib.metadata.version(name) for name in LIBRARIES}


def _source(folder: Path) -> Source:
    return Source(path="/".join(folder.parts[-3:]), digest=read_record(folder).digest)
