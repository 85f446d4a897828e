"""Attestations as facts, and the decision whether they satisfy a policy.

`attestation_verification` reads provenance files and reports their problems and signers; this module decides whether
that is enough. Identities are compared whole, character by character.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from promotion.evidence.provenance import provenance_name

ANY = "any"
PUBLIC = "sigstore"
"""The trust root of Sigstore's public instance."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Identity:
    """Who signed, as a certificate of Fulcio says, or who may sign, as a policy does.

    Attributes:
        issuer: URL of the service that vouched for the job, as https://token.actions.githubusercontent.com.
        repository: URL of the repository whose workflow ran, as https://github.com/owner/name.
        workflow: path of the workflow in the repository, as .github/workflows/release.yml.
        ref: branch or tag of it, as refs/heads/main; a policy may say "any".
    """

    issuer: str
    repository: str
    workflow: str
    ref: str

    def __str__(self) -> str:
        return f"{self.workflow} of {self.repository} at {self.ref} (issuer {self.issuer})"

    def admits(self, other: Identity) -> bool:
        """Whether somebody who signed is the one that a policy means by this."""
        same = (self.issuer, self.repository, self.workflow) == (other.issuer, other.repository, other.workflow)
        return same and self.ref in (ANY, other.ref)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttestationReport:
    """What was found out about the provenance file of one wheel.

    Attributes:
        wheel: file name of the wheel.
        sha256: of the provenance file.
        signers: one for each attestation that is good in every respect.
        trust: the root that they lead to: PUBLIC, or the SHA-256 of a trust configuration.
        problems: a sentence on each thing that is wrong, or that kept it from being verified.
        notes: what a person should know all the same.
    """

    wheel: str
    sha256: str = ""
    signers: tuple[Identity, ...] = ()
    trust: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AttestationRule:
    """What a policy asks of attestations; see `policy.toml`.

    Attributes:
        required: projects whose wheels must have one; {major} is the ROCm major.
        trust: the root that they must lead to: PUBLIC, the SHA-256 of a trust configuration, or ANY.
        identities: name -> whose attestations count; None counts everybody's.
    """

    required: tuple[str, ...]
    trust: str
    identities: Mapping[str, Identity] | None

    def admits(self, signer: Identity) -> bool:
        """Whether the policy names who signed."""
        return self.identities is None or any(known.admits(signer) for known in self.identities.values())


def parse_rule(table: Mapping[str, Any]) -> AttestationRule:
    """Read the table `attestations` of a policy.

    Raises:
        KeyError, TypeError, ValueError: a field is missing, unknown or of the wrong kind.
    """
    if set(table) != {"required", "trust", "identities"}:
        raise ValueError(f"attestations has the fields {', '.join(sorted(table))}")
    required, trust, listed = table["required"], table["trust"], table["identities"]
    if not isinstance(required, list) or not all(isinstance(project, str) for project in required):
        raise ValueError(f"attestations: required is {required!r}")
    if not isinstance(trust, str) or not (trust in (ANY, PUBLIC) or _SHA256.fullmatch(trust)):
        raise ValueError(f"attestations: trust is {trust!r}")
    if listed == ANY:
        return AttestationRule(required=tuple(required), trust=trust, identities=None)
    if not isinstance(listed, dict):
        raise TypeError(f"attestations: identities is {listed!r}")
    return AttestationRule(
        required=tuple(required), trust=trust, identities={name: _identity(name, one) for name, one in listed.items()}
    )


def _identity(name: str, table: Mapping[str, Any]) -> Identity:
    identity = Identity(**table)
    words = (identity.issuer, identity.repository, identity.workflow, identity.ref)
    if not all(isinstance(word, str) and word for word in words) or ANY in words[:3]:
        raise ValueError(f"attestations: the identity {name} is {table!r}")
    return identity


def attestation_problems(
    wheels: Collection[str], needed: Iterable[str], rule: AttestationRule, attested: Collection[AttestationReport]
) -> Iterator[str]:
    """Sentences on attestations that are bad, foreign or missing; a bad one counts also where none is needed.

    Args:
        wheels: file names of the set's wheels.
        needed: those that must have one.
        rule: what the policy asks.
        attested: what was found out.
    """
    for found in attested:
        name = provenance_name(found.wheel)
        yield from found.problems
        if found.wheel not in wheels:
            yield f"{name} is beside the set, but of none of its wheels."
        if found.problems:
            continue
        if not found.signers:
            yield f"{name} holds no attestation that was verified."
        if rule.trust not in (ANY, found.trust):
            yield f"{name} leads to the trust root {found.trust or 'of nobody'}; the policy trusts {rule.trust}."
        for signer in found.signers:
            if not rule.admits(signer):
                yield f"{name} was signed by {signer}, whom the policy does not name."
    has = {found.wheel for found in attested}
    for wheel in needed:
        if wheel not in has:
            yield f"{wheel} has no attestation, and one is asked for: run `ci_build attest` on the set."


def wheels_by_signer(attested: Iterable[AttestationReport]) -> Mapping[str, tuple[str, ...]]:
    """Who signed what, for people: identity -> file names of wheels; what is bad is nobody's."""
    found: dict[str, list[str]] = {}
    for one in attested:
        if not one.problems:
            for signer in one.signers:
                found.setdefault(str(signer), []).append(one.wheel)
    return {signer: tuple(sorted({*wheels})) for signer, wheels in sorted(found.items())}
