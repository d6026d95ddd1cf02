"""One key for both names of a peer: the one its records are signed with, and the one libp2p encrypts with.

libp2p's identity is a hash of the public key (https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md), so
who knows a key knows which caller holds it.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from hivemind.p2p import PeerID
from hivemind.proto import crypto_pb2
from hivemind.utils.crypto import RSAPrivateKey

from tasks import durable

_SHA_256 = b"\x12\x20"
"""What a multihash of 32 bytes of SHA-256 begins with."""


def identity_of(key: RSAPrivateKey) -> bytes:
    """libp2p's form of a private key."""
    return bytes(crypto_pb2.PrivateKey(key_type=crypto_pb2.KeyType.RSA, data=key.to_bytes()).SerializeToString())


def peer_id_of_private(key: RSAPrivateKey) -> str:
    """libp2p's identity, in base58, of who has this key."""
    return PeerID.from_identity(identity_of(key)).to_base58()


@lru_cache(maxsize=4096)
def peer_id_of(public_key: bytes) -> str:
    """libp2p's identity, in base58, of who has the private key of this one, which is in OpenSSH's form.

    Raises:
        ValueError: it is no RSA key.
    """
    key = load_ssh_public_key(public_key)
    if not isinstance(key, RSAPublicKey):
        raise ValueError("not an RSA key")
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    encoded = crypto_pb2.PublicKey(key_type=crypto_pb2.KeyType.RSA, data=der).SerializeToString()
    return PeerID(_SHA_256 + hashlib.sha256(encoded).digest()).to_base58()


def write_identity(key: RSAPrivateKey, path: Path) -> Path:
    """Write the file that libp2p's daemon reads its key from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    building = path.with_name(f".{path.name}")
    building.unlink(missing_ok=True)
    building.touch(mode=0o600)
    building.write_bytes(identity_of(key))
    durable.move(building, path)
    return path


def key_and_identity(folder: Path, name: str, pass_file: Path | None = None) -> tuple[RSAPrivateKey, Path]:
    """A member's key, of its pass or its own, and the file with the same key for libp2p.

    Args:
        folder: of the keys.
        name: of the member.
        pass_file: from the organiser, where the collaboration asks for one.

    Raises:
        UserError: the pass is none.
    """
    from tasks.pretraining.collaborative import passes, records

    key = records.load_key(folder / f"{name}.rsa") if pass_file is None else passes.read_pass(pass_file).key
    return key, write_identity(key, folder / f"{name}.identity")
