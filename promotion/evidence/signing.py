"""Signatures of evidence: detached, with Ed25519 keys in OpenSSH or PEM format, without a network.

The signed content is DSSE's pre-authentication encoding of the file
(secure-systems-lab, "DSSE: Dead Simple Signing Envelope", protocol), so a signature is
valid for one media type only.
"""

from __future__ import annotations

import base64
import os
from dataclasses import asdict, replace
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from core.errors import FormatError, RequestError
from core.frozen import frozen
from core.records import read_json
from promotion.storage.stored_records import dump_record

EVIDENCE_TYPE = "application/vnd.jax-rocm.evidence+json"
SUFFIX = ".sig"
"""Suffix of the signature beside a file."""
SCHEMA_VERSION = 1
_KIND = "ssh-ed25519"


@frozen
class Signature:
    """A detached signature, in the file beside what it signs.

    Attributes:
        key: public key in OpenSSH format, without comment: `ssh-ed25519 AAAA…`.
        signature: signature of the file and its media type (DSSE), in base64.
    """

    key: str
    signature: str

    def __post_init__(self) -> None:
        base64.b64decode(self.signature, validate=True)

    def dump(self) -> bytes:
        """Return the text of a signature file."""
        return dump_record(asdict(self), schema=SCHEMA_VERSION)


class Signer:
    """A signer with one private key.

    Args:
        text: the unencrypted key, as `ssh-keygen -t ed25519` or `openssl genpkey
            -algorithm ed25519` writes it.
        origin: origin of the key for error messages, which never contain the key
            itself.

    Raises:
        RequestError: the key is invalid.
    """

    def __init__(self, text: bytes, *, origin: str) -> None:
        self._key = _private_key(text, origin)

    @property
    def key(self) -> str:
        """The public key."""
        return (
            self._key.public_key()
            .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            .decode()
        )

    def sign(self, data: bytes, kind: str) -> Signature:
        """Sign a document; the signature is valid for the media type `kind` only."""
        value = base64.b64encode(self._key.sign(_encoded(data, kind)))
        return Signature(key=self.key, signature=value.decode())


def load_signer(path: Path) -> Signer:
    """Return a signer with the key in a file.

    Raises:
        RequestError: the key is invalid, or others can read the file.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_bytes()
    except OSError as error:
        raise RequestError(
            f"The signing key {path} cannot be read: {error.strerror}.",
            hint="Create one with `ci_build ci keys --out FILE`.",
        ) from error
    if mode & 0o077:
        raise RequestError(
            f"The signing key {path} can be read by others.",
            hint=f"Run `chmod 600 {path}`.",
        )
    return Signer(text, origin=str(path))


def new_key(path: Path) -> Signer:
    """Create a private key that only its owner can read.

    Raises:
        FileExistsError: the file exists.
        RequestError: the path is empty.
    """
    if not path.name:
        raise RequestError(
            f"{path} is not the name of a file.", hint="Name the file of the new key."
        )
    text = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    # The key is written to a temporary file, so the file never contains an incomplete
    # key. A process ID in its name could be that of a killed run in another container.
    part = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(text)
        os.link(part, path)
    finally:
        part.unlink(missing_ok=True)
    return Signer(text, origin=str(path))


def load_signature(data: bytes, name: str) -> Signature:
    """Parse a signature file.

    Raises:
        RequestError: a field is missing, unknown or invalid.
    """
    try:
        found = read_json(data, Signature, name, schema=SCHEMA_VERSION)
        return replace(found, key=public_key(found.key))
    except (FormatError, ValueError) as error:
        raise RequestError(
            f"{name} is not a signature: {error}.", hint="Run the gate again."
        ) from error


def public_key(text: str) -> str:
    """Return a public key without its comment.

    Raises:
        ValueError: it is not an Ed25519 key in OpenSSH format.
    """
    words = text.split()
    try:
        if words[:1] != [_KIND] or len(words) < 2:
            raise ValueError("it does not start with ssh-ed25519")
        load_ssh_public_key(" ".join(words[:2]).encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{text[:80]!r} is not a public key: {error}") from error
    return " ".join(words[:2])


def is_valid_signature(data: bytes, kind: str, signature: Signature) -> bool:
    """Return whether the key in a signature signed the document."""
    key = load_ssh_public_key(signature.key.encode())
    assert isinstance(key, Ed25519PublicKey)
    try:
        key.verify(base64.b64decode(signature.signature), _encoded(data, kind))
    except InvalidSignature:
        return False
    return True


def _encoded(data: bytes, kind: str) -> bytes:
    """Return DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(data), data)


def _private_key(text: bytes, origin: str) -> Ed25519PrivateKey:
    load = load_ssh_private_key if b"OPENSSH" in text else load_pem_private_key
    try:
        key = load(text, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RequestError(
            f"{origin} is not an unencrypted private key: {type(error).__name__}.",
            hint="Create one with `ssh-keygen -t ed25519 -N ''`.",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RequestError(
            f"{origin} is not an Ed25519 key.",
            hint="Create one with `ssh-keygen -t ed25519 -N ''`.",
        )
    return key
