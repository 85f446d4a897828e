"""Gates: each looks at what was staged, never at a build folder, and leaves evidence that names the set's digest."""

from __future__ import annotations

import os
import platform
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ci_build.errors import CiBuildError, GateError
from ci_build.model import Evidence, Finding, Outcome, Progress, Runner, Severity, Tier, Wheel, WheelSet
from promotion.bucket import Bucket, sha256_of
from promotion.evidence import ANY, latest, read_all, record
from promotion.layout import StagedSet
from promotion.stage import read_staged


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that a gate looked at; it failed when one of its findings is an error.

    Attributes:
        name: what was looked at, such as a file name.
        skipped: why it was not looked at; empty when it was.
        target: gfx target that it is about, or ANY.
        details: JSON values worth keeping.
    """

    name: str
    findings: tuple[Finding, ...] = ()
    skipped: str = ""
    target: str = ANY
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether it ran and found an error."""
        return not self.skipped and any(finding.severity is Severity.ERROR for finding in self.findings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What a gate works with.

    Attributes:
        work: an empty folder that is removed afterwards.
    """

    bucket: Bucket
    staged: StagedSet
    wheel_set: WheelSet
    runner: Runner
    progress: Progress
    work: Path

    def wheel(self, wheel: Wheel) -> Path:
        """A staged wheel as a file under its own name; GateError when it is not the one that wheels.json names."""
        path = self.bucket.fetch(self.staged.file(wheel.filename), self.work)
        if (found := sha256_of(path)) != wheel.sha256:
            raise GateError(
                f"The staged {wheel.filename} has sha256 {found}, not {wheel.sha256}.", hint="Stage the set again."
            )
        return path


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A named gate.

    Attributes:
        per_target: it gives one evidence for each gfx target of the set, else one for the set.
        run: does the work, check by check.
    """

    name: str
    tier: Tier
    per_target: bool
    run: Callable[[Room], Iterable[Check]]

    def targets(self, wheel_set: WheelSet) -> tuple[str, ...]:
        """What its evidence is about."""
        return wheel_set.targets if self.per_target else (ANY,)


def error(code: str, message: str, remedy: str, *, member: str = "") -> Finding:
    """A finding that makes a check fail."""
    return Finding(code=code, severity=Severity.ERROR, message=message, remedy=remedy, member=member)


def run_gates(
    bucket: Bucket,
    staged: StagedSet,
    gates: Sequence[Gate],
    runner: Runner,
    progress: Progress,
    *,
    redo: bool = False,
) -> tuple[Evidence, ...]:
    """Run gates on a staged set and put their evidence beside it.

    A gate whose last word on this very set was that it passed is not run again. A gate that fails, or that cannot
    run, does not keep the others from running.

    Args:
        bucket: where the set is staged.
        staged: the set.
        gates: which ones, in order.
        runner: starts processes.
        progress: told about each step.
        redo: run also those that passed.

    Returns:
        The evidence of these gates, new and old.
    """
    wheel_set = read_staged(bucket, staged)
    known = {} if redo else latest(read_all(bucket, staged).values())
    evidences: list[Evidence] = []
    for gate in gates:
        before = [known.get((gate.name, target)) for target in gate.targets(wheel_set)]
        passed = [evidence for evidence in before if evidence and evidence.outcome is Outcome.PASSED]
        if passed and len(passed) == len(before):
            progress.step(f"gate {gate.name} passed on this set at {passed[0].ended}")
            evidences += passed
            continue
        progress.step(f"gate {gate.name}")
        with tempfile.TemporaryDirectory(prefix=f"gate-{gate.name}-") as work:
            room = Room(
                bucket=bucket, staged=staged, wheel_set=wheel_set, runner=runner, progress=progress, work=Path(work)
            )
            fresh = _evidence(gate, room)
        for evidence in fresh:
            record(bucket, staged, evidence)
        evidences += fresh
    return tuple(evidences)


def raise_for_failures(evidences: Iterable[Evidence]) -> None:
    """Raise one GateError that lists every gate that did not pass, and why."""
    lines = [
        f"{evidence.gate} ({evidence.target}): {finding.message} {finding.remedy}"
        for evidence in evidences
        if evidence.outcome is not Outcome.PASSED
        for finding in evidence.findings
        if finding.severity is Severity.ERROR
    ]
    if lines:
        raise GateError("\n  ".join(("Gates did not pass:", *dict.fromkeys(lines))))


def _evidence(gate: Gate, room: Room) -> list[Evidence]:
    """Run a gate; whatever keeps it from finishing is evidence too."""
    started = _now()
    failure: tuple[Finding, ...] = ()
    checks: list[Check] = []
    try:
        checks.extend(gate.run(room))
    except CiBuildError as problem:
        failure = (error("gate-error", problem.message, problem.hint or "Run the gate again."),)
    except OSError as problem:
        failure = (error("gate-error", f"{type(problem).__name__}: {problem}.", "Look at the disk and the memory."),)
    except AssertionError:
        raise
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        text = f"{type(problem).__name__}: {problem} ({Path(where.filename).name}:{where.lineno})."
        failure = (error("gate-error", text, "The gate did not expect this of the set: report it with the set."),)
    return [
        _judge(
            gate, room.wheel_set, target, [check for check in checks if check.target in (target, ANY)], failure, started
        )
        for target in gate.targets(room.wheel_set)
    ]


def _judge(
    gate: Gate, wheel_set: WheelSet, target: str, checks: Sequence[Check], failure: tuple[Finding, ...], started: str
) -> Evidence:
    run = [check for check in checks if not check.skipped]
    failed = [check for check in run if check.failed]
    if not checks and not failure:
        failure = (error("gate-empty", "There was nothing to look at.", "Check what the set holds."),)
    return Evidence(
        set_digest=wheel_set.digest,
        gate=gate.name,
        target=target,
        tier=gate.tier,
        outcome=Outcome.ERROR if failure else Outcome.FAILED if failed else Outcome.PASSED,
        started=started,
        ended=_now(),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        counts={
            "collected": len(checks),
            "run": len(run),
            "passed": len(run) - len(failed),
            "failed": len(failed),
            "skipped": len(checks) - len(run),
        },
        findings=(*failure, *(finding for check in failed for finding in check.findings)),
        details={
            "checks": [
                {
                    "name": check.name,
                    "outcome": "skipped" if check.skipped else "failed" if check.failed else "passed",
                    **({"skipped": check.skipped} if check.skipped else {}),
                    **check.details,
                }
                for check in checks
            ]
        },
    )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
