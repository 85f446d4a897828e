"""Credential files of the service of `tests.support.rbe`.

Certificates of a test authority, and a signed token.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import ipaddress
import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Credential files in one folder.

    Attributes:
        folder: folder with `ca.crt`, and `.crt` and `.key` files of `server` and
            `client`.
        secret: secret that signs tokens.
        token: token that the service accepts.
    """

    folder: Path
    secret: Path
    token: str

    @classmethod
    def make(cls, folder: Path) -> Keys:
        """Create credentials for 127.0.0.1."""
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        ca = _certificate("authority", key, "authority", key, ca=True)
        (folder / "ca.crt").write_bytes(ca.public_bytes(Encoding.PEM))
        for name in ("server", "client"):
            own = ec.generate_private_key(ec.SECP256R1())
            made = _certificate(name, own, "authority", key)
            (folder / f"{name}.crt").write_bytes(made.public_bytes(Encoding.PEM))
            (folder / f"{name}.key").write_bytes(
                own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            )
        secret = folder / "secret"
        secret.write_text(secrets.token_hex())
        keys = cls(folder=folder, secret=secret, token=_token(secret.read_text()))
        (folder / "token").write_text(keys.token)
        return keys

    def bazelrc(self, *options: str) -> Path:
        """Write a bazelrc with the certificates, a credential helper and further options."""
        answer = json.dumps({"headers": {"authorization": [f"Bearer {self.token}"]}})
        helper = self.folder / "helper"
        helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")
        helper.chmod(0o755)
        lines = (
            f"--tls_certificate={self.folder}/ca.crt",
            f"--tls_client_certificate={self.folder}/client.crt",
            f"--tls_client_key={self.folder}/client.key",
            f"--credential_helper={helper}",
            *options,
        )
        path = self.folder / "rbe.bazelrc"
        path.write_text("".join(f"build {line}\n" for line in lines))
        return path


def _certificate(
    name: str,
    own: ec.EllipticCurvePrivateKey,
    by: str,
    key: ec.EllipticCurvePrivateKey,
    *,
    ca: bool = False,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(by))
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _token(secret: str) -> str:
    """Return a JSON Web Token (RFC 7519), valid for a day."""
    claims = {"sub": "builder", "exp": int(time.time()) + int(_DAY.total_seconds())}
    body = ".".join(
        _encoded(json.dumps(part).encode())
        for part in ({"alg": "HS256", "typ": "JWT"}, claims)
    )
    return f"{body}.{_encoded(hmac.digest(secret.encode(), body.encode(), hashlib.sha256))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
