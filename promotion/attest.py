"""Attestations for the wheels of a staged set (PEP 740), signed with the identity of the CI job that runs this.

The packages that do it are large and nobody else needs them, so they are not installed by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ci_build.errors import BucketError, MachineError
from ci_build.model import Progress
from promotion.bucket import Bucket, sha256_of
from promotion.layout import StagedSet
from promotion.provenance import provenance_name, provenance_problems
from promotion.stage import raise_if_any, read_staged, stored_problems

if TYPE_CHECKING:
    from pypi_attestations import Attestation

Attest = Callable[[str, str], bytes]
"""File name and sha256 of a wheel -> the text of its provenance file."""

# Fulcio's OIDs of what a certificate says (sigstore/fulcio, docs/oid-info.md).
_ISSUER, _REPOSITORY, _CONFIG = (f"1.3.6.1.4.1.57264.1.{number}" for number in (8, 12, 18))
_GITHUB, _GITLAB = "https://token.actions.githubusercontent.com", "https://gitlab.com"


def attest(bucket: Bucket, staged: StagedSet, sign: Attest, progress: Progress) -> tuple[str, ...]:
    """Put attestations beside the wheels of a staged set that have none; others' releases are left alone.

    Args:
        bucket: where it is staged.
        staged: the set.
        sign: attests one wheel.
        progress: told about each step.

    Returns:
        Names of the wheels that were attested now.

    Raises:
        BucketError: a staged wheel has other bytes than the set says, or what `sign` gave is not of it.
    """
    done = []
    for wheel in read_staged(bucket, staged).wheels:
        name = staged.file(provenance_name(wheel.filename))
        if wheel.as_published or bucket.head(name) is not None:
            continue
        raise_if_any(stored_problems(bucket, staged.file, {wheel.filename: wheel.sha256}), BucketError)
        progress.step(f"attest {wheel.filename}")
        data = sign(wheel.filename, wheel.sha256)
        raise_if_any([*provenance_problems(data, wheel)], BucketError)
        bucket.put_if_absent(name, data, sha256=sha256_of(data))
        done.append(wheel.filename)
    return tuple(done)


@contextmanager
def with_identity() -> Iterator[Attest]:
    """Sign through Sigstore with the identity that the CI service gives this job.

    Raises:
        MachineError: the packages or the identity are missing, or Sigstore refuses.
    """
    try:
        from pypi_attestations import Attestation, AttestationBundle, AttestationError, Distribution, Provenance
        from sigstore.errors import Error as SigstoreError
        from sigstore.models import ClientTrustConfig
        from sigstore.oidc import IdentityToken, detect_credential
        from sigstore.sign import SigningContext
    except ImportError as error:
        raise MachineError(
            f"Attestations need packages that are not installed: {error.name}.",
            hint="Run `.venv/bin/python -m pip install --require-hashes -r build/requirements-attest.lock`.",
        ) from error
    try:
        credential = detect_credential()
        if credential is None:
            raise MachineError(
                "There is no identity here that Sigstore knows.",
                hint="Run it in a CI job that has one; on GitHub Actions the job needs `permissions: id-token: write`.",
            )
        context = SigningContext.from_trust_config(ClientTrustConfig.production())
        with context.signer(IdentityToken(credential)) as signer:

            def sign(filename: str, sha256: str) -> bytes:
                wheel = Distribution(name=filename, digest=sha256)
                attestation = Attestation.sign(signer, wheel)
                publisher = _publisher(attestation)
                attestation.verify(publisher, wheel)
                bundle = AttestationBundle(publisher=publisher, attestations=[attestation])
                text: str = Provenance(version=1, attestation_bundles=[bundle]).model_dump_json()
                return text.encode()

            yield sign
    except (AttestationError, SigstoreError) as error:
        raise MachineError(f"Sigstore did not attest: {error}.", hint="Look whether it can be reached.") from error


def _publisher(attestation: Attestation) -> Any:  # noqa: ANN401 - one of the package's kinds
    """Who signed, as PEP 740 names them, out of what the certificate says."""
    from pypi_attestations import GitHubPublisher, GitLabPublisher

    kind, repository, file = publisher_words(attestation.certificate_claims)
    if kind == "GitHub":
        return GitHubPublisher(repository=repository, workflow=file)
    return GitLabPublisher(repository=repository, workflow_filepath=file)


def publisher_words(claims: Mapping[str, str]) -> tuple[str, str, str]:
    """Kind of CI service, repository and workflow of a certificate's claims.

    Raises:
        MachineError: a service that PEP 740's publishers do not include here.
    """
    issuer, config = claims.get(_ISSUER, ""), claims.get(_CONFIG, "")
    if issuer == _GITHUB:
        found = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)/\.github/workflows/([^@]+)@.+", config)
        kind = "GitHub"
    else:
        found = re.fullmatch(r"https://gitlab\.com/(.+?)//([^@]+)@.+", config) if issuer == _GITLAB else None
        kind = "GitLab"
    if found is None or not claims.get(_REPOSITORY, "").endswith(found[1]):
        raise MachineError(
            f"Sigstore knows this identity, of {issuer or 'nobody'}, but it is no job of GitHub or GitLab.",
            hint="Attest in a job of one of them.",
        )
    return kind, found[1], found[2]
