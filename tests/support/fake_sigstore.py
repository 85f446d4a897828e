"""A private Sigstore on loopback, with which the real client signs.

The public one is neither used nor trusted.

It has a certificate authority with its certificate log (as Fulcio), a transparency log
(as Rekor), and the endpoint at which a CI job gets its identity token. `trust_config`
makes the real client trust them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.file_server import served

Key = ec.EllipticCurvePrivateKey
HOME = "https://github.com/owner/name"
REF = "refs/heads/main"
CLAIMS = {
    "iss": "https://token.actions.githubusercontent.com",
    "sub": f"repo:owner/name:ref:{REF}",
    "repository": HOME,
    "config": f"{HOME}/.github/workflows/release.yml@{REF}",
    "sha": "1" * 40,
    "ref": REF,
}
"""Claims of the job: those of a token that its certificates contain."""
_SCTS = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_FULCIO = "1.3.6.1.4.1.57264.1."
_VALID = {"start": "2020-01-01T00:00:00Z"}
_FIRST_LEAF = hashlib.sha256(b"\0first").digest()
_JOB = "bearer of this job"


def _sign(key: Key, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _public(key: Key) -> bytes:
    return key.public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )


def _key_id(key: Key) -> bytes:
    return hashlib.sha256(_public(key)).digest()


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _canonical(value: object) -> bytes:
    """Return JSON in the form of RFC 8785, for ASCII without fractions."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _der(tag: int, data: bytes) -> bytes:
    """Return a DER value of up to 255 bytes."""
    length = (len(data),) if len(data) < 128 else (0x81, len(data))
    return bytes((tag, *length)) + data


class FakeSigstore:
    """The keys of all services, and their answers.

    Attributes:
        url: base URL while they are served.
    """

    def __init__(self) -> None:
        self.authority, self.certificate_log, self.log = (
            ec.generate_private_key(ec.SECP256R1()) for _ in range(3)
        )
        self.url = "http://127.0.0.1:9"
        self.name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, "a private Sigstore")]
        )
        self.root = (
            self._certificate(
                self.name,
                self.authority.public_key(),
                timedelta(days=1000),
                authority=True,
            )
            .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
            .sign(self.authority, hashes.SHA256())
        )

    def _certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        valid: timedelta,
        *,
        authority: bool,
    ) -> x509.CertificateBuilder:
        """Return a certificate without its purpose, which is valid from now on."""
        usage = x509.KeyUsage(
            digital_signature=not authority,
            key_cert_sign=authority,
            crl_sign=authority,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        start = datetime.now(UTC) - timedelta(seconds=5)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + valid)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key), critical=False
            )
        )

    def certify(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer POST /api/v2/signingCert.

        A certificate for ten minutes, with the certificate log's timestamp.
        """
        key = x509.load_pem_x509_csr(
            base64.b64decode(body["certificateSigningRequest"])
        ).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(
            self.authority.public_key()
        )
        workflow = x509.SubjectAlternativeName(
            [x509.UniformResourceIdentifier(CLAIMS["config"])]
        )
        builder = (
            self._certificate(
                x509.Name([]), key, timedelta(minutes=10), authority=False
            )
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]),
                critical=False,
            )
            .add_extension(issuer, critical=False)
            .add_extension(workflow, critical=True)
        )
        for number, name in (
            (8, "iss"),
            (12, "repository"),
            (13, "sha"),
            (14, "ref"),
            (18, "config"),
        ):
            value = x509.UnrecognizedExtension(
                x509.ObjectIdentifier(f"{_FULCIO}{number}"),
                _der(0x0C, CLAIMS[name].encode()),
            )
            builder = builder.add_extension(value, critical=False)
        timestamp = self._timestamp(
            builder.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        )
        certificate = builder.add_extension(
            x509.UnrecognizedExtension(_SCTS, timestamp), critical=False
        ).sign(self.authority, hashes.SHA256())
        chain = [
            one.public_bytes(Encoding.PEM).decode() for one in (certificate, self.root)
        ]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}

    def _timestamp(self, precertificate: bytes) -> bytes:
        """Return a list of one SCT (RFC 6962), in the form of a certificate extension."""
        when = int(datetime.now(UTC).timestamp() * 1000)
        entry = (
            _key_id(self.authority)
            + len(precertificate).to_bytes(3, "big")
            + precertificate
        )
        signature = _sign(
            self.certificate_log,
            struct.pack("!BBQH", 0, 0, when, 1) + entry + struct.pack("!H", 0),
        )
        sct = b"\0" + _key_id(self.certificate_log) + struct.pack("!QH", when, 0)
        sct += struct.pack("!BBH", 4, 3, len(signature)) + signature
        return _der(0x04, struct.pack("!HH", len(sct) + 2, len(sct)) + sct)

    def enter(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer POST /api/v1/log/entries.

        Each entry is the second one of a log that signs its root (RFC 6962).
        """
        content = body["spec"]["proposedContent"]
        envelope, (verifier,) = json.loads(content["envelope"]), content["verifiers"]
        payload = base64.b64decode(envelope["payload"])
        spec = {
            "envelopeHash": {
                "algorithm": "sha256",
                "value": hashlib.sha256(_canonical(envelope)).hexdigest(),
            },
            "payloadHash": {
                "algorithm": "sha256",
                "value": hashlib.sha256(payload).hexdigest(),
            },
            "signatures": [
                {"signature": one["sig"], "verifier": verifier}
                for one in envelope["signatures"]
            ],
        }
        logged = _canonical(
            {
                "apiVersion": "0.0.1",
                "kind": "dsse",
                "spec": spec,
            }
        )
        root = hashlib.sha256(
            b"\1" + _FIRST_LEAF + hashlib.sha256(b"\0" + logged).digest()
        ).digest()
        note = f"rekor.invalid - 1\n2\n{_b64(root)}\n"
        signed = _b64(_key_id(self.log)[:4] + _sign(self.log, note.encode()))
        entry = {
            "body": _b64(logged),
            "integratedTime": int(datetime.now(UTC).timestamp()),
            "logID": _key_id(self.log).hex(),
            "logIndex": 1,
        }
        proof = {
            "logIndex": 1,
            "treeSize": 2,
            "rootHash": root.hex(),
            "hashes": [_FIRST_LEAF.hex()],
            "checkpoint": f"{note}\n— rekor.invalid {signed}\n",
        }
        promise = _b64(_sign(self.log, _canonical(entry)))
        return {
            "f" * 64: {
                **entry,
                "verification": {
                    "signedEntryTimestamp": promise,
                    "inclusionProof": proof,
                },
            }
        }

    def token(self) -> str:
        """Return the job's token, a JSON web token for ten minutes.

        Nobody here verifies its signature.
        """
        now = int(datetime.now(UTC).timestamp())
        body = {
            **CLAIMS,
            "aud": "sigstore",
            "iat": now - 5,
            "nbf": now - 5,
            "exp": now + 600,
        }
        parts = (
            _canonical({"alg": "ES256", "typ": "JWT"}),
            _canonical(body),
            b"unsigned",
        )
        return ".".join(
            base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts
        )

    def trust_config(self) -> dict[str, Any]:
        """Return the client trust configuration in the format of Sigstore's tools."""
        service = {
            "url": self.url,
            "majorApiVersion": 1,
            "validFor": _VALID,
            "operator": "tests",
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": self.trusted_root(),
            "signingConfig": {
                "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
                "caUrls": [service],
                "oidcUrls": [{**service, "url": f"{self.url}/oidc"}],
                "rekorTlogUrls": [service],
                "rekorTlogConfig": {"selector": "ANY"},
                "tsaUrls": [],
                "tsaConfig": {"selector": "ANY"},
            },
        }

    def trusted_root(self) -> dict[str, Any]:
        """Return the trusted root of the configuration."""
        authority = {
            "subject": {"organization": "tests", "commonName": "a private Sigstore"},
            "uri": self.url,
            "certChain": {
                "certificates": [
                    {"rawBytes": _b64(self.root.public_bytes(Encoding.DER))}
                ]
            },
            "validFor": _VALID,
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [self._log(self.log)],
            "certificateAuthorities": [authority],
            "ctlogs": [self._log(self.certificate_log)],
            "timestampAuthorities": [],
        }

    def _log(self, key: Key) -> dict[str, Any]:
        public = {
            "rawBytes": _b64(_public(key)),
            "keyDetails": "PKIX_ECDSA_P256_SHA_256",
            "validFor": _VALID,
        }
        log_id = {"keyId": _b64(_key_id(key))}
        return {
            "baseUrl": self.url,
            "hashAlgorithm": "SHA2_256",
            "publicKey": public,
            "logId": log_id,
        }


@contextmanager
def serving(sigstore: FakeSigstore) -> Iterator[Mapping[str, str]]:
    """Serve on loopback; yields the environment of a CI job on GitHub Actions."""
    posts: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
        "/api/v2/signingCert": sigstore.certify,
        "/api/v1/log/entries": sigstore.enter,
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._give(201, posts[self.path](body))

        def do_GET(self) -> None:
            assert self.path == "/token?audience=sigstore"
            assert self.headers["Authorization"] == _JOB
            self._give(200, {"value": sigstore.token()})

        def _give(self, status: int, value: Mapping[str, Any]) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
            pass

    with served(Handler) as address:
        sigstore.url = f"http://{address}"
        yield {
            "GITHUB_ACTIONS": "true",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": _JOB.removeprefix("bearer "),
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{sigstore.url}/token",
        }
