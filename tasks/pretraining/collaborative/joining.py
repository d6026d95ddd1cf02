"""Joining a swarm known only by an address: what it trains, whether this machine fits, and where the data is."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hivemind.dht.crypto import RSASignatureValidator
from hivemind.p2p import PeerID
from hivemind.proto.dht_pb2 import PingRequest
from hivemind.utils import get_dht_time

from tasks.checks import Check
from tasks.contract import StageError, UserError
from tasks.pretraining.collaborative import fetching, meeting, network, records
from tasks.pretraining.collaborative.manifest import Manifest, Source, libraries
from tasks.pretraining.collaborative.serving import DIAL_SECONDS, REACH
from tasks.record import Damaged, verified_record

if TYPE_CHECKING:
    import hivemind
    from hivemind.utils.crypto import RSAPrivateKey

    from tasks.pretraining.collaborative.records import SwarmRecord

logger = logging.getLogger(__name__)

FIND_SECONDS = 60.0
"""How long the manifest is looked for: a coordinator that has just come up tells it within a second."""

EXACT = ("hivemind", "scipy")
"""Libraries that have to be the same on all peers: the protocol, and the solver that shares out an averaging."""

CLOCK_SECONDS = 3.0
"""hivemind takes no records from clocks that are further off; half of it is worth a warning."""

CLOCK_REMEDY = "let this machine set its clock: sudo timedatectl set-ntp true"


def find(
    addresses: Sequence[str], key: RSAPrivateKey, identity: Path, *, client: bool
) -> tuple[hivemind.DHT, meeting.Meeting, Manifest]:
    """Join the DHT at these addresses and read what is trained there.

    Args:
        addresses: of the coordinator or other members.
        key: signs this member's records.
        identity: file with the key for libp2p.
        client: whether nobody will be able to reach this member.

    Raises:
        UserError: nothing is trained there, or more than one thing; or this machine's clock is wrong.
        StageError: nobody answers.
    """
    listen = network.listen_like(addresses)
    try:
        validators = [RSASignatureValidator(key)]
        dht = network.start_dht(listen, addresses, identity, client_mode=client, record_validators=validators)
    except StageError as error:
        if "local time must be" in str(error):
            raise UserError(f"clock: it is more than {CLOCK_SECONDS:g} s off the swarm's; {CLOCK_REMEDY}") from error
        raise
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
    dht.add_validators(records.validators(manifest.run_id, key)[:-1])  # the last one, of signatures, it has
    return dht, meeting.Meeting(addresses=tuple(addresses), coordinator=coordinator, listen=listen), manifest


def check_libraries(manifest: Manifest) -> list[Check]:
    """Whether the libraries here are those of the swarm; hivemind and SciPy have to be."""
    here, found = libraries(), []
    for name, version in manifest.libraries.items():
        if name not in here:
            continue
        told, remedy = f"{here[name]}, the swarm's is {version}", f"pip install {name}=={version}"
        if here[name] == version:
            found.append(Check(name, "ok", told))
        elif name in EXACT:
            found.append(Check(name, "fail", f"{told}: peers would cut the tensors differently", remedy))
        else:
            found.append(Check(name, "warn", told, remedy))
    return found


def check_place(dht: hivemind.DHT, addresses: Sequence[str], coordinator: str | None) -> list[Check]:
    """This machine's clock against the swarm's, and whether others can reach it.

    Args:
        dht: running, not as a client.
        addresses: of the members that were joined.
        coordinator: libp2p's identity of the coordinator, if it is known.
    """
    found = []
    offset = _clock_offset(dht, addresses)
    if offset is not None:
        told = f"{abs(offset):.1f} s {'behind' if offset > 0 else 'before'} the swarm's"
        found.append(Check("clock", "ok" if abs(offset) < CLOCK_SECONDS / 2 else "warn", told, CLOCK_REMEDY))
    reachable = None if coordinator is None else _is_reachable(dht, coordinator)
    if reachable is None:
        found.append(Check("reachable", "warn", "the coordinator did not try it", "see that others can connect here"))
    elif reachable:
        found.append(Check("reachable", "ok", "others can connect to this machine"))
    else:
        found.append(
            Check(
                "reachable", "fail", "nobody can connect to this machine", "open its port, or join with --role client"
            )
        )
    return found


def _clock_offset(dht: hivemind.DHT, addresses: Sequence[str]) -> float | None:
    """Seconds that a member's clock is before this one's; None if none of those at the addresses says."""
    for address in addresses:
        try:
            asked = dht.run_coroutine(partial(_ask_time, peer=address.rpartition("/")[2]), return_future=True)
            return float(asked.result(10.0))
        except Exception as error:
            logger.warning("%s did not say what time it is: %r", address, error)
    return None


async def _ask_time(_: hivemind.DHT, node: Any, peer: str) -> float:
    before = get_dht_time()
    stub = node.protocol.get_stub(PeerID.from_base58(peer))
    answer = await stub.rpc_ping(PingRequest(peer=node.protocol.node_info), timeout=5.0)
    return float(answer.dht_time) - (before + get_dht_time()) / 2


def _is_reachable(dht: hivemind.DHT, coordinator: str) -> bool | None:
    """Whether the coordinator can connect to a port of this machine; None if it does not say."""
    ports = sorted({int(parts[4]) for parts in _visible(dht) if parts[3] == "tcp" and parts[4].isdigit()})
    try:
        told = fetching.tell(dht, coordinator, REACH, json.dumps(ports), 4 * DIAL_SECONDS)
        return bool(json.loads(told)["reachable"])
    except Exception as error:
        logger.warning("the coordinator did not try to reach this machine: %r", error)
        return None


def _visible(dht: hivemind.DHT) -> list[list[str]]:
    return [parts for one in dht.get_visible_maddrs(latest=True) if len(parts := str(one).split("/")) > 4]


def refuse(checks: Sequence[Check]) -> None:
    """Raises UserError with finding and remedy if any of the checks failed."""
    failed = [f"{check.name}: {check.finding}; {check.remedy}" for check in checks if check.state == "fail"]
    if failed:
        raise UserError("; ".join(failed))


def wait_for_word(dht: hivemind.DHT, manifest: Manifest, coordinator: str, key: RSAPrivateKey) -> SwarmRecord | None:
    """The coordinator's newest word; None if there is none for some seconds."""
    board = records.Blackboard(dht, manifest.run_id, key)
    for _ in range(10):
        if (word := board.swarm(coordinator)) is not None:
            return word
        time.sleep(1.0)
    return None


def locate(source: Source, store: Path) -> Path | None:
    """The folder of an artifact in this machine's store, by its digest; None if it is not there."""
    stage = Path(source.path).parent
    for folder in [store / source.path, *sorted((store / stage).glob("*"))]:
        try:
            if folder.is_relative_to(store) and verified_record(folder).digest == source.digest:
                return folder
        except Damaged:
            continue
    return None
