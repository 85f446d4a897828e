"""Requirements of a policy for the evidence of a set's gates.

Which are met, and why the others are not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
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
from promotion.policy.exceptions import failing_tests, unexcused_tests
from promotion.policy.gate_rules import GateRule
from promotion.policy.promotion_policy import VERSION, Policy

COUNTS = ("collected", "run", "passed", "failed", "known", "skipped")
NEVER_RAN = "has not run on this set"
"""Start of the problem of a gate without accepted evidence."""
_NOT_PASSED = {
    Outcome.FAILED: "failed",
    Outcome.ERROR: "could not run",
    Outcome.SKIPPED: "was skipped",
}


@dataclass(frozen=True, kw_only=True)
class EvidenceCase:
    """The evidence of a set, and the policy that judges it at a time with a time zone."""

    wheel_set: WheelSet
    files: Collection[EvidenceFile]
    policy: Policy
    now: datetime

    @cached_property
    def counted(self) -> tuple[Evidence, ...]:
        """All evidence of the set that counts."""
        own = (file for file in self.files if self.is_own(file))
        return tuple(file.evidence for file in own if not self.refusal(file))

    @cached_property
    def latest(self) -> Mapping[tuple[str, str], tuple[Evidence, ...]]:
        """The latest evidence of the set that counts; see `latest_by_target`."""
        return latest_by_target(self.counted)

    def is_own(self, file: EvidenceFile) -> bool:
        """Return whether evidence is of the set."""
        return file.evidence.set_digest == self.wheel_set.digest

    def required_targets(self, rule: GateRule) -> tuple[str, ...]:
        """Return the targets for which the policy requires evidence of a gate."""
        return rule.required_targets(self.wheel_set, self.policy.required_tier)

    def refusal(self, file: EvidenceFile) -> str:
        """Return why evidence does not count, as part of a sentence; empty if it counts.

        Neither passes nor failures count from an unknown key, from another version of
        the gate, or from the future.
        """
        if file.flaw:
            return file.flaw.rstrip(".")
        evidence = file.evidence
        ended = time_of(evidence.ended)
        if ended is not None and ended > self.now + CLOCK_SKEW:
            return f"it ended at {evidence.ended}, in the future: a clock is wrong"
        rule = self.policy.gates.get(evidence.gate)
        used = evidence.settings.get(VERSION, "none")
        if rule is not None and used != str(rule.version):
            return f"it is of version {used} of the gate, not {rule.version}"
        return _key_problem(file, self.policy)

    def requirements(self) -> Iterator[Requirement]:
        """Yield every requirement of the policy for evidence, in the order of the gates."""
        for gate, rule in self.policy.gates.items():
            for target in self.required_targets(rule):
                yield self._requirement(gate, target, rule.of(target))

    def _requirement(self, gate: str, target: str, rule: GateRule) -> Requirement:
        latest = self.latest.get((gate, target), ())
        if latest:
            problems = self.problems(latest, rule)
            flaky = [*self._earlier_failures(gate, target, latest)]
            failed = bool(flaky) or self._has_failed(latest, rule)
            problems += flaky
        else:
            problems = [f"{NEVER_RAN}{self._rejected(gate, target)}."]
            failed = False
        return Requirement(
            gate=gate,
            target=target,
            ended=latest[0].ended if latest else "",
            problems=tuple(problems),
            failed=failed,
            settings=dict(rule.settings),
            evidence=tuple(map(_summary, latest)),
        )

    def _rejected(self, gate: str, target: str) -> str:
        """Return the reasons why existing evidence does not count, as part of a sentence.

        Empty without evidence.
        """
        reasons = {
            self.refusal(file)
            for file in self.files
            if (file.evidence.gate, file.evidence.target) == (gate, target)
            and self.is_own(file)
        }
        if not reasons:
            return ""
        return f" with accepted evidence: {'; '.join(sorted(reasons))}"

    def problems(self, latest: Sequence[Evidence], rule: GateRule) -> list[str]:
        """Return why the latest evidence of a gate's parts does not satisfy the policy.

        Every part must have passed without a failing test that no exception names, and
        one part must satisfy the rule.
        """
        problems = [[*self._run_problems(evidence, rule)] for evidence in latest]
        if latest[0].outcome is not Outcome.PASSED:
            return problems[0]
        if tests := self._unexcused(latest):
            names = ", ".join(tests)
            return [f"has failing tests without a valid exception: {names}."]
        return next((reasons for reasons in problems if not reasons), problems[0])

    def _tests(self, evidence: Evidence) -> Iterator[tuple[str, str]]:
        """Yield each failing test without a valid exception; see `unexcused_tests`."""
        return unexcused_tests(evidence, self.policy.accepted_exceptions, self.now)

    def _unexcused(self, latest: Iterable[Evidence]) -> tuple[str, ...]:
        """Return the failing tests without a valid exception, and why those are not valid."""
        tests = dict.fromkeys(chain.from_iterable(map(self._tests, latest)))
        return tuple(f"{test} ({why})" if why else test for test, why in tests)

    def _has_failed(self, latest: Sequence[Evidence], rule: GateRule) -> bool:
        """Return whether a part of a gate failed, rather than did not run."""
        if self._unexcused(latest):
            return True
        for evidence in latest:
            known = any(_known_problems(evidence, rule))
            if known or is_failure(evidence) or evidence.counts.get("failed"):
                return True
        return False

    def _earlier_failures(
        self, gate: str, target: str, latest: Iterable[Evidence]
    ) -> Iterator[str]:
        """Yield the failures of a gate's earlier runs, whose latest run passed.

        The set did not change meanwhile, so its tests are flaky. A run of other code of
        the gate says nothing about the set.
        """
        passed = [one for one in latest if one.outcome is Outcome.PASSED]
        for old in self.counted:
            if (old.gate, old.target) != (gate, target) or not is_failure(old):
                continue
            again = any(new.ended > old.ended and _same_run(new, old) for new in passed)
            tests = [test for test, _ in self._tests(old)]
            if again and (tests or not failing_tests(old)):
                what = ", ".join(tests) or first_finding(old)
                yield f"failed at {old.ended} and then passed on the same set: {what}."

    def _run_problems(self, evidence: Evidence, rule: GateRule) -> Iterator[str]:
        """Yield the reasons why evidence of one run of a gate does not satisfy the policy."""
        if evidence.outcome is not Outcome.PASSED:
            yield f"{_NOT_PASSED[evidence.outcome]}: {first_finding(evidence)}"
            return
        if evidence.tier is not rule.tier:
            yield f"has tier {evidence.tier}; the policy requires {rule.tier}."
        for name, expected in rule.settings.items():
            if (used := evidence.settings.get(name, "")) != expected:
                yield f"ran with {name} {used!r}; {expected!r} is required."
        ended = time_of(evidence.ended)
        days = self.policy.max_age_days
        if ended and days is not None and self.now - ended > timedelta(days=days):
            yield f"ended at {evidence.ended}, more than {days} days ago."
        yield from _count_problems(evidence, rule.least(self.wheel_set), rule)


def _summary(evidence: Evidence) -> Mapping[str, str]:
    """Return the end, outcome and distinguishing settings of evidence."""
    settings = {
        name: evidence.settings[name] for name in PARTS if evidence.settings.get(name)
    }
    return {"ended": evidence.ended, "outcome": evidence.outcome.value, **settings}


def has_accepted_key(file: EvidenceFile, policy: Policy) -> bool:
    """Return whether the policy accepts the key of evidence, or its absence."""
    return not _key_problem(file, policy)


def _key_problem(file: EvidenceFile, policy: Policy) -> str:
    if file.flaw and not file.key:
        return file.flaw
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


def _same_run(one: Evidence, other: Evidence) -> bool:
    """Return whether two runs of a gate have the same code and part."""
    names = ("code", *PARTS)
    return all(one.settings.get(name) == other.settings.get(name) for name in names)


def is_failure(evidence: Evidence) -> bool:
    """Return whether a gate failed, for other reasons than those of the machine."""
    bad = evidence.outcome in (Outcome.FAILED, Outcome.ERROR)
    return bad and not is_machine_failure(evidence)


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
