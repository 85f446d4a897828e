"""Create and verify signed attestations (PEP 740) for the wheels of a staged set.

The packages that sign and verify are large, so they are installed separately;
see `promotion.evidence.attestation_verification`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from core.digests import sha256_of
from core.errors import BucketError, CiBuildError, MachineError, RequestError
from core.frozen import frozen
from core.model import Progress
from promotion.check import verify_attestations
from promotion.evidence.attestation_verification import (
    CONFIG,
    WORKFLOWS,
    load_trust,
    missing_packages,
    verifier,
)
from promotion.evidence.attestations import (
    AttestationReport,
    attestation_problems,
    provenance_name,
    provenance_problems,
    wheels_by_signer,
)
from promotion.policy.promotion_policy import Policy, load_policy
from promotion.stage import raise_if_any, read_staged, stored_problems
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet

SignWheel = Callable[[str, str], bytes]
"""File name and sha256 of a wheel -> the text of its provenance file."""


def attest(
    bucket: Bucket, staged: StagedSet, sign: SignWheel, progress: Progress
) -> tuple[str, ...]:
    """Sign a staged set's wheels that have no attestation, and store the attestations.

    Published releases of other projects are not signed.

    Returns:
        Names of the attested wheels.

    Raises:
        BucketError: a staged wheel differs from the set, or a stored or created
            provenance file names another wheel.
    """
    attested = []
    for wheel in read_staged(bucket, staged).wheels:
        name = staged.file(provenance_name(wheel.filename))
        if wheel.as_published:
            continue
        if known := bucket.read(name):
            hint = "An administrator of the bucket must remove the file."
            raise_if_any(
                provenance_problems(known[0], wheel.filename, wheel.sha256),
                BucketError,
                hint,
            )
            continue
        raise_if_any(
            stored_problems(bucket, staged.file, {wheel.filename: wheel.sha256}),
            BucketError,
        )
        progress.step(f"attest {wheel.filename}")
        data = sign(wheel.filename, wheel.sha256)
        raise_if_any(
            provenance_problems(data, wheel.filename, wheel.sha256), BucketError
        )
        bucket.put_if_absent(name, data, sha256=sha256_of(data))
        attested.append(wheel.filename)
    return tuple(attested)


def job_signer(trust_config: Path | None = None) -> SignWheel:
    """Return a function that signs wheels as the CI job and verifies each signature.

    Args:
        trust_config: trust configuration of a private Sigstore instance. None means the
            public instance.

    Raises:
        MachineError: the packages or the identity are missing, or Sigstore fails.
        RequestError: the trust configuration is invalid.
    """
    try:
        # Imported here because the packages are optional.
        from pypi_attestations import (
            Attestation,
            AttestationBundle,
            Distribution,
            GitHubPublisher,
            Provenance,
        )
        from sigstore.oidc import IdentityToken, detect_credential
        from sigstore.sign import SigningContext
    except ImportError as error:
        raise missing_packages(error) from error
    with _sigstore_errors():
        if detect_credential() is None:
            raise MachineError(
                "No identity for Sigstore was found.",
                hint=(
                    "Run it in a CI job with an identity. On GitHub Actions, set"
                    " `permissions: id-token: write`."
                ),
            )
        trust = load_trust(trust_config)
        context = SigningContext.from_trust_config(trust.config)
    verify = verifier(trust)

    def sign(filename: str, sha256: str) -> bytes:
        with (
            _sigstore_errors(),
            context.signer(IdentityToken(detect_credential())) as signer,
        ):
            attestation = Attestation.sign(
                signer, Distribution(name=filename, digest=sha256)
            )
            # https://github.com/OWNER/NAME/.github/workflows/FILE@REF
            config = attestation.certificate_claims.get(CONFIG, "")
            place, _, file = config.partition(f"/{WORKFLOWS}")
            publisher = GitHubPublisher(
                repository=place.removeprefix("https://github.com/"),
                workflow=file.partition("@")[0],
            )
            bundle = AttestationBundle(publisher=publisher, attestations=[attestation])
            provenance = Provenance(version=1, attestation_bundles=[bundle])
            data: bytes = provenance.model_dump_json().encode()
        raise_if_any(verify(data, filename, sha256).problems, MachineError)
        return data

    return sign


@contextmanager
def _sigstore_errors() -> Iterator[None]:
    """Raise MachineError for errors of the Sigstore packages, which have no common class."""
    try:
        yield
    except CiBuildError:
        raise
    except Exception as error:
        text = str(error).rstrip(".") or type(error).__name__
        raise MachineError(
            f"Sigstore failed: {text}.",
            hint="Check that this machine can reach Sigstore.",
        ) from error


@frozen
class VerificationReport:
    """The result of verifying attestations.

    Attributes:
        attested: signer -> file names of the wheels.
        problems: a sentence for each missing or invalid attestation and for each signer
            that the policy forbids.
        notes: other information for the user.
    """

    attested: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def verify_set(
    bucket: Bucket, staged: StagedSet, channel: str, trust_config: Path | None
) -> VerificationReport:
    """Verify the attestations of a staged set.

    Every wheel built by this project needs an attestation.
    """
    wheel_set = read_staged(bucket, staged)
    names = {wheel.filename: wheel.sha256 for wheel in wheel_set.wheels}
    raise_if_any(stored_problems(bucket, staged.file, names), BucketError)
    reports = verify_attestations(
        bucket, staged, wheel_set, verifier(load_trust(trust_config))
    )
    own = [wheel.filename for wheel in wheel_set.wheels if not wheel.as_published]
    return _report([*names], own, load_policy(staged.index, channel=channel), reports)


def verify_files(
    place: Path, channel: str, trust_config: Path | None
) -> VerificationReport:
    """Verify the attestations beside the wheels of a folder, or beside one wheel.

    Every wheel needs an attestation.

    Raises:
        RequestError: `place` is neither a wheel nor a folder with wheels.
        MachineError: the packages are missing.
    """
    wheels = sorted(place.glob("*.whl")) if place.is_dir() else [place]
    if not wheels or not all(wheel.name.endswith(".whl") for wheel in wheels):
        raise RequestError(
            f"{place} is not a wheel or a folder of wheels.",
            hint="Give wheels with attestations beside them.",
        )
    verify = verifier(load_trust(trust_config))
    sides = {wheel: wheel.with_name(provenance_name(wheel.name)) for wheel in wheels}
    reports = [
        verify(side.read_bytes(), wheel.name, sha256_of(wheel))
        for wheel, side in sides.items()
        if side.is_file()
    ]
    wheel_names = [wheel.name for wheel in wheels]
    return _report(wheel_names, wheel_names, load_policy("", channel=channel), reports)


def _report(
    wheels: Sequence[str],
    needed: Sequence[str],
    policy: Policy,
    found: Sequence[AttestationReport],
) -> VerificationReport:
    return VerificationReport(
        attested=wheels_by_signer(found),
        problems=tuple(
            attestation_problems(wheels, needed, policy.attestations, found)
        ),
        notes=tuple(dict.fromkeys(chain.from_iterable(one.notes for one in found))),
    )
