"""What the members of a swarm tell each other through the DHT: the manifest, each peer's figures, the end.

Every record is JSON, stored under its writer's RSA key and signed with it, so nobody can write in another's name. What
is read is checked against the models below; what does not fit is left out, since a stranger may have written it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.dht.validation import RecordValidatorBase
from hivemind.optim.progress_tracker import LocalTrainingProgress, TrainingProgressSchema
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic import v1 as pydantic_v1  # hivemind's schema validator takes models of this version

from tasks import durable
from tasks.pretraining.collaborative.manifest import Manifest
from tasks.pretraining.collaborative.roles import Role
from tasks.pretraining.collaborative.sharding import Taken
from tasks.pretraining.collaborative.sketch import LENGTH

if TYPE_CHECKING:
    from hivemind import DHT

logger = logging.getLogger(__name__)

Outcome = Literal["averaged", "alone", "no group", "failed"]
"""How a peer got its gradient of a global step: averaged in a group; with no other peer known; without finding a group
in time; or the averaging itself broke off. In the last two it went on with its own gradient."""

STEPS_TOLD = 150
"""Most global steps that a peer's record holds. It holds those that the coordinator has not logged: a handful, unless
there is no coordinator for a while. So many fit into a record, and are 25 minutes of steps of 10 s."""

SKETCHES_TOLD = 4
"""Global steps whose weights a peer's record summarises."""

MANIFEST_KEY = "sahajflow_manifest"
"""Where a joining peer, who knows only an address, finds out what is trained."""

MANIFEST_SECONDS = 120.0
"""A manifest counts so long after it was last written; it is written four times as often."""

MAX_RECORD = 64 * 1024
"""Largest record in characters; a stranger's longer one is not parsed."""


LARGEST = 2**53
"""Largest number in a record: every integer up to it is a float too."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StepEntry(_Record):
    """What one peer put into one global step."""

    step: int = Field(ge=1, le=LARGEST)
    """1 for the first global step."""
    samples: int = Field(ge=0, le=LARGEST)
    """Sequences whose gradients went into it."""
    mlm: float = Field(le=LARGEST, ge=-LARGEST)
    """Sum of the MLM losses in nats over them."""
    masked: int = Field(ge=0, le=LARGEST)
    """Tokens that were to be predicted."""
    order: float | None = Field(le=LARGEST, ge=-LARGEST)
    """Sum of the SOP losses in nats; None without SOP."""
    outcome: Outcome
    group: int = Field(ge=1, le=LARGEST)
    """Peers whose gradients were averaged, this one included."""
    aggregated: float = Field(0.0, ge=0, le=1)
    """Share of all values that this peer averaged for the group: 0 of a client's."""
    matching: float = Field(ge=0, le=LARGEST)
    """Seconds of waiting until the group was complete."""
    reducing: float = Field(ge=0, le=LARGEST)
    """Seconds of the averaging itself."""
    computing: float = Field(ge=0, le=LARGEST)
    """Seconds of forward and backward passes."""


class Sketched(_Record):
    """A summary of a peer's weights after a global step."""

    step: int = Field(ge=0, le=LARGEST)
    sketch: str = Field(max_length=LENGTH)


class PeerRecord(_Record):
    """What a peer tells of itself."""

    name: str = Field(min_length=1, max_length=40)
    role: Role = "peer"
    peer_id: str = Field(max_length=100)
    """libp2p's identity in base58: where its state can be downloaded."""
    state: Literal["starting", "training", "final", "leaving"]
    step: int = Field(ge=0, le=LARGEST)
    """Global steps of its weights."""
    rate: float = Field(ge=0, le=LARGEST)
    """Sequences a second."""
    computed: int = Field(0, ge=0, le=LARGEST)
    """Sequences whose gradients this process has computed, whatever became of them."""
    others: int = Field(0, ge=0, le=LARGEST)
    """Other peers that it knows to be alive."""
    bandwidth: float = Field(0.0, ge=0, le=LARGEST)
    """In Mb/s, by which the averaging is shared out; 0 if it is not known."""
    sketches: tuple[Sketched, ...] = Field((), max_length=SKETCHES_TOLD)
    """Of the newest steps, for those who take a state over."""
    discarded: int = Field(0, ge=0, le=LARGEST)
    """Sequences whose gradients were not finite and were left out."""
    taken: Taken
    steps: tuple[StepEntry, ...] = Field((), max_length=STEPS_TOLD)
    weights: str = Field("", max_length=100)
    """At the end, which weights these are: peers that averaged them with each other tell the same."""
    proof: tuple[float, float] | None = None
    """Loss on one batch before and after a few steps alone, in nats a token; only of a peer that began the swarm."""


class SwarmRecord(_Record):
    """What the coordinator tells everybody."""

    final_step: int = Field(ge=0, le=LARGEST)
    """The step after which peers stop; lowered when the deadline is near."""
    step: int = Field(ge=0, le=LARGEST)
    """Of the coordinator's checkpoint, which it hands to those who join: nobody trains on from an earlier one."""
    go: bool
    """Whether training may begin."""
    released: bool
    """Whether the final weights have been taken, so that peers may leave."""
    taken: Taken
    """What all peers have taken of the present pass, those that have left included."""
    logged: int = Field(0, ge=0, le=LARGEST)
    """The last step that has its line in the log: nobody needs to tell of it any more."""
    told: float = Field(0.0, ge=0, le=LARGEST)
    """When this was told, in seconds since 1970."""
    peer_id: str | None = Field(None, max_length=100)
    """libp2p's identity of the coordinator, which sends data to those who join, and dials them back."""


class PassesRecord(_Record):
    """Whom the coordinator admits."""

    admitted: dict[str, float] = Field(max_length=1000)
    """libp2p identities, each until a moment of the DHT's time."""


class _PassesSchema(pydantic_v1.BaseModel):
    passes: dict[BytesWithPublicKey, pydantic_v1.StrictStr]


class _ContributionsSchema(pydantic_v1.BaseModel):
    contributions: dict[BytesWithPublicKey, pydantic_v1.StrictStr]


class _SwarmSchema(pydantic_v1.BaseModel):
    swarm: dict[BytesWithPublicKey, pydantic_v1.StrictStr]


def load_key(path: Path) -> RSAPrivateKey:
    """The RSA key in a file; a new one is made if there is none. It names a peer, over restarts too."""
    key = RSAPrivateKey()
    if path.exists():
        key.__setstate__({"_private_key": path.read_bytes()})
        return key
    path.parent.mkdir(parents=True, exist_ok=True)
    building = path.with_name(f".{path.name}")
    building.touch(mode=0o600)
    building.write_bytes(key.to_bytes())
    durable.move(building, path)
    return key


def key_digest(public_key: bytes) -> str:
    """16 hexadecimal digits that name a peer, by its key as it stands in the DHT's subkeys."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def validators(run_id: str, key: RSAPrivateKey) -> list[RecordValidatorBase]:
    """What checks records of the run. They have to be equal on all members, or one rejects what the other stores."""
    schemas = [
        SchemaValidator(schema, prefix=run_id)
        for schema in (_ContributionsSchema, _SwarmSchema, _PassesSchema, TrainingProgressSchema)
    ]
    return [*schemas, RSASignatureValidator(key)]


def base58(peer_id: bytes) -> str:
    """A libp2p identity as people see it."""
    return PeerID(peer_id).to_base58()


def sketches_of(peers: Iterable[PeerRecord]) -> dict[str, dict[int, str]]:
    """The sketches that peers tell, by libp2p's identity and global step."""
    return {peer.peer_id: {one.step: one.sketch for one in peer.sketches} for peer in peers if peer.sketches}


_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class Blackboard:
    """Writes and reads the records of one run.

    Args:
        dht: a running DHT that has the run's validators.
        run_id: names the run.
        key: signs what is written.
    """

    dht: DHT
    run_id: str
    key: RSAPrivateKey

    @property
    def subkey(self) -> bytes:
        """This member's name in the DHT."""
        return RSASignatureValidator(self.key).local_public_key

    @property
    def digest(self) -> str:
        """The digest of this member's key."""
        return key_digest(self.subkey)

    def tell_contribution(self, record: PeerRecord, seconds: float) -> Any:
        """Write a peer's record; it counts for so many seconds. Does not wait; returns the future of the writing."""
        return self._store(f"{self.run_id}_contributions", record, seconds)

    def tell_swarm(self, record: SwarmRecord, seconds: float) -> None:
        """Write the coordinator's record. Does not wait."""
        self._store(f"{self.run_id}_swarm", record, seconds)

    def tell_passes(self, admitted: dict[str, float], seconds: float) -> None:
        """Write whom the coordinator admits. Does not wait."""
        self._store(f"{self.run_id}_passes", PassesRecord(admitted=admitted), seconds)

    def passes(self, coordinator: str, timeout: float = 10.0) -> dict[str, float] | None:
        """Whom the coordinator with this key digest admits; None if it has not said so."""
        found = _parsed(self._load(f"{self.run_id}_passes", timeout), PassesRecord).get(coordinator)
        return None if found is None else found.admitted

    def tell_manifest(self, manifest: Manifest) -> None:
        """Write what is trained. Does not wait."""
        self._store(MANIFEST_KEY, manifest, MANIFEST_SECONDS)

    def contributions(self, timeout: float = 10.0) -> dict[str, PeerRecord]:
        """All peers' records by key digest. Empty if the DHT does not answer in time."""
        entries = self._load(f"{self.run_id}_contributions", timeout)
        admitted = {subkey: value for subkey, value in entries.items() if self.dht.gate.admits_owner(subkey)}
        return _parsed(admitted, PeerRecord)

    def swarm(self, coordinator: str, timeout: float = 10.0) -> SwarmRecord | None:
        """The record of the coordinator with this key digest."""
        return _parsed(self._load(f"{self.run_id}_swarm", timeout), SwarmRecord).get(coordinator)

    def _store(self, key: str, record: BaseModel, seconds: float) -> Any:
        return self.dht.store(
            key,
            subkey=self.subkey,
            value=record.model_dump_json(),
            expiration_time=get_dht_time() + seconds,
            return_future=True,
        )

    def _load(self, key: str, timeout: float) -> dict[bytes, Any]:
        return load(self.dht, key, timeout)


def load(dht: DHT, key: str, timeout: float) -> dict[bytes, Any]:
    """The values under a key of the DHT by subkey; empty if there are none or nobody answers in time."""
    try:
        found = dht.get(key, latest=True, return_future=True).result(timeout)
    except Exception as error:
        logger.warning("the DHT did not answer for %s: %r", key, error)
        return {}
    if not isinstance(found, ValueWithExpiration) or not isinstance(found.value, dict):
        return {}
    return {subkey: entry.value for subkey, entry in found.value.items() if isinstance(subkey, bytes)}


def progress_of(dht: DHT, run_id: str, timeout: float = 10.0) -> list[LocalTrainingProgress]:
    """How far the peers are in the present global step, as hivemind's own tracker tells it."""
    found = []
    for value in load(dht, f"{run_id}_progress", timeout).values():
        with contextlib.suppress(ValueError, TypeError):
            entry = LocalTrainingProgress.parse_obj(value)
            fits = max(entry.samples_per_second, entry.samples_accumulated, entry.epoch) <= LARGEST
            if fits and dht.gate.admits(base58(entry.peer_id)):
                found.append(entry)
    return found


def manifests(dht: DHT, timeout: float = 10.0) -> dict[str, Manifest]:
    """The manifests that can be found on a DHT, by the key digest of their coordinators."""
    return _parsed(load(dht, MANIFEST_KEY, timeout), Manifest)


def _parsed(entries: dict[bytes, Any], model: type[_Model]) -> dict[str, _Model]:
    parsed = {}
    for subkey, value in entries.items():
        if not isinstance(value, str) or len(value) > MAX_RECORD:
            continue
        try:
            parsed[key_digest(subkey)] = model.model_validate_json(value)
        except ValidationError as error:
            logger.debug("a record of %s does not fit: %s", key_digest(subkey), error)
    return parsed
