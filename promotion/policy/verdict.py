"""The verdict of a policy on a set and its evidence.

The computation is pure, and doubtful cases block the promotion. Evidence of a passed
gate counts only if the policy accepts its key. Evidence of a failed gate always counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from promotion.evidence.evidence import ANY, EvidenceFile, is_machine_failure, time_of
from promotion.index.ledger import PromotedSet
from promotion.policy.bypasses import Bypass
from promotion.policy.gate_rules import at_least
from promotion.policy.promotion_policy import Policy
from promotion.policy.set_rules import (
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
    counted_evidence,
    evidence_problems,
    first_finding,
    requirements,
)
from promotion.policy.waivers import (
    FlakeWaiver,
    suggested_waiver,
    unwaived_tests,
    waived_tests,
)

NO_TIER = "none"
"""Tier of a target without sufficient evidence, as the ledger records it."""


@dataclass(frozen=True, slots=True)
class _Reason:
    """A reason that blocks a promotion unless a bypass covers its gate and target."""

    text: str
    gate: str
    target: str


def verdict(
    wheel_set: WheelSet,
    files: Iterable[EvidenceFile],
    policy: Policy,
    *,
    now: datetime,
    baseline: PromotedSet | None = None,
    offered: Mapping[str, Collection[str]] | None = None,
    yanked: Mapping[str, Collection[str]] | None = None,
    attested: Collection[AttestationReport] = (),
    allow_lower: bool = False,
) -> Verdict:
    """Return the verdict of a policy on a set; every reason that blocks is one sentence.

    Args:
        files: all evidence of the set.
        now: current time, with a time zone.
        baseline: the newest visible set of the index.
        offered: project -> visible versions.
        yanked: project -> visible versions that pip selects only for users who pin
            them.
        attested: report of each provenance file of the set.
        allow_lower: whether a version that pip would not select, or one for an older
            ROCm, causes only a warning.
    """
    files = tuple(files)
    own = counted_evidence(wheel_set, files, policy)
    grown = tuple(growth_problems(wheel_set, policy, baseline)) if baseline else ()
    lower = tuple(order_problems(wheel_set, offered or {}, yanked))
    required_evidence = tuple(requirements(wheel_set, files, policy, now))
    unrequired = tuple(_unrequired_failures(wheel_set, files, policy))
    reasons = (
        *_gate_problems(required_evidence),
        *(reason for reason, on_rocm in unrequired if on_rocm),
    )
    tiers = tiers_of(wheel_set, own, policy, now)
    bypasses = [entry for entry in policy.bypasses if entry.is_for(wheel_set)]
    by_gates, passed_over = _apply(
        [entry for entry in bypasses if not entry.state(now)], reasons, tiers, policy
    )
    blocked = (
        *_foreign_evidence(wheel_set, files),
        *set_problems(wheel_set, policy),
        *rocm_problems(wheel_set, policy),
        *device_member_problems(wheel_set, policy),
        *variant_problems(wheel_set, offered or {}),
        *size_problems(wheel_set, policy),
        *(grown if policy.growth.verdict == "block" else ()),
        *(
            ()
            if allow_lower
            else (f"{text} Give --allow-lower if this is intended." for text in lower)
        ),
        *_attestation_problems(wheel_set, policy, attested),
        *by_gates,
    )
    invalid = (
        *policy.void,
        *_invalid_entries(bypasses, now),
        *_invalid_entries(policy.waivers, now),
    )
    counted = [*chain.from_iterable(own.values())]
    waived = set[str]().union(
        *(waived_tests(evidence, policy.waivers, now) for evidence in counted)
    )
    notes = chain.from_iterable(report.notes for report in attested)
    return Verdict(
        set_digest=wheel_set.digest,
        blocked_by=blocked,
        tiers={
            target: tier.value if tier else NO_TIER for target, tier in tiers.items()
        },
        bypassed=tuple(
            f"{entry}. Passed over: {reason.text}" for reason, entry in passed_over
        ),
        waived=tuple(sorted(waived)),
        missing_waivers=tuple(
            sorted(set(_missing_waivers(wheel_set, counted, policy, now)))
        ),
        attested=wheels_by_signer(attested),
        invalid_bypasses=invalid,
        requirements=required_evidence,
        warnings=(
            *invalid,
            *dict.fromkeys(notes),
            *(grown if policy.growth.verdict == "warn" else ()),
            *(lower if allow_lower else ()),
            *(
                f"{reason.text} It does not block."
                for reason, on_rocm in unrequired
                if not on_rocm
            ),
        ),
    )


def _apply(
    bypasses: Sequence[Bypass],
    reasons: Iterable[_Reason],
    tiers: Mapping[str, Tier | None],
    policy: Policy,
) -> tuple[list[str], list[tuple[_Reason, Bypass]]]:
    """Return the texts of reasons and weak tiers, without and with a valid bypass."""
    blocked: list[str] = []
    passed_over: list[tuple[_Reason, Bypass]] = []
    for reason in reasons:
        entry = next(
            (entry for entry in bypasses if entry.covers(reason.gate, reason.target)),
            None,
        )
        if entry is None:
            blocked.append(reason.text)
        else:
            passed_over.append((reason, entry))
    for target, tier in tiers.items():
        required = policy.required_tier(target)
        if at_least(tier, required):
            continue
        text = (
            f"{target} was tested at tier {tier.value if tier else NO_TIER};"
            f" {required.value} is required."
        )
        entry = _excuse(target, passed_over, policy)
        if entry is None:
            blocked.append(text)
        else:
            passed_over.append((_Reason(text, "", target), entry))
    return blocked, passed_over


def _attestation_problems(
    wheel_set: WheelSet, policy: Policy, attested: Collection[AttestationReport]
) -> Iterator[str]:
    projects = expand(policy.attestations.required, wheel_set)
    attestable = {wheel.filename: wheel.name in projects for wheel in wheel_set.wheels}
    needed = [name for name, required in attestable.items() if required]
    yield from attestation_problems(attestable, needed, policy.attestations, attested)


def _invalid_entries(
    entries: Iterable[Bypass | FlakeWaiver], now: datetime
) -> Iterator[str]:
    for entry in entries:
        if state := entry.state(now):
            kind = "bypass" if isinstance(entry, Bypass) else "waiver"
            yield f"A {kind} is not valid, because it {state}: {entry}."


def _missing_waivers(
    wheel_set: WheelSet, evidences: Iterable[Evidence], policy: Policy, now: datetime
) -> Iterator[str]:
    """Yield the entry of the policy for each flaky test without a valid waiver."""
    for evidence in evidences:
        for test, _ in unwaived_tests(evidence, policy.waivers, now):
            yield suggested_waiver(
                test,
                evidence.target,
                index=wheel_set.index,
                channel=policy.channel,
                now=now,
            )


def _excuse(
    target: str, passed_over: Iterable[tuple[_Reason, Bypass]], policy: Policy
) -> Bypass | None:
    """Return a gate's first applied bypass that meets a target's tier, or None."""
    for reason, entry in passed_over:
        rule = policy.gates.get(reason.gate)
        if (
            rule is not None
            and reason.target == target
            and at_least(rule.tier, policy.required_tier(target))
        ):
            return entry
    return None


def _foreign_evidence(
    wheel_set: WheelSet, files: Iterable[EvidenceFile]
) -> Iterator[str]:
    """Yield a sentence for evidence of another set or with invalid times."""
    evidences = [file.evidence for file in files]
    for digest in sorted(
        {evidence.set_digest for evidence in evidences} - {wheel_set.digest}
    ):
        yield f"The set has evidence of another set: {digest}."
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
            _Reason(f"{where} {problem}", item.gate, item.target)
            for problem in item.problems
        )


def _unrequired_failures(
    wheel_set: WheelSet, files: Iterable[EvidenceFile], policy: Policy
) -> Iterator[tuple[_Reason, bool]]:
    """Yield each failed gate that the policy does not require, and whether it is about ROCm.

    Skipped gates and machine failures do not block. Tests on a CPU or on CUDA use code
    that the set does not contain, and block only if the policy requires them.
    """
    required = set()
    for gate, rule in policy.gates.items():
        targets = rule.required_targets(wheel_set, policy.required_tier)
        required |= {(gate, target) for target in targets}
    ran = [
        file
        for file in files
        if file.evidence.outcome is not Outcome.SKIPPED
        and not is_machine_failure(file.evidence)
    ]
    for (gate, target), (evidence, *_) in counted_evidence(
        wheel_set, ran, policy
    ).items():
        if (gate, target) not in required and evidence.outcome is not Outcome.PASSED:
            text = (
                f"The gate {gate} for {target} did not pass: {first_finding(evidence)}"
            )
            yield (
                _Reason(text, gate, target),
                evidence.tier not in (Tier.CPU, Tier.CUDA),
            )


def tiers_of(
    wheel_set: WheelSet,
    own: Mapping[tuple[str, str], tuple[Evidence, ...]],
    policy: Policy,
    now: datetime,
) -> Mapping[str, Tier | None]:
    """Return gfx target -> strongest tier at which it was tested.

    Args:
        own: evidence of the set that counts, see `counted_evidence`.
    """
    return {
        target: _tier_of(target, wheel_set, own, policy, now)
        for target in wheel_set.targets
    }


def _tier_of(
    target: str,
    wheel_set: WheelSet,
    own: Mapping[tuple[str, str], tuple[Evidence, ...]],
    policy: Policy,
    now: datetime,
) -> Tier | None:
    """Return the strongest tier at which a target was tested."""
    tiers = [
        rule.tier
        for (gate, about), latest in own.items()
        if about == target
        and (rule := policy.gates.get(gate)) is not None
        and rule.tier in TIER_ORDER
        if not evidence_problems(latest, rule.of(target), wheel_set, policy, now)
    ]
    return max(tiers, key=TIER_ORDER.index, default=None)
