"""Where the members of a swarm meet: files in its folder that tell local members where to begin, and the network.

``manifest.json`` says what is trained, ``meeting.json`` where the coordinator listens. The coordinator writes both;
``sahajflow join`` writes them for its own peer, from what it found on the DHT.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict

from tasks import durable
from tasks.contract import StageError
from tasks.pretraining.collaborative.manifest import Manifest

if TYPE_CHECKING:
    pass

MEETING_SECONDS = 600.0
"""A local peer waits so long for the coordinator's address: before it, the coordinator reads the data."""


class Meeting(BaseModel):
    """Where to join, and from where to go on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    addresses: tuple[str, ...]
    """Multiaddresses of the coordinator or of other members."""
    coordinator: str
    """Key digest of the coordinator, whose word counts on when to begin and to end."""
    listen: tuple[str, ...]
    """Where this folder's peers listen."""
    checkpoint: str | None = None
    """File with the state to go on from; None: from the first step, or what the swarm has."""


_Model = TypeVar("_Model", bound=BaseModel)


def write(folder: Path, name: str, model: BaseModel) -> None:
    """Write ``<name>.json`` at once or not at all."""
    durable.write_json(folder / f"{name}.json", model.model_dump(mode="json"))


def read(folder: Path, name: str, model: type[_Model], seconds: float = 0.0) -> _Model:
    """Read ``<name>.json``, waiting for it for so long.

    Raises:
        StageError: it does not come.
    """
    deadline = time.monotonic() + seconds
    path = folder / f"{name}.json"
    while not path.exists():
        if time.monotonic() > deadline:
            raise StageError(f"{path} did not appear within {seconds:.0f} s: the coordinator did not start")
        time.sleep(0.1)
    return model.model_validate_json(path.read_text(encoding="utf-8"))


def read_manifest(folder: Path, seconds: float = 0.0) -> Manifest:
    """What is trained."""
    return read(folder, "manifest", Manifest, seconds)
