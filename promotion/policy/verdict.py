"""The verdict of a policy on a set and its evidence.

The computation is pure, and doubtful cases block the promotion. Evidence counts only if
the policy accepts its key; a failed gate whose evidence does not count causes a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain

from core.model import (
    TIER_ORDER,
    Evidence,
    Outcome,
    Requirement,
    Tier,
    Verdict,
    WheelSet,
)
from promotion.evidence.attestations import (
    AttestationReport,
    attestation_problems,
    wheels_by_signer,
)
from promotion.evidence.evidence import (
    ANY,
    EvidenceFile,
    is_machine_failure,
    latest,
    time_of,
)
from promotion.policy.exceptions import (
    NOT_RUN,
    PolicyException,
    failing_tests,
    suggested_exceptions,
)
from promotion.policy.families import GATE
from promotion.policy.gate_rules import at_least
from promotion.policy.promotion_policy import Policy
from promotion.policy.set_rules import (
    Offer,
    device_member_problems,
    expand,
    growth_problems,
    order_problems,
    rocm_problems,
    set_problems,
    size_problems,
    variant_problems,
)
from promotion.policy.tier_requirements import (
    EvidenceCase,
    first_finding,
    has_accepted_key,
)

_NOTHING = Offer()


@dataclass(frozen=True, slots=True)
class _Reason:
    """A reason that blocks a promotion unless an exception covers its gate and target.

    Attributes:
        failed: whether something failed, which no exception for a gate excuses.
    """

    text: str
    gate: str
    target: str
    failed: bool


def judge_evidence(case: EvidenceCase) -> Verdict:
    """Return the part of a verdict that depends on evidence and exceptions alone."""
    wheel_set = case.wheel_set
    policy = case.policy
    required = tuple(case.requirements())
    unrequired = tuple(_unrequired_failures(case))
    reasons = (
        *_gate_problems(required),
        *(reason for reason, on_rocm in unrequired if on_rocm),
    )
    tiers = tiers_of(case)
    entries = [one for one in policy.accepted_exceptions if one.is_for(wheel_set)]
    valid = [entry for entry in entries if not entry.state(case.now)]
    blocked, passed_over = _apply(valid, reasons, tiers, policy)
    counted = tuple(chain.from_iterable(case.latest.values()))
    passed = [one for one in counted if one.outcome is Outcome.PASSED]
    by_test = dict(_excused_tests(passed, valid))
    used = [entry for _, entry in (*passed_over, *_excused_tests(counted, valid))]
    return Verdict(
        set_digest=wheel_set.digest,
        requirements=required,
        tiers=tiers,
        blocked_by=(*_foreign_evidence(case), *blocked),
        excused=(
            *(f"{entry}. Passed over: {reason.text}" for reason, entry in passed_over),
            *sorted(f"{entry}. {text}" for text, entry in by_test.items()),
        ),
        invalid_exceptions=tuple(_invalid(entries, used, case.now)),
        missing_exceptions=_missing_exceptions(case, required, counted),
        warnings=(
            *_refused_failures(case),
            *(
                f"{reason.text} It does not block."
                for reason, on_rocm in unrequired
                if not on_rocm
            ),
        ),
    )


def verdict(
    wheel_set: WheelSet,
    files: Iterable[EvidenceFile],
    policy: Policy,
    *,
    now: datetime,
    offer: Offer = _NOTHING,
    attested: Collection[AttestationReport] = (),
    allow_lower: bool = False,
) -> Verdict:
    """Return the verdict of a policy on a set; every reason that blocks is one sentence.

    Args:
        files: all evidence of the set.
        now: current time, with a time zone.
        offer: what the index offers.
        attested: report of each provenance file of the set.
        allow_lower: whether a version that pip would not select, or one for an older
            ROCm, causes only a warning.
    """
    judged = judge_evidence(
        EvidenceCase(wheel_set=wheel_set, files=tuple(files), policy=policy, now=now)
    )
    grown = tuple(growth_problems(wheel_set, policy, offer.newest))
    lower = tuple(order_problems(wheel_set, offer))
    blocked = (
        *set_problems(wheel_set, policy),
        *rocm_problems(wheel_set, policy),
        *device_member_problems(wheel_set, policy),
        *variant_problems(wheel_set, offer),
        *size_problems(wheel_set, policy),
        *(grown if policy.growth.verdict == "block" else ()),
        *(
            ()
            if allow_lower
            else (f"{text} Give --allow-lower if this is intended." for text in lower)
        ),
        *_attestation_problems(wheel_set, policy, attested),
        *judged.blocked_by,
    )
    forbidden = () if policy.exceptions else policy.excepted
    refused = f"Channel {policy.channel} accepts no exceptions"
    invalid = (
        *policy.void,
        *(f"{refused}: {entry}." for entry in forbidden),
        *judged.invalid_exceptions,
    )
    notes = chain.from_iterable(report.notes for report in attested)
    return replace(
        judged,
        blocked_by=blocked,
        attested=wheels_by_signer(attested),
        invalid_exceptions=invalid,
        warnings=(
            *invalid,
            *dict.fromkeys(notes),
            *(grown if policy.growth.verdict == "warn" else ()),
            *(lower if allow_lower else ()),
            *judged.warnings,
        ),
    )


def _missing_exceptions(
    case: EvidenceCase, required: Iterable[Requirement], counted: Iterable[Evidence]
) -> tuple[str, ...]:
    """Return the entries of the policy that would excuse missing GPU tests and flaky tests."""
    never_ran = [
        item.target for item in required if item.gate == GATE and not item.evidence
    ]
    policy = case.policy
    entries = suggested_exceptions(
        case.wheel_set,
        policy.channel,
        never_ran,
        counted,
        policy.accepted_exceptions,
        case.now,
    )
    return tuple(sorted(set(entries)))


def _apply(
    exceptions: Sequence[PolicyException],
    reasons: Iterable[_Reason],
    tiers: Mapping[str, str],
    policy: Policy,
) -> tuple[list[str], list[tuple[_Reason, PolicyException]]]:
    """Return the texts of reasons and weak tiers, without and with a valid exception."""
    blocked: list[str] = []
    passed_over: list[tuple[_Reason, PolicyException]] = []
    gates = [entry for entry in exceptions if entry.kind == NOT_RUN]
    for reason in reasons:
        own = [entry for entry in gates if entry.covers(reason.gate, reason.target)]
        entry = own[0] if own and not reason.failed else None
        if entry is None:
            blocked.append(reason.text)
        else:
            passed_over.append((reason, entry))
    for target, tier in tiers.items():
        required = policy.required_tier(target)
        if at_least(tier, required):
            continue
        text = f"{target} was tested at tier {tier}; {required} is required."
        entry = _excuse(target, passed_over, policy)
        if entry is None:
            blocked.append(text)
        else:
            passed_over.append((_Reason(text, "", target, failed=False), entry))
    return blocked, passed_over


def _attestation_problems(
    wheel_set: WheelSet, policy: Policy, attested: Collection[AttestationReport]
) -> Iterator[str]:
    projects = expand(policy.attestations.required, wheel_set)
    attestable = {wheel.filename: wheel.name in projects for wheel in wheel_set.wheels}
    needed = [name for name, required in attestable.items() if required]
    yield from attestation_problems(attestable, needed, policy.attestations, attested)


def _excused_tests(
    evidences: Iterable[Evidence], exceptions: Sequence[PolicyException]
) -> Iterator[tuple[str, PolicyException]]:
    """Yield a sentence for each failing test that a valid exception names, and the exception."""
    for evidence in evidences:
        for test in failing_tests(evidence):
            for entry in exceptions:
                if entry.covers_test(test, evidence.gate, evidence.target):
                    where = f"the gate {evidence.gate} for {evidence.target}"
                    yield f"Failing in {where}: {test}", entry
                    break


def _invalid(
    entries: Iterable[PolicyException], used: Collection[PolicyException], now: datetime
) -> Iterator[str]:
    """Yield a sentence for each exception for the set that is not valid, or excuses nothing."""
    for entry in entries:
        if state := entry.state(now):
            yield f"An exception is not valid, because it {state}: {entry}."
        elif entry not in used:
            yield f"An exception excuses nothing: {entry}."


def _excuse(
    target: str, passed_over: Iterable[tuple[_Reason, PolicyException]], policy: Policy
) -> PolicyException | None:
    """Return a gate's first applied exception that meets a target's tier, or None."""
    for reason, entry in passed_over:
        rule = policy.gates.get(reason.gate)
        if (
            rule is not None
            and reason.target == target
            and at_least(rule.tier, policy.required_tier(target))
        ):
            return entry
    return None


def _foreign_evidence(case: EvidenceCase) -> Iterator[str]:
    """Yield a sentence for evidence that is damaged, of another set, or has invalid times.

    Anybody can store evidence without an accepted key, which must not block a set.
    """
    accepted = [file for file in case.files if has_accepted_key(file, case.policy)]
    evidences = [file.evidence for file in accepted if not file.flaw]
    digests = {evidence.set_digest for evidence in evidences}
    for digest in sorted(digests - {case.wheel_set.digest}):
        yield f"The set has evidence of another set: {digest}."
    yield from (file.flaw for file in accepted if file.flaw)
    for evidence in evidences:
        started = time_of(evidence.started)
        ended = time_of(evidence.ended)
        if started is None or ended is None or started > ended:
            yield (
                f"The evidence of the gate {evidence.gate} for {evidence.target} has"
                f" invalid times: {evidence.started!r} to {evidence.ended!r}."
            )


def _gate_problems(required_evidence: Iterable[Requirement]) -> Iterator[_Reason]:
    for item in required_evidence:
        where = (
            f"The gate {item.gate}"
            if item.target == ANY
            else f"The gate {item.gate} for {item.target}"
        )
        yield from (
            _Reason(f"{where} {problem}", item.gate, item.target, item.failed)
            for problem in item.problems
        )


def _unrequired_failures(case: EvidenceCase) -> Iterator[tuple[_Reason, bool]]:
    """Yield each failed gate that the policy does not require, and whether it is about ROCm.

    Skipped gates and machine failures do not block. Tests on a CPU or on CUDA use code
    that the set does not contain, and block only if the policy requires them.
    """
    required = set()
    for gate, rule in case.policy.gates.items():
        required |= {(gate, target) for target in case.required_targets(rule)}
    ran = [
        evidence
        for evidence in case.counted
        if evidence.outcome is not Outcome.SKIPPED and not is_machine_failure(evidence)
    ]
    for (gate, target), evidence in latest(ran).items():
        if (gate, target) not in required and evidence.outcome is not Outcome.PASSED:
            text = (
                f"The gate {gate} for {target} did not pass: {first_finding(evidence)}"
            )
            yield (
                _Reason(text, gate, target, failed=True),
                evidence.tier not in (Tier.CPU, Tier.CUDA),
            )


def _refused_failures(case: EvidenceCase) -> Iterator[str]:
    """Yield a sentence for each failed gate whose evidence does not count."""
    for file in filter(case.is_own, case.files):
        found = file.evidence
        why = case.refusal(file)
        if found.outcome is Outcome.FAILED and why:
            where = f"{found.gate} for {found.target}"
            yield f"The gate {where} failed; its evidence does not count: {why}."


def tiers_of(case: EvidenceCase) -> Mapping[str, str]:
    """Return gfx target -> strongest tier at which it was tested, or "none"."""
    return {target: _tier_of(target, case) for target in case.wheel_set.targets}


def _tier_of(target: str, case: EvidenceCase) -> str:
    tiers = [
        rule.tier
        for (gate, about), found in case.latest.items()
        if about == target
        and (rule := case.policy.gates.get(gate)) is not None
        and rule.tier in TIER_ORDER
        and not case.problems(found, rule.of(target))
    ]
    return max(tiers, key=TIER_ORDER.index).value if tiers else "none"
