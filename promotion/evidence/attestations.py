"""Provenance files beside wheels (PEP 740), and the decision whether they satisfy a policy.

This module checks with the standard library alone that a file names its wheel.
`attestation_verification` verifies the signatures and reports problems and signers;
this module checks them against the rule of a policy. Identities are compared
as a whole, character by character.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from core.frozen import frozen
from promotion.storage.object_keys import PROVENANCE_SUFFIX

ANY = "any"
PUBLIC = "sigstore"
"""The trust root of Sigstore's public instance."""
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PUBLISH = "https://docs.pypi.org/attestations/publish/v1"
SLSA = "https://slsa.dev/provenance/v1"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Identity:
    """The signer in a certificate of Fulcio, or a permitted signer in a policy.

    Attributes:
        issuer: URL of the service that issued the identity, such as
            https://token.actions.githubusercontent.com.
        repository: URL of the workflow's repository, such as
            https://github.com/owner/name.
        workflow: path of the workflow in the repository, such as
            .github/workflows/release.yml.
        ref: branch or tag, such as refs/heads/main. "any" is allowed in a policy.
    """

    issuer: str
    repository: str
    workflow: str
    ref: str

    def __str__(self) -> str:
        return (
            f"{self.workflow} of {self.repository} at {self.ref} (issuer {self.issuer})"
        )

    def admits(self, other: Identity) -> bool:
        """Return whether a signer matches this identity of a policy."""
        named = replace(self, ref=other.ref) if self.ref == ANY else self
        return named == other


@frozen
class AttestationReport:
    """Facts about the provenance file of one wheel.

    Attributes:
        wheel: file name of the wheel.
        sha256: sha256 of the provenance file.
        signers: one for each valid attestation.
        trust: root of trust of the signatures: PUBLIC, or the SHA-256 of a trust
            configuration.
        problems: a sentence for each problem, including failures of the verification
            itself.
        notes: other information for the user.
    """

    wheel: str
    sha256: str = ""
    signers: tuple[Identity, ...] = ()
    trust: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@frozen
class AttestationRule:
    """Requirements of a policy for attestations; see `policy.toml`.

    Attributes:
        required: projects whose wheels need an attestation. {major} is the ROCm major.
        trust: required root of trust: PUBLIC, the SHA-256 of a trust configuration, or
            ANY.
        identities: name -> permitted signer. None permits every signer.
    """

    required: tuple[str, ...]
    trust: str
    identities: Mapping[str, Identity] | None

    def __post_init__(self) -> None:
        if self.trust not in (ANY, PUBLIC) and not _SHA256.fullmatch(self.trust):
            raise ValueError(f"trust must be sigstore, any or a SHA-256: {self.trust}")
        for name, one in (self.identities or {}).items():
            words = (one.issuer, one.repository, one.workflow)
            if not (all(words) and one.ref) or ANY in words:
                raise ValueError(f"the identity {name} is incomplete: {one}")

    def admits(self, signer: Identity) -> bool:
        """Return whether the policy permits a signer."""
        return self.identities is None or any(
            identity.admits(signer) for identity in self.identities.values()
        )


def provenance_name(filename: str) -> str:
    """Return the name of the provenance file of a wheel."""
    return filename + PROVENANCE_SUFFIX


def provenance_problems(data: bytes, filename: str, sha256: str) -> tuple[str, ...]:
    """Return one sentence if a provenance file is damaged or omits the wheel."""
    try:
        bundles = json.loads(data)["attestation_bundles"]
        attestations = [*chain.from_iterable(one["attestations"] for one in bundles)]
        if not attestations:
            raise ValueError("it contains no attestation")
        for attestation in attestations:
            _check(attestation["envelope"]["statement"], filename, sha256)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        name = provenance_name(filename)
        return (f"{name} is not the provenance of its wheel: {problem}.",)
    return ()


def _check(text: str, filename: str, sha256: str) -> None:
    """Raise when the statement of an attestation is damaged or not for the wheel."""
    statement = json.loads(base64.b64decode("".join(text.split()), validate=True))
    kinds = (statement["_type"], statement["predicateType"])
    if kinds not in ((STATEMENT_TYPE, PUBLISH), (STATEMENT_TYPE, SLSA)):
        raise ValueError(f"an attestation has the unsupported type {kinds[1]!r}")
    (subject,) = statement["subject"]
    if (subject["name"], subject["digest"]["sha256"]) != (filename, sha256):
        raise ValueError(
            f"it names {subject['name']} with sha256 {subject['digest']['sha256']}"
        )


def attestation_problems(
    wheels: Collection[str],
    needed: Iterable[str],
    rule: AttestationRule,
    attested: Collection[AttestationReport],
) -> Iterator[str]:
    """Yield a sentence for each attestation that is invalid, not permitted, or missing.

    Args:
        wheels: file names of the set's wheels.
        needed: file names of the wheels that need an attestation.
        attested: report of each provenance file.
    """
    for report in attested:
        name = provenance_name(report.wheel)
        yield from report.problems
        if report.wheel not in wheels:
            yield f"{name} does not belong to a wheel of the set."
        if report.problems:
            continue
        if not report.signers:
            yield f"{name} has no verified attestation."
        if rule.trust not in (ANY, report.trust):
            yield (
                f"{name} has the trust root {report.trust or 'none'}; the policy"
                f" requires {rule.trust}."
            )
        for signer in report.signers:
            if not rule.admits(signer):
                yield (
                    f"{name} was signed by {signer}, which the policy does not permit."
                )
    has = {report.wheel for report in attested}
    for wheel in needed:
        if wheel not in has:
            yield (
                f"{wheel} has no attestation, which the policy requires: run `ci_build"
                " attest` on the set."
            )


def wheels_by_signer(
    attested: Iterable[AttestationReport],
) -> Mapping[str, tuple[str, ...]]:
    """Return signer -> file names of the wheels with a valid attestation by that signer."""
    wheels_of: dict[str, list[str]] = {}
    for one in attested:
        if not one.problems:
            for signer in one.signers:
                wheels_of.setdefault(str(signer), []).append(one.wheel)
    return {
        signer: tuple(sorted({*wheels})) for signer, wheels in sorted(wheels_of.items())
    }
