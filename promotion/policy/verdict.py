"""The verdict of a policy on a set and its evidence.

The computation is pure, and doubtful cases block the promotion. Evidence counts only if
the policy accepts its key; a failed gate whose evidence does not count causes a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
    failing_programs,
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
_OTHER_PLATFORMS = (Tier.CPU, Tier.CUDA)
_Applied = tuple[str, PolicyException | None]
"""A reason against a promotion, and the exception that excuses it."""


def judge_evidence(case: EvidenceCase) -> Verdict:
    """Return the part of a verdict that depends on evidence and exceptions alone."""
    required = tuple(case.requirements())
    unrequired = [*_unrequired_failures(case)]
    on_rocm = [item for item, tier in unrequired if tier not in _OTHER_PLATFORMS]
    tiers = tiers_of(case)
    entries = [
        entry
        for entry in case.policy.accepted_exceptions
        if entry.is_for(case.wheel_set)
    ]
    valid = [entry for entry in entries if not entry.state(case.now)]
    applied = [*_applied(case, (*required, *on_rocm), tiers, valid)]
    counted = [*chain.from_iterable(case.latest.values())]
    failing = _excused_tests(counted, valid)
    used = [entry for _, entry in (*applied, *failing) if entry is not None]
    passed_over = [
        f"{entry}. Passed over: {text}" for text, entry in applied if entry is not None
    ]
    passed = [one for one in counted if one.outcome is Outcome.PASSED]
    tests = {f"{entry}. {text}" for text, entry in _excused_tests(passed, valid)}
    ignored = [item for item, tier in unrequired if tier in _OTHER_PLATFORMS]
    return Verdict(
        set_digest=case.wheel_set.digest,
        requirements=required,
        tiers=tiers,
        failing=_failing(counted),
        tested=_tested(counted),
        blocked_by=(
            *_foreign_evidence(case),
            *(text for text, entry in applied if entry is None),
        ),
        excused=(*passed_over, *sorted(tests)),
        invalid_exceptions=tuple(_invalid(entries, used, case.now)),
        missing_exceptions=_missing_exceptions(case, required, counted),
        warnings=(
            *_refused_failures(case),
            *(
                f"{text} It does not block."
                for text in chain.from_iterable(map(_sentences, ignored))
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
    lower = tuple(order_problems(wheel_set, offer))
    blocked = (
        *set_problems(wheel_set, policy),
        *rocm_problems(wheel_set, policy),
        *device_member_problems(wheel_set, policy),
        *variant_problems(wheel_set, offer),
        *size_problems(wheel_set, policy),
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


def _applied(
    case: EvidenceCase,
    requirements: Iterable[Requirement],
    tiers: Mapping[str, str],
    exceptions: Sequence[PolicyException],
) -> Iterator[_Applied]:
    """Yield each problem of gates and each weak tier, with its valid exception.

    No exception for a gate excuses a failure. An exception for a gate also excuses the
    tier that a target would have reached.
    """
    policy = case.policy
    gates = [entry for entry in exceptions if entry.kind == NOT_RUN]
    excused: list[tuple[Requirement, PolicyException]] = []
    for item in requirements:
        own = [entry for entry in gates if entry.covers(item.gate, item.target)]
        entry = own[0] if own and not item.failed else None
        for text in _sentences(item):
            yield text, entry
        if entry and item.problems:
            excused.append((item, entry))
    for target, tier in tiers.items():
        required = policy.required_tier(target)
        if at_least(tier, required):
            continue
        raising = (
            entry
            for item, entry in excused
            if item.target == target
            and at_least(policy.gates[item.gate].tier, required)
        )
        text = f"{target} has tier {tier}; {required} is required."
        yield text, next(raising, None)


def _sentences(item: Requirement) -> Iterator[str]:
    """Yield a sentence for each problem of a gate."""
    for problem in item.problems:
        yield f"The gate {_place(item.gate, item.target)} {problem}"


def _place(gate: str, target: str) -> str:
    return gate if target == ANY else f"{gate} for {target}"


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
                    where = _place(evidence.gate, evidence.target)
                    yield f"Failing in the gate {where}: {test}", entry
                    break


def _failing(counted: Iterable[Evidence]) -> Mapping[str, str]:
    """Return gfx target -> sentence part about its programs that fail."""
    failing = {}
    for evidence in counted:
        if evidence.gate == "compile" and (text := failing_programs(evidence)):
            failing[evidence.target] = text
    return failing


def _tested(counted: Iterable[Evidence]) -> Mapping[str, str]:
    """Return gfx target -> day and numbers of the tests that passed on its GPUs."""
    days: dict[str, str] = {}
    counts: dict[str, Counter[str]] = {}
    for evidence in counted:
        if evidence.tier is Tier.DEVICE and evidence.outcome is Outcome.PASSED:
            target = evidence.target
            days[target] = max(evidence.ended[:10], days.get(target, ""))
            counts.setdefault(target, Counter()).update(evidence.counts)
    return {
        target: f"{day}: {counts[target]['passed']:,} tests passed,"
        f" {counts[target]['known']:,} known failures"
        for target, day in days.items()
    }


def _invalid(
    entries: Iterable[PolicyException], used: Collection[PolicyException], now: datetime
) -> Iterator[str]:
    """Yield a sentence for each exception for the set that is not valid, or excuses nothing."""
    for entry in entries:
        if state := entry.state(now):
            yield f"An exception is not valid, because it {state}: {entry}."
        elif entry not in used:
            yield f"An exception excuses nothing: {entry}."


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
                f"The evidence of the gate {_place(evidence.gate, evidence.target)} has"
                f" invalid times: {evidence.started!r} to {evidence.ended!r}."
            )


def _unrequired_failures(case: EvidenceCase) -> Iterator[tuple[Requirement, Tier]]:
    """Yield each failed gate that the policy does not require, and the tier of its evidence.

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
            problem = f"did not pass: {first_finding(evidence)}"
            failure = Requirement(
                gate=gate,
                target=target,
                ended=evidence.ended,
                problems=(problem,),
                failed=True,
            )
            yield failure, evidence.tier


def _refused_failures(case: EvidenceCase) -> Iterator[str]:
    """Yield a sentence for each failed gate whose evidence does not count."""
    for file in filter(case.is_own, case.files):
        found = file.evidence
        why = case.refusal(file)
        if found.outcome is Outcome.FAILED and why:
            where = _place(found.gate, found.target)
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
