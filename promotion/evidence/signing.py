"""Signatures of evidence: Ed25519 keys in OpenSSH's or PEM's form, detached, and no network.

What is signed is DSSE's pre-authentication encoding of the file's bytes (secure-systems-lab, "DSSE: Dead Simple
Signing Envelope", protocol), so that a signature of one kind of document is none of another.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import RequestError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

EVIDENCE_TYPE = "application/vnd.jax-rocm.evidence+json"
SUFFIX = ".sig"
"""A signature lies beside what it is of, under its name with this."""
SCHEMA_VERSION = 1
_KIND = "ssh-ed25519"


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """Who says that bytes are theirs.

    Attributes:
        key: public key as OpenSSH writes it, without comment: `ssh-ed25519 AAAA…`.
        value: the signature, 64 bytes.
    """

    key: str
    value: bytes

    def dump(self) -> bytes:
        """The text of a signature file."""
        body = {"schema": SCHEMA_VERSION, "key": self.key, "signature": base64.b64encode(self.value).decode()}
        return (json.dumps(body, indent=1) + "\n").encode()


class Signer:
    """Signs with one private key.

    Args:
        text: the key, unencrypted, as `ssh-keygen -t ed25519` or `openssl genpkey -algorithm ed25519` writes it.
        origin: where it came from, for errors; the key itself is never shown.

    Raises:
        RequestError: it is no such key.
    """

    def __init__(self, text: bytes, *, origin: str) -> None:
        self._key = _private_key(text, origin)

    @property
    def key(self) -> str:
        """The public key."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()

    def sign(self, data: bytes, kind: str) -> Signature:
        """Sign the bytes of a document of this media type."""
        return Signature(key=self.key, value=self._key.sign(_encoded(data, kind)))


def load_signer(path: Path) -> Signer:
    """A signer with the private key in a file; RequestError when others may read it, or when it is none."""
    try:
        mode, text = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise RequestError(f"The signing key {path} cannot be read: {error.strerror}.", hint="Make one.") from error
    if mode & 0o077:
        raise RequestError(f"The signing key {path} can be read by others.", hint=f"Run `chmod 600 {path}`.")
    return Signer(text, origin=str(path))


def new_key(path: Path) -> Signer:
    """Make a private key that only its owner can read; FileExistsError when there is a file already."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    text = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    path.parent.mkdir(parents=True, exist_ok=True)
    # Readers see no key or the whole of it.
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(text)
        os.link(part, path)
    finally:
        part.unlink(missing_ok=True)
    return Signer(text, origin=str(path))


def load_signature(data: bytes, name: str) -> Signature:
    """Read a signature file; RequestError when it is not one of this schema, field by field."""
    try:
        body = json.loads(data)
        if set(body) != {"schema", "key", "signature"} or body["schema"] != SCHEMA_VERSION:
            raise ValueError(f"it has fields {sorted(body)}")
        return Signature(key=public_key(body["key"]), value=base64.b64decode(body["signature"], validate=True))
    except (ValueError, TypeError, AttributeError, binascii.Error) as error:
        raise RequestError(f"{name} is no signature: {error}.", hint="Run the gate again.") from error


def public_key(text: str) -> str:
    """A public key without its comment; ValueError when it is not one of Ed25519 in OpenSSH's form."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    words = text.split()
    try:
        if words[:1] != [_KIND] or len(words) < 2:
            raise ValueError("it does not begin with ssh-ed25519")
        load_ssh_public_key(" ".join(words[:2]).encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{text[:80]!r} is no public key: {error}") from error
    return " ".join(words[:2])


def is_valid_signature(data: bytes, kind: str, signature: Signature) -> bool:
    """Whether the key that a signature names made it, whoever holds that key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    key = load_ssh_public_key(signature.key.encode())
    assert isinstance(key, Ed25519PublicKey)
    try:
        key.verify(signature.value, _encoded(data, kind))
    except InvalidSignature:
        return False
    return True


def _encoded(data: bytes, kind: str) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(data), data)


def _private_key(text: bytes, origin: str) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    load = load_ssh_private_key if b"OPENSSH" in text else load_pem_private_key
    try:
        key = load(text, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RequestError(
            f"{origin} holds no private key that can be used: {type(error).__name__}.",
            hint="Make one with `ssh-keygen -t ed25519 -N ''`; it must not be encrypted.",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RequestError(f"{origin} holds a key of another kind than Ed25519.", hint="Make one of Ed25519.")
    return key
