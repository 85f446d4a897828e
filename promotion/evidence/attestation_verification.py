"""Verify attestations with Sigstore's library.

Signature, certificate, transparency log and publisher.

The packages are large and needed for attestations only, so they are installed
separately. Without them every attestation is reported as a problem.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
ISSUER, REPOSITORY, REF, CONFIG = (
    f"1.3.6.1.4.1.57264.1.{number}" for number in (8, 12, 14, 18)
)
WORKFLOWS = ".github/workflows/"


@frozen
class Trust:
    """A root of trust, with the services that sign.

    Attributes:
        name: PUBLIC, or the SHA-256 of the trust configuration.
        config: sigstore's ClientTrustConfig.
        verifier: sigstore's Verifier.
        notes: remarks about the origin of the root of trust, for the user.
    """

    name: str
    config: Any
    verifier: Any
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
        file: a client trust configuration, as Sigstore's tools write it.

    Raises:
        MachineError: the packages are missing, or the public root cannot be read.
        RequestError: the file is not a trust configuration.
    """
    try:
        # Imported here because the packages are optional.
        from sigstore.errors import Error as SigstoreError
        from sigstore.errors import TUFError
        from sigstore.models import ClientTrustConfig
        from sigstore.verify import Verifier
    except ImportError as error:
        raise missing_packages(error) from error
    name = PUBLIC
    notes: tuple[str, ...] = ()
    try:
        if file is not None:
            data = file.read_bytes()
            name = sha256(data).hexdigest()
            config = ClientTrustConfig.from_json(data)
        else:
            try:
                config = ClientTrustConfig.production()
            except TUFError:
                config = ClientTrustConfig.production(offline=True)
                text = "Sigstore's trust root could not be updated; the cached one is used."
                notes = (text,)
        verifier = Verifier(trusted_root=config.trusted_root)
    except (SigstoreError, OSError, ValueError) as error:
        kind = RequestError if file else MachineError
        place = file or "Sigstore's trust root"
        raise kind(
            f"{place} cannot be read: {_first_line(error)}.",
            hint="Give --trust-config with a client trust configuration (JSON).",
        ) from error
    return Trust(name=name, config=config, verifier=verifier, notes=notes)


def lazy_verifier(trust_config: Path | None = None) -> Verify:
    """Return a verifier that loads the root of trust for the first attestation.

    If the root of trust cannot be loaded, the report of each attestation contains this
    problem.
    """
    load = functools.cache(lambda: verifier(load_trust(trust_config)))

    def verify(data: bytes, filename: str, digest: str) -> AttestationReport:
        try:
            by_root = load()
        except (MachineError, RequestError) as error:
            text = f"{provenance_name(filename)} cannot be verified. {error}"
            return AttestationReport(wheel=filename, problems=(text,))
        return by_root(data, filename, digest)

    return verify


def verifier(trust: Trust) -> Verify:
    """Return a verifier for a root of trust; MachineError if the packages are missing."""
    try:
        # Imported here because the packages are optional.
        from pypi_attestations import Provenance
    except ImportError as error:
        raise missing_packages(error) from error

    def verify(data: bytes, filename: str, digest: str) -> AttestationReport:
        problems = provenance_problems(data, filename, digest)
        signers: list[Identity] = []
        try:
            if not problems:
                for bundle in Provenance.model_validate_json(data).attestation_bundles:
                    for attestation in bundle.attestations:
                        signers.append(_signer(trust, bundle.publisher, attestation))
        except Exception as error:  # any failure of the library is one of the file
            text = f"{provenance_name(filename)} is invalid: {_first_line(error)}."
            problems = (text,)
        return AttestationReport(
            wheel=filename,
            signers=() if problems else tuple(signers),
            trust=trust.name,
            problems=problems,
            notes=trust.notes,
        )

    return verify


def _signer(trust: Trust, publisher: Any, attestation: Any) -> Identity:  # noqa: ANN401 - the packages' own classes
    """Return the signer of a well-formed attestation; raises when it is invalid.

    The library verifies the signature, the certificate's chain, transparency and
    validity at the time of the log entry, the log's inclusion proof and checkpoint, that
    the log entry is for this statement, and that the certificate is for the publisher.
    The policy checks the identity later.
    """
    if len(attestation.verification_material.transparency_entries) != 1:
        raise ValueError(
            "an attestation must have exactly one entry of a transparency log"
        )
    # `Attestation.verify` of the library accepts the public root of trust alone.
    signed = trust.verifier.verify_dsse(attestation.to_bundle(), publisher._as_policy())
    if signed != ("application/vnd.in-toto+json", attestation.envelope.statement):
        raise ValueError(
            f"the signed content, of type {signed[0]}, is not the statement"
        )
    claims = attestation.certificate_claims
    return Identity(
        issuer=claims[ISSUER],
        repository=claims[REPOSITORY],
        workflow=WORKFLOWS + publisher.workflow,
        ref=claims[REF],
    )


def _first_line(error: Exception) -> str:
    """Return the text of an error on one line, shortened and without the final full stop."""
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if len(text) <= 300 else f"{text[:300]}…").rstrip(".")
