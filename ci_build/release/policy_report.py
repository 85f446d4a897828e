"""Reports of a policy's verdict.

The evidence of each target, and the commands that produce missing evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ci_build.wheelset.source.pins import COMMIT, load_pins, repository_url
from core.frozen import frozen
from core.model import ROCM_LOCK, GfxTarget, Requirement, Verdict, WheelSet
from core.process import render
from core.report import Reporter
from core.targets import family_of
from promotion.evidence.evidence import ANY, PARTS
from promotion.gates.device.device_request import DeviceRequest
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.sessions.passes import MULTI
from promotion.policy.families import GATE, Families, Trigger, load_families
from promotion.storage.object_keys import StagedSet


@frozen
class MissingEvidence:
    """Evidence that the policy requires and does not have.

    Attributes:
        command: command that produces it.
        runs_on: labels of the runners that the command needs; empty for any machine, or
            if no runner is known.
    """

    gate: str
    target: str
    problems: tuple[str, ...]
    command: str
    runs_on: tuple[str, ...]


@frozen
class PolicyReport:
    """A verdict, and the requirements for evidence that are not met."""

    verdict: Verdict
    missing: tuple[MissingEvidence, ...]


def missing_evidence(
    staged: StagedSet,
    wheel_set: WheelSet,
    requirements: Iterable[Requirement],
    *,
    channel: str,
    bucket: str,
) -> tuple[MissingEvidence, ...]:
    """Return the requirements that are not met, with the commands that produce the evidence.

    Args:
        bucket: value of `--bucket`; empty for the default one.
    """
    families = load_families()
    missing = []
    for item in requirements:
        if not item.problems:
            continue
        command = ["python3", "build/ci_build", "gate", item.gate, str(staged)]
        runs_on: tuple[str, ...] = ()
        if item.gate == GATE:
            words, runs_on = _device_words(item, wheel_set, families)
            command += words
        elif item.target != ANY:
            command += ["--targets", item.target]
        if corpus := item.settings.get("corpus"):
            command += ["--corpus", corpus]
        command += ["--channel", channel]
        if bucket:
            command += ["--bucket", bucket]
        if item.ended:
            command.append("--redo")
        found = MissingEvidence(
            gate=item.gate,
            target=item.target,
            problems=item.problems,
            command=render(command),
            runs_on=runs_on,
        )
        missing.append(found)
    return tuple(missing)


def device_request(
    requirement: Requirement,
    wheel_set: WheelSet,
    families: Families,
    *,
    jax_tests: str = "",
) -> tuple[DeviceRequest, tuple[str, ...]]:
    """Return the gate run that produces a target's evidence, and its runners' labels.

    Args:
        jax_tests: JAX's suite; empty selects the suite of the set's commit.
    """
    settings = requirement.settings
    target = GfxTarget.parse(requirement.target)
    index = family_of([target])
    family = families.of_target(target) or families.families.get(index)
    name = family.name if family else index
    request = DeviceRequest(platform=JaxPlatform.ROCM, family=name)
    size = settings.get("size", families.occasions[Trigger.NIGHTLY].size)
    if size and not (family and family.sanity_only):
        request = replace(
            request, jax_tests=jax_tests or jax_suite(wheel_set), size=size
        )
    if family is None or target.processor not in family.targets:
        return request, ()
    runners = family.single or family.multi
    if MULTI in settings.get("passes", "").split():
        runners = family.multi
    if runners:
        devices = max(machines.devices for machines in runners.values())
        request = replace(request, devices=devices)
    return request, tuple(runners)


def _device_words(
    requirement: Requirement, wheel_set: WheelSet, families: Families
) -> tuple[list[str], tuple[str, ...]]:
    """Return the options of the gate device, and the labels of its runners."""
    request, runs_on = device_request(requirement, wheel_set, families)
    words = []
    for name in ("platform", "family", "jax_tests", "size", "devices"):
        if value := getattr(request, name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    if ROCM_LOCK in wheel_set.files:
        words.append("--rocm=set")
    return words, runs_on


def jax_suite(wheel_set: WheelSet) -> str:
    """Return JAX's suite at the commit of a set, or else of its release, as URL@commit.

    If the commit is unknown, the text names the release in its place.
    """
    source = wheel_set.request.get("source")
    own = str(source.get("jax_commit", "")) if isinstance(source, Mapping) else ""
    commit = own or load_pins().tags.get(wheel_set.jax_version, "")
    if not COMMIT.fullmatch(commit):
        commit = f"<commit of jax {wheel_set.jax_version}>"
    return f"{repository_url('jax')}@{commit}"


def show_report(report: PolicyReport, reporter: Reporter) -> None:
    """Print each target's evidence, commands for missing evidence, and missing exceptions."""
    rows = [
        (item.target, item.gate, _present(item), "; ".join(item.problems) or "accepted")
        for item in sorted(report.verdict.requirements, key=_by_target)
    ]
    reporter.table(("target", "gate", "evidence", "state"), rows)
    if not report.verdict.blocked_by:  # Exceptions excuse the missing evidence.
        return
    for found in sorted(report.missing, key=_by_target):
        runners = " or ".join(found.runs_on)
        where = f"{found.target} on {runners}" if runners else found.target
        reporter.line(f"  to produce the missing evidence for {where}:")
        reporter.command(f"    {found.command}")
    if entries := report.verdict.missing_exceptions:
        _show_ways_on(report, entries, reporter)


def _show_ways_on(
    report: PolicyReport, entries: Sequence[str], reporter: Reporter
) -> None:
    """Print the changes of the policy that accept missing GPU tests and flaky tests."""
    verdict = report.verdict
    never_ran = [
        item.target
        for item in verdict.requirements
        if item.gate == GATE and not item.evidence
    ]
    if never_ran:
        tiers = [f'"{target}" = "{verdict.tiers[target]}"' for target in never_ran]
        reporter.line(
            "  to require less of these targets for good, set this for their index in"
            " promotion/policy.toml:"
        )
        reporter.command(f"    tiers = {{ {', '.join(tiers)} }}")
    reporter.line(
        "  to promote once without these runs, or with these flaky tests, add this to"
        " promotion/policy.toml with an owner and a reason:"
    )
    for line in "\n\n".join(entries).splitlines():
        reporter.command(f"    {line}")


def _by_target(item: Requirement | MissingEvidence) -> tuple[str, str]:
    return item.target, item.gate


def _present(requirement: Requirement) -> str:
    """Return the times of the present evidence, and its distinguishing settings."""
    texts = []
    for evidence in requirement.evidence:
        settings = [f"{name} {evidence[name]}" for name in PARTS if name in evidence]
        distinct = f" ({', '.join(settings)})" if settings else ""
        texts.append(f"{evidence['ended']}{distinct}")
    return "; ".join(texts) or "-"
