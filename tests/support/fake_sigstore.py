"""A private Sigstore for tests; the public one is neither used nor trusted.

FakeFulcio issues certificates, FakeRekor is the log, FakeIdentities issues the token of a CI job. Each has its own
keys. All speak HTTP on loopback like the real services, so the real client signs with them. `trust_config` makes the
real client trust them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.file_server import served

Claims = Mapping[str, str]
Key = ec.EllipticCurvePrivateKey
_SCTS = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_FULCIO = "1.3.6.1.4.1.57264.1."
GITHUB = "https://token.actions.githubusercontent.com"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def sign(key: Key, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def spki(key: Key) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def canonical(value: object) -> bytes:
    """Return JSON in the form of RFC 8785, for ASCII without fractions."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def of_github(repository: str = "owner/name", workflow: str = "release.yml", ref: str = "refs/heads/main") -> Claims:
    """Return the claims of a GitHub Actions job's identity token that certificates contain."""
    home = f"https://github.com/{repository}"
    return {
        "iss": GITHUB,
        "sub": f"repo:{repository}:ref:{ref}",
        "repository": home,
        "config": f"{home}/.github/workflows/{workflow}@{ref}",
        "sha": "1" * 40,
        "ref": ref,
    }


class FakeFulcio:
    """A certificate authority that certifies keys for identities, with its certificate transparency log."""

    def __init__(self) -> None:
        self.key, self.log_key = new_key(), new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a private Sigstore")])
        now = datetime.now(UTC)
        self.root = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1000))
            .not_valid_after(now + timedelta(days=1000))
            .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
            .add_extension(_usage(certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def certify(
        self,
        key: ec.EllipticCurvePublicKey,
        claims: Claims,
        *,
        start: datetime | None = None,
    ) -> x509.Certificate:
        """Return a certificate for ten minutes with the timestamp of the certificate log.

        Args:
            key: key to certify.
            claims: claims of the identity token.
            start: start of its validity; None for now.
        """
        start = start or datetime.now(UTC) - timedelta(seconds=5)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.root.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + timedelta(minutes=10))
            .add_extension(_usage(certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(claims["config"])]), critical=True
            )
        )
        for number, name in ((8, "iss"), (12, "repository"), (13, "sha"), (14, "ref"), (18, "config")):
            text = claims[name].encode()
            value = bytes((0x0C, len(text))) if len(text) < 128 else bytes((0x0C, 0x81, len(text)))
            oid = x509.ObjectIdentifier(f"{_FULCIO}{number}")
            builder = builder.add_extension(x509.UnrecognizedExtension(oid, value + text), critical=False)
        before = builder.sign(self.key, hashes.SHA256())
        scts = self._logged(before.tbs_certificate_bytes)
        return builder.add_extension(x509.UnrecognizedExtension(_SCTS, scts), critical=False).sign(
            self.key, hashes.SHA256()
        )

    def _logged(self, precertificate: bytes) -> bytes:
        """Return a list of one SCT (RFC 6962), in the form of a certificate extension."""
        when = int(datetime.now(UTC).timestamp() * 1000)
        issuer = hashlib.sha256(spki(self.key)).digest()
        entry = issuer + len(precertificate).to_bytes(3, "big") + precertificate
        signature = sign(self.log_key, struct.pack("!BBQH", 0, 0, when, 1) + entry + struct.pack("!H", 0))
        sct = b"\0" + hashlib.sha256(spki(self.log_key)).digest() + struct.pack("!QH", when, 0)
        sct += struct.pack("!BBH", 4, 3, len(signature)) + signature
        one = struct.pack("!H", len(sct)) + sct
        text = struct.pack("!H", len(one)) + one
        return bytes((0x04, len(text))) + text if len(text) < 128 else bytes((0x04, 0x81, len(text))) + text

    def answer(self, body: Mapping[str, Any], token: str, issuer: FakeIdentities) -> Mapping[str, Any]:
        """POST /api/v2/signingCert."""
        claims = issuer.claims_of(token)
        request = x509.load_pem_x509_csr(base64.b64decode(body["certificateSigningRequest"]))
        key = request.public_key()
        assert request.is_signature_valid
        assert isinstance(key, ec.EllipticCurvePublicKey)
        chain = [self.certify(key, claims), self.root]
        pems = [certificate.public_bytes(serialization.Encoding.PEM).decode() for certificate in chain]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": pems}}}


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


class FakeRekor:
    """A transparency log (RFC 6962) that signs its root and its promises."""

    ORIGIN = "rekor.invalid - 1"

    def __init__(self) -> None:
        self.key = new_key()
        self.leaves = [hashlib.sha256(b"\0" + text).digest() for text in (b"first", b"second", b"third")]
        self._lock = threading.Lock()

    @property
    def log_id(self) -> bytes:
        return hashlib.sha256(spki(self.key)).digest()

    def log(self, envelope: Mapping[str, Any], certificate_pem: str) -> dict[str, Any]:
        """Log a DSSE envelope; return the entry as POST /api/v1/log/entries does.

        Args:
            envelope: the envelope as JSON.
            certificate_pem: certificate of the signer, in base64.
        """
        payload = base64.b64decode(envelope["payload"])
        signatures = [{"signature": one["sig"], "verifier": certificate_pem} for one in envelope["signatures"]]
        spec = {
            "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(canonical(envelope)).hexdigest()},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
            "signatures": signatures,
        }
        body = canonical({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
        with self._lock:
            self.leaves.append(hashlib.sha256(b"\0" + body).digest())
            leaves = tuple(self.leaves)
        index = len(leaves) - 1
        entry = {
            "body": b64(body),
            "integratedTime": int(datetime.now(UTC).timestamp()),
            "logID": self.log_id.hex(),
            "logIndex": index,
        }
        proof = {
            "logIndex": index,
            "treeSize": len(leaves),
            "rootHash": root_of(leaves).hex(),
            "hashes": [one.hex() for one in path_of(index, leaves)],
            "checkpoint": self.checkpoint(leaves),
        }
        promise = b64(sign(self.key, canonical(entry)))
        return {**entry, "verification": {"signedEntryTimestamp": promise, "inclusionProof": proof}}

    def checkpoint(self, leaves: Sequence[bytes]) -> str:
        """Return the signed note of a root."""
        note = f"{self.ORIGIN}\n{len(leaves)}\n{b64(root_of(leaves))}\n"
        return f"{note}\n— rekor.invalid {b64(self.log_id[:4] + sign(self.key, note.encode()))}\n"

    def answer(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """POST /api/v1/log/entries."""
        content = body["spec"]["proposedContent"]
        envelope, (verifier,) = json.loads(content["envelope"]), content["verifiers"]
        return {"f" * 64: self.log(envelope, verifier)}


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def _split(size: int) -> int:
    """Return the largest power of two below a size."""
    return 1 << (size - 1).bit_length() - 1


def root_of(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    at = _split(len(leaves))
    return _node(root_of(leaves[:at]), root_of(leaves[at:]))


def path_of(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    """Return the inclusion proof of a leaf, from the leaf to the root."""
    if len(leaves) == 1:
        return []
    at = _split(len(leaves))
    if index < at:
        return [*path_of(index, leaves[:at]), root_of(leaves[at:])]
    return [*path_of(index - at, leaves[at:]), root_of(leaves[:at])]


class FakeIdentities:
    """An issuer that gives jobs their identity tokens and verifies them."""

    def __init__(self) -> None:
        self.key = new_key()

    def token(self, claims: Claims) -> str:
        """Return a JSON web token for Sigstore, valid for ten minutes."""
        now = int(datetime.now(UTC).timestamp())
        body = {**claims, "aud": "sigstore", "iat": now - 5, "nbf": now - 5, "exp": now + 600}
        head = f"{_url(canonical({'alg': 'ES256', 'typ': 'JWT'}))}.{_url(canonical(body))}"
        r, s = decode_dss_signature(sign(self.key, head.encode()))
        return f"{head}.{_url(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def claims_of(self, token: str) -> Claims:
        """Return the claims of a token, or raise InvalidSignature."""
        head, _, signature = token.rpartition(".")
        raw = base64.urlsafe_b64decode(signature + "==")
        pair = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
        self.key.public_key().verify(pair, head.encode(), ec.ECDSA(hashes.SHA256()))
        claims: Claims = json.loads(base64.urlsafe_b64decode(head.partition(".")[2] + "=="))
        return claims


def _url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@dataclass
class FakeSigstore:
    """All services together.

    Attributes:
        url: base URL while they are served; else empty.
    """

    fulcio: FakeFulcio = field(default_factory=FakeFulcio)
    rekor: FakeRekor = field(default_factory=FakeRekor)
    identities: FakeIdentities = field(default_factory=FakeIdentities)
    url: str = "http://127.0.0.1:9"

    def trust_config(self) -> dict[str, Any]:
        """Return the client trust configuration in the format of Sigstore's tools."""
        span = {"start": "2020-01-01T00:00:00Z"}
        service = {"url": self.url, "majorApiVersion": 1, "validFor": span, "operator": "tests"}
        oidc = [{**service, "url": f"{self.url}/oidc"}]
        return {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": self.trusted_root(),
            "signingConfig": {
                "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
                "caUrls": [service],
                "oidcUrls": oidc,
                "rekorTlogUrls": [service],
                "rekorTlogConfig": {"selector": "ANY"},
                "tsaUrls": [],
                "tsaConfig": {"selector": "ANY"},
            },
        }

    def trusted_root(self) -> dict[str, Any]:
        """Return the trusted root of the configuration."""
        span = {"start": "2020-01-01T00:00:00Z"}
        root = self.fulcio.root.public_bytes(serialization.Encoding.DER)
        authority = {
            "subject": {"organization": "tests", "commonName": "a private Sigstore"},
            "uri": self.url,
            "certChain": {"certificates": [{"rawBytes": b64(root)}]},
            "validFor": span,
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [self._log(self.rekor.key)],
            "certificateAuthorities": [authority],
            "ctlogs": [self._log(self.fulcio.log_key)],
            "timestampAuthorities": [],
        }

    def _log(self, key: Key) -> dict[str, Any]:
        public = {
            "rawBytes": b64(spki(key)),
            "keyDetails": "PKIX_ECDSA_P256_SHA_256",
            "validFor": {"start": "2020-01-01T00:00:00Z"},
        }
        return {
            "baseUrl": self.url,
            "hashAlgorithm": "SHA2_256",
            "publicKey": public,
            "logId": {"keyId": b64(hashlib.sha256(spki(key)).digest())},
        }

    def provenance(
        self,
        filename: str,
        sha256: str,
        claims: Claims | None = None,
        *,
        publisher: Mapping[str, str] | None = None,
        start: datetime | None = None,
    ) -> dict[str, Any]:
        """Return a job's provenance object (PEP 740) for a wheel; `start` is that of the certificate."""
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": filename, "digest": {"sha256": sha256}}],
            "predicateType": "https://docs.pypi.org/attestations/publish/v1",
            "predicate": None,
        }
        key, payload = new_key(), json.dumps(statement).encode()
        certificate = self.fulcio.certify(key.public_key(), claims or of_github(), start=start)
        covered = b"DSSEv1 %d %s %d " % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload)) + payload
        signature = sign(key, covered)
        envelope = {"payload": b64(payload), "payloadType": PAYLOAD_TYPE, "signatures": [{"sig": b64(signature)}]}
        pem = b64(certificate.public_bytes(serialization.Encoding.PEM))
        entry = self.rekor.log(envelope, pem)
        attestation = {
            "version": 1,
            "verification_material": {
                "certificate": b64(certificate.public_bytes(serialization.Encoding.DER)),
                "transparency_entries": [as_bundled(entry)],
            },
            "envelope": {"statement": b64(payload), "signature": b64(signature)},
        }
        publisher = publisher or {"kind": "GitHub", "repository": "owner/name", "workflow": "release.yml"}
        return {"version": 1, "attestation_bundles": [{"publisher": publisher, "attestations": [attestation]}]}


def as_bundled(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a log's answer in the form of a bundle."""
    proof = entry["verification"]["inclusionProof"]
    return {
        "logIndex": str(entry["logIndex"]),
        "logId": {"keyId": b64(bytes.fromhex(entry["logID"]))},
        "kindVersion": {"kind": "dsse", "version": "0.0.1"},
        "integratedTime": str(entry["integratedTime"]),
        "inclusionPromise": {"signedEntryTimestamp": entry["verification"]["signedEntryTimestamp"]},
        "inclusionProof": {
            "logIndex": str(proof["logIndex"]),
            "rootHash": b64(bytes.fromhex(proof["rootHash"])),
            "treeSize": str(proof["treeSize"]),
            "hashes": [b64(bytes.fromhex(one)) for one in proof["hashes"]],
            "checkpoint": {"envelope": proof["checkpoint"]},
        },
        "canonicalizedBody": entry["body"],
    }


@contextmanager
def serving(sigstore: FakeSigstore, claims: Claims) -> Iterator[Mapping[str, str]]:
    """Serve on loopback; yields the environment of a CI job on GitHub Actions with these claims."""

    def certificates(handler: BaseHTTPRequestHandler, body: Mapping[str, Any]) -> Mapping[str, Any]:
        token = handler.headers["Authorization"].removeprefix("Bearer ")
        return sigstore.fulcio.answer(body, token, sigstore.identities)

    def entries(_: BaseHTTPRequestHandler, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return sigstore.rekor.answer(body)

    posts: dict[str, Callable[[BaseHTTPRequestHandler, Mapping[str, Any]], Mapping[str, Any]]] = {
        "/api/v2/signingCert": certificates,
        "/api/v1/log/entries": entries,
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                self._give(201, posts[self.path](self, body))
            except InvalidSignature:
                self._give(401, {"code": 16, "message": "the token is not of an issuer that is known here"})

        def do_GET(self) -> None:
            good = self.path == "/token?audience=sigstore" and self.headers["Authorization"] == "bearer of this job"
            self._give(200 if good else 403, {"value": sigstore.identities.token(claims)} if good else {})

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
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of this job",
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{sigstore.url}/token",
        }
