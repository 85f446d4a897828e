"""Evidence and policy make a verdict: pure, total, and closed when in doubt."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ci_build.errors import RequestError
from ci_build.model import Evidence, Outcome, RocmVersion, Severity, Tier, Verdict, WheelSet
from ci_build.targets import covers, lists
from promotion.evidence import ANY, latest

POLICY_FILE = Path(__file__).with_name("policy.toml")
LOCAL = "local"
"""The channel of `release --local`."""

COUNTS = ("collected", "run", "passed", "failed", "known", "skipped")
_TIERS = tuple(Tier)
_HOW = {Outcome.FAILED: "failed", Outcome.ERROR: "could not run", Outcome.SKIPPED: "was skipped"}
_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class GateRule:
    """What is asked of one gate; see `policy.toml`."""

    per: str
    min_passed: int | str
    may_skip: bool
    known_failures: bool

    def __post_init__(self) -> None:
        least = self.min_passed
        good = least in ("wheels", "device-members") or (type(least) is int and least > 0)
        switches = (self.may_skip, self.known_failures)
        if self.per not in ("set", "target", "xla-target") or not good or {*map(type, switches)} != {bool}:
            raise RequestError(f"policy.toml has a gate that is not understood: {self}.", hint="See its first lines.")

    def about(self, wheel_set: WheelSet) -> tuple[str, ...]:
        """What there has to be evidence for."""
        match self.per:
            case "set":
                return (ANY,)
            case "target":
                return wheel_set.targets
            case _:
                accepted = lists()["compiler-supported"]
                return tuple(target for target in wheel_set.targets if target.partition(":")[0] in accepted)

    def least(self, wheel_set: WheelSet) -> int:
        """How many checks have to pass for each."""
        match self.min_passed:
            case "wheels":
                return max(1, len(wheel_set.wheels))
            case "device-members":
                return max(1, sum(bool(member.targets) for wheel in wheel_set.wheels for member in wheel.members))
            case int(number):
                return number
            case other:
                raise AssertionError(f"GateRule let {other!r} through")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What one index of one channel asks for; see `policy.toml`.

    Attributes:
        sha256: of the file that it was read from.
    """

    channel: str
    sha256: str
    tier: Tier
    pythons: int
    wheels: tuple[str, ...]
    wheels_per_python: tuple[str, ...]
    pins: tuple[str, ...]
    device_members: Mapping[str, tuple[str, ...]]
    gates: Mapping[str, GateRule]


def load_policy(index: str, *, channel: str = LOCAL, file: Path = POLICY_FILE) -> Policy:
    """Read the policy for an index.

    Raises:
        RequestError: no such channel, or a field that is missing, unknown or of the wrong kind.
    """
    data = file.read_bytes()
    try:
        channels = tomllib.loads(data.decode())
        if channels.pop("schema") != _SCHEMA_VERSION:
            raise ValueError(f"schema is not {_SCHEMA_VERSION}")
        if channel not in channels:
            raise RequestError(f"{file.name} has no channel {channel!r}.", hint=f"It has {', '.join(channels)}.")
        values: dict[str, Any] = channels[channel]
        values |= values.pop("index", {}).get(index, {})
        return Policy(
            channel=channel,
            sha256=hashlib.sha256(data).hexdigest(),
            tier=Tier(values.pop("tier")),
            pythons=int(values.pop("pythons")),
            device_members={name: _strings(paths) for name, paths in values.pop("device_members").items()},
            gates={name: GateRule(**rule) for name, rule in values.pop("gates").items()},
            **{name: _strings(listed) for name, listed in values.items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{file} cannot be used: {error}.", hint="Its first lines say what it may hold.") from error


def _strings(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - whatever TOML holds
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{value!r} is not a list of strings")
    return tuple(value)


def verdict(wheel_set: WheelSet, evidences: Iterable[Evidence], policy: Policy) -> Verdict:
    """What the policy makes of the evidence for a set; every reason that blocks is a sentence of its own."""
    evidences = tuple(evidences)
    own = latest(evidence for evidence in evidences if evidence.set_digest == wheel_set.digest)
    foreign = {evidence.set_digest for evidence in evidences} - {wheel_set.digest}
    counted = [evidence for evidence in own.values() if evidence.gate in policy.gates]
    tiers = {target: _tier_of(target, counted) for target in wheel_set.targets}
    blocked = [
        *(f"There is evidence of another set, {digest}, beside this one." for digest in sorted(foreign)),
        *_about_the_set(wheel_set, policy),
        *_about_device_members(wheel_set, policy),
        *(reason for gate, rule in policy.gates.items() for reason in _about_gate(wheel_set, own, gate, rule)),
        *_about_other_gates(own.values(), policy),
        *_about_tiers(tiers, policy),
    ]
    return Verdict(
        set_digest=wheel_set.digest,
        blocked_by=tuple(blocked),
        tiers={target: tier.value if tier else "none" for target, tier in tiers.items()},
    )


def lacking(embedded: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Wanted targets that no embedded one serves: itself, or a generic target that covers it."""
    embedded = tuple(embedded)
    served = {*embedded, *(concrete for target in embedded for concrete in covers().get(target, ()))}
    return tuple(target for target in wanted if target not in served)


def superfluous(embedded: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Embedded targets that serve no wanted one."""
    wanted = frozenset(wanted)
    return tuple(target for target in embedded if wanted.isdisjoint({target, *covers().get(target, ())}))


def weakest(verdict_: Verdict) -> str:
    """The weakest tier of a verdict: what may be said of the whole set."""
    order = ["none", *(tier.value for tier in _TIERS)]
    return min(verdict_.tiers.values(), key=order.index, default="none")


def _tier_of(target: str, evidences: Iterable[Evidence]) -> Tier | None:
    """How strongly a target was tested: by the best gate that passed on that very target."""
    passed = [e.tier for e in evidences if e.outcome is Outcome.PASSED and e.target == target]
    return max(passed, key=_TIERS.index, default=None)


def _about_the_set(wheel_set: WheelSet, policy: Policy) -> Iterator[str]:
    if not wheel_set.targets:
        yield "The set names no gfx target."
    if len(wheel_set.python_versions) < policy.pythons:
        yield f"The set is for {len(wheel_set.python_versions)} Python versions; {policy.pythons} are asked for."
    names = [wheel.name for wheel in wheel_set.wheels]
    for project in _expand(policy.wheels, wheel_set):
        if names.count(project) != 1:
            yield f"The set has {names.count(project)} wheels of {project}; one is asked for."
    for project in _expand(policy.wheels_per_python, wheel_set):
        pythons = [python for wheel in wheel_set.wheels if wheel.name == project for python in _pythons(wheel.filename)]
        wanted = [f"cp{python.replace('.', '')}" for python in wheel_set.python_versions]
        for python, tag in zip(wheel_set.python_versions, wanted, strict=True):
            if pythons.count(tag) != 1:
                yield f"The set has {pythons.count(tag)} wheels of {project} for Python {python}; one is asked for."
    known = {*_expand(policy.wheels, wheel_set), *_expand(policy.wheels_per_python, wheel_set)}
    for name in sorted(set(names) - known):
        yield f"The set has a wheel of {name}, which the policy does not name."
    for project in policy.pins:
        if project not in wheel_set.pins:
            yield f"The set does not say which version of {project} it is for."


def _about_device_members(wheel_set: WheelSet, policy: Policy) -> Iterator[str]:
    """Which libraries were to hold code for which targets, and do not even promise it."""
    for pattern, paths in policy.device_members.items():
        (project,) = _expand((pattern,), wheel_set)
        for wheel in (wheel for wheel in wheel_set.wheels if wheel.name == project):
            promised = {member.path: member.targets for member in wheel.members}
            for path in _expand(paths, wheel_set):
                for target in lacking(promised.get(path, ()), wheel_set.targets):
                    yield f"{wheel.filename}: {path} does not promise code for {target}."


def _about_gate(
    wheel_set: WheelSet, own: Mapping[tuple[str, str], Evidence], gate: str, rule: GateRule
) -> Iterator[str]:
    for target in rule.about(wheel_set):
        where = f"The gate {gate}" if target == ANY else f"The gate {gate} for {target}"
        evidence = own.get((gate, target))
        if evidence is None:
            yield f"{where} has not run on this set."
        elif evidence.outcome is not Outcome.PASSED:
            yield f"{where} {_HOW[evidence.outcome]}: {_first_finding(evidence)}"
        else:
            yield from (f"{where} {problem}." for problem in _about_counts(evidence, rule.least(wheel_set), rule))


def _about_counts(evidence: Evidence, least: int, rule: GateRule) -> Iterator[str]:
    """What is wrong with the numbers of a gate that says it passed."""
    counts = evidence.counts
    if set(counts) != set(COUNTS) or any(type(count) is not int or count < 0 for count in counts.values()):
        yield f"has counts that make no sense: {dict(counts)}"
        return
    run = counts["passed"] + counts["failed"] + counts["known"]
    if counts["collected"] != counts["run"] + counts["skipped"] or counts["run"] != run:
        yield f"has counts that do not add up: {dict(counts)}"
    if counts["failed"]:
        yield f"says that it passed but counts {counts['failed']} failures"
    if counts["passed"] < least:
        yield f"passed {counts['passed']} checks; {least} are asked for"
    if counts["skipped"] and not rule.may_skip:
        yield f"skipped {counts['skipped']} checks"
    if counts["known"] and not rule.known_failures:
        yield f"counts {counts['known']} failures as known, which the policy does not allow of it"


def _about_other_gates(evidences: Iterable[Evidence], policy: Policy) -> Iterator[str]:
    """A gate that the policy does not ask for blocks all the same when it failed or could not run."""
    for evidence in evidences:
        if evidence.gate not in policy.gates and evidence.outcome in (Outcome.FAILED, Outcome.ERROR):
            yield f"The gate {evidence.gate} for {evidence.target} did not pass: {_first_finding(evidence)}"


def _about_tiers(tiers: Mapping[str, Tier | None], policy: Policy) -> Iterator[str]:
    for target, tier in tiers.items():
        if tier is None or _TIERS.index(tier) < _TIERS.index(policy.tier):
            yield f"{target} was tested at tier {tier.value if tier else 'none'}; {policy.tier.value} is asked for."


def _expand(patterns: Iterable[str], wheel_set: WheelSet) -> tuple[str, ...]:
    major = RocmVersion(text=wheel_set.rocm_version).major
    return tuple(pattern.replace("{major}", str(major)) for pattern in patterns)


def _pythons(filename: str) -> tuple[str, ...]:
    """The interpreter tags of a wheel's file name; none for a name that is not a wheel's."""
    try:
        return tuple({tag.interpreter for tag in parse_wheel_filename(filename)[3]})
    except InvalidWheelFilename:
        return ()


def _first_finding(evidence: Evidence) -> str:
    errors = [finding for finding in evidence.findings if finding.severity is Severity.ERROR] or evidence.findings
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0].message}{more}" if errors else "it does not say why."
