"""Keys of the policy.

A set that promotion refuses because of one key, and accepts with another value of it.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from core.model import Evidence, Finding, Outcome, Severity, Tier, WheelSet
from core.rocm_trust import ROCM_TRUST
from promotion.check import check
from promotion.evidence.attestations import AttestationReport, AttestationRule, Identity
from promotion.evidence.evidence import EvidenceFile
from promotion.evidence.test_results import TestVerdict
from promotion.index.authority import LedgerKey, PolicySource
from promotion.policy.exceptions import EXCEPTED, NOT_RUN, PolicyException
from promotion.policy.gate_rules import EvidenceKey, GateRule
from promotion.policy.promotion_policy import Policy, load_policy
from promotion.policy.set_rules import Offer
from promotion.policy.verdict import verdict
from promotion.promote import promote
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import ReleasedIndex
from tests.support import sets
from tests.support.device_results import FLAKE_EXCEPTION, checks_of, judged, result
from tests.support.promoting import staged_in
from tests.support.sets import counts
from tests.support.wheel_sets import (
    PJRT_LIBRARY,
    make_set,
    make_wheels,
    passing_evidence,
)

BASE = load_policy("multi-arch")
NOW = datetime(2026, 1, 3, tzinfo=UTC)
KEY = "ssh-ed25519 AAAA"
OTHER_KEY = "ssh-ed25519 BBBB"
DERIVED = frozenset({"channel", "sha256", "text", "void"})
"""Fields of a policy that are not written in its file."""
ALWAYS = "every policy"
_GROUPS = {
    "gates": GateRule,
    "attestations": AttestationRule,
}
"""Key -> class of its table."""


def policy_keys() -> set[str]:
    """Return the keys of a policy, with those of the tables of gates and attestations."""
    names = {item.name for item in fields(Policy)} - DERIVED - _GROUPS.keys()
    for group, kind in _GROUPS.items():
        names |= {f"{group}.{item.name}" for item in fields(kind)}
    return names


@dataclass(frozen=True, kw_only=True)
class Case:
    """A set that the policy accepts.

    Attributes:
        evidence: changes the evidence that the policy requires.
        key: key that signed the evidence; empty for none.
        source: ref of the policy's checkout.
        offered: project -> versions in the index.
        later: days after the promotion.
    """

    wheel_set: WheelSet
    evidence: Callable[[list[Evidence]], list[Evidence]] = list
    attested: Sequence[AttestationReport] = ()
    key: str = KEY
    source: str = "refs/heads/main"
    offered: Mapping[str, Collection[str]] = field(default_factory=dict)
    later: int = 1


@functools.cache
def _wheel_set() -> WheelSet:
    with tempfile.TemporaryDirectory() as folder:
        return make_set(make_wheels(Path(folder)))


def _good() -> Case:
    wheel_set = _wheel_set()
    reports = [
        AttestationReport(wheel=wheel.filename, signers=(SIGNER,), trust="sigstore")
        for wheel in wheel_set.wheels
    ]
    return Case(wheel_set=wheel_set, attested=reports)


def refusals(case: Case, policy: Policy) -> Iterable[str]:
    """Return the reasons of a policy against a set."""
    evidence = case.evidence(passing_evidence(case.wheel_set, policy))
    files = [EvidenceFile(evidence=item, key=case.key) for item in evidence]
    return verdict(
        case.wheel_set,
        files,
        policy,
        now=NOW,
        offer=Offer(versions=case.offered),
        attested=case.attested,
    ).blocked_by


def ledger_refusals(case: Case, policy: Policy) -> Iterable[str]:
    """Return the reason of a policy against a key of a ledger."""
    return filter(None, [policy.authority().problem(case.key, "2026-01-03T00:00:00Z")])


def source_refusals(case: Case, policy: Policy) -> Iterable[str]:
    """Return the reason of a policy against the checkout that it comes from."""
    source = PolicySource(commit="c" * 40, ref=case.source, clean=True)
    return filter(None, [source.problem(policy.protected_refs)])


def unprotected_refusals(case: Case, policy: Policy) -> Iterable[str]:
    """Return the reasons against a set from a checkout that an owner permits once."""
    source = PolicySource(
        commit="c" * 40, ref=case.source, clean=True, owner="me", reason="why"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bucket = DirBucket(folder / "bucket")
        staged = staged_in(bucket, folder, make_wheels(folder / "w"))
        decision = check(bucket, staged, policy, now=lambda: NOW, source=source)
    return [text for text in decision.blocked_by if "--allow-unprotected" in text]


def staleness(case: Case, policy: Policy) -> Iterable[str]:
    """Return whether the index of a promoted set is stale some days later."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bucket = DirBucket(folder / "bucket")
        staged = staged_in(bucket, folder, make_wheels(folder / "w"))
        promote(bucket, staged, policy, now=lambda: NOW)
        status = json.loads(
            bucket.get(ReleasedIndex(index="multi-arch").root + "status.json")
        )
    after = status["stale_after"]
    later = NOW + timedelta(days=case.later)
    return (
        ["The index is stale."]
        if after and later > datetime.fromisoformat(after)
        else []
    )


@dataclass(frozen=True, eq=False)
class PolicyRow:
    """A key of the policy, or a rule of every policy.

    Attributes:
        key: the key; ALWAYS for a rule of every policy.
        says: key phrase of the refusal.
        edit: returns the broken set.
        strict: fields of a policy that refuses the broken set, and accepts the unbroken
            one.
        lax: fields of a policy with another value of the key, which accepts both. None
            for rules of every policy.
        judge: returns the reasons against a set.
    """

    key: str
    says: str
    edit: Callable[[Case], Case]
    strict: Mapping[str, Any] = field(default_factory=dict)
    lax: Mapping[str, Any] | None = None
    judge: Callable[[Case, Policy], Iterable[str]] = refusals

    def refusals(self, fields_: Mapping[str, Any], *, broken: bool) -> list[str]:
        """Return the reasons of a policy with these fields."""
        case = _good()
        return list(
            self.judge(self.edit(case) if broken else case, replace(BASE, **fields_))
        )


# Edits


def of_set(**changes: Any) -> Callable[[Case], Case]:
    """Change fields of the set."""
    return lambda case: replace(case, wheel_set=replace(case.wheel_set, **changes))


def without_wheels(case: Case, text: str) -> Case:
    kept = tuple(wheel for wheel in case.wheel_set.wheels if text not in wheel.filename)
    return replace(case, wheel_set=replace(case.wheel_set, wheels=kept))


def for_one_python(case: Case) -> Case:
    case = without_wheels(case, "cp311")
    return replace(case, wheel_set=replace(case.wheel_set, python_versions=("3.12",)))


def with_kernels(case: Case) -> Case:
    kernels = sets.wheel(
        "jax_aiter-1.2.0-py3-none-manylinux_2_28_x86_64.whl", "jax-aiter", "1.2.0"
    )
    return replace(
        case,
        wheel_set=replace(case.wheel_set, wheels=(*case.wheel_set.wheels, kernels)),
    )


def large_pjrt(case: Case) -> Case:
    first, *others = case.wheel_set.wheels
    return replace(
        case,
        wheel_set=replace(
            case.wheel_set, wheels=(replace(first, size=2_000_000), *others)
        ),
    )


def code_for_one_target(case: Case) -> Case:
    first, *others = case.wheel_set.wheels
    members = tuple(
        replace(member, targets=("gfx942",)) if member.path == PJRT_LIBRARY else member
        for member in first.members
    )
    return replace(
        case,
        wheel_set=replace(
            case.wheel_set, wheels=(replace(first, members=members), *others)
        ),
    )


def of_evidence(
    gate: str, target: str = "any", **changes: Any
) -> Callable[[Case], Case]:
    """Change the evidence of a gate."""

    def change(evidence: list[Evidence]) -> list[Evidence]:
        return [
            replace(item, **changes)
            if (item.gate, item.target) == (gate, target)
            else item
            for item in evidence
        ]

    return lambda case: replace(case, evidence=change)


def without_evidence(gate: str, target: str) -> Callable[[Case], Case]:
    """Remove the evidence of a gate."""

    def change(evidence: list[Evidence]) -> list[Evidence]:
        return [item for item in evidence if (item.gate, item.target) != (gate, target)]

    return lambda case: replace(case, evidence=change)


def more_evidence(**changes: Any) -> Callable[[Case], Case]:
    """Add evidence like that of the first gate."""

    def change(evidence: list[Evidence]) -> list[Evidence]:
        return [*evidence, replace(evidence[0], **changes)]

    return lambda case: replace(case, evidence=change)


def failed_then_skipped(evidence: list[Evidence]) -> list[Evidence]:
    """Add a failure of another gate, which was skipped later."""
    failure = replace(evidence[0], gate="fuzz", outcome=Outcome.FAILED)
    return [
        *evidence,
        failure,
        replace(failure, outcome=Outcome.SKIPPED, ended="2026-01-02T04:00:00Z"),
    ]


def failed(reason: str, outcome: Outcome = Outcome.FAILED) -> Callable[[Case], Case]:
    """Let the gate install end otherwise than passed."""
    finding = Finding(code="x", severity=Severity.ERROR, message=reason, remedy="")
    return of_evidence("install", outcome=outcome, findings=(finding,))


def offering(version: str) -> Callable[[Case], Case]:
    """Let the index have another version of pjrt."""
    return lambda case: replace(case, offered={"jax-rocm7-pjrt": [version]})


def of_rocm(checksum: str, transport: str = "https") -> Callable[[Case], Case]:
    """Change the origin of the set's ROCm."""
    return of_set(
        request={
            "payload": "source",
            ROCM_TRUST: {"checksum": checksum, "transport": transport},
        }
    )


def two_kernels(case: Case) -> Case:
    case = with_kernels(case)
    kernels = case.wheel_set.wheels[-1]
    return replace(
        case,
        wheel_set=replace(case.wheel_set, wheels=(*case.wheel_set.wheels, kernels)),
    )


def foreign_report(case: Case) -> Case:
    return replace(
        case, attested=[*case.attested, replace(case.attested[0], wheel="x.whl")]
    )


def flaky(case: Case) -> Case:
    """Add a flaky test to the evidence of the gate device."""
    checks = checks_of((result("odd", TestVerdict.FLAKY, "E   once"),))
    details = judged(checks).details
    return of_evidence(
        "device", "gfx942", details=details, counts=counts(passed=8, known=1)
    )(case)


def of_reports(**changes: Any) -> Callable[[Case], Case]:
    """Change the reports about attestations."""
    return lambda case: replace(
        case, attested=[replace(report, **changes) for report in case.attested]
    )


def rule(gate: str, **changes: Any) -> dict[str, Any]:
    """Return the gates of a policy with a change of one."""
    return {"gates": {**BASE.gates, gate: replace(BASE.gates[gate], **changes)}}


def attestations(**changes: Any) -> dict[str, Any]:
    """Return the requirements for attestations with changes."""
    return {"attestations": replace(BASE.attestations, **changes)}


SIGNER = Identity(
    issuer="https://a",
    repository="https://b",
    workflow="release.yml",
    ref="refs/heads/main",
)
STRANGER = replace(SIGNER, repository="https://c")
PER_TIER = rule("compile", per="tier")
DEVICE = GateRule(
    version=1,
    tier=Tier.DEVICE,
    per="target",
    min_passed=1,
    max_skipped=0,
    known_failures=0,
)
WITH_DEVICE = {"gates": {**BASE.gates, "device": DEVICE}, "channel": "nightly"}
NO_RUNNER = PolicyException(
    kind=NOT_RUN,
    owner="somebody",
    reason="a broken runner",
    opened=date(2026, 1, 1),
    expires=date(2026, 2, 1),
    channel="local",
    index="multi-arch",
    gates=("install",),
    targets=("any",),
    version="0.10.2",
)
KNOWN_CHECKS = {"checks": [{"name": "b", "outcome": "known"}]}
EXCEPTED_CHECKS = {"checks": [{"name": "b", "outcome": "known", "why": EXCEPTED}]}
ALL_FOR_GFX950 = {"gfx950": replace(BASE.gates["compile"], max_skipped=0)}

_ALWAYS: list[tuple[str, Callable[[Case], Case]]] = [
    ("evidence of another set", of_evidence("install", set_digest="0" * 64)),
    ("invalid times", of_evidence("install", ended="soon")),
    ("invalid times", of_evidence("install", ended="2025-01-01T00:00:00Z")),
    ("a clock is wrong", of_evidence("install", ended="2026-01-03T00:06:00Z")),
    ("invalid counts", of_evidence("install", counts={"run": 9})),
    ("invalid counts", of_evidence("install", counts=counts(skipped=-1))),
    ("invalid counts", of_evidence("install", counts=counts(run=True))),
    (
        "passed 6 checks; 7 are required",
        of_evidence("coverage", "gfx942", counts=counts(collected=6, run=6, passed=6)),
    ),
    ("do not add up", of_evidence("install", counts=counts(collected=10))),
    (
        "passed with 1 failures",
        of_evidence("install", counts=counts(passed=8, failed=1)),
    ),
    ("The gate install failed: It is broken", failed("It is broken.")),
    (
        "failing tests without a valid exception: b",
        of_evidence(
            "install", counts=counts(passed=8, known=1), details=EXCEPTED_CHECKS
        ),
    ),
    ("could not run", failed("It is broken.", Outcome.ERROR)),
    ("was skipped", failed("no time.", Outcome.SKIPPED)),
    ("has not run on this set", without_evidence("install", "any")),
    (
        "The gate fuzz did not pass",
        more_evidence(gate="fuzz", outcome=Outcome.FAILED),
    ),
    (
        "The gate fuzz did not pass",
        lambda case: replace(case, evidence=failed_then_skipped),
    ),
    ("neither multi-arch nor a family", of_set(index="other")),
    ("names no gfx target", of_set(targets=())),
    ("names no Python", of_set(python_versions=())),
    ("2 wheels of jax-aiter", two_kernels),
    ("another variant", offering("0.10.2+rocm7.2.0.gfx942")),
    ("pip would select instead", offering("0.10.3+rocm7.2.0")),
    ("for a newer ROCm", offering("0.10.1+rocm7.9.0")),
    ("does not belong to a wheel", foreign_report),
    ("no verified attestation", of_reports(signers=())),
    ("the signature is wrong", of_reports(problems=("the signature is wrong.",))),
]
"""Key phrase of a refusal by every policy -> edit of the set."""

ROWS = [
    *(PolicyRow(ALWAYS, says, edit) for says, edit in _ALWAYS),
    PolicyRow(
        "gates.known_failures",
        "names 1",
        of_evidence("install", counts=counts(passed=7, known=2), details=KNOWN_CHECKS),
        strict=rule("install", known_failures=("b",)),
        lax=rule("install", known_failures=1),
    ),
    PolicyRow(
        "gates.version",
        "version 0 of the gate, not 1",
        of_evidence("install", settings={"version": "0"}),
        lax=rule("install", version=0),
    ),
    PolicyRow(
        "tier",
        "compiled is required",
        without_evidence("compile", "gfx950"),
        strict={"tier": Tier.COMPILED, **PER_TIER},
        lax={"tier": Tier.STRUCTURE, **PER_TIER},
    ),
    PolicyRow(
        "tiers",
        "compiled is required",
        without_evidence("compile", "gfx950"),
        strict={"tiers": {"gfx950": Tier.COMPILED}, **PER_TIER},
        lax={"tiers": {}, **PER_TIER},
    ),
    PolicyRow(
        "python_versions",
        "not for Python 3.11",
        for_one_python,
        strict={"python_versions": ("3.11", "3.12")},
        lax={"python_versions": ()},
    ),
    PolicyRow(
        "wheels",
        "0 wheels of jax-rocm7-pjrt",
        lambda case: without_wheels(case, "pjrt"),
        lax={"wheels": ()},
    ),
    PolicyRow(
        "wheels_per_python",
        "0 wheels of jax-rocm7-plugin",
        lambda case: without_wheels(case, "plugin-0.10.2+rocm7.2.0-cp312"),
        lax={
            "wheels_per_python": ("jaxlib",),
            "optional_wheels": ("jax-rocm7-plugin",),
        },
    ),
    PolicyRow(
        "optional_wheels",
        "does not permit",
        with_kernels,
        strict={"optional_wheels": ()},
        lax={"optional_wheels": ("jax-aiter",)},
    ),
    PolicyRow("files", "has no constraints.txt", of_set(files={}), lax={"files": ()}),
    PolicyRow(
        "required_targets",
        "not for gfx950",
        of_set(targets=("gfx942",)),
        strict={"required_targets": ("gfx942", "gfx950")},
        lax={"required_targets": ()},
    ),
    PolicyRow(
        "device_members",
        "declare code for gfx950",
        code_for_one_target,
        lax={"device_members": {}},
    ),
    PolicyRow(
        "max_age_days",
        "days ago",
        of_evidence(
            "install", started="2025-12-01T00:00:00Z", ended="2025-12-01T00:00:00Z"
        ),
        strict={"max_age_days": 1},
        lax={"max_age_days": None},
    ),
    PolicyRow(
        "stale_days",
        "stale",
        lambda case: replace(case, later=10),
        strict={"stale_days": 3},
        lax={"stale_days": None},
        judge=staleness,
    ),
    PolicyRow(
        "keys",
        "does not permit",
        lambda case: replace(case, key=OTHER_KEY),
        strict={"keys": {"ci": EvidenceKey(key=KEY)}, "unsigned": False},
        lax={"keys": None, "unsigned": False},
    ),
    PolicyRow(
        "unsigned",
        "unsigned",
        lambda case: replace(case, key=""),
        strict={"unsigned": False},
        lax={"unsigned": True},
    ),
    PolicyRow(
        "ledger_keys",
        "does not list",
        lambda case: replace(case, key=OTHER_KEY),
        strict={"ledger_keys": {"ci": LedgerKey(key=KEY)}},
        lax={"ledger_keys": None},
        judge=ledger_refusals,
    ),
    PolicyRow(
        "ledger_keys",
        "not signed",
        lambda case: replace(case, key=""),
        strict={"ledger_keys": {"ci": LedgerKey(key=KEY, expires=date(2026, 1, 4))}},
        lax={"ledger_keys": None},
        judge=ledger_refusals,
    ),
    PolicyRow(
        "protected_refs",
        "protected ref",
        lambda case: replace(case, source="refs/heads/other"),
        strict={"protected_refs": ("refs/heads/main",)},
        lax={"protected_refs": None},
        judge=source_refusals,
    ),
    PolicyRow(
        "unprotected",
        "accepts no --allow-unprotected",
        lambda case: replace(case, source="refs/heads/other"),
        strict={"protected_refs": ("refs/heads/main",), "unprotected": False},
        lax={"protected_refs": ("refs/heads/main",), "unprotected": True},
        judge=unprotected_refusals,
    ),
    PolicyRow(
        "exceptions",
        "The gate install was skipped",
        of_evidence("install", outcome=Outcome.SKIPPED),
        strict={"excepted": (NO_RUNNER,), "exceptions": False},
        lax={"excepted": (NO_RUNNER,), "exceptions": True},
    ),
    PolicyRow(
        "sizes",
        "the policy allows 1 MB",
        large_pjrt,
        strict={"sizes": {"jax-rocm{major}-pjrt": 1}},
        lax={"sizes": {}},
    ),
    *(
        PolicyRow(
            "verified_rocm",
            says,
            edit,
            strict={"verified_rocm": True},
            lax={"verified_rocm": False},
        )
        for says, edit in (
            ("how its ROCm was verified", of_set(request={"payload": "source"})),
            ("trusted on first use", of_rocm("first-use")),
            ("local files without a checksum", of_rocm("local", "local")),
            ("not encrypted", of_rocm("lock", "http")),
            ("another server than AMD's", of_set(rocm_packages=sets.rocm_packages())),
        )
    ),
    PolicyRow(
        "excepted",
        "The gate install was skipped",
        of_evidence("install", outcome=Outcome.SKIPPED),
        strict={"excepted": ()},
        lax={"excepted": (NO_RUNNER,)},
    ),
    PolicyRow(
        "excepted",
        "tests/a_test.py::odd",
        flaky,
        strict={**WITH_DEVICE, "excepted": ()},
        lax={**WITH_DEVICE, "excepted": (FLAKE_EXCEPTION,)},
    ),
    PolicyRow(
        "gates.tier",
        "has tier device",
        of_evidence("coverage", "gfx942", tier=Tier.DEVICE),
        lax=rule("coverage", tier=Tier.DEVICE),
    ),
    PolicyRow(
        "gates.per",
        "coverage for gfx950 has not run",
        without_evidence("coverage", "gfx950"),
        lax=rule("coverage", per="set"),
    ),
    PolicyRow(
        "gates.min_passed",
        "9 are required",
        of_evidence("install", counts=counts(collected=8, run=8, passed=8)),
        strict=rule("install", min_passed=9),
        lax=rule("install", min_passed=8),
    ),
    PolicyRow(
        "gates.max_skipped",
        "skipped 1 of 9 checks; 10 % are allowed",
        of_evidence("install", counts=counts(run=8, passed=8, skipped=1)),
        strict=rule("install", max_skipped=10),
        lax=rule("install", max_skipped=100),
    ),
    PolicyRow(
        "gates.known_failures",
        "1 known failures",
        of_evidence("install", counts=counts(passed=8, known=1)),
        lax=rule("install", known_failures=1),
    ),
    PolicyRow(
        "gates.known_failures",
        "does not list as known",
        of_evidence("install", counts=counts(passed=8, known=1), details=KNOWN_CHECKS),
        strict=rule("install", known_failures=("a",)),
        lax=rule("install", known_failures=("b",)),
    ),
    PolicyRow(
        "gates.settings",
        "installers",
        of_evidence("install", settings={"version": "1", "installers": "newest"}),
        strict=rule("install", settings={"installers": "all"}),
        lax=rule("install", settings={}),
    ),
    PolicyRow(
        "gates.targets",
        "skipped 1",
        of_evidence(
            "compile",
            "gfx950",
            counts=counts(collected=30, run=29, passed=29, skipped=1),
        ),
        strict=rule("compile", targets=ALL_FOR_GFX950),
        lax=rule("compile", targets={}),
    ),
    PolicyRow(
        "attestations.required",
        "has no attestation",
        lambda case: replace(case, attested=()),
        strict=attestations(required=("jaxlib",)),
        lax=attestations(required=()),
    ),
    PolicyRow(
        "attestations.trust",
        "trust root",
        of_reports(trust="5" * 64),
        strict=attestations(trust="sigstore"),
        lax=attestations(trust="any"),
    ),
    PolicyRow(
        "attestations.identities",
        "was signed by",
        of_reports(signers=(STRANGER,)),
        strict=attestations(identities={"release": SIGNER}),
        lax=attestations(identities=None),
    ),
]
