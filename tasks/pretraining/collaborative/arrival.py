"""How who joins by an address gets to its place: the manifest, what is checked, and the data."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import hivemind

from tasks import locks
from tasks.contract import StageError
from tasks.pretraining.batches import PackedSplit
from tasks.pretraining.collaborative import fetching, identities, joining, machine
from tasks.pretraining.collaborative.fetching import RemoteSplit
from tasks.pretraining.collaborative.manifest import Source
from tasks.pretraining.collaborative.member import Place
from tasks.pretraining.collaborative.process import Stop
from tasks.pretraining.collaborative.roles import TRAINING, Role
from tasks.store import Store

logger = logging.getLogger(__name__)


def arrive(arguments: argparse.Namespace, stop: Stop) -> tuple[Place, PackedSplit | RemoteSplit | None]:
    """The place of a member that joins, and its training split if it trains.

    Args:
        arguments: of the member's command line.
        stop: set when it should leave.

    Raises:
        UserError: the address, this machine or the libraries are of no use.
        StageError: the data does not come.
    """
    folder, name = arguments.folder, arguments.name
    key, identity = identities.key_and_identity(folder / "keys", name, arguments.pass_file)
    role: Role = arguments.role or "peer"
    dht, at, manifest = joining.find(arguments.join, key, identity, client=role == "client")
    word = joining.wait_for_word(dht, manifest, at.coordinator, key)
    coordinator = None if word is None else word.peer_id
    checks = joining.check_libraries(manifest)
    machine.tell_checks(folder, name, checks)
    joining.refuse(checks)
    if role != "client":
        checks += joining.check_place(dht, arguments.join, coordinator)
        cut_off = any(check.name == "reachable" and check.state == "fail" for check in checks)
        machine.tell_checks(folder, name, checks)
        if cut_off and arguments.role is None:
            logger.warning("nobody can connect to this machine: joining as a client")
            role = "client"
            dht.shutdown()
            dht, at, manifest = joining.find(arguments.join, key, identity, client=True)
        else:
            joining.refuse(checks)
    store = Store(arguments.store)
    tokenizer = _artifact(dht, coordinator, manifest.tokenizer, store)
    train: PackedSplit | RemoteSplit | None = None
    if role in TRAINING and arguments.stream:
        if coordinator is None:
            raise StageError("--stream: the coordinator did not say who it is; is it running? Join again")
        train = RemoteSplit(dht, coordinator)
    elif role in TRAINING:
        train = PackedSplit(_artifact(dht, coordinator, manifest.pack, store), "train")
    place = Place(
        dht,
        at,
        manifest,
        name,
        role,
        key,
        tokenizer,
        folder,
        stop,
        bandwidth=arguments.bandwidth,
        micro_batch=arguments.micro_batch,
        joined=True,
    )
    return place, train


def _artifact(dht: hivemind.DHT, coordinator: str | None, source: Source, store: Store) -> Path:
    """An artifact that is in the store, or is brought there."""
    found = joining.locate(source, store.root)
    if found is not None:
        return found
    if coordinator is None:
        raise StageError(f"{source.path}: it is not in {store.root}, and no coordinator sends it; is it running?")
    store.create()
    with locks.held(store.root / "locks" / f"fetched-{source.digest[:16]}.lock"):
        found = joining.locate(source, store.root)  # another member of this machine may have brought it meanwhile
        return found or fetching.fetch(dht, coordinator, source, store)
