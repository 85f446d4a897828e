"""Evidence and policy make a verdict: pure, total, and closed when in doubt.

Good news counts only from keys that the policy trusts; bad news counts whoever brings it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from core.model import LADDER, Evidence, Outcome, Severity, Tier, Verdict, WheelSet
from promotion.evidence.attestations import AttestationReport, attestation_problems, wheels_by_signer
from promotion.evidence.evidence import ANY, EvidenceFile, is_machine_failure, latest_by_target, time_of
from promotion.index.ledger import PromotedSet
from promotion.policy import tiers as tiers_of
from promotion.policy.bypasses import Bypass
from promotion.policy.policy import EDITION, GateRule, Policy, at_least
from promotion.policy.set_rules import (
    device_member_problems,
    expand,
    growth_problems,
    set_problems,
    size_problems,
    variant_problems,
)

COUNTS = ("collected", "run", "passed", "failed", "known", "skipped")
CLOCK_SKEW = timedelta(minutes=5)
"""So much may the clocks of two machines differ."""
_HOW = {Outcome.FAILED: "failed", Outcome.ERROR: "could not run", Outcome.SKIPPED: "was skipped"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reason:
    """Why a set is not promoted.

    Attributes:
        gate, target: what a bypass has to cover; nothing passes over a reason without them.
    """

    text: str
    gate: str = ""
    target: str = ""


def verdict(
    wheel_set: WheelSet,
    said: Iterable[EvidenceFile],
    policy: Policy,
    *,
    now: datetime,
    baseline: PromotedSet | None = None,
    offered: Mapping[str, Collection[str]] | None = None,
    attested: Collection[AttestationReport] = (),
) -> Verdict:
    """What the policy makes of the evidence for a set; every reason that blocks is a sentence of its own.

    Args:
        wheel_set: the set.
        said: all evidence that lies beside it.
        policy: what is asked.
        now: the time, with its zone.
        baseline: the set that came to the index last, of those that users see.
        offered: project -> versions that users see.
        attested: what was found out about each provenance file beside it.
    """
    said = tuple(said)
    own = _counted(wheel_set, said, policy)
    grown = tuple(growth_problems(wheel_set, policy, baseline)) if baseline else ()
    reasons = [
        *(_Reason(text=text) for text in _about_strangers(wheel_set, said)),
        *(_Reason(text=text) for text in set_problems(wheel_set, policy)),
        *(_Reason(text=text) for text in device_member_problems(wheel_set, policy)),
        *(_Reason(text=text) for text in variant_problems(wheel_set, offered or {})),
        *(_Reason(text=text) for text in size_problems(wheel_set, policy)),
        *(_Reason(text=text) for text in grown if policy.growth_blocks),
        *(_Reason(text=text) for text in _about_attestations(wheel_set, policy, attested)),
        *_about_gates(wheel_set, said, own, policy, now),
        *_about_what_nobody_asked(wheel_set, said, policy),
    ]
    tiers = {target: _tier_of(target, wheel_set, own, policy, now) for target in wheel_set.targets}
    blocked, passed_over = _pass_over(reasons, [entry for entry in _entries(wheel_set, policy) if not entry.state(now)])
    for reason in _about_tiers(tiers, policy):
        entry = _excuse(reason.target, passed_over, policy)
        if entry is None:
            blocked.append(reason)
        else:
            passed_over.append((reason, entry))
    return Verdict(
        set_digest=wheel_set.digest,
        blocked_by=tuple(reason.text for reason in blocked),
        tiers={target: tier.value if tier else "none" for target, tier in tiers.items()},
        bypassed=tuple(f"{entry}. Passed over: {reason.text}" for reason, entry in passed_over),
        attested=wheels_by_signer(attested),
        warnings=(
            *policy.void,
            *dict.fromkeys(note for found in attested for note in found.notes),
            *_about_idle_bypasses(wheel_set, policy, now),
            *(() if policy.growth_blocks else grown),
        ),
    )


def weakest(verdict_: Verdict) -> str:
    """The weakest tier of a verdict: what may be said of the whole set."""
    return tiers_of.weakest(verdict_.tiers)


def _entries(wheel_set: WheelSet, policy: Policy) -> Iterator[Bypass]:
    return (entry for entry in policy.bypasses if entry.is_for(wheel_set))


def _about_idle_bypasses(wheel_set: WheelSet, policy: Policy, now: datetime) -> Iterator[str]:
    for entry in _entries(wheel_set, policy):
        if state := entry.state(now):
            yield f"The bypass {entry} does not count: it {state}."


def _pass_over(
    reasons: Iterable[_Reason], entries: Collection[Bypass]
) -> tuple[list[_Reason], list[tuple[_Reason, Bypass]]]:
    """The reasons that block, and those that a bypass passes over."""
    blocked, passed_over = [], []
    for reason in reasons:
        entry = next((entry for entry in entries if reason.gate and entry.covers(reason.gate, reason.target)), None)
        if entry is None:
            blocked.append(reason)
        else:
            passed_over.append((reason, entry))
    return blocked, passed_over


def _excuse(target: str, passed_over: Iterable[tuple[_Reason, Bypass]], policy: Policy) -> Bypass | None:
    """The bypass that passed over a gate which would have given a target the tier that is asked for."""
    for reason, entry in passed_over:
        rule = policy.gates.get(reason.gate)
        if rule is not None and reason.target == target and at_least(rule.tier, policy.asked(target)):
            return entry
    return None


def _counts(statement: EvidenceFile, policy: Policy) -> bool:
    """Whether the policy listens to whoever says this."""
    if statement.evidence.outcome is not Outcome.PASSED:
        return True
    if statement.flaw:
        return False
    named = bool(statement.key) and (policy.keys is None or statement.key in policy.keys.values())
    return named or policy.unsigned


def _counted(
    wheel_set: WheelSet, said: Iterable[EvidenceFile], policy: Policy
) -> Mapping[tuple[str, str], tuple[Evidence, ...]]:
    """The last words of each gate on each target of this very set, see `standing`."""
    this = wheel_set.digest
    return latest_by_target(
        statement.evidence for statement in said if statement.evidence.set_digest == this and _counts(statement, policy)
    )


def _about_strangers(wheel_set: WheelSet, said: Iterable[EvidenceFile]) -> Iterator[str]:
    """Evidence that cannot be put in its place: of another set, or of no time."""
    evidences = [statement.evidence for statement in said]
    for digest in sorted({evidence.set_digest for evidence in evidences} - {wheel_set.digest}):
        yield f"There is evidence of another set, {digest}, beside this one."
    for evidence in evidences:
        started, ended = time_of(evidence.started), time_of(evidence.ended)
        if started is None or ended is None or started > ended:
            yield (
                f"There is evidence of the gate {evidence.gate} for {evidence.target} with times that make no sense:"
                f" {evidence.started!r} to {evidence.ended!r}."
            )


def _about_attestations(wheel_set: WheelSet, policy: Policy, attested: Collection[AttestationReport]) -> Iterator[str]:
    rule, names = policy.attestations, [wheel.filename for wheel in wheel_set.wheels]
    projects = expand(rule.required, wheel_set)
    needed = [wheel.filename for wheel in wheel_set.wheels if wheel.name in projects]
    return attestation_problems(names, needed, rule, attested)


def _where(gate: str, target: str) -> str:
    return f"The gate {gate}" if target == ANY else f"The gate {gate} for {target}"


def _about_gates(
    wheel_set: WheelSet,
    said: Collection[EvidenceFile],
    own: Mapping[tuple[str, str], tuple[Evidence, ...]],
    policy: Policy,
    now: datetime,
) -> Iterator[_Reason]:
    for gate, rule in policy.gates.items():
        for target in rule.about(wheel_set, policy):
            where, words = _where(gate, target), own.get((gate, target))
            if words is None:
                problems: Iterable[str] = [f"has not run on this set{_unheard(wheel_set, said, gate, target)}."]
            else:
                problems = _problems_of_all(words, rule, rule.least(wheel_set), policy, now)
            yield from (_Reason(text=f"{where} {problem}", gate=gate, target=target) for problem in problems)


def _unheard(wheel_set: WheelSet, said: Iterable[EvidenceFile], gate: str, target: str) -> str:
    """Why what lies there does not count, as a clause; empty when nothing does."""
    reasons = {
        statement.flaw.rstrip(".")
        or (f"it is signed with {statement.key}, which the policy does not name" if statement.key else "it is unsigned")
        for statement in said
        if (statement.evidence.gate, statement.evidence.target) == (gate, target)
        and statement.evidence.set_digest == wheel_set.digest
    }
    return f", as far as the policy believes it: {'; '.join(sorted(reasons))}" if reasons else ""


def _problems_of_all(
    words: Sequence[Evidence], rule: GateRule, least: int, policy: Policy, now: datetime
) -> Sequence[str]:
    """Why a gate's last words are not what the policy asks for: one of them has to be, and none may be bad."""
    problems = [[*_problems(evidence, rule, least, policy, now)] for evidence in words]
    if words[0].outcome is not Outcome.PASSED:
        return problems[0]
    return next((found for found in problems if not found), problems[0])


def _problems(evidence: Evidence, rule: GateRule, least: int, policy: Policy, now: datetime) -> Iterator[str]:
    """Why a gate's last word is not what the policy asks for, each with a full stop."""
    if evidence.outcome is not Outcome.PASSED:
        yield f"{_HOW[evidence.outcome]}: {_first_finding(evidence)}"
        return
    if evidence.tier is not rule.tier:
        yield f"claims tier {evidence.tier.value}; the policy has it at {rule.tier.value}."
    if (told := evidence.settings.get(EDITION, "none")) != str(policy.edition):
        yield f"ran under edition {told} of the policy; edition {policy.edition} is in force."
    for name, wanted in rule.settings.items():
        if (told := evidence.settings.get(name, "")) != wanted:
            yield f"was told {name} {told!r}; {wanted!r} is asked for."
    ended = time_of(evidence.ended)
    if ended is not None and ended > now + CLOCK_SKEW:
        yield f"ended at {evidence.ended}, which is yet to come: a clock is wrong."
    if ended is not None and policy.max_age_days is not None and now - ended > timedelta(days=policy.max_age_days):
        yield f"ended at {evidence.ended}, more than {policy.max_age_days} days ago."
    yield from _about_counts(evidence, least, rule)


def _about_counts(evidence: Evidence, least: int, rule: GateRule) -> Iterator[str]:
    """What is wrong with the numbers of a gate that says it passed."""
    counts = evidence.counts
    if set(counts) != set(COUNTS) or any(type(count) is not int or count < 0 for count in counts.values()):
        yield f"has counts that make no sense: {dict(counts)}."
        return
    run = counts["passed"] + counts["failed"] + counts["known"]
    if counts["collected"] != counts["run"] + counts["skipped"] or counts["run"] != run:
        yield f"has counts that do not add up: {dict(counts)}."
    if counts["failed"]:
        yield f"says that it passed but counts {counts['failed']} failures."
    if counts["passed"] < least:
        yield f"passed {counts['passed']} checks; {least} are asked for."
    if counts["skipped"] and not rule.may_skip:
        yield f"skipped {counts['skipped']} checks."
    if isinstance(rule.known_failures, int):
        if counts["known"] > rule.known_failures:
            yield f"counts {counts['known']} failures as known; the policy allows {rule.known_failures}."
    elif counts["known"]:
        known = _known_checks(evidence)
        if len(known) != counts["known"]:
            yield f"counts {counts['known']} failures as known but names {len(known)}."
        if strange := sorted(set(known) - set(rule.known_failures)):
            yield f"has failures that the policy does not know: {', '.join(strange)}."


def _known_checks(evidence: Evidence) -> list[str]:
    checks = evidence.details.get("checks")
    tables = [check for check in checks if isinstance(check, dict)] if isinstance(checks, list | tuple) else []
    return [str(check.get("name")) for check in tables if check.get("outcome") == "known"]


def _about_what_nobody_asked(wheel_set: WheelSet, said: Iterable[EvidenceFile], policy: Policy) -> Iterator[_Reason]:
    """A gate that failed or could not run blocks all the same until it passes.

    Being skipped is nothing then, and so is a machine that was not fit to run it: that says nothing of the set.
    """
    asked = {(gate, target) for gate, rule in policy.gates.items() for target in rule.about(wheel_set, policy)}
    ran = [
        statement
        for statement in said
        if statement.evidence.outcome is not Outcome.SKIPPED and not is_machine_failure(statement.evidence)
    ]
    for (gate, target), (evidence, *_) in _counted(wheel_set, ran, policy).items():
        if (gate, target) not in asked and evidence.outcome is not Outcome.PASSED:
            text = f"The gate {gate} for {target} did not pass: {_first_finding(evidence)}"
            yield _Reason(text=text, gate=gate, target=target)


def _tier_of(
    target: str,
    wheel_set: WheelSet,
    own: Mapping[tuple[str, str], tuple[Evidence, ...]],
    policy: Policy,
    now: datetime,
) -> Tier | None:
    """How strongly a target was tested: by the best gate whose word on that very target counts."""
    tiers = [
        rule.tier
        for (gate, about), words in own.items()
        if about == target and (rule := policy.gates.get(gate)) is not None and rule.tier in LADDER
        if not _problems_of_all(words, rule, rule.least(wheel_set), policy, now)
    ]
    return max(tiers, key=LADDER.index, default=None)


def _about_tiers(tiers: Mapping[str, Tier | None], policy: Policy) -> Iterator[_Reason]:
    for target, tier in tiers.items():
        if not at_least(tier, policy.asked(target)):
            asked, was = policy.asked(target).value, tier.value if tier else "none"
            yield _Reason(text=f"{target} was tested at tier {was}; {asked} is asked for.", target=target)


def _first_finding(evidence: Evidence) -> str:
    errors = [finding for finding in evidence.findings if finding.severity is Severity.ERROR] or evidence.findings
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0].message}{more}" if errors else "it does not say why."
