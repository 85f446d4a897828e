"""The verdict of a policy on a set and its evidence.

The computation is pure, and doubtful cases block the promotion. Evidence of a passed gate counts only if the policy
accepts its key. Evidence of a failed gate always counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from core.model import TIER_ORDER, Evidence, Outcome, Severity, Tier, Verdict, WheelSet
from promotion.evidence.attestations import AttestationReport, attestation_problems, wheels_by_signer
from promotion.evidence.evidence import ANY, EvidenceFile, is_machine_failure, latest_by_target, time_of
from promotion.index.ledger import PromotedSet
from promotion.policy.bypasses import Bypass
from promotion.policy.policy import EDITION, GateRule, Policy, at_least
from promotion.policy.set_rules import (
    device_member_problems,
    expand,
    growth_problems,
    order_problems,
    set_problems,
    size_problems,
    variant_problems,
)

COUNTS = ("collected", "run", "passed", "failed", "known", "skipped")
CLOCK_SKEW = timedelta(minutes=5)
"""Accepted difference between the clocks of two machines."""
_NOT_PASSED = {Outcome.FAILED: "failed", Outcome.ERROR: "could not run", Outcome.SKIPPED: "was skipped"}


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
    attested: Collection[AttestationReport] = (),
    allow_lower: bool = False,
) -> Verdict:
    """Return the verdict of a policy on a set; every reason that blocks is one sentence.

    Args:
        files: all evidence of the set.
        now: current time, with a time zone.
        baseline: the newest visible set of the index.
        offered: project -> visible versions.
        attested: report of each provenance file of the set.
        allow_lower: whether a version that pip would not select, or one for an older ROCm, causes only a warning.
    """
    files = tuple(files)
    own = _counted(wheel_set, files, policy)
    grown = tuple(growth_problems(wheel_set, policy, baseline)) if baseline else ()
    lower = tuple(order_problems(wheel_set, offered or {}))
    projects = expand(policy.attestations.required, wheel_set)
    attestable = {wheel.filename: wheel.name in projects for wheel in wheel_set.wheels}
    needed = [name for name, required in attestable.items() if required]
    blocked = [
        *_foreign_evidence(wheel_set, files),
        *set_problems(wheel_set, policy),
        *device_member_problems(wheel_set, policy),
        *variant_problems(wheel_set, offered or {}),
        *size_problems(wheel_set, policy),
        *(grown if policy.growth_blocks else ()),
        *(() if allow_lower else (f"{text} Give --allow-lower if this is intended." for text in lower)),
        *attestation_problems(attestable, needed, policy.attestations, attested),
    ]
    tiers = {target: _tier_of(target, wheel_set, own, policy, now) for target in wheel_set.targets}
    bypasses = [entry for entry in policy.bypasses if entry.is_for(wheel_set)]
    valid = [entry for entry in bypasses if not entry.state(now)]
    passed_over: list[tuple[_Reason, Bypass]] = []
    for reason in (
        *_gate_problems(wheel_set, files, own, policy, now),
        *_unrequired_failures(wheel_set, files, policy),
    ):
        entry = next((entry for entry in valid if entry.covers(reason.gate, reason.target)), None)
        if entry is None:
            blocked.append(reason.text)
        else:
            passed_over.append((reason, entry))
    for target, tier in tiers.items():
        required = policy.required_tier(target)
        if at_least(tier, required):
            continue
        text = f"{target} was tested at tier {tier.value if tier else 'none'}; {required.value} is required."
        entry = _excuse(target, passed_over, policy)
        if entry is None:
            blocked.append(text)
        else:
            passed_over.append((_Reason(text, "", target), entry))
    invalid = (*policy.void, *_invalid_bypasses(bypasses, now))
    return Verdict(
        set_digest=wheel_set.digest,
        blocked_by=tuple(blocked),
        tiers={target: tier.value if tier else "none" for target, tier in tiers.items()},
        bypassed=tuple(f"{entry}. Passed over: {reason.text}" for reason, entry in passed_over),
        attested=wheels_by_signer(attested),
        invalid_bypasses=invalid,
        warnings=(
            *invalid,
            *dict.fromkeys(note for report in attested for note in report.notes),
            *(() if policy.growth_blocks else grown),
            *(lower if allow_lower else ()),
        ),
    )


def _invalid_bypasses(bypasses: Iterable[Bypass], now: datetime) -> Iterator[str]:
    for entry in bypasses:
        if state := entry.state(now):
            yield f"A bypass is not valid, because it {state}: {entry}."


def _excuse(target: str, passed_over: Iterable[tuple[_Reason, Bypass]], policy: Policy) -> Bypass | None:
    """Return the first applied bypass of a gate whose tier meets a target's required tier, or None."""
    for reason, entry in passed_over:
        rule = policy.gates.get(reason.gate)
        if rule is not None and reason.target == target and at_least(rule.tier, policy.required_tier(target)):
            return entry
    return None


def _counts(file: EvidenceFile, policy: Policy) -> bool:
    """Return whether evidence counts: if the gate passed, the policy must accept its key."""
    if file.evidence.outcome is not Outcome.PASSED:
        return True
    if file.flaw:
        return False
    named = bool(file.key) and (policy.keys is None or file.key in policy.keys.values())
    return named or policy.unsigned


def _counted(
    wheel_set: WheelSet, files: Iterable[EvidenceFile], policy: Policy
) -> Mapping[tuple[str, str], tuple[Evidence, ...]]:
    """Return the latest evidence of the set that counts; see `latest_by_target`."""
    this = wheel_set.digest
    return latest_by_target(
        file.evidence for file in files if file.evidence.set_digest == this and _counts(file, policy)
    )


def _foreign_evidence(wheel_set: WheelSet, files: Iterable[EvidenceFile]) -> Iterator[str]:
    """Yield a sentence for evidence of another set or with invalid times."""
    evidences = [file.evidence for file in files]
    for digest in sorted({evidence.set_digest for evidence in evidences} - {wheel_set.digest}):
        yield f"The set has evidence of another set: {digest}."
    for evidence in evidences:
        started, ended = time_of(evidence.started), time_of(evidence.ended)
        if started is None or ended is None or started > ended:
            yield (
                f"The evidence of the gate {evidence.gate} for {evidence.target} has invalid times:"
                f" {evidence.started!r} to {evidence.ended!r}."
            )


def _gate_problems(
    wheel_set: WheelSet,
    files: Collection[EvidenceFile],
    own: Mapping[tuple[str, str], tuple[Evidence, ...]],
    policy: Policy,
    now: datetime,
) -> Iterator[_Reason]:
    for gate, rule in policy.gates.items():
        for target in rule.about(wheel_set, policy):
            where = f"The gate {gate}" if target == ANY else f"The gate {gate} for {target}"
            latest = own.get((gate, target))
            if latest is None:
                problems = [f"has not run on this set{_rejected_evidence(wheel_set, files, gate, target)}."]
            else:
                problems = _problems_of_all(latest, rule, rule.least(wheel_set), policy, now)
            yield from (_Reason(f"{where} {problem}", gate, target) for problem in problems)


def _rejected_evidence(wheel_set: WheelSet, files: Iterable[EvidenceFile], gate: str, target: str) -> str:
    """Return the reasons why existing evidence does not count, as part of a sentence; empty without evidence."""
    reasons = {
        file.flaw.rstrip(".")
        or (f"it is signed with {file.key}, which the policy does not permit" if file.key else "it is unsigned")
        for file in files
        if (file.evidence.gate, file.evidence.target) == (gate, target) and file.evidence.set_digest == wheel_set.digest
    }
    return f" with accepted evidence: {'; '.join(sorted(reasons))}" if reasons else ""


def _problems_of_all(
    latest: Sequence[Evidence], rule: GateRule, least: int, policy: Policy, now: datetime
) -> list[str]:
    """Return why the latest evidence of a gate's parts does not satisfy the policy.

    Every part must have passed, and one part must satisfy the rule.
    """
    problems = [[*_problems(evidence, rule, least, policy, now)] for evidence in latest]
    if latest[0].outcome is not Outcome.PASSED:
        return problems[0]
    return next((reasons for reasons in problems if not reasons), problems[0])


def _problems(evidence: Evidence, rule: GateRule, least: int, policy: Policy, now: datetime) -> Iterator[str]:
    """Yield the reasons why the evidence of one run of a gate does not satisfy the policy."""
    if evidence.outcome is not Outcome.PASSED:
        yield f"{_NOT_PASSED[evidence.outcome]}: {_first_finding(evidence)}"
        return
    if evidence.tier is not rule.tier:
        yield f"has tier {evidence.tier.value}; the policy requires {rule.tier.value}."
    if (used := evidence.settings.get(EDITION, "none")) != str(policy.edition):
        yield f"ran under edition {used} of the policy; edition {policy.edition} is in force."
    for name, expected in rule.settings.items():
        if (used := evidence.settings.get(name, "")) != expected:
            yield f"ran with {name} {used!r}; {expected!r} is required."
    ended = time_of(evidence.ended)
    if ended is not None and ended > now + CLOCK_SKEW:
        yield f"ended at {evidence.ended}, which is in the future: a clock is wrong."
    if ended is not None and policy.max_age_days is not None and now - ended > timedelta(days=policy.max_age_days):
        yield f"ended at {evidence.ended}, more than {policy.max_age_days} days ago."
    yield from _count_problems(evidence, least, rule)


def _count_problems(evidence: Evidence, least: int, rule: GateRule) -> Iterator[str]:
    """Yield problems of the counts of a passed gate."""
    counts = evidence.counts
    if set(counts) != set(COUNTS) or any(type(count) is not int or count < 0 for count in counts.values()):
        yield f"has invalid counts: {dict(counts)}."
        return
    run = counts["passed"] + counts["failed"] + counts["known"]
    if counts["collected"] != counts["run"] + counts["skipped"] or counts["run"] != run:
        yield f"has counts that do not add up: {dict(counts)}."
    if counts["failed"]:
        yield f"passed with {counts['failed']} failures."
    if counts["passed"] < least:
        yield f"passed {counts['passed']} checks; {least} are required."
    if counts["skipped"] and not rule.may_skip:
        yield f"skipped {counts['skipped']} checks."
    if isinstance(rule.known_failures, int):
        if counts["known"] > rule.known_failures:
            yield f"has {counts['known']} known failures; the policy allows {rule.known_failures}."
    elif counts["known"]:
        checks = evidence.details.get("checks")
        tables = [check for check in checks if isinstance(check, dict)] if isinstance(checks, list | tuple) else []
        known_failures = [str(check.get("name")) for check in tables if check.get("outcome") == "known"]
        if len(known_failures) != counts["known"]:
            yield f"counts {counts['known']} known failures but names {len(known_failures)}."
        if strange := sorted(set(known_failures) - set(rule.known_failures)):
            yield f"has failures that the policy does not list as known: {', '.join(strange)}."


def _unrequired_failures(wheel_set: WheelSet, files: Iterable[EvidenceFile], policy: Policy) -> Iterator[_Reason]:
    """Yield each failed gate that the policy does not require; skipped gates and machine failures do not block."""
    required = {(gate, target) for gate, rule in policy.gates.items() for target in rule.about(wheel_set, policy)}
    ran = [
        file for file in files if file.evidence.outcome is not Outcome.SKIPPED and not is_machine_failure(file.evidence)
    ]
    for (gate, target), (evidence, *_) in _counted(wheel_set, ran, policy).items():
        if (gate, target) not in required and evidence.outcome is not Outcome.PASSED:
            text = f"The gate {gate} for {target} did not pass: {_first_finding(evidence)}"
            yield _Reason(text, gate, target)


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
        if about == target and (rule := policy.gates.get(gate)) is not None and rule.tier in TIER_ORDER
        if not _problems_of_all(latest, rule, rule.least(wheel_set), policy, now)
    ]
    return max(tiers, key=TIER_ORDER.index, default=None)


def _first_finding(evidence: Evidence) -> str:
    errors = [finding for finding in evidence.findings if finding.severity is Severity.ERROR] or evidence.findings
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0].message}{more}" if errors else "no reason was given."
