"""Whether attestations are good, by Sigstore's own library: signature, certificate, transparency log, identity.

The packages are large and are wanted only where attestations are, so they are not installed by themselves. Where they
are missing nothing passes: what cannot be verified is not good.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from core.errors import MachineError, RequestError
from promotion.evidence.attestations import PUBLIC, AttestationReport, Identity
from promotion.evidence.provenance import provenance_name, provenance_problems

Verify = Callable[[bytes, str, str], AttestationReport]
"""A provenance file, and file name and sha256 of the wheel that it lies beside -> what is to be said of it."""

HOW_TO_INSTALL = "Run `.venv/bin/python -m pip install --require-hashes -r build/requirements-attest.lock`."

# Fulcio's OIDs of what a certificate says (sigstore/fulcio, docs/oid-info.md).
ISSUER, REPOSITORY, DIGEST, REF, CONFIG = (f"1.3.6.1.4.1.57264.1.{number}" for number in (8, 12, 13, 14, 18))
GITHUB, GITLAB = "https://token.actions.githubusercontent.com", "https://gitlab.com"
_TRUST_CONFIG = "application/vnd.dev.sigstore.clienttrustconfig"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """A root of trust.

    Attributes:
        name: PUBLIC, or the SHA-256 of the file that it was read from.
        root: sigstore's TrustedRoot.
        config: sigstore's ClientTrustConfig, which also says where to sign; None for a mere root.
        notes: what a person should know of where it came from.
    """

    name: str
    root: Any
    config: Any = None
    notes: tuple[str, ...] = ()


def missing_packages(error: ImportError) -> MachineError:
    """What to tell a person who lacks the packages."""
    return MachineError(f"Attestations need packages that are not installed: {error.name}.", hint=HOW_TO_INSTALL)


def load_trust(file: Path | None) -> Trust:
    """The root of trust in a file, or that of Sigstore's public instance.

    The public one is brought up to date; where that cannot be, the one that is cached, or came with the packages, is
    taken, and a note says so.

    Args:
        file: a trust configuration or a trusted root, as Sigstore's tools write them.

    Raises:
        MachineError: the packages are missing.
        RequestError: the file is neither.
    """
    try:
        from sigstore.errors import Error as SigstoreError
        from sigstore.models import ClientTrustConfig, TrustedRoot
    except ImportError as error:
        raise missing_packages(error) from error
    if file is None:
        return _public_trust()
    try:
        data = file.read_bytes()
        config = None
        if str(json.loads(data)["mediaType"]).startswith(_TRUST_CONFIG):
            config = ClientTrustConfig.from_json(data)
        root = config.trusted_root if config else TrustedRoot.from_file(str(file))
    except (OSError, ValueError, KeyError, TypeError, SigstoreError) as error:
        raise RequestError(
            f"{file} is no trust configuration of Sigstore: {_first_line(error)}.",
            hint="Give a client trust config or a trusted root (JSON), as Sigstore's tools write them.",
        ) from error
    return Trust(name=sha256(data).hexdigest(), root=root, config=config)


def _public_trust() -> Trust:
    from sigstore.errors import Error as SigstoreError
    from sigstore.errors import TUFError
    from sigstore.models import ClientTrustConfig

    notes: tuple[str, ...] = ()
    try:
        try:
            config = ClientTrustConfig.production()
        except TUFError:
            config = ClientTrustConfig.production(offline=True)
            notes = ("Sigstore's trust root could not be brought up to date: the one of this machine was taken.",)
        return Trust(name=PUBLIC, root=config.trusted_root, config=config, notes=notes)
    except (SigstoreError, OSError, ValueError) as error:
        raise MachineError(
            f"Sigstore's trust root cannot be read: {_first_line(error)}.", hint="Give one with --trust-config."
        ) from error


def lazy_verifier(trust_config: Path | None = None) -> Verify:
    """Verify against a root of trust that is read when the first attestation is seen.

    Where it cannot be read, for whatever reason, that is what is wrong with each attestation.
    """
    made: list[Verify] = []

    def verify(data: bytes, filename: str, digest: str) -> AttestationReport:
        if problems := provenance_problems(data, filename, digest):
            return AttestationReport(wheel=filename, problems=problems)
        try:
            if not made:
                made.append(verifier(load_trust(trust_config)))
        except (MachineError, RequestError) as error:
            text = f"{provenance_name(filename)} cannot be verified. {error.message} {error.hint}".rstrip()
            return AttestationReport(wheel=filename, problems=(text,))
        return made[0](data, filename, digest)

    return verify


def verifier(trust: Trust) -> Verify:
    """Verify against a root of trust.

    Raises:
        MachineError: the packages are missing.
        RequestError: the root cannot be used.
    """
    try:
        from pypi_attestations import Provenance
        from sigstore.errors import Error as SigstoreError
        from sigstore.verify import Verifier
    except ImportError as error:
        raise missing_packages(error) from error
    try:
        by_root = Verifier(trusted_root=trust.root)
    except (SigstoreError, ValueError) as error:
        raise RequestError(
            f"The trust root {trust.name} cannot be used: {_first_line(error)}.", hint="Give a whole --trust-config."
        ) from error

    def verify(data: bytes, filename: str, digest: str) -> AttestationReport:
        if problems := provenance_problems(data, filename, digest):
            return AttestationReport(wheel=filename, problems=problems)
        try:
            signers = [
                _signer(by_root, bundle.publisher, attestation)
                for bundle in Provenance.model_validate_json(data).attestation_bundles
                for attestation in bundle.attestations
            ]
        except Exception as error:  # whatever the library stumbles over in a file is wrong with it
            text = f"{provenance_name(filename)} is not good: {_first_line(error)}."
            return AttestationReport(wheel=filename, problems=(text,), notes=trust.notes)
        return AttestationReport(wheel=filename, signers=tuple(signers), trust=trust.name, notes=trust.notes)

    return verify


class _AnyIdentity:
    """Sigstore's VerificationPolicy that leaves identities to `promotion.evidence.attestations`."""

    def verify(self, cert: object) -> None:
        """Any identity will do here."""


def _signer(by_root: Any, publisher: Any, attestation: Any) -> Identity:  # noqa: ANN401 - the packages' own kinds
    """Who signed an attestation of the right form; raises when it is not good in every respect.

    The library checks the certificate's chain and its own log's word, the proof and the checkpoint of the transparency
    log, that the certificate was valid at that time, the signature, and that the log speaks of this very statement.
    Whose it may be is the policy's to say, so that any identity will do for now.
    """
    from pypi_attestations import AttestationError

    if len(attestation.verification_material.transparency_entries) != 1:
        raise AttestationError("it has several entries of a transparency log, of which one would be looked at")
    kind, payload = by_root.verify_dsse(attestation.to_bundle(), _AnyIdentity())
    if (kind, payload) != ("application/vnd.in-toto+json", attestation.envelope.statement):
        raise AttestationError(f"what was signed is {kind}, and not the statement")
    signer = identity_of(attestation.certificate_claims)
    if (claimed := _claimed(publisher)) != (signer.issuer, signer.repository, signer.workflow):
        raise AttestationError(f"it claims the publisher {' '.join(claimed)}; its certificate is of {signer}")
    return signer


def _claimed(publisher: Any) -> tuple[str, str, str]:  # noqa: ANN401 - one of the packages' kinds
    """Issuer, repository and workflow of whom a provenance file calls its publisher."""
    match publisher.kind:
        case "GitHub":
            return GITHUB, f"https://github.com/{publisher.repository}", f".github/workflows/{publisher.workflow}"
        case "GitLab":
            return GITLAB, f"https://gitlab.com/{publisher.repository}", publisher.workflow_filepath
        case other:
            return str(other), "", ""


def identity_of(claims: Mapping[str, str]) -> Identity:
    """The identity in a certificate.

    Args:
        claims: OID -> what the certificate says of it.

    Raises:
        ValueError: it is of no workflow of a CI service.
    """
    issuer, repository, ref = (claims.get(oid, "") for oid in (ISSUER, REPOSITORY, REF))
    config, digest = claims.get(CONFIG, ""), claims.get(DIGEST, "")
    path, _, at = config.removeprefix(repository).rpartition("@")
    workflow = path.removeprefix("/").removeprefix("/")
    known = config.startswith(f"{repository}/") and at in {ref, digest} - {""}
    if not (issuer and repository and ref and workflow and known):
        raise ValueError(f"its certificate, by {issuer or 'nobody'}, is of no workflow of a CI service")
    return Identity(issuer=issuer, repository=repository, workflow=workflow, ref=ref)


def _first_line(error: Exception) -> str:
    """What an error says, as the middle of a sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if len(text) <= 300 else f"{text[:300]}…").rstrip(".")
