"""Passes: an organiser's word on who may take part, for how long, and no longer.

A pass is a file with a key of its own. Its holder signs records with that key and encrypts with it, so that each
member knows a caller by libp2p's identity alone. The organiser keeps a register of what was issued and revoked; the
coordinator reads it and tells all members, in a record under its own key, whom to admit and until when. So revoking
needs nothing of the revoked, and takes as long as that record takes to get around: about two seconds.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey, RSAPublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks import durable
from tasks.contract import UserError
from tasks.identity import canonical
from tasks.pretraining.collaborative.identities import peer_id_of_private
from tasks.pretraining.collaborative.records import load_key

if TYPE_CHECKING:
    from tasks.pretraining.collaborative.gate import Gate
    from tasks.pretraining.collaborative.records import Blackboard

logger = logging.getLogger(__name__)

MOST_PASSES = 800
"""Passes that count at a time: what the record that tells of them has room for."""

LOOK_SECONDS = 0.5
"""How often the coordinator reads the register."""

RECORD_SECONDS = 60.0
"""The word on who is admitted counts so long; it is repeated each second."""


class Pass(BaseModel):
    """What is told of a pass; signed by the organiser."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=40)
    peer_id: str = Field(min_length=1, max_length=100)
    """libp2p's identity of who holds it."""
    issued: float
    expires: float
    """Seconds since 1970."""
    organiser: str
    """Public key, in OpenSSH's form."""
    signature: str = ""

    def signed_text(self) -> bytes:
        """What the signature is of."""
        return canonical(self.model_dump(exclude={"signature"}))

    @property
    def is_genuine(self) -> bool:
        """Whether the organiser that it names has signed it."""
        try:
            key = RSAPublicKey.from_bytes(self.organiser.encode())
            return bool(key.verify(self.signed_text(), self.signature.encode()))
        except (ValueError, TypeError):
            return False


class PassFile(BaseModel):
    """What a volunteer gets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issued_pass: Pass
    private_key: str
    """DER in base64; whoever has it is the holder."""

    @property
    def key(self) -> RSAPrivateKey:
        """The pass' key.

        Raises:
            ValueError: it is none.
        """
        key = RSAPrivateKey.__new__(RSAPrivateKey)
        key.__setstate__({"_private_key": base64.b64decode(self.private_key)})
        return key


class Issued(BaseModel):
    """The register."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    passes: tuple[Pass, ...] = ()
    revoked: tuple[str, ...] = ()
    """Identities whose pass counts no longer."""


class Register:
    """The organiser's key and register, in a folder of its own.

    Args:
        folder: made if it is missing.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._path = folder / "passes.json"

    def read(self) -> Issued:
        """All that was issued.

        Raises:
            UserError: the file is damaged.
        """
        if not self._path.exists():
            return Issued()
        try:
            return Issued.model_validate_json(self._path.read_text(encoding="utf-8"))
        except (ValidationError, UnicodeDecodeError) as error:
            raise UserError(f"{self._path}: is no register of passes ({type(error).__name__}); restore it") from error

    def issue(self, name: str, days: float, file: Path) -> Pass:
        """Issue a pass and write the file for its holder.

        Raises:
            UserError: one of that name counts already, there are too many, or the file exists.
        """
        issued, now = self.read(), time.time()
        if any(one.name == name for one in self.valid(issued)):
            raise UserError(f"{name}: has a pass already; revoke it first, or issue one under another name")
        if len(self.valid(issued)) >= MOST_PASSES:
            raise UserError(f"{MOST_PASSES} passes count already, the most that a swarm can be told of; revoke some")
        if file.exists():
            raise UserError(f"{file}: exists; name another file with --output")
        organiser, key = load_key(self._folder / "organiser.rsa"), RSAPrivateKey()
        unsigned = Pass(
            name=name,
            peer_id=peer_id_of_private(key),
            issued=now,
            expires=now + 86_400 * days,
            organiser=organiser.get_public_key().to_bytes().decode(),
        )
        signed = unsigned.model_copy(update={"signature": organiser.sign(unsigned.signed_text()).decode()})
        written = PassFile(issued_pass=signed, private_key=base64.b64encode(key.to_bytes()).decode())
        self._write(issued.model_copy(update={"passes": (*issued.passes, signed)}))
        building = file.with_name(f".{file.name}")
        building.unlink(missing_ok=True)
        building.touch(mode=0o600)
        building.write_text(written.model_dump_json() + "\n", encoding="utf-8")
        durable.move(building, file)
        return signed

    def revoke(self, name: str) -> Pass:
        """Let the pass of that name count no longer.

        Raises:
            UserError: there is none that counts.
        """
        issued = self.read()
        found = [one for one in self.valid(issued) if one.name == name]
        if not found:
            names = ", ".join(sorted(one.name for one in self.valid(issued))) or "none"
            raise UserError(f"{name}: has no pass that counts; those that do: {names}")
        self._write(issued.model_copy(update={"revoked": (*issued.revoked, *(one.peer_id for one in found))}))
        return found[0]

    def valid(self, issued: Issued) -> list[Pass]:
        """The passes that count now: signed with this organiser's key, not expired, not revoked."""
        path, now = self._folder / "organiser.rsa", time.time()
        if not path.exists():
            return []
        mine = load_key(path).get_public_key().to_bytes().decode()
        return [
            one
            for one in issued.passes
            if one.organiser == mine and one.expires > now and one.peer_id not in issued.revoked and one.is_genuine
        ]

    def _write(self, issued: Issued) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        durable.write_json(self._path, issued.model_dump(mode="json"))


def read_pass(file: Path) -> PassFile:
    """A volunteer's pass.

    Raises:
        UserError: it cannot be read, is not genuine, or has expired.
    """
    try:
        found = PassFile.model_validate_json(file.read_text(encoding="utf-8"))
        genuine = found.issued_pass.is_genuine and peer_id_of_private(found.key) == found.issued_pass.peer_id
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: is no pass ({type(error).__name__}); ask the organiser for the file") from error
    if not genuine:
        raise UserError(f"{file}: was changed after it was signed; ask the organiser for the file again")
    if found.issued_pass.expires < time.time():
        when = time.strftime("%Y-%m-%d", time.gmtime(found.issued_pass.expires))
        raise UserError(f"{file}: expired on {when}; ask the organiser for a new one")
    return found


class Doorkeeper(threading.Thread):
    """In the coordinator: reads the register, and tells its own gate and all members whom to admit.

    Args:
        board: where records are.
        gate: the coordinator's.
        register: of the organiser.
        keys: folder with the keys of local peers, which need no pass.
    """

    def __init__(self, board: Blackboard, gate: Gate, register: Register, keys: Path):
        super().__init__(name="doorkeeper", daemon=True)
        self._board, self._gate, self._register, self._keys = board, gate, register, keys
        self._local: dict[Path, str] = {}
        self._told = 0.0
        self._admitted: dict[str, float] = {}
        gate.ask_for_passes(board.digest, [board.dht.peer_id.to_base58()])
        self.look()
        self.start()

    def run(self) -> None:
        """Look and tell until the process ends."""
        while True:
            time.sleep(LOOK_SECONDS)
            with contextlib.suppress(OSError):
                try:
                    self.look()
                except UserError as error:
                    logger.warning("%s; the passes stay as they were", error)
            if time.monotonic() - self._told > 1.0:
                self._tell()

    def look(self) -> None:
        """Read the register once; what has changed is told at once."""
        for path in self._keys.glob("*.rsa"):
            if path not in self._local and path.stem != "coordinator":
                self._local[path] = peer_id_of_private(load_key(path))
        # the DHT's time is this machine's
        admitted = {one.peer_id: one.expires for one in self._register.valid(self._register.read())}
        admitted |= dict.fromkeys(self._local.values(), get_dht_time() + 10 * 365 * 86_400)
        if admitted.keys() != self._admitted.keys():
            for peer in self._admitted.keys() - admitted.keys():
                logger.warning("%s is admitted no longer", peer)
            self._admitted = admitted
            self._gate.admit(admitted)
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        self._board.tell_passes(self._admitted | {self._board.dht.peer_id.to_base58(): 2**40}, RECORD_SECONDS)
