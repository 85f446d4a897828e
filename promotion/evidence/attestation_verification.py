"""Verify attestations with Sigstore's library.

Signature, certificate, transparency log and identity.

The packages are large and needed for attestations only, so they are installed
separately. Without them every attestation is reported as a problem.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from core.errors import MachineError, RequestError
from core.frozen import frozen
from promotion.evidence.attestations import (
    PUBLIC,
    AttestationReport,
    Identity,
    provenance_name,
    provenance_problems,
)

Verify = Callable[[bytes, str, str], AttestationReport]
"""Provenance file, and file name and sha256 of its wheel -> report."""

HOW_TO_INSTALL = (
    "Run `.venv/bin/python -m pip install --require-hashes -r"
    " build/requirements-attest.lock`."
)

# Fulcio's OIDs of certificate extensions (sigstore/fulcio, docs/oid-info.md).
ISSUER, REPOSITORY, DIGEST, REF, CONFIG = (
    f"1.3.6.1.4.1.57264.1.{number}" for number in (8, 12, 13, 14, 18)
)
GITHUB = "https://token.actions.githubusercontent.com"
GITHUB_HOST = "https://github.com/"
WORKFLOWS = ".github/workflows/"
_TRUST_CONFIG = "application/vnd.dev.sigstore.clienttrustconfig"


@frozen
class Trust:
    """A root of trust.

    Attributes:
        name: PUBLIC, or the SHA-256 of the file with the root of trust.
        root: sigstore's TrustedRoot.
        config: sigstore's ClientTrustConfig, which also names the signing service. None
            for a plain trusted root.
        notes: remarks about the origin of the root of trust, for the user.
    """

    name: str
    root: Any
    config: Any = None
    notes: tuple[str, ...] = ()


def missing_packages(error: ImportError) -> MachineError:
    """Return the error for missing packages."""
    return MachineError(
        f"Attestations need packages that are not installed: {error.name}.",
        hint=HOW_TO_INSTALL,
    )


def load_trust(file: Path | None) -> Trust:
    """Return the root of trust in a file, or the one of Sigstore's public instance.

    The public root of trust is updated. If the update fails, the cached or packaged one
    is used and a note reports it.

    Args:
        file: a client trust configuration or a trusted root, as Sigstore's tools write
            them.

    Raises:
        MachineError: the packages are missing.
        RequestError: the file is neither a trust configuration nor a trusted root.
    """
    try:
        # Imported here because the packages are optional.
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
            f"{file} is not a trust configuration of Sigstore: {_first_line(error)}.",
            hint=(
                "Give a client trust config or a trusted root (JSON), as Sigstore's"
                " tools write them."
            ),
        ) from error
    return Trust(name=sha256(data).hexdigest(), root=root, config=config)


def _public_trust() -> Trust:
    # Imported here because the packages are optional.
    from sigstore.errors import Error as SigstoreError
    from sigstore.errors import TUFError
    from sigstore.models import ClientTrustConfig

    notes: tuple[str, ...] = ()
    try:
        try:
            config = ClientTrustConfig.production()
        except TUFError:
            config = ClientTrustConfig.production(offline=True)
            notes = (
                "Sigstore's trust root could not be updated; the cached one is used.",
            )
        return Trust(name=PUBLIC, root=config.trusted_root, config=config, notes=notes)
    except (SigstoreError, OSError, ValueError) as error:
        raise MachineError(
            f"Sigstore's trust root cannot be read: {_first_line(error)}.",
            hint="Give --trust-config.",
        ) from error


def lazy_verifier(trust_config: Path | None = None) -> Verify:
    """Return a verifier that loads the root of trust for the first attestation.

    If the root of trust cannot be loaded, the report of each attestation contains this
    problem.
    """
    load = functools.cache(lambda: verifier(load_trust(trust_config)))

    def verify(data: bytes, filename: str, digest: str) -> AttestationReport:
        if problems := provenance_problems(data, filename, digest):
            return AttestationReport(wheel=filename, problems=problems)
        try:
            by_root = load()
        except (MachineError, RequestError) as error:
            text = (
                f"{provenance_name(filename)} cannot be verified. {error.message}"
                f" {error.hint}".rstrip()
            )
            return AttestationReport(wheel=filename, problems=(text,))
        return by_root(data, filename, digest)

    return verify


def verifier(trust: Trust) -> Verify:
    """Return a verifier for a root of trust.

    Raises:
        MachineError: the packages are missing.
        RequestError: the root of trust is invalid.
    """
    try:
        # Imported here because the packages are optional.
        from pypi_attestations import Provenance
        from sigstore.errors import Error as SigstoreError
        from sigstore.verify import Verifier
    except ImportError as error:
        raise missing_packages(error) from error
    try:
        by_root = Verifier(trusted_root=trust.root)
    except (SigstoreError, ValueError) as error:
        raise RequestError(
            f"The trust root {trust.name} is invalid: {_first_line(error)}.",
            hint="Give a complete --trust-config.",
        ) from error

    def verify(data: bytes, filename: str, digest: str) -> AttestationReport:
        if problems := provenance_problems(data, filename, digest):
            return AttestationReport(wheel=filename, problems=problems)
        try:
            signers = []
            for bundle in Provenance.model_validate_json(data).attestation_bundles:
                for attestation in bundle.attestations:
                    signers.append(_signer(by_root, bundle.publisher, attestation))
        except (
            Exception
        ) as error:  # any failure of the library is a problem of the file
            text = f"{provenance_name(filename)} is invalid: {_first_line(error)}."
            return AttestationReport(
                wheel=filename, problems=(text,), notes=trust.notes
            )
        return AttestationReport(
            wheel=filename, signers=tuple(signers), trust=trust.name, notes=trust.notes
        )

    return verify


class _AnyIdentity:
    """A policy that accepts every identity; `promotion.evidence.attestations` checks identities."""

    def verify(self, cert: object) -> None:
        """Accept the certificate."""


def _signer(by_root: Any, publisher: Any, attestation: Any) -> Identity:  # noqa: ANN401 - the packages' own classes
    """Return the signer of a well-formed attestation; raises when it is invalid.

    The library verifies the signature, the certificate's chain, transparency and
    validity at the time of the log entry, the log's inclusion proof and checkpoint, and
    that the log entry is for this statement. The policy checks the identity later.
    """
    # Imported here because the packages are optional.
    from pypi_attestations import AttestationError

    if len(attestation.verification_material.transparency_entries) != 1:
        raise AttestationError(
            "an attestation must have exactly one entry of a transparency log"
        )
    kind, payload = by_root.verify_dsse(attestation.to_bundle(), _AnyIdentity())
    if (kind, payload) != (
        "application/vnd.in-toto+json",
        attestation.envelope.statement,
    ):
        raise AttestationError(
            f"the signed content, of type {kind}, is not the statement"
        )
    signer = identity_of(attestation.certificate_claims)
    claimed = replace(
        signer,
        issuer=GITHUB,
        repository=GITHUB_HOST + publisher.repository,
        workflow=WORKFLOWS + publisher.workflow,
    )
    if claimed != signer:
        raise AttestationError(
            f"it names the publisher {claimed}; the certificate names {signer}"
        )
    return signer


def identity_of(claims: Mapping[str, str]) -> Identity:
    """Return the identity in a certificate.

    Args:
        claims: OID -> value in the certificate.

    Raises:
        ValueError: the certificate is not for a workflow of a CI service.
    """
    issuer, repository, ref = (claims.get(oid, "") for oid in (ISSUER, REPOSITORY, REF))
    config = claims.get(CONFIG, "")
    digest = claims.get(DIGEST, "")
    path, _, at = config.removeprefix(repository).rpartition("@")
    workflow = path.removeprefix("/")
    consistent = config.startswith(f"{repository}/") and at in {ref, digest} - {""}
    if not (issuer and repository and ref and workflow and consistent):
        raise ValueError(
            "the certificate is not for a workflow of a CI service: issuer"
            f" {issuer or 'unknown'}"
        )
    return Identity(issuer=issuer, repository=repository, workflow=workflow, ref=ref)


def _first_line(error: Exception) -> str:
    """Return the text of an error on one line, shortened and without the final full stop."""
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if len(text) <= 300 else f"{text[:300]}…").rstrip(".")
