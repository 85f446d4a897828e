"""Requirements of a policy for the evidence of a set's gates.

Which are met, and why the others are not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain

from core.model import Evidence, Outcome, Requirement, Severity, WheelSet
from promotion.evidence.evidence import (
    CLOCK_SKEW,
    PARTS,
    EvidenceFile,
    check_records,
    is_machine_failure,
    latest_by_target,
    time_of,
)
from promotion.policy.exceptions import (
    PolicyException,
    failing_tests,
    unexcused_tests,
)
from promotion.policy.gate_rules import GateRule
from promotion.policy.promotion_policy import VERSION, Policy

COUNTS = ("collected", "run", "passed", "failed", "known", "skipped")
DISTINCT_SETTINGS = (*PARTS, "image")
"""Settings that distinguish several runs of a gate on a target."""
NEVER_RAN = "has not run on this set"
"""Start of the problem of a gate without accepted evidence."""
_NOT_PASSED = {
    Outcome.FAILED: "failed",
    Outcome.ERROR: "could not run",
    Outcome.SKIPPED: "was skipped",
}


def requirements(
    wheel_set: WheelSet, files: Collection[EvidenceFile], policy: Policy, now: datetime
) -> Iterator[Requirement]:
    """Yield every requirement of a policy for the evidence of a set, in the order of the gates."""
    counted = [*_counted(wheel_set, files, policy, now)]
    own = latest_by_target(counted)
    for gate, rule in policy.gates.items():
        for target in rule.required_targets(wheel_set, policy.required_tier):
            latest = own.get((gate, target), ())
            if latest:
                own_rule = rule.of(target)
                problems = evidence_problems(latest, own_rule, wheel_set, policy, now)
                flaky = [
                    *_earlier_failures(
                        gate, target, latest, counted, policy.accepted_exceptions, now
                    )
                ]
                failed = bool(flaky) or any(_failures(latest, own_rule, policy, now))
                problems += flaky
            else:
                rejected = _rejected_evidence(
                    wheel_set, files, policy, gate, target, now
                )
                problems = [f"{NEVER_RAN}{rejected}."]
                failed = False
            yield Requirement(
                gate=gate,
                target=target,
                ended=latest[0].ended if latest else "",
                problems=tuple(problems),
                failed=failed,
                settings=dict(rule.of(target).settings),
                evidence=tuple(map(_summary, latest)),
            )


def _summary(evidence: Evidence) -> Mapping[str, str]:
    """Return the end, outcome and distinguishing settings of evidence."""
    settings = {
        name: evidence.settings[name]
        for name in DISTINCT_SETTINGS
        if evidence.settings.get(name)
    }
    return {"ended": evidence.ended, "outcome": evidence.outcome.value, **settings}


def has_accepted_key(file: EvidenceFile, policy: Policy) -> bool:
    """Return whether the policy accepts the key of evidence, or its absence."""
    return not _key_problem(file, policy)


def _key_problem(file: EvidenceFile, policy: Policy) -> str:
    if file.flaw:
        return file.flaw.rstrip(".")
    if policy.unsigned or (file.key and policy.keys is None):
        return ""
    if not file.key:
        return "it is unsigned"
    own = {who: one for who, one in (policy.keys or {}).items() if one.key == file.key}
    about = (file.evidence.gate, file.evidence.target)
    if any(one.may_sign(*about) for one in own.values()):
        return ""
    if own:
        return f"the key of {', '.join(own)} may not sign it"
    return f"it is signed with {file.key}, which the policy does not permit"


def refusal(file: EvidenceFile, policy: Policy, now: datetime) -> str:
    """Return why evidence does not count, as part of a sentence; empty if it counts.

    Neither passes nor failures count from an unknown key, from another version of the
    gate, or from the future.
    """
    evidence = file.evidence
    ended = time_of(evidence.ended)
    if ended is not None and ended > now + CLOCK_SKEW:
        return f"it ended at {evidence.ended}, in the future: a clock is wrong"
    rule = policy.gates.get(evidence.gate)
    used = evidence.settings.get(VERSION, "none")
    if rule is not None and used != str(rule.version):
        return f"it is of version {used} of the gate, not {rule.version}"
    return _key_problem(file, policy)


def counted_evidence(
    wheel_set: WheelSet, files: Iterable[EvidenceFile], policy: Policy, now: datetime
) -> Mapping[tuple[str, str], tuple[Evidence, ...]]:
    """Return the latest evidence of the set that counts; see `latest_by_target`."""
    return latest_by_target(_counted(wheel_set, files, policy, now))


def _counted(
    wheel_set: WheelSet, files: Iterable[EvidenceFile], policy: Policy, now: datetime
) -> Iterator[Evidence]:
    """Yield all evidence of the set that counts."""
    for file in files:
        mine = file.evidence.set_digest == wheel_set.digest
        if mine and not refusal(file, policy, now):
            yield file.evidence


def _rejected_evidence(
    wheel_set: WheelSet,
    files: Iterable[EvidenceFile],
    policy: Policy,
    gate: str,
    target: str,
    now: datetime,
) -> str:
    """Return the reasons why existing evidence does not count, as part of a sentence.

    Empty without evidence.
    """
    reasons = {
        refusal(file, policy, now)
        for file in files
        if (file.evidence.gate, file.evidence.target) == (gate, target)
        and file.evidence.set_digest == wheel_set.digest
    }
    return f" with accepted evidence: {'; '.join(sorted(reasons))}" if reasons else ""


def evidence_problems(
    latest: Sequence[Evidence],
    rule: GateRule,
    wheel_set: WheelSet,
    policy: Policy,
    now: datetime,
) -> list[str]:
    """Return why the latest evidence of a gate's parts does not satisfy the policy.

    Every part must have passed without a failing test that no exception names, and one
    part must satisfy the rule.
    """
    least = rule.least(wheel_set)
    problems = [[*_problems(evidence, rule, least, policy, now)] for evidence in latest]
    if latest[0].outcome is not Outcome.PASSED:
        return problems[0]
    if tests := _unexcused(latest, policy, now):
        return [f"has failing tests without a valid exception: {', '.join(tests)}."]
    return next((reasons for reasons in problems if not reasons), problems[0])


def _unexcused(
    latest: Iterable[Evidence], policy: Policy, now: datetime
) -> tuple[str, ...]:
    """Return the failing tests without a valid exception, and why those are not valid."""
    tests = chain.from_iterable(
        unexcused_tests(evidence, policy.accepted_exceptions, now)
        for evidence in latest
    )
    return tuple(
        f"{test} ({why})" if why else test for test, why in dict.fromkeys(tests)
    )


def _failures(
    latest: Sequence[Evidence], rule: GateRule, policy: Policy, now: datetime
) -> Iterator[str]:
    """Yield what failed in the latest evidence of a gate's parts.

    Everything else is a part of the gate that did not run.
    """
    yield from _unexcused(latest, policy, now)
    for evidence in latest:
        if is_failure(evidence):
            yield first_finding(evidence)
        yield from _known_problems(evidence, rule)
        if evidence.counts.get("failed"):
            yield "failures"


def _earlier_failures(
    gate: str,
    target: str,
    latest: Iterable[Evidence],
    counted: Iterable[Evidence],
    exceptions: Sequence[PolicyException],
    now: datetime,
) -> Iterator[str]:
    """Yield the failures of a gate's earlier runs, whose latest run passed.

    The set did not change meanwhile, so its tests are flaky. A run of other code of the
    gate says nothing about the set.
    """
    passed = [one for one in latest if one.outcome is Outcome.PASSED]
    for old in counted:
        if (old.gate, old.target) != (gate, target) or not is_failure(old):
            continue
        again = any(new.ended > old.ended and _same_run(new, old) for new in passed)
        tests = [test for test, _ in unexcused_tests(old, exceptions, now)]
        if again and (tests or not failing_tests(old)):
            what = ", ".join(tests) or first_finding(old)
            yield f"failed at {old.ended} and then passed on the same set: {what}."


def _same_run(one: Evidence, other: Evidence) -> bool:
    """Return whether two runs of a gate have the same code and part."""
    names = ("code", *PARTS)
    return all(one.settings.get(name) == other.settings.get(name) for name in names)


def is_failure(evidence: Evidence) -> bool:
    """Return whether a gate failed, for other reasons than those of the machine."""
    bad = evidence.outcome in (Outcome.FAILED, Outcome.ERROR)
    return bad and not is_machine_failure(evidence)


def _problems(
    evidence: Evidence, rule: GateRule, least: int, policy: Policy, now: datetime
) -> Iterator[str]:
    """Yield the reasons why the evidence of one run of a gate does not satisfy the policy."""
    if evidence.outcome is not Outcome.PASSED:
        yield f"{_NOT_PASSED[evidence.outcome]}: {first_finding(evidence)}"
        return
    if evidence.tier is not rule.tier:
        yield f"has tier {evidence.tier.value}; the policy requires {rule.tier.value}."
    for name, expected in rule.settings.items():
        if (used := evidence.settings.get(name, "")) != expected:
            yield f"ran with {name} {used!r}; {expected!r} is required."
    ended = time_of(evidence.ended)
    if (
        ended is not None
        and policy.max_age_days is not None
        and now - ended > timedelta(days=policy.max_age_days)
    ):
        yield f"ended at {evidence.ended}, more than {policy.max_age_days} days ago."
    yield from _count_problems(evidence, least, rule)


def _count_problems(evidence: Evidence, least: int, rule: GateRule) -> Iterator[str]:
    """Yield problems of the counts of a passed gate."""
    counts = evidence.counts
    if set(counts) != set(COUNTS) or any(
        type(count) is not int or count < 0 for count in counts.values()
    ):
        yield f"has invalid counts: {dict(counts)}."
        return
    run = counts["passed"] + counts["failed"] + counts["known"]
    if counts["collected"] != counts["run"] + counts["skipped"] or counts["run"] != run:
        yield f"has counts that do not add up: {dict(counts)}."
    if counts["failed"]:
        yield f"passed with {counts['failed']} failures."
    if counts["passed"] < least:
        yield f"passed {counts['passed']} checks; {least} are required."
    if counts["skipped"] * 100 > rule.max_skipped * counts["collected"]:
        yield (
            f"skipped {counts['skipped']} of {counts['collected']} checks;"
            f" {rule.max_skipped} % are allowed."
        )
    yield from _known_problems(evidence, rule)


def _known_problems(evidence: Evidence, rule: GateRule) -> Iterator[str]:
    """Yield problems of the known failures of a gate."""
    # A failing test is no known failure of the gate; each needs an exception.
    excused = failing_tests(evidence)
    known = evidence.counts.get("known", 0) - len(excused)
    if isinstance(rule.known_failures, int):
        if known > rule.known_failures:
            yield (
                f"has {known} known failures; the policy allows {rule.known_failures}."
            )
    elif known:
        names = [
            str(check.get("name"))
            for check in check_records(evidence)
            if check.get("outcome") == "known"
        ]
        known_failures = [name for name in names if name not in excused]
        if len(known_failures) != known:
            yield f"counts {known} known failures but names {len(known_failures)}."
        if strange := sorted(set(known_failures) - set(rule.known_failures)):
            yield (
                "has failures that the policy does not list as known:"
                f" {', '.join(strange)}."
            )


def first_finding(evidence: Evidence) -> str:
    """Return the first error of a gate, and the number of further ones."""
    errors = [
        finding for finding in evidence.findings if finding.severity is Severity.ERROR
    ] or evidence.findings
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0].message}{more}" if errors else "no reason was given."
