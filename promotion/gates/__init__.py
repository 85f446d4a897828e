"""Gates: each looks at what was staged, never at a build folder, and leaves evidence that names the set's digest."""

from __future__ import annotations

import dataclasses
import os
import platform
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.errors import CiBuildError, GateError, MachineError, RequestError
from core.model import Evidence, Finding, Outcome, Progress, Severity, Tier, Wheel, WheelSet
from core.process import HostRunner, Runner
from promotion.evidence.evidence import (
    ANY,
    ENVIRONMENT,
    TIME,
    is_machine_failure,
    latest_by_part,
    read_all,
    record,
    record_log,
)
from promotion.evidence.signing import Signer
from promotion.gates.common.source import code_digest
from promotion.gates.common.transcript import Transcript
from promotion.policy.policy import EDITION, edition
from promotion.stage import read_staged
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.keys import StagedSet

_MOST_TOLD = 20
"""So many reasons why gates did not pass are told at the end; thousands of tests may fail for the same one."""
_TOLD_OF_ALL = frozenset({"name", "outcome", "why", "findings"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that a gate looked at; it failed when one of its findings is an error, whatever else it says.

    Attributes:
        name: what was looked at, such as a file name.
        skipped: why it was not looked at; empty when it was.
        known: why it was expected to fail and did; empty otherwise.
        target: gfx target that it is about, or ANY.
        times: how many things alike it stands for; 0 when it only tells something.
        details: JSON values worth keeping, under names that evidence has no other use for.
    """

    name: str
    findings: tuple[Finding, ...] = ()
    skipped: str = ""
    known: str = ""
    target: str = ANY
    times: int = 1
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse details that would hide what the evidence says of every check."""
        if taken := _TOLD_OF_ALL & self.details.keys():
            raise ValueError(f"details of a check are called {', '.join(sorted(taken))}")

    @property
    def failed(self) -> bool:
        """Whether it found an error."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def outcome(self) -> str:
        """One of failed, skipped, known, passed: the name of the count that it adds to."""
        return "failed" if self.failed else "skipped" if self.skipped else "known" if self.known else "passed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What a gate works with.

    Attributes:
        targets: those to look at, some or all of the set's; only a gate that works target by target cares.
        work: an empty folder that is removed afterwards.
        shared: a folder that lives as long as the whole run of several gates, for what they can use again.
    """

    bucket: Bucket
    staged: StagedSet
    wheel_set: WheelSet
    targets: tuple[str, ...]
    runner: Runner
    progress: Progress
    work: Path
    shared: Path

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
        per_target: it gives one evidence for each gfx target, else one for the set.
        run: does the work, check by check.
        settings: what it was told, and digests of its own data; evidence that was made with others is no answer.
        partial: it was told to look at a part only, so that its evidence is shown but not kept.
    """

    name: str
    tier: Tier
    per_target: bool
    run: Callable[[Room], Iterable[Check]]
    settings: Mapping[str, str] = field(default_factory=dict)
    partial: bool = False

    def about(self, targets: tuple[str, ...]) -> tuple[str, ...]:
        """What its evidence is about when it is asked for some targets."""
        return targets if self.per_target else (ANY,)


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
    targets: Sequence[str] | None = None,
    redo: bool = False,
    signer: Signer | None = None,
) -> tuple[Evidence, ...]:
    """Run gates on a staged set and put their evidence beside it.

    A gate whose last word on this very set, with these very settings, was that it passed is not run again unless the
    gates were changed since; one that works target by target runs for the targets of which that is not so. A gate
    that fails, or that cannot run, does not keep the others from running.

    Args:
        bucket: where the set is staged.
        staged: the set.
        gates: which ones, in order.
        runner: starts processes.
        progress: told about each step.
        targets: those of the set to look at; None means all.
        redo: run also those that passed.
        signer: signs the evidence; what passed under another key is run again.

    Returns:
        The evidence of these gates, new and old, in order of gates and targets.

    Raises:
        RequestError: a target that the set is not for.
    """
    wheel_set = read_staged(bucket, staged)
    wanted = _wanted(wheel_set, targets)
    last = () if redo else _known(bucket, staged, signer)
    evidences: list[Evidence] = []
    with tempfile.TemporaryDirectory(prefix="gates-") as top:
        shared = Path(top, "shared")
        shared.mkdir()
        for gate in gates:
            about = gate.about(wanted)
            answers = {old.target: old for old in last if old.target in about and _holds(old, gate)}
            pending = tuple(target for target in about if target not in answers)
            if answers:
                on = "this set" if ANY in answers else ", ".join(answers)
                progress.step(f"gate {gate.name} passed before on {on}, at {max(e.ended for e in answers.values())}")
            if pending:
                progress.step(f"gate {gate.name}")
                with tempfile.TemporaryDirectory(prefix=f"{gate.name}-", dir=top) as work:
                    room = Room(
                        bucket=bucket,
                        staged=staged,
                        wheel_set=wheel_set,
                        targets=pending if gate.per_target else wanted,
                        runner=runner,
                        progress=progress,
                        work=Path(work),
                        shared=shared,
                    )
                    answers |= {evidence.target: evidence for evidence in _run(gate, room, signer)}
            evidences += (answers[target] for target in about)
    return tuple(evidences)


def _run(gate: Gate, room: Room, signer: Signer | None) -> list[Evidence]:
    """Run a gate and keep its evidence, with what its processes printed, unless it looked at a part only."""
    transcript = Transcript()
    if isinstance(room.runner, HostRunner):
        room = dataclasses.replace(room, runner=room.runner.also(transcript))
    evidences = _evidence(gate, room)
    if gate.partial:
        return evidences
    if transcript.text:
        logs = record_log(room.bucket, room.staged, gate.name, transcript.text)
        evidences = [dataclasses.replace(evidence, logs=logs) for evidence in evidences]
    for evidence in evidences:
        record(room.bucket, room.staged, evidence, signer=signer)
    return evidences


def _known(bucket: Bucket, staged: StagedSet, signer: Signer | None) -> tuple[Evidence, ...]:
    """What gates last said, as far as the signer would say it again."""
    return latest_by_part(
        said.evidence
        for said in read_all(bucket, staged).values()
        if signer is None or said.key == signer.key or said.evidence.outcome is not Outcome.PASSED
    )


def _wanted(wheel_set: WheelSet, targets: Sequence[str] | None) -> tuple[str, ...]:
    strange = [target for target in targets or () if target not in wheel_set.targets]
    if strange:
        raise RequestError(
            f"The set is not for {', '.join(strange)}.", hint=f"It is for {', '.join(wheel_set.targets)}."
        )
    return wheel_set.targets if targets is None else tuple(t for t in wheel_set.targets if t in targets)


def _settings(gate: Gate) -> dict[str, str]:
    return {**gate.settings, "code": code_digest(), EDITION: edition()}


def _holds(old: Evidence, gate: Gate) -> bool:
    """Whether evidence answers for a gate as it is asked now."""
    return old.gate == gate.name and old.outcome is Outcome.PASSED and old.settings == _settings(gate)


def raise_for_failures(evidences: Iterable[Evidence]) -> None:
    """Raise one error that lists every gate that did not pass, and why.

    Raises:
        GateError: some did not.
        MachineError: the machine alone is to blame for all of these: another one may run them.
    """
    bad = [evidence for evidence in evidences if evidence.outcome in (Outcome.FAILED, Outcome.ERROR)]
    lines = [
        f"{evidence.gate} ({evidence.target}): {finding.message} {finding.remedy}".rstrip()
        for evidence in bad
        for finding in evidence.findings
        if finding.severity is Severity.ERROR
    ]
    if lines := [*dict.fromkeys(lines)]:
        if len(lines) > _MOST_TOLD:
            lines = [*lines[:_MOST_TOLD], f"and {len(lines) - _MOST_TOLD} more, in the evidence."]
        kind = MachineError if all(map(is_machine_failure, bad)) else GateError
        raise kind("\n  ".join(("Gates did not pass:", *lines)))


def _evidence(gate: Gate, room: Room) -> list[Evidence]:
    """Run a gate; whatever keeps it from finishing is evidence too."""
    started = _now()
    failure: tuple[Finding, ...] = ()
    checks: list[Check] = []
    try:
        checks.extend(gate.run(room))
    except CiBuildError as problem:
        code = ENVIRONMENT if isinstance(problem, MachineError) else "gate-error"
        failure = (error(code, problem.message, problem.hint or "Run the gate again."),)
    except OSError as problem:
        failure = (error("gate-error", f"{type(problem).__name__}: {problem}.", "Look at the disk and the memory."),)
    except AssertionError:
        raise
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        text = f"{type(problem).__name__}: {problem} ({Path(where.filename).name}:{where.lineno})."
        failure = (error("gate-error", text, "The gate did not expect this of the set: report it with the set."),)
    return [
        _judge(gate, room.wheel_set, target, [c for c in checks if c.target in (target, ANY)], failure, started)
        for target in gate.about(room.targets)
    ]


def _judge(
    gate: Gate, wheel_set: WheelSet, target: str, checks: Sequence[Check], failure: tuple[Finding, ...], started: str
) -> Evidence:
    count = Counter[str]()
    for check in checks:
        count[check.outcome] += check.times
    if not count.total() and not failure:
        failure = (error("gate-empty", "There was nothing to look at.", "Check what the set holds."),)
    if failure:
        outcome = Outcome.ERROR
    elif count["failed"]:
        outcome = Outcome.FAILED
    elif count["skipped"] == count.total():
        outcome = Outcome.SKIPPED
        text = f"Nothing was run: {next(check.skipped for check in checks if check.skipped)}."
        failure = (Finding(code="gate-skipped", severity=Severity.WARNING, message=text, remedy=""),)
    else:
        outcome = Outcome.PASSED
    return Evidence(
        set_digest=wheel_set.digest,
        gate=gate.name,
        target=target,
        tier=gate.tier,
        outcome=outcome,
        started=started,
        ended=_now(),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        settings=_settings(gate),
        counts={
            "collected": count.total(),
            "run": count.total() - count["skipped"],
            **{word: count[word] for word in ("passed", "failed", "known", "skipped")},
        },
        findings=(*failure, *(f for check in checks for f in check.findings if f.severity is not Severity.NOTE)),
        details={"checks": [_told(check) for check in checks]},
    )


def _told(check: Check) -> Mapping[str, Any]:
    why = check.skipped if check.outcome == "skipped" else check.known if check.outcome == "known" else ""
    found = [f"{finding.code}: {finding.message}" for finding in check.findings]
    told = {"why": why, "findings": found}
    return {"name": check.name, "outcome": check.outcome, **{k: v for k, v in told.items() if v}, **check.details}


def _now() -> str:
    return datetime.now(UTC).strftime(TIME)
