"""A fixed key that signs evidence in tests."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

SIGNING_KEY = "CI_BUILD_SIGNING_KEY"
"""Environment variable that contains the key."""


def signing_key() -> str:
    """Return the text of the key."""
    key = Ed25519PrivateKey.from_private_bytes(b"for tests only".ljust(32, b"."))
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
