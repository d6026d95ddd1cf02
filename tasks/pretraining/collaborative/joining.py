"""Joining a swarm known only by an address: what it trains, whether this machine fits, and where the data is."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hivemind.dht.crypto import RSASignatureValidator

from tasks.contract import UserError
from tasks.pretraining.collaborative import meeting, network, records
from tasks.pretraining.collaborative.manifest import Manifest, Source, libraries
from tasks.record import Damaged, verified_record

if TYPE_CHECKING:
    import hivemind
    from hivemind.utils.crypto import RSAPrivateKey

logger = logging.getLogger(__name__)

FIND_SECONDS = 60.0
"""How long the manifest is looked for: a coordinator that has just come up tells it within a second."""

EXACT = ("hivemind", "scipy")
"""Libraries that have to be the same on all peers: the protocol, and the solver that shares out an averaging."""


def find(
    addresses: Sequence[str], key: RSAPrivateKey, identity: Path
) -> tuple[hivemind.DHT, meeting.Meeting, Manifest]:
    """Join the DHT at these addresses and read what is trained there.

    Raises:
        UserError: nothing is trained there, or more than one thing; or other versions are installed here.
        StageError: nobody answers.
    """
    listen = network.listen_like(addresses)
    dht = network.start_dht(listen, addresses, identity, record_validators=[RSASignatureValidator(key)])
    deadline = time.monotonic() + FIND_SECONDS
    while not (found := records.manifests(dht)):
        if time.monotonic() > deadline:
            raise UserError(
                f"{' '.join(addresses)}: no training was found there within {FIND_SECONDS:.0f} s; is this the line "
                "that `sahajflow coordinate` printed, is it still running, and does it ask for a pass (--pass)?"
            )
        time.sleep(1.0)
    if len(found) > 1:
        raise UserError(f"{' '.join(addresses)}: {len(found)} trainings share this DHT; ask for another address")
    coordinator, manifest = next(iter(found.items()))
    _check_libraries(manifest)
    dht.add_validators(records.validators(manifest.run_id, key)[:-1])  # the last one, of signatures, it has
    return dht, meeting.Meeting(addresses=tuple(addresses), coordinator=coordinator, listen=listen), manifest


def _check_libraries(manifest: Manifest) -> None:
    here = libraries()
    for name, version in manifest.libraries.items():
        if name not in here or here[name] == version:
            continue
        if name in EXACT:
            raise UserError(
                f"{name}: the swarm uses {version}, here is {here[name]}: peers would cut the tensors differently; "
                f"pip install {name}=={version}"
            )
        logger.warning("the swarm uses %s %s, here is %s", name, version, here[name])


def locate(source: Source, store: Path) -> Path:
    """The folder of an artifact in this machine's store, by its digest.

    Raises:
        UserError: it is not there; how to get it.
    """
    stage = Path(source.path).parent
    for folder in [store / source.path, *sorted((store / stage).glob("*"))]:
        try:
            if folder.is_relative_to(store) and verified_record(folder).digest == source.digest:
                return folder
        except Damaged:
            continue
    raise UserError(
        f"{store}: the swarm trains on {source.path} (digest {source.digest[:12]}), which is not here; copy that "
        f"folder from the coordinator's store: mkdir -p {store / stage} && "
        f"rsync -a HOST:STORE/{source.path} {store / stage}/"
    )
