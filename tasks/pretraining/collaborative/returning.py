"""What a coordinator leaves behind for the one that comes after it, so that peers from elsewhere find it again.

Such peers go on training while there is no coordinator and call its address every few seconds. The one that comes back
has the same keys and the same address; it learns here whom it may expect, and goes on from where the swarm is by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hivemind.dht.crypto import RSASignatureValidator
from pydantic import BaseModel, ConfigDict

from tasks import durable
from tasks.pretraining.collaborative import meeting, records
from tasks.pretraining.collaborative.watch import DIAL_SECONDS, LOOK_SECONDS

FILE = "returning"

RETURN_SECONDS = 2 * (DIAL_SECONDS + LOOK_SECONDS)
"""A coordinator that comes back waits so long for peers that went on without it, and call every ``DIAL_SECONDS``."""


class Left(BaseModel):
    """What is left behind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    elsewhere: bool = False
    """Whether peers from elsewhere took part: they know the address, and go on without a coordinator."""
    port: int | None = None
    """At which the coordinator listened, if the settings leave it to the operating system."""
    final_step: int | None = None
    """The last step, if a deadline has named one: peers end there."""


def read(folder: Path) -> Left:
    """What an earlier coordinator of this swarm's folder left; nothing if there was none."""
    return meeting.read(folder, FILE, Left) if (folder / f"{FILE}.json").exists() else Left()


def write(folder: Path, left: Left) -> None:
    """Leave this for the next coordinator."""
    meeting.write(folder, FILE, left)


def forget(folder: Path) -> None:
    """Nobody has gone on: the next coordinator begins as if there had been none before."""
    durable.remove(folder / f"{FILE}.json")


def listen_again(asked: Sequence[str], left: Left) -> tuple[str, ...]:
    """Where to listen: as asked, but at the port of last time where any is asked for and peers know that one."""
    if not left.elsewhere or left.port is None:
        return tuple(asked)
    return tuple(f"{one.removesuffix('/0')}/{left.port}" if one.endswith("/tcp/0") else one for one in asked)


def port_of(asked: Sequence[str], addresses: Sequence[str]) -> int | None:
    """The port that was got, if any was asked for: both are multiaddresses."""
    if not any(one.endswith("/tcp/0") for one in asked):
        return None
    return next((int(parts[parts.index("tcp") + 1]) for one in addresses if "tcp" in (parts := one.split("/"))), None)


def local_keys(folder: Path) -> frozenset[str]:
    """Key digests of the members that the stage itself has started: they end with it."""
    files = [file for file in (folder / "keys").glob("*.rsa") if file.stem != "coordinator"]
    return frozenset(
        records.key_digest(RSASignatureValidator(records.load_key(file)).local_public_key) for file in files
    )
